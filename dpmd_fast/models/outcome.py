"""Verdicts after the spend, from released values and public points alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.linear import cholesky
from dpmd_fast.kernels.posterior import make_components, posterior
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Floats, Gaussians
from dpmd_fast.models.gaussians.recipe import Recipe
from dpmd_fast.models.gaussians.rounds import Found
from dpmd_fast.models.predict_mixture import extrapolated
from dpmd_fast.models.public_only import PROBES, STEP, PublicErrors, noise_kept, root
from dpmd_fast.models.verdict import (
    AS_PREDICTED,
    FEWER,
    HARM,
    LEAST_SIGNAL,
    SURE_ERRORS,
    TOO_FEW,
    Verdict,
    confirmed,
)

_DRAWS = 4000  # from a mixture, to find the error that it expects

#: What is said of a mixture that was released although too few records were predicted.
MOSTLY_NOISE = (
    "It was released although the check before the spend found too few records. Such a mixture is mostly "
    "noise, and so is what it says of its own errors, also in its error bars."
)
#: Why points can be further from their cleaned values than a mixture expects.
NOT_ALIKE = "they are not like the records, or their noise is not what was given"

Map = Callable[[Floats], tuple[Floats, NDArray[np.bool_]]]


def atlas_outcome(move: Map, Z: Floats, noise: Floats | None, predicted: Verdict) -> Verdict:
    """Judge a released map by public points `Z` with `noise` (D,), in the units in which it works.

    The error is Stein's unbiased estimate (see `public_only`); if the noise is not known there is none. If it
    is 0, every move is an error.
    """
    moved, reached = move(Z)
    reach = float(reached.mean())
    if noise is None:
        return confirmed(predicted, math.nan, math.nan, reach, "atlas")
    raw2 = float((noise**2).sum())
    if not reached.any():
        return confirmed(predicted, math.sqrt(raw2 / Z.shape[1]), math.sqrt(raw2 / Z.shape[1]), 0.0, "atlas")
    rng = np.random.default_rng(3)
    kept = 0.0
    for _ in range(PROBES):
        signs = rng.choice([-1.0, 1.0], size=Z.shape) * noise
        again, there = move(Z + STEP * signs)
        both = reached & there
        if both.any():
            kept += noise_kept(signs[both], (again - moved)[both]) / PROBES
    gaps = float(((moved - Z)[reached] ** 2).sum(axis=1).mean())
    inside = max(0.0, gaps - raw2 + 2.0 * kept)
    error2 = reach * inside + (1.0 - reach) * raw2
    columns = Z.shape[1]
    return confirmed(predicted, math.sqrt(error2 / columns), math.sqrt(raw2 / columns), reach, "atlas")


def mixture_outcome(
    model: Gaussians, noise: Floats, public: PublicErrors, predicted: Verdict, records: Records | None = None
) -> Verdict:
    """Judge a released mixture by the error that it expects of points like the public ones.

    They have `noise` (D,), and as many values are missing as of the public points. If there are enough of
    these to judge by, what they show counts where it is clearly worse. So do `records`, what the release says
    of their number.
    """
    raw = root(public.raw)
    expected = expected_error(model, noise, public.missing)
    doubt = ""
    if records is not None and records.too_few:
        sentence = (
            f"The mixture found about {records.number:,} records, not {records.told:,}, which is too few for "
            "this budget: it is mostly noise, and points are better left as they are."
        )
        return Verdict(TOO_FEW, sentence, raw, predicted.predicted_error)
    if predicted.word == TOO_FEW:
        return Verdict(TOO_FEW, MOSTLY_NOISE, raw, predicted.predicted_error)
    if records is not None and records.fewer:
        expected = max(expected, root(extrapolated(public, records.recipe, records.told, records.share)))
        doubt = (
            f" The mixture found about {records.number:,} records, not {records.told:,}: there are fewer, or "
            "most are left out or far from what is usual."
        )
    found = None if public.points is None else _shown_by_points(model, noise, public.points)
    if found is None:
        return confirmed(predicted, expected, raw, 1.0, "mixture", doubt)
    left2 = max(0.0, expected**2 + found.share * (found.error**2 - found.expected**2))
    doubt += (
        f" The public points are further from their cleaned values than the mixture expects (error "
        f"{found.expected:.3g}): {NOT_ALIKE}."
    )
    return confirmed(predicted, math.sqrt(left2), raw, 1.0, "mixture", doubt)


class Records(NamedTuple):
    """How many records there are: as told before the spend, and as the released masses say."""

    told: int
    recipe: Recipe
    found: Found

    @property
    def share(self) -> float:
        """Records that were found over those that were told."""
        return max(0.0, self.found.signal) / self.recipe.signal

    @property
    def number(self) -> int:
        """Records that were found, with as many digits as the noise leaves."""
        deviation = self.told * self.found.deviation / self.recipe.signal
        digits = max(0, math.floor(math.log10(max(1.0, deviation))))
        return int(round(self.share * self.told, -digits))

    @property
    def _at_most(self) -> float:
        return self.found.signal + SURE_ERRORS * self.found.deviation

    @property
    def too_few(self) -> bool:
        """Whether there are clearly so few that the spend would have been refused, and fewer than told."""
        return self.fewer and self._at_most < LEAST_SIGNAL

    @property
    def fewer(self) -> bool:
        """Whether there are clearly fewer than told."""
        return self._at_most < FEWER * self.recipe.signal


class _Shown(NamedTuple):
    """Errors of the measured values of public points: by themselves, as expected, and their share."""

    error: float
    expected: float
    share: float


def _shown_by_points(model: Gaussians, noise: Floats, points: Floats) -> _Shown | None:
    """Return the error that points with noise show after a mixture, if it is clearly worse than expected."""
    there = ~np.isnan(points) & (noise > 0.0)
    if not there.any():
        return None
    prepared = make_components(*with_background(model), noise)
    means, deviations = posterior(prepared, points, deviations=True)[:2]
    assert deviations is not None
    error = observed_error(points, means, deviations, noise, there)
    return None if error is None else _Shown(error, root(deviations[there] ** 2), float(there.mean()))


def observed_error(
    before: Floats, after: Floats, deviations: Floats, noise: Floats, there: NDArray[np.bool_]
) -> float | None:
    """Return the error that cleaned points show, if it is clearly above what a mixture expects.

    Clearly is by a factor that no longer counts as predicted, or if the points get worse than they were.

    It is Stein's unbiased estimate (see `public_only`) of the values at `there` (m, D), by rows, so that its
    own error is known. `deviations` (m, D) are those that the mixture expects.
    """
    rows = there.any(axis=1)
    if rows.sum() < 2:
        return None
    moves = np.where(there, (after - before) ** 2, 0.0)
    risks = np.where(there, moves - noise**2 + 2.0 * deviations**2, 0.0)[rows]
    counts = there[rows].sum(axis=1)
    mean = float(risks.sum() / counts.sum())
    gaps = risks.sum(axis=1) - mean * counts
    error = math.sqrt(float((gaps**2).sum())) / float(counts.sum())
    expected2 = float((deviations[there] ** 2).mean())
    raw2 = float(np.broadcast_to(noise**2, there.shape)[there].mean())
    if mean - SURE_ERRORS * error <= min(AS_PREDICTED**2 * expected2, HARM**2 * max(raw2, expected2)):
        return None
    return math.sqrt(mean)


def expected_error(model: Gaussians, noise: Floats, missing: Floats) -> float:
    """Return the root mean squared error of a value after cleaning, for points drawn from the mixture.

    A share `missing` (D,) of their values is missing.
    """
    rng = np.random.default_rng(4)
    K, D = model.means.shape
    which = rng.choice(K, size=_DRAWS, p=model.weights / model.weights.sum())
    roots = cholesky(model.covariances)
    points = model.means[which] + np.einsum("nde,ne->nd", roots[which], rng.standard_normal((_DRAWS, D)))
    points += noise * rng.standard_normal(points.shape)
    points[rng.random(points.shape) < missing] = np.nan
    prepared = make_components(*with_background(model), noise)
    deviations = posterior(prepared, points, deviations=True)[1]
    assert deviations is not None
    return math.sqrt(float((deviations**2).mean()))
