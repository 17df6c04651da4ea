"""What the released mixture is compared with, and the factor models on which it is."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpmd_fast import Budget
from dpmd_fast.errors import UserError
from dpmd_fast.lab.baselines import without_privacy
from dpmd_fast.lab.baselines.dp_em import _perturbed, fit_dp_em, weighted_moments
from dpmd_fast.lab.baselines.gaussians import Gaussians, symmetric_noise
from dpmd_fast.lab.baselines.linear import analyze_gauss, queries_alone
from dpmd_fast.lab.factor_models import FactorCase, FactorData, FactorModel

TWO = Gaussians(
    np.array([0.3, 0.7]),
    np.array([[-1.0, 0.5], [1.5, 0.0]]),
    np.array([[[1.0, 0.6], [0.6, 0.8]], [[0.5, -0.3], [-0.3, 2.0]]]),
)
LARGE = Budget(1e4, 1e-6)


# The posterior


def test_posterior_of_one_column_is_bayes_rule():
    model = Gaussians(np.array([0.25, 0.75]), np.array([[-1.0], [2.0]]), np.array([[[0.5]], [[1.5]]]))

    def moment(z, power):
        def value(x):
            prior = 0.25 * norm.pdf(x, -1.0, 0.5**0.5) + 0.75 * norm.pdf(x, 2.0, 1.5**0.5)
            return x**power * prior * norm.pdf(z, x, 0.7)

        return quad(value, -12.0, 14.0, limit=200)[0]

    for z in (-2.0, 0.3, 5.0):
        means, deviations = model.posterior(np.array([[z]]), 0.7)
        mean = moment(z, 1) / moment(z, 0)
        assert means[0, 0] == pytest.approx(mean, rel=1e-6)
        assert deviations[0, 0] == pytest.approx(math.sqrt(moment(z, 2) / moment(z, 0) - mean**2), rel=1e-5)


def test_a_missing_value_is_one_with_endless_noise():
    X = np.random.default_rng(0).normal(size=(7, 2))
    holes = X.copy()
    holes[::2, 0] = np.nan
    means, deviations = TWO.posterior(holes, [0.3, 0.4])
    for row in range(7):
        noise = [1e7 if row % 2 == 0 else 0.3, 0.4]
        ref = TWO.posterior(X[row : row + 1], noise)
        np.testing.assert_allclose(means[row], ref.means[0], rtol=1e-5)
        np.testing.assert_allclose(deviations[row], ref.deviations[0], rtol=1e-5)
    # rows do not see each other, up to last digits: products of other sizes may be summed in another order
    np.testing.assert_allclose(TWO.posterior(holes[:3], [0.3, 0.4]).means, means[:3], rtol=1e-14, atol=1e-14)


def test_a_row_with_nothing_in_it_gets_the_mean():
    means, deviations = TWO.posterior(np.full((1, 2), np.nan), 0.5)
    np.testing.assert_allclose(means[0], TWO.weights @ TWO.means)
    second = TWO.weights @ (np.diagonal(TWO.covariances, axis1=1, axis2=2) + TWO.means**2)
    np.testing.assert_allclose(deviations[0], np.sqrt(second - means[0] ** 2))


# DP-EM and Analyze-Gauss


def test_symmetric_noise_is_normal_noise_of_the_frobenius_vector():
    drawn = symmetric_noise((10_000, 3), 2.0, np.random.default_rng(0))  # 5 % are seven standard errors
    np.testing.assert_array_equal(drawn, drawn.transpose(0, 2, 1))
    assert drawn[:, 0, 0].std() == pytest.approx(2.0, rel=0.05)
    assert drawn[:, 0, 1].std() == pytest.approx(2.0 / math.sqrt(2.0), rel=0.05)


def test_replacing_a_record_changes_the_moments_of_dp_em_by_no_more_than_claimed():
    rng = np.random.default_rng(1)
    radius, largest = 1.7, np.zeros(3)
    for _ in range(300):
        pair = rng.normal(size=(2, 2)) * rng.choice([0.1, 1.0, 100.0], size=(2, 1))
        pair *= np.minimum(1.0, radius / np.linalg.norm(pair, axis=1))[:, None]
        before, after = (weighted_moments(one[None], TWO) for one in pair)
        changes = [np.linalg.norm(b - a) for a, b in zip(before, after, strict=True)]
        largest = np.maximum(largest, changes)
    bounds = np.array([math.sqrt(2.0), 2.0 * radius, math.sqrt(2.0) * radius**2])
    assert (largest <= bounds * (1.0 + 1e-12)).all()
    assert (largest > 0.8 * bounds).all()


def test_dp_em_adds_the_noise_that_its_sensitivities_ask_for():
    rng = np.random.default_rng(2)
    n = 10_000  # 5 % are seven standard errors
    zeros = (np.zeros(n), np.zeros((n, 2)), np.zeros((n, 2, 2)))
    masses, sums, squares = _perturbed(zeros, 3.0, 0.5, rng)
    assert masses.std() == pytest.approx(math.sqrt(2.0) / 0.5, rel=0.05)
    assert sums.std() == pytest.approx(6.0 / 0.5, rel=0.05)
    assert squares[:, 0, 0].std() == pytest.approx(math.sqrt(2.0) * 9.0 / 0.5, rel=0.05)


@pytest.mark.parametrize("separate", [True, False])
def test_dp_em_with_a_large_budget_finds_the_groups(separate):
    rng = np.random.default_rng(3)
    records = np.vstack([rng.normal(-2.0, 0.5, size=(4_000, 2)), rng.normal(2.0, 0.5, size=(1_000, 2))])
    found = fit_dp_em(records, LARGE, rng, components=2, radius=6.0, iterations=20, separate=separate)
    order = np.argsort(found.means[:, 0])
    np.testing.assert_allclose(found.weights[order], [0.8, 0.2], atol=0.01)
    np.testing.assert_allclose(found.means[order], [[-2.0, -2.0], [2.0, 2.0]], atol=0.1)
    # of 1,000 records, 0.07 are six standard errors of a variance, 0.1 of a mean
    np.testing.assert_allclose(found.covariances, np.stack([0.25 * np.eye(2)] * 2), atol=0.07)


def test_dp_em_survives_noise_far_above_the_signal():
    rng = np.random.default_rng(4)
    found = fit_dp_em(rng.normal(size=(50, 5)), Budget(0.01, 1e-6), rng, components=3, radius=4.0)
    means, deviations = found.posterior(rng.normal(size=(4, 5)), 0.5)
    assert np.isfinite(means).all()
    assert np.isfinite(deviations).all()
    assert found.weights.sum() == pytest.approx(1.0)


def test_analyze_gauss():
    rng = np.random.default_rng(5)
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    records = rng.multivariate_normal([0.3, -0.2], covariance, size=20_000)
    found = analyze_gauss(records, LARGE, rng, radius=20.0)
    # the records' own, of which the budget leaves nearly nothing to chance
    np.testing.assert_allclose(found.means[0], records.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(found.covariances[0], np.cov(records.T), atol=0.01)
    budget = Budget(1.0, 0.1)
    apart = rng.normal(size=(20_000, 2))  # uncorrelated, so that noise on the mass does not count
    entries = [analyze_gauss(apart, budget, rng, radius=4.0).covariances[0, 0, 1] for _ in range(1_000)]
    expected = 17.0 / budget.mu / len(records)  # sqrt(2) (R^2 + 1) / mu, over sqrt(2) beside the diagonal
    assert np.std(entries) == pytest.approx(expected, rel=0.15)  # six standard errors


# Without a reference, and without privacy


@pytest.mark.parametrize("m", [20, 1_000])
def test_queries_alone_remove_noise(m):
    rng = np.random.default_rng(6)
    clean = rng.normal(size=(m, 2)) @ rng.normal(size=(2, 8))
    queries = clean + 0.5 * rng.normal(size=clean.shape)
    found = queries_alone(queries, 0.5).posterior(queries, 0.5).means
    assert ((found - clean) ** 2).mean() < 0.7 * ((queries - clean) ** 2).mean()


def test_imputer_and_mixture_without_privacy():
    rng = np.random.default_rng(7)
    records = rng.normal(size=(800, 2)) @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(800, 5))
    clean, missing = records[:100], rng.random((100, 5)) < 0.2
    holes = np.where(missing, np.nan, clean)
    filled = without_privacy.iterative_imputer(records[100:], holes)
    np.testing.assert_array_equal(filled[~missing], clean[~missing])
    plain = (clean[missing] ** 2).mean()
    assert ((filled - clean)[missing] ** 2).mean() < 0.4 * plain
    model = without_privacy.gaussian_mixture(records[100:], 2)
    assert ((model.posterior(holes, 0.0).means - clean)[missing] ** 2).mean() < 0.4 * plain


def test_gcimpute_is_optional(monkeypatch):
    holes = np.array([[np.nan, 1.0]])
    monkeypatch.setattr(without_privacy, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gcimpute"):
        without_privacy.gaussian_copula(np.ones((3, 2)), holes)


def test_gcimpute_fills_in():
    pytest.importorskip("gcimpute")
    rng = np.random.default_rng(8)
    records = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 4)) + 0.1 * rng.normal(size=(500, 4))
    missing = rng.random((60, 4)) < 0.2
    filled = without_privacy.gaussian_copula(records[60:], np.where(missing, np.nan, records[:60]))
    assert ((filled - records[:60])[missing] ** 2).mean() < 0.5 * (records[:60][missing] ** 2).mean()


# Factor models

SMALL = FactorCase("small", 4, 3, 20_000, noise=0.5, factors=2)
VARIANTS = {
    "plain": SMALL,
    "tails": dataclasses.replace(SMALL, tails=3.0),
    "binary": dataclasses.replace(SMALL, binary=True),
    "weights": dataclasses.replace(SMALL, weights=(0.8, 0.15, 0.05), spread=4.0),
    "all": dataclasses.replace(SMALL, tails=3.0, binary=True, wild=True, scale_error=3.0),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "all")) for name in VARIANTS]
)
def test_nothing_beats_the_exact_posterior(name):
    data = FactorData.draw(VARIANTS[name], 20_000, seed=1)  # 5 % of an error are five standard errors or more
    truth = data.truth
    assert truth.weights.sum() == pytest.approx(1.0)

    def error(model):
        return ((model.posterior(data.queries, 0.5)[0] - data.clean) ** 2).mean()

    means, deviations = truth.posterior(data.queries, 0.5)
    assert 0.93 < (np.abs(means - data.clean) <= 1.96 * deviations).mean() < 0.97
    # Its own idea of its error is right: the mean posterior variance is the mean squared error.
    assert (deviations**2).mean() == pytest.approx(((means - data.clean) ** 2).mean(), rel=0.05)
    best = ((means - data.clean) ** 2).mean()
    assert best < error(queries_alone(data.queries, 0.5))
    assert best < error(dataclasses.replace(truth, means=truth.means + 0.3))
    assert best < error(dataclasses.replace(truth, covariances=1.5 * truth.covariances))


def test_records_have_the_moments_of_the_truth():
    model = FactorModel.draw(VARIANTS["binary"], np.random.default_rng(2))
    records, truth = model.sample(100_000, np.random.default_rng(3)), model.truth()
    mean = truth.weights @ truth.means
    second = np.einsum("k,kab->ab", truth.weights, truth.covariances)
    second += np.einsum("k,ka,kb->ab", truth.weights, truth.means - mean, truth.means - mean)
    np.testing.assert_allclose(records.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(records, rowvar=False), second, atol=0.05)
    assert set(records[:, 0]) == {0.0, 1.0}


def test_units():
    data = FactorData.draw(VARIANTS["all"], 50, seed=4)
    units = data.units
    original = units.original(data.clean)
    np.testing.assert_allclose(units.natural(original), data.clean, atol=1e-9)
    assert units.logged.any()
    preprocess = units.preprocessor(data.center, data.scale)
    np.testing.assert_allclose(preprocess.forward(original), data.scaled(data.clean), atol=1e-8)
    step = 1e-6
    ahead = units.original(data.clean + step)
    np.testing.assert_allclose(units.natural_deviations(original, ahead - original), step, rtol=1e-3)


def test_data_depend_on_the_seed_alone():
    first, again, other = (FactorData.draw(SMALL, 10, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.records, again.records)
    assert not np.array_equal(first.queries, other.queries)
