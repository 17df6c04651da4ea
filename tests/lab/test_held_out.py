"""The shapes that nothing was tuned on: points lie on them, distances are right, sampling is by length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpmd_fast.lab.experiments.held_out import HELD_OUT, ellipse, helix, wavy_sheet


@pytest.mark.parametrize("name", HELD_OUT)
def test_samples_lie_on_the_shape(name):
    shape = HELD_OUT[name]()
    X = shape.sample(500, np.random.default_rng(0))
    assert X.shape == (500, shape.ambient)
    assert shape.distance(X).max() < 1e-4


@pytest.mark.parametrize("name", HELD_OUT)
def test_distances_against_a_fine_sample(name):
    shape = HELD_OUT[name]()
    rng = np.random.default_rng(1)
    X = shape.sample(40, rng) + rng.normal(scale=0.1, size=(40, shape.ambient))
    many = shape.sample(400_000, rng)
    plain = np.array([np.sqrt(((many - x) ** 2).sum(axis=1).min()) for x in X])
    assert (shape.distance(X) <= plain + 1e-5).all()  # a sample bounds the distance from above
    np.testing.assert_allclose(shape.distance(X), plain, atol=2e-3 if shape.dim == 1 else 2e-2)


def test_known_distances():
    np.testing.assert_allclose(
        ellipse().distance([[3.0, 0.0], [0.0, 1.5], [0.0, 0.0]]), [1.0, 1.0, 0.5], atol=1e-6
    )
    np.testing.assert_allclose(helix().distance([[0.0, 0.0, 2.0]]), [1.0], atol=1e-6)
    np.testing.assert_allclose(
        wavy_sheet().distance([[0.0, -2.0, 0.0], [0.0, 9.0, 0.0]]), [2.0, 3.0], atol=1e-6
    )


def test_the_ellipse_is_sampled_by_length():
    X = ellipse().sample(200_000, np.random.default_rng(2))
    angles = np.linspace(0.0, 2.0 * np.pi, 2_000_001)
    steps = np.hypot(2.0 * np.sin(angles[:-1]), 0.5 * np.cos(angles[:-1]))
    share = steps[np.abs(2.0 * np.cos(angles[:-1])) > 1.8].sum() / steps.sum()
    error = math.sqrt(share * (1.0 - share) / len(X))  # six of them: once in 5 10^8 runs
    assert abs((np.abs(X[:, 0]) > 1.8).mean() - share) < 6.0 * error < 0.007
