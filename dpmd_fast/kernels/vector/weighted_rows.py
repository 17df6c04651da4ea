"""Charts as rows of numbers that are summed with weights: for points with few columns.

What a chart adds to the move of a point x is affine in x: with x' = x - center it is w (c - A x'), and w is
its weight there. So the sums over the charts of w, w c and w A are all that a point needs, and a chart is the
row (1, c, A). The lanes of a vector belong to numbers of one row: no sum across lanes, and only charts in
reach are added. Weights are formed for as many charts that lie side by side as a vector has lanes.

The numbers of c and A x' are as large as x', and so are their rounding errors. Charts far from the center are
therefore packed about their own centres, x' = x - b, and added one by one.

Every sum has one order. Products and sums are fused on every machine in the loops over charts, and nowhere in
what is done once for a point.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.scratch import aligned
from dpmd_fast.kernels.vector.lanes import (
    I64,
    LANES,
    VECTOR,
    each_group,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
    vectors_of,
)
from dpmd_fast.kernels.width import WIDTH

GROUPS = (2, 3, 4, 6, 8, 10, 12)  # in a part of a row, whose sums stay in registers: for these there is code
_ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)
_FIRSTS = sum(1 << first for first in range(0, 64, WIDTH))  # bits of the first charts of vectors


def pack_lanes(values: np.ndarray) -> np.ndarray:
    """Pack values (K, ...) of charts as (vectors, ..., lanes); missing charts are zeros."""
    out = np.zeros((-(-len(values) // WIDTH) * WIDTH, *values.shape[1:]))
    out[: len(values)] = values
    return aligned(np.moveaxis(out.reshape(-1, WIDTH, *values.shape[1:]), 1, -1))


def pack_rows(
    centers: np.ndarray, frames: np.ndarray, origins: np.ndarray, offsets: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the rows (K, numbers) of charts that add offset + sum_e (x - b) . frame_e slope_e.

    Their x' is x - origin, with an origin (D,) for each. Also returns the numbers in a part of a row.
    """
    A = -_outer(slopes, frames)
    return _in_parts(_constant(A, centers - origins) + offsets, A.reshape(len(A), -1))


def pack_projections(centers: np.ndarray, frames: np.ndarray, origins: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the rows of charts that add b - x + sum_e (x - b) . frame_e frame_e, as `pack_rows` does.

    Their A is symmetric: of it a row has the lower triangle.
    """
    D = centers.shape[1]
    A = np.eye(D) - _outer(frames, frames)
    lower = np.tril_indices(D)
    return _in_parts(_constant(A, centers - origins), A[:, lower[0], lower[1]])


def _outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return sum_e left_e right_e^T of each chart, in the same order on every machine."""
    K, d, D = left.shape
    total = np.zeros((K, D, D))
    for e in range(d):
        total += left[:, e, :, None] * right[:, e, None, :]
    return total


def _constant(A: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return A b of each chart, in the same order on every machine."""
    total = np.zeros_like(centers)
    for k in range(centers.shape[1]):
        total += A[:, :, k] * centers[:, k, None]
    return total


def _in_parts(constants: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the rows 1, c, A, filled up with zeros to parts of equal size, and that size."""
    K, numbers = len(linear), 1 + constants.shape[1] + linear.shape[1]
    groups = -(-numbers // LANES)
    parts = -(-groups // GROUPS[-1])
    size = LANES * next(count for count in GROUPS if count * parts >= groups)
    rows = np.zeros((K, parts * size))
    rows[:, 0], rows[:, 1 : 1 + constants.shape[1]] = 1.0, constants
    rows[:, 1 + constants.shape[1] : numbers] = linear
    return aligned(rows), size


def _each_bit(builder, word, starts, body):
    """Emit a loop over the bits of a word that is not zero: body(number, values) returns the next values.

    Returns the values after it.
    """
    entry = builder.block
    loop = builder.append_basic_block("bits.loop")
    done = builder.append_basic_block("bits.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    left = builder.phi(I64)
    left.add_incoming(word, entry)
    values = [builder.phi(start.type) for start in starts]
    for value, start in zip(values, starts, strict=True):
        value.add_incoming(start, entry)
    after = body(builder.cttz(left, ir.Constant(ir.IntType(1), 1)), values)
    rest = builder.and_(left, builder.sub(left, integer(1)))
    for value, new in zip(values, after, strict=True):
        value.add_incoming(new, builder.block)
    left.add_incoming(rest, builder.block)
    builder.cbranch(builder.icmp_unsigned("!=", rest, integer(0)), loop, done)
    builder.position_at_end(done)
    return after


@intrinsic
def _weigh_charts(typingctx, x, x0, centers, c0, columns, masses, m0, h2, share, word, weights):
    """Set the weights of charts of a leaf: those of a vector of charts of which one has a bit in `word`.

    With gap = x - b the weight is mass (share (h2 - |gap|^2))_+^2. The point begins at element x0 of `x`, the
    leaf at element c0 of `centers`, of `pack_lanes`, and m0 of `masses`. `word` is not zero.
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(x, i64, centers, i64, i64, masses, i64, f64, f64, types.uint64, weights)

    def codegen(context, builder, signature, args):
        _, x0, _, c0, columns, _, m0, h2, share, word, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        px, pc, pm, pw = pointer(0, x0), pointer(2, c0), pointer(5, m0), pointer(10, integer(0))
        edge, factor = splat(builder, h2, VECTOR), splat(builder, share, VECTOR)

        def weigh(first, _):
            start = builder.gep(pc, [builder.mul(first, columns)])

            def add(k, sums):
                own = builder.load(builder.gep(px, [k]))
                b = load(builder, builder.gep(start, [builder.mul(k, integer(WIDTH))]), VECTOR)
                gap = builder.fsub(splat(builder, own, VECTOR), b)
                return [fused(builder, gap, gap, sums[0])]

            (square,) = each_group(builder, columns, [_ZERO], add, step=1)
            tent = builder.fmul(factor, builder.fsub(edge, square))
            tent = builder.select(builder.fcmp_ordered(">", tent, _ZERO), tent, _ZERO)
            mass = load(builder, builder.gep(pm, [first]), VECTOR)
            store(builder, builder.fmul(builder.fmul(mass, tent), tent), builder.gep(pw, [first]))
            return []

        for shift in range(WIDTH.bit_length() - 1):
            word = builder.or_(word, builder.lshr(word, integer(1 << shift)))
        _each_bit(builder, builder.and_(word, integer(_FIRSTS)), [], weigh)
        return context.get_dummy_value()

    return sig, codegen


def _plain_weigh_charts(x, x0, centers, c0, columns, masses, m0, h2, share, word, weights):
    point = x.reshape(-1)[x0 : x0 + columns, None]
    for first in range(0, 64, WIDTH):
        if int(word) >> first & (1 << WIDTH) - 1:
            start = c0 + first * columns
            b = centers.reshape(-1)[start : start + WIDTH * columns].reshape(columns, WIDTH)
            tent = np.maximum(share * (h2 - ((point - b) ** 2).sum(axis=0)), 0.0)
            weights[first : first + WIDTH] = masses[m0 + first : m0 + first + WIDTH] * tent * tent


def _make_add(groups):
    """Return an intrinsic that adds parts of rows with weights: `groups` groups of four numbers.

    For every bit j of `word`, which is not zero, weights[j] times the part that begins at element
    r0 + j stride of `rows` is added to the elements of `sums` from s0 on.
    """

    @intrinsic
    def add(typingctx, word, weights, rows, r0, stride, sums, s0):
        i64 = types.int64
        sig = types.void(types.uint64, weights, rows, i64, i64, sums, i64)

        def codegen(context, builder, signature, args):
            word, _, _, r0, stride, _, s0 = args

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            pw, pr, ps = pointer(1, integer(0)), pointer(2, r0), pointer(5, s0)
            kinds = vectors_of(groups)
            places = [integer(sum(kind.count for kind in kinds[:i])) for i in range(len(kinds))]
            cells = [(kind, builder.gep(ps, [at])) for kind, at in zip(kinds, places, strict=True)]

            def add_one(number, before):
                weight = builder.load(builder.gep(pw, [number]))
                row = builder.gep(pr, [builder.mul(number, stride)])
                return [
                    fused(
                        builder,
                        splat(builder, weight, kind),
                        load(builder, builder.gep(row, [at]), kind),
                        total,
                    )
                    for kind, at, total in zip(kinds, places, before, strict=True)
                ]

            starts = [load(builder, cell, kind) for kind, cell in cells]
            for (_, cell), total in zip(cells, _each_bit(builder, word, starts, add_one), strict=True):
                store(builder, total, cell)
            return context.get_dummy_value()

        return sig, codegen

    return add


def _make_plain_add(groups):
    """Return the twin in NumPy of what `_make_add` returns."""
    size = LANES * groups

    def plain_add(word, weights, rows, r0, stride, sums, s0):
        flat, totals = rows.reshape(-1), sums.reshape(-1)
        for j in range(64):
            if int(word) >> j & 1:
                first = r0 + j * stride
                totals[s0 : s0 + size] += weights[j] * flat[first : first + size]

    return plain_add


_make = _make_plain_add if JIT_DISABLED else _make_add
_a2, _a3, _a4, _a6, _a8, _a10, _a12 = (_make(groups) for groups in GROUPS)
weigh_charts = _plain_weigh_charts if JIT_DISABLED else _weigh_charts


@device(inline=True)
def add_rows(word, weights, rows, size, first, sums, q):
    """Add the rows first + j of all bits j of `word`, times weights[j], to row q of `sums`.

    `size` is that of the parts of a row. Those of `sums` are as long.
    """
    stride = rows.shape[1]
    for part in range(0, stride, size):
        at, to = first * stride + part, q * stride + part
        if size == 8:
            _a2(word, weights, rows, at, stride, sums, to)
        elif size == 12:
            _a3(word, weights, rows, at, stride, sums, to)
        elif size == 16:
            _a4(word, weights, rows, at, stride, sums, to)
        elif size == 24:
            _a6(word, weights, rows, at, stride, sums, to)
        elif size == 32:
            _a8(word, weights, rows, at, stride, sums, to)
        elif size == 40:
            _a10(word, weights, rows, at, stride, sums, to)
        else:
            _a12(word, weights, rows, at, stride, sums, to)


@device(inline=True)
def apply_row(rows, q, symmetric, gap, step):
    """Set `step` to c - A gap, from row q."""
    D = len(step)
    at = 1 + D
    for i in range(D):
        step[i] = rows[q, 1 + i]
    if symmetric:
        for i in range(D):
            left = step[i]
            for j in range(i):
                left -= rows[q, at + j] * gap[j]
                step[j] -= rows[q, at + j] * gap[i]
            at += i + 1
            step[i] = left - rows[q, at - 1] * gap[i]
    else:
        for i in range(D):
            left = step[i]
            for j in range(D):
                left -= rows[q, at + j] * gap[j]
            at += D
            step[i] = left


@device(inline=True)
def add_far_charts(word, weights, centers, rows, first, symmetric, x, q, gap, step, sums):
    """Add what the charts first + j of all bits j of `word` add to point q of `x`, to row q of `sums`.

    The charts are packed about their own centres. A row of `sums` has the sum of the weights, and the step.
    """
    for j in range(len(weights)):
        if word >> np.uint64(j) & np.uint64(1) and weights[j] > 0.0:
            a = first + j
            for k in range(len(gap)):
                gap[k] = x[q, k] - centers[a // WIDTH, k, a % WIDTH]
            apply_row(rows, a, symmetric, gap, step)
            sums[q, 0] += weights[j]
            for k in range(len(step)):
                sums[q, 1 + k] += weights[j] * step[k]
