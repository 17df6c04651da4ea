"""What public queries can do for each other, without a reference and without a budget.

The truth is not needed to judge a method: if z = x + e, e normal with known variances E, and T(z) is a guess
of x that was not fitted to this e, the mean squared error of T(z) is that of

    |T(z) - z|^2 - E + 2 E dT/dz                    (Stein's unbiased estimate of risk),

and for a posterior mean E dT/dz is the posterior variance. A value that was hidden from T is judged by
|T - z|^2 - E. Methods are judged by points that they were not fitted to. All errors are mean squares for each
column, in preprocessed units.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr

from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.charts import make_field, move
from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.jit import single_blas
from dpmd_fast.kernels.linear import gram
from dpmd_fast.kernels.posterior import PosteriorComponents, make_components, posterior
from dpmd_fast.kernels.vector.elementary import fixed_logs
from dpmd_fast.models.gaussians.components import Floats, Gaussians, floored
from dpmd_fast.models.geometry.anchors import public_moments
from dpmd_fast.models.geometry.tuning import PUBLIC_HOMOGENEOUS, SMOOTHING_PASSES
from dpmd_fast.models.preprocessor import Preprocessor, label
from dpmd_fast.models.verdict import FALSE_ALARM, FEWEST_PUBLIC

_FOLDS = 5
_MOST_ROWS = 5000  # of the queries: more do not change the errors
_SHRINKAGES = (0.0, 0.1, 0.3, 1.0)  # of correlations towards 0; the best for the queries is taken
_GROUPS = (4,)  # components of a mixture of the queries' own
_POINTS_A_PARAMETER = 5  # rows for each column and component that such a mixture must have
_FAR_BELOW = 1e10  # times smaller than the spread: such a noise needs no test
_LEAST_VARIANCE = 1e-3  # of a column of clean values
PROBES = 2  # random directions along which maps are differentiated
STEP = 1e-3  # the step in deviations of the noise
_USUAL_VARIANCE = 1.4826**2  # of a normal column whose MAD is 1


class PublicErrors(NamedTuple):
    """Mean squared errors (D,) of the values of queries, those that are missing among them."""

    missing: Floats  # share of the values that are missing
    raw: Floats  # as they are; missing ones with the column's median in their place
    alone: Floats  # after the best that the queries can do for each other
    limit: Floats  # after the same kind of method, fitted to any number of such points
    slope: Floats  # excess over the limit times the number of points that it was fitted to
    method: str  # "none", "linear filter", "own mixture"
    points: Floats | None = None  # the queries, in preprocessed units, to rehearse a release with
    noise: Floats | None = None


def judge_queries(points: Floats, noise: Floats, n_threads: int | None = None) -> PublicErrors:
    """Judge a linear filter and, with enough points, a mixture, both fitted to the queries alone.

    `points` (m, D) are in preprocessed units, NaN where missing; `noise` (D,) is their deviation.
    """
    points = some(points)
    gone = np.isnan(points)
    missing = gone.mean(axis=0) if len(points) else np.zeros(len(noise))
    raw = (1.0 - missing) * noise**2 + missing * _clean_variance(points, noise)
    if len(np.unique(copies(points))) < FEWEST_PUBLIC:
        # each column by itself, by its public scale, is all that can be said
        spread = np.full(len(noise), _USUAL_VARIANCE)
        shrunk = noise**2 * spread / (noise**2 + spread)
        limit = (1.0 - missing) * shrunk + missing * spread
        return PublicErrors(missing, raw, raw, np.minimum(limit, raw), np.zeros_like(raw), "none")
    found = [
        ("linear filter", _cross_validated(points, noise, missing, shrinkage, 1, n_threads))
        for shrinkage in _SHRINKAGES
    ]
    for groups in _GROUPS:
        if not gone.any() and len(points) >= _POINTS_A_PARAMETER * groups * points.shape[1]:
            found.append(("own mixture", _cross_validated(points, noise, missing, 0.0, groups, n_threads)))
    method, (tested, fitted) = min(found, key=lambda one: float(one[1][0].sum()))
    if tested.sum() >= raw.sum():
        tested, method = raw, "none"
    # errors of points that a method was fitted to are too small by what those of others are too large by
    limit = np.clip((tested + fitted) / 2.0, 0.0, tested)
    used = len(points) * (_FOLDS - 1) / _FOLDS
    return PublicErrors(missing, raw, tested, limit, (tested - limit) * used, method, points, noise)


def some(points: Floats) -> Floats:
    """Return the points in a random order, at most as many as change the errors."""
    return points[np.random.default_rng(0).permutation(len(points))[:_MOST_ROWS]]


def copies(points: Floats) -> NDArray[np.intp]:
    """Return a number (m,) from 0 on for each point, the same for equal ones.

    A copy would be judged by what was fitted to it. Rounded values make equal rows that are none: they count.
    """
    plain = np.where(np.isnan(points), np.inf, points)
    _, first, which = np.unique(plain, axis=0, return_index=True, return_inverse=True)
    ranks: NDArray[np.intp] = np.argsort(np.argsort(first, kind="stable"), kind="stable")[which.reshape(-1)]
    return ranks


def check_noise_fits(points: Floats, noise: Floats, units: Preprocessor) -> None:
    """Refuse noise that is larger than the spread of the values that are said to have it.

    `points` (m, D) are in the units of the columns, NaN where missing, `noise` (D,) is in those of `units`.
    Values that are nothing but normal noise of this size are refused with probability `FALSE_ALARM`. Of few
    values nothing can be said.
    """
    points = some(points)
    points = points[np.unique(copies(points), return_index=True)[1]]
    counts = (~np.isnan(points)).sum(axis=0)
    for place in np.flatnonzero((counts >= FEWEST_PUBLIC) & (noise > 0.0)):
        values = fixed_logs(points[:, place]) if units.log[place] else points[:, place]
        spread, told = float(np.nanstd(values, ddof=1)), noise[place] * units.scale[place]
        if told * _FAR_BELOW <= spread:  # and the square of their ratio may overflow
            continue
        free = int(counts[place]) - 1
        if chdtr(free, free * (spread / told) ** 2) < FALSE_ALARM / len(noise):
            column = label(units.column_names, place)
            wrong = (
                f"must not be larger than the spread of its public values, {spread:.3g}, which it is part "
                "of; is it in another unit? A number without a column's name counts in preprocessed units, "
                "without a preprocessor in median absolute deviations"
            )
            if spread == 0.0:
                wrong = "must be 0, or the column left out, since all its public values are equal"
            raise UserValueError(f"noise of {column} is {told:.3g}: {wrong}", argument="noise")


def _cross_validated(
    points: Floats, noise: Floats, missing: Floats, shrinkage: float, groups: int, n_threads: int | None
) -> tuple[Floats, Floats]:
    """Return the errors (D,) for points that a method was not fitted to, and for those that it was."""
    rng = np.random.default_rng(1)
    folds = copies(points) % _FOLDS
    sums, counts = np.zeros((2, 2, len(noise))), np.zeros((2, 2, len(noise)))
    for fold in range(_FOLDS):
        others = points[folds != fold]
        model = _linear(others, noise, shrinkage) if groups == 1 else _mixture(others, noise, groups)
        prepared = make_components(*model, noise)
        for place, judged in enumerate((points[folds == fold], others)):
            found = _judged(prepared, judged, noise, missing, rng, n_threads)
            sums[place] += found[0]
            counts[place] += found[1]
    errors = np.maximum(sums / np.maximum(counts, 1), 0.0)
    # without a hidden value to judge by, a column counts as filled in by its median
    errors[:, 1] = np.where(counts[:, 1] > 0, errors[:, 1], _clean_variance(points, noise))
    tested, fitted = (1.0 - missing) * errors[:, 0] + missing * errors[:, 1]
    return tested, fitted


def _judged(
    prepared: PosteriorComponents,
    points: Floats,
    noise: Floats,
    missing: Floats,
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[Floats, Floats]:
    """Return sums of squared errors (2, D) and counts: of values that are there, and of hidden ones."""
    hidden = (rng.random(points.shape) < missing) & ~np.isnan(points)
    seen = np.where(hidden, np.nan, points)
    means, deviations = posterior(prepared, seen, deviations=True, n_threads=n_threads)[:2]
    assert deviations is not None
    gaps = (means - points) ** 2 - noise**2
    both = ((~np.isnan(seen), gaps + 2.0 * deviations**2), (hidden, gaps))
    sums = np.array([np.where(where, found, 0.0).sum(axis=0) for where, found in both])
    return sums, np.array([where.sum(axis=0) for where, _ in both])


def judge_mixture(model: Gaussians, points: Floats, noise: Floats, n_threads: int | None = None) -> Floats:
    """Return the errors (D,) of public points, NaN where missing, after a mixture of clean values."""
    missing = np.isnan(points).mean(axis=0)
    prepared = make_components(*model, noise)
    sums, counts = _judged(prepared, points, noise, missing, np.random.default_rng(1), n_threads)
    errors = np.maximum(sums / np.maximum(counts, 1), 0.0)
    errors[1] = np.where(counts[1] > 0, errors[1], _clean_variance(points, noise))
    found: Floats = (1.0 - missing) * errors[0] + missing * errors[1]
    return found


def _linear(points: Floats, noise: Floats, shrinkage: float) -> Gaussians:
    """Return one normal distribution of the clean values, from pairs of values that are there."""
    there = ~np.isnan(points)
    mean = np.where(there, points, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    gaps = np.where(there, points - mean, 0.0)
    both = gram(there.astype(np.float64))
    covariance = gram(gaps) / np.maximum(both - 1.0, 1.0)
    covariance *= 1.0 - shrinkage * (1.0 - np.eye(len(mean)))
    return Gaussians(np.ones(1), mean[None], without_noise(covariance[None], noise))


def _mixture(points: Floats, noise: Floats, groups: int) -> Gaussians:
    """Return a mixture of the clean values, fitted to complete points by scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        groups, random_state=0, init_params="k-means++", reg_covar=_LEAST_VARIANCE, max_iter=30
    )
    with warnings.catch_warnings(), single_blas():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(points)
    return Gaussians(model.weights_, model.means_, without_noise(model.covariances_, noise))


def without_noise(covariances: Floats, noise: Floats) -> Floats:
    return floored(covariances - np.diag(noise**2), np.full(len(covariances), _LEAST_VARIANCE))


def _clean_variance(points: Floats, noise: Floats) -> Floats:
    """Return the variances (D,) of the columns without noise; the usual one where there are few values."""
    there = ~np.isnan(points)
    counts = there.sum(axis=0)
    mean = np.where(there, points, 0.0).sum(axis=0) / np.maximum(counts, 1)
    square = np.where(there, (points - mean) ** 2, 0.0).sum(axis=0) / np.maximum(counts - 1, 1)
    variance: Floats = np.maximum(square - noise**2, _LEAST_VARIANCE)
    return np.where(counts >= FEWEST_PUBLIC, variance, _USUAL_VARIANCE)


# Points near a surface


class SmoothingErrors(NamedTuple):
    """What Nonprivate-MD of the queries on themselves does, for one dimension of the surface."""

    dim: int
    error: float  # squared distance of a smoothed point to its clean one
    left: float  # the same without what the noise of the other points adds: what many points would leave
    removed: float  # share of the noise normal to the surface that is gone: near 0 without neighbours


def smoothing_errors(
    points: Floats,
    variances: Floats,
    h: float,
    dims: range,
    n_threads: int | None = None,
    along: float | None = None,
) -> list[SmoothingErrors]:
    """Judge Nonprivate-MD of complete points on themselves, for several dimensions of the surface.

    `variances` (D,) are those of the noise, `along` is what of them lies along the surface, by default a
    share as large as its dimension. Derivatives are those along random directions.
    """
    rng = np.random.default_rng(2)
    deviations = np.sqrt(variances)
    base = _smoothed(points, h, dims, n_threads)
    kept = np.zeros(len(dims))
    for _ in range(PROBES):
        signs = rng.choice([-1.0, 1.0], size=points.shape) * deviations
        for place, moved in enumerate(_smoothed(points + STEP * signs, h, dims, n_threads)):
            kept[place] += noise_kept(signs, moved - base[place]) / PROBES
    found = []
    total = float(variances.sum())
    for place, dim in enumerate(dims):
        squares = float(((base[place] - points) ** 2).sum(axis=1).mean())
        stays = total * dim / points.shape[1] if along is None else along
        across = min(max(0.0, kept[place] - stays), total - stays)  # own noise that stays normal to it
        error = max(stays + across, squares - total + 2.0 * kept[place])
        removed = 1.0 - across / (total - stays) if total > stays else 0.0
        found.append(SmoothingErrors(dim, error, error - across, removed))
    return found


def noise_kept(signs: Floats, change: Floats) -> float:
    """Return E dT/dz, summed over columns, of a map T that moves noise `STEP * signs` by `change`.

    The mean over points, each within what a map that is not far from a projection can do: where directions
    are not clear, eigenvectors jump, and one such point would count more than all others.
    """
    total = (signs**2).sum(axis=1)
    return float(np.clip((signs * change).sum(axis=1) / STEP, -total, 2.0 * total).mean())


def _smoothed(points: Floats, h: float, dims: range, n_threads: int | None) -> list[Floats]:
    """Return the points denoised with themselves as reference, for each dimension."""
    around = public_moments(points, points, h, PUBLIC_HOMOGENEOUS, n_threads)
    vectors = spectra(around.covariance, n_threads)[1]
    centers, ones = points + around.offsets, np.ones(len(points))
    return [
        move(
            make_field(centers, np.ascontiguousarray(vectors[:, :, -dim:]), ones, h, passes=SMOOTHING_PASSES),
            points,
            n_threads,
        )[0]
        for dim in dims
    ]


def root(squares: Floats) -> float:
    """Return the root mean squared error of one value."""
    return math.sqrt(max(0.0, float(np.mean(squares))))
