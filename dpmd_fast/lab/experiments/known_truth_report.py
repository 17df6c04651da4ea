"""Tables and figures of all methods on real data with noise of known size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmd_fast.lab.experiments.figures import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INK,
    LIGHT_GREEN,
    ORANGE,
    PURPLE,
    RED,
    Look,
    canvas,
    legend_below,
)
from dpmd_fast.lab.experiments.framework import Profile, Row, Tables, intervals, markdown
from dpmd_fast.lab.experiments.mixture_methods import cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW = "raw"
ALONE = "queries alone, linear filter"
IMPUTER = "queries alone, IterativeImputer"
NONPRIVATE = "Nonprivate-MD at its best"
DIRECT = "certified direct, delta = 1e-6"
ATLAS = "atlas, delta = 1e-6"
MIXTURE_PAPER = "mixture, delta = 0.1"
MIXTURE = "mixture, delta = 1e-6"
NOT_PRIVATE = "GaussianMixture, not private"
LOOKS: Mapping[str, Look] = {
    RAW: Look(GREY, ":", ""),
    IMPUTER: Look(BROWN, ":", "x"),
    ALONE: Look(INK, "-", "P"),
    NONPRIVATE: Look(ORANGE, "-", "v"),
    DIRECT: Look(PURPLE, "-", "^"),
    ATLAS: Look(RED, "-", "D"),
    MIXTURE_PAPER: Look(LIGHT_GREEN, ":", "o"),
    MIXTURE: Look(GREEN, "-", "o"),
    NOT_PRIVATE: Look(BLUE, "-", "s"),
}
SCORES = {
    "error": "Mean squared error of all values; raw queries, with medians for missing values, = 1",
    "fill": "Mean squared error of missing values; medians = 1",
    "score": "C-index of death from any cause (nhanes), or ARI of clusters and cell types",
}


def table(tables: Tables, profile: Profile) -> str:
    rows = tables["results"]
    parts = [
        f"# Real data with noise of known size, epsilon = 1, {profile.seeds} split(s)\n\nMeans over the "
        "splits. Direct, atlas and Nonprivate-MD take complete points only.\n"
    ]
    for column, title in SCORES.items():
        parts.append(f"## {title}\n\n" + _methods(rows, column))
    parts.append(
        "## Verdicts of `plan`, and mean squared errors (raw = 1) predicted and found\n\nFound: of the "
        "better model, also where it was refused.\n\n" + _verdicts(tables["verdicts"])
    )
    return "\n".join(parts)


def _settings(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    found = {(row["set"], row["queries"], row["missing"], row["noise"]) for row in rows}
    names = list(dict.fromkeys(row["set"] for row in rows))
    return sorted(found, key=lambda key: (names.index(key[0]), *key[1:]))


def _methods(rows: Sequence[Row], column: str) -> str:
    lines = []
    for name, size, missing, noise in _settings(rows):
        own = {"set": name, "queries": size, "missing": missing, "noise": noise}
        cells = []
        for method in LOOKS:
            shown = cell(rows, column, method=method, **own)
            cells.append("" if shown == "refused" else shown)
        if not any(cells):
            continue
        clean = [cell(rows, "score_clean", method=RAW, **own)] if column == "score" else []
        lines.append([name, size, f"{missing:.0%}", f"{noise:g}", *cells, *clean])
    heads = ["set", "queries", "missing", "noise", *LOOKS]
    return markdown([*heads, "clean queries"] if column == "score" else heads, lines)


def _verdicts(rows: Sequence[Row]) -> str:
    lines = []
    for name, size, missing, noise in _settings(rows):
        for delta in dict.fromkeys(row["delta"] for row in rows):
            own = {"set": name, "queries": size, "missing": missing, "noise": noise, "delta": delta}
            mine = [row for row in rows if all(row[key] == value for key, value in own.items())]
            words = [f"{row['verdict']} ({row['candidate']})" for row in mine]
            counted = "; ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words))
            found = ("" if text == "refused" else text for text in (cell(mine, "actual"),))
            lines.append(
                [
                    name,
                    size,
                    f"{missing:.0%}",
                    f"{noise:g}",
                    f"{delta:g}",
                    counted,
                    cell(mine, "alone_predicted"),
                    cell(mine, "predicted"),
                    *found,
                ]
            )
    heads = ["set", "queries", "missing", "noise", "delta", "verdict", "queries alone, predicted"]
    return markdown([*heads, "predicted", "found"], lines)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    """Draw errors against the number of queries for blood markers, and against the set for cells."""
    return {"markers": _by_queries(tables["results"]), "sets": _by_set(tables["results"])}


def _by_queries(rows: Sequence[Row]) -> Figure:
    first = rows[0]["set"]
    own = [row for row in rows if row["set"] == first]
    noises = list(dict.fromkeys(row["noise"] for row in own))
    figure = canvas(3.2 * len(noises), 6.4)
    axes: Any = figure.subplots(2, len(noises), sharex=True, squeeze=False)
    for line, missing in enumerate((0.0, 0.2)):
        for place, noise in enumerate(noises):
            axis = axes[line, place]
            for method, look in LOOKS.items():
                key = (missing, noise, method)
                these = [r for r in own if (r["missing"], r["noise"], r["method"]) == key]
                found = intervals(these, ("queries",), "error")
                x = sorted(key[0] for key in found)  # type: ignore[type-var]
                y = [min(found[(size,)].mean, 2.5) for size in x]
                axis.plot(
                    x, y, color=look.color, linestyle=look.line, marker=look.mark, markersize=4, label=method
                )
            axis.set_xscale("log")
            sizes = sorted({int(row["queries"]) for row in own})  # type: ignore[arg-type]
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.set_xticks([], minor=True)
            axis.set_ylim(0.0, 2.6)
            axis.set_title(f"{first}, noise {noise:g}, {missing:.0%} missing")
            axis.set_xlabel("queries")
        axes[line, 0].set_ylabel("mean squared error (raw = 1, cut at 2.5)")
    legend_below(figure, axes[0, 0], 3)
    return figure


def _by_set(rows: Sequence[Row]) -> Figure:
    """Draw all sets with all their queries, complete, at the middle level of noise."""
    figure = canvas(9.0, 4.6)
    axis: Any = figure.subplots()
    names = list(dict.fromkeys(str(row["set"]) for row in rows))
    for method, look in LOOKS.items():
        x, y = [], []
        for place, name in enumerate(names):
            own = [row for row in rows if row["set"] == name]
            noises = sorted({row["noise"] for row in own})  # type: ignore[type-var]
            most = max(row["queries"] for row in own)  # type: ignore[type-var]
            key = (noises[len(noises) // 2], most, 0.0, method)
            these = [r for r in own if (r["noise"], r["queries"], r["missing"], r["method"]) == key]
            mean = intervals(these, (), "error").get(())
            if mean is not None and math.isfinite(mean.mean):
                x.append(place)
                y.append(min(mean.mean, 2.5))
        if x:
            line = ":" if method == RAW else ""
            axis.plot(x, y, color=look.color, linestyle=line, marker=look.mark, markersize=6, label=method)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylim(0.0, 2.6)
    axis.set_ylabel("mean squared error (raw = 1, cut at 2.5)")
    legend_below(figure, axis, 3)
    return figure
