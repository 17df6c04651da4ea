"""Micro-kernels over the neighbours in one leaf: who they are, how they weigh, what they add up to.

The 64 candidates of a leaf come as the bits of a word. Sums over them stay in registers, and rows that will
be needed soon are asked for ahead of time: neighbours are spread over more memory than the caches hold.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    F64,
    GROUP,
    I32,
    I64,
    LANES,
    each_vector,
    fused,
    integer,
    load,
    pointer_to,
    prefetch,
    reduce_pairs,
    splat,
    store,
)

_LINE = 8  # doubles in a cache line


@intrinsic
def _append_inside(typingctx, word, X, x0, rows, first, width, h2, share, places, tents, at, inside):
    """Append the candidates of `word` (bit 0 is row `first`) closer to the point at X[x0] than the radius.

    Their rows go to places[at:], share (h2 - r^2) > 0 to tents[at:]; one element behind the last is written,
    too. Returns the end of the lists; inside[0] grows by the number of candidates in the closed ball.
    """
    i64, f64 = types.int64, types.float64
    sig = i64(types.uint64, X, i64, rows, i64, i64, f64, f64, places, tents, i64, inside)

    def codegen(context, builder, signature, args):
        word, X, x0, rows, first, width, h2, share, places, tents, at, inside = args
        px = pointer_to(context, builder, signature.args[1], X, x0)
        pr = pointer_to(context, builder, signature.args[3], rows, integer(0))
        pp = pointer_to(context, builder, signature.args[8], places, integer(0))
        pt = pointer_to(context, builder, signature.args[9], tents, integer(0))
        pi = pointer_to(context, builder, signature.args[11], inside, integer(0))
        left = cgutils.alloca_once(builder, I64)
        end = cgutils.alloca_once(builder, I64)
        builder.store(word, left)
        builder.store(at, end)
        loop = builder.append_basic_block("inside.loop")
        body = builder.append_basic_block("inside.body")
        done = builder.append_basic_block("inside.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        bits = builder.load(left)
        builder.cbranch(builder.icmp_unsigned("!=", bits, integer(0)), body, done)
        builder.position_at_end(body)
        row = builder.add(first, builder.cttz(bits, ir.Constant(ir.IntType(1), 1)))
        builder.store(builder.and_(bits, builder.sub(bits, integer(1))), left)
        r2 = reduce_pairs(builder, px, builder.gep(pr, [builder.mul(row, width)]), width, difference=True)
        tent = builder.fmul(share, builder.fsub(h2, r2))
        slot = builder.load(end)
        builder.store(builder.trunc(row, I32), builder.gep(pp, [slot]))
        builder.store(tent, builder.gep(pt, [slot]))
        counts = builder.zext(builder.fcmp_ordered("<=", r2, h2), I64)
        builder.store(builder.add(builder.load(pi), counts), pi)
        keeps = builder.fcmp_ordered(">", tent, ir.Constant(F64, 0.0))
        builder.store(builder.add(slot, builder.zext(keeps, I64)), end)
        builder.branch(loop)
        builder.position_at_end(done)
        return builder.load(end)

    return sig, codegen


@intrinsic
def _fetch_ahead(typingctx, rows, places, start, stop, length):
    """Prefetch the rows places[start:stop], `length` doubles each."""
    i64 = types.int64
    sig = types.void(rows, places, i64, i64, i64)

    def codegen(context, builder, signature, args):
        rows, places, start, stop, length = args
        pr = pointer_to(context, builder, signature.args[0], rows, integer(0))
        pp = pointer_to(context, builder, signature.args[1], places, integer(0))
        with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
            row = builder.load(builder.gep(pp, [i]))
            if row.type == F64:
                row = builder.fptosi(row, I64)
            row = row if row.type == I64 else builder.sext(row, I64)
            source = builder.gep(pr, [builder.mul(row, length)])
            with cgutils.for_range_slice(builder, integer(0), length, integer(_LINE), intp=I64) as (k, _):
                prefetch(builder, builder.gep(source, [k]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _add_differences(typingctx, weights, places, start, stop, rows, X, x0, out, width):
    """Add to out the sum of weights[i] (rows[places[i]] - x) over start <= i < stop, x at X[x0]."""
    i64 = types.int64
    sig = types.void(weights, places, i64, i64, rows, X, i64, out, i64)

    def codegen(context, builder, signature, args):
        weights, places, start, stop, rows, X, x0, out, width = args
        pw = pointer_to(context, builder, signature.args[0], weights, integer(0))
        pp = pointer_to(context, builder, signature.args[1], places, integer(0))
        pr = pointer_to(context, builder, signature.args[4], rows, integer(0))
        px = pointer_to(context, builder, signature.args[5], X, x0)
        target = pointer_to(context, builder, signature.args[7], out, integer(0))

        def add(k, vector):
            x = load(builder, builder.gep(px, [k]), vector)
            cell = builder.gep(target, [k])
            total = cgutils.alloca_once_value(builder, load(builder, cell, vector))
            column = builder.gep(pr, [k])
            with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
                row = builder.sext(builder.load(builder.gep(pp, [i])), I64)
                own = load(builder, builder.gep(column, [builder.mul(row, width)]), vector)
                weight = splat(builder, builder.load(builder.gep(pw, [i])), vector)
                gap = builder.fsub(own, x)
                builder.store(fused(builder, weight, gap, builder.load(total)), total)
            store(builder, builder.load(total), cell)

        each_vector(builder, width, add)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _add_outers_four(typingctx, bases, roots, places, start, stop, count, C):
    """Add to C (4 x 4) the sum of w w^T, w = roots[i] v, over the `count` rows v of bases[places[i]]."""
    i64 = types.int64
    sig = types.void(bases, roots, places, i64, i64, i64, C)

    def codegen(context, builder, signature, args):
        bases, roots, places, start, stop, count, C = args
        pb = pointer_to(context, builder, signature.args[0], bases, integer(0))
        pt = pointer_to(context, builder, signature.args[1], roots, integer(0))
        pp = pointer_to(context, builder, signature.args[2], places, integer(0))
        target = pointer_to(context, builder, signature.args[6], C, integer(0))
        cells = [builder.gep(target, [integer(LANES * i)]) for i in range(LANES)]
        sums = [cgutils.alloca_once(builder, GROUP) for _ in cells]
        for cell, total in zip(cells, sums, strict=True):
            builder.store(load(builder, cell), total)
        length = builder.mul(count, integer(LANES))
        with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
            row = builder.sext(builder.load(builder.gep(pp, [i])), I64)
            source = builder.gep(pb, [builder.mul(row, length)])
            root = splat(builder, builder.load(builder.gep(pt, [i])))
            with cgutils.for_range_slice(builder, integer(0), length, integer(LANES), intp=I64) as (k, _):
                scaled = builder.fmul(root, load(builder, builder.gep(source, [k])))
                for lane, total in enumerate(sums):
                    left = splat(builder, builder.extract_element(scaled, ir.Constant(I32, lane)))
                    builder.store(fused(builder, left, scaled, builder.load(total)), total)
        for cell, total in zip(cells, sums, strict=True):
            store(builder, builder.load(total), cell)
        return context.get_dummy_value()

    return sig, codegen


def _plain_append_inside(word, X, x0, rows, first, width, h2, share, places, tents, at, inside):
    x, word = X.reshape(-1)[x0 : x0 + width], int(word)
    for bit in range(64):
        if word >> bit & 1:
            gap = x - rows[first + bit]
            r2 = float(np.dot(gap, gap))
            inside[0] += r2 <= h2
            if share * (h2 - r2) > 0.0:
                places[at], tents[at] = first + bit, share * (h2 - r2)
                at += 1
    return at


def _plain_fetch_ahead(rows, places, start, stop, length):
    pass


def _plain_add_differences(weights, places, start, stop, rows, X, x0, out, width):
    gaps = rows[places[start:stop]] - X.reshape(-1)[x0 : x0 + width]
    out[:width] += weights[start:stop] @ gaps


def _plain_add_outers_four(bases, roots, places, start, stop, count, C):
    scaled = roots[start:stop, None, None] * bases[places[start:stop]]
    C += np.einsum("nci,ncj->ij", scaled, scaled)


append_inside = _plain_append_inside if JIT_DISABLED else _append_inside
fetch_ahead = _plain_fetch_ahead if JIT_DISABLED else _fetch_ahead
add_differences = _plain_add_differences if JIT_DISABLED else _add_differences
add_outers_four = _plain_add_outers_four if JIT_DISABLED else _add_outers_four
