"""What the paper's route promises: a claim under conditions that nobody can check from outside."""

from __future__ import annotations

import math
from typing import Literal

from dpmd_fast.arguments import checked, checked_choice, checked_integer
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import ALONE, Guarantee, Holds, not_below
from dpmd_fast.privacy.scope import paper_scope
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound


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
    numbers = f"{not_below(budget.epsilon)}, {not_below(budget.delta)}"
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
    scope = paper_scope(seeded=seeded)
    return Guarantee(budget.epsilon, budget.delta, mu, "replace-one", holds, statement, conditions, scope)


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
    ALONE,
    "The bound has units: rescaling the data changes the noise relative to the data, and with h above 1 and "
    "a large d there is almost none.",
    "Choices that depend on the records and that no budget pays for are not covered: the no_neighbor test "
    "and other status flags, h and d read from the reference, medians and MADs of the reference.",
    "The noise is floating-point Gaussian noise, whose low bits leak information about what it hides.",
)
