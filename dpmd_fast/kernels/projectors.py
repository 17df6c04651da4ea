"""Kernel weights, local means and weighted projector sums at query points.

For a query x the weights are k_i = (1 - |x - y_i|^2 / h^2)_+^beta, and with their sum S

    offset = sum_i k_i (y_i - x) / S,        Pw = sum_i k_i V_i^T V_i / S,

V_i the (d, D) tangent basis at y_i. Offsets are summed as differences, so nothing large cancels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.search.balls import find_leaves, near_masks, square_norm, walk_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries, sketch_queries
from dpmd_fast.kernels.vector.gather import add_differences, add_outers_four, append_inside, fetch_ahead
from dpmd_fast.kernels.vector.lanes import LANES, center_block
from dpmd_fast.kernels.vector.panels import pack_scaled, panel_vectors
from dpmd_fast.kernels.vector.tiles import add_gram
from dpmd_fast.kernels.width import WIDTH

_CHUNK = 8  # queries that one call of the inner function takes
_PANEL = 92  # rows of bases multiplied in one go; not a power of two, for the sake of the cache


class LocalGeometry(NamedTuple):
    """Kernel sums over the reference around each of m points."""

    counts: np.ndarray  # (m,) reference points in the closed ball
    masses: np.ndarray  # (m,) sum of kernel values
    offsets: np.ndarray  # (m, padded D) weighted mean minus the point
    projectors: np.ndarray  # (m, padded D, padded D) weighted mean of the tangent projectors


def geometry_buffers(queries: int, padded: int) -> LocalGeometry:
    """Return arrays for `local_geometry` to fill, so that a loop over blocks allocates them once."""
    return LocalGeometry(
        np.empty(queries, np.int64),
        np.empty(queries),
        np.empty((queries, padded)),
        np.empty((queries, padded, padded)),
    )


def local_geometry(
    index: BallIndex,
    bases: np.ndarray,
    X: np.ndarray,
    beta: float,
    n_threads: int | None = None,
    buffers: LocalGeometry | None = None,
) -> LocalGeometry:
    """Return counts, masses, offsets and mean projectors at the rows of `X`; zero where the mass is zero."""
    whole = geometry_buffers(len(X), bases.shape[2]) if buffers is None else buffers
    out = LocalGeometry(*(values[: len(X)] for values in whole))
    with threads(n_threads):
        points, rests = sketch_queries(index, X)
        _local_geometry(index, bases, pad_queries(index, X), points, rests, float(beta), *out)
    return out


def project_to_planes(
    X: np.ndarray, means: np.ndarray, tangents: np.ndarray, n_threads: int | None = None
) -> np.ndarray:
    """Project each row of `X`, in place, onto the plane through its mean and tangents (m, d, padded D)."""
    with threads(n_threads):
        _project_to_planes(X, np.ascontiguousarray(means), np.ascontiguousarray(tangents))
    return X


@device(memory=True)
def _project_to_plane(q, X, means, tangents):
    D = X.shape[1]
    away = means[q] - X[q]
    for k in range(D):
        X[q, k] = means[q, k]
    for c in range(tangents.shape[1]):
        along = 0.0
        for k in range(D):
            along += tangents[q, c, k] * away[k]
        for k in range(D):
            X[q, k] -= along * tangents[q, c, k]


@kernel
def _project_to_planes(X, means, tangents):
    parallel_for(_project_to_plane, len(X), _CHUNK, (X, means, tangents))


@device
def power(t, beta):
    """Return t^beta for t >= 0, without a call of pow for the usual beta."""
    if beta == 2.0:
        return t * t
    return t**beta


@device(memory=True)
def _geometry_rows(chunk, index, bases, X, points, rests, beta, counts, masses, offsets, projectors):
    """Compute `local_geometry` at the rows of a chunk.

    The neighbours in a leaf are added while those of the next leaf are fetched to the cache.
    """
    index, bases, X, points = borrow(index), borrow(bases), borrow(X), borrow(points)
    first, last = chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(X))
    width = X.shape[1]
    d, padded = bases.shape[1], bases.shape[2]
    groups = padded // LANES
    capacity = max(_PANEL, d)
    n_leaves = len(index.rests)
    h2 = index.radius * index.radius
    share = 1.0 / h2
    rows = index.rows
    leaves = np.empty(n_leaves, np.int64)
    near = np.empty(n_leaves, np.uint64)
    panel = np.empty((panel_vectors(groups), capacity, WIDTH))
    zero = np.zeros(padded)
    sums = np.empty((padded, padded))
    offset = np.empty(width)
    places = np.empty(2 * LEAF + 1, np.int32)
    roots = np.empty(2 * LEAF + 1)
    weights = np.empty(2 * LEAF + 1)
    inside = np.empty(1, np.int64)
    walk = walk_scratch(index)
    for q in range(first, last):
        point = points[q]
        size = square_norm(point)
        found = find_leaves(index, point, point, size, leaves, walk)
        found = near_masks(index, point, rests[q], size, leaves, found, near, walk)
        sums[:] = 0.0
        offset[:] = 0.0
        inside[0] = 0
        mass = 0.0
        filled = 0
        start = 0
        stop = 0
        for f in range(found + 1):
            ahead = 0 if stop > LEAF else LEAF
            end = ahead
            if f < found:
                end = append_inside(
                    near[f],
                    X,
                    q * width,
                    rows,
                    leaves[f] * LEAF,
                    width,
                    h2,
                    share,
                    places,
                    roots,
                    ahead,
                    inside,
                )
                fetch_ahead(bases, places, ahead, end, d * padded)
                for i in range(ahead, end):
                    weights[i] = power(roots[i], beta)
                    mass += weights[i]
                    if beta != 2.0:
                        roots[i] = weights[i] ** 0.5
                add_differences(weights, places, ahead, end, rows, X, q * width, offset, width)
            if groups == 1:
                add_outers_four(bases, roots, places, start, stop, d, sums)
            else:
                for i in range(start, stop):
                    if filled + d > capacity:
                        add_gram(panel, capacity, filled, sums, groups)
                        filled = 0
                    row = np.int64(places[i])
                    pack_scaled(
                        bases, row * d * padded, roots[i], panel, WIDTH * filled, WIDTH * capacity, groups, d
                    )
                    filled += d
            start, stop = ahead, end
        if filled > 0:
            add_gram(panel, capacity, filled, sums, groups)
        scale = 1.0 / mass if mass > 0.0 else 0.0
        for k in range(padded):
            offsets[q, k] = scale * offset[k]
        for i in range(0, padded, LANES):
            for j in range(i, padded, LANES):
                center_block(sums, i * padded + j, padded, zero, i, j, 0.0, scale, projectors[q], padded)
        counts[q] = inside[0]
        masses[q] = mass


@kernel
def _local_geometry(index, bases, X, points, rests, beta, counts, masses, offsets, projectors):
    chunks = (len(X) + _CHUNK - 1) // _CHUNK
    arguments = index, bases, X, points, rests, beta, counts, masses, offsets, projectors
    parallel_for(_geometry_rows, chunks, 1, arguments)
