"""The paper's system: Algorithm 1, Algorithm 2, Nonprivate-MD and the bandwidth rule.

Its privacy is conditional: the noise is scaled with Lemma 1 or Lemma 2, which hold for an unknown
constant C. Every private result carries a `Guarantee` that says so.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmd_fast.kernels.index import build_index
from dpmd_fast.kernels.projectors import LocalGeometry
from dpmd_fast.kernels.tangents import covariance_at
from dpmd_fast.kernels.tridiagonal import top_subspaces
from dpmd_fast.privacy.accounting import checked, checked_integer, gdp_mu
from dpmd_fast.privacy.budget import Budget, BudgetExceeded, resolve_schedule
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.guarantee import Guarantee, paper_guarantee, warn_large_delta
from dpmd_fast.privacy.mechanism import noisy_means, noisy_projectors
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound
from dpmd_fast.reference import Floats, ReleasedGeometry, denoise, fit_reference
from dpmd_fast.validation import (
    check_range,
    checked_choice,
    checked_geometry,
    checked_point,
    checked_points,
    checked_threads,
    share_memory,
)

_CLASSIC_C1 = 1.25
_ROUNDING = 2.0**-40  # noise below this share of the values it hides is not worth the name


def paper_bandwidth(n: int, dim: int, sigma: float) -> float:
    """Bandwidth rule of the paper's simulations, ``max(5 (ln n / n)^(1/(d+1)), 2 sqrt(sigma))``."""
    n = checked_integer("n", n, minimum=2)
    dim = checked_integer("dim", dim, minimum=1)
    sigma = checked("sigma", sigma)
    return max(5.0 * (math.log(n) / n) ** (1.0 / (dim + 1)), 2.0 * math.sqrt(sigma))


@dataclass(frozen=True)
class ProjectorRelease:
    """What Algorithm 1 releases at one point."""

    projector: Floats = field(repr=False)  # (D, D), rank dim
    basis: Floats = field(repr=False)  # (D, dim), orthonormal columns
    noise_scale: float
    guarantee: Guarantee


def dp_projector(
    Y: ArrayLike,
    z: ArrayLike,
    bandwidth: float,
    dim: int,
    budget: Budget,
    calibration: str = "classic",
    sensitivity_constant: float = 1.0,
    *,
    seed: int | None = None,
) -> ProjectorRelease:
    """Algorithm 1 of the paper, DP-Projector: a private tangent space at one public point.

    The top-`dim` projector of the covariance of the reference points within `bandwidth` of `z`, plus a
    symmetric Gaussian matrix, projected back to rank `dim`.

    Parameters
    ----------
    Y : array-like of shape (n, D)
        The private reference.
    z : array-like of shape (D,)
        A public point.
    bandwidth, dim : float, int
        h and d; public.
    budget : Budget
        What this one release spends.
    calibration : {"classic", "budget"}
        ``"classic"`` is the algorithm as printed, noise ``C sqrt(2 ln(1.25/delta)) / (epsilon n h^d)``,
        which is proved for epsilon <= 1 and refused above; ``"budget"`` is ``Delta_P / budget.mu``.
    sensitivity_constant : float
        C of Lemma 1. The printed algorithm has C = 1.
    seed : int, optional
        Makes the run reproducible, and not private.

    Returns
    -------
    ProjectorRelease
        With ``.projector``, ``.basis``, ``.noise_scale`` and ``.guarantee``.

    Notes
    -----
    Where fewer than dim + 1 reference points lie in the ball, the projector that noise is added to is
    zero: the result then has no tangent in it, and does not say so, since saying so is not paid for.
    """
    reference = checked_points("Y", Y, least=1)
    n, D = reference.shape
    h, d, _ = checked_geometry(bandwidth, dim, 2.0, D)
    _check_enough(n, d)
    point = checked_point("z", z, D).astype(np.float64)
    _check_budget(budget)
    checked_choice("calibration", calibration, ("classic", "budget"))
    constant = checked("sensitivity_constant", sensitivity_constant, positive=True)
    _refuse_shared(Y, z, "z")
    source = open_source(seed)
    mu = _classic_mu(budget) if calibration == "classic" else budget.mu
    scale = projector_bound(n, d, h, constant) / mu
    guarantee = paper_guarantee(
        budget,
        mu=mu,
        n=n,
        dim=d,
        bandwidth=h,
        sensitivity_constant=constant,
        seeded=not source.private,
        lemma=1,
        lost_in_rounding=scale < _ROUNDING,
        released="one projector",
    )
    warn_large_delta(budget.delta, n)
    covariance, count = covariance_at(build_index(reference, h), point)
    padded = np.zeros((1, *2 * [4 * -(-D // 4)]))
    if count > d:
        trace = float(np.trace(covariance))
        padded[0, :D, :D] = covariance / trace if trace > 0.0 else covariance
        V = top_subspaces(padded, D, d, 1)[0]
        padded[0] = V.T @ V
    noisy = noisy_projectors(padded, D, np.array([scale]), source, 1)
    basis = np.ascontiguousarray(top_subspaces(noisy, D, d, 1)[0, :, :D].T)
    return ProjectorRelease(basis @ basis.T, basis, scale, guarantee)


def _classic_mu(budget: Budget) -> float:
    if budget.epsilon > 1.0:
        raise ValueError(
            f"budget.epsilon = {budget.epsilon!r}: calibration 'classic' is proved for epsilon <= 1; "
            "use calibration='budget'"
        )
    mu = budget.epsilon / math.sqrt(2.0 * math.log(_CLASSIC_C1 / budget.delta))
    if mu > gdp_mu(budget.epsilon, budget.delta):
        raise ValueError(
            f"budget.delta = {budget.delta!r}: the formula of calibration 'classic' does not give "
            "(epsilon, delta)-DP at so large a delta; use calibration='budget'"
        )
    return mu


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
        in its ball; returned unchanged) or "failed" (lost its neighbours on the way; returned unchanged).
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
        _check_enough(len(reference), d)
        check_range("X", reference)
        self._fitted = fit_reference(reference, h, d, beta, checked_threads(self.n_threads))
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Denoise the rows of `X`; float32 in, float32 out."""
        check_is_fitted(self)
        queries = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        check_range("X", queries)
        points, self.status_ = denoise(self._fitted, queries, checked_integer("steps", self.steps, minimum=1))
        return points.astype(queries.dtype, copy=False)

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
        _check_enough(n, d)
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
        _refuse_shared(self._given, X, "X")
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
        rounding = _ROUNDING * np.array([1.0, max(h, float(np.abs(queries).max()))])
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
            lost_in_rounding=bool((scales < rounding).any()),
            released="all queries and steps together",
        )
        warn_large_delta(self.budget.delta, n)
        self._once.spend(mu2)
        self.guarantee_ = guarantee
        self.noise_scales_ = scales
        release = _NoisyRelease(scales, source, self._fitted.n_threads)
        points, self.status_ = denoise(self._fitted, queries, steps, release)
        return points.astype(queries.dtype, copy=False)

    def fit_transform(self, X: object, y: object = None, **fit_params: object) -> NoReturn:
        """Refused: the queries would be the private reference itself."""
        raise TypeError(
            "DPManifoldDenoiser has no fit_transform: its queries would be the private reference, and "
            "queries are public by assumption; use fit(reference).transform(queries)"
        )

    def _checked(self) -> tuple[int, float]:
        """Steps and C, after all parameters have been looked at."""
        _check_budget(self.budget)
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


def _check_enough(n: int, dim: int) -> None:
    if n < dim + 2:
        raise ValueError(
            f"the reference has {n} sample(s): must have at least dim + 2 = {dim + 2} (n_samples = {n})"
        )


def _check_budget(budget: object) -> None:
    if not isinstance(budget, Budget):
        raise ValueError(f"budget = {budget!r}: must be a Budget, for instance Budget(epsilon=1, delta=1e-6)")


def _refuse_shared(reference: object, queries: object, name: str) -> None:
    if share_memory(reference, queries):
        raise ValueError(
            f"{name} is part of the reference: queries must be public points; taking them from the private "
            "reference would void the guarantee"
        )
