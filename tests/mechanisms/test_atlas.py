"""The atlas: what it spends, how well it denoises, what it refuses."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpmd_fast import Atlas, Budget, LargeDeltaWarning, Ledger, plan, release_atlas
from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.lab.datasets import bounded_noise, distance_to_manifold, make_shape, simulate
from dpmd_fast.mechanisms.atlas import subspace
from dpmd_fast.models.geometry.layers import Subspace
from dpmd_fast.privacy import noise as mechanism
from dpmd_fast.reference.tasks import SumTask

pytestmark = pytest.mark.filterwarnings("ignore::dpmd_fast.LargeDeltaWarning")


def torus(n=8000, m=400, seed=0):
    shape = make_shape("torus")
    return shape, simulate(shape, n, m, 0.05, np.random.default_rng(seed))


# shape, options, n, sigma, and the mean distance to the manifold to reach at delta = 0.1 and 1e-6
FIGURES = {
    "circle": ({}, 20_000, 0.1, (0.0023, 0.0024)),
    "torus": ({}, 30_000, 0.05, (0.0037, 0.0077)),
    "sphere": ({"ambient": 20}, 30_000, 0.3, (0.0067, 0.0086)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    options, n, sigma, goals = FIGURES[name]
    shape = make_shape(name, **options)
    for delta, goal in zip((0.1, 1e-6), goals, strict=True):
        errors = []
        for seed in range(5):
            data = simulate(shape, n, 1000, sigma, np.random.default_rng(100 + seed))
            atlas = release_atlas(
                data.references, data.queries, dim=shape.dim, budget=Budget(1.0, delta), seed=seed
            )
            errors.append(distance_to_manifold(atlas.transform(data.queries), shape).mean())
        mean, spread = np.mean(errors), np.std(errors, ddof=1)
        print(name, delta, f"{mean:.4f} +- {spread:.4f}, goal {goal}")
        assert mean <= goal + 2.0 * spread


def test_an_atlas_denoises_points_it_has_not_seen():
    shape, data = torus()
    atlas = release_atlas(data.references, data.queries, dim=2, budget=Budget(1.0, 0.1), seed=1)
    rng = np.random.default_rng(9)
    fresh = shape.sample(2000, rng) + bounded_noise(2000, 3, math.sqrt(0.05), rng)
    moved, status = atlas.transform(fresh, return_status=True)
    assert distance_to_manifold(moved, shape).mean() < 0.2 * distance_to_manifold(fresh, shape).mean()
    assert set(status) == {"ok"}
    centers, tangents, masses = atlas.charts
    assert distance_to_manifold(centers, shape).mean() < 0.15
    np.testing.assert_allclose(
        np.einsum("kde,kdf->kef", tangents, tangents), np.tile(np.eye(2), (len(centers), 1, 1)), atol=1e-9
    )
    assert (masses > 0.0).all()


def test_points_out_of_reach_come_back_unchanged():
    _, data = torus(3000, 300)
    atlas = release_atlas(data.references, data.queries, dim=2, budget=Budget(2.0, 0.1), seed=1)
    far = np.array([[50.0, 0.0, 0.0], [2.0, 0.0, 1.0]], dtype=np.float32)
    moved, status = atlas.transform(far, return_status=True)
    assert moved.dtype == np.float32
    assert status.tolist() == ["outside", "ok"]
    np.testing.assert_array_equal(moved[0], far[0])


@pytest.mark.parametrize("ambient", [3, 10])
@pytest.mark.parametrize("bandwidth", ["auto", 0.5])
def test_the_spends_are_the_budget_and_pay_for_the_noise(ambient, bandwidth, monkeypatch):
    # the deviations that the sampler is asked for say what was spent, whatever the code reports
    spent = []
    real = mechanism.noisy_sums

    def watched(sums, lattice, source, n_threads=None):
        spent.append((math.sqrt(2.0) * lattice.bound / lattice.deviation) ** 2)
        return real(sums, lattice, source, n_threads)

    monkeypatch.setattr("dpmd_fast.mechanisms.spend.noisy_sums", watched)
    shape = make_shape("sphere", ambient=ambient)
    data = simulate(shape, 6000, 300, 0.05, np.random.default_rng(1))
    budget = Budget(1.0, 0.01)
    atlas = release_atlas(data.references, data.queries, dim=2, budget=budget, bandwidth=bandwidth, seed=3)
    total = math.fsum(mu2 for _, mu2 in atlas.spends)
    assert total == pytest.approx(budget.mu**2, rel=1e-12)
    assert math.fsum(spent) == pytest.approx(budget.mu**2, rel=1e-6)
    assert math.fsum(spent) <= budget.mu**2 * (1.0 + 1e-12)
    assert len(spent) == len(atlas.spends)
    np.testing.assert_allclose(spent, [mu2 for _, mu2 in atlas.spends], rtol=1e-6)
    assert atlas.guarantee.mu == pytest.approx(budget.mu, rel=1e-9)
    assert atlas.guarantee.holds == "not private"


def test_bits_do_not_depend_on_threads_batches_order_or_files(tmp_path):
    _, data = torus(2500, 250)
    Y = data.references
    arguments = {"dim": 2, "budget": Budget(1.0, 0.1), "seed": 5}
    ref = release_atlas(Y, data.queries, n_threads=1, **arguments)
    rng = np.random.default_rng(0)
    columns = ["a", "b", "c"]
    paths = []
    for k, rows in enumerate(np.array_split(rng.permutation(len(Y)), 3)):
        paths.append(tmp_path / f"{k}.parquet")
        pq.write_table(pa.table(dict(zip(columns, Y[rows].T, strict=True))), paths[-1], row_group_size=101)
    for reference, options in (
        (Y[rng.permutation(len(Y))], {"n_threads": 2}),
        (Y, {"batch_rows": 777}),
        (paths, {"batch_rows": 63}),
    ):
        comp = release_atlas(reference, data.queries, **arguments, **options)
        assert comp.bandwidth == ref.bandwidth
        for ours, theirs in zip(comp.layers, ref.layers, strict=True):
            np.testing.assert_array_equal(ours.centers, theirs.centers)
            np.testing.assert_array_equal(ours.tangents, theirs.tangents)
            np.testing.assert_array_equal(ours.masses, theirs.masses)


def test_invalid_records():
    _, data = torus(2500, 250)
    dirty = np.concatenate([data.references, [[np.nan, 0.0, 0.0], [np.inf, 1.0, 0.0], [1e300, 0.0, 0.0]]])
    arguments = {"dim": 2, "budget": Budget(1.0, 0.1), "seed": 5}
    with pytest.raises(ValueError, match="non-finite"):
        release_atlas(dirty, data.queries, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LargeDeltaWarning)
        arguments |= {"adjacency": "add-remove", "n_public": 2500, "on_invalid": "drop"}
        comp = release_atlas(dirty, data.queries, **arguments)
        ref = release_atlas(data.references, data.queries, **arguments)
    np.testing.assert_array_equal(comp.transform(data.queries), ref.transform(data.queries))


def test_dim_auto():
    for name, options in (("circle", {}), ("torus", {}), ("sphere", {"ambient": 10})):
        shape = make_shape(name, **options)
        data = simulate(shape, 8000, 400, 0.05, np.random.default_rng(2))
        atlas = release_atlas(data.references, data.queries, dim="auto", budget=Budget(1.0, 0.1), seed=2)
        assert atlas.dim == shape.dim, name


def test_without_a_seed_the_guarantee_holds():
    _, data = torus(2500, 250)
    atlas = release_atlas(
        data.references, data.queries, dim=2, budget=Budget(6.0, 1e-6), adjacency="add-remove", n_public=2500
    )
    assert atlas.guarantee.holds == "unconditional"
    assert atlas.guarantee.adjacency == "add-remove"
    assert isinstance(atlas, Atlas)


_, SMALL = torus(500, 60)
GOOD = {"reference": SMALL.references, "anchors": SMALL.queries, "dim": 2, "budget": Budget(1.0, 0.1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchors": SMALL.references}, "part of the reference"),
        ({"anchors": SMALL.references[::2]}, "part of the reference"),
        ({"anchors": SMALL.queries[:, :2]}, "column"),
        ({"anchors": SMALL.queries[:3]}, "anchors"),
        ({"anchors": np.full((30, 3), np.nan)}, "anchors"),
        ({"dim": 3}, "dim"),
        ({"dim": 0}, "dim"),
        ({"dim": "two"}, "dim"),
        ({"bandwidth": -1.0}, "bandwidth"),
        ({"bandwidth": "wide"}, "bandwidth"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 21}, "at most 20"),
        ({"beta": 3.0}, "beta"),
        ({"cover": 0.0}, "cover"),
        ({"cover": 2.0}, "cover"),
        ({"adjacency": "near"}, "adjacency"),
        ({"adjacency": "add-remove"}, "n_public"),
        ({"on_invalid": "keep"}, "on_invalid"),
        ({"budget": 1.0}, "budget"),
        ({"seed": -1}, "seed"),
        ({"n_threads": 0}, "n_threads"),
        ({"columns": ["a"]}, "columns"),
        ({"budget": Budget(1e-9, 1e-12)}, "mu"),
    ],
)
def test_bad_input_is_refused_before_any_noise_is_drawn(change, message, monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(mechanism, "rounded_normals", forbidden)
    monkeypatch.setattr(mechanism, "rounded_normals", forbidden)
    with pytest.raises(ValueError, match=message):
        release_atlas(**{**GOOD, **change})


def test_no_signal_is_said_plainly():
    rng = np.random.default_rng(0)
    points, anchors, budget = rng.normal(size=(20, 3)), rng.normal(size=(60, 3)), Budget(0.1, 1e-6)
    settings = {"dim": 1, "budget": budget, "bandwidth": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=r"^not enough records: 20 records are too few .* Nothing was spent"):
        release_atlas(points, anchors, **settings)
    with pytest.raises(RuntimeError, match="no chart stands out from the noise, and the budget is spent"):
        release_atlas(points, anchors, **settings, accept_risk=True)


@pytest.mark.parametrize("columns", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_budget_for_noise_alone_is_not_spent(columns, tmp_path):
    shape = make_shape("sphere", ambient=columns)
    data = simulate(shape, n=3000, m=400, sigma=0.05, rng=np.random.default_rng(0))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", 5.0, 1e-6)
    settings = {"dim": 2, "ledger": ledger, "dataset": "people"}
    with pytest.raises(ValueError, match=r"^not enough records: 3,000 records are too few at epsilon = 0.05"):
        release_atlas(data.references, data.queries, budget=Budget(0.05, 1e-6), **settings)
    assert ledger.history("people") == ()
    made = plan(data.queries, 3000, dim=2, budget=Budget(0.05, 1e-6))
    assert (made.verdict, made.model) == ("not enough records", "nothing")
    assert made.advice.startswith("Do not spend: 3,000 records are too few")
    release_atlas(data.references, data.queries, budget=Budget(4.0, 1e-6), **settings)
    assert len(ledger.history("people")) == 1


def test_a_large_budget_does_not_make_charts_too_small():
    # by seed alone: what limits is the scatter of the records, and not noise
    shape = make_shape("torus")
    data = simulate(shape, n=20_000, m=600, sigma=0.3, rng=np.random.default_rng(0))
    errors = []
    for epsilon in (1.0, 6.0):
        made = release_atlas(data.references, data.queries, dim=2, budget=Budget(epsilon, 0.1), seed=0)
        errors.append(float(shape.distance(made.transform(data.queries)).mean()))
    assert errors[1] <= 1.05 * errors[0]


def test_plan_predicts_the_signal_without_a_reference():
    _, data = torus(8000, 400)
    budget = Budget(1.0, 0.1)
    expected = plan(data.queries, 8000, dim=2, budget=budget)
    assert expected.mu2 == budget.mu**2
    found = release_atlas(
        data.references, data.queries, dim=2, budget=budget, bandwidth=expected.bandwidth, rounds=3, seed=0
    )
    assert found.signal_to_noise[0] == pytest.approx(expected.signal_to_noise, rel=0.25)
    assert plan(data.queries, 80_000, dim=2, budget=budget, bandwidth=expected.bandwidth).signal_to_noise == (
        pytest.approx(10.0 * expected.signal_to_noise)
    )
    poor = plan(data.queries, 50, dim=2, budget=Budget(0.1, 1e-6))
    assert poor.rounds == 1
    assert poor.model == "nothing"
    assert poor.advice.startswith("Do not spend: 50 records are too few")
    for change in ({"n": 0}, {"dim": 3}, {"budget": None}, {"bandwidth": 0.0}, {"adjacency": "x"}):
        with pytest.raises(ValueError, match=next(iter(change))):
            plan(**{"anchors": data.queries, "n": 100, "dim": 2, "budget": budget, **change})


def line(n, rng, columns=10):
    direction = np.ones(columns) / np.sqrt(columns)
    return rng.uniform(-1.0, 1.0, (n, 1)) * direction + 0.01 * rng.normal(size=(n, columns))


def test_a_line_in_many_columns_with_its_dimension_unknown():
    rng = np.random.default_rng(0)
    atlas = release_atlas(line(5000, rng), line(300, rng), dim="auto", budget=Budget(4.0, 1e-5), seed=1)
    assert atlas.dim >= 1


@pytest.mark.parametrize("columns", [2, 10])
@pytest.mark.parametrize("scale", [0.0, 1e-60])
def test_anchors_without_spread_are_refused_before_the_spend(columns, scale, tmp_path):
    rng = np.random.default_rng(0)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("line", 5.0, 1e-5)
    anchors = scale * line(60, rng, columns)
    with pytest.raises(ValueError, match="anchors span"):
        release_atlas(
            line(500, rng, columns), anchors, dim=1, budget=Budget(1.0, 1e-6), ledger=ledger, dataset="line"
        )
    assert not ledger.history("line")


def test_one_column_has_no_dimension_to_find():
    with pytest.raises(ValueError, match="dim = 'auto'"):
        release_atlas(np.zeros((50, 1)), np.arange(9.0)[:, None], dim="auto", budget=Budget(1.0, 1e-6))


@pytest.mark.parametrize("value", [1e101, -1e150, np.inf, np.nan])
def test_a_record_that_is_dropped_adds_nothing_to_the_subspace(value):
    """Failed before: a value of 1e101 was clipped, not dropped, in both releases of the subspace."""
    rng = np.random.default_rng(0)
    D, q = 9, 2
    Y = np.zeros((50, D))
    Y[:, :3] = rng.normal(size=(50, 3))
    hurt = np.vstack([Y, Y[:1]])
    hurt[-1, 4] = value
    basis, center = np.eye(D)[:, :q], np.zeros(D)
    tasks = (
        (partial(subspace._whole_features, center, 2.0), D + 1),
        (partial(subspace._split_features, center, basis, 2.0, 1e160), q + D + 1),
    )
    for view, width in tasks:
        task = SumTask(partial(FeatureSums, width, 0.5, (2.0**-20, 2**19)), (view,))
        np.testing.assert_array_equal(task.on([Y]).values, task.on([hurt]).values)
    inside = subspace.valid_inside(Subspace(center, basis), hurt)
    assert np.isnan(inside[-1]).all()  # although the value is outside of the subspace
    np.testing.assert_array_equal(inside[:-1], Subspace(center, basis).down(Y))
