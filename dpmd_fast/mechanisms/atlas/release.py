"""`release_atlas`: spend a budget on a private reference once; keep the map.

public points --> bandwidth and signal --> debit --> subspace --> rounds --> Atlas
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import (
    check_anchors,
    checked_bandwidth,
    checked_beta,
    checked_cover,
    checked_integer,
    is_auto,
)
from dpmd_fast.compilation import ensure, route_of
from dpmd_fast.errors import UserRuntimeError, UserValueError
from dpmd_fast.kernels.jit import single_blas
from dpmd_fast.mechanisms.atlas.rounds import Attempt, Rounds, run_rounds
from dpmd_fast.mechanisms.atlas.subspace import release_subspace, valid_inside
from dpmd_fast.mechanisms.preprocessed import check_paid, preprocessing_cost, with_preprocessing
from dpmd_fast.mechanisms.spend import (
    Floats,
    LedgerArgument,
    Mechanism,
    Terms,
    check_terms,
    open_records,
    prepare,
    public_count,
    public_points,
)
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.geometry.anchors import thinned
from dpmd_fast.models.geometry.bandwidth import BandwidthSearch
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.models.geometry.tuning import LEAST_COLUMNS, MOST_ROUNDS, SMALLEST_SHARE
from dpmd_fast.models.outcome import atlas_outcome
from dpmd_fast.models.plan import PublicSide, judge_public
from dpmd_fast.models.predict_atlas import AtlasPrediction, predict_atlas
from dpmd_fast.models.preprocessor import INVALID, Preprocessor
from dpmd_fast.models.verdict import DATA_UNITS, refuse_unless_worth, risk_noted
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency, with_conditions
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference.sources.mapped import preprocessed_source


def release_atlas(
    reference: Any,
    anchors: ArrayLike,
    *,
    bandwidth: float | Literal["auto"] = "auto",
    dim: int | Literal["auto"],
    budget: Budget,
    rounds: int | Literal["auto"] = "auto",
    beta: float = 2.0,
    cover: float = 0.3,
    adjacency: Adjacency = "replace-one",
    on_invalid: str = "raise",
    columns: list[str] | None = None,
    preprocess: Preprocessor | None = None,
    noise: Any = None,
    accept_risk: bool = False,
    n_public: int | None = None,
    ledger: LedgerArgument = None,
    dataset: str | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Atlas:
    """Release a map that moves points toward the manifold of a private reference.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table, path or list of paths of Parquet files, Dask or Spark frame
        The private records. They are read once for every release, in batches.
    anchors : array (m, D) or table
        Public points around the manifold, for instance the first queries. From a table, the columns of the
        reference are taken by name. The atlas file shows smoothed copies of some of them. Never take them
        from the reference.
    bandwidth : float or "auto"
        Radius of the charts. "auto" starts from what the public points suggest and spends part of the budget
        on testing whether that is too large.
    dim : int or "auto"
        Intrinsic dimension; "auto" estimates it from the public points.
    budget : Budget
        Spent completely.
    rounds : int or "auto"
        Number of releases at the final bandwidth; "auto" uses the signal that the public points predict.
    beta : float
        Kernel exponent; the rounds support 2 only.
    cover : float
        Distance between charts in units of the bandwidth, in (0, 1].
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, and
        `n_public` must be given.
    on_invalid : {"raise", "drop"}
        How to treat records with non-finite or huge values, as in `release_moments`.
    columns : list of str, optional
        Columns to use, if the reference is a table.
    preprocess : Preprocessor, optional
        If given, the reference, the anchors and all points that the atlas transforms are in original units;
        the bandwidth is in preprocessed units.
    noise : number, array (D,) or mapping, optional
        Deviation of the measurement error of the anchors, as for `plan`: for the check before the spend and
        for `Atlas.verdict`.
    accept_risk : bool
        Whether to spend even if `plan` predicts no gain, harm or too few records for these anchors. The
        guarantee notes it.
    n_public : int, optional
        A public guess of the number of records, for planning only.
    ledger : Ledger or path, optional
        Pays for the atlas: the whole budget is debited before the first pass over the reference that is
        released, or refused with `BudgetExceeded`. `Atlas.save` then records the file in the ledger. Without
        a ledger, only this atlas is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the atlas reproducible and therefore not private; refused with a ledger.
    n_threads, batch_rows : int, optional
        Threads to use, records to read at a time; neither changes the result.

    Returns
    -------
    Atlas

    Notes
    -----
    Privacy: every release is a sum of clipped positive semidefinite matrices with exact noise, as in
    `release_moments`; features of later releases depend on the record and on earlier releases alone. mu^2
    adds up over releases, also when shares and bandwidths depend on earlier releases, as long as the sum
    stays within the budget (Smith and Thakurta 2022). A preprocessor maps each record by itself, by public
    numbers, so neighbouring references stay neighbours; if its numbers were paid for, the guarantee is that
    of both releases together.
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
    original = open_records(terms, reference, columns, batch_rows)
    Z = np.asarray(public_points("anchors", anchors, original, reference, preprocess), dtype=np.float64)
    shape = _checked_shape(bandwidth, dim, rounds, beta, cover)
    check_anchors(Z, shape.dim)
    source = original
    if preprocess is not None:
        check_paid(preprocess, terms)
        source = preprocessed_source(preprocess, original)
    n = public_count(source, adjacency, n_public)
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once: an atlas reads it several times"
        )
    for share in (SMALLEST_SHARE, 1.0):  # refuses a mu out of range, before the spend
        choose_lattice(math.sqrt(share) * budget.mu, 1.0, adjacency)
    kernels = route_of("atlas", Z.shape[1]) + (("subspace",) if Z.shape[1] >= LEAST_COLUMNS else ())
    ensure(*kernels, *(() if noise is None else ("posterior",)))  # the prediction runs some of them
    given = (
        Z if preprocess is None or noise is None else public_points("anchors", anchors, original, reference)
    )
    noise = None if noise is None else _Noise(np.asarray(given, dtype=np.float64), noise)
    Z = thinned(Z)
    public, predicted = _predicted(Z, noise, n, shape, terms, source.column_names, preprocess)
    refuse_unless_worth(predicted.verdict, accept_risk)
    guarantee = terms.certified(budget.mu, "the atlas and all that is made with it")
    mechanism = prepare(
        terms,
        source,
        with_conditions(guarantee, risk_noted(predicted.verdict, accept_risk)),
        "atlas",
        mechanism="atlas",
        parameters={
            "anchors": len(Z),
            "columns": Z.shape[1],
            "bandwidth": shape.bandwidth or "auto",
            "dim": shape.dim or "auto",
            "rounds": shape.rounds or "auto",
            "verdict": predicted.verdict.word,
            **preprocessing_cost(preprocess),
        },
        kernels=kernels,
        bound_to=original,
        advice=None if preprocess is None else INVALID,
        rows=n,
    )
    with mechanism.failing_safely(), single_blas():
        built = _build(mechanism, Z, n, terms, shape._replace(dim=predicted.dim), predicted.search)
        atlas = _atlas(mechanism, built, source.column_names, preprocess)
        verdict = atlas_outcome(
            partial(atlas.moved_inside, n_threads=terms.n_threads),
            Z,
            None if public is None else public.noise_for_atlas,
            predicted.verdict,
        )
    return replace(atlas, verdict=verdict)


class _Shape(NamedTuple):
    """Parameters of the atlas; None where "auto" decides."""

    bandwidth: float | None
    dim: int | None
    rounds: int | None
    cover: float


class _Noise(NamedTuple):
    """Noise as it was given, of the anchors in original units."""

    anchors: Floats
    given: Any


def _predicted(
    Z: Floats,
    noise: _Noise | None,
    n: int,
    shape: _Shape,
    terms: Terms,
    names: tuple[str, ...] | None,
    preprocess: Preprocessor | None,
) -> tuple[PublicSide | None, AtlasPrediction]:
    """Return what the anchors can do by themselves, if their noise is known, and what an atlas would do."""
    public = None
    if noise is not None:
        public = judge_public(noise.anchors, names, noise.given, preprocess, "anchors", terms.n_threads)
    predicted = predict_atlas(
        Z,
        n,
        terms.budget,
        dim=shape.dim,
        bandwidth=shape.bandwidth,
        cover=shape.cover,
        adjacency=terms.adjacency,
        noise=None if public is None else public.noise_for_atlas,
        alone=math.nan if public is None else public.alone_for_atlas,
        unit=DATA_UNITS if preprocess is None else "",
        n_threads=terms.n_threads,
    )
    return public, predicted


class _Built(NamedTuple):
    """The released parts of an atlas, and what each release spent."""

    subspace: Subspace | None
    attempt: Attempt
    spends: list[tuple[str, float]]


def _build(
    mechanism: Mechanism, Z: Floats, n: int, terms: Terms, shape: _Shape, search: BandwidthSearch | None
) -> _Built:
    """Spend the budget on a subspace, then on the rounds in it."""
    assert shape.dim is not None
    mu2 = terms.budget.mu**2
    spends: list[tuple[str, float]] = []
    subspace = release_subspace(mechanism, Z, mu2, shape.dim, spends)
    if subspace is not None:
        mechanism = mechanism.with_view(partial(valid_inside, subspace))
    points = Z if subspace is None else subspace.down(Z, terms.n_threads)
    left = mu2 - math.fsum(spent for _, spent in spends)
    if search is None or Z.shape[1] >= LEAST_COLUMNS:
        search = BandwidthSearch(
            points,
            n,
            math.sqrt(left),
            shape.dim,
            adjacency=terms.adjacency,
            cover=shape.cover,
            n_threads=terms.n_threads,
        )
    rounds = Rounds(mechanism, points, search.dim, shape.cover, left)
    attempt, shares = run_rounds(rounds, search, shape.bandwidth, shape.rounds)
    spends += [(what, share * left) for what, share in shares]
    if math.fsum(spent for _, spent in spends) > mu2 * (1.0 + 1e-9):
        raise AssertionError("the shares of the releases exceed the budget")
    if attempt.charts is None:
        raise UserRuntimeError(
            "no chart stands out from the noise, and the budget is spent: an atlas needs a larger epsilon or "
            "more records around the public points"
        )
    return _Built(subspace, attempt, spends)


def _atlas(
    mechanism: Mechanism, built: _Built, names: tuple[str, ...] | None, preprocess: Preprocessor | None
) -> Atlas:
    """Return the model that was released."""
    attempt = built.attempt
    guarantee, spends = with_preprocessing(mechanism.guarantee, built.spends, preprocess)
    return Atlas(
        guarantee=guarantee,
        layers=tuple(Layer.of(made) for made in attempt.fields),
        subspace=built.subspace,
        dim=attempt.dim,
        bandwidth=attempt.bandwidth,
        signal_to_noise=tuple(attempt.signals),
        spends=spends,
        column_names=preprocess.column_names if names is None and preprocess is not None else names,
        preprocess=None if preprocess is None else replace(preprocess, receipt=None),
        receipt=mechanism.receipt,
    )


def _checked_shape(bandwidth: Any, dim: Any, rounds: Any, beta: Any, cover: Any) -> _Shape:
    if checked_beta(beta) != 2.0:
        raise UserValueError(f"beta = {beta!r}: an atlas supports 2 only", argument="beta")
    return _Shape(
        None if is_auto("bandwidth", bandwidth) else checked_bandwidth(bandwidth),
        None if is_auto("dim", dim) else checked_integer("dim", dim, minimum=1),
        None if is_auto("rounds", rounds) else _checked_rounds(rounds),
        checked_cover(cover),
    )


def _checked_rounds(rounds: object) -> int:
    number = checked_integer("rounds", rounds, minimum=1)
    if number > MOST_ROUNDS:
        raise UserValueError(
            f"rounds = {number}: must be at most {MOST_ROUNDS}, or shares get too small", argument="rounds"
        )
    return number
