"""The experiments on real data, on small made-up files of the same format."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize

from dpmd_fast import ManifoldDenoiser
from dpmd_fast.cli import main
from dpmd_fast.lab.experiments import biomarkers, methods, mixture_methods, real_data, single_cell
from dpmd_fast.lab.experiments.biomarkers import BIOMARKERS, MARKERS
from dpmd_fast.lab.experiments.cox import _Likelihood, fit_cox
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.lab.experiments.mixture_nhanes import MIXTURE_NHANES
from dpmd_fast.lab.experiments.single_cell import SINGLE_CELL
from dpmd_fast.metrics import concordance_index
from dpmd_fast.privacy.sensitivity import mean_bound


def write_cells(folder, name="toy", cells=100, genes=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=cells).astype(np.int16)
    rates = np.exp(rng.normal(1.0, 1.0, size=(3, genes)))
    X = rng.poisson(rates[labels] * rng.uniform(0.5, 2.0, size=(cells, 1))).astype(np.uint16)
    np.savez(folder / f"{name}.npz", X=X, labels=labels)


def write_people(folder, people=1_200, seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(people, 3))
    markers = np.exp(0.3 * factor @ rng.normal(size=(3, len(MARKERS))) + 0.2 * rng.normal(size=(people, 20)))
    age = rng.uniform(20.0, 80.0, size=people)
    months = np.ceil(rng.exponential(size=people) * 200.0 * np.exp(-factor[:, 0] - 0.03 * (age - 50.0)))
    event = (months < 150.0).astype(float)
    cause = np.where(event == 1.0, rng.integers(1, 11, size=people), np.nan)
    table = {name: markers[:, j] for j, name in enumerate(MARKERS)}
    table |= {"age": age, "gender": rng.integers(1, 3, people), "ethnicity": rng.integers(1, 5, people)}
    table |= {"eligible": np.ones(people, bool), "time_all": np.minimum(months, 150.0), "event_all": event}
    pq.write_table(pa.table(table | {"cause": cause}), folder / biomarkers.FILE)


# Cox


def ref_log_likelihood(beta, X, time, event):
    """Efron's partial likelihood by its definition."""
    total = 0.0
    for t in np.unique(time[event]):
        died = np.flatnonzero((time == t) & event)
        risk = np.exp(X[time >= t] @ beta).sum()
        dead = np.exp(X[died] @ beta).sum()
        total += (X[died] @ beta).sum()
        total -= sum(np.log(risk - k / len(died) * dead) for k in range(len(died)))
    return total


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_cox_maximises_efrons_likelihood(ridge):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 3)) * [1.0, 3.0, 0.2] + 4.0
    time = np.ceil(rng.exponential(size=80) * np.exp(-X @ [0.5, -0.2, 1.0]) * 300.0)
    time = np.minimum(np.ceil(time / np.median(time) * 3.0), 8.0)  # many ties
    event = time < 8.0
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)

    def loss(b):
        return 0.5 * ridge * event.sum() * b @ b - ref_log_likelihood(b, scaled, time, event)

    ref = minimize(loss, np.zeros(3), tol=1e-10).x / X.std(axis=0)
    comp = fit_cox(X, time, event, ridge=ridge)
    np.testing.assert_allclose(comp.coefficients, ref, rtol=1e-4, atol=1e-5)
    assert comp.events == event.sum()


def test_cox_derivatives_are_those_of_the_likelihood():
    rng = np.random.default_rng(5)
    X, time, event = rng.normal(size=(40, 3)), rng.integers(1, 6, 40).astype(float), rng.random(40) < 0.6
    likelihood = _Likelihood(X, time, event, 0.0)
    beta = np.array([0.3, -0.7, 0.2])
    here = likelihood.at(beta)
    assert here.value == pytest.approx(ref_log_likelihood(beta, X, time, event))
    for j, step in enumerate(1e-5 * np.eye(3)):
        up, down = likelihood.at(beta + step), likelihood.at(beta - step)
        assert (up.value - down.value) / 2e-5 == pytest.approx(here.gradient[j], rel=1e-5)
        np.testing.assert_allclose((down.gradient - up.gradient) / 2e-5, here.information[j], rtol=1e-5)


def test_cox_ranks_by_the_true_risk():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(3_000, 2))
    time = rng.exponential(size=3_000) * np.exp(-X @ [1.0, -1.0])
    model = fit_cox(X, time, np.ones(3_000))
    np.testing.assert_allclose(model.coefficients, [1.0, -1.0], atol=0.1)
    assert concordance_index(time, np.ones(3_000), model.risk(X)) > 0.7


@pytest.mark.parametrize(
    ("time", "event", "told"),
    [
        ([1.0, 2.0], [1, 1, 1], "time"),
        ([1.0, 2.0, np.nan], [1, 1, 1], "time"),
        ([1.0, 2.0, 3.0], [0, 0, 0], "event"),
        ([1.0, 2.0, 3.0], [0, 2, 0], "event"),
    ],
)
def test_cox_refuses(time, event, told):
    with pytest.raises(ValueError, match=told):
        fit_cox([[0.0], [1.0], [2.0]], time, event)


# What both share


def test_local_geometry_of_a_line():
    rng = np.random.default_rng(0)
    points = np.zeros((400, 5))
    points[:, 0] = np.linspace(0.0, 399.0, 400)
    queries = points[50:350:10] + 1e-9 * rng.normal(size=(30, 5))
    h, d = real_data.local_geometry(queries, points)
    assert d == 1
    assert h == pytest.approx(1.5 * 7.0, rel=1e-6)  # the 15th nearest, the nearest being the point itself
    own_h, own_d = real_data.local_geometry(queries)
    assert own_d == 1
    assert own_h > 5.0 * h


def test_local_geometry_counts_dimensions():
    points = np.random.default_rng(0).normal(size=(2_000, 6)) * [1, 1, 1, 0.01, 0.01, 0.01]
    assert real_data.local_geometry(points[:100], points[100:]).dim in (2, 3)


def test_paper_route_is_nonprivate_md_plus_its_noise():
    rng = np.random.default_rng(0)
    Y, Z = 10.0 * rng.normal(size=(300, 4)), 10.0 * rng.normal(size=(40, 4))
    route = real_data.PaperRoute.fit(Y, Z)
    plain = route.nonprivate()
    model = ManifoldDenoiser(*route.geometry).fit(Y)
    np.testing.assert_array_equal(plain.points, model.transform(Z))
    with methods.expected_warnings():
        small = route.private(1.0, 0.1, "per-query")
        large = route.private(1.0, 0.1, "per-query", 1e6)
    assert large.noise == pytest.approx(1e6 * small.noise)
    assert np.abs(large.points - plain.points).max() > 100.0 * np.abs(small.points - plain.points).max()
    assert small.holds == "conditional"


def test_change_of_the_mean_is_that_of_a_replaced_record():
    rng = np.random.default_rng(3)
    Y, Z = rng.normal(size=(60, 3)), rng.normal(size=(1, 3)) * 0.1
    route = real_data.PaperRoute.fit(Y, Z)
    h, d = route.geometry

    def mean(points):
        w = np.maximum(1.0 - ((points - Z[0]) ** 2).sum(axis=1) / h**2, 0.0) ** 2
        return w @ points / w.sum()

    changes = []
    for i in range(len(Y)):
        other = Y.copy()
        other[i] = 1e6
        changes.append(np.linalg.norm(mean(other) - mean(Y)))
    assert route.change() == pytest.approx(max(changes))
    assert route.needed_constant() == pytest.approx(max(1.0, max(changes) / mean_bound(60, d, h, 1.0)))


# Single cells


def test_queries_and_references_are_apart():
    queries, references = single_cell.split(3_005, 4)
    assert len(queries) == 110  # ceil(2 sqrt n)
    assert len(references) == 2_895
    assert not set(queries) & set(references)
    assert len(single_cell.split(100_000, 0)[0]) == 500
    assert len(single_cell.split(100_000, 0)[1]) == 5_000
    assert not np.array_equal(queries, single_cell.split(3_005, 5)[0])


def test_counts_are_brought_to_one_library_size():
    X = np.array([[1.0, 3.0], [10.0, 30.0], [4.0, 0.0]])
    logs = single_cell.logarithms(X, "counts")
    np.testing.assert_allclose(logs[0], logs[1])
    np.testing.assert_allclose(logs[2], [np.log(5.0), 0.0])
    public = np.array([0, 2])
    before = single_cell.logarithms(X, "counts", public)
    np.testing.assert_allclose(before[0], np.log1p([1.0, 3.0]))
    X[1] = [1e6, 1e7]  # what is not public does not show in the others
    np.testing.assert_array_equal(single_cell.logarithms(X, "counts", public)[public], before[public])
    X[1] = [10.0, 30.0]
    np.testing.assert_allclose(single_cell.logarithms(np.log10(X + 1.0), "log10"), logs)
    np.testing.assert_array_equal(single_cell.logarithms(X, "log"), X)


def test_reduction_knows_the_queries_alone():
    rng = np.random.default_rng(0)
    queries, others = rng.normal(size=(30, 200)), rng.normal(size=(50, 200))
    view = single_cell.reduction(queries)
    assert view(others).shape == (50, 10)
    np.testing.assert_array_equal(view(others)[:20], view(others[:20]))
    spread = view(queries).std(axis=0)
    assert (np.diff(spread) <= 1e-9).all()  # principal components, the largest first


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_single_cell_runs_on_a_small_set(tmp_path):
    write_cells(tmp_path)
    write_cells(tmp_path, "goolam", seed=1)
    write_cells(tmp_path, "coil20", seed=2)  # images, not cells
    out = tmp_path / "out"
    paths = SINGLE_CELL.run(out, quick=True, seeds=1, data=tmp_path)
    assert {path.rsplit("/", 1)[-1] for path in paths} == {
        "results.parquet",
        "table.md",
        "single-cell.png",
        "cost.png",
    }
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["set"] for row in rows if row["method"] == "Original"] == ["goolam", "toy"]
    holds = {row["method"]: row["holds"] for row in rows}
    assert holds["paper's route, C = 1"] == "conditional"
    assert holds["atlas"] == holds["certified direct"] == "unconditional"
    assert all(row["queries"] == 20 and row["references"] == 80 for row in rows)
    assert all(-0.5 <= row["ari"] <= 1.0 and 0.0 <= row["acc"] <= 1.0 for row in rows)
    text = (out / "table.md").read_text("utf-8")
    assert "0.734 / 0.807 / 0.805" in text  # the paper's values stand beside those of its sets
    assert re.search(r"\| toy \| not in the paper \|", text)


def test_a_folder_without_cells_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no set of cells"):
        SINGLE_CELL.run(tmp_path / "out", quick=True, data=tmp_path)
    np.savez(tmp_path / "broken.npz", Y=np.ones(3))
    with pytest.raises(ValueError, match=r"broken\.npz: must be"):
        SINGLE_CELL.run(tmp_path / "out2", quick=True, data=tmp_path)


@pytest.mark.parametrize("name", ["single-cell", "biomarkers", "mixture-nhanes", "known-truth", "verdicts"])
def test_the_command_says_how_to_point_at_the_data(tmp_path, capsys, name):
    assert main(["experiment", name, "-o", str(tmp_path / "out")]) == 2
    assert "--data" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["experiment", name, "--data", str(empty), "-o", str(tmp_path / "o2")]) == 2
    told = capsys.readouterr().err
    assert "docs/paper/real-data.md" in told
    assert len(told.splitlines()) == 1


# Biomarkers


def test_people_without_follow_up_or_a_marker_are_left_out(tmp_path):
    write_people(tmp_path, people=50)
    table = pq.read_table(tmp_path / biomarkers.FILE).to_pydict()
    table["eligible"][0] = False
    table["albumin"][1] = float("nan")
    table["ttbl"][2] = 0.0
    table["age"][3] = None
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table(table), path)
    people = biomarkers.load(path)
    assert len(people.months) == 46
    assert people.covariates.shape == (46, 5)  # age, sex, three of four groups
    dead = np.array(table["event_all"][4:]) == 1.0
    np.testing.assert_array_equal(people.cause > 0, dead)


def test_local_metrics_of_unmoved_queries():
    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(20, 3)), rng.normal(size=(200, 3))
    found = biomarkers.local_metrics(Z, Y, {"Raw": Z, "far": Z + 100.0})
    np.testing.assert_array_equal(found["Raw"]["jaccard"], 1.0)
    np.testing.assert_array_equal(found["Raw"]["displacement"], 0.0)
    assert found["far"]["distortion"].min() > 10.0
    assert found["far"]["knn_distance"].min() > 100.0


@pytest.fixture(scope="module")
def people_run(tmp_path_factory):
    """A folder with made-up people, and with the results of a run on them."""
    folder = tmp_path_factory.mktemp("people")
    write_people(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = BIOMARKERS.run(folder / "out", quick=True, data=folder)
    return folder, [path.rsplit("/", 1)[-1] for path in paths]


def test_biomarkers_run_on_made_up_people(people_run):
    folder, names = people_run
    figures = {"displacement.png", "geometry.png", "endpoints.png"}
    assert set(names) == figures | {"results.parquet", "risk.parquet", "points.parquet", "table.md"}
    risk = pq.read_table(folder / "out" / "risk.parquet").to_pylist()
    raw = [row for row in risk if row["method"] == "Raw" and row["endpoint"] == "any cause"]
    assert len(raw) == 2
    assert all(row["c"] > 0.6 and row["change"] == 0.0 for row in raw)
    assert all(row["c_low"] <= row["c"] <= row["c_high"] for row in raw)
    assert {row["endpoint"] for row in risk} == set(biomarkers.ENDPOINTS)
    results = pq.read_table(folder / "out" / "results.parquet").to_pylist()
    holds = {row["method"]: row["holds"] for row in results}
    assert holds["atlas, delta = 1e-06"] == "unconditional"
    assert holds["Nonprivate-MD"] == "not private"
    assert next(row["jaccard"] for row in results if row["method"] == "Raw") == 1.0


@pytest.mark.slow
def test_a_run_that_is_there_is_not_measured_again(people_run, monkeypatch):
    folder, names = people_run
    monkeypatch.setattr(biomarkers, "load", None)
    again = BIOMARKERS.run(folder / "out", quick=True, data=folder)
    assert [path.rsplit("/", 1)[-1] for path in again] == names


def test_a_profile_without_data_is_refused():
    with pytest.raises(ValueError, match="data = None"):
        real_data.data_file(Profile(True, 1), "x.parquet")


# The released mixture


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_mixture_runs_on_made_up_people(tmp_path):
    write_people(tmp_path, people=1_600)
    paths = MIXTURE_NHANES.run(tmp_path / "out", quick=True, seeds=1, data=tmp_path)
    tables = {"results.parquet", "fill.parquet", "coverage.parquet", "few.parquet", "table.md"}
    assert {path.rsplit("/", 1)[-1] for path in paths} == tables | {"nhanes.png"}
    results = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    error = {(row["method"], row["noise"]): row["error"] for row in results}
    assert error[mixture_methods.RAW, 1.0] == 1.0
    assert error[mixture_methods.MIXTURE, 1.0] is None  # 1,300 records are too few at delta = 1e-6
    assert error[mixture_methods.MIXTURE_PAPER, 1.0] < 0.8
    # these people are one group with three factors: both are near the best there is, and differ by .4 %
    assert error[mixture_methods.NOT_PRIVATE, 1.0] < 1.02 * error[mixture_methods.MIXTURE_PAPER, 1.0]
    assert all(0.6 < row["c"] < 0.9 for row in results if row["c"] is not None)
    fill = {r["method"]: r["error"] for r in pq.read_table(tmp_path / "out" / "fill.parquet").to_pylist()}
    assert fill[mixture_methods.MIXTURE_PAPER] < 0.8
    bars = pq.read_table(tmp_path / "out" / "coverage.parquet").to_pylist()
    assert all(0.9 < r["coverage"] < 0.99 for r in bars if r["method"] == mixture_methods.NOT_PRIVATE)
    text = (tmp_path / "out" / "table.md").read_text("utf-8")
    assert "| mixture, delta = 1e-6 | refused | refused | refused |" in text
