"""`DPManifoldDenoiser`: private denoising of public queries, by certified moments or by the paper's route."""

from __future__ import annotations

import math
import warnings
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmd_fast.arguments import (
    LARGEST,
    Points,
    check_enough,
    check_memory,
    checked,
    checked_choice,
    checked_geometry,
    checked_points,
    checked_steps,
    checked_table,
    checked_threads,
)
from dpmd_fast.columns import check_unique, names_of
from dpmd_fast.compilation import ensure
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.mechanisms.algorithm2 import denoise_with_projectors, plan_spend
from dpmd_fast.mechanisms.moment_denoiser import denoise_with_moments, predict_first_step
from dpmd_fast.mechanisms.spend import (
    LedgerArgument,
    Mechanism,
    SingleSpend,
    Terms,
    check_public,
    check_terms,
    prepare,
)
from dpmd_fast.models.predict_direct import predict_projectors
from dpmd_fast.models.verdict import check_accept_risk, refuse_unless_worth, risk_noted
from dpmd_fast.privacy.budget import Budget, resolve_steps
from dpmd_fast.privacy.guarantee import warn_large_delta, with_conditions
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference.local_pca import FittedReference, Floats, fit_reference, in_query_type
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.open import is_table_or_file, open_reference
from dpmd_fast.reference.sources.validity import check_valid


class DPManifoldDenoiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Move public queries toward the manifold of a private reference, under differential privacy.

    Every `transform` spends the budget. With a ledger, a `fit` allows as many as the ledger pays for; without
    one, it allows a single `transform`, and a second raises `BudgetExceeded`. ``guarantee_`` states the
    guarantee.

    Parameters
    ----------
    bandwidth : float
        Ball radius h. Public: do not read it off the reference.
    dim : int
        Intrinsic dimension d, below the number of columns. Public.
    budget : Budget
        Total for all queries and steps of one `transform`.
    mechanism : {"moments", "projector"}
        "moments" releases clipped second moments around the queries: the guarantee holds for every data set.
        "projector" is Algorithm 2 of the paper, noisy averaged projectors and means: the guarantee holds
        under conditions.
    steps : int
        Updates per query, T. Each gets a share of the budget.
    beta : float
        Kernel exponent, at least 2.
    theta : float
        Share of the budget for the projectors, in (0, 1); for "projector" only.
    schedule : None, "per-query" or array
        How the budget is divided. None: evenly. For "moments", an array (steps,) of the rho of each step that
        sums to ``budget.rho``. For "projector", an array (queries, steps, 2) with the rho of projector and
        mean, or "per-query", which gives each of m queries (epsilon/m, delta/m). Where a share is 0, nothing
        is released: "moments" leaves the queries where they are; "projector" reuses the query's last released
        value. If there is none yet, a query without a projector moves to the mean, and one without a mean
        stays.
    sensitivity_constant : float
        C of Lemma 2, for "projector" only. `empirical_sensitivity` shows what a synthetic data set needs.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. "projector" needs "replace-one": its noise is scaled with n.
    on_invalid : {"raise", "drop"}
        How to treat records with non-finite or huge values. "raise" refuses the reference in `fit`, without
        saying which record; "drop" lets them contribute nothing, and the guarantee then holds for every data
        set, theirs included. "projector" needs "raise".
    accept_risk : bool
        Whether to spend even if the result is predicted to be mostly noise: most queries not in reach
        ("moments"), or thrown further than the bandwidth ("projector"). The guarantee notes it.
    ledger : Ledger or path, optional
        Pays for every `transform`: the debit is made before the pass that is released, or refused with
        `BudgetExceeded`. Without a ledger, only that one release is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes a run reproducible and therefore not private; refused with a ledger.
    n_threads : int, optional
        Threads to use; all by default.
    batch_rows : int, optional
        Records to read at a time, if the reference is not an array ("moments"); no effect on the result.

    Attributes
    ----------
    n_features_in_ : int
    status_ : array of str
        For each query "ok", "no_neighbor" or "failed"; a query with one of the last two is returned
        unchanged. For "moments" it is read off the release; for "projector" it depends on the reference, and
        no budget pays for it.
    guarantee_ : Guarantee
        The guarantee of the last `transform`.
    receipt_ : Receipt or None
        The debit of the last `transform`, if a ledger paid for it; ``receipt_.record_file(path)`` records
        there the file that the result was written to.
    noise_scales_ : array of shape (queries, steps, 2)
        For "projector": standard deviations of the noise on projectors and means; infinite where nothing was
        released.
    """

    def __init__(
        self,
        bandwidth: float,
        dim: int,
        budget: Budget,
        mechanism: str = "moments",
        steps: int = 1,
        beta: float = 2.0,
        theta: float = 0.5,
        schedule: str | ArrayLike | None = None,
        sensitivity_constant: float = 1.0,
        adjacency: str = "replace-one",
        *,
        on_invalid: str = "raise",
        accept_risk: bool = False,
        ledger: LedgerArgument = None,
        dataset: str | None = None,
        seed: int | None = None,
        n_threads: int | None = None,
        batch_rows: int | None = None,
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
        self.on_invalid = on_invalid
        self.accept_risk = accept_risk
        self.ledger = ledger
        self.dataset = dataset
        self.seed = seed
        self.n_threads = n_threads
        self.batch_rows = batch_rows

    def fit(self, X: Any, y: object = None) -> DPManifoldDenoiser:
        """Take the private reference `X`; spend nothing and release nothing.

        "moments" takes what `release_moments` takes, including tables and Parquet files, and reads it again
        in `transform`; "projector" takes an array or a DataFrame and computes local PCA at every row.
        """
        _, steps, _ = self._checked()
        fitted: FittedReference | ReferenceSource
        if self.mechanism == "projector":
            fitted = self._fit_projectors(X)
        else:
            fitted = self._open_moments(X)
            resolve_steps(self.schedule, self.budget, steps)
        for result in ("status_", "guarantee_", "noise_scales_", "receipt_"):
            self.__dict__.pop(result, None)
        self._fitted = fitted
        self._fitted_mechanism = self.mechanism
        self._given = X
        self._single_spend = SingleSpend()
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Denoise the public queries `X`, spending the budget; float32 in, float32 out."""
        check_is_fitted(self)
        terms, steps, constant = self._checked()
        queries = checked_points("X", X)
        check_unique("X", names_of(X))
        validate_data(self, X, skip_check_array=True, reset=False)
        check_public("X", X, self._given)
        if self.mechanism != self._fitted_mechanism:
            raise UserValueError(
                f"mechanism = {self.mechanism!r}: the reference was fitted for {self._fitted_mechanism!r}; "
                "fit it again",
                argument="mechanism",
            )
        if isinstance(self._fitted, FittedReference):
            points = self._with_projectors(self._fitted, queries, terms, steps, constant)
        else:
            points = self._with_moments(self._fitted, queries, terms, steps)
        return in_query_type(points, queries, self.status_)

    def _with_projectors(
        self, fitted: FittedReference, queries: Points, terms: Terms, steps: int, constant: float
    ) -> Floats:
        spend = plan_spend(
            fitted,
            queries,
            self.budget,
            steps,
            self.theta,
            self.schedule,
            constant,
            seeded=terms.seeded,
        )
        h, d = fitted.index.radius, fitted.dim
        predicted = predict_projectors(spend.scales, queries.shape[1], d, h, self.budget)
        refuse_unless_worth(predicted, self.accept_risk)
        guarantee = with_conditions(spend.guarantee, risk_noted(predicted, self.accept_risk))
        mechanism = prepare(
            terms,
            None,
            guarantee,
            "denoising of public queries",
            mechanism="projector, Algorithm 2",
            parameters=self._parameters(queries, bandwidth=h, dim=d, sensitivity_constant=constant),
            kernels=("paper",),
            bound_to=self._given,
            rows=len(fitted.bases),
            stacklevel=6,
        )
        with mechanism.failing_safely():
            self._pay(mechanism)
            self.noise_scales_ = spend.scales
            points, self.status_ = denoise_with_projectors(fitted, queries, spend, steps, mechanism.entropy)
        return points

    def _with_moments(self, source: ReferenceSource, queries: Points, terms: Terms, steps: int) -> Floats:
        shares = resolve_steps(self.schedule, self.budget, steps)
        h, d, beta = checked_geometry(self.bandwidth, self.dim, self.beta, queries.shape[1])
        mus = [math.sqrt(2.0 * rho) for rho in shares]
        for mu in mus:
            if mu > 0.0:
                choose_lattice(mu, 1.0, terms.adjacency)  # refuses a mu out of range, before the spend
        check_memory(*queries.shape)
        ensure("moments")
        predicted = predict_first_step(terms, source, queries, h, beta, mus)
        refuse_unless_worth(predicted, self.accept_risk)
        guarantee = terms.certified(math.sqrt(2.0 * math.fsum(shares)), "all queries and steps together")
        mechanism = prepare(
            terms,
            source,
            with_conditions(guarantee, risk_noted(predicted, self.accept_risk)),
            "denoising of public queries",
            mechanism="moments",
            parameters=self._parameters(queries, bandwidth=h, dim=d, beta=beta),
            kernels=("moments",),
            validate=False,
            stacklevel=6,
        )
        for _ in source.blocks():  # a missing file is noticed before the spend
            break
        with mechanism.failing_safely():
            self._pay(mechanism)
            points, self.status_ = denoise_with_moments(
                mechanism, queries, bandwidth=h, dim=d, beta=beta, mus=mus
            )
        if not (self.status_ == "ok").any():
            warnings.warn(
                "no query has enough of the reference around it to stand out from the noise: all come back "
                "unchanged; use a larger bandwidth or budget",
                stacklevel=3,
            )
        return points

    def fit_transform(self, X: object, y: object = None, **fit_params: object) -> NoReturn:
        """Refuse: the queries would be the private reference itself."""
        raise UserTypeError(
            "DPManifoldDenoiser has no fit_transform: its queries would be the private reference, and "
            "queries are public by assumption; use fit(reference).transform(queries)"
        )

    def _parameters(self, queries: Points, **more: Any) -> dict[str, Any]:
        """Return the public parameters for the history of the ledger."""
        schedule = "even" if self.schedule is None else "array"
        return {
            "queries": len(queries),
            "columns": queries.shape[1],
            "steps": int(self.steps),
            "schedule": self.schedule if isinstance(self.schedule, str) else schedule,
            **more,
        }

    def _pay(self, mechanism: Mechanism) -> None:
        """Pay from the ledger; without one, use the single spend that a fit allows."""
        if self.ledger is None:
            self._single_spend.spend(mechanism.guarantee.mu**2)
        mechanism.debit()
        self.guarantee_ = mechanism.guarantee
        self.receipt_ = mechanism.receipt

    def _fit_projectors(self, X: Any) -> FittedReference:
        reference = checked_points("X", X)
        check_unique("X", names_of(X))
        n, D = reference.shape
        h, d, beta = checked_geometry(self.bandwidth, self.dim, self.beta, D)
        check_enough("X", n, d)
        n_threads = checked_threads(self.n_threads)
        warn_large_delta(self.budget.delta, n)
        ensure("paper")
        fitted = fit_reference(reference, h, d, beta, n_threads)
        validate_data(self, X, skip_check_array=True)
        return fitted

    def _open_moments(self, X: Any) -> ReferenceSource:
        batch_rows = self.batch_rows
        if is_table_or_file(X):
            source = open_reference(X, batch_rows=batch_rows)
            if not source.local:
                source.blocks()  # raises, saying what engines can be used for
            if not source.rereadable:
                raise UserValueError(
                    "X is a stream that can be read only once: must be a table, an array or files"
                )
            if self.on_invalid == "raise":
                check_valid(source, LARGEST)
        else:
            check_unique("X", names_of(X))
            empty = self.adjacency == "add-remove" and np.ndim(X) == 2 and len(X) == 0
            reference: Points
            if empty:
                reference = np.asarray(X, dtype=np.float64)
            else:
                reference = checked_points("X", X) if self.on_invalid == "raise" else checked_table("X", X)
            source = open_reference(reference, batch_rows=batch_rows)
        _, d, _ = checked_geometry(self.bandwidth, self.dim, self.beta, source.n_columns)
        checked_threads(self.n_threads)
        if self.adjacency == "replace-one" and source.rows is not None:
            check_enough("X", source.rows, d)
        self._warn_large_delta(source)
        if is_table_or_file(X):
            self.n_features_in_ = source.n_columns
            if source.column_names is not None:
                self.feature_names_in_ = np.array(source.column_names, dtype=object)
        else:
            validate_data(self, X, skip_check_array=True)
        return source

    def _warn_large_delta(self, source: ReferenceSource) -> None:
        # under "add-remove" the number of records is private, and a warning would depend on it
        if self.adjacency == "replace-one" and source.rows is not None:
            warn_large_delta(self.budget.delta, source.rows, stacklevel=5)

    def _checked(self) -> tuple[Terms, int, float]:
        """Check all parameters; return the terms of the release, the number of steps and C."""
        terms = check_terms(
            budget=self.budget,
            ledger=self.ledger,
            dataset=self.dataset,
            seed=self.seed,
            adjacency=self.adjacency,
            on_invalid=self.on_invalid,
            n_threads=self.n_threads,
        )
        checked_choice("mechanism", self.mechanism, ("moments", "projector"))
        if self.mechanism == "projector" and self.adjacency != "replace-one":
            raise UserValueError(
                f"adjacency = {self.adjacency!r}: mechanism 'projector' scales its noise with the number of "
                "records, which only 'replace-one' makes public",
                argument="adjacency",
            )
        if self.mechanism == "projector" and self.on_invalid != "raise":
            raise UserValueError(
                f"on_invalid = {self.on_invalid!r}: mechanism 'projector' computes local PCA at every "
                "record, and needs 'raise'",
                argument="on_invalid",
            )
        check_accept_risk(self.accept_risk)
        steps = checked_steps(self.steps)
        if self.schedule is None or isinstance(self.schedule, str):
            checked("theta", self.theta, positive=True, below=1.0)
        return terms, steps, checked("sensitivity_constant", self.sensitivity_constant, positive=True)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __getstate__(self) -> Any:
        if hasattr(self, "_fitted"):
            raise UserTypeError(
                "a fitted DPManifoldDenoiser holds the private reference and cannot be pickled or copied; "
                "keep its results instead, or clone() it without the reference"
            )
        return super().__getstate__()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags
