"""The bandwidth of an atlas from public points, and whether to leave it for a smaller one.

Public points tell how much signal a bandwidth gives, not how strongly the manifold bends. How far a
bandwidth is too large shows in the first residual round: the correction it finds, less what noise of both
rounds explains, is the bias of round 1. Where signal abounds, the number of records in a ball is what limits
a small bandwidth: their own scatter does not average out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmd_fast.mechanisms.atlas.rounds import FIRST_SHARE, RESIDUAL_BANDWIDTH, C
from dpmd_fast.mechanisms.atlas.subspace import FIND_SHARE, LEAST_COLUMNS, REFINE_SHARE
from dpmd_fast.models.geometry.anchors import Floats, Prospect, foresee, smoothed, spectrum_dim
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import contributions_apart

ENOUGH_SIGNAL = 300.0  # S / s of round 1 beyond which a smaller bandwidth is better
ENOUGH_RECORDS = 0.0165  # error from the number of records over the bandwidth, likewise
SHRINK = 0.65
_LEAST_SIGNAL = 60.0
_HOPELESS_SIGNAL = 20.0  # below, noise decides where charts are
_LEAST_RATIO = 1e-3  # of bandwidths that are tried
_BIAS_LEFT = 0.45  # what residual rounds leave of the bias of round 1
_BIAS_ORDER = 2.0  # bias grows with this power of the bandwidth
_SCATTER_LEFT = 0.9  # of the scatter seen at a bandwidth, at a smaller one: some of it is bending
_NOISE = 0.7  # noise of the finished map, in units of h s / S
_WORTH = 0.97  # predicted error of a smaller bandwidth over that of going on, to begin again


class Outlook:
    """What round 1 at a bandwidth promises, predicted from public points."""

    def __init__(
        self,
        Z: Floats,
        n: int,
        mu: float,
        dim: int,
        *,
        apart: float,
        cover: float,
        n_threads: int | None,
    ) -> None:
        self.points = Z
        self._look: Callable[[float], Prospect] = lambda h: foresee(
            Z, h, n, mu * math.sqrt(FIRST_SHARE), dim, apart=apart, cover=cover, c=C, n_threads=n_threads
        )
        self.dim = dim
        self._known: dict[float, Prospect] = {}
        rms = math.sqrt(float(((Z - Z.mean(axis=0)) ** 2).sum(axis=1).mean()))
        largest = 0.5 * rms
        moved = np.sqrt(((Z - smoothed(Z, largest, dim, n_threads)) ** 2).sum(axis=1))
        self.scatter = math.sqrt(float((moved**2).mean()))
        if 4.0 * self.scatter >= largest:
            largest = min(4.0 * self.scatter, 0.8 * rms)
        self.largest = largest
        self.least = min(largest, 1.05 * float(np.quantile(moved, 0.995)))  # below, points are out of reach

    def at(self, h: float) -> Prospect:
        if h not in self._known:
            self._known[h] = self._look(h)
        return self._known[h]

    def sampled(self, h: float, scatter: float) -> float:
        """Error of local regressions on as many records as there are, if they scatter like this."""
        records = RESIDUAL_BANDWIDTH**self.dim * self.at(h).records
        return scatter * math.sqrt((self.dim + 1) / max(records, 1.0))

    def choose(self) -> float:
        """Smallest bandwidth above the scatter of the points with enough signal, else the largest."""
        floor = 4.0 * self.scatter
        if floor >= self.largest:
            return self.largest
        floor = max(floor, _LEAST_RATIO * self.largest)  # points without scatter
        for k in range(int(math.log(self.largest / floor) / math.log(1.12)), -1, -1):
            h = self.largest / 1.12**k
            if self.at(h).signal >= ENOUGH_SIGNAL and self.sampled(h, self.scatter) <= ENOUGH_RECORDS * h:
                return h
        return self.largest

    def hopeless(self, h: float) -> bool:
        """Whether noise would move points much further than they are off."""
        signal = self.at(h).signal
        return signal < _HOPELESS_SIGNAL and predicted_noise(h, signal) > 3.0 * self.scatter


def foreseen(
    Z: Floats,
    n: int,
    budget: Budget,
    dim: int | None,
    *,
    adjacency: Adjacency,
    cover: float,
    n_threads: int | None,
) -> Outlook:
    """The outlook before anything is spent; in high D in the leading coordinates of the public points."""
    share, points = 1.0, Z
    if Z.shape[1] >= LEAST_COLUMNS:
        share -= FIND_SHARE + REFINE_SHARE
        points = _leading(Z)
    d = spectrum_dim(points, n_threads) if dim is None else dim
    return Outlook(
        points,
        n,
        math.sqrt(share) * budget.mu,
        min(d, points.shape[1] - 1),
        apart=contributions_apart(adjacency),
        cover=cover,
        n_threads=n_threads,
    )


def _leading(Z: Floats) -> Floats:
    """Public points in their leading coordinates, in the place of the subspace to be released."""
    center = Z.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(Z.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    tail = values[len(values) // 2 :].mean()
    kept = max(2, int((values > 2.0 * tail).sum()))
    return np.ascontiguousarray((Z - center) @ vectors[:, : min(kept, len(values) // 2)])


class Decision(NamedTuple):
    bandwidth: float
    going_on: float  # predicted error of the present bandwidth
    beginning_again: float  # and of the smaller one


def predicted_noise(h: float, signal: float) -> float:
    """Error that noise leaves in a finished map; it gets out of hand where signal is low."""
    return _NOISE * h / signal * (1.0 + (60.0 / signal) ** 2)


def predicted_error(h: float, signal: float, bias: float, sampled: float) -> float:
    return math.hypot(_BIAS_LEFT * bias, predicted_noise(h, signal), sampled)


def reconsider(outlook: Outlook, h: float, bias: float, scatter: float, left: float) -> Decision:
    """Whether to begin again with a smaller bandwidth, with the share `left` of the budget of the rounds.

    `bias` and `scatter` are what the rounds so far say of the map and of the records about it.
    """
    smaller = SHRINK * h
    scatter = math.sqrt(max(0.0, scatter * scatter - bias * bias))  # what bends is no scatter
    scale = math.sqrt(left)
    sampled = outlook.sampled(h, scatter)
    going_on = predicted_error(h, scale * outlook.at(h).signal, bias, sampled)
    if smaller < outlook.least:
        return Decision(h, going_on, math.inf)
    signal = scale * outlook.at(smaller).signal
    if signal < _LEAST_SIGNAL:
        return Decision(h, going_on, math.inf)
    sampled = outlook.sampled(smaller, _SCATTER_LEFT * scatter)
    beginning_again = predicted_error(smaller, signal, SHRINK**_BIAS_ORDER * bias, sampled)
    better = beginning_again < _WORTH * going_on
    return Decision(smaller if better else h, going_on, beginning_again)
