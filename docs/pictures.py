"""Draws the pictures of `docs/concepts`: ``python docs/pictures.py [FOLDER]``. All points are simulated."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpmd_fast import Atlas, Budget, ManifoldDenoiser, paper_bandwidth, release_atlas
from dpmd_fast.errors import UserError
from dpmd_fast.lab.datasets import Simulation, make_shape, simulate
from dpmd_fast.privacy.guarantee import LargeDeltaWarning

INK, GREY, RED, BLUE, GREEN, ORANGE = "#1f2933", "#9aa5b1", "#d64545", "#3e7cb1", "#2f855a", "#de911d"
FOLDER = Path(__file__).parent / "images"


def save(figure: Figure, folder: Path, name: str) -> None:
    figure.savefig(folder / f"atlas-{name}.png", dpi=130, bbox_inches="tight", pad_inches=0.15)


def tidy(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x, color=INK)
    axis.set_ylabel(y, color=INK)
    axis.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def first_rounds(atlas: Atlas, count: int) -> Atlas:
    return replace(atlas, layers=atlas.layers[:count])


def charts_on_a_torus(atlas: Atlas, sample: Simulation, folder: Path) -> None:
    """Discs in the tangent planes, coloured by mass; the queries before and after."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = (figure.add_subplot(1, 2, k, projection="3d") for k in (1, 2))
    turn = np.linspace(0.0, 2.0 * np.pi, 25)
    ring = 0.13 * np.stack([np.cos(turn), np.sin(turn)])
    centers, tangents, masses = atlas.charts
    discs = centers[:, None, :] + np.einsum("kde,et->ktd", tangents, ring)
    share = masses / masses.max()
    colors = np.column_stack([0.85 - 0.67 * share, 0.9 - 0.38 * share, 0.88 - 0.53 * share])
    left.add_collection3d(Poly3DCollection(discs, facecolors=colors, edgecolors="white", linewidths=0.3))
    left.set_title(
        f"{len(masses)} charts: centre, tangent plane, mass (darker: more)", color=INK, fontsize=11
    )
    moved = atlas.transform(sample.queries)
    right.scatter(*sample.queries.T, s=7, color=RED, alpha=0.6, linewidths=0, label="queries")
    right.scatter(*moved.T, s=7, color=GREEN, alpha=0.9, linewidths=0, label="moved")
    right.set_title("1,000 public queries, before and after", color=INK, fontsize=11)
    right.legend(frameon=False, loc="upper right", markerscale=2.5)
    for axis in (left, right):
        axis.set_box_aspect((3, 3, 1.3), zoom=1.35)
        axis.set(xlim=(-3, 3), ylim=(-3, 3), zlim=(-1.3, 1.3))
        axis.view_init(38, -60)
        axis.set_axis_off()
    save(figure, folder, "charts")


def cancelling_bias(folder: Path) -> None:
    """On a circle, without noise: the mean of a ball lies inside, the planes through such means cross it."""
    h = 0.6
    angles = np.linspace(0.0, 2.0 * np.pi, 20_000, endpoint=False)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])

    def mean_at(a: float) -> np.ndarray:
        x = np.array([np.cos(a), np.sin(a)])
        t = np.maximum(1.0 - ((circle - x) ** 2).sum(axis=1) / h**2, 0.0) ** 2
        return t @ circle / t.sum()

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*circle.T, color=GREY, linewidth=1.5, label="manifold")
    for a in np.pi / 2 + np.linspace(-0.5, 0.5, 5):
        b, v = mean_at(a), np.array([-np.sin(a), np.cos(a)])
        label = {"label": "charts: mean and tangent plane"} if abs(a - np.pi / 2) < 1e-9 else {}
        left.plot(*np.array([b - 0.33 * v, b + 0.33 * v]).T, color=BLUE, linewidth=1.2, **label)
        left.plot(*b, "o", color=BLUE, markersize=4)
    left.set(xlim=(-0.75, 0.75), ylim=(0.72, 1.06))
    left.legend(frameon=False, fontsize=9, loc="lower center")
    left.set_title(f"bandwidth {h}", color=INK, fontsize=11)
    tidy(left, "", "")
    widths = np.linspace(0.1, 0.9, 17)
    inside, atlas_bias = [], []
    for h in widths:
        around = np.linspace(-1.2, 1.2, 481)
        means = np.array([mean_at(np.pi / 2 + a) for a in around])
        across = np.column_stack([-np.sin(np.pi / 2 + around), np.cos(np.pi / 2 + around)])
        x = np.array([0.0, 1.0])
        for _ in range(3):
            w = np.maximum(1.0 - ((means - x) ** 2).sum(axis=1) / h**2, 0.0) ** 2
            feet = means + ((x - means) * across).sum(axis=1)[:, None] * across
            x = w @ feet / w.sum()
        inside.append(1.0 - np.linalg.norm(mean_at(np.pi / 2)))
        atlas_bias.append(abs(np.linalg.norm(x) - 1.0))
    right.plot(widths, inside, color=RED, label="mean of the ball")
    right.plot(widths, atlas_bias, color=GREEN, label="weighted mean of projections onto the charts")
    right.set(yscale="log")
    right.legend(frameon=False, fontsize=9)
    right.set_title("distance to the circle that is left, without any noise", color=INK, fontsize=11)
    tidy(right, "bandwidth", "")
    save(figure, folder, "bias")


def residual_rounds(atlases: dict[float, Atlas], sample: Simulation, folder: Path) -> None:
    """Errors after each round, and of Nonprivate-MD at the paper's bandwidth."""
    shape = make_shape("torus")
    model = ManifoldDenoiser(paper_bandwidth(30_000, 2, 0.05), 2).fit(sample.references)
    plain = np.sort(shape.distance(model.transform(sample.queries)))
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axis, (delta, atlas) in zip(figure.subplots(1, 2, sharey=True), atlases.items(), strict=True):
        height = np.linspace(0.0, 1.0, len(sample.queries))
        axis.plot(plain, height, color=GREY, linestyle="--", label="Nonprivate-MD, paper's h")
        for count, color in zip(range(1, len(atlas.layers) + 1), (RED, ORANGE, GREEN), strict=False):
            error = shape.distance(first_rounds(atlas, count).transform(sample.queries))
            name = f"after round {count}: mean {error.mean():.4f}"
            axis.plot(np.sort(error), height, color=color, label=name)
        axis.set(xscale="log", xlim=(3e-5, 0.3))
        axis.set_title(f"epsilon = 1, delta = {delta:g}", color=INK, fontsize=11)
        axis.legend(frameon=False, fontsize=9, loc="upper left")
        tidy(axis, "distance to the torus", "share of the queries" if delta == 0.1 else "")
    save(figure, folder, "rounds")


def error_by_budget(sample: Simulation, folder: Path) -> None:
    """Error of the map against epsilon; budgets that are refused before the spend have no point."""
    shape = make_shape("torus")
    found = {}
    for epsilon in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0):
        try:
            atlas = release_atlas(sample.references, sample.queries, dim=2, budget=Budget(epsilon, 1e-6))
        except UserError as error:
            if "Nothing was spent" not in str(error):
                raise
            continue
        found[epsilon] = shape.distance(atlas.transform(sample.queries)).mean()
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.subplots()
    raw = shape.distance(sample.queries).mean()
    axis.axhline(raw, color=GREY, linestyle="--", linewidth=1)
    axis.text(4.0, 0.93 * raw, "raw queries", color=INK, fontsize=9, ha="right", va="top")
    axis.plot(list(found), list(found.values()), "o-", color=GREEN, markersize=4)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(list(found), [f"{epsilon:g}" for epsilon in found])
    axis.set_xticks([], minor=True)
    heights = [0.005, 0.01, 0.02, 0.05, 0.1]
    axis.set_yticks(heights, [f"{height:g}" for height in heights])
    axis.set_yticks([], minor=True)
    axis.set_title("torus, 30,000 records, delta = 1e-6", color=INK, fontsize=11)
    tidy(axis, "epsilon", "mean distance to the torus")
    save(figure, folder, "epsilon")


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    sample = simulate(make_shape("torus"), 30_000, 1_000, 0.05, np.random.default_rng(3))
    atlases = {
        delta: release_atlas(sample.references, sample.queries, dim=2, budget=Budget(1.0, delta))
        for delta in (0.1, 1e-6)
    }
    charts_on_a_torus(atlases[0.1], sample, folder)
    cancelling_bias(folder)
    residual_rounds(atlases, sample, folder)
    error_by_budget(sample, folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
