"""Attacks on neighbouring data sets that give lower bounds on mu and epsilon.

    case --> releases of two neighbours --> attack fitted on one part --> counted on the rest --> Finding

A claim that an attack refutes is contradicted. An audit that fails to refute a mechanism known to be broken
(`controls.py`) is blind. All data sets are synthetic: never audit a private reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, ndtri
from scipy.stats import binom

from dpmd_fast.arguments import checked, checked_integer
from dpmd_fast.errors import UserValueError
from dpmd_fast.privacy.accounting import gdp_epsilon, gdp_mu

Floats = NDArray[np.float64]
Draw = Callable[[int, int], Floats]  # side (0 or 1) and number of releases: (number, p) or (number,)
Kind: TypeAlias = Literal["core", "mechanism", "control"]

CONFIDENCE = 0.95  # of the bounds in the table
STRICT = 0.9999  # of the bounds that decide: with dozens of rows, 95 % would raise false alarms
DELTA = 1e-5
TIGHT = 0.8  # share of its claim that the audit of a Gaussian core must reach
SEEN = 0.5  # share of the pair's mu that an end-to-end audit, with fewer releases, must reach
_CHUNK = 1 << 14
_RIDGE = 1e-9


# Statistics


def clopper_pearson(
    successes: ArrayLike, trials: int, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Return exact limits of a probability, each wrong with probability at most (1 - confidence) / 2."""
    hits = np.asarray(successes, dtype=np.float64)
    tail = 0.5 * (1.0 - checked("confidence", confidence, positive=True, below=1.0))
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, tail), 0.0)
    high = np.where(hits < trials, betainccinv(hits + 1.0, np.maximum(trials - hits, 1.0), tail), 1.0)
    return low, high


def mu_bound(true: ArrayLike, false: ArrayLike, trials: int, confidence: float = CONFIDENCE) -> Floats:
    """Return a lower bound on mu from a test's positives among `trials` releases of each side.

    A mu-GDP mechanism allows no test with Phi^-1(TPR) - Phi^-1(FPR) above mu (Dong, Roth and Su 2022), so the
    limits of both rates give a bound that holds with `confidence`, whatever the mechanism does.
    """
    low = clopper_pearson(true, trials, confidence)[0]
    high = clopper_pearson(false, trials, confidence)[1]
    return np.asarray(np.maximum(0.0, ndtri(low) - ndtri(high)))


def epsilon_bound(
    true: ArrayLike, false: ArrayLike, trials: int, delta: float = DELTA, confidence: float = CONFIDENCE
) -> Floats:
    """Return a lower bound on epsilon: TPR <= e^epsilon FPR + delta, and the same for the complements."""
    low = clopper_pearson(true, trials, confidence)[0]
    high = clopper_pearson(false, trials, confidence)[1]
    with np.errstate(divide="ignore"):
        one = np.log(np.maximum(low - delta, 0.0)) - np.log(high)
        other = np.log(np.maximum(1.0 - high - delta, 0.0)) - np.log(1.0 - low)
    return np.asarray(np.maximum(0.0, np.maximum(one, other)))


def positives(scores: Floats, thresholds: ArrayLike) -> NDArray[np.intp]:
    """Count the scores above each threshold."""
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right"))


def best_thresholds(first: Floats, second: Floats, delta: float = DELTA) -> tuple[float, float]:
    """Return the thresholds with the largest bounds on mu and epsilon; larger scores point to `second`."""
    tails = np.geomspace(1.0 / min(len(first), len(second)), 0.01, 40)
    levels = np.concatenate([np.linspace(0.0, 1.0, 401), tails, 1.0 - tails])
    candidates = np.unique(np.concatenate([np.quantile(first, levels), np.quantile(second, levels)]))
    trials = min(len(first), len(second))
    true, false = positives(second[:trials], candidates), positives(first[:trials], candidates)
    mu = epsilon = np.zeros(1)
    for confidence in (STRICT, CONFIDENCE, 0.5, 0.1):  # with few releases no strict bound exceeds 0
        mu = mu if mu.any() else mu_bound(true, false, trials, confidence)
        epsilon = epsilon if epsilon.any() else epsilon_bound(true, false, trials, delta, confidence)
    return float(candidates[int(np.argmax(mu))]), float(candidates[int(np.argmax(epsilon))])


def discriminant(first: Floats, second: Floats, direction: Floats | None = None) -> Floats:
    """Return the best linear score: inverse noise covariance times the difference of the sides.

    For equal, independent noise this is the difference itself. Noise that repeats or misses a direction has
    directions of little variance, and the weights find them.
    """
    centered = np.concatenate([first - first.mean(axis=0), second - second.mean(axis=0)])
    covariance = centered.T @ centered / len(centered)
    p = len(covariance)
    apart = second.mean(axis=0) - first.mean(axis=0) if direction is None else direction
    ridge = _RIDGE * max(float(np.trace(covariance)) / p, 1e-300)
    return np.asarray(np.linalg.solve(covariance + ridge * np.eye(p), apart))


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the probability of `correct` or more right guesses if the mechanism is (epsilon, delta)-DP.

    `canaries` independent fair coins went into one run, and `guesses` of them are guessed. Theorem 5.2 of
    Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run": the number of right
    guesses is dominated by a binomial with success e^epsilon / (1 + e^epsilon), up to 2 m delta times the
    largest slope of its tail.
    """
    canaries = checked_integer("canaries", canaries, minimum=1)
    if not 0 <= correct <= guesses <= canaries:
        raise UserValueError(
            f"correct = {correct}, guesses = {guesses}: must satisfy correct <= guesses <= {canaries}"
        )
    success = 1.0 / (1.0 + math.exp(-checked("epsilon", epsilon)))
    tails = binom.sf(correct - 1 - np.arange(correct + 1), guesses, success)
    slopes = (tails[1:] - tails[0]) / np.arange(1, correct + 1)
    slope = float(slopes.max()) if correct else 0.0
    return min(1.0, float(tails[0]) + 2.0 * canaries * checked("delta", delta) * slope)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float = DELTA, confidence: float = CONFIDENCE
) -> float:
    """Return the largest epsilon that the guesses of one run refute at `confidence`, or 0."""
    level = 1.0 - checked("confidence", confidence, positive=True, below=1.0)
    if one_run_p_value(canaries, guesses, correct, 0.0, delta) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while one_run_p_value(canaries, guesses, correct, high, delta) < level:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = 0.5 * (low + high)
        if one_run_p_value(canaries, guesses, correct, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


# Findings


@dataclass(frozen=True)
class Finding:
    """The result of auditing one mechanism, sound or broken on purpose."""

    name: str
    kind: Kind
    releases: str  # what was attacked
    claimed: float  # mu
    pair: float | None  # mu of the neighbours that were attacked, where it is known
    mu: float  # lower bounds at 95 %
    epsilon: float
    strict_mu: float  # lower bounds at 99.99 %
    strict_epsilon: float
    delta: float = DELTA
    least: float = 0.0  # `mu` must reach this, or the audit is too weak

    @property
    def claimed_epsilon(self) -> float:
        """Return the claimed epsilon at `delta`, by the exact curve."""
        return gdp_epsilon(self.claimed, self.delta)

    @property
    def contradicted(self) -> bool:
        """Return whether the claim is refuted at 99.99 %."""
        return self.strict_mu > self.claimed or self.strict_epsilon > self.claimed_epsilon

    @property
    def passed(self) -> bool:
        """Return whether a sound mechanism stands and a broken one is caught."""
        if self.kind == "control":
            return self.contradicted
        return not self.contradicted and self.mu >= self.least

    @property
    def verdict(self) -> str:
        if self.kind == "control":
            return "caught" if self.contradicted else "**NOT CAUGHT**"
        if self.contradicted:
            return "**CONTRADICTED**"
        return "not contradicted" if self.passed else f"**AUDIT TOO WEAK**, below {self.least:.3f}"


def audit_pair(
    name: str,
    kind: Kind,
    claimed: float,
    draw: Draw,
    releases: int,
    *,
    what: str = "noisy sums",
    direction: Floats | None = None,
    pair: float | None = None,
    delta: float = DELTA,
    seen: float = 0.0,
) -> Finding:
    """Attack the releases of two neighbours with a linear score and a threshold.

    Parameters
    ----------
    name, kind, claimed
        Of the finding.
    draw : callable
        ``draw(side, count)`` returns fresh releases of neighbour 0 or 1, as rows of numbers or as one score
        each.
    releases : int
        Counted per side. A quarter as many more fit the weights and thresholds.
    what : str
        What is attacked, for the table.
    direction : array, optional
        Noiseless difference of the neighbours, for the weights; estimated by default.
    pair : float, optional
        mu of these neighbours.
    delta : float
    seen : float
        Share of `pair` that the bound must reach; for a core, `TIGHT` of the claim.
    """
    releases = checked_integer("releases", releases, minimum=8)
    fitting = [_draw_all(draw, side, releases // 4) for side in (0, 1)]
    weights: Floats | None = None
    if fitting[0].ndim == 2:
        weights = discriminant(fitting[0], fitting[1], direction)
        fitting = [values @ weights for values in fitting]
    thresholds = best_thresholds(fitting[0], fitting[1], delta)
    false, true = (positives(_draw_all(draw, side, releases, weights), thresholds) for side in (0, 1))
    bounds = [
        (
            float(mu_bound(true[0], false[0], releases, confidence)),
            float(epsilon_bound(true[1], false[1], releases, delta, confidence)),
        )
        for confidence in (CONFIDENCE, STRICT)
    ]
    least = TIGHT * claimed if kind == "core" else seen * (pair or 0.0)
    what = f"{what}, 2 x {releases:,}"
    return Finding(name, kind, what, claimed, pair, *bounds[0], *bounds[1], delta, least)


def _draw_all(draw: Draw, side: int, count: int, weights: Floats | None = None) -> Floats:
    parts = []
    for start in range(0, count, _CHUNK):
        part = draw(side, min(_CHUNK, count - start))
        parts.append(part if weights is None else part @ weights)
    return np.concatenate(parts)


def audit_one_run(
    name: str,
    kind: Kind,
    claimed: float,
    scores: Floats,
    coins: NDArray[np.bool_],
    guesses: int,
    *,
    what: str,
    pair: float | None = None,
    delta: float = DELTA,
) -> Finding:
    """Guess the coins with the scores farthest from 0; a positive score means True.

    A mu-GDP mechanism is (epsilon, delta)-DP with the epsilon of the exact curve, so a refuted epsilon
    refutes the mu that belongs to it.
    """
    decided = np.argsort(-np.abs(scores))[:guesses]
    correct = int(((scores[decided] > 0.0) == coins[decided]).sum())
    pairs = []
    for confidence in (CONFIDENCE, STRICT):
        epsilon = one_run_epsilon(len(coins), guesses, correct, delta, confidence)
        pairs.append((gdp_mu(epsilon, delta) if epsilon > 0.0 else 0.0, epsilon))
    what = f"{what}, {len(coins)} canaries, {correct} of {guesses} guesses right (delta {delta:g})"
    return Finding(name, kind, what, claimed, pair, *pairs[0], *pairs[1], delta)
