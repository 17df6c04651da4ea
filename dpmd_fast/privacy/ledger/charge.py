"""How a release pays from a ledger: one debit, after all checks and before the pass over the reference.

    open_account --> Charge (refuses what could not be paid) --> debit --> the release --> Receipt

Without a ledger nothing is debited, and the guarantee says that no other release is counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpmd_fast.arguments import shown
from dpmd_fast.errors import UserError, UserRuntimeError, UserValueError, either, text_of
from dpmd_fast.privacy.guarantee import Guarantee, counted
from dpmd_fast.privacy.ledger.last_debit import note_debit
from dpmd_fast.privacy.ledger.ledger import Ledger, Spend, Statement


class LedgerAccount(NamedTuple):
    """A data set of a ledger, and what the ledger said of it when it was looked up.

    May be given for `ledger` to a release, which then does not open the file for another look.
    """

    ledger: Ledger
    dataset: str
    statement: Statement


@dataclass(frozen=True)
class Receipt:
    """A debit that was made: the ledger, and the spend with the balance after it."""

    ledger: Ledger
    spend: Spend

    def record_file(self, path: str | os.PathLike[str]) -> None:
        """Record in the ledger that the release was written to this file."""
        try:
            self.ledger.record_file(self.spend.id, path)
        except (OSError, ValueError) as error:
            raise UserRuntimeError(
                f"{os.fsdecode(path)} is written, but the ledger could not note it for spend "
                f"{self.spend.id}: {_reason(error)}"
            ) from error
        note_debit(f"what was spent paid for {os.fsdecode(path)}, which is complete")


def open_account(ledger: Any, dataset: Any, seed: Any = None) -> LedgerAccount | None:
    """Look up the account that the arguments of a release name; None without a ledger.

    Raises
    ------
    ValueError
        For a ledger without a data set or the reverse, for a data set that the ledger does not have, and for
        a seed: what it makes is not private, so no budget could pay for it.
    """
    if ledger is None and dataset is None:
        return None
    if ledger is None:
        raise UserValueError(
            f"ledger = None: must be given with dataset = {shown(dataset)}, or neither", argument="ledger"
        )
    if dataset is None:
        raise UserValueError(
            "dataset = None: must be given with a ledger, the name that it has there", argument="dataset"
        )
    if not isinstance(ledger, (Ledger, LedgerAccount, str, os.PathLike)):
        raise UserValueError(f"ledger is a {type(ledger).__name__}: must be a Ledger or the path of one")
    if seed is not None:
        raise UserValueError(
            f"seed = {shown(seed)}: must {either('be None', 'not be given')} with a ledger; a seed makes a "
            "release that is not private, and no budget pays for that",
            argument="seed",
        )
    if isinstance(ledger, LedgerAccount):
        if ledger.dataset != dataset:
            raise UserValueError(
                f"dataset = {shown(dataset)}: is not that of the account", argument="dataset"
            )
        return ledger
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    return LedgerAccount(book, dataset, book.statement(dataset))


class Charge:
    """The debit of one release; made at most once, however many passes the release takes.

    Parameters
    ----------
    account : LedgerAccount or None
    guarantee : Guarantee
        The guarantee of the release; the debit is its mu^2.
    what, mechanism : str
    parameters : dict
        Public parameters of the release.
    fingerprint : callable
        Computes the fingerprint of the reference; called only if the data set is bound to one.

    Attributes
    ----------
    guarantee : Guarantee
        As given; with a ledger, its conditions say that the release is counted there.
    receipt : Receipt or None
        None until the debit has been made.
    """

    def __init__(
        self,
        account: LedgerAccount | None,
        guarantee: Guarantee,
        what: str,
        *,
        mechanism: str,
        parameters: dict[str, Any],
        fingerprint: Callable[[], str],
    ) -> None:
        self.guarantee = guarantee
        self.receipt: Receipt | None = None
        self._account = account
        self._begun = False
        if account is None:
            return
        if guarantee.holds == "not private":
            raise UserValueError(f"no budget pays for {what}: {guarantee}")
        self.guarantee = counted(guarantee)
        bound = account.statement.total.fingerprint is not None
        self._order: dict[str, Any] = {
            "mu2": guarantee.mu**2,
            "what": what,
            "adjacency": guarantee.adjacency,
            "fingerprint": fingerprint() if bound else None,
        }
        self._details: dict[str, Any] = {
            "mechanism": mechanism,
            "parameters": parameters,
            "holds": guarantee.holds,
        }
        account.statement.check(**self._order)

    def debit(self) -> None:
        """Make the debit; do nothing if it was made already or there is no ledger."""
        if self._begun:
            return
        self._begun = True
        if self._account is None:
            spent = self.guarantee.mu**2
            note_debit(f"a release without a ledger had begun: count mu^2 = {spent:.9g} as spent")
            return
        ledger, dataset, _ = self._account
        try:
            self.receipt = Receipt(ledger, ledger.spend(dataset, **self._order, **self._details))
        except BaseException as problem:
            self._begun = False  # what comes after it must be paid, if need be for a second time
            if not isinstance(problem, Exception):  # a signal; it may have come after the entry in the ledger
                self._note_if_entered(self._account)
            raise
        _note(self.receipt.spend)

    def _note_if_entered(self, account: LedgerAccount) -> None:
        """Look into the ledger for a debit of this process that was not there before."""
        note_debit(f"a debit of data set {account.dataset!r} may have been made: see dpmd-fast ledger show")
        known = {spend.id for spend in account.statement.history}
        found = account.ledger.statement(account.dataset).history
        new = [spend for spend in found if spend.id not in known and spend.pid == os.getpid()]
        note_debit(None)
        for spend in new:
            _note(spend)

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Raise an error after the debit as one that says that the debit stays."""
        try:
            yield
        except Exception as error:
            if self.receipt is None:
                raise
            spend = self.receipt.spend
            raise UserRuntimeError(
                f"the release failed after its debit, and mu^2 = {spend.mu2:.9g} of data set "
                f"{spend.dataset!r} stays spent (spend {spend.id}): {_reason(error)}"
            ) from error


def _note(spend: Spend) -> None:
    note_debit(
        f"mu^2 = {spend.mu2:.9g} of data set {spend.dataset!r} stays spent (spend {spend.id}); no file is "
        "recorded for it"
    )


def _reason(error: Exception) -> str:
    """Return the text of a `UserError`; of other errors, which may quote records, the kind."""
    return text_of(error) if isinstance(error, UserError) else type(error).__name__
