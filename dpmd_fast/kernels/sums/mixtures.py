"""Clipped second moments of records in the frames of the components of a mixture, summed exactly.

A record y adds v_k v_k^T to the sum of component k, with the integer vector

    v_k = trunc(factor sqrt(r_k) t_k),    t_k = (W_k^T (y - m_k), sqrt(c)),

one factor for all components (`clip.py`), and the responsibilities

    r_k = e_k / sum_l e_l,    e_k = exp(log_weight_k - |W_k^T (y - m_k)|^2 / 2),

in which components far behind the best one count as zero. All of it is a function of the record and of
released numbers: every sum has one order, products and sums are fused where the code says so and nowhere
else, and the exponential is our own (`elementary.py`). So no bit depends on the block, the thread or the
machine that a record is in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, prange, resolve_threads, threads
from dpmd_fast.kernels.sums.clip import Clipping, clip
from dpmd_fast.kernels.sums.pairs import check_done
from dpmd_fast.kernels.vector.elementary import fixed_exp
from dpmd_fast.kernels.vector.integers import pack_truncated, truncated_square
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.tiles import add_gram, multiply_upper_fixed

_CHUNK = 32  # records whose coordinates in all frames are held at a time
_PANEL = 32  # vectors of one component that are multiplied in one go
_LEAST = -9.0  # log of a responsibility, relative to the largest, below which it counts as zero


class MixtureFrames(NamedTuple):
    """Components that records are measured at."""

    log_weights: np.ndarray  # (K,) log of weight and density at the centre, up to a constant
    whitening: np.ndarray  # (K, D + 1, width): first -m^T W, then W, upper triangular, padded with zeros
    columns: int  # D


def make_mixture_frames(log_weights: np.ndarray, means: np.ndarray, whitening: np.ndarray) -> MixtureFrames:
    """Return frames of components with `means` (K, D) and upper triangular `whitening` (K, D, D)."""
    K, D = means.shape
    padded = np.zeros((K, D + 1, mixture_width(D)))
    padded[:, 0, :D] = -np.einsum("kd,kde->ke", means, whitening)
    padded[:, 1:, :D] = whitening
    return MixtureFrames(np.ascontiguousarray(log_weights, dtype=np.float64), padded, D)


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
    parts = max(1, min(resolve_threads(n_threads), -(-len(records) // _CHUNK)))
    partial = np.zeros((parts, *sums.shape))
    done = np.zeros(parts, np.bool_)
    with threads(n_threads, chunk=1):
        _add_block(*frames[:2], float(c), clipping, records, partial, done)
    check_done(done)
    for part in partial:
        sums += part


@device
def _square_length(U, start, width):
    """Return the sum of squares of U[start : start + width], in four sums side by side."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for at in range(start, start + width, 4):
        a += U[at] * U[at]
        b += U[at + 1] * U[at + 1]
        c += U[at + 2] * U[at + 2]
        d += U[at + 3] * U[at + 3]
    return (a + c) + (b + d)


@device
def _responsibilities(log_weights, U, i, width, c, logs, places, roots):
    """Find the components of record i of a chunk and the square roots of its responsibilities.

    Returns their number and the squared norm of what the record would add.
    """
    K = len(log_weights)
    best = -math.inf
    for k in range(K):
        logs[1, k] = _square_length(U, (k * _CHUNK + i) * width, width)
        logs[0, k] = log_weights[k] - 0.5 * logs[1, k]
        if logs[0, k] > best:
            best = logs[0, k]
    if not best > -math.inf:
        return 0, 0.0
    count = 0
    total = 0.0
    for k in range(K):
        behind = logs[0, k] - best
        if behind > _LEAST:
            e = fixed_exp(behind)
            total += e
            places[count] = k
            roots[count] = e
            count += 1
    square = 0.0
    for j in range(count):
        r = roots[j] / total
        norm = r * (logs[1, places[j]] + c)
        square += norm * norm
        roots[j] = math.sqrt(r)
    return count, square


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[j] = v . v at each component of a record, for `clip`."""
    U, i, width, lead, places, zeros = record
    for j in range(count):
        last = np.trunc(scales[j] * lead)
        start = (np.int64(places[j]) * _CHUNK + i) * width
        squares[j] = truncated_square(U, start, zeros, 0, scales[j], width) + last * last


@device
def _add_rows(log_weights, whitening, c, clipping, Y, first, last, sums):
    """Add the records first to last - 1 to `sums`."""
    K, depth, width = whitening.shape
    D, groups, lead = depth - 1, width // LANES, math.sqrt(c)
    X = np.zeros((_CHUNK, depth))
    U = np.zeros((K, _CHUNK, width))
    flat = U.reshape(-1)
    panel = np.zeros((K, groups, _PANEL, LANES))
    filled = np.zeros(K, np.int64)
    logs, zeros = np.empty((2, K)), np.zeros(width)
    places, roots = np.empty(K, np.int64), np.empty(K)
    scales, squares = np.empty(K), np.empty(K)
    group, lane = D // LANES, D % LANES
    X[:, 0] = 1.0
    for start in range(first, last, _CHUNK):
        rows = min(_CHUNK, last - start)
        for i in range(rows):
            for d in range(D):
                X[i, d + 1] = Y[start + i, d]
        for k in range(K):
            multiply_upper_fixed(X, rows, depth, whitening[k], U[k], width, 1)
        for i in range(rows):
            count, square = _responsibilities(log_weights, flat, i, width, c, logs, places, roots)
            record = flat, i, width, lead, places, zeros
            if not clip(_measure, record, roots, count, math.sqrt(square), 1.0, clipping, scales, squares):
                continue
            for j in range(count):
                k = places[j]
                slot = filled[k]
                at = (k * groups * _PANEL + slot) * LANES
                u0 = (k * _CHUNK + i) * width
                pack_truncated(flat, u0, zeros, 0, scales[j], panel, at, LANES * _PANEL, groups)
                panel[k, group, slot, lane] = math.trunc(scales[j] * lead)
                filled[k] = slot + 1
                if slot + 1 == _PANEL:
                    add_gram(panel[k], _PANEL, _PANEL, sums[k], groups)
                    filled[k] = 0
    for k in range(K):
        if filled[k] > 0:
            add_gram(panel[k], _PANEL, filled[k], sums[k], groups)


@kernel(parallel=True)
def _add_block(log_weights, whitening, c, clipping, Y, partial, done):
    n, parts = len(Y), len(partial)
    for part in prange(parts):
        p = np.int64(part)
        _add_rows(log_weights, whitening, c, clipping, Y, p * n // parts, (p + 1) * n // parts, partial[p])
        done[p] = True
