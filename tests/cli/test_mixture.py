"""Mixtures on the command line: blood markers in clinical units, with noise and with values missing."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from samples import said

from dpmd_fast import Budget, Ledger, Mixture, Preprocessor, plan, release_mixture
from dpmd_fast.cli import main

N = 4003  # records: a number that is not said by chance
QUERIES = 4000  # of which 300 values of a column are missing
SECRET = 4321.987654  # in the reference, and nowhere else
NAMES = ("glucose", "hba1c", "crp", "albumin")
NOISE = {"glucose": 8.0, "hba1c": 0.35, "crp": 0.5, "albumin": 2.0}  # of crp relative
BUDGET = "--epsilon 4 --delta 1e-6"
PAID = "--ledger budget.db --dataset clinic"
FIT = f"fit --model mixture --reference reference.parquet --components 2 --rounds 2 {BUDGET}"
SEEDED = f"{FIT} --columns {','.join(NAMES)} --queries complete.parquet --no-ledger --seed 3"
BY_COLUMN = " ".join(f"--noise {name}={value}" for name, value in NOISE.items())


def run(capsys, command, *more):
    """What a command prints; it must go well."""
    assert main([*command.split(), *more]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return out


def ask(capsys, command, *more):
    """What a command prints for machines."""
    out = run(capsys, command, *more, "--json")
    assert out.count("\n") == 1
    return json.loads(out)


def people(n, rng):
    """Clean markers of healthy and sick people, the third of them skewed."""
    factors = rng.normal(size=(n, 2)) + 1.6 * (rng.random((n, 1)) < 0.3) * [1.0, 0.4]
    z = factors @ np.array([[1.0, 0.9, 0.4, -0.3], [0.1, 0.1, 0.9, -0.7]]) + 0.35 * rng.normal(size=(n, 4))
    return np.stack(
        [95 + 12 * z[:, 0], 5.4 + 0.5 * z[:, 1], np.exp(0.4 + 0.8 * z[:, 2]), 42 + 3 * z[:, 3]], axis=1
    )


def measured(clean, rng):
    errors = rng.normal(size=clean.shape) * list(NOISE.values())
    out = clean + errors
    out[:, 2] = clean[:, 2] * np.exp(errors[:, 2])
    return out


def with_gaps(points, share, rng):
    out = points.copy()
    out[rng.random(points.shape) < share] = np.nan
    return out


def table(points, **others):
    columns = {name: pa.array(points[:, j], from_pandas=True) for j, name in enumerate(NAMES)}
    return pa.table({**others, **columns})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markers")
    rng = np.random.default_rng(0)
    records = with_gaps(people(N, rng), 0.06, rng)
    records[7, 0] = SECRET
    truth = people(QUERIES, rng)
    queries = with_gaps(measured(truth, rng), 0.08, rng)
    pilot = measured(people(300, rng), rng)
    pq.write_table(table(records, person=[f"person {k}" for k in range(N)]), folder / "reference.parquet")
    pq.write_table(table(records[:1500]), folder / "part1.parquet")
    pq.write_table(table(records[1500:]), folder / "part2.parquet")
    pa.csv.write_csv(table(records), folder / "reference.csv")
    np.save(folder / "reference.npy", records)
    pq.write_table(table(queries, visit=list(range(QUERIES))), folder / "queries.parquet")
    pa.csv.write_csv(table(queries), folder / "queries.csv")
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", truth)
    pq.write_table(table(pilot), folder / "complete.parquet")
    with_some = with_gaps(pilot, 0.05, rng)
    pq.write_table(table(with_some), folder / "pilot.parquet")
    pq.write_table(table(with_some[:8]), folder / "few.parquet")  # too few to learn anything from
    # 30 points in 20 columns leave much to learn: predicted is .81 of their own error, deviation .03
    many = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20)) + 0.35 * rng.normal(size=(30, 20))
    pd.DataFrame(with_gaps(many, 0.3, rng)).add_prefix("marker ").to_parquet(folder / "wide.parquet")
    (folder / "noise.json").write_text(json.dumps(NOISE))
    scales = Preprocessor.from_public(pilot, log=["crp"], column_names=NAMES)
    (folder / "scales.json").write_text(json.dumps(scales.to_dict()))
    made = release_mixture(
        records, budget=Budget(4.0, 1e-6), preprocess=scales, components=2, rounds=2, seed=0
    )
    made.save(folder / "mixture.dpmd")
    Ledger(folder / "budget.db").create("clinic", 9.0, 1e-6)
    return folder


# --- the whole story


def test_from_scales_to_clean_markers(here, capsys):
    told = ask(capsys, "preprocess --public pilot.parquet --log crp -o units.json")
    assert told["column_names"] == list(NAMES)
    assert told["log"] == [False, False, True, False]
    planned = ask(
        capsys,
        f"plan --reference-rows {N} --queries few.parquet --preprocess units.json {BY_COLUMN} {BUDGET}",
    )
    assert (planned["verdict"], planned["model"]) == ("helps", "mixture")
    assert planned["mixture"]["components"] > 2
    before = Ledger("budget.db").remaining("clinic")
    command = f"{FIT} --preprocess units.json --queries few.parquet {BY_COLUMN} {PAID}"
    told = ask(capsys, f"{command} -o new.dpmd --report new.html")
    assert (told["model"], told["mixture"], told["components"]) == ("mixture", "new.dpmd", 2)
    assert told["columns"] == list(NAMES)
    assert told["guarantee"]["holds"] == "unconditional"
    assert len(told["spends"]) == len(told["signal_to_noise"]) + 1 == 3
    (spend,) = Ledger("budget.db").history("clinic")
    assert told["ledger"]["remaining_mu2"] == pytest.approx(before - spend.mu2)
    assert spend.mu2 == pytest.approx(Budget(4.0, 1e-6).mu ** 2)
    assert spend.file == str(here / "new.dpmd")
    assert not said(N, json.dumps(told))

    clean = f"transform --model new.dpmd {BY_COLUMN} queries.parquet -o clean.parquet"
    told = ask(capsys, f"{clean} --deviations _sd --status-column status --report clean.html")
    made, raw, truth = (
        pd.read_parquet("clean.parquet"),
        pd.read_parquet("queries.parquet"),
        np.load("truth.npy"),
    )
    assert list(made) == [*raw, *(f"{name}_sd" for name in NAMES), "status"]
    assert made["visit"].tolist() == list(range(QUERIES))
    gaps = raw[list(NAMES)].isna()
    assert told["status"]["filled"] == gaps.any(axis=1).sum() == (made["status"] == "filled").sum()
    assert not made.isna().any(axis=None)
    for j, name in enumerate(NAMES):
        there, gone = ~gaps[name], gaps[name]
        start, end = raw[name] - truth[:, j], made[name] - truth[:, j]
        assert (end[there] ** 2).mean() < 0.8 * (start[there] ** 2).mean(), name
        if name != "crp":  # whose tail decides
            assert (end[gone] ** 2).mean() < 0.7 * truth[gone, j].var(), name
        assert 0.9 < (end.abs() < 2.0 * made[f"{name}_sd"]).mean() < 0.99, name
        assert made.loc[gone, f"{name}_sd"].median() > made.loc[there, f"{name}_sd"].median()
    for page in (Path("new.html").read_text(), Path("clean.html").read_text()):
        assert str(SECRET)[:7] not in page
        assert "person " not in page
        assert "What is known and what is guessed" in page


def test_people_read_it_too(here, capsys):
    out = run(capsys, f"{FIT} --preprocess scales.json {PAID} -o new.dpmd")
    assert re.search(r"^mixture +new\.dpmd$", out, re.M)
    assert re.search(r"^components +2 in 4 columns$", out, re.M)
    assert re.search(r"^mass over noise of a component +\d", out, re.M)
    assert "of the budget of 'clinic' is left" in out
    assert "Unconditional: for the mixture" in out
    out = run(capsys, "transform --model mixture.dpmd --noise 0.5 queries.parquet -o clean.parquet")
    assert re.search(r"^clean.parquet: [\d,]+ ok, ", out)
    assert "filled" in out


# --- fit


def same(first, second):
    for name in ("weights", "means", "covariances"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.preprocess == second.preprocess


def test_queries_give_the_units(here, capsys):
    told = ask(capsys, f"{SEEDED} -o new.dpmd")
    assert told["guarantee"]["holds"] == "not private"
    expected = release_mixture(
        pd.read_parquet("reference.parquet")[list(NAMES)],
        budget=Budget(4.0, 1e-6),
        components=2,
        rounds=2,
        public=pd.read_parquet("complete.parquet"),
        seed=3,
    )
    same(Mixture.load("new.dpmd"), expected)
    run(capsys, f"{SEEDED.replace('complete', 'pilot')} -o gaps.dpmd")  # medians of what is there
    made = Mixture.load("gaps.dpmd").preprocess
    assert made.center[0] == np.nanmedian(pd.read_parquet("pilot.parquet")["glucose"])


def test_the_reference_may_be_of_any_kind(here, capsys):
    run(capsys, f"{SEEDED} -o first.dpmd")
    for number, kind in enumerate(
        (
            "--reference part1.parquet --reference part2.parquet",
            "--reference reference.csv",
            "--reference reference.parquet --batch-rows 777 --threads 1",
        )
    ):
        run(capsys, f"{SEEDED.replace('--reference reference.parquet', kind)} -o same{number}.dpmd")
        same(Mixture.load(f"same{number}.dpmd"), Mixture.load("first.dpmd"))


def test_arrays_in_units_of_their_own(here, capsys):
    scales = Preprocessor.from_dict(json.loads(Path("scales.json").read_text()))
    np.save("units.npy", scales.forward_block(np.delete(np.load("reference.npy"), 7, axis=0)))
    command = f"fit --model mixture --reference units.npy --components 1 {BUDGET} --no-ledger -o new.dpmd"
    told = ask(capsys, command)
    assert (told["columns"], told["components"], told["n_columns"]) == (None, 1, 4)
    made = Mixture.load("new.dpmd")
    assert made.preprocess is None
    np.save("points.npy", scales.forward_block(np.load("queries.npy")))
    run(capsys, "transform --model new.dpmd --noise 0 points.npy -o clean.npy")
    before, after = np.load("points.npy"), np.load("clean.npy")
    there = ~np.isnan(before)
    np.testing.assert_array_equal(after[there], before[there])
    assert np.isfinite(after).all()


@pytest.mark.parametrize("what", ["drop", "fill"])
def test_records_with_missing_values(here, capsys, what):
    run(capsys, f"{SEEDED} --on-missing {what} -o new.dpmd")
    expected = release_mixture(
        pd.read_parquet("reference.parquet")[list(NAMES)],
        budget=Budget(4.0, 1e-6),
        components=2,
        rounds=2,
        public=pd.read_parquet("complete.parquet"),
        on_missing=what,
        seed=3,
    )
    same(Mixture.load("new.dpmd"), expected)


def test_components_are_chosen_by_themselves(here, capsys):
    command = FIT.replace("--components 2 --rounds 2", "--rounds 1")
    told = ask(capsys, f"{command} --preprocess scales.json --no-ledger -o new.dpmd --on-invalid drop")
    plan = (
        f"plan --model mixture --reference-rows {N} --queries pilot.parquet --noise 0.5 --rounds 1 {BUDGET}"
    )
    assert told["components"] == ask(capsys, plan)["mixture"]["components"] > 2
    assert told["ledger"] is None


def test_no_count_where_it_is_private(here, capsys):
    Ledger("budget.db").create("private", 9.0, 1e-6, "add-remove")
    command = f"{FIT} --preprocess scales.json --ledger budget.db --dataset private --adjacency add-remove"
    told = ask(capsys, f"{command} --n-public 3000 -o new.dpmd")
    assert not said(N, json.dumps(told))
    assert told["guarantee"]["adjacency"] == "add-remove"


def test_a_model_is_chosen_for_queries_only(here, capsys):
    assert main(f"fit --reference reference.parquet {BUDGET} --no-ledger -o new.dpmd".split()) == 2
    assert "Missing option '--queries'" in capsys.readouterr().err


# --- transform


def read(path):
    return np.load(path) if path.endswith(".npy") else pd.read_parquet(path)[list(NAMES)].to_numpy()


def test_noise_may_be_given_in_three_ways(here, capsys):
    command = "transform --model mixture.dpmd queries.npy -o"
    made = Mixture.load("mixture.dpmd")
    assert made.column_names == NAMES
    run(capsys, f"{command} one.npy --noise 0.5")
    np.testing.assert_array_equal(np.load("one.npy"), made.transform(np.load("queries.npy"), 0.5))
    run(capsys, f"{command} columns.npy {BY_COLUMN}")
    run(capsys, f"{command} file.npy --noise noise.json --threads 1")
    expected = made.transform(np.load("queries.npy"), NOISE)
    for name in ("columns.npy", "file.npy"):
        np.testing.assert_array_equal(np.load(name), expected)


def test_formats_and_missing_values(here, capsys):
    command = "transform --model mixture.dpmd --noise noise.json"
    run(capsys, f"{command} queries.parquet -o filled.parquet")
    assert np.isfinite(read("filled.parquet")).all()
    told = ask(capsys, f"{command} queries.csv -o kept.parquet --on-missing keep --status-column status")
    gaps = np.isnan(read("queries.parquet"))
    np.testing.assert_array_equal(np.isnan(read("kept.parquet")), gaps)
    np.testing.assert_array_equal(read("kept.parquet")[~gaps], read("filled.parquet")[~gaps])
    gone = int(gaps.any(axis=1).sum())
    assert told["status"] == {"ok": len(gaps) - gone, "missing": gone}
    assert (pd.read_parquet("kept.parquet")["status"] == "missing").sum() == gone
    run(capsys, f"{command} complete.parquet -o complete2.parquet --on-missing refuse")
    assert main(f"{command} queries.parquet -o new.parquet --on-missing refuse".split()) == 2
    assert "missing values in column 'glucose', " in capsys.readouterr().err


def test_names_with_signs_of_equality(here, capsys):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(3000, 2)), columns=["a=b", "c d"])
    frame.to_parquet("odd.parquet")
    run(
        capsys, f"fit --model mixture --reference odd.parquet --components 1 {BUDGET} --no-ledger -o odd.dpmd"
    )
    words = ["transform", "--model", "odd.dpmd", "odd.parquet", "-o", "out.parquet", "--noise"]
    assert main([*words, "a=b=0.5", "--noise", "c d=1e-1"]) == 0
    expected = Mixture.load("odd.dpmd").transform(frame, {"a=b": 0.5, "c d": 0.1})
    pd.testing.assert_frame_equal(pd.read_parquet("out.parquet"), expected)


# --- report


def test_report(here, capsys):
    told = ask(capsys, f"report --model mixture.dpmd --noise noise.json queries.parquet {PAID} -o r.html")
    page = Path("r.html").read_text()
    assert told["report"] == "r.html"
    for text in (told["guarantee"]["statement"], "What is known and what is guessed", "clinic", "glucose"):
        assert text in page
    run(capsys, "report --model mixture.dpmd -o alone.html")
    page = Path("alone.html").read_text()
    assert "A mixture of 2 components in 4 columns." in page
    assert "What is known and what is guessed" not in page


# --- plan


def test_plan(here, capsys):
    command = f"plan --model mixture --reference-rows {N} --queries pilot.parquet --noise 0.5 {BUDGET}"
    told = ask(capsys, command)
    expected = plan(pd.read_parquet("pilot.parquet"), N, budget=Budget(4.0, 1e-6), noise=0.5, model="mixture")
    assert told["atlas"] is expected.atlas is None
    for name in ("verdict", "model", "advice"):
        assert told[name] == getattr(expected, name)
    for name in ("raw_error", "predicted_error", "public_only_error", "mu2"):
        assert told[name] == pytest.approx(getattr(expected, name))
    for name in ("components", "rounds", "signal_to_noise", "component_signal", "enough_records"):
        assert told["mixture"][name] == pytest.approx(getattr(expected.mixture, name))
    assert told["mixture"]["verdict"] == expected.mixture.verdict.to_dict()
    assert [one["name"] for one in told["columns"]] == list(NAMES)
    out = run(capsys, command)
    assert told["advice"] in out
    assert re.search(rf"^components +{expected.components}$", out, re.M)
    assert re.search(rf"^predicted after the model +{expected.predicted_error:.3g} MADs", out, re.M)
    few = ask(capsys, command.replace(str(N), "20"))
    assert (few["verdict"], few["model"]) == ("not enough records", "nothing")
    assert "20 records are too few" in few["advice"]
    enough = ask(capsys, command.replace(str(N), str(few["mixture"]["enough_records"])))
    assert enough["verdict"] != "not enough records"
    fixed = ask(capsys, f"{command} --components 3 --rounds 2 --preprocess scales.json")
    assert (fixed["mixture"]["components"], fixed["mixture"]["rounds"]) == (3, 2)
    filled = command.replace("--noise 0.5", "--noise 0")  # only missing values are guessed
    assert ask(capsys, filled.replace("pilot", "wide").replace(str(N), "50000"))["verdict"] == "helps"
    nothing = ask(capsys, filled.replace("pilot", "complete"))
    assert (nothing["verdict"], nothing["raw_error"]) == ("no gain", 0.0)
    assert "neither noise nor missing values: there is nothing to clean" in nothing["advice"]
