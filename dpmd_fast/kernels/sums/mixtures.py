"""Clipped second moments of records in the frames of the components of a mixture, summed exactly.

A record y adds v_k v_k^T to the sum of component k, with the integer vector

    v_k = trunc(factor sqrt(r_k) t_k),    t_k = (W_k^T (y - m_k), sqrt(c)),

one factor for all components (`clip.py`), and the responsibilities

    r_k = e_k / sum_l e_l,    e_k = exp(log_weight_k - |W_k^T (y - m_k)|^2 / 2),

in which components far behind the best one count as zero (`responsibilities.py`). All of it is a function of
the record and of released numbers: every sum has one order, products and sums are fused where the code says
so and nowhere else, and the exponential is our own (`elementary.py`). So no bit depends on the block, the
thread or the machine that a record is in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, prange, resolve_threads, threads
from dpmd_fast.kernels.sums.clip import Clipping, clip
from dpmd_fast.kernels.sums.pairs import check_done
from dpmd_fast.kernels.sums.responsibilities import CHUNK, find_components, make_chunk
from dpmd_fast.kernels.sums.screen import Screen, make_screen
from dpmd_fast.kernels.vector.elementary import fixed_exp
from dpmd_fast.kernels.vector.integers import pack_truncated, truncated_square
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.tiles import add_gram

_PANEL = 32  # vectors of one component that are multiplied in one go


class MixtureFrames(NamedTuple):
    """Components that records are measured at."""

    log_weights: np.ndarray  # (K,) log of weight and density at the centre, up to a constant
    whitening: np.ndarray  # (K, D + 1, width): first -m^T W, then W, upper triangular, padded with zeros
    screen: Screen
    columns: int  # D


def make_mixture_frames(log_weights: np.ndarray, means: np.ndarray, whitening: np.ndarray) -> MixtureFrames:
    """Return frames of components with `means` (K, D) and upper triangular `whitening` (K, D, D)."""
    K, D = means.shape
    padded = np.zeros((K, D + 1, mixture_width(D)))
    padded[:, 0, :D] = -np.einsum("kd,kde->ke", means, whitening)
    padded[:, 1:, :D] = whitening
    logs = np.ascontiguousarray(log_weights, dtype=np.float64)
    return MixtureFrames(logs, padded, make_screen(logs, means, whitening), D)


def mixture_width(columns: int) -> int:
    """Return the padded number of features: coordinates and the homogeneous one."""
    return LANES * ((columns + 1 + LANES - 1) // LANES)


def add_mixture_block(
    frames: MixtureFrames,
    c: float,
    clipping: Clipping,
    Y: np.ndarray,
    sums: np.ndarray,
    n_threads: int | None = None,
) -> None:
    """Add the records `Y` to the upper blocks of `sums` (K, width, width)."""
    records = np.ascontiguousarray(Y, dtype=np.float64)
    parts = max(1, min(resolve_threads(n_threads), -(-len(records) // CHUNK)))
    partial = np.zeros((parts, *sums.shape))
    done = np.zeros(parts, np.bool_)
    with threads(n_threads, chunk=1):
        _add_block(*frames[:3], float(c), clipping, records, partial, done)
    check_done(done)
    for part in partial:
        sums += part


@device
def _responsibilities(log_weights, chunk, r, c, roots):
    """Set the square roots of the responsibilities of record r of a chunk.

    Returns the squared norm of what the record would add.
    """
    count, own = chunk.counts[r], chunk.components[r]
    if count == 1:  # what follows, with exp(0) = 1
        roots[0] = 1.0
        norm = chunk.squares[own[0], r] + c
        return norm * norm
    total = 0.0
    for j in range(count):
        k = own[j]
        e = fixed_exp((log_weights[k] - 0.5 * chunk.squares[k, r]) - chunk.best[r])
        total += e
        roots[j] = e
    square = 0.0
    for j in range(count):
        share = roots[j] / total
        norm = share * (chunk.squares[own[j], r] + c)
        square += norm * norm
        roots[j] = math.sqrt(share)
    return square


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[j] = v . v at each component of a record, for `clip`."""
    U, width, lead, starts, zeros = record
    for j in range(count):
        last = np.trunc(scales[j] * lead)
        squares[j] = truncated_square(U, starts[j], zeros, 0, scales[j], width) + last * last


@device
def _add_rows(log_weights, whitening, screen, c, clipping, Y, first, last, sums):
    """Add the records first to last - 1 to `sums`."""
    K, depth, width = whitening.shape
    D, groups, lead = depth - 1, width // LANES, math.sqrt(c)
    chunk = make_chunk(K, D, width, min(CHUNK, last - first))
    panel = np.zeros((K, groups, _PANEL, LANES))
    filled = np.zeros(K, np.int64)
    zeros, starts = np.zeros(width), np.empty(K, np.int64)
    roots, scales, squares = np.empty(K), np.empty(K), np.empty(K)
    record = chunk.U, width, lead, starts, zeros
    group, lane = D // LANES, D % LANES
    for start in range(first, last, CHUNK):
        rows = min(CHUNK, last - start)
        find_components(screen, log_weights, whitening, Y[start : start + rows], chunk)
        for r in range(rows):
            count = chunk.counts[r]
            square = _responsibilities(log_weights, chunk, r, c, roots)
            for j in range(count):
                starts[j] = chunk.places[chunk.components[r, j], r] * width
            if not clip(_measure, record, roots, count, math.sqrt(square), 1.0, clipping, scales, squares):
                continue
            for j in range(count):
                k = chunk.components[r, j]
                slot = filled[k]
                at = (k * groups * _PANEL + slot) * LANES
                pack_truncated(chunk.U, starts[j], zeros, 0, scales[j], panel, at, LANES * _PANEL, groups)
                panel[k, group, slot, lane] = math.trunc(scales[j] * lead)
                filled[k] = slot + 1
                if slot + 1 == _PANEL:
                    add_gram(panel[k], _PANEL, _PANEL, sums[k], groups)
                    filled[k] = 0
    for k in range(K):
        if filled[k] > 0:
            add_gram(panel[k], _PANEL, filled[k], sums[k], groups)


@kernel(parallel=True)
def _add_block(log_weights, whitening, screen, c, clipping, Y, partial, done):
    n, parts = len(Y), len(partial)
    for part in prange(parts):
        p = np.int64(part)
        first, last = p * n // parts, (p + 1) * n // parts
        _add_rows(log_weights, whitening, screen, c, clipping, Y, first, last, partial[p])
        done[p] = True
