"""Nonprivate-MD, the paper's method without noise, and its bandwidth rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmd_fast.arguments import (
    check_enough,
    check_range,
    checked,
    checked_geometry,
    checked_integer,
    checked_steps,
    checked_threads,
)
from dpmd_fast.columns import check_unique, names_of
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.local_pca import Floats, denoise, fit_reference, in_query_type


def paper_bandwidth(n: int, dim: int, sigma: float) -> float:
    """Return the bandwidth of the paper's simulations, ``max(5 (ln n / n)^(1/(d+1)), 2 sqrt(sigma))``.

    Parameters
    ----------
    n : int
        Number of references.
    dim : int
        Dimension d of the manifold.
    sigma : float
        Radius of the noise of the references.
    """
    n = checked_integer("n", n, minimum=2)
    dim = checked_integer("dim", dim, minimum=1)
    sigma = checked("sigma", sigma)
    return max(5.0 * math.pow(math.log(n) / n, 1.0 / (dim + 1)), 2.0 * math.sqrt(sigma))


class ManifoldDenoiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Nonprivate-MD: move queries toward the manifold of a reference, without privacy.

    Each step replaces x by ``x - (I - P)(x - b)``, with b the kernel-weighted mean of the reference
    around x and P the top-`dim` projector of the averaged tangent projectors there.

    Parameters
    ----------
    bandwidth : float
        Ball radius h.
    dim : int
        Intrinsic dimension d, below the number of columns.
    steps : int
        Updates per query.
    beta : float
        Kernel exponent, at least 2.
    n_threads : int, optional
        Threads to use; all by default.

    Attributes
    ----------
    n_features_in_ : int
    status_ : array of str
        For each query of the last `transform`: "ok", "no_neighbor" (fewer than dim + 1 reference points
        in its ball) or "failed" (lost its neighbours in a later step, or left the range of its type); a
        query with one of the last two is returned unchanged.
    """

    def __init__(
        self, bandwidth: float, dim: int, steps: int = 1, beta: float = 2.0, n_threads: int | None = None
    ) -> None:
        self.bandwidth = bandwidth
        self.dim = dim
        self.steps = steps
        self.beta = beta
        self.n_threads = n_threads

    def fit(self, X: ArrayLike, y: object = None) -> ManifoldDenoiser:
        """Compute local PCA at every row of the reference `X`."""
        reference = self._validated(X, ensure_min_samples=3)
        h, d, beta = checked_geometry(self.bandwidth, self.dim, self.beta, reference.shape[1])
        checked_steps(self.steps)
        check_enough("X", len(reference), d)
        self._fitted = fit_reference(reference, h, d, beta, checked_threads(self.n_threads))
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Denoise the rows of `X`; float32 in, float32 out."""
        check_is_fitted(self)
        queries = self._validated(X, reset=False)
        points, self.status_ = denoise(self._fitted, queries, checked_steps(self.steps))
        return in_query_type(points, queries, self.status_)

    def _validated(self, X: ArrayLike, **options: Any) -> Any:
        """Return `X` as validated by scikit-learn; cut its error messages short before they show values."""
        check_unique("X", names_of(X))
        try:
            with np.errstate(all="ignore"):
                points = validate_data(self, X, dtype=[np.float64, np.float32], **options)
        except (TypeError, ValueError) as error:
            text = str(error)
            if type(error) in (TypeError, ValueError) and text.startswith(("Input X ", "X ")):
                raise
            kind = UserTypeError if isinstance(error, TypeError) else UserValueError
            hint = text[text.find("Reshape your data") :] if "Reshape your data" in text else ""
            problem = text
            if not text.startswith("The feature names"):  # other messages may end with values
                problem = text.partition("array=")[0].partition("\n")[0].partition("to float:")[0]
            problem = problem.strip().removesuffix(":").removesuffix(".")
        except Exception:  # raised by the object during conversion: its message may show a value
            problem, kind, hint = "cannot be converted to an array", UserValueError, ""
        else:
            check_range("X", points)
            return points
        raise kind(f"X: {problem}. {hint}".strip())

    @property
    def tangents_(self) -> Floats:
        """Tangent bases (n, D, dim) at the reference points; zero where a ball holds too few points."""
        check_is_fitted(self)
        return self._fitted.tangents()

    @property
    def neighbor_counts_(self) -> NDArray[np.int64]:
        """Number of reference points within the bandwidth of each reference point, itself included."""
        check_is_fitted(self)
        counts = np.empty_like(self._fitted.counts)
        counts[self._fitted.index.order] = self._fitted.counts
        return counts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")
