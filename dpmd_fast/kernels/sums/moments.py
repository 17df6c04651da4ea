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
from dpmd_fast.kernels.sums.clip import NO_CLIPPING, Clipping, clip_from, first_factor
from dpmd_fast.kernels.sums.pairs import (
    CHUNK,
    NO_NORMS,
    NO_PAIRS,
    PANEL,
    Pairs,
    check_done,
    sort_by_location,
)
from dpmd_fast.kernels.vector.fours import (
    ROOM,
    append_bits,
    keep_inside,
    scale_and_bound,
    truncated_squares,
)
from dpmd_fast.kernels.vector.gather import fetch_ahead
from dpmd_fast.kernels.vector.integers import pack_truncated
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import aligned_panel
from dpmd_fast.kernels.vector.tiles import add_gram, add_gram_and_lead
from dpmd_fast.kernels.width import WIDTH

_AHEAD = 8  # pairs whose records are fetched ahead of time: 4 and 12 take as long
_SURE = 1.0 + 2.0**-30  # more than what rounding can hide in a bound,
_MANY = 1 << 20  # of a sum over fewer terms than this,
_SMALL, _LARGE = 2.0**-900, 2.0**900  # with squares that neither underflow nor overflow


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
        _accumulate(index, padded, c, starts, pairs.by_location, sums, done)
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
    count, square = keep_inside(X, q * width, rows, width, h2, 1.0 / h2, c, places, roots, candidates)
    if beta != 2.0:  # else t^2 is the weight, and t its square root
        square = 0.0
        for i in range(count):
            t = roots[i]
            weight = power(t, beta)
            norm = weight * (c + (1.0 - t))
            square += norm * norm
            roots[i] = math.sqrt(weight)
    return count, square


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[i] = v . v at each location of a record, for `clip`."""
    rows, X, x0, width, lead, places = record
    truncated_squares(X, x0, rows, width, places, scales, lead, squares, count)


@device(inline=True)
def _surely_within(index, tents, count, factor, lead, clipping, scales):
    """Fill `scales` and return whether it is certain that `clip` would accept this factor, if beta = 2.

    The bound on sum_i (v_i . v_i)^2 is a sum of positive numbers in floating point. With s a scale and g a
    difference as it was rounded, an entry of v is at most |s g| (1 + u), u = 2^-53; the squares of the g sum
    to at most r^2 (1 + width u), and what underflows is nothing beside h^2; r^2 is at most
    h^2 (1 - t + 4 u). Together with the sum itself that is less than (count + 4 width + 40) u of the value,
    and `_SURE` leaves 2^23 u for it. The truncated last entries mostly make more room than that, also for a
    record that is clipped. Where they do not, `clip` has to look at every entry.
    """
    h2 = index.radius * index.radius
    total = scale_and_bound(tents, factor, h2, lead, scales, count)
    bound = np.float64(clipping.bound)
    usual = h2 > _SMALL and h2 < _LARGE and count + 4 * index.rows.shape[1] < _MANY
    return usual and total * _SURE <= bound * bound


@device(memory=True)
def _clip_rows(chunk, index, X, beta, c, clipping, places, scales, counts, norms):
    """Find and clip the records of a chunk: their locations, scales, and number of locations.

    If `norms` is not empty, set the norms of what they would add without clipping, and nothing else.
    """
    first = chunk * CHUNK
    last = min(first + CHUNK, len(X))
    K = len(index.rows)
    found = np.empty(K + ROOM, np.int32), np.empty(K + ROOM), search_scratch(index)
    numbers = np.empty(K + ROOM), np.empty(K + ROOM)
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
        factor = first_factor(norm, index.radius, clipping)
        if not factor > 0.0:
            continue
        sure = beta == 2.0 and _surely_within(index, roots, count, factor, lead, clipping, scaled)
        if sure or clip_from(_measure, record, roots, count, factor, clipping, scaled, squares):
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
def _accumulate_at(a, index, X, lead, starts, pairs, sums, done):
    """Add v v^T of all pairs at location a."""
    first, last = starts[a], starts[a + 1]
    width = X.shape[1]
    groups = width // LANES
    rows = index.rows
    panel = aligned_panel(groups, PANEL)
    column = index.columns
    cell = column // WIDTH * WIDTH * PANEL + column % WIDTH  # of the last coordinate of the panel's first row
    alone = column % LANES == 0  # it has a group of its own
    lead_row = np.zeros(width)
    filled = 0
    for pair in range(first, last):
        ahead = min(pair + _AHEAD, last - 1)
        fetch_ahead(X, pairs, 2 * ahead + 1, 2 * ahead + 2, width)
        scale, x0 = pairs[pair, 0], np.int64(pairs[pair, 1]) * width
        pack_truncated(X, x0, rows, a * width, scale, panel, WIDTH * filled, WIDTH * PANEL, groups)
        panel[cell + WIDTH * filled] = math.trunc(scale * lead)
        filled += 1
        if filled == PANEL or pair == last - 1:
            if alone:
                add_gram_and_lead(panel, PANEL, filled, sums[a], groups, lead_row)
            else:
                add_gram(panel, PANEL, filled, sums[a], groups)
            filled = 0
    if alone:
        for k in range(column + 1):
            sums[a, k, column] += lead_row[k]
    done[a] = True


@kernel
def _accumulate(index, X, c, starts, pairs, sums, done):
    lead = index.radius * math.sqrt(c)
    parallel_for(_accumulate_at, len(sums), 1, (index, X, lead, starts, pairs, sums, done))
