"""Computations on public points alone: a smoothed copy, a cover by anchors, the signal of a first round."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from dpmd_fast.kernels.charts import make_field, move
from dpmd_fast.kernels.eigen.spectra import spectra, top_vectors
from dpmd_fast.kernels.linear import product, weighted
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.models.geometry.tuning import (
    BIAS_NOISE,
    BIAS_POINTS,
    BIAS_RATIO,
    BIAS_SPLITS,
    CLIP_SHARE,
    FEWEST_PUBLIC,
    HOMOGENEOUS,
    MOST_PUBLIC,
    OCCUPIED,
    PROJECTION_PASSES,
    PUBLIC_BYTES,
    PUBLIC_HOMOGENEOUS,
    SMOOTHING_PASSES,
)
from dpmd_fast.models.moments import LocalMoments, read_moments

Floats = NDArray[np.float64]
_NO_SPREAD = 1e-9  # variance in squared bandwidths, below which it is 0 up to rounding
_STEPS = 1 << 31  # lattice steps per largest contribution: without noise, fine steps cost nothing


def thinned(Z: Floats, most: int = MOST_PUBLIC) -> Floats:
    """Return at most `most` of the public points, evenly spaced in their order; fewer in high D."""
    room = PUBLIC_BYTES // (48 * (Z.shape[1] + 1) ** 2)
    most = max(FEWEST_PUBLIC, min(most, room))
    if len(Z) <= most:
        return Z
    return Z[np.linspace(0, len(Z) - 1, most).astype(np.intp)]


def greedy_cover(points: Floats, radius: float) -> Floats:
    """Return a subset of `points`, in their order, such that every point is within `radius` of one of it."""
    tree = cKDTree(points)
    left = np.ones(len(points), np.bool_)
    chosen = []
    for i in range(len(points)):
        if left[i]:
            chosen.append(i)
            left[tree.query_ball_point(points[i], radius)] = False
    return np.ascontiguousarray(points[chosen])


def public_moments(Z: Floats, at: Floats, h: float, c: float, n_threads: int | None = None) -> LocalMoments:
    """Return the moments of the public points around `at`, without clipping or noise."""
    index = build_index(at, h)
    tau = float(record_norms(index, Z, 2.0, c, n_threads).max())
    if tau == 0.0:
        tau = 1.0
    sums = MomentSums(index, 2.0, tau, (tau / _STEPS, _STEPS), c, n_threads)
    sums.add(Z)
    return read_moments(np.asarray(sums.total() * (tau / _STEPS), dtype=np.float64), c, h, longest=h)


def smoothed(Z: Floats, h: float, dim: int, n_threads: int | None = None) -> Floats:
    """Return the public points denoised with themselves as reference."""
    around = public_moments(Z, Z, h, PUBLIC_HOMOGENEOUS, n_threads)
    centers, tangents = Z + around.offsets, top_vectors(around.covariance, dim)
    return move(make_field(centers, tangents, np.ones(len(Z)), h, passes=SMOOTHING_PASSES), Z, n_threads)[0]


def public_bias2(Z: Floats, h: float, dim: int, n_threads: int | None = None) -> float:
    """Return the squared bias of a map of round 1 at a bandwidth, estimated from public points; 0 if hidden.

    Maps are made from each half of the points, at `h` and at a smaller bandwidth, and move the same points.
    What the smaller bandwidth changes is bias that both halves share and noise that they do not: the mean
    product of the two changes is free of noise on average. Changes along the surface do not count. A share of
    the energy that the halves do not agree on is subtracted, because the product is noisy as well.
    """
    Z = thinned(Z, BIAS_POINTS)
    flat = smoothed(Z, h, dim, n_threads)
    around = public_moments(Z, flat, h, PUBLIC_HOMOGENEOUS, n_threads)
    tangents = top_vectors(around.covariance, dim)
    common, energy, splits = 0.0, 0.0, 0
    for bit in range(BIAS_SPLITS):
        odd = (np.arange(len(Z)) >> bit) & 1 == 1
        changes, both = [], np.ones(len(flat), np.bool_)
        for half in (Z[odd], Z[~odd]):
            moved = []
            for width in (h, BIAS_RATIO * h):
                points, reached = _moved_by_public(half, width, dim, flat, n_threads)
                moved.append(points)
                both &= reached
            change = moved[0] - moved[1]
            along = product(change[:, None, :], tangents)
            changes.append(change - product(along, tangents.transpose(0, 2, 1))[:, 0])
        if both.any():
            first, second = changes[0][both], changes[1][both]
            common += float((first * second).sum(axis=1).mean())
            energy += 0.5 * float((first**2 + second**2).sum(axis=1).mean())
            splits += 1
    return max(0.0, common - BIAS_NOISE * (energy - common)) / max(1, splits)


def _moved_by_public(
    Z: Floats, h: float, dim: int, points: Floats, n_threads: int | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Move points by the map of round 1 that has public points in the place of records, a chart at each.

    Points around which the others spread in fewer than `dim` directions make no chart: rounding would choose
    its directions. Also returns which points have a chart in reach.
    """
    around = public_moments(Z, Z, h, PUBLIC_HOMOGENEOUS, n_threads)
    spreads, vectors = spectra(around.covariance, n_threads)
    whole = spreads[:, -dim] > _NO_SPREAD * h * h
    if not whole.any():
        return points, np.zeros(len(points), np.bool_)
    centers, tangents = (Z + around.offsets)[whole], np.ascontiguousarray(vectors[whole, :, -dim:])
    field = make_field(centers, tangents, around.mass[whole], h, passes=PROJECTION_PASSES)
    return move(field, points, n_threads)


def largest_gap(covariances: Floats, weights: Floats) -> int:
    """Return the dimension after which the weighted mean of the local spectra drops most."""
    falling = spectra(covariances)[0][:, ::-1]
    mean = weighted(weights, falling) / weights.sum()
    return int(np.argmax(mean[:-1] - mean[1:])) + 1


def spectrum_dim(Z: Floats, n_threads: int | None = None) -> int:
    """Return the intrinsic dimension of public points by their local spectra, at half their rms radius."""
    around = public_moments(Z, Z, 0.5 * rms_radius(Z), PUBLIC_HOMOGENEOUS, n_threads)
    return largest_gap(around.covariance, around.mass)


def rms_radius(Z: Floats) -> float:
    """Return the root mean squared distance of points from their mean."""
    return math.sqrt(float(((Z - Z.mean(axis=0)) ** 2).sum(axis=1).mean()))


def spacing(points: Floats, others: int) -> float:
    """Return the median distance within which a point has so many others."""
    far = np.asarray(cKDTree(points).query(points, k=[min(others + 1, len(points))])[0])
    return float(np.median(far))


class SignalPrediction(NamedTuple):
    """The prediction for a first round at one bandwidth."""

    signal: float  # median mass over the deviation of the noise, S / s
    anchors: int
    reach: float  # mean number of anchors within the bandwidth of a record
    records: float  # median effective number of records around an anchor
    covered: float  # share of the points within reach of an anchor that stands out from the noise


def predict_round(
    Z: Floats,
    h: float,
    n: int,
    mu: float,
    dim: int,
    *,
    sensitivity: float,
    cover: float,
    most: float = math.inf,
    n_threads: int | None = None,
) -> SignalPrediction:
    """Predict the signal of a first round with spend `mu`, with the public points in place of records.

    `sensitivity` is that of the sums, in units of tau; `most` is the largest signal that can be.
    """
    flat = smoothed(Z, h, dim, n_threads)
    anchors = greedy_cover(flat, cover * h)
    index = build_index(anchors, h)
    tau = CLIP_SHARE * float(record_norms(index, anchors, 2.0, HOMOGENEOUS, n_threads).max())
    norms = record_norms(index, flat, 2.0, HOMOGENEOUS, n_threads)
    clip = np.minimum(1.0, tau / np.maximum(norms, 1e-300))
    gaps = cKDTree(anchors).sparse_distance_matrix(cKDTree(flat), h, output_type="ndarray")
    weights = np.maximum(0.0, 1.0 - (gaps["v"] / h) ** 2) ** 2 * clip[gaps["j"]]
    mass = np.bincount(gaps["i"], weights, len(anchors)) * n / len(Z)
    squares = np.bincount(gaps["i"], weights**2, len(anchors)) * n / len(Z)
    noise = sensitivity * tau / mu
    share = min(1.0, most * noise / float(np.median(mass)))
    mass, squares = share * mass, share * squares
    stands_out = mass > OCCUPIED * noise / HOMOGENEOUS
    return SignalPrediction(
        signal=float(np.median(mass)) / noise,
        anchors=len(anchors),
        reach=len(weights) / len(flat),
        records=float(np.median(mass**2 / np.maximum(squares, 1e-300))),
        covered=len(np.unique(gaps["j"][stands_out[gaps["i"]]])) / len(flat),
    )
