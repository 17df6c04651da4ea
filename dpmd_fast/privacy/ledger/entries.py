"""What a ledger holds: the total of a data set, and its spends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dpmd_fast.privacy.guarantee import Adjacency, Holds


@dataclass(frozen=True)
class Total:
    """The declared total budget of a data set.

    Attributes
    ----------
    dataset : str
    epsilon, delta : float
    conversion : str
        "gdp": (epsilon, delta) was converted to `mu2` by the exact curve of Gaussian noise.
    mu2 : float
        The total in the unit of all spends.
    adjacency : {"replace-one", "add-remove"}
    fingerprint : str or None
        Fingerprint of the reference that the name is bound to, if any.
    time : datetime
        When it was declared, UTC.
    host : str
    pid : int
    """

    dataset: str
    epsilon: float
    delta: float
    conversion: str
    mu2: float
    adjacency: Adjacency
    fingerprint: str | None
    time: datetime
    host: str
    pid: int


@dataclass(frozen=True)
class Spend:
    """One debit.

    Attributes
    ----------
    id : int
        Grows with every spend of the ledger: the order of spends, whatever the clock says.
    dataset : str
    time : datetime
        UTC, by the clock of `host`.
    what, mechanism : str
        What was released, and by which mechanism.
    parameters : dict
        Public parameters of the release.
    mu2 : float
    holds : {"unconditional", "conditional"}
        Whether the guarantee holds for every data set or under conditions.
    host : str
    pid : int
        Machine and process that spent.
    files : tuple of str
        Files that the release became, oldest first.
    head : str or None
        Digest of the chain of all entries of the data set up to this one: of its declaration and its spends.
    total_mu2, remaining_mu2 : float or None
        The total of the data set, and what was left of it right after this debit; None in a history.
    """

    id: int
    dataset: str
    time: datetime
    what: str
    mechanism: str
    parameters: dict[str, Any]
    mu2: float
    holds: Holds
    host: str
    pid: int
    files: tuple[str, ...] = ()
    head: str | None = field(default=None, repr=False, compare=False)
    total_mu2: float | None = field(default=None, repr=False, compare=False)
    remaining_mu2: float | None = field(default=None, repr=False, compare=False)

    @property
    def file(self) -> str | None:
        """The last file that the release was written to."""
        return self.files[-1] if self.files else None


def was_validated(spend: Spend) -> bool:
    """Return whether the reference was checked before this spend; older entries of releases do not say."""
    return bool(
        spend.parameters.get("on_invalid", "raise" if "conversion" in spend.parameters else "") == "raise"
    )


def preprocessing_of(spend: Spend) -> float:
    """Return the mu^2 of the preprocessing of a release, which is a spend of its own; 0 without one."""
    cost = spend.parameters.get("preprocessing_mu2", 0.0)
    return float(cost) if isinstance(cost, (int, float)) else 0.0


def spend_of(dataset: str, row: tuple[Any, ...], head: str, files: tuple[str, ...] = ()) -> Spend:
    """Return an entry of the file, with the head of the chain after it."""
    number, time, what, mechanism, parameters, mu2, holds, host, pid = row
    when, public = datetime.fromisoformat(time), json.loads(parameters)
    return Spend(number, dataset, when, what, mechanism, public, mu2, holds, host, pid, files, head)
