"""Clipped moments of residuals in the tangent coordinates of charts, summed exactly.

A record y that the atlas so far moves to x leaves the residual r = y - x. At a chart with centre b and frame
V it adds v v^T with v = trunc(factor sqrt(k) f),

    f = (V^T (x - b) / h, r / h_N, sqrt(c)),    k = (1 - |x - b|^2 / h^2 - |r|^2 / h_N^2)_+^2,

and one factor for all charts (`clip.py`): x is a function of the record and of released values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.scratch import as_argument
from dpmd_fast.kernels.search.balls import find_candidates, search_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, build_index
from dpmd_fast.kernels.sums.clip import NO_CLIPPING, Clipping, clip
from dpmd_fast.kernels.sums.pairs import (
    CHUNK,
    NO_NORMS,
    NO_PAIRS,
    PANEL,
    Pairs,
    check_done,
    sort_by_location,
)
from dpmd_fast.kernels.vector.bits import count_trailing_zeros
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import panel_vectors
from dpmd_fast.kernels.vector.quads import measure_four_charts, pack_quads
from dpmd_fast.kernels.vector.tiles import add_gram
from dpmd_fast.kernels.width import WIDTH


class ResidualFrames(NamedTuple):
    """Charts that residuals are measured at: in leaf order, by fours."""

    balls: BallIndex  # about the points b, with radius h
    centers: np.ndarray  # (quads, D, 4) b
    frames: np.ndarray  # (quads, d, D, 4) rows of V^T
    normal: float  # h_N


def make_frames(
    centers: np.ndarray, tangents: np.ndarray, h: float, normal: float, n_threads: int | None = None
) -> ResidualFrames:
    """Return frames for charts with `centers` (K, D) and `tangents` (K, D, d)."""
    index = build_index(centers, h, finest=LANES)
    rows = tangents[index.order].transpose(0, 2, 1)
    return ResidualFrames(index, pack_quads(centers[index.order]), pack_quads(rows), float(normal))


def feature_width(columns: int, dim: int) -> int:
    """Return the padded number of features: tangent coordinates, residual, homogeneous coordinate."""
    return LANES * ((dim + columns + 1 + LANES - 1) // LANES)


def residual_norms(
    frames: ResidualFrames, X: np.ndarray, R: np.ndarray, c: float, n_threads: int | None = None
) -> np.ndarray:
    """Return the norm over all charts of what each record (x, r) would add without clipping."""
    out = np.full(len(X), np.nan)
    with threads(n_threads):
        along = np.empty((0, frames.frames.shape[1]))
        _clip_block(*frames, as_argument(X), as_argument(R), float(c), NO_CLIPPING, *NO_PAIRS, along, out)
    check_done(~np.isnan(out))
    return out


def add_residual_block(
    frames: ResidualFrames,
    c: float,
    clipping: Clipping,
    X: np.ndarray,
    R: np.ndarray,
    sums: np.ndarray,
    pairs: Pairs,
    n_threads: int | None = None,
) -> None:
    """Add records (x, r), at most `block_rows` of them, to the upper blocks of `sums` (K, width, width)."""
    c, residuals = float(c), as_argument(R)
    with threads(n_threads):
        _clip_block(*frames, as_argument(X), residuals, c, clipping, *pairs[:4], NO_NORMS)
        starts = sort_by_location(len(X), len(frames.balls.rows), pairs)
        done = np.zeros(len(sums), np.bool_)
        bandwidths = frames.balls.radius, frames.normal
        _accumulate(bandwidths, residuals, c, starts, *pairs[4:], sums, done)
    check_done(done)


@device(memory=True)
def _chart_scratch(index, frames):
    """Arrays of `_find_charts`: charts, square roots of weights, coordinates (d, charts); then for four
    charts; then for the search."""
    K, d, D = len(index.rows), frames.shape[1], frames.shape[2]
    found = (np.empty(K, np.int32), np.empty(K), np.empty((d, K)))
    four = (np.empty((D, LANES)), np.empty(LANES), np.empty((d, LANES)))
    return found, four, search_scratch(index)


@device(inline=True)
def _find_charts(index, centers, frames, normal, X, R, q, c, scratch):
    """Find the charts in reach of record q, with square roots of weights and coordinates, in `scratch`.

    Returns their number and the squared norm of what the record would add.
    """
    d, D = frames.shape[1], frames.shape[2]
    (places, roots, along), (gaps, tents, coordinates), search = scratch
    leaves, words = search[0], search[1]
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
    for f in range(find_candidates(index, X, q, search)):
        word = words[f]
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


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[i] = v . v at each chart of a record, for `clip`."""
    h, normal, R, q, lead, along, quotients = record
    for i in range(count):
        last = np.trunc(scales[i] * lead)
        squares[i] = last * last
        quotients[i] = scales[i] / h
    for e in range(len(along)):
        for i in range(count):
            value = np.trunc(quotients[i] * along[e, i])
            squares[i] += value * value
    for i in range(count):
        quotients[i] = scales[i] / normal
    for k in range(R.shape[1]):
        residual = R[q, k]
        for i in range(count):
            value = np.trunc(quotients[i] * residual)
            squares[i] += value * value


@device(memory=True)
def _clip_rows(chunk, charts, X, R, c, clipping, places, scales, counts, kept, norms):
    """Find and clip the records of a chunk: their charts, scales, coordinates, number of charts.

    If `norms` is not empty, set the norms of what they would add without clipping, and nothing else.
    """
    first = chunk * CHUNK
    last = min(first + CHUNK, len(X))
    K = len(charts[0].rows)
    scratch = _chart_scratch(charts[0], charts[2])
    numbers = np.empty(K), np.empty(K), np.empty(K)
    _clip_with(charts, X, R, first, last, c, clipping, places, scales, counts, kept, norms, scratch, numbers)


@device
def _clip_with(charts, X, R, first, last, c, clipping, places, scales, counts, kept, norms, scratch, numbers):
    index, centers, frames, normal = charts
    here, roots, along = scratch[0]
    scaled, squares, quotients = numbers
    h, lead = index.radius, math.sqrt(c)
    at = first * len(index.rows)
    for q in range(first, last):
        count, square = _find_charts(index, centers, frames, normal, X, R, q, c, scratch)
        if len(norms) > 0:
            norms[q] = math.sqrt(square)
            continue
        record = h, normal, R, q, lead, along, quotients
        counts[q] = 0
        if clip(_measure, record, roots, count, math.sqrt(square), 1.0, clipping, scaled, squares):
            for i in range(count):
                places[at + i] = here[i]
                scales[at + i] = scaled[i]
                for e in range(len(along)):
                    kept[at + i, e] = along[e, i]
            at += count
            counts[q] = count


@kernel
def _clip_block(index, centers, frames, normal, X, R, c, clipping, places, scales, counts, along, norms):
    chunks = (len(X) + CHUNK - 1) // CHUNK
    charts = index, centers, frames, normal
    records = X, R, c, clipping, places, scales, counts, along, norms
    parallel_for(_clip_rows, chunks, 1, (charts, *records))


@device(memory=True)
def _accumulate_at(a, bandwidths, R, lead, starts, pairs, along, sums, done):
    """Add v v^T of all pairs at chart a."""
    h, normal = bandwidths
    d, D = along.shape[1], R.shape[1]
    groups = sums.shape[1] // LANES
    panel = np.zeros((panel_vectors(groups), PANEL, WIDTH))
    flat = panel.reshape(-1)
    cells = np.empty(d + D + 1, np.int64)  # of the features of the panel's first row
    for k in range(d + D + 1):
        cells[k] = (k // WIDTH) * PANEL * WIDTH + k % WIDTH
    filled = 0
    for pair in range(starts[a], starts[a + 1]):
        scale, q = pairs[pair, 0], np.int64(pairs[pair, 1])
        row = WIDTH * filled
        for e in range(d):
            flat[cells[e] + row] = np.trunc(scale / h * along[pair, e])
        for k in range(D):
            flat[cells[d + k] + row] = np.trunc(scale / normal * R[q, k])
        flat[cells[d + D] + row] = np.trunc(scale * lead)
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums[a], groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums[a], groups)
    done[a] = True


@kernel
def _accumulate(bandwidths, R, c, starts, pairs, along, sums, done):
    arguments = bandwidths, R, math.sqrt(c), starts, pairs, along, sums, done
    parallel_for(_accumulate_at, len(sums), 1, arguments)
