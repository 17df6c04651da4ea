"""Gram matrices and symmetric products against NumPy, or (NUMBA_DISABLE_JIT=1) their twins."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from kernel_samples import GUARD, on_another_target, packed, small_integers

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import tiles
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels
GROUPS = [1, 2, 3, 4, 5, 6, 7]


@kernel
def run_gram(sign, panel, capacity, rows, C, groups):
    if sign > 0.0:
        tiles.add_gram(panel, capacity, rows, C, groups)
    else:
        tiles.subtract_gram(panel, capacity, rows, C, groups)


@kernel
def run_multiply(Q, rows, C, Z, width):
    tiles.multiply_symmetric(Q, rows, C, Z, width)


def upper_blocks(groups):
    block = np.arange(LANES * groups) // LANES
    return block[:, None] <= block


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 64])
def test_gram_of_packed_rows(groups, rows):
    rng = np.random.default_rng(groups)
    X = small_integers(rng, rows, LANES * groups)
    start = small_integers(rng, LANES * groups, LANES * groups)
    for sign in (1.0, -1.0):
        ref = np.where(upper_blocks(groups), start + sign * X.T @ X, start)
        comp = start.copy()
        run_gram(sign, packed(X, 64), 64, rows, comp, groups)
        np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_product_with_a_symmetric_matrix(groups, rows):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    Q, C = small_integers(rng, 6, width), small_integers(rng, width, width)
    C += C.T
    comp = np.full((6, width), GUARD)
    run_multiply(Q, rows, C, comp, width)
    np.testing.assert_array_equal(comp[:rows], Q[:rows] @ C)
    np.testing.assert_array_equal(comp[rows:], GUARD)


@kernel
def run_fixed(X, rows, depth, W, U, width):
    tiles.multiply_fixed(X, rows, depth, W, U, width)


@kernel
def run_upper_fixed(X, rows, depth, W, U, width, offset):
    tiles.multiply_upper_fixed(X, rows, depth, W, U, width, offset)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("rows", "depth"), [(1, 1), (4, 3), (5, 8), (12, 13), (64, 2)])
def test_fixed_product(groups, rows, depth):
    rng = np.random.default_rng(groups)
    width, room = LANES * groups, -(-rows // 4) * 4
    X, W = small_integers(rng, room, depth + 3), small_integers(rng, depth, width + 4)
    comp = np.full((room + 1, width + 4), GUARD)
    run_fixed(X, rows, depth, W, comp, width)
    np.testing.assert_array_equal(comp[:rows, :width], X[:rows, :depth] @ W[:, :width])
    np.testing.assert_array_equal(comp[room:], GUARD)
    np.testing.assert_array_equal(comp[:, width:], GUARD)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_fixed_product_with_an_upper_matrix(groups, offset):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    depth = width + offset
    X, W = small_integers(rng, 8, depth), np.triu(small_integers(rng, depth, width), -offset)
    comp = np.full((8, width), GUARD)
    run_upper_fixed(X, 7, depth, W, comp, width, offset)
    np.testing.assert_array_equal(comp[:7], X[:7] @ W)


def fused_sum(row, column):
    """Sum of products in order, rounded once a step: by exact fractions."""
    total = 0.0
    for a, b in zip(row, column, strict=True):
        total = float(Fraction(float(a)) * Fraction(float(b)) + Fraction(total))
    return total


@pytest.mark.skipif(JIT_DISABLED, reason="the twin rounds products as well")
def test_fixed_products_round_once_a_step():
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((8, 17)), rng.standard_normal((17, 28))
    comp = np.empty((8, 28))
    run_fixed(X, 8, 17, W, comp, 28)
    assert comp.tolist() == [[fused_sum(row, column) for column in W.T] for row in X]


def fixed_digest() -> str:
    rng = np.random.default_rng(1)
    X, W, U = rng.standard_normal((12, 40)), rng.standard_normal((40, 44)), np.empty((12, 44))
    run_fixed(X, 12, 40, W, U, 44)
    return hashlib.sha256(U.tobytes()).hexdigest()


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_fixed_products_have_the_same_bits_on_another_target():
    assert on_another_target(__file__, fixed_digest, NUMBA_CPU_NAME="generic") == fixed_digest()


@kernel
def run_rows(X, rows, count, S, s0, W, U, squares):
    tiles.affine_rows(X, rows, count, S, s0, W, U)
    j = 0
    while j < W.shape[1]:
        groups = tiles.groups_from(j, W.shape[1])
        tiles.square_rows(X, rows, count, S, s0, W, j, groups, squares[j // 4], 0)
        j += LANES * groups


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("count", [1, 4, 6])
def test_products_of_chosen_rows(groups, count):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    X, W = small_integers(rng, 9, width), np.triu(small_integers(rng, width, width))
    S = small_integers(rng, 2, width)
    rows = np.array([7, 2, 2, 0, 5, 8, 8, 8])
    U, squares = np.full((9, width), GUARD), np.zeros((groups, 8))
    run_rows(X, rows, count, S, width, W, U, squares)
    ref = S[1] + X[rows] @ W
    np.testing.assert_array_equal(U[:count], ref[:count])
    np.testing.assert_array_equal(U[-(-count // 4) * 4 :], GUARD)
    np.testing.assert_array_equal(squares.sum(axis=0)[:count], (ref**2).sum(axis=1)[:count])
