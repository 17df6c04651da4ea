"""Panels: rows that are multiplied with each other, packed vector by vector.

A panel has the shape (vectors, rows, WIDTH): column k of row r is at [k // WIDTH, r, k % WIDTH], so that a
product over the rows reads memory in one direction. `tiles.py` multiplies panels.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    I64,
    LANES,
    SPAN,
    each_vector,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.width import WIDTH

_LINE = 8  # doubles in a cache line


@device(memory=True)
def aligned_panel(groups, capacity):
    """Return room for a panel, in one dimension, that begins with a cache line."""
    size = panel_vectors(groups) * capacity * WIDTH
    room = np.empty(size + _LINE)
    first = (-room.ctypes.data // 8) % _LINE
    return room[first : first + size]


@device(inline=True)
def panel_vectors(groups):
    """Return how many vectors a row of a panel has."""
    return (groups + SPAN - 1) // SPAN


def panel_cell(builder, row, k, stride):
    """Emit the place of the vector that begins with column k; `stride` is from one vector to the next."""
    return builder.gep(row, [builder.mul(builder.ashr(k, integer(WIDTH.bit_length() - 1)), stride)])


@intrinsic
def _pack(typingctx, row, r0, center, scale, panel, p0, stride, groups):
    """Set panel[p0 + v stride + l] = scale (row[r0 + W v + l] - center[W v + l]), for vectors of W lanes."""
    i64 = types.int64
    sig = types.void(row, i64, center, types.float64, panel, i64, i64, i64)

    def codegen(context, builder, signature, args):
        row, r0, center, scale, panel, p0, stride, groups = args
        source = pointer_to(context, builder, signature.args[0], row, r0)
        middle = pointer_to(context, builder, signature.args[2], center, integer(0))
        target = pointer_to(context, builder, signature.args[4], panel, p0)

        def move(k, vector):
            own, center = (load(builder, builder.gep(start, [k]), vector) for start in (source, middle))
            value = builder.fmul(splat(builder, scale, vector), builder.fsub(own, center))
            store(builder, value, panel_cell(builder, target, k, stride))

        each_vector(builder, builder.mul(groups, integer(LANES)), move)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _pack_scaled(typingctx, rows, r0, scale, panel, p0, stride, groups, count):
    """Set panel[p0 + v stride + W c + l] = scale rows[r0 + 4 groups c + W v + l], c < count, as `_pack`."""
    i64 = types.int64
    sig = types.void(rows, i64, types.float64, panel, i64, i64, i64, i64)

    def codegen(context, builder, signature, args):
        rows, r0, scale, panel, p0, stride, groups, count = args
        source = pointer_to(context, builder, signature.args[0], rows, r0)
        target = pointer_to(context, builder, signature.args[3], panel, p0)
        length = builder.mul(groups, integer(LANES))

        def move(k, vector):
            start, end = builder.gep(source, [k]), panel_cell(builder, target, k, stride)
            factor = splat(builder, scale, vector)
            with cgutils.for_range(builder, count, intp=I64) as row:
                value = load(builder, builder.gep(start, [builder.mul(row.index, length)]), vector)
                cell = builder.gep(end, [builder.mul(row.index, integer(WIDTH))])
                store(builder, builder.fmul(factor, value), cell)

        each_vector(builder, length, move)
        return context.get_dummy_value()

    return sig, codegen


def _plain_pack(row, r0, center, scale, panel, p0, stride, groups):
    source, target = row.reshape(-1), panel.reshape(-1)
    for i in range(LANES * groups):
        target[p0 + i // WIDTH * stride + i % WIDTH] = scale * (source[r0 + i] - center[i])


def _plain_pack_scaled(rows, r0, scale, panel, p0, stride, groups, count):
    source, target = rows.reshape(-1), panel.reshape(-1)
    i = np.arange(LANES * groups)
    for c in range(count):
        target[p0 + i // WIDTH * stride + WIDTH * c + i % WIDTH] = scale * source[r0 + c * len(i) + i]


pack = _plain_pack if JIT_DISABLED else _pack
pack_scaled = _plain_pack_scaled if JIT_DISABLED else _pack_scaled
