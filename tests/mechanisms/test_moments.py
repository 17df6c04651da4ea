"""The certified release: what is read off it, its noise, its guarantee, what is refused before the spend."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import naive
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpmd_fast.mechanisms.moments
from dpmd_fast import Budget, LargeDeltaWarning, Release, release_atlas, release_moments
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.accounting import gdp_mu
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.guarantee import certified_guarantee
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.privacy.noise import noisy_sums, rounded_normals

BUDGET = Budget(epsilon=1.0, delta=1e-6)
ADJACENCIES = ("replace-one", "add-remove")


def sheet(n, D, seed=0):
    """Records near a plane of two dimensions in R^D, locations near it and one far away."""
    rng = np.random.default_rng(seed + D)
    frame = np.linalg.qr(rng.normal(size=(D, 2)))[0]
    Y = rng.uniform(-1.0, 1.0, (n, 2)) @ frame.T + 0.02 * rng.normal(size=(n, D)) + 3.0
    locations = rng.uniform(-0.7, 0.7, (12, 2)) @ frame.T + 0.05 * rng.normal(size=(12, D)) + 3.0
    locations[5] += 50.0
    return Y, locations


def fake(values, locations, noise_scale=0.1, **changes):
    """A release that holds given values."""
    settings = {
        "values": values,
        "features": "moments",
        "noise_scale": noise_scale,
        "tau": 1.0,
        "c": HOMOGENEOUS,
        "bandwidth": 0.7,
        "beta": 2.0,
        "lattice": 1e-9,
        "locations": locations,
        "adjacency": "replace-one",
        "guarantee": certified_guarantee(
            BUDGET, mu=BUDGET.mu, adjacency="replace-one", seeded=True, validated=True
        ),
    }
    return Release(**{**settings, **changes})


# Read-out


@pytest.mark.parametrize("D", [1, 2, 5, 9])
def test_read_out_is_the_plain_formula(D):
    rng = np.random.default_rng(D)
    Y, locations = sheet(300, max(D, 2))
    Y, locations = Y[:, :D], locations[:, :D]
    values = naive.clipped_moments(locations, Y, 0.7, 2.0, HOMOGENEOUS, 5.0)
    noise = 0.05 * rng.normal(size=values.shape)
    release = fake(values + noise + noise.transpose(0, 2, 1), locations)
    mass_scale = 0.1 / HOMOGENEOUS
    far = 0
    for a, value in enumerate(release.values):
        mass, mean, covariance = naive.read_out(value, locations[a], 0.7, HOMOGENEOUS)
        assert release.mass[a] == pytest.approx(mass, rel=1e-12)
        assert release.signal_to_noise[a] == pytest.approx(mass / mass_scale, rel=1e-12)
        assert release.occupied[a] == (mass >= 3.0 * mass_scale)
        if not release.occupied[a]:
            far += 1
            assert np.isnan(release.mean[a]).all()
            assert np.isnan(release.covariance[a]).all()
            assert not release.tangents(1)[a].any()
            continue
        np.testing.assert_allclose(release.mean[a], mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(release.covariance[a], covariance, rtol=0, atol=1e-12)
        for dim in range(1, D + 1):
            P = naive.top_projector(covariance, dim)[0]
            V = release.tangents(dim)[a]
            assert V.shape == (D, dim)
            np.testing.assert_allclose(V @ V.T, P, rtol=0, atol=1e-9)
    assert far == 1


@pytest.mark.parametrize(("D", "dim", "positive"), [(3, 2, 1), (3, 2, 2), (6, 3, 1), (6, 3, 3), (6, 3, 5)])
def test_tangents_that_cleaning_leaves_without_spread_follow_a_rule(D, dim, positive):
    """They turn with the coordinates: a vector that a solver picks from a degenerate space would not."""
    rng = np.random.default_rng(D + 10 * positive)
    values = np.empty((20, D + 1, D + 1))
    for a in range(len(values)):
        vectors = np.linalg.qr(rng.normal(size=(D + 1, D + 1)))[0]
        vectors[:, 0] = np.r_[np.zeros(D), 1.0] + 0.2 * vectors[:, 0]
        vectors = np.linalg.qr(vectors)[0]
        spreads = np.r_[50.0, rng.uniform(1.0, 9.0, positive - 1), -rng.uniform(1.0, 9.0, D + 1 - positive)]
        values[a] = (vectors * spreads) @ vectors.T
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0]
    whole = np.eye(D + 1)
    whole[:D, :D] = turn
    plain = fake(values, np.zeros((20, D)), noise_scale=10.0).cleaned(dim)
    turned = fake(whole @ values @ whole.T, np.zeros((20, D)), noise_scale=10.0).cleaned(dim)
    assert plain.occupied.all()
    assert turned.occupied.all()
    tangents, after = plain.tangents(dim), turned.tangents(dim)
    gram = tangents.transpose(0, 2, 1) @ tangents
    np.testing.assert_allclose(gram, np.tile(np.eye(dim), (20, 1, 1)), atol=1e-9)
    projectors, afterwards = (V @ V.transpose(0, 2, 1) for V in (turn @ tangents, after))
    np.testing.assert_allclose(afterwards, projectors, atol=1e-7)


@pytest.mark.parametrize(("D", "dim"), [(1, 1), (3, 2), (6, 1), (6, 2), (6, 5), (6, 6)])
@pytest.mark.parametrize("noise_scale", [1e-3, 0.3, 50.0])
def test_cleaned_is_the_plain_formula(D, dim, noise_scale):
    rng = np.random.default_rng(D)
    Y, locations = sheet(300, max(D, 2))
    Y, locations = Y[:, :D], locations[:, :D]
    values = naive.clipped_moments(locations, Y, 0.7, 2.0, HOMOGENEOUS, 5.0)
    noise = 0.1 * rng.normal(size=values.shape)
    release = fake(values + noise + noise.transpose(0, 2, 1), locations, noise_scale)
    cleaned = release.cleaned(dim)
    ref = naive.clean_moments(release.values, dim, noise_scale, release.occupied)
    np.testing.assert_allclose(cleaned.values, ref, rtol=0, atol=1e-12 * np.abs(values).max())
    np.testing.assert_array_equal(cleaned.values, cleaned.values.transpose(0, 2, 1))
    assert np.linalg.eigvalsh(cleaned.values).min() > -1e-12 * np.abs(values).max()
    assert cleaned.guarantee is release.guarantee
    assert cleaned.noise_scale == noise_scale
    assert release.cleaned(dim).mass is not release.mass  # nothing kept from before


def test_cleaning_takes_out_noise():
    # 5 of 8 directions hold noise alone: without it the matrices come closer to those without noise
    Y, locations = sheet(4000, 7)
    quiet = naive.clipped_moments(locations, Y, 0.7, 2.0, HOMOGENEOUS, 1.0)
    release = release_moments(Y, locations, bandwidth=0.7, budget=BUDGET, tau=1.0, seed=0)
    before = np.linalg.norm(release.values - quiet, axis=(1, 2))[release.occupied]
    after = np.linalg.norm(release.cleaned(2).values - quiet, axis=(1, 2))[release.occupied]
    assert len(before) == 11
    assert after.mean() < 0.9 * before.mean()


def test_read_out_refuses_what_it_cannot_do():
    Y, locations = sheet(300, 3)
    release = release_moments(Y, locations, bandwidth=0.7, budget=BUDGET)
    for dim in (0, 4, -1, 1.0, True):
        with pytest.raises(ValueError, match="dim"):
            release.tangents(dim)
        with pytest.raises(ValueError, match="dim"):
            release.cleaned(dim)
    other = fake(release.values, locations, features="residual")
    for read in (lambda: other.mass, lambda: other.mean, lambda: other.covariance, lambda: other.cleaned(1)):
        with pytest.raises(ValueError, match="residual"):
            read()
    with pytest.raises(AttributeError):
        release.tau = 2.0
    assert release != release_moments(Y, locations, bandwidth=0.7, budget=BUDGET)
    assert "values=" not in repr(release)
    assert "locations=" not in repr(release)


def test_nothing_occupied():
    Y, locations = sheet(300, 3)
    release = release_moments(Y, locations + 100.0, bandwidth=0.7, budget=BUDGET, seed=3)
    assert not release.occupied.any()
    assert np.isnan(release.mean).all()
    assert not release.tangents(2).any()
    assert np.isfinite(release.cleaned(2).values).all()


# Values and noise


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("D", [1, 3, 9])
def test_values_are_exact_sums_plus_rounded_normals(D, adjacency):
    Y, locations = sheet(300, max(D, 2))
    Y, locations = Y[:, :D], locations[:, :D]
    K, F = len(locations), D + 1
    release = release_moments(
        Y, locations, bandwidth=0.7, budget=BUDGET, beta=2.5, adjacency=adjacency, seed=11
    )
    index = build_index(locations, 0.7)
    tau = natural_tau(index, 2.5)
    lattice = choose_lattice(BUDGET.mu, tau, adjacency)
    sums = MomentSums(index, 2.5, tau, lattice.steps, HOMOGENEOUS)
    sums.add(Y)
    steps = np.rint(release.values / release.lattice)
    # rounding is that of one product and one quotient, far below one step
    assert np.abs(release.values / release.lattice - steps).max() < 1e-3
    noise = steps.astype(np.int64) - sums.total()
    source = open_source(11)
    diagonal = rounded_normals(source, K * F, lattice.deviation)
    above = rounded_normals(source, K * F * (F - 1) // 2, lattice.off_diagonal)
    for a in range(K):
        at = 0
        for j in range(F):
            assert noise[a, j, j] == diagonal[a * F + j]
            for k in range(j + 1, F):
                assert noise[a, j, k] == noise[a, k, j] == above[a * F * (F - 1) // 2 + at]
                at += 1
    assert (release.tau, release.lattice, release.c) == (tau, lattice.step, HOMOGENEOUS)
    assert (release.beta, release.bandwidth, release.adjacency) == (2.5, 0.7, adjacency)
    assert release.noise_scale == lattice.step * lattice.deviation
    np.testing.assert_array_equal(release.locations, locations)
    assert not np.shares_memory(release.locations, locations)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_noise_has_the_deviation_that_is_stated(adjacency):
    # No record is in reach: pure noise. Six standard errors, so that all of this fails by chance less than
    # once in 10^6 runs: 1 % of either deviation would be seen.
    rng = np.random.default_rng(0)
    locations = rng.uniform(-1e3, 1e3, (40_000, 4))
    release = release_moments(
        np.full((50, 4), 1e5), locations, bandwidth=1.0, budget=BUDGET, adjacency=adjacency, seed=7
    )
    np.testing.assert_array_equal(release.values, release.values.transpose(0, 2, 1))
    upper = np.triu_indices(5, 1)
    parts = {
        release.noise_scale: release.values[:, np.arange(5), np.arange(5)],
        release.noise_scale / math.sqrt(2): release.values[:, upper[0], upper[1]],
    }
    for scale, noise in parts.items():
        assert abs(noise.mean()) < 6 * scale / math.sqrt(noise.size)
        ratio = noise.var() / scale**2
        allowed = 6 * math.sqrt(2 / noise.size)
        assert allowed < 0.02
        assert abs(ratio - 1) < allowed
        correlations = np.corrcoef(noise.T) - np.eye(noise.shape[1])
        assert np.abs(correlations).max() < 6 / math.sqrt(len(noise))
        assert abs((noise**4).mean() / scale**4 - 3) < 6 * math.sqrt(96 / noise.size)
    diagonal, above = parts.values()
    assert abs(np.corrcoef(diagonal[:, 0], above[:, 0])[0, 1]) < 6 / math.sqrt(len(diagonal))
    assert np.mean(release.occupied) == pytest.approx(0.00135, abs=0.001)  # three deviations, one-sided


def test_fresh_noise_without_a_seed_and_the_same_with_one():
    Y, locations = sheet(300, 3)
    options = {"bandwidth": 0.7, "budget": BUDGET}
    one, two = (release_moments(Y, locations, **options).values for _ in range(2))
    assert (one != two).mean() > 0.99
    one, two = (release_moments(Y, locations, seed=4, **options).values for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert (release_moments(Y, locations, seed=5, **options).values != one).mean() > 0.99


# The lattice


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_lattice_costs_at_most_what_was_asked(adjacency):
    apart2 = 2 if adjacency == "replace-one" else 1
    rng = np.random.default_rng(0)
    mus = [10.0**k for k in range(-6, 6)] + list(10.0 ** rng.uniform(-6, 5, 300)) + [BUDGET.mu, math.sqrt(2)]
    for mu in mus:
        tau = 10.0 ** rng.uniform(-9, 9)
        lattice = choose_lattice(mu, tau, adjacency)
        # (apart bound / deviation)^2 in exact arithmetic, against mu up to a last digit
        cost2 = Fraction(apart2 * lattice.bound**2, lattice.deviation**2)
        assert cost2 <= Fraction(mu) ** 2 * (1 + Fraction(1, 2**51))
        assert lattice.mu <= mu
        assert lattice.mu**2 == pytest.approx(float(cost2), rel=1e-15)
        # nor much less: one step of the bound
        assert lattice.mu > mu * (1 - 1.01 / lattice.bound)
        assert lattice.step * lattice.bound == pytest.approx(tau, rel=1e-15)
        assert lattice.noise_scale == pytest.approx(math.sqrt(apart2) * tau / lattice.mu, rel=1e-14)
        assert 2 * lattice.off_diagonal**2 >= lattice.deviation**2 > 2 * (lattice.off_diagonal - 1) ** 2
        assert lattice.bound < 2**31  # its square is a 64-bit integer
        assert lattice.deviation <= 2**40


def test_lattices_that_do_not_fit_are_refused():
    for mu in (1e-9, 1e8, 1e300):
        with pytest.raises(ValueError, match=r"mu = .* choose another budget"):
            choose_lattice(mu, 1.0, "replace-one")
    for mu in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="mu"):
            choose_lattice(mu, 1.0, "replace-one")
    for tau in (0.0, -1.0, math.nan, math.inf, 5e-324, 1e-200, 1e200):
        with pytest.raises(ValueError, match="tau"):
            choose_lattice(1.0, tau, "add-remove")


def test_sums_beyond_the_digits_of_floats_keep_their_noise():
    # sums of 2^61 and more: the noise goes in as integers, before anything is rounded
    lattice = choose_lattice(1.0, 1.0, "replace-one")
    sums = np.full((1, 2, 2), (1 << 61) + 1, np.int64)
    ref = sums.astype(object)
    source = open_source(3)
    for (j, k), noise in zip(
        ((0, 0), (1, 1), (0, 1)),
        [*rounded_normals(source, 2, lattice.deviation), *rounded_normals(source, 1, lattice.off_diagonal)],
        strict=True,
    ):
        ref[0, j, k] += int(noise)
        ref[0, k, j] = ref[0, j, k]
    np.testing.assert_array_equal(noisy_sums(sums, lattice, open_source(3)), lattice.step * ref.astype(float))


# Guarantee


@pytest.mark.parametrize("conversion", ["gdp", "zcdp", "paper"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("on_invalid", ["raise", "drop"])
def test_guarantee(conversion, adjacency, on_invalid):
    Y, locations = sheet(300, 3)
    budget = Budget(0.8, 1e-5, conversion)
    options = {"bandwidth": 0.7, "budget": budget, "adjacency": adjacency, "on_invalid": on_invalid}
    release = release_moments(Y, locations, **options)
    guarantee = release.guarantee
    assert guarantee.holds == "unconditional"
    assert (guarantee.epsilon, guarantee.delta, guarantee.adjacency) == (0.8, 1e-5, adjacency)
    assert budget.mu * (1 - 1e-6) < guarantee.mu <= budget.mu <= gdp_mu(0.8, 1e-5) * (1 + 1e-12)
    assert "every data set" in guarantee.statement
    assert adjacency in guarantee.statement
    text = " ".join(guarantee.conditions)
    assert ("number of records is public" in text) == (adjacency == "replace-one")
    assert ("checked for non-finite" in text) == (on_invalid == "raise")
    assert "public" in text
    apart = math.sqrt(2) if adjacency == "replace-one" else 1.0
    assert release.noise_scale == pytest.approx(apart * release.tau / budget.mu, rel=1e-6)
    seeded = release_moments(Y, locations, seed=1, **options).guarantee
    assert seeded.holds == "not private"
    assert "seed" in seeded.statement
    assert seeded.mu == guarantee.mu


def test_adding_and_removing_takes_less_noise():
    Y, locations = sheet(300, 3)
    replace, add = (
        release_moments(Y, locations, bandwidth=0.7, budget=BUDGET, adjacency=adjacency)
        for adjacency in ADJACENCIES
    )
    assert add.tau == replace.tau
    assert add.noise_scale / replace.noise_scale == pytest.approx(1 / math.sqrt(2), rel=1e-6)


def test_the_number_of_records_does_not_show_where_it_is_private():
    Y, locations = sheet(300, 3)
    loose = Budget(1.0, 0.1)
    with pytest.warns(LargeDeltaWarning, match="publishing each record"):
        release_moments(Y, locations, bandwidth=0.7, budget=loose)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (300, 1, 0):
            release = release_moments(
                Y[:n], locations, bandwidth=0.7, budget=loose, adjacency="add-remove", seed=1
            )
            assert release.values.shape == (12, 4, 4)
            assert "300" not in repr(release)


def test_tau_is_a_scale_and_a_public_number():
    Y, locations = sheet(2000, 3)
    index = build_index(locations, 0.7)
    natural = natural_tau(index, 2.0)
    options = {"bandwidth": 0.7, "budget": BUDGET, "seed": 2}
    release = release_moments(Y, locations, **options)
    assert release.tau == natural
    for share in (0.01, 0.2, 5.0):
        other = release_moments(Y, locations, tau=share * natural, **options)
        assert other.tau == share * natural
        assert other.noise_scale == pytest.approx(share * release.noise_scale, rel=1e-12)
    # far below the natural one all records have the same norm, whatever tau is
    small, smaller = (release_moments(Y, locations, tau=tau, **options) for tau in (1e-9, 1e-12))
    np.testing.assert_allclose(small.values, 1e3 * smaller.values, rtol=0, atol=1e-2 * small.noise_scale)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_units_do_not_matter(scale):
    Y, locations = sheet(2000, 9)
    options = {"budget": BUDGET, "seed": 2}
    ref = release_moments(Y, locations, bandwidth=0.7, **options)
    comp = release_moments(scale * Y, scale * locations, bandwidth=scale * 0.7, **options)
    assert comp.noise_scale == pytest.approx(ref.noise_scale, rel=1e-9)
    np.testing.assert_allclose(comp.values, ref.values, rtol=0, atol=1e-2 * ref.noise_scale)
    np.testing.assert_array_equal(comp.occupied, ref.occupied)


# Invalid records


def with_invalid(Y):
    bad = np.repeat(Y, 2, axis=0)[: len(Y) + 6]
    values = (np.nan, np.inf, -np.inf, 1e101, -1e300, 1.79e308)
    for i, value in enumerate(values):
        bad[i] = Y[i]
        bad[i, i % Y.shape[1]] = value
    bad[len(values) :] = Y
    return bad


def test_invalid_records_are_dropped_without_a_word(tmp_path):
    Y, locations = sheet(300, 3)
    bad = with_invalid(Y)
    table = pa.table({name: bad[:, j] for j, name in enumerate("abc")})
    pq.write_table(table, tmp_path / "bad.parquet", row_group_size=50)
    nulls = pa.table({name: pa.array(bad[:, j], mask=np.arange(306) < 6) for j, name in enumerate("abc")})
    options = {"bandwidth": 0.7, "budget": BUDGET, "seed": 2, "on_invalid": "drop"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ref = release_moments(Y, locations, **options)
        shuffled = np.random.default_rng(0).permutation(bad)
        for reference in (bad, shuffled, table, nulls, pd.DataFrame(bad), tmp_path / "bad.parquet"):
            comp = release_moments(reference, locations, **options)
            np.testing.assert_array_equal(comp.values, ref.values)
            assert comp.guarantee == ref.guarantee
        with np.errstate(over="ignore"):
            single = bad.astype(np.float32)
        np.testing.assert_array_equal(
            release_moments(single, locations, **options).values,
            release_moments(Y.astype(np.float32), locations, **options).values,
        )
        nothing = release_moments(np.full((300, 3), np.nan), locations, **options)
        np.testing.assert_array_equal(nothing.values, release_moments(Y + 1e3, locations, **options).values)


def test_invalid_records_are_refused_without_saying_which(monkeypatch, tmp_path):
    Y, locations = sheet(300, 3)
    texts = set()
    monkeypatch.setattr(dpmd_fast.mechanisms.moments, "noisy_moments", None)  # a spend would call it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (np.nan, np.inf, -np.inf, 1.5e100, -1e300):
            for row, column in ((0, 0), (299, 2)):
                bad = Y.copy()
                bad[row, column] = value
                table = pa.table({name: bad[:, j] for j, name in enumerate("abc")})
                pq.write_table(table, tmp_path / "bad.parquet")
                for reference in (bad, table, pd.DataFrame(bad), tmp_path / "bad.parquet"):
                    with pytest.raises(ValueError, match="non-finite or too large") as refused:
                        release_moments(reference, locations, bandwidth=0.7, budget=BUDGET)
                    texts.add(str(refused.value))
                    assert refused.value.__cause__ is None
                    assert refused.value.__context__ is None
    assert len(texts) == 1


# Refused before the spend


def refusals():
    Y, locations = sheet(300, 3)
    table = pa.table({name: Y[:, j] for j, name in enumerate("abc")})
    frame = pd.DataFrame(Y)
    yield "nan locations", Y, np.full((4, 3), np.nan), {}, "locations"
    yield "inf locations", Y, np.full((4, 3), np.inf), {}, "locations"
    yield "huge locations", Y, np.full((4, 3), 1e101), {}, "locations"
    yield "no locations", Y, np.zeros((0, 3)), {}, "locations"
    yield "one dimension", Y, np.zeros(3), {}, "locations"
    yield "text locations", Y, np.array([["a", "b", "c"]]), {}, "locations"
    yield "columns", Y, locations[:, :2], {}, "column"
    yield "columns of a table", table, locations, {"columns": ["a", "b"]}, "column"
    yield "unknown columns", table, locations, {"columns": ["a", "b", "z"]}, "columns"
    yield "columns of an array", Y, locations, {"columns": ["a", "b", "c"]}, "columns"
    yield "tau 0", Y, locations, {"tau": 0.0}, "tau"
    yield "tau negative", Y, locations, {"tau": -1.0}, "tau"
    yield "tau nan", Y, locations, {"tau": math.nan}, "tau"
    yield "tau text", Y, locations, {"tau": "max"}, "tau"
    yield "tau subnormal", Y, locations, {"tau": 5e-324}, "tau"
    yield "bandwidth", Y, locations, {"bandwidth": 0.0}, "bandwidth"
    yield "beta", Y, locations, {"beta": 1.5}, "beta"
    yield "adjacency", Y, locations, {"adjacency": "neighbours"}, "adjacency"
    yield "adjacency none", Y, locations, {"adjacency": None}, "adjacency"
    yield "on_invalid", Y, locations, {"on_invalid": "ignore"}, "on_invalid"
    yield "threads", Y, locations, {"n_threads": 0}, "n_threads"
    yield "batch", Y, locations, {"batch_rows": 0}, "batch_rows"
    yield "seed", Y, locations, {"seed": -1}, "seed"
    yield "no budget", Y, locations, {"budget": 1.0}, "budget"
    yield "too small", Y, locations, {"budget": Budget(1e-9, 1e-10)}, "another budget"
    yield "too large", Y, locations, {"budget": Budget(1e15, 1e-6)}, "another budget"
    yield "the reference", Y, Y, {}, "public"
    yield "part of it", Y, Y[::3], {}, "public"
    yield "a view of it", Y, Y[:40].reshape(-1, 3), {}, "public"
    yield "the table", table, table, {}, "public"
    yield "the frame", frame, frame, {}, "public"
    yield "part of the frame", frame, frame.iloc[:5], {}, "public"
    yield "values of the frame", frame, frame.to_numpy()[:5], {}, "public"
    yield "text", np.full((300, 3), "secret-4711"), locations, {}, "not numbers"
    yield "complex", Y.astype(complex), locations, {}, "[Cc]omplex"
    yield "one dimension of records", Y[:, 0], locations, {}, "dimension"


@pytest.mark.parametrize("kind", [kind for kind, *_ in refusals()])
def test_refused_before_the_spend(kind, monkeypatch):
    _, reference, locations, changes, pattern = next(case for case in refusals() if case[0] == kind)
    monkeypatch.setattr(dpmd_fast.mechanisms.moments, "noisy_moments", None)
    monkeypatch.setattr("dpmd_fast.mechanisms.spend.open_source", None)
    with pytest.raises(ValueError, match=pattern) as refused:
        release_moments(reference, locations, **{"bandwidth": 0.7, "budget": BUDGET, **changes})
    assert "secret" not in str(refused.value)


def test_files_that_are_refused(tmp_path):
    _, locations = sheet(300, 3)
    (tmp_path / "text.parquet").write_text("secret-4711")
    for reference, error in (
        (tmp_path / "missing.parquet", FileNotFoundError),
        (tmp_path / "text.parquet", ValueError),
        (tmp_path, IsADirectoryError),
        ([], ValueError),
        (3.0, TypeError),
    ):
        with pytest.raises(error) as refused:
            release_moments(reference, locations, bandwidth=0.7, budget=BUDGET)
        assert "secret" not in str(refused.value)


def test_a_stream_cannot_be_checked_first():
    Y, locations = sheet(300, 3)
    table = pa.table({name: Y[:, j] for j, name in enumerate("abc")})
    with pytest.raises(ValueError, match="on_invalid='drop'"):
        release_moments(table.to_reader(), locations, bandwidth=0.7, budget=BUDGET)
    release_moments(table.to_reader(), locations, bandwidth=0.7, budget=BUDGET, on_invalid="drop")


# Public points in tables


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_public_points_are_matched_by_name(kind):
    Y, locations = sheet(300, 3)
    names = ["a", "b", "c"]
    reference = pa.table(dict(zip(names, Y.T, strict=True)))
    turned = kind({"other": locations[:, 0], **{name: locations[:, names.index(name)] for name in "cab"}})
    settings = {"bandwidth": 1.0, "budget": BUDGET, "seed": 0}
    expected = release_moments(Y, locations, **settings)
    found = release_moments(reference, turned, **settings)
    np.testing.assert_array_equal(found.locations, locations)
    np.testing.assert_array_equal(found.values, expected.values)
    lacking = kind({"a": locations[:, 0], "b": locations[:, 1], "x": locations[:, 2]})
    with pytest.raises(ValueError, match=r"locations lacks 1 column.*'c'"):
        release_moments(reference, lacking, **settings)
    atlas = {"bandwidth": 2.0, "dim": 2, "budget": Budget(20.0, 1e-6), "accept_risk": True, "seed": 0}
    made = release_atlas(reference, turned, **atlas)
    np.testing.assert_array_equal(
        made.layers[0].centers, release_atlas(Y, locations, **atlas).layers[0].centers
    )
    with pytest.raises(ValueError, match=r"anchors lacks 1 column.*'c'"):
        release_atlas(reference, lacking, **atlas)
