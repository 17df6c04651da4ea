"""The rounds of an atlas: one release each, then post-processing into a field that moves points.

Round 1 releases moments at anchors and makes charts of them; residual rounds release how the records that are
left over lie about the map so far, and correct it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from dpmd_fast.kernels.charts import Field, make_field, move
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums, ResidualSums
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.kernels.sums.residuals import make_frames, residual_norms
from dpmd_fast.models.geometry.anchors import CLIP_SHARE, Floats, largest_gap, read_moments, top_vectors
from dpmd_fast.models.moments import HOMOGENEOUS as C
from dpmd_fast.models.moments import OCCUPIED
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.tasks import PartialSums, SumTask

FIRST_SHARE = 0.35  # of the budget of three rounds, for round 1
RESIDUAL_BANDWIDTH = 0.7  # of residual rounds, in units of that of round 1
_LEAST_NORMAL = 0.15  # h_N in units of the bandwidth
NORMAL_DEVIATIONS = 3.0


class Charts(NamedTuple):
    """Local affine pieces of the manifold."""

    centers: Floats  # (K, D)
    tangents: Floats  # (K, D, d)
    masses: Floats  # (K,)
    noise_to_mass: float  # s / median S
    bandwidth: float


@dataclass(frozen=True)
class Mechanism:
    """Everything a round needs to spend: passes over the private records, noise, adjacency."""

    run: Callable[[SumTask], PartialSums]  # one pass over the records
    entropy: EntropySource
    adjacency: Adjacency
    n_threads: int | None

    def release(self, task: SumTask, lattice: Lattice) -> Floats:
        """One pass over the records and one draw of noise."""
        return noisy_sums(self.run(task).values, lattice, self.entropy, self.n_threads)


class FirstRelease(NamedTuple):
    """Moments at anchors, with the deviation of their noise."""

    values: Floats
    noise_scale: float
    anchors: Floats
    bandwidth: float


def release_anchors(mechanism: Mechanism, anchors: Floats, h: float, mu: float) -> FirstRelease:
    """The release of round 1."""
    index = build_index(anchors, h, mechanism.n_threads)
    tau = CLIP_SHARE * float(record_norms(index, anchors, 2.0, C, mechanism.n_threads).max())
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    values = mechanism.release(SumTask(partial(MomentSums, index, 2.0, tau, lattice.steps, C)), lattice)
    return FirstRelease(values, lattice.noise_scale, anchors, h)


def charts_of(release: FirstRelease, dim: int) -> tuple[Charts, float] | None:
    """Charts, and the variance of the records normal to them; None if no anchor is occupied."""
    values, s, anchors, h = release
    around = read_moments(values, h, C)
    ok = around.mass > OCCUPIED * s / C
    if not ok.any():
        return None
    masses, covariance = around.mass[ok], around.covariance[ok]
    centers = anchors[ok] + around.offsets[ok]
    tangents = top_vectors(covariance, dim)
    charts = Charts(centers, tangents, masses, s / float(np.median(masses)), h)
    smooth = tangents_at(centers, charts, dim)
    total = np.trace(covariance, axis1=1, axis2=2)
    along = np.einsum("kpe,kpq,kqe->k", smooth, covariance, smooth)
    variance = max(0.0, float(((total - along) * masses).sum() / masses.sum()))
    D = anchors.shape[1]
    return charts, variance + (D - dim) * h * h * charts.noise_to_mass**2 / (2.0 * C)


def released_dim(release: FirstRelease) -> int | None:
    """Intrinsic dimension by the released spectra; None if no anchor is occupied."""
    around = read_moments(release.values, release.bandwidth, C)
    ok = around.mass > OCCUPIED * release.noise_scale / C
    if not ok.any():
        return None
    return largest_gap(around.covariance[ok], around.mass[ok])


def projection_field(charts: Charts) -> Field:
    """The field of round 1: weighted mean of the projections onto the charts."""
    return make_field(charts.centers, charts.tangents, charts.masses, charts.bandwidth, passes=3)


def tangents_at(points: Floats, charts: Charts, dim: int) -> Floats:
    """Tangents averaged over the charts around each point; of the nearest, where none is within reach."""
    out = np.empty((len(points), points.shape[1], dim))
    projectors = np.matmul(charts.tangents, charts.tangents.transpose(0, 2, 1))
    flat = projectors.reshape(len(projectors), -1)
    for start in range(0, len(points), 1024):
        part = slice(start, start + 1024)
        gaps = cdist(points[part], charts.centers, "sqeuclidean")
        reach = np.maximum(charts.bandwidth**2, 1.5 * gaps.min(axis=1, keepdims=True))
        weights = np.maximum(0.0, 1.0 - gaps / reach) ** 2
        out[part] = top_vectors((weights @ flat).reshape(-1, *projectors.shape[1:]), dim)
    return out


def simulated_noise(release: FirstRelease, field: Field, points: Floats, dim: int) -> float:
    """Mean squared move of the map of round 1 when noise of the same size is added to it once more."""
    rng = np.random.default_rng(0)  # no secret: post-processing of what is released
    noise = rng.standard_normal(release.values.shape) * release.noise_scale
    upper = np.triu(noise, 1) / math.sqrt(2.0)
    noise = upper + upper.transpose(0, 2, 1) + np.eye(noise.shape[1]) * noise
    again = charts_of(release._replace(values=release.values + noise), dim)
    if again is None:
        return math.inf
    first, reached = move(field, points)
    second, reached_again = move(projection_field(again[0]), points)
    both = reached & reached_again
    return float(((first - second)[both] ** 2).sum(axis=1).mean()) if both.any() else math.inf


class Correction(NamedTuple):
    """What a residual round found: a smooth correction of the map, and the variance that is left."""

    field: Field
    variance: float
    signal: float  # median S / s
    error2: float  # mean squared correction at the public points, less what noise explains


def residual_round(
    mechanism: Mechanism,
    fields: list[Field],
    charts: Charts,
    public: Floats,
    anchors: Floats,
    h: float,
    variance: float,
    mu: float,
) -> Correction | None:
    """Regress the residuals of the records on tangent coordinates around `anchors`; None without signal."""
    dim = charts.tangents.shape[2]
    normal = min(h, max(_LEAST_NORMAL * h, NORMAL_DEVIATIONS * math.sqrt(variance)))
    tangents = tangents_at(anchors, charts, dim)
    frames = make_frames(anchors, tangents, h, normal, mechanism.n_threads)
    still = np.zeros_like(anchors)
    tau = CLIP_SHARE * float(residual_norms(frames, anchors, still, C, mechanism.n_threads).max())
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    values = mechanism.release(SumTask(partial(ResidualSums, fields, frames, tau, lattice.steps, C)), lattice)
    s = lattice.noise_scale
    mass = values[:, -1, -1] / C
    ok = mass > OCCUPIED * s / C
    if not ok.any():
        return None
    return _regress(values[ok], anchors[ok], tangents[ok], h, normal, s, public)


def _regress(
    values: Floats, centers: Floats, tangents: Floats, h: float, normal: float, s: float, public: Floats
) -> Correction:
    D, dim = tangents.shape[1:]
    # regressors: the homogeneous coordinate first, then the tangent coordinates
    order = np.r_[dim + D, :dim]
    gram = values[:, order[:, None], order]
    cross = values[:, order][:, :, dim : dim + D]
    slopes = np.arange(1, 1 + dim)
    gram[:, slopes, slopes] += s
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, max(1e-300, 0.5 * s))
    inverse = np.matmul(vectors / eigenvalues[:, None, :], vectors.transpose(0, 2, 1))
    units = normal * np.r_[math.sqrt(C), np.full(dim, 1.0 / h)]
    coefficients = np.matmul(inverse, cross) * units[None, :, None]
    noise = np.matmul(inverse, inverse) * np.outer(units, units) * (0.5 * s * s)
    # what lies along the chart is no correction
    along = np.matmul(coefficients, tangents)
    coefficients -= np.matmul(along, tangents.transpose(0, 2, 1))
    masses = values[:, -1, -1] / C
    spread = np.trace(values[:, dim : dim + D, dim : dim + D], axis1=1, axis2=2).sum()
    variance = max(0.0, float(spread / masses.sum())) * normal * normal
    # the kernel in the normal direction attenuates residuals: divide by what it takes away
    kept = 1.0 - min(0.6, 4.0 * variance / ((D - dim) * normal * normal))
    coefficients /= kept
    energy, expected = _energies(public, centers, tangents, coefficients, noise, masses, h)
    strength = max(0.0, 1.0 - expected / energy) if energy > 0.0 else 0.0
    field = make_field(
        centers,
        tangents,
        masses,
        h,
        offsets=coefficients[:, 0],
        slopes=coefficients[:, 1:],
        strength=strength,
    )
    left = max(0.0, energy - expected)
    return Correction(field, max(variance / kept, 1e-300), float(np.median(masses)) / s, left)


def _energies(
    public: Floats,
    centers: Floats,
    tangents: Floats,
    coefficients: Floats,
    noise: Floats,
    masses: Floats,
    h: float,
) -> tuple[float, float]:
    """Mean squared correction at the public points, and what noise contributes to it."""
    D, dim = tangents.shape[1:]
    energy, expected = 0.0, 0.0
    for start in range(0, len(public), 256):
        X = public[start : start + 256]
        gaps = cdist(X, centers, "sqeuclidean")
        reach = np.maximum(h * h, 1.5 * gaps.min(axis=1, keepdims=True))
        weights = np.maximum(0.0, 1.0 - gaps / reach) ** 2 * masses
        weights /= weights.sum(axis=1, keepdims=True)
        q, a = np.nonzero(weights)
        w = weights[q, a]
        g = np.ones((len(q), 1 + dim))
        g[:, 1:] = np.einsum("pk,pke->pe", X[q] - centers[a], tangents[a])
        moves = w[:, None] * np.einsum("pe,pek->pk", g, coefficients[a])
        total = np.zeros((len(X), D))
        np.add.at(total, q, moves)
        energy += float((total**2).sum())
        expected += (D - dim) * float((w * w * np.einsum("pe,pef,pf->p", g, noise[a], g)).sum())
    return energy / len(public), expected / len(public)
