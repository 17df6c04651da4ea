"""Vectors truncated to the integer lattice: the micro-kernels of exact sums.

Entries are integers kept in float64, where sums of their products are exact below 2^53: every order of
summation gives the same bits. Truncation is toward zero, so that no norm grows.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.vector.lanes import (
    I64,
    LANES,
    VECTOR,
    fused,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    splat,
    store,
)


def truncate(builder, vector):
    toward_zero = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR]), "llvm.trunc.v4f64"
    )
    return builder.call(toward_zero, [vector])


def _truncated_difference(builder, px, pa, factor, at):
    gap = builder.fsub(load(builder, builder.gep(px, [at])), load(builder, builder.gep(pa, [at])))
    return truncate(builder, builder.fmul(factor, gap))


@intrinsic
def _truncated_square(typingctx, X, x0, A, a0, scale, count):
    """Return the sum of trunc(scale (X[x0 + i] - A[a0 + i]))^2 over i < count, a multiple of four."""
    i64 = types.int64
    sig = types.float64(X, i64, A, i64, types.float64, i64)

    def codegen(context, builder, signature, args):
        X, x0, A, a0, scale, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pa = pointer_to(context, builder, signature.args[2], A, a0)
        factor = splat(builder, scale)
        total = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
        with cgutils.for_range_slice(builder, integer(0), count, integer(LANES), intp=I64) as (i, _):
            value = _truncated_difference(builder, px, pa, factor, i)
            builder.store(fused(builder, value, value, builder.load(total)), total)
        return horizontal_sum(builder, builder.load(total))

    return sig, codegen


@intrinsic
def _pack_truncated(typingctx, X, x0, A, a0, scale, panel, p0, stride, groups):
    """Set panel[p0 + g stride + l] = trunc(scale (X[x0 + 4g + l] - A[a0 + 4g + l])), g < groups."""
    i64 = types.int64
    sig = types.void(X, i64, A, i64, types.float64, panel, i64, i64, i64)

    def codegen(context, builder, signature, args):
        X, x0, A, a0, scale, panel, p0, stride, groups = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pa = pointer_to(context, builder, signature.args[2], A, a0)
        target = pointer_to(context, builder, signature.args[5], panel, p0)
        factor = splat(builder, scale)
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            value = _truncated_difference(builder, px, pa, factor, builder.mul(loop.index, integer(LANES)))
            store(builder, value, builder.gep(target, [builder.mul(loop.index, stride)]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _truncate_in_place(typingctx, X, x0, scale, count):
    """Set X[x0 + i] to trunc(scale X[x0 + i]), i < count, a multiple of four."""
    i64 = types.int64
    sig = types.void(X, i64, types.float64, i64)

    def codegen(context, builder, signature, args):
        X, x0, scale, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        factor = splat(builder, scale)
        with cgutils.for_range_slice(builder, integer(0), count, integer(LANES), intp=I64) as (i, _):
            place = builder.gep(px, [i])
            store(builder, truncate(builder, builder.fmul(factor, load(builder, place))), place)
        return context.get_dummy_value()

    return sig, codegen


def _plain_truncated_square(X, x0, A, a0, scale, count):
    gap = X.reshape(-1)[x0 : x0 + count] - A.reshape(-1)[a0 : a0 + count]
    return float(np.sum(np.trunc(scale * gap) ** 2))


def _plain_pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups):
    count = LANES * groups
    gap = X.reshape(-1)[x0 : x0 + count] - A.reshape(-1)[a0 : a0 + count]
    cells = p0 + stride * np.arange(groups)[:, None] + np.arange(LANES)
    panel.reshape(-1)[cells] = np.trunc(scale * gap).reshape(groups, LANES)


def _plain_truncate_in_place(X, x0, scale, count):
    part = X.reshape(-1)[x0 : x0 + count]
    part[:] = np.trunc(scale * part)


truncated_square = _plain_truncated_square if JIT_DISABLED else _truncated_square
pack_truncated = _plain_pack_truncated if JIT_DISABLED else _pack_truncated
truncate_in_place = _plain_truncate_in_place if JIT_DISABLED else _truncate_in_place
