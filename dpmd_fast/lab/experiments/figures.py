"""The look of the experiments' figures: one colour and one marker per method everywhere."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmd_fast.lab.experiments.framework import Interval, Value
from dpmd_fast.report.plots import _STYLE as _PLOTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SLATE, GREY, RED, BLUE, GREEN = "#1f2933", "#616e7c", "#9aa5b1", "#d64545", "#3e7cb1", "#2f855a"
ORANGE, PURPLE, LIGHT_GREEN, BROWN = "#de911d", "#805ad5", "#68b984", "#b7791f"
STYLE = {**_PLOTS, "font.size": 9.5, "axes.titlesize": 10.5, "legend.fontsize": 9.0, "lines.linewidth": 1.5}


class Look(NamedTuple):
    """How a method is drawn."""

    color: str
    line: str = "-"
    mark: str = "o"


def canvas(width: float, height: float) -> Figure:
    """Return a figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_png(figure: Figure, path: str, dpi: int = 100) -> None:
    """Save a figure with 200 colours, which shrinks the file to a third."""
    from PIL import Image

    whole = io.BytesIO()
    figure.savefig(whole, format="png", dpi=dpi)
    with Image.open(whole) as image:
        image.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, format="png", optimize=True)


def curve(
    axis: Any,
    found: Mapping[tuple[Value, ...], Interval],
    look: Look,
    label: str | None = None,
) -> None:
    """Draw means against the only key column, with the 95 % interval as a band."""
    keys = sorted(found, key=lambda key: float(key[0]))  # type: ignore[arg-type]
    x = [float(key[0]) for key in keys]  # type: ignore[arg-type]
    y = [found[key].mean for key in keys]
    half = [found[key].half for key in keys]
    axis.plot(x, y, color=look.color, linestyle=look.line, marker=look.mark, markersize=4, label=label)
    low = [a - b for a, b in zip(y, half, strict=True)]
    high = [a + b for a, b in zip(y, half, strict=True)]
    axis.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0)


def log_errors(axis: Any) -> None:
    """Make the y axis logarithmic with plain numbers: 0.02, 0.05, 0.1, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1000.0 else (1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, axis: Any, columns: int) -> None:
    """Draw one legend for all panels below them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.4)
