"""The bandwidth to begin with, and the predicted error, both from public points alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpmd_fast import Budget, release_atlas
from dpmd_fast.lab.datasets import make_shape, simulate
from dpmd_fast.lab.experiments.held_out import HELD_OUT
from dpmd_fast.models.geometry.anchors import public_bias2
from dpmd_fast.models.geometry.bandwidth import search_before_spending
from dpmd_fast.models.geometry.tuning import rounds_for

pytestmark = pytest.mark.filterwarnings("ignore::dpmd_fast.LargeDeltaWarning")


def search(Z, n, dim, epsilon=1.0, delta=1e-6):
    budget = Budget(epsilon, delta)
    return search_before_spending(Z, n, budget, dim, adjacency="replace-one", cover=0.3, n_threads=None)


def wave(m, seed, noise=0.1, height=0.3):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0.0, 6.0, (2, m))
    return np.column_stack([x, y, height * np.sin(3.0 * x)]) + noise * rng.normal(size=(m, 3))


def test_public_points_show_a_bias_only_where_the_surface_bends():
    for seed in range(3):
        bent, flat = (public_bias2(wave(1000, seed, height=height), 1.2, 2) for height in (0.3, 0.0))
        # half of the mean square of the wave: a ball of this size flattens most of it
        assert 0.02**2 < bent < 0.5 * 0.3**2
        assert flat < 0.1 * bent


def test_the_bias_does_not_depend_on_units_or_threads():
    Z = wave(400, 0)
    found = public_bias2(Z, 1.2, 2)
    assert public_bias2(64.0 * Z, 64.0 * 1.2, 2) == pytest.approx(64.0**2 * found, rel=1e-6)
    assert public_bias2(Z, 1.2, 2, n_threads=1) == found


def test_points_too_far_apart_show_no_bias():
    Z = np.random.default_rng(0).normal(size=(50, 3))
    assert public_bias2(Z, 1e-3, 2) == 0.0


def test_a_wavy_sheet_begins_with_a_smaller_bandwidth_than_a_plane():
    bent = search(wave(1000, 0, height=0.3), 30_000, 2)
    assert 0.5 * bent.largest <= bent.choose() < 0.7 * bent.largest
    # of 100 planes, noise made one smaller by two steps: it does not make five of nine
    flat = [search(wave(1000, seed, height=0.0), 30_000, 2) for seed in range(9)]
    assert sum(one.choose() == one.largest for one in flat) >= 5


def test_parts_of_the_predicted_error():
    found = search(wave(1000, 0), 30_000, 2)
    h = found.largest
    error = found.final_error(h)
    assert error.total == pytest.approx(math.sqrt(error.noise**2 + error.bias**2 + error.sampling**2))
    more = search(wave(1000, 0), 120_000, 2)
    again = more.final_error(h)
    assert again.bias == pytest.approx(error.bias)
    assert again.sampling == pytest.approx(0.5 * error.sampling)
    assert again.noise <= 0.25 * error.noise * (1.0 + 1e-9)
    assert found.final_error(0.8 * h).bias == pytest.approx(0.8**3 * error.bias)


@pytest.mark.parametrize(
    ("name", "delta"), [("wavy-sheet", 1e-6), pytest.param("helix", 0.1, marks=pytest.mark.slow)]
)
def test_the_predicted_error_is_near_the_error(name, delta):
    shape = HELD_OUT[name]()
    data = simulate(shape, 30_000, 1000, 0.05, np.random.default_rng(3))
    found = search(data.queries, 30_000, shape.dim, delta=delta)
    predicted = found.expected_error(found.choose()).total
    atlas = release_atlas(data.references, data.queries, dim=shape.dim, budget=Budget(1.0, delta), seed=0)
    actual = float(shape.distance(atlas.transform(data.queries)).mean())
    assert 1 / 1.5 < predicted / actual < 1.5


def test_the_prediction_allows_for_starting_over():
    data = simulate(HELD_OUT["ellipse"](), 1000, 1000, 0.05, np.random.default_rng(0))
    found = search(data.queries, 100_000, 1, delta=0.1)
    h = found.largest
    assert found.expected_error(h) == found.final_error(0.65 * h)
    poor = search(data.queries, 1000, 1)  # one round, which leaves its bias
    assert poor.expected_error(h).bias > 2.0 * poor.final_error(h).bias > 0.0
    assert poor.expected_error(h).noise == poor.final_error(h).noise


def test_three_rounds_need_more_signal_where_points_scatter():
    assert [rounds_for(signal, 0.05) for signal in (49.0, 50.0, 89.0, 90.0)] == [1, 2, 2, 3]
    assert [rounds_for(signal, 0.15) for signal in (134.0, 136.0)] == [2, 3]
    assert [rounds_for(signal, 0.9) for signal in (199.0, 200.0)] == [2, 3]


def test_a_sphere_begins_with_the_largest_bandwidth():
    data = simulate(make_shape("sphere", ambient=3), 1000, 1000, 0.05, np.random.default_rng(1))
    found = search(data.queries, 10_000, 2)
    assert found.choose() == found.largest
