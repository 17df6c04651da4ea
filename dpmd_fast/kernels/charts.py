"""Moving points with a field of local affine maps: the transform of the atlas.

At a point x, with w_a = S_a (1 - |x - b_a|^2 / h^2)_+^2 over the charts a in reach and g = V_a^T (x - b_a),

    x <- x + strength sum_a w_a (pull (b_a - x) + offset_a + sum_e g_e slope_ae) / sum_a w_a.

With pull = 1, no offset and the tangents as slopes this is the weighted mean of the projections onto the
charts' tangent planes; with pull = 0 it adds a smooth correction. Each point is moved by itself, in a fixed
order of charts: its result does not depend on blocks, threads or other points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.balls import SINGLE_EPS, SINGLE_MOST, all_bits
from dpmd_fast.kernels.bits import ball_masks, count_trailing_zeros
from dpmd_fast.kernels.index import LEAF, BallIndex, build_index, pad_queries
from dpmd_fast.kernels.jit import device, kernel, prange, threads
from dpmd_fast.kernels.lanes import add_chart, square_distance

_CHUNK = 128  # points that one call of the inner function moves


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
    marks = np.full(len(X), 2, np.uint8)  # neither: errors of threads can get lost, as when memory runs out
    reached = marks.view(np.bool_)
    with threads(n_threads, chunk=1):
        index = field.centers
        _move(index, index.sizes[index.leaf_nodes], *field[1:], padded, reached)
    if (marks > 1).any():
        raise MemoryError("points could not be moved: a thread found no memory")
    return np.ascontiguousarray(padded[:, : X.shape[1]]), reached


@device
def _move_rows(
    centers,
    sketch,
    boxes,
    leaf_low,
    leaf_high,
    weights,
    frames,
    offsets,
    slopes,
    pull,
    strength,
    passes,
    X,
    reached,
):
    """Move the rows of X, one after the other, where they are.

    The search of `balls.py` written out: charts are few, so every leaf's box is looked at, and no helper is
    called for a point, because every array that changes hands has its references counted.
    """
    rows, center, axes, middles, single, half_norms, rests = sketch
    D, depth, radius, rounding = centers
    spreads, sizes = boxes
    n, width = rows.shape
    d = frames.shape[1]
    n_leaves, sides = len(spreads), len(leaf_low)
    h2, scale = radius * radius, 1.0 / radius
    share = 1.0 / h2
    point, shifted = np.zeros(sides), np.empty(depth, np.float32)
    words, delta, start = np.empty(2, np.uint64), np.empty(width), np.empty(width)
    one = np.uint64(1)
    for q in range(len(X)):
        x0 = q * width
        for k in range(width):
            start[k] = X[q, k]
        ok = True
        for _ in range(passes):
            rest = 0.0
            for k in range(sides):
                point[k] = 0.0
            if depth == D:
                for i in range(D):
                    point[i] = scale * (X[q, i] - center[i])
            else:
                for i in range(D):
                    value = scale * (X[q, i] - center[i])
                    for k in range(depth):
                        point[k] += value * axes[i, k]
                for i in range(D):
                    value = scale * (X[q, i] - center[i])
                    for k in range(depth):
                        value -= point[k] * axes[i, k]
                    rest += value * value
                rest = math.sqrt(rest)
                point[depth] = rest
            size = 0.0
            for k in range(sides):
                size += point[k] * point[k]
            total = 0.0
            for k in range(width):
                delta[k] = 0.0
            for leaf in range(n_leaves):
                slack = rounding * (1.0 + size + sizes[leaf])
                gap = 0.0
                for k in range(sides):
                    below, above = leaf_low[k, leaf] - point[k], point[k] - leaf_high[k, leaf]
                    side = below if below > above else above
                    side = side if side > 0.0 else 0.0
                    gap += side * side
                if not gap <= 1.0 + slack:
                    continue
                norm = rest * rest
                for k in range(depth):
                    value32 = np.float32(point[k] - middles[leaf, k])
                    shifted[k] = value32
                    norm += np.float64(value32) * np.float64(value32)
                largest = max(norm, spreads[leaf])
                slack += (depth + 8) * SINGLE_EPS * 4.0 * largest
                if slack < 1.0 and largest < SINGLE_MOST:
                    base = 0.5 * norm - 0.5
                    ball_masks(
                        shifted,
                        0,
                        single,
                        leaf * depth * LEAF,
                        depth,
                        half_norms,
                        rests,
                        leaf * LEAF,
                        rest,
                        base - 0.5 * slack,
                        base + 0.5 * slack,
                        words,
                    )
                    word = words[0]
                else:
                    word = all_bits(min(LEAF, n - leaf * LEAF))
                while word != 0:
                    row = leaf * LEAF + count_trailing_zeros(word)
                    word &= word - one
                    t = share * (h2 - square_distance(X, x0, rows, row * width, width))
                    if t > 0.0:
                        weight = weights[row] * t * t
                        total += weight
                        add_chart(X, x0, rows, frames, offsets, slopes, row, d, width, weight, pull, delta)
            if not total > 0.0:
                ok = False
                break
            for k in range(D):
                X[q, k] += strength * delta[k] / total
        if not ok:
            for k in range(D):
                X[q, k] = start[k]
        reached[q] = ok


@kernel(parallel=True)
def _move(index, leaf_sizes, weights, frames, offsets, slopes, pull, strength, passes, X, reached):
    n = len(X)
    for chunk in prange((n + _CHUNK - 1) // _CHUNK):
        first = np.int64(chunk) * _CHUNK
        last = min(first + _CHUNK, n)
        _move_rows(
            (index.columns, index.depth, index.radius, index.rounding),
            (
                index.rows,
                index.center,
                index.axes,
                index.middles,
                index.single,
                index.single_half_norms,
                index.single_rests,
            ),
            (index.spreads, leaf_sizes),
            index.leaf_low,
            index.leaf_high,
            weights,
            frames,
            offsets,
            slopes,
            pull,
            strength,
            passes,
            X[first:last],
            reached[first:last],
        )
