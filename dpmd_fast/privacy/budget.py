"""Privacy budgets, and how they are divided over queries, steps, projector and mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import checked, checked_integer, shown
from dpmd_fast.errors import UserError, UserValueError
from dpmd_fast.privacy import accounting

Conversion: TypeAlias = Literal["gdp", "zcdp", "paper"]
_CONVERSIONS = ("gdp", "zcdp", "paper")
# Every epsilon and delta between these buys a positive and finite rho, with each conversion: it is computed
# when it is asked for, since that imports SciPy, which takes longer than to read a model.
_ORDINARY = (1e-6, 1e6), (1e-100, 0.25)


class BudgetExceeded(UserError):  # noqa: N818  (a public name other programs rely on)
    """A spend was refused because it exceeds what is left; nothing was spent or computed.

    Parameters
    ----------
    asked, remaining : float
        In units of mu^2, which adds up over releases.
    what : str, optional
        What the spend was for.
    """

    def __init__(self, asked: float, remaining: float, what: str | None = None) -> None:
        self.asked = asked
        self.remaining = remaining
        self.what = what
        subject = "the request" if what is None else what
        super().__init__(
            f"budget exceeded: {subject} asks for mu^2 = {asked:.9g}, "
            f"and mu^2 = {remaining:.9g} is left; nothing was spent"
        )

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, str | None]]:
        return type(self), (self.asked, self.remaining, self.what)


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) budget and the conversion that turns it into Gaussian noise.

    Parameters
    ----------
    epsilon : float
        Positive.
    delta : float
        In (0, 1). Keep it far below 1/n.
    conversion : {"gdp", "zcdp", "paper"}
        ``"gdp"`` is exact for Gaussian noise and buys the most; ``"zcdp"`` is the optimal Rényi conversion;
        ``"paper"`` is ``epsilon = rho + 2 sqrt(rho ln(1/delta))``.
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    conversion: Conversion = "gdp"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checked("epsilon", self.epsilon, positive=True))
        object.__setattr__(self, "delta", checked("delta", self.delta, positive=True, below=1.0))
        _check_conversion(self.conversion)
        (least, most), (rarest, largest) = _ORDINARY
        ordinary = least <= self.epsilon <= most and rarest <= self.delta <= largest
        if not ordinary and not 0.0 < 2.0 * self.rho < math.inf:  # mu^2
            raise UserValueError(
                f"epsilon = {self.epsilon!r}, delta = {self.delta!r}: they buy rho = {self.rho!r}, "
                "which must be positive and finite",
                argument="epsilon",
            )

    @property
    def rho(self) -> float:
        """The zCDP parameter that the budget buys, mu^2 / 2."""
        return _rho(self.epsilon, self.delta, self.conversion)

    @property
    def mu(self) -> float:
        """The GDP parameter that the budget buys, sqrt(2 rho)."""
        return math.sqrt(2.0 * self.rho)

    @classmethod
    def from_rho(cls, rho: float, delta: float, conversion: Conversion = "gdp") -> Budget:
        """Return the budget whose ``.rho`` is `rho` at the given `delta`.

        Raises
        ------
        ValueError
            Also if `rho` already implies (0, `delta`)-DP: no epsilon represents so small a rho, and the
            budget of epsilon = 0 would spend more than was asked for.
        """
        rho = checked("rho", rho, positive=True, below=1e300)
        _check_conversion(conversion)
        if conversion == "gdp":
            epsilon = accounting.gdp_epsilon(math.sqrt(2.0 * rho), delta)
        elif conversion == "zcdp":
            epsilon = accounting.zcdp_epsilon(rho, delta)
        else:
            epsilon = accounting.paper_epsilon(rho, delta)
        if epsilon == 0.0:
            raise UserValueError(
                f"rho = {rho!r}: at delta = {delta!r} this already gives epsilon = 0; "
                "must be larger, or delta smaller",
                argument="rho",
            )
        return cls(epsilon, delta, conversion)


@lru_cache(maxsize=256)
def _rho(epsilon: float, delta: float, conversion: Conversion) -> float:
    """Compute rho once; a budget itself never changes, and has one hash and one pickle."""
    if conversion == "gdp":
        mu = accounting.gdp_mu(epsilon, delta)
        return 0.5 * mu * mu  # overflows to infinity, where mu**2 would raise
    if conversion == "zcdp":
        return accounting.zcdp_rho(epsilon, delta)
    return accounting.paper_rho(epsilon, delta)


def check_budget(budget: object) -> None:
    """Refuse anything but a `Budget`."""
    if not isinstance(budget, Budget):
        raise UserValueError(
            f"budget = {shown(budget)}: must be a Budget, for instance Budget(epsilon=1, delta=1e-6)",
            argument="budget",
        )


def _check_conversion(conversion: object) -> None:
    if not isinstance(conversion, str) or conversion not in _CONVERSIONS:
        allowed = ", ".join(map(repr, _CONVERSIONS))
        raise UserValueError(
            f"conversion = {shown(conversion)}: must be one of {allowed}", argument="conversion"
        )


def resolve_schedule(
    schedule: str | ArrayLike | None,
    budget: Budget,
    n_queries: SupportsIndex,
    steps: SupportsIndex,
    theta: float,
) -> NDArray[np.float64]:
    """Divide a budget over the releases of Algorithm 2.

    Parameters
    ----------
    schedule : None, "per-query" or array of shape (n_queries, steps, 2)
        None divides ``budget.rho`` evenly over queries and steps, as the paper proposes. ``"per-query"``
        gives every query (epsilon/m, delta/m), converted on its own, as in the paper's single-cell study:
        basic composition over the queries, which costs more noise. An array holds the rho of every release
        and must sum to ``budget.rho`` within 1e-9 of it; a larger sum is scaled down to it.
    budget : Budget
        The total.
    n_queries, steps : int
        m and T, at least 1.
    theta : float
        Share of the projector, in (0, 1); ignored with an array.

    Returns
    -------
    ndarray of shape (n_queries, steps, 2)
        rho of the projector, then of the mean. Where a share is 0, the mechanism skips that release: with a
        zero projector share no projector is released in that step, with a zero mean share the query has
        nothing to move to and stays where it is.
    """
    m = checked_integer("n_queries", n_queries, minimum=1)
    t = checked_integer("steps", steps, minimum=1)
    if schedule is not None and not isinstance(schedule, str):
        return _checked_schedule(schedule, budget, (m, t, 2))
    theta = checked("theta", theta, positive=True, below=1.0)
    if schedule is None:
        per_query = budget.rho / m
    elif schedule == "per-query":
        per_query = Budget(budget.epsilon / m, budget.delta / m, budget.conversion).rho
    else:
        raise UserValueError(
            f"schedule = {shown(schedule)}: must be None, 'per-query' or an array of shape {(m, t, 2)}",
            argument="schedule",
        )
    shares = np.array([theta, 1.0 - theta])
    rhos: NDArray[np.float64] = np.broadcast_to(shares * (per_query / t), (m, t, 2)).copy()
    return rhos


def _checked_schedule(schedule: Any, budget: Budget, shape: tuple[int, ...]) -> NDArray[np.float64]:
    try:
        given = np.asarray(schedule)
    except ValueError as error:
        raise UserValueError(f"schedule is not a rectangular array: must have shape {shape}") from error
    if given.dtype.kind not in "iuf":
        raise UserValueError(f"schedule has dtype {given.dtype}: must hold real numbers")
    if given.shape != shape:
        what = "(n_queries, steps, 2)" if len(shape) == 3 else "(steps,)"
        raise UserValueError(f"schedule has shape {given.shape}: must be {what} = {shape}")
    rho = given.astype(np.float64)
    if not np.all(np.isfinite(rho)) or np.any(rho < 0.0):
        raise UserValueError(
            "schedule holds a negative, NaN or infinite value: must be non-negative and finite"
        )
    total = math.fsum(rho.ravel().tolist())
    if not abs(total - budget.rho) <= 1e-9 * budget.rho:
        raise UserValueError(f"schedule sums to {total!r}: must sum to budget.rho = {budget.rho!r}")
    return rho * min(1.0, budget.rho / total)


def resolve_steps(schedule: object, budget: Budget, steps: int) -> list[float]:
    """Divide a budget over the steps of the certified route; return the rho of each step, in order."""
    if schedule is None:
        return [budget.rho / steps] * steps
    if isinstance(schedule, str):
        raise UserValueError(
            f"schedule = {shown(schedule)}: must be None or an array of shape {(steps,)}", argument="schedule"
        )
    return [float(rho) for rho in _checked_schedule(schedule, budget, (steps,))]
