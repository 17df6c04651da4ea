"""Fit Cox's proportional hazards by Newton's method, with Efron's ties and a small ridge.

    log L = sum over events of x_i b  -  sum over times t, l < d_t of ln(S_t - l/d_t D_t)

where S_t sums exp(x b) over the people at risk at t, and D_t over the d_t people with an event at t. Sums
over people at risk are cumulative sums in order of time, and the second derivative is one weighted product
of the covariates: 50,000 people and 25 covariates take a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import checked_points
from dpmd_fast.errors import UserValueError

Floats = NDArray[np.float64]

RIDGE = 1e-3  # per event, on standardised covariates: keeps rare endpoints finite
_STEPS = 50
_TOLERANCE = 1e-9  # of the Newton decrement per event


@dataclass(frozen=True, eq=False)
class CoxModel:
    """Coefficients for the centred covariates, in their original units."""

    center: Floats
    coefficients: Floats
    events: int

    def risk(self, X: ArrayLike) -> Floats:
        """Return the linear predictor of each row."""
        points = np.asarray(checked_points("X", X, columns=len(self.center)), dtype=np.float64)
        return (points - self.center) @ self.coefficients


class _Derivatives(NamedTuple):
    value: float
    gradient: Floats
    information: Floats


def fit_cox(X: ArrayLike, time: ArrayLike, event: ArrayLike, ridge: float = RIDGE) -> CoxModel:
    """Fit covariates `X` (n, p) to times and events.

    Raises
    ------
    ValueError
        If nobody has an event, or a covariate is the same for all.
    """
    points = np.asarray(checked_points("X", X), dtype=np.float64)
    when, happened = np.asarray(time, dtype=np.float64), np.asarray(event)
    if when.shape != (len(points),) or not np.isfinite(when).all():
        raise UserValueError(f"time: must be a finite number for each of {len(points)} people")
    if happened.shape != when.shape or not np.isin(happened, (0, 1)).all() or not happened.any():
        raise UserValueError(
            f"event: must be 0 or 1 for each of {len(points)} people, and 1 for at least one"
        )
    center, scale = points.mean(axis=0), points.std(axis=0)
    if not (scale > 0.0).all():
        raise UserValueError("X has a column that is the same for all people: leave it out")
    likelihood = _Likelihood((points - center) / scale, when, happened.astype(bool), ridge)
    return CoxModel(center, likelihood.maximum() / scale, int(happened.sum()))


class _Likelihood:
    """The penalised partial likelihood; people are sorted by descending time."""

    def __init__(self, X: Floats, time: Floats, event: NDArray[np.bool_], ridge: float) -> None:
        order = np.argsort(-time, kind="stable")
        self.X, when, self.event = X[order], time[order], event[order]
        last = np.r_[when[1:] != when[:-1], True]
        self.group = np.r_[0, np.cumsum(last)[:-1]]  # people of one time
        deaths = np.bincount(self.group[self.event], minlength=self.group[-1] + 1)
        self.ends = np.flatnonzero(last)  # people at risk at a time: all up to here
        self.of = np.repeat(np.arange(len(deaths)), deaths)  # time of each term of the likelihood
        first = np.r_[0, np.cumsum(deaths)[:-1]]
        self.share = (np.arange(len(self.of)) - first[self.of]) / deaths[self.of]  # l/d
        self.observed = self.X[self.event].sum(axis=0)
        self.penalty = ridge * len(self.of)

    def maximum(self) -> Floats:
        found = np.zeros(self.X.shape[1])
        here = self.at(found)
        for _ in range(_STEPS):
            step = np.linalg.solve(here.information, here.gradient)
            if here.gradient @ step <= _TOLERANCE * len(self.of):
                return found + step
            for _ in range(_STEPS):
                there = self.at(found + step)
                if there.value >= here.value:
                    break
                step = 0.5 * step
            found, here = found + step, there
        raise RuntimeError("the Cox model did not converge")

    def at(self, beta: Floats) -> _Derivatives:
        predictor = self.X @ beta
        top = predictor.max()
        weight = np.exp(predictor - top)
        groups = len(self.ends)
        at_risk = np.cumsum(weight)[self.ends]
        at_risk_x = np.cumsum(weight[:, None] * self.X, axis=0)[self.ends]
        dying = np.where(self.event, weight, 0.0)
        dead = np.bincount(self.group, dying, groups)
        dead_x = np.stack([np.bincount(self.group, dying * x, groups) for x in self.X.T], axis=1)
        total = at_risk[self.of] - self.share * dead[self.of]
        mean = (at_risk_x[self.of] - self.share[:, None] * dead_x[self.of]) / total[:, None]
        # a person is in every term at or before their own time, less Efron's share at that time
        inverse = np.bincount(self.of, 1.0 / total, groups)
        counted = np.cumsum(inverse[::-1])[::-1][self.group]
        spared = np.bincount(self.of, self.share / total, groups)[self.group]
        second = weight * counted - dying * spared
        information = (self.X * second[:, None]).T @ self.X - mean.T @ mean
        information[np.diag_indices_from(information)] += self.penalty
        value = float(predictor[self.event].sum() - np.log(total).sum() - top * len(total))
        return _Derivatives(
            value - 0.5 * self.penalty * float(beta @ beta),
            self.observed - mean.sum(axis=0) - self.penalty * beta,
            information,
        )
