"""Local PCA at every reference point: covariance of the ball, top-d basis.

The balls of one leaf share most of their rows: they are joined to a tree (`search/sharing.py`), and moments
are carried down its branches: only the rows that entered or left are added or subtracted. An eigenproblem
starts from the basis of the ball done before. Moments are kept about the middle of the leaf, which is within
a few radii, and are summed again about the ball's own mean as soon as that could cost digits.

A leaf is done by one thread from beginning to end, so the bits do not depend on the thread count.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.eigen.iteration import arbitrary_start, following_rows, scratch
from dpmd_fast.kernels.eigen.tridiagonal import top_subspaces
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.search.balls import find_leaves, leaf_masks, point_masks, walk_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries, sketch_queries
from dpmd_fast.kernels.search.sharing import MOST_BALLS, list_children, tree_of_balls
from dpmd_fast.kernels.vector.bits import count_ones
from dpmd_fast.kernels.vector.fours import ROOM, append_bits
from dpmd_fast.kernels.vector.gather import fetch_ahead
from dpmd_fast.kernels.vector.lanes import LANES, center_block, square_distance
from dpmd_fast.kernels.vector.panels import aligned_panel, pack
from dpmd_fast.kernels.vector.tiles import change_gram, change_gram_and_lead
from dpmd_fast.kernels.width import WIDTH

_PANEL = 64
_AHEAD = 8  # rows that are fetched to the caches ahead of time
# A moment matrix is used while its trace is at least this share of what the rows that were added to it can
# have; below that, cancellation could cost digits, and it is summed again.
_DRIFT = 1e-3
_COLD = 4  # unchecked multiplications for the first point of a leaf
_BATCH_BYTES = 1 << 25
_MOST_ROWS = 1 << 31  # lists of rows have 32-bit numbers
_REACH = 9.0  # where rows may be further from the middle of their leaf, in radii, balls share nothing
_SLOTS = 7  # matrices at a time: what goes to the next slot has at most half of the balls below it


def padded_width(columns: int) -> int:
    """Return the columns of a padded basis or matrix: the next multiple of four."""
    return LANES * ((columns + LANES - 1) // LANES)


def local_tangents(index: BallIndex, dim: int, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return tangent bases (n, dim, padded D) and ball counts (n,) of all reference points, in leaf order.

    The basis of a point whose ball holds fewer than dim + 1 points is zero.
    """
    n = len(index.rows)
    if n >= _MOST_ROWS:
        raise MemoryError("local PCA takes fewer than 2^31 reference points")  # how many may be private
    padded = padded_width(index.columns)
    bases = np.zeros((n, dim, padded))
    counts = np.zeros(n, np.int64)
    hard = np.zeros(n, np.bool_)
    with threads(n_threads):
        _all_tangents(index, bases, counts, hard)
    rows = np.flatnonzero(hard)
    batch = max(1, _BATCH_BYTES // (8 * padded * padded))
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        bases[part] = top_subspaces(_scatters(index, part, n_threads), index.columns, dim, n_threads)
    return bases, counts


def covariance_at(index: BallIndex, z: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the covariance (D, D) of the reference points in the ball around one point, and their number."""
    points, rests = sketch_queries(index, z[None, :])
    width = padded_width(index.columns)
    matrix = np.zeros((1, width, width))
    with threads(1):
        trace, count = _scatter_at(0, index, pad_queries(index, z[None, :]), points, rests, matrix)
    return matrix[0, : index.columns, : index.columns] * (trace / max(count - 1, 1)), int(count)


def _scatters(index: BallIndex, rows: np.ndarray, n_threads: int | None) -> np.ndarray:
    """Return scatter matrices, scaled to trace 1, around reference points given by their rows."""
    X = np.ascontiguousarray(index.rows[rows])
    points, rests = sketch_queries(index, X[:, : index.columns])
    width = padded_width(index.columns)
    matrices = np.zeros((len(rows), width, width))
    with threads(n_threads):
        _scatter_many(index, X, points, rests, matrices)
    return matrices


@device
def _collect(masks, r, leaves, found, rows):
    """List the row numbers of the set bits of masks[r]; return their count."""
    count = 0
    for f in range(found):
        if masks[r, f] != 0:
            count = append_bits(masks[r, f], leaves[f] * LEAF, rows, count)
    return count


@device
def _changes(masks, r, last, leaves, found, added, removed):
    """List the rows that are in ball r but not in ball `last`, and the reverse; return both counts."""
    n_added = 0
    n_removed = 0
    for f in range(found):
        new, old = masks[r, f], masks[last, f]
        if new != old:
            n_added = append_bits(new & ~old, leaves[f] * LEAF, added, n_added)
            n_removed = append_bits(old & ~new, leaves[f] * LEAF, removed, n_removed)
    return n_added, n_removed


@device
def _accumulate(Y, rows, added, gone, removed, center, panel, moments, lead):
    """Add the moments about `center` of `added` rows, and subtract those of the rows gone[:removed].

    With `lead`, sums of columns go to the row behind those of the columns, else to the column there.
    """
    width = Y.shape[1]
    groups = width // LANES
    total = added + removed
    for start in range(0, total, _PANEL):
        stop = min(start + _PANEL, total)
        for t in range(start, min(stop, added)):
            ahead = min(t + _AHEAD, added - 1)
            fetch_ahead(Y, rows, ahead, ahead + 1, width)
            pack(
                Y, np.int64(rows[t]) * width, center, 1.0, panel, WIDTH * (t - start), WIDTH * _PANEL, groups
            )
        for t in range(max(start, added), stop):
            ahead = min(t - added + _AHEAD, removed - 1)
            fetch_ahead(Y, gone, ahead, ahead + 1, width)
            pack(
                Y,
                np.int64(gone[t - added]) * width,
                center,
                1.0,
                panel,
                WIDTH * (t - start),
                WIDTH * _PANEL,
                groups,
            )
        block = stop - start
        more = min(max(added - start, 0), block)
        if lead:
            change_gram_and_lead(panel, _PANEL, more, block, moments, groups)
        else:
            change_gram(panel, _PANEL, more, block, moments, groups)


@device
def _sum_about_mean(Y, D, rows, count, center, panel, moments):
    """Sum the moments of the listed rows about their own mean, which is left in `center`."""
    center[:] = 0.0
    for t in range(count):
        for k in range(D):
            center[k] += Y[rows[t], k]
    for k in range(D):
        center[k] /= count
    moments[:] = 0.0
    _accumulate(Y, rows, count, rows, 0, center, panel, moments, D % LANES == 0)


@device
def _scatter(moments, D, count, sums, C):
    """Set C to the moments about the mean, as a full matrix of trace 1; return the trace before scaling."""
    width = moments.shape[0]
    padded = C.shape[0]
    share = 1.0 / count
    trace = 0.0
    for i in range(D):
        sums[i] = moments[D, i] if D % LANES == 0 else moments[i, D]
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


@device
def _spread(Y, first, here):
    """Return the largest squared distance of a point of a leaf to its first one."""
    width = Y.shape[1]
    spread = 0.0
    for r in range(1, here):
        spread = max(spread, square_distance(Y, first * width, Y, (first + r) * width, width))
    return spread


@device
def _follow(Y, D, ball, above, count, lists, center, panel, moments):
    """Change the moments of the ball `above` to those of one with `count` rows; return how many were added.

    Only the rows that differ are added or subtracted. If these are not fewer than all, or if there is no
    ball above (-1), all are added, and the number is negative.
    """
    masks, leaves, found, rows, gone = lists
    added, removed = count, count
    if above >= 0:
        added, removed = _changes(masks, ball, above, leaves, found, rows, gone)
    if added + removed < count:
        _accumulate(Y, rows, added, gone, removed, center, panel, moments, D % LANES == 0)
        return added
    moments[:] = 0.0
    _collect(masks, ball, leaves, found, rows)
    _accumulate(Y, rows, count, gone, 0, center, panel, moments, D % LANES == 0)
    return -count


@device(memory=True)
def _tangents_of_leaf(leaf, index, bases, counts, hard):
    """Set bases and counts of the points of one leaf; mark those that need the direct eigensolver."""
    index = borrow(index)
    n, width = index.rows.shape
    D = index.columns
    d, padded = bases.shape[1], bases.shape[2]
    groups = width // LANES
    first, here = leaf * LEAF, min(LEAF, n - leaf * LEAF)
    leaves = np.empty(len(index.rests), np.int64)
    node = index.leaf_nodes[leaf]
    found = find_leaves(
        index, index.low[node], index.high[node], index.sizes[node], leaves, walk_scratch(index)
    )
    masks = np.empty((MOST_BALLS, found), np.uint64)
    found = leaf_masks(index, leaf, leaves, found, masks)
    above, order, sizes, child, sibling = np.empty((5, MOST_BALLS), np.int64)
    balls = tree_of_balls(index.rows, first, here, D, 1.0 / index.radius, masks, found, above, order)
    list_children(balls, above, order, sizes, child, sibling)
    reach = index.radius + 2.0 * math.sqrt(_spread(index.rows, first, here))  # of a row from the middle
    shared = reach <= _REACH * index.radius
    middle = np.zeros(width)
    for r in range(here):
        for k in range(D):
            middle[k] += index.rows[first + r, k] / here
    own = np.zeros(width)
    rows, gone = np.empty((2, found * LEAF + ROOM), np.int32)
    panel = aligned_panel(groups, _PANEL)
    moments, alone = np.empty((_SLOTS, width, width)), np.empty((width, width))
    handled = np.zeros(_SLOTS)
    C = np.zeros((padded, padded))
    Q, Z, R, S, A, V = scratch(padded, d)
    sums = np.zeros(width)
    arbitrary_start(Q, D)
    eager = np.int64(_COLD)
    todo, slots = np.empty((2, MOST_BALLS), np.int64)  # balls to be done, the last first
    todo[0], slots[0] = order[0], 0
    top = 1
    while top > 0:
        top -= 1
        ball, slot = todo[top], slots[top]
        # the ball below with most below it comes last, and may have the slot; others get a copy in the next
        below = child[ball]
        while below >= 0:
            todo[top], slots[top] = below, slot if below == child[ball] else slot + 1
            top += 1
            below = sibling[below]
        count = 0
        for f in range(found):
            count += count_ones(masks[ball, f])
        if shared:
            parent, matrix = above[ball], moments[slot]
            if parent >= 0 and child[parent] != ball:
                matrix[:] = moments[slot - 1]
                handled[slot] = handled[slot - 1]
            if handled[slot] == math.inf:
                parent = np.int64(-1)
            lists = masks, leaves, found, rows, gone
            added = _follow(index.rows, D, ball, parent, count, lists, middle, panel, matrix)
            handled[slot] = reach * reach * abs(added) + (handled[slot] if added >= 0 else 0.0)
        if ball >= here:
            continue
        counts[first + ball] = count
        if count <= d:
            continue
        if not shared or not _scatter(moments[slot], D, count, sums, C) > _DRIFT * handled[slot]:
            handled[slot] = math.inf  # the next ball begins afresh
            _collect(masks, ball, leaves, found, rows)
            _sum_about_mean(index.rows, index.columns, rows, count, own, panel, alone)
            _scatter(alone, D, count, sums, C)
        eager = following_rows(C, D, padded, d, eager, Q, Z, R, S, A, V)
        if eager < 0:
            hard[first + ball] = True
            arbitrary_start(Q, D)
            eager = np.int64(_COLD)
            continue
        for c in range(d):
            for k in range(padded):
                bases[first + ball, c, k] = Q[c, k]


@kernel
def _all_tangents(index, bases, counts, hard):
    parallel_for(_tangents_of_leaf, len(index.rests), 1, (index, bases, counts, hard))


@kernel
def _scatter_at(q, index, X, points, rests, matrices):
    """Set matrices[q] to the scatter, of trace 1, of the ball around row q of X; return (trace, count)."""
    index = borrow(index)
    width = index.rows.shape[1]
    leaves = np.empty(len(index.rests), np.int64)
    masks = np.empty((1, len(leaves)), np.uint64)
    found = point_masks(index, X, q, points[q], rests[q], leaves, masks[0])
    count = 0
    for f in range(found):
        count += count_ones(masks[0, f])
    if count < 2:
        return 0.0, count
    rows = np.empty(count + ROOM, np.int32)
    _collect(masks, 0, leaves, found, rows)
    moments = np.zeros((width, width))
    _sum_about_mean(
        index.rows,
        index.columns,
        rows,
        count,
        np.zeros(width),
        aligned_panel(width // LANES, _PANEL),
        moments,
    )
    return _scatter(moments, index.columns, count, np.zeros(width), matrices[q]), count


@kernel
def _scatter_many(index, X, points, rests, matrices):
    parallel_for(_scatter_at, len(X), 4, (index, X, points, rests, matrices))
