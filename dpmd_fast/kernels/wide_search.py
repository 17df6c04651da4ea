"""Which charts are near the points of a block, if these have many columns: the search of `wide_charts.py`.

The points near a leaf are collected, as sketches in single precision about its middle, and then compared with
its charts: all of them with one chart after the other, or one point with all charts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.chart_blocks import find_nearest, is_far, sort_by_leaf
from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.search.balls import all_bits, single_share
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import SINGLE_MOST, count_ones, count_trailing_zeros, near_mask
from dpmd_fast.kernels.vector.planes import POINTS
from dpmd_fast.kernels.vector.runs import (
    CHARTS,
    RUN,
    append_numbers,
    append_singles,
    chart_words,
    see_run,
    sketch_points,
)
from dpmd_fast.kernels.width import HAS_COMPRESSION, WIDTH

# points of a run: with so few, one after the other is compared with the charts of a leaf
ALONE = 12 if WIDTH == 8 else 40


class Room(NamedTuple):
    """What the search for a block of points works in."""

    turned: np.ndarray  # the sketches of the points, by coordinates; their rests in the last row
    norms: np.ndarray  # their squared lengths; NaN for points that stopped
    around: np.ndarray  # the box around all of them; in the last row the largest limit
    words: np.ndarray  # which points of a run are near a leaf, and of which single precision tells nothing
    close: np.ndarray  # runs of those that are near: sketches about the middle of the leaf, rests and lifts
    numbers: np.ndarray  # and their places in the block
    places: np.ndarray  # 0, 1, 2, ...
    point: np.ndarray  # a sketch


@device(inline=True, memory=True)
def make_room(most, depth):
    """Return a room for blocks of up to `most` points. Sketches that are not set yet are zero."""
    rows = RUN * ((most + RUN - 1) // RUN)
    places = np.empty(rows, np.int32)
    for q in range(rows):
        places[q] = q
    return Room(
        np.zeros((depth + 1, rows)),
        np.empty(rows),
        np.empty((depth + 2, 2)),
        np.empty(2, np.uint64),
        np.zeros((depth + 2, rows), np.float32),
        np.empty(rows, np.int32),
        places,
        np.empty(depth, np.float32),
    )


@device(inline=True)
def set_sketches(x, here, sizes, sketch, gaps, room):
    """Form the sketches of the first points of a block. `gaps` is scratch for `POINTS` rows of `x`."""
    turned = room.turned
    width, depth, scale = x.shape[1], sizes[1], 1.0 / sizes[2]
    center, across, pitch = sketch[0], sketch[1], turned.shape[1]
    for q in range(0, here, POINTS):
        sketch_points(x, q * width, width, center, across, depth, scale, gaps, turned, q, pitch, room.norms)


@device(inline=True)
def set_box(here, rounding, room):
    """Set the box around the points of a block that have not stopped."""
    turned, norms, around = room.turned, room.norms, room.around
    largest = 0.0
    for q in range(here):
        largest = norms[q] if norms[q] > largest else largest
    for k in range(len(turned)):
        low, high = np.inf, -np.inf
        for q in range(here):
            moves, value = norms[q] >= 0.0, turned[k, q]
            low = value if moves and value < low else low
            high = value if moves and value > high else high
        around[k, 0], around[k, 1] = low, high
    around[len(turned), 0] = 1.0 + rounding * (2.0 + largest)  # one unit for the sums that follow


@device(memory=True)
def set_order(X, sizes, sketch, x, gaps, room, order):
    """Set an order of the rows of X in which a block has points near the same leaf.

    They are sorted by the leaf whose middle is nearest, in single precision: a result does not depend on it.
    The first rows of `x` and of the room are overwritten.
    """
    m, D = X.shape
    turned, middles, depth = room.turned, sketch[2], sizes[1]
    single, nearest = np.empty((depth, RUN), np.float32), np.empty(m, np.int32)
    squares, least, own = np.empty(RUN, np.float32), np.empty(RUN, np.float32), np.empty(RUN, np.int32)
    for begin in range(0, m, RUN):
        here = min(RUN, m - begin)
        for q in range(here):
            for k in range(D):
                x[q, k] = X[begin + q, k]
        set_sketches(x, here, sizes, sketch, gaps, room)
        for k in range(depth):
            for j in range(RUN):
                single[k, j] = turned[k, j]
        find_nearest(single, middles, squares, least, own)
        for q in range(here):
            nearest[begin + q] = own[q]
    sort_by_leaf(nearest, len(middles), order)


@device(inline=True)
def collect(leaf, here, sizes, sketch, boxes, room):
    """Collect the points of a block near a leaf, as sketches about its middle; return how many there are.

    Points that are collected without being near it, and what fills up the last run, are near no chart.
    """
    turned, norms, words, close, numbers = room.turned, room.norms, room.words, room.close, room.numbers
    depth, rounding = sizes[1], sizes[3]
    middles, (spreads, leaf_sizes, low, high) = sketch[2], boxes
    if is_far(room.around, low, high, leaf, rounding * leaf_sizes[leaf]):
        return 0
    rows, b0, m0 = turned.shape[1], leaf * low.shape[1], leaf * middles.shape[1]
    own = rounding * (1.0 + leaf_sizes[leaf])
    limits = spreads[leaf], 1.0 + rounding + own, rounding, own, single_share(depth)
    found, one = 0, np.uint64(1)
    for q in range(0, here, RUN):
        count, r0 = min(RUN, here - q), found
        see_run(turned, q, rows, norms, count, low, high, b0, middles, m0, depth, limits, close, r0, words)
        near, wild = words[0], words[1]
        while wild != 0:  # a product with what is not finite would be near nothing
            j = r0 + count_trailing_zeros(wild)
            wild &= wild - one
            for k in range(depth + 1):
                close[k, j] = 0.0
        chosen = count_ones(near)
        if chosen == count or (2 * chosen > count and not HAS_COMPRESSION):
            for j in range(count):
                numbers[r0 + j] = q + j
                if (near >> np.uint64(j)) & one == 0:
                    close[depth + 1, r0 + j] = -np.inf
            found += count
        elif chosen > 0:
            for k in range(depth + 2):
                append_singles(near, close, k * rows + r0, close, k * rows + r0)
            found = append_numbers(near, room.places, q, numbers, r0)
    for i in range(found, RUN * ((found + RUN - 1) // RUN)):
        close[depth + 1, i] = -np.inf
    return found


@device(inline=True)
def near_charts(leaf, i, sizes, sketch, boxes, room):
    """Return which charts of a leaf may reach point i of those that were collected."""
    close, point = room.close, room.point
    depth, single, half_norms, rests = sizes[1], sketch[3], sketch[4], sketch[5]
    first = leaf * LEAF
    every = all_bits(min(LEAF, sizes[0] - first))
    for k in range(depth):
        point[k] = close[k, i]
    rest, limit = close[depth, i], -close[depth + 1, i]
    word = near_mask(point, single, first * depth, depth, half_norms, rests, first, rest, limit)
    return every & word if boxes[0][leaf] < SINGLE_MOST else every


@device(inline=True)
def near_points(leaf, found, sizes, sketch, boxes, room, words):
    """Set words[j, i]: which points of run i of those that were collected chart j of a leaf may reach.

    Returns which charts may reach any; the words of others mean nothing.
    """
    close, depth = room.close, sizes[1]
    single, half_norms, rests = sketch[3], sketch[4], sketch[5]
    first, charts, one = leaf * LEAF, min(LEAF, sizes[0] - leaf * LEAF), np.uint64(1)
    any_chart = np.uint64(0)
    for i in range((found + RUN - 1) // RUN):
        count = min(RUN, found - i * RUN)
        if count <= ALONE:
            for j in range(charts):
                words[j, i] = 0
            for q in range(count):
                word = near_charts(leaf, i * RUN + q, sizes, sketch, boxes, room)
                while word != 0:
                    words[count_trailing_zeros(word), i] |= one << np.uint64(q)
                    word &= word - one
        else:
            for j in range(0, charts, CHARTS):
                chart_words(
                    single,
                    first * depth + j,
                    half_norms,
                    rests,
                    first + j,
                    depth,
                    close,
                    close.shape[1],
                    i * RUN,
                    words,
                    j * words.shape[1] + i,
                    words.shape[1],
                )
            if not boxes[0][leaf] < SINGLE_MOST:
                for j in range(charts):
                    words[j, i] = all_bits(count)
        for j in range(charts):
            any_chart |= np.uint64(words[j, i] != 0) << np.uint64(j)
    return any_chart
