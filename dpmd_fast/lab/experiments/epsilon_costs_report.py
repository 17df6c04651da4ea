"""Tables and figure of what epsilon costs with a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmd_fast.lab.experiments.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, canvas
from dpmd_fast.lab.experiments.framework import Profile, Row, Tables, Value, intervals, markdown
from dpmd_fast.lab.experiments.mixture_methods import cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMULATED = "simulated"
ALONE = "queries alone"
PULLED = "columns pulled to their medians"
FILTER = "linear filter of the queries"
NOT_PRIVATE = "GaussianMixture, not private"
HELPS = "helps"
TITLES = {SIMULATED: "Simulated: 3 groups in 20 columns", "nhanes": "NHANES: 20 blood markers"}
COLORS = (RED, ORANGE, BLUE, GREEN)  # by number of records


def table(tables: Tables, profile: Profile) -> str:
    rows = tables["results"]
    parts = [
        f"# What epsilon costs with a mixture, delta = 1e-6, {profile.seeds} split(s)\n\nMean squared error "
        "of 40 queries, 20 % of their values missing; raw queries (public medians in the place of missing "
        "values) = 1. The verdict is what `plan` says for most groups of 40 queries. Only where it is "
        f'"{HELPS}" would a release happen; the others were forced, to measure them.\n'
    ]
    for name in dict.fromkeys(str(row["set"]) for row in rows):
        own: dict[str, list[Row]] = {
            key: [row for row in many if row["set"] == name] for key, many in tables.items()
        }
        parts.append(f"## {TITLES[name]}\n\n### Error and verdict\n\n{_matrix(own)}")
        parts.append(f"### What needs no budget\n\n{_without(own['without'])}")
        parts.append(f"### Were the verdicts right?\n\n{_judged(own)}")
        parts.append(f"### Every cell\n\n{_cells(own)}")
    return "\n".join(parts)


def verdict_of(rows: Sequence[Row]) -> str:
    """Return the most frequent verdict of some groups of queries."""
    words = [str(row["verdict"]) for row in rows]
    return max(dict.fromkeys(words), key=words.count)


def _matrix(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return errors with verdicts: one line for each number of records, epsilons across."""
    rows = tables["results"]
    epsilons = _different(rows, "epsilon")
    lines = []
    for n in _different(rows, "records"):
        cells = []
        for epsilon in epsilons:
            own = _those(tables["verdicts"], records=n, epsilon=epsilon)
            cells.append(f"{cell(rows, 'error', records=n, epsilon=epsilon)}, {verdict_of(own)}")
        private = {"records": n, "method": NOT_PRIVATE}
        lines.append([f"{n:,}", *cells, cell(tables["without"], "error", **private)])
    return markdown(["records", *(f"epsilon = {epsilon:g}" for epsilon in epsilons), NOT_PRIVATE], lines)


def _without(rows: Sequence[Row]) -> str:
    """Return the errors of the queries alone, which do not depend on the number of records."""
    first = _those(rows, records=rows[0]["records"])
    lines = [[name, cell(first, "error", spread=True, method=name)] for name in (ALONE, PULLED, FILTER)]
    return markdown(["method", "error"], [["raw", "1"], *lines])


def _judged(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return how many cells of each verdict were better and worse than the queries alone."""
    rows = tables["results"]
    alone = intervals(_those(tables["without"], method=ALONE), (), "error")[()].mean
    counts: dict[str, list[int]] = {}
    for n in _different(rows, "records"):
        for epsilon in _different(rows, "epsilon"):
            key = {"records": n, "epsilon": epsilon}
            error = intervals(_those(rows, **key), (), "error")[()].mean
            word = verdict_of(_those(tables["verdicts"], **key))
            counts.setdefault(word, [0, 0])[int(error >= alone)] += 1
    lines = [[word, sum(both), *both] for word, both in counts.items()]
    return markdown(["verdict", "cells", "better than the queries alone", "not better"], lines)


def _cells(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return one line for each number of records and epsilon, with intervals and counts of verdicts."""
    rows, lines = tables["results"], []
    for n in _different(rows, "records"):
        for epsilon in _different(rows, "epsilon"):
            key = {"records": n, "epsilon": epsilon}
            own = _those(tables["verdicts"], **key)
            words = [f"{row['verdict']} ({row['candidate']})" for row in own]
            lines.append(
                [
                    f"{n:,}",
                    f"{epsilon:g}",
                    cell(rows, "components", form=".1f", **key),
                    cell(own, "alone_predicted"),
                    cell(own, "predicted"),
                    cell(rows, "error", spread=True, **key),
                    "; ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words)),
                ]
            )
    heads = ["records", "epsilon", "components", "queries alone, predicted", "predicted", "found"]
    return markdown([*heads, "verdicts"], lines)


def _different(rows: Sequence[Row], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _those(rows: Sequence[Row], **of: Value) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in of.items())]


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    """Draw errors against epsilon: a line for each number of records, hollow where `plan` refuses."""
    names = _different(tables["results"], "set")
    figure = canvas(4.6 * len(names), 4.2)
    axes: Any = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        rows, verdicts, without = (
            _those(tables[key], set=name) for key in ("results", "verdicts", "without")
        )
        shared = [axis.axhline(1.0, color=GREY, linestyle=":", label="raw")]
        alone = intervals(_those(without, method=ALONE), (), "error")[()].mean
        shared.append(axis.axhline(alone, color=INK, linestyle="--", linewidth=1.0, label=ALONE))
        lines = []
        for n, color in zip(_different(rows, "records"), COLORS, strict=False):
            found = intervals(_those(rows, records=n), ("epsilon",), "error")
            x = [float(key[0]) for key in found]  # type: ignore[arg-type]
            y = [one.mean for one in found.values()]
            lines += axis.plot(x, y, color=color, label=f"{n:,} records")
            for epsilon, error in zip(x, y, strict=True):
                helps = verdict_of(_those(verdicts, records=n, epsilon=epsilon)) == HELPS
                axis.plot(epsilon, error, "o", color=color, markerfacecolor=color if helps else "white")
        shared += axis.plot([], [], "o", color=INK, label='plan says "helps"')
        shared += axis.plot([], [], "o", color=INK, markerfacecolor="white", label="plan refuses")
        axis.legend(handles=lines, loc="upper right", ncols=2)
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{epsilon:g}" for epsilon in x])
        axis.set_xticks([], minor=True)
        axis.set_ylim(0.0, 1.6)
        axis.set_xlabel("epsilon, delta = 1e-6")
        axis.set_title(TITLES[name])
    axes[0].set_ylabel("mean squared error (raw = 1)")
    figure.legend(handles=shared, loc="outside lower center", ncols=4, handlelength=2.4)
    return {"epsilon": figure}
