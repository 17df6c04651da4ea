"""The mixture: how well it cleans, what it spends and refuses, and that its bits depend on nothing else."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpmd_fast import Budget, Mixture, Preprocessor, private_preprocessor, release_mixture
from dpmd_fast.models.gaussians import recipe, rounds, tuning
from dpmd_fast.models.gaussians.components import Gaussians, definite, in_data_units, not_flat, read_moments

BUDGET = Budget(1.0, 1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::dpmd_fast.LargeDeltaWarning")


class Factors:
    """Records from a mixture of factor models, and its exact posterior mean."""

    def __init__(self, D=6, K=3, factors=2, seed=0, spread=2.0):
        rng = np.random.default_rng(seed)
        self.weights = rng.dirichlet(np.full(K, 5.0))
        self.means = spread * rng.normal(size=(K, D))
        self.loadings = 0.8 * rng.normal(size=(K, D, factors))
        self.covariances = self.loadings @ self.loadings.transpose(0, 2, 1) + 0.04 * np.eye(D)

    def draw(self, n, seed):
        rng = np.random.default_rng(seed)
        which = rng.choice(len(self.weights), size=n, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        return self.means[which] + np.einsum(
            "nde,ne->nd", roots[which], rng.normal(size=(n, self.means.shape[1]))
        )

    def exact(self, budget_of):
        """A mixture with the true parameters."""
        return Mixture(
            budget_of.guarantee, self.weights, self.means, self.covariances, (1.0,) * len(self.weights), ()
        )


def share(found, clean, noisy):
    return float(((found - clean) ** 2).sum() / ((noisy - clean) ** 2).sum())


@pytest.fixture(scope="module")
def story():
    truth = Factors()
    Y, clean = truth.draw(30_000, 1), truth.draw(2_000, 2)
    noisy = clean + 0.6 * np.random.default_rng(3).normal(size=clean.shape)
    return truth, Y, clean, noisy, release_mixture(Y, budget=BUDGET, seed=4)


def test_a_mixture_cleans_nearly_as_well_as_the_truth(story):
    truth, _, clean, noisy, made = story
    best = share(truth.exact(made).transform(noisy, 0.6), clean, noisy)
    assert share(made.transform(noisy, 0.6), clean, noisy) < 1.05 * best < 0.7


def test_error_bars_hold_what_they_promise(story):
    _, _, clean, noisy, made = story
    means, deviations = made.posterior(noisy, 0.6)
    assert 0.92 < np.mean(np.abs(means - clean) < 1.96 * deviations) < 0.97


def test_what_is_missing_is_filled_in_better_than_by_column_means(story):
    _, _, clean, _, made = story
    gone = np.random.default_rng(5).random(clean.shape) < 0.2
    filled = made.transform(np.where(gone, np.nan, clean), 0.0)
    np.testing.assert_array_equal(filled[~gone], clean[~gone])
    by_means = np.broadcast_to(clean.mean(axis=0), clean.shape)
    assert ((filled - clean)[gone] ** 2).sum() < 0.5 * ((by_means - clean)[gone] ** 2).sum()


def test_incomplete_records_are_worth_nearly_as_much_as_complete_ones(story):
    _, Y, clean, noisy, made = story
    incomplete = np.where(np.random.default_rng(6).random(Y.shape) < 0.05, np.nan, Y)
    incomplete[17] = np.nan
    errors = {
        choice: share(
            release_mixture(incomplete, budget=BUDGET, on_missing=choice, seed=4).transform(noisy, 0.6),
            clean,
            noisy,
        )
        for choice in ("fill", "drop")
    }
    whole = share(made.transform(noisy, 0.6), clean, noisy)
    assert errors["fill"] < 1.1 * whole
    assert errors["fill"] < errors["drop"] * 1.02
    with pytest.raises(ValueError, match="non-finite"):
        release_mixture(incomplete, budget=BUDGET, on_missing="raise")
    with pytest.raises(ValueError, match="on_missing = 'raise'"):
        release_mixture(incomplete, budget=BUDGET, on_missing="raise", on_invalid="drop")


@pytest.mark.parametrize(
    ("missing", "low", "high"), [(0.05, 0.93, 0.97), (0.3, 0.93, 0.97), (0.6, 0.92, 0.99)]
)
def test_error_bars_of_a_column_that_records_lack(missing, low, high):
    # With conditional means in the place of draws: .94, .89 and .77. .02 are twelve standard errors.
    rng = np.random.default_rng(0)
    loadings = np.array([[1.0, 1.0, 0.5, 0.0, 0.3], [0.0, 0.5, 1.0, 1.0, 0.3]])
    Y, clean = (rng.normal(size=(n, 2)) @ loadings + 0.4 * rng.normal(size=(n, 5)) for n in (30_000, 20_000))
    Y[rng.random(len(Y)) < missing, 4] = np.nan
    made = release_mixture(Y, budget=BUDGET, components=4, seed=1)
    means, deviations = made.posterior(np.where(np.arange(5) == 4, np.nan, clean), 0.0)
    assert low < np.mean(np.abs(means - clean)[:, 4] < 1.96 * deviations[:, 4]) < high


@pytest.mark.parametrize("components", [1, 4, "auto"])
def test_a_column_that_all_records_lack_keeps_about_its_public_scale(components):
    Y = np.random.default_rng(0).normal(size=(20_000, 4))
    Y[:, 3] = np.nan
    made = release_mixture(Y, budget=BUDGET, components=components, seed=1)
    center = made.weights @ made.means
    variance = made.weights @ (made.covariances[:, 3, 3] + (made.means[:, 3] - center[3]) ** 2)
    assert 0.5 < math.sqrt(variance) < 1.5


def test_a_column_of_type_null_is_one_that_all_records_lack(tmp_path):
    Y = np.random.default_rng(0).normal(size=(6_000, 3))
    table = pa.table({"a": Y[:, 0], "b": pa.nulls(len(Y)), "c": Y[:, 2]})
    pq.write_table(table, tmp_path / "null.parquet")
    arguments = {"budget": BUDGET, "components": 2, "seed": 1}
    ref = release_mixture(np.where(np.arange(3) == 1, np.nan, Y), **arguments)
    for reference in (table, pl.from_arrow(table), tmp_path / "null.parquet"):
        comp = release_mixture(reference, batch_rows=1_700, **arguments)
        assert comp.column_names == ("a", "b", "c")
        np.testing.assert_array_equal(comp.covariances, ref.covariances)
        for choice in ("drop", "raise"):  # no record would count
            with pytest.raises(ValueError, match=r"not numeric: 'b' \(null\)"):
                release_mixture(reference, on_missing=choice, **arguments)


FAR = {
    **{f"{offset:g} away": (offset, 1.0) for offset in (1e8, 1e9, 1e12, 1e15, 1e30, 1e90)},
    "all equal, far": (3e50, 0.0),
    "scales from 1e-12 to 1e12, far": (np.array([0.0, 1e9, 1e15, 1e30]), np.array([1e-12, 1.0, 1e6, 1e12])),
    "one far column": (np.array([0.0, 0.0, 0.0, 1e40]), 1.0),
    "tiny": (0.0, 1e-80),
}


@pytest.mark.parametrize("components", [1, 5])
@pytest.mark.parametrize("kind", FAR)
def test_records_far_from_public_units_do_not_waste_the_budget(kind, components, tmp_path):
    offset, scale = FAR[kind]
    Y = scale * np.random.default_rng(0).normal(size=(6_000, 4)) + offset
    for seed in range(2):
        made = release_mixture(Y, budget=BUDGET, components=components, seed=seed)
        assert np.isfinite(made.means).all()
        np.linalg.cholesky(made.covariances)
        assert all(
            np.isfinite(part).all() for part in made.posterior(np.where(Y[:5] > offset, np.nan, Y[:5]), 0.5)
        )
        made.save(tmp_path / f"{seed}.dpmd")
        Mixture.load(tmp_path / f"{seed}.dpmd")


def test_the_whole_budget_is_spent_and_no_more(story):
    made = story[-1]
    assert math.fsum(mu2 for _, mu2 in made.spends) == pytest.approx(BUDGET.mu**2, rel=1e-12)
    assert made.guarantee.mu == pytest.approx(BUDGET.mu)
    assert made.guarantee.holds == "not private"  # it has a seed
    assert len(made.spends) == 1 + tuning.ROUNDS
    assert len(made.signal_to_noise) == len(made.weights) > 3
    assert made.weights.sum() == pytest.approx(1.0)


def test_bits_do_not_depend_on_threads_batches_order_or_files(tmp_path):
    Y = Factors(D=5).draw(4_000, 1)
    Y[np.random.default_rng(7).random(Y.shape) < 0.1] = np.nan
    arguments = {"budget": Budget(5.0, 1e-3), "components": 3, "rounds": 3, "seed": 5}
    ref = release_mixture(Y, n_threads=1, **arguments)
    rng = np.random.default_rng(0)
    paths = []
    for k, rows in enumerate(np.array_split(rng.permutation(len(Y)), 3)):
        paths.append(tmp_path / f"{k}.parquet")
        pq.write_table(pa.table(dict(zip("abcde", Y[rows].T, strict=True))), paths[-1], row_group_size=101)
    for reference, options in (
        (Y[rng.permutation(len(Y))], {"n_threads": 2}),
        (Y, {"batch_rows": 777}),
        (paths, {"batch_rows": 63}),
        (pd.DataFrame(Y), {}),
    ):
        comp = release_mixture(reference, **arguments, **options)
        for name in ("weights", "means", "covariances"):
            np.testing.assert_array_equal(getattr(comp, name), getattr(ref, name))


@pytest.mark.parametrize("epsilon", [1.0, 50.0])
@pytest.mark.parametrize("kind", ["twins", "sums", "constant", "two points", "all equal", "always missing"])
def test_columns_that_depend_on_each_other_do_not_waste_the_budget(kind, epsilon, tmp_path):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(20_000, 5))
    if kind == "twins":
        Y[:, 4] = Y[:, 0]
    elif kind == "sums":
        Y[:, 3], Y[:, 4] = Y[:, 0] + Y[:, 1], Y[:, 0] - Y[:, 2]
    elif kind == "constant":
        Y[:, 4] = 3.0
    elif kind == "two points":
        Y = np.repeat(rng.integers(0, 2, (20_000, 1)).astype(float), 5, axis=1)
    elif kind == "all equal":
        Y[:] = 1.0
    else:
        Y[:, 4] = np.nan
    made = release_mixture(Y, budget=Budget(epsilon, 1e-6), seed=1)
    np.linalg.cholesky(made.covariances)
    noisy = np.nan_to_num(Y[:50]) + 0.5 * rng.normal(size=(50, 5))
    means, deviations = made.posterior(noisy, 0.5)
    assert np.isfinite(means).all()
    assert (deviations > 0.0).all()
    made.save(tmp_path / "model.dpmd")
    np.testing.assert_array_equal(Mixture.load(tmp_path / "model.dpmd").transform(noisy, 0.5), means)


def test_one_component_is_measured_in_public_units_and_then_in_its_own_frame():
    Y = Factors(K=1).draw(5_000, 1)
    made = release_mixture(Y, budget=BUDGET, components=1)
    assert [what for what, _ in made.spends] == ["all records as one component", "round 1, components: 1"]
    assert math.fsum(mu2 for _, mu2 in made.spends) == pytest.approx(BUDGET.mu**2, rel=1e-12)
    np.testing.assert_allclose(made.means[0], Y.mean(axis=0), atol=0.5)


def test_units_come_from_public_points_or_a_preprocessor():
    truth = Factors(seed=3)
    units = np.array([1.0, 1e3, 1e-4, 50.0, 1.0, 7.0])
    Y = 5.0 + truth.draw(20_000, 1) * units
    clean = 5.0 + truth.draw(1_000, 2) * units
    noisy = clean + 0.5 * units * np.random.default_rng(3).normal(size=clean.shape)
    names = list("abcdef")
    table = pd.DataFrame(Y, columns=names)
    made = release_mixture(table, budget=BUDGET, public=noisy, seed=1)
    again = release_mixture(
        table,
        budget=BUDGET,
        preprocess=Preprocessor.from_public(noisy, log=False, column_names=names),
        seed=1,
    )
    np.testing.assert_array_equal(made.means, again.means)
    noise = dict(zip(names, 0.5 * units, strict=True))
    cleaned = made.transform(noisy, noise)
    for k in range(6):
        assert share(cleaned[:, k], clean[:, k], noisy[:, k]) < 1.0
    both = release_mixture(
        table,
        budget=BUDGET,
        public=noisy * 2.0,
        preprocess=again.preprocess,
        noise=noise,
        seed=1,
        accept_risk=True,
    )  # then public points are examples of what is to be cleaned, and not the units
    np.testing.assert_array_equal(both.means, again.means)
    with pytest.raises(ValueError, match="is part of the reference"):
        release_mixture(Y, budget=BUDGET, public=Y[:100])


@pytest.mark.parametrize("kind", ["array", "pandas", "nullable", "pandas of arrow", "polars", "arrow"])
def test_public_points_may_lack_values(kind, ledger):
    names = list("abcdef")
    Y, public = (Factors().draw(n, seed) for n, seed in ((20_000, 1), (300, 2)))
    table = pd.DataFrame(Y, columns=names)
    public[np.random.default_rng(0).random(public.shape) < 0.2] = np.nan
    given = {
        "array": lambda points: points,
        "pandas": lambda points: pd.DataFrame(points, columns=names),
        "nullable": lambda points: pd.DataFrame(points, columns=names).astype("Float64"),
        "pandas of arrow": lambda points: pd.DataFrame(points, columns=names).astype("double[pyarrow]"),
        "polars": lambda points: pl.DataFrame(points, schema=names, nan_to_null=True),
        "arrow": lambda points: pa.table([pa.array(x, from_pandas=True) for x in points.T], names=names),
    }[kind]
    made = release_mixture(table, budget=BUDGET, public=given(public), components=1)
    center = np.nanmedian(public, axis=0)
    np.testing.assert_allclose(made.preprocess.center, center, rtol=1e-12)
    np.testing.assert_allclose(
        made.preprocess.scale, np.nanmedian(np.abs(public - center), axis=0), rtol=1e-12
    )
    public[:, 4] = np.nan
    with pytest.raises(ValueError, match=r"^public has no values in column 'e': must have some in every"):
        release_mixture(table, budget=BUDGET, public=given(public), ledger=ledger, dataset="people")
    assert ledger.history("people") == ()


def test_columns_that_the_preprocessor_does_not_have_are_told():
    table = pd.DataFrame(Factors().draw(3_000, 1), columns=list("abcdef"))
    units = Preprocessor((0.0, 0.0), (1.0, 1.0), column_names=("a", "b"))
    with pytest.raises(ValueError, match=r"must have 2, like the preprocessor; choose them with columns="):
        release_mixture(table, budget=BUDGET, preprocess=units)
    made = release_mixture(table, budget=BUDGET, preprocess=units, columns=["a", "b"])
    assert made.column_names == ("a", "b")


def test_a_preprocessor_that_was_paid_for_is_counted():
    Y = Factors().draw(20_000, 1)
    paid = private_preprocessor(Y, bounds=[[-20.0, 20.0]] * 6, budget=Budget(0.5, 1e-7), log=False)
    made = release_mixture(Y, budget=BUDGET, preprocess=paid)
    assert made.guarantee.mu == pytest.approx(math.hypot(BUDGET.mu, paid.guarantee.mu))
    assert made.spends[0][0] == "preprocessing"


def test_values_that_are_not_valid():
    Y = np.exp(Factors(spread=0.3).draw(20_000, 1))
    units = Preprocessor.from_public(Y[:200] * 1.1, log=True)
    bad = Y.copy()
    bad[3, 0], bad[5, 1], bad[7, 2] = -1.0, np.inf, 1e300
    for value in (-1.0, np.inf, 1e300):
        hurt = Y.copy()
        hurt[9, 1] = value
        with pytest.raises(ValueError, match="infinite or too large"):
            release_mixture(hurt, budget=BUDGET, preprocess=units)
    options = {"budget": BUDGET, "preprocess": units, "on_invalid": "drop", "seed": 1}
    options |= {"adjacency": "add-remove", "n_public": len(bad)}
    made = release_mixture(bad, **options)
    same = release_mixture(np.delete(Y, [3, 5, 7], axis=0), **options)
    np.testing.assert_array_equal(made.means, same.means)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"components": 0}, "components = 0"),
        ({"components": "many"}, "components = 'many'"),
        ({"components": 200}, "use fewer components or rounds"),
        ({"components": 1000}, "components = 1000: must be at most"),
        ({"rounds": 21}, "rounds = 21: must be at most 20"),
        ({"on_missing": "keep"}, "on_missing = 'keep'"),
        ({"preprocess": 3}, "preprocess = 3"),
        ({"adjacency": "add-remove"}, "n_public = None"),
        ({"budget": Budget(0.01, 1e-9)}, "too few at epsilon = 0.01"),
    ],
)
def test_what_is_refused_before_the_spend(arguments, text, ledger):
    Y = Factors().draw(3_000, 1)
    with pytest.raises(ValueError, match=text):
        release_mixture(Y, **{"budget": BUDGET, "ledger": ledger, "dataset": "people"} | arguments)
    assert ledger.history("people") == ()


def test_add_remove_has_less_noise_and_a_private_number_of_records():
    Y = Factors().draw(20_000, 1)
    made = release_mixture(Y, budget=BUDGET, adjacency="add-remove", n_public=20_000, components=4, seed=1)
    other = release_mixture(Y, budget=BUDGET, components=4, seed=1)
    ratio = np.sum(made.signal_to_noise) / np.sum(other.signal_to_noise)
    assert ratio == pytest.approx(math.sqrt(2.0), rel=0.1)
    assert "20000" not in str(made.guarantee)


def _two_groups_in_one(truth):
    """A start: one component for the first two groups, one for the third, the others far from all records."""

    def start(whole, components):
        shares = truth.weights[:2] / truth.weights[:2].sum()
        middle = shares @ truth.means[:2]
        gaps = truth.means[:2] - middle
        pooled = np.einsum("k,kde->de", shares, truth.covariances[:2] + gaps[:, :, None] * gaps[:, None, :])
        far = np.full((components - 2, len(middle)), 60.0) * (1.0 + np.arange(components - 2))[:, None]
        return Gaussians(
            np.full(components, 1.0 / components),
            np.vstack([middle, truth.means[2], far]),
            np.stack([pooled, truth.covariances[2], *[np.eye(len(middle))] * len(far)]),
        )

    return start


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_group_that_shares_a_component_with_another_is_found_again(seed, monkeypatch):
    truth = Factors(D=6, spread=3.0, seed=seed)
    Y, clean = truth.draw(30_000, 10 + seed), truth.draw(2_000, 20 + seed)
    noisy = clean + 0.6 * np.random.default_rng(seed).normal(size=clean.shape)
    monkeypatch.setattr(rounds, "start", _two_groups_in_one(truth))

    def error():
        made = release_mixture(Y, budget=BUDGET, components=6, seed=seed)
        best = share(truth.exact(made).transform(noisy, 0.6), clean, noisy)
        return share(made.transform(noisy, 0.6), clean, noisy) / best

    found = error()
    monkeypatch.setattr(rounds, "SPLIT_AFTER", ())
    lost = error()
    assert found < 1.03
    assert lost > 1.08


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_components_that_are_noise_are_left_out_in_the_end(seed, monkeypatch):
    truth = Factors(D=6, seed=seed)
    Y, clean = truth.draw(30_000, 10 + seed), truth.draw(4_000, 20 + seed)
    noisy = clean + 0.6 * np.random.default_rng(seed).normal(size=clean.shape)
    made = release_mixture(Y, budget=BUDGET, seed=seed)
    assert min(made.signal_to_noise) >= tuning.LEAST_MASS
    monkeypatch.setattr(rounds, "with_records", lambda signals: list(range(len(signals))))
    monkeypatch.setattr(rounds, "SPLIT_AFTER", ())
    all_of_them = release_mixture(Y, budget=BUDGET, seed=seed)
    assert len(made.weights) < len(all_of_them.weights)
    best = share(truth.exact(made).transform(noisy, 0.6), clean, noisy)
    assert share(made.transform(noisy, 0.6), clean, noisy) < 1.01 * best
    assert share(all_of_them.transform(noisy, 0.6), clean, noisy) > 1.01 * best


def test_streams_are_refused():
    Y = Factors().draw(3_000, 1)
    reader = pa.table(dict(zip("abcdef", Y.T, strict=True))).to_reader()
    with pytest.raises(ValueError, match="only once"):
        release_mixture(reader, budget=BUDGET, n_public=3_000)


# Read-out and recipe


def test_a_release_without_noise_is_read_exactly():
    rng = np.random.default_rng(0)
    before = Gaussians(np.ones(1), rng.normal(size=(1, 4)), np.cov(rng.normal(size=(4, 40)))[None])
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    Y = (rng.normal(size=(5_000, 4)) * [0.5, 1.0, 1.5, 2.0]) @ turn + 3.0  # no direction near the floor
    U = (Y - before.means[0]) @ before.whitening[0]
    T = np.column_stack([U, np.ones(len(U))])
    found = in_data_units(before, read_moments((T.T @ T)[None], 1e-9))
    np.testing.assert_allclose(found.means[0], Y.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.covariances[0], np.cov(Y.T, bias=True), rtol=1e-7, atol=1e-9)


def test_covariances_have_a_factor_and_stay_unless_rounding_endangers_it():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 5, 9))
    sound = A @ A.transpose(0, 2, 1)
    units = 10.0 ** np.array([-12.0, -6.0, 0.0, 6.0, 12.0])
    graded = sound * units[:, None] * units
    np.testing.assert_array_equal(definite(graded), graded)
    flat = np.ones((5, 5)) + 1e-16 * np.diag(rng.random(5))  # all columns the same
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(flat)
    for matrix in (flat, flat * units[:, None] * units):
        both = np.stack([graded[0], matrix])
        made = definite(both)
        np.linalg.cholesky(made)
        np.testing.assert_array_equal(made[0], graded[0])
        np.testing.assert_allclose(made[1], matrix, rtol=1e-8)
    whole = Gaussians(np.ones(1), np.zeros((1, 5)), np.eye(5)[None])
    stretched = whole._replace(covariances=1e18 * np.ones((1, 5, 5)))
    np.linalg.cholesky(not_flat(stretched, whole).covariances)


def test_a_release_of_nothing_but_noise_stays_where_it_was():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(1, 5, 5)) * 30.0
    noise = (noise + noise.transpose(0, 2, 1)) / 2.0
    found = read_moments(noise + 400.0 * np.eye(5), 30.0)
    assert np.abs(found.covariances - np.eye(4)).max() < 0.1


def test_the_number_of_components_grows_with_the_signal():
    numbers = [
        recipe.choose_recipe(n, 10, 0.25, "replace-one", None, None).components for n in (10**4, 10**5, 10**7)
    ]
    assert numbers == sorted(numbers)
    assert numbers[-1] == tuning.MOST_COMPONENTS
    for components in (1, 2, 12):
        made = recipe.choose_recipe(10**5, 10, 0.25, "replace-one", components, None)
        assert math.fsum(made.shares) == pytest.approx(1.0, abs=1e-15)
        assert len(made.shares) == len(made.taus)
    for number in (1, 3, 20):
        assert math.fsum(recipe.growing(0.9, number)) == pytest.approx(0.9)
