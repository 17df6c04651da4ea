"""Shapes of the simulations: uniform by area, exact distances, calibrated noise."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from dpmd_fast.lab import datasets as mf

ALL = [mf.circle(), mf.torus(), mf.swiss_roll(), mf.sphere(), mf.sphere(ambient=8, dim=3)]
N = 40_000
# A correct sampler fails a test of up to 100 probabilities less than once in 10^6 runs with other seeds.
ACCEPT = 1e-8
REJECT = 1e-9  # a sampler uniform in the parameter must fail by far


def uniformity(*coordinates, bins=10):
    """p-value of the chi-square test that `coordinates` in [0, 1) are jointly uniform."""
    counts, _ = np.histogramdd(np.column_stack(coordinates), bins=bins, range=[(0, 1)] * len(coordinates))
    return stats.chisquare(counts.ravel()).pvalue


def turn(y, x):
    return np.arctan2(y, x) / (2 * np.pi) % 1.0


def torus_area_coordinates(X, major=2.0, minor=1.0):
    """Coordinates in which area on the torus is uniform on the unit square."""
    v = np.arctan2(X[:, 2], np.hypot(X[:, 0], X[:, 1]) - major) % (2 * np.pi)
    return turn(X[:, 1], X[:, 0]), (v + minor / major * np.sin(v)) / (2 * np.pi)


def roll_area_coordinates(X):
    t = np.hypot(X[:, 0], X[:, 2])
    length = (t * np.sqrt(1 + t * t) + np.arcsinh(t)) / 2
    a, b = 1.5 * np.pi, 4.5 * np.pi
    first = (a * math.sqrt(1 + a * a) + math.asinh(a)) / 2
    last = (b * math.sqrt(1 + b * b) + math.asinh(b)) / 2
    return np.clip((length - first) / (last - first), 0, 1), X[:, 1] / 21


def parameter_uniform_torus(n, rng, major=2.0, minor=1.0):
    """The broken variant: uniform angles crowd the inner side."""
    u, v = rng.uniform(0, 2 * np.pi, (2, n))
    rho = major + minor * np.cos(v)
    return np.column_stack([rho * np.cos(u), rho * np.sin(u), minor * np.sin(v)])


def parameter_uniform_roll(n, rng):
    t = rng.uniform(1.5 * np.pi, 4.5 * np.pi, n)
    return np.column_stack([t * np.cos(t), 21 * rng.random(n), t * np.sin(t)])


# Area


def test_circle_is_uniform():
    X = mf.circle().sample(N, np.random.default_rng(0))
    assert uniformity(turn(X[:, 1], X[:, 0]), bins=100) > ACCEPT


@pytest.mark.parametrize(("major", "minor"), [(2.0, 1.0), (3.0, 0.5)])
def test_torus_is_uniform_by_area(major, minor):
    X = mf.torus(major, minor).sample(N, np.random.default_rng(1))
    assert uniformity(*torus_area_coordinates(X, major, minor)) > ACCEPT


def test_torus_test_rejects_uniform_angles():
    X = parameter_uniform_torus(N, np.random.default_rng(2))
    assert uniformity(*torus_area_coordinates(X)) < REJECT


def test_roll_is_uniform_by_area():
    X = mf.swiss_roll().sample(N, np.random.default_rng(3))
    assert uniformity(*roll_area_coordinates(X)) > ACCEPT


def test_roll_test_rejects_uniform_parameter():
    X = parameter_uniform_roll(N, np.random.default_rng(4))
    assert uniformity(*roll_area_coordinates(X)) < REJECT


def test_sphere_is_uniform():
    X = mf.sphere().sample(N, np.random.default_rng(5))
    assert uniformity(turn(X[:, 1], X[:, 0]), (X[:, 2] + 1) / 2) > ACCEPT  # Archimedes: height is uniform


def test_sphere_test_rejects_uniform_latitude():
    rng = np.random.default_rng(6)
    latitude = rng.uniform(-np.pi / 2, np.pi / 2, N)
    assert uniformity(rng.random(N), (np.sin(latitude) + 1) / 2) < REJECT


def test_higher_sphere_has_the_right_marginals():
    X = mf.sphere(ambient=9, dim=5).sample(N, np.random.default_rng(7))
    for k in range(6):  # x_k^2 on S^5
        assert stats.kstest(X[:, k] ** 2, stats.beta(0.5, 2.5).cdf).pvalue > ACCEPT
    np.testing.assert_array_equal(X[:, 6:], 0.0)


# Points lie on their shape


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: f"{shape.name}-{shape.ambient}")
def test_samples_lie_on_the_shape(shape):
    X = shape.sample(500, np.random.default_rng(8))
    assert X.shape == (500, shape.ambient)
    assert shape.distance(X).max() < 1e-12
    np.testing.assert_array_equal(X, shape.sample(500, np.random.default_rng(8)))


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: f"{shape.name}-{shape.ambient}")
def test_shapes_can_be_sent_to_other_processes(shape):
    copy = pickle.loads(pickle.dumps(shape))
    X = shape.sample(5, np.random.default_rng(9)) + 0.1
    np.testing.assert_array_equal(copy.sample(5, np.random.default_rng(9)) + 0.1, X)
    np.testing.assert_array_equal(copy.distance(X), shape.distance(X))


# Distances


def brute_force(points, grid):
    return np.array([math.sqrt(((grid - p) ** 2).sum(axis=1).min()) for p in points])


def test_circle_and_sphere_distance_against_brute_force():
    rng = np.random.default_rng(10)
    angle = np.linspace(0, 2 * np.pi, 100_001)
    points = rng.uniform(-2, 2, (50, 2))
    grid = 1.5 * np.column_stack([np.cos(angle), np.sin(angle)])
    np.testing.assert_allclose(mf.circle(1.5).distance(points), brute_force(points, grid), atol=1e-6)

    latitude, longitude = np.meshgrid(np.linspace(-np.pi / 2, np.pi / 2, 400), np.linspace(0, 2 * np.pi, 800))
    grid = np.zeros((latitude.size, 5))
    grid[:, 0] = (np.cos(latitude) * np.cos(longitude)).ravel()
    grid[:, 1] = (np.cos(latitude) * np.sin(longitude)).ravel()
    grid[:, 2] = np.sin(latitude).ravel()
    points = rng.uniform(-1.5, 1.5, (20, 5))
    np.testing.assert_allclose(mf.sphere(ambient=5).distance(points), brute_force(points, grid), atol=2e-4)


def test_torus_distance_against_brute_force():
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 900), np.linspace(0, 2 * np.pi, 450))
    rho = 2 + np.cos(v)
    grid = np.column_stack([(rho * np.cos(u)).ravel(), (rho * np.sin(u)).ravel(), np.sin(v).ravel()])
    points = np.random.default_rng(11).uniform(-3.5, 3.5, (40, 3))
    far = mf.torus().distance(points) > 0.02  # than the grid step, so the grid error is of second order
    assert far.sum() > 30  # 1 % of the points are nearer
    points, distance = points[far], mf.torus().distance(points[far])
    np.testing.assert_allclose(distance, brute_force(points, grid), atol=3e-3)
    known = [[0, 0, 0], [2, 0, 0], [0, 4, 0], [0, 0, 3], [0, 2, -1.25]]
    np.testing.assert_allclose(mf.torus().distance(known), [1, 1, 1, math.sqrt(13) - 1, 0.25])


def test_roll_distance_against_brute_force():
    rng = np.random.default_rng(12)
    points = np.column_stack([rng.uniform(-18, 18, 80), rng.uniform(-4, 25, 80), rng.uniform(-18, 18, 80)])
    points[:10, [0, 2]] = rng.uniform(-2, 2, (10, 2))  # near the centre, where the evolute is
    points[10, [0, 2]] = 0.0
    t = np.linspace(1.5 * np.pi, 4.5 * np.pi, 400_001)
    planar = brute_force(points[:, [0, 2]], np.column_stack([t * np.cos(t), t * np.sin(t)]))
    far = planar > 0.05  # there the grid error is below 5e-7; the test along the normal covers the rest
    assert far.sum() > 70
    points, planar = points[far], planar[far]
    height = np.maximum(0, np.maximum(-points[:, 1], points[:, 1] - 21))
    np.testing.assert_allclose(mf.swiss_roll().distance(points), np.hypot(planar, height), atol=1e-6)


@pytest.mark.parametrize("offset", [1e-7, 1e-4, 1e-3, 0.05, 0.4, 2.0, -1e-3, -0.4, -2.0])
def test_roll_distance_along_the_normal_is_exact(offset):
    t = np.linspace(1.5 * np.pi + 0.1, 4.5 * np.pi - 0.1, 3001)
    curve = np.column_stack([t * np.cos(t), t * np.sin(t)])
    normal = (
        np.column_stack([-(np.sin(t) + t * np.cos(t)), np.cos(t) - t * np.sin(t)])
        / np.sqrt(1 + t * t)[:, None]
    )
    planar = curve + offset * normal
    points = np.column_stack([planar[:, 0], np.full(len(t), 7.0), planar[:, 1]])
    np.testing.assert_allclose(mf.swiss_roll().distance(points), abs(offset), atol=1e-12)
    points[:, 1] = 24.0
    np.testing.assert_allclose(mf.swiss_roll().distance(points), math.hypot(offset, 3.0), atol=1e-12)


def test_rotated_sphere():
    shape = mf.sphere(ambient=10, dim=2, rotation=np.random.default_rng(13))
    X = shape.sample(2000, np.random.default_rng(14))
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0)
    _, spread, axes = np.linalg.svd(X, full_matrices=True)
    assert (spread[:3] > 1).all()
    assert (spread[3:] < 1e-10).all()
    assert np.abs(X[:, 3:]).max() > 0.1  # it is turned out of the first coordinates
    off = 1.5 * X + 0.2 * axes[9]
    np.testing.assert_allclose(shape.distance(off), math.hypot(0.5, 0.2))


# Noise


@pytest.mark.parametrize("D", [1, 2, 3, 20, 100])
def test_bounded_noise_is_uniform_in_the_ball(D):
    E = mf.bounded_noise(N // 2, D, 0.7, np.random.default_rng(15 + D))
    r = np.linalg.norm(E, axis=1) / 0.7
    assert r.max() <= 1 + 1e-12
    assert stats.kstest(r**D, "uniform").pvalue > ACCEPT  # the volume within r
    # six standard errors, of up to 100 means: fails by chance less than once in 10^6 runs
    assert np.abs(E.mean(axis=0)).max() < 6 * 0.7 / math.sqrt((D + 2) * len(E))


@pytest.mark.parametrize("D", [2, 3, 20])
def test_ball_test_rejects_uniform_radius(D):
    r = np.random.default_rng(30 + D).random(N // 2)
    assert stats.kstest(r**D, "uniform").pvalue < REJECT


@pytest.mark.parametrize("D", [2, 20, 100])
def test_gaussian_noise_has_the_energy_of_bounded_noise(D):
    rng = np.random.default_rng(16)
    bounded = (mf.bounded_noise(N, D, 0.7, rng) ** 2).sum(axis=1)
    gaussian = (mf.gaussian_noise(N, D, 0.7, rng) ** 2).sum(axis=1)
    energy = D / (D + 2) * 0.7**2
    for sample in (bounded, gaussian):
        # six standard errors: fails by chance once in 5 10^8 runs
        assert abs(sample.mean() - energy) < 6 * sample.std() / math.sqrt(N)
    assert math.sqrt(gaussian.max()) > 0.7


@pytest.mark.parametrize(
    ("shape", "sigma", "raw"),
    [
        (mf.circle(), 0.1, 0.132),
        (mf.torus(), 0.05, 0.085),
        (mf.torus(), 0.15, 0.146),
        (mf.swiss_roll(), 0.15, 0.147),
        (mf.sphere(ambient=20), 0.3, 0.495),
        (mf.sphere(ambient=100), 0.05, 0.219),
    ],
    ids=lambda value: f"{value.name}-{value.ambient}" if isinstance(value, mf.Shape) else str(value),
)
def test_queries_start_at_the_published_distance(shape, sigma, raw):
    """The column "raw" of the accuracy table, within the spread of its own trials.

    The means of all queries differ from it by 1.4 % at most. As many queries as leave eight standard errors.
    """
    count = 200_000 if shape.ambient <= 3 else 10_000
    data = mf.simulate(shape, 10, count, sigma, np.random.default_rng(17))
    assert mf.distance_to_manifold(data.queries, shape).mean() == pytest.approx(raw, rel=0.025)


def test_simulate():
    shape = mf.torus()
    data = mf.simulate(shape, 400, 300, 0.04, np.random.default_rng(18))
    assert data.references.shape == (400, 3)
    assert shape.distance(data.references).max() <= 0.04 + 1e-12
    assert mf.distance_to_manifold(data.clean, shape).max() < 1e-12
    error = mf.distance_to_clean(data.queries, data.clean)
    assert error.shape == (300,)
    assert 0.19 < error.max() <= 0.2 + 1e-12
    assert (mf.distance_to_manifold(data.queries, shape) <= error + 1e-12).all()
    normal = mf.simulate(shape, 4000, 300, 0.04, np.random.default_rng(18), noise="gaussian")
    assert shape.distance(normal.references).max() > 0.04
    exact = mf.simulate(shape, 10, 10, 0.0, np.random.default_rng(18))
    np.testing.assert_array_equal(exact.queries, exact.clean)


def test_make_shape():
    assert list(mf.SHAPES) == ["circle", "torus", "swiss-roll", "sphere"]
    assert [mf.make_shape(name).dim for name in mf.SHAPES] == [1, 2, 2, 2]
    assert [mf.make_shape(name).ambient for name in mf.SHAPES] == [2, 3, 3, 3]
    assert mf.make_shape("sphere", ambient=20).ambient == 20


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda rng: mf.make_shape("cube"), ValueError, "shape = 'cube': must be one of 'circle'"),
        (lambda rng: mf.circle(0.0), ValueError, "radius = 0.0: must be a finite number > 0"),
        (lambda rng: mf.torus(1.0, 1.0), ValueError, "minor = 1: must be below major"),
        (lambda rng: mf.torus(math.nan), ValueError, "major = nan: must be a finite number"),
        (lambda rng: mf.sphere(ambient=2), ValueError, "ambient = 2: must be an integer >= 3"),
        (lambda rng: mf.sphere(dim=0), ValueError, "dim = 0: must be an integer >= 1"),
        (lambda rng: mf.sphere(5, rotation=3), TypeError, "numpy.random.Generator"),
        (lambda rng: mf.circle().sample(0, rng), ValueError, "n = 0: must be an integer >= 1"),
        (lambda rng: mf.torus().sample(2.5, rng), ValueError, "n = 2.5: must be an integer"),
        (
            lambda rng: mf.swiss_roll().sample(5, 0),
            TypeError,
            "rng has type int: must be a numpy.random.Generator",
        ),
        (lambda rng: mf.torus().distance([[0.0, 0.0]]), ValueError, "points has 2 columns: must have 3"),
        (
            lambda rng: mf.swiss_roll().distance([[0.0, 0.0, math.inf]]),
            ValueError,
            "points contains NaN or infinity",
        ),
        (
            lambda rng: mf.bounded_noise(3, 2, -1.0, rng),
            ValueError,
            "radius = -1.0: must be a finite number >= 0",
        ),
        (lambda rng: mf.gaussian_noise(3, 0, 1.0, rng), ValueError, "D = 0: must be an integer >= 1"),
        (
            lambda rng: mf.simulate(mf.circle(), 5, 5, -0.1, rng),
            ValueError,
            "sigma = -0.1: must be a finite number >= 0",
        ),
        (
            lambda rng: mf.simulate(mf.circle(), 5, 5, 0.1, rng, "pink"),
            ValueError,
            "noise = 'pink': must be one of 'bounded'",
        ),
        (
            lambda rng: mf.distance_to_clean(np.zeros((2, 3)), np.zeros((3, 3))),
            ValueError,
            "points has 2 rows: must have as many as clean, 3",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(np.random.default_rng(0))
