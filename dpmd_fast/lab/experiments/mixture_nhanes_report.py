"""Tables and figure of the released mixture on NHANES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmd_fast.lab.experiments.figures import canvas, curve, legend_below
from dpmd_fast.lab.experiments.framework import Profile, Row, Tables, intervals, markdown
from dpmd_fast.lab.experiments.mixture_methods import (
    ALONE,
    ANALYZE_GAUSS,
    DP_EM,
    DP_EM_JOINT,
    LOOKS,
    MIXTURE,
    MIXTURE_PAPER,
    NOT_PRIVATE,
    ONE,
    RAW,
    cell,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (RAW, ALONE, ANALYZE_GAUSS, DP_EM, DP_EM_JOINT, ONE, MIXTURE_PAPER, MIXTURE, NOT_PRIVATE)


def table(tables: Tables, profile: Profile) -> str:
    rows = tables["results"]
    first = rows[0]
    return "\n".join(
        [
            f"# Released mixture on NHANES: {first['references']:,} references, {first['queries']:,} "
            f"queries, epsilon = 1, {profile.seeds} split(s)\n\nMeans over the splits, with 95 % intervals. "
            "Analyze-Gauss and DP-EM have floating-point noise.\n",
            "## Mean squared error; raw queries = 1\n\n" + _by_noise(rows, "error"),
            "## C-index, death from any cause, markers alone; clean queries: "
            f"{cell(rows, 'c_clean', method=RAW)}\n\n" + _by_noise(rows, "c"),
            "## 20 % of the values missing, no noise: error of filled-in values / that of column means\n\n"
            + _fill(tables["fill"]),
            "## Few queries\n\nError of complete noisy queries (raw = 1); of the values that are "
            "there if 20 % are missing (raw = 1); of filled-in values (column means of the clean queries "
            "= 1). Queries alone: a linear filter, after IterativeImputer where values are missing.\n\n"
            + _few(tables["few"]),
            "## Coverage of 95 % error bars (mean ± 1.96 deviations): share of all values\n\nNoise 0: "
            "of the values filled in.\n\n" + _by_noise(tables["coverage"], "coverage"),
        ]
    )


def _by_noise(rows: Sequence[Row], column: str) -> str:
    """Return a table with one line for each method and noise across."""
    noises = list(dict.fromkeys(row["noise"] for row in rows))
    present = {row["method"] for row in rows}
    lines = [
        [method, *(cell(rows, column, spread=True, noise=noise, method=method) for noise in noises)]
        for method in METHODS
        if method in present
    ]
    return markdown(["method", *(f"noise {noise:g} MAD" for noise in noises)], lines)


def _fill(rows: Sequence[Row]) -> str:
    methods = dict.fromkeys(str(row["method"]) for row in rows)
    return markdown(
        ["method", "error"], [[name, cell(rows, "error", spread=True, method=name)] for name in methods]
    )


def _few(rows: Sequence[Row]) -> str:
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    settings = dict.fromkeys((row["queries"], row["noise"]) for row in rows)
    scores = {"error": "complete", "error_missing": "20 % missing", "fill_error": "filled in"}
    lines = [
        [
            m,
            f"{noise:g} MAD",
            label,
            *(cell(rows, score, queries=m, noise=noise, method=method) for method in methods),
        ]
        for m, noise in settings
        for score, label in scores.items()
        if noise or score == "fill_error"
    ]
    return markdown(["queries", "noise", "values", *methods], lines)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    figure = canvas(9.0, 4.2)
    axes: Any = figure.subplots(1, 2)
    labels = {"error": "mean squared error (raw = 1)", "c": "C-index, death from any cause"}
    for axis, (column, label) in zip(axes, labels.items(), strict=True):
        for method in METHODS:
            own = [row for row in tables["results"] if row["method"] == method]
            curve(axis, intervals(own, ("noise",), column), LOOKS[method], method)
        axis.set_xlabel("noise, in MAD")
        axis.set_ylabel(label)
    legend_below(figure, axes[0], 3)
    return {"nhanes": figure}
