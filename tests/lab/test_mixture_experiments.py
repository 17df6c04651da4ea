"""The experiment on factor models, and how the experiments on released mixtures score."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpmd_fast.errors import UserError
from dpmd_fast.lab.experiments import mixture_factors, mixture_methods
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.lab.experiments.mixture_factors import MIXTURE_FACTORS


@pytest.mark.filterwarnings("error")
def test_factor_models_in_their_quick_form(tmp_path):
    paths = MIXTURE_FACTORS.run(tmp_path / "out", quick=True)
    assert [path.rsplit("/", 1)[-1] for path in paths] == ["results.parquet", "table.md", "errors.png"]
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    for case in mixture_factors.QUICK:
        error = {row["method"]: row["error"] for row in rows if row["case"] == case.name}
        assert set(error) == set(mixture_factors.COLUMNS)
        exact, ours = error[mixture_methods.EXACT], error[mixture_methods.MIXTURE]
        assert 0.95 * exact < ours < 1.3 * exact
        assert ours < 0.8
    covered = [row["coverage"] for row in rows if row["method"] == mixture_methods.MIXTURE]
    assert all(0.9 < one < 0.98 for one in covered)
    assert "excess" in (tmp_path / "out" / "table.md").read_text("utf-8")


def test_cases_of_a_full_run():
    cases = mixture_factors.cases(Profile(False, 5))
    assert len({case.name for case in cases}) == len(cases)
    assert {min(c.columns for c in cases), max(c.columns for c in cases)} == {5, 100}
    assert {min(c.records for c in cases), max(c.records for c in cases)} == {5_000, 200_000}
    assert len(mixture_factors.items(Profile(False, 5))) == 5 * len(cases)


def test_scores():
    clean, found = np.zeros((2, 2)), np.array([[1.0, 3.0], [0.0, 0.0]])
    where = np.array([[True, False], [True, False]])
    assert mixture_methods.squared_error(found, clean) == 2.5
    assert mixture_methods.squared_error(found, clean, where) == 0.5
    assert mixture_methods.coverage(found, np.ones((2, 2)), clean) == 0.75
    assert mixture_methods.coverage(found, np.ones((2, 2)), clean, where) == 1.0
    missing = mixture_methods.missing_values((50_000, 2), 0)
    assert 0.17 < missing.mean() < 0.21
    assert not missing.all(axis=1).any()


def test_cells_of_a_table():
    rows = [{"m": "a", "x": 1.0}, {"m": "a", "x": 2.0}, {"m": "b", "x": None}]
    assert mixture_methods.cell(rows, "x", m="a") == "1.500"
    assert mixture_methods.cell(rows, "x", spread=True, form=".1f", m="a") == "1.5 ± 6.4"
    assert mixture_methods.cell(rows, "x", m="b") == "refused"
    assert mixture_methods.cell(rows, "x", m="c") == ""


def test_a_refusal_before_the_spend_is_a_result_and_other_errors_are_not():
    records = np.random.default_rng(0).normal(size=(50, 3))
    assert mixture_methods.released(records, 1e-6) is None
    with pytest.raises(UserError, match="components"):
        mixture_methods.released(records, 1e-6, components=-1)
