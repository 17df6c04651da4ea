"""Clipped homogeneous second moments at locations, summed exactly.

A record y adds v v^T to the sum at every location a within the bandwidth, with the integer vector

    v = trunc(factor sqrt(k(r)) ((y - a) / h, sqrt(c))),    r = |y - a| / h,  k(r) = (1 - r^2)_+^beta,

`factor` being the same for all its locations and such that sum_a (v_a . v_a)^2 <= bound^2, checked in
integers. v is a function of the record and the locations alone: distances are sums of squared differences
in a fixed order, and what is pruned on the way (`balls.py`) is beyond the bandwidth. Sums of v v^T are exact,
so neither the order of records nor blocks nor threads change a bit of them.

A block of records goes through two passes: by record (locations in reach, norm, factor), then, with the pairs
sorted by location, by location (Gram matrix of the packed vectors), so that no two threads share a sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.projectors import power
from dpmd_fast.kernels.scratch import sparse_memory
from dpmd_fast.kernels.search.balls import candidates, search_room
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries
from dpmd_fast.kernels.vector.gather import closer
from dpmd_fast.kernels.vector.integers import pack_truncated, truncated_square
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.tiles import add_gram

EXACT = 1 << 53  # sums of products stay below this in float64
PANEL = 44  # rows multiplied in one go: a panel of 60 columns stays in the first cache
_PAIRS = 1 << 22  # room for pairs (record, location) of one block
_BLOCK = 8192
CHUNK = 32  # records that one call of the inner functions takes
SORTED = 16 * CHUNK  # and of sorting, where every part has counters for all locations


class Clipping(NamedTuple):
    """What, with the locations, fixes the integer vectors of a record."""

    beta: float
    c: float  # square of the homogeneous coordinate
    tau: float  # bound on the norm of a record's contribution
    unit: float  # lattice steps per one, for vectors: 1 / sqrt(step of the matrices)
    bound: int  # bound on the norm in lattice steps, below 2^31: its square is a 64-bit integer


class Room(NamedTuple):
    """Scratch for blocks of records: pairs (record, location), those of `CHUNK` records one after the other.

    A chunk has room for all locations, CHUNK K pairs, but mostly few of them: they stay in the caches, and
    the memory of the others is never touched.
    """

    places: np.ndarray  # (block K,) locations in reach of each record, in leaf order
    scales: np.ndarray  # (block K,) what (y - a, h sqrt(c)) is multiplied with before it is truncated
    reach: np.ndarray  # (block,) number of them
    along: np.ndarray  # (block K, d) coordinates of a record that depend on the location, if they are kept
    records: np.ndarray  # (block K,) the same in order of location: numbers of the records,
    sorted_scales: np.ndarray
    sorted_along: np.ndarray


def block_rows(locations: int) -> int:
    """Records that one call of `add_block` takes at most."""
    return max(64, min(_BLOCK, _PAIRS // max(locations, 1)))


def room_for_block(locations: int, coordinates: int = 0) -> Room:
    rows = block_rows(locations)
    pairs = rows * locations
    return Room(
        places=sparse_memory((pairs,), np.int32),
        scales=sparse_memory((pairs,)),
        reach=np.empty(rows, np.int64),
        along=sparse_memory((pairs, coordinates)),
        records=sparse_memory((pairs,), np.int32),
        sorted_scales=sparse_memory((pairs,)),
        sorted_along=sparse_memory((pairs, coordinates)),
    )


def record_norms(
    index: BallIndex, X: np.ndarray, beta: float, c: float, n_threads: int | None = None
) -> np.ndarray:
    """Norm over all locations of the contribution of each row of `X`, before clipping."""
    out = np.empty(len(X))
    with threads(n_threads, chunk=1):
        _norms(index, pad_queries(index, X), float(beta), float(c), out)
    return out


def add_block(
    index: BallIndex,
    clipping: Clipping,
    Y: np.ndarray,
    sums: np.ndarray,
    room: Room,
    n_threads: int | None = None,
) -> None:
    """Add the records `Y` (at most `block_rows` of them) to `sums`, float64 (K, width, width), upper blocks.

    `sums` is in the leaf order of the locations. The caller moves it on before a sum can reach `EXACT`.
    """
    with threads(n_threads, chunk=1):
        padded = pad_queries(index, Y)
        _reach(index, padded, *clipping, room.places, room.scales, room.reach)
    with threads(n_threads, chunk=1):
        starts = by_location(len(Y), len(index.rows), room)
        done = np.zeros(len(sums), np.bool_)
        _accumulate(index, padded, float(clipping.c), starts, room.records, room.sorted_scales, sums, done)
    check_done(done)


def check_done(done: np.ndarray) -> None:
    """Refuse sums that some thread gave up: errors inside of a parallel loop can get lost."""
    if not done.all():
        raise MemoryError("records could not be summed: a thread found no memory")


def symmetric_integers(
    sums: np.ndarray, order: np.ndarray, features: int, n_threads: int | None = None
) -> np.ndarray:
    """Sums (K, width, width), of which the upper blocks are filled in, as whole integer matrices.

    Location a goes to the place order[a].
    """
    out = np.empty((len(sums), features, features), np.int64)
    with threads(n_threads):
        _symmetric(sums, order, out)
    return out


@kernel(parallel=True)
def _symmetric(sums, order, out):
    F = out.shape[1]
    for a in prange(len(sums)):
        place = order[a]
        for j in range(F):
            for k in range(j, F):
                value = np.int64(sums[a, j, k])
                out[place, j, k] = value
                out[place, k, j] = value


@device
def _find(index, X, q, beta, c, places, roots, room, inside):
    """Locations in reach of record q, square roots of its weights there, and the squared norm."""
    leaves, words = room[0], room[1]
    found = candidates(index, X, q, room)
    width = X.shape[1]
    h2 = index.radius * index.radius
    share = 1.0 / h2
    rows = index.rows
    count = 0
    for f in range(found):
        first = leaves[f] * LEAF
        count = closer(words[0, f], X, q * width, rows, first, width, h2, share, places, roots, count, inside)
    square = 0.0
    for i in range(count):
        t = roots[i]
        weight = power(t, beta)
        norm = weight * (c + (1.0 - t))
        square += norm * norm
        if beta != 2.0:
            roots[i] = math.sqrt(weight)
    return count, square


@device
def _norm_rows(index, X, first, last, beta, c, out):
    room, inside = search_room(index), np.zeros(1, np.int64)
    places = np.empty(len(index.rows) + 1, np.int32)
    roots = np.empty(len(index.rows) + 1)
    for q in range(first, last):
        out[q] = math.sqrt(_find(index, X, q, beta, c, places, roots, room, inside)[1])


@kernel(parallel=True)
def _norms(index, X, beta, c, out):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        _norm_rows(index, X, first, min(first + CHUNK, n), beta, c, out)


@device
def _within(index, X, q, lead, places, scales, count, bound):
    """Whether the sum of (v . v)^2 over the locations of record q is at most bound^2, in integers."""
    width = X.shape[1]
    rows = index.rows
    total = 0
    for i in range(count):
        last = float(math.trunc(scales[i] * lead))  # not an integer, whose square could wrap around
        square = truncated_square(X, q * width, rows, np.int64(places[i]) * width, scales[i], width)
        square += last * last
        if not square <= bound:  # before its square could leave 64 bits
            return False
        total += np.int64(square) * np.int64(square)
        if total > bound * bound:
            return False
    return True


@device
def _reach_rows(index, X, first, last, beta, c, tau, unit, bound, places, scales, reach):
    """Locations and scales of the records first to last - 1, and how many there are of each."""
    room, inside = search_room(index), np.zeros(1, np.int64)
    here = np.empty(len(index.rows) + 1, np.int32)
    roots = np.empty(len(index.rows) + 1)
    scaled = np.empty(len(index.rows))
    lead = index.radius * math.sqrt(c)
    at = first * len(index.rows)
    for q in range(first, last):
        count, square = _find(index, X, q, beta, c, here, roots, room, inside)
        norm = math.sqrt(square)
        reach[q] = 0
        if not norm > 0.0:
            continue
        factor = unit * math.sqrt(min(1.0, tau / norm)) / index.radius
        shrink = 2.0**-50
        # rounding in `factor` may pass the bound by some last digits: shrink until the integers agree
        while shrink < 0.5:
            for i in range(count):
                scaled[i] = factor * roots[i]
            if _within(index, X, q, lead, here, scaled, count, bound):
                for i in range(count):
                    places[at + i] = here[i]
                    scales[at + i] = scaled[i]
                at += count
                reach[q] = count
                break
            factor *= 1.0 - shrink
            shrink *= 2.0


@kernel(parallel=True)
def _reach(index, X, beta, c, tau, unit, bound, places, scales, reach):
    n = len(X)
    for chunk in prange((n + CHUNK - 1) // CHUNK):
        first = np.int64(chunk) * CHUNK
        last = min(first + CHUNK, n)
        _reach_rows(index, X, first, last, beta, c, tau, unit, bound, places, scales, reach)


@device
def _count_rows(first, last, places, reach, counts):
    at = 0
    for q in range(first, last):
        if q % CHUNK == 0:
            at = q * len(counts)
        for _ in range(reach[q]):
            counts[places[at]] += 1
            at += 1


@device
def _sort_rows(first, last, places, scales, reach, along, slots, records, sorted_scales, sorted_along):
    at = 0
    for q in range(first, last):
        if q % CHUNK == 0:
            at = q * len(slots)
        for _ in range(reach[q]):
            slot = slots[places[at]]
            slots[places[at]] = slot + 1
            records[slot] = q
            sorted_scales[slot] = scales[at]
            for e in range(along.shape[1]):
                sorted_along[slot, e] = along[at, e]
            at += 1


def by_location(n_records: int, n_locations: int, room: Room) -> np.ndarray:
    """Put the pairs of a block in order of location, within `room`; returns where each location starts.

    Parts of the records are counted and sorted side by side, each into its own slots.
    """
    starts = np.empty(n_locations + 1, np.int64)
    slots = np.zeros(((n_records + SORTED - 1) // SORTED, n_locations), np.int64)
    _sort_pairs(n_records, *room, slots, starts)
    return starts


@kernel(parallel=True)
def _sort_pairs(n_records, places, scales, reach, along, records, sorted_scales, sorted_along, slots, starts):
    parts, n_locations = slots.shape
    for part in prange(parts):
        first = np.int64(part) * SORTED
        _count_rows(first, min(first + SORTED, n_records), places, reach, slots[part])
    end = 0
    for a in range(n_locations):
        starts[a] = end
        for part in range(parts):
            count = slots[part, a]
            slots[part, a] = end
            end += count
    starts[n_locations] = end
    for part in prange(parts):
        first = np.int64(part) * SORTED
        last = min(first + SORTED, n_records)
        _sort_rows(
            first, last, places, scales, reach, along, slots[part], records, sorted_scales, sorted_along
        )


@device
def _accumulate_at(index, X, lead, a, first, last, records, scales, sums):
    width = X.shape[1]
    groups = width // LANES
    rows = index.rows
    panel = np.empty((groups, PANEL, LANES))
    group, lane = index.columns // LANES, index.columns % LANES
    filled = 0
    for pair in range(first, last):
        x0 = np.int64(records[pair]) * width
        scale = scales[pair]
        pack_truncated(X, x0, rows, a * width, scale, panel, LANES * filled, LANES * PANEL, groups)
        panel[group, filled, lane] = math.trunc(scale * lead)
        filled += 1
        if filled == PANEL:
            add_gram(panel, PANEL, filled, sums, groups)
            filled = 0
    if filled > 0:
        add_gram(panel, PANEL, filled, sums, groups)


@kernel(parallel=True)
def _accumulate(index, X, c, starts, records, scales, sums, done):
    lead = index.radius * math.sqrt(c)
    for a in prange(len(sums)):
        a = np.int64(a)
        _accumulate_at(index, X, lead, a, starts[a], starts[a + 1], records, scales, sums[a])
        done[a] = True
