"""Circle, torus and Swiss roll: errors of all methods against n and against sigma (Section 5 of the paper).

The grids are those of the paper's parameter table. It does not say which sigma goes with the grid of n,
which n with that of sigma, nor the number of queries and steps: here sigma = 0.1 (circle) or 0.15, n =
30,000, 1,000 queries and one step. The sizes of the shapes are in `lab.datasets`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmd_fast.lab.datasets import NOISES, Floats, Shape, make_shape
from dpmd_fast.lab.experiments.figures import GREY, INK, canvas, curve, legend_below, log_errors
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, intervals, markdown
from dpmd_fast.lab.experiments.methods import DESCENT_QUERIES, GRID, LOOKS, Case, compare, guarantees

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (10_000, 20_000, 30_000, 40_000, 50_000)
METRICS = {"to_manifold": "distance to the manifold", "to_clean": "distance to the clean point"}
SHOWN = (
    "raw",
    "Nonprivate-MD",
    "paper's route, C = 1, delta = 0.1",
    "certified direct, delta = 1e-6",
    "atlas, delta = 1e-6",
)


class Grid(NamedTuple):
    """The settings of one shape: `size` stays fixed while sigma varies, and `sigma` while n does."""

    sizes: Sequence[int]
    sigmas: Sequence[float]
    size: int
    sigma: float
    queries: int

    def cells(self) -> list[tuple[int, float]]:
        cells = [(n, self.sigma) for n in self.sizes] + [(self.size, sigma) for sigma in self.sigmas]
        return list(dict.fromkeys(cells))


FULL = {
    "circle": Grid(SIZES, (0.05, 0.1, 0.2, 0.3, 0.4), 30_000, 0.1, 1000),
    "torus": Grid(SIZES, (0.05, 0.1, 0.15, 0.25, 0.35), 30_000, 0.15, 1000),
    "swiss-roll": Grid(SIZES, (0.05, 0.1, 0.15, 0.25, 0.35), 30_000, 0.15, 1000),
}
QUICK = Grid((2_000, 4_000), (0.1, 0.2), 4_000, 0.1, 150)


def grid_of(name: str, profile: Profile) -> Grid:
    return QUICK if profile.quick else FULL[name]


def items(name: str, profile: Profile) -> list[Row]:
    return [
        {"noise": noise, "n": n, "sigma": sigma, "seed": seed}
        for seed in range(profile.seeds)
        for noise in NOISES
        for n, sigma in grid_of(name, profile).cells()
    ]


def measure(name: str, item: Row, profile: Profile) -> Tables:
    grid = grid_of(name, profile)
    n, sigma, noise, seed = _setting(item)
    case = Case.draw(make_shape(name), n, grid.queries, sigma, noise, seed)
    rows, points = compare(case, GRID.items())
    found: dict[str, Sequence[Row]] = {"results": rows}
    if (n, sigma, noise, seed) == (grid.size, grid.sigma, "bounded", 0):
        found["points"] = [
            {"method": method, **{"xyz"[j]: float(x) for j, x in enumerate(point)}}
            for method in SHOWN
            for point in points[method]
        ]
    return found


def _setting(item: Mapping[str, Any]) -> tuple[int, float, str, int]:
    return item["n"], item["sigma"], item["noise"], item["seed"]


def table(name: str, tables: Tables, profile: Profile) -> str:
    """Return one table for each noise and each distance: settings down, methods across."""
    rows = tables["results"]
    parts = [
        f"# {name}: errors at epsilon = 1\n\nMean ± half of the 95 % interval over {profile.seeds} seeds; "
        f"each is the mean over {grid_of(name, profile).queries:,} queries (GD: at most {DESCENT_QUERIES}).\n"
        + guarantees(rows)
    ]
    for noise in NOISES:
        for metric, what in METRICS.items():
            found = intervals(
                [row for row in rows if row["noise"] == noise], ("n", "sigma", "method"), metric
            )
            lines = [
                [f"{n:,}", f"{sigma:g}", *(str(found[n, sigma, method]) for method in GRID)]
                for n, sigma in grid_of(name, profile).cells()
            ]
            parts.append(f"## {noise} noise, {what}\n\n" + markdown(["n", "sigma", *GRID], lines))
    moved = intervals([row for row in rows if row["noise"] == "bounded"], ("n", "sigma", "method"), "moved")
    lines = [
        [f"{n:,}", f"{sigma:g}", *(f"{100 * moved[n, sigma, method].mean:.0f} %" for method in GRID)]
        for n, sigma in grid_of(name, profile).cells()
    ]
    parts.append(
        "## bounded noise, share of the queries that were moved\n\nThe others came back unchanged.\n\n"
        + markdown(["n", "sigma", *GRID], lines)
    )
    return "\n".join(parts)


def figures(name: str, tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    return {
        "errors": _errors(name, tables["results"], profile),
        "points": _points(name, tables["points"], grid_of(name, profile)),
    }


def _errors(name: str, rows: Sequence[Row], profile: Profile) -> Figure:
    grid = grid_of(name, profile)
    figure = canvas(13.0, 6.8)
    axes: Any = figure.subplots(len(NOISES), 4, squeeze=False)
    for line, noise in zip(axes, NOISES, strict=True):
        some = [row for row in rows if row["noise"] == noise]
        over_n = [row for row in some if row["sigma"] == grid.sigma]
        over_sigma = [row for row in some if row["n"] == grid.size]
        panels = [
            (chosen, column, metric)
            for metric in METRICS
            for chosen, column in ((over_n, "n"), (over_sigma, "sigma"))
        ]
        for axis, (chosen, column, metric) in zip(line, panels, strict=True):
            for method in GRID:
                own = [row for row in chosen if row["method"] == method]
                found = intervals(own, (column,), metric)
                curve(axis, found, LOOKS[method], method)
            if metric == "to_manifold":
                log_errors(axis)
            fixed = f"sigma = {grid.sigma:g}" if column == "n" else f"n = {grid.size:,}"
            axis.set_title(f"{noise} noise, {fixed}")
            axis.set_xlabel("references n" if column == "n" else "noise level sigma")
            axis.set_ylabel(METRICS[metric])
            if column == "n":
                axis.set_xticks(grid.sizes, labels=[f"{n // 1000}k" for n in grid.sizes])
    figure.suptitle(
        f"{name}, epsilon = 1: mean and 95 % interval over {profile.seeds} seeds", color=INK, fontsize=12
    )
    legend_below(figure, axes[0, 0], 4)
    return figure


def _points(name: str, rows: Sequence[Row], grid: Grid) -> Figure:
    """Draw raw and moved queries; for a surface also a section that shows their distances to it."""
    shape = make_shape(name)
    solid = shape.ambient == 3
    curves = _section(name, _outline(name))
    frame = _gathered(rows, "raw", shape)
    figure = canvas(13.0, 5.2 if solid else 3.3)
    for k, method in enumerate(SHOWN):
        points = _gathered(rows, method, shape)
        if solid:
            view: Any = figure.add_subplot(2, len(SHOWN), k + 1, projection="3d")
            view.scatter(*points.T, s=4, color=LOOKS[method].color, alpha=0.8, linewidths=0)
            low, high = (np.quantile(frame, q, axis=0) for q in (0.002, 0.998))
            view.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
            view.set_box_aspect(high - low, zoom=1.2 if name == "torus" else 1.0)
            view.view_init(*((48, -60) if name == "torus" else (14, -72)))
            view.set_axis_off()
        axis: Any = figure.add_subplot(1 + solid, len(SHOWN), (len(SHOWN) if solid else 0) + k + 1)
        axis.plot(*curves.T, color=GREY, linewidth=0.8)
        section = _section(name, points)
        axis.scatter(*section.T, s=5, color=LOOKS[method].color, alpha=0.6, linewidths=0, rasterized=True)
        low, high = curves.min(axis=0) - 0.8 * grid.sigma**0.5, curves.max(axis=0) + 0.8 * grid.sigma**0.5
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
        axis.tick_params(labelsize=8)
        axis.set_xlabel(f"mean distance {shape.distance(points).mean():.4f}")
        (view if solid else axis).set_title(
            method.replace(", C", ",\nC").replace(", delta = 1", ",\ndelta = 1")
        )
    return figure


def _gathered(rows: Sequence[Row], method: str, shape: Shape) -> Floats:
    chosen = [[row["xyz"[j]] for j in range(shape.ambient)] for row in rows if row["method"] == method]
    return np.array(chosen, dtype=np.float64)


def _outline(name: str) -> Floats:
    """Return points along the curve that is the section of a shape."""
    t = np.linspace(0.0, 2.0 * np.pi, 400)
    if name == "circle":
        return np.column_stack([np.cos(t), np.sin(t)])
    if name == "torus":
        return np.column_stack([2.0 + np.cos(t), np.zeros_like(t), np.sin(t)])
    t = np.linspace(1.5 * np.pi, 4.5 * np.pi, 800)
    return np.column_stack([t * np.cos(t), np.zeros_like(t), t * np.sin(t)])


def _section(name: str, points: Floats) -> Floats:
    """Project points: torus to (distance to the axis, height), roll to the plane it is rolled up in."""
    if name == "circle":
        return points
    if name == "torus":
        return np.column_stack([np.hypot(points[:, 0], points[:, 1]), points[:, 2]])
    return points[:, [0, 2]]


def _experiment(name: str) -> Experiment:
    return Experiment(
        name,
        functools.partial(items, name),
        functools.partial(measure, name),
        functools.partial(table, name),
        functools.partial(figures, name),
        seeds=(5, 2),
    )


CIRCLE, TORUS, SWISS_ROLL = (_experiment(name) for name in FULL)
