"""Privacy cost of a Gaussian release: exact GDP, zCDP by the optimal Rényi conversion, the paper's formula.

A Gaussian mechanism with sensitivity ``Delta`` and deviation ``s`` has ``mu = Delta / s`` and
``rho = mu**2 / 2``; ``mu**2`` adds up over releases. The three pairs of functions below convert between that
number and (epsilon, delta). Each is an upper bound on the privacy loss of the same mechanism; only the GDP
curve is tight, so it asks for the least noise. Invalid input is refused: an accountant that answered 0 to NaN
would release without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmd_fast.arguments import checked
from dpmd_fast.errors import UserValueError

_BEYOND_FLOATS = "epsilon, delta or rho: too large or too small to be converted in floating point"
_HALF = math.sqrt(0.5)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a monotone function in [low, high], to the last bits relative to the root."""
    from scipy.optimize import brentq  # takes half a second to import: checking a claim does not need it

    if low == high:
        return low
    try:
        return float(brentq(function, low, high, xtol=1e-300, rtol=1e-15, maxiter=5000))
    except (RuntimeError, ValueError):  # rounding has removed the change of sign
        raise UserValueError(_BEYOND_FLOATS) from None


class _Normal(NamedTuple):
    """Functions of the normal distribution."""

    mills: Callable[[float], float]  # the Mills ratio (1 - Phi(x)) / phi(x)
    below: Callable[[float], float]  # Phi


def _mills(x: float) -> float:
    """Return the Mills ratio; overflows only for x < -35."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2.0) * float(erfcx(x / math.sqrt(2.0)))


def _below(x: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(x))


def _quick_mills(x: float) -> float:
    """Return the Mills ratio for x > -1, to a relative error of 1e-14."""
    if x < 7.0:
        return math.sqrt(math.pi / 2.0) * math.exp(0.5 * x * x) * math.erfc(x * _HALF)
    fraction = x  # Laplace's, 1 / (x + 1 / (x + 2 / (x + ...)))
    for k in range(40, 0, -1):
        fraction = x + k / fraction
    return 1.0 / fraction


def _quick_below(x: float) -> float:
    return 0.5 * math.erfc(-x * _HALF)


_EXACT = _Normal(_mills, _below)
_QUICK = _Normal(
    _quick_mills, _quick_below
)  # for a check: importing SciPy's functions takes a third of a second


def _mills_descent(x: float, normal: _Normal) -> float:
    """Return minus the derivative of the Mills ratio, 1 - x M(x): positive, near x^-2 for large x."""
    # Beyond 100, where the difference loses its digits, delta is far below the smallest float.
    return 1.0 - x * normal.mills(x) if x < 100.0 else 1.0 / (x * x)


def _log_gdp_delta(mu: float, epsilon: float, normal: _Normal = _EXACT) -> float:
    """Return the logarithm of the GDP curve for mu > 0.

    With a = mu/2 - eps/mu and M the Mills ratio, phi(a) = e^eps phi(a - mu), so the curve equals
    phi(a) (M(-a) - M(mu - a)): no e^eps that could overflow. Where the two ratios nearly cancel, their
    difference is the integral of -M' over an interval of length mu, a sum of positive terms.
    """
    centre = epsilon / mu
    a = 0.5 * mu - centre
    if a < -1e100:
        return -math.inf
    if mu <= max(1.0, 0.5 * centre):
        points = (centre + 0.5 * mu * _NODES).tolist()
        descent = math.fsum(
            w * _mills_descent(x, normal) for w, x in zip(_WEIGHTS.tolist(), points, strict=True)
        )
        return -0.5 * a * a - _LOG_SQRT_2PI + math.log(mu) + math.log(0.5 * descent)
    tail = normal.mills(centre + 0.5 * mu)
    if a <= 0.0:
        return -0.5 * a * a - _LOG_SQRT_2PI + math.log(normal.mills(-a) - tail)
    return math.log1p(-(normal.below(-a) + math.exp(-0.5 * a * a - _LOG_SQRT_2PI) * tail))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    ``delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)``, to a relative error of about 1e-12 down to
    the smallest floats. The curve is exact for the Gaussian mechanism (Balle and Wang 2018; Dong, Roth and
    Su 2022).
    """
    mu = checked("mu", mu)
    epsilon = checked("epsilon", epsilon)
    return math.exp(_log_gdp_delta(mu, epsilon)) if mu > 0.0 else 0.0


def gdp_implies(mu: float, epsilon: float, delta: float) -> bool:
    """Return True if mu-GDP implies (epsilon, delta)-DP, to 11 digits of mu; all three have been checked.

    A quick check, of what `gdp_mu` has computed before: every model that is read has it.
    """
    try:
        return mu == 0.0 or _log_gdp_delta(mu, epsilon, _QUICK) <= math.log(delta)
    except (ArithmeticError, ValueError):  # the logarithm of what was rounded to 0
        raise UserValueError(_BEYOND_FLOATS) from None


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-DP; inf if it overflows."""
    mu = checked("mu", mu)
    delta = checked("delta", delta, positive=True, below=1.0)
    if mu == 0.0 or delta >= math.erf(mu / math.sqrt(8.0)):
        return 0.0
    from scipy.special import ndtri

    # The curve lies below Phi(mu/2 - eps/mu).
    high = mu * (0.5 * mu - float(ndtri(delta)))
    if high == math.inf:
        return math.inf
    target = math.log(delta)
    # Rounding can put the bound itself slightly on the wrong side.
    high *= 1.0 + 1e-12
    return _root(lambda epsilon: _log_gdp_delta(mu, epsilon) - target, 0.0, high)


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP: inverts `gdp_delta` in mu."""
    epsilon = checked("epsilon", epsilon)
    delta = checked("delta", delta, positive=True, below=1.0)
    from scipy.special import erfinv, ndtri

    low = math.sqrt(8.0) * float(erfinv(delta))  # the answer at epsilon = 0
    if epsilon == 0.0:
        return low
    quantile = float(ndtri(delta))
    root = math.hypot(quantile, math.sqrt(2.0 * epsilon))
    # The curve lies below Phi(mu/2 - eps/mu), hence this second lower bound, written without cancellation.
    bound = quantile + root if quantile > 0.0 else 2.0 * (epsilon / (root - quantile))
    low = max(low, bound) * (1.0 - 1e-12)
    target = math.log(delta)
    high = 2.0 * low
    while _log_gdp_delta(high, epsilon) < target:
        high *= 2.0
    return _root(lambda mu: _log_gdp_delta(mu, epsilon) - target, low, high)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon that the optimal Rényi conversion gives for rho-zCDP, clipped at 0.

    Minimises ``rho a + (log(1/delta) + (a - 1) log(1 - 1/a) - log a) / (a - 1)`` over a > 1 (Canonne, Kamath
    and Steinke 2020). With x = a - 1 the derivative vanishes where ``rho x^2 = log(1/delta) - log(1 + x)``,
    which has one root. Any order gives a valid bound, so an error in the root never understates epsilon.
    """
    rho = checked("rho", rho)
    delta = checked("delta", delta, positive=True, below=1.0)
    if rho == 0.0:
        return 0.0
    log_inverse = -math.log(delta)
    high = math.sqrt(log_inverse) / math.sqrt(rho)
    x = _root(lambda x: rho * x * x + math.log1p(x) - log_inverse, 0.0, high)
    return max(0.0, rho * (1.0 + x) - math.log1p(1.0 / x) + (log_inverse - math.log1p(x)) / x)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho for which `zcdp_epsilon` gives at most `epsilon`.

    At the optimal order rho and epsilon are both explicit in x = a - 1, and epsilon falls as x grows: one
    root in x.
    """
    epsilon = checked("epsilon", epsilon)
    delta = checked("delta", delta, positive=True, below=1.0)
    log_inverse = -math.log(delta)

    def excess(x: float) -> float:
        rest = log_inverse - math.log1p(x)
        return rest / x * ((1.0 + 2.0 * x) / x) - math.log1p(1.0 / x) - epsilon

    low = high = 1.0
    while excess(low) < 0.0:
        low *= 0.5
    while excess(high) > 0.0:
        high *= 2.0
    x = _root(excess, low, high)
    return (log_inverse - math.log1p(x)) / x / x


def paper_epsilon(rho: float, delta: float) -> float:
    """Return the paper's conversion from rho-zCDP, ``epsilon = rho + 2 sqrt(rho ln(1/delta))``."""
    rho = checked("rho", rho)
    delta = checked("delta", delta, positive=True, below=1.0)
    return rho + 2.0 * math.sqrt(rho) * math.sqrt(-math.log(delta))


def paper_rho(epsilon: float, delta: float) -> float:
    """Invert `paper_epsilon`: ``rho = (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2``."""
    epsilon = checked("epsilon", epsilon)
    delta = checked("delta", delta, positive=True, below=1.0)
    log_inverse = -math.log(delta)
    # The difference of the roots, written without cancellation for small epsilon.
    root = epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
    return root * root
