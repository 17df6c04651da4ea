"""Kernel weights, local means and weighted projector sums at query points.

For a query x the weights are k_i = (1 - |x - y_i|^2 / h^2)_+^beta, and with their sum S

    offset = sum_i k_i (y_i - x) / S,        Pw = sum_i k_i V_i^T V_i / S,

V_i the (d, D) tangent basis at y_i. Offsets are summed as differences, so nothing large cancels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.balls import find_leaves, near_masks, square_norm
from dpmd_fast.kernels.bits import count_trailing_zeros
from dpmd_fast.kernels.index import LEAF, BallIndex, pad_queries, sketch_queries
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import (
    LANES,
    add_difference,
    add_outer_four,
    center_block,
    pack_scaled,
    square_distance,
)
from dpmd_fast.kernels.tiles import add_gram

_PANEL = 92  # rows of bases multiplied in one go; not a power of two, for the sake of the cache


class LocalGeometry(NamedTuple):
    """What the reference looks like around each of m points."""

    counts: np.ndarray  # (m,) reference points in the closed ball
    masses: np.ndarray  # (m,) sum of kernel values
    offsets: np.ndarray  # (m, padded D) weighted mean minus the point
    projectors: np.ndarray  # (m, padded D, padded D) weighted mean of the tangent projectors


def room_for(queries: int, padded: int) -> LocalGeometry:
    """Arrays for `local_geometry` to fill, so that a loop over blocks does not ask for new ones each time."""
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
    room: LocalGeometry | None = None,
) -> LocalGeometry:
    """Counts, masses, offsets and averaged projectors at the rows of `X`; zero where the mass is zero."""
    whole = room_for(len(X), bases.shape[2]) if room is None else room
    out = LocalGeometry(*(values[: len(X)] for values in whole))
    with threads(n_threads, chunk=4):
        points, rests = sketch_queries(index, X)
        _local_geometry(index, bases, pad_queries(index, X), points, rests, float(beta), *out)
    return out


@device
def power(t, beta):
    """t^beta for t >= 0, without a call to pow for the usual beta."""
    if beta == 2.0:
        return t * t
    return t**beta


@device
def _geometry_of(index, bases, X, points, rests, beta, q, counts, masses, offsets, projectors):
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
    sure = np.empty(n_leaves, np.uint64)
    panel = np.empty((groups, capacity, LANES))
    zero = np.zeros(padded)
    sums = np.zeros((padded, padded))
    offset = np.zeros(width)
    point = points[q]
    size = square_norm(point)
    found = find_leaves(index, point, point, size, leaves)
    found = near_masks(index, point, rests[q], size, leaves, found, near, sure)
    one = np.uint64(1)
    count = 0
    mass = 0.0
    filled = 0
    for f in range(found):
        word = near[f]
        while word != 0:
            row = leaves[f] * LEAF + count_trailing_zeros(word)
            word &= word - one
            r2 = square_distance(X, q * width, rows, row * width, width)
            if not r2 <= h2:
                continue
            count += 1
            t = share * (h2 - r2)
            if not t > 0.0:
                continue
            weight = power(t, beta)
            mass += weight
            add_difference(weight, rows, row * width, X, q * width, offset, width)
            root = t if beta == 2.0 else weight**0.5
            if groups == 1:
                add_outer_four(bases, row * d * padded, root, sums, d)
                continue
            if filled + d > capacity:
                add_gram(panel, capacity, filled, sums, groups)
                filled = 0
            pack_scaled(bases, row * d * padded, root, panel, LANES * filled, LANES * capacity, groups, d)
            filled += d
    if filled > 0:
        add_gram(panel, capacity, filled, sums, groups)
    scale = 1.0 / mass if mass > 0.0 else 0.0
    for k in range(padded):
        offsets[q, k] = scale * offset[k]
    projector = projectors[q]
    for i in range(0, padded, LANES):
        for j in range(i, padded, LANES):
            center_block(sums, i * padded + j, padded, zero, i, j, 0.0, scale, projector, padded)
    counts[q] = count
    masses[q] = mass


@kernel(parallel=True)
def _local_geometry(index, bases, X, points, rests, beta, counts, masses, offsets, projectors):
    for q in prange(len(X)):
        _geometry_of(index, bases, X, points, rests, beta, np.int64(q), counts, masses, offsets, projectors)
