"""The paper's estimators, Algorithm 2 and Nonprivate-MD, and its bandwidth rule.

Algorithm 2 is private under conditions: its noise is scaled with Lemma 2, which holds for an unknown
constant C. Every private result carries a `Guarantee` that says so.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmd_fast.kernels.projectors import LocalGeometry
from dpmd_fast.privacy.accounting import checked, checked_integer
from dpmd_fast.privacy.budget import Budget, BudgetExceeded, resolve_schedule
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.guarantee import paper_guarantee, warn_large_delta
from dpmd_fast.privacy.mechanism import lost_in_rounding, noisy_means, noisy_projectors
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound
from dpmd_fast.reference import Floats, ReleasedGeometry, denoise, fit_reference
from dpmd_fast.validation import (
    Points,
    check_budget,
    check_enough,
    check_public,
    check_range,
    checked_choice,
    checked_geometry,
    checked_points,
    checked_threads,
)


def paper_bandwidth(n: int, dim: int, sigma: float) -> float:
    """Bandwidth rule of the paper's simulations, ``max(5 (ln n / n)^(1/(d+1)), 2 sqrt(sigma))``."""
    n = checked_integer("n", n, minimum=2)
    dim = checked_integer("dim", dim, minimum=1)
    sigma = checked("sigma", sigma)
    return max(5.0 * (math.log(n) / n) ** (1.0 / (dim + 1)), 2.0 * math.sqrt(sigma))


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
        in its ball) or "failed" (lost its neighbours or left the range of the type on the way); a query
        with one of the last two is returned unchanged.
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
        """Local PCA at every row of the reference `X`."""
        reference = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=3)
        h, d, beta = checked_geometry(self.bandwidth, self.dim, self.beta, reference.shape[1])
        checked_integer("steps", self.steps, minimum=1)
        check_enough("X", len(reference), d)
        check_range("X", reference)
        self._fitted = fit_reference(reference, h, d, beta, checked_threads(self.n_threads))
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Denoise the rows of `X`; float32 in, float32 out."""
        check_is_fitted(self)
        queries = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        check_range("X", queries)
        points, self.status_ = denoise(self._fitted, queries, checked_integer("steps", self.steps, minimum=1))
        return _like_queries(points, queries, self.status_)

    @property
    def tangents_(self) -> Floats:
        """Tangent bases (n, D, dim) at the reference points; zero where a ball holds too few points."""
        check_is_fitted(self)
        return self._fitted.tangents()

    @property
    def neighbor_counts_(self) -> NDArray[np.int64]:
        """Reference points within the bandwidth of each reference point, itself included."""
        check_is_fitted(self)
        counts = np.empty_like(self._fitted.counts)
        counts[self._fitted.index.order] = self._fitted.counts
        return counts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")


class DPManifoldDenoiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Algorithm 2 of the paper, DP-ManifoldDenoiser: move public queries with a private reference.

    Every `transform` spends the budget; one `fit` allows one `transform`, a second raises
    `BudgetExceeded`. The guarantee of this mechanism is conditional: read ``guarantee_``.

    Parameters
    ----------
    bandwidth : float
        Ball radius h. Public: do not read it off the reference.
    dim : int
        Intrinsic dimension d, below the number of columns. Public.
    budget : Budget
        Total for all queries and steps of one `transform`.
    mechanism : {"projector"}
        Noisy averaged projectors and means, as in the paper.
    steps : int
        Updates per query, T.
    beta : float
        Kernel exponent, at least 2.
    theta : float
        Share of the budget for the projectors, in (0, 1).
    schedule : None, "per-query" or array of shape (queries, steps, 2)
        How the budget is divided: evenly (None), with (epsilon/m, delta/m) for each of m queries, or as
        given, rho of projector and mean for each query and step, summing to ``budget.rho``. Where a share
        is 0, nothing is released and the query's last released value is used again; before there is one,
        no projector means a move to the mean, no mean means no move.
    sensitivity_constant : float
        C of Lemma 2. `empirical_sensitivity` shows what a synthetic data set needs.
    adjacency : {"replace-one"}
        The noise is scaled with n, so n must be public.
    seed : int, optional
        Makes a run reproducible, and not private.
    n_threads : int, optional
        Threads to use; all by default.

    Attributes
    ----------
    n_features_in_ : int
    status_ : array of str
        As for `ManifoldDenoiser`. It depends on the reference, and no budget pays for it.
    guarantee_ : Guarantee
        What the last `transform` promises.
    noise_scales_ : array of shape (queries, steps, 2)
        Standard deviations of the noise on projectors and means; infinite where nothing was released.
    """

    def __init__(
        self,
        bandwidth: float,
        dim: int,
        budget: Budget,
        mechanism: str = "projector",
        steps: int = 1,
        beta: float = 2.0,
        theta: float = 0.5,
        schedule: str | ArrayLike | None = None,
        sensitivity_constant: float = 1.0,
        adjacency: str = "replace-one",
        *,
        seed: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.bandwidth = bandwidth
        self.dim = dim
        self.budget = budget
        self.mechanism = mechanism
        self.steps = steps
        self.beta = beta
        self.theta = theta
        self.schedule = schedule
        self.sensitivity_constant = sensitivity_constant
        self.adjacency = adjacency
        self.seed = seed
        self.n_threads = n_threads

    def fit(self, X: ArrayLike, y: object = None) -> DPManifoldDenoiser:
        """Local PCA at every row of the private reference `X`; spends nothing, releases nothing."""
        reference = checked_points("X", X)
        n, D = reference.shape
        h, d, beta = checked_geometry(self.bandwidth, self.dim, self.beta, D)
        check_enough("X", n, d)
        self._checked()
        n_threads = checked_threads(self.n_threads)
        warn_large_delta(self.budget.delta, n)
        fitted = fit_reference(reference, h, d, beta, n_threads)
        validate_data(self, X, skip_check_array=True)
        for result in ("status_", "guarantee_", "noise_scales_"):
            self.__dict__.pop(result, None)
        self._fitted = fitted
        self._given = X
        self._once = _Once()
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Denoise the public queries `X`, spending the budget; float32 in, float32 out."""
        check_is_fitted(self)
        queries = checked_points("X", X)
        validate_data(self, X, skip_check_array=True, reset=False)
        check_public("X", X, self._given)
        steps, constant = self._checked()
        schedule = resolve_schedule(self.schedule, self.budget, len(queries), steps, self.theta)
        n, d, h = len(self._fitted.bases), self._fitted.dim, self._fitted.index.radius
        mu2 = 2.0 * math.fsum(schedule.ravel().tolist())
        source = open_source(self.seed)
        bounds = np.array([projector_bound(n, d, h, constant), mean_bound(n, d, h, constant)])
        with np.errstate(divide="ignore"):
            scales = bounds / np.sqrt(2.0 * schedule)
        if not np.isfinite(scales[schedule > 0.0]).all():
            raise ValueError("schedule holds a share so small that its noise has no finite scale")
        sizes = np.array([1.0, max(h, float(np.abs(queries).max()))])
        guarantee = paper_guarantee(
            self.budget,
            mu=math.sqrt(mu2),
            n=n,
            dim=d,
            bandwidth=h,
            sensitivity_constant=constant,
            seeded=not source.private,
            lemma=2,
            basic_composition=isinstance(self.schedule, str),
            lost_in_rounding=lost_in_rounding(scales, sizes),
            released="all queries and steps together",
        )
        warn_large_delta(self.budget.delta, n)
        self._once.spend(mu2)
        self.guarantee_ = guarantee
        self.noise_scales_ = scales
        release = _NoisyRelease(scales, source, self._fitted.n_threads)
        points, self.status_ = denoise(self._fitted, queries, steps, release)
        return _like_queries(points, queries, self.status_)

    def fit_transform(self, X: object, y: object = None, **fit_params: object) -> NoReturn:
        """Refused: the queries would be the private reference itself."""
        raise TypeError(
            "DPManifoldDenoiser has no fit_transform: its queries would be the private reference, and "
            "queries are public by assumption; use fit(reference).transform(queries)"
        )

    def _checked(self) -> tuple[int, float]:
        """Steps and C, after all parameters have been looked at."""
        check_budget(self.budget)
        checked_choice("mechanism", self.mechanism, ("projector",))
        if self.adjacency != "replace-one":
            raise ValueError(
                f"adjacency = {self.adjacency!r}: mechanism 'projector' scales its noise with the number of "
                "records, which only 'replace-one' makes public"
            )
        if self.seed is not None:
            checked_integer("seed", self.seed)
        steps = checked_integer("steps", self.steps, minimum=1)
        if self.schedule is None or isinstance(self.schedule, str):
            checked("theta", self.theta, positive=True, below=1.0)
        return steps, checked("sensitivity_constant", self.sensitivity_constant, positive=True)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __getstate__(self) -> Any:
        if hasattr(self, "_fitted"):
            raise TypeError(
                "a fitted DPManifoldDenoiser holds the private reference and is not pickled or copied; "
                "keep its results instead, or clone() it without the reference"
            )
        return super().__getstate__()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def _like_queries(points: Floats, queries: Points, status: NDArray[np.str_]) -> Points:
    """`points` in the type of the queries; a point beyond the range of float32 is "failed" and not moved."""
    if queries.dtype == points.dtype:
        return points
    with np.errstate(over="ignore"):
        out = points.astype(queries.dtype)
    beyond = ~np.isfinite(out).all(axis=1)
    status[beyond] = "failed"
    out[beyond] = queries[beyond]
    return out


class _Once:
    """The budget of one fit: spent by the first that asks, in the process that fitted."""

    def __init__(self) -> None:
        self._free = threading.Lock()  # held for good once spent
        self._pid = os.getpid()

    def spend(self, mu2: float) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this DPManifoldDenoiser was fitted before the process was forked: parent and child would "
                "both spend its budget; fit in the process that transforms"
            )
        if not self._free.acquire(blocking=False):
            raise BudgetExceeded(asked=mu2, remaining=0.0, what="a second transform of one fit")


@dataclass(frozen=True)
class _NoisyRelease:
    """Gaussian mechanism on projectors and means, with the scales of each query and step."""

    scales: Floats  # (m, T, 2); infinite: not released
    source: EntropySource
    n_threads: int | None

    def __call__(
        self, geometry: LocalGeometry, queries: NDArray[np.intp], step: int, X: Floats
    ) -> ReleasedGeometry:
        projector_scales, mean_scales = self.scales[queries, step].T
        has_projector, has_mean = np.isfinite(projector_scales), np.isfinite(mean_scales)
        D = X.shape[1]
        projectors = geometry.projectors
        return ReleasedGeometry(
            noisy_projectors(
                projectors if has_projector.all() else projectors[has_projector],
                D,
                projector_scales[has_projector],
                self.source,
                self.n_threads,
            ),
            has_projector,
            noisy_means(
                (X + geometry.offsets[:, :D])[has_mean], mean_scales[has_mean], self.source, self.n_threads
            ),
            has_mean,
        )
