"""What epsilon costs with a mixture: the experiment in its quick form, with and without people."""

from __future__ import annotations

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpmd_fast.lab.experiments import epsilon_costs, epsilon_costs_report
from dpmd_fast.lab.experiments.epsilon_costs import EPSILON_COSTS, QUERIES
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.lab.experiments.known_truth_data import Truth
from dpmd_fast.models.preprocessor import units_of
from tests.lab.test_real_experiments import write_people


def test_groups_are_different_queries_of_one_noise():
    clean = np.random.default_rng(0).normal(size=(3 * QUERIES, 5))
    groups = epsilon_costs._groups(Truth("toy", clean, clean, 0.5, lambda points: math.nan), 2.0, 3, seed=1)
    np.testing.assert_array_equal(np.vstack([group.clean for group in groups]), clean)
    errors = np.vstack([group.noisy for group in groups]) - clean
    assert np.nanstd(errors) == pytest.approx(1.0, rel=0.1)
    assert 0.1 < np.isnan(errors).mean() < 0.3


def test_raw_queries_have_an_error_of_one():
    clean = np.random.default_rng(0).normal(size=(2 * QUERIES, 5)) * [1.0, 2.0, 3.0, 4.0, 5.0]
    units = units_of(clean, None, "queries")
    groups = epsilon_costs._groups(Truth("toy", clean, clean, 0.5, lambda points: math.nan), 1.0, 2, seed=1)
    raw = [np.where(group.missing, np.array(units.center), group.noisy) for group in groups]
    assert epsilon_costs._error(groups, raw, units) == pytest.approx(1.0)
    half = [(found + group.clean) / 2.0 for found, group in zip(raw, groups, strict=True)]
    assert epsilon_costs._error(groups, half, units) == pytest.approx(0.25)


def test_people_are_there_if_their_folder_is(tmp_path):
    sets = {row["set"] for row in epsilon_costs.items(Profile(True, 1))}
    assert sets == {"simulated"}
    assert {row["set"] for row in epsilon_costs.items(Profile(True, 1, tmp_path))} == {"simulated", "nhanes"}


@pytest.mark.slow
def test_the_quick_form_with_people(tmp_path):
    write_people(tmp_path, people=5_600)
    paths = EPSILON_COSTS.run(tmp_path / "out", quick=True, data=tmp_path)
    names = {path.rsplit("/", 1)[-1] for path in paths}
    assert names == {"results.parquet", "without.parquet", "verdicts.parquet", "table.md", "epsilon.png"}
    rows, verdicts, without = (
        pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist()
        for name in ("results", "verdicts", "without")
    )
    text = (tmp_path / "out" / "table.md").read_text("utf-8")
    for name in ("simulated", "nhanes"):
        assert epsilon_costs_report.TITLES[name] in text
        found = {(row["records"], row["epsilon"]): row["error"] for row in rows if row["set"] == name}
        assert len(found) == 4
        words = {
            key: epsilon_costs_report.verdict_of(
                [v for v in verdicts if (v["set"], v["records"], v["epsilon"]) == (name, *key)]
            )
            for key in found
        }
        best, worst = (4_000, 3.0), (500, 0.3)
        # many records and a large epsilon help; few and a small one are refused, and are worse
        assert words[best] == "helps"
        assert words[worst] == "not enough records"
        assert found[best] < 0.6 < found[worst]
        alone = {row["error"] for row in without if row["set"] == name and row["method"] == "queries alone"}
        assert len(alone) == 1
        assert found[best] < alone.pop() <= 1.0
