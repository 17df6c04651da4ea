"""Verdicts after the spend, from released values and public points alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.posterior import make_components, posterior
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Floats, Gaussians
from dpmd_fast.models.public_only import PROBES, STEP, PublicErrors, noise_kept, root
from dpmd_fast.models.verdict import Verdict, confirmed

_DRAWS = 4000  # from a mixture, to find the error that it expects

Map = Callable[[Floats], tuple[Floats, NDArray[np.bool_]]]


def atlas_outcome(move: Map, Z: Floats, noise: Floats | None, predicted: Verdict) -> Verdict:
    """Judge a released map by public points `Z` with `noise` (D,), in the units in which it works.

    The error is Stein's unbiased estimate (see `public_only`); without noise there is none.
    """
    moved, reached = move(Z)
    reach = float(reached.mean())
    if noise is None or not noise.any():
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


def mixture_outcome(model: Gaussians, noise: Floats, public: PublicErrors, predicted: Verdict) -> Verdict:
    """Judge a released mixture by the error that it expects of points like the public ones.

    They have `noise` (D,), and as many values are missing as of the public points.
    """
    expected = expected_error(model, noise, public.missing)
    return confirmed(predicted, expected, root(public.raw), 1.0, "mixture")


def expected_error(model: Gaussians, noise: Floats, missing: Floats) -> float:
    """Return the root mean squared error of a value after cleaning, for points drawn from the mixture.

    A share `missing` (D,) of their values is missing.
    """
    rng = np.random.default_rng(4)
    K, D = model.means.shape
    which = rng.choice(K, size=_DRAWS, p=model.weights / model.weights.sum())
    roots = np.linalg.cholesky(model.covariances)
    points = model.means[which] + np.einsum("nde,ne->nd", roots[which], rng.standard_normal((_DRAWS, D)))
    points += noise * rng.standard_normal(points.shape)
    points[rng.random(points.shape) < missing] = np.nan
    prepared = make_components(*with_background(model), noise)
    deviations = posterior(prepared, points, deviations=True)[1]
    assert deviations is not None
    return math.sqrt(float((deviations**2).mean()))
