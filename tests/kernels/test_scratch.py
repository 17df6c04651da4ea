"""Scratch memory in small pages."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dpmd_fast.kernels.scratch import LINE, aligned_zeros, as_argument, sparse_memory


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "dtype"), [((7,), np.int32), ((5, 3), np.float64), ((4, 0), np.float64)])
def test_sparse_memory_is_an_array(shape, dtype):
    found = sparse_memory(shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.flags.c_contiguous
    assert not found.any()
    found[...] = 1
    assert (found == 1).all()
    assert not sparse_memory(shape, dtype).any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_sparse_memory_costs_what_is_touched():
    before = resident()
    found = sparse_memory((1 << 26,))  # 512 MB
    found[:: 1 << 21] = 1.0
    assert resident() - before < 8 << 20
    assert found.sum() == 32.0


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sparse_memory_is_not_shared_with_a_child():
    found = sparse_memory((10,))
    child = os.fork()
    if child == 0:
        found[:] = 1.0
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not found.any()


def test_no_sparse_memory_is_a_memory_error():
    with pytest.raises(MemoryError, match="MB of scratch"):
        sparse_memory((1 << 58,))


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 24, 24), (40_000, 8)])
def test_aligned_zeros_begin_with_a_line(shape):
    found = [aligned_zeros(shape, dtype) for dtype in (np.float64, np.float32) for _ in range(5)]
    assert {array.dtype for array in found} == {np.dtype(np.float64), np.dtype(np.float32)}
    assert all(array.ctypes.data % LINE == 0 for array in found)
    assert all(array.shape == shape and array.flags.c_contiguous and not array.any() for array in found)


def test_arguments_are_copied_only_where_kernels_do_not_take_them():
    usual = np.zeros((3, 2))
    assert as_argument(usual) is usual
    frozen = usual.copy()
    frozen.flags.writeable = False
    others = [
        frozen,
        usual.T,
        usual.astype(np.float32),
        usual.astype(">f8"),
        [[0, 1]],
        np.zeros((3, 4))[:, ::2],
    ]
    for other in others:
        made = as_argument(other)
        assert made.dtype == np.float64
        assert made.dtype.isnative
        assert made.flags.carray
        np.testing.assert_array_equal(made, other)
