"""Predict cost and accuracy of an atlas from public numbers: nothing is spent, and no reference is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from dpmd_fast.arguments import (
    check_anchors,
    checked_bandwidth,
    checked_choice,
    checked_cover,
    checked_integer,
    checked_threads,
)
from dpmd_fast.models.geometry.anchors import thinned
from dpmd_fast.models.geometry.bandwidth import predicted_noise, search_before_spending
from dpmd_fast.models.geometry.tuning import rounds_for
from dpmd_fast.models.preprocessor import Preprocessor, preprocessed
from dpmd_fast.privacy.budget import Budget, check_budget
from dpmd_fast.privacy.guarantee import Adjacency

_PAIRS_PER_SECOND = 2e9  # products of features summed on one core, for a rough estimate of time


@dataclass(frozen=True)
class Plan:
    """Prediction for `release_atlas`.

    Attributes
    ----------
    bandwidth : float
        The first bandwidth; "auto" may continue with a smaller one.
    rounds : int
    dim : int
    anchors : int
        Number of anchors in round 1.
    signal_to_noise : float
        Median mass of an anchor over the deviation of its noise, in round 1 of three.
    noise_error : float
        Error that noise would leave in the finished map; the bias of the bandwidth adds to it, and cannot be
        known before something is spent.
    recommended_epsilon : float
        Smallest epsilon, in steps of sqrt(2) and at the same delta, with enough signal for three rounds.
    seconds : float
        Rough time of the sums over the records on one core; reading the records adds to it.
    mu2 : float
        What would be spent.
    advice : str
        One sentence.
    """

    bandwidth: float
    rounds: int
    dim: int
    anchors: int
    signal_to_noise: float
    noise_error: float
    recommended_epsilon: float
    seconds: float
    mu2: float
    advice: str


def plan(
    anchors: ArrayLike,
    n: int,
    *,
    dim: int | Literal["auto"],
    budget: Budget,
    bandwidth: float | Literal["auto"] = "auto",
    cover: float = 0.3,
    adjacency: Adjacency = "replace-one",
    preprocess: Preprocessor | None = None,
    n_threads: int | None = None,
) -> Plan:
    """Predict signal, error and time of an atlas of `n` records around public points.

    Parameters
    ----------
    anchors : array (m, D)
        The public points to be given to `release_atlas`.
    n : int
        Number of private records, if it is public, or a public guess.
    dim, budget, bandwidth, cover, adjacency, preprocess
        As for `release_atlas`.
    n_threads : int, optional
    """
    Z = thinned(preprocessed("anchors", anchors, preprocess))
    n = checked_integer("n", n, minimum=1)
    check_budget(budget)
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    cover = checked_cover(cover)
    n_threads = checked_threads(n_threads)
    auto = isinstance(bandwidth, str) and bandwidth == "auto"
    d = None if isinstance(dim, str) and dim == "auto" else checked_integer("dim", dim, minimum=1)
    check_anchors(Z, d)
    search = search_before_spending(Z, n, budget, d, adjacency=adjacency, cover=cover, n_threads=n_threads)
    h = search.choose() if auto else checked_bandwidth(bandwidth)
    predicted = search.at(h)
    scatter = search.scatter / h
    rounds = rounds_for(predicted.signal, scatter)
    enough = _enough(budget, predicted.signal, scatter)
    features = search.points.shape[1] + 1
    pairs = n * predicted.reach * features * features * (rounds + 1)
    return Plan(
        bandwidth=h,
        rounds=rounds,
        dim=search.dim if d is None else d,
        anchors=predicted.anchors,
        signal_to_noise=predicted.signal,
        noise_error=predicted_noise(h, predicted.signal),
        recommended_epsilon=enough,
        seconds=pairs / _PAIRS_PER_SECOND,
        mu2=budget.mu**2,
        advice=_advice(predicted.signal, rounds, enough, budget, search.mostly_noise(h)),
    )


def _enough(budget: Budget, signal: float, scatter: float) -> float:
    """Return the epsilon at which S / s, which grows with mu, supports three rounds."""
    epsilon = budget.epsilon
    factor = math.sqrt(2.0)
    while rounds_for(signal * Budget(epsilon, budget.delta, budget.conversion).mu / budget.mu, scatter) < 3:
        epsilon *= factor
        if epsilon > 1e4:
            return math.inf
    while epsilon > 1e-3:
        smaller = Budget(epsilon / factor, budget.delta, budget.conversion)
        if rounds_for(signal * smaller.mu / budget.mu, scatter) < 3:
            break
        epsilon /= factor
    return epsilon


def _advice(signal: float, rounds: int, enough: float, budget: Budget, hopeless: bool) -> str:
    if rounds == 3:
        return f"Signal for three rounds; epsilon = {enough:.3g} would be enough for that."
    if rounds == 2:
        return f"Signal for two rounds; three need epsilon = {enough:.3g} or more records."
    if signal >= 3.0 and not hopeless:
        return f"Signal for one round only; three rounds need epsilon = {enough:.3g} or more records."
    return (
        f"Hardly any chart would stand out from the noise at epsilon = {budget.epsilon:g}: do not spend; use "
        f"a larger bandwidth, more records or epsilon = {enough:.3g}."
    )
