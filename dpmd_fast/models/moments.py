"""A certified release of moments, and what can be computed from it at no further cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.eigen.spectra import spectra, top_vectors
from dpmd_fast.kernels.linear import product
from dpmd_fast.models.geometry.tuning import OCCUPIED
from dpmd_fast.privacy.guarantee import Adjacency, Guarantee

if TYPE_CHECKING:
    from dpmd_fast.privacy.ledger.charge import Receipt

Floats = NDArray[np.float64]
Features = Literal["moments", "subspace", "residual"]
_NO_SPREAD = 1e-9  # eigenvalue over the whole second moment, below which it is 0 up to rounding


class LocalMoments(NamedTuple):
    """Mass, mean offset and covariance around locations."""

    mass: Floats  # (K,)
    offsets: Floats  # (K, D)
    covariance: Floats  # (K, D, D)


def read_moments(values: Floats, c: float, h: float = 1.0, *, longest: float = math.inf) -> LocalMoments:
    """Return mass, mean offset and covariance from homogeneous second moments (K, D + 1, D + 1).

    In units of the bandwidth, or of the data if `h` is given. An offset longer than `longest` is shortened to
    it: the mean over a ball lies inside the ball, but noise can move it out. Where the mass is not positive,
    the moments mean nothing and are divided by 1.
    """
    mass = values[:, -1, -1] / c
    safe = np.where(mass > 0.0, mass, 1.0)
    offsets = h * values[:, :-1, -1] / (math.sqrt(c) * safe[:, None])
    if longest < math.inf:
        offsets *= (longest / np.maximum(np.linalg.norm(offsets, axis=1), longest))[:, None]
    second = h * h * values[:, :-1, :-1] / safe[:, None, None]
    return LocalMoments(mass, offsets, second - offsets[:, :, None] * offsets[:, None, :])


@dataclass(frozen=True, eq=False)
class Release:
    """Noisy second moments at public locations.

    ``values[a]`` estimates ``sum_i clip_i k(|y_i - a| / h) f f^T`` with ``f = ((y_i - a) / h, sqrt(c))``: the
    homogeneous coordinate is the last. Everything below is computed from these values and public numbers.

    Attributes
    ----------
    values : array (K, F, F)
        Symmetric; noise included.
    features : {"moments", "subspace", "residual"}
        What the vectors f hold; mass, mean and covariance need "moments", where F = D + 1.
    noise_scale : float
        Standard deviation of the noise on the diagonal of `values`; off it, 1/sqrt(2) of that.
    tau : float
        Norm to which a record's contribution to all locations together is clipped.
    c, bandwidth, beta : float
        Parameters of the moments.
    lattice : float
        Step of the integer lattice: ``values / lattice`` are integers.
    locations : array (K, D)
    adjacency : {"replace-one", "add-remove"}
    guarantee : Guarantee
    receipt : Receipt or None
        The debit that paid for it, if there was a ledger.
    uncleaned : Release or None
        The release that `cleaned` was called on: it determines which locations are occupied, and the tangent
        directions that cleaning has left without spread.
    """

    values: Floats = field(repr=False)
    features: Features
    noise_scale: float
    tau: float
    c: float
    bandwidth: float
    beta: float
    lattice: float
    locations: Floats = field(repr=False)
    adjacency: Adjacency
    guarantee: Guarantee
    receipt: Receipt | None = field(default=None, repr=False)
    uncleaned: Release | None = field(default=None, repr=False)

    @cached_property
    def mass(self) -> Floats:
        """Sum of the clipped kernel weights at each location (K,)."""
        self._check_features()
        return self.values[:, -1, -1] / self.c

    @cached_property
    def signal_to_noise(self) -> Floats:
        """Mass at each location over the deviation of its noise (K,)."""
        return self.mass * self.c / self.noise_scale

    @cached_property
    def occupied(self) -> NDArray[np.bool_]:
        """Whether the mass at each location is at least three deviations of its noise (K,)."""
        if self.uncleaned is not None:  # clipping negative eigenvalues turns noise into mass
            return self.uncleaned.occupied & (self.mass > 0.0)
        return self.signal_to_noise >= OCCUPIED

    @cached_property
    def mean(self) -> Floats:
        """Weighted mean of the records around each location (K, D); NaN where not occupied."""
        return self.locations + self.bandwidth * self._occupied(self._read.offsets)

    @cached_property
    def covariance(self) -> Floats:
        """Weighted covariance around each location (K, D, D), in units of the squared bandwidth.

        NaN where not occupied. Noise can make an eigenvalue negative; see `cleaned`.
        """
        return self._occupied(self._read.covariance)

    def cleaned(self, dim: int) -> Release:
        """Return the release with noise reduced, for records near a manifold of dimension `dim`.

        Near a manifold the values have dim + 1 large eigenvalues at each location. They are kept; the others,
        which hold noise and the spread of the records off the manifold, are multiplied by the share of their
        energy, pooled over the occupied locations, that noise of the known size does not explain. Negative
        eigenvalues become 0. The values are then no longer lattice points.
        """
        signal = self.occupied
        dim = self._checked_dim(dim)
        eigenvalues, vectors = spectra(self.values)
        rest = self.values.shape[1] - (dim + 1)
        small = eigenvalues[:, :rest]
        energy = float((small[signal] ** 2).sum(axis=1).mean()) if signal.any() else 0.0
        noise = self.noise_scale**2 * rest * (rest + 1) / 2
        small *= max(0.0, 1.0 - noise / energy) if energy > 0.0 else 0.0
        np.maximum(eigenvalues, 0.0, out=eigenvalues)
        values = product(vectors * eigenvalues[:, None, :], vectors.transpose(0, 2, 1))
        return replace(self, values=0.5 * (values + values.transpose(0, 2, 1)), uncleaned=self)

    def tangents(self, dim: int) -> Floats:
        """Return the top-`dim` eigenvectors of the covariance (K, D, dim); zero where not occupied.

        Where cleaning has left fewer than `dim` directions with any spread, the missing ones are those
        orthogonal directions that had the largest spread before cleaning: among directions without spread,
        rounding would choose.
        """
        dim = self._checked_dim(dim)
        out = np.zeros((*self.locations.shape, dim))
        occupied = np.flatnonzero(self.occupied)
        spreads, vectors = spectra(self.covariance[occupied])
        out[occupied] = vectors[:, :, -dim:]
        if self.uncleaned is not None:
            before = self.uncleaned.covariance
            scale = self.c + spreads.sum(axis=1) + (self._read.offsets[occupied] ** 2).sum(axis=1)
            kept = (spreads > _NO_SPREAD * scale[:, None]).sum(axis=1)
            for place, number in zip(occupied[kept < dim], kept[kept < dim], strict=True):
                out[place] = _completed(out[place, :, dim - number :], before[place], dim)
        return out

    @cached_property
    def _read(self) -> LocalMoments:
        self._check_features()
        return read_moments(self.values, self.c)

    def _check_features(self) -> None:
        if self.features != "moments":
            raise UserValueError(f"a release of {self.features!r} features has no mass, mean or covariance")

    def _occupied(self, values: Floats) -> Floats:
        """Put NaN where a location is not occupied."""
        return np.where(self.occupied.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)

    def _checked_dim(self, dim: int) -> int:
        most = self.locations.shape[1]
        if not 1 <= checked_integer("dim", dim, minimum=1) <= most:
            raise UserValueError(
                f"dim = {shown(dim)}: must be at most {most}, the number of columns", argument="dim"
            )
        return int(dim)


def _completed(kept: Floats, covariance: Floats, dim: int) -> Floats:
    """Return orthonormal columns `kept` (D, r) and the dim - r others in which `covariance` is largest."""
    along = product(kept, kept.T)
    across = np.eye(len(covariance)) - along
    largest = float(np.abs(covariance).sum())  # above every eigenvalue: `kept` sorts below all others
    spreads = product(product(across, covariance), across) - (1.0 + largest) * along
    added = top_vectors(spreads, dim - kept.shape[1])
    return np.concatenate([added, kept], axis=1)
