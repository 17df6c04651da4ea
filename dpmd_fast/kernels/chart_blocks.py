"""Points moved by a field of charts, in blocks: the loops of `charts.py`.

All charts together do not fit into a core's first cache, so blocks of points near the same charts go through
them together: a leaf of charts after the other, with a list of points for each chart in reach, or for four
charts that lie side by side if there are few columns (`quad_steps.py`). With many columns a point has few of
the charts in reach, and those lie apart: only they are worked on (`planes.py`). A point's sums take its
charts in the order of the index, and charts of weight zero leave them as they are: its result does not depend
on the other points.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.scratch import aligned_zeros
from dpmd_fast.kernels.search.balls import SINGLE_EPS, SINGLE_MOST, all_bits
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import count_trailing_zeros, near_mask, whole_near_mask
from dpmd_fast.kernels.vector.lanes import LANES, add_multiple, dot
from dpmd_fast.kernels.vector.planes import POINTS as WIDE_POINTS
from dpmd_fast.kernels.vector.planes import add_chart
from dpmd_fast.kernels.vector.quad_steps import POINTS, add_four_charts
from dpmd_fast.kernels.vector.sketches import box_gaps, shift_to_single

BLOCK = 192  # points that go through a leaf together: 96 take 5 % longer (3 and 6 columns), 64 10 %
WIDE_BLOCK = 384  # the same with many columns, where a chart has few points near: 96 take 13 % longer
FEW = 8  # leaves: with so few, points are not sorted (3 columns, 5 leaves: sorted they take 13 % longer)


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that no vector lies across two of them."""
    out = aligned_zeros(values.shape)
    out[...] = values
    return out


def padded(values: np.ndarray) -> np.ndarray:
    """Return rows filled up with zeros to a multiple of four columns."""
    out = np.zeros((len(values), LANES * ((values.shape[1] + LANES - 1) // LANES)))
    out[:, : values.shape[1]] = values
    return out


@device(inline=True)
def _whole_sketch(x, D, center, across, scale, left, point):
    """Fill `point` with x - center in units of the radius: the sketch if there are few columns."""
    for i in range(D):
        point[i] = scale * (x[i] - center[i])
    return 0.0


@device(inline=True)
def _sketch(x, D, center, across, scale, left, point):
    """Fill `point` with the sketch of x; return the length of what is outside of it. `left` is scratch."""
    depth, width = across.shape
    if depth == D:
        return _whole_sketch(x, D, center, across, scale, left, point)
    left[:] = 0.0  # also the padding: a record that is not finite must leave nothing to the next
    for i in range(D):
        left[i] = scale * (x[i] - center[i])
    for k in range(depth):
        point[k] = dot(across, k * width, left, 0, width)
    for k in range(depth):
        add_multiple(-point[k], across, k * width, left, 0, width)
    return math.sqrt(dot(left, 0, left, 0, width))


@device(inline=True)
def _visiting_order(sketch_of, X, center, across, scale, low, high, scratch, order):
    """Sort the rows of X by the leaf they are closest to."""
    m, D = X.shape
    n_leaves, sides = low.shape
    depth = len(across)
    left, point, turned, gaps, least, nearest, ends = scratch
    for begin in range(0, m, len(gaps)):
        here = min(len(gaps), m - begin)
        for q in range(here):
            turned[depth, q] = sketch_of(X[begin + q], D, center, across, scale, left, point)
            least[q] = np.inf
            nearest[begin + q] = 0
            for k in range(depth):
                turned[k, q] = point[k]
        for leaf in range(n_leaves):
            box_gaps(turned, turned, 0, len(gaps), sides, low[leaf], high[leaf], gaps, here)
            for q in range(here):
                closer = gaps[q] < least[q]
                least[q] = gaps[q] if closer else least[q]
                nearest[begin + q] = leaf if closer else nearest[begin + q]
    for leaf in range(n_leaves + 1):
        ends[leaf] = 0
    for q in range(m):
        ends[nearest[q] + 1] += 1
    for leaf in range(n_leaves):
        ends[leaf + 1] += ends[leaf]
    for q in range(m):
        leaf = nearest[q]
        order[ends[leaf]] = q
        ends[leaf] += 1


@device(inline=True)
def _one_sum(sums, q, k):
    return sums[q, k]


@device(inline=True)
def _four_sums(sums, q, k):
    """Return the sum over the charts of all lanes."""
    at = LANES * k
    return (sums[q, at] + sums[q, at + 2]) + (sums[q, at + 1] + sums[q, at + 3])


@device(inline=True)
def _clear(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] = 0.0


@device(inline=True)
def _step(sum_of, x, norms, sums, totals, strength, here, D):
    """Move the points of a block that a chart reaches; the others stop, which a norm of NaN says."""
    for q in range(here):
        total = sum_of(totals, q, 0)
        if norms[q] >= 0.0 and total > 0.0:
            for k in range(D):
                x[q, k] += strength * sum_of(sums, q, k) / total
        else:
            norms[q] = np.nan


@device(inline=True)
def _store(x, norms, order, begin, here, X, reached):
    """Put the points of a block that moved to their places, and say of each whether it did."""
    for q in range(here):
        row = order[begin + q]
        reached[row] = norms[q] >= 0.0
        if norms[q] >= 0.0:
            for k in range(X.shape[1]):
                X[row, k] = x[q, k]


@device(inline=True)
def _quads_of(word):
    """Return the lowest bit of each four bits of which one is set."""
    word |= word >> np.uint64(1)
    word |= word >> np.uint64(2)
    return word & np.uint64(0x1111111111111111)


@device(inline=True)
def _charts_of(word):
    return word


@device(inline=True)
def _near_points(
    mask_of, places_of, leaf, here, sizes, sketch, boxes, sketches, norms, limits, scratch, candidates, words
):
    """Find the points of a block near a leaf: their numbers, and which charts may be in reach of each.

    Returns how many there are. Points whose norm is NaN are near no leaf.
    """
    n, depth, _, rounding = sizes
    _, _, middles, single, half_norms, rests = sketch
    spreads, leaf_sizes, low, high = boxes
    points, turned, lengths = sketches
    gaps, shifted = scratch
    first, room = leaf * LEAF, middles.shape[1]
    box_gaps(turned, turned, 0, turned.shape[1], low.shape[1], low[leaf], high[leaf], gaps, here)
    close = 0
    more = rounding * leaf_sizes[leaf]
    for q in range(here):  # without a branch, which nobody could predict
        candidates[close] = q
        close += gaps[q] <= limits[q] + more
    for i in range(close):
        q = candidates[i]
        slack = rounding * (1.0 + norms[q] + leaf_sizes[leaf])
        rest = lengths[q]
        norm = rest * rest + shift_to_single(points, q * points.shape[1], middles, leaf * room, shifted, room)
        largest = max(norm, spreads[leaf])
        slack += (depth + 8) * SINGLE_EPS * 4.0 * largest
        if slack < 1.0 and largest < SINGLE_MOST:
            maybe = 0.5 * norm - 0.5 - 0.5 * slack
            word = mask_of(shifted, single, first * depth, depth, half_norms, rests, first, rest, maybe)
        else:
            word = all_bits(min(LEAF, n - first))
        words[i] = places_of(word)
    return close


@device(inline=True, memory=True)
def _move_blocks(
    sketch_of, mask_of, add, sum_of, places_of, unit, room_for, charts, strength, passes, X, reached
):
    """Move the rows of X in place, by `unit` charts at a time: the functions are those for so many.

    `room_for` has the largest number of points in a block, and of those that `add` works on together.
    """
    block, together = room_for
    sizes, sketch, boxes, planes, d, masses = charts
    frames, slopes = planes
    how = 1 if len(slopes) else 0
    steps = slopes if len(slopes) else frames
    center, across, room = sketch[0], sketch[1], sketch[2].shape[1]
    low, high, depth, radius = boxes[2], boxes[3], sizes[1], sizes[2]
    m, D = X.shape
    width, stride, n_leaves = across.shape[1], frames.shape[1], len(low)
    h2, scale = radius * radius, 1.0 / radius
    share, one = 1.0 / h2, np.uint64(1)
    most = max(1, min(block, m))
    pitch, length = most + together, unit * D if unit > 1 else width
    points, turned, shifted = np.empty((most, room)), np.empty((depth + 1, most)), np.empty(room, np.float32)
    lengths, norms, limits, gaps = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    left = np.empty(width)
    x, sums, totals = np.empty((most + 1, width)), np.empty((most + 1, length)), np.empty((most + 1, unit))
    words, candidates = np.empty(most, np.uint64), np.empty(most + 1, np.int64)
    gap, sketches, scratch = np.empty(together * length), (points, turned, lengths), (gaps, shifted)
    near, counts = np.empty(LEAF // unit * pitch, np.int64), np.empty(LEAF // unit, np.int64)
    order = np.empty(m, np.int64)
    for q in range(m):
        order[q] = q
    for place in range(LEAF // unit):
        counts[place] = 0
    _clear(points)
    _clear(x)
    if m > block and n_leaves > FEW:
        nearest, ends = np.empty(m, np.int64), np.empty(n_leaves + 1, np.int64)
        own = left, points[0], turned, gaps, lengths, nearest, ends
        _visiting_order(sketch_of, X, center, across, scale, low, high, own, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        for q in range(here):
            norms[q] = 0.0
            for k in range(D):
                x[q, k] = X[order[begin + q], k]
        for _ in range(passes):
            for q in range(here):
                rest = sketch_of(x[q], D, center, across, scale, left, points[q])
                size = rest * rest
                turned[depth, q] = lengths[q] = rest
                for k in range(depth):
                    turned[k, q] = points[q, k]
                    size += points[q, k] * points[q, k]
                norms[q] = size if norms[q] >= 0.0 else np.nan  # near no leaf
                limits[q] = 1.0 + sizes[3] * (2.0 + norms[q])  # one unit for the sums that follow
            _clear(sums)
            _clear(totals)
            for leaf in range(n_leaves):
                first, listed = leaf * LEAF, np.uint64(0)
                close = _near_points(
                    mask_of,
                    places_of,
                    leaf,
                    here,
                    sizes,
                    sketch,
                    boxes,
                    sketches,
                    norms,
                    limits,
                    scratch,
                    candidates,
                    words,
                )
                for i in range(close):
                    word = words[i]
                    listed |= word
                    while word != 0:
                        place = count_trailing_zeros(word) // unit
                        word &= word - one
                        near[place * pitch + counts[place]] = candidates[i]
                        counts[place] += 1
                while listed != 0:
                    place = count_trailing_zeros(listed) // unit
                    listed &= listed - one
                    add(
                        x,
                        near,
                        place * pitch,
                        counts[place],
                        frames,
                        steps,
                        (first // unit + place) * stride,
                        d,
                        D,
                        masses,
                        first + unit * place,
                        h2,
                        share,
                        how,
                        gap,
                        sums,
                        totals,
                    )
                    counts[place] = 0
            _step(sum_of, x, norms, sums, totals, strength, here, D)
        _store(x, norms, order, begin, here, X, reached)


@kernel(rows="whole")
def move_wide(sizes, sketch, boxes, planes, d, masses, strength, passes, X, reached, whole):
    """Move the rows of X in place, by charts one at a time.

    `planes` are frames about centres, and slopes with offsets, both of `pack_parts`; the latter are empty if
    points are projected. `whole` is as long as the call has rows, of which X may be a part.
    """
    charts = sizes, sketch, boxes, planes, d, masses
    room = WIDE_BLOCK, WIDE_POINTS
    _move_blocks(
        _sketch, near_mask, add_chart, _one_sum, _charts_of, 1, room, charts, strength, passes, X, reached
    )


@kernel(rows="whole")
def move_narrow(sizes, sketch, boxes, planes, d, masses, strength, passes, X, reached, whole):
    """Move the rows of X in place, as `move_wide`; `planes` are of `pack_fours`."""
    charts = sizes, sketch, boxes, planes, d, masses
    room = BLOCK, POINTS
    _move_blocks(
        _whole_sketch,
        whole_near_mask,
        add_four_charts,
        _four_sums,
        _quads_of,
        LANES,
        room,
        charts,
        strength,
        passes,
        X,
        reached,
    )
