"""The released parts of an atlas as plain arrays: its subspace and its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.charts import Field, make_field
from dpmd_fast.kernels.sums.features import inside_coordinates, subspace_points

Floats = NDArray[np.float64]


class Subspace(NamedTuple):
    """The affine subspace of points m + V x."""

    origin: Floats  # (D,)
    basis: Floats  # (D, q)

    def down(self, Y: Floats, n_threads: int | None = None) -> Floats:
        """Return the coordinates of points; each is computed by itself, in a fixed order of operations."""
        return inside_coordinates(Y, self.origin, self.basis, n_threads)

    def up(self, X: Floats, n_threads: int | None = None) -> Floats:
        """Return the points with coordinates `X`; each is computed by itself, as in `down`."""
        return subspace_points(X, self.origin, self.basis, n_threads)


@dataclass(frozen=True, eq=False)
class Layer:
    """One field of the map as plain arrays: projections onto charts (no `slopes`), or a smooth correction."""

    centers: Floats  # (K, D)
    tangents: Floats  # (K, D, d)
    masses: Floats  # (K,)
    bandwidth: float
    passes: int
    strength: float
    offsets: Floats | None = None  # (K, D)
    slopes: Floats | None = None  # (K, d, D)

    @classmethod
    def of(cls, made: Field) -> Layer:
        """Return the arrays of a field, in the field's order."""
        return cls(
            centers=made.centers,
            tangents=np.ascontiguousarray(made.frames.transpose(0, 2, 1)),
            masses=made.masses,
            bandwidth=made.balls.radius,
            passes=made.passes,
            strength=made.strength,
            offsets=made.offsets,
            slopes=made.slopes,
        )

    def field(self) -> Field:
        """Return the field for the kernels."""
        return make_field(
            self.centers,
            self.tangents,
            self.masses,
            self.bandwidth,
            offsets=self.offsets,
            slopes=self.slopes,
            strength=self.strength,
            passes=self.passes,
        )
