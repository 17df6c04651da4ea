"""The sphere S^2 in R^D for D up to 100: error, average ball size and run time against D (Figures 1D and S3).

n = 30,000 and sigma = 0.3 as in the paper, 1,000 queries, one step, epsilon = 1. Times are for fitting and
moving all queries with compiled kernels; processor time is the sum over all cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.lab.datasets import NOISES, sphere
from dpmd_fast.lab.experiments.figures import BLUE, INK, Look, canvas, curve, legend_below, log_errors
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, intervals, markdown
from dpmd_fast.lab.experiments.methods import GRID, LOOKS, Case, compare, guarantees

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS, QUICK_DIMENSIONS = (5, 10, 20, 50, 100), (5, 20)
SIGMA = 0.3
METHODS = {name: method for name, method in GRID.items() if name != "GD"}
MEASURES = {
    "to_manifold": "distance to the manifold",
    "to_clean": "distance to the clean point",
    "ball": "references in a ball",
    "processor_seconds": "processor seconds",
    "seconds": "seconds",
}


def items(profile: Profile) -> list[Row]:
    dimensions = QUICK_DIMENSIONS if profile.quick else DIMENSIONS
    return [
        {"noise": noise, "D": D, "seed": seed}
        for seed in range(profile.seeds)
        for noise in NOISES
        for D in dimensions
    ]


def measure(item: Row, profile: Profile) -> Tables:
    D, seed, noise = int(item["D"]), int(item["seed"]), str(item["noise"])  # type: ignore[arg-type]
    # in a random subspace: the axes must not align with the manifold
    shape = sphere(D, rotation=np.random.default_rng([D, seed]))
    n, m = _sizes(profile)
    compare(Case.draw(shape, 2_000, D + 50, SIGMA, noise, seed), METHODS.items())  # compiles what D needs
    case = Case.draw(shape, n, m, SIGMA, noise, seed)
    index = build_index(case.sample.references, case.bandwidth)
    some = case.sample.references[:: max(1, n // 2_000)]
    balls = count_neighbors(index, some)
    rows = compare(case, METHODS.items())[0]
    return {"results": [{"n": n, "sigma": SIGMA, **row, "ball": float(balls.mean())} for row in rows]}


def table(tables: Tables, profile: Profile) -> str:
    n, m = _sizes(profile)
    rows = tables["results"]
    parts = [
        f"# Sphere in R^D, n = {n:,}, sigma = {SIGMA}, epsilon = 1\n\nMean ± half of the 95 % interval over "
        f"{profile.seeds} seeds; {m:,} queries. Ball: references within the paper's h of a reference.\n"
        + guarantees(rows)
    ]
    for noise in NOISES:
        some = [row for row in rows if row["noise"] == noise]
        for measured, what in MEASURES.items():
            found = intervals(some, ("D", "method"), measured)
            names = (
                ["raw"]
                if measured == "ball"
                else [x for x in METHODS if "seconds" not in measured or x != "raw"]
            )
            lines = [
                [D, *(str(found[D, method]) for method in names)]
                for D in dict.fromkeys(row["D"] for row in some)
            ]
            heads = [what] if measured == "ball" else names
            parts.append(f"## {noise} noise: {what}\n\n" + markdown(["D", *heads], lines))
    return "\n".join(parts)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    rows = tables["results"]
    figure = canvas(13.0, 6.8)
    axes: Any = figure.subplots(2, 4)
    for line, noise in zip(axes, NOISES, strict=True):
        some = [row for row in rows if row["noise"] == noise]
        for axis, measured in zip(
            line, ("to_manifold", "to_clean", "ball", "processor_seconds"), strict=True
        ):
            if measured == "ball":
                own = [row for row in some if row["method"] == "raw"]
                curve(axis, intervals(own, ("D",), measured), Look(BLUE))
            else:
                for method in METHODS:
                    if method == "raw" and measured == "processor_seconds":
                        continue
                    own = [row for row in some if row["method"] == method]
                    curve(axis, intervals(own, ("D",), measured), LOOKS[method], method)
                log_errors(axis)
            dimensions = sorted({int(row["D"]) for row in some})  # type: ignore[arg-type]
            axis.set_xscale("log")
            axis.set_xticks(dimensions, labels=[str(D) for D in dimensions])
            axis.set_xticks([], minor=True)
            axis.set_title(f"{noise} noise")
            axis.set_xlabel("ambient dimension D")
            axis.set_ylabel(MEASURES[measured])
    n, _ = _sizes(profile)
    figure.suptitle(
        f"Sphere in R^D, n = {n:,}, sigma = {SIGMA}, epsilon = 1: mean and 95 % interval over "
        f"{profile.seeds} seeds",
        color=INK,
        fontsize=12,
    )
    legend_below(figure, axes[0, 0], 4)
    return {"sphere": figure}


def _sizes(profile: Profile) -> tuple[int, int]:
    return (3_000, 150) if profile.quick else (30_000, 1_000)


SPHERE = Experiment("sphere", items, measure, table, figures, seeds=(5, 1))
