"""Two small releases that find the affine subspace around the manifold: step 0 of an atlas in high D."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import limit_in
from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import orthonormal, product
from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.kernels.sums.features import subspace_coordinates
from dpmd_fast.mechanisms.spend import Floats, Mechanism
from dpmd_fast.models.geometry.anchors import rms_radius
from dpmd_fast.models.geometry.layers import Subspace
from dpmd_fast.models.geometry.regression import regress
from dpmd_fast.models.geometry.tuning import (
    CLIP_SHARE,
    FIND_SHARE,
    FLAT_EDGES,
    FLAT_SHARE,
    LEAST_COLUMNS,
    NORMAL_DEVIATIONS,
    REFINE_SHARE,
    REGRESSION_FLOOR,
    SUBSPACE_SPREAD,
)
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS as C
from dpmd_fast.models.moments import read_moments
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference.tasks import SumTask, View


def release_subspace(
    mechanism: Mechanism, public: Floats, mu2: float, dim: int, spends: list[tuple[str, float]]
) -> Subspace | None:
    """Release a subspace; return None if the release shows none of more than `dim` dimensions.

    What was spent is added to `spends`.
    """
    if public.shape[1] < LEAST_COLUMNS:
        return None
    spends.append(("subspace", FIND_SHARE * mu2))
    found = _find(mechanism, public, math.sqrt(FIND_SHARE * mu2))
    if found is None or found.basis.shape[1] <= dim:
        return None
    spends.append(("subspace, refined", REFINE_SHARE * mu2))
    return _refine(mechanism, found, math.sqrt(REFINE_SHARE * mu2))


class _FirstEstimate(NamedTuple):
    """The subspace by the first release, which sums over all records."""

    origin: Floats
    basis: Floats
    outside: float  # variance outside the subspace, noise included
    radius: float


def _release(mechanism: Mechanism, view: View, features: int, mu: float) -> tuple[Floats, float]:
    """Release the moments (1, F, F) of the records' feature vectors; also return the noise deviation."""
    tau = CLIP_SHARE * C
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    task = SumTask(partial(FeatureSums, features, tau, lattice.steps), (view,))
    return mechanism.release(task, lattice), lattice.noise_scale


def _find(mechanism: Mechanism, public: Floats, mu: float) -> _FirstEstimate | None:
    """Release the mean and the leading directions of the records; None if no small subspace stands out."""
    D = public.shape[1]
    center = public.mean(axis=0)
    radius = SUBSPACE_SPREAD * rms_radius(public)
    values, s = _release(mechanism, partial(_whole_features, center, radius), D + 1, mu)
    around = read_moments(values, C)
    mass, mean = float(around.mass[0]), around.offsets[0]
    if not mass > 0.0:
        return None
    eigenvalues, vectors = spectra(around.covariance[0])
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    noise = s / mass
    edge = noise * math.sqrt(2.0 * D)
    for q in range(1, D // 2 + 1):
        tail = eigenvalues[q:]
        if tail[0] - tail[-1] <= FLAT_EDGES * edge + FLAT_SHARE * max(float(tail.mean()), 0.0):
            break
    else:
        return None
    kept = np.maximum(eigenvalues[:q], 1e-300)
    outside = max(float(eigenvalues[q:].sum()), 0.0) + 2.0 * noise * math.sqrt(D - q)
    outside += (D - q) * float((noise * noise / (2.0 * kept)).sum())
    basis = np.ascontiguousarray(vectors[:, :q])
    return _FirstEstimate(center + radius * mean, basis, outside * radius * radius, radius)


def _refine(mechanism: Mechanism, found: _FirstEstimate, mu: float) -> Subspace:
    """Regress the records' components outside the subspace on those inside, and tilt it accordingly."""
    origin, basis, outside, radius = found
    D, q = basis.shape
    normal = NORMAL_DEVIATIONS * math.sqrt(outside)
    view = partial(_split_features, origin, basis, radius, normal)
    values, s = _release(mechanism, view, q + D + 1, mu)
    units = normal * np.r_[math.sqrt(C), np.full(q, 1.0 / radius)]
    coefficients = regress(values, q, D, REGRESSION_FLOOR * s).coefficients[0] * units[:, None]
    coefficients -= product(product(coefficients, basis), basis.T)
    return Subspace(origin + coefficients[0], orthonormal(basis + coefficients[1:].T))


def _whole_features(center: Floats, radius: float, Y: Floats, n_threads: int | None = None) -> Floats:
    """Return (y - m) / R and sqrt(c) of each record."""
    out = np.empty((len(Y), len(center) + 1))
    out[:, :-1] = (Y - center) / radius
    out[:, -1] = math.sqrt(C)
    out[~_valid(Y)] = 0.0
    return out


def valid_inside(subspace: Subspace, Y: Floats, n_threads: int | None = None) -> Floats:
    """Return coordinates in a subspace, NaN for dropped records: a huge value may be outside of it."""
    inside = subspace.down(Y, n_threads)
    inside[~_valid(Y)] = np.nan
    return inside


def _valid(Y: Floats) -> NDArray[np.bool_]:
    """Return which records have no value that is not finite or beyond the largest: others add nothing."""
    return np.asarray((np.abs(Y) <= limit_in(Y)).all(axis=1))


def _split_features(
    origin: Floats, basis: Floats, radius: float, normal: float, Y: Floats, n_threads: int | None = None
) -> Floats:
    """Return coordinates in a subspace, the rest and sqrt(c), all weighted by a kernel of the rest."""
    inside, rest = subspace_coordinates(Y, origin, basis, n_threads)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = np.maximum(0.0, 1.0 - (rest * rest).sum(axis=1) / (normal * normal))
        out = np.concatenate([inside / radius, rest / normal, np.full((len(Y), 1), math.sqrt(C))], axis=1)
        out *= weight[:, None]
    out[~((weight > 0.0) & _valid(Y))] = 0.0
    return out
