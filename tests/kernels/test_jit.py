"""The compiler: limits on threads are kept and restored; compiled code is kept until a file changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
import threadpoolctl
from threadpoolctl import threadpool_info

import dpmd_fast
from dpmd_fast.kernels.jit import resolve_threads, single_blas, threads
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index


def state():
    blas = sorted(
        (pool["filepath"], pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"
    )
    return numba.get_num_threads(), blas


def fail_inside(before):
    with threads(1) as count:
        assert count == 1
        inside = state()
        assert inside[0] == 1
        assert all(number == 1 for _, number in inside[1])
        assert [path for path, _ in inside[1]] == [path for path, _ in before[1]]
        raise KeyError("inside")


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread cannot show a limit")
def test_limits_are_restored():
    with threads(1):  # everything that has a thread pool is loaded
        pass
    before = state()
    assert before[0] > 1
    assert max(number for _, number in before[1]) > 1
    Y = np.random.default_rng(0).standard_normal((100, 3))
    count_neighbors(build_index(Y, 1.0), Y, n_threads=1)
    assert state() == before
    with pytest.raises(KeyError):
        fail_inside(before)
    assert state() == before
    index = build_index(Y, 1.0)
    with pytest.raises(Exception, match=r".+"):  # fails inside the compiled call
        count_neighbors(index._replace(rows=None), Y, n_threads=1)
    assert state() == before


def test_thread_counts_are_clipped():
    most = numba.config.NUMBA_NUM_THREADS
    assert [resolve_threads(k) for k in (0, 1, most, most + 5)] == [1, 1, most, most]
    with threads(1):
        assert resolve_threads(None) == 1


def test_overlapping_limits_of_two_threads_are_restored():
    before = [
        library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"
    ]
    inside, left = threading.Event(), threading.Event()

    def other():
        with threads(1):
            inside.set()
            left.wait(60.0)

    thread = threading.Thread(target=other)
    with threads(1):
        thread.start()
        assert inside.wait(60.0)
    left.set()
    thread.join(60.0)
    after = [
        library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"
    ]
    assert after == before


def test_blas_is_limited_in_every_thread():
    """Of threads that set limits, threadpoolctl hears the first only, as long as it lives."""
    found = []

    def use():
        with single_blas():
            found.extend(
                library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
            )

    kept = threadpoolctl.ThreadpoolController().limit(limits=2, user_api="blas")  # by this thread
    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60.0)
    kept.restore_original_limits()
    assert set(found) == {1}


def test_a_library_that_is_loaded_later_is_limited():
    code = """
import json, sys
from threadpoolctl import threadpool_info
from dpmd_fast.kernels.jit import single_blas
def limits():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
with single_blas():
    found = [limits()]
assert "scipy.linalg" not in sys.modules
import scipy.linalg
found.append(limits())
with single_blas():
    found.append(limits())
print(json.dumps([*found, limits()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, before, inside, after = json.loads(done.stdout)
    if len(inside) == len(first):
        pytest.skip("SciPy has the BLAS of NumPy")
    assert set(first + inside) == {1}
    assert after == before


def test_limits_of_openmp_stay_as_they_are():
    pytest.importorskip("sklearn.cluster")  # has an OpenMP that threadpoolctl knows

    def limits():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"]

    with threads(2):
        limited = threadpoolctl.ThreadpoolController().limit(limits=1, user_api="openmp")
    after = limits()
    limited.restore_original_limits()
    assert set(after) == {1}


WAITING = """
import os
from dpmd_fast.kernels.search.balls import _count
from dpmd_fast.kernels.signatures import types_of
before = dict(os.environ)
_count.compile(types_of("search.balls._count"))  # or loads it from the cache
assert dict(os.environ) == before
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs GNU OpenMP")
@pytest.mark.parametrize(("given", "spins"), [({}, 0), ({"GOMP_SPINCOUNT": "1234"}, 1234)])
@pytest.mark.parametrize("cache", ["0", "1"])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given, spins, cache):
    settings = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE", "NUMBA_THREADING_LAYER": "omp"}
    settings |= {"DPMD_FAST_CACHE": cache, **given}
    settings.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run(
        [sys.executable, "-c", WAITING], env=settings, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


# Compiled code is kept, until any kernel file changes

SUM = """
import json
import numpy as np
from dpmd_fast.kernels.sums import features
from dpmd_fast.kernels.sums.exact import FeatureSums
sums = FeatureSums(3, 1.0, (2.0**-20, 2**20), 1)
sums.add(np.eye(3))
total = sums.total()
print(json.dumps([int(total.sum()), sum(features._add.stats.cache_hits.values())]))
"""


@pytest.mark.slow
def test_code_made_of_a_generic_helper_is_kept_until_a_kernel_file_changes(tmp_path):
    package = tmp_path / "dpmd_fast"
    shutil.copytree(Path(dpmd_fast.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), "DPMD_FAST_CACHE": "1"}
    settings["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")

    def run():
        done = subprocess.run(
            [sys.executable, "-c", SUM],
            env=settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    first = run()
    assert first == [3 * 2**20, 0]
    assert run() == [first[0], 1]
    changed = package / "kernels" / "sums" / "clip.py"  # another file than that of the cached kernel
    changed.write_text(changed.read_text().replace("2.0**-50", "2.0**-49"))
    assert run() == [first[0], 0]
    assert run() == [first[0], 1]
