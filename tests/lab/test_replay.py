"""Replay: a neighbour that gets the same noisy releases shows the same bytes; routes that peek are caught."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.lab.audit import replays
from dpmd_fast.lab.audit.replay import Tape, neighbours, observe

CASES = {case.name: case for case in replays.cases()}
CONTROLS = {case.name: case for case in replays.controls()}


@pytest.mark.parametrize("name", CASES)
def test_neighbours_are_alike(name):
    made = replays.replay(CASES[name], 3 if "atlas" in name else 6, seed=1)
    assert made.differences == {}
    assert made.passed


SHOWN = {
    "a warning about records": {"warnings"},
    "a number of records in a log": {"logs"},
    "one low bit of the result": {"result"},
    "the name of a file": {"files"},
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_route_that_peeks_is_caught_by_what_it_shows(name):
    made = replays.replay(CONTROLS[name], 20, control=True)
    assert made.passed
    assert made.verdict.startswith("caught")
    assert set(made.differences) == SHOWN.get(name, set(made.differences))
    if name not in SHOWN:
        assert {"error", "ledger", "choices"} <= set(made.differences)


@pytest.mark.parametrize("name", ["moments, replace-one", "atlas, add-remove", "mixture, replace-one"])
def test_a_run_is_not_blank(name):
    """What is compared holds something, and other noise makes another result."""
    case = CASES[name]
    first, tape = Tape(), Tape()
    one = observe(case.route, case.records, first, case.adjacency)
    other = observe(case.route, case.records, tape, case.adjacency)
    assert one.error == other.error == ""
    assert one.result
    assert one.choices
    assert '"people"' in one.ledger or "people" in one.ledger
    assert {"result"} <= set(one.differences(other))
    again = observe(case.route, case.records, first.rewound(), case.adjacency)
    assert one.differences(again) == ()
    if "moments" not in name:
        assert [path for path, _ in one.files] == ["model.dpmd"]


def test_a_route_that_asks_for_less_is_seen():
    case = CASES["denoiser, replace-one"]
    tape = Tape()
    full = observe(case.route, case.records, tape, case.adjacency)
    fewer = observe(CASES["moments, replace-one"].route, case.records, tape.rewound(), case.adjacency)
    assert {"result", "releases"} <= set(full.differences(fewer))


def test_a_route_that_releases_nothing_is_no_evidence():
    """Failed before: the denoiser refused to spend on so few records, and all its refusals were alike."""

    def refuses(records, account):
        raise ValueError("not enough records")

    with pytest.raises(RuntimeError, match="released nothing that can be compared: ValueError: not enough"):
        replays.replay(CASES["denoiser, replace-one"]._replace(route=refuses), 2)


def test_neighbours_are_neighbours():
    rng = np.random.default_rng(0)
    records, public = rng.normal(size=(20, 2)), rng.normal(size=(5, 2))
    for adjacency in ("replace-one", "add-remove"):
        sizes = set()
        for _, other in zip(range(60), neighbours(records, public, adjacency, rng), strict=False):
            sizes.add(len(other) - len(records))
            longer, shorter = (other, records) if len(other) >= len(records) else (records, other)
            kept = sum(any(np.array_equal(a, b, equal_nan=True) for b in longer) for a in shorter)
            assert kept >= len(shorter) - (adjacency == "replace-one")
        assert sizes == ({0} if adjacency == "replace-one" else {-1, 1})
