"""`release_mixture`: spend a budget on a private reference once; keep a mixture of Gaussians.

records --> one component for all --> start --> rounds of all components in their own frames --> Mixture
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from dpmd_fast.arguments import check_memory, checked_choice, shown
from dpmd_fast.columns import names_of
from dpmd_fast.compilation import ensure
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.jit import single_blas
from dpmd_fast.kernels.posterior import draw_missing, make_components
from dpmd_fast.kernels.sums.exact import MixtureSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.mechanisms.preprocessed import check_paid, preprocessing_cost, with_preprocessing
from dpmd_fast.mechanisms.spend import (
    LedgerArgument,
    Mechanism,
    Terms,
    check_terms,
    open_records,
    prepare,
    public_count,
    public_points,
)
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.gaussians.recipe import Recipe
from dpmd_fast.models.gaussians.rounds import Made, ReleaseSums, run_rounds
from dpmd_fast.models.gaussians.tuning import HOMOGENEOUS
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.models.mixture_cleaner import checked_noise
from dpmd_fast.models.outcome import Records, mixture_outcome
from dpmd_fast.models.predict_mixture import predict_mixture
from dpmd_fast.models.preprocessor import INVALID, Floats, Preprocessor, units_of
from dpmd_fast.models.public_only import PublicErrors, check_noise_fits, judge_queries
from dpmd_fast.models.verdict import HELPS, MADS, NOT_JUDGED, Verdict, refuse_unless_worth, risk_noted
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency, with_conditions
from dpmd_fast.privacy.lattice import Lattice, Steps, choose_lattice
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.mapped import preprocessed_source
from dpmd_fast.reference.tasks import SumTask


def release_mixture(
    reference: Any,
    *,
    budget: Budget,
    components: int | Literal["auto"] = "auto",
    public: Any = None,
    preprocess: Preprocessor | None = None,
    rounds: int | Literal["auto"] = "auto",
    adjacency: Adjacency = "replace-one",
    on_invalid: str = "raise",
    on_missing: str = "fill",
    columns: list[str] | None = None,
    noise: Any = None,
    accept_risk: bool = False,
    n_public: int | None = None,
    ledger: LedgerArgument = None,
    dataset: str | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Mixture:
    """Release a mixture of Gaussians that describes a private reference.

    For data that lie near no surface, such as blood markers or most tables. The mixture denoises points whose
    measurement error is known, fills in what is missing and says how sure it is, at no further cost.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table, path or list of paths of Parquet files, Dask or Spark frame
        The private records. They are read once for every release, in batches.
    budget : Budget
        Spent completely.
    components : int or "auto"
        Number of Gaussians, at most: those whose released mass is noise are left out in the end. "auto" takes
        as many as leave each of them well above the noise, up to 32; one is a linear filter.
    public : array or table, optional
        Public points in the units of the reference, instead of `preprocess`: their medians and median
        absolute deviations, of the values that are there, become the units of the columns. Never take them
        from the reference.
    preprocess : Preprocessor, optional
        Maps the columns to units in which a public median is 0 and a public median absolute deviation is 1;
        `Mixture` then takes and returns original units. Without it and without `public`, the columns must be
        in such units already.
    rounds : int or "auto"
        Number of releases of all components.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, and
        `n_public` must be given.
    on_invalid : {"raise", "drop"}
        How to treat records with infinite or huge values, or values that are not positive in a logged column.
        "raise" reads the reference once before the spend and refuses it, without saying which record; "drop"
        lets them contribute nothing.
    on_missing : {"fill", "drop", "raise"}
        How to treat records with missing values (NaN or null). "fill" puts draws in their place, from what
        has been released so far given the values that are there, with random numbers that the record's own
        bits fix; "drop" lets such records contribute nothing; "raise" refuses the reference.
    columns : list of str, optional
        Columns to use, if the reference is a table.
    noise : number, array (D,) or mapping, optional
        Deviation of the measurement error of the points to be cleaned, as for `Mixture.transform`: for the
        check before the spend, with `public` as their example, and for `Mixture.verdict`.
    accept_risk : bool
        Whether to spend even if `plan` predicts no gain, harm or too few records. The guarantee notes it.
    n_public : int, optional
        A public guess of the number of records, for planning only.
    ledger : Ledger or path, optional
        Pays for the mixture: the whole budget is debited before the first pass over the reference that is
        released, or refused with `BudgetExceeded`. Without a ledger, only this mixture is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the mixture reproducible and therefore not private; refused with a ledger.
    n_threads, batch_rows : int, optional
        Threads to use, records to read at a time; neither changes the result.

    Returns
    -------
    Mixture

    Notes
    -----
    Privacy: every release is a sum of clipped positive semidefinite matrices with exact noise, as in
    `release_moments`. A record's features, responsibilities and filled-in values are functions of the record
    and of earlier releases. All components of a record are clipped together, so the noise does not grow with
    their number. mu^2 adds up over releases.
    """
    terms = check_terms(
        budget=budget,
        ledger=ledger,
        dataset=dataset,
        seed=seed,
        adjacency=adjacency,
        on_invalid=on_invalid,
        n_threads=n_threads,
    )
    _check_missing(on_missing, terms)
    original = open_records(terms, reference, columns, batch_rows, missing=on_missing == "fill")
    unit = MADS if preprocess is None and public is not None else ""
    points, preprocess = _public(public, preprocess, original, reference)
    source = original
    if preprocess is not None:
        check_paid(preprocess, terms)
        source = preprocessed_source(preprocess, original, keep_missing=True)
    n = public_count(source, adjacency, n_public)
    _check_rereadable(source)
    deviations = _checked_noise(noise, source, preprocess)
    kernels = ("mixture",) if on_missing != "fill" and deviations is None else ("mixture", "posterior")
    ensure(*kernels)  # the prediction runs some of them
    errors = _judged(points, deviations, source.n_columns, preprocess, terms)
    predicted = predict_mixture(
        n,
        source.n_columns,
        budget,
        errors,
        components=components,
        rounds=rounds,
        adjacency=adjacency,
        unit=unit,
    )
    recipe, word = predicted.recipe, predicted.verdict.word
    refuse_unless_worth(predicted.verdict, accept_risk)
    _check_possible(recipe, source.n_columns, budget.mu, adjacency)
    guarantee = terms.certified(budget.mu, "the mixture and all that is made with it")
    mechanism = prepare(
        terms,
        source,
        with_conditions(guarantee, risk_noted(predicted.verdict, accept_risk)),
        "mixture",
        mechanism="mixture",
        parameters={
            "columns": source.n_columns,
            "components": recipe.components,
            "rounds": len(recipe.shares) - 1,
            "on_missing": on_missing,
            "verdict": word if errors is not None or word != HELPS else NOT_JUDGED,
            **preprocessing_cost(preprocess),
        },
        kernels=kernels,
        bound_to=original,
        missing=on_missing != "raise",
        advice=None if preprocess is None else INVALID,
        rows=n,
    )
    with mechanism.failing_safely(), single_blas():
        made = run_rounds(
            source.n_columns, recipe, budget.mu, adjacency, _releases(mechanism, fill=on_missing == "fill")
        )
        verdict = None
        if deviations is not None and errors is not None:
            found = Records(n, recipe, made.found)
            verdict = mixture_outcome(made.model, deviations, errors, predicted.verdict, found)
    return _mixture(mechanism, made, source, preprocess, verdict)


def _judged(
    points: Floats | None, noise: Floats | None, columns: int, preprocess: Preprocessor | None, terms: Terms
) -> PublicErrors | None:
    """Return what is known of the errors of points with `noise`, the public ones as an example."""
    if noise is None:
        return None
    inside = np.empty((0, columns))
    if points is not None:
        assert preprocess is not None
        inside = preprocess.forward_block(points, "public")
        check_noise_fits(points, noise, preprocess)
    return judge_queries(inside, noise, terms.n_threads)


def _check_possible(recipe: Recipe, columns: int, mu: float, adjacency: Adjacency) -> None:
    """Refuse, before the spend, sums that do not fit into memory and a mu out of range."""
    check_memory(recipe.components, columns)
    for share, tau in zip(recipe.shares, recipe.taus, strict=True):
        choose_lattice(math.sqrt(share) * mu, tau, adjacency)


def _mixture(
    mechanism: Mechanism,
    made: Made,
    source: ReferenceSource,
    preprocess: Preprocessor | None,
    verdict: Verdict | None,
) -> Mixture:
    """Return what was released, with the guarantee and the spends of its preprocessor."""
    guarantee, spends = with_preprocessing(mechanism.guarantee, made.spends, preprocess)
    names = source.column_names
    return Mixture(
        guarantee=guarantee,
        weights=made.model.weights,
        means=made.model.means,
        covariances=made.model.covariances,
        signal_to_noise=made.signals,
        spends=spends,
        column_names=preprocess.column_names if names is None and preprocess is not None else names,
        preprocess=None if preprocess is None else replace(preprocess, receipt=None),
        verdict=verdict,
        receipt=mechanism.receipt,
    )


def _releases(mechanism: Mechanism, *, fill: bool) -> ReleaseSums:
    """Return the function that releases the sums of all records in the frames of a mixture."""

    def release(model: Gaussians, tau: float, lattice: Lattice) -> Floats:
        return mechanism.release(_sums(model, tau, lattice.steps, fill), lattice)

    return release


def _sums(model: Gaussians, tau: float, steps: Steps, fill: bool) -> SumTask:
    """Return the task that sums what records add in the frames of `model`, filled in by it if asked."""
    frames = make_mixture_frames(model.log_weights, model.means, model.whitening)
    views = (partial(draw_missing, make_components(*model, np.zeros(model.means.shape[1]))),) if fill else ()
    return SumTask(partial(MixtureSums, frames, tau, steps, HOMOGENEOUS), views)


def _public(
    public: Any, preprocess: Preprocessor | None, source: ReferenceSource, reference: Any
) -> tuple[Floats | None, Preprocessor | None]:
    """Return the public points, and the preprocessor that was given or one with their medians and MADs."""
    if preprocess is not None and not isinstance(preprocess, Preprocessor):
        raise UserValueError(
            f"preprocess = {shown(preprocess)}: must be a Preprocessor or None", argument="preprocess"
        )
    if public is None:
        return None, preprocess
    points = np.asarray(public_points("public", public, source, reference, missing=True), dtype=np.float64)
    names = names_of(public) if source.column_names is None else source.column_names
    return points, units_of(points, names, "public") if preprocess is None else preprocess


def _checked_noise(noise: Any, source: ReferenceSource, preprocess: Preprocessor | None) -> Floats | None:
    """Return the noise in preprocessed units, None if it is not known."""
    if noise is None:
        return None
    names = source.column_names
    if names is None and preprocess is not None:
        names = preprocess.column_names
    return checked_noise(noise, source.n_columns, names, preprocess)


def _check_rereadable(source: ReferenceSource) -> None:
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once: a mixture reads it several times"
        )


def _check_missing(on_missing: object, terms: Terms) -> None:
    checked_choice("on_missing", on_missing, ("fill", "drop", "raise"))
    if on_missing == "raise" and terms.on_invalid == "drop":
        raise UserValueError(
            "on_missing = 'raise': must be 'fill' or 'drop' where invalid records are dropped without a look",
            argument="on_missing",
        )
