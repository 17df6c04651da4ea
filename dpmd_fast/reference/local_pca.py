"""The fitted reference: ball index and tangent bases, and the iteration that moves queries with them.

Everything here reads private values. Nonprivate-MD, GD and Algorithm 2 share it; Algorithm 2 passes in the
function that adds noise to the geometry before a query is moved with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserMemoryError
from dpmd_fast.kernels.eigen.tridiagonal import top_subspaces
from dpmd_fast.kernels.jit import threads
from dpmd_fast.kernels.projectors import LocalGeometry, geometry_buffers, local_geometry, project_to_planes
from dpmd_fast.kernels.search.index import BallIndex, build_index, visiting_order
from dpmd_fast.kernels.tangents import local_tangents
from dpmd_fast.status import FAILED, NO_NEIGHBOR, OK, words_of

Floats = NDArray[np.float64]
_BLOCK_BYTES = 1 << 23


class ReleasedGeometry(NamedTuple):
    """The geometry that the update of a block of queries uses."""

    projectors: Floats  # for the queries with `has_projector`, padded
    has_projector: NDArray[np.bool_]
    means: Floats  # for the queries with `has_mean`
    has_mean: NDArray[np.bool_]


#: Takes the private geometry at some queries, their indices, the step and their positions; returns what is
#: released.
Release = Callable[[LocalGeometry, NDArray[np.intp], int, Floats], ReleasedGeometry]


@dataclass(frozen=True)
class FittedReference:
    """Local PCA at every reference point, ready for queries."""

    index: BallIndex = field(repr=False)
    bases: Floats = field(repr=False)  # (n, d, padded D), in leaf order
    counts: NDArray[np.int64] = field(repr=False)
    beta: float
    n_threads: int | None

    @property
    def dim(self) -> int:
        return int(self.bases.shape[1])

    @property
    def columns(self) -> int:
        return self.index.columns

    def tangents(self) -> Floats:
        """Return the tangent bases (n, D, d) in the order of the reference."""
        out = np.empty((len(self.bases), self.columns, self.dim))
        out[self.index.order] = self.bases[:, :, : self.columns].transpose(0, 2, 1)
        return out


def fit_reference(
    Y: Points, bandwidth: float, dim: int, beta: float, n_threads: int | None
) -> FittedReference:
    """Compute local PCA at every row of `Y` (P_{y_i} of the paper: once, at the bandwidth of the weights)."""
    index = build_index(Y, bandwidth)
    bases, counts = local_tangents(index, dim, n_threads)
    return FittedReference(index, bases, counts, beta, n_threads)


def without_noise(
    geometry: LocalGeometry, queries: NDArray[np.intp], step: int, X: Floats
) -> ReleasedGeometry:
    """Return the geometry as it is, for the non-private method."""
    every = np.ones(len(X), np.bool_)
    return ReleasedGeometry(geometry.projectors, every, X + geometry.offsets[:, : X.shape[1]], every)


def denoise(
    fitted: FittedReference, Z: Points, steps: int, release: Release = without_noise
) -> tuple[Floats, NDArray[np.str_]]:
    """Make `steps` updates x <- x - (I - P)(x - b) of each row of `Z`; return points and a status for each.

    A query with fewer than dim + 1 reference points in its ball is returned unchanged as "no_neighbor"; one
    that loses its neighbours later or becomes non-finite is returned unchanged as "failed".
    """
    moved = np.array(Z, dtype=np.float64)
    codes = np.full(len(Z), OK, np.int8)
    padded = fitted.bases.shape[2]
    block = max(8, _BLOCK_BYTES // (8 * padded * padded))
    order = visiting_order(fitted.index, moved)
    room = geometry_buffers(min(block, len(Z)), padded)
    with threads(fitted.n_threads):
        for start in range(0, len(Z), block):
            _denoise_block(fitted, moved, codes, order[start : start + block], steps, release, room)
    failed = codes != OK
    moved[failed] = Z[failed]
    return moved, words_of(codes)


def _denoise_block(
    fitted: FittedReference,
    moved: Floats,
    codes: NDArray[np.int8],
    queries: NDArray[np.intp],
    steps: int,
    release: Release,
    room: LocalGeometry,
) -> None:
    d, padded = fitted.dim, fitted.bases.shape[2]
    kept_tangents = np.zeros((len(queries), d, padded))  # without a projector, a query moves to the mean
    kept_means = moved[queries]  # without a mean, it stays
    for step in range(steps):
        alive = np.flatnonzero(codes[queries] == OK)
        if not len(alive):
            return
        X = moved[queries[alive]]
        room.counts[: len(X)] = -1
        geometry = local_geometry(fitted.index, fitted.bases, X, fitted.beta, fitted.n_threads, room)
        if (geometry.counts < 0).any():  # an error in a thread of a parallel kernel can get lost
            raise UserMemoryError("the reference could not be read: a thread found no memory")
        few = geometry.counts < d + 1
        good = ~few & (geometry.masses > 0.0)
        if not good.all():
            codes[queries[alive[~good]]] = FAILED
            if step == 0:
                codes[queries[alive[few]]] = NO_NEIGHBOR
            alive, X = alive[good], X[good]
            geometry = LocalGeometry(*(values[good] for values in geometry))
            if not len(alive):
                return
        seen = release(geometry, queries[alive], step, X)
        tangents = top_subspaces(seen.projectors, fitted.columns, d, fitted.n_threads)
        last = step == steps - 1
        tangents = _last_released(kept_tangents, alive, tangents, seen.has_projector, last)
        means = _last_released(kept_means, alive, seen.means, seen.has_mean, last)
        moved[queries[alive]] = project_to_planes(X, means, tangents, fitted.n_threads)
        finite = np.isfinite(X).all(axis=1)
        if not finite.all():
            codes[queries[alive[~finite]]] = FAILED


def _last_released(
    kept: Floats, rows: NDArray[np.intp], released: Floats, has: NDArray[np.bool_], last: bool
) -> Floats:
    """Return the value last released at each row: in this step, or in an earlier one stored in `kept`."""
    everywhere = bool(has.all())
    if not (everywhere and last):
        kept[rows[has]] = released
    return released if everywhere else kept[rows]


def in_query_type(points: Floats, queries: Points, status: NDArray[np.str_]) -> Points:
    """Return `points` in the type of the queries; a point beyond its range is "failed" and not moved."""
    if queries.dtype == points.dtype:
        return points
    with np.errstate(over="ignore"):
        out = points.astype(queries.dtype)
    beyond = ~np.isfinite(out).all(axis=1)
    status[beyond] = "failed"
    out[beyond] = queries[beyond]
    return out
