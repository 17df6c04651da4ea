"""Verdicts: words, thresholds, sentences, and what is refused."""

from __future__ import annotations

import json
import math

import pytest

from dpmd_fast.errors import UserValueError
from dpmd_fast.models.verdict import (
    AS_PREDICTED,
    GAIN,
    HARM,
    LEAST_REACH,
    NEARER,
    WORDS,
    Verdict,
    confirmed,
    judged,
    judged_by_surface,
    refuse_unless_worth,
    risk_noted,
)


@pytest.mark.parametrize(
    ("predicted", "raw", "alone", "word"),
    [
        (0.5, 1.0, math.nan, "helps"),
        (0.5, 1.0, 0.8, "helps"),
        (0.5, 1.0, 0.45, "no gain"),  # the points alone do better, without a budget
        (1.001 * GAIN, 1.0, math.nan, "no gain"),
        (0.999 * GAIN, 1.0, math.nan, "helps"),
        (1.001 * GAIN * 0.7, 1.0, 0.7, "no gain"),
        (0.999 * GAIN * 0.7, 1.0, 0.7, "helps"),
        (0.999 * HARM, 1.0, math.nan, "no gain"),
        (1.001 * HARM, 1.0, math.nan, "harm likely"),
        (1.001 * HARM, 1.0, 0.2, "harm likely"),
        (0.0, 0.0, 0.0, "no gain"),  # there is nothing to clean
        (0.0, 0.0, math.nan, "no gain"),
    ],
)
def test_words_by_the_thresholds(predicted, raw, alone, word):
    assert judged(predicted, raw, alone) == word


@pytest.mark.parametrize(
    ("predicted", "alone", "distance", "alone_distance", "word"),
    [
        (0.71, 0.712, 0.999 * NEARER, 1.0, "helps"),  # errors of values tie, distances do not
        (0.71, 0.712, 1.001 * NEARER, 1.0, "no gain"),
        (0.71, 0.69, 0.1, 0.0, "no gain"),  # alone they lose even noise along the surface
        (1.001 * GAIN, 1.0, 0.1, 1.0, "no gain"),
        (1.001 * HARM, 0.7, 0.1, 1.0, "harm likely"),
        (0.5, 0.7, 0.9, 1.0, "helps"),
        (0.5, math.nan, 0.9, math.nan, "helps"),
        (1.0, math.nan, 0.1, math.nan, "no gain"),
    ],
)
def test_an_atlas_is_judged_by_distances_too(predicted, alone, distance, alone_distance, word):
    assert judged_by_surface(predicted, 1.0, alone, distance, alone_distance) == word


@pytest.mark.parametrize("word", WORDS)
def test_only_what_helps_is_worth_a_budget(word):
    verdict = Verdict(word, "A sentence.")
    if word == "helps":
        refuse_unless_worth(verdict, False)
        assert risk_noted(verdict, True) == risk_noted(verdict, False) == ()
        return
    with pytest.raises(UserValueError, match=f"^{word}: A sentence. Nothing was spent; accept_risk=True"):
        refuse_unless_worth(verdict, False)
    refuse_unless_worth(verdict, True)
    assert risk_noted(verdict, False) == ()
    (noted,) = risk_noted(verdict, True)
    assert f"the prediction was '{word}'" in noted
    assert "not to privacy" in noted


@pytest.mark.parametrize("answer", [1, 0, None, "yes", 1.0])
def test_a_risk_is_accepted_by_true_alone(answer):
    with pytest.raises(UserValueError, match="accept_risk: must be True or False"):
        refuse_unless_worth(Verdict("helps", "Good."), answer)


def test_verdicts_are_plain_values_and_come_back():
    verdict = Verdict("helps", "It helps.", 0.5, 0.3, reach=0.9)
    values = json.loads(json.dumps(verdict.to_dict()))
    assert values["expected_error"] is None
    again = Verdict.from_dict(values)
    assert str(again) == "It helps."
    assert math.isnan(again.expected_error)
    assert (again.word, again.raw_error, again.predicted_error, again.reach) == ("helps", 0.5, 0.3, 0.9)


@pytest.mark.parametrize(
    "change",
    [
        {"word": "good"},
        {"sentence": "two\nlines"},
        {"sentence": None},
        {"raw_error": "small"},
        {"predicted_error": -1.0},
        {"expected_error": math.inf},
        {"reach": None},
        {"more": 1},
    ],
)
def test_verdicts_that_are_refused(change):
    values = Verdict("helps", "It helps.", 0.5, 0.3).to_dict()
    with pytest.raises(UserValueError):
        Verdict.from_dict({**values, **change})
    with pytest.raises(UserValueError, match="exactly"):
        Verdict.from_dict({"word": "helps"})
    with pytest.raises(UserValueError, match="exactly"):
        Verdict.from_dict([values])


def test_after_the_spend():
    before = Verdict("helps", "It will help.", 1.0, 0.5)
    made = confirmed(before, 0.6, 1.0, 1.0, "atlas")
    assert (made.word, made.predicted_error, made.expected_error) == ("helps", 0.5, 0.6)
    assert str(made) == "The expected error of a value falls from 1 to 0.6; predicted was 0.5."
    wrong = confirmed(before, 0.5 * AS_PREDICTED + 0.01, 1.0, 1.0, "atlas")
    assert str(wrong).endswith("predicted was 0.5, so the prediction was wrong.")
    worse = confirmed(before, 1.5, 1.0, 0.9, "atlas")
    assert worse.word == "harm likely"
    assert "grows from 1 to 1.5, and 10% of the public points are out of reach" in str(worse)
    far = confirmed(before, 0.9, 1.0, LEAST_REACH - 0.01, "atlas")
    assert far.word == "not enough records"
    doubted = confirmed(before, 0.6, 1.0, 1.0, "mixture", " But it is not so.")
    assert str(doubted).endswith("predicted was 0.5. But it is not so.")
    nothing = confirmed(Verdict("no gain", "Nothing to clean."), 0.0, 0.0, 1.0, "mixture")
    assert nothing.word == "no gain"
    unknown = confirmed(before, math.nan, math.nan, 0.8, "atlas")
    assert unknown.word == "helps"
    assert "reaches 80% of the public points; their noise was not given" in str(unknown)
