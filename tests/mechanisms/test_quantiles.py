"""Nested histograms: their sensitivity in exact integers, what is spent, and how well ranks come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmd_fast import Budget
from dpmd_fast.mechanisms.preprocessor import nested, noisy_counts
from dpmd_fast.models.quantiles import cumulative, fitted_counts, median_and_mad, quantile
from dpmd_fast.privacy import noise as mechanism
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.histograms import Grid, levels_of, nested_lattice, rank_error
from dpmd_fast.reference.histograms import NestedCounts

BINS = 16
GRIDS = [
    Grid.between(-3.0, 5.0, BINS, False),
    Grid.between(0.1, 100.0, BINS, True),
    Grid.between(1e-3, 1e3, BINS, False),
]


def counted(rows, grids=GRIDS, block=None):
    counts = NestedCounts(grids)
    rows = np.asarray(rows, dtype=np.float64).reshape(-1, len(grids))
    for start in range(0, len(rows), block or max(len(rows), 1)):
        counts.add(rows[start : start + (block or len(rows))])
    return counts.counts


def moved_by(a, b):
    """Squared distance of two lists of integer arrays, in Python's integers."""
    return sum(int(d) ** 2 for x, y in zip(a, b, strict=True) for d in (x - y).ravel())


values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-4.0, 6.0),
    st.sampled_from([float(e) for grid in GRIDS for e in grid.edges]),
)
record = st.lists(values, min_size=3, max_size=3)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(record, max_size=6),
    record,
    record,
    st.sampled_from([1e-3, 0.2, 3.0, 50.0]),
)
def test_neighbours_are_within_the_sensitivity(others, old, new, mu):
    D, L = len(GRIDS), levels_of(BINS)
    before, after = counted([*others, old]), counted([*others, new])
    fewer = counted(others) if others else np.zeros_like(before)
    # each histogram: sqrt(2 D) for a replaced record, sqrt(D) for one more
    for a, b, c in zip(nested(before), nested(after), nested(fewer), strict=True):
        assert moved_by([a], [b]) <= 2 * D
        assert moved_by([a], [c]) <= D
    # all of them, in the steps of the lattice
    for adjacency, other, apart in (("replace-one", after, 2), ("add-remove", fewer, 1)):
        plan = nested_lattice(mu, D, BINS, adjacency)
        ours, theirs = ([plan.unit * level for level in nested(counts)] for counts in (before, other))
        assert moved_by(ours, theirs) <= apart * plan.unit**2 * D * L <= apart * plan.lattice.bound**2
        assert math.sqrt(apart) * plan.lattice.bound / plan.lattice.deviation <= mu


def test_the_sensitivity_is_attained():
    low, high = counted([[-9.0, 0.0, 0.0]]), counted([[9.0, 1e9, 1e9]])
    assert moved_by(nested(low), nested(high)) == 2 * 3 * levels_of(BINS)


def test_bins_of_a_plain_loop():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)) * 4.0
    rows[:17] = np.stack([grid.edges for grid in GRIDS], axis=1)  # an edge belongs to the bin above it
    rows[20, 0], rows[21, 1], rows[22, 2] = np.nan, np.inf, -np.inf
    ref = np.zeros((3, BINS), dtype=int)
    for row in rows:
        for j, x in enumerate(row):
            if math.isfinite(x):
                below = sum(1 for edge in GRIDS[j].edges[1:-1] if edge <= x)
                ref[j, below] += 1
    np.testing.assert_array_equal(counted(rows), ref)
    np.testing.assert_array_equal(counted(rows, block=7), ref)
    np.testing.assert_array_equal(counted(rows[rng.permutation(200)], block=11), ref)
    coarse, fine = nested(ref)
    assert coarse.tolist() == [[sum(fine[j, 4 * k : 4 * k + 4]) for k in range(4)] for j in range(3)]


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("columns", "bins", "mu"), [(1, 16, 0.01), (10, 1024, 0.24), (60, 4096, 5.0)])
def test_every_node_gets_the_noise_that_was_paid_for(adjacency, columns, bins, mu, monkeypatch):
    drawn = []
    real = mechanism.rounded_normals

    def watched(source, size, deviation, n_threads=None):
        drawn.extend([deviation] * int(size))
        return real(source, size, deviation, n_threads)

    monkeypatch.setattr(mechanism, "rounded_normals", watched)
    plan = nested_lattice(mu, columns, bins, adjacency)
    counts = np.random.default_rng(0).integers(0, 50, size=(columns, bins))
    levels = noisy_counts(counts, plan, open_source(1))
    assert len(drawn) == sum(level.size for level in levels) == sum(level.size for level in nested(counts))
    delta = math.sqrt((2 if adjacency == "replace-one" else 1) * columns * levels_of(bins))
    spent = delta * plan.unit / drawn[0]
    assert set(drawn) == {plan.lattice.deviation}
    assert mu * (1.0 - 1e-5) < spent <= plan.lattice.mu <= mu
    deviations = np.concatenate([(a - b).ravel() for a, b in zip(levels, nested(counts), strict=True)])
    if len(deviations) > 1000:
        assert deviations.std() == pytest.approx(plan.noise_scale, rel=0.05)
        # six standard errors, and more than six are 5 % of the deviation: once in 5 10^8 runs
        assert abs(deviations.mean()) < 6.0 * plan.noise_scale / math.sqrt(len(deviations))


def test_the_noise_is_independent_of_the_counts():
    plan = nested_lattice(0.3, 2, 64, "replace-one")
    rng = np.random.default_rng(0)
    few, many = rng.integers(0, 3, size=(2, 64)), rng.integers(0, 10**9, size=(2, 64))
    for a, b, c, d in zip(
        noisy_counts(few, plan, open_source(3)),
        noisy_counts(many, plan, open_source(3)),
        nested(few),
        nested(many),
        strict=True,
    ):
        np.testing.assert_allclose(a - c, b - d, atol=1e-3)


def test_counts_without_noise_are_kept():
    counts = np.random.default_rng(0).integers(0, 30, size=(3, 256))
    for total in (None, 1):
        if total:
            counts[:, -1] += 5000 - counts.sum(axis=1)
            total = 5000
        np.testing.assert_allclose(fitted_counts(nested(counts), total), counts, atol=1e-9)


def test_the_fit_is_least_squares_where_nothing_is_negative():
    rng = np.random.default_rng(1)
    counts = rng.integers(1000, 2000, size=(2, 16))
    levels = [level + rng.normal(size=level.shape) for level in nested(counts)]
    tree = np.vstack([np.kron(np.eye(4), np.ones(4)), np.eye(16)])
    for j in range(2):
        seen = np.concatenate([level[j] for level in levels])
        ref = np.linalg.lstsq(tree, seen, rcond=None)[0]
        np.testing.assert_allclose(fitted_counts(levels)[j], ref, rtol=1e-9)
    fitted = fitted_counts(levels, 12345.0)
    np.testing.assert_allclose(fitted.sum(axis=1), 12345.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1e4), st.booleans())
def test_fitted_counts_are_a_distribution(seed, noise, known):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, size=(2, 64))
    levels = [level + noise * rng.normal(size=level.shape) for level in nested(counts)]
    fitted = fitted_counts(levels, 100.0 if known else None)
    assert (fitted >= 0.0).all()
    if known:
        np.testing.assert_allclose(fitted.sum(axis=1), 100.0)
    edges = np.linspace(-1.0, 1.0, 65)
    for row in fitted:
        ranks = cumulative(row)
        assert ranks[0] == 0.0
        assert ranks[-1] == 1.0
        median, mad = median_and_mad(edges, ranks)
        assert -1.0 <= median <= 1.0
        assert 0.99 / 4.0 * (2.0 / 64) <= mad <= 2.0
        assert quantile(edges, ranks, 0.1) <= median <= quantile(edges, ranks, 0.9)


def test_quantiles_of_known_distributions():
    edges = np.array([0.0, 1.0, 2.0, 5.0])
    assert quantile(edges, np.array([0.0, 0.5, 0.5, 1.0]), 0.5) == 1.5  # the middle of the flat stretch
    assert quantile(edges, np.array([0.0, 0.2, 0.8, 1.0]), 0.5) == pytest.approx(1.5)
    assert quantile(edges, np.array([0.0, 0.2, 0.8, 1.0]), 0.9) == pytest.approx(3.5)
    # uniform on (0, 1): median 1/2, MAD 1/4; on (0, 3) with density halved beyond 1
    edges = np.linspace(0.0, 1.0, 5)
    assert median_and_mad(edges, edges) == (pytest.approx(0.5), pytest.approx(0.25))
    median, mad = median_and_mad(np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.5, 1.0]))
    assert median == 1.0
    assert mad == pytest.approx(2.0 / 3.0)  # half of it lies within (1/3, 5/3): 1/3 + 1/6


def test_the_predicted_error_of_ranks():
    n, D, budget = 20_000, 6, Budget(1.0, 1e-6)
    grids = [Grid.between(-10.0, 10.0, 1024, False)] * D
    X = np.random.default_rng(0).normal(size=(n, D)) * 2.0
    exact = counted(X, grids)
    plan = nested_lattice(budget.mu, D, 1024, "replace-one")
    ranks = np.cumsum(exact, axis=1)
    errors = [
        np.cumsum(fitted_counts(noisy_counts(exact, plan, open_source(seed)), n), axis=1) - ranks
        for seed in range(20)
    ]
    middle = np.sqrt(np.mean(np.square(errors)[:, :, 256:768])) / n
    assert 0.5 < middle / rank_error(n, D, budget) < 1.1
    assert rank_error(n, D, budget, adjacency="add-remove") == pytest.approx(
        rank_error(n, D, budget) / math.sqrt(2.0), rel=1e-6
    )


def test_too_many_records_are_refused():
    plan = nested_lattice(0.3, 1, 16, "replace-one")
    counts = np.zeros((1, 16), np.int64)
    counts[0, 3] = 1 << 40
    with pytest.raises(OverflowError, match="too many records"):
        noisy_counts(counts, plan, open_source(0))


def test_bad_arguments():
    for bins in (0, 4, 15, 1000, 2 * 4**8, 4**9, 16.0, True, None, "16"):
        with pytest.raises(ValueError, match=r"^bins = "):
            nested_lattice(1.0, 1, bins, "replace-one")
    with pytest.raises(ValueError, match="too narrow"):
        Grid.between(1.0, 1.0 + 1e-15, 16, False)
    with pytest.raises(ValueError, match="mu"):
        nested_lattice(1e-9, 1, 16, "replace-one")
    with pytest.raises(ValueError, match="n = 0"):
        rank_error(0, 1, Budget(1.0, 1e-6))
