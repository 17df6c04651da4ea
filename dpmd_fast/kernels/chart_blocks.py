"""Points moved by a field of charts, in blocks: the loops of `charts.py`.

All charts together do not fit into a core's first cache, so blocks of points near the same charts go through
them together, a leaf of charts after the other. With few columns, where a point has many charts of a leaf in
reach, they are added to one point after the other (`weighted_rows.py`); with many, one chart at a time is
added to the points that it reaches (`planes.py`). A point's sums take its charts in the order of the index:
its result does not depend on the other points.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.search.balls import SINGLE_EPS, SINGLE_MOST, all_bits
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import count_trailing_zeros, near_mask, whole_near_mask
from dpmd_fast.kernels.vector.lanes import LANES, add_multiple, dot
from dpmd_fast.kernels.vector.panels import aligned_panel
from dpmd_fast.kernels.vector.planes import POINTS, add_chart
from dpmd_fast.kernels.vector.sketches import box_gaps, shift_to_single
from dpmd_fast.kernels.vector.weighted_rows import add_far_charts, add_rows, apply_row, weigh_charts

BLOCK = 192  # points that go through a leaf together: 96 and 384 take as long, within 2 % (3 and 8 columns)
WIDE_BLOCK = 1536  # the same with many columns, where a chart has few points near: 96 take 13 % longer
FEW = 8  # leaves: with so few, points are not sorted (3 columns, 5 leaves: sorted they take 3 to 11 % longer)


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
    """Fill `point` with the sketch of x; return the length of what is outside of it. `left` is scratch.

    The sketch has fewer numbers than x.
    """
    depth, width = across.shape
    left[:] = 0.0  # also the padding: a record that is not finite must leave nothing to the next
    for i in range(D):
        left[i] = scale * (x[i] - center[i])
    for k in range(depth):
        point[k] = dot(across, k * width, left, 0, width)
    for k in range(depth):
        add_multiple(-point[k], across, k * width, left, 0, width)
    return math.sqrt(dot(left, 0, left, 0, width))


@device(inline=True, memory=True)
def _set_order(sketch_of, X, block, sizes, sketch, boxes, order):
    """Set an order of the rows of X in which a block has points near the same leaf.

    They are sorted by the leaf whose middle is nearest, in single precision: a result does not depend on it.
    """
    m, n_leaves, depth = len(X), len(boxes[2]), sizes[1]
    for q in range(m):
        order[q] = q
    if m <= block or n_leaves <= FEW:
        return
    center, across, middles = sketch[0], sketch[1], sketch[2]
    left, point = np.empty(across.shape[1]), np.zeros(middles.shape[1])
    turned, gaps, least = (
        np.empty((depth, block), np.float32),
        np.empty(block, np.float32),
        np.empty(block, np.float32),
    )
    nearest, ends = np.empty(m, np.int32), np.zeros(n_leaves + 1, np.int64)
    for begin in range(0, m, block):
        here = min(block, m - begin)
        for q in range(here):
            sketch_of(X[begin + q], len(center), center, across, 1.0 / sizes[2], left, point)
            least[q] = np.inf
            nearest[begin + q] = 0
            for k in range(depth):
                turned[k, q] = point[k]
        for leaf in range(n_leaves):
            gaps[:] = 0.0
            for k in range(depth):
                middle = np.float32(middles[leaf, k])
                for q in range(here):
                    gap = turned[k, q] - middle
                    gaps[q] += gap * gap
            for q in range(here):
                closer = gaps[q] < least[q]
                least[q] = gaps[q] if closer else least[q]
                nearest[begin + q] = leaf if closer else nearest[begin + q]
    for q in range(m):
        ends[nearest[q] + 1] += 1
    for leaf in range(n_leaves):
        ends[leaf + 1] += ends[leaf]
    for q in range(m):
        order[ends[nearest[q]]] = q
        ends[nearest[q]] += 1


@device(inline=True)
def _clear(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] = 0.0


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
def _set_sketches(sketch_of, x, here, sizes, sketch, left, sketches, norms, limits, around):
    """Form the sketches of the points of a block, their limits of distance, and the box around all of them.

    The last row of `around` has the largest limit. Points whose norm is NaN keep it and have no limit.
    """
    points, turned, lengths = sketches
    depth, scale, D = sizes[1], 1.0 / sizes[2], len(sketch[0])
    most = 0.0
    for q in range(here):
        rest = sketch_of(x[q], D, sketch[0], sketch[1], scale, left, points[q])
        size = rest * rest
        turned[depth, q] = lengths[q] = rest
        for k in range(depth):
            turned[k, q] = points[q, k]
            size += points[q, k] * points[q, k]
        norms[q] = size if norms[q] >= 0.0 else np.nan  # near no leaf
        limits[q] = 1.0 + sizes[3] * (2.0 + norms[q])  # one unit for the sums that follow
        most = limits[q] if limits[q] > most else most
    for k in range(depth + 1):
        low, high = np.inf, -np.inf
        for q in range(here):
            value = turned[k, q]
            low = value if value < low else low
            high = value if value > high else high
        around[k, 0], around[k, 1] = low, high
    around[depth + 1, 0] = most


@device(inline=True)
def _is_far(around, low, high, leaf, more):
    """Return True if no point in the box of a block is near a leaf: what `box_gaps` says of none is less."""
    sides = low.shape[1]
    gap = 0.0
    for k in range(sides):
        left, right = low[leaf, k] - around[k, 1], around[k, 0] - high[leaf, k]
        side = left if left > right else right
        side = side if side > 0.0 else 0.0
        gap += side * side
    return gap > around[len(around) - 1, 0] + more


@device(inline=True)
def _near_points(mask_of, leaf, here, sizes, sketch, boxes, sketches, norms, limits, around, scratch, found):
    """Find the points of a block near a leaf: their numbers, and which charts may be in reach of each.

    Returns how many there are. Points whose norm is NaN are near no leaf.
    """
    n, depth, _, rounding = sizes
    _, _, middles, single, half_norms, rests = sketch
    spreads, leaf_sizes, low, high = boxes
    points, turned, lengths = sketches
    gaps, shifted = scratch
    candidates, words = found
    first, room = leaf * LEAF, middles.shape[1]
    more = rounding * leaf_sizes[leaf]
    if _is_far(around, low, high, leaf, more):
        return 0
    box_gaps(turned, turned, 0, turned.shape[1], low.shape[1], low[leaf], high[leaf], gaps, here)
    close = 0
    for q in range(here):  # without a branch, which nobody could predict
        candidates[close] = q
        close += gaps[q] <= limits[q] + more
    count = 0
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
        candidates[count], words[count] = q, word
        count += word != 0
    return count


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
    how = 1 if len(slopes) else 0
    steps = slopes if len(slopes) else frames
    room, depth, radius = sketch[2].shape[1], sizes[1], sizes[2]
    m, D = X.shape
    width, stride, n_leaves = sketch[1].shape[1], frames.shape[1], len(boxes[2])
    h2, one = radius * radius, np.uint64(1)
    share = 1.0 / h2
    most = max(1, min(WIDE_BLOCK, m))
    pitch = most + POINTS
    sketches = np.zeros((most, room)), np.empty((depth + 1, most)), np.empty(most)
    norms, limits, around = np.empty(most), np.empty(most), np.empty((depth + 2, 2))
    scratch, left = (np.empty(most), np.empty(room, np.float32)), np.empty(width)
    x, sums, totals = np.zeros((most + 1, width)), np.empty((most + 1, width)), np.empty((most + 1, 1))
    candidates, words = np.empty(most + 1, np.int64), np.empty(most + 1, np.uint64)
    gap, near, counts = (
        aligned_panel(width // LANES, POINTS),
        np.empty(LEAF * pitch, np.int32),
        np.zeros(LEAF, np.int64),
    )
    if sort:
        _set_order(_sketch, X, WIDE_BLOCK, sizes, sketch, boxes, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        for q in range(here):
            norms[q] = 0.0
            for k in range(D):
                x[q, k] = X[order[begin + q], k]
        for _ in range(passes):
            _set_sketches(_sketch, x, here, sizes, sketch, left, sketches, norms, limits, around)
            _clear(sums)
            _clear(totals)
            for leaf in range(n_leaves):
                first, listed = leaf * LEAF, np.uint64(0)
                found = candidates, words
                close = _near_points(
                    near_mask,
                    leaf,
                    here,
                    sizes,
                    sketch,
                    boxes,
                    sketches,
                    norms,
                    limits,
                    around,
                    scratch,
                    found,
                )
                for i in range(close):
                    word = words[i]
                    listed |= word
                    while word != 0:
                        place = count_trailing_zeros(word)
                        word &= word - one
                        near[place * pitch + counts[place]] = candidates[i]
                        counts[place] += 1
                while listed != 0:
                    place = count_trailing_zeros(listed)
                    listed &= listed - one
                    a = first + place
                    add_chart(
                        x,
                        near,
                        place * pitch,
                        counts[place],
                        frames,
                        steps,
                        a * stride,
                        d,
                        D,
                        masses,
                        a,
                        h2,
                        share,
                        how,
                        gap,
                        sums,
                        totals,
                    )
                    counts[place] = 0
            _step(x, norms, sums, totals, strength, here, D)
        _store(x, norms, order, begin, here, X, reached)


@kernel(rows="whole")
def move_narrow(sizes, sketch, boxes, charts, masses, strength, passes, X, reached, order, sort, whole):
    """Move the rows of X in place, by charts as rows of numbers.

    `charts` are the centres of `pack_lanes`; the rows of `pack_projections` or `pack_rows` and the size of
    their parts; 1 if they are of the former; and of each leaf whether its charts are packed about their own
    centres. Other arguments are those of `move_wide`.
    """
    centers, rows, size, symmetric, far = charts
    some_are_far = False
    for leaf in range(len(far)):  # Numba's any() would import SciPy with the compiled kernel
        some_are_far |= far[leaf]
    room, depth, radius = sketch[2].shape[1], sizes[1], sizes[2]
    m, D = X.shape
    n_leaves, h2 = len(boxes[2]), radius * radius
    share = 1.0 / h2
    most = max(1, min(BLOCK, m))
    sketches = np.zeros((most, room)), np.empty((depth + 1, most)), np.empty(most)
    norms, limits, around = np.empty(most), np.empty(most), np.empty((depth + 2, 2))
    scratch, left = (np.empty(most), np.empty(room, np.float32)), np.empty(D)
    x, sums, of_far = np.empty((most, D)), np.empty((most, rows.shape[1])), np.zeros((most, 1 + D))
    candidates, words = np.empty(most + 1, np.int64), np.empty(most + 1, np.uint64)
    weights, gap, step = np.empty(LEAF), np.empty(D), np.empty(D)
    if sort:
        _set_order(_whole_sketch, X, BLOCK, sizes, sketch, boxes, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        for q in range(here):
            norms[q] = 0.0
            for k in range(D):
                x[q, k] = X[order[begin + q], k]
        for _ in range(passes):
            _set_sketches(_whole_sketch, x, here, sizes, sketch, left, sketches, norms, limits, around)
            _clear(sums)
            if some_are_far:
                _clear(of_far)
            for leaf in range(n_leaves):
                found = candidates, words
                close = _near_points(
                    whole_near_mask,
                    leaf,
                    here,
                    sizes,
                    sketch,
                    boxes,
                    sketches,
                    norms,
                    limits,
                    around,
                    scratch,
                    found,
                )
                first = leaf * LEAF
                for i in range(close):
                    q, word = candidates[i], words[i]
                    weigh_charts(x, q * D, centers, first * D, D, masses, first, h2, share, word, weights)
                    if far[leaf]:
                        add_far_charts(
                            word, weights, centers, rows, first, symmetric, x, q, gap, step, of_far
                        )
                    else:
                        add_rows(word, weights, rows, size, first, sums, q)
            for q in range(here):
                total = sums[q, 0]
                for k in range(D):
                    step[k] = 0.0
                    gap[k] = x[q, k] - sketch[0][k]
                if total > 0.0:
                    apply_row(sums, q, symmetric, gap, step)
                if some_are_far:
                    total += of_far[q, 0]
                    for k in range(D):
                        step[k] += of_far[q, 1 + k]
                if norms[q] >= 0.0 and total > 0.0:
                    for k in range(D):
                        x[q, k] += strength * step[k] / total
                else:
                    norms[q] = np.nan
        _store(x, norms, order, begin, here, X, reached)
