"""The parts of a report about queries that a mixture cleaned: what is known of them, and what is guessed.

The error bar of a value is its posterior standard deviation. Ratios are taken in preprocessed units, in which
the error bar of a logged column does not depend on its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.models.mixture_cleaner import checked_noise
from dpmd_fast.models.preprocessor import Floats
from dpmd_fast.report.mixture import COLUMNS_SHOWN, Whole
from dpmd_fast.report.mixture_plots import row_picture
from dpmd_fast.report.parts import Table, number, percent
from dpmd_fast.report.plots import Picture
from dpmd_fast.report.queries import Truth, sample_rows
from dpmd_fast.status import words_of

STATUSES = {
    "ok": "cleaned",
    "filled": "cleaned, and missing values filled in",
    "clipped": "cleaned; an extreme value was moved as if it were at the limit of the preprocessing",
    "failed": "unchanged: the result is too large a number for its type",
}
_LISTED = 20  # rows with a status
_DRAWN_ROWS, _DRAWN_COLUMNS = 2, 16  # complete and incomplete rows in pictures, columns of each
_WITHIN = 2.0  # error bars, in the comparison with the truth
# Share of the variance of a column that an error bar leaves: up to the first a value is called well known, up
# to the second partly known, beyond it mostly guessed [choice]
_WELL, _PARTLY = 0.25, 0.75
_WORDS = ("well known", "partly known", "mostly guessed")
_NAMED = 8  # columns in a sentence


class Cleaned(NamedTuple):
    """Queries in preprocessed units: as they came (NaN where missing), cleaned, and their error bars."""

    before: Floats
    after: Floats
    bars: Floats
    own_before: Floats  # in original units, as the next two
    own_after: Floats
    own_bars: Floats
    missing: NDArray[np.bool_]
    good: NDArray[np.bool_]  # rows that did not fail
    status: NDArray[np.str_]
    noise: Floats  # (D,)


def cleaned_of(whole: Whole, raw: Points, noise: Any) -> Cleaned:
    """Clean queries with the mixture of the page, and return them in preprocessed units."""
    mixture = whole.mixture
    noises = checked_noise(noise, mixture.n_columns, mixture.column_names, mixture.preprocess)
    moved, own, codes = mixture.cleaner(noise).move_with_deviations(raw, name="queries")
    before, after, bars = (np.asarray(values, dtype=np.float64) for values in (raw, moved, own))
    originals = before, after, bars
    if mixture.preprocess is not None:
        logged = np.flatnonzero(mixture.preprocess.log)
        bars = bars / np.array(mixture.preprocess.scale)
        bars[:, logged] /= after[:, logged]
        before = mixture.preprocess.forward_block(before, "queries")
        after = mixture.preprocess.forward_block(after, "queries")
    status = words_of(codes)
    missing = np.isnan(np.asarray(raw))
    return Cleaned(before, after, bars, *originals, missing, status != "failed", status, noises)


@dataclass(frozen=True)
class Known:
    sentence: str
    table: Table
    note: str
    examples: list[Picture]
    statuses: Table
    missing: int


def known_of(whole: Whole, cleaned: Cleaned) -> Known:
    """Say in words, column by column, how much is known and how much is guessed."""
    m, D = cleaned.before.shape
    there, gone = ~cleaned.missing & cleaned.good[:, None], cleaned.missing & cleaned.good[:, None]
    shown = range(min(D, COLUMNS_SHOWN))
    missing = int(cleaned.missing.sum())
    rows = []
    for j in shown:
        cells = [
            whole.names[j],
            percent(int(cleaned.missing[:, j].sum()), m),
            _told(whole, cleaned, j, there),
        ]
        rows.append((*cells, _told(whole, cleaned, j, gone)) if missing else tuple(cells))
    header = ("column", "missing", "a measured value, cleaned", "a missing value, filled in")
    sentence = "No value was missing."
    if missing:
        sentence = f"{missing:,} values ({percent(missing, m * D)}) were missing and are guesses. "
        sentence += _summary(whole, cleaned, gone)
    note = (
        "\u00b1 is the error bar, one standard deviation in the unit of the column, of a typical query. A "
        "value is called well known if its error bar leaves less than a quarter of the variance that the "
        "column has among the records, and mostly guessed if it leaves more than three quarters. Filled-in "
        "values are "
        "guesses from the other values of the same query; they hold only if a value is missing for reasons "
        "that have nothing to do with what it would have been."
    )
    if len(shown) < D:
        note += f" The first {len(shown)} of {D:,} columns."
    table = Table(header if missing else header[:3], rows)
    return Known(sentence, table, note, _examples(whole, cleaned), _statuses(cleaned.status), missing)


def _word(whole: Whole, cleaned: Cleaned, j: int, rows: NDArray[np.bool_]) -> str:
    """Return how well the values of a column at `rows` (m,) are known."""
    left = (float(np.median(cleaned.bars[rows, j])) / float(whole.spread[j])) ** 2
    return _WORDS[(left > _WELL) + (left > _PARTLY)]


def _told(whole: Whole, cleaned: Cleaned, j: int, where: NDArray[np.bool_]) -> str:
    rows = where[:, j]
    if not rows.any():
        return "-"
    bar = float(np.median(cleaned.own_bars[rows, j]))
    if bar == 0.0:
        return "as measured"
    return f"\u00b1\u00a0{number(bar, 3)}, {_word(whole, cleaned, j, rows)}"


def _summary(whole: Whole, cleaned: Cleaned, gone: NDArray[np.bool_]) -> str:
    """Say in which columns missing values are well known, partly known or mostly guessed."""
    groups: dict[str, list[str]] = {word: [] for word in _WORDS}
    for j in np.flatnonzero(gone.any(axis=0)):
        groups[_word(whole, cleaned, int(j), gone[:, j])].append(whole.names[j])
    parts = []
    for word, names in groups.items():
        if names:
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            parts.append(f"{word}: {', '.join(names[:_NAMED])}{more}")
    return f"Filled in, they are {'; '.join(parts)}." if parts else ""


# The same in numbers


@dataclass(frozen=True)
class Bars:
    sentence: str
    table: Table
    note: str


def bars_of(whole: Whole, cleaned: Cleaned) -> Bars:
    """Compare the error bars of every column with its noise and its spread."""
    D = cleaned.before.shape[1]
    measured = ~cleaned.missing & cleaned.good[:, None]
    filled = cleaned.missing & cleaned.good[:, None]
    shown = range(min(D, COLUMNS_SHOWN))
    rows = [_column(whole, cleaned, j, measured[:, j], filled[:, j]) for j in shown]
    header = (
        "column",
        "missing",
        "noise",
        "measured: error bar",
        "over the noise",
        "over the spread",
        "filled in: error bar",
        "over the spread",
    )
    noisy = measured & (cleaned.noise > 0.0)
    raw = float(np.where(noisy, cleaned.noise**2, 0.0).sum())
    sentence = "The noise is 0: measured values stay as they are, and only missing ones are filled in."
    if raw > 0.0:
        expected = float((cleaned.bars[noisy] ** 2).sum()) / raw
        sentence = (
            f"If the queries are like the records, a mean squared error of {number(expected, 3)} is expected "
            "in the measured values, where 1 is that of the queries as they came."
        )
    note = (
        "Error bars are medians over the queries, in the unit of the column; noise of a logged column is "
        "relative. The spread is the standard deviation of the column in the released mixture."
    )
    if len(shown) < D:
        note += f" The first {len(shown)} of {D:,} columns."
    return Bars(sentence, Table(header, rows), note)


def _column(
    whole: Whole, cleaned: Cleaned, j: int, measured: NDArray[np.bool_], filled: NDArray[np.bool_]
) -> tuple[str, ...]:
    noise, spread = float(cleaned.noise[j]), float(whole.spread[j])
    there, gone = (
        (float(np.median(cleaned.own_bars[rows, j])), float(np.median(cleaned.bars[rows, j])))
        if rows.any()
        else None
        for rows in (measured, filled)
    )
    return (
        whole.names[j] + (" (logged)" if whole.logged(j) else ""),
        percent(int(cleaned.missing[:, j].sum()), len(cleaned.missing)),
        whole.deviation(j, noise),
        "-" if there is None else number(there[0], 3),
        "-" if there is None or noise == 0.0 else percent(there[1], noise),
        "-" if there is None else percent(there[1], spread),
        "-" if gone is None else number(gone[0], 3),
        "-" if gone is None else percent(gone[1], spread),
    )


def _statuses(status: NDArray[np.str_]) -> Table:
    rows = []
    for word, meaning in STATUSES.items():
        found = np.flatnonzero(status == word)
        if len(found):
            listed = ", ".join(map(str, found[:_LISTED].tolist()))
            more = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
            places = "" if word == "ok" else listed + more
            rows.append((f"{word}: {meaning}", f"{len(found):,}", percent(len(found), len(status)), places))
    return Table(("status", "queries", "share", "rows, counted from 0"), rows)


def _examples(whole: Whole, cleaned: Cleaned) -> list[Picture]:
    """Draw a few rows, complete and incomplete ones: always the same for a number of rows."""
    incomplete = cleaned.missing.any(axis=1)
    pictures = []
    for rows in (np.flatnonzero(cleaned.good & incomplete), np.flatnonzero(cleaned.good & ~incomplete)):
        for row in rows[sample_rows(len(rows), _DRAWN_ROWS)]:
            pictures.append(_example(whole, cleaned, int(row)))
    return pictures


def _example(whole: Whole, cleaned: Cleaned, row: int) -> Picture:
    missing = cleaned.missing[row]
    before, after = ((values[row] - whole.mean) / whole.spread for values in (cleaned.before, cleaned.after))
    D = len(before)
    change = np.where(missing, np.inf, np.abs(after - before))
    columns = np.sort(np.argsort(-change, kind="stable")[:_DRAWN_COLUMNS])
    gone = f"{int(missing.sum()):,} of {D:,} values were missing" if missing.any() else "nothing was missing"
    caption = f"Row {row}: {gone}."
    if len(columns) < D:
        caption += f" The {len(columns)} columns that changed most."
    return row_picture(
        f"Query of row {row} before and after",
        [whole.names[j] for j in columns],
        [_values(cleaned, row, int(j)) for j in columns],
        before[columns],
        after[columns],
        (cleaned.bars[row] / whole.spread)[columns],
        missing[columns],
        caption,
    )


def _values(cleaned: Cleaned, row: int, j: int) -> str:
    """Return a value before and after with its error bar, in its own unit."""
    came = "missing" if cleaned.missing[row, j] else number(float(cleaned.own_before[row, j]), 3)
    now, bar = float(cleaned.own_after[row, j]), float(cleaned.own_bars[row, j])
    return f"{came} \u2192 {number(now, 3)} \u00b1 {number(bar, 2)}"


def mixture_truth_of(whole: Whole, cleaned: Cleaned, truth: Points) -> Truth:
    """Compare with the queries without their noise, and with nothing missing."""
    known = np.asarray(truth, dtype=np.float64)
    if whole.mixture.preprocess is not None:
        known = whole.mixture.preprocess.forward_block(known, "truth")
    rows = []
    for name, which, before in (
        ("measured", ~cleaned.missing & cleaned.good[:, None], cleaned.before),
        ("filled in", cleaned.missing & cleaned.good[:, None], np.broadcast_to(whole.mean, known.shape)),
    ):
        if which.any():
            start, end = before[which] - known[which], cleaned.after[which] - known[which]
            within = np.abs(end) <= _WITHIN * cleaned.bars[which]
            rows.append(
                (
                    name,
                    f"{int(which.sum()):,}",
                    number(float(np.sqrt((start**2).mean())), 3),
                    number(float(np.sqrt((end**2).mean())), 3),
                    percent(int(within.sum()), len(end)),
                )
            )
    sentence = (
        "The data are simulated: root mean square error against the values without noise, in preprocessed "
        "units, and how many true values lie within two error bars (95.4\u00a0% are expected). Before it is "
        "filled in, a missing value is taken to be the mean of its column."
    )
    return Truth(
        sentence, Table(("values", "number", "error before", "error after", "within two bars"), rows)
    )
