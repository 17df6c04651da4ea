"""Sketches and boxes against NumPy; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD, small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import sketches

pytestmark = pytest.mark.kernels


@kernel
def run_scaled_gap(X, x0, center, scale, out, count):
    sketches.scaled_gap(X, x0, center, scale, out, count)


@kernel
def run_shift(points, p0, middles, m0, out, count):
    return sketches.shift_to_single(points, p0, middles, m0, out, count)


@kernel
def run_box_gaps(low, high, first, stride, depth, below, above, gaps, count):
    sketches.box_gaps(low, high, first, stride, depth, below, above, gaps, count)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11, 24])
def test_gaps_of_rows_that_are_not_padded(count):
    rng = np.random.default_rng(count)
    X, center = small_integers(rng, 3, count), small_integers(rng, count)
    out = np.full(count + 1, GUARD)
    run_scaled_gap(X, 2 * count, center, 0.5, out, count)
    np.testing.assert_array_equal(out, [*(0.5 * (X[2] - center)), GUARD])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 9, 24])
def test_points_are_shifted_to_a_leaf_in_single_precision(count):
    rng = np.random.default_rng(count)
    points, middles = rng.normal(size=(3, count)), rng.normal(size=(3, count))
    out = np.full(count + 1, GUARD, np.float32)
    square = run_shift(points, 2 * count, middles, count, out, count)
    ref = (points[2] - middles[1]).astype(np.float32)
    np.testing.assert_array_equal(out, [*ref, np.float32(GUARD)])
    np.testing.assert_allclose(square, (ref.astype(float) ** 2).sum(), rtol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 16])
@pytest.mark.parametrize("depth", [1, 3, 7])
def test_gaps_between_boxes(count, depth):
    rng = np.random.default_rng(10 * count + depth)
    first, leaves = 2, count + 3
    low = small_integers(rng, depth, leaves)
    high = low + np.abs(small_integers(rng, depth, leaves))
    below = small_integers(rng, depth)
    above = below + np.abs(small_integers(rng, depth))
    gaps = np.full(count + 1, GUARD)
    run_box_gaps(low, high, first, leaves, depth, below, above, gaps, count)
    for j in range(count):
        ref = 0.0
        for k in range(depth):
            side = max(low[k, first + j] - above[k], below[k] - high[k, first + j], 0.0)
            ref += side * side
        assert gaps[j] == ref
    assert gaps[count] == GUARD
