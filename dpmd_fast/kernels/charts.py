"""Points moved by a field of local affine maps: the transform of the atlas.

At a point x, with w_a = S_a (1 - |x - b_a|^2 / h^2)_+^2 over the charts a in reach and g = V_a^T (x - b_a),

    x <- x + strength sum_a w_a (pull (b_a - x) + offset_a + sum_e g_e slope_ae) / sum_a w_a.

With pull = 1, no offset and the tangents as slopes this is the weighted mean of the projections onto the
charts' tangent planes; with pull = 0 it adds a smooth correction. Charts are added by fours, those out of
reach among them with weight zero; with many columns one by one. Each point is moved by itself, in a fixed
order of charts: its result does not depend on blocks (`chart_blocks.py`), threads or other points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.kernels.chart_blocks import aligned, move_narrow, move_wide, padded
from dpmd_fast.kernels.rows import each_row
from dpmd_fast.kernels.search.index import BallIndex, build_index
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.planes import pack_parts
from dpmd_fast.kernels.vector.quad_steps import directions_for, pack_fours
from dpmd_fast.kernels.vector.quads import pack_quads

WIDE = 8  # columns from which on charts are worked on one by one: with 10 both take as long, with 20 half


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
    wide = index.columns >= WIDE
    pack = pack_parts if wide else pack_fours
    sizes = (len(index.rows), index.depth, index.radius, index.rounding)
    sketch = (
        index.center,
        padded(index.axes.T),
        padded(index.middles),
        index.single,
        index.single_half_norms,
        index.single_rests,
    )
    nodes = index.leaf_nodes
    boxes = (index.spreads, index.sizes[nodes], index.low[nodes], index.high[nodes])
    planes = (
        aligned(pack(centers, frames)),
        aligned(pack(*corrections)) if corrections else np.empty((0, 0)),
    )
    d = frames.shape[1]
    weights = pack_quads(masses).reshape(-1)  # zero where there is no chart
    return sizes, sketch, boxes, planes, d if wide else directions_for(d), weights


def move(field: Field, X: np.ndarray, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Move the rows of `X`; return whether each had a chart in reach in every pass. Others stay."""
    moved = np.array(X, dtype=np.float64, order="C")
    reached = np.empty(len(moved), np.bool_)
    mover = move_wide if field.balls.columns >= WIDE else move_narrow

    def work(first: int, last: int) -> None:
        mover(*field.packed, moved[first:last], reached[first:last], reached)

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
