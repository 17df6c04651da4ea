"""Rows shared among threads: each exactly once, by how many threads, and what happens to errors."""

from __future__ import annotations

import threading
import time

import numba
import numpy as np
import pytest
from kernel_samples import charts

from dpmd_fast.kernels import rows as rows_module
from dpmd_fast.kernels.charts import make_field, move
from dpmd_fast.kernels.mixture.components import make_components
from dpmd_fast.kernels.posterior import posterior
from dpmd_fast.kernels.rows import each_row, idle_cores

several = pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads")


class Counted:
    """Work that takes its time, and notes which thread did which rows."""

    def __init__(self, rows, each=2e-5, fails=None):
        self.times, self.each, self.fails = np.zeros(rows, np.int64), each, fails
        self.threads = set()

    def __call__(self, first, last):
        self.threads.add(threading.get_ident())
        time.sleep(self.each * (last - first))
        if self.fails is not None and first <= self.fails < last:
            raise KeyError("in the work")
        self.times[first:last] += 1


@pytest.fixture
def idle(monkeypatch):
    """A machine with idle cores, however busy this one is."""
    monkeypatch.setattr(rows_module, "idle_cores", lambda: 8)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 128, 1000, 12_345])
@pytest.mark.parametrize("n_threads", [None, 1, 2, 3])
def test_every_row_is_worked_on_once(idle, rows, n_threads):
    for first in (64, 1):
        work = Counted(rows)
        each_row(work, rows, n_threads, first=first)
        assert (work.times == 1).all()


@several
@pytest.mark.parametrize("n_threads", [None, 2])
def test_much_work_is_shared(idle, n_threads):
    work = Counted(10_000)
    each_row(work, len(work.times), n_threads)
    assert len(work.threads) == 2
    assert threading.get_ident() in work.threads


@pytest.mark.parametrize(
    ("rows", "each", "n_threads"), [(10_000, 2e-5, 1), (64, 1e-4, None), (64, 1e-4, 2), (10_000, 1e-7, 2)]
)
def test_one_thread_stays_alone(idle, monkeypatch, rows, each, n_threads):
    """If that is asked for, for few rows, and for little work: 10,000 rows of 1e-7 s."""
    clock = iter([0.0, 64 * each])  # not that of a machine which may be busy
    monkeypatch.setattr(rows_module, "perf_counter", lambda: next(clock))
    work = Counted(rows, each)
    each_row(work, rows, n_threads)
    assert work.threads == {threading.get_ident()}


def test_what_a_call_takes_is_not_taken_for_the_time_of_rows(monkeypatch):
    """A call takes as long as 500 rows: one thread has no use for many ranges."""
    now, calls = [0.0], []

    def work(first, last):
        calls.append((first, last))
        now[0] += 1e-4 + 2e-7 * (last - first)

    monkeypatch.setattr(rows_module, "idle_cores", lambda: 0)
    monkeypatch.setattr(rows_module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(rows_module, "resolve_threads", lambda n_threads: 2)
    each_row(work, 10_000)
    assert calls[0][0] == 0
    assert calls[-1][1] == 10_000
    assert len(calls) <= 5


@pytest.mark.parametrize("cores", [0, -3])
def test_no_core_is_idle(monkeypatch, cores):
    monkeypatch.setattr(rows_module, "idle_cores", lambda: cores)
    work = Counted(10_000)
    each_row(work, len(work.times))
    assert work.threads == {threading.get_ident()}
    assert (work.times == 1).all()


@several
def test_a_helper_leaves_when_cores_get_busy_and_another_comes(monkeypatch):
    cores = iter([1, -1])
    monkeypatch.setattr(rows_module, "idle_cores", lambda: next(cores, 1))
    work = Counted(20_000)
    each_row(work, len(work.times))
    assert len(work.threads) == 2
    assert (work.times == 1).all()


@several
@pytest.mark.parametrize("fails", [0, 64, 5000, 9999])
def test_errors_of_any_thread_reach_the_caller(idle, fails):
    with pytest.raises(KeyError, match="in the work"):
        each_row(Counted(10_000, fails=fails), 10_000)
    work = Counted(10_000)
    each_row(work, 10_000)  # the threads are still there
    assert (work.times == 1).all()


@several
def test_without_more_threads_the_caller_does_all(idle, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rows_module, "_submit", refuse)
    work = Counted(10_000)
    each_row(work, len(work.times))
    assert work.threads == {threading.get_ident()}
    assert (work.times == 1).all()


@several
def test_nobody_waits_for_a_helper_that_has_not_begun(idle):
    begin, stop = threading.Event(), threading.Event()

    def occupy():
        begin.set()
        stop.wait(60.0)

    rows_module._submit(occupy, 1)
    begin.wait(60.0)
    if rows_module._pool_size == 1:  # otherwise another test has left a larger pool
        work = Counted(10_000)
        each_row(work, len(work.times))
        assert work.threads == {threading.get_ident()}
    stop.set()


def test_idle_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(rows_module, "_CORES", 4)
    text = tmp_path / "loadavg"
    monkeypatch.setattr(rows_module, "_LOAD", str(text))
    assert idle_cores() == 4  # where there is no such file
    for found, expected in (("0.1 0.2 0.3 1/200 77\n", 3), ("9.1 5.2 0.3 6/200 77\n", -2), ("?", 4)):
        text.write_text(found)
        assert idle_cores() == expected


def test_the_bits_of_one_thread(idle, monkeypatch):
    """Also with every row in a range of its own."""
    centers, tangents, masses, rng = charts(9, 2, 100, seed=2)
    field = make_field(centers, tangents, masses, 2.0, passes=3)
    X = rng.uniform(-1.0, 1.0, (3000, 9))
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    components = make_components(
        np.full(3, 1 / 3), rng.normal(size=(3, 9)), np.stack([np.eye(9)] * 3), np.full(9, 0.3)
    )
    ref = [*move(field, X, 1), *posterior(components, holes, deviations=True, n_threads=1)]
    for least, n_threads in ((1e-4, None), (1e-4, 2), (1e-9, 2)):
        monkeypatch.setattr(rows_module, "_WORTH", 1e-9)
        monkeypatch.setattr(rows_module, "_LEAST", least)
        comp = [
            *move(field, X, n_threads),
            *posterior(components, holes, deviations=True, n_threads=n_threads),
        ]
        for one, other in zip(comp, ref, strict=True):
            np.testing.assert_array_equal(one, other)
