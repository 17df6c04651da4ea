"""Products of chosen rows and their squares against NumPy, or (NUMBA_DISABLE_JIT=1) their twins."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from kernel_samples import GUARD, on_another_target, small_integers

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import rows as chosen
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels
GROUPS = [1, 2, 3, 4, 5, 6, 7]
ROWS = np.array([7, 2, 1, 0, 5, 8, 8, 8])
COUNTS = [1, 4, 6]


@kernel
def run_rows(X, rows, count, S, s0, W, U, squares):
    chosen.affine_rows(X, rows, count, S, s0, W, U)
    j = 0
    while j < W.shape[1]:
        groups = chosen.groups_from(j, W.shape[1])
        chosen.square_rows(X, rows, count, S, s0, W, j, groups, squares[j // 4], 0)
        j += LANES * groups


@kernel
def run_forms(X, rows, count, S, s0, W, M, m0, U, lanes, out):
    chosen.affine_rows_and_forms(X, rows, count, S, s0, W, M, m0, U, lanes, out)


@kernel
def run_places(X, rows, count, W, w0, width, columns, U, u0, lanes, out):
    chosen.place_rows(X, rows, count, W, w0, width, columns, U, u0, lanes, out)


@kernel
def run_combine(factors, f0, sf, X, x0, sx, count, Y, y0, length):
    chosen.combine_rows(factors, f0, sf, X, x0, sx, count, Y, y0, length)


@kernel
def run_round_up(rows, count):
    chosen.round_up(rows, count)


def sample(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    return small_integers(rng, 9, width), np.triu(small_integers(rng, width, width)), rng


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("count", COUNTS)
def test_products_of_chosen_rows(groups, count):
    X, W, rng = sample(groups)
    width = LANES * groups
    S = small_integers(rng, 2, width)
    U, squares = np.full((9, width), GUARD), np.zeros((groups, 8))
    run_rows(X, ROWS, count, S, width, W, U, squares)
    ref = S[1] + X[ROWS] @ W
    np.testing.assert_array_equal(U[:count], ref[:count])
    np.testing.assert_array_equal(U[-(-count // 4) * 4 :], GUARD)
    np.testing.assert_array_equal(squares.sum(axis=0)[:count], (ref**2).sum(axis=1)[:count])


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("count", COUNTS)
def test_products_and_forms(groups, count):
    X, _, rng = sample(groups)
    width = LANES * groups
    W, S, M = (small_integers(rng, rows, width) for rows in (width, 2, 3))
    U, out = np.full((9, width), GUARD), np.full(9, GUARD)
    run_forms(X, ROWS, count, S, width, W, M, 2 * width, U, np.full(16, GUARD), out)
    ref = S[1] + X[ROWS] @ W
    end = -(-count // 4) * 4
    np.testing.assert_array_equal(U[:count], ref[:count])
    np.testing.assert_array_equal(out[:count], ((X[ROWS] - M[2]) * ref).sum(axis=1)[:count])
    np.testing.assert_array_equal(U[end:], GUARD)
    np.testing.assert_array_equal(out[end:], GUARD)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("columns_missing", [0, 1, 3, 4])
@pytest.mark.parametrize("count", COUNTS)
def test_products_of_chosen_rows_and_their_squares(groups, columns_missing, count):
    X, W, rng = sample(groups)
    width = LANES * groups
    depth = width - columns_missing
    columns = -(-depth // LANES) * LANES
    X = np.ascontiguousarray(X[:, :depth])
    stack = small_integers(rng, 2, depth + 1, width)
    stack[1, 1:] = W[:depth]
    ref = (stack[1, 0] + X[ROWS] @ stack[1, 1:])[:, :columns]
    rows = ROWS.copy()
    run_round_up(rows, count)
    out, U = np.full(9, GUARD), np.full((10, width), GUARD)
    run_places(
        X, rows, count, stack, (depth + 1) * width, width, columns, U, width, np.full(16, GUARD), out
    )  # fmt: skip
    end = -(-count // 4) * 4 if columns else 0
    np.testing.assert_array_equal(U[1 : 1 + count, :columns], ref[:count])
    np.testing.assert_array_equal(U[:, columns:], GUARD)
    np.testing.assert_array_equal(U[0], GUARD)
    np.testing.assert_array_equal(U[1 + end :], GUARD)
    if columns:
        np.testing.assert_array_equal(out[:count], (ref**2).sum(axis=1)[:count])
    np.testing.assert_array_equal(out[end:], GUARD)


@pytest.mark.parametrize(("count", "length"), [(0, 4), (1, 8), (3, 12), (5, 20)])
def test_combination_of_rows(count, length):
    rng = np.random.default_rng(count)
    factors, X = small_integers(rng, 6, 7), small_integers(rng, 6, 32)
    comp = np.full(length + 8, GUARD)
    run_combine(factors, 2, 7, X, 5, 32, count, comp, 3, length)
    np.testing.assert_array_equal(comp[3 : 3 + length], factors[:count, 2] @ X[:count, 5 : 5 + length])
    np.testing.assert_array_equal(np.delete(comp, np.arange(3, 3 + length)), GUARD)


@pytest.mark.parametrize("count", range(9))
def test_rows_are_rounded_up_to_fours(count):
    rows = np.arange(10, 22)
    run_round_up(rows, count)
    end = -(-count // 4) * 4
    np.testing.assert_array_equal(rows[:count], np.arange(10, 10 + count))
    np.testing.assert_array_equal(rows[count:end], 9 + count)
    np.testing.assert_array_equal(rows[end:], np.arange(10 + end, 22))


def fused_sum(start, row, column):
    """Sum of products in order, rounded once a step: by exact fractions."""
    total = start
    for a, b in zip(row, column, strict=True):
        total = float(Fraction(float(a)) * Fraction(float(b)) + Fraction(total))
    return total


def real_products():
    rng = np.random.default_rng(0)
    X, W, S = (rng.standard_normal(shape) for shape in ((8, 28), (28, 28), (1, 28)))
    U, out = np.empty((8, 28)), np.empty(8)
    run_forms(X, np.arange(8), 8, S, 0, W, S, 0, U, np.empty(16), out)
    return X, W, S, U, out


@pytest.mark.skipif(JIT_DISABLED, reason="the twin rounds products as well")
def test_products_round_once_a_step():
    X, W, S, U, _ = real_products()
    again, squares = np.empty((8, 28)), np.empty((7, 8))
    run_rows(X, np.arange(8), 8, S, 0, W, again, squares)
    ref = [[fused_sum(float(s), row, column) for s, column in zip(S[0], W.T, strict=True)] for row in X]
    assert U.tolist() == again.tolist() == ref


@pytest.mark.skipif(JIT_DISABLED, reason="the twin rounds products as well")
@pytest.mark.parametrize("width", [4, 8, 12, 20, 28])
def test_squares_round_each_step(width):
    rng = np.random.default_rng(width)
    X, stack = rng.standard_normal((8, width)), np.triu(rng.standard_normal((width + 1, width)), -1)
    U, out = np.empty((8, width)), np.empty(8)
    run_places(X, np.arange(8), 8, stack, 0, width, width, U, 0, np.empty(16), out)
    ref = np.zeros((8, LANES))
    for j in range(0, width, LANES):
        ref = ref + U[:, j : j + LANES] * U[:, j : j + LANES]
    np.testing.assert_array_equal(out, (ref[:, 0] + ref[:, 2]) + (ref[:, 1] + ref[:, 3]))


def digest() -> str:
    _, _, _, U, out = real_products()
    rng = np.random.default_rng(1)
    X, stack = rng.standard_normal((8, 27)), np.triu(rng.standard_normal((28, 28)), -1)
    squares = np.empty(8)
    run_places(X, np.arange(8), 8, stack, 0, 28, 28, np.empty((8, 28)), 0, np.empty(16), squares)
    return hashlib.sha256(U.tobytes() + out.tobytes() + squares.tobytes()).hexdigest()


@pytest.mark.fixed_seed
@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_the_same_bits_on_another_target():
    assert on_another_target(__file__, digest, NUMBA_CPU_NAME="generic") == digest()
