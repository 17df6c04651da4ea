"""What can be said from public points alone: a smoothed copy, a cover, the signal to expect.

Nothing here sees the reference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from dpmd_fast.kernels.charts import make_field, move
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.moments import record_norms

Floats = NDArray[np.float64]
CLIP_SHARE = 0.2  # tau over what a record on an anchor contributes: nearly all are scaled to one norm
_EXACT_ENOUGH = 1 << 31
_PUBLIC_BYTES = 1 << 31  # of moments around public points
_FEWEST_PUBLIC = 200
_MOST_PUBLIC = 4000  # public points that are smoothed and covered; more are thinned out first


class LocalMoments(NamedTuple):
    """Mass, mean offset and covariance around points, in the units of the data."""

    mass: Floats  # (K,)
    offsets: Floats  # (K, D)
    covariance: Floats  # (K, D, D)


def thinned(Z: Floats) -> Floats:
    """At most a few thousand of the public points, evenly taken; fewer in many columns, for the memory."""
    room = _PUBLIC_BYTES // (48 * (Z.shape[1] + 1) ** 2)
    most = max(_FEWEST_PUBLIC, min(_MOST_PUBLIC, room))
    if len(Z) <= most:
        return Z
    return Z[np.linspace(0, len(Z) - 1, most).astype(np.intp)]


def greedy_cover(points: Floats, radius: float) -> Floats:
    """Points such that every given one is within `radius` of one of them, in the order given."""
    tree = cKDTree(points)
    left = np.ones(len(points), np.bool_)
    chosen = []
    for i in range(len(points)):
        if left[i]:
            chosen.append(i)
            left[tree.query_ball_point(points[i], radius)] = False
    return np.ascontiguousarray(points[chosen])


def public_moments(Z: Floats, at: Floats, h: float, c: float, n_threads: int | None = None) -> LocalMoments:
    """Moments of the public points around `at`, without clipping or noise."""
    index = build_index(at, h, n_threads)
    tau = float(record_norms(index, Z, 2.0, c, n_threads).max())
    if tau == 0.0:
        tau = 1.0
    sums = MomentSums(index, 2.0, tau, (tau / _EXACT_ENOUGH, _EXACT_ENOUGH), c, n_threads)
    sums.add(Z)
    return read_moments(np.asarray(sums.total() * (tau / _EXACT_ENOUGH), dtype=np.float64), h, c)


def read_moments(values: Floats, h: float, c: float) -> LocalMoments:
    """Mass, offset and covariance of homogeneous moments; a mean is never more than h away."""
    mass = values[:, -1, -1] / c
    safe = np.where(mass > 0.0, mass, 1.0)
    offsets = h * values[:, :-1, -1] / (math.sqrt(c) * safe[:, None])
    lengths = np.linalg.norm(offsets, axis=1)
    offsets *= (h / np.maximum(lengths, h))[:, None]
    second = h * h * values[:, :-1, :-1] / safe[:, None, None]
    return LocalMoments(mass, offsets, second - offsets[:, :, None] * offsets[:, None, :])


def top_vectors(matrices: Floats, dim: int) -> Floats:
    """Eigenvectors (K, D, dim) of the largest eigenvalues."""
    return np.ascontiguousarray(np.linalg.eigh(matrices)[1][:, :, -dim:])


def smoothed(Z: Floats, h: float, dim: int, n_threads: int | None = None) -> Floats:
    """The public points denoised with themselves as reference."""
    around = public_moments(Z, Z, h, 0.2, n_threads)
    field = make_field(Z + around.offsets, top_vectors(around.covariance, dim), np.ones(len(Z)), h, passes=2)
    return move(field, Z, n_threads)[0]


def largest_gap(covariances: Floats, weights: Floats) -> int:
    """Dimension after which the eigenvalues of local covariances, averaged over locations, drop most."""
    spectra = np.linalg.eigvalsh(covariances)[:, ::-1]
    mean = weights @ spectra / weights.sum()
    return int(np.argmax(mean[:-1] - mean[1:])) + 1


def spectrum_dim(Z: Floats, n_threads: int | None = None) -> int:
    """Intrinsic dimension of public points by their local spectra, at half their rms radius."""
    h = 0.5 * math.sqrt(float(((Z - Z.mean(axis=0)) ** 2).sum(axis=1).mean()))
    around = public_moments(Z, Z, h, 0.2, n_threads)
    return largest_gap(around.covariance, around.mass)


class Prospect(NamedTuple):
    """What a first round at bandwidth h promises."""

    signal: float  # median mass over the deviation of the noise, S / s
    scatter: float  # rms distance of the public points from their smoothed copy
    anchors: int
    reach: float  # anchors within the bandwidth of a record, on average
    records: float  # effective number of records around an anchor, median


def foresee(
    Z: Floats,
    h: float,
    n: int,
    mu: float,
    dim: int,
    *,
    apart: float,
    cover: float,
    c: float,
    n_threads: int | None = None,
) -> Prospect:
    """Predict the signal of a first round with spend `mu`, the public points in the place of records."""
    flat = smoothed(Z, h, dim, n_threads)
    anchors = greedy_cover(flat, cover * h)
    index = build_index(anchors, h, n_threads)
    tau = CLIP_SHARE * float(record_norms(index, anchors, 2.0, c, n_threads).max())
    norms = record_norms(index, flat, 2.0, c, n_threads)
    clip = np.minimum(1.0, tau / np.maximum(norms, 1e-300))
    gaps = cKDTree(anchors).sparse_distance_matrix(cKDTree(flat), h, output_type="ndarray")
    weights = np.maximum(0.0, 1.0 - (gaps["v"] / h) ** 2) ** 2 * clip[gaps["j"]]
    mass = np.bincount(gaps["i"], weights, len(anchors)) * n / len(Z)
    signal = float(np.median(mass)) * mu / (apart * tau)
    scatter = math.sqrt(float(((Z - flat) ** 2).sum(axis=1).mean()))
    squares = np.bincount(gaps["i"], weights**2, len(anchors)) * n / len(Z)
    records = float(np.median(mass**2 / np.maximum(squares, 1e-300)))
    return Prospect(signal, scatter, len(anchors), len(weights) / len(flat), records)
