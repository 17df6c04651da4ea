"""Harrell's C-index and its paired bootstrap: how well risk scores rank survival times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import checked, checked_integer
from dpmd_fast.errors import UserValueError

Floats = NDArray[np.float64]

_WEIGHTS = 1 << 22  # bootstrap weights held at a time
_MOST_REPLICATES = 1_000_000


class Interval(NamedTuple):
    """An estimate and its percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ConcordanceComparison:
    """C-index of several risk scores of the same people, and the differences to the first score."""

    scores: dict[str, Interval]
    differences: dict[str, Interval]
    replicates: int  # that have a comparable pair; the others do not count


def concordance_index(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> float:
    """Return Harrell's C-index: the share of comparable pairs in which the higher risk has the earlier event.

    A pair is comparable if the earlier time is an event; at equal times an event precedes a censoring, and
    two events are not comparable. Equal risks count one half. Takes O(n log^2 n).
    """
    when, happened = _checked_survival(time, event)
    order = _ComparableOrder(when, happened)
    weights = np.ones((1, len(when)))
    comparable = order.comparable(weights)
    if not comparable[0] > 0.0:
        raise UserValueError("time and event have no comparable pair: the C-index is not defined")
    return float(order.concordant(_checked_risk("risk", risk, len(when)), weights)[0] / comparable[0])


def compare_concordance(
    time: ArrayLike,
    event: ArrayLike,
    risks: Mapping[str, ArrayLike],
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> ConcordanceComparison:
    """Return the C-index of each risk score and its difference to the first, with paired bootstrap intervals.

    Each replicate scores the same people, drawn with replacement:
    ``numpy.random.default_rng(seed).integers(n, size=n)``, one replicate after the other.
    """
    when, happened = _checked_survival(time, event)
    n = len(when)
    if not isinstance(risks, Mapping) or not risks:
        raise UserValueError("risks: must map at least one name to the risk of each person")
    scores = {name: _checked_risk(f"risks[{name!r}]", risk, n) for name, risk in risks.items()}
    replicates = checked_integer("replicates", replicates, minimum=2)
    if replicates > _MOST_REPLICATES:
        raise UserValueError(
            f"replicates = {replicates}: must be at most {_MOST_REPLICATES}", argument="replicates"
        )
    level = checked("level", level, positive=True, below=1.0)
    rng = np.random.default_rng(checked_integer("seed", seed))
    values = {name: concordance_index(when, happened, risk) for name, risk in scores.items()}
    order = _ComparableOrder(when, happened)
    parts: dict[str, list[Floats]] = {name: [] for name in scores}
    step = max(1, _WEIGHTS // n)
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        weights = np.stack([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(count)])
        comparable = order.comparable(weights.astype(np.float64))
        kept = comparable > 0.0
        for name, risk in scores.items():
            parts[name].append(order.concordant(risk, weights[kept].astype(np.float64)) / comparable[kept])
    drawn = {name: np.concatenate(part) for name, part in parts.items()}
    first = next(iter(scores))
    if not len(drawn[first]):
        raise UserValueError("no replicate has a comparable pair: too few events for a bootstrap")
    tails = (0.5 - 0.5 * level, 0.5 + 0.5 * level)

    def interval(value: float, sample: Floats) -> Interval:
        low, high = np.quantile(sample, tails)
        return Interval(value, float(low), float(high))

    return ConcordanceComparison(
        scores={name: interval(values[name], drawn[name]) for name in scores},
        differences={
            name: interval(values[name] - values[first], drawn[name] - drawn[first])
            for name in scores
            if name != first
        },
        replicates=len(drawn[first]),
    )


class _ComparableOrder:
    """People sorted so that those comparable to an event are exactly those before its `end`.

    Weights have a row per replicate: how often each person was drawn. Two copies of a person are never
    comparable, so weighted sums over pairs are sums over the pairs of the resampled people.
    """

    def __init__(self, time: Floats, event: NDArray[np.bool_]) -> None:
        self.order = np.lexsort((event, -time))  # latest first; at equal times the censored first
        when, happened = time[self.order], event[self.order]
        self.events = np.flatnonzero(happened)
        # the first event of the same time: before it are later times and the censored of this time
        fresh = happened & np.r_[True, (when[1:] != when[:-1]) | ~happened[:-1]]
        self.ends = np.flatnonzero(fresh)[np.cumsum(fresh)[self.events] - 1]

    def comparable(self, weights: Floats) -> Floats:
        """Return the weighted number of comparable pairs in each replicate."""
        ordered = weights[:, self.order]
        before = _cumulative(ordered)[:, self.ends]
        return np.asarray((before * ordered[:, self.events]).sum(axis=1))

    def concordant(self, risk: Floats, weights: Floats) -> Floats:
        """Return the weighted number of comparable pairs whose event has the higher risk; ties count half.

        People before `end` form blocks of sizes 2^l, one for each binary digit of `end`; in a block sorted by
        risk, cumulative weights count those below a risk.
        """
        ordered = weights[:, self.order]
        ranks = np.unique(risk[self.order], return_inverse=True)[1].astype(np.int64)
        n, most = len(ranks), int(ranks.max()) + 1
        own = ranks[self.events]
        below = np.zeros((len(weights), len(own)))
        for digit in range(n.bit_length()):
            holds = (self.ends >> digit) & 1 == 1
            if not holds.any():
                continue
            keys = (np.arange(n) >> digit) * most + ranks
            place = np.argsort(keys, kind="stable")
            keys = keys[place]
            running = _cumulative(ordered[:, place])
            block = (self.ends[holds] >> digit) - 1
            wanted = block * most + own[holds]
            low, high = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
            middle = 0.5 * (running[:, low] + running[:, high])
            below[:, holds] += middle - running[:, block << digit]
        return np.asarray((below * ordered[:, self.events]).sum(axis=1))


def _cumulative(weights: Floats) -> Floats:
    """Return the sums of the first 0, 1, ... n weights of each row."""
    return np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)


def _listed(values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except Exception:  # ragged, or it cannot be converted
        return np.empty(0, "U")


def _checked_survival(time: ArrayLike, event: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    when = _listed(time)
    if when.dtype.kind not in "fiu" or when.ndim != 1 or not when.size or not np.isfinite(when).all():
        raise UserValueError("time: must be a list of finite numbers, one for each person")
    happened = _listed(event)
    if (
        happened.shape != when.shape
        or happened.dtype.kind not in "biuf"
        or not np.isin(happened, (0, 1)).all()
    ):
        raise UserValueError(f"event: must be 0 or 1 for each of {len(when)} people")
    return when.astype(np.float64), happened.astype(bool)


def _checked_risk(name: str, risk: ArrayLike, n: int) -> Floats:
    values = _listed(risk)
    if values.dtype.kind not in "fiu" or values.shape != (n,) or not np.isfinite(values).all():
        raise UserValueError(f"{name}: must be a finite number for each of {n} people")
    return values.astype(np.float64)
