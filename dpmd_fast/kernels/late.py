"""Numba, imported when something is to be compiled.

To import Numba takes longer than to move a million points. The package calls `begin` before its first
kernel: from then on the decorators of `jit.py` give stand-ins, which know the function and nothing else.
When kernels are wanted, `arrive` imports Numba and puts what it makes of every function in the place of its
stand-in; after that all is as if Numba had been there from the start. Where nothing is compiled yet, other
processes have begun to do so before that (`compilation.py`). ``dpmd-fast transform`` calls `avoid`: it runs
the compiled code of `saved.py`, and Numba arrives only if some of it is missing.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

# Versions of Numba with which all of this was tested. `saved.py` calls compiled code as Numba's own wrappers
# do and loads two of its libraries by themselves, which another version may do in another way, and then the
# process would crash: with any other version Numba is imported at once. To add one, run the tests of
# tests/kernels/test_saved.py and test_late.py with it.
TESTED_VERSIONS = ("0.68",)
_TESTED_MACHINES = ("x86_64",)

_SWITCH = "DPMD_FAST_CACHE"
_MODULES = {"types": "numba.core.types", "cgutils": "numba.core.cgutils"}
_HARMLESS = {"NUMBA_CACHE_DIR"}  # of Numba's settings: all others are Numba's to read
SETTINGS = ".numba_config.yaml"  # Numba's file of settings, in the folder that a program runs in
_lock = threading.RLock()
_active = _avoided = False


def begin() -> None:
    """Do without Numba for now, if it is not there yet and nothing was asked for that only it understands."""
    global _active
    if "numba" in sys.modules or "dpmd_fast.kernels.jit" in sys.modules:
        return
    _active = is_usual() and os.environ.get(_SWITCH, "1") != "0"


def avoid() -> None:
    """Do without Numba altogether, if all compiled kernels are there.

    Calls of kernels then take longer by tens of microseconds, which counts for single rows only.
    """
    global _avoided
    begin()
    _avoided = _active


def is_avoided() -> bool:
    return _avoided and _active


def is_usual() -> bool:
    """Return whether code compiled here is what Numba makes by default on this kind of machine."""
    settings = {name for name in os.environ if name.startswith("NUMBA_")}
    usual = sys.platform == "linux" and os.uname().machine in _TESTED_MACHINES and sys.maxsize > 2**32
    unset = settings <= _HARMLESS and not os.path.exists(SETTINGS)
    return usual and unset and _minor_version() in TESTED_VERSIONS


@functools.cache
def numba_folder() -> Path:
    """Return where Numba is, without importing it."""
    spec = find_spec("numba")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("numba")
    return Path(spec.submodule_search_locations[0])


def numba_version() -> bytes:
    """Return the file in which Numba says its version."""
    return (numba_folder() / "_version.py").read_bytes()


@functools.cache
def _minor_version() -> str:
    """Return the version of Numba, as "0.68", without importing it; "" if it does not say.

    From its folder and not from the metadata of packages, which take 30 ms to read.
    """
    try:
        found = re.search(rb'"version": "(\d+\.\d+)\.\d+"', numba_version())
    except (OSError, ValueError):
        return ""
    return found[1].decode() if found else ""


def is_active() -> bool:
    """Return whether kernels are stand-ins, and Numba has not been needed so far."""
    return _active


def is_absent() -> bool:
    """Return whether nobody has imported Numba: other code may have, while kernels are stand-ins."""
    return _active and "numba" not in sys.modules


class _Late:
    """A module of Numba that is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def __getattr__(name: str) -> Any:
    """Return `types` or `cgutils`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _Late(_MODULES[name]) if _active else importlib.import_module(_MODULES[name])


class StandIn:
    """A function that Numba has not seen: a kernel, a helper or an intrinsic."""

    def __init__(self, function: Callable[..., Any], make: Callable[[Any], Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._make = function, make
        self._made: Any = None
        self.code: Callable[[tuple[Any, ...]], Any] | None = None  # that of `saved.py`

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.code is not None and not named and (result := self.code(arguments)) is not NotImplemented:
            return result
        arrive()
        return self.made()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        arrive()
        return getattr(self.made(), name)

    def made(self) -> Any:
        """Return what Numba makes of the function."""
        if self._made is None:
            self._made = self._make(self._function)
        return self._made


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return Numba's intrinsic, or a stand-in for it."""
    return StandIn(function, _intrinsic) if _active else _intrinsic(function)


def _intrinsic(function: Callable[..., Any]) -> Any:
    from numba.extending import intrinsic

    return intrinsic(function)


def arrive() -> None:
    """Import Numba and let it make what stand-ins stand for, in all modules of the package.

    If that is interrupted, all stand-ins stay, and the next that is called begins again. Everything is made
    before anything is replaced: another thread would compile a kernel together with stand-ins.
    """
    global _active
    with _lock:
        if not _active:
            return
        config = importlib.import_module("numba").config
        _active = False  # before anything is made: what is imported meanwhile is made at once
        disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0  # set since, too late for modules that are there
        try:
            while places := list(_places()):  # again: a module imported meanwhile may have taken some over
                made = [value.made() for _, _, value in places]
                for (module, key, _), new in zip(places, made, strict=True):
                    setattr(module, key, new)
        except BaseException:
            _active = True
            raise
        finally:
            config.DISABLE_JIT = disabled


def _places() -> Iterator[tuple[ModuleType, str, StandIn]]:
    """Yield the modules of the package that have stand-ins, with their names there."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "dpmd_fast":
            for key, value in list(vars(module).items()):
                if isinstance(value, StandIn):
                    yield module, key, value
