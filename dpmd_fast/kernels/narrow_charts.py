"""Points with few columns moved by a field of charts: a loop of `charts.py`.

The sketch of such a point (`search/index.py`) is the whole point. It has many charts of a leaf in reach: they
are added to one point after the other, as rows of numbers (`vector/weighted_rows.py`).
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.chart_blocks import FEW, clear, fetch, find_nearest, is_far, sort_by_leaf, store
from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.search.balls import all_bits, single_slack
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import whole_near_mask
from dpmd_fast.kernels.vector.sketches import box_gaps, shift_to_single
from dpmd_fast.kernels.vector.weighted_rows import add_far_charts, add_rows, apply_row, weigh_charts

BLOCK = 192  # points that go through a leaf together: 96 and 384 take as long, within 2 % (3 and 8 columns)


@device(memory=True)
def _set_order(X, sizes, sketch, order):
    """Set an order of the rows of X in which a block has points near the same leaf.

    They are sorted by the leaf whose middle is nearest, in single precision: a result does not depend on it.
    """
    m, depth, scale = len(X), sizes[1], 1.0 / sizes[2]
    center, middles = sketch[0], sketch[2]
    for q in range(m):
        order[q] = q
    if m <= BLOCK or len(middles) <= FEW:
        return
    turned, nearest = np.zeros((depth, BLOCK), np.float32), np.empty(m, np.int32)
    squares, least, own = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    for begin in range(0, m, BLOCK):
        here = min(BLOCK, m - begin)
        for q in range(here):
            for k in range(depth):
                turned[k, q] = scale * (X[begin + q, k] - center[k])
        find_nearest(turned, middles, squares, least, own)
        for q in range(here):
            nearest[begin + q] = own[q]
    sort_by_leaf(nearest, len(middles), order)


@device(inline=True)
def _set_sketches(x, here, sizes, center, points, turned, norms, limits, around):
    """Form the sketches of the points of a block, their limits of distance, and the box around all of them.

    The last row of `around` has the largest limit. Points whose norm is NaN keep it and have no limit.
    """
    depth, scale = sizes[1], 1.0 / sizes[2]
    most = 0.0
    for q in range(here):
        size = 0.0
        for k in range(depth):
            value = scale * (x[q, k] - center[k])
            points[q, k] = turned[k, q] = value
            size += value * value
        norms[q] = size if norms[q] >= 0.0 else np.nan  # near no leaf
        limits[q] = 1.0 + sizes[3] * (2.0 + norms[q])  # one unit for the sums that follow
        most = limits[q] if limits[q] > most else most
    for k in range(depth):
        low, high = np.inf, -np.inf
        for q in range(here):
            value = turned[k, q]
            low = value if value < low else low
            high = value if value > high else high
        around[k, 0], around[k, 1] = low, high
    around[depth, 0] = most


@device(inline=True)
def _near_points(
    leaf,
    here,
    sizes,
    sketch,
    boxes,
    points,
    turned,
    norms,
    limits,
    around,
    gaps,
    shifted,
    candidates,
    words,
):
    """Find the points of a block near a leaf: their numbers, and which charts may be in reach of each.

    Returns how many there are. Points whose norm is NaN are near no leaf.
    """
    n, depth, _, rounding = sizes
    _, _, middles, single, half_norms, rests = sketch
    spreads, leaf_sizes, low, high = boxes
    first, room = leaf * LEAF, middles.shape[1]
    more = rounding * leaf_sizes[leaf]
    if is_far(around, low, high, leaf, more):
        return 0
    box_gaps(turned, turned, 0, turned.shape[1], depth, low[leaf], high[leaf], gaps, here)
    close = 0
    for q in range(here):  # without a branch, which nobody could predict
        candidates[close] = q
        close += gaps[q] <= limits[q] + more
    count = 0
    for i in range(close):
        q = candidates[i]
        norm = shift_to_single(points, q * room, middles, leaf * room, shifted, room)
        slack = single_slack(norm, spreads[leaf], norms[q], leaf_sizes[leaf], depth, rounding)
        if slack < 1.0:
            maybe = 0.5 * norm - 0.5 - 0.5 * slack
            word = whole_near_mask(
                shifted, single, first * depth, depth, half_norms, rests, first, 0.0, maybe
            )
        else:
            word = all_bits(min(LEAF, n - first))
        candidates[count], words[count] = q, word
        count += word != 0
    return count


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
    points, turned = np.zeros((most, room)), np.empty((depth, most))
    norms, limits, around = np.empty(most), np.empty(most), np.empty((depth + 1, 2))
    gaps, shifted = np.empty(most), np.empty(room, np.float32)
    x, sums, of_far = np.empty((most, D)), np.empty((most, rows.shape[1])), np.zeros((most, 1 + D))
    candidates, words = np.empty(most + 1, np.int64), np.empty(most + 1, np.uint64)
    weights, gap, step = np.empty(LEAF), np.empty(D), np.empty(D)
    if sort:
        _set_order(X, sizes, sketch, order)
    for begin in range(0, m, most):
        here = min(most, m - begin)
        fetch(X, order, begin, here, x, norms)
        for _ in range(passes):
            _set_sketches(x, here, sizes, sketch[0], points, turned, norms, limits, around)
            clear(sums)
            if some_are_far:
                clear(of_far)
            for leaf in range(n_leaves):
                close = _near_points(
                    leaf,
                    here,
                    sizes,
                    sketch,
                    boxes,
                    points,
                    turned,
                    norms,
                    limits,
                    around,
                    gaps,
                    shifted,
                    candidates,
                    words,
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
        store(x, norms, order, begin, here, X, reached)
