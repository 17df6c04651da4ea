"""Vectors truncated to the integer lattice: the micro-kernels of exact sums.

Entries are integers kept in float64, where sums of their products are exact below 2^53: every order of
summation gives the same bits. Truncation is toward zero, so that no norm grows.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    GROUP,
    LANES,
    VECTOR,
    each_vector,
    fused,
    groups_of,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.vector.panels import panel_cell
from dpmd_fast.kernels.width import WIDTH


def truncate(builder, value):
    toward_zero = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(value.type, [value.type]), f"llvm.trunc.v{value.type.count}f64"
    )
    return builder.call(toward_zero, [value])


def _truncated_difference(builder, px, pa, scale, k, vector):
    x, a = (load(builder, builder.gep(start, [k]), vector) for start in (px, pa))
    return truncate(builder, builder.fmul(splat(builder, scale, vector), builder.fsub(x, a)))


@intrinsic
def _truncated_square(typingctx, X, x0, A, a0, scale, count):
    """Return the sum of trunc(scale (X[x0 + i] - A[a0 + i]))^2 over i < count, a multiple of four."""
    i64 = types.int64
    sig = types.float64(X, i64, A, i64, types.float64, i64)

    def codegen(context, builder, signature, args):
        X, x0, A, a0, scale, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pa = pointer_to(context, builder, signature.args[2], A, a0)
        totals = {
            vector: cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * vector.count))
            for vector in dict.fromkeys((VECTOR, GROUP))
        }

        def add(k, vector):
            value = _truncated_difference(builder, px, pa, scale, k, vector)
            total = totals[vector]
            builder.store(fused(builder, value, value, builder.load(total)), total)

        each_vector(builder, count, add)
        first, *others = (
            group for total in totals.values() for group in groups_of(builder, builder.load(total))
        )
        for other in others:
            first = builder.fadd(first, other)
        return horizontal_sum(builder, first)

    return sig, codegen


@intrinsic
def _pack_truncated(typingctx, X, x0, A, a0, scale, panel, p0, stride, groups):
    """Set panel[p0 + v stride + l] = trunc(scale (X[x0 + W v + l] - A[a0 + W v + l])), as `pack` does."""
    i64 = types.int64
    sig = types.void(X, i64, A, i64, types.float64, panel, i64, i64, i64)

    def codegen(context, builder, signature, args):
        X, x0, A, a0, scale, panel, p0, stride, groups = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pa = pointer_to(context, builder, signature.args[2], A, a0)
        target = pointer_to(context, builder, signature.args[5], panel, p0)

        def move(k, vector):
            value = _truncated_difference(builder, px, pa, scale, k, vector)
            store(builder, value, panel_cell(builder, target, k, stride))

        each_vector(builder, builder.mul(groups, integer(LANES)), move)
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

        def shorten(k, vector):
            place = builder.gep(px, [k])
            value = builder.fmul(splat(builder, scale, vector), load(builder, place, vector))
            store(builder, truncate(builder, value), place)

        each_vector(builder, count, shorten)
        return context.get_dummy_value()

    return sig, codegen


def _plain_truncated_square(X, x0, A, a0, scale, count):
    gap = X.reshape(-1)[x0 : x0 + count] - A.reshape(-1)[a0 : a0 + count]
    return float(np.sum(np.trunc(scale * gap) ** 2))


def _plain_pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups):
    count = LANES * groups
    gap = X.reshape(-1)[x0 : x0 + count] - A.reshape(-1)[a0 : a0 + count]
    column = np.arange(count)
    panel.reshape(-1)[p0 + column // WIDTH * stride + column % WIDTH] = np.trunc(scale * gap)


def _plain_truncate_in_place(X, x0, scale, count):
    part = X.reshape(-1)[x0 : x0 + count]
    part[:] = np.trunc(scale * part)


truncated_square = _plain_truncated_square if JIT_DISABLED else _truncated_square
pack_truncated = _plain_pack_truncated if JIT_DISABLED else _pack_truncated
truncate_in_place = _plain_truncate_in_place if JIT_DISABLED else _truncate_in_place
