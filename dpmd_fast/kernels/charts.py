"""Moving points with a field of local affine maps: the transform of the atlas.

At a point x, with w_a = S_a (1 - |x - b_a|^2 / h^2)_+^2 over the charts a in reach and g = V_a^T (x - b_a),

    x <- x + strength sum_a w_a (pull (b_a - x) + offset_a + sum_e g_e slope_ae) / sum_a w_a.

With pull = 1, no offset and the tangents as slopes this is the weighted mean of the projections onto the
charts' tangent planes; with pull = 0 it adds a smooth correction. Each point is moved by itself, in a fixed
order of charts: its result does not depend on blocks, threads or other points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.balls import find_leaves, near_masks, square_norm
from dpmd_fast.kernels.bits import count_trailing_zeros
from dpmd_fast.kernels.index import LEAF, BallIndex, build_index, pad_queries, sketch_point
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import add_difference, add_multiple, dot, square_distance


class Field(NamedTuple):
    """Charts in leaf order, padded to the width of the index."""

    centers: BallIndex  # of the points b
    weights: np.ndarray  # (K,) S
    frames: np.ndarray  # (K, d, width) rows of V^T
    offsets: np.ndarray  # (K, width)
    slopes: np.ndarray  # (K, d, width)
    pull: float
    strength: float
    passes: int


def make_field(
    centers: np.ndarray,
    frames: np.ndarray,
    weights: np.ndarray,
    bandwidth: float,
    *,
    offsets: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    strength: float = 1.0,
    passes: int = 1,
) -> Field:
    """Field of charts with `centers` (K, D), `frames` (K, D, d); without `slopes`, of projections."""
    index = build_index(centers, bandwidth, 1)
    width = index.rows.shape[1]

    def padded(values: np.ndarray) -> np.ndarray:
        out = np.zeros((*values.shape[:-1], width))
        out[..., : values.shape[-1]] = values
        return np.ascontiguousarray(out[index.order])

    rows = padded(np.asarray(frames).transpose(0, 2, 1))
    projections = slopes is None
    return Field(
        centers=index,
        weights=np.ascontiguousarray(weights[index.order], dtype=np.float64),
        frames=rows,
        offsets=padded(np.zeros_like(centers) if offsets is None else offsets),
        slopes=rows if slopes is None else padded(slopes),
        pull=1.0 if projections else 0.0,
        strength=float(strength),
        passes=passes,
    )


def move(field: Field, X: np.ndarray, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The rows of `X` moved, and whether each had a chart in reach in every pass; if not, it stays."""
    padded = pad_queries(field.centers, X)
    reached = np.empty(len(X), np.bool_)
    with threads(n_threads, chunk=64):
        _move(*field, padded, reached)
    return np.ascontiguousarray(padded[:, : X.shape[1]]), reached


@device
def _step(index, weights, frames, offsets, slopes, pull, X, x0, delta, gap, leaves, near, sure, point):
    """Sum of weights at the row at element `x0` of X; `delta` gets the weighted sum of the moves."""
    d, width = frames.shape[1], frames.shape[2]
    rows = index.rows
    h2 = index.radius * index.radius
    share = 1.0 / h2
    rest = sketch_point(index, X, x0, point)
    size = square_norm(point)
    found = find_leaves(index, point, point, size, leaves)
    found = near_masks(index, point, rest, size, leaves, found, near, sure)
    one = np.uint64(1)
    total = 0.0
    for k in range(width):
        delta[k] = 0.0
    for f in range(found):
        word = near[f]
        while word != 0:
            row = leaves[f] * LEAF + count_trailing_zeros(word)
            word &= word - one
            t = share * (h2 - square_distance(X, x0, rows, row * width, width))
            if not t > 0.0:
                continue
            weight = weights[row] * t * t
            total += weight
            for k in range(width):
                gap[k] = 0.0
            add_difference(1.0, X, x0, rows, row * width, gap, width)
            add_multiple(-weight * pull, gap, 0, delta, 0, width)
            add_multiple(weight, offsets, row * width, delta, 0, width)
            for e in range(d):
                along = dot(frames, (row * d + e) * width, gap, 0, width)
                add_multiple(weight * along, slopes, (row * d + e) * width, delta, 0, width)
    return total


@kernel(parallel=True)
def _move(index, weights, frames, offsets, slopes, pull, strength, passes, X, reached):
    for q in prange(len(X)):
        q = np.int64(q)
        width = X.shape[1]
        D = index.columns
        x0 = q * width
        n_leaves = len(index.rests)
        leaves = np.empty(n_leaves, np.int64)
        near = np.empty(n_leaves, np.uint64)
        sure = np.empty(n_leaves, np.uint64)
        point = np.empty(index.sketch.shape[1])
        delta = np.empty(width)
        gap = np.empty(width)
        start = X[q].copy()
        ok = True
        for _ in range(passes):
            total = _step(
                index,
                weights,
                frames,
                offsets,
                slopes,
                pull,
                X,
                x0,
                delta,
                gap,
                leaves,
                near,
                sure,
                point,
            )
            if not total > 0.0:
                ok = False
                break
            for k in range(D):
                X[q, k] += strength * delta[k] / total
        if not ok:
            for k in range(D):
                X[q, k] = start[k]
        reached[q] = ok
