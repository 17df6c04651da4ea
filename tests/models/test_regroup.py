"""Components that are noise are given to groups that share one; halves of one group are joined again."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.gaussians.regroup import chosen, evidence, join, split, with_records


def moments(points, groups):
    """The component of each group of points."""
    parts = [points[groups == k] for k in range(groups.max() + 1)]
    return Gaussians(
        np.array([len(part) for part in parts]) / len(points),
        np.stack([part.mean(axis=0) for part in parts]),
        np.stack([np.cov(part.T, bias=True) for part in parts]),
    )


def test_a_split_keeps_the_moments_and_takes_the_place_of_noise():
    rng = np.random.default_rng(0)
    S = np.cov(rng.normal(size=(3, 50)) * np.array([[3.0], [1.0], [0.5]]))
    model = Gaussians(np.array([0.7, 0.2, 0.1]), rng.normal(size=(3, 3)), np.stack([S, S, S]))
    signals = np.array([40.0, 1.0, 5.0])
    made, pairs = split(model, signals, signals, 3)
    assert pairs == [(0, 2)]  # the second component was noise; the third moved to its place
    np.testing.assert_allclose(made.means[[0, 2]].mean(axis=0), model.means[0])
    gaps = made.means[[0, 2]] - model.means[0]
    np.testing.assert_allclose(made.covariances[0] + gaps.T @ gaps / 2.0, S)
    np.testing.assert_allclose(made.means[1], model.means[2])
    assert made.weights.sum() == pytest.approx(1.0)
    same, none = split(model, signals, np.array([40.0, 4.0, 5.0]), 3)  # no place is free: it had records
    assert none == []
    np.testing.assert_array_equal(same.means, model.means)


def test_places_go_to_the_heaviest_and_ties_to_the_first():
    model = Gaussians(np.full(4, 0.25), np.zeros((4, 2)), np.repeat(np.eye(2)[None], 4, axis=0))
    signals = np.array([9.0, 20.0, 20.0, 0.0])
    assert split(model, signals, signals, 4)[1] == [(1, 3)]
    assert split(model, signals, signals, 5)[1] == [(1, 3), (2, 4)]


@pytest.mark.parametrize("apart", [0.0, 8.0])
def test_halves_are_joined_unless_they_are_two_groups(apart):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20_000, 3)) * np.array([2.0, 1.0, 0.5])
    points[::2, 0] += apart
    model = moments(points, (points[:, 0] > points[:, 0].mean()).astype(int))
    rounds = [(0.1, np.array([15.0, 10.0])), (0.2, np.array([20.0, 20.0]))]
    made, kept = join(model, rounds, [(0, 1)])
    assert len(made.weights) == len(kept[-1][1]) == (1 if apart == 0.0 else 2)
    if apart == 0.0:
        np.testing.assert_allclose(made.covariances[0], np.cov(points.T, bias=True), rtol=1e-9, atol=1e-9)
        assert [(share, signals.tolist()) for share, signals in kept] == [(0.1, [25.0]), (0.2, [40.0])]


def test_only_noise_is_left_out():
    assert with_records(np.array([5.0, 2.9, 3.0, -1.0])) == [0, 2]
    assert with_records(np.array([1.0, 2.0])) == [0, 1]
    model = Gaussians(np.array([0.5, 0.3, 0.2]), np.zeros((3, 2)), np.repeat(np.eye(2)[None], 3, axis=0))
    np.testing.assert_allclose(chosen(model, [0, 2]).weights, [5 / 7, 2 / 7])


def test_rounds_together_show_a_mass_that_one_round_hides():
    rng = np.random.default_rng(0)
    masses = np.array([0.0, 4.0])
    rounds = [[(0.1, masses + rng.normal(size=2)) for _ in range(3)] for _ in range(2_000)]
    kept = np.mean([evidence(one) >= 3.0 for one in rounds], axis=0)
    alone = np.mean([one[-1][1] >= 3.0 for one in rounds], axis=0)
    assert kept[0] < 0.01
    assert kept[1] > 0.99
    assert alone[1] < 0.9
    larger = evidence([(0.1, np.array([1.0])), (0.4, np.array([2.0]))])  # same mass, half the noise
    np.testing.assert_allclose(larger, np.sqrt(0.5 / 0.1))
