"""Tables and figure of predicted against actual errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.lab.experiments.figures import BLUE, GREEN, GREY, ORANGE, canvas, legend_below, log_errors
from dpmd_fast.lab.experiments.framework import Profile, Row, Tables, markdown
from dpmd_fast.models.verdict import AS_PREDICTED, HARM, HELPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "shape": ("shapes", BLUE, "o"),
    "factors": ("factor models", GREEN, "s"),
    "real": ("real", ORANGE, "^"),
}


def table(tables: Tables, profile: Profile) -> str:
    rows = tables["results"]
    return "\n".join(
        [
            "# Verdicts before a spend, and what came of them\n\nRoot mean squared error of a value, in "
            "the units in which the better model works.\n",
            "## Real data through `fit --model auto`, epsilon = 1, delta = 1e-6\n\nMiddle level of noise. "
            "Errors over that of the raw queries; means over runs, and the worst run.\n\n" + _runs(rows),
            f"## Share of predictions within a factor of {AS_PREDICTED:g}\n\n" + _shares(rows),
            "## Every case\n\nErrors over that of the raw queries. Refused: actual is that of the better "
            "model, released all the same.\n\n" + _cases(rows),
        ]
    )


def ratio(row: Row, value: str) -> float:
    """Return an error over that of the raw queries, NaN if there is none."""
    top, raw = row[value], row["raw_predicted" if value == "predicted" else "raw"]
    if top is None or not raw:
        return math.nan
    return float(top) / float(raw)


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with both a predicted and an actual error."""
    return [
        row for row in rows if not (math.isnan(ratio(row, "actual")) or math.isnan(ratio(row, "predicted")))
    ]


def within(row: Row) -> bool:
    predicted, actual = ratio(row, "predicted"), ratio(row, "actual")
    return max(predicted / actual, actual / predicted) <= AS_PREDICTED


def _main(rows: Sequence[Row]) -> list[Row]:
    """Return the runs of real data at the middle level of noise: with all queries, and with few."""
    real = [row for row in rows if row["kind"] == "real"]
    middle: dict[Any, Any] = {}
    for name in dict.fromkeys(row["name"] for row in real):
        found = sorted({float(row["level"]) for row in real if row["name"] == name})  # type: ignore[arg-type]
        middle[name] = found[len(found) // 2]
    return [
        row
        for row in real
        if row["size"] != 100 and row["missing"] == 0.0 and row["level"] == middle[row["name"]]
    ]


def _runs(rows: Sequence[Row]) -> str:
    main = _main(rows)
    lines = []
    for name, size in dict.fromkeys((row["name"], row["size"]) for row in main):
        own = [row for row in main if (row["name"], row["size"]) == (name, size)]
        words: dict[str, int] = {}
        for row in own:
            word = f"{row['verdict']} ({row['model'] if row['verdict'] == HELPS else 'refused'})"
            words[word] = words.get(word, 0) + 1
        after = np.array([ratio(row, "auto") for row in own])
        forced = [ratio(row, "actual") for row in own if row["verdict"] != HELPS]
        forced = [one for one in forced if not math.isnan(one)]
        lines.append(
            [
                name,
                own[0]["references"],
                own[0]["queries"],
                "; ".join(f"{count} x {word}" for word, count in words.items()),
                float(np.nanmean([ratio(row, "predicted") for row in own])),
                float(after.mean()),
                float(after.max()),
                "yes" if after.max() <= HARM else "NO",
                "" if not forced else f"{np.mean(forced):.3g}",
            ]
        )
    heads = ["set", "references", "queries", "verdicts", "predicted", "after auto: mean", "worst"]
    return markdown([*heads, f"worst at most {HARM:g}", "if forced"], lines)


def _shares(rows: Sequence[Row]) -> str:
    pairs = compared(rows)
    lines: list[list[object]] = []
    groups = {label: [row for row in pairs if row["kind"] == kind] for kind, (label, _, _) in KINDS.items()}
    groups["predicted to help"] = [row for row in pairs if row["verdict"] == HELPS]
    groups["refused"] = [row for row in pairs if row["verdict"] != HELPS]
    groups["all"] = pairs
    for label, own in groups.items():
        if not own:
            continue
        good = sum(map(within, own))
        harmed = sum(row["verdict"] == HELPS and ratio(row, "actual") > HARM for row in own)
        lines.append([label, len(own), f"{good} ({good / len(own):.0%})", harmed])
    return markdown(["cases", "number", "within the factor", f'"helps" but worse than {HARM:g} raw'], lines)


def _cases(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["actual"] is None:
            continue
        about = f"n = {row['references']:,}, eps = {row['epsilon']:g}, delta = {row['delta']:g}"
        if row["kind"] == "real":
            about += f", noise {row['level']:g}, {row['queries']} queries, {row['missing']:.0%} missing"
        lines.append(
            [
                row["name"],
                about,
                f"{row['verdict']}, {row['candidate']}",
                ratio(row, "predicted"),
                ratio(row, "actual"),
                float(row["alone_predicted"]) / float(row["raw_predicted"]),  # type: ignore[arg-type]
            ]
        )
    return markdown(["case", "setting", "verdict", "predicted", "actual", "queries alone, predicted"], lines)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    rows = compared(tables["results"])
    figure = canvas(6.2, 6.0)
    axis: Any = figure.subplots()
    ends = [
        0.8 * min(min(ratio(row, "predicted"), ratio(row, "actual")) for row in rows),
        1.25 * max(max(ratio(row, "predicted"), ratio(row, "actual")) for row in rows),
    ]
    line = np.geomspace(ends[0], ends[1], 50)
    axis.fill_between(line, line / AS_PREDICTED, line * AS_PREDICTED, color=GREY, alpha=0.2, linewidth=0)
    axis.plot(line, line, color=GREY)
    axis.axhline(1.0, color=GREY, linestyle=":")
    for kind, (label, color, mark) in KINDS.items():
        for helps in (True, False):
            own = [row for row in rows if row["kind"] == kind and (row["verdict"] == HELPS) == helps]
            if own:
                axis.scatter(
                    [ratio(row, "predicted") for row in own],
                    [ratio(row, "actual") for row in own],
                    s=22,
                    marker=mark,
                    facecolors=color if helps else "none",
                    edgecolors=color,
                    label=f"{label}: {'helps' if helps else 'refused, forced'}",
                )
    axis.set_xscale("log")
    axis.set_xlim(*ends)
    axis.set_ylim(*ends)
    log_errors(axis)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("predicted error (raw = 1)")
    axis.set_ylabel("actual error (raw = 1)")
    legend_below(figure, axis, 2)
    return {"predicted": figure}
