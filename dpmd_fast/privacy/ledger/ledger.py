"""The privacy budget of named data sets, kept in a file from which every release is paid.

The unit is mu^2, which adds up over Gaussian releases, also when later ones depend on what earlier ones
showed, as long as the sum stays within a total that was fixed before (Smith and Thakurta 2022). A debit is
one transaction and comes before the pass over the private data that is released: a crash at any instant loses
budget at most. Checks may read them earlier: for invalid values, and for the fingerprint of a bound data set.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from dpmd_fast.arguments import checked, checked_choice, checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.privacy.budget import Budget, BudgetExceeded
from dpmd_fast.privacy.guarantee import Adjacency, Guarantee, Holds, total_guarantee
from dpmd_fast.privacy.ledger import fingerprinting
from dpmd_fast.privacy.ledger.entries import Spend, Total, preprocessing_of, spend_of, was_validated
from dpmd_fast.privacy.ledger.store import Account, create_file, open_book

_CONVERSION = 1e-6  # of mu^2 by root finders of other machines and versions, and of sums of few squares
# Of the total. The sum is computed without rounding, so this covers the rounding of the total itself and of a
# budget cut into equal parts, and does not grow with the number of spends.
_ROUNDING = 1e-12
_LONGEST = 1000  # characters of a name or description
_MOST_PARAMETERS = 10_000  # characters of their JSON: parameters, not data


class Statement:
    """One data set of a ledger as the file had it at one moment: a look that opens the file once."""

    def __init__(self, account: Account, files: Mapping[int, tuple[str, ...]]) -> None:
        self._account = account
        self._files = files

    @cached_property
    def total(self) -> Total:
        """What the data set may spend, as it was declared."""
        name, epsilon, delta, conversion, mu2, adjacency, fingerprint, time, host, pid = (
            self._account.declared
        )
        when = datetime.fromisoformat(time)
        return Total(name, epsilon, delta, conversion, mu2, adjacency, fingerprint, when, host, pid)

    @property
    def remaining(self) -> float:
        """What is left, in mu^2."""
        return self._left_after()

    @cached_property
    def history(self) -> tuple[Spend, ...]:
        """All spends, oldest first."""
        name = self.total.dataset
        entries = zip(self._account.spends, self._account.heads[1:], strict=True)
        return tuple(spend_of(name, row, head, self._files.get(row[0], ())) for row, head in entries)

    @property
    def head(self) -> str:
        """Digest of the chain of all entries, the declaration without the fingerprint and every spend."""
        return self._account.heads[-1]

    def check_entry(self, spend: int, head: str, guarantee: Guarantee | None = None) -> None:
        """Refuse a ledger that lacks this debit, or whose chain up to it is another: it is not the same.

        With the `guarantee` of what the debit has paid for, refuse a debit of another size or adjacency.
        """
        known = {entry.id: entry for entry in self.history}
        if spend not in known:
            raise UserValueError(
                f"the ledger has no spend {spend} of {self.total.dataset!r}: it was rolled back, or is "
                "another ledger"
            )
        if known[spend].head != head:
            raise UserValueError(
                f"the entries of {self.total.dataset!r} up to spend {spend} are not those that were signed: "
                "the ledger was edited, or is another one"
            )
        if guarantee is None:
            return
        paid, cost = known[spend].mu2 + preprocessing_of(known[spend]), guarantee.mu**2
        if not math.isclose(paid, cost, rel_tol=_CONVERSION):
            raise UserValueError(
                f"spend {spend} of {self.total.dataset!r} has paid mu^2 = {paid:.9g}, and the guarantee says "
                f"{cost:.9g}"
            )
        if guarantee.adjacency != self.total.adjacency:
            raise UserValueError(
                f"{self.total.dataset!r} is counted under {self.total.adjacency!r}, and the guarantee is one "
                f"under {guarantee.adjacency!r}"
            )

    def preprocessing_paid(self, spend: int) -> bool | None:
        """Return whether an earlier spend is of the mu^2 of this one's preprocessing; None without one."""
        (cost,) = (preprocessing_of(entry) for entry in self.history if entry.id == spend)
        before = [entry.mu2 for entry in self.history if entry.id < spend]
        return any(math.isclose(mu2, cost, rel_tol=_CONVERSION) for mu2 in before) if cost else None

    def check_sums(self) -> None:
        """Refuse numbers that do not add up: a total that is not that of its budget, or spends beyond it.

        `Ledger` does not make such entries. Whoever writes the file can, with a checksum that fits.
        """
        total = self.total
        declared = 2.0 * Budget(total.epsilon, total.delta).rho
        if not math.isclose(declared, total.mu2, rel_tol=_CONVERSION):
            raise UserValueError(
                f"the total of {total.dataset!r} is mu^2 = {total.mu2:.9g}, and its epsilon and delta allow "
                f"{declared:.9g}: the ledger was edited"
            )
        if (spent := math.fsum(self._spent())) > total.mu2 * (1.0 + _ROUNDING):
            raise UserValueError(
                f"the spends of {total.dataset!r} add up to mu^2 = {spent:.9g}, more than its total of "
                f"{total.mu2:.9g}: the ledger was edited"
            )

    @property
    def guarantee(self) -> Guarantee:
        """What all releases charged to the data set promise together, at its delta."""
        total = self.total
        return total_guarantee(
            total.dataset,
            Budget(total.epsilon, total.delta),
            mu=math.sqrt(min(total.mu2, math.fsum(self._spent()))),
            adjacency=total.adjacency,
            releases=len(self.history),
            conditional=[spend.what for spend in self.history if spend.holds == "conditional"],
            validated=any(map(was_validated, self.history)),
            engine=any("engine" in spend.parameters for spend in self.history),
            is_bound=total.fingerprint is not None,
        )

    def check(self, mu2: float, what: str, adjacency: Adjacency | None, fingerprint: str | None) -> None:
        """Refuse a spend that does not belong to the data set or is more than is left of it."""
        total = self.total
        if adjacency is not None:
            checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
            if adjacency != total.adjacency:
                raise UserValueError(
                    f"adjacency = {adjacency!r}: the budget of {total.dataset!r} is counted under "
                    f"{total.adjacency!r}, and spends under different adjacencies do not add up",
                    argument="adjacency",
                )
        if total.fingerprint is not None and fingerprint is None:
            raise UserValueError(
                f"fingerprint = None: {total.dataset!r} is bound to one reference; must be what "
                "Ledger.fingerprint_of(reference) gives",
                argument="fingerprint",
            )
        if total.fingerprint is not None and fingerprint != total.fingerprint:
            raise UserValueError(
                f"fingerprint: {total.dataset!r} is bound to another reference, other columns or another "
                "order"
            )
        if math.fsum([*self._spent(), mu2]) > total.mu2 * (1.0 + _ROUNDING):
            raise BudgetExceeded(mu2, self.remaining, f"{what} (data set {total.dataset!r})")

    def paid(self, spend: Spend) -> Spend:
        """Return a spend that was entered right after this look, with the balance after it."""
        return replace(spend, total_mu2=self.total.mu2, remaining_mu2=self._left_after(spend.mu2))

    def _spent(self) -> list[float]:
        return [row[5] for row in self._account.spends]

    def _left_after(self, *more: float) -> float:
        return max(0.0, math.fsum([self.total.mu2, *(-mu2 for mu2 in (*self._spent(), *more))]))


@dataclass(frozen=True)
class Ledger:
    """A file that keeps the privacy budget of named data sets.

    Processes on one machine may use it concurrently; together they never overspend. Each operation opens the
    file anew, so a `Ledger` may be copied, pickled, shared between threads and used after a fork.

    Parameters
    ----------
    path : str or path
        On a local disk: network file systems are not supported. The file need not exist before `create`.
    timeout : float
        Seconds to wait while others write.

    Notes
    -----
    No spend and no total is ever changed or deleted. The file holds public values only, unless a data set is
    bound to a fingerprint (`fingerprint_of`).
    """

    path: str
    timeout: float = 30.0

    def __init__(self, path: str | os.PathLike[str], timeout: float = 30.0) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise UserValueError(f"path = {shown(path)}: must be the path of a file", argument="path")
        object.__setattr__(self, "path", os.path.abspath(os.fsdecode(path)))
        object.__setattr__(self, "timeout", checked("timeout", timeout, below=1e6))

    def create(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
        *,
        fingerprint: str | None = None,
    ) -> None:
        """Declare a data set and the total that may ever be spent on it; create the file if there is none.

        Parameters
        ----------
        dataset : str
            A public name. An existing one is refused: a total is final.
        epsilon, delta : float
            The total, converted into mu^2 by the exact curve of Gaussian noise.
        adjacency : {"replace-one", "add-remove"}
            Spends under another adjacency are refused: they do not add up.
        fingerprint : str, optional
            `fingerprint_of` the reference; binds the name to it. Without it, nothing checks that a name is
            used for one data set only.
        """
        name = _checked_text("dataset", dataset)
        total = Budget(epsilon, delta)
        checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
        if fingerprint is not None:
            _checked_text("fingerprint", fingerprint)
        if not os.path.lexists(self.path):
            create_file(self.path)
        with open_book(self.path, self.timeout, write=True) as book:
            book.declare(
                name,
                total.epsilon,
                total.delta,
                total.conversion,
                2.0 * total.rho,
                adjacency,
                fingerprint,
                *_signature(),
            )

    def spend(
        self,
        dataset: str,
        mu2: float,
        what: str,
        *,
        mechanism: str = "gaussian",
        parameters: Mapping[str, Any] | None = None,
        adjacency: Adjacency | None = None,
        holds: Holds = "unconditional",
        fingerprint: str | None = None,
    ) -> Spend:
        """Debit `mu2`, or refuse; when this returns, the debit is on disk.

        Call it before the private data are read. The functions of this package do so when they are given
        ``ledger=`` and ``dataset=``; call it yourself for your own releases.

        Parameters
        ----------
        dataset : str
        mu2 : float
            Cost of the release, (sensitivity / deviation of the Gaussian noise)^2.
        what, mechanism : str
            One line each, for the history.
        parameters : mapping, optional
            Public parameters of the release, as JSON values. Never anything computed from the data, nor their
            number of rows under "add-remove".
        adjacency : {"replace-one", "add-remove"}, optional
            The adjacency that `mu2` was computed for; by default that of the data set.
        holds : {"unconditional", "conditional"}
            Whether the release costs no more than `mu2` for every data set. Not checked.
        fingerprint : str, optional
            `fingerprint_of` the reference; needed if the data set is bound to one, and must equal it.

        Raises
        ------
        BudgetExceeded
            With `asked` and `remaining`; nothing was spent.
        TimeoutError
            If the ledger is locked for longer than `timeout`; nothing was spent.
        """
        name = _checked_text("dataset", dataset)
        mu2 = checked("mu2", mu2, positive=True)
        texts = _checked_text("what", what), _checked_text("mechanism", mechanism)
        public = _checked_parameters(parameters)
        checked_choice("holds", holds, ("unconditional", "conditional"))
        with open_book(self.path, self.timeout, write=True) as book:
            account = book.account(name)
            statement = Statement(account, {})
            statement.check(mu2, texts[0], adjacency, fingerprint)
            time, host, pid = _signature()
            number, head = book.enter(account, time, *texts, public, mu2, holds, host, pid)
        return statement.paid(spend_of(name, (number, time, *texts, public, mu2, holds, host, pid), head))

    def record_file(self, spend_id: int, path: str | os.PathLike[str]) -> None:
        """Record a file that a release was written to; may be called again for further files."""
        number = checked_integer("spend_id", spend_id, minimum=1, most_bits=63)
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise UserValueError(f"path = {shown(path)}: must be the path of a file", argument="path")
        # names that are not text are kept readable
        name = os.path.abspath(os.fsencode(path)).decode("utf-8", "backslashreplace")
        with open_book(self.path, self.timeout, write=True) as book:
            book.add_file(number, name, _signature()[0])

    def datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets, in the order of their declaration."""
        with open_book(self.path, self.timeout, write=False) as book:
            return tuple(book.names())

    def statement(self, dataset: str) -> Statement:
        """Return total, history and balance of a data set, all of one moment."""
        name = _checked_text("dataset", dataset)
        with open_book(self.path, self.timeout, write=False) as book:
            account = book.account(name)
            return Statement(account, book.files(account))

    def total(self, dataset: str) -> Total:
        """Return what a data set may spend, as it was declared."""
        return self.statement(dataset).total

    def remaining(self, dataset: str) -> float:
        """Return what is left of a data set, in mu^2."""
        return self.statement(dataset).remaining

    def history(self, dataset: str) -> tuple[Spend, ...]:
        """Return all spends of a data set, oldest first."""
        return self.statement(dataset).history

    def guarantee(self, dataset: str) -> Guarantee:
        """Return what all releases charged to a data set promise together, at its delta."""
        return self.statement(dataset).guarantee

    def check(
        self,
        dataset: str,
        mu2: float,
        what: str,
        *,
        adjacency: Adjacency | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Refuse what `spend` would refuse now; `spend` may still refuse later, if others spend meanwhile."""
        mu2 = checked("mu2", mu2, positive=True)
        self.statement(dataset).check(mu2, what, adjacency, fingerprint)

    @staticmethod
    def fingerprint_of(reference: Any, columns: list[str] | None = None) -> str:
        """Return a SHA-256 of a reference's values in row order; the same for all kinds of input.

        **It is computed from private data and no budget pays for it.** Anyone who sees it can test a guess of
        the whole reference, hence also of one record if they know all others. Use it only to bind a name in a
        ledger to one reference; a ledger that holds a fingerprint is as private as the data.
        """
        return fingerprinting.compute(reference, columns)


def _signature() -> tuple[str, str, int]:
    """Return the time, the host and the process of an entry."""
    return datetime.now(timezone.utc).isoformat(), socket.gethostname(), os.getpid()


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > _LONGEST:
        raise UserValueError(
            f"{name} = {shown(value)}: must be one line of text, at most {_LONGEST} characters", argument=name
        )
    return value


def _checked_parameters(parameters: Mapping[str, Any] | None) -> str:
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UserValueError(
            f"parameters is a {type(parameters).__name__}: must be a mapping of names to values"
        )
    given = dict(parameters or {})
    try:
        text = json.dumps(given, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError):
        text = ""
    if not text or json.loads(text) != given or len(text) > _MOST_PARAMETERS:
        raise UserValueError(
            "parameters: must hold finite numbers, texts, None and lists or mappings of them, "
            f"{_MOST_PARAMETERS} characters of JSON at most"
        )
    return text
