"""The parts of a report about the release: the budget, and the signal against the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS, OCCUPIED
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.privacy.accounting import gdp_mu
from dpmd_fast.privacy.guarantee import Guarantee, not_below
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.report.plots import Picture, Plane, chart_map, signal_histogram

Floats = NDArray[np.float64]

LEAST_SIGNAL = OCCUPIED / HOMOGENEOUS  # S / s of a chart that is used
_SPENDS_SHOWN, _WEAKEST_SHOWN = 10, 5


class Table(NamedTuple):
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Share(NamedTuple):
    """One line of a bar chart."""

    name: str
    value: str
    share: float  # 0 to 1


def number(value: float, digits: int = 4) -> str:
    """Return a few digits, without an exponent where that is readable."""
    value = float(value)
    if 10.0**digits <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g}\u00a0%" if whole else "0\u00a0%"  # does not break


# Budget


@dataclass(frozen=True)
class Budgeting:
    sentence: str
    spends: list[Share]
    account: Account | None


@dataclass(frozen=True)
class Account:
    """The account of a data set, without hosts, processes, files and fingerprints."""

    dataset: str
    guarantee: Guarantee
    left: float  # mu^2, as the total
    total: float
    parts: list[Share]
    history: Table
    note: str


def budgeting(guarantee: Guarantee, model: Atlas | Mixture | None, account: Account | None) -> Budgeting:
    spends = [] if model is None else list(model.spends)
    spent = max(guarantee.mu**2, math.fsum(mu2 for _, mu2 in spends))
    rest = spent - math.fsum(mu2 for _, mu2 in spends)
    if rest > 1e-6 * spent or not spends:
        spends.append(("other releases of this run" if spends else "this run", rest))
    allowed = gdp_mu(guarantee.epsilon, guarantee.delta) ** 2
    releases = "release" if len(spends) == 1 else "releases, whose mu² add up"
    sentence = (
        f"This run spent mu² = {number(spent)} (mu = {number(math.sqrt(spent))}) in {len(spends)} "
        f"{releases}. (epsilon, delta) = ({not_below(guarantee.epsilon)}, {not_below(guarantee.delta)}) "
        f"allows mu² up to "
        f"{number(allowed)}."
    )
    shares = [
        Share(what, f"mu² = {number(mu2)}, {percent(mu2, spent)}", mu2 / spent if spent else 0.0)
        for what, mu2 in spends
    ]
    return Budgeting(sentence, shares, account)


def account_of(ledger: Ledger, dataset: str, own: int | None) -> Account:
    """Return the account of a data set; `own` is the id of the spend that paid for the run, if known."""
    statement = ledger.statement(dataset)
    total, history, left = statement.total, statement.history, statement.remaining
    mine = math.fsum(spend.mu2 for spend in history if own is not None and spend.id == own)
    others = math.fsum(spend.mu2 for spend in history) - mine
    named = [("this run", mine), ("other runs", max(others, 0.0))] if mine else [("all runs", others)]
    parts = [
        Share(name, f"mu² = {number(mu2)}, {percent(mu2, total.mu2)}", min(1.0, mu2 / total.mu2))
        for name, mu2 in [*named, ("left", left)]
    ]
    rows = [
        (
            spend.what + (" (this run)" if mine and spend.id == own else ""),
            f"{spend.time:%Y-%m-%d\u00a0%H:%M}",
            spend.mechanism,
            number(spend.mu2),
            percent(spend.mu2, total.mu2),
            spend.holds,
        )
        for spend in reversed(history[-_SPENDS_SHOWN:])
    ]
    note = (
        f"The total was declared as ({not_below(total.epsilon)}, {not_below(total.delta)}) under "
        f"{total.adjacency}: mu² = "
        f"{number(total.mu2)}. Times are UTC, the latest spend comes first."
    )
    earlier = history[: max(0, len(history) - _SPENDS_SHOWN)]
    if earlier:
        cost = number(math.fsum(spend.mu2 for spend in earlier))
        note += f" {len(earlier):,} earlier spends, mu² = {cost} together, are not listed."
    header = ("spend", "time", "mechanism", "mu²", "of the total", "holds")
    return Account(dataset, statement.guarantee, left, total.mu2, parts, Table(header, rows), note)


# Signal


@dataclass(frozen=True)
class Signals:
    sentence: str
    rounds: Table
    histogram: Picture
    map: Picture
    weakest: Table


def chart_signals(atlas: Atlas) -> list[Floats]:
    """Return S / s of every chart of every round: its mass over the noise deviation of that round."""
    if len(atlas.signal_to_noise) != len(atlas.layers):
        raise UserValueError("atlas: must have a signal_to_noise for each of its layers")
    if min(*atlas.signal_to_noise, *(float(layer.masses.min()) for layer in atlas.layers)) <= 0.0:
        raise UserValueError("atlas: its masses and signal_to_noise must be positive")
    return [
        signal * layer.masses / np.median(layer.masses)
        for signal, layer in zip(atlas.signal_to_noise, atlas.layers, strict=True)
    ]


def signals_of(atlas: Atlas, plane: Plane, drawn: Floats) -> Signals:
    """Compare signal and noise of the charts; `drawn` are raw queries for the map."""
    signals = chart_signals(atlas)
    sentence = (
        "The mass S of a chart is the smoothed number of records around it, s the deviation of the noise of "
        f"its release. A chart is used if S/s is above {LEAST_SIGNAL:g}: then its mass is {OCCUPIED:g} "
        f"deviations of its own noise, s/{HOMOGENEOUS:g}. Noise, below, is that deviation in percent of the "
        "mass."
    )
    rows = [
        (
            f"{k + 1}: {'charts' if layer.slopes is None and layer.offsets is None else 'corrections'}",
            f"{len(found):,}",
            number(layer.bandwidth),
            number(float(found.min())),
            number(float(np.median(found))),
            number(float(found.max())),
            _noise(float(np.median(found))),
            _noise(float(found.min())),
        )
        for k, (layer, found) in enumerate(zip(atlas.layers, signals, strict=True))
    ]
    header = (
        "round",
        "charts",
        "bandwidth",
        "least S/s",
        "median S/s",
        "largest S/s",
        "noise, median",
        "noise, most",
    )
    charts = atlas.charts
    order = np.argsort(signals[0], kind="stable")[:_WEAKEST_SHOWN]
    places = plane(charts.centers[order])
    weakest = [
        (
            f"chart {row}",
            number(float(charts.masses[row])),
            number(float(signals[0][row])),
            _noise(float(signals[0][row])),
            f"({place[0]:.3g}, {place[1]:.3g})",
        )
        for row, place in zip(order, places, strict=True)
    ]
    return Signals(
        sentence,
        Table(header, rows),
        signal_histogram(signals, LEAST_SIGNAL),
        chart_map(plane, drawn, charts.centers, signals[0]),
        Table(("", "mass S", "S/s", "noise", "place in the map"), weakest),
    )


def _noise(signal: float) -> str:
    return percent(1.0, HOMOGENEOUS * signal) if signal > 0.0 else "all"
