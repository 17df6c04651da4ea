"""Gram matrices and symmetric products against NumPy, or (NUMBA_DISABLE_JIT=1) their twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD, packed, small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import tiles
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels
GROUPS = [1, 2, 3, 4, 5, 6, 7]


@kernel
def run_gram(panel, capacity, rows, C, groups):
    tiles.add_gram(panel, capacity, rows, C, groups)


@kernel
def run_change(panel, capacity, added, rows, C, groups):
    tiles.change_gram(panel, capacity, added, rows, C, groups)


@kernel
def run_gram_and_lead(panel, capacity, rows, C, groups, lead):
    tiles.add_gram_and_lead(panel, capacity, rows, C, groups, lead)


@kernel
def run_change_and_lead(panel, capacity, added, rows, C, groups):
    tiles.change_gram_and_lead(panel, capacity, added, rows, C, groups)


@kernel
def run_gram_of_rows(V, first, rows, C, groups):
    tiles.add_gram_of_rows(V, first, rows, C, groups)


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
    ref = np.where(upper_blocks(groups), start + X.T @ X, start)
    comp = start.copy()
    run_gram(packed(X, 64), 64, rows, comp, groups)
    np.testing.assert_array_equal(comp, ref)
    for added in {0, rows // 2, rows}:
        signs = np.where(np.arange(rows) < added, 1.0, -1.0)
        ref = np.where(upper_blocks(groups), start + (X.T * signs) @ X, start)
        comp = start.copy()
        run_change(packed(X, 64), 64, added, rows, comp, groups)
        np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", [*GROUPS, 13])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 64])
def test_gram_with_a_last_column_alone(groups, rows):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    X = small_integers(rng, rows, width)
    X[:, width - LANES + 1 :] = 0.0
    start, lead = small_integers(rng, width, width), small_integers(rng, width)
    ref = np.where(upper_blocks(groups), start + X.T @ X, start)
    ref[:, width - LANES :] = start[:, width - LANES :]
    comp, row = start.copy(), lead.copy()
    run_gram_and_lead(packed(X, 64), 64, rows, comp, groups, row)
    np.testing.assert_array_equal(comp, ref)
    np.testing.assert_array_equal(row, lead + X[:, width - LANES] @ X)
    for added in {0, rows // 2, rows}:
        signed = X.T * np.where(np.arange(rows) < added, 1.0, -1.0)
        ref = np.where(upper_blocks(groups), start + signed @ X, start)
        ref[:, width - LANES :] = start[:, width - LANES :]
        ref[width - LANES] = start[width - LANES] + signed[width - LANES] @ X
        comp = start.copy()
        run_change_and_lead(packed(X, 64), 64, added, rows, comp, groups)
        np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 64])
def test_gram_of_rows_as_they_lie(groups, rows):
    rng = np.random.default_rng(groups)
    V = np.full((rows + 5, LANES * groups), GUARD)
    V[3 : 3 + rows] = X = small_integers(rng, rows, LANES * groups)
    comp = small_integers(rng, LANES * groups, LANES * groups)
    ref = np.where(upper_blocks(groups), comp + X.T @ X, comp)
    run_gram_of_rows(V, 3, rows, comp, groups)
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11])
def test_product_with_a_symmetric_matrix(groups, rows):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    Q, C = small_integers(rng, 12, width), small_integers(rng, width, width)
    C += C.T
    comp = np.full((12, width), GUARD)
    run_multiply(Q, rows, C, comp, width)
    np.testing.assert_array_equal(comp[:rows], Q[:rows] @ C)
    np.testing.assert_array_equal(comp[rows:], GUARD)
