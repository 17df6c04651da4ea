"""Arguments of kernels without their reference counts.

Numba counts references of every array that is handed to a function, put into a tuple or taken out of one, by
atomic instructions: with an index of two dozen arrays and helpers that are called for each record, this is a
good part of the time. The arguments of a function are kept by its caller until it returns, so inside of it
they need not be counted. Helpers that make no arrays count none (`jit.device`); this is for all others.
"""

from __future__ import annotations

from typing import Any, cast

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types


@intrinsic
def _borrow(typingctx, value):
    def codegen(context, builder, signature, args):
        return uncounted(context, builder, signature.args[0], args[0])

    return value(value), codegen


def uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Emit a copy of an array, or of a tuple with arrays, that refers to nobody who counts."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        for name in ("meminfo", "parent"):
            setattr(array, name, cgutils.get_null_value(getattr(array, name).type))
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, part in enumerate(cast(Any, kind)):
            inside = builder.extract_value(value, i)
            value = builder.insert_value(value, uncounted(context, builder, part, inside), i)
    return value


def _plain_borrow(value):
    return value


#: ``x = borrow(x)`` for an argument x of the function, and for nothing else: what a function makes itself is
#: freed after the last use of its own name for it.
borrow = _plain_borrow if JIT_DISABLED else _borrow
