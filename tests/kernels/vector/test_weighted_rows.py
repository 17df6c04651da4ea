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
    add_rows,
    pack_lanes,
    pack_projections,
    pack_rows,
    read_row,
    weigh_charts,
)
from dpmd_fast.kernels.width import WIDTH

SIZES = [(1, 1), (2, 1), (3, 1), (3, 2), (4, 4), (5, 2), (6, 5), (7, 3), (8, 5), (8, 7)]
WORDS = [1 << 0, 1 << 63, (1 << 5) | (1 << 7), 0x8000_0000_0010_0421, (1 << 64) - 1]


@kernel
def _weigh(x, x0, centers, c0, columns, masses, m0, h2, word, weights):
    weigh_charts(x, x0, centers, c0, columns, masses, m0, h2, 1.0 / h2, word, weights)


@kernel
def _add(word, weights, rows, first, sums, q):
    add_rows(word, weights, rows, first, sums, q)


@kernel
def _read(sums, q, symmetric, gap, step):
    return read_row(sums, q, symmetric, gap, step)


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
    parts = 1 + (groups > GROUPS[-1])
    rows = rng.normal(size=(2 * LEAF, parts, LANES * groups // parts))
    weights, sums = rng.normal(size=LEAF), rng.normal(size=(3, LANES * groups))
    ref = sums.copy()
    for j in bits_of(word):
        ref[1] += weights[j] * rows[LEAF + j].reshape(-1)
    _add(np.uint64(word), weights, rows, LEAF, sums, 1)
    np.testing.assert_allclose(sums, ref, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(sums[::2], ref[::2])  # the points beside it


def test_a_weight_of_zero_changes_no_bit():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(LEAF, 1, 12)), rng.normal(size=LEAF)
    few, all_of_them, word = np.zeros((1, 12)), np.zeros((1, 12)), 0b1011
    weights[4:] = 0.0
    weights[2] = 0.0
    _add(np.uint64(word), weights, rows, 0, few, 0)
    _add(np.uint64((1 << 64) - 1), weights, rows, 0, all_of_them, 0)
    np.testing.assert_array_equal(few, all_of_them)


@pytest.mark.kernels
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("D", "d"), SIZES)
def test_what_charts_add_to_a_point(D, d, symmetric):
    centers, frames, offsets, slopes, rng = _charts(D, d, LEAF)
    origin, x = rng.normal(size=D), rng.normal(size=D)
    if symmetric:
        rows = pack_projections(centers, frames, origin)
        offsets, slopes = centers - x, frames
    else:
        rows = pack_rows(centers, frames, origin, offsets, slopes)
    assert rows.shape[2] in [LANES * count for count in GROUPS]
    word, weights = 0x1248, rng.uniform(size=LEAF)
    ref = np.zeros(D)
    for j in bits_of(word):
        ref += weights[j] * (offsets[j] + (frames[j] @ (x - centers[j])) @ slopes[j])
    sums, step = np.zeros((2, rows[0].size)), np.full(D, GUARD)
    _add(np.uint64(word), weights, rows, 0, sums, 1)
    total = _read(sums, 1, symmetric, x - origin, step)
    assert total == pytest.approx(weights[bits_of(word)].sum(), rel=1e-12)
    np.testing.assert_allclose(step, ref, rtol=1e-11, atol=1e-11)


def test_rows_have_no_more_parts_than_needed():
    shapes = {}
    for D in range(1, 9):
        centers, frames, offsets, slopes, _ = _charts(D, 1, 3)
        shapes[D] = (
            pack_projections(centers, frames, centers[0]).shape[1:],
            pack_rows(centers, frames, centers[0], offsets, slopes).shape[1:],
        )
    assert shapes[3] == ((1, 12), (1, 16))
    assert shapes[8] == ((1, 48), (2, 40))
    assert all(parts == 1 for (parts, _), _ in shapes.values())
