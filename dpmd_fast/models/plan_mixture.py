"""Predict a mixture from public numbers: nothing is spent, and no reference is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpmd_fast.arguments import checked_choice, checked_integer, checked_points, is_auto, shown
from dpmd_fast.columns import names_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.posterior import make_components, posterior
from dpmd_fast.models.gaussians.components import floored
from dpmd_fast.models.gaussians.recipe import Recipe, choose_recipe
from dpmd_fast.models.gaussians.tuning import (
    LEAST_MASS,
    LEAST_SIGNAL,
    LEAST_VARIANCE,
    MOST_GIVEN_COMPONENTS,
    MOST_ROUNDS,
)
from dpmd_fast.models.mixture_cleaner import checked_noise
from dpmd_fast.models.preprocessor import Floats, Preprocessor, units_of
from dpmd_fast.privacy.budget import Budget, check_budget
from dpmd_fast.privacy.guarantee import Adjacency

_FOLDS = 5
_MOST_ROWS = 5000  # of the queries, for the filter: more do not change its error


@dataclass(frozen=True)
class MixturePlan:
    """Prediction for `release_mixture`.

    Attributes
    ----------
    components : int
    rounds : int
        Releases of all components; one more comes before them, of all records as one component.
    signal_to_noise : float
        Number of records over the deviation of the noise of one component with the whole budget. With less
        than 15 `release_mixture` refuses to spend.
    component_signal : float
        Mean mass of a component over the deviation of its noise, in the last round.
    enough_records : int
        Smallest number of records that this budget, `components` and `rounds` would not be refused for.
    raw_error : float
        Mean squared error of a value of the queries, which is the mean of noise^2, in preprocessed units.
    public_only_error : float
        Mean squared error that the queries can expect from a linear filter made of themselves alone, without
        any reference, in units of `raw_error`: at most 1, which is to leave them as they are. NaN if the
        noise is 0.
    mu2 : float
        What would be spent.
    advice : str
        One sentence.
    """

    components: int
    rounds: int
    signal_to_noise: float
    component_signal: float
    enough_records: int
    raw_error: float
    public_only_error: float
    mu2: float
    advice: str


def plan_mixture(
    queries: Any,
    n: int,
    *,
    budget: Budget,
    noise: Any,
    components: int | Literal["auto"] = "auto",
    rounds: int | Literal["auto"] = "auto",
    adjacency: Adjacency = "replace-one",
    preprocess: Preprocessor | None = None,
    n_threads: int | None = None,
) -> MixturePlan:
    """Predict components, signal and use of a mixture of `n` records from public numbers.

    Parameters
    ----------
    queries : array or table (m, D)
        Public points with this noise; NaN are missing values. Without `preprocess`, their medians and median
        absolute deviations are the units of the columns, as with ``release_mixture(public=queries)``.
    n : int
        Number of private records, if it is public, or a public guess.
    noise : number, array (D,) or mapping
        As for `Mixture.transform`.
    budget, components, rounds, adjacency, preprocess
        As for `release_mixture`.
    n_threads : int, optional
    """
    points = np.asarray(checked_points("queries", queries, missing=True), dtype=np.float64)
    names = names_of(queries)
    if preprocess is None:
        preprocess = units_of(points, names)
    elif not isinstance(preprocess, Preprocessor):
        raise UserValueError(
            f"preprocess = {shown(preprocess)}: must be a Preprocessor or None", argument="preprocess"
        )
    elif preprocess.n_columns != points.shape[1]:
        raise UserValueError(
            f"queries has {points.shape[1]} features: must have {preprocess.n_columns}, like the preprocessor"
        )
    preprocess.check_names("queries", names)
    n = checked_integer("n", n, minimum=1)
    check_budget(budget)
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    deviations = checked_noise(noise, points.shape[1], preprocess.column_names, preprocess)
    recipe = choose_recipe(
        n,
        points.shape[1],
        budget.mu,
        adjacency,
        _given("components", components, MOST_GIVEN_COMPONENTS),
        _given("rounds", rounds, MOST_ROUNDS),
    )
    raw = float((deviations**2).mean())
    alone = filter_error(preprocess.forward_block(points, "queries"), deviations, n_threads)
    signal = recipe.component_signal
    enough = math.ceil(
        n * max(LEAST_SIGNAL / recipe.signal, LEAST_MASS / signal if components != "auto" else 0.0)
    )
    return MixturePlan(
        components=recipe.components,
        rounds=len(recipe.shares) - 1,
        signal_to_noise=recipe.signal,
        component_signal=signal,
        enough_records=enough,
        raw_error=raw,
        public_only_error=alone,
        mu2=budget.mu**2,
        advice=_advice(recipe, n, enough, budget),
    )


def filter_error(points: Floats, noise: Floats, n_threads: int | None = None) -> float:
    """Return the mean squared error of a linear filter made of the points alone, over that of the points.

    The filter is the posterior mean under one normal distribution whose mean and covariance are those of four
    fifths of the points, less the noise; it is judged by the other fifth. The truth is not needed: the error
    of z moved to x is (x - z)^2 - noise^2 + 2 cov(x, z - truth), and the last is the posterior variance.
    """
    if not (noise > 0.0).any():
        return math.nan
    order = np.random.default_rng(0).permutation(len(points))[:_MOST_ROWS]
    points = points[order]
    folds = np.arange(len(points)) % min(_FOLDS, max(1, len(points)))
    errors, raw = 0.0, 0.0
    for fold in np.unique(folds):
        mine, others = points[folds == fold], points[folds != fold]
        there = ~np.isnan(mine)
        raw += float((there * noise**2).sum())
        if len(others) < 2:  # nothing to learn from: these stay as they are
            errors += float((there * noise**2).sum())
            continue
        mean, covariance = _moments(others)
        clean = floored((covariance - np.diag(noise**2))[None], np.array([LEAST_VARIANCE]))
        parts = make_components(np.ones(1), mean[None], clean, noise)
        means, deviations = posterior(parts, mine, deviations=True, n_threads=n_threads)[:2]
        assert deviations is not None
        found = (means - mine) ** 2 + 2.0 * deviations**2 - noise**2
        errors += float(found[there].sum())
    return min(1.0, max(0.0, errors / raw)) if raw > 0.0 else math.nan


def _moments(points: Floats) -> tuple[Floats, Floats]:
    """Return mean and covariance of points, each entry from the rows that have both values."""
    there = ~np.isnan(points)
    mean = np.where(there, points, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    gaps = np.where(there, points - mean, 0.0)
    both = there.astype(np.float64).T @ there
    covariance: Floats = gaps.T @ gaps / np.maximum(both - 1.0, 1.0)
    return mean, covariance


def _given(name: str, value: object, most: int) -> int | None:
    if is_auto(name, value):
        return None
    number = checked_integer(name, value, minimum=1)
    if number > most:
        raise UserValueError(f"{name} = {number}: must be at most {most}", argument=name)
    return number


def _advice(recipe: Recipe, n: int, enough: int, budget: Budget) -> str:
    if n < enough:
        remedy = "" if recipe.signal < LEAST_SIGNAL else "fewer components or "
        return (
            f"{n:,} records are too few at epsilon = {budget.epsilon:g}: the release would be refused; use "
            f"{remedy}about {enough:,} records or a larger epsilon."
        )
    if recipe.components == 1:
        return "Signal for one component: a linear filter, made of all records."
    return f"Signal for {recipe.components} components; {enough:,} records would be the least for a release."
