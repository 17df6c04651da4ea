"""Least squares from released moments, for the residual rounds and for the subspace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import product

Floats = NDArray[np.float64]


class Regression(NamedTuple):
    """Coefficients at each location, and the inverse Gram matrices behind them."""

    coefficients: Floats  # (K, p, t): targets on regressors, in the units of the features
    inverse: Floats  # (K, p, p)


def regress(values: Floats, regressors: int, targets: int, floor: float, ridge: float = 0.0) -> Regression:
    """Regress some features on others, from noisy second moments (K, F, F).

    Features are the regressors, then the targets, then the homogeneous coordinate, which is a regressor as
    well, and the first one in the result. `ridge` is added to the squares of the others. Eigenvalues of the
    Gram matrix are raised to at least `floor`, so that noise cannot make it singular.
    """
    order = np.r_[values.shape[1] - 1, :regressors]
    gram = values[:, order[:, None], order]
    cross = values[:, order][:, :, regressors : regressors + targets]
    slopes = np.arange(1, 1 + regressors)
    gram[:, slopes, slopes] += ridge
    eigenvalues, vectors = spectra(gram)
    eigenvalues = np.maximum(eigenvalues, max(1e-300, floor))
    inverse = product(vectors / eigenvalues[:, None, :], vectors.transpose(0, 2, 1))
    return Regression(product(inverse, cross), inverse)
