"""Choose the bandwidth of an atlas from public points, and decide whether to start over with a smaller one.

Public points predict how much signal a bandwidth gives, but bias only where the manifold bends strongly. The
first residual round shows whether a bandwidth is too large: the correction it finds, less what the noise of
both rounds explains, is the bias of round 1. If there is plenty of signal, the number of records in a ball
limits how small the bandwidth can be: with few records, their own scatter does not average out.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import covariance, product
from dpmd_fast.models.geometry.anchors import (
    Floats,
    SignalPrediction,
    predict_round,
    public_bias2,
    rms_radius,
    smoothed,
    spacing,
    spectrum_dim,
)
from dpmd_fast.models.geometry.tuning import (
    BANDWIDTH_STEP,
    BIAS_AT,
    BIAS_LEFT,
    BIAS_ORDER,
    ENOUGH_RECORDS,
    ENOUGH_SIGNAL,
    FEWEST_AROUND,
    FINAL_BIAS,
    FINAL_NOISE,
    FINAL_SAMPLING,
    FINAL_SIGNAL,
    FIND_SHARE,
    FIRST_BIAS,
    FIRST_SHARE,
    LEAST_COLUMNS,
    LEAST_RATIO,
    LEAST_SIGNAL,
    LEAST_START,
    MAP_NOISE,
    NOISY_SIGNAL,
    PUBLIC_BIAS_ORDER,
    REFINE_SHARE,
    RESIDUAL_BANDWIDTH,
    SCATTER_LEFT,
    SHRINK,
    WORTH_LESS,
    WORTH_SHRINKING,
    rounds_for,
)
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import relative_sensitivity

# Beyond these an error is hopeless, whichever it is, and its square could overflow for bandwidths near 1e100.
_NO_SIGNAL = 1e-9  # signal over noise
_WHOLE = 1e6  # bandwidth over the largest that makes sense


class FinalError(NamedTuple):
    """Parts of the predicted error of a finished map: mean distances, in the units of the data."""

    noise: float
    bias: float
    sampling: float  # the records' own scatter that does not average out

    @property
    def total(self) -> float:
        """The predicted mean distance of transformed points from the manifold."""
        return math.hypot(*self)


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
    sparse : float
        Below this bandwidth, the median point has too few others around it to predict a mass by them.
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
        flat = smoothed(Z, largest, dim, n_threads)
        moved = np.sqrt(((Z - flat) ** 2).sum(axis=1))
        self.scatter = math.sqrt(float((moved**2).mean()))
        if 4.0 * self.scatter >= largest:
            largest = min(4.0 * self.scatter, 0.8 * rms)
        self.largest = largest
        self.least = min(largest, 1.05 * float(np.quantile(moved, 0.995)))
        self.sparse = spacing(flat, FEWEST_AROUND)

    def at(self, h: float) -> SignalPrediction:
        """Return the prediction at a bandwidth.

        An anchor is a public point itself, so its mass never seems to fall below that of one point, however
        small the bandwidth. Where there are few others, it is that of the density of a surface instead.
        """
        if h not in self._known:
            most = math.inf
            if h < self.sparse:
                most = self.at(self.sparse).signal * (h / self.sparse) ** self.dim
            self._known[h] = predict_round(
                self.points,
                h,
                self._n,
                self._mu * math.sqrt(FIRST_SHARE),
                self.dim,
                sensitivity=self._sensitivity,
                cover=self._cover,
                most=most,
                n_threads=self._n_threads,
            )
        return self._known[h]

    def sampling_error(self, h: float, scatter: float) -> float:
        """Return the error of a local regression on the records of one ball, given their `scatter`."""
        records = RESIDUAL_BANDWIDTH**self.dim * self.at(h).records
        return scatter * math.sqrt((self.dim + 1) / max(records, 1.0))

    @cached_property
    def _bias_factor(self) -> float:
        """The bias of maps of public points at the largest bandwidth, if it grows by a power of it.

        By least squares over a few bandwidths. Powers of shares neither overflow nor vanish, in any unit.
        """
        found = [
            public_bias2(self.points, share * self.largest, self.dim, self._n_threads) for share in BIAS_AT
        ]
        powers = np.array(BIAS_AT) ** (2.0 * PUBLIC_BIAS_ORDER)
        return math.sqrt(float((powers * np.array(found)).sum() / (powers * powers).sum()))

    def final_error(self, h: float) -> FinalError:
        """Return the predicted error of the finished map, with all of the budget spent at a bandwidth."""
        predicted = self.at(h)
        signal = max(predicted.signal, _NO_SIGNAL)
        noisy = 1.0 + (FINAL_SIGNAL / signal) ** 2
        share = min(h / self.largest, _WHOLE)
        return FinalError(
            noise=FINAL_NOISE * h / signal * noisy,
            bias=FINAL_BIAS * self._bias_factor * share**PUBLIC_BIAS_ORDER,
            sampling=FINAL_SAMPLING * self.sampling_error(h, self.scatter),
        )

    def expected_error(self, h: float) -> FinalError:
        """Return the predicted error of the finished map if "auto" begins with a bandwidth.

        Where signal allows a test of the bias, the rounds can start over with a smaller bandwidth, as in
        `decide_bandwidth`; the prediction is then the better of the two.
        """
        kept, smaller = self.final_error(h), SHRINK * h
        rounds = rounds_for(self.at(h).signal, self.scatter / h)
        if rounds == 1:  # no residual round reduces the bias
            return kept._replace(bias=FIRST_BIAS / FINAL_BIAS * kept.bias)
        if rounds == 2 or smaller < self.least or self.at(smaller).signal < LEAST_SIGNAL:
            return kept
        return min(kept, self.final_error(smaller), key=lambda error: error.total)

    def choose(self) -> float:
        """Return the bandwidth to begin with.

        That is the smallest above the points' scatter with enough signal: a test of the bias can follow. If
        none has, it is the largest, or a smaller one at which public points predict a much smaller error.
        """
        floor = 4.0 * self.scatter
        if floor >= self.largest:
            return self.largest
        floor = max(floor, LEAST_RATIO * self.largest)  # for points without scatter
        steps = int(math.log(self.largest / floor) / math.log(BANDWIDTH_STEP))
        widths = [self.largest / BANDWIDTH_STEP**k for k in range(steps, -1, -1)]
        for h in widths:
            if self._enough(h):
                return h
        errors = {h: self.final_error(h).total for h in widths if h >= LEAST_START * self.largest}
        best = min(errors, key=errors.__getitem__)
        return best if errors[best] < WORTH_LESS * errors[self.largest] else self.largest

    def _enough(self, h: float) -> bool:
        """Return True if a bandwidth has so much signal, and so many records, that a larger one is worse."""
        enough = self.at(h).signal >= ENOUGH_SIGNAL
        return enough and self.sampling_error(h, self.scatter) <= ENOUGH_RECORDS * h


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
    """Return public points in their leading coordinates, which stand in for the subspace to be released."""
    return np.ascontiguousarray(product(Z - Z.mean(axis=0), leading_basis(Z, least)))


def leading_basis(Z: Floats, least: int = 2) -> Floats:
    """Return the orthonormal directions (D, q) in which public points vary most.

    At least `least` of them are kept: a surface needs one more than its dimension.

    Those are left out whose variance could be that of noise of the same size in all coordinates: below the
    edge of the Marchenko-Pastur law for so many points.
    """
    values, vectors = spectra(covariance(Z))
    values, vectors = values[::-1], vectors[:, ::-1]
    ratio = min(1.0, len(values) / len(Z))
    noise = float(np.median(values)) / (1.0 - ratio / 3.0)
    kept = int((values > 1.1 * (1.0 + math.sqrt(ratio)) ** 2 * noise).sum())
    kept = max(2, least, min(kept, len(values) // 2))
    basis: Floats = vectors[:, :kept]
    return basis


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
