"""A mixture of Gaussians in plain NumPy: the posterior of clean points under a baseline or the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_ROWS = 20_000  # in one block of rows, which bounds the memory


class Posterior(NamedTuple):
    """Means and standard deviations of the clean points, one row per query."""

    means: Floats
    deviations: Floats


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Weights (K,), means (K, D) and covariances (K, D, D); singular covariances need noise."""

    weights: Floats
    means: Floats
    covariances: Floats

    def posterior(self, X: Floats, noise: ArrayLike) -> Posterior:
        """Return means and deviations of the clean points, given points with normal noise.

        `noise` is the noise's standard deviation, a number or one per column. NaN is a missing value: it is
        conditioned on the values that are there.
        """
        missing = np.isnan(X)
        variances = np.broadcast_to(np.square(np.asarray(noise, dtype=np.float64)), X.shape[1:])
        means, deviations = np.empty_like(X), np.empty_like(X)
        patterns, of = np.unique(missing, axis=0, return_inverse=True)
        order = np.argsort(of.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(of.ravel(), minlength=len(patterns)))
        for pattern, rows in zip(patterns, np.split(order, ends[:-1]), strict=True):
            for block in np.split(rows, range(_ROWS, len(rows), _ROWS)):
                means[block], deviations[block] = self._conditioned(
                    X[block][:, ~pattern], ~pattern, variances
                )
        return Posterior(means, deviations)

    def log_densities(self, X: Floats) -> Floats:
        """Return log(weight * density) up to the constant D/2 log 2 pi, for each row and component (n, K)."""
        return _log_densities(X, self.weights, self.means, self.covariances)

    def responsibilities(self, X: Floats) -> Floats:
        """Return the probability of each component, given a row (n, K)."""
        return _normalised(self.log_densities(X))

    def _conditioned(self, known: Floats, seen: NDArray[np.bool_], variances: Floats) -> Posterior:
        """Return the posterior of rows of which the columns `seen` are known."""
        K, D = self.means.shape
        if not seen.any():
            means = np.broadcast_to(self.means, (len(known), K, D))
            spread = np.diagonal(self.covariances, axis1=1, axis2=2)
            return _mixed(np.broadcast_to(self.weights, (len(known), K)), means, spread)
        across = self.covariances[:, seen]  # (K, seen, D)
        noisy = across[:, :, seen] + np.diag(variances[seen])
        shares = _normalised(_log_densities(known, self.weights, self.means[:, seen], noisy))
        gains = np.linalg.solve(noisy, across)
        means = np.stack([self.means[k] + (known - self.means[k, seen]) @ gains[k] for k in range(K)], axis=1)
        spread = np.diagonal(self.covariances, axis1=1, axis2=2) - (across * gains).sum(axis=1)
        return _mixed(shares, means, spread)


def positive(matrix: Floats, least: float) -> Floats:
    """Return a symmetric matrix with its eigenvalues raised to `least`."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    raised: Floats = (vectors * np.maximum(values, least)) @ vectors.T
    return raised


def symmetric_noise(shape: tuple[int, ...], deviation: float, rng: np.random.Generator) -> Floats:
    """Return symmetric matrices (K, D, D) of noise that hides a change of Frobenius norm.

    The Frobenius norm of a symmetric matrix is that of the vector of its diagonal and sqrt(2) times its upper
    triangle; each entry of the vector gets noise of the given deviation.
    """
    count, size = shape
    drawn = deviation * rng.normal(size=(count, size, size))
    upper = np.triu(drawn, 1) / np.sqrt(2.0)
    symmetric: Floats = upper + upper.transpose(0, 2, 1) + np.eye(size) * drawn
    return symmetric


def _log_densities(X: Floats, weights: Floats, means: Floats, covariances: Floats) -> Floats:
    out = np.empty((len(X), len(weights)))
    for k, factor in enumerate(np.linalg.cholesky(covariances)):
        standard = np.linalg.solve(factor, (X - means[k]).T)
        out[:, k] = np.log(weights[k]) - 0.5 * (standard**2).sum(axis=0) - np.log(np.diag(factor)).sum()
    return out


def _normalised(logs: Floats) -> Floats:
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    normalised: Floats = shares / shares.sum(axis=1, keepdims=True)
    return normalised


def _mixed(shares: Floats, means: Floats, spread: Floats) -> Posterior:
    """Return mean and deviation over components: shares (n, K), means (n, K, D), variances (K, D)."""
    middle = np.einsum("nk,nkd->nd", shares, means)
    apart = np.einsum("nk,nkd->nd", shares, (means - middle[:, None, :]) ** 2)
    return Posterior(middle, np.sqrt(np.maximum(apart + shares @ spread, 0.0)))
