"""Parallel kernels that are optimised once, and helpers without machine code of their own.

Numba makes three functions of a parallel loop, each of them around the other, optimises each with all that it
calls, and makes machine code of each, as of every helper below. But only the kernel is ever called. So while
a kernel is compiled, everything else is kept as code to be linked: helpers optimised as Numba does it, the
shells around the loop not at all, as they are optimised with the kernel. Bits stay the same: LLVM may not
re-order floating point, as fastmath is never set.

Leaving the helpers to the optimisation of the kernel, too, would halve what is left. With LLVM as of llvmlite
0.50 its loop vectoriser then compiled a loop of `posterior` wrongly, so they are not.

Only `kernels/jit.py` uses this. It relies on internals of Numba. Where they differ, `CAN_LINK` is False and
kernels are compiled as Numba does by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler, CompileResult

_USED = (
    (JITCodeLibrary, "_optimize_final_module _finalize_final_module _finalize_dynamic_globals"),
    (JITCodeLibrary, "_verify_declare_only_symbols get_pointer_to_function enable_object_caching codegen"),
    (JITCPUCodegen, "create_library unserialize_library set_env"),
    (Compiler, "_compile_core"),
    (CompileResult, "_find_referenced_environments"),
)
_LOOPS = ("parfor_gufunc", "parallelgufuncwrapper", "GufuncWrapper")  # what Numba makes of a prange
_SHARED = (Linkage.linkonce_any, Linkage.linkonce_odr, Linkage.weak_any, Linkage.weak_odr)
_RUNTIME = ("NRT_", "nrt_")  # reference counts, which Numba finds by their names; the same in all processes
CAN_LINK = all(hasattr(owner, name) for owner, names in _USED for name in names.split())


class _Part(JITCodeLibrary):
    """Code that is linked with a kernel, and optimised there."""

    @property
    def codegen(self) -> Any:
        return _WithoutEnvironment(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        return 0  # there is no machine code, as for a function without a wrapper for Python

    def _optimize_final_module(self) -> None:
        if not any(word in self.name for word in _LOOPS):
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _Whole(JITCodeLibrary):
    """A kernel and its parts, of which only the kernel has a name that others see.

    Numba numbers functions in the order in which a process compiles them, and names code by these numbers.
    Kernels that were compiled by different processes and are loaded by one could take each other's parts.
    """

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            shared = function.linkage in _SHARED and not function.is_declaration
            if shared and not function.name.startswith(_RUNTIME):
                function.linkage = Linkage.internal
        super()._optimize_final_module()


class _WithoutEnvironment:
    """The code generator for a part: the environment of its function is set when the kernel is loaded."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        pass


class KernelCompiler(Compiler):
    """Compiles a kernel as a whole, and what it calls as parts of it.

    Numba lets one thread at a time compile, so the code generator may be changed meanwhile.
    """

    def _compile_core(self) -> Any:
        state = self.state
        codegen = state.targetctx.codegen()
        if state.library is None:
            state.library = _Whole(codegen, state.func_id.func_qualname)
            state.library.enable_object_caching()
        with _making_parts(codegen):
            made = super()._compile_core()
        for environment in made._find_referenced_environments():
            codegen.set_env(environment.env_name, environment)
        return made


@contextmanager
def _making_parts(codegen: Any) -> Iterator[None]:
    """Make all further code a part, but not what comes from the cache."""
    before = {name: codegen.__dict__.get(name) for name in ("create_library", "unserialize_library")}

    def restore() -> None:
        for name, value in before.items():
            codegen.__dict__.pop(name, None)
            if value is not None:
                codegen.__dict__[name] = value

    def divert() -> None:
        codegen.__dict__.update(create_library=create, unserialize_library=unserialize)

    def create(name: str, **options: Any) -> Any:
        return _Part(codegen, name, **options)

    def unserialize(serialized: Any) -> Any:
        for name in before:
            codegen.__dict__.pop(name, None)
        try:
            return codegen.unserialize_library(serialized)
        finally:
            divert()

    divert()
    try:
        yield
    finally:
        restore()
