"""Rows that do not depend on each other, worked on by threads of this package's own.

A parallel loop enters a region of the threading layer. With GNU OpenMP that costs more than a few rows
do, cannot be done in a forked child, and ends at a barrier: when one thread has lost its core to another
process, all others spin until it gets one back. Here the calling thread begins at once and by itself. Others
help only where so much is left that it pays and only while a core is idle; they take ranges of rows until
none are left, and nobody waits for a helper that has not begun. A kernel for this is a serial loop over the
rows it gets, so that the result has the same bits whoever works on which rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

from dpmd_fast.kernels.jit import resolve_threads

_FIRST = 64  # rows of which the caller takes the time before it asks for help
_WORTH = 5e-4  # seconds of work for each thread that make up for waking it
_LEAST = 2e-4  # seconds that a range of rows should take: the call of a kernel takes 1e-5
_ALONE = 2e-3  # seconds after which a thread that works alone looks again whether a core is idle
_TICK = 1e-9  # seconds that a row takes at least
_SHARE = 4  # ranges of each thread if all were as long as the next one; they get shorter toward the end
_LOAD = "/proc/loadavg"
_CORES = os.cpu_count() or 1  # asked once: it takes 1e-5 seconds

Work = Callable[[int, int], object]


def each_row(work: Work, rows: int, n_threads: int | None = None, *, first: int = _FIRST) -> None:
    """Call ``work(first, last)`` for ranges that make up ``range(rows)``, in several threads if that pays.

    With `n_threads` of None, threads are at most as many as there are idle cores. The caller works on the
    `first` rows alone, to see how long a row takes.
    """
    if n_threads == 1 or rows <= first:
        work(0, rows)
        return
    start = perf_counter()
    work(0, first)
    each = (perf_counter() - start) / first
    most = int(each * (rows - first) / _WORTH)
    count = min(most, resolve_threads(n_threads)) if most > 1 else 1
    if count == 1:
        work(first, rows)
    else:
        _Shared(work, range(first, rows), each, count, idle_only=n_threads is None).run()


class _Shared:
    """Rows that several threads take ranges of."""

    def __init__(self, work: Work, rows: range, each: float, count: int, *, idle_only: bool) -> None:
        self._work, self._rows, self._next = work, rows.stop, rows.start
        self._each = each
        self._count, self._idle_only = count, idle_only
        self._lock = threading.Lock()
        self._helpers: list[Future[None]] = []

    def run(self) -> None:
        """Work on rows in the calling thread, with help, until all are done."""
        try:
            while True:
                self._invite()
                seconds = _LEAST if self._helpers else _ALONE
                if (part := self._take(self._rows_of(seconds))) is None:
                    break
                start = perf_counter()
                self._work(*part)
                # of a few rows, the first of all, most is what a call takes
                self._each = min(self._each, (perf_counter() - start) / (part[1] - part[0]))
        finally:
            self._next = self._rows  # after an error: nobody begins anything
            for helper in self._helpers:
                if not helper.cancel():
                    helper.result()

    def _invite(self) -> None:
        active = [helper for helper in self._helpers if not helper.done() or helper.exception()]
        wanted = min(self._count - 1 - len(active), (self._rows - self._next) // self._rows_of(_LEAST) - 1)
        if wanted > 0 and self._idle_only:
            wanted = min(wanted, idle_cores())
        self._helpers = active
        try:
            for _ in range(wanted):
                self._helpers.append(_submit(self._help, self._count - 1))
        except RuntimeError:  # no more threads: a limit of the system, or the interpreter is about to end
            self._count = 1

    def _help(self) -> None:
        while not (self._idle_only and idle_cores() < 0):
            if (part := self._take(self._rows_of(_LEAST))) is None:
                break
            self._work(*part)

    def _rows_of(self, seconds: float) -> int:
        return max(1, int(seconds / max(self._each, _TICK)))

    def _take(self, least: int) -> tuple[int, int] | None:
        with self._lock:
            first = self._next
            left = self._rows - first
            if left <= 0:
                return None
            size = max(least, left // (_SHARE * self._count))
            self._next = first + size if left - size >= self._rows_of(_LEAST) else self._rows
            return first, self._next


def idle_cores() -> int:
    """Return how many cores have nothing to do now, below zero if threads wait for one.

    Linux counts the threads that run or could run, of all processes. Where it cannot be told, all are idle.
    """
    try:
        file = os.open(_LOAD, os.O_RDONLY)
        try:
            running = int(os.read(file, 100).split()[3].partition(b"/")[0])
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return _CORES
    return _CORES - running


_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()


def _submit(call: Callable[[], None], helpers: int) -> Future[None]:
    """Have a thread of the pool make a call; the pool has room for at least so many at once."""
    global _pool, _pool_size
    with _pool_lock:
        if _pool is None or _pool_size < helpers:
            _pool, _pool_size = ThreadPoolExecutor(helpers, "dpmd_fast"), helpers  # the old one runs dry
        return _pool.submit(call)


def _after_fork() -> None:
    """Forget the threads of the parent, which the child does not have."""
    global _pool, _pool_size, _pool_lock
    _pool, _pool_size, _pool_lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
