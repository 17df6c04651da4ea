"""Weighted Gaussians: their frames, and what a noisy release of second moments in these frames says of them.

A release is, for each component k, the matrix A_k = sum of w r_k t_k t_k^T + noise over the records, with
t_k = (W_k^T (y - m_k), sqrt(c)): its last entry is the mass, its last column the mean, its block the second
moments, all in the frame of the component as it was before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import cholesky, lower_inverse, product
from dpmd_fast.kernels.vector.elementary import fixed_logs
from dpmd_fast.models.gaussians.tuning import HOMOGENEOUS as C
from dpmd_fast.models.gaussians.tuning import (
    LEAST_CORRELATION,
    LEAST_MASS,
    LEAST_OF_LARGEST,
    LEAST_OF_WHOLE,
    LEAST_VARIANCE,
)

Floats = NDArray[np.float64]


class Gaussians(NamedTuple):
    """Components of a mixture."""

    weights: Floats  # (K,), sum 1
    means: Floats  # (K, D)
    covariances: Floats  # (K, D, D)

    @property
    def whitening(self) -> Floats:
        """Upper triangular W (K, D, D) with W W^T = S^-1: W^T (y - m) has unit covariance."""
        inverses: Floats = lower_inverse(cholesky(self.covariances)).transpose(0, 2, 1)
        return inverses

    @property
    def log_weights(self) -> Floats:
        """Logarithm of weight times density at the mean, up to a constant (K,)."""
        diagonals = np.diagonal(self.whitening, axis1=1, axis2=2)
        logs: Floats = fixed_logs(self.weights) + fixed_logs(diagonals).sum(axis=1)
        return logs


class Moments(NamedTuple):
    """Released masses, and means and covariances relative to the frames of the release."""

    masses: Floats  # (K,)
    means: Floats  # (K, D)
    covariances: Floats  # (K, D, D)
    noise: Floats  # (K,) deviation of the noise of a diagonal entry over the mass
    signals: Floats  # (K,) masses as released, without a floor, over the deviation of their noise


def read_moments(values: Floats, noise_scale: float) -> Moments:
    """Return what a release says of each component in its own frame, its covariance free of noise.

    The covariance is shrunk towards one, what it was before, by the share of its gap that noise explains.
    """
    D = values.shape[1] - 1
    masses = np.maximum(values[:, -1, -1] / C, LEAST_MASS * noise_scale / C)
    means = values[:, :D, -1] / np.sqrt(C) / masses[:, None]
    second = values[:, :D, :D] / masses[:, None, None]
    noise = noise_scale / masses
    one = np.eye(D)
    gaps = second - means[:, :, None] * means[:, None, :] - one
    explained = noise**2 * D * (D + 1) / 2.0
    kept = np.maximum(0.0, 1.0 - explained / np.maximum((gaps**2).sum(axis=(1, 2)), 1e-300))
    shrunk = one + kept[:, None, None] * gaps
    least = np.maximum(LEAST_VARIANCE, noise)
    return Moments(masses, means, floored(shrunk, least), noise, values[:, -1, -1] / noise_scale)


def in_data_units(before: Gaussians, found: Moments) -> Gaussians:
    """Return components that were measured in the frames of `before`."""
    back = cholesky(before.covariances)  # W^-T: coordinates u are at m + back u
    means = before.means + np.einsum("kde,ke->kd", back, found.means)
    covariances = product(product(back, found.covariances), back.transpose(0, 2, 1))
    return Gaussians(found.masses / found.masses.sum(), means, symmetric(covariances))


def not_flat(model: Gaussians, whole: Gaussians) -> Gaussians:
    """Return components whose variance is in no direction a tiny part of that of the whole.

    Columns that depend on each other would otherwise lose a part in every round, until rounding makes the
    covariance indefinite.
    """
    root = cholesky(whole.covariances)
    inverse = lower_inverse(root)
    inside = product(product(inverse, model.covariances), inverse.transpose(0, 2, 1))
    wide = floored(inside, np.full(len(inside), LEAST_OF_WHOLE))
    covariances = product(product(root, wide), root.transpose(0, 2, 1))
    return model._replace(covariances=definite(symmetric(covariances)))


def floored(matrices: Floats, least: Floats) -> Floats:
    """Return symmetric matrices with eigenvalues of at least `least` (K,) and of a share of their largest."""
    values, vectors = spectra(symmetric(matrices))
    values = np.maximum(values, np.maximum(least[:, None], LEAST_OF_LARGEST * values[:, -1:]))
    return symmetric(product(vectors * values[:, None, :], vectors.transpose(0, 2, 1)))


def definite(covariances: Floats) -> Floats:
    """Return covariances with a Cholesky factor; to the last bit the same unless rounding endangers it.

    Whether rounding makes a factor fail depends on the correlations alone, not on the units of the columns.
    They are what is floored, so that a column of tiny values beside one of huge values stays as it is. A
    failure would come after the debit, and cost the budget: records far from the public units lead there.
    """
    scales = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    units = scales[:, :, None] * scales[:, None, :]
    correlations = covariances / units
    least = np.full(len(covariances), LEAST_CORRELATION)
    low = spectra(correlations)[0][:, 0] < least
    return np.where(low[:, None, None], units * floored(correlations, least), covariances)


def symmetric(matrices: Floats) -> Floats:
    """Return matrices made symmetric to the last bit."""
    halves: Floats = (matrices + matrices.transpose(0, 2, 1)) / 2.0
    return halves
