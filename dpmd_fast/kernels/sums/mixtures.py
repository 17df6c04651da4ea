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

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, resolve_threads, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.scratch import as_argument
from dpmd_fast.kernels.sums.clip import Clipping, add_square, clip_from
from dpmd_fast.kernels.sums.pairs import check_done
from dpmd_fast.kernels.sums.responsibilities import CHUNK, find_components, make_chunk, weigh
from dpmd_fast.kernels.sums.screen import Screen, make_screen
from dpmd_fast.kernels.vector.integers import truncate_in_place, truncated_square
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.tiles import add_gram_of_rows


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
    records = as_argument(Y)
    parts = max(1, min(resolve_threads(n_threads), -(-len(records) // CHUNK)))
    partial = np.zeros((parts, *sums.shape))
    done = np.zeros(parts, np.bool_)
    with threads(n_threads):
        _add_block(*frames[:3], float(c), clipping, records, partial, done)
    check_done(done)
    for part in partial:
        sums += part


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[j] = v . v at each component of a record, for `clip`."""
    U, width, starts, zeros = record
    for j in range(count):
        squares[j] = truncated_square(U, starts[j], zeros, 0, scales[j], width)


@device(memory=True)
def _clip_record(r, clipping, chunk, zeros):
    """Set the scales of record r, whose first factor is refused."""
    places, width = chunk.first[len(chunk.first) - 1], chunk.U.shape[1]
    K = len(chunk.first) - 1
    own, starts = np.empty(K, np.int64), np.empty(K, np.int64)
    roots, scales, squares = np.empty(K), np.empty(K), np.empty(K)
    count = 0
    for p in range(places):
        if chunk.owners[p] == r and chunk.roots[p] > 0.0:
            own[count], starts[count], roots[count] = p, p * width, chunk.roots[p]
            count += 1
    record = chunk.U, width, starts, zeros
    kept = clip_from(_measure, record, roots, count, chunk.factors[r], clipping, scales, squares)
    for j in range(count):
        chunk.scales[own[j]] = scales[j] if kept else 0.0


@device
def _clip_records(clipping, chunk, zeros, spent):
    """Set the scales of all places: those of `clip`, of all components of a record by one factor."""
    places, width = chunk.first[len(chunk.first) - 1], chunk.U.shape[1]
    owners, scales = chunk.owners, chunk.scales
    for p in range(places):
        scales[p] = chunk.factors[owners[p]] * chunk.roots[p]
    spent[:] = 0
    for p in range(places):
        if scales[p] > 0.0:
            square = truncated_square(chunk.U, p * width, zeros, 0, scales[p], width)
            spent[owners[p]] = add_square(spent[owners[p]], square, clipping.bound)
    for r in range(len(spent) - 1):
        if spent[r] > clipping.bound * clipping.bound:
            _clip_record(r, clipping, chunk, zeros)


@device(memory=True)
def _add_rows(part, log_weights, whitening, screen, c, clipping, Y, partial, done):
    """Add one part of the records to its own sums."""
    n, parts = len(Y), len(partial)
    first, last = part * n // parts, (part + 1) * n // parts
    sums = partial[part]
    K, depth, width = whitening.shape
    chunk = make_chunk(K, depth - 1, width, min(CHUNK, last - first))
    zeros, spent = np.zeros(width), np.zeros(len(chunk.sums), np.int64)
    for start in range(first, last, CHUNK):
        X = Y[start : min(last, start + CHUNK)]
        find_components(screen, log_weights, whitening, c, X, chunk)
        weigh(c, clipping, chunk)
        _clip_records(clipping, chunk, zeros, spent)
        for k in range(K):
            begin, count = chunk.first[k], chunk.n_rows[k]
            for p in range(begin, begin + count):
                if chunk.scales[p] > 0.0:
                    truncate_in_place(chunk.U, p * width, chunk.scales[p], width)
                else:
                    chunk.U[p, :] = 0.0
            add_gram_of_rows(chunk.U, begin, count, sums[k], width // LANES)
    done[part] = True


@kernel
def _add_block(log_weights, whitening, screen, c, clipping, Y, partial, done):
    arguments = log_weights, whitening, screen, c, clipping, Y, partial, done
    parallel_for(_add_rows, len(partial), 1, arguments)
