"""Short facts of a report: what the promise means, tiles, what was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from scipy.special import ndtr

from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.privacy.guarantee import Guarantee, not_below
from dpmd_fast.report.parts import Account, number, percent


class Fact(NamedTuple):
    name: str
    value: str
    note: str = ""


_PREPROCESSED = Fact("preprocessing", "log of some columns, centre, scale, clip")


# What the promise means


def meaning_of(guarantee: Guarantee) -> str:
    """Say what a guarantee means to somebody who has never heard of epsilon.

    Of two equally likely data sets, N(0, 1) and N(mu, 1) at worst, the best guess is right with probability
    Phi(mu / 2). It is rounded up.
    """
    if guarantee.holds == "not private":
        return "Do not pass this result on: it protects nobody's record."
    right = min(100, math.ceil(100.0 * float(ndtr(0.5 * guarantee.mu)) - 1e-9))
    start = "Suppose somebody"
    if guarantee.holds == "conditional":
        start = "If all that it rests on is true (see the details): suppose somebody"
    return (
        f"{start} knows all records but one, and that this one is {_which(guarantee)}. A blind guess which "
        "of the two it is would be right 50 times in 100; with the help of this result, at most "
        f"{right} times in 100."
    )


def in_numbers(guarantee: Guarantee) -> str:
    """Say the same in the terms of Gaussian differential privacy; nothing if the run is not private."""
    if guarantee.holds == "not private":
        return ""
    difference = (
        "held one given record or another in its place"
        if guarantee.adjacency == "replace-one"
        else "held one given record or did not"
    )
    return (
        f"In numbers: to tell from the result whether the reference {difference} is at least as hard as to "
        f"tell one draw of the normal distribution N(0, 1) from one of N({number(guarantee.mu)}, 1)."
    )


def _which(guarantee: Guarantee) -> str:
    if guarantee.adjacency == "replace-one":
        return "one of two given records, each as likely as the other"
    return "a given record or absent, each as likely as the other"


# Tiles


def run_tiles(m: int, D: int, moved: int, guarantee: Guarantee, account: Account | None) -> list[Fact]:
    """Return the tiles of a run in which `moved` of `m` queries moved."""
    return [
        Fact("queries", f"{m:,}", f"{D:,} columns"),
        Fact("moved", percent(moved, m), f"{moved:,} queries"),
        Fact("unchanged", f"{m - moved:,}", percent(m - moved, m)),
        *_budget_tiles(guarantee, account),
    ]


def mixture_tiles(mixture: Mixture, m: int, missing: int | None, account: Account | None) -> list[Fact]:
    """Return the tiles of a mixture and of `m` queries, of which `missing` values were missing."""
    D = mixture.n_columns
    tiles = [Fact("queries", f"{m:,}", f"{D:,} columns")] if m else []
    if missing is not None:
        tiles.append(Fact("values missing", percent(missing, m * D), f"{missing:,} values"))
    return [*tiles, *_budget_tiles(mixture.guarantee, account)]


def _budget_tiles(guarantee: Guarantee, account: Account | None) -> list[Fact]:
    claim = f"delta {not_below(guarantee.delta)}; smaller is more private"
    tiles = [Fact("privacy spent, epsilon", not_below(guarantee.epsilon), claim)]
    if account is not None:
        tiles.append(Fact("budget left", percent(account.left, account.total), "of the data set's total"))
    return tiles


# What was asked


def facts_of(asked: Mapping[str, str], guarantee: Guarantee, m: int | None, D: int) -> list[Fact]:
    """Return the parameters of a run and the numbers of its guarantee."""
    facts = [
        *asked.items(),
        *(() if m is None else (("number of queries", f"{m:,}"),)),
        ("number of columns", f"{D:,}"),
        ("epsilon claimed", not_below(guarantee.epsilon)),
        ("delta claimed", not_below(guarantee.delta)),
        ("mu", number(guarantee.mu)),
    ]
    if "adjacency" not in asked:
        facts.append(("adjacency", guarantee.adjacency))
    return [Fact(name, value) for name, value in facts]


def atlas_facts(atlas: Atlas | None, D: int) -> list[Fact]:
    """Return the shape of an atlas."""
    if atlas is None:
        return []
    facts = [
        Fact("dimension of the charts", str(atlas.dim)),
        Fact("bandwidth of the charts", number(atlas.bandwidth)),
        Fact("rounds", str(len(atlas.layers))),
        Fact("charts", f"{len(atlas.layers[0].masses):,}"),
    ]
    if atlas.subspace is not None:
        facts.append(Fact("subspace", f"{atlas.subspace.basis.shape[1]} of {D} dimensions"))
    if atlas.preprocess is not None:
        facts.append(_PREPROCESSED)
    return facts


def mixture_facts(mixture: Mixture) -> list[Fact]:
    """Return the shape of a mixture."""
    facts = [
        Fact("components of the mixture", str(len(mixture.weights))),
        Fact("least mass over noise", number(min(mixture.signal_to_noise), 3)),
        Fact("releases", str(len(mixture.spends))),
    ]
    return facts if mixture.preprocess is None else [*facts, _PREPROCESSED]
