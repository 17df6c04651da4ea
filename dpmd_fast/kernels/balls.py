"""Exact fixed-radius search: 64-point leaves, box pruning, one bit per candidate.

A reference point is found by its *sketch*, in units of the radius: its leading coordinates after a
global rotation to principal axes, and the length of the rest. It bounds a distance from both sides,

    |x - y|^2 >= |x1 - y1|^2 + (rx - ry)^2 = lower,     |x - y|^2 <= lower + 4 rx ry,

so a tile of sketch products settles all but a thin shell of candidates, and only that shell is
measured in full, by differences of the original coordinates. Rounding in the sketch moves
candidates into the shell, never across the radius: the answer is the one of a plain double loop.

A leaf's neighbours are a 64-bit word for each pair (query, leaf); no list of neighbours is kept.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.index import LEAF, BallIndex, pad_queries, sketch_queries
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import (
    count_ones,
    count_trailing_zeros,
    masks_double,
    masks_single,
    square_distance,
)

_SINGLE_MOST = 1e30  # beyond this, squares leave the range of single precision
_SINGLE_EPS = float(np.finfo(np.float32).eps)


def count_neighbors(index: BallIndex, X: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Number of reference points within the closed ball around each row of `X`."""
    points, rests = sketch_queries(index, X)
    with threads(n_threads, chunk=16):
        return _count(index, pad_queries(index, X), points, rests)


@device
def find_leaves(index, low, high, size, leaves):
    """Leaves whose box may come within the radius of the box [low, high]; returns their number.

    `size` is the largest |sketch|^2 in that box.
    """
    depth = len(low)
    stack = np.empty(128, np.int64)
    stack[0] = 0
    top = 1
    found = 0
    while top > 0:
        top -= 1
        node = stack[top]
        limit = 1.0 + index.rounding * (1.0 + size + index.sizes[node])
        gap = 0.0
        for k in range(depth):
            side = max(index.low[node, k] - high[k], low[k] - index.high[node, k])
            if side > 0.0:
                gap += side * side
                if gap > limit:
                    break
        if gap > limit:
            continue
        if index.children[node, 0] < 0:
            leaves[found] = index.children[node, 1]
            found += 1
        else:
            stack[top] = index.children[node, 1]
            stack[top + 1] = index.children[node, 0]
            top += 2
    return found


@device
def settle(Y, limit, X, x0, first, inside, maybe):
    """`inside` plus those of `maybe` that a full distance puts within the radius; bit 0 is row `first`."""
    width = Y.shape[1]
    shell = maybe & ~inside
    one = np.uint64(1)
    while shell != 0:
        bit = count_trailing_zeros(shell)
        if square_distance(X, x0, Y, (first + bit) * width, width) <= limit:
            inside |= one << np.uint64(bit)
        shell &= shell - one
    return inside


@device
def _row_gaps(sketch, low, high, gaps):
    """Squared distance of each point of a leaf to the box [low, high], from below."""
    gaps[:] = 0.0
    for k in range(len(low)):
        for r in range(LEAF):
            below = low[k] - sketch[k, r]
            above = sketch[k, r] - high[k]
            gap = below if below > above else above
            gap = gap if gap > 0.0 else 0.0
            gaps[r] += gap * gap


@device
def _shift_leaf(sketch, lengths, here, middle, single, half_norms, rests):
    """Sketch of a leaf about `middle` in single precision; returns its largest squared norm."""
    norms = np.zeros(LEAF)
    for k in range(len(single)):
        for j in range(LEAF):
            # the padding of the last leaf must stay small: its products may not overflow
            value = np.float32(sketch[k, j] - middle[k] if j < here else 0.0)
            single[k, j] = value
            norms[j] += np.float64(value) * np.float64(value)
    largest = 0.0
    for j in range(LEAF):
        rest = lengths[j]
        rests[j] = np.float32(rest)
        norm = norms[j] + rest * rest
        half_norms[j] = np.float32(-0.5 * norm)
        if j < here:
            largest = max(largest, norm)
    for j in range(here, LEAF):
        half_norms[j] = np.float32(-1e38)
    return largest


@device
def leaf_masks(index, leaf, leaves, found, masks):
    """masks[r, f]: which points of leaf `leaves[f]` lie in the ball around point r of leaf `leaf`.

    Sketches are compared in single precision about the middle of the leaf, where they are of the
    size of one; what single precision cannot decide is settled in double.
    """
    n, width = index.rows.shape
    depth = index.depth
    here = min(LEAF, n - leaf * LEAF)
    h2 = index.radius * index.radius
    own_node = index.leaf_nodes[leaf]
    middle = 0.5 * (index.low[own_node] + index.high[own_node])
    single = np.empty((depth, LEAF), np.float32)
    half_norms = np.empty(LEAF, np.float32)
    rests = np.empty(LEAF, np.float32)
    own_size = _shift_leaf(index.sketch[leaf], index.rests[leaf], here, middle, single, half_norms, rests)
    queries = single.T.copy()
    own_norms = half_norms.copy()
    gaps = np.empty(LEAF)
    words = np.empty(2, np.uint64)
    for f in range(found):
        other = leaves[f]
        node = index.leaf_nodes[other]
        _row_gaps(index.sketch[leaf], index.low[node], index.high[node], gaps)
        there = min(LEAF, n - other * LEAF)
        size = _shift_leaf(index.sketch[other], index.rests[other], there, middle, single, half_norms, rests)
        size = max(size, own_size)
        double = index.rounding * (1.0 + index.sizes[own_node] + index.sizes[node])
        slack = double + (depth + 8) * _SINGLE_EPS * 4.0 * size
        for r in range(here):
            word = np.uint64(0)
            if gaps[r] <= 1.0 + double:
                if size < _SINGLE_MOST:
                    # -distance^2 / 2 = products - |y|^2 / 2 - |x|^2 / 2
                    base = -0.5 - np.float64(own_norms[r])
                    masks_single(
                        queries,
                        r * depth,
                        single,
                        0,
                        depth,
                        half_norms,
                        rests,
                        0,
                        index.rests[leaf, r],
                        base - 0.5 * slack,
                        base + 0.5 * slack,
                        words,
                    )
                else:
                    words[0] = all_bits(there)
                    words[1] = 0
                word = words[0]
                if word != words[1]:
                    word = settle(
                        index.rows, h2, index.rows, (leaf * LEAF + r) * width, other * LEAF, words[1], word
                    )
            masks[r, f] = word


@device
def point_mask(index, X, x0, point, rest, half_norm, leaf, words):
    """Which points of `leaf` lie in the ball around one query (row at element `x0` of X)."""
    slack = index.rounding * (1.0 - 2.0 * half_norm + index.sizes[index.leaf_nodes[leaf]])
    if slack < 1.0:
        base = -0.5 - half_norm
        masks_double(
            point,
            0,
            index.sketch,
            leaf * index.sketch.shape[1] * LEAF,
            index.depth,
            index.half_norms,
            index.rests,
            leaf * LEAF,
            rest,
            base - 0.5 * slack,
            base + 0.5 * slack,
            words,
        )
    else:
        words[0] = all_bits(min(LEAF, len(index.rows) - leaf * LEAF))
        words[1] = 0
    if words[0] == words[1]:
        return words[0]
    h2 = index.radius * index.radius
    return settle(index.rows, h2, X, x0, leaf * LEAF, words[1], words[0])


@device
def all_bits(count):
    """A word with its first `count` bits set."""
    full = ~np.uint64(0)
    return full if count == LEAF else ~(full << np.uint64(count))


@device
def half_square(point):
    """-|point|^2 / 2, as `point_mask` wants it."""
    norm = 0.0
    for k in range(len(point)):
        norm += point[k] * point[k]
    return -0.5 * norm


@kernel(parallel=True)
def _count(index, X, points, rests):
    m = len(X)
    width = X.shape[1]
    counts = np.zeros(m, np.int64)
    n_leaves = len(index.half_norms)
    for q in prange(m):
        leaves = np.empty(n_leaves, np.int64)
        words = np.empty(2, np.uint64)
        point = points[q]
        half_norm = half_square(point)
        found = find_leaves(index, point, point, -2.0 * half_norm, leaves)
        total = 0
        for f in range(found):
            word = point_mask(index, X, q * width, point, rests[q], half_norm, leaves[f], words)
            total += count_ones(word)
        counts[q] = total
    return counts
