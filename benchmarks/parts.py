"""Where the time of the slowest stages goes: transform, residual sums, certified sums, on one thread.

A section of `limits.py`. Parts are timed in the run itself; what a point needs is counted; and the inner
steps, masks and weights and rows of charts and products of vectors, are timed alone, on data that stay in the
first cache.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.common import best_seconds
from benchmarks.markdown import table
from dpmd_fast.kernels import charts
from dpmd_fast.kernels.charts import Field, move
from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.scratch import aligned_zeros
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import LEAF, BallIndex
from dpmd_fast.kernels.sums import moments, residuals
from dpmd_fast.kernels.sums.pairs import PANEL
from dpmd_fast.kernels.sums.residuals import ResidualFrames
from dpmd_fast.kernels.vector.bits import whole_near_mask
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.tiles import add_gram_and_lead
from dpmd_fast.kernels.vector.weighted_rows import add_rows, weigh_charts
from dpmd_fast.kernels.width import WIDTH

_COUNTED = 2_000  # points for which charts are counted

Parts = dict[str, tuple[Any, str]]  # names of functions that are timed, by what they do
RESIDUALS: Parts = {
    "records moved by the charts so far": (charts, "move_narrow"),
    "charts in reach, coordinates, norm, integer check": (residuals, "_clip_block"),
    "pairs sorted by chart": (residuals, "sort_by_location"),
    "products of integer vectors": (residuals, "_accumulate"),
}
SUMS: Parts = {
    "locations in reach, distances, norm, integer check": (moments, "_clip_block"),
    "pairs sorted by location": (moments, "sort_by_location"),
    "vectors cut to integers, and their products": (moments, "_accumulate"),
}


@contextmanager
def timed_parts(parts: Parts) -> Iterator[Counter[str]]:
    """Seconds spent in each part."""
    spent: Counter[str] = Counter()

    def clocked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            spent[name] += time.perf_counter() - start
            return result

        return run

    with ExitStack() as stack:
        for name, (module, attribute) in parts.items():
            stack.enter_context(patch.object(module, attribute, clocked(name, getattr(module, attribute))))
        yield spent


def best_parts(parts: Parts, add: Callable[[], None], rows: int, repeats: int = 5) -> dict[str, float]:
    """The best time of each part, of all else, and of the whole: nanoseconds for one of so many records."""
    add()
    best: dict[str, float] = {}
    for _ in range(repeats):
        with timed_parts(parts) as spent:
            start = time.perf_counter()
            add()
            spent["all"] = time.perf_counter() - start
        for name, value in spent.items():
            best[name] = min(best.get(name, value), value)
    found = {name: 1e9 * best[name] / rows for name in (*parts, "all")}
    whole = found.pop("all")
    return found | {"everything else": whole - sum(found.values()), "all": whole}


class Visit(NamedTuple):
    """What one pass of one point needs, on average."""

    boxes: float  # leaves whose boxes are looked at
    masks: float  # of these, the leaves whose charts are looked at
    vectors: float  # of charts that lie side by side, with one in reach
    charts: float  # charts in reach


def visits(index: BallIndex, X: np.ndarray) -> Visit:
    """Counted anew, in NumPy, for points as they are before the first pass."""
    D, h = index.columns, index.radius
    K = len(index.rows)
    inside = np.zeros((len(X), -(-K // LEAF) * LEAF), bool)
    inside[:, :K] = ((X[:, None] - index.rows[None, :, :D]) ** 2).sum(axis=2) < h * h
    point = (X - index.center)[:, None] / h
    gaps = np.maximum(np.maximum(index.leaf_low.T - point, point - index.leaf_high.T), 0.0)
    return Visit(
        boxes=float(len(index.spreads)),
        masks=float(((gaps**2).sum(axis=2) <= 1.0).sum(axis=1).mean()),
        vectors=float(inside.reshape(len(X), -1, WIDTH).any(axis=2).sum(axis=1).mean()),
        charts=float(inside.sum(axis=1).mean()),
    )


@kernel
def repeat_weights(x, centers, D, masses, h2, share, weights, rounds):
    everything = ~np.uint64(0)
    for _ in range(rounds):
        weigh_charts(x, 0, centers, 0, D, masses, 0, h2, share, everything, weights)


@kernel
def repeat_rows(weights, rows, size, sums, rounds):
    everything = ~np.uint64(0)
    for _ in range(rounds):
        add_rows(everything, weights, rows, size, 0, sums, 0)


@kernel
def repeat_masks(x, single, depth, half_norms, rests, rounds):
    total = np.uint64(0)
    for i in range(rounds):
        for leaf in range(len(half_norms)):
            first = leaf * LEAF
            limit = -0.1 - i
            total ^= whole_near_mask(x, single, first * depth, depth, half_norms, rests, first, 0.0, limit)
    return total


class Alone(NamedTuple):
    """Nanoseconds of the inner steps, each alone and in the first cache."""

    mask: float  # of a leaf
    weights: float  # of a vector of charts
    row: float  # of one chart, added


def inner_nanoseconds(field: Field, rounds: int) -> Alone:
    """Time the inner steps of a field of at least 64 charts of few columns."""
    index = field.balls
    D, h2, masses = index.columns, index.radius**2, field.packed[4]
    centers, rows, size, *_ = field.packed[3]
    point, weights, leaf = index.rows[:1, :D].copy(), np.zeros(LEAF), rows[:LEAF].copy()
    weighing = partial(repeat_weights, point, centers, D, masses, h2, 1.0 / h2, weights, rounds)
    adding = partial(repeat_rows, weights, leaf, size, np.zeros((1, leaf.shape[1])), rounds)
    x = np.zeros(index.depth, np.float32)
    leaves = index.single[:4].copy(), index.depth, index.single_half_norms[:4].copy()
    masks = partial(repeat_masks, x, *leaves, index.single_rests[:4].copy(), rounds)
    found = []
    for call, count in ((masks, len(leaves[2])), (weighing, LEAF // WIDTH), (adding, LEAF)):
        call()
        found.append(1e9 * best_seconds(call, 3) / (rounds * count))
    return Alone(*found)


def show(
    field: Field, frames: ResidualFrames, points: np.ndarray, add: Callable[[], None], dgemm: float
) -> str:
    """The section: `add` makes the residual sums of `points` at `frames`, after a move by `field`.

    `dgemm` is the rate of DGEMM; all on one thread.
    """
    return "\n\n".join(
        [
            "## Where the time goes",
            f"The slowest stages on one thread. DGEMM on one thread: {dgemm / 1e9:.1f} Gflop/s.",
            _show_residuals(frames, points, add, dgemm),
            _show_move(field, points, dgemm),
        ]
    )


@kernel
def repeat_products(panel, sums, lead, rounds):
    for _ in range(rounds):
        add_gram_and_lead(panel, PANEL, PANEL, sums, len(sums) // LANES, lead)


def show_sums(index: BallIndex, Y: np.ndarray, add: Callable[[], None], dgemm: float) -> str:
    """The section about certified sums: `add` makes those of the records Y, on one thread."""
    spent = best_parts(SUMS, add, len(Y))
    width, features = index.rows.shape[1], index.columns + 1
    panel = aligned_zeros((-(-width // WIDTH), PANEL, WIDTH))
    products = partial(repeat_products, panel, aligned_zeros((width, width)), np.zeros(width), 20_000)
    products()
    one = 1e9 * best_seconds(products, 3) / (20_000 * PANEL)
    pairs = float(count_neighbors(index, Y).mean())
    useful = 1e9 * features * (features + 1.0) / dgemm
    names, values = zip(*spent.items(), strict=True)
    rows = [
        [name, f"{value:,.0f}", f"{value / pairs:.1f}"] for name, value in zip(names, values, strict=True)
    ]
    return (
        f"Certified sums, {index.columns} columns, nanoseconds for a record and for one of its pairs:\n\n"
        + table(["part", "record", "pair"], rows)
        + f"\n\nA record is in reach of {pairs:.1f} of {len(index.rows):,} locations. DGEMM does the "
        f"useful flops of a pair in {useful:.1f} ns. The products alone, of vectors that are cut and lie in "
        f"the first cache, take {one:.1f} ns, since blocks of four columns are multiplied as a whole. All "
        "else is for the pair itself: a distance, a weight, a bound for the check, a place in the order of "
        "locations, and a record fetched from the second or third cache and cut. With nothing but "
        f"the products the sums would run at {useful / one:.0%} of DGEMM; they do at "
        f"{useful * pairs / spent['all']:.0%}, counted without distances."
    )


def _show_residuals(frames: ResidualFrames, points: np.ndarray, add: Callable[[], None], dgemm: float) -> str:
    spent = best_parts(RESIDUALS, add, len(points))
    rows = [[name, f"{value:,.0f}"] for name, value in spent.items()]
    pairs = visits(frames.balls, points[:_COUNTED]).charts
    features = frames.frames.shape[1] + frames.frames.shape[2] + 1.0
    flops = pairs * features * (features + 1.0)
    products = spent["products of integer vectors"]
    return (
        "Residual sums, D = 3, d = 2, nanoseconds for a record:\n\n"
        + table(["part", "ns"], rows)
        + f"\n\nA record is in reach of {pairs:.1f} of {len(frames.balls.rows)} charts, and adds {flops:.0f} "
        f"useful flops there: DGEMM does as many in {1e9 * flops / dgemm:.0f} ns. They are few beside what "
        "has to be done for each pair before: find the chart, form the coordinates, cut them to integers, "
        "check in integers that they keep the bound, and sort. The products alone take "
        f"{products:.0f} ns, with vectors of {features:.0f} numbers in registers for 8."
    )


def _show_move(field: Field, points: np.ndarray, dgemm: float, rounds: int = 20_000) -> str:
    need = visits(field.balls, points[:_COUNTED])
    move(field, points, 1)
    visit = 1e9 * best_seconds(lambda: move(field, points, 1), 3) / (len(points) * field.passes)
    alone = inner_nanoseconds(field, rounds)
    steps = [
        ("masks of 64 charts", need.masks, alone.mask),
        (f"weights of {WIDTH} charts", need.vectors, alone.weights),
        ("rows of charts", need.charts, alone.row),
    ]
    rows = [["one pass of one point", "1", f"{visit:.0f}", f"{visit:.0f}"]]
    rows += [
        [f"of it: {name}", f"{times:.1f}", f"{ns:.1f}", f"{times * ns:.0f}"] for name, times, ns in steps
    ]
    K, d, D = field.frames.shape
    useful = need.charts * (5.0 * D + 4.0 * d * D)
    rate = useful / (need.vectors * alone.weights + need.charts * alone.row)
    return (
        f"The move, which is the transform, D = {D}, d = {d}:\n\n"
        + table(["step", "times", "ns each", "ns"], rows)
        + f"\n\n{need.boxes:.0f} boxes are looked at for a pass of a point, and {need.charts:.1f} of "
        f"{K:,} charts are in reach, {need.charts / need.vectors:.1f} of {WIDTH} where one is. "
        "Steps were timed alone, on data in the first cache, without a branch that depends on the "
        "point; the rest of a pass is the sketch of the point, the boxes, and the walk from one leaf to the "
        "next, where every branch depends on the point. Even without any search the charts in reach would be "
        f"added at {rate:.1f} Gflop/s, {1e9 * rate / dgemm:.0%} of DGEMM: it uses a number many times once "
        "that is in a register, and a number of a chart is used once for a point."
    )
