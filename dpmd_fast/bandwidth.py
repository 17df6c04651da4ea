"""The bandwidth of an atlas from public points, and whether to leave it for a smaller one.

Public points tell how much signal a bandwidth gives, not how strongly the manifold bends. How far a
bandwidth is too large shows in the first residual round: the correction it finds, less what noise of both
rounds explains, is the bias of round 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmd_fast.cover import Floats, Prospect, foresee, smoothed
from dpmd_fast.rounds import FIRST_SHARE, C

ENOUGH_SIGNAL = 300.0  # S / s of round 1 beyond which a smaller bandwidth is better
SHRINK = 0.65
_LEAST_SIGNAL = 60.0
_BIAS_LEFT = 0.45  # what residual rounds leave of the bias of round 1
_BIAS_ORDER = 2.0  # bias grows with this power of the bandwidth
_NOISE = 0.7  # noise of the finished map, in units of h s / S
_WORTH = 0.9  # predicted error of a smaller bandwidth over that of going on, to begin again


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

    def choose(self) -> float:
        """Smallest bandwidth above the scatter of the points with enough signal, else the largest."""
        floor = 4.0 * self.scatter
        if floor >= self.largest:
            return self.largest
        for k in range(int(math.log(self.largest / floor) / math.log(1.12)), -1, -1):
            h = self.largest / 1.12**k
            if self.at(h).signal >= ENOUGH_SIGNAL:
                return h
        return self.largest


class Decision(NamedTuple):
    bandwidth: float
    going_on: float  # predicted error of the present bandwidth
    beginning_again: float  # and of the smaller one


def predicted_noise(h: float, signal: float) -> float:
    """Error that noise leaves in a finished map; it gets out of hand where signal is low."""
    return _NOISE * h / signal * (1.0 + (60.0 / signal) ** 2)


def predicted_error(h: float, signal: float, bias: float) -> float:
    return math.hypot(_BIAS_LEFT * bias, predicted_noise(h, signal))


def reconsider(outlook: Outlook, h: float, bias: float, left: float) -> Decision:
    """Whether to begin again with a smaller bandwidth, with the share `left` of the budget of the rounds."""
    smaller = SHRINK * h
    scale = math.sqrt(left)
    going_on = predicted_error(h, scale * outlook.at(h).signal, bias)
    if smaller < outlook.least:
        return Decision(h, going_on, math.inf)
    signal = scale * outlook.at(smaller).signal
    if signal < _LEAST_SIGNAL:
        return Decision(h, going_on, math.inf)
    beginning_again = predicted_error(smaller, signal, SHRINK**_BIAS_ORDER * bias)
    better = beginning_again < _WORTH * going_on
    return Decision(smaller if better else h, going_on, beginning_again)
