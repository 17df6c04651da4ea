"""One Gaussian, so that the posterior mean is a linear (Wiener) filter: Analyze-Gauss, and queries alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast import Budget
from dpmd_fast.lab.baselines.gaussians import Floats, Gaussians, positive, symmetric_noise

FLOOR = 1e-3  # least eigenvalue of a covariance, in squared public units


def analyze_gauss(records: Floats, budget: Budget, rng: np.random.Generator, *, radius: float) -> Gaussians:
    """Return one Gaussian from second moments released once (Dwork, Talwar, Thakurta and Zhang, STOC 2014).

    Records y are clipped to a ball of public `radius` R. The sum of t t^T, t = (y, 1), holds number, mean and
    covariance; it is released once, with all of the budget. The summands are positive semidefinite, so that
    replacing one changes the sum by at most sqrt(2) (R^2 + 1) in Frobenius norm. Nothing is shrunk towards
    public numbers, unlike in a released mixture of one component.
    """
    D = records.shape[1]
    norms = np.linalg.norm(records, axis=1)
    clipped = records * np.minimum(1.0, radius / np.maximum(norms, 1e-300))[:, None]
    features = np.hstack([clipped, np.ones((len(records), 1))])
    deviation = math.sqrt(2.0) * (radius**2 + 1.0) / budget.mu
    moments = features.T @ features + symmetric_noise((1, D + 1), deviation, rng)[0]
    mass = max(float(moments[-1, -1]), deviation)
    mean = moments[:D, -1] / mass
    covariance = moments[:D, :D] / mass - np.outer(mean, mean)
    return Gaussians(np.ones(1), mean[None], positive(covariance, FLOOR)[None])


def queries_alone(queries: Floats, noise: ArrayLike) -> Gaussians:
    """Return one Gaussian for the clean points, from public queries with noise of known deviation.

    Mean and covariance of the queries, less the noise's: what queries can do by themselves, without a
    reference or a budget. They must be complete. The covariance is shrunk as Ledoit and Wolf propose, which
    makes 30 queries of NHANES as good as 100 without it.
    """
    from sklearn.covariance import ledoit_wolf

    variances = np.broadcast_to(np.square(np.asarray(noise, dtype=np.float64)), queries.shape[1:])
    covariance, _ = ledoit_wolf(queries)
    clean = positive(covariance - np.diag(variances), FLOOR)
    return Gaussians(np.ones(1), queries.mean(axis=0, keepdims=True), clean[None])
