"""The search for worst replace-one neighbours: what it reports is real; random search does not beat it."""

import naive
import numpy as np
import pytest

from dpmd_fast import empirical_sensitivity
from dpmd_fast.lab.datasets import circle, simulate


def geometry(Y, x, h, d):
    _, _, mean, averaged = naive.weighted_geometry(Y, naive.local_projectors(Y, h, d), x, h, 2.0)
    return mean, averaged


@pytest.fixture(scope="module")
def data():
    sample = simulate(circle(), 80, 3, 0.02, np.random.default_rng(3))
    return sample.references, sample.queries


def test_the_reported_neighbor_has_the_reported_effect(data):
    Y, Z = data
    found = empirical_sensitivity(Y, Z, 0.6, 1)
    neighbor = Y.copy()
    neighbor[found.worst_record] = found.worst_replacement
    x = Z[found.worst_query]
    mean, averaged = geometry(Y, x, 0.6, 1)
    new_mean, new_averaged = geometry(neighbor, x, 0.6, 1)
    mean_constant = np.linalg.norm(mean - new_mean) * 80
    projector_constant = np.linalg.norm(averaged - new_averaged) * 80 * 0.6
    assert found.constant == pytest.approx(max(mean_constant, projector_constant), rel=1e-6)
    assert found.mean_constant == pytest.approx(found.mean_change * 80)
    assert found.projector_constant == pytest.approx(found.projector_change * 80 * 0.6)
    assert found.tangent_constant == pytest.approx(found.tangent_change * 80 * 0.6)
    assert found.holds == "not private"


@pytest.mark.parametrize("tries", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_random_neighbors_move_less(data, tries):
    Y, Z = data
    found = empirical_sensitivity(Y, Z[0], 0.6, 1)
    mean, averaged = geometry(Y, Z[0], 0.6, 1)
    tangent = naive.local_projector(Y, Z[0], 0.6, 1)
    rng = np.random.default_rng(0)
    inside = naive.ball(Y, Z[0], 0.6)
    moved = np.zeros(3)
    for _ in range(tries):
        neighbor = Y.copy()
        neighbor[rng.choice(inside)] = Z[0] + 0.6 * rng.uniform(-1, 1, size=2)
        new_mean, new_averaged = geometry(neighbor, Z[0], 0.6, 1)
        moves = [
            np.linalg.norm(mean - new_mean),
            np.linalg.norm(averaged - new_averaged),
            np.linalg.norm(tangent - naive.local_projector(neighbor, Z[0], 0.6, 1)),
        ]
        moved = np.maximum(moved, moves)
    assert found.mean_change >= 0.98 * moved[0]
    assert found.projector_change >= 0.9 * moved[1]
    assert found.tangent_change >= 0.9 * moved[2]


def test_points_without_neighbors_are_said_to_be_so(data):
    with pytest.raises(ValueError, match="nothing to measure"):
        empirical_sensitivity(data[0], [100.0, 100.0], 0.6, 1)
