"""Python's lock around a kernel: kept for a few rows, given up for many.

A kernel that gives up the lock has to wait for it when it returns, as long as other threads please: for a few
rows that is longer than the work. One that keeps it holds up all other threads. Which is better is known when
the kernel is called, so the function that Python calls decides then, by the length of one argument. With a
second kernel for few rows, all of the code would be compiled twice.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper
from numba.core.lowering import Lower

# Rows for which kernels keep Python's lock. Four threads with one row at a time, their 99th percentile over
# that of one: 1 to 3 for an atlas with the lock, 30 to 60 without (10 columns; benchmarks/latency.py).
FEW = 16
#: Under this name the compiler notes the argument whose length is the number of rows.
ROWS = "dpmd_fast rows"


class _LockOfMany:
    """Numba's interface to Python, as a wrapper calls it, with a lock that stays where rows are few."""

    def __init__(self, api: Any, rows: int) -> None:
        self._api, self._rows = api, rows
        self._arguments: list[tuple[Any, Any]] = []
        self._released: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def to_native_value(self, kind: Any, value: Any) -> Any:
        native = self._api.to_native_value(kind, value)
        self._arguments.append((kind, native.value))
        return native

    def save_thread(self) -> Any:
        """Emit code that gives up the lock if there are many rows; return the room for the thread's state."""
        builder, context = self._api.builder, self._api.context
        kind, value = self._arguments[self._rows]
        length = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, value).shape)[0]
        self._released = builder.icmp_signed(">", length, length.type(FEW))
        state = cgutils.alloca_once(builder, self._api.voidptr)
        with builder.if_then(self._released):
            builder.store(self._api.save_thread(), state)
        return state

    def restore_thread(self, state: Any) -> None:
        """Emit code that takes back the lock if it was given up."""
        builder = self._api.builder
        with builder.if_then(self._released):
            self._api.restore_thread(builder.load(state))


class _Wrapper(PyCallWrapper):
    """What Python calls: it unpacks the arguments, and calls the kernel."""

    rows = 0

    def build_wrapper(self, api: Any, *arguments: Any) -> Any:
        return super().build_wrapper(_LockOfMany(api, self.rows), *arguments)


class LowerWithLock(Lower):
    """Numba's code generation, with a lock that depends on the argument that the compiler has noted."""

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        name = self.metadata.get(ROWS)
        if name is None:
            super().create_cpython_wrapper(release_gil)
            return
        module = self.context.create_module("wrapper")
        kind = self.context.call_conv.get_function_type(self.fndesc.restype, self.fndesc.argtypes)
        callee = cgutils.get_or_insert_function(module, kind, self.fndesc.llvm_func_name)
        made = self.context, module, callee, self.fndesc, self.env
        wrapper = _Wrapper(*made, call_helper=self.call_helper, release_gil=True)
        wrapper.rows = self.fndesc.args.index(name)
        wrapper.build()
        self.library.add_ir_module(module)
