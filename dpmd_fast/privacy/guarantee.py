"""What a result promises, in numbers and in one plain sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Literal, TypeAlias

from dpmd_fast.arguments import checked, checked_choice, checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.privacy.accounting import gdp_epsilon, gdp_implies, gdp_mu
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound

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
        One plain sentence; ``str()`` returns it.
    conditions : tuple of str
        What the claim assumes, and what it does not cover.

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


def paper_guarantee(
    budget: Budget,
    *,
    mu: float,
    n: int,
    dim: int,
    bandwidth: float,
    sensitivity_constant: float,
    seeded: bool,
    lemma: Literal[1, 2],
    basic_composition: bool = False,
    lost_in_rounding: bool = False,
    released: str = "the released result",
) -> Guarantee:
    """Return the guarantee of the paper's route under replace-one: Lemma 1 for Algorithm 1, Lemma 2 for 2.

    Parameters
    ----------
    budget : Budget
        The (epsilon, delta) that was asked for.
    mu : float
        Total spend of the releases, ``sqrt(2 sum(rho))``.
    n : int
        Number of records that the noise was scaled with; public, since neighbours have equally many.
    dim, bandwidth, sensitivity_constant
        d, h and C of the bounds ``Delta_P = C/(n h^d)`` and, for Lemma 2, ``Delta_m = C/(n h^(d-1))``.
    seeded : bool
        Whether the noise came from a seed.
    lemma : {1, 2}
        Which sensitivity bound was used.
    basic_composition : bool
        Whether each query had its own (epsilon/m, delta/m) (schedule "per-query").
    lost_in_rounding : bool
        Whether the noise is smaller than the rounding error of the values it should hide.
    released : str
        Name of the released values in the statement.
    """
    n = checked_integer("n", n, minimum=1)
    dim = checked_integer("dim", dim, minimum=1)
    h = checked("bandwidth", bandwidth, positive=True)
    constant = checked("sensitivity_constant", sensitivity_constant, positive=True)
    checked_choice("lemma", lemma, (1, 2))
    bounds = _paper_bounds(n, dim, h, constant, lemma)
    failure = "n^-(1+c)" if lemma == 1 else "n^-c"
    numbers = f"{budget.epsilon:g}, {budget.delta:g}"
    claim = f"({numbers})-differential privacy under replace-one adjacency"
    if basic_composition:
        claim += ", by basic composition over the queries,"
    premise = f"replacing one record changes what is noised by at most {bounds} with C = {constant:g}"
    if seeded:
        holds: Holds = "not private"
        statement = (
            f"Not private: the seed makes the noise of {released} reproducible, so whoever knows or guesses "
            f"the seed can subtract it; without a seed the run would claim {claim} if {premise}."
        )
    elif lost_in_rounding:
        holds = "not private"
        statement = (
            f"Not private: the paper's bound has units, and at h = {h:g} and d = {dim} the noise it asks "
            f"for is below the rounding of {released}, which hides nothing; rescale the data."
        )
    else:
        holds = "conditional"
        statement = (
            f"Conditional: for {released}, {claim} holds if {premise}, which Lemma {lemma} of the paper "
            f"proves for an unknown C only and except with probability {failure}: the claim is ({numbers} + "
            f"{failure})."
        )
    conditions = (
        f"The true sensitivity stays within {bounds} for C = {constant:g}; the paper leaves C unknown, and "
        "the C that a data set needs can be tens of times larger (see empirical_sensitivity).",
        *_model_conditions(n, dim, h, lemma),
        f"The bound holds with probability 1 - {failure} for an unknown c > 0; the failure probability adds "
        f"to delta: (epsilon, delta + {failure}). The lemma is about one point; over several queries and "
        "steps the failure probabilities add up.",
        *_UNCOVERED,
    )
    return Guarantee(budget.epsilon, budget.delta, mu, "replace-one", holds, statement, conditions)


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
    claim = f"({budget.epsilon:g}, {budget.delta:g})-differential privacy under {adjacency} adjacency"
    if seeded:
        statement = (
            f"Not private: the seed makes the noise of {released} reproducible, so whoever knows or guesses "
            f"the seed can subtract it; without a seed {claim} would hold for every data set."
        )
    else:
        statement = f"Unconditional: for {released}, {claim} holds for every data set."
    conditions: tuple[str, ...] = _CERTIFIED
    if adjacency == "replace-one":
        conditions = ("The number of records is public.", *conditions)
    if validated:
        conditions = (*conditions, _VALIDATED)
    holds: Holds = "not private" if seeded else "unconditional"
    return Guarantee(budget.epsilon, budget.delta, mu, adjacency, holds, statement, conditions)


_ALONE = (
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
    _ALONE,
    "Running time and memory are not protected, nor is what was done to the reference before.",
)
_VALIDATED = (
    "The reference was checked for non-finite and huge values before the spend; that it passed is not "
    "covered by the budget (on_invalid='drop' does without the check)."
)


def counted(guarantee: Guarantee) -> Guarantee:
    """Return the same guarantee, for a release that is charged to a ledger."""
    conditions = tuple(_COUNTED if text == _ALONE else text for text in guarantee.conditions)
    return replace(guarantee, conditions=conditions)


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
    """
    epsilon = min(total.epsilon, gdp_epsilon(mu, total.delta))
    claim = f"({_not_below(epsilon)}, {total.delta:g})-differential privacy under {adjacency} adjacency"
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
        statement = f"Unconditional: for {released}, {claim} holds for every data set."
        holds = "unconditional"
    return Guarantee(epsilon, total.delta, mu, adjacency, holds, statement, conditions)


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
        validated=False,
        released="the preprocessing, the atlas and all that is made with them",
    )
    more = f"The preprocessing was released before, with mu = {paid.mu:.6g}, which is counted in here."
    return replace(joint, conditions=(*guarantee.conditions, more))


def _not_below(number: float) -> str:
    """Format with six digits, rounded up: a statement must not claim less than the number."""
    digits = Decimal(number)
    return f"{float(digits.quantize(Decimal(1).scaleb(digits.adjusted() - 5), ROUND_CEILING)):g}"


def _paper_bounds(n: int, dim: int, h: float, constant: float, lemma: int) -> str:
    bounds = f"Delta_P = C/(n h^d) = {projector_bound(n, dim, h, constant):.4g}"
    if lemma == 1:
        return bounds
    return f"{bounds} and Delta_m = C/(n h^(d-1)) = {mean_bound(n, dim, h, constant):.4g}"


def _model_conditions(n: int, dim: int, h: float, lemma: int) -> tuple[str, str]:
    noise = "sigma" if lemma == 1 else "sqrt(sigma)"
    where = "the query is drawn like a record" if lemma == 1 else "the queries lie within sqrt(sigma) of it"
    smallest = (math.log(n) / n) ** (1.0 / dim)
    outside = "; h is not below 1 here, so the lemma does not apply as it stands" if h >= 1.0 else ""
    return (
        f"The model of Lemma {lemma}: records are i.i.d. near a compact C^2 manifold of dimension {dim} and "
        "positive reach, with a sampling density bounded away from 0 and infinity and noise of norm at most "
        f"sigma; {where}.",
        f"The bandwidth satisfies (log n/n)^(1/d) v {noise} <~ h << 1 ^ reach, with (log n/n)^(1/d) = "
        f"{smallest:.4g} and h = {h:g}{outside}.",
    )


_UNCOVERED = (
    _ALONE,
    "The bound has units: rescaling the data changes the noise relative to the data, and with h above 1 and "
    "a large d there is almost none.",
    "Choices that depend on the records and that no budget pays for are not covered: the no_neighbor test "
    "and other status flags, h and d read from the reference, medians and MADs of the reference.",
    "The noise is floating-point Gaussian noise, whose low bits leak information about what it hides.",
)


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
