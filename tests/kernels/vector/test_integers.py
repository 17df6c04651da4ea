"""Vectors truncated to the lattice, against Python's integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_samples import GUARD

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import integers
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.width import WIDTH


@kernel
def run_truncated_square(X, x0, A, a0, scale, count):
    return integers.truncated_square(X, x0, A, a0, scale, count)


@kernel
def run_pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups):
    integers.pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups)


@kernel
def run_truncate_in_place(X, x0, scale, count):
    integers.truncate_in_place(X, x0, scale, count)


@pytest.mark.kernels
@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8])
def test_micro_kernels_round_toward_zero(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    X, A = (np.full((7, width), GUARD) for _ in range(2))
    X[2], A[4] = rng.integers(-9, 10, width), rng.integers(-9, 10, width)
    for scale in (0.3, -0.7, 1.0, 1e-12, 123.456, 16384.0):
        ref = [math.trunc(scale * float(x - a)) for x, a in zip(X[2], A[4], strict=True)]
        assert run_truncated_square(X, 2 * width, A, 4 * width, scale, width) == sum(v * v for v in ref)
        panel = np.full((-(-width // WIDTH), 5, WIDTH), GUARD)
        run_pack_truncated(X, 2 * width, A, 4 * width, scale, panel, WIDTH * 3, WIDTH * 5, groups)
        np.testing.assert_array_equal(panel[:, 3].ravel()[:width], ref)
        np.testing.assert_array_equal(panel[:, 3].ravel()[width:], GUARD)
        np.testing.assert_array_equal(np.delete(panel, 3, axis=1), GUARD)
        whole = X.copy()
        run_truncate_in_place(whole, 2 * width, scale, width)
        np.testing.assert_array_equal(whole[2], [math.trunc(scale * float(x)) for x in X[2]])
        np.testing.assert_array_equal(np.delete(whole, 2, axis=0), GUARD)
