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

from dpmd_fast.kernels.balls import candidates, search_room
from dpmd_fast.kernels.gather import closer
from dpmd_fast.kernels.index import LEAF, BallIndex, pad_queries
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import LANES, dot
from dpmd_fast.kernels.moments import CHUNK, PANEL, Clipping, Room, by_location, check_done
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
    with threads(n_threads, chunk=1):
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
    with threads(n_threads, chunk=1):
        points, residuals = pad_queries(index, X), _padded(frames, R)
        _reach(*frames, points, residuals, c, clipping.tau, clipping.unit, clipping.bound, *room)
    with threads(n_threads, chunk=1):
        starts, records, scales = by_location(len(X), len(index.rows), *room)
        done = np.zeros(len(sums), np.bool_)
        _accumulate(*frames, points, residuals, c, starts, records, scales, sums, done)
    check_done(done)


def _padded(frames: ResidualFrames, R: np.ndarray) -> np.ndarray:
    out = np.zeros((len(R), frames.centers.rows.shape[1]))
    out[:, : R.shape[1]] = R
    return out


@device
def _along(frames, d, width, X, q, rows, row, gap, along, at):
    """Tangent coordinates of record q in chart `row`, to along[at:]; returns their squared length."""
    for k in range(width):
        gap[k] = X[q, k] - rows[row, k]
    square = 0.0
    for e in range(d):
        value = dot(frames, (row * d + e) * width, gap, 0, width)
        along[at + e] = value
        square += value * value
    return square


@device
def _find(index, frames, normal, X, R, q, c, places, roots, room, inside, gap, along):
    """Charts in reach of record q, square roots of its weights there, and the squared norm.

    Its tangent coordinates there go to `along`, d for each chart.
    """
    d, width = frames.shape[1], frames.shape[2]
    rows = index.rows
    h2 = index.radius * index.radius
    share = 1.0 / h2
    residual2 = dot(R, q * width, R, q * width, width) / (normal * normal)
    if not residual2 < 1.0:
        return 0, 0.0
    leaves, words = room[0], room[1]
    found = candidates(index, X, q, room)
    near = 0
    for f in range(found):
        first = leaves[f] * LEAF
        near = closer(words[0, f], X, q * width, rows, first, width, h2, share, places, roots, near, inside)
    count = 0
    square = 0.0
    for i in range(near):
        t = roots[i] - residual2
        if not t > 0.0:
            continue
        row = np.int64(places[i])
        tangent2 = _along(frames, d, width, X, q, rows, row, gap, along, count * d)
        norm = t * t * (c + share * tangent2 + residual2)
        square += norm * norm
        places[count] = places[i]
        roots[count] = t
        count += 1
    return count, square


@device
def _norm_rows(index, frames, normal, X, R, first, last, c, out):
    room, inside = search_room(index), np.zeros(1, np.int64)
    places = np.empty(len(index.rows) + 1, np.int32)
    roots = np.empty(len(index.rows) + 1)
    gap, along = np.empty(frames.shape[2]), np.empty(len(index.rows) * frames.shape[1])
    for q in range(first, last):
        square = _find(index, frames, normal, X, R, q, c, places, roots, room, inside, gap, along)[1]
        out[q] = math.sqrt(square)


@kernel(parallel=True)
def _norms(index, frames, normal, X, R, c, out):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        _norm_rows(index, frames, normal, X, R, first, min(first + CHUNK, n), c, out)


@device
def _squared_length(h, normal, d, D, R, q, scale, lead, along, at):
    """Squared length of the integer vector of record q at a chart with its coordinates along[at:]."""
    tangential, across = scale / h, scale / normal
    last = float(math.trunc(scale * lead))  # not an integer, whose square could wrap around
    square = last * last
    for e in range(d):
        value = float(math.trunc(tangential * along[at + e]))
        square += value * value
    for k in range(D):
        value = float(math.trunc(across * R[q, k]))
        square += value * value
    return square


@device
def _within(h, normal, d, D, R, q, lead, factor, roots, count, bound, along):
    """Whether the sum of (v . v)^2 over the charts of record q is at most bound^2, in integers."""
    total = 0
    for i in range(count):
        square = _squared_length(h, normal, d, D, R, q, factor * roots[i], lead, along, i * d)
        if not square <= bound:  # before its square could leave 64 bits
            return False
        total += np.int64(square) * np.int64(square)
        if total > bound * bound:
            return False
    return True


@device
def _reach_rows(index, frames, normal, X, R, first, last, c, tau, unit, bound, places, scales, reach):
    """Charts and scales of the records first to last - 1, and how many there are of each."""
    room, inside = search_room(index), np.zeros(1, np.int64)
    here = np.empty(len(index.rows) + 1, np.int32)
    roots = np.empty(len(index.rows) + 1)
    d, width = frames.shape[1], frames.shape[2]
    gap, along = np.empty(width), np.empty(len(index.rows) * d)
    lead = math.sqrt(c)
    h, D = index.radius, index.columns
    at = first * len(index.rows)
    for q in range(first, last):
        count, square = _find(index, frames, normal, X, R, q, c, here, roots, room, inside, gap, along)
        norm = math.sqrt(square)
        reach[q] = 0
        if not norm > 0.0:
            continue
        factor = unit * math.sqrt(min(1.0, tau / norm))
        shrink = 2.0**-50
        while shrink < 0.5:
            if _within(h, normal, d, D, R, q, lead, factor, roots, count, bound, along):
                for i in range(count):
                    places[at + i] = here[i]
                    scales[at + i] = factor * roots[i]
                at += count
                reach[q] = count
                break
            factor *= 1.0 - shrink
            shrink *= 2.0


@kernel(parallel=True)
def _reach(index, frames, normal, X, R, c, tau, unit, bound, places, scales, reach):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        last = min(first + CHUNK, n)
        _reach_rows(index, frames, normal, X, R, first, last, c, tau, unit, bound, places, scales, reach)


@device
def _accumulate_at(index, frames, normal, X, R, lead, a, first, last, records, scales, sums):
    d, width = frames.shape[1], frames.shape[2]
    D, h, rows = index.columns, index.radius, index.rows
    groups = sums.shape[0] // LANES
    panel = np.zeros((groups, PANEL, LANES))
    gap, along = np.empty(width), np.empty(d)
    filled = 0
    for pair in range(first, last):
        q, scale = np.int64(records[pair]), scales[pair]
        _along(frames, d, width, X, q, rows, a, gap, along, 0)
        tangential, across = scale / h, scale / normal
        for k in range(d):
            panel[k // LANES, filled, k % LANES] = math.trunc(tangential * along[k])
        for k in range(D):
            panel[(d + k) // LANES, filled, (d + k) % LANES] = math.trunc(across * R[q, k])
        panel[(d + D) // LANES, filled, (d + D) % LANES] = math.trunc(scale * lead)
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums, groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums, groups)


@kernel(parallel=True)
def _accumulate(index, frames, normal, X, R, c, starts, records, scales, sums, done):
    lead = math.sqrt(c)
    for a in prange(len(sums)):
        a = np.int64(a)
        _accumulate_at(
            index, frames, normal, X, R, lead, a, starts[a], starts[a + 1], records, scales, sums[a]
        )
        done[a] = True
