"""Squared lengths in single precision against NumPy, or (NUMBA_DISABLE_JIT=1) their twin."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.singles import TOGETHER, square_columns

pytestmark = pytest.mark.kernels


@kernel
def run(Z, n, S, W, k, Q):
    square_columns(Z, n, S, W, k, Q)


@pytest.mark.parametrize("D", [1, 3, 4, 5, 12, 20, 27])
@pytest.mark.parametrize("n", [1, TOGETHER - 1, TOGETHER, TOGETHER + 1])
def test_squared_lengths_under_a_triangle(D, n):
    # small integers: every sum is exact in single precision
    rng = np.random.default_rng(D)
    width, room = -(-D // LANES) * LANES, 2 * TOGETHER
    Z = small_integers(rng, D, room).astype(np.float32)
    S, W = np.zeros((2, width), np.float32), np.zeros((2, D, width), np.float32)
    S[:, :D] = small_integers(rng, 2, D)
    W[:, :, :D] = np.triu(small_integers(rng, 2, D, D))
    Q = np.full((3, room), -1.0, np.float32)
    run(Z, n, S, W, 1, Q)
    ref = ((S[1] + Z.T @ W[1]) ** 2).sum(axis=1)
    np.testing.assert_array_equal(Q[1, :n], ref[:n])
    np.testing.assert_array_equal(Q[[0, 2]], -1.0)
