"""Points moved by a field of local affine maps: the transform of the atlas.

At a point x, with w_a = S_a (1 - |x - b_a|^2 / h^2)_+^2 over the charts a in reach and g = V_a^T (x - b_a),

    x <- x + strength sum_a w_a (pull (b_a - x) + offset_a + sum_e g_e slope_ae) / sum_a w_a.

With pull = 1, no offset and the tangents as slopes this is the weighted mean of the projections onto the
charts' tangent planes; with pull = 0 it adds a smooth correction. Charts are added by fours (`quads.py`),
those out of reach among them with weight zero; with many columns one by one (`wide_charts.py`). Each point is
moved by itself, in a fixed order of charts: its result does not depend on blocks, threads or other points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.rows import each_row
from dpmd_fast.kernels.search.balls import SINGLE_EPS, SINGLE_MOST, all_bits, leaf_gaps
from dpmd_fast.kernels.search.index import LEAF, BallIndex, build_index
from dpmd_fast.kernels.vector.bits import count_trailing_zeros, near_mask
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.planes import pack_parts
from dpmd_fast.kernels.vector.quads import add_four_charts, pack_quads
from dpmd_fast.kernels.wide_charts import aligned, move_wide, pack_axes

WIDE = 8  # columns from which on charts are worked on one by one: with 10 both take as long, with 20 half


class Field(NamedTuple):
    """Charts that move points together: in leaf order, by fours."""

    balls: BallIndex  # about the points b
    centers: np.ndarray  # (quads, D, 4) b
    masses: np.ndarray  # (quads, 4) S; zero where there is no chart
    frames: np.ndarray  # (quads, d, D, 4) rows of V^T
    offsets: np.ndarray  # (quads, D, 4)
    slopes: np.ndarray  # (quads, d, D, 4)
    pull: float
    strength: float
    passes: int
    planes: tuple[np.ndarray, np.ndarray] | None  # the charts one by one, if there are many columns


def make_field(
    centers: np.ndarray,
    frames: np.ndarray,
    masses: np.ndarray,
    bandwidth: float,
    *,
    offsets: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    strength: float = 1.0,
    passes: int = 1,
) -> Field:
    """Return a field of charts: `centers` (K, D), `frames` (K, D, d); of projections if without `slopes`."""
    index = build_index(centers, bandwidth, finest=LANES)
    wide = index.columns >= WIDE

    def arranged(values: np.ndarray) -> np.ndarray:
        return pack_quads(np.asarray(values)[index.order])

    flat = np.asarray(frames).transpose(0, 2, 1)
    rows = arranged(flat)
    planes = _planes(centers, flat, offsets, slopes, index.order) if wide else None
    return Field(
        balls=index,
        centers=arranged(centers),
        masses=arranged(masses),
        frames=rows,
        offsets=arranged(np.zeros_like(centers) if offsets is None else offsets),
        slopes=rows if slopes is None else arranged(slopes),
        pull=1.0 if slopes is None else 0.0,
        strength=float(strength),
        passes=passes,
        planes=planes,
    )


def _planes(
    centers: np.ndarray,
    frames: np.ndarray,
    offsets: np.ndarray | None,
    slopes: np.ndarray | None,
    order: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return frames about centres, and slopes with offsets unless points are projected, for `move_wide`."""
    packed = aligned(pack_parts(np.asarray(centers)[order], frames[order]))
    if slopes is None:
        return packed, np.empty((0, 0))
    starts = np.zeros_like(centers) if offsets is None else np.asarray(offsets)
    return packed, aligned(pack_parts(starts[order], np.asarray(slopes)[order]))


def move(field: Field, X: np.ndarray, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Move the rows of `X`; return whether each had a chart in reach in every pass. Others stay."""
    moved = np.array(X, dtype=np.float64, order="C")
    reached = np.empty(len(moved), np.bool_)
    index = field.balls
    sizes = (len(index.rows), index.depth, index.radius, index.rounding)
    sketch = (
        index.center,
        index.axes if field.planes is None else pack_axes(index.axes),
        index.middles,
        index.single,
        index.single_half_norms,
        index.single_rests,
    )
    boxes = (index.spreads, index.sizes[index.leaf_nodes], index.leaf_low, index.leaf_high)

    charts: tuple[object, ...]
    if field.planes is None:
        mover, charts = _move, field[1:-1]
    else:
        mover, masses = move_wide, field.masses.reshape(-1)
        charts = field.planes, field.frames.shape[1], masses, field.strength, field.passes

    def work(first: int, last: int) -> None:
        mover(sizes, sketch, boxes, *charts, moved[first:last], reached[first:last], reached)

    each_row(work, len(moved), n_threads)
    return moved, reached


def apply_fields(
    fields: list[Field], X: np.ndarray, n_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Move the rows of `X` by one field after the other; return whether the first had charts in reach."""
    moved, reached = move(fields[0], X, n_threads)
    for field in fields[1:]:
        moved = move(field, moved, n_threads)[0]
    return moved, reached


@device(inline=True)
def _sketch(X, q, center, axes, scale, point):
    """Fill `point` with the sketch of row q of X; return the length of what is outside of it."""
    D, depth = axes.shape
    for k in range(len(point)):
        point[k] = 0.0
    if depth == D:
        for i in range(D):
            point[i] = scale * (X[q, i] - center[i])
        return 0.0
    rest = 0.0
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
    return rest


@kernel(rows="whole")
def _move(
    sizes, sketch, boxes, centers, masses, frames, offsets, slopes, pull, strength, passes, X, reached, whole
):
    """Move the rows of X in place, one after the other.

    The search of `balls.py` written out: charts are few, so the box of every leaf is looked at. `whole` is as
    long as the call has rows, of which X may be a part.
    """
    center, axes, middles, single, half_norms, rests = sketch
    n, depth, radius, rounding = sizes
    spreads, leaf_sizes, leaf_low, leaf_high = boxes
    d, D = frames.shape[1], frames.shape[2]
    n_leaves, sides = len(spreads), len(leaf_low)
    h2, scale = radius * radius, 1.0 / radius
    share = 1.0 / h2
    point, shifted = np.zeros(sides), np.empty(depth, np.float32)
    start, gaps = np.empty(D), np.empty(n_leaves)
    scratch, sums = np.empty((D + d, LANES)), np.empty((D + 1, LANES))
    for q in range(len(X)):
        for k in range(D):
            start[k] = X[q, k]
        ok = True
        for _ in range(passes):
            rest = _sketch(X, q, center, axes, scale, point)
            size = 0.0
            for k in range(sides):
                size += point[k] * point[k]
            for k in range(D + 1):
                for lane in range(LANES):
                    sums[k, lane] = 0.0
            leaf_gaps(leaf_low, leaf_high, 0, n_leaves, point, point, gaps)
            for leaf in range(n_leaves):
                slack = rounding * (1.0 + size + leaf_sizes[leaf])
                if not gaps[leaf] <= 1.0 + slack:
                    continue
                norm = rest * rest
                for k in range(depth):
                    value32 = np.float32(point[k] - middles[leaf, k])
                    shifted[k] = value32
                    norm += np.float64(value32) * np.float64(value32)
                largest = max(norm, spreads[leaf])
                slack += (depth + 8) * SINGLE_EPS * 4.0 * largest
                if slack < 1.0 and largest < SINGLE_MOST:
                    maybe = 0.5 * norm - 0.5 - 0.5 * slack
                    first = leaf * LEAF
                    word = near_mask(
                        shifted, single, first * depth, depth, half_norms, rests, first, rest, maybe
                    )
                else:
                    word = all_bits(min(LEAF, n - leaf * LEAF))
                while word != 0:
                    four = count_trailing_zeros(word) // LANES
                    word &= ~(np.uint64(15) << np.uint64(LANES * four))
                    add_four_charts(
                        X,
                        q * D,
                        leaf * (LEAF // LANES) + four,
                        centers,
                        masses,
                        frames,
                        offsets,
                        slopes,
                        h2,
                        share,
                        pull,
                        scratch,
                        sums,
                    )
            total = (sums[D, 0] + sums[D, 2]) + (sums[D, 1] + sums[D, 3])
            if not total > 0.0:
                ok = False
                break
            for k in range(D):
                X[q, k] += strength * ((sums[k, 0] + sums[k, 2]) + (sums[k, 1] + sums[k, 3])) / total
        if not ok:
            for k in range(D):
                X[q, k] = start[k]
        reached[q] = ok
