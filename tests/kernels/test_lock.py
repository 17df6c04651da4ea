"""Python's lock: kept by a kernel with few rows, given up with many, and back after an error."""

import ctypes
import threading

import numpy as np
import pytest

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.lock import FEW

pytestmark = [
    pytest.mark.skipif(JIT_DISABLED, reason="interpreted kernels keep the lock"),
    pytest.mark.filterwarnings("ignore:Cannot cache compiled function"),  # that calls a C function
]

_holds_lock = ctypes.CDLL(None).PyGILState_Check
_holds_lock.restype, _holds_lock.argtypes = ctypes.c_int, []


@kernel
def _always(values):
    return _holds_lock()


@kernel(rows="whole")
def _by_rows(values, whole, factor):
    return _holds_lock() + factor


@kernel(rows="values")
def _failing(values):
    if values[0] < 0.0:
        raise ValueError("negative")
    return _holds_lock()


@pytest.mark.parametrize("rows", [0, 1, FEW - 1, FEW, FEW + 1, 10 * FEW])
def test_length_decides(rows):
    part = np.zeros(1)
    assert _always(np.zeros(rows)) == 0
    assert _by_rows(part, np.zeros(rows, np.bool_), 10) == 10 + (rows <= FEW)


@pytest.mark.parametrize("rows", [FEW, FEW + 1])
def test_lock_is_back_after_an_error(rows):
    assert _failing(np.zeros(rows)) == (rows <= FEW)
    with pytest.raises(ValueError, match="negative"):
        _failing(np.full(rows, -1.0))
    assert ctypes.pythonapi.PyGILState_Check() == 1
    assert _failing(np.zeros(rows)) == (rows <= FEW)


def test_threads_of_few_and_many():
    found = []

    def call(rows):
        for _ in range(2_000):
            found.append(_by_rows(np.zeros(1), np.zeros(rows, np.bool_), 0) == (rows <= FEW))

    others = [threading.Thread(target=call, args=(rows,)) for rows in (1, FEW, FEW + 1, 200)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(found) == 8_000
    assert all(found)
