"""The oracle itself: known answers, finite differences, and the stated statuses."""

import math

import naive
import numpy as np
import pytest


def circle_points(n, radius=1.0):
    angles = 2 * np.pi * np.arange(n) / n
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def noisy_circle(n, sigma, rng):
    angles = rng.uniform(0, 2 * np.pi, n)
    return np.column_stack([np.cos(angles), np.sin(angles)]) + rng.uniform(-sigma, sigma, (n, 2))


def test_ball_is_closed():
    Y = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.000001]])
    assert naive.ball(Y, np.zeros(2), 5.0) == [0, 1]
    assert naive.ball(Y, np.array([50.0, 0.0]), 5.0) == []


def test_covariance_of_known_points():
    Y = np.array([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [0.0, 4.0, 1.0], [9.0, 9.0, 9.0]])
    C = naive.local_covariance(Y, np.array([0.0, 1.0, 1.0]), 4.0)  # the first three points
    expected = np.array([[8 / 3, -8 / 3, 0.0], [-8 / 3, 32 / 3, 0.0], [0.0, 0.0, 0.0]]) / 2
    np.testing.assert_allclose(C, expected, atol=1e-14)
    np.testing.assert_array_equal(naive.local_covariance(Y, Y[3], 1.0), np.zeros((3, 3)))


def test_covariance_survives_a_far_origin():
    Y = np.random.default_rng(0).normal(size=(40, 3))
    near = naive.local_covariance(Y, np.zeros(3), 2.0)
    far = naive.local_covariance(Y + 1e6, np.full(3, 1e6), 2.0)
    np.testing.assert_allclose(far, near, atol=1e-8)


def test_top_projector():
    P, V, eigenvalues = naive.top_projector(np.diag([1.0, 5.0, 3.0]), 2)
    np.testing.assert_allclose(P, np.diag([0.0, 1.0, 1.0]), atol=1e-14)
    np.testing.assert_allclose(np.abs(V), [[0, 0], [1, 0], [0, 1]], atol=1e-14)
    np.testing.assert_allclose(eigenvalues, [5.0, 3.0, 1.0])


def test_projectors_on_a_circle_are_its_tangents():
    Y = circle_points(200)
    P = naive.local_projectors(Y, 0.3, 1)
    tangents = np.column_stack([-Y[:, 1], Y[:, 0]])
    np.testing.assert_allclose(P, tangents[:, :, None] * tangents[:, None, :], atol=1e-12)


def test_projector_of_a_lonely_point_is_zero():
    Y = np.vstack([circle_points(50), [[10.0, 10.0]]])
    P = naive.local_projectors(Y, 0.5, 1)
    assert np.trace(P[0]) == pytest.approx(1.0)
    np.testing.assert_array_equal(P[-1], np.zeros((2, 2)))


def test_kernel_weight():
    assert naive.kernel_weight(0.0, 2.0) == 1.0
    assert naive.kernel_weight(0.5, 2.0) == 0.25
    assert naive.kernel_weight(0.5, 3.0) == 0.125
    assert naive.kernel_weight(1.0, 2.0) == 0.0
    assert naive.kernel_weight(1.5, 2.0) == 0.0


def test_weighted_geometry_by_hand():
    Y = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [5.0, 5.0]])
    P = np.array([np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.eye(2), np.eye(2)])
    count, mass, b, Pw = naive.weighted_geometry(Y, P, np.zeros(2), 2.0, 2.0)
    weight = (1 - 1 / 4) ** 2  # of the second point; the third lies on the sphere: counted, no mass
    assert count == 3
    assert mass == pytest.approx(1 + weight)
    np.testing.assert_allclose(b, [weight / (1 + weight), 0.0])
    np.testing.assert_allclose(Pw, np.diag([1.0, weight]) / (1 + weight))


def test_denoise_moves_a_point_to_the_circle_by_the_known_step():
    # By symmetry the mean at (1.1, 0) lies on the axis and the averaged projector is diagonal.
    Y = circle_points(400)
    Z = np.array([[1.1, 0.0]])
    h = 0.4
    P = naive.local_projectors(Y, h, 1)
    _, _, b, _ = naive.weighted_geometry(Y, P, Z[0], h, 2.0)
    out, statuses = naive.denoise(Y, Z, h, 1, steps=1, beta=2.0)
    assert statuses == ["ok"]
    np.testing.assert_allclose(out[0], [b[0], 0.0], atol=1e-12)
    assert abs(out[0, 0] - 1.0) < 0.02


def test_denoise_improves_on_noisy_data():
    rng = np.random.default_rng(1)
    Y = noisy_circle(300, 0.05, rng)
    Z = noisy_circle(20, 0.2, rng)
    out, statuses = naive.denoise(Y, Z, 0.5, 1, steps=2, beta=2.0)
    assert set(statuses) == {"ok"}
    before = np.abs(np.linalg.norm(Z, axis=1) - 1).mean()
    after = np.abs(np.linalg.norm(out, axis=1) - 1).mean()
    assert after < before / 2


def test_denoise_noise_enters_mean_and_projector():
    Y = circle_points(100)
    Z = np.array([[1.1, 0.0]])
    zero_p, zero_m = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2))
    clean, _ = naive.denoise(Y, Z, 0.5, 1, 1, 2.0)
    same, _ = naive.denoise(Y, Z, 0.5, 1, 1, 2.0, noise=(zero_p, zero_m))
    np.testing.assert_array_equal(clean, same)
    moved, _ = naive.denoise(Y, Z, 0.5, 1, 1, 2.0, noise=(zero_p, np.array([[[0.25, 7.0]]])))
    np.testing.assert_allclose(moved - clean, [[0.25, 0.0]], atol=1e-10)  # only the normal part counts
    turned, _ = naive.denoise(Y, Z, 0.5, 1, 1, 2.0, noise=(np.diag([50.0, 0.0])[None, None], zero_m))
    np.testing.assert_allclose(turned, Z, atol=1e-10)  # the tangent is now the x axis: nothing to correct


def test_denoise_statuses():
    Y = circle_points(100)
    Z = np.array([[1.1, 0.0], [9.0, 0.0], [1.1, 0.0], [1.1, 0.0]])
    Wp, Wm = np.zeros((4, 2, 2, 2)), np.zeros((4, 2, 2))
    Wm[2, 0] = [30.0, 0.0]  # thrown out of every ball: fails at the second step
    Wp[3, 1, 0, 0] = np.nan
    out, statuses = naive.denoise(Y, Z, 0.5, 1, 2, 2.0, noise=(Wp, Wm))
    assert statuses == ["ok", "no_neighbor", "failed", "failed"]
    np.testing.assert_array_equal(out[1:], Z[1:])


def test_denoise_without_kernel_mass_fails():
    Y = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])  # all exactly on the sphere around the query
    out, statuses = naive.denoise(Y, np.zeros((1, 2)), 1.0, 1, 1, 2.0)
    assert statuses == ["failed"]
    np.testing.assert_array_equal(out, np.zeros((1, 2)))


@pytest.mark.parametrize("beta", [2.0, 3.5])
@pytest.mark.parametrize(("D", "d"), [(2, 1), (3, 2), (4, 1)])
def test_gradient_against_central_differences(D, d, beta):
    rng = np.random.default_rng(D * 10 + d)
    Y = rng.normal(size=(60, D)) * np.array([1.0, 0.6, 0.3, 0.2])[:D]
    h = 1.1
    P = naive.local_projectors(Y, h, d)
    x = rng.normal(size=D) * 0.3
    gradient = naive.residual_gradient(Y, P, x, h, beta)
    step = 1e-5
    for k in range(D):
        e = np.zeros(D)
        e[k] = step
        up = naive.squared_norm(naive.residual(Y, P, x + e, h, beta)) / 2
        down = naive.squared_norm(naive.residual(Y, P, x - e, h, beta)) / 2
        assert gradient[k] == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-9)


def test_gradient_descent_finds_a_zero_of_the_residual():
    rng = np.random.default_rng(2)
    Y = noisy_circle(150, 0.05, rng)
    Z = np.array([[1.15, 0.0], [0.0, -0.9], [30.0, 0.0]])
    h, tol = 0.6, 5e-3
    out, statuses, iterations = naive.gradient_descent(Y, Z, h, 1, steps=50, beta=2.0, tol=tol)
    assert statuses == ["ok", "ok", "no_neighbor"]
    assert iterations[2] == 0
    np.testing.assert_array_equal(out[2], Z[2])
    P = naive.local_projectors(Y, h, 1)
    for q in range(2):
        assert 0 < iterations[q] < 50
        assert math.sqrt(naive.squared_norm(naive.residual(Y, P, out[q], h, 2.0))) <= tol * h
        assert abs(np.linalg.norm(out[q]) - 1) < abs(np.linalg.norm(Z[q]) - 1)


def test_gradient_descent_takes_no_step_where_none_is_needed():
    Y = circle_points(60)
    Z = np.array([[1.1, 0.0]])
    out, statuses, iterations = naive.gradient_descent(Y, Z, 0.6, 1, steps=5, beta=2.0, tol=1.0)
    assert (statuses, iterations) == (["ok"], [0])
    np.testing.assert_array_equal(out, Z)
    _, _, iterations = naive.gradient_descent(Y, Z, 0.6, 1, steps=2, beta=2.0, tol=0.0)
    assert iterations == [2]


def test_paper_bandwidth():
    assert naive.paper_bandwidth(20_000, 1, 0.1) == pytest.approx(2 * math.sqrt(0.1))
    assert naive.paper_bandwidth(1000, 1, 0.0) == pytest.approx(5 * math.sqrt(math.log(1000) / 1000))
    assert naive.paper_bandwidth(1000, 2, 0.0) == pytest.approx(5 * (math.log(1000) / 1000) ** (1 / 3))


def test_algorithm1():
    Y = circle_points(100)
    tangent = np.diag([0.0, 1.0])
    np.testing.assert_allclose(naive.algorithm1(Y, Y[0], 0.4, 1, np.zeros((2, 2))), tangent, atol=1e-12)
    W = np.array([[0.0, 0.5], [0.5, 0.0]])  # P + W = [[0, .5], [.5, 1]]
    top = naive.algorithm1(Y, Y[0], 0.4, 1, W)
    v = np.array([1.0, 1.0 + math.sqrt(2.0)]) / math.sqrt(1 + (1 + math.sqrt(2.0)) ** 2)
    np.testing.assert_allclose(top, np.outer(v, v), atol=1e-12)
    far = np.array([40.0, 0.0])  # no tangent there: the noise alone decides
    np.testing.assert_allclose(naive.algorithm1(Y, far, 0.4, 1, np.diag([2.0, 1.0])), np.diag([1.0, 0.0]))
