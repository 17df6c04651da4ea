"""Squared lengths in single precision against NumPy, or (NUMBA_DISABLE_JIT=1) their twin."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.singles import TOGETHER, list_above, raise_floor, square_columns, take_columns

pytestmark = pytest.mark.kernels


@kernel
def run_take(X, origin, Z, norms):
    take_columns(X, origin, Z, norms)


@kernel
def run_raise(Q, q0, norms, floor, r0, start, factor, slope):
    raise_floor(Q, q0, norms, floor, r0, start, factor, slope)


@kernel
def run_list(Q, q0, norms, floor, r0, start, factor, slope, rows, at):
    return list_above(Q, q0, norms, floor, r0, start, factor, slope, rows, at)


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


@pytest.mark.parametrize("D", [1, 3, 4, 5, 12, 20, 27])
@pytest.mark.parametrize("n", [1, 3, 4, 6, TOGETHER, TOGETHER + 1])
def test_rows_become_columns(D, n):
    rng = np.random.default_rng(D)
    X, origin = small_integers(rng, n, D), small_integers(rng, 1, D)[0]
    Z, norms = np.full((D, 2 * TOGETHER), -1.0, np.float32), np.full(2 * TOGETHER, -1.0)
    run_take(X, origin, Z, norms)
    np.testing.assert_array_equal(Z[:, :n], (X - origin).T)
    np.testing.assert_array_equal(norms[:n], ((X - origin) ** 2).sum(axis=1))
    np.testing.assert_array_equal(Z[:, n:], -1.0)
    np.testing.assert_array_equal(norms[n:], -1.0)


def test_a_row_that_is_not_finite_spoils_no_other():
    rng = np.random.default_rng(0)
    X, width = small_integers(rng, TOGETHER, 5), 8
    S, W = np.ones((1, width), np.float32), np.zeros((1, 5, width), np.float32)
    W[0, :, :5] = np.triu(small_integers(rng, 5, 5))
    found = []
    for value in (0.0, np.nan, np.inf, 1e300):
        X[7, 2] = value
        Z, Q = np.zeros((5, TOGETHER), np.float32), np.zeros((1, TOGETHER), np.float32)
        with np.errstate(all="ignore"):
            run_take(X, np.zeros(5), Z, np.zeros(TOGETHER))
            run(Z, TOGETHER, S, W, 0, Q)
        found.append(np.delete(Q[0], 7))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("seed", range(4))
def test_floors_are_raised_and_rows_above_them_listed(seed):
    # bounds 5 - 2 Q + norms / 4, exact; ties with the floor are left out, NaN is not
    rng = np.random.default_rng(seed)
    size = 3 * TOGETHER
    Q = small_integers(rng, size).astype(np.float32)
    norms, floor = 4.0 * small_integers(rng, size), small_integers(rng, size).astype(np.float64)
    bounds = 5.0 - 2.0 * Q[TOGETHER : 2 * TOGETHER] + norms[TOGETHER : 2 * TOGETHER] / 4.0
    part = floor[TOGETHER : 2 * TOGETHER]
    part[::5] = bounds[::5]
    part[3], part[8] = np.nan, -np.inf
    rows = np.full(2 * TOGETHER, -7)
    ref = [TOGETHER + i for i in range(TOGETHER) if not bounds[i] <= part[i]]
    assert {TOGETHER + 3, TOGETHER + 8} <= set(ref)
    assert TOGETHER not in ref
    assert run_list(Q, TOGETHER, norms, floor, TOGETHER, 5.0, -2.0, 0.25, rows, 2) == 2 + len(ref)
    np.testing.assert_array_equal(rows[2 : 2 + len(ref)], ref)
    np.testing.assert_array_equal(rows[:2], -7)
    np.testing.assert_array_equal(rows[2 + TOGETHER :], -7)
    raised = floor.copy()
    run_raise(Q, TOGETHER, norms, raised, TOGETHER, 5.0, -2.0, 0.25)
    more = [bound if bound > low else low for bound, low in zip(bounds, part, strict=True)]
    np.testing.assert_array_equal(raised[TOGETHER : 2 * TOGETHER], more)
    np.testing.assert_array_equal(raised[:TOGETHER], floor[:TOGETHER])
    np.testing.assert_array_equal(raised[2 * TOGETHER :], floor[2 * TOGETHER :])
