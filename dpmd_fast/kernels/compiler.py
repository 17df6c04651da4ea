"""Numba's compiler, with every kernel optimised once.

Numba optimises each function that it compiles together with all that it calls, and generates machine code
for it: for a helper, for a helper's helper, for the body of a parallel loop, for the wrapper around that body
and for the kernel around the wrapper. All but the last is work for nothing, since the kernel has everything
linked in. Here only a kernel is optimised as a whole and translated; what it calls stays as intermediate
code, simplified function by function. All kernels take half as long to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.cpu import CPUContext
from numba.core.typed_passes import NativeLowering, NopythonTypeInference

from dpmd_fast.kernels.lock import ROWS, LowerWithLock


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel."""

    def _optimize_functions(self, module: Any) -> None:
        """Simplify functions one by one; Numba makes the passes anew for each, and for declarations too."""
        module.data_layout = self._codegen._data_layout
        defined = [function for function in module.functions if not function.is_declaration]
        if defined:
            passes, builder = self._codegen._function_pass_manager()
            for function in defined:
                passes.run(function, builder)


class _LinkedLibrary(_KernelLibrary):
    """Code that kernels link in, without machine code of its own."""

    @property
    def codegen(self) -> Any:
        return _NoAddresses(self._codegen)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        """Load a kernel from the cache, with its machine code: others than the one that links it call it."""
        with _libraries(codegen, JITCodeLibrary):
            return JITCodeLibrary._unserialize(codegen, state)


class _StagedLibrary(_LinkedLibrary):
    """The same, optimised before it is linked in."""

    def _optimize_final_module(self) -> None:
        _KernelLibrary._optimize_final_module(self)


class _NoAddresses:
    """A code generator that sets no addresses in machine code that is not there."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        pass


@contextmanager
def _libraries(codegen: Any, kind: Any) -> Iterator[None]:
    """Let libraries that are made inside the block be of this kind."""
    with _replaced(codegen, "_library_class", kind):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value inside the block, in which no other thread compiles."""
    with global_compiler_lock:
        before = getattr(owner, name)
        try:
            setattr(owner, name, value)
            yield
        finally:
            setattr(owner, name, before)


def _make_no_wrapper(*_: Any) -> None:
    """Stand for Numba's function that makes one for callers in C: nobody calls helpers so."""


def _start_library(state: Any) -> None:
    """Give a kernel a library that can be run, and kept in the cache."""
    state.library = _KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
    state.library.enable_object_caching()


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerKernel(NativeLowering):
    _name = "lower_kernel"

    @property
    def lowering_class(self) -> Any:
        return LowerWithLock

    def run_pass(self, state: Any) -> bool:
        _start_library(state)
        return bool(super().run_pass(state))


_REPLACED = {NativeLowering: _LowerKernel}


class KernelCompiler(CompilerBase):
    """Numba's usual passes, with what is compiled for this function alone linked into it.

    The function itself is one that Python calls: it has machine code whoever compiles it.
    """

    rows: str | None = None  # the argument whose length decides about Python's lock; None to give it up
    helpers: Any = _LinkedLibrary

    def define_pipelines(self) -> list[Any]:
        if self.rows is not None:
            self.state.metadata[ROWS] = self.rows
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_REPLACED.get(found, found), words) for found, words in passes.passes]
        passes.finalize()
        return [passes]

    def compile_extra(self, func: Any) -> Any:
        codegen = self.state.targetctx.codegen()
        with (
            _libraries(codegen, self.helpers),
            _replaced(CPUContext, "create_cfunc_wrapper", _make_no_wrapper),
        ):
            return super().compile_extra(func)


class StagedCompiler(KernelCompiler):
    """The same, with helpers optimised by themselves before they are linked, as Numba does."""

    helpers = _StagedLibrary


@register_pass(mutates_CFG=False, analysis_only=True)
class _CheckBorrowing(AnalysisPass):
    """A helper that counts no references gets no memory from a call and returns none: nobody frees it."""

    _name = "check_borrowing"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        assigned = (one for block in state.func_ir.blocks.values() for one in block.find_insts(ir.Assign))
        calls = (one for one in assigned if isinstance(one.value, ir.Expr) and one.value.op == "call")
        made = [state.return_type, *(state.typemap[call.target.name] for call in calls)]
        models = state.targetctx.data_model_manager
        if any(models[kind].contains_nrt_meminfo() for kind in made):
            name = state.func_id.func_qualname
            raise TypeError(
                f"{name} makes or returns an array, a list or a text: must be a device with memory=True"
            )
        return False


class BorrowingCompiler(CompilerBase):
    """Numba's usual passes, for a helper that counts no references."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_CheckBorrowing, NopythonTypeInference)
        passes.finalize()
        return [passes]
