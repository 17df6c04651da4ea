"""Choose the bandwidth of an atlas from public points, and decide whether to start over with a smaller one.

Public points predict how much signal a bandwidth gives, but not the curvature of the manifold. The first
residual round shows whether a bandwidth is too large: the correction it finds, less what the noise of both
rounds explains, is the bias of round 1. If there is plenty of signal, the number of records in a ball limits
how small the bandwidth can be: with few records, their own scatter does not average out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.models.geometry.anchors import (
    Floats,
    SignalPrediction,
    predict_round,
    rms_radius,
    smoothed,
    spectrum_dim,
)
from dpmd_fast.models.geometry.tuning import (
    BANDWIDTH_STEP,
    BIAS_LEFT,
    BIAS_ORDER,
    ENOUGH_RECORDS,
    ENOUGH_SIGNAL,
    FIND_SHARE,
    FIRST_SHARE,
    LEAST_COLUMNS,
    LEAST_RATIO,
    LEAST_SIGNAL,
    MAP_NOISE,
    NOISY_SIGNAL,
    REFINE_SHARE,
    RESIDUAL_BANDWIDTH,
    SCATTER_LEFT,
    SHRINK,
    WORTH_SHRINKING,
)
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import relative_sensitivity


class BandwidthSearch:
    """Predictions of round 1 at different bandwidths, from public points.

    Parameters
    ----------
    Z : array (m, D)
        Public points, in the coordinates in which the rounds work.
    n : int
        Public number of records.
    mu : float
        Budget of the rounds.
    dim : int
    adjacency : {"replace-one", "add-remove"}
    cover : float
        Distance between anchors in units of the bandwidth.

    Attributes
    ----------
    scatter : float
        Rms distance of the points from their smoothed copy, at the largest bandwidth.
    largest, least : float
        Range of bandwidths to choose from; below `least`, points are out of reach of the charts.
    """

    def __init__(
        self,
        Z: Floats,
        n: int,
        mu: float,
        dim: int,
        *,
        adjacency: Adjacency,
        cover: float,
        n_threads: int | None,
    ) -> None:
        self.points, self.dim = Z, dim
        self._n, self._mu, self._cover, self._n_threads = n, mu, cover, n_threads
        self._sensitivity = relative_sensitivity(adjacency)
        self._known: dict[float, SignalPrediction] = {}
        rms = rms_radius(Z)
        largest = 0.5 * rms
        moved = np.sqrt(((Z - smoothed(Z, largest, dim, n_threads)) ** 2).sum(axis=1))
        self.scatter = math.sqrt(float((moved**2).mean()))
        if 4.0 * self.scatter >= largest:
            largest = min(4.0 * self.scatter, 0.8 * rms)
        self.largest = largest
        self.least = min(largest, 1.05 * float(np.quantile(moved, 0.995)))

    def at(self, h: float) -> SignalPrediction:
        """Return the prediction at a bandwidth."""
        if h not in self._known:
            self._known[h] = predict_round(
                self.points,
                h,
                self._n,
                self._mu * math.sqrt(FIRST_SHARE),
                self.dim,
                sensitivity=self._sensitivity,
                cover=self._cover,
                n_threads=self._n_threads,
            )
        return self._known[h]

    def sampling_error(self, h: float, scatter: float) -> float:
        """Return the error of a local regression on the records of one ball, given their `scatter`."""
        records = RESIDUAL_BANDWIDTH**self.dim * self.at(h).records
        return scatter * math.sqrt((self.dim + 1) / max(records, 1.0))

    def choose(self) -> float:
        """Return the smallest bandwidth above the points' scatter with enough signal, else the largest."""
        floor = 4.0 * self.scatter
        if floor >= self.largest:
            return self.largest
        floor = max(floor, LEAST_RATIO * self.largest)  # for points without scatter
        for k in range(int(math.log(self.largest / floor) / math.log(BANDWIDTH_STEP)), -1, -1):
            h = self.largest / BANDWIDTH_STEP**k
            enough = self.at(h).signal >= ENOUGH_SIGNAL
            if enough and self.sampling_error(h, self.scatter) <= ENOUGH_RECORDS * h:
                return h
        return self.largest


def search_before_spending(
    Z: Floats,
    n: int,
    budget: Budget,
    dim: int | None,
    *,
    adjacency: Adjacency,
    cover: float,
    n_threads: int | None,
) -> BandwidthSearch:
    """Return predictions before anything is spent; in high D, in the public points' leading coordinates."""
    share, points = 1.0, Z
    if Z.shape[1] >= LEAST_COLUMNS:
        share -= FIND_SHARE + REFINE_SHARE
        points = leading(Z, 2 if dim is None else dim + 1)
    d = spectrum_dim(points, n_threads) if dim is None else dim
    return BandwidthSearch(
        points,
        n,
        math.sqrt(share) * budget.mu,
        min(d, points.shape[1] - 1),
        adjacency=adjacency,
        cover=cover,
        n_threads=n_threads,
    )


def leading(Z: Floats, least: int = 2) -> Floats:
    """Return public points in their leading coordinates, which stand in for the subspace to be released.

    At least `least` of them are kept: a surface needs one more than its dimension.

    Those are left out whose variance could be that of noise of the same size in all coordinates: below the
    edge of the Marchenko-Pastur law for so many points.
    """
    center = Z.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(Z.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    ratio = min(1.0, len(values) / len(Z))
    noise = float(np.median(values)) / (1.0 - ratio / 3.0)
    kept = int((values > 1.1 * (1.0 + math.sqrt(ratio)) ** 2 * noise).sum())
    kept = max(2, least, min(kept, len(values) // 2))
    return np.ascontiguousarray((Z - center) @ vectors[:, :kept])


def predicted_noise(h: float, signal: float) -> float:
    """Return the error that noise leaves in a finished map; it grows steeply where signal is low."""
    return MAP_NOISE * h / signal * (1.0 + (NOISY_SIGNAL / signal) ** 2)


def predicted_error(h: float, signal: float, bias: float, sampling: float) -> float:
    """Return the error of a finished map from bias, noise and number of records together."""
    return math.hypot(BIAS_LEFT * bias, predicted_noise(h, signal), sampling)


class Decision(NamedTuple):
    """The bandwidth to continue with, and the predicted errors behind the choice."""

    bandwidth: float
    if_kept: float
    if_smaller: float


def decide_bandwidth(search: BandwidthSearch, h: float, bias: float, scatter: float, left: float) -> Decision:
    """Decide whether to start over with a smaller bandwidth, with the share `left` of the rounds' budget.

    `bias` and `scatter` are the released estimates of the map's bias and of the records' scatter around it.
    """
    smaller = SHRINK * h
    scatter = math.sqrt(max(0.0, scatter * scatter - bias * bias))  # bias is not scatter
    scale = math.sqrt(left)
    if_kept = predicted_error(h, scale * search.at(h).signal, bias, search.sampling_error(h, scatter))
    if smaller < search.least:
        return Decision(h, if_kept, math.inf)
    signal = scale * search.at(smaller).signal
    if signal < LEAST_SIGNAL:
        return Decision(h, if_kept, math.inf)
    sampling = search.sampling_error(smaller, SCATTER_LEFT * scatter)
    if_smaller = predicted_error(smaller, signal, SHRINK**BIAS_ORDER * bias, sampling)
    better = if_smaller < WORTH_SHRINKING * if_kept
    return Decision(smaller if better else h, if_kept, if_smaller)
