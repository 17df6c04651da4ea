"""Kernels with parts that have no machine code of their own: the same bits, errors, no names for others."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from dpmd_fast.kernels.jit import JIT_DISABLED, device, kernel, prange
from dpmd_fast.kernels.linking import CAN_LINK

compiled = pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")


@device
def _row(X, i, scale):
    if scale[i] < 0.0:
        raise ValueError("negative")
    total = 0.0
    for k in range(X.shape[1]):
        total += scale[i] * X[i, k] * X[i, k]
    return total + np.sqrt(np.abs(X[i])).sum()


def _serial(X, scale, out):
    for i in range(len(X)):
        out[i] = _row(X, i, scale)


def _parallel(X, scale, out):
    for i in prange(len(X)):
        out[i] = _row(X, i, scale)


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(0)
    return rng.normal(size=(57, 13)), rng.uniform(size=57)


def test_this_numba_is_known():
    assert CAN_LINK


@compiled
@pytest.mark.parametrize("parallel", [False, True])
def test_bits_are_those_of_numba_alone(values, parallel):
    function = _parallel if parallel else _serial
    mine, plain = np.empty(57), np.empty(57)
    kernel(function, parallel=parallel)(*values, mine)
    numba.njit(function, parallel=parallel, error_model="numpy")(*values, plain)
    assert np.array_equal(mine, plain)


@compiled
def test_errors_of_parts_arrive(values):
    X, scale = values
    with pytest.raises(ValueError, match="negative"):
        kernel(_serial)(X, -scale, np.empty(57))


@compiled
@pytest.mark.parametrize("parallel", [False, True])
def test_only_the_kernel_has_a_name(values, parallel):
    made = kernel(_parallel if parallel else _serial, parallel=parallel)
    made(*values, np.empty(57))
    (result,) = made.overloads.values()
    own = result.fndesc
    names = {own.llvm_func_name, own.llvm_cpython_wrapper_name, own.llvm_cfunc_wrapper_name}
    inside = ("internal", "private")
    seen = {
        one.name
        for one in result.library._get_module_for_linking().functions
        if not one.is_declaration and one.linkage.name not in inside and not one.name.startswith("NRT_")
    }
    assert seen == names


@compiled
def test_other_code_is_compiled_as_ever(values):
    kernel(_serial)(*values, np.empty(57))

    @numba.njit
    def other(X):
        return np.sqrt(np.abs(X[0])).sum()

    assert other(values[0]) == pytest.approx(np.sqrt(np.abs(values[0][0])).sum())
    assert other(values[0].astype(np.float32)) > 0.0
