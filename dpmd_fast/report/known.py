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
    "clipped": "cleaned; a value beyond the limit of the preprocessing was moved as the limit would be",
    "failed": "unchanged: the result is beyond the range of its type",
}
_LISTED = 20  # rows with a status
_DRAWN_ROWS, _DRAWN_COLUMNS = 2, 16  # complete and incomplete rows in pictures, columns of each
_WITHIN = 2.0  # error bars, in the comparison with the truth


class Cleaned(NamedTuple):
    """Queries in preprocessed units: as they came (NaN where missing), cleaned, and their error bars."""

    before: Floats
    after: Floats
    bars: Floats
    own_bars: Floats  # in original units
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
    if mixture.preprocess is not None:
        logged = np.flatnonzero(mixture.preprocess.log)
        bars = bars / np.array(mixture.preprocess.scale)
        bars[:, logged] /= after[:, logged]
        before = mixture.preprocess.forward_block(before, "queries")
        after = mixture.preprocess.forward_block(after, "queries")
    status = words_of(codes)
    missing = np.isnan(np.asarray(raw))
    return Cleaned(
        before, after, bars, np.asarray(own, np.float64), missing, status != "failed", status, noises
    )


@dataclass(frozen=True)
class Known:
    sentence: str
    table: Table
    note: str
    examples: list[Picture]
    statuses: Table
    missing: int


def known_of(whole: Whole, cleaned: Cleaned) -> Known:
    """Say, column by column, how much is known and how much is guessed."""
    m, D = cleaned.before.shape
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
    expected = float((cleaned.bars[noisy] ** 2).sum()) / raw if raw > 0.0 else None
    missing = int(cleaned.missing.sum())
    sentence = "The noise is 0: measured values stay as they are, and only missing ones are filled in."
    if expected is not None:
        sentence = (
            f"If the queries are like the records, a mean squared error of {number(expected, 3)} is expected "
            "in the measured values, where 1 is that of the queries as they came."
        )
    if missing:
        sentence += f" {missing:,} values ({percent(missing, m * D)}) were missing and are guesses."
    note = (
        "Error bars are medians over the queries, in the unit of the column; noise and spread of a logged "
        "column are relative. A value is known if its error bar is small against the spread of its column in "
        "the released mixture, and guessed if it is nearly as large."
    )
    if len(shown) < D:
        note += f" The first {len(shown)} of {D:,} columns."
    return Known(
        sentence,
        Table(header, rows),
        note,
        _examples(whole, cleaned),
        _statuses(cleaned.status),
        missing,
    )


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
    gone = f"{int(missing.sum()):,} of {D:,} values were missing" if missing.any() else "complete"
    caption = f"Row {row}: {gone}. Error bars are one standard deviation."
    if len(columns) < D:
        caption += f" The {len(columns)} columns that changed most."
    return row_picture(
        f"Query of row {row} before and after",
        [whole.names[j] for j in columns],
        before[columns],
        after[columns],
        (cleaned.bars[row] / whole.spread)[columns],
        missing[columns],
        caption,
    )


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
