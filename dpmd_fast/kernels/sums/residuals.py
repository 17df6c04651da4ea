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

from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.search.balls import candidates, search_room
from dpmd_fast.kernels.search.index import LEAF, BallIndex, build_index
from dpmd_fast.kernels.sums.moments import CHUNK, PANEL, Clipping, Room, by_location, check_done
from dpmd_fast.kernels.vector.bits import count_trailing_zeros
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.quads import in_quads, measure_four_charts
from dpmd_fast.kernels.vector.tiles import add_gram


class ResidualFrames(NamedTuple):
    """Where residuals are measured: charts in leaf order, by fours."""

    balls: BallIndex  # about the points b, with radius h
    centers: np.ndarray  # (quads, D, 4) b
    frames: np.ndarray  # (quads, d, D, 4) rows of V^T
    normal: float  # h_N


def make_frames(
    centers: np.ndarray, tangents: np.ndarray, h: float, normal: float, n_threads: int | None = None
) -> ResidualFrames:
    """Charts with `centers` (K, D) and `tangents` (K, D, d)."""
    index = build_index(centers, h, n_threads, finest=LANES)
    rows = tangents[index.order].transpose(0, 2, 1)
    return ResidualFrames(index, in_quads(centers[index.order]), in_quads(rows), float(normal))


def feature_width(columns: int, dim: int) -> int:
    """Padded number of features: tangent coordinates, residual, homogeneous coordinate."""
    return LANES * ((dim + columns + 1 + LANES - 1) // LANES)


def residual_norms(
    frames: ResidualFrames, X: np.ndarray, R: np.ndarray, c: float, n_threads: int | None = None
) -> np.ndarray:
    """Norm over all charts of the contribution of each record (x, r), before clipping."""
    out = np.empty(len(X))
    with threads(n_threads, chunk=1):
        _norms(*frames, _rows(X), _rows(R), float(c), out)
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
    c, residuals = float(clipping.c), _rows(R)
    with threads(n_threads, chunk=1):
        _reach(*frames, _rows(X), residuals, c, clipping.tau, clipping.unit, clipping.bound, *room[:4])
    with threads(n_threads, chunk=1):
        starts = by_location(len(X), len(frames.balls.rows), room)
        done = np.zeros(len(sums), np.bool_)
        bandwidths = frames.balls.radius, frames.normal
        _accumulate(bandwidths, residuals, c, starts, *room[4:], sums, done)
    check_done(done)


def _rows(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float64)


@device
def _scratch(index, frames):
    """Of `_find`: charts, square roots of weights, coordinates (d, charts); then four charts; the search."""
    K, d, D = len(index.rows), frames.shape[1], frames.shape[2]
    found = (np.empty(K, np.int32), np.empty(K), np.empty((d, K)))
    four = (np.empty((D, LANES)), np.empty(LANES), np.empty((d, LANES)))
    return found, four, search_room(index)


@device(inline=True)
def _find(index, centers, frames, normal, X, R, q, c, scratch):
    """Number of charts in reach of record q, and the squared norm; which they are goes to `scratch`."""
    d, D = frames.shape[1], frames.shape[2]
    (places, roots, along), (gaps, tents, coordinates), room = scratch
    leaves, words = room[0], room[1]
    h2 = index.radius * index.radius
    share = 1.0 / h2
    residual2 = 0.0
    for k in range(D):
        residual2 += R[q, k] * R[q, k]
    residual2 /= normal * normal
    if not residual2 < 1.0:
        return 0, 0.0
    count = 0
    square = 0.0
    one = np.uint64(1)
    for f in range(candidates(index, X, q, room)):
        word = words[0, f]
        while word != 0:
            first = LANES * (count_trailing_zeros(word) // LANES)
            bits = (word >> np.uint64(first)) & np.uint64(15)
            word &= ~(np.uint64(15) << np.uint64(first))
            row = leaves[f] * LEAF + first
            measure_four_charts(X, q * D, row // LANES, centers, frames, h2, share, gaps, tents, coordinates)
            while bits != 0:
                lane = count_trailing_zeros(bits)
                bits &= bits - one
                t = tents[lane] - residual2
                if not t > 0.0:
                    continue
                tangent2 = 0.0
                for e in range(d):
                    value = coordinates[e, lane]
                    along[e, count] = value
                    tangent2 += value * value
                norm = t * t * (c + share * tangent2 + residual2)
                square += norm * norm
                places[count] = row + lane
                roots[count] = t
                count += 1
    return count, square


@device
def _norm_rows(index, centers, frames, normal, X, R, first, last, c, out):
    scratch = _scratch(index, frames)
    for q in range(first, last):
        out[q] = math.sqrt(_find(index, centers, frames, normal, X, R, q, c, scratch)[1])


@kernel(parallel=True)
def _norms(index, centers, frames, normal, X, R, c, out):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        _norm_rows(index, centers, frames, normal, X, R, first, min(first + CHUNK, n), c, out)


@device(inline=True)
def _within(h, normal, R, q, lead, scales, count, bound, along, squares):
    """Whether the sum of (v . v)^2 over the charts of record q is at most bound^2, in integers.

    Squares are of floats that hold integers: beyond 64 bits they are large, and do not wrap around.
    """
    for i in range(count):
        last = np.trunc(scales[i] * lead)
        squares[i] = last * last
    for e in range(len(along)):
        for i in range(count):
            value = np.trunc(scales[i] / h * along[e, i])
            squares[i] += value * value
    for k in range(R.shape[1]):
        for i in range(count):
            value = np.trunc(scales[i] / normal * R[q, k])
            squares[i] += value * value
    total = 0
    for i in range(count):
        if not squares[i] <= bound:  # before its square could leave 64 bits
            return False
        total += np.int64(squares[i]) * np.int64(squares[i])
        if total > bound * bound:
            return False
    return True


@device
def _reach_rows(
    index, centers, frames, normal, X, R, first, last, c, tau, unit, bound, places, scales, reach, kept
):
    """Charts, scales and coordinates of the records first to last - 1, and how many there are of each."""
    K, h, lead = len(index.rows), index.radius, math.sqrt(c)
    scratch = _scratch(index, frames)
    here, roots, along = scratch[0]
    scaled, squares = np.empty(K), np.empty(K)
    at = first * K
    for q in range(first, last):
        count, square = _find(index, centers, frames, normal, X, R, q, c, scratch)
        norm = math.sqrt(square)
        reach[q] = 0
        if not norm > 0.0:
            continue
        factor = unit * math.sqrt(min(1.0, tau / norm))
        shrink = 2.0**-50
        while shrink < 0.5:
            for i in range(count):
                scaled[i] = factor * roots[i]
            if _within(h, normal, R, q, lead, scaled, count, bound, along, squares):
                for i in range(count):
                    places[at + i] = here[i]
                    scales[at + i] = scaled[i]
                    for e in range(len(along)):
                        kept[at + i, e] = along[e, i]
                at += count
                reach[q] = count
                break
            factor *= 1.0 - shrink
            shrink *= 2.0


@kernel(parallel=True)
def _reach(index, centers, frames, normal, X, R, c, tau, unit, bound, places, scales, reach, along):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        _reach_rows(
            index,
            centers,
            frames,
            normal,
            X,
            R,
            first,
            min(first + CHUNK, n),
            c,
            tau,
            unit,
            bound,
            places,
            scales,
            reach,
            along,
        )


@device
def _accumulate_at(bandwidths, R, lead, first, last, records, scales, along, sums):
    h, normal = bandwidths
    d, D = along.shape[1], R.shape[1]
    groups = sums.shape[0] // LANES
    panel = np.zeros((groups, PANEL, LANES))
    flat = panel.reshape(-1)
    cells = np.empty(d + D + 1, np.int64)  # of the features of the panel's first row
    for k in range(d + D + 1):
        cells[k] = (k // LANES) * PANEL * LANES + k % LANES
    filled = 0
    for pair in range(first, last):
        q, scale = np.int64(records[pair]), scales[pair]
        row = LANES * filled
        for e in range(d):
            flat[cells[e] + row] = np.trunc(scale / h * along[pair, e])
        for k in range(D):
            flat[cells[d + k] + row] = np.trunc(scale / normal * R[q, k])
        flat[cells[d + D] + row] = np.trunc(scale * lead)
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums, groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums, groups)


@kernel(parallel=True)
def _accumulate(bandwidths, R, c, starts, records, scales, along, sums, done):
    lead = math.sqrt(c)
    for a in prange(len(sums)):
        a = np.int64(a)
        _accumulate_at(bandwidths, R, lead, starts[a], starts[a + 1], records, scales, along, sums[a])
        done[a] = True
