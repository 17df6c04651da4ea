"""Predict from public numbers what an atlas would do to the public points: nothing is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import covariance
from dpmd_fast.models.geometry.anchors import Floats, rms_radius, spectrum_dim
from dpmd_fast.models.geometry.bandwidth import (
    BandwidthSearch,
    leading,
    search_before_spending,
)
from dpmd_fast.models.geometry.tuning import (
    BIAS_ORDER,
    HOMOGENEOUS,
    LEAST_COLUMNS,
    OCCUPIED,
    rounds_for,
)
from dpmd_fast.models.public_only import smoothing_errors
from dpmd_fast.models.surface_columns import SurfaceColumns
from dpmd_fast.models.verdict import (
    EQUAL_NOISE,
    FLAT_MARGIN,
    FLAT_POINTS,
    GAIN,
    HARM_LIKELY,
    HELPS,
    LEAST_GAP,
    LEAST_PUBLIC,
    LEAST_REACH,
    NO_GAIN,
    SHOWN,
    SURFACE,
    SURFACE_GROWTH,
    TOO_FEW,
    Verdict,
    judged_by_surface,
)
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency

_MOST_DIM = 6  # dimensions of a surface that are tried
_NARROW = 0.6  # of the bandwidth, to tell curvature from thickness
_WIDE = 0.7  # of the rms radius: neighbours within it, and half of it, tell a surface from a cloud
_ROUNDING = 1.0 + 1e-9  # noise of exactly the largest factor stays so when it changes units
_NEARLY = 1.15  # error over the least of all dimensions, up to which a smaller dimension is taken


@dataclass(frozen=True)
class AtlasPrediction:
    """What an atlas would do to the public points, in the units in which it works.

    Errors are those of one value; `by_column` and `public_only_by_column` those of the columns, after the
    atlas and after smoothing the points by themselves, if the noise is known. `noise_error` and `bias_error`
    are distances from the surface, as are the last three: of the points as they are, after the atlas, and
    after the best that they do by themselves.
    """

    dim: int
    bandwidth: float
    rounds: int
    anchors: int
    anchors_a_record: float
    signal_to_noise: float
    reach: float
    noise_error: float
    bias_error: float
    raw_error: float
    predicted_error: float
    public_only_error: float
    verdict: Verdict
    search: BandwidthSearch | None
    by_column: tuple[float, ...] = ()
    public_only_by_column: tuple[float, ...] = ()
    raw_distance: float = math.nan
    predicted_distance: float = math.nan
    public_only_distance: float = math.nan


def predict_atlas(
    Z: Floats,
    n: int,
    budget: Budget,
    *,
    dim: int | None,
    bandwidth: float | None,
    cover: float,
    adjacency: Adjacency,
    noise: Floats | None,
    alone: float = math.nan,
    unit: str = "",
    n_threads: int | None,
) -> AtlasPrediction:
    """Predict an atlas of `n` records around complete public points `Z` with `noise` (D,), if it is known.

    `alone` is the error of a value after other methods on the public points alone, NaN if it is not known;
    `unit` is that of errors in the sentence.
    """
    if reason := _no_sense(Z, noise):
        return _not_weighed(reason, dim, noise)
    points = leading(Z) if Z.shape[1] >= LEAST_COLUMNS else Z
    variance = None if noise is None else float((noise**2).mean())
    if dim is None:
        dim = _dimension(points, variance, n_threads)
    search = search_before_spending(Z, n, budget, dim, adjacency=adjacency, cover=cover, n_threads=n_threads)
    points = search.points
    h = search.choose() if bandwidth is None else bandwidth
    found = search.at(h)
    error = search.expected_error(h) if bandwidth is None else search.final_error(h)
    noisy = math.hypot(error.noise, error.sampling)
    q, D, d = points.shape[1], Z.shape[1], search.dim
    known = variance is not None
    tail = max(0.0, float(((Z - Z.mean(axis=0)) ** 2).sum(axis=1).mean()) - rms_radius(points) ** 2)
    if variance is None:
        variance = search.scatter**2 / max(1, q - d) if q == D else tail / (D - q)
    lost = max(0.0, tail - (D - q) * variance)  # what leaving the other coordinates out takes away
    raw2, along = D * variance, d * variance
    bias2, smoothed2, shown = error.bias**2 + lost, math.nan, True
    columns = None
    if noise is not None:
        columns = SurfaceColumns(Z, noise, h, d, n_threads)
        along = float(columns.along.sum())
        thick2, smoothed2, removed = _off_surface(points, columns, h, d, n_threads)
        bias2, smoothed2 = bias2 + thick2, smoothed2 + lost
        shown = removed >= SHOWN or _grows_as(points, d)
    predicted2 = found.covered * (along + bias2 + noisy**2) + (1.0 - found.covered) * raw2
    raw, predicted, public = (math.sqrt(value / D) for value in (raw2, predicted2, smoothed2))
    if not math.isnan(alone):
        public = min(public, alone)
    distances = [_distance(error, D, along) for error in (raw, predicted, public)]
    made = AtlasPrediction(
        dim=d,
        bandwidth=h,
        rounds=rounds_for(found.signal, search.scatter / h),
        anchors=found.anchors,
        anchors_a_record=found.reach,
        signal_to_noise=found.signal,
        reach=found.covered,
        noise_error=noisy,
        bias_error=math.sqrt(bias2),
        raw_error=raw,
        predicted_error=predicted,
        public_only_error=public,
        verdict=Verdict(NO_GAIN, ""),
        search=search,
        by_column=() if columns is None else columns.errors(along + bias2 + noisy**2, found.covered),
        public_only_by_column=() if columns is None else columns.errors(smoothed2),
        raw_distance=distances[0],
        predicted_distance=distances[1],
        public_only_distance=distances[2],
    )
    thick = not known and not _clear_surface(Z, points, search.scatter, d)
    word = HARM_LIKELY if thick else judged_by_surface(predicted, raw, public, *distances[1:])
    if found.covered < LEAST_REACH:
        word = TOO_FEW
    sentence = _sentence(made, word, n, budget, math.sqrt(variance) if known else math.nan, unit)
    if word == HELPS and not shown:
        word, sentence = NO_GAIN, _not_shown(points, d)
    object.__setattr__(made, "verdict", Verdict(word, sentence, raw, predicted, reach=found.covered))
    return made


def _no_sense(Z: Floats, noise: Floats | None) -> str:
    """Return why an atlas makes no sense for public points; an empty text if it may."""
    distinct = len(np.unique(Z, axis=0))
    if distinct < LEAST_PUBLIC:
        return f"{distinct} different public point(s) cannot show a surface: an atlas needs {LEAST_PUBLIC}."
    if noise is not None and not noise.any():
        return "The public points have no noise: there is nothing to clean."
    if noise is not None and noise.max() > EQUAL_NOISE * _ROUNDING * noise.min():
        return (
            f"The noises of the columns differ by a factor above {EQUAL_NOISE:g}: an atlas takes them to be "
            "equal, for it measures distances across columns."
        )
    return ""


def _distance(error: float, columns: int, along: float) -> float:
    """Return the rms distance from the surface, given the error of a value; NaN if that is not known."""
    return error if math.isnan(error) else math.sqrt(max(0.0, columns * error**2 - along))


def _clear_surface(Z: Floats, points: Floats, scatter: float, dim: int) -> bool:
    """Return True if points of unknown noise are clearly near a surface.

    They must scatter little around it, and numbers of neighbours must grow with the radius as they do on it:
    where points have few neighbours, smoothing moves none of them, near a surface or not. In many columns,
    most of which were left out, the variances must be large in some directions and, behind a gap, those of
    equal noise: between the edges of the Marchenko-Pastur law, with a margin.
    """
    (m, D), q = Z.shape, points.shape[1]
    radius = rms_radius(points)
    if scatter > SURFACE * radius or not _grows_as(points, dim):
        return False
    if q == D:
        return True
    if m < FLAT_POINTS * D:
        return False
    variances = np.maximum(spectra(covariance(Z))[0][::-1], 1e-300)
    edge = math.sqrt(D / m)
    flat = FLAT_MARGIN * ((1.0 + edge) / (1.0 - edge)) ** 2 * variances[-1]
    return any(
        variances[kept] <= flat and variances[kept - 1] >= LEAST_GAP * variances[kept]
        for kept in range(1, q + 1)
    )


def _grows_as(points: Floats, dim: int) -> bool:
    """Return True if numbers of neighbours grow with the radius as they do on a surface of this dimension."""
    return _growth(points) <= dim + SURFACE_GROWTH


def _growth(points: Floats) -> float:
    """Return the power with which the number of neighbours grows from half a radius to the radius.

    It is the dimension of what the points lie on (Grassberger and Procaccia 1983), infinite without any.
    """
    tree, radius = cKDTree(points), _WIDE * rms_radius(points)
    near, far = (int(tree.count_neighbors(tree, reach)) - len(points) for reach in (0.5 * radius, radius))
    return math.log2(far / near) if near else math.inf


def _off_surface(
    points: Floats, columns: SurfaceColumns, h: float, dim: int, n_threads: int | None
) -> tuple[float, float, float]:
    """Return how thick what the points lie near is, and the error of smoothing them by themselves: squares.

    The third number is the share of the noise normal to the surface that smoothing takes away: if it is
    small, points have few neighbours, and the others say little.

    Two bandwidths tell thickness, which an atlas takes away, from curvature, whose bias grows with a power of
    the bandwidth and is predicted by `BandwidthSearch`.
    """
    along, dims = float(columns.along.sum()), range(dim, dim + 1)
    wide, narrow = (
        smoothing_errors(points, columns.variances, width, dims, n_threads, along)[0]
        for width in (h, _NARROW * h)
    )
    share = _NARROW ** (2.0 * BIAS_ORDER)
    off_wide, off_narrow = (max(0.0, one.left - along) for one in (wide, narrow))
    thick2 = min(off_wide, max(0.0, off_narrow - share * off_wide) / (1.0 - share))
    return thick2, min(wide.error, narrow.error), wide.removed


def _dimension(points: Floats, variance: float | None, n_threads: int | None) -> int:
    """Return the dimension of the surface: that of the least error if the noise is known.

    Of nearly equal ones it is the smallest that growing numbers of neighbours do not rule out.
    """
    if variance is None or points.shape[1] < 3:
        return spectrum_dim(points, n_threads) if points.shape[1] > 1 else 1
    dims = range(1, min(_MOST_DIM, points.shape[1] - 1) + 1)
    h = 0.5 * rms_radius(points)
    found = smoothing_errors(points, np.full(points.shape[1], variance), h, dims, n_threads)
    least = min(one.error for one in found)
    near = [one for one in found if one.error <= _NEARLY * least]
    possible = [one for one in near if one.removed >= SHOWN or _grows_as(points, one.dim)]
    return (possible or near)[0].dim


def _not_weighed(sentence: str, dim: int | None, noise: Floats | None) -> AtlasPrediction:
    """Return the prediction of an atlas that makes no sense for these points."""
    raw = math.nan if noise is None else math.sqrt(float((noise**2).mean()))
    nothing: dict[str, Any] = dict.fromkeys(
        ("bandwidth", "signal_to_noise", "noise_error", "bias_error", "predicted_error", "public_only_error"),
        math.nan,
    )
    verdict = Verdict(NO_GAIN, sentence, raw, reach=0.0)
    return AtlasPrediction(
        dim=dim or 1,
        rounds=0,
        anchors=0,
        anchors_a_record=0.0,
        reach=0.0,
        raw_error=raw,
        verdict=verdict,
        search=None,
        **nothing,
    )


def _not_shown(points: Floats, dim: int) -> str:
    """Return why points whose smoothing says little are not taken to be near a surface."""
    growth = _growth(points)
    like = "they have hardly any neighbours"
    if math.isfinite(growth):
        like = f"their numbers of neighbours are those of points in {growth:.1f} dimensions"
    return (
        f"The public points do not show a curve or surface of dimension {dim}, which an atlas needs: they "
        f"are too few for their noise, and {like}."
    )


def _sentence(made: AtlasPrediction, word: str, n: int, budget: Budget, noise: float, unit: str) -> str:
    """Return what is predicted, in words; `noise` is NaN if it is not known."""
    known = not math.isnan(noise)
    if word == TOO_FEW:
        enough = math.ceil(1.2 * n * OCCUPIED / HOMOGENEOUS / max(made.signal_to_noise, 1e-9))
        return (
            f"{n:,} records are too few at epsilon = {budget.epsilon:g}, delta = {budget.delta:g}: an atlas "
            f"would reach {made.reach:.0%} of the public points; about {enough:,} records would be enough."
        )
    if word == HARM_LIKELY and not known:
        return (
            "The public points lie near no curve or surface, and an atlas would take their differences for "
            "noise; give their noise, and a mixture can be considered."
        )
    if word == HARM_LIKELY and made.bias_error > made.noise_error:
        return (
            f"The public points lie near no surface of dimension {made.dim}: they are {made.bias_error:.3g} "
            f"away from it beyond their noise of {noise:.3g} a value, and an atlas would take that for "
            f"noise (error of a value{unit} {made.predicted_error:.3g} instead of {made.raw_error:.3g})."
        )
    change = (
        f"An atlas is predicted to change the error of a value{unit} from {made.raw_error:.3g} to "
        f"{made.predicted_error:.3g}"
    )
    if not known:
        change += " (the noise is estimated from the public points)"
    if word == HELPS and made.predicted_error >= GAIN * made.public_only_error:
        return (
            f"An atlas is predicted to bring the public points from {made.raw_distance:.3g} to "
            f"{made.predicted_distance:.3g}{unit} from the curve or surface that they lie near; by "
            f"themselves they get to {made.public_only_distance:.3g}. Noise along it stays either way: the "
            f"error of a value falls from {made.raw_error:.3g} to {made.predicted_error:.3g}, by themselves "
            f"to {made.public_only_error:.3g}."
        )
    if word == HELPS:
        return change + "."
    if word == HARM_LIKELY:
        return change + f": {n:,} records leave too much noise at epsilon = {budget.epsilon:g}."
    if made.public_only_error < made.raw_error:
        return change + f"; the public points alone reach {made.public_only_error:.3g} without any budget."
    return change + ", which is not worth a budget."


def enough_epsilon(budget: Budget, signal: float, scatter: float) -> float:
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
