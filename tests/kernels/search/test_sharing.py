"""Trees of balls: they connect all of them, and along their branches as few rows change as can be."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.search import sharing
from dpmd_fast.kernels.search.index import LEAF

pytestmark = pytest.mark.kernels


@kernel
def run_tree(Y, first, here, D, scale, masks, found, above, order, sizes, child, sibling):
    balls = sharing.tree_of_balls(Y, first, here, D, scale, masks, found, above, order)
    sharing.list_children(balls, above, order, sizes, child, sibling)
    return balls


def words_of(inside):
    """Words of 64 bits, the first row in the lowest bit of the first word."""
    padded = np.zeros((len(inside), -(-inside.shape[1] // 64) * 64), bool)
    padded[:, : inside.shape[1]] = inside
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def rows_of(words):
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)


def make_tree(points, Y, radius, before=3):
    """The tree of the balls around some points: (above, order, child, sibling, rows of each ball)."""
    here, D = points.shape
    inside = ((points[:, None] - Y) ** 2).sum(axis=2) <= radius**2
    words = words_of(inside)
    found = words.shape[1]
    masks = np.full((sharing.MOST_BALLS, found + 2), 0x5555, np.uint64)  # wider than what is used
    masks[:here, :found] = words
    padded = np.full((before + here, D + 2), 7.0)
    padded[before:, :D] = points
    above, order, sizes, child, sibling = np.full((5, sharing.MOST_BALLS), -9, np.int64)
    balls = run_tree(padded, before, here, D, 1.0 / radius, masks, found, above, order, sizes, child, sibling)
    np.testing.assert_array_equal(masks[:here, :found], words)
    rows = rows_of(np.ascontiguousarray(masks[:balls, :found]))[:, : len(Y)]
    return above[:balls], order[:balls], child[:balls], sibling[:balls], rows


def sample(seed, here, D, n=400):
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(here, D)), rng.uniform(-0.5, 1.5, size=(n, D))


@pytest.mark.parametrize("here", [1, 2, 3, 5, 17, 64])
@pytest.mark.parametrize(("D", "radius"), [(2, 0.9), (6, 0.8)])
def test_each_ball_is_below_one_other(here, D, radius):
    above, order, child, sibling, _ = make_tree(*sample(here, here, D), radius)
    balls = len(above)
    assert sorted(order) == list(range(balls))
    assert above[order[0]] == -1
    place = np.argsort(order)
    below = {ball: [] for ball in range(balls)}
    sizes = np.ones(balls, int)
    for ball in order[:0:-1]:
        assert place[above[ball]] < place[ball]
        below[above[ball]].append(ball)
        sizes[above[ball]] += sizes[ball]
    for ball, own in below.items():
        listed, next_one = [], child[ball]
        while next_one >= 0:
            listed.append(next_one)
            next_one = sibling[next_one]
        assert sorted(listed) == sorted(own)
        assert not listed or sizes[listed[0]] == max(sizes[own])


def test_balls_that_share_most_rows_hang_in_the_shortest_tree():
    points, Y = sample(1, LEAF, 2, n=2_000)
    above, order, _, _, _ = make_tree(points, Y, 1.2)
    assert len(above) == LEAF
    gaps = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    length = sum(gaps[ball, above[ball]] for ball in order[1:])
    np.testing.assert_allclose(length, minimum_spanning_tree(gaps).sum(), rtol=1e-6)


@pytest.mark.parametrize("here", [3, 4, 9, 64])
def test_joined_balls_have_as_few_changes_as_can_be(here):
    points, Y = sample(here, here, 6, n=900)
    above, order, _, _, rows = make_tree(points, Y, 0.8)
    assert len(above) == 2 * here - 1
    changes = rows[order[0]].astype(int)
    for ball in order[1:]:
        changes += rows[ball] != rows[above[ball]]
    ref = [naive.least_changes(above, order, rows[:here, row]) for row in range(len(Y))]
    np.testing.assert_array_equal(changes, ref)
    alone = rows[:here].sum()
    assert changes.sum() < 0.9 * alone or here < 9


def test_copies_and_points_out_of_range_make_trees_too():
    spread = np.random.default_rng(0).normal(size=(LEAF, 3))
    for points in (np.ones((LEAF, 3)), np.outer(np.arange(LEAF), [1e150, 0.0, 1.0]), spread):
        for radius in (1.0, 1e-25, 1e-100, 1e-150, 1e-310):
            with np.errstate(over="ignore", invalid="ignore"):  # without the compiler NumPy would warn
                above, order, _, _, _ = make_tree(points, np.zeros((64, 3)), radius)
            assert sorted(order) == list(range(len(above)))


def test_the_same_tree_wherever_the_points_lie():
    points, Y = sample(4, 40, 5)
    first, second = make_tree(points, Y, 0.7, before=0), make_tree(points, Y, 0.7, before=8)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
