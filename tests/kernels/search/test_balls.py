"""The radius search: the closed ball of a plain double loop, point for point, on every path."""

from __future__ import annotations

import itertools

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import LEAF, build_index
from dpmd_fast.kernels.tangents import local_tangents

COLUMNS = [1, 2, 3, 8, 9, 20, 40]  # up to 8 the sketch is the whole point, above it has a rest
SIZES = [1, 2, 63, 64, 65, 129, 1000]


def ref_counts(Y, X, h):
    """`naive.ball` in one line: the same bits for integers, the same answer where nothing is near a tie."""
    return np.array([(((Y - x) ** 2).sum(axis=1) <= h * h).sum() for x in X])


def naive_counts(Y, X, h):
    return np.array([len(naive.ball(Y, x, h)) for x in X])


def own_counts(Y, h, n_threads=None):
    """Counts by the other path: whole leaves against leaves, in single precision first."""
    index = build_index(Y, h)
    comp = np.empty(len(Y), np.int64)
    comp[index.order] = local_tangents(index, 1, n_threads)[1]
    return comp


def assert_balls(Y, h, ref):
    np.testing.assert_array_equal(count_neighbors(build_index(Y, h), Y), ref)
    np.testing.assert_array_equal(own_counts(Y, h), ref)


def tie_radius(Y, share):
    """A radius at which many pairs of integer points lie; its square is not below theirs."""
    gaps = np.sort(((Y[:, None] - Y[None, : min(len(Y), 50)]) ** 2).sum(axis=2).ravel())
    gap = max(float(gaps[int(share * (len(gaps) - 1))]), 1.0)
    h = np.sqrt(gap)
    return float(h if h * h >= gap else np.nextafter(h, np.inf))


@pytest.mark.kernels
@pytest.mark.parametrize("D", [1, 3, 8, 9, 20])
def test_against_the_loop(D):
    rng = np.random.default_rng(D)
    Y = rng.integers(-2, 3, (66, D)).astype(float)
    h = tie_radius(Y, 0.3)
    ref = naive_counts(Y, Y, h)
    np.testing.assert_array_equal(ref_counts(Y, Y, h), ref)  # what the larger tests compare with
    assert (ref_counts(Y, Y, h * (1.0 - 1e-12)) < ref).any()  # there are ties
    np.testing.assert_array_equal(count_neighbors(build_index(Y, h), Y), ref)
    np.testing.assert_array_equal(own_counts(Y, h), ref)


@pytest.mark.parametrize(("D", "n"), list(itertools.product(COLUMNS, SIZES)))
def test_ties_on_integer_grids(D, n):
    rng = np.random.default_rng(1000 * D + n)
    Y = rng.integers(-3, 4, (n, D)).astype(float)
    X = rng.integers(-4, 5, (40, D)).astype(float)
    touching = tie_radius(Y, 0.4)
    for h in (3.0, tie_radius(Y, 0.05), touching, np.nextafter(touching, 0.0)):
        assert_balls(Y, h, ref_counts(Y, Y, h))
        np.testing.assert_array_equal(count_neighbors(build_index(Y, h), X), ref_counts(Y, X, h))


@pytest.mark.parametrize("D", COLUMNS)
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_ties_at_other_scales_and_far_from_the_origin(D, scale):
    # powers of two, so that scaled integers keep their ties
    rng = np.random.default_rng(D)
    Y = rng.integers(-3, 4, (200, D)).astype(float)
    h = tie_radius(Y, 0.2)
    ref = ref_counts(Y, Y, h)
    assert_balls(scale * Y, scale * h, ref)
    offset = np.round(1e4 * h * rng.choice([-1.0, 1.0], D))
    assert_balls(scale * (Y + offset), scale * h, ref)


@pytest.mark.parametrize("D", [2, 8, 9, 40])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_continuous_data(D, scale):
    rng = np.random.default_rng(D)
    Y = rng.standard_normal((300, D)) * np.geomspace(1.0, 0.01, D) * scale
    h = 0.7 * scale
    for offset in (0.0, 1e4 * h):
        ref = ref_counts(Y + offset, Y + offset, h)
        np.testing.assert_array_equal(naive_counts(Y + offset, Y[:40] + offset, h), ref[:40])
        assert_balls(Y + offset, h, ref)


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**80, 2.0**200])
@pytest.mark.parametrize("D", [3, 20])
def test_scales_beyond_single_precision(D, scale):
    Y = np.random.default_rng(D).integers(-3, 4, (150, D)).astype(float)
    h = tie_radius(Y, 0.3)
    assert_balls(scale * Y, scale * h, ref_counts(Y, Y, h))


@pytest.mark.parametrize("far", [1e8, 1e19, 1e25, 1e60])
def test_one_far_point_does_not_hide_its_leaf(far):
    Y = np.random.default_rng(0).integers(-3, 4, (100, 3)).astype(float)
    Y[17] = far
    assert_balls(Y, 2.0, ref_counts(Y, Y, 2.0))


@pytest.mark.parametrize("D", [1, 3, 9, 20])
def test_duplicates_and_constant_data(D):
    rng = np.random.default_rng(D)
    Y = rng.integers(0, 2, (7, D)).astype(float)[rng.integers(0, 7, 200)]
    assert_balls(Y, 1.0, ref_counts(Y, Y, 1.0))
    for n in (1, 64, 65, 200):
        assert_balls(np.full((n, D), 0.1), 1e-3, np.full(n, n))


@pytest.mark.parametrize("D", [2, 8, 9, 40])
def test_uneven_density(D):
    rng = np.random.default_rng(D)
    Y = np.vstack([1e-3 * rng.standard_normal((350, D)), 5.0 * rng.standard_normal((650, D))])
    Y = Y[rng.permutation(len(Y))]
    ref = ref_counts(Y, Y, 0.5)
    np.testing.assert_array_equal(naive_counts(Y, Y[:40], 0.5), ref[:40])
    assert ref.min() == 1
    assert ref.max() >= 350
    assert_balls(Y, 0.5, ref)


@pytest.mark.parametrize("D", COLUMNS)
def test_huge_and_tiny_radius(D):
    Y = np.random.default_rng(D).standard_normal((150, D))
    for h, ref in ((1e3, 150), (1e9, 150), (1e-9, 1), (1e-150, 1)):
        np.testing.assert_array_equal(count_neighbors(build_index(Y, h), Y), ref)
        np.testing.assert_array_equal(own_counts(Y, h), ref)


@pytest.mark.parametrize("D", [3, 8, 9, 40])
def test_ties_of_queries_far_outside(D):
    # the radius is much larger than the data: rounding is that of the query, not of the reference
    rng = np.random.default_rng(D)
    Y = rng.integers(-2, 3, (150, D)).astype(float)
    for _ in range(20):
        x = 1000.0 * rng.integers(-1000, 1000, (1, D))
        h = float(np.sqrt(((Y[rng.integers(150)] - x) ** 2).sum()))
        np.testing.assert_array_equal(count_neighbors(build_index(Y, h), x), ref_counts(Y, x, h))


def test_index_holds_every_point_once():
    Y = np.random.default_rng(0).standard_normal((1000, 12))
    index = build_index(Y, 1.0)
    np.testing.assert_array_equal(np.sort(index.order), np.arange(1000))
    np.testing.assert_array_equal(index.rows[:, :12], Y[index.order])
    np.testing.assert_array_equal(index.rows[:, 12:], np.tile([1.0, 0.0, 0.0, 0.0], (1000, 1)))
    assert len(index.rests) == -(-1000 // LEAF)


@pytest.mark.parametrize("D", [3, 20])
def test_thread_count_does_not_matter(D):
    Y = np.random.default_rng(D).standard_normal((700, D))
    h = np.sqrt(D)
    index = build_index(Y, h)
    ref = count_neighbors(index, Y, n_threads=1)
    np.testing.assert_array_equal(count_neighbors(index, Y, n_threads=2), ref)
    np.testing.assert_array_equal(own_counts(Y, h, 1), own_counts(Y, h, 2))


def test_a_far_last_leaf_has_no_phantoms():
    # its padding, in single precision about its own middle, must not count as neighbours
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(100, 2))
    Y[64:] = 1e25 + 1e14 * rng.normal(size=(36, 2))
    index = build_index(Y, 1.0)
    expected = [len(naive.ball(Y, y, 1.0)) for y in Y]
    counts = np.empty(100, np.int64)
    counts[index.order] = local_tangents(index, 1)[1]
    assert list(counts) == expected
    assert list(count_neighbors(index, Y)) == expected
