"""The rounds of an atlas: how many, at which bandwidth, with which share of the budget.

Round 1 releases moments at anchors and turns them into charts. Residual rounds release moments of the
records' residuals under the map so far, and correct it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpmd_fast.kernels.charts import Field, apply_fields
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums, ResidualSums
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.kernels.sums.residuals import make_frames, residual_norms
from dpmd_fast.mechanisms.spend import Floats, Mechanism
from dpmd_fast.models.geometry.anchors import greedy_cover, smoothed
from dpmd_fast.models.geometry.bandwidth import BandwidthSearch, decide_bandwidth
from dpmd_fast.models.geometry.charts import (
    Charts,
    Correction,
    FirstRelease,
    make_charts,
    make_correction,
    projection_field,
    simulated_noise,
    tangents_at,
)
from dpmd_fast.models.geometry.tuning import (
    BIAS_TESTS,
    CLIP_SHARE,
    LEAST_NORMAL,
    MOST_ATTEMPTS,
    NORMAL_DEVIATIONS,
    RESIDUAL_BANDWIDTH,
    rounds_for,
    shares_of,
)
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS as C
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference.tasks import SumTask


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
    """Runs attempts; every call of `run` spends its share.

    Attributes
    ----------
    mechanism : Mechanism
    public : array
        Public points, in the coordinates in which the rounds work.
    dim : int
    cover : float
        Distance of the anchors in bandwidths.
    mu2 : float
        Budget of the rounds.
    """

    mechanism: Mechanism
    public: Floats
    dim: int
    cover: float
    mu2: float

    def run(self, attempt: Attempt, share: float) -> tuple[str, float]:
        """Run the next round of an attempt with `share` of the budget; return what it was, and the share."""
        attempt.spent.append(share)
        mu = math.sqrt(share * self.mu2)
        flat = smoothed(self.public, attempt.bandwidth, attempt.dim, self.mechanism.n_threads)
        if len(attempt.spent) == 1:
            self._first(attempt, flat, mu)
        elif attempt.charts is not None:
            self._residual(attempt, attempt.charts, flat, mu)
        return f"round {len(attempt.spent)} at bandwidth {attempt.bandwidth:.4g}", share

    def _first(self, attempt: Attempt, flat: Floats, mu: float) -> None:
        anchors = greedy_cover(flat, self.cover * attempt.bandwidth)
        release = release_anchors(self.mechanism, anchors, attempt.bandwidth, mu)
        found = make_charts(release, attempt.dim)
        if found is None:
            return
        attempt.charts, attempt.variance = found
        attempt.fields = [projection_field(attempt.charts)]
        attempt.noise2 = simulated_noise(release, attempt.fields[0], flat, attempt.dim)
        attempt.signals.append(1.0 / attempt.charts.noise_to_mass)

    def _residual(self, attempt: Attempt, charts: Charts, flat: Floats, mu: float) -> None:
        h = RESIDUAL_BANDWIDTH * attempt.bandwidth
        moved = apply_fields(attempt.fields, flat, self.mechanism.n_threads)[0]
        anchors = greedy_cover(moved, self.cover * h)
        correction = release_residuals(
            self.mechanism, attempt.fields, charts, moved, anchors, h, attempt.variance, mu
        )
        if correction is None:
            return
        if len(attempt.fields) == 1:
            attempt.bias = math.sqrt(max(0.0, correction.error2 - attempt.noise2))
        attempt.fields.append(correction.field)
        attempt.variance = correction.variance
        attempt.signals.append(correction.signal)


def release_anchors(mechanism: Mechanism, anchors: Floats, h: float, mu: float) -> FirstRelease:
    """Release the moments of round 1."""
    index = build_index(anchors, h)
    tau = CLIP_SHARE * float(record_norms(index, anchors, 2.0, C, mechanism.n_threads).max())
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    values = mechanism.release(SumTask(partial(MomentSums, index, 2.0, tau, lattice.steps, C)), lattice)
    return FirstRelease(values, lattice.noise_scale, anchors, h)


def release_residuals(
    mechanism: Mechanism,
    fields: list[Field],
    charts: Charts,
    public: Floats,
    anchors: Floats,
    h: float,
    variance: float,
    mu: float,
) -> Correction | None:
    """Release the moments of residuals around `anchors`; return their correction, or None without signal.

    A record's features are its residual under the map so far and its coordinates in the frame of a chart:
    functions of the record and of earlier releases.
    """
    normal = min(h, max(LEAST_NORMAL * h, NORMAL_DEVIATIONS * math.sqrt(variance)))
    tangents = tangents_at(anchors, charts, charts.tangents.shape[2])
    frames = make_frames(anchors, tangents, h, normal, mechanism.n_threads)
    no_residuals = np.zeros_like(anchors)
    tau = CLIP_SHARE * float(residual_norms(frames, anchors, no_residuals, C, mechanism.n_threads).max())
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    values = mechanism.release(SumTask(partial(ResidualSums, fields, frames, tau, lattice.steps, C)), lattice)
    return make_correction(values, anchors, tangents, h, normal, lattice.noise_scale, public)


def run_rounds(
    rounds: Rounds, search: BandwidthSearch, bandwidth: float | None, number: int | None
) -> tuple[Attempt, list[tuple[str, float]]]:
    """Spend the whole budget of the rounds; return the finished attempt, and all shares in the order spent.

    With a given bandwidth or number of rounds there is nothing to test. Otherwise the first two rounds get
    small shares, enough to see the bias of round 1; then the rest of the budget pays either for a third round
    or for starting over with a smaller bandwidth.
    """
    attempt = Attempt(search.choose() if bandwidth is None else bandwidth, rounds.dim)
    left = 1.0
    shares: list[tuple[str, float]] = []
    for again in range(MOST_ATTEMPTS):
        signal = math.sqrt(left) * search.at(attempt.bandwidth).signal
        wanted = rounds_for(signal, search.scatter / attempt.bandwidth) if number is None else number
        if bandwidth is not None or number is not None or wanted < 3 or again == MOST_ATTEMPTS - 1:
            for share in shares_of(wanted):
                shares.append(rounds.run(attempt, left * share))
            return attempt, shares
        test = next(pair for least, pair in BIAS_TESTS if signal >= least)
        for share in test:
            shares.append(rounds.run(attempt, left * share))
        left *= 1.0 - sum(test)
        scatter = math.sqrt(attempt.variance)
        decision = decide_bandwidth(search, attempt.bandwidth, attempt.bias, scatter, left)
        if decision.bandwidth == attempt.bandwidth:
            shares.append(rounds.run(attempt, left))
            return attempt, shares
        attempt = Attempt(decision.bandwidth, attempt.dim)
    raise AssertionError("the last attempt returns")
