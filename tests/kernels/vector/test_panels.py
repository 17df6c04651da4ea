"""Packing of panels against NumPy, or (NUMBA_DISABLE_JIT=1) its twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD, packed, small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import panels
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.width import WIDTH

pytestmark = pytest.mark.kernels
GROUPS = [1, 2, 3, 4, 5, 6, 7]


@kernel
def run_pack(row, r0, center, scale, panel, p0, stride, groups):
    panels.pack(row, r0, center, scale, panel, p0, stride, groups)


@kernel
def run_pack_scaled(rows, r0, scale, panel, p0, stride, groups, count):
    panels.pack_scaled(rows, r0, scale, panel, p0, stride, groups, count)


@kernel
def run_aligned_panel(groups, capacity):
    panel = panels.aligned_panel(groups, capacity)
    return len(panel), panel.ctypes.data


@pytest.mark.parametrize("groups", GROUPS)
def test_panels_begin_with_a_line(groups):
    for capacity in (1, 5, 44):
        size, address = run_aligned_panel(groups, capacity)
        assert size == -(-LANES * groups // WIDTH) * WIDTH * capacity
        assert address % 64 == 0


@pytest.mark.parametrize("groups", GROUPS)
def test_pack(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    rows, center = small_integers(rng, 5, width), small_integers(rng, width)
    ref = packed(0.5 * (rows - center), 8)
    comp = np.full_like(ref, GUARD)
    for t in range(5):
        run_pack(rows, t * width, center, 0.5, comp, WIDTH * t, WIDTH * 8, groups)
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
def test_pack_of_several_rows(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    rows = small_integers(rng, 7, width)
    ref = packed(0.5 * rows[1:6], 8)
    comp = np.full_like(ref, GUARD)
    run_pack_scaled(rows, width, 0.5, comp, 0, WIDTH * 8, groups, 2)
    run_pack_scaled(rows, 3 * width, 0.5, comp, WIDTH * 2, WIDTH * 8, groups, 3)
    np.testing.assert_array_equal(comp, ref)
