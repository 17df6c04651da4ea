"""Local PCA at every reference point: covariance of the ball, top-d basis.

Points of one leaf are visited in a chain of near neighbours, and the moment matrix is carried along:
only the rows that entered or left the ball are added or subtracted, and the next eigenproblem starts
from the last basis. Moments are kept about the middle of the leaf, which is within a few radii, and
are summed again about the ball's own mean as soon as that could cost digits.

A leaf is done by one thread from beginning to end, so the bits do not depend on the thread count.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.eigen.iteration import arbitrary_start, leading_rows, scratch
from dpmd_fast.kernels.eigen.tridiagonal import top_subspaces
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.search.balls import find_leaves, leaf_masks, point_masks, walk_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries, sketch_queries
from dpmd_fast.kernels.vector.bits import count_ones, count_trailing_zeros
from dpmd_fast.kernels.vector.gather import fetch_ahead
from dpmd_fast.kernels.vector.lanes import LANES, center_block, square_distance
from dpmd_fast.kernels.vector.panels import pack, panel_vectors
from dpmd_fast.kernels.vector.tiles import add_gram, subtract_gram
from dpmd_fast.kernels.width import WIDTH

_PANEL = 64
_AHEAD = 8  # rows that are fetched to the caches ahead of time
# An updated moment matrix is used while its trace is at least this share of all that was added to it; below
# that, cancellation could cost digits, and it is summed again.
_DRIFT = 1e-3
_COLD = 4  # unchecked multiplications for the first point of a leaf
_BATCH_BYTES = 1 << 25
_LEAF_REACH = 4.0  # leaves wider than this many radii are not chained


def padded_width(columns: int) -> int:
    """Return the columns of a padded basis or matrix: the next multiple of four."""
    return LANES * ((columns + LANES - 1) // LANES)


def local_tangents(index: BallIndex, dim: int, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return tangent bases (n, dim, padded D) and ball counts (n,) of all reference points, in leaf order.

    The basis of a point whose ball holds fewer than dim + 1 points is zero.
    """
    n = len(index.rows)
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
    one = np.uint64(1)
    for f in range(found):
        word = masks[r, f]
        base = leaves[f] * LEAF
        while word != 0:
            rows[count] = base + count_trailing_zeros(word)
            count += 1
            word &= word - one
    return count


@device
def _changes(masks, r, last, leaves, found, added, removed):
    """List the rows that are in ball r but not in ball `last`, and the reverse; return both counts."""
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


@device
def _accumulate(Y, rows, count, center, panel, moments, sign):
    """Add (sign > 0) or subtract the moments about `center` of the listed rows."""
    width = Y.shape[1]
    groups = width // LANES
    start = 0
    while start < count:
        block = min(_PANEL, count - start)
        for t in range(block):
            ahead = min(start + t + _AHEAD, count - 1)
            fetch_ahead(Y, rows, ahead, ahead + 1, width)
            pack(Y, rows[start + t] * width, center, 1.0, panel, WIDTH * t, WIDTH * _PANEL, groups)
        if sign > 0:
            add_gram(panel, _PANEL, block, moments, groups)
        else:
            subtract_gram(panel, _PANEL, block, moments, groups)
        start += block


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
    _accumulate(Y, rows, count, center, panel, moments, 1)


@device
def _trace(moments, D):
    total = 0.0
    for i in range(D):
        total += moments[i, i]
    return total


@device
def _scatter(moments, D, count, sums, C):
    """Set C to the moments about the mean, as a full matrix of trace 1; return the trace before scaling."""
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


@device
def _chain(Y, base, here, tour):
    """Order the points of a leaf by nearest unvisited neighbour; return the squared width of the leaf."""
    width = Y.shape[1]
    for r in range(here):
        tour[r] = r
    spread = 0.0
    for i in range(here - 1):
        best = math.inf
        at = i + 1
        for j in range(i + 1, here):
            gap = square_distance(Y, (base + tour[i]) * width, Y, (base + tour[j]) * width, width)
            if i == 0:
                spread = max(spread, gap)
            if gap < best:
                best = gap
                at = j
        tour[i + 1], tour[at] = tour[at], tour[i + 1]
    return spread


@device(memory=True)
def _tangents_of_leaf(leaf, index, bases, counts, hard):
    """Set bases and counts of the points of one leaf; mark those that need the direct eigensolver."""
    index = borrow(index)
    n, width = index.rows.shape
    D = index.columns
    d, padded = bases.shape[1], bases.shape[2]
    n_leaves = len(index.rests)
    groups = width // LANES
    h2 = index.radius * index.radius
    here = min(LEAF, n - leaf * LEAF)
    leaves = np.empty(n_leaves, np.int64)
    node = index.leaf_nodes[leaf]
    walk = walk_scratch(index)
    found = find_leaves(index, index.low[node], index.high[node], index.sizes[node], leaves, walk)
    masks = np.empty((here, found), np.uint64)
    leaf_masks(index, leaf, leaves, found, masks)
    tour = np.empty(here, np.int64)
    chained = _chain(index.rows, leaf * LEAF, here, tour) <= _LEAF_REACH * _LEAF_REACH * h2
    middle = np.zeros(width)
    for r in range(here):
        for k in range(D):
            middle[k] += index.rows[leaf * LEAF + r, k] / here
    own = np.zeros(width)
    rows = np.empty(found * LEAF, np.int64)
    gone = np.empty(found * LEAF, np.int64)
    panel = np.empty((panel_vectors(groups), _PANEL, WIDTH))
    moments = np.zeros((width, width))
    C = np.zeros((padded, padded))
    Q, Z, R, S, A, V = scratch(padded, d)
    sums = np.zeros(width)
    arbitrary_start(Q, D)
    eager = np.int64(_COLD)
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
                _accumulate(index.rows, rows, added, middle, panel, moments, 1)
                handled += max(_trace(moments, D) - before, 0.0)
                _accumulate(index.rows, gone, removed, middle, panel, moments, -1)
            else:
                moments[:] = 0.0
                _accumulate(
                    index.rows, rows, _collect(masks, r, leaves, found, rows), middle, panel, moments, 1
                )
                handled = _trace(moments, D)
            last = r
            good = _scatter(moments, D, count, sums, C) > _DRIFT * handled
        if not good:
            _sum_about_mean(
                index.rows, index.columns, rows, _collect(masks, r, leaves, found, rows), own, panel, moments
            )
            _scatter(moments, D, count, sums, C)
            last = -1
        eager = leading_rows(C, D, padded, d, eager, Q, Z, R, S, A, V)
        if eager < 0:
            hard[leaf * LEAF + r] = True
            arbitrary_start(Q, D)
            eager = np.int64(_COLD)
            continue
        for c in range(d):
            for k in range(padded):
                bases[leaf * LEAF + r, c, k] = Q[c, k]


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
    found = point_masks(index, X, q * width, points[q], rests[q], leaves, masks[0])
    count = 0
    for f in range(found):
        count += count_ones(masks[0, f])
    if count < 2:
        return 0.0, count
    rows = np.empty(count, np.int64)
    _collect(masks, 0, leaves, found, rows)
    moments = np.zeros((width, width))
    _sum_about_mean(
        index.rows,
        index.columns,
        rows,
        count,
        np.zeros(width),
        np.empty((panel_vectors(width // LANES), _PANEL, WIDTH)),
        moments,
    )
    return _scatter(moments, index.columns, count, np.zeros(width), matrices[q]), count


@kernel
def _scatter_many(index, X, points, rests, matrices):
    parallel_for(_scatter_at, len(X), 4, (index, X, points, rests, matrices))
