"""Exact fixed-radius search: 64-point leaves, box pruning, one bit per candidate.

A reference point is found by its *sketch*, in units of the radius: its leading coordinates after a
global rotation to principal axes, and the length of the rest. It bounds a distance from both sides,

    |x - y|^2 >= |x1 - y1|^2 + (rx - ry)^2 = lower,     |x - y|^2 <= lower + 4 rx ry,

so a tile of sketch products decides all but a thin shell of candidates, and only that shell is
measured in full, by differences of the original coordinates. Rounding in the sketch moves
candidates into the shell, never across the radius: the answer is the one of a plain double loop.

A leaf's neighbours are a 64-bit word for each pair (query, leaf); no list of neighbours is kept.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.search.index import (
    LEAF,
    BallIndex,
    pad_queries,
    sketch_point,
    sketch_queries,
)
from dpmd_fast.kernels.vector.bits import SINGLE_MOST, ball_masks, count_ones, count_trailing_zeros, near_mask
from dpmd_fast.kernels.vector.lanes import square_distance
from dpmd_fast.kernels.vector.sketches import box_gaps, shift_to_single

_BUNDLE = 64  # leaves below a node that are looked at without following the tree
_QUERIES = 16  # that a thread counts at a time
_SINGLE_EPS = float(np.finfo(np.float32).eps)


def count_neighbors(index: BallIndex, X: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Count the reference points in the closed ball around each row of `X`."""
    points, rests = sketch_queries(index, X)
    counts = np.zeros(len(X), np.int64)
    with threads(n_threads):
        _count(index, pad_queries(index, X), points, rests, counts)
    return counts


@device(inline=True, memory=True)
def walk_scratch(index):
    """Arrays of `find_leaves` (a stack, gaps) and of masks (a shifted point, two words)."""
    return (
        np.empty(128, np.int64),
        np.empty(_BUNDLE),
        np.empty(index.depth, np.float32),
        np.empty(2, np.uint64),
    )


@device(inline=True)
def find_leaves(index, low, high, size, leaves, walk):
    """Find the leaves whose box may come within the radius of the box [low, high]; return their number.

    `size` is the largest |sketch|^2 in that box, `walk` is scratch. The tree is left where a node has few
    leaves: their boxes lie side by side, and looking at all of them costs less than following branches.
    """
    depth = len(low)
    stack, gaps = walk[0], walk[1]
    stack[0] = 0
    top = 1
    found = 0
    while top > 0:
        top -= 1
        node = stack[top]
        limit = 1.0 + index.rounding * (1.0 + size + index.sizes[node])
        first, count = index.spans[node, 0], index.spans[node, 1]
        if count <= _BUNDLE:
            leaf_gaps(index.leaf_low, index.leaf_high, first, count, low, high, gaps)
            for j in range(count):
                leaves[found] = first + j  # without a branch: which boxes are near cannot be predicted
                found += gaps[j] <= limit
            continue
        gap = 0.0
        for k in range(depth):
            side = max(index.low[node, k] - high[k], low[k] - index.high[node, k])
            if side > 0.0:
                gap += side * side
        if gap <= limit:
            stack[top] = index.children[node, 1]
            stack[top + 1] = index.children[node, 0]
            top += 2
    return found


@device(inline=True)
def leaf_gaps(leaf_low, leaf_high, first, count, low, high, gaps):
    """Measure the squared distances of `count` leaf boxes to the box [low, high]."""
    box_gaps(leaf_low, leaf_high, first, leaf_low.shape[1], len(low), low, high, gaps, count)


@device(memory=True)
def leaf_masks(index, leaf, leaves, found, masks):
    """Set masks[r, f]: which points of leaf `leaves[f]` lie in the ball around point r of leaf `leaf`.

    Leaves that no ball has a point of are taken off the list; returns the number of those left.
    """
    index = borrow(index)
    first, here = leaf * LEAF, min(LEAF, len(index.rows) - leaf * LEAF)
    coordinates = index.sketch.shape[1]
    size = index.sizes[index.leaf_nodes[leaf]]
    points = index.sketch[leaf].T.copy()
    gaps, near = np.empty(LEAF), np.empty(LEAF + 1, np.int64)
    walk = walk_scratch(index)
    kept = 0
    for f in range(found):
        other = leaves[f]
        node = index.leaf_nodes[other]
        low, high, start = index.low[node], index.high[node], leaf * coordinates * LEAF
        box_gaps(index.sketch, index.sketch, start, LEAF, coordinates, low, high, gaps, here)
        limit = 1.0 + index.rounding * (1.0 + size + index.sizes[node])
        close = 0
        for r in range(here):  # without a branch, which nobody could predict
            masks[r, kept] = 0
            near[close] = r
            close += gaps[r] <= limit
        together = np.uint64(0)
        for i in range(close):
            r = near[i]
            rest = index.rests[leaf, r]
            at = r * coordinates
            word = _inside_word(index, index.rows, first + r, points, at, rest, size, other, walk)
            masks[r, kept] = word
            together |= word
        leaves[kept] = other
        kept += together != 0
    return kept


@device(inline=True)
def _inside_word(index, X, q, points, p0, rest, size, leaf, walk):
    """Mark the points of a leaf that lie in the ball around row q of X.

    Its sketch is at element `p0` of `points`, of a squared norm of at most `size`. Sketches are compared in
    single precision about the middle of the leaf; what that cannot decide is measured in full.
    """
    first, depth, width = leaf * LEAF, index.depth, index.rows.shape[1]
    shifted, words = walk[2], walk[3]
    norm = rest * rest + shift_to_single(points, p0, index.middles, leaf * depth, shifted, depth)
    node_size = index.sizes[index.leaf_nodes[leaf]]
    slack = single_slack(norm, index.spreads[leaf], size, node_size, depth, index.rounding)
    if slack < 1.0:
        # -distance^2 / 2 = products - |y|^2 / 2 - |x|^2 / 2
        base = 0.5 * norm - 0.5
        low, high = base - 0.5 * slack, base + 0.5 * slack
        half_norms, rests = index.single_half_norms, index.single_rests
        ball_masks(
            shifted, 0, index.single, first * depth, depth, half_norms, rests, first, rest, low, high, words
        )
    else:
        words[0] = all_bits(min(LEAF, len(index.rows) - first))
        words[1] = 0
    inside = words[1]
    shell = words[0] & ~inside
    one, limit = np.uint64(1), index.radius * index.radius
    while shell != 0:
        bit = count_trailing_zeros(shell)
        if square_distance(X, q * width, index.rows, (first + bit) * width, width) <= limit:
            inside |= one << np.uint64(bit)
        shell &= shell - one
    return inside


@device(inline=True)
def single_share(depth):
    """Bound the error of a squared distance in single precision, as a share of the largest squared length."""
    return (depth + 8) * _SINGLE_EPS * 4.0


@device(inline=True)
def single_slack(norm, spread, size, node_size, depth, rounding):
    """Bound the error of a squared distance between sketches, half of it in products of single precision.

    `norm` and `spread` are the largest squared lengths about the middle of the leaf, of the query and of the
    points; `size` and `node_size` about the origin. Infinite where single precision decides nothing.
    """
    largest = max(norm, spread)
    slack = rounding * (1.0 + size + node_size) + single_share(depth) * largest
    return slack if slack < 1.0 and largest < SINGLE_MOST else math.inf


@device(inline=True)
def near_masks(index, point, rest, size, leaves, found, near, walk):
    """Mark the points that may lie in the ball around one query, by leaf.

    `size` is the squared norm of the query's sketch. Leaves without candidates are taken off the list;
    returns the number of those left.
    """
    n, depth, rounding = len(index.rows), index.depth, index.rounding
    middles, spreads, sizes, leaf_nodes = index.middles, index.spreads, index.sizes, index.leaf_nodes
    single, half_norms, rests = index.single, index.single_half_norms, index.single_rests
    shifted = walk[2]
    kept = 0
    for f in range(found):
        leaf = leaves[f]
        first = leaf * LEAF
        norm = rest * rest + shift_to_single(point, 0, middles, leaf * depth, shifted, depth)
        slack = single_slack(norm, spreads[leaf], size, sizes[leaf_nodes[leaf]], depth, rounding)
        if slack < 1.0:
            # -distance^2 / 2 = products - |y|^2 / 2 - |x|^2 / 2
            maybe = 0.5 * norm - 0.5 - 0.5 * slack
            word = near_mask(shifted, single, first * depth, depth, half_norms, rests, first, rest, maybe)
        else:
            word = all_bits(min(LEAF, n - first))
        leaves[kept] = leaf  # without a branch, as above
        near[kept] = word
        kept += word != 0
    return kept


@device(memory=True)
def point_masks(index, X, q, point, rest, leaves, masks):
    """Find the leaves with points in the ball around row q of X, whose sketch is `point`, and which points.

    Returns the number of leaves.
    """
    index = borrow(index)
    walk = walk_scratch(index)
    return _point_masks(index, X, q, point, rest, leaves, masks, walk)


@device
def _point_masks(index, X, q, point, rest, leaves, masks, walk):
    size = square_norm(point)
    kept = 0
    for f in range(find_leaves(index, point, point, size, leaves, walk)):
        leaf = leaves[f]
        leaves[kept] = leaf  # without a branch, as above
        masks[kept] = word = _inside_word(index, X, q, point, 0, rest, size, leaf, walk)
        kept += word != 0
    return kept


@device(memory=True)
def search_scratch(index):
    """Arrays of `find_candidates`, once for many points: leaves, words, sketch, axes, a row, and those of the
    walk."""
    n_leaves = len(index.rests)
    across = np.zeros((index.depth, index.rows.shape[1]))
    for i in range(index.columns):
        for k in range(index.depth):
            across[k, i] = index.axes[i, k]
    return (
        np.empty(n_leaves, np.int64),
        np.empty(n_leaves, np.uint64),
        np.empty(index.sketch.shape[1]),
        across,
        np.zeros(index.rows.shape[1]),
        walk_scratch(index),
    )


@device(inline=True)
def find_candidates(index, X, q, scratch):
    """Fill `scratch` with leaves and words of points that may lie in the ball around row q of X.

    Returns the number of leaves.
    """
    leaves, words, point, across, left, walk = scratch
    rest = sketch_point(index, X, q * X.shape[1], point, across, left)
    size = square_norm(point)
    found = find_leaves(index, point, point, size, leaves, walk)
    return near_masks(index, point, rest, size, leaves, found, words, walk)


@device(inline=True)
def all_bits(count):
    """Return a word with its first `count` bits set."""
    full = ~np.uint64(0)
    return full if count == LEAF else ~(full << np.uint64(count))


@device(inline=True)
def square_norm(point):
    norm = 0.0
    for k in range(len(point)):
        norm += point[k] * point[k]
    return norm


@device(memory=True)
def _count_at(q, index, X, points, rests, counts):
    leaves = np.empty(len(index.rests), np.int64)
    masks = np.empty(len(leaves), np.uint64)
    found = point_masks(index, X, q, points[q], rests[q], leaves, masks)
    total = 0
    for f in range(found):
        total += count_ones(masks[f])
    counts[q] = total


@kernel
def _count(index, X, points, rests, counts):
    parallel_for(_count_at, len(X), _QUERIES, (index, X, points, rests, counts))
