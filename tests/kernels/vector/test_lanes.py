"""Reductions and small moves against NumPy; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from kernel_samples import GUARD, on_another_target, small_integers

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import lanes
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels
GROUPS = [1, 2, 3, 4, 5, 6, 7]


@kernel
def run_dot(A, a0, B, b0, count):
    return lanes.dot(A, a0, B, b0, count)


@kernel
def run_distance(A, a0, B, b0, count):
    return lanes.square_distance(A, a0, B, b0, count)


@kernel
def run_center(M, m0, ldm, sums, i, j, share, scale, C, ldc):
    lanes.center_block(M, m0, ldm, sums, i, j, share, scale, C, ldc)


@kernel
def run_update(A, a0, lda, v, w, x, i, j, stop, y):
    lanes.update_four(A, a0, lda, v, w, x, i, j, stop, y)


@kernel
def run_add_multiple(factor, X, x0, Y, y0, count):
    lanes.add_multiple(factor, X, x0, Y, y0, count)


@pytest.mark.parametrize("count", [4, 8, 12, 16, 28, 40])
def test_dot_and_square_distance(count):
    rng = np.random.default_rng(count)
    A, B = small_integers(rng, 7, 40), small_integers(rng, 3, 48)
    a, b = A.ravel()[5 : 5 + count], B.ravel()[49 : 49 + count]
    assert run_dot(A, 5, B, 49, count) == np.dot(a, b)
    assert run_distance(A, 5, B, 49, count) == np.dot(a - b, a - b)
    A, B = rng.standard_normal(count), rng.standard_normal(count)
    assert run_dot(A, 0, B, 0, count) == pytest.approx(np.dot(A, B), rel=1e-13, abs=1e-13)
    B = 1e8 * (1.0 + A)
    A = B + 1e-3
    ref = np.dot(A - B, A - B)
    assert run_distance(A, 0, B, 0, count) == pytest.approx(ref, rel=1e-14)


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
def test_center_block(groups):
    rng = np.random.default_rng(groups)
    ldm, ldc = LANES * (groups + 1), LANES * groups
    M, sums = small_integers(rng, ldc, ldm), small_integers(rng, ldm)
    comp = np.full((ldc, ldc), GUARD)
    ref = np.full((ldc, ldc), GUARD)
    full = 0.5 * (M[:, :ldc] - 0.25 * np.outer(sums[:ldc], sums[:ldc]))
    for i in range(0, ldc, LANES):
        for j in range(i, ldc, 2 * LANES):  # every second block: the others stay as they are
            run_center(M, i * ldm + j, ldm, sums, i, j, 0.25, 0.5, comp, ldc)
            block = full[i : i + LANES, j : j + LANES]
            ref[j : j + LANES, i : i + LANES] = block.T
            ref[i : i + LANES, j : j + LANES] = block
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
def test_update_of_four_rows(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    for i in range(0, width, LANES):
        for j, stop in ((0, width), (i, width), (0, i)):
            A, (v, w, x) = small_integers(rng, width, width), small_integers(rng, 3, width)
            rows, columns = slice(i, i + 4), slice(j, stop)
            ref = A.copy()
            ref[rows, columns] -= np.outer(v[rows], w[columns]) + np.outer(w[rows], v[columns])
            ref_y = np.full(width, GUARD)
            ref_y[rows] = ref[rows, columns] @ x[columns]
            y = np.full(width, GUARD)
            run_update(A, i * width, width, v, w, x, i, j, stop, y)
            np.testing.assert_array_equal(A, ref)
            np.testing.assert_array_equal(y, ref_y)


@pytest.mark.parametrize("count", [0, 4, 8, 20])
def test_add_multiple(count):
    rng = np.random.default_rng(count)
    X, Y = small_integers(rng, 3, 24), small_integers(rng, 2, 28)
    ref = Y.copy()
    ref.reshape(-1)[5 : 5 + count] += -3.0 * X.reshape(-1)[24 : 24 + count]
    run_add_multiple(-3.0, X, 24, Y, 5, count)
    np.testing.assert_array_equal(Y, ref)


def digest():
    """Sums of numbers whose products are not exact, to the last bit."""
    rng = np.random.default_rng(5)
    A, (v, w, x, y) = rng.standard_normal((8, 8)), rng.standard_normal((4, 8))
    sums = [run_dot(A, 0, A, 12, 28), run_distance(A, 0, A, 12, 28)]
    run_update(A, 0, 8, v, w, x, 0, 0, 8, y)
    run_add_multiple(1.0 / 3.0, A, 8, A, 24, 12)
    return hashlib.sha256(np.array(sums).tobytes() + A.tobytes() + y.tobytes()).hexdigest()


@pytest.mark.fixed_seed
@pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")
def test_bits_do_not_depend_on_the_target():
    """Without an instruction for it, a product and a sum were rounded one after the other."""
    assert on_another_target(__file__, digest, NUMBA_CPU_NAME="generic") == digest()
