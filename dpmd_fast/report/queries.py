"""The parts of a report about the queries: how far they moved, which did not, and their neighbours.

Distances are those of all queries. Neighbours and figures are those of a sample of rows that depends on the
number of rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import metrics
from dpmd_fast.arguments import Points
from dpmd_fast.report.parts import Share, Table, number, percent
from dpmd_fast.report.plots import Picture, move_histogram

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

DRAWN = 4_000  # queries in a map
COMPARED = 5_000  # queries whose neighbours are looked up
AMONG = 20_000  # public points among which they are
STATUSES = {
    "ok": "moved",
    "clipped": "moved, as if its extreme values were at the limit of the preprocessing",
    "outside": "too far from all that was released about the records",
    "no_neighbor": "not enough records around it",
    "failed": "it would have been thrown far away by noise",
}
MOVED = ("ok", "clipped")
_BLOCK = 1 << 22  # values compared at a time
_ROWS_SHOWN, _COLUMNS_SHOWN = 20, 15


def sample_rows(rows: int, limit: int) -> Rows:
    """Return at most `limit` rows in ascending order, always the same for one number of rows."""
    if rows <= limit:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, limit, replace=False))


@dataclass(frozen=True)
class Moved:
    sentence: str
    distances: Floats  # of those that moved
    table: Table | None
    picture: Picture | None
    columns: list[Share]
    columns_note: str


def moved_of(
    raw: Points,
    denoised: Points,
    moved: NDArray[np.bool_],
    bandwidth: float | None,
    column_names: Sequence[str] | None,
    own: tuple[Points, Points],
) -> Moved:
    """Summarise distances in the units of `raw` and `denoised`, and moves of columns in their `own`."""
    count = int(moved.sum())
    if not count:
        return Moved("No query moved.", np.empty(0), None, None, [], "")
    distances, sizes, deviations = _measure(raw, denoised, moved)
    if own[0] is not raw:
        _, sizes, deviations = _measure(*own, moved)
    rows = [("distance", *_summary(distances))]
    if bandwidth is not None:
        rows.append(("in bandwidths", *_summary(distances / bandwidth)))
    names = [f"column {j}" for j in range(raw.shape[1])] if column_names is None else list(column_names)
    parts = np.divide(sizes, deviations, out=np.zeros_like(sizes), where=deviations > 0.0)
    order = np.argsort(-parts, kind="stable")[:_COLUMNS_SHOWN]
    most = float(parts.max())
    columns = [
        Share(
            names[j],
            number(float(sizes[j]), 3) + _of_deviation(float(sizes[j]), float(deviations[j])),
            float(parts[j]) / most if most > 0.0 else 0.0,
        )
        for j in order
    ]
    note = (
        "How far a value moved on average, in the unit of its column and in percent of the spread (standard "
        "deviation) of the queries in that column."
    )
    if len(names) > len(order):
        note += f" The {len(order)} of {len(names):,} columns that moved most."
    sentence = (
        f"{count:,} of {len(raw):,} queries ({percent(count, len(raw))}) moved; the distances are theirs."
    )
    header = ("", "mean", "median", "90 %", "99 %", "largest")
    return Moved(
        sentence, distances, Table(header, rows), move_histogram(distances, bandwidth), columns, note
    )


def _measure(raw: Points, denoised: Points, moved: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return distances moved, mean |move| in each column, and the deviation of all raw queries in it."""
    m, D = raw.shape
    step = max(1, _BLOCK // D)
    shift = np.asarray(raw[:step], dtype=np.float64).mean(axis=0)
    sizes, first, second, parts = np.zeros(D), np.zeros(D), np.zeros(D), []
    for start in range(0, m, step):
        part = slice(start, start + step)
        block = np.asarray(raw[part], dtype=np.float64)
        away = block - shift
        first += away.sum(axis=0)
        second += (away * away).sum(axis=0)
        moves = np.abs(np.asarray(denoised[part], dtype=np.float64) - block)[moved[part]]
        sizes += moves.sum(axis=0)
        parts.append(np.linalg.norm(moves, axis=1))
    variances = second / m - (first / m) ** 2
    return np.concatenate(parts), sizes / moved.sum(), np.sqrt(np.maximum(variances, 0.0))


def _of_deviation(move: float, deviation: float) -> str:
    return f" ({percent(move, deviation)} of the spread)" if deviation > 0.0 else ""


def _summary(values: Floats) -> tuple[str, ...]:
    """Return mean, median, 90 %, 99 % and largest value."""
    figures = (values.mean(), *np.quantile(values, (0.5, 0.9, 0.99)), values.max())
    return tuple(number(figure, 3) for figure in figures)


# Queries that did not move


@dataclass(frozen=True)
class Unchanged:
    sentence: str
    table: Table


def unchanged_of(status: NDArray[np.str_]) -> Unchanged:
    m = len(status)
    rows = []
    for name, meaning in STATUSES.items():
        found = np.flatnonzero(status == name)
        if name not in MOVED and len(found):
            listed = ", ".join(map(str, found[:_ROWS_SHOWN].tolist()))
            more = f" and {len(found) - _ROWS_SHOWN:,} more" if len(found) > _ROWS_SHOWN else ""
            rows.append((f"{name}: {meaning}", f"{len(found):,}", percent(len(found), m), listed + more))
    left = int((~np.isin(status, MOVED)).sum())
    if not left:
        return Unchanged(f"None: all {m:,} queries were in reach.", Table((), []))
    sentence = f"{left:,} of {m:,} queries ({percent(left, m)}) are as they came. Rows are counted from 0."
    return Unchanged(sentence, Table(("status", "queries", "share", "rows"), rows))


# Neighbours


@dataclass(frozen=True)
class Compared:
    title: str
    note: str
    table: Table


@dataclass(frozen=True)
class Geometry:
    sentence: str
    parts: list[Compared]


def geometry_of(
    raw: Points,
    denoised: Points,
    moved: NDArray[np.bool_],
    public_points: Points | None,
    centers: Floats | None,
) -> Geometry | None:
    """Return local-geometry metrics of moved queries, against public points and released chart centres."""
    candidates = np.flatnonzero(moved)
    rows = candidates[sample_rows(len(candidates), COMPARED)]
    if not len(rows):
        return None
    before, after = (np.asarray(points[rows], dtype=np.float64) for points in (raw, denoised))
    parts: list[tuple[str, str, Points, Rows | None]] = []
    if public_points is None:
        among = np.union1d(rows, sample_rows(len(raw), AMONG - len(rows)))
        own = np.searchsorted(among, rows)
        note = f"Neighbours are among {len(among):,} of the raw queries; a query is not its own neighbour."
        parts.append(("Against the raw queries", note, raw[among], own))
    else:
        among = sample_rows(len(public_points), AMONG)
        note = f"Neighbours are among {len(among):,} of {len(public_points):,} public points."
        parts.append(("Against public points", note, public_points[among], None))
    if centers is not None:
        note = (
            f"Neighbours are among the centres of {len(centers):,} charts, which tell about the reference "
            "and were paid for by the release."
        )
        parts.append(("Against the charts", note, centers, None))
    found = [
        Compared(title, f"{note} k\u00a0=\u00a0{k}.", _compare(before, after, points, k, own))
        for title, note, points, own in parts
        if (k := min(metrics.NEIGHBORS, (len(points) - (own is not None)) // 4)) >= 1
    ]
    if not found:
        return None
    sentence = (
        f"Of {len(rows):,} moved queries: mean distance to the k nearest points before and after; overlap of "
        "the two sets of neighbours (1: the same, 0: all new); distortion, the mean relative change of the "
        "distances to the neighbours before."
    )
    return Geometry(sentence, found)


def _compare(before: Floats, after: Floats, points: Any, k: int, own: Rows | None) -> Table:
    near, rows = metrics.nearest_neighbors(before, points, k, method="exact", own=own)
    nearer, rows_after = metrics.nearest_neighbors(after, points, k, method="exact", own=own)
    values = {
        "distance, before": near.mean(axis=1),
        "distance, after": nearer.mean(axis=1),
        "Jaccard overlap": metrics.jaccard(rows, rows_after),
        "distortion": metrics.distortion(near, after, points, rows),
    }
    return Table(("", "mean", "5 %", "median", "95 %"), [(name, *_spread(v)) for name, v in values.items()])


def _spread(values: Floats) -> Iterable[str]:
    values = values[np.isfinite(values)]  # a query on top of all its neighbours has no distortion
    if not len(values):
        return ("-",) * 4
    return (number(figure, 3) for figure in (values.mean(), *np.quantile(values, (0.05, 0.5, 0.95))))


# Truth


@dataclass(frozen=True)
class Truth:
    sentence: str
    table: Table


def truth_of(raw: Points, denoised: Points, truth: Points) -> Truth:
    """Summarise the distances to the queries without their noise."""
    rows = [
        (name, *_summary(np.linalg.norm(np.asarray(points, dtype=np.float64) - truth, axis=1)))
        for name, points in (("before", raw), ("after", denoised))
    ]
    sentence = "The data are simulated: distance of all queries to the point each would be without its noise."
    return Truth(sentence, Table(("", "mean", "median", "90 %", "99 %", "largest"), rows))
