"""Points moved by a field of local affine maps: the transform of the atlas.

At a point x, with w_a = S_a (1 - |x - b_a|^2 / h^2)_+^2 over the charts a in reach and g = V_a^T (x - b_a),

    x <- x + strength sum_a w_a (pull (b_a - x) + offset_a + sum_e g_e slope_ae) / sum_a w_a.

With pull = 1, no offset and the tangents as slopes this is the weighted mean of the projections onto the
charts' tangent planes; with pull = 0 it adds a smooth correction. With few columns a chart is packed as the
affine map that it adds; with many, as its directions. Each point is moved by itself, in a fixed order of
charts: its result does not depend on blocks (`chart_blocks.py`), threads or other points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.kernels.chart_blocks import padded
from dpmd_fast.kernels.narrow_charts import move_narrow
from dpmd_fast.kernels.rows import each_row
from dpmd_fast.kernels.scratch import aligned
from dpmd_fast.kernels.search.index import LEAF, SKETCH_ALL, BallIndex, build_index
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.planes import pack_parts
from dpmd_fast.kernels.vector.weighted_rows import pack_lanes, pack_projections, pack_rows
from dpmd_fast.kernels.wide_charts import move_wide

WIDE = SKETCH_ALL + 1  # columns from which on charts are packed as their directions
FAR = 1e4  # radii from the center; beyond it charts are added one by one, since sums lose four digits there


class Field(NamedTuple):
    """Charts that move points together, in leaf order: released values, and what the kernels read of them."""

    balls: BallIndex  # about the points b
    centers: np.ndarray  # (K, D) b
    masses: np.ndarray  # (K,) S
    frames: np.ndarray  # (K, d, D) rows of V^T
    offsets: np.ndarray | None  # (K, D); None if points are projected
    slopes: np.ndarray | None  # (K, d, D)
    strength: float
    passes: int
    packed: tuple[Any, ...]  # the first arguments of the kernel


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

    def arranged(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(values, dtype=np.float64)[index.order])

    b, rows, weights = arranged(centers), arranged(np.asarray(frames).transpose(0, 2, 1)), arranged(masses)
    corrections: tuple[()] | tuple[np.ndarray, np.ndarray] = ()
    if slopes is not None:
        corrections = arranged(np.zeros_like(centers) if offsets is None else offsets), arranged(slopes)
    starts, steps = corrections or (None, None)
    return Field(
        balls=index,
        centers=b,
        masses=weights,
        frames=rows,
        offsets=starts,
        slopes=steps,
        strength=float(strength),
        passes=passes,
        packed=(*_packed(index, b, weights, rows, corrections), float(strength), passes),
    )


def _packed(
    index: BallIndex,
    centers: np.ndarray,
    masses: np.ndarray,
    frames: np.ndarray,
    corrections: tuple[()] | tuple[np.ndarray, np.ndarray],
) -> tuple[Any, ...]:
    """Return the charts as `move_wide` or `move_narrow` takes them: how they are found, then what they do."""
    sizes = (len(index.rows), index.depth, index.radius, index.rounding)
    sketch = (
        padded(index.center[None])[0],
        padded(index.axes.T),
        padded(index.middles),
        index.single,
        index.single_half_norms,
        index.single_rests,
    )
    nodes = index.leaf_nodes
    boxes = (index.spreads, index.sizes[nodes], index.low[nodes], index.high[nodes])
    weights = pack_lanes(masses).reshape(-1)  # zero where there is no chart
    if index.columns >= WIDE:
        pack = aligned(pack_parts(*corrections)) if corrections else np.empty((0, 0))
        return sizes, sketch, boxes, (aligned(pack_parts(centers, frames)), pack), frames.shape[1], weights
    far = np.maximum(-boxes[2], boxes[3]).max(axis=1) > FAR
    origins = np.where(np.repeat(far, LEAF)[: len(centers), None], centers, index.center)
    rows, size = (
        pack_rows(centers, frames, origins, *corrections)
        if corrections
        else pack_projections(centers, frames, origins)
    )
    return sizes, sketch, boxes, (pack_lanes(centers), rows, size, int(not corrections), far), weights


def move(field: Field, X: np.ndarray, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Move the rows of `X`; return whether each had a chart in reach in every pass. Others stay."""
    return apply_fields([field], X, n_threads)


def apply_fields(
    fields: list[Field], X: np.ndarray, n_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Move the rows of `X` by one field after the other; return whether the first had charts in reach.

    The fields must have as many columns. All of them visit the rows in the order that is good for the first.
    """
    moved = np.array(X, dtype=np.float64, order="C")
    reached = np.empty(len(moved), np.bool_)
    mover = move_wide if fields[0].balls.columns >= WIDE else move_narrow

    def work(first: int, last: int) -> None:
        rows, order = moved[first:last], np.empty(last - first, np.int64)
        mover(*fields[0].packed, rows, reached[first:last], order, 1, reached)
        if len(fields) > 1:
            found = np.empty(last - first, np.bool_)
            for field in fields[1:]:
                mover(*field.packed, rows, found, order, 0, reached)

    each_row(work, len(moved), n_threads)
    return moved, reached
