"""Table and figures of the biomarker experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmd_fast.lab.experiments.figures import BLUE, GREEN, GREY, INK, PURPLE, RED, canvas, legend_below
from dpmd_fast.lab.experiments.framework import Profile, Row, Tables, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {
    "displacement": "displacement",
    "knn_distance": "mean distance to the 15 nearest references",
    "jaccard": "Jaccard overlap of neighbours",
    "distortion": "distortion of distances to neighbours",
}
#: Not drawn: the paper's route with the C found, which moves the queries out of every frame.
DRAWN = {
    "Raw": GREY,
    "Nonprivate-MD": BLUE,
    "paper's route, C = 1, delta = 0.1": RED,
    "certified direct, delta = 0.1": "#b794f4",
    "certified direct, delta = 1e-06": PURPLE,
    "atlas, delta = 1e-06": GREEN,
}
_ARROWS = 200


def table(tables: Tables, profile: Profile) -> str:
    rows, risk = tables["results"], tables["risk"]
    first = rows[0]
    parts = [
        f"# Blood markers of NHANES: {first['references']:,} references, {first['queries']:,} queries, "
        f"epsilon = 1, {profile.seeds} split(s)\n",
        "## Settings and local geometry\n\nMean over queries and splits. C is the paper's constant; C found "
        "is the one that a record of this reference needs, read off it without noise.\n\n" + _geometry(rows),
    ]
    for model in dict.fromkeys(str(row["model"]) for row in risk):
        parts.append(
            f"## C-index, Cox model: {model}\n\nSplit of seed 0: value and 95 % bootstrap interval over the "
            "queries.\n\n" + _concordance(risk, model)
        )
        parts.append(
            f"### Difference to Raw, {model}\n\nSplit of seed 0 with its paired 95 % bootstrap interval; "
            "after the bar mean and standard deviation over all splits.\n\n" + _changes(risk, model)
        )
    return "\n".join(parts)


def _geometry(rows: Sequence[Row]) -> str:
    lines = []
    for method in _methods(rows):
        own = [row for row in rows if row["method"] == method]
        metrics = [f"{_mean(own, metric):.3g}" for metric in METRICS]
        h = _mean(own, "bandwidth")
        C = [float(row["C"]) for row in own if row["C"] is not None]
        lines.append(
            [
                method,
                str(own[0]["holds"]),
                f"{h:.3g}" if h == h else "",
                str(own[0]["dim"] or ""),
                f"{statistics.fmean(C):.2g}" if C else "",
                f"{_mean(own, 'noise'):.2g}" if C else "",
                f"{100.0 * _mean(own, 'moved'):.0f} %",
                *metrics,
            ]
        )
    heads = ["method", "guarantee", "h", "d", "C", "noise on a coordinate of the mean", "queries moved"]
    return markdown([*heads, *METRICS.values()], lines)


def _concordance(risk: Sequence[Row], model: str) -> str:
    own = [row for row in risk if row["model"] == model and row["seed"] == 0]
    names = _methods(own)
    lines = []
    for endpoint in dict.fromkeys(str(row["endpoint"]) for row in own):
        some = {str(row["method"]): row for row in own if row["endpoint"] == endpoint}
        about = some["Raw"]
        cells = [f"{some[m]['c']:.3f} [{some[m]['c_low']:.3f}, {some[m]['c_high']:.3f}]" for m in names]
        lines.append([endpoint, about["events_references"], about["events_queries"], *cells])
    return markdown(["death by", "events in references", "in queries", *names], lines)


def _changes(risk: Sequence[Row], model: str) -> str:
    own = [row for row in risk if row["model"] == model]
    names = [name for name in _methods(own) if name != "Raw"]
    lines = []
    for endpoint in dict.fromkeys(str(row["endpoint"]) for row in own):
        cells = []
        for name in names:
            some = [row for row in own if row["endpoint"] == endpoint and row["method"] == name]
            first = [row for row in some if row["seed"] == 0]
            text = (
                f"{first[0]['change']:+.3f} [{first[0]['change_low']:+.3f}, {first[0]['change_high']:+.3f}]"
                if first
                else "too few events"
            )
            changes = [float(row["change"]) for row in some]  # type: ignore[arg-type]
            if len(changes) > 1:
                text += f" \\| {statistics.fmean(changes):+.3f} ± {statistics.stdev(changes):.3f}"
            cells.append(text)
        lines.append([endpoint, *cells])
    return markdown(["death by", *names], lines)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    return {
        "displacement": _displacement(tables["points"]),
        "geometry": _boxes(tables["points"]),
        "endpoints": _endpoints(tables["risk"]),
    }


def _displacement(points: Sequence[Row]) -> Figure:
    """Draw the displacement of queries in the plane of the raw queries' first two principal axes."""
    shown = [method for method in DRAWN if method != "Raw"]
    start = _positions(points, "Raw")
    figure = canvas(13.0, 3.5)
    axes: Any = figure.subplots(1, len(shown), sharex=True, sharey=True)
    step = max(1, len(start) // _ARROWS)
    for axis, method in zip(axes, shown, strict=True):
        end = _positions(points, method)
        axis.plot(*zip(*start, strict=True), ".", color=GREY, markersize=2, alpha=0.5, label="raw queries")
        for (x, y), (u, v) in list(zip(start, end, strict=True))[::step]:
            axis.plot([x, u], [y, v], color=DRAWN[method], linewidth=0.5, alpha=0.7)
        axis.plot(
            *zip(*end[::step], strict=True), ".", color=DRAWN[method], markersize=3, label="where they went"
        )
        axis.set_title(_two_lines(method))
        axis.set_xlabel("principal axis 1")
    axes[0].set_ylabel("principal axis 2")
    for values, limits in zip(zip(*start, strict=True), (axes[0].set_xlim, axes[0].set_ylim), strict=True):
        ordered = sorted(values)
        edge = len(ordered) // 100  # 1 % on each side may lie outside the frame
        low, high = ordered[edge], ordered[-1 - edge]
        limits(low - 0.15 * (high - low), high + 0.15 * (high - low))
    figure.suptitle(
        f"Displacement of {len(start[::step]):,} of the public queries, in the plane of their principal axes",
        color=INK,
    )
    return figure


def _boxes(points: Sequence[Row]) -> Figure:
    """Draw box plots of the local-geometry metrics, whiskers from 5 to 95 %."""
    figure = canvas(13.0, 3.6)
    axes: Any = figure.subplots(1, len(METRICS), sharey=True)
    names = list(DRAWN)[::-1]
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        values = [
            [float(row[metric]) for row in points if row["method"] == name and row[metric] == row[metric]]  # type: ignore[arg-type]
            for name in names
        ]
        drawn = axis.boxplot(
            values, orientation="horizontal", whis=(5, 95), showfliers=False, patch_artist=True
        )
        for box, name in zip(drawn["boxes"], names, strict=True):
            box.set(facecolor=DRAWN[name], alpha=0.75)
        for line in drawn["medians"]:
            line.set_color(INK)
        axis.set_yticks(range(1, len(names) + 1), labels=names)
        axis.set_xlabel(title)
    figure.suptitle(
        "Local geometry of the queries relative to the raw references (split of seed 0)", color=INK
    )
    return figure


def _endpoints(risk: Sequence[Row]) -> Figure:
    """Draw the differences of the C-index to Raw, with paired bootstrap intervals."""
    models = list(dict.fromkeys(str(row["model"]) for row in risk))
    own = [row for row in risk if row["seed"] == 0]
    endpoints = list(dict.fromkeys(str(row["endpoint"]) for row in own))
    shown = [method for method in DRAWN if method != "Raw"]
    figure = canvas(11.0, 1.6 + 0.55 * len(endpoints))
    axes: Any = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axis, model in zip(axes, models, strict=True):
        for k, method in enumerate(shown):
            rows = [
                next(
                    row
                    for row in own
                    if (row["endpoint"], row["model"], row["method"]) == (endpoint, model, method)
                )
                for endpoint in endpoints
            ]
            places = [-j + 0.15 * (0.5 * (len(shown) - 1) - k) for j in range(len(endpoints))]
            value = [float(row["change"]) for row in rows]  # type: ignore[arg-type]
            low = [v - float(row["change_low"]) for v, row in zip(value, rows, strict=True)]  # type: ignore[arg-type]
            high = [float(row["change_high"]) - v for v, row in zip(value, rows, strict=True)]  # type: ignore[arg-type]
            bars = [[max(0.0, x) for x in low], [max(0.0, x) for x in high]]
            axis.errorbar(
                value,
                places,
                xerr=bars,
                fmt="o",
                markersize=3.5,
                linewidth=1.2,
                color=DRAWN[method],
                label=method,
            )
        axis.axvline(0.0, color=GREY, linewidth=1.0)
        axis.set_title(f"Cox model: {model}")
        axis.set_xlabel("C-index minus that of the raw queries")
    events = {str(row["endpoint"]): row["events_queries"] for row in own}
    axes[0].set_yticks([-j for j in range(len(endpoints))], labels=[f"{e} ({events[e]})" for e in endpoints])
    axes[0].set_ylabel("death by (events among the queries)")
    figure.suptitle("Ranking of risks after denoising, epsilon = 1: difference and 95 % interval", color=INK)
    legend_below(figure, axes[0], 3)
    return figure


def _positions(points: Sequence[Row], method: str) -> list[tuple[float, float]]:
    return [(float(row["x"]), float(row["y"])) for row in points if row["method"] == method]  # type: ignore[arg-type]


def _two_lines(method: str) -> str:
    return method.replace(", ", "\n", 1)


def _methods(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["method"]) for row in rows))


def _mean(rows: Sequence[Row], column: str) -> float:
    return statistics.fmean(float(row[column]) for row in rows)  # type: ignore[arg-type]
