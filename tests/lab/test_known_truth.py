"""The experiments with noise of known size, on small made-up files."""

from __future__ import annotations

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpmd_fast import Budget
from dpmd_fast.lab.experiments import known_truth_report, verdicts, verdicts_report
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.lab.experiments.known_truth import KNOWN_TRUTH
from dpmd_fast.lab.experiments.known_truth_data import Queries, Truth, add_noise, load_truth, names_of_sets
from dpmd_fast.lab.experiments.verdicts import VERDICTS
from tests.lab.test_real_experiments import write_cells, write_people


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known-truth")
    write_people(folder, people=1_600)
    write_cells(folder, cells=140)
    return folder


def test_noise_is_known_and_the_same_at_every_size():
    clean = np.random.default_rng(0).normal(size=(400, 5))
    truth = Truth("toy", clean, clean, 0.5, lambda points: math.nan)
    many, few = add_noise(truth, 2.0, 400, False, 3), add_noise(truth, 2.0, 30, False, 3)
    np.testing.assert_array_equal(many.noisy[:30], few.noisy)
    # 2,000 values: 0.1 is six standard errors of their deviation, 0.05 more than five of the share of holes
    assert (many.noisy - many.clean).std() == pytest.approx(1.0, rel=0.1)
    np.testing.assert_allclose(many.noise * many.scale, 1.0)
    holes = add_noise(truth, 2.0, 400, True, 3)
    assert 0.15 < holes.missing.mean() < 0.25
    assert not np.isnan(holes.raw).any()
    np.testing.assert_array_equal(holes.noisy[~holes.missing], many.noisy[~holes.missing])


def test_errors_are_in_units_of_the_columns():
    clean = np.zeros((4, 2))
    noisy = np.array([[1.0, 10.0], [-1.0, -10.0], [1.0, 10.0], [-1.0, -10.0]])
    queries = Queries(clean, noisy, 1.0)
    np.testing.assert_allclose(queries.scale, [1.0, 10.0])
    assert queries.squares(noisy) == pytest.approx(1.0)
    assert queries.squares(noisy, noisy > 5.0) == pytest.approx(1.0)


def test_queries_are_not_references(data):
    profile = Profile(True, 1, data)
    assert names_of_sets(profile) == ["nhanes", "toy"]
    truth = load_truth(profile, "toy", 0)
    assert len(truth.clean) == 35
    assert len(truth.references) == 105
    assert truth.sizes(profile) == [30, 35]
    assert truth.smallest == pytest.approx(truth.clean.std(axis=0).min())


@pytest.mark.slow
def test_all_methods_in_their_quick_form(data, tmp_path):
    paths = KNOWN_TRUTH.run(tmp_path / "out", quick=True, data=data)
    names = {path.rsplit("/", 1)[-1] for path in paths}
    assert names == {"results.parquet", "verdicts.parquet", "table.md", "markers.png", "sets.png"}
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert {row["method"] for row in rows} == set(known_truth_report.LOOKS)
    assert all(row["error"] == pytest.approx(1.0) for row in rows if row["method"] == known_truth_report.RAW)
    found = {
        row["method"]: row["error"]
        for row in rows
        if (row["set"], row["queries"], row["missing"], row["noise"]) == ("nhanes", 100, 0.0, 1.0)
    }
    # made-up people have three factors in 20 columns: what knows that removes most of the noise
    assert found[known_truth_report.NOT_PRIVATE] < 0.5
    assert found[known_truth_report.ALONE] < 0.8
    assert found[known_truth_report.IMPUTER] is None
    filled = [
        row["fill"] for row in rows if row["missing"] and row["method"] == known_truth_report.NOT_PRIVATE
    ]
    assert all(one > 0.0 for one in filled)
    judged = pq.read_table(tmp_path / "out" / "verdicts.parquet").to_pylist()
    assert {row["delta"] for row in judged} == {0.1, 1e-6}


@pytest.mark.slow
def test_verdicts_in_their_quick_form(data, tmp_path):
    paths = VERDICTS.run(tmp_path / "out", quick=True, data=data)
    assert {path.rsplit("/", 1)[-1] for path in paths} == {"results.parquet", "table.md", "predicted.png"}
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    circles = [row for row in rows if row["name"] == "circle"]
    assert all(row["verdict"] == "helps" and verdicts_report.within(row) for row in circles)
    for row in rows:
        refused = row["verdict"] != "helps"
        assert (row["auto"] == row["raw"]) if refused else (row["auto"] == row["actual"])
    text = (tmp_path / "out" / "table.md").read_text("utf-8")
    assert "| all |" in text


def test_a_full_run_has_more_than_thirty_cases(data):
    profile = Profile(False, 1, data)
    found = verdicts.items(profile)
    assert len({tuple(item.items()) for item in found}) == len(found)
    assert sum(item["kind"] == "shape" for item in found) == 80
    runs = [item for item in found if item["kind"] == "real" and item["seed"] == 9]
    assert [item["name"] for item in runs] == ["nhanes", "toy"] * 2
    assert [item["size"] for item in runs] == [0, 0, verdicts.FEW, verdicts.FEW]


def test_rare_groups_far_away_are_not_predicted_to_gain():
    """Three rare groups, far from all others, get no component of a small release."""
    rng = np.random.default_rng(0)

    def draw(count):
        centres = np.zeros((4, 6))
        centres[1, 0], centres[2, 1], centres[3, 2] = 25.0, 25.0, 25.0
        groups = rng.choice(4, size=count, p=[0.85, 0.05, 0.05, 0.05])
        return centres[groups] + rng.normal(size=(count, 6))

    clean, records = draw(600), draw(4_000)
    queries = Queries(clean, clean + rng.normal(size=clean.shape), 1.0)
    row = verdicts.judge(queries, records, Budget(1.0, 1e-6), forced=True)
    assert row["verdict"] != "helps" or row["actual"] < 1.02 * row["raw"]
    if row["verdict"] == "helps":
        assert row["predicted"] > row["actual"] / 1.5
