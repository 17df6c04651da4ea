"""Methods without privacy: scikit-learn's GaussianMixture and IterativeImputer, and gcimpute."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import numpy as np

from dpmd_fast.errors import UserError
from dpmd_fast.lab.baselines.gaussians import Floats, Gaussians


def gaussian_mixture(records: Floats, components: int, seed: int = 0) -> Gaussians:
    """Return scikit-learn's mixture with full covariances, fitted to private records without any noise."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(components, covariance_type="full", reg_covar=1e-4, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(records)
    return Gaussians(model.weights_, model.means_, model.covariances_)


def iterative_imputer(learned: Floats, queries: Floats, seed: int = 0) -> Floats:
    """Return the queries with missing values filled in by scikit-learn's IterativeImputer.

    It is fitted to `learned`: the queries themselves, which are public, or the reference.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    imputer = IterativeImputer(random_state=seed, keep_empty_features=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        filled: Floats = imputer.fit(learned).transform(queries)
    return filled


def has_gcimpute() -> bool:
    """Return whether gcimpute is installed; it is not a dependency of this package."""
    return find_spec("gcimpute") is not None


def gaussian_copula(learned: Floats, queries: Floats) -> Floats:
    """Return the queries with missing values filled in by gcimpute's Gaussian copula, fitted to `learned`."""
    if not has_gcimpute():
        raise UserError("gcimpute is not installed: pip install gcimpute statsmodels")
    from gcimpute.gaussian_copula import GaussianCopula

    model = GaussianCopula(verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(learned, continuous=list(range(learned.shape[1])))
        filled = np.asarray(model.transform(queries), dtype=np.float64)
    return filled
