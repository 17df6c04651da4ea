"""Local PCA at every reference point: covariance of the ball, top-d basis.

Points of one leaf are visited in a chain of near neighbours, and the moment matrix is carried along:
only the rows that entered or left the ball are added or taken away, and the next eigenproblem starts
from the last basis. Moments are kept about the middle of the leaf, which is within a few radii, and
are summed afresh about the ball's own middle as soon as that could cost digits.

A leaf is done by one thread from beginning to end, so the bits do not depend on the thread count.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.balls import (
    LEAF,
    BallIndex,
    find_leaves,
    half_square,
    leaf_masks,
    pad_queries,
    point_mask,
    sketch_queries,
)
from dpmd_fast.kernels.eigen import arbitrary_start, scratch, top_eigenvectors
from dpmd_fast.kernels.jit import kernel, prange, threads
from dpmd_fast.kernels.tiles import (
    LANES,
    add_gram,
    center_block,
    count_ones,
    count_trailing_zeros,
    pack,
    square_distance,
    subtract_gram,
)

_PANEL = 64
# A moment matrix that was updated is believed while what it holds is at least this share of what
# went through it; below that it is summed afresh.
_DRIFT = 1e-3
_COLD = 4  # unchecked multiplications for the first point of a leaf
_RETRY = 8  # how often a leaf with a poor spectral gap tries subspace iteration again
_LEAF_REACH = 4.0  # leaves wider than this many radii are not chained


def local_tangents(index: BallIndex, dim: int, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Tangent bases (n, dim, padded D) and ball counts (n,) of all reference points, in leaf order.

    The basis of a point whose ball holds fewer than dim + 1 points is zero.
    """
    n = len(index.rows)
    padded = LANES * ((index.columns + LANES - 1) // LANES)
    bases = np.zeros((n, dim, padded))
    counts = np.zeros(n, np.int64)
    with threads(n_threads, chunk=1):
        _leaf_tangents(index, dim, bases, counts)
    return bases, counts


def covariance_at(index: BallIndex, z: np.ndarray) -> tuple[np.ndarray, int]:
    """Covariance (D, D) of the reference points in the ball around one point, and their number."""
    points, rests = sketch_queries(index, z[None, :])
    with threads(1):
        return _covariance(index, pad_queries(index, z[None, :]), points[0], rests[0])


@kernel
def _collect(masks, r, leaves, found, rows):
    """Row numbers of the set bits of masks[r]; returns their count."""
    count = 0
    one = np.uint64(1)
    for f in range(found):
        word = masks[r, f]
        base = leaves[f] * LEAF
        while word != 0:
            rows[count] = base + count_trailing_zeros(word)
            count += 1
            word &= word - one
    return count


@kernel
def _changes(masks, r, last, leaves, found, added, removed):
    """Row numbers that are in ball r but not in ball `last`, and the reverse."""
    n_added = 0
    n_removed = 0
    one = np.uint64(1)
    for f in range(found):
        new = masks[r, f]
        old = masks[last, f]
        if new == old:
            continue
        base = leaves[f] * LEAF
        word = new & ~old
        while word != 0:
            added[n_added] = base + count_trailing_zeros(word)
            n_added += 1
            word &= word - one
        word = old & ~new
        while word != 0:
            removed[n_removed] = base + count_trailing_zeros(word)
            n_removed += 1
            word &= word - one
    return n_added, n_removed


@kernel
def _accumulate(index, rows, count, center, panel, moments, sign):
    """Add (or take away) the moments about `center` of the listed rows."""
    width = index.rows.shape[1]
    groups = width // LANES
    start = 0
    while start < count:
        block = min(_PANEL, count - start)
        for t in range(block):
            pack(index.rows, rows[start + t] * width, center, 1.0, panel, LANES * t, LANES * _PANEL, groups)
        if sign > 0:
            add_gram(panel, _PANEL, block, moments, groups)
        else:
            subtract_gram(panel, _PANEL, block, moments, groups)
        start += block


@kernel
def _fresh(index, rows, count, center, panel, moments):
    """Moments of the listed rows about their own mean (which is left in `center`)."""
    D = index.columns
    center[:] = 0.0
    for t in range(count):
        for k in range(D):
            center[k] += index.rows[rows[t], k]
    for k in range(D):
        center[k] /= count
    moments[:] = 0.0
    _accumulate(index, rows, count, center, panel, moments, 1)


@kernel
def _trace(moments, D):
    total = 0.0
    for i in range(D):
        total += moments[i, i]
    return total


@kernel
def _scatter(moments, D, count, sums, C):
    """C = moments about the mean, as a full matrix of trace 1. Returns the trace before scaling."""
    width = moments.shape[0]
    padded = C.shape[0]
    share = 1.0 / count
    trace = 0.0
    for i in range(D):
        sums[i] = moments[i, D]
        trace += moments[i, i] - share * sums[i] * sums[i]
    scale = 1.0 / trace if trace > 0.0 else 1.0
    for i in range(0, padded, LANES):
        for j in range(i, padded, LANES):
            center_block(moments, i * width + j, width, sums, i, j, share, scale, C, padded)
    for i in range(D, padded):  # the homogeneous column
        for j in range(padded):
            C[i, j] = 0.0
            C[j, i] = 0.0
    return trace


@kernel
def _chain(index, leaf, here, tour):
    """Visit the points of a leaf by nearest unvisited neighbour; returns the squared width of the leaf."""
    width = index.rows.shape[1]
    base = leaf * LEAF
    for r in range(here):
        tour[r] = r
    spread = 0.0
    for i in range(here - 1):
        best = math.inf
        at = i + 1
        for j in range(i + 1, here):
            gap = square_distance(index.rows, (base + tour[i]) * width, index.rows, (base + tour[j]) * width, width)
            if i == 0:
                spread = max(spread, gap)
            if gap < best:
                best = gap
                at = j
        tour[i + 1], tour[at] = tour[at], tour[i + 1]
    return spread


@kernel(parallel=True)
def _leaf_tangents(index, d, bases, counts):
    n, width = index.rows.shape
    D = index.columns
    padded = bases.shape[2]
    n_leaves = len(index.half_norms)
    groups = width // LANES
    h2 = index.radius * index.radius
    for leaf in prange(n_leaves):
        here = min(LEAF, n - leaf * LEAF)
        leaves = np.empty(n_leaves, np.int64)
        node = index.leaf_nodes[leaf]
        found = find_leaves(index, index.low[node], index.high[node], leaves)
        masks = np.empty((here, found), np.uint64)
        leaf_masks(index, leaf, leaves, found, masks)
        tour = np.empty(here, np.int64)
        chained = _chain(index, leaf, here, tour) <= _LEAF_REACH * _LEAF_REACH * h2
        middle = np.zeros(width)
        for r in range(here):
            for k in range(D):
                middle[k] += index.rows[leaf * LEAF + r, k] / here
        own = np.zeros(width)
        rows = np.empty(found * LEAF, np.int64)
        gone = np.empty(found * LEAF, np.int64)
        panel = np.empty((groups, _PANEL, LANES))
        moments = np.zeros((width, width))
        C = np.zeros((padded, padded))
        Q, Z, R, S, A, V, work = scratch(padded, d)
        sums = np.zeros(width)
        arbitrary_start(Q, D)
        eager = _COLD
        last = -1
        handled = 0.0
        for step in range(here):
            r = tour[step]
            count = 0
            for f in range(found):
                count += count_ones(masks[r, f])
            counts[leaf * LEAF + r] = count
            if count <= d:
                continue
            good = False
            if chained:
                if last >= 0:
                    added, removed = _changes(masks, r, last, leaves, found, rows, gone)
                else:
                    added, removed = count, count
                before = _trace(moments, D)
                if added + removed < count:
                    _accumulate(index, rows, added, middle, panel, moments, 1)
                    handled += max(_trace(moments, D) - before, 0.0)
                    _accumulate(index, gone, removed, middle, panel, moments, -1)
                else:
                    moments[:] = 0.0
                    _accumulate(index, rows, _collect(masks, r, leaves, found, rows), middle, panel, moments, 1)
                    handled = _trace(moments, D)
                last = r
                good = _scatter(moments, D, count, sums, C) > _DRIFT * handled
            if not good:
                _fresh(index, rows, _collect(masks, r, leaves, found, rows), own, panel, moments)
                _scatter(moments, D, count, sums, C)
                last = -1
            if eager < 0 and step % _RETRY == 0:
                eager = 0
            eager = top_eigenvectors(C, D, padded, d, eager, Q, Z, R, S, A, V, work)
            for c in range(d):
                for k in range(padded):
                    bases[leaf * LEAF + r, c, k] = Q[c, k]


@kernel
def _covariance(index, X, point, rest):
    n_leaves = len(index.half_norms)
    D = index.columns
    width = index.rows.shape[1]
    leaves = np.empty(n_leaves, np.int64)
    found = find_leaves(index, point, point, leaves)
    masks = np.empty((1, found), np.uint64)
    half_norm = half_square(point)
    words = np.empty(2, np.uint64)
    count = 0
    for f in range(found):
        masks[0, f] = point_mask(index, X, 0, point, rest, half_norm, leaves[f], words)
        count += count_ones(masks[0, f])
    padded = LANES * ((D + LANES - 1) // LANES)
    C = np.zeros((padded, padded))
    if count >= 2:
        rows = np.empty(count, np.int64)
        _collect(masks, 0, leaves, found, rows)
        moments = np.zeros((width, width))
        _fresh(index, rows, count, np.zeros(width), np.empty((width // LANES, _PANEL, LANES)), moments)
        C *= _scatter(moments, D, count, np.zeros(width), C) / (count - 1.0)
    return C[:D, :D].copy(), count
