"""What a result promises, in numbers and in plain words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, TypeAlias

from dpmd_fast.arguments import checked, checked_choice, checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.privacy.accounting import gdp_epsilon, gdp_implies, gdp_mu
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.scope import (
    Scope,
    certified_scope,
    check_scope,
    counted_scope,
    joint_scope,
    scope_noted,
    scope_of,
    total_scope,
    with_topic,
)

Adjacency: TypeAlias = Literal["replace-one", "add-remove"]
Holds: TypeAlias = Literal["unconditional", "conditional", "not private"]


@dataclass(frozen=True)
class Guarantee:
    """The privacy statement attached to a released value.

    Parameters
    ----------
    epsilon, delta : float
        The claim.
    mu : float
        Total GDP parameter of the Gaussian releases behind the claim, ``sqrt(2 sum(rho))``.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours.
    holds : {"unconditional", "conditional", "not private"}
        Whether the claim holds for every data set, under `conditions`, or not at all.
    statement : str
        The claim in plain words, on one line; ``str()`` returns it.
    conditions : tuple of str
        What the claim assumes, and what it does not cover.
    scope : tuple of Covered
        The same for machines: for each topic, such as "time" or "invalid records", whether it is covered, and
        why. Empty in files of older versions.

    Raises
    ------
    ValueError
        If a field is malformed, a conditional claim names no condition, or `mu` does not support the claim:
        ``mu > gdp_mu(epsilon, delta)``.
    """

    epsilon: float
    delta: float
    mu: float
    adjacency: Adjacency
    holds: Holds
    statement: str
    conditions: tuple[str, ...] = ()
    scope: Scope = field(default=(), repr=False)

    def __post_init__(self) -> None:
        epsilon = checked("epsilon", self.epsilon)
        delta = checked("delta", self.delta, positive=True, below=1.0)
        mu = checked("mu", self.mu)
        checked_choice("adjacency", self.adjacency, ("replace-one", "add-remove"))
        checked_choice("holds", self.holds, ("unconditional", "conditional", "not private"))
        if not isinstance(self.statement, str) or not self.statement.strip() or "\n" in self.statement:
            raise UserValueError(
                f"statement = {shown(self.statement)}: must be one non-empty line of text",
                argument="statement",
            )
        if not isinstance(self.conditions, tuple) or not all(isinstance(c, str) for c in self.conditions):
            raise UserValueError(
                f"conditions = {shown(self.conditions)}: must be a tuple of strings", argument="conditions"
            )
        check_scope(self.scope)
        if self.holds == "conditional" and not self.conditions:
            raise UserValueError(
                "conditions = (): a conditional guarantee must name its conditions", argument="conditions"
            )
        if self.holds != "not private" and not gdp_implies(mu / (1.0 + 1e-9), epsilon, delta):
            most = gdp_mu(epsilon, delta)
            raise UserValueError(
                f"mu = {mu!r}: (epsilon, delta) = ({epsilon:g}, {delta:g}) allows mu up to {most!r} only",
                argument="mu",
            )
        for name, value in (("epsilon", epsilon), ("delta", delta), ("mu", mu)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return self.statement

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in JSON's types."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        noted = {**given, "conditions": list(self.conditions), "scope": scope_noted(self.scope)}
        if not self.scope:  # as older versions write and read it
            del noted["scope"]
        return noted

    @classmethod
    def from_dict(cls, given: Any) -> Guarantee:
        """Return the guarantee that `to_dict` was called on, also by an older version without scope."""
        wanted = {one.name for one in fields(cls)}
        if not isinstance(given, Mapping) or not wanted - {"scope"} <= set(given) <= wanted:
            raise UserValueError(f"guarantee: must have exactly {', '.join(sorted(wanted))}")
        if not isinstance(given["conditions"], (list, tuple)):
            raise UserValueError("guarantee: conditions must be a list")
        return cls(
            **{
                **given,
                "conditions": tuple(given["conditions"]),
                "scope": scope_of(given.get("scope", ())),
            }
        )


def certified_guarantee(
    budget: Budget,
    *,
    mu: float,
    adjacency: Adjacency,
    seeded: bool,
    validated: bool,
    released: str = "the released result",
) -> Guarantee:
    """Return the guarantee of a release of clipped moments: no condition on the data.

    Parameters
    ----------
    budget : Budget
        The (epsilon, delta) that was asked for.
    mu : float
        Total spend of the releases.
    adjacency : {"replace-one", "add-remove"}
    seeded : bool
        Whether the noise came from a seed.
    validated : bool
        Whether the reference was checked for invalid records first (``on_invalid="raise"``).
    released : str
        Name of the released values in the statement.
    """
    numbers = f"{not_below(budget.epsilon)}, {not_below(budget.delta)}"
    claim = f"({numbers})-differential privacy under {adjacency} adjacency"
    if seeded:
        statement = (
            f"Not private: the seed makes the noise of {released} reproducible, so whoever knows or guesses "
            f"the seed can subtract it; without a seed {claim} would hold for {_which(validated)}."
        )
    else:
        statement = f"Unconditional: for {released}, {claim} holds for {_which(validated)}."
    conditions: tuple[str, ...] = _CERTIFIED
    if adjacency == "replace-one":
        conditions = ("The number of records is public.", *conditions)
    if validated:
        conditions = (*conditions, _VALIDATED)
    holds: Holds = "not private" if seeded else "unconditional"
    scope = certified_scope(adjacency=adjacency, validated=validated, seeded=seeded)
    return Guarantee(budget.epsilon, budget.delta, mu, adjacency, holds, statement, conditions, scope)


def _which(validated: bool) -> str:
    """Return which data sets a certified claim is about, in the words of its headline."""
    if not validated:
        return "every data set"
    return (
        "every data set of valid records. The guarantee does not cover one fact: that the reference "
        "contained no invalid values"
    )


ALONE = (
    "No ledger was given: nothing but this release is counted here. Another one on the same reference spends "
    "anew, and the mu^2 of all add up."
)
_COUNTED = (
    "This release was charged to a ledger, which keeps the sum over all releases charged to the same data "
    "set; releases made without it add to that."
)
_CERTIFIED = (
    "One record is one row: somebody with k rows has k times the mu.",
    "Locations, bandwidth and all other parameters are public or follow from earlier releases.",
    ALONE,
    "Running time and memory are not protected, nor is what was done to the reference before.",
)
_VALIDATED = (
    "The reference was checked for non-finite and huge values before the spend; that it passed is not "
    "covered by the budget (on_invalid='drop' does without the check)."
)
_ENGINE = (
    "The records are held by an engine: the claim assumes that it returns each partition of the same records "
    "once in every pass. What comes twice, belongs to another pass or sums another number of records than "
    "before is refused."
)
_BOUND = (
    "The data set is bound to one reference: it was read for its fingerprint before the debit, and that the "
    "fingerprint was the right one is not covered."
)
# The same in the words of a headline, which must be true by itself.
_IF_ENGINE = ". It assumes that the engine returns each partition once"
_IF_BOUND = ". That the reference was the bound one is not covered"


def counted(guarantee: Guarantee) -> Guarantee:
    """Return the same guarantee, for a release that is charged to a ledger."""
    conditions = tuple(_COUNTED if text == ALONE else text for text in guarantee.conditions)
    return replace(guarantee, conditions=conditions, scope=counted_scope(guarantee.scope))


def held_by_engine(guarantee: Guarantee) -> Guarantee:
    """Return the same guarantee, for records that an engine sums."""
    scope = with_topic(guarantee.scope, "engine", False, _ENGINE)
    return _with_limit(replace(guarantee, scope=scope), _ENGINE, _IF_ENGINE)


def bound(guarantee: Guarantee) -> Guarantee:
    """Return the same guarantee, for a data set that a fingerprint binds to one reference."""
    scope = with_topic(guarantee.scope, "binding to a reference", False, _BOUND)
    return _with_limit(replace(guarantee, scope=scope), _BOUND, _IF_BOUND)


def _with_limit(guarantee: Guarantee, condition: str, words: str) -> Guarantee:
    """Return the same guarantee with one more condition, which its headline names in a few words."""
    statement = f"{guarantee.statement.removesuffix('.')}{words}."
    return replace(guarantee, conditions=(*guarantee.conditions, condition), statement=statement)


def with_conditions(guarantee: Guarantee, more: tuple[str, ...]) -> Guarantee:
    """Return the same guarantee with more conditions noted."""
    return replace(guarantee, conditions=(*guarantee.conditions, *more))


def total_guarantee(
    dataset: str,
    total: Budget,
    *,
    mu: float,
    adjacency: Adjacency,
    releases: int,
    conditional: Sequence[str],
    validated: bool = False,
    engine: bool = False,
    is_bound: bool = False,
) -> Guarantee:
    """Return the joint guarantee of all releases charged to one data set, at the delta of its total.

    Parameters
    ----------
    dataset : str
        Its name in the ledger.
    total : Budget
        The declared total; never exceeded.
    mu : float
        Spent so far.
    adjacency : {"replace-one", "add-remove"}
    releases : int
        Number of spends.
    conditional : sequence of str
        What the spends were for whose guarantee is conditional.
    validated : bool
        Whether the reference of one of them was checked for invalid records first.
    engine : bool
        Whether an engine held the records of one of them.
    is_bound : bool
        Whether the data set is bound to one reference.
    """
    epsilon = min(total.epsilon, gdp_epsilon(mu, total.delta))
    claim = (
        f"({not_below(epsilon)}, {not_below(total.delta)})-differential privacy under {adjacency} adjacency"
    )
    released = f"all that was charged to {dataset!r} so far, {releases} spend(s)"
    conditions: tuple[str, ...] = (
        "Every spend costs what was entered for it; releases that did not go through the ledger are not "
        "counted.",
        "One record is one row: somebody with k rows has k times the mu.",
    )
    if conditional:
        named = ", ".join(sorted(set(conditional))[:5])
        statement = f"Conditional: for {released}, {claim} holds if the conditions of {named} do."
        more = (
            f"{len(conditional)} of the spends hold under conditions that their own guarantees name: {named}."
        )
        holds: Holds = "conditional"
        conditions = (more, *conditions)
    else:
        statement = f"Unconditional: for {released}, {claim} holds for {_which(validated)}."
        holds = "unconditional"
    scope = total_scope(adjacency=adjacency, validated=validated, conditional=bool(conditional))
    made = Guarantee(epsilon, total.delta, mu, adjacency, holds, statement, conditions, scope)
    made = held_by_engine(made) if engine else made
    return bound(made) if is_bound else made


def joint_guarantee(guarantee: Guarantee, paid: Guarantee) -> Guarantee:
    """Return the joint guarantee of a release in preprocessed units and the preprocessing that was paid for.

    mu^2 adds up, also if the later release depends on the earlier one; epsilon is the exact one at the delta
    of `guarantee`, rounded up.
    """
    mu = math.hypot(guarantee.mu, paid.mu)
    epsilon = gdp_epsilon(mu, guarantee.delta)
    unit = 10.0 ** (5 - math.floor(math.log10(max(epsilon, guarantee.epsilon))))
    epsilon = math.ceil(max(epsilon, guarantee.epsilon) * unit) / unit
    joint = certified_guarantee(
        Budget(epsilon, guarantee.delta),
        mu=mu,
        adjacency=guarantee.adjacency,
        seeded="not private" in (guarantee.holds, paid.holds),
        validated=_VALIDATED in (*guarantee.conditions, *paid.conditions),
        released="the preprocessing, the atlas and all that is made with them",
    )
    more = f"The preprocessing was released before, with mu = {paid.mu:.6g}, which is counted in here."
    conditions = [*guarantee.conditions, more]
    conditions += [
        text for text in (_VALIDATED, _ENGINE, _BOUND) if text in paid.conditions and text not in conditions
    ]
    limits = "".join(
        words for text, words in ((_ENGINE, _IF_ENGINE), (_BOUND, _IF_BOUND)) if text in conditions
    )
    return replace(
        joint,
        statement=f"{joint.statement.removesuffix('.')}{limits}.",
        conditions=tuple(conditions),
        scope=joint_scope(guarantee.scope, paid.scope or joint.scope),
    )


def not_below(number: float) -> str:
    """Format with six digits, rounded up: what is printed must not claim less than the number."""
    digits = Decimal(repr(float(number)))
    if not digits:
        return "0"
    return f"{float(digits.quantize(Decimal(1).scaleb(digits.adjusted() - 5), ROUND_CEILING)):g}"


class LargeDeltaWarning(UserWarning):
    """delta is so large that the guarantee allows publishing whole records."""


def warn_large_delta(delta: float, n: int, stacklevel: int = 3) -> None:
    """Warn when ``delta >= 1/n``; `n` must be a public number."""
    delta = checked("delta", delta, positive=True, below=1.0)
    n = checked_integer("n", n, minimum=1)
    if delta * n >= 1.0:
        warnings.warn(
            f"delta = {delta:g} is not below 1/n = {1.0 / n:g}: publishing each record outright with "
            f"probability delta satisfies such a guarantee, {n * delta:g} records on average; choose delta "
            "far below 1/n",
            LargeDeltaWarning,
            stacklevel=stacklevel,
        )
