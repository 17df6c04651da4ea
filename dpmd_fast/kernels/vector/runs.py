"""Micro-kernels of the search for charts: runs of 64 points, one in each lane of vectors and bit of a word.

A point's sketch (`search/index.py`) is compared with the box of a leaf, then, in single precision about the
middle of the leaf, with its charts: with p a point and c a chart, rests among their coordinates,

    |p - c|^2 <= 1 + slack    if and only if    p . c + lift >= |c|^2 / 2,    lift = (1 + slack - |p|^2) / 2,

where the slack bounds what rounding can do. A run in single precision has a row of 64 numbers for each
coordinate, one for rests and one for lifts.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.bits import F32, SINGLE_MOST, count_trailing_zeros, word_of
from dpmd_fast.kernels.vector.lanes import (
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
CHARTS = 4 if WIDTH == 8 else 1  # that are compared with a run together: their sums stay in registers
_TOGETHER = 2  # vectors of points that are seen together
_LANES = 2 * WIDTH  # of single precision in a vector
_HALF_SINGLES, _SINGLES = ir.VectorType(F32, WIDTH), ir.VectorType(F32, _LANES)
_CHOSEN = 16  # numbers that are moved together
_MASK = ir.VectorType(ir.IntType(1), _CHOSEN)


def _constant(value):
    return ir.Constant(VECTOR, [value] * WIDTH)


_ZERO = _constant(0.0)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def _sketch_points(typingctx, x, x0, width, center, axes, depth, scale, gaps, turned, q0, pitch, norms):
    """Form the sketches of `POINTS` points, which are rows of `x` from element x0 on, `width` elements long.

    `center` and the rows of `axes` are as long; `gaps` has room for `POINTS` rows. Coordinate k of point i
    goes to element q0 + k pitch + i of `turned`, the rest behind the last one, and the squared length to
    norms[q0 + i], where a NaN stays.
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(x, i64, i64, center, axes, i64, f64, gaps, turned, i64, i64, norms)

    def codegen(context, builder, signature, args):
        _, x0, width, _, _, depth, scale, _, _, q0, pitch, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        px, pc, pa, pg = (
            pointer(place, offset) for place, offset in ((0, x0), *((p, integer(0)) for p in (3, 4, 7)))
        )
        pt, pn = pointer(8, q0), pointer(11, q0)
        scale = splat(builder, scale, VECTOR)
        places = range(0, POINTS, WIDTH)
        rows = [builder.gep(px, [builder.mul(width, integer(i))]) for i in range(POINTS)]

        def vectors_at(start, k, stride):
            row = builder.gep(start, [builder.mul(k, stride)])
            return [builder.gep(row, [integer(at)]) for at in places]

        def gaps_at(k):
            return vectors_at(pg, k, integer(POINTS))

        def axis_at(a, k):
            return builder.load(builder.gep(pa, [builder.add(builder.mul(a, width), k)]))

        def put_gaps(k, _):
            for g, first in enumerate(places):
                own = [load(builder, builder.gep(row, [k])) for row in rows[first : first + WIDTH]]
                for j, column in enumerate(columns_of(builder, own)):
                    at = builder.add(k, integer(j))
                    middle = splat(builder, builder.load(builder.gep(pc, [at])), VECTOR)
                    store(builder, builder.fmul(scale, builder.fsub(column, middle)), gaps_at(at)[g])
            return []

        def project(a, sizes):
            def add(k, sums):
                share = splat(builder, axis_at(a, k), VECTOR)
                own = [load(builder, at, VECTOR) for at in gaps_at(k)]
                return [fused(builder, share, gap, total) for gap, total in zip(own, sums, strict=True)]

            found = each_group(builder, width, zeros, add, 1)
            for value, at in zip(found, vectors_at(pt, a, pitch), strict=True):
                store(builder, value, at)
            return [fused(builder, value, value, size) for value, size in zip(found, sizes, strict=True)]

        def leave(k, squares):
            def take(a, left):
                share = splat(builder, builder.fneg(axis_at(a, k)), VECTOR)
                own = [load(builder, at, VECTOR) for at in vectors_at(pt, a, pitch)]
                return [fused(builder, share, value, rest) for value, rest in zip(own, left, strict=True)]

            start = [load(builder, at, VECTOR) for at in gaps_at(k)]
            left = each_group(builder, depth, start, take, 1)
            return [fused(builder, value, value, total) for value, total in zip(left, squares, strict=True)]

        zeros = [_ZERO] * len(places)
        each_group(builder, width, [], put_gaps)
        sizes = each_group(builder, depth, zeros, project, 1)
        squares = each_group(builder, width, zeros, leave, 1)
        root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.sqrt.v{WIDTH}f64"
        )
        rests = vectors_at(pt, depth, pitch)
        for square, size, first, at_rest in zip(squares, sizes, places, rests, strict=True):
            store(builder, builder.call(root, [square]), at_rest)
            at = builder.gep(pn, [integer(first)])
            moves = builder.fcmp_ordered(">=", load(builder, at, VECTOR), _ZERO)
            norm = builder.select(moves, builder.fadd(size, square), _constant(float("nan")))
            store(builder, norm, at)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _see_run(
    typingctx, turned, q0, pitch, norms, count, low, high, b0, middles, m0, depth, limits, runs, r0, words
):
    """Compare a run of points with a leaf, and shift it to the middle of that.

    It has `count` points; those that fill up the last vectors have a norm of NaN, and are near no box, as are
    others with such a norm. Coordinate k of the points begins at element q0 + k pitch of `turned`, of
    `_sketch_points`. The box of the leaf begins at element b0 of `low` and `high`, which have a last side for
    rests; its middle begins at m0 of `middles`. `limits` are the largest squared length of a chart about the
    middle, the limit of squared distances from the box, and of the slack the part that grows with the norms,
    the part that is there for all, and the part that grows with the squared lengths about the middle.

    Sets the run whose rows begin at elements r0, r0 + pitch, ... of `runs`, words[0] to the points near the
    box, and words[1] to those of which single precision tells nothing: their lift is infinite.
    """
    i64 = types.int64
    sig = types.void(
        turned, i64, i64, norms, i64, low, high, i64, middles, i64, i64, limits, runs, i64, words
    )

    def codegen(context, builder, signature, args):
        _, q0, pitch, _, count, _, _, b0, _, m0, depth, _, _, r0, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        pt, pn, pl, ph, pm = pointer(0, q0), pointer(3, q0), pointer(5, b0), pointer(6, b0), pointer(8, m0)
        pr, pw = pointer(12, r0), pointer(14, integer(0))
        spread, limit, rounding, base, share = (
            splat(builder, builder.extract_value(args[11], place), VECTOR) for place in range(5)
        )

        def everywhere(start, k):
            return splat(builder, builder.load(builder.gep(start, [k])), VECTOR)

        def outside(value, below, above):
            side = _larger(builder, builder.fsub(below, value), builder.fsub(value, above))
            return _larger(builder, side, _ZERO)

        def cell(start, k, place):
            return builder.gep(start, [builder.add(builder.mul(k, pitch), place)])

        def compare(first, words):
            """Emit what is done with some vectors of points, from point `first` on; return the words."""
            places = [builder.add(first, integer(WIDTH * j)) for j in range(_TOGETHER)]

            def add(k, sums):
                below, above, middle = (everywhere(start, k) for start in (pl, ph, pm))
                gaps, squares = [], []
                for place, gap, square in zip(places, sums[:_TOGETHER], sums[_TOGETHER:], strict=True):
                    value = load(builder, cell(pt, k, place), VECTOR)
                    side = outside(value, below, above)
                    gaps.append(fused(builder, side, side, gap))
                    single = builder.fptrunc(builder.fsub(value, middle), _HALF_SINGLES)
                    store(builder, single, cell(pr, k, place))
                    value = builder.fpext(single, VECTOR)
                    squares.append(fused(builder, value, value, square))
                return gaps + squares

            found = each_group(builder, depth, [_ZERO] * (2 * _TOGETHER), add, 1)
            below, above = everywhere(pl, depth), everywhere(ph, depth)
            near, wild = [], []
            for place, gap, square in zip(places, found[:_TOGETHER], found[_TOGETHER:], strict=True):
                rest = load(builder, cell(pt, depth, place), VECTOR)
                store(builder, builder.fptrunc(rest, _HALF_SINGLES), cell(pr, depth, place))
                side, square = outside(rest, below, above), fused(builder, rest, rest, square)
                gap = fused(builder, side, side, gap)
                error = builder.fmul(rounding, load(builder, builder.gep(pn, [place]), VECTOR))
                near.append(builder.fcmp_ordered("<=", gap, builder.fadd(limit, error)))
                largest = _larger(builder, square, spread)
                slack = fused(builder, share, largest, builder.fadd(base, error))
                sure = builder.and_(
                    builder.fcmp_ordered("<", slack, _constant(1.0)),
                    builder.fcmp_ordered("<", largest, _constant(SINGLE_MOST)),
                )
                lift = builder.fsub(builder.fadd(_constant(1.0), slack), square)
                lift = builder.select(sure, builder.fmul(_constant(0.5), lift), _constant(float("inf")))
                at_lift = cell(pr, builder.add(depth, integer(1)), place)
                store(builder, builder.fptrunc(lift, _HALF_SINGLES), at_lift)
                wild.append(builder.and_(near[-1], builder.not_(sure)))
            return [
                builder.or_(word, builder.shl(word_of(builder, hits), first))
                for word, hits in zip(words, (near, wild), strict=True)
            ]

        near, wild = each_group(builder, count, [integer(0)] * 2, compare, _TOGETHER * WIDTH)
        builder.store(near, pw)
        builder.store(wild, builder.gep(pw, [integer(1)]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _chart_words(typingctx, single, s0, half_norms, rests, h0, depth, runs, pitch, r0, words, w0, stride):
    """Set words[w0 + c stride], c < CHARTS: which points of a run are near chart c.

    Coordinate k of the chart is at element s0 + c + 64 k of `single`; its rest and - |c|^2 / 2 are at h0 + c.
    The rows of the run begin at elements r0, r0 + pitch, ... of `runs`.
    """
    i64 = types.int64
    sig = types.void(single, i64, half_norms, rests, i64, i64, runs, i64, i64, words, i64, i64)

    def codegen(context, builder, signature, args):
        _, s0, _, _, h0, depth, _, pitch, r0, _, w0, stride = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        pc, ph, pe, pr, pw = (
            pointer(place, offset) for place, offset in ((0, s0), (2, h0), (3, h0), (6, r0), (9, w0))
        )
        vectors = RUN // _LANES

        def of_charts(start):
            cells = [builder.load(builder.gep(start, [integer(c)])) for c in range(CHARTS)]
            return [splat(builder, cell, _SINGLES) for cell in cells]

        def of_points(k):
            row = builder.gep(pr, [builder.mul(pitch, k)])
            return [load(builder, builder.gep(row, [integer(_LANES * j)]), _SINGLES) for j in range(vectors)]

        def add(points, charts, sums):
            pairs = [(chart, point) for chart in charts for point in points]
            return [fused(builder, *pair, total) for pair, total in zip(pairs, sums, strict=True)]

        def add_column(k, sums):
            return add(of_points(k), of_charts(builder.gep(pc, [builder.mul(k, integer(RUN))])), sums)

        lifts = of_points(builder.add(depth, integer(1)))
        start = add(of_points(depth), of_charts(pe), lifts * CHARTS)
        sums = each_group(builder, depth, start, add_column, 1)
        for c, half_norm in enumerate(of_charts(ph)):
            least = builder.fneg(half_norm)
            own = sums[c * vectors : (c + 1) * vectors]
            word = word_of(builder, [builder.fcmp_ordered(">=", total, least) for total in own])
            builder.store(word, builder.gep(pw, [builder.mul(integer(c), stride)]))
        return context.get_dummy_value()

    return sig, codegen


def _make_append(element, kind, compresses):
    """Return an intrinsic that appends chosen numbers to a list: one by one, or with AVX-512 16 at a time.

    For every bit j of `word` in their order, values[v0 + j] goes to out[count], out[count + 1], ...; returns
    the new count. `values` has 64 numbers from v0 on, and behind the list there is room for 15 more. The list
    may be what the numbers are in, if it ends before them or where they begin.
    """
    vector = ir.VectorType(element, _CHOSEN)

    def compress_all(builder, word, source, target, count):
        compress = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector, vector, _MASK]),
            f"llvm.x86.avx512.mask.compress.v{_CHOSEN}{kind}",
        )
        for first in range(0, RUN, _CHOSEN):
            bits = builder.trunc(builder.lshr(word, integer(first)), ir.IntType(_CHOSEN))
            own = load(builder, builder.gep(source, [integer(first)]), vector)
            chosen = [own, ir.Constant(vector, None), builder.bitcast(bits, _MASK)]
            store(builder, builder.call(compress, chosen), builder.gep(target, [count]))
            count = builder.add(count, builder.zext(builder.ctpop(bits), I64))
        return count

    def copy_each(builder, word, source, target, count):
        def copy(i, words):
            place = builder.cttz(words[0], ir.Constant(ir.IntType(1), 1))
            value = builder.load(builder.gep(source, [place]))
            builder.store(value, builder.gep(target, [builder.add(count, i)]))
            return [builder.and_(words[0], builder.sub(words[0], integer(1)))]

        chosen = builder.ctpop(word)
        each_group(builder, chosen, [word], copy, 1)
        return builder.add(count, chosen)

    append_all = compress_all if compresses else copy_each

    @intrinsic
    def append(typingctx, word, values, v0, out, count):
        i64 = types.int64
        sig = i64(types.uint64, values, i64, out, i64)

        def codegen(context, builder, signature, args):
            word, _, v0, _, count = args
            source = pointer_to(context, builder, signature.args[1], args[1], v0)
            target = pointer_to(context, builder, signature.args[3], args[3], integer(0))
            return append_all(builder, word, source, target, count)

        return sig, codegen

    return append


def _plain_append(word, values, v0, out, count):
    given, chosen, one = values.reshape(-1), out.reshape(-1), np.uint64(1)
    while word != 0:
        chosen[count] = given[v0 + count_trailing_zeros(word)]
        word &= word - one
        count += 1
    return count


def _plain_sketch_points(x, x0, width, center, axes, depth, scale, gaps, turned, q0, pitch, norms):
    flat = turned.reshape(-1)
    for i in range(POINTS):
        left = scale * (x.reshape(-1)[x0 + i * width : x0 + (i + 1) * width] - center)
        point = axes[:depth] @ left
        left = left - point @ axes[:depth]
        flat[q0 + i : q0 + i + (depth + 1) * pitch : pitch] = *point, np.sqrt(left @ left)
        norms[q0 + i] = point @ point + left @ left if norms[q0 + i] >= 0.0 else np.nan


def _plain_see_run(
    turned, q0, pitch, norms, count, low, high, b0, middles, m0, depth, limits, runs, r0, words
):
    spread, limit, rounding, base, share = limits
    lanes = 2 * WIDTH * ((count + 2 * WIDTH - 1) // (2 * WIDTH))
    points = turned.reshape(-1)[q0 + np.arange(depth + 1)[:, None] * pitch + np.arange(lanes)]
    below, above = (side.reshape(-1)[b0 : b0 + depth + 1, None] for side in (low, high))
    gaps = (np.maximum(np.maximum(below - points, points - above), 0.0) ** 2).sum(axis=0)
    error = rounding * norms[q0 : q0 + lanes]
    rows = np.empty((depth + 2, lanes), np.float32)
    rows[:depth] = points[:depth] - middles.reshape(-1)[m0 : m0 + depth, None]
    rows[depth] = points[depth]
    squares = (rows[:depth].astype(np.float64) ** 2).sum(axis=0) + points[depth] ** 2
    largest = np.where(squares > spread, squares, spread)
    slack = share * largest + (base + error)
    near, sure = gaps <= limit + error, (slack < 1.0) & (largest < SINGLE_MOST)
    rows[depth + 1] = np.where(sure, 0.5 * (1.0 + slack - squares), np.inf)
    runs.reshape(-1)[r0 + np.arange(depth + 2)[:, None] * pitch + np.arange(lanes)] = rows
    for place, hits in enumerate((near, near & ~sure)):
        words[place] = sum(1 << int(j) for j in np.flatnonzero(hits))


def _plain_chart_words(single, s0, half_norms, rests, h0, depth, runs, pitch, r0, words, w0, stride):
    rows = runs.reshape(-1)[r0 + np.arange(depth + 2)[:, None] * pitch + np.arange(RUN)]
    for c in range(CHARTS):
        chart = single.reshape(-1)[s0 + c : s0 + c + RUN * depth : RUN]
        products = chart @ rows[:depth] + rests.reshape(-1)[h0 + c] * rows[depth] + rows[depth + 1]
        hits = np.flatnonzero(products >= -half_norms.reshape(-1)[h0 + c])
        words.reshape(-1)[w0 + c * stride] = sum(1 << int(j) for j in hits)


sketch_points = _plain_sketch_points if JIT_DISABLED else _sketch_points
see_run = _plain_see_run if JIT_DISABLED else _see_run
chart_words = _plain_chart_words if JIT_DISABLED else _chart_words
append_singles = _plain_append if JIT_DISABLED else _make_append(F32, "f32", HAS_COMPRESSION)
append_numbers = _plain_append if JIT_DISABLED else _make_append(I32, "i32", HAS_COMPRESSION)
