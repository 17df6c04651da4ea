"""Audits: their statistics against known answers, broken mechanisms caught, sound ones not contradicted."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from dpmd_fast.lab.audit import atlas as audit_atlas
from dpmd_fast.lab.audit import cases as audit_cases
from dpmd_fast.lab.audit import controls as audit_controls
from dpmd_fast.lab.audit import mixture as audit_mixture
from dpmd_fast.lab.audit import program
from dpmd_fast.lab.audit.attacks import (
    Finding,
    audit_one_run,
    audit_pair,
    best_thresholds,
    clopper_pearson,
    discriminant,
    epsilon_bound,
    mu_bound,
    one_run_epsilon,
    one_run_p_value,
)
from dpmd_fast.lab.audit.pairs import (
    ForkedPair,
    Pair,
    Part,
    Setting,
    farthest,
    log_ratio,
    recorded,
    run_scores,
)
from dpmd_fast.privacy.accounting import gdp_epsilon, gdp_mu
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.lattice import relative_sensitivity
from dpmd_fast.privacy.noise import noisy_sums

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


def gaussian(mu, seed):
    """Releases of neighbours that are `mu` apart, as one score each."""
    rng = np.random.default_rng(seed)
    return lambda side, count: mu * side + rng.normal(size=count)


# Statistics


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.9999])
def test_clopper_pearson_limits_solve_their_equations(confidence):
    tail = 0.5 * (1.0 - confidence)
    for trials in (1, 7, 400, 10**6):
        k = np.unique(np.linspace(0, trials, 50).astype(int))
        low, high = clopper_pearson(k, trials, confidence)
        np.testing.assert_allclose(binom.sf(k - 1, trials, low)[1:], tail, rtol=1e-6)
        np.testing.assert_allclose(binom.cdf(k, trials, high)[:-1], tail, rtol=1e-6)
        assert low[0] == 0.0
        assert high[-1] == 1.0
        assert high[0] == pytest.approx(-math.expm1(math.log(tail) / trials), rel=1e-9)
    ref = binomtest(13, 70).proportion_ci(confidence, method="exact")
    assert clopper_pearson(13, 70, confidence) == pytest.approx((ref.low, ref.high), rel=1e-6)


def test_limits_are_wrong_as_rarely_as_they_say():
    trials = 40
    low, high = clopper_pearson(np.arange(trials + 1), trials)
    for p in np.linspace(0.001, 0.999, 300):
        chances = binom.pmf(np.arange(trials + 1), trials, p)
        assert chances[low > p].sum() <= 0.025
        assert chances[high < p].sum() <= 0.025


@pytest.mark.parametrize("mu", [0.1, 0.9, 3.0])
@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
def test_bound_on_mu_of_a_known_test(mu, threshold):
    trials = 10**10
    true, false = round(trials * ndtr(mu - threshold)), round(trials * ndtr(-threshold))
    assert mu - 1e-3 < mu_bound(true, false, trials) < mu
    assert mu_bound(true, false, trials, 0.9999) < mu_bound(true, false, trials)
    assert mu_bound(false, true, trials) == 0.0
    few = 100
    assert mu_bound(round(few * ndtr(mu)), few // 2, few) < mu - 0.05


def test_bound_on_epsilon_of_randomized_response():
    trials, epsilon, delta = 10**9, 1.5, 1e-3
    honest = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    true = round(trials * honest)
    assert epsilon - 1e-3 < epsilon_bound(true, trials - true, trials, 0.0) < epsilon
    # probability delta of telling all: the same epsilon, and none if delta is not allowed for
    leaky = round(trials * (delta + (1.0 - delta) * honest))
    lies = round(trials * (1.0 - delta) * (1.0 - honest))
    assert epsilon < epsilon_bound(leaky, lies, trials, 0.0)
    assert epsilon_bound(leaky, lies, trials, delta) < epsilon
    # the complement of a test is a test: a rare miss says as much as a rare false alarm
    assert epsilon_bound(990, 500, 1000) == pytest.approx(epsilon_bound(500, 10, 1000), rel=1e-9)


def test_nothing_is_concluded_from_nothing():
    for true, false in ((0, 0), (10, 10), (0, 10), (5, 5)):
        assert mu_bound(true, false, 10) == 0.0
        assert epsilon_bound(true, false, 10) == 0.0
    for confidence in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="confidence"):
            clopper_pearson(1, 2, confidence)


def test_bounds_exceed_the_truth_rarely_and_come_near_it():
    mu = 0.9
    found = [audit_pair("", "core", mu, gaussian(mu, seed), 1000) for seed in range(60)]
    assert sum(f.mu > mu for f in found) <= 3  # at 95 %, for any mechanism; here far less
    assert sum(f.epsilon > gdp_epsilon(mu, f.delta) for f in found) <= 3
    assert np.mean([f.mu for f in found]) > 0.7 * mu
    assert all(f.strict_mu < f.mu < mu + 0.2 for f in found)


def test_thresholds_are_chosen_on_releases_that_are_not_counted():
    drawn = [0, 0]

    def draw(side, count):
        fresh = drawn[side] >= 500
        drawn[side] += count
        rng = np.random.default_rng(drawn[side] + side)
        return rng.normal(size=count) + (0.0 if fresh else 5.0 * side)

    found = audit_pair("", "mechanism", 1.0, draw, 2000)
    assert drawn == [2500, 2500]
    assert found.mu < 0.1  # what told the sides apart is gone
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=1000), rng.normal(size=1000) + 3.0
    # all thresholds tell two normal distributions apart alike: 1.5 with a deviation of 0.4, by simulation
    assert np.quantile(first, 0.1) < best_thresholds(first, second)[0] < np.quantile(second, 0.9)


def test_thresholds_of_few_releases_are_not_extreme():
    """Where no strict bound is above 0, a threshold at the end of the scale would see nothing."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.normal(size=40), rng.normal(size=40) + 0.9
        for threshold in best_thresholds(first, second):
            assert first.min() < threshold < second.max()


def test_an_audit_that_sees_nothing_does_not_pass():
    draw = gaussian(0.0, 0)
    assert audit_pair("", "mechanism", 0.9, draw, 1000, pair=0.9).passed
    assert not audit_pair("", "mechanism", 0.9, draw, 1000, pair=0.9, seen=0.5).passed
    assert not audit_pair("", "core", 0.9, draw, 1000).passed
    assert audit_pair("", "mechanism", 0.9, gaussian(0.9, 1), 1000, pair=0.9, seen=0.5).passed


def test_discriminant_finds_noise_that_cancels():
    rng = np.random.default_rng(0)
    apart = np.array([1.0, 0.0])  # not itself free of noise: its difference from the other one is

    def draw(side, count):
        return rng.normal(size=(count, 1)) * np.ones(2) + side * apart

    assert audit_pair("", "control", 1.0, draw, 1000, direction=apart).mu > 4.0
    assert audit_pair("", "control", 1.0, draw, 1000).mu > 4.0
    first, second = (rng.normal(size=(20_000, 3)) + side for side in (0, 1))
    weights = discriminant(first, second)
    np.testing.assert_allclose(weights / weights.mean(), 1.0, atol=0.1)


def ref_one_run_p_value(m, r, v, epsilon, delta):
    q = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    pmf = [math.comb(r, k) * q**k * (1.0 - q) ** (r - k) for k in range(r + 1)]
    alpha = max((sum(pmf[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, sum(pmf[v:]) + 2.0 * m * delta * alpha)


@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (30, 20, 15), (50, 50, 50), (40, 10, 0), (64, 33, 9)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_p_value_of_one_run(m, r, v, delta):
    for epsilon in (0.0, 0.7, 3.0):
        ref = ref_one_run_p_value(m, r, v, epsilon, delta)
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(ref, rel=1e-9)


def test_epsilon_of_one_run():
    # all right: e^epsilon / (1 + e^epsilon) is the 100th root of 0.05
    root = 0.05**0.01
    assert one_run_epsilon(100, 100, 100, 0.0) == pytest.approx(math.log(root / (1.0 - root)), rel=1e-9)
    assert one_run_epsilon(100, 100, 100, 1e-4) < one_run_epsilon(100, 100, 100, 0.0)
    assert one_run_epsilon(100, 100, 100, 0.0, 0.9999) < one_run_epsilon(100, 100, 100, 0.0)
    assert one_run_epsilon(100, 100, 50, 0.0) == 0.0
    for bad in ((10, 11, 5), (10, 5, 6), (10, 5, -1)):
        with pytest.raises(ValueError, match="guesses"):
            one_run_epsilon(*bad)


def test_one_run_bounds_hold_for_gaussian_canaries():
    mu, canaries, delta = 1.0, 400, 1e-6
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        coins = rng.random(canaries) < 0.5
        scores = mu * (coins - 0.5) + rng.normal(size=canaries)
        found.append(audit_one_run("", "mechanism", mu, scores, coins, 60, what="", delta=delta))
    assert not any(f.contradicted or f.mu > mu for f in found)
    assert np.mean([f.mu for f in found]) > 0.2 * mu
    assert found[0].mu == pytest.approx(gdp_mu(found[0].epsilon, delta))
    scores = 20.0 * mu * (coins - 0.5) + rng.normal(size=canaries)
    assert audit_one_run("", "control", 0.3, scores, coins, 200, what="", delta=delta).contradicted


# Verdicts


SOUND = Finding("one", "core", "sums", 1.0, 1.0, 0.9, 2.0, 0.8, 1.0, least=0.8)


def test_verdicts():
    assert SOUND.passed
    assert SOUND.verdict == "not contradicted"
    weak = replace(SOUND, mu=0.79, strict_mu=0.5)
    assert not weak.passed
    assert "WEAK" in weak.verdict
    assert not replace(weak, kind="mechanism").passed
    assert replace(weak, kind="mechanism", least=0.5).passed
    for broken in (
        replace(SOUND, strict_mu=1.01),
        replace(SOUND, strict_epsilon=SOUND.claimed_epsilon + 0.01),
    ):
        assert not broken.passed
        assert "CONTRADICTED" in broken.verdict
        assert replace(broken, kind="control").passed
        assert replace(broken, kind="control").verdict == "caught"
    missed = replace(SOUND, kind="control")
    assert not missed.passed
    assert "NOT CAUGHT" in missed.verdict
    assert replace(SOUND, mu=1.01).passed  # what decides is the strict bound


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"strict_mu": 1.2}, 1),
        ({"kind": "control"}, 1),
        ({"mu": 0.5}, 1),
        ({"kind": "control", "strict_mu": 1.2}, 0),
    ],
)
def test_the_program_says_what_it_found(monkeypatch, capsys, changes, code):
    found = [SOUND, replace(SOUND, name="two", pair=None, **changes)]
    monkeypatch.setattr(program, "run", lambda effort, progress: iter(found))
    monkeypatch.setattr(program.replays, "run", lambda pairs: iter(()))
    assert program.main(["--quick"]) == code
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("| two"))
    assert found[1].verdict in row
    assert "1.000" in row
    assert ("two" in lines[-1]) == bool(code)
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


# Neighbours


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_worst_neighbours_reach_the_bound(adjacency):
    setting = Setting(audit_cases.LOCATIONS, 1.0, 0.9, adjacency=adjacency)
    first, second = audit_cases.worst_neighbours(setting)
    assert len(second) - len(first) == (adjacency == "add-remove")
    part = setting.part(first, second)
    gap = (part.second - part.first).astype(float)
    bound = relative_sensitivity(adjacency) * setting.lattice.bound
    assert 0.999 * bound < np.linalg.norm(gap) <= bound
    pair = Pair([part, part])
    assert pair.mu == pytest.approx(
        math.sqrt(2.0) * np.linalg.norm(gap) / setting.lattice.deviation, rel=1e-9
    )
    assert np.linalg.norm(pair.direction) == pytest.approx(pair.mu, rel=1e-9)


def test_an_attacker_sees_unit_noise_around_the_neighbours():
    setting = Setting(audit_cases.LOCATIONS, 1.0, 0.9)
    part = setting.part(*audit_cases.worst_neighbours(setting))
    for projected in (False, True):
        pair = Pair([part, part], projected=projected)
        for side in (0, 1):
            seen = pair.draw(side, 4000)
            assert seen.shape == (4000, len(pair.direction))
            middle = (side - 0.5) * pair.direction
            assert np.abs(seen.mean(axis=0) - middle).max() < 6.0 / math.sqrt(4000)
            assert np.abs(np.cov(seen.T) - np.eye(len(middle))).max() < 0.15
    values = setting.lattice.step * part.second
    assert log_ratio(part, values) == pytest.approx(0.25 * pair.mu**2, rel=1e-9)  # of one of its two parts


@pytest.mark.parametrize("shared", [False, True])
def test_runs_whose_releases_repeat_their_noise(shared):
    """Where two releases repeat their noise, every run tells the neighbours apart."""
    setting = Setting(audit_cases.LOCATIONS, 1.0, 0.9)
    part = setting.part(*audit_cases.worst_neighbours(setting))
    other = Setting(audit_cases.LOCATIONS, 1.0, 0.5)
    parts = [part, other.part(*audit_cases.worst_neighbours(setting))]
    right = 0
    for run in range(100):
        side, key = run % 2, bytes([run] * 32)
        values = [
            noisy_sums(one.side(side), one.lattice, EntropySource(key if shared else bytes([run, k] * 16)))
            for k, one in enumerate(parts)
        ]
        ratio, repeats = run_scores(parts, values)
        assert ratio == pytest.approx(sum(map(log_ratio, parts, values)))
        right += (repeats > 0.0) == bool(side)
        assert abs(repeats) > 5.0 or not shared
    assert right == 100 if shared else right < 90


def test_farthest_of_contributions():
    assert set(farthest([np.array([[1, 0]]), np.array([[5, 5]]), np.array([[-4, 0]])])) == {1, 2}


def test_noting_calls_changes_nothing():
    class Owner:
        @staticmethod
        def double(values, factor):
            values *= factor
            return values

    kept = Owner.double
    with recorded(Owner, "double") as calls:
        assert Owner.double(np.array([3.0]), 2.0)[0] == 6.0
    assert calls[0].arguments[0][0] == 3.0
    assert calls[0].result[0] == 6.0
    assert Owner.double is kept


@needs_fork
def test_forks_share_a_stream_only_if_it_is_broken():
    parts = audit_cases.fork_parts()
    same = [Part(parts[0].first, parts[0].second, parts[0].lattice)] * 2
    width = len(Pair(same[:1]).direction)
    for source, shared in ((open_source(), False), (EntropySource(bytes(32)), True)):
        pair = ForkedPair(same, source)
        seen, again = pair.draw(0, 50), pair.draw(0, 50)
        assert np.array_equal(seen[:, :width], seen[:, width:]) == shared
        assert not np.array_equal(seen, again)  # from one call to the next even a broken stream moves on


# Mechanisms and controls, with a few thousand releases


def test_sound_mechanisms_are_not_contradicted():
    setting = Setting(audit_cases.LOCATIONS, 1.0, audit_cases.BUDGET.mu)
    pair = Pair([setting.part(*audit_cases.worst_neighbours(setting))])
    found = audit_pair("", "core", setting.lattice.mu, pair.draw, 5000, direction=pair.direction)
    assert found.passed, found
    for group in (audit_cases.histograms, audit_cases.algorithm_two):
        for found in group(0.025):
            assert not found.contradicted, found
            assert found.mu > 0.5 * found.claimed
            assert found.pair <= found.claimed * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "control",
    [
        audit_controls.less_noise,
        audit_controls.without_root_two,
        audit_controls.without_clipping,
        audit_controls.counted_once,
        pytest.param(audit_controls.shared_stream, marks=needs_fork),
        audit_controls.plain_floating_point,
    ],
)
def test_broken_mechanisms_are_caught(control):
    # the noise is fresh each time; with these many releases audited bounds are nine deviations above claims
    for found in control(0.1):
        assert found.kind == "control"
        assert found.contradicted, found
        assert found.claimed == pytest.approx(audit_cases.BUDGET.mu, rel=1e-6)


def test_releases_of_an_atlas_reach_their_bounds_and_hold():
    found = list(audit_atlas.pairs(0.01))
    assert len(found) == 6
    for one in found:
        assert not one.contradicted, one
        assert 0.99 * one.claimed < one.pair <= one.claimed * (1.0 + 1e-9)
    assert math.fsum(one.claimed**2 for one in found[:-1]) == pytest.approx(found[-1].claimed ** 2, rel=1e-6)
    assert found[-1].mu > 0.5 * found[-1].claimed


def test_releases_of_a_mixture_hold_and_broken_ones_are_caught():
    found = list(audit_mixture.pairs(0.01))
    assert len(found) == 4
    for one in found:
        assert not one.contradicted, one
        assert 0.9 * one.claimed < one.pair <= one.claimed * (1.0 + 1e-9)
    for control in (audit_mixture.clipped_one_by_one, audit_mixture.frames_of_the_records):
        assert all(one.contradicted for one in control(0.1))


@pytest.mark.slow
def test_an_atlas_with_one_stream_for_all_rounds_is_caught():
    for found in audit_controls.same_noise_every_round(0.0):
        assert found.contradicted, found


@pytest.mark.slow
def test_whole_runs_of_an_atlas():
    for found in audit_atlas.whole_runs(0.3):
        assert found.passed, found
        assert 0.9 * found.claimed < found.pair <= found.claimed * (1.0 + 1e-9)


@pytest.mark.slow
def test_one_run_of_an_atlas():
    budget = audit_cases.Budget(4.5, 1e-6)
    found = audit_atlas.audit_canaries("", "mechanism", budget, guesses=0.2, canaries=150)
    assert found.passed, found
    assert found.pair == pytest.approx(found.claimed, rel=0.01)
    assert found.mu > 0.0
    weak = audit_atlas.audit_canaries(
        "", "control", audit_cases.Budget(1.0, 1e-6), guesses=0.5, canaries=150, noise=0.02
    )
    assert weak.contradicted, weak


@pytest.mark.slow
@needs_fork
def test_all_audits(capsys):
    assert program.main([]) == 0, capsys.readouterr().out
