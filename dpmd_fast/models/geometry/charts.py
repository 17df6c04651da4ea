"""Make charts from released moments, and corrections from released residuals: post-processing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from dpmd_fast.kernels.charts import Field, make_field, move
from dpmd_fast.kernels.eigen.spectra import top_vectors
from dpmd_fast.kernels.linear import product
from dpmd_fast.models.geometry.anchors import Floats
from dpmd_fast.models.geometry.regression import regress
from dpmd_fast.models.geometry.tuning import (
    ATTENUATION,
    CORRECTION_REACH,
    MOST_ATTENUATION,
    OCCUPIED,
    PROJECTION_PASSES,
    REGRESSION_FLOOR,
)
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS as C
from dpmd_fast.models.moments import read_moments


class FirstRelease(NamedTuple):
    """Moments at anchors, with the deviation of their noise."""

    values: Floats
    noise_scale: float
    anchors: Floats
    bandwidth: float


class Charts(NamedTuple):
    """Local affine pieces of the manifold."""

    centers: Floats  # (K, D)
    tangents: Floats  # (K, D, d)
    masses: Floats  # (K,)
    noise_to_mass: float  # s / median S
    bandwidth: float


class Correction(NamedTuple):
    """The result of a residual round: a smooth correction of the map, and the remaining variance."""

    field: Field
    variance: float
    signal: float  # median S / s
    error2: float  # mean squared correction at the public points, less what noise explains


def make_charts(release: FirstRelease, dim: int) -> tuple[Charts, float] | None:
    """Return charts, and the variance of the records normal to them; None if no anchor is occupied."""
    values, s, anchors, h = release
    around = read_moments(values, C, h, longest=h)
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


def projection_field(charts: Charts) -> Field:
    """Return the field of round 1: the weighted mean of the projections onto the charts."""
    return make_field(
        charts.centers, charts.tangents, charts.masses, charts.bandwidth, passes=PROJECTION_PASSES
    )


def tangents_at(points: Floats, charts: Charts, dim: int) -> Floats:
    """Return tangents averaged over the charts around each point, or of the nearest if none is in reach."""
    out = np.empty((len(points), points.shape[1], dim))
    projectors = product(charts.tangents, charts.tangents.transpose(0, 2, 1))
    flat = projectors.reshape(len(projectors), -1)
    for start in range(0, len(points), 1024):
        part = slice(start, start + 1024)
        weights = _chart_weights(points[part], charts.centers, charts.bandwidth)
        averaged = csr_array(weights) @ flat  # in the order of the charts; most are out of reach
        out[part] = top_vectors(averaged.reshape(-1, *projectors.shape[1:]), dim)
    return out


def _chart_weights(points: Floats, centers: Floats, h: float) -> Floats:
    """Return kernel weights (m, K) of charts at points; the kernel reaches beyond h to the nearest chart."""
    gaps = cdist(points, centers, "sqeuclidean")
    reach = np.maximum(h * h, CORRECTION_REACH * gaps.min(axis=1, keepdims=True))
    weights: Floats = np.maximum(0.0, 1.0 - gaps / reach) ** 2
    return weights


def simulated_noise(release: FirstRelease, field: Field, points: Floats, dim: int) -> float:
    """Return the mean squared move of the map of round 1 when noise of the same size is added once more."""
    rng = np.random.default_rng(0)  # not secret: this is post-processing
    noise = rng.standard_normal(release.values.shape) * release.noise_scale
    upper = np.triu(noise, 1) / math.sqrt(2.0)
    noise = upper + upper.transpose(0, 2, 1) + np.eye(noise.shape[1]) * noise
    again = make_charts(release._replace(values=release.values + noise), dim)
    if again is None:
        return math.inf
    first, reached = move(field, points)
    second, reached_again = move(projection_field(again[0]), points)
    both = reached & reached_again
    return float(((first - second)[both] ** 2).sum(axis=1).mean()) if both.any() else math.inf


def make_correction(
    values: Floats, anchors: Floats, tangents: Floats, h: float, normal: float, s: float, public: Floats
) -> Correction | None:
    """Regress residuals on tangent coordinates from their released moments; None if no anchor is occupied."""
    ok = values[:, -1, -1] / C > OCCUPIED * s / C
    if not ok.any():
        return None
    values, centers, tangents = values[ok], anchors[ok], tangents[ok]
    D, dim = tangents.shape[1:]
    fitted, inverse = regress(values, dim, D, REGRESSION_FLOOR * s, ridge=s)
    units = normal * np.r_[math.sqrt(C), np.full(dim, 1.0 / h)]
    coefficients = fitted * units[None, :, None]
    noise = product(inverse, inverse) * np.outer(units, units) * (0.5 * s * s)
    # remove the component along the chart
    along = product(coefficients, tangents)
    coefficients -= product(along, tangents.transpose(0, 2, 1))
    masses = values[:, -1, -1] / C
    spread = np.trace(values[:, dim : dim + D, dim : dim + D], axis1=1, axis2=2).sum()
    variance = max(0.0, float(spread / masses.sum())) * normal * normal
    # the kernel in the normal direction attenuates residuals: divide by the share it keeps
    kept = 1.0 - min(MOST_ATTENUATION, ATTENUATION * variance / ((D - dim) * normal * normal))
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
    """Return the mean squared correction at the public points, and what noise contributes to it."""
    D, dim = tangents.shape[1:]
    energy, expected = 0.0, 0.0
    for start in range(0, len(public), 256):
        X = public[start : start + 256]
        weights = _chart_weights(X, centers, h) * masses
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
