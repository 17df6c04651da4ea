"""Pairs (record, location) of one block of records, found by record and sorted by location.

A block of records goes through two passes: by record (locations in reach, norm, clip), then, with the pairs
sorted by location, by location (Gram matrix of the integer vectors), so that no two threads share a sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.scratch import sparse_memory
from dpmd_fast.kernels.vector.fours import count_places, spread_pairs

CHUNK = 64  # records that one call of the inner functions takes
PANEL = 44  # vectors multiplied in one go: a panel of 60 columns stays in the first-level cache
_SORTED = 8 * CHUNK  # records sorted in one go: every part has counters for all locations
_PAIRS = 1 << 23  # pairs that one block has memory for
_BLOCK = 8192


class Pairs(NamedTuple):
    """Memory for the pairs of a block; those of `CHUNK` records follow one another.

    A chunk has memory for all locations, CHUNK K pairs, but mostly few of them: they stay in the caches, and
    the memory of the others is never touched.
    """

    places: np.ndarray  # (block K,) locations in reach of each record, in leaf order
    scales: np.ndarray  # (block K,) what the features there are multiplied with before they are truncated
    counts: np.ndarray  # (block,) number of locations of each record; below zero if it was not clipped
    along: np.ndarray  # (block K, d) features of a record that depend on the location, if they are kept
    by_location: np.ndarray  # (block K, 2) the same in order of location: scale and number of the record
    sorted_along: np.ndarray


#: Places, scales and counts where norms are wanted and not pairs; norms where pairs are.
NO_PAIRS = np.empty(0, np.int32), np.empty(0), np.empty(0, np.int64)
NO_NORMS = np.empty(0)


def block_rows(locations: int) -> int:
    """Return the largest number of records in one block."""
    return max(64, min(_BLOCK, _PAIRS // max(locations, 1)))


def pairs_for_block(locations: int, coordinates: int = 0) -> Pairs:
    """Return memory for a block, with `coordinates` features that depend on the location."""
    rows = block_rows(locations)
    pairs = rows * locations
    return Pairs(
        places=sparse_memory((pairs,), np.int32),
        scales=sparse_memory((pairs,)),
        counts=np.empty(rows, np.int64),
        along=sparse_memory((pairs, coordinates)),
        by_location=np.empty((pairs, 2)),  # in large pages: filled from the start, and written in all places
        sorted_along=np.empty((pairs, coordinates)),
    )


def sort_by_location(n_records: int, n_locations: int, pairs: Pairs) -> np.ndarray:
    """Sort the pairs of a block by location, within `pairs`; return where each location starts.

    Parts of the records are counted and sorted side by side, each into its own slots.
    """
    starts = np.empty(n_locations + 1, np.int64)
    slots = np.zeros(((n_records + _SORTED - 1) // _SORTED, n_locations), np.int64)
    _sort_pairs(n_records, *pairs, slots, starts)
    return starts


def check_done(done: np.ndarray) -> None:
    """Refuse what a thread has not finished, should a parallel loop lose an iteration without an error."""
    if not done.all():
        raise MemoryError("records could not be summed: a thread found no memory")


@device
def _count_rows(part, n_records, places, counts, slots):
    first, last = part * _SORTED, min((part + 1) * _SORTED, n_records)
    totals = slots[part]
    at = 0
    for q in range(first, last):
        if q % CHUNK == 0:
            at = q * len(totals)
        end = at + max(counts[q], 0)
        count_places(places, at, end, totals)
        at = end


@device
def _sort_rows(part, n_records, places, scales, counts, along, parts, by_location, sorted_along):
    first, last = part * _SORTED, min((part + 1) * _SORTED, n_records)
    slots = parts[part]
    at = 0
    for q in range(first, last):
        if q % CHUNK == 0:
            at = q * len(slots)
        end = at + max(counts[q], 0)
        if along.shape[1] > 0:
            for pair in range(at, end):
                slot = slots[places[pair]]  # `spread_pairs` moves on: a location is there once for a record
                for e in range(along.shape[1]):
                    sorted_along[slot, e] = along[pair, e]
        spread_pairs(q, places, scales, at, end, slots, by_location)
        at = end


@kernel
def _sort_pairs(n_records, places, scales, counts, along, by_location, sorted_along, slots, starts):
    parts, n_locations = slots.shape
    parallel_for(_count_rows, parts, 1, (n_records, places, counts, slots))
    end = 0
    for a in range(n_locations):
        starts[a] = end
        for part in range(parts):
            count = slots[part, a]
            slots[part, a] = end
            end += count
    starts[n_locations] = end
    arguments = n_records, places, scales, counts, along, slots, by_location, sorted_along
    parallel_for(_sort_rows, parts, 1, arguments)
