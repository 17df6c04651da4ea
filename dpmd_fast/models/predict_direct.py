"""Predict from public numbers what a direct release at public points would be worth: nothing is spent.

Noise of measurement is not known here, so it cannot be said how much a release helps: a spend is refused only
where its result would be noise. Without a public number of records nothing is predicted.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.models.geometry.anchors import Floats, public_moments, thinned
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS, OCCUPIED
from dpmd_fast.models.verdict import HARM_LIKELY, HELPS, LEAST_PUBLIC, LEAST_REACH, TOO_FEW, Verdict
from dpmd_fast.privacy.budget import Budget

_MOST_QUERIES = 500  # that are looked at: more do not change their share


def predict_moments(n: int | None, noise_scale: float, budget: Budget) -> Verdict:
    """Judge a release of moments of `n` records, whose noise has deviation `noise_scale`."""
    most = math.inf if n is None else n * HOMOGENEOUS / noise_scale
    if n is None or most >= OCCUPIED:
        return Verdict(HELPS, "There is signal, if the records are near the locations.")
    return Verdict(
        TOO_FEW,
        f"{_records(n, budget)}: even if all of them were at one location, it would not stand out from the "
        f"noise; about {math.ceil(n * OCCUPIED / most):,} records are needed at least.",
    )


def predict_direct(
    queries: Floats,
    n: int | None,
    bandwidth: float,
    noise_scale: float,
    budget: Budget,
    n_threads: int | None,
) -> Verdict:
    """Judge moments released at queries, taking records to be distributed as the queries are.

    With few queries, or without a public number of records, what can be said holds for any records.
    """
    found = predict_moments(n, noise_scale, budget)
    points = np.unique(queries, axis=0)
    if found.word != HELPS or n is None or len(points) < LEAST_PUBLIC:
        return found
    points = thinned(points)
    if n * HOMOGENEOUS / noise_scale >= OCCUPIED * (len(points) - 1):
        return found  # where one of so few queries stands for enough records, none in a ball says nothing
    at = points[:: -(-len(points) // _MOST_QUERIES)]
    around = public_moments(points, at, bandwidth, HOMOGENEOUS, n_threads)
    share = np.maximum(0.0, around.mass - 1.0) / (len(points) - 1)  # a query is no neighbour of itself
    reach = float((share * n * HOMOGENEOUS / noise_scale >= OCCUPIED).mean())
    if reach >= LEAST_REACH:
        return Verdict(HELPS, f"{reach:.0%} of the queries are predicted to be in reach.", reach=reach)
    return Verdict(
        TOO_FEW,
        f"{_records(n, budget)}: {reach:.0%} of the queries would stand out from the noise, the others come "
        "back unchanged; a larger bandwidth reaches more of them.",
        reach=reach,
    )


def predict_projectors(scales: Floats, columns: int, dim: int, bandwidth: float, budget: Budget) -> Verdict:
    """Judge Algorithm 2 of the paper by the noise `scales` (m, T, 2) of its projectors and means.

    A mean that noise throws further than the bandwidth, in directions normal to the surface, is of no use.
    """
    released = np.where(np.isfinite(scales[:, :, 1]), scales[:, :, 1], 0.0)
    thrown = float(np.median(released.max(axis=1))) * math.sqrt(columns - dim)
    if thrown <= bandwidth:
        return Verdict(HELPS, f"The noise of a mean is {thrown:.3g} away from the surface.")
    return Verdict(
        HARM_LIKELY,
        f"At epsilon = {budget.epsilon:g}, delta = {budget.delta:g} the noise throws the median query "
        f"{thrown:.3g} away from the surface, more than the bandwidth of {bandwidth:.3g}; fewer queries or "
        "steps, more records or a larger bandwidth have less noise.",
    )


def _records(n: int, budget: Budget) -> str:
    return f"{n:,} records are too few at epsilon = {budget.epsilon:g}, delta = {budget.delta:g}"
