"""Gradient descent against the plain loop, and every status code."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.descent import FAILED, NO_NEIGHBOR, OK, descend
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import local_tangents

NAMES = {OK: "ok", NO_NEIGHBOR: "no_neighbor", FAILED: "failed"}


def sample(D, d, n, m):
    """Noisy d-sphere in the first d+1 coordinates of R^D, and noisier queries."""
    rng = np.random.default_rng(100 * D + d)
    points = rng.standard_normal((n + m, d + 1))
    points /= np.linalg.norm(points, axis=1)[:, None]
    noise = rng.uniform(-1.0, 1.0, (n + m, D)) * np.where(np.arange(n + m) < n, 0.02, 0.15)[:, None]
    noise[:, : d + 1] += points
    return noise[:n], noise[n:]


def run(Y, Z, h, d, beta, steps, tol, n_threads=None):
    index = build_index(Y, h)
    return descend(index, local_tangents(index, d)[0], Z, beta, steps, tol, n_threads)


def assert_descent(Y, Z, h, d, beta, steps, tol):
    ref, ref_status, ref_taken = naive.gradient_descent(Y, Z, h, d, steps, beta, tol)
    comp, codes, taken, residuals = run(Y, Z, h, d, beta, steps, tol)
    assert [NAMES[code] for code in codes] == ref_status
    np.testing.assert_array_equal(taken, ref_taken)
    # an accepted step depends on x smoothly: rounding grows by a modest factor in each of a few steps
    np.testing.assert_allclose(comp, ref, rtol=0, atol=1e-9 * h)
    P = naive.local_projectors(Y, h, d)
    for q, code in enumerate(codes):
        if code == OK:
            size = np.sqrt(naive.squared_norm(naive.residual(Y, P, comp[q], h, beta)))
            assert residuals[q] == pytest.approx(size, rel=1e-9, abs=1e-12)
        else:
            assert np.isnan(residuals[q])
            np.testing.assert_array_equal(comp[q], Z[q])
    return comp, codes, taken, residuals


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), [(2, 1), (3, 2)])
def test_against_the_loop_small(D, d):
    Y, Z = sample(D, d, 66, 2)
    _, _, taken, _ = assert_descent(Y, Z, 0.7, d, 2.0, 2, 1e-3)
    assert taken.max() == 2


@pytest.mark.parametrize(("D", "d", "h"), [(2, 1, 0.4), (3, 1, 0.4), (3, 2, 0.7), (5, 2, 0.7), (9, 1, 0.5)])
@pytest.mark.parametrize("beta", [2.0, 2.5, 3.0])
def test_against_the_loop(D, d, h, beta):
    Y, Z = sample(D, d, 120, 5)
    _, codes, taken, residuals = assert_descent(Y, Z, h, d, beta, 4, 5e-3)
    assert (codes == OK).all()
    assert taken.max() >= 2
    assert ((residuals <= 5e-3 * h) | (taken == 4)).all()
    start = run(Y, Z, h, d, beta, 0, 5e-3)[3]
    assert residuals.mean() < 0.3 * start.mean()


def test_tolerance_and_steps():
    Y, Z = sample(2, 1, 120, 8)
    comp, codes, taken, residuals = run(Y, Z, 0.4, 1, 2.0, 0, 1e-3)
    np.testing.assert_array_equal(comp, Z)
    np.testing.assert_array_equal(taken, 0)
    assert (codes == OK).all()
    assert (residuals > 0.0).all()
    comp, _, taken, _ = run(Y, Z, 0.4, 1, 2.0, 50, residuals.max() / 0.4 * 1.001)  # all are there already
    np.testing.assert_array_equal(comp, Z)
    np.testing.assert_array_equal(taken, 0)
    last = residuals
    for steps in (1, 2, 4, 8):
        _, _, taken, now = run(Y, Z, 0.4, 1, 2.0, steps, 1e-6)
        assert (taken <= steps).all()
        assert (now <= last).all()  # F falls at every step
        last = now


def test_status_codes():
    # d = 1: a pair around the origin, a lone point, and two points on the sphere of the second query
    Y = np.array([[0.0, 0.1], [0.0, -0.1], [0.3, 0.0], [20.0, 0.0], [39.0, 0.0], [41.0, 0.0]])
    Z = np.array([[0.1, 0.05], [40.0, 0.0], [20.1, 0.0], [100.0, 0.0]])
    _, codes, taken, _ = assert_descent(Y, Z, 1.0, 1, 2.0, 3, 1e-6)
    # enough points but no kernel mass is a failure; too few points is not
    assert codes.tolist() == [OK, FAILED, NO_NEIGHBOR, NO_NEIGHBOR]
    assert taken[1:].tolist() == [0, 0, 0]


def test_non_finite_tangents_fail():
    Y, Z = sample(2, 1, 120, 3)
    index = build_index(Y, 0.4)
    bases = np.full_like(local_tangents(index, 1)[0], np.nan)
    comp, codes, _, residuals = descend(index, bases, Z, 2.0, 5, 1e-3)
    assert (codes == FAILED).all()
    assert np.isnan(residuals).all()
    np.testing.assert_array_equal(comp, Z)


@pytest.mark.parametrize("D", [3, 12])
def test_thread_count_does_not_matter(D):
    Y, Z = sample(D, 2, 400, 40)
    ref = run(Y, Z, 0.6, 2, 2.0, 6, 1e-3, n_threads=1)
    comp = run(Y, Z, 0.6, 2, 2.0, 6, 1e-3, n_threads=2)
    assert (ref[1] == OK).sum() > 20
    for a, b in zip(comp, ref, strict=True):
        np.testing.assert_array_equal(a, b)
