"""Figures. Only public, released or simulated points are drawn."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import gram, product, weighted

Floats = NDArray[np.float64]

INK = "#1f2933"
GREY = "#9aa5b1"
# neither red nor green: colours tell before from after, not good from bad
COLORS = {"raw": "#7a5195", "whole": "#1f2933", "nonprivate": "#b7791f", "private": "#3e7cb1"}
ORANGE = "#c05621"  # queries that came back unchanged
_ROUNDS = ("#3e7cb1", "#7a5195", "#b7791f", "#52606d")
WIDTH = 4.6  # inches, so that letters are readable at the width of a phone
_PATHS = 400  # queries whose path is drawn
_SIGNAL = "signal over noise of a chart, S/s"
_LETTERS = 28  # of the name of an axis
_MOST_POINTS = 500  # that choose the plane of a map, if there are more columns

# A figure in a page must not depend on somebody's matplotlibrc, nor its bytes on the run.
_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "dpmd_fast",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Picture(NamedTuple):
    """A figure for a page: a data URI, an alternative text and a caption."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Plane:
    """The plane of a map: two columns of the data, or the first two principal axes of public points."""

    center: Floats
    axes: Floats  # (D, 2)
    names: tuple[str, str]

    def __call__(self, points: Any) -> Floats:
        return product(np.asarray(points, dtype=np.float64) - self.center, self.axes)


def plane_of(public: Floats, column_names: Sequence[str] | None = None) -> Plane:
    """Return the plane in which to draw points; `public` has at least two columns."""
    D = public.shape[1]
    if D == 2:
        names = tuple(column_names) if column_names is not None else ("first column", "second column")
        return Plane(np.zeros(2), np.eye(2), (shortened(names[0]), shortened(names[1])))
    center = public.mean(axis=0)
    scale = np.abs(public - center).max() or 1.0
    axes, energy = _principal((public - center) / scale)
    first, second = (f"principal axis {j + 1} ({100.0 * energy[j]:.3g} % of variance)" for j in (0, 1))
    return Plane(center, axes, (first, second))


def _principal(points: Floats) -> tuple[Floats, Floats]:
    """Return the directions (D, 2) in which centred points vary most, and their shares of the variance."""
    D = points.shape[1]
    points = points[:: -(-len(points) // _MOST_POINTS)] if D > _MOST_POINTS else points
    total = max(float((points**2).sum()), 1e-300)
    if len(points) >= D:
        values, vectors = spectra(gram(points))
        return np.ascontiguousarray(vectors[:, :-3:-1]), np.maximum(values[:-3:-1], 0.0) / total
    values, vectors = spectra(gram(points.T))
    axes, energy = np.zeros((D, 2)), np.zeros(2)
    for place, value in enumerate(values[:-3:-1]):
        if value > 0.0:
            axis = weighted(vectors[:, -1 - place], points)
            axis /= np.sqrt((axis**2).sum()) * np.copysign(1.0, axis[np.abs(axis).argmax()])
            axes[:, place], energy[place] = axis, value / total
    return axes, energy


def before_and_after(plane: Plane, raw: Floats, denoised: Floats, moved: NDArray[np.bool_]) -> list[Picture]:
    """Draw two maps with the same axes: raw queries, and denoised ones with the paths of some of them."""
    from matplotlib.collections import LineCollection

    start, end = plane(raw), plane(denoised)
    frame = _Frame(start, end)
    with new_figure(height=WIDTH) as (figure, done):
        axis = _map_axis(figure, plane, frame)
        _dots(axis, start, COLORS["raw"], "queries")
        first = done("Map of the raw queries", f"Queries as they came.{frame.note(start)}")
    with new_figure(height=WIDTH) as (figure, done):
        axis = _map_axis(figure, plane, frame)
        some = np.flatnonzero(moved)[:: max(1, -(-int(moved.sum()) // _PATHS))]
        paths = np.stack([start[some], end[some]], axis=1)
        axis.add_collection(LineCollection(list(paths), colors=GREY, linewidths=0.6, rasterized=True))
        for rows, color, name in ((moved, COLORS["private"], "moved"), (~moved, ORANGE, "unchanged")):
            if rows.any():
                _dots(axis, end[rows], color, name)
        lines = f" Lines show the paths of {len(some):,} of them." if len(some) else ""
        second = done("Map of the denoised queries", f"Queries after denoising.{lines}{frame.note(end)}")
    return [first, second]


def chart_map(plane: Plane, raw: Floats, charts: Floats, signals: Floats) -> Picture:
    """Draw the charts of an atlas, coloured by signal over noise, over the raw queries."""
    behind, centers = plane(raw), plane(charts)
    frame = _Frame(behind, centers)
    with new_figure(height=5.2) as (figure, done):
        axis = _map_axis(figure, plane, frame)
        _dots(axis, behind, GREY, "queries")
        shown = axis.scatter(
            *centers.T,
            c=signals,
            norm="log" if signals.max() > 1.05 * signals.min() else None,
            cmap="viridis",
            s=16,
            linewidths=0.3,
            edgecolors="white",
            rasterized=len(charts) > 500,
            label="charts",
        )
        bar = figure.colorbar(shown, ax=axis, location="bottom", label=_SIGNAL, aspect=35)
        _log_ticks(bar.ax.xaxis, float(signals.min()), float(signals.max()))
        put_legend(axis)
        caption = (
            f"The {len(charts):,} charts of round 1 by their signal, and the queries.{frame.note(centers)}"
        )
        return done("Map of the charts, coloured by signal over noise", caption)


def move_histogram(moves: Floats, bandwidth: float | None) -> Picture:
    """Draw a histogram of the distances moved; `moves` is not empty."""
    with new_figure(height=3.1) as (figure, done):
        axis = figure.subplots()
        beyond = _bars(axis, moves, COLORS["private"])
        middle = float(np.median(moves))
        axis.axvline(middle, color=INK, linewidth=1.2, label=f"median {middle:.4g}")
        if bandwidth is not None and bandwidth <= axis.get_xlim()[1]:
            axis.axvline(
                bandwidth, color=ORANGE, linewidth=1.2, linestyle="--", label=f"bandwidth {bandwidth:.4g}"
            )
        axis.set_xlabel("distance between a query and its result")
        axis.set_ylabel("queries")
        put_legend(axis)
        caption = (
            f"How far {len(moves):,} queries moved.{_beyond(beyond, 'moved farther than the axis shows')}"
        )
        return done("Histogram of the distances moved", caption)


def signal_histogram(signals: Sequence[Floats], needed: float) -> Picture:
    """Draw a histogram of signal over noise of the charts, one for each round."""
    with new_figure(height=3.1) as (figure, done):
        axis = figure.subplots()
        everything = np.concatenate(list(signals))
        low, high = min(float(everything.min()), needed) / 1.1, float(everything.max()) * 1.1
        edges = np.geomspace(low, high, 31)
        for number, values in enumerate(signals):
            color = _ROUNDS[number % len(_ROUNDS)]
            axis.hist(
                values,
                edges,
                histtype="stepfilled",
                color=color,
                alpha=0.3,
                edgecolor=color,
                linewidth=1.4,
                label=f"round {number + 1}",
            )
        axis.axvline(needed, color=ORANGE, linewidth=1.2, linestyle="--", label=f"least, {needed:g}")
        axis.set_xscale("log")
        axis.set_xlim(low, high)
        _log_ticks(axis.xaxis, low, high)
        axis.set_xlabel(_SIGNAL)
        axis.set_ylabel("charts")
        put_legend(axis)
        return done(
            "Histogram of signal over noise of the charts",
            f"Signal over noise of {len(everything):,} charts; those below {needed:g} are not used.",
        )


def denoising_panels(
    manifold: Floats, panels: list[tuple[str, str, Floats, float]], path: Path, title: str
) -> None:
    """Draw one square panel for each (title, kind, points in the plane, mean error), over the curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.7 * len(panels), 4.4), layout="constrained")
    figure.suptitle(title, color=INK, fontsize=13)
    axes: Any = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, (name, kind, points, error) in zip(axes, panels, strict=True):
        _panel(axis, manifold, kind, points)
        axis.set_title(name, color=INK, fontsize=11)
        axis.set_xlabel(f"mean distance to the circle {error:.4f}", color=INK)
        axis.tick_params(colors=INK, labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)


def denoising_pictures(manifold: Floats, panels: list[tuple[str, str, Floats, float]]) -> list[Picture]:
    """Draw the panels of `denoising_panels` one by one, with the same axes, for a page."""
    everything = np.vstack([manifold, *(points for _, _, points, _ in panels)])
    middle, half = (
        0.5 * (everything.max(axis=0) + everything.min(axis=0)),
        0.53 * np.ptp(everything, axis=0).max(),
    )
    pictures = []
    for name, kind, points, error in panels:
        with new_figure(height=WIDTH, width=WIDTH) as (figure, done):
            axis = figure.subplots()
            _panel(axis, manifold, kind, points)
            axis.set_xlim(middle[0] - half, middle[0] + half)
            axis.set_ylim(middle[1] - half, middle[1] + half)
            caption = f"{name[:1].upper()}{name[1:]}: mean distance to the circle {error:.4f}."
            pictures.append(done(f"Points of: {name}", caption))
    return pictures


def _panel(axis: Any, manifold: Floats, kind: str, points: Floats) -> None:
    axis.plot(*np.vstack([manifold, manifold[:1]]).T, color=GREY, linewidth=1.2, zorder=1)
    axis.scatter(*points.T, s=7, color=COLORS[kind], alpha=0.65, linewidths=0, zorder=2, rasterized=True)
    axis.set_aspect("equal")


@contextmanager
def new_figure(height: float, width: float = WIDTH) -> Iterator[tuple[Any, Callable[[str, str], Picture]]]:
    """Yield a figure, and a function that makes a picture of it from an alternative text and a caption."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(width, height), layout="constrained")

        def done(alt: str, caption: str) -> Picture:
            out = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a column's name
                figure.savefig(out, format="svg", dpi=220, metadata={"Date": None, "Creator": None})
            return Picture(
                f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode('ascii')}", alt, caption
            )

        yield figure, done


class _Frame:
    """A square around nearly all points: up to half a percent of each set lies beyond each side."""

    def __init__(self, *sets: Floats) -> None:
        lows = [np.quantile(points, 0.005, axis=0, method="lower") for points in sets]
        highs = [np.quantile(points, 0.995, axis=0, method="higher") for points in sets]
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)
        middle = 0.5 * (low + high)
        half = 0.55 * float((high - low).max())
        half = half if half > 0.0 else 0.5 * float(np.abs(middle).max()) or 1.0  # all points are one
        self.low, self.high = middle - half, middle + half

    def note(self, points: Floats) -> str:
        outside = ((points < self.low) | (points > self.high)).any(axis=1)
        return _beyond(int(outside.sum()), "lie beyond the frame")


def _map_axis(figure: Any, plane: Plane, frame: _Frame) -> Any:
    axis = figure.subplots()
    axis.set_xlim(frame.low[0], frame.high[0])
    axis.set_ylim(frame.low[1], frame.high[1])
    axis.set_aspect("equal")
    axis.set_xlabel(plane.names[0])
    axis.set_ylabel(plane.names[1])
    return axis


def _dots(axis: Any, points: Floats, color: str, name: str) -> None:
    axis.scatter(*points.T, s=5, color=color, alpha=0.55, linewidths=0, rasterized=True, label=name)
    put_legend(axis)


def put_legend(axis: Any) -> None:
    """Put the legend above the axes, where nothing is drawn."""
    axis.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=4,
        markerscale=2.0,
        borderaxespad=0.2,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _bars(axis: Any, values: Floats, color: str) -> int:
    """Draw a histogram from 0 to a little above nearly all values; return how many lie beyond."""
    top = float(np.quantile(values, 0.995)) * 1.05
    if not top > 0.0:
        top = float(values.max()) or 1.0
    counts, edges = np.histogram(values, bins=40, range=(0.0, top))
    axis.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=color, alpha=0.75)
    axis.set_xlim(0.0, top)
    return int((values > top).sum())


def _log_ticks(axis: Any, low: float, high: float) -> None:
    """Set ticks without exponents: 1, 2, 5 times powers of ten, or three numbers if those are too few."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    if len(ticks) < 2:
        ticks = np.geomspace(low, high, 3).tolist() if low < high else [low]
    axis.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def _beyond(count: int, what: str) -> str:
    return f" {count:,} {what}." if count else ""


def shortened(text: str, letters: int = _LETTERS) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"
