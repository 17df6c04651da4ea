"""Table and figures of the single-cell experiment, with the paper's numbers for comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmd_fast.lab.experiments.figures import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    canvas,
    legend_below,
)
from dpmd_fast.lab.experiments.framework import Profile, Row, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"ari": "ARI", "acc": "ACC", "nmi": "NMI", "purity": "neighbourhood purity"}
#: Original, Nonprivate-MD and DP-MD of the paper's Tables 1 and S4.
PAPER = {
    "goolam": {
        "ari": (0.734, 0.807, 0.805),
        "acc": (0.861, 0.874, 0.865),
        "nmi": (0.787, 0.833, 0.829),
        "purity": (0.564, 0.568, 0.568),
    },
    "yan": {
        "ari": (0.825, 0.862, 0.844),
        "acc": (0.847, 0.879, 0.863),
        "nmi": (0.883, 0.907, 0.887),
        "purity": (0.281, 0.281, 0.281),
    },
    "pollen": {
        "ari": (0.925, 0.951, 0.943),
        "acc": (0.928, 0.944, 0.941),
        "nmi": (0.959, 0.970, 0.968),
        "purity": (0.248, 0.248, 0.248),
    },
    "zeisel": {
        "ari": (0.700, 0.718, 0.717),
        "acc": (0.767, 0.796, 0.787),
        "nmi": (0.735, 0.751, 0.747),
        "purity": (0.734, 0.735, 0.735),
    },
}
PAPER_METHODS = ("Original", "Nonprivate-MD", "paper's route, C = 1")
COLUMNS: tuple[tuple[str, float | None], ...] = (
    ("Original", None),
    ("Nonprivate-MD", None),
    ("paper's route, C = 1", 0.1),
    ("paper's route, C found", 0.1),
    ("certified direct", 0.1),
    ("atlas", 0.1),
    ("certified direct", 1e-6),
    ("atlas", 1e-6),
    ("Original, PCA of all cells", None),
    ("Nonprivate-MD, PCA of all cells", None),
)
COLORS = {
    "Original": GREY,
    "Nonprivate-MD": BLUE,
    "paper's route, C = 1": RED,
    "paper's route, C found": BROWN,
    "certified direct": PURPLE,
    "atlas": GREEN,
    "paper": ORANGE,
}


def table(rows: Sequence[Row], profile: Profile, papers: Sequence[str]) -> str:
    sets = list(dict.fromkeys(str(row["set"]) for row in rows))
    parts = [
        f"# Single cells: mean (standard error) over {profile.seeds} seed(s), epsilon = 1\n",
        "Guarantees: Nonprivate-MD none; paper's route conditional on its C; certified direct and atlas "
        "unconditional. `delta` is in brackets.\n",
    ]
    for measured, title in MEASURES.items():
        lines = []
        for name in sets:
            cells = [
                mean_and_error(_values(rows, name, method, measured, 1.0, delta)) for method, delta in COLUMNS
            ]
            paper = PAPER[name][measured] if name in papers else None
            lines.append(
                [name, " / ".join(f"{x:.3f}" for x in paper) if paper else "not in the paper", *cells]
            )
        parts.append(f"## {title}\n\n" + markdown(_heads(), lines))
    parts.append("## Noise of the paper's calibration, and what one record does\n\n" + _noise(rows, sets))
    parts.append("## What a guarantee costs: ARI at delta = 1e-6\n\n" + _cost(rows, sets))
    return "\n".join(parts)


def _heads() -> list[str]:
    named = [method if delta is None else f"{method} ({delta:g})" for method, delta in COLUMNS]
    return ["set", "paper: Original / Nonprivate-MD / DP-MD", *named]


def _noise(rows: Sequence[Row], sets: Iterable[str]) -> str:
    """Tabulate medians over the seeds: settings of the paper's route and the scale of its noise."""
    lines = []
    for name in sets:
        own = [row for row in rows if row["set"] == name]
        first = [row for row in own if row["method"] == "paper's route, C = 1"]
        found = [row for row in own if row["method"] == "paper's route, C found"]
        h, d, noise = (_median(first, column) for column in ("bandwidth", "dim", "noise"))
        moves = statistics.median(_move(row) for row in found)
        lines.append(
            [
                name,
                f"{first[0]['cells']}",
                f"{first[0]['queries']}",
                f"{h:.3g}",
                f"{d:g}",
                f"{noise:.1e}",
                f"{noise / h:.1e}",
                f"{moves:.2g}",
                f"{_median(found, 'C'):.1e}",
                f"{100.0 * _median(first, 'moved'):.0f} %",
            ]
        )
    heads = ["set", "cells", "queries", "h", "d", "noise on a coordinate of the mean", "noise / h"]
    heads += ["one record moves the mean by (units of h)", "C needed", "queries moved"]
    return markdown(heads, lines)


def _move(row: Row) -> float:
    """Return the change that the C found stands for, C/(n h^(d-1)), in units of h."""
    n, h, d, C = (float(row[column]) for column in ("references", "bandwidth", "dim", "C"))  # type: ignore[arg-type]
    return float(C / (n * h**d))


def _cost(rows: Sequence[Row], sets: Iterable[str]) -> str:
    epsilons = _epsilons(rows)
    methods = ("certified direct", "atlas")
    lines = []
    for name in sets:
        line: list[Any] = [
            name,
            *(_ari_and_share(rows, name, method, None, None) for method in PAPER_METHODS[:2]),
        ]
        line += [
            _ari_and_share(rows, name, method, epsilon, 1e-6) for method in methods for epsilon in epsilons
        ]
        lines.append(line)
    heads = ["set", *PAPER_METHODS[:2]]
    heads += [f"{method}, epsilon = {epsilon:g}" for method in methods for epsilon in epsilons]
    return markdown(heads, lines) + "\nIn brackets the share of the queries that were moved.\n"


def _ari_and_share(
    rows: Sequence[Row], name: str, method: str, epsilon: float | None, delta: float | None
) -> str:
    ari = statistics.fmean(_values(rows, name, method, "ari", epsilon, delta))
    moved = statistics.fmean(_values(rows, name, method, "moved", epsilon, delta))
    return f"{ari:.3f}" if method == "Original" else f"{ari:.3f} ({100.0 * moved:.0f} %)"


def figures(rows: Sequence[Row], profile: Profile) -> Mapping[str, Figure]:
    return {"single-cell": _scores(rows, profile), "cost": _curves(rows, profile)}


def _scores(rows: Sequence[Row], profile: Profile) -> Figure:
    """Draw the ARI of each set and method with standard errors; the paper's values are diamonds."""
    sets = list(dict.fromkeys(str(row["set"]) for row in rows))
    shown = [(method, delta) for method, delta in COLUMNS if "PCA" not in method and delta != 0.1]
    shown[2:2] = [("paper's route, C = 1", 0.1), ("paper's route, C found", 0.1)]
    figure = canvas(max(9.0, 2.2 + 1.15 * len(sets)), 4.6)
    axis = figure.subplots()
    width = 0.8 / len(shown)
    for k, (method, delta) in enumerate(shown):
        groups = [_values(rows, name, method, "ari", 1.0, delta) for name in sets]
        places = [j + (k - 0.5 * (len(shown) - 1)) * width for j in range(len(sets))]
        label = method if delta is None else f"{method} (1, {delta:g})"
        means, errors = [statistics.fmean(one) for one in groups], [_error(one) for one in groups]
        axis.bar(places, means, width, yerr=errors, color=COLORS[method], label=label, error_kw={"lw": 0.8})
        if method in PAPER_METHODS:
            given = [
                (x, PAPER[name]["ari"][PAPER_METHODS.index(method)])
                for x, name in zip(places, sets, strict=True)
                if name in PAPER
            ]
            label = "the paper's value" if k == 0 else "_nolegend_"
            if given:
                x, y = zip(*given, strict=True)
                axis.plot(x, y, "D", color=ORANGE, markersize=4, markeredgecolor=INK, label=label)
    axis.set_xticks(range(len(sets)), labels=[_label(rows, name) for name in sets])
    axis.set_ylim(0.0, 1.0)
    axis.set_ylabel("ARI of k-means on the queries")
    figure.suptitle(
        f"Clusters of single cells: mean and standard error over {profile.seeds} seed(s)", color=INK
    )
    legend_below(figure, axis, 4)
    return figure


def _curves(rows: Sequence[Row], profile: Profile) -> Figure:
    """Draw the ARI of the certified routes against epsilon, with Original and Nonprivate-MD as levels."""
    sets = list(dict.fromkeys(str(row["set"]) for row in rows))
    across = min(5, len(sets))
    down = math.ceil(len(sets) / across)
    figure = canvas(max(9.0, 1.0 + 2.5 * across), 1.2 + 2.4 * down)
    axes: Any = figure.subplots(down, across, squeeze=False, sharey=True)
    epsilons = _epsilons(rows)
    for axis in axes.ravel()[len(sets) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.ravel(), sets, strict=False):
        for method in ("Original", "Nonprivate-MD"):
            level = statistics.fmean(_values(rows, name, method, "ari", None, None))
            axis.axhline(
                level, color=COLORS[method], linestyle=":" if method == "Original" else "--", label=method
            )
        for method, mark in (("certified direct", "^"), ("atlas", "o")):
            groups = [_values(rows, name, method, "ari", epsilon, 1e-6) for epsilon in epsilons]
            axis.errorbar(
                epsilons,
                [statistics.fmean(one) for one in groups],
                [_error(one) for one in groups],
                color=COLORS[method],
                marker=mark,
                markersize=4,
                label=f"{method}, delta = 1e-6",
            )
        axis.set_xscale("log")
        axis.set_xticks(epsilons, labels=[f"{epsilon:g}" for epsilon in epsilons])
        axis.set_xticks([], minor=True)
        axis.set_ylim(0.0, 1.0)
        axis.set_title(_label(rows, name))
    for axis in axes[:, 0]:
        axis.set_ylabel("ARI")
    for axis in axes[-1]:
        axis.set_xlabel("epsilon")
    figure.suptitle(
        f"What an unconditional guarantee costs: mean and standard error over {profile.seeds} seed(s)",
        color=INK,
    )
    legend_below(figure, axes[0, 0], 4)
    return figure


def _values(
    rows: Sequence[Row], name: str, method: str, column: str, epsilon: float | None, delta: float | None
) -> list[float]:
    """Return a column over the seeds; methods without a budget have no epsilon."""
    return [
        float(row[column])  # type: ignore[arg-type]
        for row in rows
        if row["set"] == name
        and row["method"] == method
        and (row["epsilon"] is None or row["epsilon"] == epsilon)
        and row["delta"] == delta
    ]


def _epsilons(rows: Sequence[Row]) -> list[float]:
    return sorted({float(row["epsilon"]) for row in rows if row["epsilon"] is not None})


def _median(rows: Sequence[Row], column: str) -> float:
    return statistics.median(float(row[column]) for row in rows)  # type: ignore[arg-type]


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def mean_and_error(values: Sequence[float]) -> str:
    """Format as in the paper: mean (standard error)."""
    return f"{statistics.fmean(values):.3f} ({_error(values):.3f})"


def _label(rows: Sequence[Row], name: str) -> str:
    cells = next(row["cells"] for row in rows if row["set"] == name)
    return f"{name.replace('_', chr(10))}\n{cells:,} cells" if cells is not None else name
