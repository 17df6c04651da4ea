"""Squared lengths of many rows under triangular matrices, in single precision, with rows in the lanes.

For bounds: a vector holds twice as many numbers as in double precision. Rows are worked on by three vectors,
24 or 48 of them, and compared with their bounds by as many.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    GROUP,
    I64,
    LANES,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
    transposed,
)
from dpmd_fast.kernels.vector.tiles import emit_sums
from dpmd_fast.kernels.width import WIDTH

_SINGLES = 2 * WIDTH
_VECTORS = 3  # with four columns: 12 sums, 3 vectors of rows and a factor fill the 16 registers of AVX2
TOGETHER = _VECTORS * _SINGLES  # rows that are worked on together
_VECTOR = ir.VectorType(ir.FloatType(), _SINGLES)


@intrinsic
def _add_squares(typingctx, Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0):
    """Add to Q[q0 + r], r < TOGETHER, the squares of S[s0 + j] + sum_i Z[z0 + i ldz + r] W[w0 + i ldw + j].

    i < depth, and j < 4.
    """
    i64 = types.int64
    sig = types.void(Z, i64, i64, S, i64, W, i64, i64, i64, Q, i64)

    def codegen(context, builder, signature, args):
        Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0 = args
        pz = pointer_to(context, builder, signature.args[0], Z, z0)
        ps = pointer_to(context, builder, signature.args[3], S, s0)
        pw = pointer_to(context, builder, signature.args[5], W, w0)
        pq = pointer_to(context, builder, signature.args[9], Q, q0)
        columns = [builder.gep(pw, [integer(j)]) for j in range(LANES)]
        rows = [(builder.gep(pz, [integer(_SINGLES * v)]), _VECTOR) for v in range(_VECTORS)]
        starts = []
        for j in range(LANES):
            start = splat(builder, builder.load(builder.gep(ps, [integer(j)])), _VECTOR)
            starts.append([start] * _VECTORS)
        sums = emit_sums(builder, columns, ldw, rows, ldz, depth, starts)
        for v in range(_VECTORS):
            place = builder.gep(pq, [integer(_SINGLES * v)])
            total = load(builder, place, _VECTOR)
            for j in range(LANES):
                total = fused(builder, sums[j][v], sums[j][v], total)
            store(builder, total, place)
        return context.get_dummy_value()

    return sig, codegen


def _plain_add_squares(Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0):
    # in double precision and rounded at the end: never less exact than the compiled one
    j, i = np.arange(LANES), np.arange(depth)[:, None]
    product = Z.reshape(-1)[z0 + i * ldz + np.arange(TOGETHER)].T.astype(np.float64) @ W.reshape(-1)[
        w0 + i * ldw + j
    ].astype(np.float64)
    product += S.reshape(-1)[s0 + j]
    Q.reshape(-1)[q0 : q0 + TOGETHER] += (product**2).sum(axis=1).astype(np.float32)


def _emit_bounds(context, builder, signature, args):
    """Emit the bounds of the two functions below, by four: first row, bounds, floors, where these are."""
    Q, q0, norms, floor, r0, start, factor, slope = args
    pq = pointer_to(context, builder, signature.args[0], Q, q0)
    pn = pointer_to(context, builder, signature.args[2], norms, r0)
    pf = pointer_to(context, builder, signature.args[3], floor, r0)
    start, factor, slope = (splat(builder, value) for value in (start, factor, slope))
    for i in range(0, TOGETHER, LANES):
        single = load(builder, builder.gep(pq, [integer(i)]), ir.VectorType(ir.FloatType(), LANES))
        value = builder.fadd(start, builder.fmul(factor, builder.fpext(single, GROUP)))
        value = builder.fadd(value, builder.fmul(slope, load(builder, builder.gep(pn, [integer(i)]))))
        place = builder.gep(pf, [integer(i)])
        yield i, value, load(builder, place), place


@intrinsic
def _raise_floor(typingctx, Q, q0, norms, floor, r0, start, factor, slope):
    """Raise floor[r0 + i] to start + factor Q[q0 + i] + slope norms[r0 + i] where that is more.

    i < TOGETHER; Q is float32, all else in double precision.
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(Q, i64, norms, floor, i64, f64, f64, f64)

    def codegen(context, builder, signature, args):
        for _, value, before, place in _emit_bounds(context, builder, signature, args):
            more = builder.fcmp_ordered(">", value, before)
            store(builder, builder.select(more, value, before), place)
        return context.get_dummy_value()

    return sig, codegen


#: For each set of lanes, as bits: their numbers in order, and anything behind them.
_LISTS = [[lane for lane in range(LANES) if word >> lane & 1] for word in range(1 << LANES)]


@intrinsic
def _list_above(typingctx, Q, q0, norms, floor, r0, start, factor, slope, rows, at):
    """Append r0 + i, i < TOGETHER, to rows[at:] unless the bound of `_raise_floor` is at most floor[r0 + i].

    It is appended if anything is NaN. Returns the place behind the last one; three more may be overwritten.
    There is no branch, since which rows these are cannot be predicted.
    """
    i64, f64 = types.int64, types.float64
    sig = i64(Q, i64, norms, floor, i64, f64, f64, f64, rows, i64)

    def codegen(context, builder, signature, args):
        quad = ir.VectorType(I64, LANES)
        lists = [ir.Constant(quad, (own + [0] * LANES)[:LANES]) for own in _LISTS]
        table = cgutils.global_constant(builder, "lists", ir.Constant(ir.ArrayType(quad, len(lists)), lists))
        first = pointer_to(context, builder, signature.args[8], args[8], integer(0))
        at = args[9]
        for i, value, floor, _ in _emit_bounds(context, builder, signature, args[:8]):
            above = builder.fcmp_unordered(">", value, floor)
            word = builder.zext(builder.bitcast(above, ir.IntType(LANES)), I64)
            own = builder.load(builder.gep(table, [integer(0), word]))
            own = builder.add(own, splat(builder, builder.add(args[4], integer(i)), quad))
            place = builder.bitcast(builder.gep(first, [at]), quad.as_pointer())
            builder.store(own, place, align=8)
            at = builder.add(at, builder.ctpop(word))
        return at

    return sig, codegen


@intrinsic
def _take_four(typingctx, X, x0, ldx, origin, groups, Z, z0, ldz, norms, r0):
    """Turn four rows of X, less the origin, into columns of Z; set norms[r0 + i] to their squared lengths.

    Z[z0 + j ldz + i] = X[x0 + i ldx + j] - origin[j], i < 4, j < 4 groups; Z is float32.
    """
    i64 = types.int64
    sig = types.void(X, i64, i64, origin, i64, Z, i64, i64, norms, i64)

    def codegen(context, builder, signature, args):
        X, x0, ldx, origin, groups, Z, z0, ldz, norms, r0 = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        po = pointer_to(context, builder, signature.args[3], origin, integer(0))
        pz = pointer_to(context, builder, signature.args[5], Z, z0)
        pn = pointer_to(context, builder, signature.args[8], norms, r0)
        total = cgutils.alloca_once_value(builder, ir.Constant(GROUP, [0.0] * LANES))
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            j = builder.mul(loop.index, integer(LANES))
            middle = load(builder, builder.gep(po, [j]))
            lines = [builder.gep(px, [builder.add(j, builder.mul(ldx, integer(i)))]) for i in range(LANES)]
            gaps = [builder.fsub(load(builder, line), middle) for line in lines]
            value = builder.load(total)
            for column, turned in enumerate(transposed(builder, gaps)):
                value = builder.fadd(value, builder.fmul(turned, turned))
                single = builder.fptrunc(turned, ir.VectorType(ir.FloatType(), LANES))
                place = builder.mul(ldz, builder.add(j, integer(column)))
                store(builder, single, builder.gep(pz, [place]))
            builder.store(value, total)
        store(builder, builder.load(total), pn)
        return context.get_dummy_value()

    return sig, codegen


def _plain_bounds(Q, q0, norms, r0, start, factor, slope):
    squares = Q.reshape(-1)[q0 : q0 + TOGETHER].astype(np.float64)
    return start + factor * squares + slope * norms[r0 : r0 + TOGETHER]


def _plain_raise_floor(Q, q0, norms, floor, r0, start, factor, slope):
    part = floor[r0 : r0 + TOGETHER]
    value = _plain_bounds(Q, q0, norms, r0, start, factor, slope)
    part[:] = np.where(value > part, value, part)


def _plain_list_above(Q, q0, norms, floor, r0, start, factor, slope, rows, at):
    value = _plain_bounds(Q, q0, norms, r0, start, factor, slope)
    own = r0 + np.flatnonzero(~(value <= floor[r0 : r0 + TOGETHER]))
    rows.reshape(-1)[at : at + len(own)] = own
    return at + len(own)


def _plain_take_four(X, x0, ldx, origin, groups, Z, z0, ldz, norms, r0):
    i, j = np.arange(LANES), np.arange(LANES * groups)[:, None]
    gaps = X.reshape(-1)[x0 + i * ldx + j] - origin[j]
    Z.reshape(-1)[z0 + j * ldz + i] = gaps
    norms[r0 : r0 + LANES] = (gaps**2).sum(axis=0)


add_squares = _plain_add_squares if JIT_DISABLED else _add_squares
raise_floor = _plain_raise_floor if JIT_DISABLED else _raise_floor
list_above = _plain_list_above if JIT_DISABLED else _list_above
take_four = _plain_take_four if JIT_DISABLED else _take_four


@device(inline=True)
def square_columns(Z, n, S, W, k, Q):
    """Set Q[k, r], r < n, to the squared length of S[k] + Z[:, r] W[k], all of them float32.

    W (K, D, width) is upper triangular, its width a multiple of four; Z (D, room) has room for a multiple of
    `TOGETHER` rows, as has Q (K, room). A row that is not finite spoils no other.
    """
    depth, width = W.shape[1:]
    room = Z.shape[1]
    Q[k, :] = np.float32(0.0)
    for r in range(0, n, TOGETHER):
        for j in range(0, width, LANES):
            stop = min(depth, j + LANES)
            add_squares(Z, r, room, S, k * width + j, W, k * depth * width + j, width, stop, Q, k * room + r)


@device(inline=True)
def take_columns(X, origin, Z, norms):
    """Set Z (D, room), float32, to the rows of X less the origin, and `norms` to their squared lengths."""
    n, D = X.shape
    room, groups = Z.shape[1], D // LANES
    fours = n - n % LANES
    for r in range(0, fours, LANES):
        take_four(X, r * D, D, origin, groups, Z, r, room, norms, r)
    if D % LANES == 0 and fours == n:
        return
    for r in range(n):
        total = norms[r] if r < fours else 0.0
        for j in range(groups * LANES if r < fours else 0, D):
            gap = X[r, j] - origin[j]
            total += gap * gap
            Z[j, r] = gap
        norms[r] = total
