"""A wide background behind a released mixture: points that no component describes are hardly moved.

A component pulls a point by its share of the gap between them, however wide the gap. A record of a rare kind,
which no component describes, would be pulled by far more than its noise justifies. Under wide normal
distributions of a small weight, such points are likelier than under any component, and they pull little.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.linear import cholesky, weighted
from dpmd_fast.models.gaussians.components import Floats, Gaussians, symmetric
from dpmd_fast.models.gaussians.tuning import BACKGROUND

# Of the smallest eigenvalue of a correlation matrix, for each column: several times the rounding of a
# Cholesky decomposition, so that one which passes here passes in any units.
_MARGIN = 8.0 * np.finfo(np.float64).eps


def with_background(model: Gaussians) -> Gaussians:
    """Return the components and, behind them, wider and wider copies of the whole."""
    mean = weighted(model.weights, model.means)
    gaps = model.means - mean
    whole = weighted(model.weights, model.covariances)
    whole += np.einsum("k,ki,kj->ij", model.weights, gaps, gaps)
    whole = _definite(whole)
    wide = symmetric(np.array([width * width * whole for _, width in BACKGROUND]))
    weights = np.array([weight for weight, _ in BACKGROUND])
    return Gaussians(
        np.concatenate([model.weights * (1.0 - weights.sum()), weights]),
        np.concatenate([model.means, np.repeat(mean[None], len(wide), axis=0)]),
        np.concatenate([model.covariances, wide]),
    )


def _definite(whole: Floats) -> Floats:
    """Return a covariance; if components far apart have made it singular by rounding, the variances."""
    scales = np.sqrt(np.diagonal(whole))
    correlation = whole / scales[:, None] / scales
    try:
        cholesky(correlation - _MARGIN * len(whole) * np.eye(len(whole)))
    except np.linalg.LinAlgError:
        return np.diag(np.diagonal(whole))
    return whole
