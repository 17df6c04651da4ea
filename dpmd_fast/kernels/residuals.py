"""Clipped moments of residuals in the tangent coordinates of charts, summed exactly.

A record y that the atlas so far moves to x leaves the residual r = y - x. At a chart with centre b and frame
V it adds v v^T with v = trunc(factor sqrt(k) f),

    f = (V^T (x - b) / h, r / h_N, sqrt(c)),    k = (1 - |x - b|^2 / h^2 - |r|^2 / h_N^2)_+^2,

clipped over all charts together, as in `moments.py`: x is a function of the record and of released values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.balls import find_leaves, near_masks, square_norm
from dpmd_fast.kernels.bits import count_trailing_zeros
from dpmd_fast.kernels.index import LEAF, BallIndex, pad_queries, sketch_point
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import LANES, dot, square_distance
from dpmd_fast.kernels.moments import PANEL, Clipping, Room, by_location
from dpmd_fast.kernels.tiles import add_gram


class ResidualFrames(NamedTuple):
    """Where residuals are measured, in the leaf order of `centers`."""

    centers: BallIndex  # of the points b, with radius h
    frames: np.ndarray  # (K, d, width) rows of V^T
    normal: float  # h_N


def feature_width(columns: int, dim: int) -> int:
    """Padded number of features: tangent coordinates, residual, homogeneous coordinate."""
    return LANES * ((dim + columns + 1 + LANES - 1) // LANES)


def residual_norms(
    frames: ResidualFrames, X: np.ndarray, R: np.ndarray, c: float, n_threads: int | None = None
) -> np.ndarray:
    """Norm over all charts of the contribution of each record (x, r), before clipping."""
    out = np.empty(len(X))
    with threads(n_threads, chunk=16):
        points = pad_queries(frames.centers, X)
        _norms(*frames, points, _padded(frames, R), float(c), out)
    return out


def add_residual_block(
    frames: ResidualFrames,
    clipping: Clipping,
    X: np.ndarray,
    R: np.ndarray,
    sums: np.ndarray,
    room: Room,
    n_threads: int | None = None,
) -> None:
    """Add records (x, r), at most `moments.block_rows` of them, to `sums` (K, width, width), upper blocks."""
    index = frames.centers
    c = float(clipping.c)
    with threads(n_threads, chunk=16):
        points, residuals = pad_queries(index, X), _padded(frames, R)
        _reach(*frames, points, residuals, c, clipping.tau, clipping.unit, clipping.bound, *room)
    with threads(n_threads, chunk=1):
        starts, records, scales = by_location(len(X), len(index.rows), *room)
        _accumulate(*frames, points, residuals, c, starts, records, scales, sums)


def _padded(frames: ResidualFrames, R: np.ndarray) -> np.ndarray:
    out = np.zeros((len(R), frames.centers.rows.shape[1]))
    out[:, : R.shape[1]] = R
    return out


@device
def _along(frames, d, width, X, x0, rows, row, gap, coordinates):
    """Tangent coordinates of the row at element `x0` of X in chart `row`; returns their squared length."""
    flat = X.reshape(-1)
    for k in range(width):
        gap[k] = flat[x0 + k] - rows[row, k]
    square = 0.0
    for e in range(d):
        value = dot(frames, (row * d + e) * width, gap, 0, width)
        coordinates[e] = value
        square += value * value
    return square


@device
def _find(index, frames, normal, X, R, q, c, places, roots):
    """Charts in reach of record q, square roots of its weights there, and the squared norm."""
    d, width = frames.shape[1], frames.shape[2]
    rows = index.rows
    share = 1.0 / (index.radius * index.radius)
    residual2 = dot(R, q * width, R, q * width, width) / (normal * normal)
    if not residual2 < 1.0:
        return 0, 0.0
    leaves = np.empty(len(index.rests), np.int64)
    near = np.empty(len(leaves), np.uint64)
    sure = np.empty(len(leaves), np.uint64)
    point = np.empty(index.sketch.shape[1])
    gap = np.empty(width)
    coordinates = np.empty(d)
    rest = sketch_point(index, X, q * width, point)
    size = square_norm(point)
    found = find_leaves(index, point, point, size, leaves)
    found = near_masks(index, point, rest, size, leaves, found, near, sure)
    one = np.uint64(1)
    count = 0
    square = 0.0
    for f in range(found):
        word = near[f]
        while word != 0:
            row = leaves[f] * LEAF + count_trailing_zeros(word)
            word &= word - one
            t = 1.0 - share * square_distance(X, q * width, rows, row * width, width) - residual2
            if not t > 0.0:
                continue
            tangent2 = _along(frames, d, width, X, q * width, rows, row, gap, coordinates)
            norm = t * t * (c + share * tangent2 + residual2)
            square += norm * norm
            places[count] = row
            roots[count] = t
            count += 1
    return count, square


@kernel(parallel=True)
def _norms(index, frames, normal, X, R, c, out):
    for q in prange(len(X)):
        places = np.empty(len(index.rows), np.int32)
        roots = np.empty(len(index.rows))
        out[q] = math.sqrt(_find(index, frames, normal, X, R, np.int64(q), c, places, roots)[1])


@device
def _vector(rows, frames, D, h, normal, X, R, q, row, scale, lead, gap, coordinates, v):
    """The integer vector of record q at chart `row`; returns its squared length."""
    d, width = frames.shape[1], frames.shape[2]
    _along(frames, d, width, X, q * width, rows, row, gap, coordinates)
    square = 0.0
    tangential, across = scale / h, scale / normal
    for e in range(d):
        v[e] = math.trunc(tangential * coordinates[e])
        square += v[e] * v[e]
    for k in range(D):
        v[d + k] = math.trunc(across * R[q, k])
        square += v[d + k] * v[d + k]
    v[d + D] = math.trunc(scale * lead)
    return square + v[d + D] * v[d + D]


@device
def _within(index, frames, normal, X, R, q, lead, places, factor, roots, count, bound, gap, coordinates, v):
    """Whether the sum of (v . v)^2 over the charts of record q is at most bound^2, in integers."""
    rows, D, h = index.rows, index.columns, index.radius
    total = 0
    for i in range(count):
        row = np.int64(places[i])
        scale = factor * roots[i]
        square = _vector(rows, frames, D, h, normal, X, R, q, row, scale, lead, gap, coordinates, v)
        if not square <= bound:  # before its square could leave 64 bits
            return False
        total += np.int64(square) * np.int64(square)
        if total > bound * bound:
            return False
    return True


@device
def _reach_of(index, frames, normal, X, R, q, c, tau, unit, bound, places, roots):
    count, square = _find(index, frames, normal, X, R, q, c, places, roots)
    norm = math.sqrt(square)
    if not norm > 0.0:
        return 0
    d, width = frames.shape[1], frames.shape[2]
    gap, coordinates, v = np.empty(width), np.empty(d), np.empty(d + index.columns + 1)
    factor = unit * math.sqrt(min(1.0, tau / norm))
    lead = math.sqrt(c)
    shrink = 2.0**-50
    while shrink < 0.5:
        if _within(
            index, frames, normal, X, R, q, lead, places, factor, roots, count, bound, gap, coordinates, v
        ):
            for i in range(count):
                roots[i] = factor * roots[i]
            return count
        factor *= 1.0 - shrink
        shrink *= 2.0
    return 0


@kernel(parallel=True)
def _reach(index, frames, normal, X, R, c, tau, unit, bound, places, scales, reach):
    for q in prange(len(X)):
        q = np.int64(q)
        reach[q] = _reach_of(index, frames, normal, X, R, q, c, tau, unit, bound, places[q], scales[q])


@device
def _accumulate_at(index, frames, normal, X, R, lead, a, first, last, records, scales, sums):
    d, width = frames.shape[1], frames.shape[2]
    D, h, rows = index.columns, index.radius, index.rows
    groups = sums.shape[0] // LANES
    panel = np.zeros((groups, PANEL, LANES))
    gap, coordinates, v = np.empty(width), np.empty(d), np.empty(d + D + 1)
    filled = 0
    for pair in range(first, last):
        q = np.int64(records[pair])
        _vector(rows, frames, D, h, normal, X, R, q, a, scales[pair], lead, gap, coordinates, v)
        for k in range(d + D + 1):
            panel[k // LANES, filled, k % LANES] = v[k]
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums, groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums, groups)


@kernel(parallel=True)
def _accumulate(index, frames, normal, X, R, c, starts, records, scales, sums):
    lead = math.sqrt(c)
    for a in prange(len(sums)):
        a = np.int64(a)
        _accumulate_at(
            index, frames, normal, X, R, lead, a, starts[a], starts[a + 1], records, scales, sums[a]
        )
