"""Budgets, their refusal, and the schedules of Algorithm 2."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

from dpmd_fast.privacy import budget as budget_module
from dpmd_fast.privacy.accounting import gdp_delta
from dpmd_fast.privacy.budget import Budget, BudgetExceeded, resolve_schedule

CONVERSIONS = ("gdp", "zcdp", "paper")


@pytest.mark.parametrize(
    ("conversion", "at_a_tenth", "at_a_millionth"),
    [("paper", 0.0899, 0.01747), ("zcdp", 0.2683, 0.02436), ("gdp", 0.4240, 0.02801)],
)
def test_table_of_the_method(conversion, at_a_tenth, at_a_millionth):
    assert Budget(1.0, 0.1, conversion).rho == pytest.approx(at_a_tenth, rel=5e-4)
    assert Budget(1.0, 1e-6, conversion).rho == pytest.approx(at_a_millionth, rel=5e-4)


def test_defaults_and_mu():
    budget = Budget()
    assert (budget.epsilon, budget.delta, budget.conversion) == (1.0, 1e-6, "gdp")
    assert budget.mu == math.sqrt(2 * budget.rho)
    assert gdp_delta(budget.mu, 1.0) == pytest.approx(1e-6, rel=1e-9)


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("rho", [1e-4, 0.028, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-6])
def test_from_rho_round_trip(conversion, rho, delta):
    budget = Budget.from_rho(rho, delta, conversion)
    assert budget.rho == pytest.approx(rho, rel=1e-9)
    assert (budget.delta, budget.conversion) == (delta, conversion)


@pytest.mark.parametrize("conversion", ["gdp", "zcdp"])
def test_from_rho_refuses_what_no_epsilon_stands_for(conversion):
    # Budget(0, 0.5) would be worth more than rho = 1e-3: rounding up to it would overspend.
    with pytest.raises(ValueError, match=r"^rho = 0\.001.*epsilon = 0"):
        Budget.from_rho(1e-3, 0.5, conversion)


def test_budget_is_a_frozen_value():
    budget = Budget(2, 1e-5, "zcdp")
    assert budget == Budget(2.0, 1e-5, "zcdp") != Budget(2.0, 1e-5)
    assert len({budget, Budget(2.0, 1e-5, "zcdp")}) == 1
    assert pickle.loads(pickle.dumps(budget)) == budget
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.epsilon = 3.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, True, "1", None], ids=repr)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=r"^epsilon = "):
        Budget(bad)
    with pytest.raises(ValueError, match=r"^delta = "):
        Budget(1.0, bad)
    with pytest.raises(ValueError, match=r"^rho = "):
        Budget.from_rho(bad, 1e-6)


@pytest.mark.parametrize("bad", ["GDP", "renyi", None, 1, ["gdp"]], ids=repr)
def test_bad_conversion_is_refused(bad):
    with pytest.raises(ValueError, match=r"^conversion = .*'gdp', 'zcdp', 'paper'"):
        Budget(1.0, 1e-6, bad)
    with pytest.raises(ValueError, match=r"^conversion = "):
        Budget.from_rho(1.0, 1e-6, bad)


def test_a_budget_that_rounds_to_nothing_is_refused():
    with pytest.raises(ValueError, match=r"rho = 0\.0, which must be positive"):
        Budget(1e-300, 1e-6, "paper")


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_what_is_not_computed_at_once_can_be_computed(conversion):
    epsilons, deltas = (np.geomspace(*limits, 40).clip(*limits) for limits in budget_module._ORDINARY)
    for epsilon in epsilons:
        for delta in deltas:
            assert 0.0 < Budget(epsilon, delta, conversion).rho < math.inf


def test_a_budget_is_the_same_before_and_after_rho_is_computed():
    budget = Budget(1.0, 3e-7)
    before = pickle.dumps(budget)
    assert budget.rho > 0.0
    assert pickle.dumps(budget) == before


def test_an_ordinary_budget_imports_no_scipy():
    code = (
        "import sys; from dpmd_fast import Budget; budget = Budget(1.0, 1e-6); "
        "before = 'scipy.special' in sys.modules; budget.rho; print(before, 'scipy.special' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_budget_exceeded():
    error = BudgetExceeded(asked=0.5, remaining=0.25, what="release 'a'")
    assert (error.asked, error.remaining) == (0.5, 0.25)
    assert "release 'a' asks for mu^2 = 0.5, and mu^2 = 0.25 is left" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (BudgetExceeded, str(error), vars(error))
    assert "the request asks" in str(BudgetExceeded(1.0, 0.0))


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_uniform_schedule(conversion):
    budget = Budget(1.0, 0.1, conversion)
    rho = resolve_schedule(None, budget, 5, 3, 0.2)
    assert rho.shape == (5, 3, 2)
    np.testing.assert_allclose(rho[..., 0], 0.2 * budget.rho / 15, rtol=1e-14)
    np.testing.assert_allclose(rho[..., 1], 0.8 * budget.rho / 15, rtol=1e-14)
    rho[0, 0, 0] = 7.0  # a fresh array, not a view of one shared value
    assert rho[1, 0, 0] < 1.0


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_per_query_schedule(conversion):
    budget = Budget(2.0, 1e-3, conversion)
    rho = resolve_schedule("per-query", budget, 4, 2, 0.5)
    per_query = Budget(0.5, 2.5e-4, conversion).rho
    np.testing.assert_allclose(rho.sum(axis=(1, 2)), per_query, rtol=1e-14)
    np.testing.assert_allclose(rho, per_query / 4, rtol=1e-14)
    # Basic composition is valid but wasteful: together the queries spend less than the total buys.
    assert rho.sum() < budget.rho


def test_schedule_from_an_array():
    budget = Budget()
    given = np.random.default_rng(0).random((6, 2, 2))
    given[0, 1] = 0.0
    given *= budget.rho / given.sum()
    rho = resolve_schedule(given, budget, 6, 2, theta=math.nan)
    np.testing.assert_allclose(rho, given, rtol=1e-14)
    assert not rho[0, 1].any()
    assert not np.shares_memory(rho, given)
    np.testing.assert_allclose(resolve_schedule(given.tolist(), budget, 6, 2, 0.5), given, rtol=1e-14)


def test_schedule_sum_is_held_to_the_budget():
    budget = Budget()
    exact = np.full((1, 1, 2), budget.rho / 2)
    assert resolve_schedule(exact * (1 + 5e-10), budget, 1, 1, 0.5).sum() <= budget.rho * (1 + 4e-16)
    assert resolve_schedule(exact * (1 - 5e-10), budget, 1, 1, 0.5).sum() < budget.rho
    for factor in (1 + 3e-9, 1 - 3e-9, 0.5, 0.0):
        with pytest.raises(ValueError, match=r"^schedule sums to .*budget\.rho"):
            resolve_schedule(exact * factor, budget, 1, 1, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_schedule_values_are_checked(bad):
    budget = Budget()
    given = np.full((1, 2, 2), budget.rho / 4)
    given[0, 0, 0] = bad
    with pytest.raises(ValueError, match=r"^schedule holds a negative, NaN or infinite"):
        resolve_schedule(given, budget, 1, 2, 0.5)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 1)), np.zeros((1, 2, 2)), 0.5, [[1.0], [1.0, 2.0]], [["a", "b"]], [[[True, False]]]]
)
def test_schedule_form_is_checked(bad):
    with pytest.raises(ValueError, match=r"^schedule (has|is not)"):
        resolve_schedule(bad, Budget(), 2, 1, 0.5)


@pytest.mark.parametrize("bad", ["uniform", "", "per_query"])
def test_unknown_schedule_is_refused(bad):
    with pytest.raises(ValueError, match=r"^schedule = "):
        resolve_schedule(bad, Budget(), 2, 1, 0.5)


@pytest.mark.parametrize("schedule", [None, "per-query"])
@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan, True, "0.5", None], ids=repr)
def test_theta_is_checked(schedule, bad):
    with pytest.raises(ValueError, match=r"^theta = "):
        resolve_schedule(schedule, Budget(), 2, 1, bad)


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, np.True_, "1", None], ids=repr)
def test_counts_are_checked(bad):
    with pytest.raises(ValueError, match=r"^n_queries = .*integer >= 1"):
        resolve_schedule(None, Budget(), bad, 1, 0.5)
    with pytest.raises(ValueError, match=r"^steps = .*integer >= 1"):
        resolve_schedule(None, Budget(), 1, bad, 0.5)
