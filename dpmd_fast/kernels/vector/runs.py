"""Micro-kernels of the search by runs: 64 points that follow each other, one in each bit of a word.

A point's sketch (`search/index.py`) is compared with the box of a leaf, then with its charts, all points of a
run together. `turned` holds sketches by coordinates: a row for each, and the last one for rests.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.bits import SINGLE_MOST, count_trailing_zeros
from dpmd_fast.kernels.vector.lanes import (
    F64,
    I32,
    I64,
    VECTOR,
    each_group,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.vector.planes import POINTS, columns_of
from dpmd_fast.kernels.width import HAS_COMPRESSION, WIDTH

RUN = 64
F32 = ir.FloatType()
_BIT = ir.IntType(1)
_SINGLES = ir.VectorType(F32, WIDTH)
_TOGETHER = 4  # vectors of points
_LANES = 2 * WIDTH  # of single precision
_WIDE_SINGLES = ir.VectorType(F32, _LANES)
CHARTS = 4 if WIDTH == 8 else 1  # that are compared with a run together: their sums stay in registers
_CHUNK = 16  # numbers that are compressed together


def _word_of(builder, hits):
    """Emit vectors of comparisons as the first bits of a word."""
    lanes, word = hits[0].type.count, integer(0)
    for place, hit in enumerate(hits):
        bits = builder.zext(builder.bitcast(hit, ir.IntType(lanes)), I64)
        word = builder.or_(word, builder.shl(bits, integer(place * lanes)))
    return word


@intrinsic
def _sketch_points(typingctx, x, x0, width, center, axes, depth, scale, gaps, turned, q0, pitch, norms):
    i64, f64 = types.int64, types.float64
    sig = types.void(x, i64, i64, center, axes, i64, f64, gaps, turned, i64, i64, norms)

    def codegen(context, builder, signature, args):
        _, x0, width, _, _, depth, scale, _, _, q0, pitch, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        px, pc, pa, pg = pointer(0, x0), pointer(3, integer(0)), pointer(4, integer(0)), pointer(7, integer(0))
        pt, pn = pointer(8, q0), pointer(11, q0)
        scale = splat(builder, scale, VECTOR)
        places = range(0, POINTS, WIDTH)
        rows = [builder.gep(px, [builder.mul(width, integer(i))]) for i in range(POINTS)]

        def kept(k):
            return [builder.gep(pg, [builder.add(builder.mul(k, integer(POINTS)), integer(at))]) for at in places]

        def row_of(k):
            row = builder.gep(pt, [builder.mul(pitch, k)])
            return [builder.gep(row, [integer(at)]) for at in places]

        def put_gaps(k, _):
            for g, at in enumerate(places):
                own = [load(builder, builder.gep(row, [k])) for row in rows[at : at + WIDTH]]
                for j, column in enumerate(columns_of(builder, own)):
                    at_column = builder.add(k, integer(j))
                    middle = splat(builder, builder.load(builder.gep(pc, [at_column])), VECTOR)
                    gap = builder.fmul(scale, builder.fsub(column, middle))
                    store(builder, gap, kept(at_column)[g])
            return []

        each_group(builder, width, [], put_gaps)
        zeros = [ir.Constant(VECTOR, [0.0] * WIDTH)] * len(places)

        def project(a, sizes):
            axis = builder.gep(pa, [builder.mul(a, width)])

            def add(i, sums):
                share = splat(builder, builder.load(builder.gep(axis, [i])), VECTOR)
                return [fused(builder, share, load(builder, at, VECTOR), total) for at, total in zip(kept(i), sums)]

            found = each_group(builder, width, zeros, add, 1)
            for value, at in zip(found, row_of(a)):
                store(builder, value, at)
            return [fused(builder, value, value, size) for value, size in zip(found, sizes)]

        sizes = each_group(builder, depth, zeros, project, 1)

        def leave(i, squares):
            def take(a, left):
                share = builder.load(builder.gep(pa, [builder.add(builder.mul(a, width), i)]))
                share = splat(builder, builder.fneg(share), VECTOR)
                return [fused(builder, share, load(builder, at, VECTOR), value) for at, value in zip(row_of(a), left)]

            left = each_group(builder, depth, [load(builder, at, VECTOR) for at in kept(i)], take, 1)
            return [fused(builder, value, value, square) for value, square in zip(left, squares)]

        squares = each_group(builder, width, zeros, leave, 1)
        root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.sqrt.v{WIDTH}f64"
        )
        for square, size, at, at_rest in zip(squares, sizes, places, row_of(depth)):
            store(builder, builder.call(root, [square]), at_rest)
            at_norm = builder.gep(pn, [integer(at)])
            moves = builder.fcmp_ordered(">=", load(builder, at_norm, VECTOR), zeros[0])
            nan = ir.Constant(VECTOR, [float("nan")] * WIDTH)
            store(builder, builder.select(moves, builder.fadd(size, square), nan), at_norm)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _see_run(typingctx, turned, q0, pitch, norms, low, high, at, rested, middles, m0, depth, limits, run, words):
    i64 = types.int64
    sig = types.void(turned, i64, i64, norms, low, high, i64, i64, middles, i64, i64, limits, run, words)

    def codegen(context, builder, signature, args):
        _, q0, pitch, _, _, _, at, rested, _, m0, depth, _, _, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        pt, pn, pl, ph, pm = pointer(0, q0), pointer(3, q0), pointer(4, at), pointer(5, at), pointer(8, m0)
        pr, pw = pointer(12, integer(0)), pointer(13, integer(0))
        spread, limit, rounding, base, share = (
            splat(builder, builder.extract_value(args[11], place), VECTOR) for place in range(5)
        )

        def constant(value):
            return ir.Constant(VECTOR, [value] * WIDTH)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def outside(value, low, high):
            return larger(larger(builder.fsub(low, value), builder.fsub(value, high)), constant(0.0))

        def everywhere(start, k):
            return splat(builder, builder.load(builder.gep(start, [k])), VECTOR)

        near_word, wild_word = integer(0), integer(0)
        for first in range(0, RUN, _TOGETHER * WIDTH):
            places = [first + WIDTH * j for j in range(_TOGETHER)]

            def row_of(start, k, width, place):
                return builder.gep(start, [builder.add(builder.mul(k, width), integer(place))])

            def add(k, sums):
                below, above, middle = (everywhere(start, k) for start in (pl, ph, pm))
                gaps, squares = [], []
                for j, place in enumerate(places):
                    value = load(builder, row_of(pt, k, pitch, place), VECTOR)
                    side = outside(value, below, above)
                    gaps.append(fused(builder, side, side, sums[j]))
                    single = builder.fptrunc(builder.fsub(value, middle), _SINGLES)
                    store(builder, single, row_of(pr, k, integer(RUN), place))
                    value = builder.fpext(single, VECTOR)
                    squares.append(fused(builder, value, value, sums[_TOGETHER + j]))
                return gaps + squares

            found = each_group(builder, depth, [constant(0.0)] * (2 * _TOGETHER), add, 1)
            has_rest = builder.icmp_signed("!=", rested, integer(0))
            below = builder.select(has_rest, everywhere(pl, builder.mul(depth, rested)), constant(float("-inf")))
            above = builder.select(has_rest, everywhere(ph, builder.mul(depth, rested)), constant(float("inf")))
            near, wild = [], []
            for j, place in enumerate(places):
                rest = load(builder, row_of(pt, depth, pitch, place), VECTOR)
                store(builder, builder.fptrunc(rest, _SINGLES), row_of(pr, depth, integer(RUN), place))
                side = outside(rest, below, above)
                gap = fused(builder, side, side, found[j])
                error = builder.fmul(rounding, load(builder, builder.gep(pn, [integer(place)]), VECTOR))
                is_near = builder.fcmp_ordered("<=", gap, builder.fadd(limit, error))
                square = fused(builder, rest, rest, found[_TOGETHER + j])
                largest = larger(square, spread)
                slack = fused(builder, share, largest, builder.fadd(base, error))
                sure = builder.and_(
                    builder.fcmp_ordered("<", slack, constant(1.0)),
                    builder.fcmp_ordered("<", largest, constant(SINGLE_MOST)),
                )
                # -distance^2 / 2 = products - |y|^2 / 2 - |x|^2 / 2
                lift = builder.fmul(
                    constant(0.5), builder.fsub(builder.fadd(constant(1.0), slack), square)
                )
                lift = builder.select(sure, lift, constant(float("inf")))
                at_lift = row_of(pr, builder.add(depth, integer(1)), integer(RUN), place)
                store(builder, builder.fptrunc(lift, _SINGLES), at_lift)
                near.append(is_near)
                wild.append(builder.and_(is_near, builder.not_(sure)))
            near_word, wild_word = (
                builder.or_(word, builder.shl(_word_of(builder, hits), integer(first)))
                for word, hits in ((near_word, near), (wild_word, wild))
            )
        builder.store(near_word, pw)
        builder.store(wild_word, builder.gep(pw, [integer(1)]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _chart_words(typingctx, single, s0, half_norms, rests, h0, depth, panel, pitch, p0, words, w0, stride):
    """Set words[w0] and words[w0 + stride] for charts h0 and h0 + 1 of a leaf and 64 points of a panel."""
    i64 = types.int64
    sig = types.void(single, i64, half_norms, rests, i64, i64, panel, i64, i64, words, i64, i64)

    def codegen(context, builder, signature, args):
        _, s0, _, _, h0, depth, _, pitch, p0, _, w0, stride = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        pc, ph, pr, pp, pw = pointer(0, s0), pointer(2, h0), pointer(3, h0), pointer(6, p0), pointer(9, w0)
        charts, places = range(CHARTS), range(0, RUN, _LANES)

        def scalars(start):
            cells = [builder.load(builder.gep(start, [integer(c)])) for c in charts]
            return [splat(builder, cell, _WIDE_SINGLES) for cell in cells]

        def row_of(k):
            row = builder.gep(pp, [builder.mul(pitch, k)])
            return [load(builder, builder.gep(row, [integer(at)]), _WIDE_SINGLES) for at in places]

        def add(points, values, sums):
            n = len(points)
            return [fused(builder, values[c], points[j], sums[c * n + j]) for c in charts for j in range(n)]

        start = add(row_of(depth), scalars(pr), row_of(builder.add(depth, integer(1))) * CHARTS)
        sums = each_group(
            builder,
            depth,
            start,
            lambda k, sums: add(row_of(k), scalars(builder.gep(pc, [builder.mul(k, integer(RUN))])), sums),
            1,
        )
        n = len(places)
        for c, half in enumerate(scalars(ph)):
            least = builder.fneg(half)
            hits = [builder.fcmp_ordered(">=", total, least) for total in sums[c * n : (c + 1) * n]]
            builder.store(_word_of(builder, hits), builder.gep(pw, [builder.mul(integer(c), stride)]))
        return context.get_dummy_value()

    return sig, codegen


def _make_append(element, kind):
    @intrinsic
    def append(typingctx, word, values, v0, out, o0):
        i64 = types.int64
        sig = i64(types.uint64, values, i64, out, i64)

        def codegen(context, builder, signature, args):
            word, values, v0, out, count = args
            vector, mask = ir.VectorType(element, _CHUNK), ir.VectorType(_BIT, _CHUNK)
            compress = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(vector, [vector, vector, mask]),
                f"llvm.x86.avx512.mask.compress.v{_CHUNK}{kind}",
            )
            source = pointer_to(context, builder, signature.args[1], values, v0)
            target = pointer_to(context, builder, signature.args[3], out, integer(0))
            for lane in range(0, RUN, _CHUNK):
                bits = builder.trunc(builder.lshr(word, integer(lane)), ir.IntType(_CHUNK))
                own = load(builder, builder.gep(source, [integer(lane)]), vector)
                front = builder.call(compress, [own, ir.Constant(vector, None), builder.bitcast(bits, mask)])
                store(builder, front, builder.gep(target, [count]))
                count = builder.add(count, builder.zext(builder.ctpop(bits), I64))
            return count

        return sig, codegen

    return append


@device(inline=True)
def _append_one_by_one(word, values, v0, out, count):
    one = np.uint64(1)
    while word != 0:
        out[count] = values[v0 + count_trailing_zeros(word)]
        word &= word - one
        count += 1
    return count


sketch_points, see_run, chart_words = _sketch_points, _see_run, _chart_words
if HAS_COMPRESSION and not JIT_DISABLED:
    append_singles, append_numbers = _make_append(F32, "f32"), _make_append(I32, "i32")
else:
    append_singles = append_numbers = _append_one_by_one
