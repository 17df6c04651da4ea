"""The conversions against high-precision arithmetic, against dp_accounting, and against nonsense."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from dpmd_fast.privacy.accounting import (
    gdp_delta,
    gdp_epsilon,
    gdp_implies,
    gdp_mu,
    paper_epsilon,
    paper_rho,
    zcdp_epsilon,
    zcdp_rho,
)

EPSILONS = (1e-6, 0.01, 0.3, 1.0, 4.0, 20.0, 500.0)
DELTAS = (1e-300, 1e-50, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.99)


def ref_gdp_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def phi(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return phi(-e / m + m / 2) - mpmath.exp(e) * phi(-e / m - m / 2)


def ref_zcdp_epsilon(rho: float, delta: float) -> float:
    """The definition on a fine grid of orders, refined twice around its best point."""
    low, high = 1e-6, 1e12
    for _ in range(3):
        x = np.geomspace(low, high, 4001)
        a = 1.0 + x
        values = rho * a + (math.log(1 / delta) + x * np.log(x / a) - np.log(a)) / x
        best = int(np.argmin(values))
        low, high = x[max(best - 1, 0)], x[min(best + 1, 4000)]
    return max(0.0, float(values[best]))


@pytest.mark.parametrize(
    ("delta", "paper", "zcdp", "gdp"),
    [(0.1, 0.0899, 0.2683, 0.4240), (1e-6, 0.01747, 0.02436, 0.02801)],
)
def test_table_of_the_method(delta, paper, zcdp, gdp):
    assert paper_rho(1.0, delta) == pytest.approx(paper, rel=5e-4)
    assert zcdp_rho(1.0, delta) == pytest.approx(zcdp, rel=3e-4)
    assert gdp_mu(1.0, delta) ** 2 / 2 == pytest.approx(gdp, rel=3e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, *EPSILONS])
@pytest.mark.parametrize("mu", [1e-9, 1e-4, 0.05, 0.999, 1.001, 3.0, 30.0, 400.0])
def test_gdp_delta_against_mpmath(mu, epsilon):
    ref = ref_gdp_delta(mu, epsilon)
    if ref < 1e-305:
        assert gdp_delta(mu, epsilon) < 1.0001e-305
    else:
        assert abs(mpmath.mpf(gdp_delta(mu, epsilon)) / ref - 1) < 1e-11


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gdp_mu_inverts_the_curve(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    assert ref_gdp_delta(mu * (1 - 1e-10), epsilon) < delta < ref_gdp_delta(mu * (1 + 1e-10), epsilon)
    assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-13)
    assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9, abs=0)
    assert gdp_implies(mu * (1 - 1e-11), epsilon, delta)  # by other functions, without SciPy
    assert not gdp_implies(mu * (1 + 1e-11), epsilon, delta)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_zcdp_and_paper_round_trips_and_order(epsilon, delta):
    zcdp, paper = zcdp_rho(epsilon, delta), paper_rho(epsilon, delta)
    assert zcdp_epsilon(zcdp, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-13)
    assert paper_epsilon(paper, delta) == pytest.approx(epsilon, rel=1e-12, abs=0)
    assert zcdp_epsilon(zcdp, delta) == pytest.approx(ref_zcdp_epsilon(zcdp, delta), rel=1e-9, abs=1e-13)
    assert 0 < paper < zcdp < gdp_mu(epsilon, delta) ** 2 / 2


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.01, 0.1])
@pytest.mark.parametrize("mu", [0.05, 0.2367, 0.9209, 3.0])
def test_against_dp_accounting(mu, delta):
    ref_epsilon = dp_accounting.get_epsilon_gaussian(1.0 / mu, delta)
    assert gdp_epsilon(mu, delta) == pytest.approx(ref_epsilon, rel=1e-9, abs=2e-12)
    if ref_epsilon > 0:
        ref_sigma = dp_accounting.get_sigma_gaussian(ref_epsilon, delta)
        assert gdp_mu(ref_epsilon, delta) == pytest.approx(1.0 / ref_sigma, rel=1e-9)

    rho = mu**2 / 2
    orders = 1.0 + np.geomspace(0.02, 1e4, 20_000)
    ref_rdp, _ = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, delta)
    if ref_rdp > 0:  # its KL shortcut answers 0 in cases where the conversion alone does not
        assert zcdp_epsilon(rho, delta) <= ref_rdp + 1e-12
        assert zcdp_epsilon(rho, delta) == pytest.approx(ref_rdp, rel=1e-5)


def test_round_trip_from_mu():
    for mu in (1e-6, 0.01, 0.5, 2.0, 40.0):
        for delta in (1e-300, 1e-9):
            assert gdp_mu(gdp_epsilon(mu, delta), delta) == pytest.approx(mu, rel=1e-9)
            assert zcdp_rho(zcdp_epsilon(mu, delta), delta) == pytest.approx(mu, rel=1e-9)


def test_limits():
    assert (
        gdp_delta(0.0, 1.0) == gdp_epsilon(0.0, 0.1) == zcdp_epsilon(0.0, 0.1) == paper_epsilon(0.0, 0.1) == 0
    )
    assert gdp_delta(1.0, 0.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-14)
    assert gdp_mu(0.0, math.erf(1 / math.sqrt(8))) == pytest.approx(1.0, rel=1e-14)
    assert gdp_epsilon(1.0, 0.39) == 0.0
    assert zcdp_epsilon(1e-4, 0.1) == 0.0
    # No overflow in e^eps, and no silent zero noise: a large epsilon buys a finite mu.
    assert gdp_mu(1e300, 1e-6) == pytest.approx(math.sqrt(2e300), rel=1e-9)
    assert gdp_delta(1e-300, 1.0) == 0.0
    assert gdp_delta(1e300, 1e5) == 1.0
    assert gdp_epsilon(1e300, 1e-6) == math.inf


ARGUMENTS = {
    gdp_delta: ("mu", "epsilon"),
    gdp_epsilon: ("mu", "delta"),
    gdp_mu: ("epsilon", "delta"),
    zcdp_epsilon: ("rho", "delta"),
    zcdp_rho: ("epsilon", "delta"),
    paper_epsilon: ("rho", "delta"),
    paper_rho: ("epsilon", "delta"),
}
NONSENSE = [math.nan, math.inf, -math.inf, -1e-12, True, "1", None, 1j, np.array([0.5]), 10**400]


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("bad", NONSENSE, ids=repr)
def test_nonsense_is_refused(function, bad):
    first, second = ARGUMENTS[function]
    with pytest.raises(ValueError, match=rf"^{first} = .*must be"):
        function(bad, 0.5)
    with pytest.raises(ValueError, match=rf"^{second} = .*must be"):
        function(0.5, bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, 1, 2.0])
@pytest.mark.parametrize("function", [f for f in ARGUMENTS if f is not gdp_delta], ids=lambda f: f.__name__)
def test_delta_lies_strictly_between_0_and_1(function, bad):
    with pytest.raises(ValueError, match=rf"^delta = {bad}.* > 0 and < 1"):
        function(0.5, bad)


def test_numpy_scalars_are_numbers():
    assert gdp_mu(np.float32(1.0), np.float64(0.1)) == gdp_mu(1, 0.1)
