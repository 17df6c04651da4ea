"""The first lines of a report: did it help, in a sentence and two numbers?

Words and thresholds are those of `models.verdict`. Nothing here is said by colour: a run that does not help
says so in its heading, and its heading is framed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.models.outcome import MOSTLY_NOISE, NOT_ALIKE, observed_error
from dpmd_fast.models.preprocessor import Floats
from dpmd_fast.models.verdict import (
    HARM_LIKELY,
    HELPS,
    LEAST_REACH,
    NO_GAIN,
    RISK_ACCEPTED,
    TOO_FEW,
    judged,
)
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.report.known import Cleaned
from dpmd_fast.report.mixture import Whole
from dpmd_fast.report.parts import Table, number, percent

_HEADINGS = {
    HELPS: "It helps",
    NO_GAIN: "It does not help",
    HARM_LIKELY: "It does harm: the queries are better left as they are",
    TOO_FEW: "Too few records",
}
_PREDICTED = {NO_GAIN: "No gain was predicted", HARM_LIKELY: "Harm was predicted"}
_UNKNOWN = "Whether it helps is not known"
_DOUBTFUL = "Do not rely on it: too few records"
_NOT_GIVEN = "The noise of the queries was not given, so how much of it is left cannot be told."
_MADS = (
    "One number for all columns is in MADs: the unit of a column is its median absolute deviation, the "
    "distance from its median within which half of its values lie."
)
_COLUMNS_SHOWN = 8


class Figure(NamedTuple):
    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Headline:
    """What a report begins with.

    Attributes
    ----------
    heading : str
    framed : bool
        Whether the run does not help.
    sentence : str
    figures : tuple of Figure
        The error of a value before and after, if it is known.
    notes : tuple of str
    table : Table or None
        The same column by column.
    """

    heading: str
    framed: bool
    sentence: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    table: Table | None = None
    table_note: str = ""


def model_headline(
    model: Atlas | Mixture | None, guarantee: Guarantee, moved: NDArray[np.bool_] | None
) -> Headline:
    """Return the verdict after the spend that a model carries; `moved` says which queries of the page did."""
    notes = []
    share = 1.0 if moved is None else float(moved.mean())
    if moved is not None:
        moves = "All queries of this page moved."
        if share < 1.0:
            moves = f"{percent(share, 1.0)} of the queries of this page moved; the others are as they came."
        notes.append(moves)
    notes += _risks(guarantee)
    far = share < LEAST_REACH
    verdict = None if model is None else model.verdict
    if verdict is None:
        heading = "Most queries are out of reach" if far else _UNKNOWN
        return Headline(heading, far, _NOT_GIVEN, notes=tuple(notes))
    if _is_doubtful(model):
        return Headline(_DOUBTFUL, True, MOSTLY_NOISE, notes=tuple(notes))
    unknown = math.isnan(verdict.expected_error)
    heading = _HEADINGS[verdict.word]
    if unknown and verdict.word != TOO_FEW:
        heading = _PREDICTED.get(verdict.word, _UNKNOWN)
        notes.insert(0, f"Before the spend the prediction was: {verdict.word}.")
    if far and verdict.word == HELPS:
        heading = "Most queries are out of reach"
    figures: tuple[Figure, ...] = ()
    if not unknown:
        figures = _figures(verdict.raw_error, verdict.expected_error, model)
        notes += _about_units(model)
    return Headline(heading, far or verdict.word != HELPS, verdict.sentence, figures, tuple(notes))


def truth_headline(
    model: Atlas | None, guarantee: Guarantee, before: Points, after: Points, truth: Points
) -> Headline:
    """Return what became of simulated queries (m, D), whose truth is known."""
    raw, left = (
        math.sqrt(float(((np.asarray(points, np.float64) - truth) ** 2).mean())) for points in (before, after)
    )
    word = judged(left, raw, math.nan)
    sentence = f"Against the truth of these simulated data, {_change(raw, left, model)}."
    notes = (*_risks(guarantee), *_about_units(model))
    return Headline(_HEADINGS[word], word != HELPS, sentence, _figures(raw, left, model), notes)


def cleaned_headline(whole: Whole, cleaned: Cleaned) -> Headline:
    """Return the error that a mixture expects of queries that it cleaned, unless they show a larger one."""
    model = whole.mixture
    good = cleaned.good[:, None]
    noisy = ~cleaned.missing & good & (cleaned.noise > 0.0)
    gone = cleaned.missing & good
    notes = (
        [] if model.verdict is None else [f"At the release, for the public points of then: {model.verdict}"]
    )
    notes += [*_risks(model.guarantee), *_about_units(model)]
    if not noisy.any() and not gone.any():
        sentence = "The queries have neither noise nor missing values: they come back as they are."
        return Headline("There is nothing to clean", True, sentence, notes=tuple(notes))
    if _is_doubtful(model):
        return Headline(_DOUBTFUL, True, MOSTLY_NOISE, notes=tuple(_risks(model.guarantee)))
    table: Table | None
    table, note = _by_column(whole, cleaned, noisy, gone)
    word, parts = HELPS, []
    figures: tuple[Figure, ...] = ()
    if noisy.any():
        raw = _root(np.broadcast_to(cleaned.noise, noisy.shape)[noisy])
        expected = _root(cleaned.bars[noisy])
        judged_by = noisy & (cleaned.status != "clipped")[:, None]
        observed = observed_error(cleaned.before, cleaned.after, cleaned.bars, cleaned.noise, judged_by)
        left = expected if observed is None else observed
        word = judged(left, raw, math.nan)
        figures = _figures(raw, left, model)
        if observed is None:
            parts.append(f"Of measured values, {_change(raw, left, model)}, as the mixture expects.")
        else:
            parts.append(
                "The queries are further from the cleaned values than the mixture expects: "
                f"{_change(raw, left, model)}, where it expects {number(expected, 3)}. "
                f"{NOT_ALIKE[0].upper()}{NOT_ALIKE[1:]}."
            )
            table, note = None, ""
    else:
        parts.append("The noise is 0: measured values stay as they are.")
    if gone.any():
        start = _root(np.broadcast_to(whole.spread, gone.shape)[gone])
        end = _root(cleaned.bars[gone])
        count = int(gone.sum())
        parts.append(
            f"{count:,} missing value{'s were' if count > 1 else ' was'} filled in: they are expected to be "
            f"off by {number(end, 3)}{_unit(model)}, where the mean of the column would be off by "
            f"{number(start, 3)}."
        )
        if not figures:
            figures = _figures(start, end, model)
            word = judged(end, start, math.nan)
    return Headline(_HEADINGS[word], word != HELPS, " ".join(parts), figures, tuple(notes), table, note)


def _by_column(
    whole: Whole, cleaned: Cleaned, noisy: NDArray[np.bool_], gone: NDArray[np.bool_]
) -> tuple[Table, str]:
    """Return the expected errors of the first columns in their own units, and what they mean."""
    kinds = []  # name before, name after, deviations before (D,), where
    if noisy.any():
        kinds.append(("measured: error before", "after", cleaned.noise, noisy))
    if gone.any():
        kinds.append(("missing: error of the mean", "filled in", whole.spread, gone))
    rows = []
    for j in range(min(_COLUMNS_SHOWN, len(cleaned.noise))):
        cells = [whole.names[j]]
        for _, _, before, where in kinds:
            here = where[:, j]
            pair = (float(before[j]), _root(cleaned.bars[here, j])) if here.any() else None
            cells += ["-"] * 2 if pair is None else [whole.deviation(j, value) for value in pair]
        rows.append(tuple(cells))
    header = ("column", *(name for kind in kinds for name in kind[:2]))
    note = "How far a value is off, typically (root mean square), in the unit of its column."
    if any(whole.logged(j) for j in range(len(rows))):
        note += " Errors in percent are in percent of the value."
    if len(rows) < len(cleaned.noise):
        note += f" The first {len(rows)} of {len(cleaned.noise):,} columns; more are below."
    return Table(header, rows), note


def _figures(before: float, after: float, model: Atlas | Mixture | None) -> tuple[Figure, ...]:
    """Return both errors; if columns have units of their own, how much of the error is left."""
    ratio = percent(after, before) if before > 0.0 else ""
    if _in_mads(model):
        note = "of the error that a value had before, all columns together"
        return (Figure("error left", ratio, note),) if ratio else ()
    unit = "in the units of the data"
    return (
        Figure("error of a value before", number(before, 3), unit),
        Figure("error of a value after", number(after, 3), f"{ratio} of that before" if ratio else unit),
    )


def _change(before: float, after: float, model: Atlas | Mixture | None) -> str:
    end = f"{number(after, 3)}{_unit(model)}"
    if after == before or before <= 0.0:
        return f"the error stays at {end}" if after == before else f"the error grows from 0 to {end}"
    verb = "falls" if after < before else "grows"
    by = percent(abs(after - before), before)
    return f"the error {verb} by {by}, from {number(before, 3)} to {end}"


def _in_mads(model: Atlas | Mixture | None) -> bool:
    return model is not None and model.preprocess is not None


def _unit(model: Atlas | Mixture | None) -> str:
    return " MADs" if _in_mads(model) else ""


def _about_units(model: Atlas | Mixture | None) -> list[str]:
    return [_MADS] if _in_mads(model) else []


def _risks(guarantee: Guarantee) -> list[str]:
    return [condition for condition in guarantee.conditions if condition.startswith(RISK_ACCEPTED)]


def _is_doubtful(model: Atlas | Mixture | None) -> bool:
    """Return True if a mixture was released against the prediction that its records are too few.

    An atlas is judged by public points, a mixture mostly by what it expects itself.
    """
    return isinstance(model, Mixture) and any(f"'{TOO_FEW}'" in risk for risk in _risks(model.guarantee))


def _root(values: Floats) -> float:
    return math.sqrt(float((values**2).mean()))
