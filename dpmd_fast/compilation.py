"""Kernels compiled ahead of need: before a debit, at the start of a program, while an image is built.

    ensure(route)     what a release calls before it spends: load its kernels, compile those not in the cache
    warmup(purpose)   the same, for users

The compiler does not listen to signals, and uses one core. So processes of their own compile, as many as
there are cores, and leave the code in the cache on disk, from where this process loads it; they are killed if
the wait is interrupted. Without a cache this process compiles by itself. The types that are compiled for are
fixed (`kernels/signatures.py`): nothing here depends on a record.

Numba itself is imported here (`kernels/late.py`), unless machine code of all kernels is there and enough.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import IO, Any, NoReturn

from dpmd_fast.errors import UserValueError

Progress = Callable[[int, int], None]
#: What `warmup` compiles for a purpose: routes of `kernels/signatures.py`.
PURPOSES: dict[str, tuple[str, ...]] = {
    "transform": ("transform", "wide transform", "coordinates", "posterior", "units"),
    "atlas": ("atlas", "subspace", "transform", "many columns", "units"),
    "mixture": ("mixture", "posterior", "units"),
    "paper": ("paper", "projector", "moments", "descent"),
    "all": (),
}
_MOST_PROCESSES = 8  # each takes 200 MB, and the longest group of kernels takes as long as all others
# Up to so many processes compile kernels with the same helpers one after the other, which takes less
# processor time. More of them finish earlier if they do not wait [choice].
_FEW_PROCESSES = 3
_LOOK = 0.1  # seconds between looks at the clock, while processes compile
# The child sees the modules that its parent sees. It knows the names of kernels only.
_CHILD = "import sys; sys.path[:] = {path!r}; from dpmd_fast.compilation import _serve; _serve()"

#: Processor seconds of each kernel that other processes compiled for this one.
seconds: dict[str, float] = {}
_lock = threading.RLock()
_ready: set[str] = set()  # routes
_watcher: Progress | None = None


def warmup(*purposes: str, progress: Progress | None = None) -> None:
    """Compile kernels now, or load them from the cache, so that the first call does not wait for them.

    Parameters
    ----------
    *purposes : {"transform", "atlas", "mixture", "paper", "all"}
        What the kernels are wanted for, all by default: "transform" is enough for a server that has a model;
        "atlas" and "mixture" are for releases of such a model and include its transform; "paper" is for
        `ManifoldDenoiser`, `DPManifoldDenoiser`, `dp_projector` and `gradient_descent`.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of kernels, while kernels are compiled.

    Notes
    -----
    As many processes as there are cores compile, once for a machine; later processes load the kernels from
    the cache in about a second. Kernels compute in float64, so one compilation serves float32 and float64.
    """
    for purpose in purposes:
        if purpose not in PURPOSES:
            allowed = ", ".join(map(repr, PURPOSES))
            raise UserValueError(f"purpose = {purpose!r}: must be one of {allowed}")
    everything = not purposes or "all" in purposes
    with reporting(_watcher if progress is None else progress):
        _prepare(() if everything else [route for purpose in purposes for route in PURPOSES[purpose]])


def ensure(*routes: str) -> None:
    """Make the kernels of some routes ready to run, before anything is spent or anybody waits for a result.

    Interrupting this leaves nothing behind but kernels that are in the cache already.
    """
    if not _ready.issuperset(routes):
        _prepare(routes)
        _ready.update(routes)


def route_of(name: str, columns: int) -> tuple[str, ...]:
    """Return a route that moves points of so many columns by charts, with the kernels of its charts."""
    from dpmd_fast.kernels.charts import WIDE

    return (name, "many columns") if columns >= WIDE else (name,)


@contextmanager
def reporting(progress: Progress | None) -> Iterator[None]:
    """Tell `progress` of the kernels that are compiled inside the block, as ``progress(done, total)``."""
    global _watcher
    before, _watcher = _watcher, progress
    try:
        yield
    finally:
        _watcher = before


def _prepare(routes: Sequence[str]) -> None:
    """Load or compile the kernels of some routes; of all for no route."""
    from dpmd_fast.kernels import jit, late
    from dpmd_fast.kernels.signatures import dispatcher_of, groups_of, types_of

    if jit.JIT_DISABLED:
        return
    with _lock:
        groups = groups_of(*routes)
        if late.is_active() and _runs_without_numba(groups):
            return
        total = sum(map(len, groups))
        missing = []
        for group in groups:
            found = [(name, dispatcher_of(name), types_of(name)) for name in group]
            lacking = [name for name, kernel, given in found if not _at_hand(kernel, given)]
            if lacking:
                missing.append(tuple(lacking))
        report = _counter(total - sum(map(len, missing)), total)
        if missing and all(jit.has_cache(dispatcher_of(name)) for group in missing for name in group):
            _compile_in_children(missing, lambda: report)
        for group in groups:
            for name in group:
                kernel, given = dispatcher_of(name), types_of(name)
                if not jit.is_ready(kernel, given):
                    known = jit.is_cached(kernel, given)
                    kernel.compile(given)
                    if not known:  # no cache, no child, or a child that could not write
                        report()


def _runs_without_numba(groups: Sequence[tuple[str, ...]]) -> bool:
    """Return True if kernels are ready that need no Numba. Otherwise let it arrive.

    If none of what is missing was ever compiled, other processes begin first, so that two imports of Numba
    do not follow each other: this process imports it while they do.
    """
    from dpmd_fast.kernels import late, saved

    names = [name for group in groups for name in group]
    if late.is_avoided() and saved.load(names):
        return True
    lost = {name for name in names if not saved.is_kept(name)}
    if lost and saved.is_empty(lost):

        def counter() -> Callable[[], None]:
            if not late.is_avoided():
                late.arrive()
            return _counter(len(names) - len(lost), len(names))

        wanted = [tuple(name for name in group if name in lost) for group in groups]
        _compile_in_children([group for group in wanted if group], counter)
        if late.is_avoided() and saved.load(names):
            return True
    late.arrive()
    return False


def _at_hand(kernel: Any, given: tuple[Any, ...]) -> bool:
    from dpmd_fast.kernels import jit

    return jit.is_ready(kernel, given) or jit.is_cached(kernel, given)


def _counter(done: int, total: int) -> Callable[[], None]:
    """Return a function that counts one more kernel, and says so to whoever watches."""
    if _watcher is not None and done < total:
        _watcher(done, total)

    def report() -> None:
        nonlocal done
        done = min(done + 1, total)
        if _watcher is not None:
            _watcher(done, total)

    return report


def processes() -> int:
    """Return the number of processes that compile: one for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_PROCESSES))


def _compile_in_children(
    groups: Sequence[tuple[str, ...]], counter: Callable[[], Callable[[], None]]
) -> None:
    """Compile groups of kernels into the cache; a free process takes the next group.

    A process that cannot be started, or dies, leaves its kernels to the caller. `counter` is called when
    processes have begun, and returns what is called for every kernel that is done.
    """
    left = _Work(groups, few=processes() <= _FEW_PROCESSES)
    told: SimpleQueue[tuple[_Child, str | None]] = SimpleQueue()
    children: set[_Child] = set()
    try:
        for _ in range(min(processes(), len(groups))):
            child = _Child(told)
            children.add(child)
            if not child.take(left):
                children.discard(child)
        report = counter()
        while children:
            try:  # in short waits: a signal ends the longer ones of some systems only when they are over
                child, name = told.get(timeout=_LOOK)
            except Empty:
                continue
            if name is None:
                children.discard(child)
                child.kill()  # it has ended, or will say nothing more; waiting for it counts its time
            elif name:
                kernel, _, spent = name.partition(" ")
                seconds[kernel] = float(spent)
                report()
            elif not child.take(left):
                child.close()
    finally:
        for child in children:
            child.kill()


class _Work:
    """Groups of kernels that nobody has started on, the longest first."""

    def __init__(self, groups: Sequence[tuple[str, ...]], *, few: bool) -> None:
        self._left, self._few = list(groups), few
        self._started: set[str] = set()  # families

    def next_for(self, families: set[str]) -> tuple[str, ...] | None:
        """Return the group that a process should take which has compiled kernels of these families.

        If processes are few it is one of the same family, or of one that nobody has started on, if there are
        such.
        """
        from dpmd_fast.kernels.signatures import family_of

        first = self._left[0] if self._left else None
        if not self._few:
            return first
        known = [(group, family_of(group[0])) for group in self._left]
        same = (group for group, family in known if family in families)
        others = (group for group, family in known if family not in self._started)
        return next(same, None) or next(others, first)

    def start(self, group: tuple[str, ...]) -> str:
        """Note that a process has started on a group; return its family."""
        from dpmd_fast.kernels.signatures import family_of

        self._left.remove(group)
        family = family_of(group[0])
        self._started.add(family)
        return family


class _Child:
    """A process that compiles kernels, and a thread that listens to what it says."""

    def __init__(self, told: SimpleQueue[tuple[_Child, str | None]]) -> None:
        self._told = told
        self._families: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(path=[os.path.abspath(part) for part in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, which kills
            )
        except OSError:
            return
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self._told.put((self, line.strip()))
        self._told.put((self, None))

    def take(self, work: _Work) -> bool:
        """Start on the next group; return False if there is none, or no process."""
        group = work.next_for(self._families)
        if group is None or self._process is None:
            return False
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(group) + "\n")
            self._process.stdin.flush()
        except OSError:
            return False
        self._families.add(work.start(group))
        return True

    def close(self) -> None:
        """Let the process end by itself."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _serve() -> NoReturn:
    """Compile the kernels that come in, a group in a line.

    Prints the name of each and the seconds it took, and an empty line after a group.
    """
    from dpmd_fast.kernels import late
    from dpmd_fast.kernels.signatures import dispatcher_of, types_of

    gc.disable()  # an eighth of the time, for 100 MB more
    # Numba imports these wherever they are installed, for what no kernel has: coverage of tests, matrix
    # products, functions in C, settings in a file that is not there.
    unused = ("coverage", "scipy.linalg", "cffi", *(() if os.path.exists(late.SETTINGS) else ("yaml",)))
    for name in unused:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    lines: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # no more work, or no parent: in the middle of a kernel, too

    threading.Thread(target=listen, daemon=True).start()
    while True:
        for name in lines.get().split():
            kernel, given, start = dispatcher_of(name), types_of(name), time.process_time()
            kernel.compile(given)
            print(name, time.process_time() - start, flush=True)
        print(flush=True)
