"""Clean points given noisy and incomplete ones, under a mixture of normal distributions.

A point x of component k is N(m, S); z = x + e is seen, e ~ N(0, E) with a diagonal E, without the columns M
that are NaN. With A = S + E, P = A^-1 = W W^T and gap = z - m, expected where z is missing:

    log density of the component    log pi - 1/2 log det A - 1/2 log det P_MM - 1/2 q,   q = gap^T P gap
    mean of x in it                 z - E P gap = m + S P gap
    variances of x in it            diag(S - S P S) + |L_M^-1 (P S)_M|^2 by columns,   L_M L_M^T = P_MM

A row's result depends on that row and the components alone, to the last bit, on every machine: sums have a
fixed order, and nothing comes from a library. The same kernel therefore may look at private records.

In `mixture/`, `components` holds what is prepared, `blocks` rows and what is missing in them, `densities` the
shares of the components, `moments` the results and `draws` random numbers in place of means.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.mixture.blocks import expect_missing, take_block
from dpmd_fast.kernels.mixture.components import PosteriorComponents, make_components
from dpmd_fast.kernels.mixture.densities import complete_logs, set_shares
from dpmd_fast.kernels.mixture.draws import bits_of_rows, draw_block
from dpmd_fast.kernels.mixture.moments import multiply_counting, note_all, set_moments
from dpmd_fast.kernels.rows import each_row
from dpmd_fast.kernels.scratch import as_argument

__all__ = ["PosteriorComponents", "draw_missing", "log_densities", "make_components", "posterior"]

# Rows that one call of the inner function takes, half as many if their products fill the cache. With 128, the
# products of a row with all components lie multiples of 4096 bytes apart for 20 columns, where they share a
# set of the cache: moments take 1.5 times as long.
_BLOCK = 120
_CACHED = 1 << 16  # numbers
_NO_BITS = np.empty((0, 0), np.uint64)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def posterior(
    components: PosteriorComponents,
    Z: np.ndarray,
    *,
    deviations: bool,
    n_threads: int | None = None,
    out: np.ndarray | None = None,
    complete: bool = False,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return means (n, D), deviations (n, D) if asked for, and log densities (n,) of what is there.

    NaN in `Z` is a missing value. A row without any value gets the moments of the mixture, and 0. Means are
    put into `out` if it is given: contiguous, float64, and not the memory of `Z`. A caller that knows that
    nothing is missing says that `Z` is `complete`, which saves looking.
    """
    means = np.empty(Z.shape) if out is None else out
    spreads = np.empty(Z.shape if deviations else (0, 0))
    densities = np.empty(len(Z))
    _run(components, Z, means, spreads, densities, n_threads, complete=complete)
    return means, (spreads if deviations else None), densities


def log_densities(components: PosteriorComponents, Z: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Return the log densities (n,) of `posterior`, to the last bit, without the moments."""
    densities = np.empty(len(Z))
    _run(components, Z, np.empty((0, 0)), np.empty((0, 0)), densities, n_threads)
    return densities


def draw_missing(components: PosteriorComponents, Z: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Return `Z` with NaN replaced by draws given what is there; rows with nothing in them stay as they are.

    The components must be without noise. The draw is a function of the row and the components alone: its
    random numbers come from the bits of the row's own values (`mixture/draws`). A row with infinite or huge
    values may get any numbers; no other row changes with it.
    """
    filled = np.array(Z, dtype=np.float64, order="C")
    gone = np.isnan(filled)
    rows = np.flatnonzero(gone.any(axis=1) & ~gone.all(axis=1))
    if len(rows):
        part = filled[rows]
        out = part.copy()
        _run(components, part, out, np.empty((0, 0)), np.empty(len(rows)), n_threads, bits_of_rows(part))
        filled[rows] = out
    return filled


def _run(components, Z, means, spreads, densities, n_threads, bits=_NO_BITS, complete=False):
    """Set what is not empty of the results; with the bits of the rows, `means` gets draws where NaN is."""
    Z = as_argument(Z)
    size = _BLOCK if _BLOCK * components.means.size <= _CACHED else _BLOCK // 2
    order = np.arange(len(Z)) if complete else _by_pattern(Z)

    def work(first: int, last: int) -> None:
        _set_rows(components, Z, order[first:last], size, means, spreads, densities, bits)

    each_row(work, len(Z), n_threads)


def _by_pattern(Z: np.ndarray) -> np.ndarray:
    """Return an order of rows in which those with the same missing columns follow each other."""
    if len(Z) < 2 or not np.isnan(Z.min()):
        return np.arange(len(Z))
    gone = np.isnan(Z)
    some = gone.any(axis=1)
    rows = np.flatnonzero(some)
    bits = np.packbits(gone[rows], axis=1)
    words = np.zeros((len(rows), -(-bits.shape[1] // 8) * 8), np.uint8)
    words[:, : bits.shape[1]] = bits
    return np.concatenate([np.flatnonzero(~some), rows[np.lexsort(words.view(np.uint64).T)]])


@device(memory=True)
def _posterior_block(components, Z, order, means, spreads, densities, bits):
    """Set the results of the rows of Z that `order` names."""
    K, D, width = components.whitening.shape
    n = len(order)
    block = take_block(components, Z, order)
    logs, shares, best = np.empty((K, n)), np.empty((K, n)), np.empty(n)
    for k in range(K):
        for r in range(n):
            logs[k, r] = components.log_weights[k]
    if block.fills.shape[2] > 0:
        expect_missing(components, block, logs)
    count = 0
    pairs, terms = np.empty((K * n, 2), np.int64), np.empty((K * n + 4, width))
    complete_logs(components, block, logs, terms)
    set_shares(logs, best, shares)
    for r in range(n):
        there = D - block.counts[r]
        densities[order[r]] = 0.0 if there == 0 else best[r] - there * _HALF_LOG_2_PI
    if len(bits) > 0:
        draw_block(components, block, shares, bits, order, means)
    elif len(means) > 0:
        if not components.direct:
            count = multiply_counting(components, block, shares, pairs, terms)
        elif block.fills.shape[2] > 0 or len(spreads) > 0:
            count = note_all(n, pairs)
        set_moments(components, block, shares, pairs[:count], terms, Z, order, means, spreads)


@kernel(rows="Z")
def _set_rows(components, Z, order, size, means, spreads, densities, bits):
    for first in range(0, len(order), size):
        _posterior_block(components, Z, order[first : first + size], means, spreads, densities, bits)
