"""The one place that calls ``numba.njit``: compiler flags, the cache of compiled code, thread limits.

Kernels are compiled on first use. Compiled code is kept in the folder that Numba chooses for each source
file: below ``NUMBA_CACHE_DIR``, else in ``__pycache__`` beside the file, else in the user's cache folder. A
folder that other users can write is not trusted (`cache.py`). A change in any kernel file makes all of it
stale. ``DPMD_FAST_CACHE=0`` switches the cache off (tests do).

``fastmath`` is never set: it would let the compiler drop the NaN guards and re-order the sums that the tests
compare bit for bit.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from dpmd_fast.kernels import late
from dpmd_fast.kernels.cache import secure
from dpmd_fast.kernels.layer import start_layer
from dpmd_fast.kernels.saved import keep
from dpmd_fast.kernels.width import chosen_width

_SWITCH = "DPMD_FAST_CACHE"


def _numba() -> Any:
    """Return Numba, which is imported late where a process may do without it."""
    import numba

    return numba


JIT_DISABLED = not late.is_active() and bool(_numba().config.DISABLE_JIT)


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    rows: str | None = None,
    in_stages: bool = False,
) -> Any:
    """Compile `function` in nopython mode, to be called from Python or from other kernels.

    It runs without Python's lock, so that other threads go on meanwhile. With `rows`, the name of an array
    among its arguments, it keeps the lock if that is a few rows long (`lock.py`).

    It is optimised in one go (`compiler.py`), or `in_stages`, as Numba does, where that code was measured to
    be faster.
    """
    if function is None:
        return functools.partial(kernel, rows=rows, in_stages=in_stages)
    make = functools.partial(_kernel, rows=rows, in_stages=in_stages)
    return late.StandIn(function, make) if late.is_active() else make(function)


def _kernel(function: Callable[..., Any], *, rows: str | None, in_stages: bool) -> Any:
    from dpmd_fast.kernels.compiler import KernelCompiler, StagedCompiler

    compiler: Any = StagedCompiler if in_stages else KernelCompiler
    if rows is not None:
        compiler = type(compiler.__name__, (compiler,), {"rows": rows})
    # no other kernel takes it as an argument; it may make arrays, whoever calls it
    options = {"no_cfunc_wrapper": True, "_nrt": True}
    return _compiled(function, pipeline_class=compiler, **options)


def device(function: Callable[..., Any] | None = None, *, inline: bool = False, memory: bool = False) -> Any:
    """Compile a helper that only kernels call; `inline` puts its code into the caller.

    It gets no wrapper for Python: Numba would optimise that wrapper again inside every caller, and
    unpacking an index of a dozen arrays is most of the code of a small helper. Handing
    such an index over costs about 100 ns a call, so what is called for every leaf goes inline.

    Helpers are part of the kernels that call them and not cached by themselves. They may take other device
    functions as arguments: Numba compiles them anew for each of these, so calling them costs nothing. They
    raise nothing but exceptions with constant arguments: others need an environment that is not there.

    Only a helper with `memory` may make arrays, get them from a call or return them. In all others Numba
    counts no references: with an index of two dozen arrays that is a quarter of the code of a kernel, and
    an eighth of the time to compile it.
    """
    if function is None:
        return functools.partial(device, inline=inline, memory=memory)
    make = functools.partial(_device, inline=inline, memory=memory)
    return late.StandIn(function, make) if late.is_active() else make(function)


def _device(function: Callable[..., Any], *, inline: bool, memory: bool) -> Any:
    from dpmd_fast.kernels.compiler import BorrowingCompiler

    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": inline}
    options["_nrt"] = memory
    if not memory:
        options["pipeline_class"] = BorrowingCompiler
    return _compiled(function, cache=False, **options)


def _compiled(function: Callable[..., Any], *, cache: bool = True, **options: Any) -> Any:
    """Compile `function`, and cache it if that is allowed and Numba finds a folder it can write."""
    compiler = functools.partial(_numba().njit, nogil=True, error_model="numpy", **options)
    if cache and os.environ.get(_SWITCH, "1") != "0":
        try:
            return _keyed(compiler(cache=True)(function))
        except RuntimeError:  # no folder, as on a read-only installation without a home, or none that is safe
            os.environ[_SWITCH] = "0"  # for all other kernels, and for child processes
            warnings.warn(
                "there is no folder for compiled kernels that this user, and nobody else, can write: every "
                "process compiles them again, which takes a minute or two; set NUMBA_CACHE_DIR to such a "
                "folder",
                UserWarning,
                stacklevel=3,
            )
    return compiler()(function)


@functools.cache
def kernel_digest() -> str:
    """Return a digest of the sources of all kernels, and of the width of vectors that was asked for."""
    total = hashlib.sha256(chosen_width().encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()


def _keyed(dispatcher: Any) -> Any:
    """Make compiled code in the cache stale when any kernel file changes, and take it from safe folders only.

    Numba looks at the caller's file only, and would go on running what an older helper compiled to.
    """
    cache: Any = getattr(dispatcher, "_cache", None)
    if getattr(cache, "_cache_file", None) is not None:
        if not secure(cache):
            raise RuntimeError("no folder that others cannot write")
        file = cache._cache_file
        file._source_stamp = (file._source_stamp, kernel_digest())
        _ignore_cache_errors(cache, dispatcher.py_func)
    return dispatcher


def _ignore_cache_errors(cache: Any, function: Any) -> None:
    """Let a folder that is full, read-only or damaged cost time only: compile, and keep nothing."""
    from numba.core.runtime.nrt import rtsys

    save = cache.save_overload

    def try_load(signature: Any, context: Any) -> Any:
        try:
            # Numba's `load_overload` loads all that a compiler needs before, in a third of a second
            rtsys.initialize(context)
            return cache._load_overload(signature, context)
        except Exception:  # of a damaged file: anything
            return None

    def try_save(signature: Any, data: Any) -> None:
        with suppress(Exception):
            save(signature, data)
            keep(function, data)

    cache.load_overload, cache.save_overload = try_load, try_save


def is_ready(dispatcher: Any, types: tuple[Any, ...]) -> bool:
    """Return whether this process has a kernel compiled for these types of arguments."""
    return JIT_DISABLED or types in dispatcher.overloads


def is_cached(dispatcher: Any, types: tuple[Any, ...]) -> bool:
    """Return whether the cache on disk has a kernel for these types and this processor."""
    cache = dispatcher._cache
    file = getattr(cache, "_cache_file", None)
    if file is None:  # without a cache
        return False
    try:
        name = file._load_index().get(cache._index_key(types, dispatcher.targetctx.codegen()))
        return name is not None and os.path.exists(file._data_path(name))
    except Exception:  # of a damaged file: anything
        return False


def has_cache(dispatcher: Any) -> bool:
    """Return whether code that another process compiles can be had from a cache on disk."""
    return not JIT_DISABLED and getattr(dispatcher._cache, "_cache_file", None) is not None


_first_parallel_pid: int | None = None


def resolve_threads(n_threads: int | None) -> int:
    """Return the number of threads a kernel will use: all that Numba may use, or fewer if asked."""
    if late.is_absent():  # as Numba counts them
        most = max(1, len(os.sched_getaffinity(0)))
        return most if n_threads is None else max(1, min(int(n_threads), most))
    most = int(_numba().config.NUMBA_NUM_THREADS)
    if n_threads is not None:
        return max(1, min(int(n_threads), most))
    try:
        _numba().threading_layer()
    except ValueError:  # none is running: to ask for the number of its threads would start it
        return most
    return min(int(_numba().get_num_threads()), most)


@contextmanager
def threads(n_threads: int | None = None) -> Iterator[int]:
    """Limit Numba to `n_threads` and BLAS to one thread inside the block; restore both afterwards."""
    late.arrive()
    refuse_after_fork()
    start_layer()
    count, numba = resolve_threads(n_threads), _numba()
    before_threads = numba.get_num_threads()
    with _single_blas, _one_at_a_time if _serial_layer() else nullcontext():
        numba.set_num_threads(count)
        try:
            yield count
        finally:
            numba.set_num_threads(before_threads)


def single_blas() -> Any:
    """Return a context in which BLAS uses one thread: its sums have one order on all machines of a kind."""
    return _single_blas


class _SingleBlas:
    """BLAS on one thread while at least one block, of any Python thread, asks for it.

    Counted, because limits of overlapping threads would otherwise restore each other's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._take_over()
                self._limits = _blas().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._take_over()
                self._limits.restore_original_limits()
                self._take_over()

    @staticmethod
    def _take_over() -> None:
        """Let this thread set limits: threadpoolctl hears only the first that did, and ignores all others."""
        for library in _blas().lib_controllers:
            if hasattr(library, "clear_controlling_thread"):  # in newer versions
                library.clear_controlling_thread(force=True)


_single_blas = _SingleBlas()
_one_at_a_time = threading.RLock()


def _serial_layer() -> bool:
    """Return whether the threading layer cannot serve two Python threads at once, or is not chosen yet."""
    try:
        return bool(_numba().threading_layer() == "workqueue")
    except ValueError:
        return True


def _before_fork() -> None:
    """Count other Numba code that ran in parallel as a use: its layer cannot go on in the child either."""
    global _first_parallel_pid
    if _first_parallel_pid is None and not late.is_absent():
        with suppress(ValueError):  # no layer is running
            _numba().threading_layer()
            _first_parallel_pid = os.getpid()


def _after_fork() -> None:
    global _single_blas, _one_at_a_time
    _single_blas, _one_at_a_time = _SingleBlas(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _blas() -> Any:
    """Return the BLAS libraries that are loaded: looked for again if a module was imported since."""
    return _find_blas(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _find_blas(_modules: int) -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")  # limits of other libraries stay as they are


def refuse_after_fork() -> None:
    """Refuse to run in a forked child that GNU OpenMP would abort as it enters a parallel region."""
    global _first_parallel_pid
    pid = os.getpid()
    if _first_parallel_pid is None:
        _first_parallel_pid = pid
    elif _first_parallel_pid != pid:
        try:
            layer = _numba().threading_layer()
        except ValueError:  # no parallel region was entered before the fork
            layer = None
        if layer == "omp":
            raise RuntimeError(
                "parallel kernels were used in the parent before this process was forked, and GNU OpenMP "
                "cannot run in such a child: start worker processes with the 'spawn' or 'forkserver' method, "
                "or set NUMBA_THREADING_LAYER=workqueue (only transforms need neither)"
            )
        _first_parallel_pid = pid
