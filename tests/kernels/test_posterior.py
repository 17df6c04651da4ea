"""Posterior moments under a mixture against plain loops, and that a row's result is its own."""

from __future__ import annotations

import hashlib

import naive
import numpy as np
import pytest
from kernel_samples import draw, normal_mixture, on_another_target

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.posterior import draw_missing, log_densities, make_components, posterior

SIZES = [(1, 1), (1, 3), (2, 1), (3, 4), (4, 2), (7, 3), (12, 2), (13, 3), (20, 5), (28, 2), (33, 3), (51, 3)]
FEW = 12  # rows with which the plain loops are done in time


def results(mixture, Z, noise, n_threads=None):
    components = make_components(*mixture[:3], np.broadcast_to(noise, Z.shape[1]))
    return posterior(components, Z, deviations=True, n_threads=n_threads)


def filler_of(mixture):
    return make_components(*mixture[:3], np.zeros(mixture[1].shape[1]))


def compare(mixture, Z, noise, rtol=1e-9):
    noise = np.broadcast_to(np.asarray(noise, float), Z.shape[1])
    means, deviations, densities = results(mixture, Z, noise)
    for i, z in enumerate(Z):
        mean, deviation, density = naive.mixture_posterior(*mixture[:3], noise, z)
        np.testing.assert_allclose(means[i], mean, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(deviations[i], deviation, rtol=rtol, atol=1e-7)  # roots of small numbers
        np.testing.assert_allclose(densities[i], density, rtol=rtol, atol=rtol)


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "K"), SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_moments(D, K, noise, missing):
    mixture = normal_mixture(D, K, seed=D)
    compare(mixture, draw(mixture, FEW, noise, missing), noise)


@pytest.mark.kernels
def test_one_noise_for_each_column():
    mixture = normal_mixture(7, 3)
    noise = np.array([0.0, 1e-8, 1e-3, 0.5, 3.0, 1e4, 0.0])
    compare(mixture, draw(mixture, FEW, 0.5, 0.2), noise, rtol=1e-7)


@pytest.mark.kernels
def test_patterns_of_missing_values():
    D = 6
    mixture = normal_mixture(D, 3)
    Z = draw(mixture, 2 * D + 4, 0.5)
    for j in range(D):
        Z[j, j] = np.nan  # one value
        Z[D + j, np.arange(D) != j] = np.nan  # all but one
    Z[-1] = np.nan  # all
    Z[-3:-1, 2] = np.nan  # two rows of one pattern
    compare(mixture, Z, 0.5)


@pytest.mark.kernels
def test_components_far_apart_and_alone():
    for apart in (30.0, 1e6):
        mixture = normal_mixture(5, 4, apart=apart)
        compare(mixture, draw(mixture, FEW, 0.2, 0.2), 0.2)
    mixture = normal_mixture(50, 6, apart=8.0)
    compare(mixture, draw(mixture, FEW, 0.2, 0.1), 0.2)


@pytest.mark.kernels
def test_a_row_without_values_has_the_moments_of_the_mixture():
    weights, means, covariances, _ = mixture = normal_mixture(4, 3)
    mean, deviation, density = results(mixture, np.full((1, 4), np.nan), 0.4)
    center = weights @ means
    square = weights @ (np.diagonal(covariances, axis1=1, axis2=2) + (means - center) ** 2)
    np.testing.assert_allclose(mean[0], center, rtol=1e-12)
    np.testing.assert_allclose(deviation[0], np.sqrt(square), rtol=1e-12)
    assert density[0] == 0.0


@pytest.mark.kernels
def test_no_row():
    mixture = normal_mixture(3, 2)
    means, deviations, densities = results(mixture, np.empty((0, 3)), 0.4)
    assert means.shape == deviations.shape == (0, 3)
    assert densities.shape == (0,)


@pytest.mark.kernels
def test_values_without_noise_stay():
    mixture = normal_mixture(5, 3)
    Z = draw(mixture, 20, 0.5, 0.3) * 1e3
    there = ~np.isnan(Z)
    for noise in (np.zeros(5), np.array([0.0, 1.0, 0.0, 0.2, 0.0]), np.array([0.0, 1e30, 0.0, 1.0, 1.0])):
        means, deviations, _ = results(mixture, Z, noise)
        still = there & (noise == 0.0)
        np.testing.assert_array_equal(means[still], Z[still])
        np.testing.assert_array_equal(deviations[still], 0.0)
        assert np.isfinite(means).all()


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "K"), [(2, 1), (6, 4), (13, 3)])
def test_draws(D, K):
    mixture = normal_mixture(D, K)
    Z = draw(mixture, 2 * FEW, 0.0, 0.4)
    Z[3] = np.nan
    Z[4, 0], Z[4, 1] = -0.0, np.nan
    comp = draw_missing(filler_of(mixture), Z)
    for i, z in enumerate(Z):
        np.testing.assert_allclose(comp[i], naive.draw_missing(*mixture[:3], z), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(comp[~np.isnan(Z)], Z[~np.isnan(Z)])
    assert np.isnan(comp[3]).all()


@pytest.mark.kernels
def test_a_draw_is_fixed_by_the_values_that_are_there():
    mixture = normal_mixture(4, 3)
    other_nan = np.array([0xFFF8000000000123], np.uint64).view(np.float64)[0]
    rows = np.array(
        [
            [0.0, 1.0, np.nan, 2.0],
            [-0.0, 1.0, other_nan, 2.0],
            [5e-324, 1.0, np.nan, 2.0],
            [0.0, 1.0, np.nan, np.nextafter(2.0, 3.0)],
        ]
    )
    comp = draw_missing(filler_of(mixture), rows)
    np.testing.assert_array_equal(comp[0], comp[1])
    assert len(set(comp[:, 2])) == 3
    np.testing.assert_array_equal(comp[:, [0, 1, 3]], rows[:, [0, 1, 3]])


def test_draws_have_the_moments_of_what_is_missing():
    n, D, missing = 100_000, 5, [1, 2, 4]
    weights, means, covariances, _ = mixture = normal_mixture(D, 3, apart=2.0)
    clean = draw(mixture, n, 0.0)
    rows = clean.copy()
    rows[:, missing] = np.nan
    drawn = draw_missing(filler_of(mixture), rows)
    center = weights @ means
    gaps = means - center
    second = np.einsum("k,kij->ij", weights, covariances + gaps[:, :, None] * gaps[:, None, :])
    unit = np.sqrt(np.diag(second))

    def off(points):
        """Largest error of the means and covariances, in units of their deviations."""
        mean, covariance = points.mean(axis=0), np.cov(points.T)
        first = np.abs(mean - center) / unit
        return max(float(first.max()), float((np.abs(covariance - second) / np.outer(unit, unit)).max()))

    assert off(drawn) < 0.03
    filled = np.where(np.isnan(rows), posterior(filler_of(mixture), rows, deviations=False)[0], rows)
    assert off(filled) > 0.06  # conditional means vary too little: the test can tell
    # normal in each direction: the fourth moment of numbers with the deviation and tails of the model
    one = np.full((n, 2), np.nan)
    one[:, 0] = np.arange(n)
    numbers = draw_missing(make_components(np.ones(1), np.zeros((1, 2)), np.eye(2)[None], np.zeros(2)), one)[
        :, 1
    ]
    moments = [float((numbers**power).mean()) for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0.0, 1.0, 0.0, 2.9], atol=0.06)


@pytest.mark.parametrize(("D", "K", "apart"), [(3, 2, 1.0), (10, 4, 1.0), (30, 5, 0.3), (60, 6, 3.0)])
def test_a_draw_has_the_same_bits_in_every_company(D, K, apart):
    mixture = normal_mixture(D, K, seed=1, apart=apart)
    Z = np.concatenate([draw(mixture, 300, 0.0), draw(mixture, 300, 0.0, 0.3)])
    Z[5], Z[400, 1:] = np.nan, np.nan
    filler = filler_of(mixture)
    together = draw_missing(filler, Z, 2)
    order = np.random.default_rng(0).permutation(len(Z))
    np.testing.assert_array_equal(draw_missing(filler, Z[order], 1), together[order])
    for size in (1, 3, 70, 129):
        parts = [draw_missing(filler, Z[i : i + size], 2) for i in range(0, len(Z), size)]
        np.testing.assert_array_equal(np.concatenate(parts), together)
    np.testing.assert_array_equal(draw_missing(filler, np.asfortranarray(Z)), together)


@pytest.mark.kernels
def test_parts_that_are_not_asked_for():
    mixture = normal_mixture(9, 3)
    Z = draw(mixture, 30, 0.3, 0.1)
    components = make_components(*mixture[:3], np.full(9, 0.3))
    means, deviations, densities = posterior(components, Z, deviations=True)
    less, none, same = posterior(components, Z, deviations=False)
    assert none is None
    np.testing.assert_array_equal(less, means)
    np.testing.assert_array_equal(same, densities)
    np.testing.assert_array_equal(log_densities(components, Z), densities)
    assert (deviations < 0.3 + 1e-12)[~np.isnan(Z)].mean() > 0.9


# D = 10 multiplies with P, 30 and 60 and all without noise whiten
COMPANY = [(10, 4, 0.4, 1.0), (10, 4, 0.0, 1.0), (30, 5, 0.4, 1.0), (60, 6, 0.4, 0.5), (60, 6, 0.0, 3.0)]


@pytest.mark.parametrize(
    ("D", "K", "noise", "apart"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] == 60)) for case in COMPANY],
)
def test_a_row_gets_the_same_bits_in_every_company(D, K, noise, apart):
    mixture = normal_mixture(D, K, seed=1, apart=apart)
    Z = np.concatenate([draw(mixture, 300, noise), draw(mixture, 300, noise, 0.1)])
    Z[5], Z[400, 1:] = np.nan, np.nan
    together = results(mixture, Z, noise, 2)

    def check(part, rows):
        for one, all_of_them in zip(part, together, strict=True):
            np.testing.assert_array_equal(one, all_of_them[rows])

    order = np.random.default_rng(0).permutation(len(Z))
    check(results(mixture, Z[order], noise, 1), order)
    for size in (3, 70, 129):
        parts = [results(mixture, Z[i : i + size], noise, 2) for i in range(0, len(Z), size)]
        check([np.concatenate(columns) for columns in zip(*parts, strict=True)], slice(None))
    for i in range(0, len(Z), 37):
        check(results(mixture, Z[i : i + 1], noise), slice(i, i + 1))


@pytest.mark.parametrize(("D", "noise"), [(8, 0.4), (8, 0.0), (40, 0.4)])
def test_wild_rows_do_not_disturb_others(D, noise):
    mixture = normal_mixture(D, 4, seed=2)
    Z = draw(mixture, 200, noise, 0.1)
    calm = results(mixture, Z, noise)
    filler = make_components(*mixture[:3], np.zeros(D))
    filled = draw_missing(filler, Z)
    wild = np.arange(0, 200, 3)
    rough = Z.copy()
    rough[wild, 0] = np.tile([np.inf, -np.inf, 1e308, -1e200, 5e-324], len(wild))[: len(wild)]
    rough[wild[::2], 1:] = np.nan
    others = np.setdiff1d(np.arange(200), wild)
    for one, all_of_them in zip(results(mixture, rough, noise), calm, strict=True):
        np.testing.assert_array_equal(one[others], all_of_them[others])
    np.testing.assert_array_equal(draw_missing(filler, rough)[others], filled[others])


def test_a_point_as_far_as_allowed_has_finite_moments():
    for D in (3, 30):
        mixture = normal_mixture(D, 3)
        Z = np.full((2, D), 1e100)
        Z[1, 0] = np.nan
        for noise in (0.0, 0.5, 1e90):
            assert all(np.isfinite(part).all() for part in results(mixture, Z, noise))


def digest() -> str:
    total = hashlib.sha256()
    for D, K, noise, apart in COMPANY[::2]:
        mixture = normal_mixture(D, K, seed=3, apart=apart)
        components = make_components(*mixture[:3], np.full(D, noise))
        rounded = components._replace(  # LAPACK may round otherwise for another processor
            **{
                name: np.round(value, 6)
                for name, value in components._asdict().items()
                if isinstance(value, np.ndarray) and value.dtype == np.float64
            }
        )
        Z = np.round(draw(mixture, 50, noise, 0.1), 6)
        for part in posterior(rounded, Z, deviations=True):
            total.update(part.tobytes())
        if noise == 0.0:
            total.update(draw_missing(rounded, Z).tobytes())
    return total.hexdigest()


@pytest.mark.slow
@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_another_target_gives_the_same_bits():
    assert on_another_target(__file__, digest, NUMBA_CPU_NAME="generic") == digest()
