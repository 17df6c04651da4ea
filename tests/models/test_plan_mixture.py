"""Plans of mixtures: what they foresee is what happens."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from dpmd_fast.models.plan_mixture import filter_error

from dpmd_fast import Budget, Preprocessor, plan_mixture, release_mixture
from dpmd_fast.models.gaussians.tuning import LEAST_SIGNAL

BUDGET = Budget(1.0, 1e-6)
RNG = np.random.default_rng(0)
LOADINGS = RNG.normal(size=(2, 6))


def people(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) @ LOADINGS + 0.3 * rng.normal(size=(n, 6))


def noisy(points, noise, seed=1, missing=0.0):
    rng = np.random.default_rng(seed)
    out = points + noise * rng.normal(size=points.shape)
    out[rng.random(points.shape) < missing] = np.nan
    return out


def test_a_plan_is_kept():
    queries = noisy(people(400, 1), 0.5, missing=0.1)
    foreseen = plan_mixture(queries, 9000, budget=BUDGET, noise=0.5)
    made = release_mixture(people(9000, 2), budget=BUDGET, preprocess=_units(queries), seed=1)
    assert len(made.weights) == foreseen.components > 1
    assert len(made.spends) == foreseen.rounds + 1
    assert np.median(made.signal_to_noise) == pytest.approx(foreseen.component_signal, rel=0.4)
    assert foreseen.mu2 == BUDGET.mu**2
    assert f"Signal for {foreseen.components} components" in foreseen.advice


def _units(queries):
    return Preprocessor.from_public(queries, log=False, missing=True)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_number_of_records_that_is_enough_is_enough(adjacency):
    queries = noisy(people(50, 1), 0.5)
    few = plan_mixture(queries, 100, budget=BUDGET, noise=0.5, adjacency=adjacency)
    n = few.enough_records
    assert few.signal_to_noise < LEAST_SIGNAL
    assert (
        f"100 records are too few at epsilon = 1: the release would be refused; use about {n:,}" in few.advice
    )
    options = {"budget": BUDGET, "adjacency": adjacency, "n_public": n}
    assert len(release_mixture(people(n, 2), **options).weights) == 1
    with pytest.raises(ValueError, match=f"about {n} records would be enough"):
        release_mixture(people(n, 2), **{**options, "n_public": n - 5})
    enough = plan_mixture(queries, n, budget=BUDGET, noise=0.5, adjacency=adjacency)
    assert (enough.components, enough.rounds, enough.enough_records) == (1, 1, n)
    assert "a linear filter" in enough.advice


def test_too_many_components_are_foreseen():
    queries = noisy(people(50, 1), 0.5)
    foreseen = plan_mixture(queries, 5000, budget=BUDGET, noise=0.5, components=60, rounds=3)
    assert "use fewer components or about" in foreseen.advice
    with pytest.raises(ValueError, match="use fewer components or rounds"):
        release_mixture(people(5000, 2), budget=BUDGET, components=60, rounds=3)
    again = plan_mixture(queries, foreseen.enough_records, budget=BUDGET, noise=0.5, components=60, rounds=3)
    assert again.advice.startswith("Signal for 60 components")


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("m", [40, 400])
def test_what_queries_can_do_by_themselves(m, missing):
    """The error of the filter is estimated without the truth, and is that against the truth."""
    noise = np.full(6, 0.7)
    found = [filter_error(noisy(people(m, seed), 0.7, seed + 50, missing), noise) for seed in range(8)]
    expected = []
    for seed in range(8):  # a filter made of the same number of points, judged by the truth of others
        points = noisy(people(m, seed), 0.7, seed + 50)
        mean, covariance = points.mean(axis=0), np.cov(points.T)
        values, vectors = np.linalg.eigh(covariance - 0.49 * np.eye(6))
        clean = (vectors * np.maximum(values, 1e-3)) @ vectors.T
        truth = people(3000, seed + 100)
        fresh = noisy(truth, 0.7, seed + 200)
        gain = clean @ np.linalg.inv(clean + 0.49 * np.eye(6))
        expected.append((((fresh - mean) @ gain.T + mean - truth) ** 2).mean() / 0.49)
    slack = 0.15 if missing or m == 40 else 0.07
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=slack)
    assert all(0.0 <= one <= 1.0 for one in found)


def test_points_that_tell_nothing():
    rng = np.random.default_rng(0)
    assert math.isnan(filter_error(rng.normal(size=(30, 3)), np.zeros(3)))
    assert filter_error(rng.normal(size=(1, 3)), np.ones(3)) == 1.0
    assert filter_error(rng.normal(size=(2, 3)), np.ones(3)) == 1.0
    assert math.isnan(filter_error(np.full((5, 3), np.nan), np.ones(3)))
    pure = filter_error(rng.normal(size=(2000, 3)), np.ones(3))  # nothing but noise: the mean is right
    assert pure < 0.05
    partly = filter_error(noisy(people(300, 1), [0.7, 0, 0, 0, 0, 0]), np.array([0.7, 0, 0, 0, 0, 0]))
    assert partly < 0.6


def test_noise_and_units():
    queries = noisy(people(200, 1), 0.5)
    scale = np.array(_units(queries).scale)
    frame = pd.DataFrame(queries, columns=list("abcdef"))
    by_name = plan_mixture(frame, 9000, budget=BUDGET, noise=dict.fromkeys("abcdef", 0.5))
    by_number = plan_mixture(queries, 9000, budget=BUDGET, noise=0.5 / scale)
    assert dataclasses.astuple(by_name) == dataclasses.astuple(by_number)
    assert by_name.raw_error == pytest.approx(float(((0.5 / scale) ** 2).mean()))
    given = plan_mixture(queries, 9000, budget=BUDGET, noise=0.5 / scale, preprocess=_units(queries))
    assert given == by_number
    nothing = plan_mixture(queries, 9000, budget=BUDGET, noise=0)
    assert nothing.raw_error == 0.0
    assert math.isnan(nothing.public_only_error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n = 0"),
        ({"noise": -1}, "noise = -1"),
        ({"noise": {"a": 1}}, "has no column names"),
        ({"components": 0}, "components = 0"),
        ({"components": 257}, "components = 257: must be at most 256"),
        ({"rounds": "many"}, "rounds = 'many': must be a number or 'auto'"),
        ({"rounds": 21}, "rounds = 21: must be at most 20"),
        ({"budget": 1.0}, "budget = 1.0"),
        ({"adjacency": "none"}, "adjacency = 'none'"),
        ({"preprocess": "scales.json"}, "preprocess = 'scales.json': must be a Preprocessor or None"),
        ({"preprocess": Preprocessor((0.0,), (1.0,))}, "queries has 6 features: must have 1"),
        ({"queries": np.full((9, 6), np.inf)}, "queries contains infinity"),
        ({"queries": np.full((9, 6), np.nan)}, "queries has no values in column 0"),
        ({"queries": np.zeros((9, 6))}, "median absolute deviation of 0"),
    ],
)
def test_refused(changes, message):
    arguments = {"queries": people(30, 1), "n": 9000, "budget": BUDGET, "noise": 0.5, **changes}
    with pytest.raises(ValueError, match=message):
        plan_mixture(**arguments)
