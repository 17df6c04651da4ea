"""Replay: a neighbour that gets the same noisy releases shows the same bytes; routes that peek are caught."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpmd_fast import load_model
from dpmd_fast.lab.audit import replays
from dpmd_fast.lab.audit.replay import Tape, neighbours, observe

CASES = {case.name: case for case in replays.cases()}
CONTROLS = {case.name: case for case in replays.controls()}


def slow_in_one_way(names, *long):
    """Parameters: those that start with one of `long` are only slow tests for neighbours of one kind."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (name.startswith(long) and "add-remove" in name))
        for name in names
    ]


@pytest.mark.parametrize("name", slow_in_one_way(CASES, "command: fit with a report"))
def test_neighbours_are_alike(name):
    pairs = 1 if "report" in name else 3 if "atlas" in name or "command" in name else 5
    made = replays.replay(CASES[name], pairs, seed=1)
    assert made.differences == {}
    assert made.passed


SHOWN = {
    "a warning about records": {"warnings"},
    "a number of records in a log": {"logs"},
    "one low bit of the result": {"result"},
    "the name of a file": {"files"},
}
for way in ("replace-one", "add-remove"):
    SHOWN[f"a key that the records choose, {way}"] = {"files"}
    SHOWN[f"limits of a Parquet file in a log, {way}"] = {"logs"}
    SHOWN[f"nulls of a table in a warning, {way}"] = {"warnings"}
    SHOWN[f"a line that a command prints, {way}"] = {"printed"}


@pytest.mark.parametrize("name", slow_in_one_way(CONTROLS, "bounds of a paid", "a line that a command"))
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


RELEASES = {  # how many, how many debits, and whether the model is signed
    "atlas, signed": (2, 1, True),
    "mixture, signed": (2, 1, True),
    "atlas, preprocessing paid for, signed": (3, 2, True),
    "moments of Parquet files": (1, 1, None),
    "moments of an Arrow table": (1, 1, None),
    "moments of an Arrow stream": (1, 1, None),
    "moments of a pandas frame": (1, 1, None),
    "mixture of an Arrow table with nulls": (2, 1, False),
    "command: fit, signed, from Parquet files": (2, 1, True),
    "command: preprocess and fit": (3, 2, False),
    "command: denoise": (2, 1, None),
    "command: fit with a report": (2, 1, False),
}
READ = {"Parquet": "read ParquetSource", "command": "read ParquetSource", "Arrow table": "read TableSource"}
READ |= {"stream": "read StreamSource", "pandas": "read PandasSource"}


@pytest.mark.parametrize("way", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", RELEASES)
def test_a_route_releases_what_it_is_there_for(name, way):
    case, tape, found = CASES[f"{name}, {way}"], Tape(), []
    releases, debits, signed = RELEASES[name]

    def route(records, account):
        made = case.route(records, account)
        found.append(None if signed is None else load_model("model.dpmd").signature)
        return made

    seen = observe(route, case.records, tape, case.adjacency)
    assert seen.error == ""
    assert len(tape.made) >= releases
    assert seen.ledger.count("mechanism") == debits
    if signed:
        assert found[0].ledger.dataset == "people"
        assert found[0].ledger.spend == debits
    else:
        assert found == [None]
    for word, choice in READ.items():
        assert word not in name or choice in seen.choices
    assert ("command" in name) == bool(seen.printed)
    assert ("report" in name) == ("report.html" in dict(seen.files))


def test_shares_add_up():
    assert math.fsum(case.share for case in CASES.values()) == pytest.approx(1.0)
    assert min(case.share for name, case in CASES.items() if "report" not in name) >= 0.005
    assert {name.replace("replace-one", "add-remove") for name in CASES} == {
        name for name in CASES if "add-remove" in name
    }


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
