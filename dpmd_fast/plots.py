"""Figures. Only public or released points are drawn, or simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_INK = "#1f2933"
_MANIFOLD = "#9aa5b1"
_COLORS = {"raw": "#d64545", "nonprivate": "#3e7cb1", "private": "#2f855a"}


def denoising_panels(
    manifold: Floats, panels: list[tuple[str, str, Floats, float]], path: Path, title: str
) -> None:
    """One square panel for each (title, kind, points in the plane, mean error), with the curve behind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.7 * len(panels), 4.4), layout="constrained")
    figure.suptitle(title, color=_INK, fontsize=13)
    axes: Any = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, (name, kind, points, error) in zip(axes, panels, strict=True):
        axis.plot(*np.vstack([manifold, manifold[:1]]).T, color=_MANIFOLD, linewidth=1.2, zorder=1)
        axis.scatter(*points.T, s=7, color=_COLORS[kind], alpha=0.65, linewidths=0, zorder=2)
        axis.set_title(name, color=_INK, fontsize=11)
        axis.set_xlabel(f"mean distance to the circle {error:.4f}", color=_INK)
        axis.set_aspect("equal")
        axis.tick_params(colors=_INK, labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)
