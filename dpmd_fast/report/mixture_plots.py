"""Figures about a mixture: its components, and queries with their error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.report.plots import (
    COLORS,
    GREY,
    ORANGE,
    WIDTH,
    Floats,
    Picture,
    new_figure,
    put_legend,
    shortened,
)

_NUMBERED = 20  # components that are numbered in their map
_LETTERS = 18  # of a column's name beside a row, which has its values on the other side


def component_map(
    weights: Floats, means: Floats, covariances: Floats, whole: Floats, names: Sequence[str]
) -> Picture:
    """Draw components in a plane: means (K, 2), ellipses of one deviation, and that of the whole mixture."""
    with new_figure(height=WIDTH) as (figure, done):
        axis = figure.subplots()
        axis.add_patch(_ellipse(np.zeros(2), whole, facecolor="none", edgecolor=GREY, linestyle="--"))
        reach = [np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))]
        for weight, mean, covariance in zip(weights, means, covariances, strict=True):
            strength = 0.12 + 0.5 * float(weight / weights.max())
            axis.add_patch(_ellipse(mean, covariance, facecolor=COLORS["private"], alpha=0.4 * strength))
            axis.add_patch(
                _ellipse(
                    mean,
                    covariance,
                    facecolor="none",
                    edgecolor=COLORS["private"],
                    alpha=min(1.0, 2 * strength),
                )
            )
        axis.scatter(
            *means.T,
            s=10.0 + 90.0 * weights / weights.max(),
            color=COLORS["whole"],
            linewidths=0,
            zorder=3,
        )
        if len(means) <= _NUMBERED:
            for number, mean in enumerate(means):
                axis.annotate(str(number + 1), mean, xytext=(4, 4), textcoords="offset points", fontsize=9)
        spread = np.sqrt(np.diagonal(whole))
        low = np.minimum((means - reach[0]).min(axis=0), -spread)
        high = np.maximum((means + reach[0]).max(axis=0), spread)
        middle, half = 0.5 * (low + high), 0.55 * float((high - low).max())
        axis.set_xlim(middle[0] - half, middle[0] + half)
        axis.set_ylim(middle[1] - half, middle[1] + half)
        axis.set_aspect("equal")
        axis.set_xlabel(names[0])
        axis.set_ylabel(names[1])
        caption = (
            "Means and ellipses of one standard deviation of the components in the plane in which the whole "
            "mixture (dashed) varies most. Dots are larger and ellipses darker for larger weights. Released "
            "numbers only."
        )
        return done("Map of the components of the mixture", caption)


def _ellipse(center: Floats, covariance: Floats, **looks: Any) -> Any:
    from matplotlib.patches import Ellipse

    values, vectors = spectra(covariance)
    width, height = 2.0 * np.sqrt(np.maximum(values, 0.0))
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    return Ellipse((float(center[0]), float(center[1])), width, height, angle=angle, **looks)


def row_picture(
    title: str,
    names: Sequence[str],
    values: Sequence[str],
    before: Floats,
    after: Floats,
    bars: Floats,
    filled: NDArray[np.bool_],
    caption: str,
) -> Picture:
    """Draw one query, column by column: as it came, and cleaned or filled in with an error bar.

    `before`, `after` and `bars` are in spreads from the mean; `values` are texts in the columns' own units.
    """
    places = np.arange(len(names))[::-1]
    with new_figure(height=1.3 + 0.26 * len(names)) as (figure, done):
        axis = figure.subplots()
        axis.axvline(0.0, color=GREY, linewidth=0.8)
        there = ~filled
        if there.any():
            axis.scatter(
                before[there],
                places[there],
                s=26,
                facecolors="none",
                edgecolors=COLORS["raw"],
                label="as it came",
                zorder=3,
            )
        for rows, color, name in ((there, COLORS["private"], "cleaned"), (filled, ORANGE, "filled in")):
            if rows.any():
                axis.errorbar(
                    after[rows],
                    places[rows],
                    xerr=bars[rows],
                    fmt="o",
                    markersize=4,
                    color=color,
                    linewidth=1.3,
                    label=name,
                )
        axis.set_yticks(places, labels=[shortened(name, _LETTERS) for name in names])
        axis.set_ylim(-0.7, len(names) - 0.3)
        for place, value in zip(places, values, strict=True):
            axis.annotate(
                value,
                (1.02, place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8.5,
            )
        axis.set_xlabel("low \u2190 mean of the records \u2192 high, in spreads")
        put_legend(axis)
        return done(title, caption)
