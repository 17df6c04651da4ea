"""`fit --model auto`: the model is chosen before the spend, or nothing is spent."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpmd_fast import Atlas, Ledger, Mixture
from dpmd_fast.cli import main
from dpmd_fast.lab.datasets import circle, simulate

BUDGET = "--epsilon 2 --delta 1e-5"
PAID = "--ledger budget.db --dataset clinic -o new.dpmd"
NAMES = [f"m{j}" for j in range(8)]


def markers(n, seed, noise=0.0):
    """Heavy tails and a smoothly decaying spectrum: near no surface."""
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(np.random.default_rng(7).normal(size=(8, 8)))[0]
    points = (rng.standard_t(4, size=(n, 8)) * 2.0 / np.sqrt(1.0 + np.arange(8))) @ mixing.T
    return points + noise * rng.normal(size=points.shape)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    data = simulate(circle(), 6000, 200, 0.1, np.random.default_rng(0))
    for name, points in (("circle", data.references), ("near", data.queries), ("few", data.references[:200])):
        pq.write_table(pa.table({"x": points[:, 0], "y": points[:, 1]}), folder / f"{name}.parquet")
    for name, points in (("people", markers(20_000, 1)), ("visits", markers(25, 2, 0.8))):
        pd.DataFrame(points, columns=NAMES).to_parquet(folder / f"{name}.parquet")
    gaps = markers(25, 2, 0.8)
    gaps[::5, 3] = np.nan
    pd.DataFrame(gaps, columns=NAMES).to_parquet(folder / "gaps.parquet")
    Ledger(folder / "budget.db").create("clinic", 20.0, 1e-5)
    (folder / "noise.json").write_text(json.dumps(dict.fromkeys(NAMES, 0.8)))
    return folder


def spends():
    return Ledger("budget.db").history("clinic")


def test_a_circle_goes_to_an_atlas(here, capsys):
    assert main(f"fit --reference circle.parquet --queries near.parquet {BUDGET} {PAID}".split()) == 0
    out, err = capsys.readouterr()
    assert err.startswith("Release an atlas: ")
    assert err.count("\n") == 1
    made = Atlas.load("new.dpmd")
    assert made.dim == 1
    assert made.verdict.word == "helps"
    assert out.startswith(str(made.verdict))
    (spend,) = spends()
    assert spend.parameters["verdict"] == "helps"


@pytest.mark.parametrize("queries", ["visits", "gaps"])
def test_markers_go_to_a_mixture(here, capsys, queries):
    command = f"fit --reference people.parquet --queries {queries}.parquet --noise noise.json {BUDGET} {PAID}"
    assert main([*command.split(), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("Release a mixture: ")
    assert json.loads(out)["model"] == "mixture"
    made = Mixture.load("new.dpmd")
    assert made.column_names == tuple(NAMES)
    assert made.verdict.word == "helps"
    assert made.verdict.expected_error < made.verdict.raw_error
    assert len(spends()) == 1


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("fit --reference few.parquet --queries near.parquet --epsilon 1 --delta 1e-6", "not enough records"),
        (
            "fit --reference few.parquet --queries near.parquet --dim 1 --bandwidth 0.5 --model atlas "
            "--epsilon 1 --delta 1e-6",
            "not enough records",
        ),
        (f"fit --reference people.parquet --queries visits.parquet {BUDGET}", "harm likely"),
        (
            f"fit --model atlas --dim 1 --reference people.parquet --queries visits.parquet "
            f"--noise noise.json {BUDGET}",
            "harm likely",
        ),
        (
            "fit --model mixture --reference few.parquet --queries near.parquet --noise 0.5 "
            "--epsilon 0.5 --delta 1e-6",
            "not enough records",
        ),
    ],
)
def test_nothing_is_spent_unless_it_helps(here, capsys, command, word):
    assert main([*command.split(), *PAID.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dpmd-fast: error: {word}: ")
    assert "Nothing was spent; --accept-risk spends all the same" in err
    assert err.count("\n") == 1
    assert spends() == ()
    assert not (here / "new.dpmd").exists()


def test_a_risk_may_be_accepted_and_is_noted(here, capsys):
    command = "fit --model mixture --reference few.parquet --queries near.parquet --noise 0.5 --components 1"
    command += " --epsilon 0.5 --delta 1e-6 --accept-risk"
    assert main([*command.split(), *PAID.split()]) == 0
    (spend,) = spends()
    assert spend.parameters["verdict"] == "not enough records"
    assert any("A risk to the result" in one for one in Mixture.load("new.dpmd").guarantee.conditions)


def test_options_of_both_kinds_may_be_given_where_the_kind_is_open(here, capsys):
    command = f"fit --reference circle.parquet --queries near.parquet --dim 1 --components 2 {BUDGET} {PAID}"
    assert main(command.split()) == 0
    assert Atlas.load("new.dpmd").dim == 1


def test_plan_says_the_same_as_fit(here, capsys):
    command = f"plan --reference-rows 20000 --queries visits.parquet --noise noise.json {BUDGET}"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("Release a mixture: ")
    assert "Predicted error of a value by column, in its unit:" in out
    assert main([*command.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["model"], told["candidate"]) == ("helps", "mixture", "mixture")
    assert told["atlas"] is None  # 25 points in 8 columns cannot show a surface
    main([*command.split(), "--model", "atlas", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["atlas"]["verdict"]["word"]) == ("nothing", "harm likely")
