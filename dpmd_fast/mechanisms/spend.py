"""The common start of every release: from the caller's arguments to the debit, in one order.

    check_terms      check ledger account, budget, adjacency, invalid records, seed, threads
    open_records     open the reference, without reading its values
    public_points    check the public points
    prepare          refuse a spend that cannot be paid or records that are not valid; compile the kernels;
                     open the noise source
    Mechanism        make the debit before the first pass over the records: run, blocks, release

A release that is refused before its mechanism runs has spent nothing. Without a ledger nothing is debited,
and the guarantee says that no other release is counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import (
    LARGEST,
    Points,
    checked_choice,
    checked_integer,
    checked_points,
    checked_threads,
)
from dpmd_fast.columns import is_of, names_of, places_of
from dpmd_fast.compilation import ensure
from dpmd_fast.errors import UserRuntimeError, UserValueError
from dpmd_fast.kernels.jit import refuse_after_fork
from dpmd_fast.models.preprocessor import Preprocessor, preprocessed
from dpmd_fast.privacy.budget import Budget, BudgetExceeded, check_budget
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.guarantee import (
    Adjacency,
    Guarantee,
    certified_guarantee,
    held_by_engine,
    warn_large_delta,
)
from dpmd_fast.privacy.lattice import Lattice
from dpmd_fast.privacy.ledger.charge import Charge, LedgerAccount, Receipt, open_account
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.fingerprint import fingerprint_of
from dpmd_fast.reference.sources.open import open_reference
from dpmd_fast.reference.sources.overlap import overlaps
from dpmd_fast.reference.sources.validity import check_valid
from dpmd_fast.reference.tasks import PartialSums, SumTask, View, with_view

Floats = NDArray[np.float64]
LedgerArgument = Ledger | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Terms:
    """The arguments that every release takes, checked."""

    account: LedgerAccount | None
    budget: Budget
    adjacency: Adjacency
    on_invalid: str
    seed: int | None
    n_threads: int | None

    @property
    def seeded(self) -> bool:
        return self.seed is not None

    def certified(self, mu: float, released: str = "the released result") -> Guarantee:
        """Return the guarantee of clipped sums that spend `mu`."""
        return certified_guarantee(
            self.budget,
            mu=mu,
            adjacency=self.adjacency,
            seeded=self.seeded,
            validated=self.on_invalid == "raise",
            released=released,
        )


def check_terms(
    *,
    budget: Any,
    ledger: LedgerArgument,
    dataset: str | None,
    seed: int | None,
    adjacency: Any = "replace-one",
    on_invalid: Any = "raise",
    n_threads: int | None = None,
) -> Terms:
    """Check the arguments that every release takes; look the account up, read no record."""
    account = open_account(ledger, dataset, seed)
    check_budget(budget)
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    checked_choice("on_invalid", on_invalid, ("raise", "drop"))
    if seed is not None:
        seed = checked_integer("seed", seed)
    return Terms(account, budget, adjacency, on_invalid, seed, checked_threads(n_threads))


def open_records(
    terms: Terms,
    reference: Any,
    columns: list[str] | None,
    batch_rows: int | None,
    *,
    missing: bool = False,
) -> ReferenceSource:
    """Open a reference for a release of any adjacency, without reading its values.

    With `missing`, the release fills in missing values: a column may have no value at all. For any other
    release it is refused here, as not a single record would count.
    """
    source = open_reference(reference, columns=columns, batch_rows=batch_rows, missing=missing)
    if terms.adjacency == "add-remove" and getattr(source, "declared", False):
        raise UserValueError(
            "rows: must be None in engine_reference under 'add-remove': the number of records is private"
        )
    if terms.adjacency == "replace-one" and source.rows == 0:
        raise UserValueError("reference has no rows: must have at least one")
    return source


def public_points(
    name: str,
    points: Any,
    source: ReferenceSource,
    reference: Any,
    preprocess: Preprocessor | None = None,
    *,
    missing: bool = False,
) -> Points:
    """Return public points, preprocessed, with the columns of the reference where both have names.

    With `missing`, which excludes `preprocess`, NaN stands for a missing value and is allowed.

    Points that are the reference, or overlap it in memory or on disk, are refused: they are not public.
    """
    named = _by_name(name, points, source.column_names)
    if preprocess is None:
        chosen = checked_points(name, named, missing=missing)
    else:
        chosen = preprocessed(name, named, preprocess)
    check_public(name, points, reference)
    if source.n_columns != chosen.shape[1]:
        raise UserValueError(
            f"reference has {source.n_columns} column(s): must have {chosen.shape[1]}, as the public points"
        )
    return chosen


def public_count(source: ReferenceSource, adjacency: Adjacency, n_public: int | None) -> int:
    """Return a number of records that may be used for planning."""
    if n_public is not None:
        n_public = checked_integer("n_public", n_public, minimum=1)
        if adjacency == "replace-one" and source.rows is not None and n_public > source.rows:
            raise UserValueError(
                f"n_public = {n_public}: must be at most {source.rows}, the number of records, which is "
                f"public with {adjacency!r}",
                argument="n_public",
            )
        return n_public
    if adjacency == "add-remove":
        raise UserValueError(
            "n_public = None: with 'add-remove' the number of records is private; give a guess",
            argument="n_public",
        )
    if source.rows is None:
        raise UserValueError(
            "n_public = None: the reference does not know its number of rows; give it", argument="n_public"
        )
    return source.rows


def check_public(name: str, points: Any, reference: Any) -> None:
    """Refuse public points that are the private reference or overlap it in memory or on disk."""
    if overlaps(reference, points):
        raise UserValueError(
            f"{name} is part of the reference: must be public points; taking them from the private reference "
            "would void the guarantee"
        )


def _by_name(name: str, points: Any, names: tuple[str, ...] | None) -> Any:
    given = names_of(points)
    if given is None or names is None or given == names:
        return points
    missing = [column for column in names if column not in given]
    if missing:
        raise UserValueError(
            f"{name} lacks {len(missing)} column(s) of the reference, {missing[0]!r} among them"
        )
    places = places_of(names, given, name)
    if is_of(points, "pandas", "DataFrame"):
        return points.iloc[:, places]
    return points[:, places] if is_of(points, "polars", "DataFrame") else points.select(places)


@dataclass(frozen=True)
class Mechanism:
    """Passes over private records: makes the debit before the first pass and adds noise to the sums of each.

    Attributes
    ----------
    source : ReferenceSource or None
        The private records; None if they have been read already, as by local PCA.
    charge : Charge
        The debit, made once, before the first pass.
    entropy : EntropySource
        Source of the noise.
    n_threads : int or None
    view : callable or None
        Applied to each block of records first, for instance to get coordinates in a subspace.
    """

    source: ReferenceSource | None
    charge: Charge
    entropy: EntropySource
    n_threads: int | None
    view: View | None = None

    @property
    def adjacency(self) -> Adjacency:
        return self.charge.guarantee.adjacency

    @property
    def guarantee(self) -> Guarantee:
        return self.charge.guarantee

    @property
    def receipt(self) -> Receipt | None:
        return self.charge.receipt

    def failing_safely(self) -> AbstractContextManager[None]:
        """Return a context in which an error after the debit says that the debit stays."""
        return self.charge.covering()

    def with_view(self, view: View) -> Mechanism:
        """Return the same mechanism for records that `view` maps one by one."""
        assert self.view is None
        return replace(self, view=view)

    def debit(self) -> None:
        """Make the debit; every pass over the records makes it first, and it is made once."""
        self.charge.debit()

    def run(self, task: SumTask) -> PartialSums:
        """Make the debit, then one pass over the records. The sums are private."""
        assert self.source is not None
        self.debit()
        return self.source.run(task if self.view is None else with_view(task, self.view), self.n_threads)

    def blocks(self) -> Iterator[Points]:
        """Make the debit, then read the records. They are private."""
        assert self.source is not None
        assert self.view is None
        self.debit()
        return self.source.blocks()

    def release(self, task: SumTask, lattice: Lattice) -> Floats:
        """Make one pass over the records and add noise to the sums: the result is public."""
        return noisy_sums(self.run(task).values, lattice, self.entropy, self.n_threads)


def prepare(
    terms: Terms,
    source: ReferenceSource | None,
    guarantee: Guarantee,
    what: str,
    *,
    mechanism: str,
    parameters: dict[str, Any],
    kernels: tuple[str, ...],
    bound_to: Any = None,
    validate: bool = True,
    advice: str | None = None,
    missing: bool = False,
    rows: int | None = None,
    stacklevel: int = 4,
) -> Mechanism:
    """Refuse a release that cannot be paid or whose records are not valid, and compile; spend nothing.

    Parameters
    ----------
    terms, source, guarantee
        Checked arguments, the records as they are summed, and the guarantee: the debit is its mu^2.
    what, mechanism, parameters
        For the history of the ledger; public.
    kernels : tuple of str
        Routes of `compilation.ensure` that run after the debit: nothing is compiled between debit and result.
    bound_to : Any
        The reference to fingerprint, if not `source`: before preprocessing, for instance.
    validate : bool
        Whether to check the records under ``on_invalid="raise"``; False if that has been done.
    advice : str, optional
        What to do about invalid records, if not the usual.
    missing : bool
        Whether records may have missing values.
    rows : int, optional
        Public number of records; by default that of `source`, if the adjacency makes it public.
    stacklevel : int
        Of the warning about a large delta.
    """
    try:
        refuse_after_fork()  # a kernel would refuse after the debit
    except RuntimeError as problem:
        raise UserRuntimeError(str(problem)) from None
    ensure(*kernels)
    budget = terms.budget
    by_engine = source is not None and not source.local
    if by_engine:
        guarantee = held_by_engine(guarantee)
    charge = Charge(
        terms.account,
        guarantee,
        what,
        mechanism=mechanism,
        parameters={
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "conversion": budget.conversion,
            "on_invalid": terms.on_invalid,
            **({"engine": True} if by_engine else {}),  # for the guarantee of all releases together
            **parameters,
        },
        fingerprint=partial(fingerprint_of, source if bound_to is None else bound_to),
    )
    if source is not None and validate and terms.on_invalid == "raise":
        check_valid(source, LARGEST, *(() if advice is None else (advice,)), missing=missing)
    known = rows if source is None or source.rows is None else source.rows
    if terms.adjacency == "replace-one" and known is not None:  # else the number of records is private
        warn_large_delta(budget.delta, known, stacklevel=stacklevel)
    return Mechanism(source, charge, open_source(terms.seed), terms.n_threads)


class SingleSpend:
    """The budget of one fit without a ledger: spent by the first call, in the process that fitted."""

    def __init__(self) -> None:
        self._unspent = threading.Lock()  # never released once spent
        self._pid = os.getpid()

    def spend(self, mu2: float) -> None:
        if os.getpid() != self._pid:
            raise UserRuntimeError(
                "this DPManifoldDenoiser was fitted before the process was forked: parent and child would "
                "both spend its budget; fit in the process that transforms"
            )
        if not self._unspent.acquire(blocking=False):
            what = "a second transform of one fit without a ledger"
            raise BudgetExceeded(asked=mu2, remaining=0.0, what=what)
