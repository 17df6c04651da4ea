"""`DPManifoldDenoiser(mechanism="moments")`: plain loops, accuracy, spending, status, kinds of references."""

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import naive
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpmd_fast import (
    Budget,
    BudgetExceeded,
    DPManifoldDenoiser,
    LargeDeltaWarning,
    ManifoldDenoiser,
    paper_bandwidth,
    release_moments,
)
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.lab.datasets import distance_to_manifold, make_shape, simulate
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.models.predict_direct import predict_direct
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.privacy.noise import noisy_sums

BUDGET = Budget(epsilon=1.0, delta=1e-4)
WIDE = Budget(epsilon=20.0, delta=1e-4)


def curved(n, D, d, seed, m=8):
    """Points near a d-sphere in R^D, and queries a little farther from it."""
    rng = np.random.default_rng(seed)
    on = rng.normal(size=(n + m, d + 1))
    on /= np.linalg.norm(on, axis=1, keepdims=True)
    frame = np.linalg.qr(rng.normal(size=(D, d + 1)))[0]
    points = on @ frame.T + 0.03 * rng.normal(size=(n + m, D))
    return points[:n], points[n:] + 0.05 * rng.normal(size=(m, D))


def plain_loop(Y, Z, h, dim, mus, seed, beta=2.0, adjacency="replace-one"):
    """The same sums and the same noise; read-out and moves in plain loops."""
    source = open_source(seed)
    moved = np.array(Z, dtype=float)
    status = ["ok"] * len(Z)
    for step, mu in enumerate(mus):
        alive = [q for q in range(len(Z)) if status[q] == "ok"]
        if not alive:
            break
        X = moved[alive]
        index = build_index(X, h)
        tau = natural_tau(index, beta)
        lattice = choose_lattice(mu, tau, adjacency)
        sums = MomentSums(index, beta, tau, lattice.steps, HOMOGENEOUS)
        sums.add(Y)
        values = noisy_sums(sums.total(), lattice, source)
        occupied = [value[-1, -1] >= 3.0 * lattice.noise_scale for value in values]
        values = naive.clean_moments(values, dim, lattice.noise_scale, occupied)
        for i, q in enumerate(alive):
            if not occupied[i]:
                status[q] = "no_neighbor" if step == 0 else "failed"
                continue
            _, mean, covariance = naive.read_out(values[i], X[i], h, HOMOGENEOUS)
            P = naive.top_projector(covariance, dim)[0]
            moved[q] = X[i] - naive.normal_part(P, X[i] - mean)
    for q in range(len(Z)):
        if status[q] != "ok":
            moved[q] = Z[q]
    return moved, status


@pytest.mark.parametrize(("D", "d", "h", "beta"), [(2, 1, 0.6, 2.0), (3, 2, 0.9, 3.5), (9, 2, 1.1, 2.0)])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_plain_loop_with_the_same_noise(D, d, h, beta, adjacency):
    Y, Z = curved(2000, D, d, seed=D)
    Z[3] += 20.0
    shares = np.array([0.5, 0.2, 0.3])
    for steps, schedule in ((1, None), (2, None), (3, WIDE.rho * shares)):
        weights = shares if schedule is not None else np.full(steps, 1.0 / steps)
        model = DPManifoldDenoiser(
            h, d, WIDE, steps=steps, beta=beta, schedule=schedule, adjacency=adjacency, seed=steps
        )
        comp = model.fit(Y).transform(Z)
        ref, ref_status = plain_loop(Y, Z, h, d, np.sqrt(weights) * WIDE.mu, steps, beta, adjacency)
        assert list(model.status_) == ref_status
        assert ref_status == ["ok"] * 3 + ["no_neighbor"] + ["ok"] * 4
        np.testing.assert_allclose(comp, ref, rtol=0, atol=1e-9)
        assert np.array_equal(comp[3], Z[3])
        assert model.guarantee_.mu == pytest.approx(WIDE.mu, rel=1e-9)


# Accuracy: m = 1000 queries, one step; mean distance to the manifold at (1, 0.1)

FIGURES = {
    "circle": ({}, 20_000, 0.1, paper_bandwidth(20_000, 1, 0.1), 0.0270),
    "torus": ({}, 30_000, 0.05, 0.45, 0.0192),
    "sphere": ({"ambient": 20}, 30_000, 0.05, 0.45, 0.0287),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "torus")) for name in FIGURES]
)
def test_figures(name):
    options, n, sigma, h, figure = FIGURES[name]
    shape = make_shape(name, **options)
    errors = []
    for seed in range(5):
        data = simulate(shape, n, 1000, sigma, np.random.default_rng(seed))
        models = [ManifoldDenoiser(h, shape.dim)]
        # the second is the read-out without noise to speak of
        budgets = Budget(1.0, 0.1), Budget(200.0, 1e-2), Budget(1e6, 1e-2)
        models += [DPManifoldDenoiser(h, shape.dim, budget, seed=1000 + seed) for budget in budgets]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LargeDeltaWarning)
            results = [model.fit(data.references).transform(data.queries) for model in models]
        assert all((model.status_ == "ok").mean() > 0.98 for model in models)
        errors.append([distance_to_manifold(points, shape).mean() for points in results])
    nonprivate, private, quiet, quieter = np.mean(errors, axis=0)
    spread = np.std(errors, axis=0, ddof=1)[1]
    print(name, np.mean(errors, axis=0).round(4), np.std(errors, axis=0, ddof=1).round(4))
    assert private <= figure + 2.0 * spread / np.sqrt(5)
    # the read-out itself loses nothing: one projector of moments for the average of projectors
    assert quiet == pytest.approx(nonprivate, rel=0.015)
    assert quieter == pytest.approx(nonprivate, rel=0.015)
    assert private > 0.99 * nonprivate


# Spending


def test_one_transform_for_one_fit_and_no_spend_on_what_is_refused():
    Y, Z = curved(300, 3, 2, seed=1)
    model = DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y)
    for queries, pattern in (
        (np.full((2, 3), np.nan), "NaN"),
        (Z[:, :2], "features"),
        (Y[:5], "public"),
        (Z[0], "dimension"),
    ):
        with pytest.raises(ValueError, match=pattern):
            model.transform(queries)
    for changes in (
        {"budget": Budget(1e15, 1e-4)},
        {"schedule": [0.1, 0.2]},
        {"mechanism": "projector"},
        {"n_threads": 0},
    ):
        kept = {name: getattr(model, name) for name in changes}
        with pytest.raises(ValueError, match=r"budget|schedule|mechanism|n_threads"):
            model.set_params(**changes).transform(Z)
        model.set_params(**kept)
    assert not hasattr(model, "guarantee_")
    model.transform(Z)
    with pytest.raises(BudgetExceeded) as refused:
        model.transform(Z)
    assert refused.value.asked == pytest.approx(BUDGET.mu**2)
    assert refused.value.remaining == 0.0
    model.fit(Y).transform(Z)


def test_a_file_that_has_gone_costs_nothing(tmp_path):
    Y, Z = curved(300, 3, 2, seed=1)
    path, away = tmp_path / "reference.parquet", tmp_path / "away.parquet"
    pq.write_table(pa.table(dict(zip("abc", Y.T, strict=True))), path)
    model = DPManifoldDenoiser(0.8, 2, BUDGET).fit(path)
    path.rename(away)
    with pytest.raises(FileNotFoundError):
        model.transform(Z)
    away.rename(path)
    model.transform(Z)


def test_part_of_a_table_of_mixed_types_is_no_query():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=50), "b": rng.integers(0, 3, 50), "c": rng.normal(size=50)})
    model = DPManifoldDenoiser(2.0, 1, BUDGET).fit(frame)
    with pytest.raises(ValueError, match="part of the reference"):
        model.transform(frame.iloc[:10])


def test_empty_space_is_not_called_occupied_in_many_dimensions():
    rng = np.random.default_rng(0)
    D = 100
    Y = rng.normal(size=(3000, D)) * np.r_[1.0, 1.0, np.full(D - 2, 0.05)]
    near = Y[:10] + 0.01
    empty = near + 100.0 * np.r_[0.0, 0.0, np.ones(D - 2)]
    model = DPManifoldDenoiser(2.0, 2, Budget(2.0, 1e-3), seed=1).fit(Y)
    moved = model.transform(np.concatenate([near, empty]))
    # noise is beyond three deviations with probability 0.0014: four of ten, with 1e-9
    away = model.status_[10:] == "no_neighbor"
    assert away.sum() >= 7
    np.testing.assert_array_equal(moved[10:][away], empty[away])


def test_all_queries_in_empty_space_draw_a_warning():
    # noise alone lifts one place over three deviations with probability .0014, three of them with 3e-9
    Y, Z = curved(300, 3, 2, seed=1)
    models = [DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y) for _ in range(3)]
    with pytest.warns(UserWarning, match="no query"):
        _ = [model.transform(Z[:1] + 100.0) for model in models]


def test_threads_cannot_spend_one_budget_together():
    Y, Z = curved(300, 3, 2, seed=1)
    for _ in range(5):
        model = DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y)

        def spend(_, model=model):
            try:
                return model.transform(Z) is not None
            except BudgetExceeded:
                return False

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(spend, range(4))) == 1


def test_a_fork_does_not_spend_again(monkeypatch):
    Y, Z = curved(300, 3, 2, seed=1)
    model = DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y)
    with monkeypatch.context() as patched:
        patched.setattr(model._single_spend, "_pid", -1)
        with pytest.raises(RuntimeError, match="fork"):
            model.transform(Z)
    model.transform(Z)


def test_the_reference_is_not_a_query_and_does_not_travel():
    Y, Z = curved(300, 3, 2, seed=1)
    model = DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y)
    for queries in (Y, Y[:5], Y[::2]):
        with pytest.raises(ValueError, match="public"):
            model.transform(queries)
    with pytest.raises(TypeError, match="fit_transform"):
        model.fit_transform(Y)
    for take in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="private reference"):
            take(model)
    assert not hasattr(clone(model), "_fitted")
    pickle.loads(pickle.dumps(clone(model)))
    frame = pd.DataFrame(Y, columns=["a", "b", "c"])
    model.fit(frame)
    for queries in (frame, frame.iloc[:5]):
        with pytest.raises(ValueError, match="public"):
            model.transform(queries)
    table = pa.table(frame)
    model.fit(table)
    with pytest.raises(ValueError, match="public"):
        model.transform(table)
    model.fit(Y).transform(Z)


def test_steps_spend_the_schedule():
    Y, Z = curved(2000, 3, 2, seed=1)
    even = DPManifoldDenoiser(0.8, 2, WIDE, steps=2, seed=4).fit(Y)
    ref = even.transform(Z)
    assert even.guarantee_.mu == pytest.approx(WIDE.mu, rel=1e-9)
    assert even.guarantee_.mu <= WIDE.mu * (1 + 1e-9)
    halves = [WIDE.rho / 2, WIDE.rho / 2]
    comp = DPManifoldDenoiser(0.8, 2, WIDE, steps=2, schedule=halves, seed=4).fit(Y).transform(Z)
    np.testing.assert_array_equal(comp, ref)
    one = DPManifoldDenoiser(0.8, 2, WIDE, seed=4).fit(Y)
    ref = one.transform(Z)
    assert one.guarantee_.mu == pytest.approx(even.guarantee_.mu)
    for schedule in ([WIDE.rho, 0.0], [0.0, WIDE.rho]):  # where there is no share, nothing is released
        model = DPManifoldDenoiser(0.8, 2, WIDE, steps=2, schedule=schedule, seed=4).fit(Y)
        np.testing.assert_array_equal(model.transform(Z), ref)
    for schedule in ([WIDE.rho], [WIDE.rho, WIDE.rho], [2 * WIDE.rho, -WIDE.rho], "per-query"):
        with pytest.raises(ValueError, match="schedule"):
            DPManifoldDenoiser(0.8, 2, WIDE, steps=2, schedule=schedule).fit(Y)


def test_a_large_budget_moves_closer_than_a_small_one():
    Y, Z = curved(3000, 3, 2, seed=1, m=200)
    quiet = DPManifoldDenoiser(0.5, 2, Budget(1e4, 1e-4), seed=1).fit(Y).transform(Z)
    distances = []
    for epsilon in (0.5, 2.0, 8.0, 32.0):
        model = DPManifoldDenoiser(0.5, 2, Budget(epsilon, 1e-4), accept_risk=True, seed=1).fit(Y)
        moved = model.transform(Z)
        ok = model.status_ == "ok"
        distances.append(np.linalg.norm(moved - quiet, axis=1)[ok].mean())
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.2 * distances[0]


# Whether it is worth a spend


def test_a_spend_that_would_return_noise_is_refused(ledger):
    Y, Z = curved(3000, 3, 2, seed=1, m=200)
    book = {"ledger": ledger, "dataset": "people"}
    small = Budget(0.05, 1e-6)
    for options, words in (
        ({}, "not enough records: 3,000 records are too few .* 0% of the queries would stand out"),
        ({"mechanism": "projector"}, "harm likely: At epsilon = 0.05, .* the noise throws the median query"),
    ):
        model = DPManifoldDenoiser(0.5, 2, small, **options, **book).fit(Y)
        with pytest.raises(ValueError, match=words + ".* Nothing was spent; accept_risk=True spends all"):
            model.transform(Z)
        assert ledger.history("people") == ()
    with pytest.raises(ValueError, match=r"even if all of them were at one location, .* about "):
        release_moments(Y[:20], Z, bandwidth=0.5, budget=small, **book)
    assert ledger.history("people") == ()
    model = DPManifoldDenoiser(0.5, 2, small, accept_risk=True, **book).fit(Y)
    with warnings.catch_warnings():  # that no query stands out, if the noise of none does by chance
        warnings.simplefilter("ignore", UserWarning)
        model.transform(Z)
    (noted,) = (one for one in model.guarantee_.conditions if "risk" in one)
    assert "'not enough records'" in noted
    assert len(ledger.history("people")) == 1


def test_few_queries_are_judged_by_what_holds_for_any_records():
    """Five queries say nothing of where the records are, and with "add-remove" not even their number."""
    Y, Z = curved(3000, 3, 2, seed=1, m=5)
    far = Z + 100.0 * np.arange(5)[:, None]
    for options in ({}, {"adjacency": "add-remove"}):
        model = DPManifoldDenoiser(0.5, 2, Budget(1.0, 1e-6), **options).fit(Y)
        assert model.transform(far).shape == far.shape  # it is not refused


def test_sparse_queries_with_many_records_are_not_refused():
    """Balls without another query may well hold records: a million of them around 25 queries."""
    t = np.linspace(0.0, 2.0 * np.pi, 25, endpoint=False)
    queries = np.column_stack([np.cos(t), np.sin(t)])
    lattice = choose_lattice(Budget(1.0, 1e-6).mu, 1.0, "replace-one")
    found = predict_direct(queries, 1_000_000, 0.05, lattice.noise_scale, Budget(1.0, 1e-6), None)
    assert found.word == "helps"
    few = predict_direct(queries, 300, 0.05, lattice.noise_scale, Budget(1.0, 1e-6), None)
    assert few.word == "not enough records"


# Status


def test_queries_without_neighbours_come_back_unchanged():
    Y, Z = curved(3000, 3, 2, seed=1)
    Z[3] += 100.0
    for schedule, steps in ((None, 1), (None, 2), ([0.0, BUDGET.rho], 2)):
        model = DPManifoldDenoiser(0.8, 2, BUDGET, steps=steps, schedule=schedule, seed=1).fit(Y)
        moved = model.transform(Z)
        assert list(model.status_) == ["ok"] * 3 + ["no_neighbor"] + ["ok"] * 4
        assert np.array_equal(moved[3], Z[3])
        assert not (moved == Z)[model.status_ == "ok"].any()
    model = DPManifoldDenoiser(0.8, 2, BUDGET, steps=2, seed=1).fit(Y)
    assert np.array_equal(model.transform(Z + 1e3), Z + 1e3)
    assert (model.status_ == "no_neighbor").all()


def test_queries_that_lose_their_neighbours_fail_and_are_restored():
    Y, Z = curved(1500, 3, 2, seed=1, m=60)
    budget = Budget(5.0, 1e-4)
    schedule = budget.rho * np.array([0.8, 0.2])  # the second release sees less
    model = DPManifoldDenoiser(0.5, 2, budget, steps=2, schedule=schedule, seed=0).fit(Y)
    moved = model.transform(Z)
    assert set(model.status_) == {"ok", "no_neighbor", "failed"}
    assert np.array_equal(moved[model.status_ != "ok"], Z[model.status_ != "ok"])
    assert np.isfinite(moved).all()


def test_results_beyond_float32_fail_and_are_restored():
    largest = float(np.finfo(np.float32).max)
    along = np.random.default_rng(0).uniform(0.7, 1.0, 3000)
    Y = (largest * np.column_stack([along, along - 0.5])).astype(np.float32)
    Z = (largest * np.array([[0.99, 0.9], [0.85, 0.4]])).astype(np.float32)  # the first belongs to 1.2, 0.7
    model = DPManifoldDenoiser(largest, 1, WIDE, seed=0)
    moved = model.fit(Y).transform(Z)
    assert moved.dtype == np.float32
    assert list(model.status_) == ["failed", "ok"]
    assert np.array_equal(moved[0], Z[0])
    assert np.isfinite(moved[1]).all()


@pytest.mark.parametrize("kind", ["constant", "duplicates", "line", "far"])
def test_degenerate_references_do_not_crash(kind):
    rng = np.random.default_rng(0)
    Y = {
        "constant": np.ones((500, 3)),
        "duplicates": np.repeat(rng.normal(size=(10, 3)), 70, axis=0),
        "line": np.outer(np.linspace(0, 1, 600), [1.0, 2.0, 3.0]),
        "far": np.full((500, 3), 1e100),
    }[kind]
    Z = np.vstack([Y[:5] + 1e-3, np.zeros((3, 3))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="no query")  # read off the release
        model = DPManifoldDenoiser(0.5, 2, BUDGET, steps=2).fit(Y)
        assert np.isfinite(model.transform(Z)).all()


# What goes in


def test_threads_batches_and_kinds_of_references(tmp_path):
    Y, Z = curved(2001, 9, 2, seed=5, m=80)
    names = [f"x{j}" for j in range(9)]
    table = pa.table({name: Y[:, j] for j, name in enumerate(names)})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=333)
    parts = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    pq.write_table(table.slice(0, 700), parts[0])
    pq.write_table(table.slice(700), parts[1])
    ref = (
        DPManifoldDenoiser(1.0, 2, BUDGET, steps=2, seed=1, n_threads=1, accept_risk=True).fit(Y).transform(Z)
    )
    assert not np.array_equal(ref, Z)
    assert ref.dtype == np.float64
    references = [Y, Y[::-1], table, pd.DataFrame(Y, columns=names), tmp_path / "whole.parquet", parts]
    for reference in references:
        for options in ({"n_threads": 2}, {"batch_rows": 77}):
            model = DPManifoldDenoiser(1.0, 2, BUDGET, steps=2, seed=1, accept_risk=True, **options).fit(
                reference
            )
            assert model.n_features_in_ == 9
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # queries without names
                np.testing.assert_array_equal(model.transform(Z), ref)


def test_single_precision():
    Y, Z = curved(2001, 9, 2, seed=5, m=80)
    Y, Z = Y.astype(np.float32), Z.astype(np.float32)
    options = {"bandwidth": 1.0, "dim": 2, "budget": BUDGET, "seed": 1}
    comp = DPManifoldDenoiser(**options).fit(Y).transform(Z)
    ref = DPManifoldDenoiser(**options).fit(Y.astype(float)).transform(Z.astype(float))
    assert comp.dtype == np.float32
    np.testing.assert_array_equal(comp, ref.astype(np.float32))


def test_names_of_columns(tmp_path):
    Y, Z = curved(300, 3, 2, seed=1)
    names = ["a", "b", "c"]
    frame = pd.DataFrame(Y, columns=names)
    queries = pd.DataFrame(Z, columns=names, index=range(100, 108))
    frame.to_parquet(tmp_path / "reference.parquet")
    for reference in (frame, pa.table(frame), tmp_path / "reference.parquet"):
        model = DPManifoldDenoiser(0.8, 2, BUDGET).set_output(transform="pandas").fit(reference)
        assert list(model.feature_names_in_) == names
        with pytest.raises(ValueError, match="feature names"):
            model.transform(queries.rename(columns={"a": "z"}))
        moved = model.transform(queries)
        assert list(moved.columns) == names
        assert list(moved.index) == list(queries.index)
        assert list(model.get_feature_names_out()) == names


def test_a_stream_is_refused_because_it_is_read_again():
    Y, _ = curved(300, 3, 2, seed=1)
    table = pa.table({name: Y[:, j] for j, name in enumerate("abc")})
    with pytest.raises(ValueError, match="read only once"):
        DPManifoldDenoiser(0.8, 2, BUDGET).fit(table.to_reader())


# Guarantee


def test_guarantee_and_warnings():
    Y, Z = curved(300, 3, 2, seed=1)
    for adjacency in ("replace-one", "add-remove"):
        model = DPManifoldDenoiser(0.8, 2, BUDGET, adjacency=adjacency, steps=3).fit(Y)
        assert not hasattr(model, "guarantee_")
        model.transform(Z)
        guarantee = model.guarantee_
        assert guarantee.holds == "unconditional"
        assert (guarantee.epsilon, guarantee.delta, guarantee.adjacency) == (1.0, 1e-4, adjacency)
        assert guarantee.mu == pytest.approx(BUDGET.mu, rel=1e-9)
        assert "all queries and steps together" in guarantee.statement
        model.set_params(seed=1).fit(Y).transform(Z)
        assert model.guarantee_.holds == "not private"
    loose = Budget(1.0, 0.1)
    with pytest.warns(LargeDeltaWarning, match="publishing each record"):
        DPManifoldDenoiser(0.8, 2, loose).fit(Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="no query")  # read off the release
        for n in (300, 3, 1):  # nor are few records refused: how many there are is private
            DPManifoldDenoiser(0.8, 2, loose, adjacency="add-remove").fit(Y[:n]).transform(Z)
    with pytest.raises(ValueError, match="at least dim"):
        DPManifoldDenoiser(0.8, 2, BUDGET).fit(Y[:3])


FITTED_ON = "queries taken from the private reference are refused, and there is no fit_transform"
NOT_APPLICABLE = {
    "check_fit_score_takes_y": FITTED_ON,
    "check_estimators_dtypes": FITTED_ON,
    "check_dtype_object": FITTED_ON,
    "check_f_contiguous_array_estimator": FITTED_ON,
    "check_transformer_data_not_an_array": FITTED_ON,
    "check_transformer_general": FITTED_ON,
    "check_transformer_preserve_dtypes": FITTED_ON,
    "check_dict_unchanged": FITTED_ON,
    "check_estimators_pickle": "a fitted estimator holds the private reference and does not travel",
    "check_fit_idempotent": "every run draws fresh noise",
}


def test_check_estimator_where_it_applies():
    results = check_estimator(DPManifoldDenoiser(5.0, 1, Budget(1.0, 1e-6)), on_fail=None, on_skip=None)
    assert len(results) > 40
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    # whether the noise of two runs shows depends on whether a query stands out of it
    assert failed | {"check_fit_idempotent"} == set(NOT_APPLICABLE)
