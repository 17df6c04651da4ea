"""Points with many columns moved by a field of charts: a loop of `charts.py`.

One chart after the other is added to the points that it may reach (`vector/planes.py`). In a small block that
may be a point or two: there the charts are added to one point after the other (`vector/few_points.py`), with
the same bits.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.chart_blocks import FEW, clear, fetch, store
from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import count_ones, count_trailing_zeros
from dpmd_fast.kernels.vector.few_points import add_to_point
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import aligned_panel
from dpmd_fast.kernels.vector.planes import POINTS, TOGETHER, add_chart
from dpmd_fast.kernels.vector.runs import RUN, append_numbers
from dpmd_fast.kernels.wide_search import (
    collect,
    make_room,
    near_charts,
    near_points,
    set_box,
    set_order,
    set_sketches,
)
from dpmd_fast.kernels.width import WIDTH

WIDE_BLOCK = 1536  # points that go through the charts together
FEW_POINTS = 24  # in a block: with so few, charts are added to one point after the other
SOME_POINTS = 256  # with so few, that depends on how many of them are near a chart
# points near a chart, on average over the charts of a leaf that have any: with more, chart after chart
SHARED = 3.5 if WIDTH == 8 else 2.0


@device(inline=True)
def _add_by_charts(leaf, charts, found, numbers, words, near, field, x, gaps, sums, totals):
    """Add charts of a leaf to the points that they may reach, one chart after the other."""
    frames, steps, d, masses, h2, share, how = field
    one = np.uint64(1)
    while charts != 0:
        j, count = count_trailing_zeros(charts), np.int64(0)
        charts &= charts - one
        for i in range((found + RUN - 1) // RUN):
            count = append_numbers(words[j, i], numbers, i * RUN, near, count)
        a = leaf * LEAF + j
        f0, mass = a * frames.shape[1], masses[a]
        add_chart(x, near, count, frames, steps, f0, d, mass, h2, share, how, gaps, sums, totals)


@device(inline=True)
def _is_shared(charts, found, words):
    """Return True if charts that may reach a point may reach many."""
    pairs, left, one = 0, charts, np.uint64(1)
    while left != 0:
        j = count_trailing_zeros(left)
        left &= left - one
        for i in range((found + RUN - 1) // RUN):
            pairs += count_ones(words[j, i])
    return pairs > SHARED * count_ones(charts)


@device(inline=True)
def _put_off(leaf, charts, found, numbers, words, reach):
    """Set reach[q, leaf] to the charts of a leaf that may reach point q, from the words of these charts."""
    one = np.uint64(1)
    while charts != 0:
        j = count_trailing_zeros(charts)
        charts &= charts - one
        chart = one << np.uint64(j)
        for i in range((found + RUN - 1) // RUN):
            word = words[j, i]
            while word != 0:
                reach[numbers[i * RUN + count_trailing_zeros(word)], leaf] |= chart
                word &= word - one


@device
def _add_by_points(here, reach, near, field, x, gaps, moves, weights, sums, totals):
    """Add the charts that may reach a point, one point after the other. Clears `reach`."""
    one = np.uint64(1)
    for q in range(here):
        count = np.int64(0)
        for leaf in range(reach.shape[1]):
            word = reach[q, leaf]
            reach[q, leaf] = 0
            while word != 0:
                near[count] = leaf * LEAF + count_trailing_zeros(word)
                word &= word - one
                count += 1
        if count > 0:
            add_to_point(x, q, near, count, field, gaps, moves, weights, sums, totals)


@device(inline=True)
def _step(x, norms, sums, totals, strength, here, D):
    """Move the points of a block that a chart reaches; the others stop, which a norm of NaN says."""
    for q in range(here):
        total = totals[q, 0]
        if norms[q] >= 0.0 and total > 0.0:
            for k in range(D):
                x[q, k] += strength * sums[q, k] / total
        else:
            norms[q] = np.nan


@kernel(rows="whole")
def move_wide(sizes, sketch, boxes, planes, d, masses, strength, passes, X, reached, order, sort, whole):
    """Move the rows of X in place, by charts one at a time.

    `planes` are frames about centres, and slopes with offsets, both of `pack_parts`; the latter are empty if
    points are projected. Rows are visited in `order`, which is set first if `sort` is 1. `whole` is as long
    as the call has rows, of which X may be a part.
    """
    frames, slopes = planes
    steps, how = (slopes, 1) if len(slopes) else (frames, 0)
    h2 = sizes[2] * sizes[2]
    field = frames, steps, d, masses, h2, 1.0 / h2, how
    m, D = X.shape
    width, n_leaves = sketch[1].shape[1], len(boxes[2])
    most = max(1, min(WIDE_BLOCK, m))
    few, some = most <= FEW_POINTS, most <= SOME_POINTS
    room = make_room(most, sizes[1])
    norms, numbers = room.norms, room.numbers
    rows = len(norms)
    words = np.empty((LEAF, rows // RUN), np.uint64)
    reach = np.zeros((most if some else 0, n_leaves), np.uint64)
    near = np.empty(max(n_leaves * LEAF + WIDTH, len(numbers) + POINTS), np.int32)
    x, sums, totals = np.zeros((rows + 1, width)), np.empty((rows + 1, width)), np.empty((rows + 1, 1))
    gaps = aligned_panel(width // LANES, POINTS)
    moves, weights = np.empty(((d + TOGETHER - 1) // TOGETHER, WIDTH, width)), np.empty(WIDTH)
    if sort:
        for q in range(m):
            order[q] = q
        if m > most and n_leaves > FEW:
            set_order(X, sizes, sketch, x, gaps, room, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        fetch(X, order, begin, here, x, norms)
        for _ in range(passes):
            set_sketches(x, here, sizes, sketch, gaps, room)
            set_box(here, sizes[3], room)
            clear(sums)
            clear(totals)
            waits = False
            for leaf in range(n_leaves):
                found = collect(leaf, here, sizes, sketch, boxes, room)
                if few:
                    for i in range(found):
                        reach[numbers[i], leaf] = near_charts(leaf, i, sizes, sketch, boxes, room)
                    continue
                nearby = near_points(leaf, found, sizes, sketch, boxes, room, words)
                if some and not _is_shared(nearby, found, words):
                    _put_off(leaf, nearby, found, numbers, words, reach)
                    waits = True
                    continue
                if waits:
                    _add_by_points(here, reach, near, field, x, gaps, moves, weights, sums, totals)
                    waits = False
                _add_by_charts(leaf, nearby, found, numbers, words, near, field, x, gaps, sums, totals)
            if few or waits:
                _add_by_points(here, reach, near, field, x, gaps, moves, weights, sums, totals)
            _step(x, norms, sums, totals, strength, here, D)
        store(x, norms, order, begin, here, X, reached)
