"""`release_atlas`: spend a budget on a private reference once, get a map for good."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any, Literal

from numpy.typing import ArrayLike

from dpmd_fast.arguments import (
    LARGEST,
    check_anchors,
    checked_bandwidth,
    checked_beta,
    checked_choice,
    checked_cover,
    checked_integer,
    checked_threads,
    shown,
)
from dpmd_fast.errors import UserRuntimeError, UserValueError, either
from dpmd_fast.kernels.jit import single_blas
from dpmd_fast.mechanisms.atlas.recipe import Rounds, build
from dpmd_fast.mechanisms.atlas.rounds import Mechanism
from dpmd_fast.mechanisms.atlas.subspace import (
    FIND_SHARE,
    LEAST_COLUMNS,
    REFINE_SHARE,
    outline,
    refine,
)
from dpmd_fast.mechanisms.moments import check_columns
from dpmd_fast.mechanisms.preprocessor import joint_guarantee
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.geometry.anchors import Floats, spectrum_dim, thinned
from dpmd_fast.models.geometry.bandwidth import Outlook, foreseen
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.models.preprocessor import INVALID, Preprocessor, preprocessed
from dpmd_fast.privacy.budget import Budget, check_budget
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.guarantee import Adjacency, certified_guarantee, warn_large_delta
from dpmd_fast.privacy.lattice import choose_lattice, contributions_apart
from dpmd_fast.privacy.ledger.charge import Charge, budget_parameters, open_account
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.reference.sources.open import (
    ReferenceSource,
    by_name,
    check_count,
    check_public,
    check_valid,
    open_reference,
)
from dpmd_fast.reference.tasks import through

_SMALLEST_SHARE = 0.01  # no release gets less of the budget
_MOST_ROUNDS = 20


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
    n_public: int | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Atlas:
    """Release a map toward the manifold of a private reference.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table, path or list of paths of Parquet files, Dask or Spark frame
        The private records. They are read once for every release, in batches.
    anchors : array (m, D) or table
        Public points around the manifold, for instance the first queries; of a table the columns that the
        reference has, by name. The file of the atlas shows
        smoothed copies of some of them. Never take them from the reference.
    bandwidth : float or "auto"
        Radius of the charts. "auto" begins with what the public points suggest and pays for finding out
        whether that is too large. If noise would decide where points go, by what the public points let
        expect, it is refused before the spend; a number is taken as it is.
    dim : int or "auto"
        Intrinsic dimension; "auto" reads it off the spectra of the public points, then off the release.
    budget : Budget
        Spent completely.
    rounds : int or "auto"
        Number of releases at the final bandwidth; "auto" by the signal that the public points let expect.
    beta : float
        Kernel exponent; 2 is the only one that the rounds support.
    cover : float
        Distance of the charts in units of the bandwidth, in (0, 1].
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, and
        `n_public` has to be given.
    on_invalid : {"raise", "drop"}
        What becomes of records with non-finite or huge values, as in `release_moments`.
    columns : list of str, optional
        Columns to use, where the reference is a table.
    preprocess : Preprocessor, optional
        Then the reference and the anchors are in original units, and so is all that the atlas transforms; the
        bandwidth is in preprocessed units.
    n_public : int, optional
        A public guess of the number of records, for planning only.
    ledger : Ledger or path, optional
        Pays for the atlas: the whole budget is debited before the first pass over the reference that is
        released, or refused with `BudgetExceeded`. `Atlas.save` then notes the file there. Without a ledger
        nothing but this atlas is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the atlas reproducible, and not private; not with a ledger.
    n_threads, batch_rows : int, optional

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
    account = open_account(ledger, dataset, seed)
    original = open_reference(reference, columns=columns, batch_rows=batch_rows)
    Z = preprocessed("anchors", by_name("anchors", anchors, original.column_names), preprocess)
    if preprocess is not None:
        _check_paid(preprocess, adjacency, account is not None)
    D = Z.shape[1]
    check_budget(budget)
    h = None if _is_auto("bandwidth", bandwidth) else checked_bandwidth(bandwidth)
    d = None if _is_auto("dim", dim) else checked_integer("dim", dim, minimum=1)
    number = None if _is_auto("rounds", rounds) else _checked_rounds(rounds)
    if checked_beta(beta) != 2.0:
        raise UserValueError(f"beta = {beta!r}: an atlas supports 2 only", argument="beta")
    cover = checked_cover(cover)
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    checked_choice("on_invalid", on_invalid, ("raise", "drop"))
    n_threads = checked_threads(n_threads)
    if seed is not None:
        checked_integer("seed", seed)
    check_anchors(Z, d)
    check_columns(original, D)
    source = original if preprocess is None else preprocess.over(original)
    check_count(original, adjacency)
    check_public("anchors", anchors, reference)
    n = _public_count(source, adjacency, n_public)
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once: an atlas reads it several times"
        )
    choose_lattice(math.sqrt(_SMALLEST_SHARE) * budget.mu, 1.0, adjacency)  # refuses, before any spend
    choose_lattice(budget.mu, 1.0, adjacency)
    Z = thinned(Z)
    public = None
    if h is None or D < LEAST_COLUMNS:
        public = foreseen(Z, n, budget, d, adjacency=adjacency, cover=cover, n_threads=n_threads)
        if h is None:
            _check_outlook(public, budget)
    guarantee = certified_guarantee(
        budget,
        mu=budget.mu,
        adjacency=adjacency,
        seeded=seed is not None,
        validated=on_invalid == "raise",
        released="the atlas and all that is made with it",
    )
    charge = Charge(
        account,
        guarantee,
        "atlas",
        mechanism="atlas",
        parameters=budget_parameters(
            budget,
            anchors=len(Z),
            columns=D,
            bandwidth=h or "auto",
            dim=d or "auto",
            rounds=number or "auto",
            **_bought(preprocess),
        ),
        reference=original,
    )
    if on_invalid == "raise":
        check_valid(source, LARGEST, *(() if preprocess is None else (INVALID,)))
    if adjacency == "replace-one":
        warn_large_delta(budget.delta, n)
    entropy = open_source(seed)
    mu2 = budget.mu**2
    spends: list[tuple[str, float]] = []

    def mechanism(subspace: Subspace | None) -> Mechanism:
        return Mechanism(
            lambda task: charge.paid(source).run(
                task if subspace is None else through(task, subspace.down), n_threads
            ),
            entropy,
            adjacency,
            n_threads,
        )

    with charge.covering(), single_blas():
        subspace = _find_subspace(mechanism(None), Z, mu2, 1 if d is None else d, spends)
        points = Z if subspace is None else subspace.down(Z, n_threads)
        left = mu2 - math.fsum(spent for _, spent in spends)
        if public is not None and D < LEAST_COLUMNS:
            outlook = public
        else:
            outlook = Outlook(
                points,
                n,
                math.sqrt(left),
                spectrum_dim(points, n_threads) if d is None else d,
                apart=contributions_apart(adjacency),
                cover=cover,
                n_threads=n_threads,
            )
        plan = Rounds(mechanism(subspace), points, outlook.dim, d is None, cover, left)
        attempt, shares = build(plan, outlook, h, number)
        spends += [(what, share * left) for what, share in shares]
        if math.fsum(spent for _, spent in spends) > mu2 * (1.0 + 1e-9):
            raise AssertionError("the shares of the releases are more than the budget")
        if attempt.charts is None:
            raise UserRuntimeError(
                "no chart stands out of the noise: the budget is spent; a larger bandwidth, a larger epsilon "
                "or more records would be needed"
            )
    guarantee = charge.guarantee
    if preprocess is not None and preprocess.guarantee is not None:
        guarantee = joint_guarantee(guarantee, preprocess.guarantee)
        spends.insert(0, ("preprocessing", preprocess.guarantee.mu**2))
    names = source.column_names
    return Atlas(
        guarantee=guarantee,
        layers=tuple(Layer.of(made) for made in attempt.fields),
        subspace=subspace,
        dim=attempt.dim,
        bandwidth=attempt.bandwidth,
        signal_to_noise=tuple(attempt.signals),
        spends=tuple(spends),
        column_names=preprocess.column_names if names is None and preprocess is not None else names,
        preprocess=None if preprocess is None else replace(preprocess, receipt=None),
        receipt=charge.receipt,
    )


def _find_subspace(
    mechanism: Mechanism, Z: Floats, mu2: float, dim: int, spends: list[tuple[str, float]]
) -> Subspace | None:
    """Pays for what it tries; None where no subspace stands out that leaves charts a direction to spare."""
    if Z.shape[1] < LEAST_COLUMNS:
        return None
    spends.append(("subspace", FIND_SHARE * mu2))
    found = outline(mechanism, Z, math.sqrt(FIND_SHARE * mu2))
    if found is None or found.basis.shape[1] <= dim:
        return None
    spends.append(("subspace, refined", REFINE_SHARE * mu2))
    return refine(mechanism, found, math.sqrt(REFINE_SHARE * mu2))


def _check_paid(preprocess: Preprocessor, adjacency: Adjacency, charged: bool) -> None:
    paid = preprocess.guarantee
    if paid is None:
        return
    if paid.adjacency != adjacency:
        raise UserValueError(
            f"adjacency = {adjacency!r}: the preprocessing was released under {paid.adjacency!r}, and spends "
            "under different adjacencies do not add up",
            argument="adjacency",
        )
    if charged and paid.holds == "not private":
        raise UserValueError(
            "preprocess was made with a seed: must be private if a ledger pays for the atlas"
        )


def _bought(preprocess: Preprocessor | None) -> dict[str, float]:
    """For the ledger: what the atlas rests on besides, which may have been paid for elsewhere."""
    if preprocess is None or preprocess.guarantee is None:
        return {}
    return {"preprocessing_mu2": preprocess.guarantee.mu**2}


def _check_outlook(outlook: Outlook, budget: Budget) -> None:
    """Refuse, by public numbers, to spend a budget on noise."""
    if outlook.hopeless(outlook.choose()):
        raise UserValueError(
            f"budget: hardly any chart would stand out of the noise at epsilon = {budget.epsilon:g}, delta "
            f"= {budget.delta:g}, and the map would add more error than it removes: "
            f"{either('plan(...)', 'dpmd-fast plan')} says what would be enough; a "
            f"{either('bandwidth', '--bandwidth')} of your own is taken as it is"
        )


def _checked_rounds(rounds: object) -> int:
    number = checked_integer("rounds", rounds, minimum=1)
    if number > _MOST_ROUNDS:
        raise UserValueError(
            f"rounds = {number}: must be at most {_MOST_ROUNDS}, or shares get too thin", argument="rounds"
        )
    return number


def _is_auto(name: str, value: object) -> bool:
    if isinstance(value, str) and value != "auto":
        raise UserValueError(f"{name} = {shown(value)}: must be a number or 'auto'", argument=name)
    return value == "auto" if isinstance(value, str) else False


def _public_count(source: ReferenceSource, adjacency: Adjacency, n_public: int | None) -> int:
    if n_public is not None:
        return checked_integer("n_public", n_public, minimum=1)
    if adjacency == "add-remove":
        raise UserValueError(
            "n_public = None: with 'add-remove' the number of records is private; give a guess",
            argument="n_public",
        )
    if source.rows == 0:
        raise UserValueError("reference has 0 sample(s): must have at least 1")
    if source.rows is None:
        raise UserValueError(
            "n_public = None: the reference does not tell its number of rows; give it", argument="n_public"
        )
    return source.rows
