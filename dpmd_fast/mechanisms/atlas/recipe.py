"""From a budget to the fields of an atlas: which rounds, at which bandwidth, with which share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dpmd_fast.kernels.charts import Field, apply_fields
from dpmd_fast.mechanisms.atlas.rounds import (
    FIRST_SHARE,
    RESIDUAL_BANDWIDTH,
    Charts,
    Mechanism,
    charts_of,
    projection_field,
    release_anchors,
    released_dim,
    residual_round,
    simulated_noise,
)
from dpmd_fast.models.geometry.anchors import Floats, greedy_cover, smoothed
from dpmd_fast.models.geometry.bandwidth import Outlook, reconsider

SPLITS = {1: (1.0,), 2: (0.4, 0.6), 3: (FIRST_SHARE, 0.3, 0.35)}
_THREE_ROUNDS, _TWO_ROUNDS = 110.0, 50.0  # S / s that they need
_MOST_ATTEMPTS = 3
# S / s of round 1 and the shares of the first two rounds, with which the bias of round 1 can still be seen
_TESTS = ((250.0, (0.13, 0.13)), (150.0, (0.2, 0.2)), (0.0, (FIRST_SHARE, 0.3)))


@dataclass
class Attempt:
    """The rounds at one bandwidth, and what they have spent as shares of the budget of the rounds."""

    bandwidth: float
    dim: int
    spent: list[float] = field(default_factory=list)
    charts: Charts | None = None
    fields: list[Field] = field(default_factory=list)
    variance: float = 0.0
    noise2: float = 0.0  # mean squared error of round 1 from noise
    bias: float = 0.0
    signals: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rounds:
    """Runs attempts: every call of `run` spends its share."""

    mechanism: Mechanism
    public: Floats
    dim: int
    read_dim: bool  # whether to take the dimension from the release of round 1
    cover: float
    mu2: float

    def run(self, attempt: Attempt, share: float) -> tuple[str, float]:
        """The next round of an attempt, with `share` of the budget; what it was, and the share."""
        attempt.spent.append(share)
        self._run(attempt, share)
        return f"round {len(attempt.spent)} at bandwidth {attempt.bandwidth:.4g}", share

    def _run(self, attempt: Attempt, share: float) -> None:
        mu = math.sqrt(share * self.mu2)
        flat = smoothed(self.public, attempt.bandwidth, attempt.dim, self.mechanism.n_threads)
        if len(attempt.spent) == 1:
            anchors = greedy_cover(flat, self.cover * attempt.bandwidth)
            release = release_anchors(self.mechanism, anchors, attempt.bandwidth, mu)
            if self.read_dim:
                attempt.dim = released_dim(release) or attempt.dim
            found = charts_of(release, attempt.dim)
            if found is not None:
                attempt.charts, attempt.variance = found
                attempt.fields = [projection_field(found[0])]
                attempt.noise2 = simulated_noise(release, attempt.fields[0], flat, attempt.dim)
                attempt.signals.append(1.0 / found[0].noise_to_mass)
            return
        if attempt.charts is None:
            return
        h = RESIDUAL_BANDWIDTH * attempt.bandwidth
        moved = apply_fields(attempt.fields, flat, self.mechanism.n_threads)[0]
        correction = residual_round(
            self.mechanism,
            attempt.fields,
            attempt.charts,
            moved,
            greedy_cover(moved, self.cover * h),
            h,
            attempt.variance,
            mu,
        )
        if correction is None:
            return
        if len(attempt.fields) == 1:
            attempt.bias = math.sqrt(max(0.0, correction.error2 - attempt.noise2))
        attempt.fields.append(correction.field)
        attempt.variance = correction.variance
        attempt.signals.append(correction.signal)


def rounds_for(signal: float) -> int:
    """Number of rounds that a predicted S / s of round 1 supports."""
    return 3 if signal >= _THREE_ROUNDS else 2 if signal >= _TWO_ROUNDS else 1


def build(
    rounds: Rounds, outlook: Outlook, bandwidth: float | None, number: int | None
) -> tuple[Attempt, list[tuple[str, float]]]:
    """Spend the whole budget of the rounds; the finished attempt, and all shares in the order spent.

    With a given bandwidth or number of rounds there is nothing to find out. Otherwise the first two rounds
    get small shares, enough to see the bias of round 1, and either a third follows or all begins again with
    a smaller bandwidth, both with what is left.
    """
    attempt = Attempt(outlook.choose() if bandwidth is None else bandwidth, rounds.dim)
    left = 1.0
    shares: list[tuple[str, float]] = []
    for again in range(_MOST_ATTEMPTS):
        signal = math.sqrt(left) * outlook.at(attempt.bandwidth).signal
        wanted = rounds_for(signal) if number is None else number
        if bandwidth is not None or number is not None or wanted < 3 or again == _MOST_ATTEMPTS - 1:
            for share in _split(wanted):
                shares.append(rounds.run(attempt, left * share))
            return attempt, shares
        test = next(pair for least, pair in _TESTS if signal >= least)
        for share in test:
            shares.append(rounds.run(attempt, left * share))
        left *= 1.0 - sum(test)
        decision = reconsider(outlook, attempt.bandwidth, attempt.bias, math.sqrt(attempt.variance), left)
        if decision.bandwidth == attempt.bandwidth:
            shares.append(rounds.run(attempt, left))
            return attempt, shares
        attempt = Attempt(decision.bandwidth, attempt.dim)
    raise AssertionError("the last attempt returns")


def _split(number: int) -> tuple[float, ...]:
    if number in SPLITS:
        return SPLITS[number]
    return (FIRST_SHARE, *np.full(number - 1, (1.0 - FIRST_SHARE) / (number - 1)).tolist())
