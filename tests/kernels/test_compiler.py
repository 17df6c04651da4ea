"""Kernels that are optimised in one go, and arguments that are not counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.jit import JIT_DISABLED, device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.vector.rows import round_up

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.kernels


@device(memory=True)
def _weighted(pair, i):
    pair = borrow(pair)
    return pair[0][i] * pair[1][i]


@kernel
def _dot(pair):
    total = 0.0
    for i in range(len(pair[0])):
        total += _weighted(pair, i)
    return total


@device
def _shifted(pair, i):
    left, right = pair[0][:-1], pair[1][1:]
    return left[i] * right[i]


@kernel
def _shifted_dot(pair):
    total = 0.0
    for i in range(len(pair[0]) - 1):
        total += _shifted(pair, i)
    return total


@device(memory=True)
def _set_weighted(i, pair, out):
    out[i] = _weighted(pair, i)


@kernel
def _dots(pair, out):
    parallel_for(_set_weighted, len(out), 2, (pair, out))


@kernel
def _chosen(shares, rows):
    count = 0
    for r in range(len(shares)):
        rows[count] = r
        count += shares[r] != 0.0
    if count > 0:
        round_up(rows, count)
    return count


def test_a_borrowed_tuple_holds_the_same_arrays():
    left, right = np.arange(5.0), np.arange(5.0) + 1.0
    assert _dot((left, right)) == left @ right
    out = np.empty(5)
    with threads(2):
        _dots((left, right), out)
    np.testing.assert_array_equal(out, left * right)


def test_borrowing_leaves_counts_of_references_as_they_are():
    pair = np.arange(5.0), np.arange(5.0)
    before = [sys.getrefcount(array) for array in pair]
    for _ in range(100):
        _dot(pair)
    assert [sys.getrefcount(array) for array in pair] == before


@device(memory=True)
def _made(n):
    return np.zeros(n), n


@device
def _gets(values):
    made, n = _made(len(values))
    return made[0] + n


@device(memory=True)
def _maybe(values):
    return values[1:] if values[0] > 0.0 else None


@device
def _takes_maybe(values):
    found = _maybe(values)
    return 0.0 if found is None else 1.0


@device
def _returns(values):
    return 0.0, values[1:]


@device
def _adds(values):
    return (values + values)[0]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.parametrize("helper", [_gets, _takes_maybe, _returns, _adds])
def test_arrays_that_nobody_would_free_are_refused(helper):
    @kernel
    def calls(values):
        return helper(values)

    with pytest.raises(Exception, match=r"must be a device with memory=True|NRT required"):
        calls(np.ones(3))


def test_a_helper_without_memory_leaves_counts_of_references_as_they_are():
    pair = np.arange(5.0), np.arange(5.0)
    before = [sys.getrefcount(array) for array in pair]
    for _ in range(100):
        assert _shifted_dot(pair) == 1.0 * 2.0 + 2.0 * 3.0 + 3.0 * 4.0
    assert [sys.getrefcount(array) for array in pair] == before


@pytest.mark.parametrize("count", range(1, 14))
def test_rows_are_repeated_up_to_a_multiple_of_four(count):
    shares, rows = np.zeros(13), np.full(20, -99)
    shares[np.arange(count)] = 1.0
    assert _chosen(shares, rows) == count
    stop = -(-count // 4) * 4
    np.testing.assert_array_equal(rows[:stop], np.minimum(np.arange(stop), count - 1))


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_helpers_have_no_machine_code_of_their_own(monkeypatch):
    monkeypatch.setenv("DPMD_FAST_CACHE", "0")  # a kernel from the cache needs no helper

    @device
    def double(values, i):
        return 2.0 * values[i]

    @kernel
    def first(values):
        return double(values, 0)

    assert first(np.ones(3)) == 2.0
    (helper,) = {type(found.library).__name__ for found in double.overloads.values()}
    (own,) = {type(found.library).__name__ for found in first.overloads.values()}
    assert helper == "_LinkedLibrary"
    assert own == "_KernelLibrary"


# `fill` is in the cache from the first process; the second loads it to compile the kernel that calls it.
_CACHED = """
import sys
from dpmd_fast.kernels.noise import normal
from dpmd_fast.kernels.signatures import types_of
if sys.argv[1] == "caller":
    normal._fill_chunks.compile(types_of("noise.normal._fill_chunks"))
normal.fill.compile(types_of("noise.normal.fill"))
(found,) = normal.fill.overloads.values()
address = found.library.get_pointer_to_function(found.fndesc.llvm_cpython_wrapper_name)
print(type(found.library).__name__, address != 0)
"""


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_kernel_that_is_loaded_for_another_can_be_called_by_itself(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("DPMD_FAST_CACHE", None)
    for who, library in (("callee", "_KernelLibrary"), ("caller", "JITCodeLibrary")):  # compiled, loaded
        command = [sys.executable, "-c", _CACHED, who]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [library, "True"]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_kernel_that_another_compiles_can_be_called_by_itself():
    @kernel(in_stages=True)
    def inner(values):
        return values.sum()

    @kernel
    def outer(values):
        return 2.0 * inner(values)

    assert outer(np.ones(3)) == 6.0
    assert inner(np.ones(3)) == 3.0
