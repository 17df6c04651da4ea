"""Verdicts: will a release help these queries, and did it? The one place for their thresholds.

Errors are root mean squared errors of one value of the queries, in preprocessed units where there is a
preprocessor. "Raw" is to leave the queries as they are, "public only" the best that they can do for each
other without any reference.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dpmd_fast.arguments import checked, checked_choice
from dpmd_fast.errors import UserValueError, either

# Thresholds. [choice]: what we advise a user to accept. [measured]: by tests/models/test_predict_atlas.py.
GAIN = 0.99  # predicted error over the better of raw and public only, at most, to be worth a budget [choice]
# Where the error of a value ties with that of the public points alone, because noise along a surface stays
# with both: predicted distance from the surface over theirs, at most, to be worth a budget [choice]
NEARER = 0.8
HARM = 1.02  # predicted error over that of the raw queries, above which harm is likely [choice]
LEAST_SIGNAL = 15.0  # n / s: records over the noise of a mixture of one component [recipe of the mixture]
# n / s below which a prediction is not sure, and what it must then be at most, in the place of GAIN: with 30
# queries and n / s of 24 and 34, two sets of cells came back with 1.06 and 1.12 times the error that was
# predicted, more than by themselves, and three of 29 runs worse than raw by 3 to 5 % [measured, by the
# experiment "verdicts", on the data that the rule was made for]
SURE_SIGNAL, SURE_GAIN = 40.0, 0.85
LEAST_REACH = 0.5  # share of the queries that an atlas must reach [choice]
LEAST_PUBLIC = 20  # distinct public points without which no surface can be recognised [choice]
FEWEST_PUBLIC = 10  # distinct public points to fit a filter to; fewer are best left as they are [choice]
# Probability with which the spread of values that are nothing but noise is taken to be smaller than their
# noise, for all columns together [choice]
FALSE_ALARM = 1e-6
# Records that a mixture found over those that were told before the spend, below which the verdict is that of
# the records that were found; clipping alone leaves .8 and more of factor models [choice]
FEWER = 0.5
SURE_ERRORS = 2.0  # standard errors by which an estimate from public points must be above a limit [choice]
# Public points for each column, of at most 20, below which a mixture is weighed alone if the noise is known.
# 30 cells in 10 columns were taken for a surface in 3 of 57 releases, which left .90, 1 and 1 of the error
# [measured, by the experiment "verdicts"]
SHAPE_POINTS, SHAPE_COLUMNS = 10, 20
EQUAL_NOISE = 3.0  # largest noise of a column over the smallest, up to which an atlas is weighed [choice]
# If the noise is unknown, public points are taken to be near a surface if their scatter around it is at most
# this share of their rms radius: ten shapes have .02 to .16 [measured] ...
SURFACE = 0.35
# ... if the number of neighbours grows with a power of the radius that is so little above its dimension: by
# .37 at most for ten shapes and by .83 or more for normal points, 300 of either kind [measured] ...
SURFACE_GROWTH = 0.7
# (the same is asked of points of known noise, unless smoothing them by themselves takes away so much of the
# noise normal to a surface that its error says whether there is one: .2 to .6 for groups in R^5 and R^20 and
# for curves fitted to spheres, which growth rules out [measured])
SHOWN = 0.7
# ... and if, in many columns, the variances of the directions that are left out spread at most so much more
# than those of equal noise, seen with so many points a column: spheres do, blood markers do not [measured];
# and if the least variance of the other directions is so many times the largest of those: 10 and more for
# spheres, 1.2 where variances decay smoothly [measured].
FLAT_MARGIN, FLAT_POINTS = 1.5, 3
LEAST_GAP = 2.0
AS_PREDICTED = 1.5  # factor between expected and predicted error that still counts as predicted [choice]

HELPS, NO_GAIN, HARM_LIKELY, TOO_FEW = "helps", "no gain", "harm likely", "not enough records"
WORDS = (HELPS, NO_GAIN, HARM_LIKELY, TOO_FEW)
NOT_JUDGED = "not judged: no noise was given"  # in a ledger, of a mixture that there is signal for
# Units of errors in sentences; with a preprocessor there is one unit for all, and they need not name it.
DATA_UNITS, MADS = " in the units of the data", " in MADs of the columns"
RISK_ACCEPTED = "A risk to the result, not to privacy, was accepted"  # how the note in a guarantee begins


@dataclass(frozen=True)
class Verdict:
    """Whether a model helps, in one word, one sentence and a few numbers; ``str()`` returns the sentence.

    Attributes
    ----------
    word : "helps", "no gain", "harm likely" or "not enough records"
    sentence : str
    raw_error : float
        Of one value of the queries as they are; NaN if their noise is not known.
    predicted_error : float
        After the model, predicted from public numbers before the spend; NaN if nothing could be predicted.
    expected_error : float
        After the model, from released values; NaN before the spend.
    reach : float
        Share of the public points that the model can move.
    """

    word: str
    sentence: str
    raw_error: float = math.nan
    predicted_error: float = math.nan
    expected_error: float = math.nan
    reach: float = 1.0

    def __post_init__(self) -> None:
        checked_choice("word", self.word, WORDS)
        if not isinstance(self.sentence, str) or "\n" in self.sentence:
            raise UserValueError("sentence: must be one line of text", argument="sentence")
        for name in ("raw_error", "predicted_error", "expected_error"):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isnan(value)):
                object.__setattr__(self, name, checked(name, value))
        object.__setattr__(self, "reach", checked("reach", self.reach))

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; what is not known is None."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Verdict:
        """Return the verdict that `to_dict` was called on; refuse anything else."""
        fields = set(cls.__dataclass_fields__)
        if not isinstance(values, dict) or set(values) != fields:
            raise UserValueError(f"a verdict must have exactly {', '.join(sorted(fields))}")
        known: dict[str, Any] = {n: math.nan if value is None else value for n, value in values.items()}
        return cls(**known)


def judged(predicted: float, raw: float, public_only: float, gain: float = GAIN) -> str:
    """Return the word for errors before a spend; NaN for what is not known."""
    if predicted > HARM * raw:
        return HARM_LIKELY
    rival = raw if math.isnan(public_only) else min(raw, public_only)
    return HELPS if predicted < gain * rival else NO_GAIN  # no error at all cannot get smaller


def judged_by_surface(
    predicted: float, raw: float, public_only: float, distance: float, public_distance: float
) -> str:
    """Return the word for an atlas, of which distances from the surface are known too.

    Noise along the surface can be removed by nobody and hides, in the error of a value, how much nearer to
    the surface an atlas brings points than they come by themselves.
    """
    word = judged(predicted, raw, public_only)
    nearer = predicted < GAIN * raw and distance < NEARER * public_distance
    return HELPS if word == NO_GAIN and nearer else word


def confirmed(
    predicted: Verdict, expected: float, raw: float, reach: float, what: str, doubt: str = ""
) -> Verdict:
    """Return the verdict after the spend: `expected` is the error that the released `what` leaves.

    Of `predicted`, the verdict before the spend, nothing but the error is used; `doubt` ends the sentence.
    """
    foreseen = predicted.predicted_error
    if reach < LEAST_REACH:
        word = TOO_FEW
    elif math.isnan(expected):
        word = predicted.word
    else:
        word = judged(expected, raw, math.nan)
    if math.isnan(expected):
        sentence = (
            f"The {what} reaches {reach:.0%} of the public points; their noise was not given, so what is "
            "left of it cannot be told."
        )
    else:
        change = "falls" if expected < raw else "grows" if expected > raw else "stays"
        sentence = f"The expected error of a value {change} from {raw:.3g} to {expected:.3g}"
        if reach < 0.995:
            sentence += f", and {1.0 - reach:.0%} of the public points are out of reach and stay as they are"
        if not math.isnan(foreseen):
            near = foreseen / AS_PREDICTED <= expected <= foreseen * AS_PREDICTED
            sentence += f"; predicted was {foreseen:.3g}" + ("" if near else ", so the prediction was wrong")
        sentence += "."
    return Verdict(word, sentence + doubt, raw, foreseen, expected, reach)


def refuse_unless_worth(verdict: Verdict, accept_risk: object) -> None:
    """Refuse a spend that is not predicted to help, unless the caller accepts the risk."""
    check_accept_risk(accept_risk)
    if verdict.word != HELPS and not accept_risk:
        raise UserValueError(
            f"{verdict.word}: {verdict.sentence} Nothing was spent; "
            f"{either('accept_risk=True', '--accept-risk')} spends all the same",
            argument="budget",
        )


def check_accept_risk(accept_risk: object) -> None:
    if not isinstance(accept_risk, bool):
        raise UserValueError("accept_risk: must be True or False", argument="accept_risk")


def risk_noted(verdict: Verdict, accept_risk: bool) -> tuple[str, ...]:
    """Return the condition that a guarantee notes if a risk was accepted."""
    if verdict.word == HELPS or not accept_risk:
        return ()
    return (f"{RISK_ACCEPTED}: the prediction was '{verdict.word}'.",)
