"""Parallel loops: every iteration once, the next one by a free thread, and errors that are told."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from dpmd_fast.kernels.jit import JIT_DISABLED, device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for

pytestmark = pytest.mark.kernels


@device
def _add_one(i, counts, pair):
    counts[i] += pair[0] + pair[1][i]


@kernel
def _count(counts, chunk, pair):
    parallel_for(_add_one, len(counts), chunk, (counts, pair))


@pytest.mark.parametrize("n_threads", [1, 2, None])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 999])
def test_every_iteration_runs_once(count, chunk, n_threads):
    counts = np.zeros(count)
    with threads(n_threads):
        _count(counts, chunk, (1.0, np.arange(count) / 2.0))
    np.testing.assert_array_equal(counts, 1.0 + np.arange(count) / 2.0)


@device(memory=True)
def _set_sum(i, rows, out):
    own = rows[i].copy()
    own += 1.0
    out[i] = own.sum()


@kernel
def _sums(rows, out):
    parallel_for(_set_sum, len(out), 2, (rows, out))


def test_iterations_make_arrays_of_their_own():
    rows = np.random.default_rng(0).integers(0, 100, (300, 5)).astype(float)
    out = np.empty(300)
    with threads(2):
        for _ in range(20):
            _sums(rows, out)
    np.testing.assert_array_equal(out, rows.sum(axis=1) + 5.0)


@device
def _note_thread(i, work, owners, values):
    total = 0.0
    for j in range(work if i == 0 else 0):
        total += math.sin(j)
    values[i] = total
    owners[i] = numba.get_thread_id()


@kernel
def _owners(work, owners, values):
    parallel_for(_note_thread, len(owners), 1, (work, owners, values))


@pytest.mark.skipif(JIT_DISABLED, reason="there are no threads")
@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="there is one thread only")
def test_a_slow_iteration_holds_up_no_other():
    owners, values = np.empty(500, np.int64), np.empty(500)
    with threads(2):
        _owners(20_000_000, owners, values)  # iteration 0 takes a good part of a second
    assert (owners[1:] != owners[0]).all()


@device
def _refuse(i, out):
    if i == 5:
        raise ValueError("five")
    out[i] = 1.0


@kernel
def _refusing(out):
    parallel_for(_refuse, len(out), 1, (out,))


@pytest.mark.skipif(JIT_DISABLED, reason="plain Python tells its own error")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_error_of_a_thread_is_told(n_threads):
    out = np.zeros(50)
    with threads(n_threads), pytest.raises(MemoryError, match="thread of a parallel loop"):
        _refusing(out)
    assert n_threads > 1 or not out[6:].any()  # the others do not begin
    _refusing(out[:5])  # and the next call is not concerned
    np.testing.assert_array_equal(out[:5], 1.0)


FROM_A_CACHE = """
import numpy as np
from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.parallel import parallel_for

@device
def set_one(i, out):
    out[i] = 1.0

@kernel
def inner(out):
    parallel_for(set_one, len(out), 1, (out,))

@kernel
def outer(out):
    inner(out)

out = np.zeros(9)
outer(out)
print(out.sum(), sum(outer.stats.cache_hits.values()))
"""


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_code_from_a_cache_finds_its_threads(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FROM_A_CACHE)
    tmp_path.chmod(0o700)
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "DPMD_FAST_CACHE": "1"}
    for hits in (0, 1):
        command = [sys.executable, str(program)]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        assert done.stdout == f"9.0 {hits}\n"
