"""Algorithms 1 and 2 and Nonprivate-MD against plain loops; rules for spending, status and bad input."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import naive
import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpmd_fast import (
    Budget,
    BudgetExceeded,
    DPManifoldDenoiser,
    LargeDeltaWarning,
    ManifoldDenoiser,
    dp_projector,
    empirical_sensitivity,
    gradient_descent,
    paper_bandwidth,
)
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import standard_normals

BUDGET = Budget(epsilon=1.0, delta=1e-4)


def algorithm_2(*arguments, **options):
    return DPManifoldDenoiser(*arguments, mechanism="projector", accept_risk=True, **options)


def curved(n, D, d, seed, offset=0.0):
    """Points near a d-sphere in R^D, and a few queries near it."""
    rng = np.random.default_rng(seed)
    on = rng.normal(size=(n + 8, d + 1))
    on /= np.linalg.norm(on, axis=1, keepdims=True)
    frame = np.linalg.qr(rng.normal(size=(D, d + 1)))[0]
    points = on @ frame.T + 0.03 * rng.normal(size=(n + 8, D)) + offset
    return points[:n], points[n:] + 0.05 * rng.normal(size=(8, D))


CASES = [
    (2, 1, 0.6, 2.0),
    (3, 2, 0.9, 2.0),
    (5, 2, 1.0, 3.5),
    pytest.param(9, 2, 1.1, 2.0, marks=pytest.mark.slow),
    pytest.param(21, 3, 1.4, 2.0, marks=pytest.mark.slow),
]


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d", "h", "beta"), CASES)
def test_nonprivate_md_is_the_plain_loop(D, d, h, beta):
    Y, Z = curved(180, D, d, seed=D, offset=3.0)
    ref_points, ref_status = naive.denoise(Y, Z, h, d, 3, beta)
    model = ManifoldDenoiser(h, d, steps=3, beta=beta).fit(Y)
    comp_points = model.transform(Z)
    assert list(model.status_) == ref_status
    np.testing.assert_allclose(comp_points, ref_points, atol=1e-9)


def replayed_noise(seed, m, steps, D, scales):
    """The noise that a seeded run adds, query by query and step by step."""
    source = open_source(seed)
    upper = [(j, k) for j in range(D) for k in range(j, D)]
    Wp, Wm = np.zeros((m, steps, D, D)), np.zeros((m, steps, D))
    for t in range(steps):
        flat = standard_normals(source, m * len(upper)).reshape(m, -1)
        for at, (j, k) in enumerate(upper):
            Wp[:, t, j, k] = Wp[:, t, k, j] = scales[:, t, 0] * flat[:, at]
        Wm[:, t] = scales[:, t, 1, None] * standard_normals(source, m * D).reshape(m, D)
    return Wp, Wm


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d", "h", "beta"), CASES)
def test_algorithm_2_is_the_plain_loop_with_the_same_noise(D, d, h, beta):
    Y, Z = curved(180, D, d, seed=10 + D)
    rho = BUDGET.rho
    model = algorithm_2(h, d, BUDGET, steps=2, beta=beta, theta=0.3, sensitivity_constant=1e-3, seed=7).fit(Y)
    comp_points = model.transform(Z)
    per_release = rho / (len(Z) * 2)
    expected_scales = [
        1e-3 / (180 * h**d) / np.sqrt(2 * 0.3 * per_release),
        1e-3 / (180 * h ** (d - 1)) / np.sqrt(2 * 0.7 * per_release),
    ]
    np.testing.assert_allclose(model.noise_scales_[3, 1], expected_scales, rtol=1e-12)
    noise = replayed_noise(7, len(Z), 2, D, model.noise_scales_)
    ref_points, ref_status = naive.denoise(Y, Z, h, d, 2, beta, noise)
    assert ref_status == ["ok"] * len(Z), "the comparison needs all queries to take part"
    assert list(model.status_) == ref_status
    np.testing.assert_allclose(comp_points, ref_points, atol=1e-9)
    without = naive.denoise(Y, Z, h, d, 2, beta)[0]
    assert np.abs(comp_points - without).max() > 1e-6, "the noise must be visible for this test to mean much"


@pytest.mark.kernels
@pytest.mark.parametrize("calibration", ["classic", "budget"])
@pytest.mark.parametrize(("D", "d", "h"), [(2, 1, 0.6), (3, 2, 0.9), (9, 2, 1.1)])
def test_algorithm_1_is_the_plain_loop_with_the_same_noise(D, d, h, calibration):
    Y, Z = curved(150, D, d, seed=20 + D)
    budget = Budget(epsilon=0.8, delta=1e-4)
    result = dp_projector(Y, Z[0], h, d, budget, calibration, sensitivity_constant=2.0, seed=3)
    delta_p = 2.0 / (150 * h**d)
    scale = delta_p / budget.mu
    if calibration == "classic":
        scale = delta_p * np.sqrt(2 * np.log(1.25 / 1e-4)) / 0.8
    assert result.noise_scale == pytest.approx(scale, rel=1e-12)
    upper = [(j, k) for j in range(D) for k in range(j, D)]
    W = np.zeros((D, D))
    for value, (j, k) in zip(standard_normals(open_source(3), len(upper)), upper, strict=True):
        W[j, k] = W[k, j] = scale * value
    np.testing.assert_allclose(result.projector, naive.algorithm1(Y, Z[0], h, d, W), atol=1e-9)
    np.testing.assert_allclose(result.basis.T @ result.basis, np.eye(d), atol=1e-12)
    assert result.guarantee.holds == "not private"
    assert dp_projector(Y, Z[0], h, d, budget, calibration).guarantee.holds == "conditional"


def test_algorithm_1_far_from_everything_releases_noise_alone():
    Y, _ = curved(100, 3, 2, seed=0)
    near = dp_projector(Y, np.full(3, 50.0), 0.5, 2, BUDGET, seed=1)
    again = dp_projector(Y + 1.0, np.full(3, 80.0), 0.5, 2, BUDGET, seed=1)
    np.testing.assert_allclose(near.projector, again.projector, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_threads(dtype):
    Y, Z = curved(400, 9, 2, seed=5)
    Y, Z = Y.astype(dtype), Z.astype(dtype)
    one = ManifoldDenoiser(1.0, 2, steps=2, n_threads=1).fit(Y).transform(Z)
    two = ManifoldDenoiser(1.0, 2, steps=2, n_threads=2).fit(Y).transform(Z)
    assert one.dtype == dtype
    assert np.array_equal(one, two)
    private = [algorithm_2(1.0, 2, BUDGET, steps=2, seed=1, n_threads=t).fit(Y).transform(Z) for t in (1, 2)]
    assert private[0].dtype == dtype
    assert np.array_equal(private[0], private[1])
    exact = ManifoldDenoiser(1.0, 2, steps=2).fit(Y.astype(float)).transform(Z.astype(float))
    np.testing.assert_allclose(one, exact, atol=1e-6 if dtype is np.float32 else 0)


def test_results_beyond_float32_fail_and_are_restored():
    largest = float(np.finfo(np.float32).max)
    along = np.random.default_rng(0).uniform(0.7, 1.0, 300)
    Y = (largest * np.column_stack([along, along - 0.5])).astype(np.float32)
    Z = (largest * np.array([[0.99, 0.9], [0.85, 0.4]])).astype(np.float32)  # the first belongs to 1.2, 0.7
    for model in (ManifoldDenoiser(largest, 1), algorithm_2(largest, 1, BUDGET)):
        moved = model.fit(Y).transform(Z)
        assert moved.dtype == np.float32
        assert list(model.status_) == ["failed", "ok"]
        assert np.array_equal(moved[0], Z[0])
        assert np.isfinite(moved[1]).all()
        assert not np.array_equal(moved[1], Z[1])


def test_results_are_compared_by_identity():
    Y, Z = curved(60, 3, 2, seed=1)
    for call in (
        lambda: dp_projector(Y, Z[0], 0.8, 2, BUDGET, seed=1),
        lambda: gradient_descent(Y, Z, 0.8, 2, steps=1),
        lambda: empirical_sensitivity(Y, Z[0], 1.2, 2, candidates=1),
    ):
        one, two = call(), call()
        assert one != two  # arrays inside: a comparison of values would raise
        assert len({one, two}) == 2


def test_queries_without_neighbors_come_back_unchanged():
    Y, Z = curved(300, 3, 2, seed=1)
    Z[3] += 100.0
    for model in (ManifoldDenoiser(0.8, 2), algorithm_2(0.8, 2, BUDGET)):
        moved = model.fit(Y).transform(Z)
        assert list(model.status_) == ["ok"] * 3 + ["no_neighbor"] + ["ok"] * 4
        assert np.array_equal(moved[3], Z[3])
        assert not np.array_equal(moved[0], Z[0])


def test_a_query_thrown_out_by_noise_fails_and_is_restored():
    Y, Z = curved(300, 3, 2, seed=1)
    model = algorithm_2(0.8, 2, BUDGET, steps=3, sensitivity_constant=1e6).fit(Y)
    moved = model.transform(Z)
    assert set(model.status_) <= {"failed", "ok"}
    assert (model.status_ == "failed").any()
    assert np.array_equal(moved[model.status_ == "failed"], Z[model.status_ == "failed"])


@pytest.mark.parametrize("kind", ["constant", "duplicates", "line"])
def test_degenerate_references_do_not_crash(kind):
    rng = np.random.default_rng(0)
    Y = {
        "constant": np.ones((50, 3)),
        "duplicates": np.repeat(rng.normal(size=(10, 3)), 7, axis=0),
        "line": np.outer(np.linspace(0, 1, 60), [1.0, 2.0, 3.0]),
    }[kind]
    Z = Y[:5] + 1e-3
    for model in (ManifoldDenoiser(0.5, 2, steps=2), algorithm_2(0.5, 2, BUDGET, steps=2)):
        moved = model.fit(Y).transform(Z)
        assert np.isfinite(moved).all()
    assert np.isfinite(dp_projector(Y, Z[0], 0.5, 2, BUDGET).projector).all()
    assert np.isfinite(gradient_descent(Y, Z, 0.5, 2, steps=3).points).all()


def test_one_transform_for_one_fit_and_no_spend_on_bad_queries():
    Y, Z = curved(300, 3, 2, seed=1)
    model = algorithm_2(0.8, 2, BUDGET).fit(Y)
    with pytest.raises(ValueError, match="NaN"):
        model.transform(np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="features"):
        model.transform(Z[:, :2])
    model.transform(Z)
    assert model.guarantee_.mu == pytest.approx(BUDGET.mu)
    with pytest.raises(BudgetExceeded) as refused:
        model.transform(Z)
    assert refused.value.asked == pytest.approx(BUDGET.mu**2)
    assert refused.value.remaining == 0.0
    model.fit(Y).transform(Z)


def test_guarantee_names_constant_and_conditions():
    Y, Z = curved(300, 3, 2, seed=1)
    model = algorithm_2(0.8, 2, BUDGET, sensitivity_constant=7.0).fit(Y)
    model.transform(Z)
    guarantee = model.guarantee_
    assert (guarantee.holds, guarantee.epsilon, guarantee.delta) == ("conditional", 1.0, 1e-4)
    assert "C = 7" in guarantee.statement
    text = " ".join(guarantee.conditions)
    for words in ("Lemma 2", "no_neighbor", "reach", "units", "low bits"):
        assert words in text
    seeded = algorithm_2(0.8, 2, BUDGET, seed=1).fit(Y)
    seeded.transform(Z)
    assert seeded.guarantee_.holds == "not private"


def test_schedules():
    Y, Z = curved(300, 3, 2, seed=1)
    m, T = len(Z), 2
    uneven = np.random.default_rng(0).random((m, T, 2))
    uneven *= BUDGET.rho / uneven.sum()
    model = algorithm_2(0.8, 2, BUDGET, steps=T, schedule=uneven).fit(Y)
    model.transform(Z)
    bounds = np.array([1 / (300 * 0.8**2), 1 / (300 * 0.8)])
    np.testing.assert_allclose(model.noise_scales_, bounds / np.sqrt(2 * uneven), rtol=1e-9)
    per_query = algorithm_2(0.8, 2, BUDGET, steps=T, schedule="per-query").fit(Y)
    per_query.transform(Z)
    rho = Budget(1.0 / m, 1e-4 / m).rho
    np.testing.assert_allclose(per_query.noise_scales_[0, 0], bounds / np.sqrt(rho / T), rtol=1e-9)
    assert "basic composition" in per_query.guarantee_.statement
    with pytest.raises(ValueError, match="schedule sums to"):
        algorithm_2(0.8, 2, BUDGET, steps=T, schedule=uneven * 1.01).fit(Y).transform(Z)
    with pytest.raises(ValueError, match="schedule has shape"):
        algorithm_2(0.8, 2, BUDGET, steps=1, schedule=uneven).fit(Y).transform(Z)


def test_zero_shares_reuse_what_was_released():
    Y, Z = curved(300, 3, 2, seed=1)
    shares = np.zeros((len(Z), 2, 2))
    shares[:, 0] = [1.0, 1.0]  # everything in the first step: the second only repeats it
    shares *= BUDGET.rho / shares.sum()
    both = algorithm_2(0.8, 2, BUDGET, steps=2, schedule=shares, seed=4).fit(Y).transform(Z)
    first = algorithm_2(0.8, 2, BUDGET, steps=1, schedule=shares[:, :1], seed=4).fit(Y).transform(Z)
    np.testing.assert_allclose(both, first, atol=1e-12)
    only_projector = np.zeros((len(Z), 1, 2))
    only_projector[:, 0, 0] = BUDGET.rho / len(Z)
    model = algorithm_2(0.8, 2, BUDGET, schedule=only_projector).fit(Y)
    assert np.array_equal(model.transform(Z), Z)  # no mean was ever released: nothing moves


def test_the_reference_is_not_a_query_and_does_not_travel():
    Y, Z = curved(300, 3, 2, seed=1)
    model = algorithm_2(0.8, 2, BUDGET).fit(Y)
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
    with pytest.raises(ValueError, match="public"):
        dp_projector(Y, Y[0], 0.8, 2, BUDGET)
    table = pandas.DataFrame(Y)
    model.fit(table)
    for queries in (table, table.iloc[:5], table.to_numpy()[:5]):
        with pytest.raises(ValueError, match="public"):
            model.transform(queries)
    model.fit(Y).transform(Z)


def test_large_delta_warns_with_the_reason():
    Y, Z = curved(300, 3, 2, seed=1)
    loose = Budget(1.0, 0.1)
    with pytest.warns(LargeDeltaWarning, match="publishing each record"):
        algorithm_2(0.8, 2, loose).fit(Y)
    with pytest.warns(LargeDeltaWarning):
        dp_projector(Y, Z[0], 0.8, 2, loose)


def test_paper_bandwidth():
    assert paper_bandwidth(20_000, 1, 0.1) == naive.paper_bandwidth(20_000, 1, 0.1)
    assert paper_bandwidth(10, 2, 0.001) == naive.paper_bandwidth(10, 2, 0.001)


def test_reference_properties_in_the_order_given():
    Y, _ = curved(150, 3, 2, seed=9)
    model = ManifoldDenoiser(0.7, 2).fit(Y)
    P = naive.local_projectors(Y, 0.7, 2)
    V = model.tangents_
    np.testing.assert_allclose(V @ V.transpose(0, 2, 1), P, atol=1e-9)
    assert list(model.neighbor_counts_) == [len(naive.ball(Y, y, 0.7)) for y in Y]


@pytest.mark.slow
def test_many_queries_in_several_blocks_get_the_noise_they_are_due():
    # mean noise alone: what is added to each query is then known, in whatever order queries are visited
    rng = np.random.default_rng(2)
    Y, _ = curved(400, 30, 2, seed=3)
    Z = np.repeat(Y[:40] + 0.02 * rng.normal(size=(40, 30)), 30, axis=0)
    shares = np.zeros((len(Z), 1, 2))
    shares[:, 0, 1] = rng.uniform(0.2, 1.8, size=len(Z))
    shares *= BUDGET.rho / shares.sum()
    model = algorithm_2(1.2, 2, BUDGET, schedule=shares, sensitivity_constant=1e-2).fit(Y)
    moved = model.transform(Z)
    assert (model.status_ == "ok").all()
    geometry = [naive.weighted_geometry(Y, np.zeros((400, 30, 30)), z, 1.2, 2.0)[2] for z in Z[::30]]
    noise = (moved - np.repeat(geometry, 30, axis=0)) / model.noise_scales_[:, 0, 1, None]
    assert noise.size == 36_000
    # each of the three is more than five standard errors: once in 10^7 runs
    assert abs(noise.std() - 1.0) < 0.02
    assert abs(noise.mean()) < 0.03
    assert np.abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.03


def test_changed_parameters_count_when_the_budget_is_spent():
    Y, Z = curved(300, 3, 2, seed=1)
    model = algorithm_2(0.8, 2, BUDGET).fit(Y)
    model.set_params(budget=Budget(0.5, 0.1), sensitivity_constant=3.0, seed=None)
    with pytest.warns(LargeDeltaWarning):
        model.transform(Z)
    assert (model.guarantee_.epsilon, model.guarantee_.delta) == (0.5, 0.1)
    assert "C = 3" in model.guarantee_.statement
    with pytest.warns(LargeDeltaWarning), pytest.raises(BudgetExceeded):
        model.transform(Z)
    model.set_params(budget=BUDGET).fit(Y)
    assert not hasattr(model, "guarantee_")
    with pytest.raises(ValueError, match="n_threads"):
        model.set_params(n_threads=-1).fit(np.zeros((50, 5)))
    model.set_params(n_threads=None)
    assert model.transform(Z).shape == Z.shape  # a refused fit leaves the last one as it was


def test_threads_cannot_spend_one_budget_together():
    Y, Z = curved(300, 3, 2, seed=1)
    for _ in range(5):
        model = algorithm_2(0.8, 2, BUDGET).fit(Y)

        def spend(_, model=model):
            try:
                return model.transform(Z) is not None
            except BudgetExceeded:
                return False

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(spend, range(4))) == 1


def test_noise_lost_in_rounding_is_not_called_private():
    Y, Z = curved(300, 9, 2, seed=1)
    model = algorithm_2(50.0, 8, BUDGET).fit(Y * 50)
    model.transform(Z * 50)
    assert model.guarantee_.holds == "not private"
    assert "units" in model.guarantee_.statement
    assert dp_projector(Y * 50, Z[0] * 50, 50.0, 8, BUDGET).guarantee.holds == "not private"
    for h in (1e-39, 1e90):
        with pytest.raises(ValueError, match="bandwidth"):
            dp_projector(Y, Z[0], h, 8, BUDGET)
        with pytest.raises(ValueError, match="bandwidth"):
            algorithm_2(h, 8, BUDGET).fit(Y).transform(Z)


SETS_STATUS = "transform leaves status_, as the public contract says"
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


def failing_checks(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 40
    return {result["check_name"] for result in results if result["status"] == "failed"}


def test_check_estimator_where_it_applies():
    assert failing_checks(ManifoldDenoiser(bandwidth=5.0, dim=1)) == {"check_dict_unchanged"}, SETS_STATUS
    assert failing_checks(algorithm_2(5.0, 1, Budget(1.0, 1e-6))) == set(NOT_APPLICABLE)


def test_tables_in_tables_out():
    Y, Z = curved(300, 3, 2, seed=1)
    names = ["a", "b", "c"]
    queries = pandas.DataFrame(Z, columns=names, index=range(100, 108))
    for model in (ManifoldDenoiser(0.8, 2), algorithm_2(0.8, 2, BUDGET)):
        model.set_output(transform="pandas").fit(pandas.DataFrame(Y, columns=names))
        with pytest.raises(ValueError, match="feature names"):
            model.transform(queries.rename(columns={"a": "z"}))
        moved = model.transform(queries)
        assert list(moved.columns) == names
        assert list(moved.index) == list(queries.index)
        assert list(model.get_feature_names_out()) == names


def test_gradient_descent_is_the_plain_loop():
    Y, Z = curved(150, 3, 2, seed=12)
    Z[2] += 50.0
    result = gradient_descent(Y, Z, 0.9, 2, steps=4, tolerance=1e-3)
    ref_points, ref_status, ref_iterations = naive.gradient_descent(Y, Z, 0.9, 2, 4, 2.0, 1e-3)
    np.testing.assert_allclose(result.points, ref_points, atol=1e-9)
    assert list(result.status) == ref_status
    assert list(result.iterations) == ref_iterations
    assert np.isnan(result.residuals[2])
