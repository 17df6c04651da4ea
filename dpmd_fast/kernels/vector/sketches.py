"""Micro-kernels of the search: sketches of points, and their distances from the boxes of leaves.

Arrays here are as long as a sketch or a row, not padded: vectors first, then what is left one by one.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    F64,
    GROUP,
    I64,
    LANES,
    VECTOR,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.width import WIDTH

F32 = ir.FloatType()
_SINGLES = ir.VectorType(F32, LANES)


def _each(builder, count, emit, vector=GROUP):
    """Emit a loop by vectors, and one by elements over the rest; `emit` takes the place and the type."""
    whole = builder.and_(count, integer(-vector.count))
    with cgutils.for_range_slice(builder, integer(0), whole, integer(vector.count), intp=I64) as (i, _):
        emit(i, vector)
    with cgutils.for_range_slice(builder, whole, count, integer(1), intp=I64) as (i, _):
        emit(i, F64)


def _read(builder, pointer, offset, kind):
    place = builder.gep(pointer, [offset])
    return builder.load(place) if kind == F64 else load(builder, place, kind)


def _write(builder, value, pointer, offset, kind):
    place = builder.gep(pointer, [offset])
    if kind == F64:
        builder.store(value, place)
    else:
        store(builder, value, place)


@intrinsic
def _scaled_gap(typingctx, X, x0, center, scale, out, count):
    """Set out[i] = scale (X[x0 + i] - center[i]), i < count."""
    sig = types.void(X, types.int64, center, types.float64, out, types.int64)

    def codegen(context, builder, signature, args):
        X, x0, center, scale, out, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pc = pointer_to(context, builder, signature.args[2], center, integer(0))
        po = pointer_to(context, builder, signature.args[4], out, integer(0))
        wide = splat(builder, scale)

        def emit(i, kind):
            gap = builder.fsub(_read(builder, px, i, kind), _read(builder, pc, i, kind))
            _write(builder, builder.fmul(scale if kind == F64 else wide, gap), po, i, kind)

        _each(builder, count, emit)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _shift_to_single(typingctx, points, p0, middles, m0, out, count):
    """Set out[i] = points[p0 + i] - middles[m0 + i], i < count, as singles; return its squared length."""
    sig = types.float64(points, types.int64, middles, types.int64, out, types.int64)

    def codegen(context, builder, signature, args):
        points, p0, middles, m0, out, count = args
        px = pointer_to(context, builder, signature.args[0], points, p0)
        pm = pointer_to(context, builder, signature.args[2], middles, m0)
        po = pointer_to(context, builder, signature.args[4], out, integer(0))
        across = cgutils.alloca_once_value(builder, ir.Constant(GROUP, [0.0] * LANES))
        rest = cgutils.alloca_once_value(builder, ir.Constant(F64, 0.0))

        def emit(i, kind):
            gap = builder.fsub(_read(builder, px, i, kind), _read(builder, pm, i, kind))
            single = builder.fptrunc(gap, F32 if kind == F64 else _SINGLES)
            _write(builder, single, po, i, kind)
            value = builder.fpext(single, kind)
            total = rest if kind == F64 else across
            builder.store(builder.fadd(builder.load(total), builder.fmul(value, value)), total)

        _each(builder, count, emit)
        return builder.fadd(horizontal_sum(builder, builder.load(across)), builder.load(rest))

    return sig, codegen


@intrinsic
def _box_gaps(typingctx, low, high, first, stride, depth, below, above, gaps, count):
    """Set gaps[j], j < count, to the squared distance of the box [below, above] to box first + j.

    Box j is [low[j + k stride], high[j + k stride]] along the axes k < depth.
    """
    i64 = types.int64
    sig = types.void(low, high, i64, i64, i64, below, above, gaps, i64)

    def codegen(context, builder, signature, args):
        low, high, first, stride, depth, below, above, gaps, count = args
        pl = pointer_to(context, builder, signature.args[0], low, first)
        ph = pointer_to(context, builder, signature.args[1], high, first)
        pb = pointer_to(context, builder, signature.args[5], below, integer(0))
        pa = pointer_to(context, builder, signature.args[6], above, integer(0))
        pg = pointer_to(context, builder, signature.args[7], gaps, integer(0))
        totals = {kind: cgutils.alloca_once(builder, kind) for kind in (VECTOR, F64)}

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def emit(j, kind):
            zero = ir.Constant(kind, 0.0 if kind == F64 else [0.0] * WIDTH)
            builder.store(zero, totals[kind])
            with cgutils.for_range(builder, depth, intp=I64) as loop:
                at = builder.add(j, builder.mul(loop.index, stride))
                ends = [builder.load(builder.gep(side, [loop.index])) for side in (pb, pa)]
                start, stop = ends if kind == F64 else (splat(builder, end, kind) for end in ends)
                left = builder.fsub(_read(builder, pl, at, kind), stop)
                right = builder.fsub(start, _read(builder, ph, at, kind))
                side = larger(larger(left, right), zero)
                total = builder.load(totals[kind])
                builder.store(builder.fadd(total, builder.fmul(side, side)), totals[kind])
            _write(builder, builder.load(totals[kind]), pg, j, kind)

        _each(builder, count, emit, VECTOR)
        return context.get_dummy_value()

    return sig, codegen


def _plain_scaled_gap(X, x0, center, scale, out, count):
    out[:count] = scale * (X.reshape(-1)[x0 : x0 + count] - center[:count])


def _plain_shift_to_single(points, p0, middles, m0, out, count):
    out[:count] = points.reshape(-1)[p0 : p0 + count] - middles.reshape(-1)[m0 : m0 + count]
    return float((out[:count].astype(np.float64) ** 2).sum())


def _plain_box_gaps(low, high, first, stride, depth, below, above, gaps, count):
    at = first + np.arange(depth)[:, None] * stride + np.arange(count)
    left = low.reshape(-1)[at] - above[:depth, None]
    right = below[:depth, None] - high.reshape(-1)[at]
    side = np.where(left > right, left, right)
    gaps[:count] = (np.where(side > 0.0, side, 0.0) ** 2).sum(axis=0)


scaled_gap = _plain_scaled_gap if JIT_DISABLED else _scaled_gap
shift_to_single = _plain_shift_to_single if JIT_DISABLED else _shift_to_single
box_gaps = _plain_box_gaps if JIT_DISABLED else _box_gaps
