"""Charts as rows of numbers that are summed with weights, against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.weighted_rows import (
    GROUPS,
    add_far_charts,
    add_rows,
    apply_row,
    pack_lanes,
    pack_projections,
    pack_rows,
    weigh_charts,
)
from dpmd_fast.kernels.width import WIDTH

SIZES = [(1, 1), (2, 1), (3, 1), (3, 2), (4, 4), (5, 2), (6, 5), (7, 3), (8, 5), (8, 7)]
WORDS = [1 << 0, 1 << 63, (1 << 5) | (1 << 7), 0x8000_0000_0010_0421, (1 << 64) - 1]


@kernel
def _weigh(x, x0, centers, c0, columns, masses, m0, h2, word, weights):
    weigh_charts(x, x0, centers, c0, columns, masses, m0, h2, 1.0 / h2, word, weights)


@kernel
def _add(word, weights, rows, size, first, sums, q):
    add_rows(word, weights, rows, size, first, sums, q)


@kernel
def _apply(rows, q, symmetric, gap, step):
    apply_row(rows, q, symmetric, gap, step)


@kernel
def _add_far(word, weights, centers, rows, first, symmetric, x, q, gap, step, sums):
    add_far_charts(word, weights, centers, rows, first, symmetric, x, q, gap, step, sums)


def bits_of(word: int) -> list[int]:
    return [j for j in range(64) if word >> j & 1]


def _charts(D, d, K=2 * LEAF):
    rng = np.random.default_rng([D, d])
    centers, frames = 0.5 * rng.normal(size=(K, D)), rng.normal(size=(K, d, D))
    return centers, frames, rng.normal(size=(K, D)), rng.normal(size=(K, d, D)), rng


@pytest.mark.kernels
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("D", [1, 3, 8])
def test_weights_of_all_vectors_with_a_bit(D, word):
    centers, _, _, _, rng = _charts(D, 1)
    points, masses, h2 = rng.normal(size=(4, D)), 1.0 + np.arange(2.0 * LEAF), 2.0 * D
    weights = np.full(LEAF + 1, GUARD)
    _weigh(points, 2 * D, pack_lanes(centers), LEAF * D, D, masses, LEAF, h2, np.uint64(word), weights)
    distances = ((points[2] - centers[LEAF:]) ** 2).sum(axis=1)
    ref = masses[LEAF:] * np.maximum(0.0, 1.0 - distances / h2) ** 2
    asked = np.isin(np.arange(LEAF) // WIDTH, [j // WIDTH for j in bits_of(word)])
    np.testing.assert_allclose(weights[:-1][asked], ref[asked], rtol=1e-12)
    np.testing.assert_array_equal(weights[:-1][~asked], GUARD)
    assert weights[-1] == GUARD
    assert ref.any()


@pytest.mark.kernels
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("groups", [*GROUPS, 2 * GROUPS[-1]])
def test_rows_are_added_with_their_weights(groups, word):
    rng = np.random.default_rng(groups)
    size = LANES * groups // (1 + (groups > GROUPS[-1]))
    rows = rng.normal(size=(2 * LEAF, LANES * groups))
    weights, sums = rng.normal(size=LEAF), rng.normal(size=(3, LANES * groups))
    ref = sums.copy()
    for j in bits_of(word):
        ref[1] += weights[j] * rows[LEAF + j]
    _add(np.uint64(word), weights, rows, size, LEAF, sums, 1)
    np.testing.assert_allclose(sums, ref, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(sums[::2], ref[::2])  # the points beside it


def test_a_weight_of_zero_changes_no_bit():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(LEAF, 12)), rng.normal(size=LEAF)
    few, all_of_them, word = np.zeros((1, 12)), np.zeros((1, 12)), 0b1011
    weights[4:] = 0.0
    weights[2] = 0.0
    _add(np.uint64(word), weights, rows, 12, 0, few, 0)
    _add(np.uint64((1 << 64) - 1), weights, rows, 12, 0, all_of_them, 0)
    np.testing.assert_array_equal(few, all_of_them)


def _packed(D, d, symmetric, origins, x):
    """Centres, rows, the size of their parts, and what each chart adds to x with a weight of one."""
    centers, frames, offsets, slopes, rng = _charts(D, d, LEAF)
    if symmetric:
        packed = pack_projections(centers, frames, origins if len(origins) else centers)
        offsets, slopes = centers - x, frames
    else:
        packed = pack_rows(centers, frames, origins if len(origins) else centers, offsets, slopes)
    along = np.einsum("ked,kd->ke", frames, x - centers)
    return centers, *packed, offsets + np.einsum("ke,ked->kd", along, slopes), rng


@pytest.mark.kernels
@pytest.mark.parametrize("symmetric", [1, 0])
@pytest.mark.parametrize(("D", "d"), SIZES)
def test_what_charts_add_to_a_point(D, d, symmetric):
    origin, x = np.random.default_rng(D).normal(size=(2, D))
    _, rows, size, each, rng = _packed(D, d, symmetric, np.tile(origin, (LEAF, 1)), x)
    assert size in [LANES * count for count in GROUPS]
    word, weights = 0x1248, rng.uniform(size=LEAF)
    sums, step = np.zeros((2, rows.shape[1])), np.full(D, GUARD)
    _add(np.uint64(word), weights, rows, size, 0, sums, 1)
    _apply(sums, 1, symmetric, x - origin, step)
    chosen = bits_of(word)
    assert sums[1, 0] == pytest.approx(weights[chosen].sum(), rel=1e-12)
    np.testing.assert_allclose(step, weights[chosen] @ each[chosen], rtol=1e-11, atol=1e-11)


@pytest.mark.kernels
@pytest.mark.parametrize("symmetric", [1, 0])
@pytest.mark.parametrize(("D", "d"), SIZES)
def test_charts_about_their_own_centres(D, d, symmetric):
    x = np.random.default_rng(D).normal(size=(3, D))
    centers, rows, _, each, rng = _packed(D, d, symmetric, np.empty((0, D)), x[1])
    if symmetric:
        assert not rows[:, 1 : 1 + D].any()
    word, weights = (1 << 63) | 0x1248, rng.uniform(size=LEAF)
    weights[6] = 0.0
    sums, scratch = rng.normal(size=(3, 1 + D)), np.empty((2, D))
    ref = sums.copy()
    chosen = bits_of(word)
    ref[1] += np.r_[weights[chosen].sum(), weights[chosen] @ each[chosen]]
    _add_far(np.uint64(word), weights, pack_lanes(centers), rows, 0, symmetric, x, 1, *scratch, sums)
    np.testing.assert_allclose(sums, ref, rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(sums[::2], ref[::2])


def test_rows_have_no_more_parts_than_needed():
    shapes = {}
    for D in range(1, 9):
        centers, frames, offsets, slopes, _ = _charts(D, 1, 3)
        shapes[D] = [
            (rows.shape[1] // size, size)
            for rows, size in (
                pack_projections(centers, frames, centers),
                pack_rows(centers, frames, centers, offsets, slopes),
            )
        ]
    assert shapes[3] == [(1, 12), (1, 16)]
    assert shapes[8] == [(1, 48), (2, 40)]
    assert all(parts == 1 for (parts, _), _ in shapes.values())
