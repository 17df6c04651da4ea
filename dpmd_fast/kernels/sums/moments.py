"""Clipped homogeneous second moments at locations, summed exactly.

A record y adds v v^T to the sum at every location a within the bandwidth, with the integer vector

    v = trunc(factor sqrt(k(r)) ((y - a) / h, sqrt(c))),    r = |y - a| / h,  k(r) = (1 - r^2)_+^beta,

and one factor for all its locations (`clip.py`). v is a function of the record and the locations alone:
distances are sums of squared differences in a fixed order, and what is pruned on the way (`balls.py`) is
beyond the bandwidth. Sums of v v^T are exact, so neither the order of records nor blocks nor threads change a
bit of them.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.projectors import power
from dpmd_fast.kernels.search.balls import find_candidates, search_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries
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
from dpmd_fast.kernels.vector.fours import ROOM, append_bits, keep_inside, truncated_squares
from dpmd_fast.kernels.vector.gather import fetch_ahead
from dpmd_fast.kernels.vector.integers import pack_truncated
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import panel_vectors
from dpmd_fast.kernels.vector.tiles import add_gram
from dpmd_fast.kernels.width import WIDTH

_AHEAD = 8  # pairs whose records are fetched ahead of time: 4 and 12 take as long


def record_norms(
    index: BallIndex, X: np.ndarray, beta: float, c: float, n_threads: int | None = None
) -> np.ndarray:
    """Return the norm over all locations of what each row of `X` would add without clipping."""
    out = np.full(len(X), np.nan)
    with threads(n_threads):
        padded = pad_queries(index, X)
        _clip_block(index, padded, float(beta), float(c), NO_CLIPPING, *NO_PAIRS, out)
    check_done(~np.isnan(out))
    return out


def add_moment_block(
    index: BallIndex,
    beta: float,
    c: float,
    clipping: Clipping,
    Y: np.ndarray,
    sums: np.ndarray,
    pairs: Pairs,
    n_threads: int | None = None,
) -> None:
    """Add the records `Y`, at most `block_rows` of them, to the upper blocks of `sums` (K, width, width).

    `sums` is in the leaf order of the locations. The caller empties it before an entry can reach 2^53.
    """
    beta, c = float(beta), float(c)
    with threads(n_threads):
        padded = pad_queries(index, Y)
        _clip_block(index, padded, beta, c, clipping, *pairs[:3], NO_NORMS)
        starts = sort_by_location(len(Y), len(index.rows), pairs)
        done = np.zeros(len(sums), np.bool_)
        _accumulate(index, padded, c, starts, pairs.records, pairs.sorted_scales, sums, done)
    check_done(done)


@device(inline=True)
def _find_locations(index, X, q, beta, c, places, roots, search):
    """Find the locations in reach of record q and the square roots of its weights there.

    Returns their number and the squared norm of what the record would add.
    """
    leaves, words = search[0], search[1]
    candidates = 0
    for f in range(find_candidates(index, X, q, search)):
        candidates = append_bits(words[f], leaves[f] * LEAF, places, candidates)
    rows, width = index.rows, X.shape[1]
    h2 = index.radius * index.radius
    count = keep_inside(X, q * width, rows, width, h2, 1.0 / h2, places, roots, candidates)
    square = 0.0
    for i in range(count):
        t = roots[i]
        weight = power(t, beta)
        norm = weight * (c + (1.0 - t))
        square += norm * norm
        if beta != 2.0:
            roots[i] = math.sqrt(weight)
    return count, square


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[i] = v . v at each location of a record, for `clip`."""
    rows, X, x0, width, lead, places = record
    truncated_squares(X, x0, rows, width, places, scales, lead, squares, count)


@device(memory=True)
def _clip_rows(chunk, index, X, beta, c, clipping, places, scales, counts, norms):
    """Find and clip the records of a chunk: their locations, scales, and number of locations.

    If `norms` is not empty, set the norms of what they would add without clipping, and nothing else.
    """
    first = chunk * CHUNK
    last = min(first + CHUNK, len(X))
    K = len(index.rows)
    found = np.empty(K + ROOM, np.int32), np.empty(K + ROOM), search_scratch(index)
    numbers = np.empty(K), np.empty(K + ROOM)
    _clip_with(index, X, first, last, beta, c, clipping, places, scales, counts, norms, found, numbers)


@device
def _clip_with(index, X, first, last, beta, c, clipping, places, scales, counts, norms, found, numbers):
    here, roots, search = found
    scaled, squares = numbers
    K, width = index.rows.shape
    rows, lead = index.rows, index.radius * math.sqrt(c)
    at = first * K
    for q in range(first, last):
        count, square = _find_locations(index, X, q, beta, c, here, roots, search)
        norm = math.sqrt(square)
        if len(norms) > 0:
            norms[q] = norm
            continue
        record = rows, X, q * width, width, lead, here
        counts[q] = 0
        if clip(_measure, record, roots, count, norm, index.radius, clipping, scaled, squares):
            for i in range(count):
                places[at + i] = here[i]
                scales[at + i] = scaled[i]
            at += count
            counts[q] = count


@kernel
def _clip_block(index, X, beta, c, clipping, places, scales, counts, norms):
    chunks = (len(X) + CHUNK - 1) // CHUNK
    parallel_for(_clip_rows, chunks, 1, (index, X, beta, c, clipping, places, scales, counts, norms))


@device(memory=True)
def _accumulate_at(a, index, X, lead, starts, records, scales, sums, done):
    """Add v v^T of all pairs at location a."""
    first, last = starts[a], starts[a + 1]
    width = X.shape[1]
    groups = width // LANES
    rows = index.rows
    panel = np.empty((panel_vectors(groups), PANEL, WIDTH))
    vector, lane = index.columns // WIDTH, index.columns % WIDTH
    filled = 0
    for pair in range(first, last):
        ahead = min(pair + _AHEAD, last - 1)
        fetch_ahead(X, records, ahead, ahead + 1, width)
        x0 = np.int64(records[pair]) * width
        scale = scales[pair]
        pack_truncated(X, x0, rows, a * width, scale, panel, WIDTH * filled, WIDTH * PANEL, groups)
        panel[vector, filled, lane] = math.trunc(scale * lead)
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums[a], groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums[a], groups)
    done[a] = True


@kernel
def _accumulate(index, X, c, starts, records, scales, sums, done):
    lead = index.radius * math.sqrt(c)
    parallel_for(_accumulate_at, len(sums), 1, (index, X, lead, starts, records, scales, sums, done))
