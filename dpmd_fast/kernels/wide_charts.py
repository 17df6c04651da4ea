"""Points of many columns moved by a field of charts: the arithmetic of `charts.py`, chart by chart.

With many columns a point has few of the charts in reach, and those lie apart: only they are worked on, each
with its columns in the lanes of vectors. All charts together do not fit into a core's own cache, so blocks of
points near the same charts go through them together. A point's sums take its charts in the order of the
index, and charts of weight zero leave them as they are: its result does not depend on the other points.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.search.balls import SINGLE_EPS, SINGLE_MOST, all_bits, leaf_gaps
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import count_trailing_zeros, near_mask
from dpmd_fast.kernels.vector.lanes import LANES, add_multiple, dot
from dpmd_fast.kernels.vector.planes import add_chart

_LINE = 8  # doubles in a cache line
BLOCK = 64  # points that go through a leaf together: 32 take 4 % longer (20 columns), 128 as long


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that no vector lies across two of them."""
    room = np.empty(values.size + _LINE)
    start = -(room.ctypes.data // 8) % _LINE
    out = room[start : start + values.size].reshape(values.shape)
    out[...] = values
    return out


def pack_axes(axes: np.ndarray) -> np.ndarray:
    """Return axes (D, depth) as rows, filled up with zeros to a multiple of four columns."""
    D, depth = axes.shape
    out = np.zeros((depth, LANES * ((D + LANES - 1) // LANES)))
    out[:, :D] = axes.T
    return out


@device(inline=True)
def _sketch(x, D, center, across, scale, left, point):
    """Fill `point` with the sketch of x; return the length of what is outside of it. `left` is scratch."""
    depth, width = across.shape
    if depth == D:
        for i in range(D):
            point[i] = scale * (x[i] - center[i])
        return 0.0
    left[:] = 0.0  # also the padding: a record that is not finite must leave nothing to the next
    for i in range(D):
        left[i] = scale * (x[i] - center[i])
    for k in range(depth):
        point[k] = dot(across, k * width, left, 0, width)
    for k in range(depth):
        add_multiple(-point[k], across, k * width, left, 0, width)
    rest = math.sqrt(dot(left, 0, left, 0, width))
    point[depth] = rest
    return rest


@device(inline=True, memory=True)
def _visiting_order(X, center, across, scale, leaf_low, leaf_high, order):
    """Sort the rows of X by the leaf they are closest to."""
    m, D = X.shape
    width, n_leaves = across.shape[1], leaf_low.shape[1]
    x, left, point, gaps = np.zeros(width), np.zeros(width), np.zeros(len(leaf_low)), np.empty(n_leaves)
    nearest, ends = np.empty(m, np.int32), np.zeros(n_leaves + 1, np.int64)
    for q in range(m):
        for k in range(D):
            x[k] = X[q, k]
        _sketch(x, D, center, across, scale, left, point)
        leaf_gaps(leaf_low, leaf_high, 0, n_leaves, point, point, gaps)
        best = 0
        for leaf in range(1, n_leaves):
            if gaps[leaf] < gaps[best]:
                best = leaf
        nearest[q] = best
        ends[best + 1] += 1
    for leaf in range(n_leaves):
        ends[leaf + 1] += ends[leaf]
    for q in range(m):
        leaf = nearest[q]
        order[ends[leaf]] = q
        ends[leaf] += 1


@device(inline=True)
def _squared(point):
    """Return the sum of squares, in their order."""
    size = 0.0
    for k in range(len(point)):
        size += point[k] * point[k]
    return size


@device(inline=True)
def _step(x, moving, sums, totals, strength, here, D):
    """Move the points of a block that a chart reaches; the others stop."""
    for q in range(here):
        moving[q] = moving[q] and totals[q] > 0.0
        if moving[q]:
            for k in range(D):
                x[q, k] += strength * sums[q, k] / totals[q]


@device(inline=True)
def _store(x, moving, order, begin, here, X, reached):
    """Put the points of a block that moved to their places, and say of each whether it did."""
    for q in range(here):
        row = order[begin + q]
        reached[row] = moving[q]
        if moving[q]:
            for k in range(X.shape[1]):
                X[row, k] = x[q, k]


@kernel(rows="whole")
def move_wide(sizes, sketch, boxes, planes, d, masses, strength, passes, X, reached, whole):
    """Move the rows of X in place.

    `planes` are frames about centres, and slopes with offsets, both of `pack_parts`; the latter are empty if
    points are projected. `whole` is as long as the call has rows, of which X may be a part.
    """
    frames, slopes = planes
    how = 1 if len(slopes) else 0
    steps = slopes if len(slopes) else frames
    center, across, middles, single, half_norms, rests = sketch
    n, depth, radius, rounding = sizes
    spreads, leaf_sizes, leaf_low, leaf_high = boxes
    m, D = X.shape
    width, stride = across.shape[1], frames.shape[1]
    n_leaves, sides = len(spreads), len(leaf_low)
    h2, scale = radius * radius, 1.0 / radius
    share, one = 1.0 / h2, np.uint64(1)
    most = min(BLOCK, m)
    points, shifted, gaps = np.zeros((most, sides)), np.empty(depth, np.float32), np.empty((most, n_leaves))
    lengths, norms = np.empty(most), np.empty(most)
    x, sums, totals = np.zeros((most + 1, width)), np.zeros((most + 1, width)), np.zeros(most + 1)
    left, gap = np.zeros(width), np.empty(2 * width)
    moving, candidates = np.empty(most, np.bool_), np.empty(most + 1, np.int64)
    near, counts = np.empty(LEAF * (most + 1), np.int32), np.zeros(LEAF, np.int64)
    order = np.arange(m)
    if m > BLOCK and n_leaves > 1:
        _visiting_order(X, center, across, scale, leaf_low, leaf_high, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        moving[:here] = True
        for q in range(here):
            for k in range(D):
                x[q, k] = X[order[begin + q], k]
        for _ in range(passes):
            for q in range(here):
                lengths[q] = _sketch(x[q], D, center, across, scale, left, points[q])
                norms[q] = _squared(points[q]) if moving[q] else np.nan  # near no leaf
                leaf_gaps(leaf_low, leaf_high, 0, n_leaves, points[q], points[q], gaps[q])
            totals[:] = 0.0
            sums[:] = 0.0
            for leaf in range(n_leaves):
                first, listed = leaf * LEAF, np.uint64(0)
                close = 0
                for q in range(here):  # without a branch, which nobody could predict
                    candidates[close] = q
                    close += gaps[q, leaf] <= 1.0 + rounding * (1.0 + norms[q] + leaf_sizes[leaf])
                for i in range(close):
                    q = candidates[i]
                    slack = rounding * (1.0 + norms[q] + leaf_sizes[leaf])
                    rest = lengths[q]
                    norm = rest * rest
                    for k in range(depth):
                        value32 = np.float32(points[q, k] - middles[leaf, k])
                        shifted[k] = value32
                        norm += np.float64(value32) * np.float64(value32)
                    largest = max(norm, spreads[leaf])
                    slack += (depth + 8) * SINGLE_EPS * 4.0 * largest
                    if slack < 1.0 and largest < SINGLE_MOST:
                        maybe = 0.5 * norm - 0.5 - 0.5 * slack
                        word = near_mask(
                            shifted, single, first * depth, depth, half_norms, rests, first, rest, maybe
                        )
                    else:
                        word = all_bits(min(LEAF, n - first))
                    listed |= word
                    while word != 0:
                        chart = count_trailing_zeros(word)
                        word &= word - one
                        near[chart * (most + 1) + counts[chart]] = q
                        counts[chart] += 1
                while listed != 0:
                    chart = count_trailing_zeros(listed)
                    listed &= listed - one
                    add_chart(
                        x,
                        near,
                        chart * (most + 1),
                        counts[chart],
                        frames,
                        steps,
                        (first + chart) * stride,
                        width,
                        d,
                        masses[first + chart],
                        h2,
                        share,
                        how,
                        gap,
                        sums,
                        totals,
                    )
                    counts[chart] = 0
            _step(x, moving, sums, totals, strength, here, D)
        _store(x, moving, order, begin, here, X, reached)
