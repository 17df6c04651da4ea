"""Micro-kernels of one record and a list of places, four places at a time.

A distance alone is a chain of additions that waits for each of them, and a sum across the lanes at its end;
four at once fill the time, and one transposition adds up the lanes of all four. Each distance is summed in
the order of `lanes.square_distance`, so that it has the same bits.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.integers import truncate
from dpmd_fast.kernels.vector.lanes import (
    F64,
    GROUP,
    I32,
    I64,
    LANES,
    VECTOR,
    each_vector,
    fused,
    groups_of,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    prefetch,
    splat,
    store,
    transposed,
)
from dpmd_fast.kernels.vector.tiles import for_each_count
from dpmd_fast.kernels.width import WIDTH

ROOM = WIDTH  # elements behind the end of lists that may be written
_UNROLLED = 4  # pairs of groups in rows for which distances are written out without a loop
_TENT_ERROR = 2.0**-50  # of 1 - t, and more than that
_AHEAD = 8  # pairs whose slots are fetched ahead of time


@intrinsic
def _append_bits(typingctx, word, first, places, at):
    """Append first + j for each bit j of `word` to places[at:]; return the end of the list.

    `ROOM` elements behind the end may be written.
    """
    i64 = types.int64
    sig = i64(types.uint64, i64, places, i64)

    def codegen(context, builder, signature, args):
        word, first, places, at = args
        pp = pointer_to(context, builder, signature.args[2], places, integer(0))
        stop = builder.add(at, builder.ctpop(word))
        bits = cgutils.alloca_once_value(builder, word)
        with cgutils.for_range_slice(builder, at, stop, integer(LANES), intp=I64) as (end, _):
            left = builder.load(bits)
            for lane in range(LANES):  # a branch for four: how many bits there are cannot be predicted
                row = builder.add(first, builder.cttz(left, ir.Constant(ir.IntType(1), 0)))
                builder.store(builder.trunc(row, I32), builder.gep(pp, [builder.add(end, integer(lane))]))
                left = builder.and_(left, builder.sub(left, integer(1)))
            builder.store(left, bits)
        return stop

    return sig, codegen


def _four_places(builder, places, i, count):
    """Emit four elements of a list from i on, the last one again behind the end: where, and which rows."""
    last = builder.sub(count, integer(1))
    at = [builder.add(i, integer(lane)) for lane in range(LANES)]
    at = [builder.select(builder.icmp_signed("<", k, count), k, last) for k in at]
    return at, [builder.sext(builder.load(builder.gep(places, [k])), I64) for k in at]


def _one_group(builder, totals):
    """Emit the sum of all groups of some vectors at pointers."""
    first, *others = (group for total in totals for group in groups_of(builder, builder.load(total)))
    for other in others:
        first = builder.fadd(first, other)
    return first


def _add_across(builder, vectors):
    """Emit the sums across the lanes of four vectors, each in the order of `horizontal_sum`."""
    c = transposed(builder, vectors)
    return builder.fadd(builder.fadd(c[0], c[2]), builder.fadd(c[1], c[3]))


def _square_distances(builder, px, rows, width):
    """Emit the squared distances of a point to four rows."""
    zero = ir.Constant(VECTOR, [0.0] * WIDTH)
    totals = [[cgutils.alloca_once(builder, VECTOR) for _ in rows] for _ in range(0, 2 * LANES, WIDTH)]
    last = [cgutils.alloca_once(builder, GROUP) for _ in rows]
    for total in (total for part in totals for total in part):
        builder.store(zero, total)

    def add(offset, part, vector):
        x = load(builder, builder.gep(px, [offset]), vector)
        for row, total in zip(rows, part, strict=True):
            gap = builder.fsub(x, load(builder, builder.gep(row, [offset]), vector))
            builder.store(fused(builder, gap, gap, builder.load(total)), total)

    def add_pair(k):
        for place, part in enumerate(totals):
            add(builder.add(k, integer(WIDTH * place)), part, VECTOR)

    even = builder.and_(width, integer(-2 * LANES))

    def add_pairs(count):
        if count <= _UNROLLED:
            for k in range(count):
                add_pair(integer(2 * LANES * k))
            return
        with cgutils.for_range_slice(builder, integer(0), even, integer(2 * LANES), intp=I64) as (k, _):
            add_pair(k)

    for_each_count(builder, builder.lshr(even, integer(3)), _UNROLLED + 1, add_pairs)
    halves = [
        [half for total in own for half in groups_of(builder, builder.load(total))]
        for own in zip(*totals, strict=True)
    ]
    for (low, _), total in zip(halves, last, strict=True):
        builder.store(low, total)
    with builder.if_then(builder.icmp_signed("<", even, width)):
        add(even, last, GROUP)
    sums = [builder.fadd(builder.load(total), high) for total, (_, high) in zip(last, halves, strict=True)]
    return _add_across(builder, sums)


@intrinsic
def _keep_inside(typingctx, X, x0, rows, width, h2, share, c, places, tents, count):
    """Keep those of the rows places[:count] that are closer to the point at X[x0] than the radius.

    Sets tents[i] = t = share (h2 - r^2) > 0; returns their number, and the sum of (t^2 (c + (1 - t)))^2 over
    them, one after the other. `ROOM` elements behind the end of both lists may be read and written.
    """
    i64, f64 = types.int64, types.float64
    sig = types.Tuple((i64, f64))(X, i64, rows, i64, f64, f64, f64, places, tents, i64)

    def codegen(context, builder, signature, args):
        X, x0, rows, width, h2, share, c, places, tents, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pr = pointer_to(context, builder, signature.args[2], rows, integer(0))
        pp = pointer_to(context, builder, signature.args[7], places, integer(0))
        pt = pointer_to(context, builder, signature.args[8], tents, integer(0))
        end = cgutils.alloca_once_value(builder, integer(0))
        square = cgutils.alloca_once_value(builder, ir.Constant(F64, 0.0))
        end_of = builder.select(builder.icmp_signed(">", count, integer(0)), count, integer(1))
        final = builder.load(builder.gep(pp, [builder.sub(end_of, integer(1))]))
        for lane in range(LANES - 1):  # again behind the end, so that four can be taken at once
            builder.store(final, builder.gep(pp, [builder.add(end_of, integer(lane))]))
        limit, factor, constant = (splat(builder, value) for value in (h2, share, c))
        zero, one = (ir.Constant(GROUP, [value] * LANES) for value in (0.0, 1.0))
        with cgutils.for_range_slice(builder, integer(0), count, integer(LANES), intp=I64) as (i, _):
            at = [builder.gep(pp, [builder.add(i, integer(lane))]) for lane in range(LANES)]
            found = [builder.sext(builder.load(place), I64) for place in at]
            lines = [builder.gep(pr, [builder.mul(row, width)]) for row in found]
            r2 = _square_distances(builder, px, lines, width)
            tent = builder.fmul(factor, builder.fsub(limit, r2))
            reach = builder.fadd(constant, builder.fsub(one, tent))
            norm = builder.fmul(builder.fmul(tent, tent), reach)
            added = builder.fmul(norm, norm)
            inside = builder.fcmp_ordered(">", tent, zero)
            bits = builder.zext(builder.bitcast(inside, ir.IntType(LANES)), I64)
            left = builder.sub(count, i)
            short = builder.icmp_signed("<", left, integer(LANES))
            whole = integer((1 << LANES) - 1)
            listed = builder.select(short, builder.sub(builder.shl(integer(1), left), integer(1)), whole)
            bits = builder.and_(bits, listed)
            slot = builder.load(end)
            with builder.if_else(builder.icmp_unsigned("==", bits, whole), likely=True) as (all_four, some):
                with all_four:
                    four = ir.VectorType(I32, LANES).as_pointer()
                    at = [builder.bitcast(builder.gep(pp, [k]), four) for k in (i, slot)]
                    builder.store(builder.load(at[0], align=4), at[1], align=4)
                    store(builder, tent, builder.gep(pt, [slot]))
                    builder.store(builder.add(slot, integer(LANES)), end)
                    total = builder.load(square)
                    for lane in range(LANES):
                        total = builder.fadd(total, builder.extract_element(added, ir.Constant(I32, lane)))
                    builder.store(total, square)
                with some:
                    total = builder.load(square)
                    for lane, row in enumerate(found):
                        place = ir.Constant(I32, lane)
                        builder.store(builder.trunc(row, I32), builder.gep(pp, [slot]))
                        builder.store(builder.extract_element(tent, place), builder.gep(pt, [slot]))
                        keeps = builder.and_(builder.lshr(bits, integer(lane)), integer(1))
                        slot = builder.add(slot, keeps)
                        more = builder.fadd(total, builder.extract_element(added, place))
                        total = builder.select(builder.trunc(keeps, ir.IntType(1)), more, total)
                    builder.store(slot, end)
                    builder.store(total, square)
        results = builder.load(end), builder.load(square)
        return context.make_tuple(builder, signature.return_type, results)

    return sig, codegen


@intrinsic
def _truncated_squares(typingctx, X, x0, rows, width, places, scales, lead, squares, count):
    """Set squares[i] = v . v, i < count, of v = trunc(scales[i] (x - rows[places[i]], lead)), x at X[x0].

    `ROOM` elements behind the end of `squares` may be written.
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(X, i64, rows, i64, places, scales, f64, squares, i64)

    def codegen(context, builder, signature, args):
        X, x0, rows, width, places, scales, lead, squares, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pr = pointer_to(context, builder, signature.args[2], rows, integer(0))
        pp = pointer_to(context, builder, signature.args[4], places, integer(0))
        ps = pointer_to(context, builder, signature.args[5], scales, integer(0))
        pq = pointer_to(context, builder, signature.args[7], squares, integer(0))
        sums = {
            vector: [cgutils.alloca_once(builder, vector) for _ in range(LANES)]
            for vector in dict.fromkeys((VECTOR, GROUP))
        }
        ends = splat(builder, lead)
        with cgutils.for_range_slice(builder, integer(0), count, integer(LANES), intp=I64) as (i, _):
            at, found = _four_places(builder, pp, i, count)
            lines = [builder.gep(pr, [builder.mul(row, width)]) for row in found]
            own = [builder.load(builder.gep(ps, [k])) for k in at]
            for vector, totals in sums.items():
                for total in totals:
                    builder.store(ir.Constant(vector, [0.0] * vector.count), total)

            def add(k, vector):
                x = load(builder, builder.gep(px, [k]), vector)
                for line, factor, total in zip(lines, own, sums[vector], strict=True):
                    gap = builder.fsub(x, load(builder, builder.gep(line, [k]), vector))
                    value = truncate(builder, builder.fmul(splat(builder, factor, vector), gap))
                    builder.store(fused(builder, value, value, builder.load(total)), total)

            each_vector(builder, width, add)
            together = ir.Constant(GROUP, [0.0] * LANES)
            for lane, value in enumerate(own):
                together = builder.insert_element(together, value, ir.Constant(I32, lane))
            last = truncate(builder, builder.fmul(together, ends))
            square = _add_across(
                builder, [_one_group(builder, own) for own in zip(*sums.values(), strict=True)]
            )
            store(builder, fused(builder, last, last, square), builder.gep(pq, [i]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _scale_and_bound(typingctx, tents, factor, h2, lead, scales, count):
    """Set scales[i] = factor t, t = tents[i], i < count; return a sum that bounds sum_i (v_i . v_i)^2.

    v_i = trunc(scales[i] (x - a, lead)) with |x - a|^2 <= h2 (1 - t) up to rounding: the differences are
    taken to be as long as that, the last entry is truncated. What is left to the caller is the rounding.
    `ROOM` elements behind the end of both lists may be read or written.
    """
    i64, f64 = types.int64, types.float64
    sig = f64(tents, f64, f64, f64, scales, i64)

    def codegen(context, builder, signature, args):
        tents, factor, h2, lead, scales, count = args
        pt = pointer_to(context, builder, signature.args[0], tents, integer(0))
        ps = pointer_to(context, builder, signature.args[4], scales, integer(0))
        factors, limits, leads = (splat(builder, value, VECTOR) for value in (factor, h2, lead))
        one, slack, zero = (ir.Constant(VECTOR, [value] * WIDTH) for value in (1.0, _TENT_ERROR, 0.0))
        lanes = ir.Constant(ir.VectorType(I64, WIDTH), list(range(WIDTH)))
        total = cgutils.alloca_once_value(builder, zero)
        with cgutils.for_range_slice(builder, integer(0), count, integer(WIDTH), intp=I64) as (i, _):
            tent = load(builder, builder.gep(pt, [i]), VECTOR)
            scale = builder.fmul(factors, tent)
            store(builder, scale, builder.gep(ps, [i]))
            length = builder.fmul(limits, builder.fadd(builder.fsub(one, tent), slack))
            last = truncate(builder, builder.fmul(scale, leads))
            square = fused(builder, last, last, builder.fmul(builder.fmul(scale, scale), length))
            left = splat(builder, builder.sub(count, i), lanes.type)
            square = builder.select(builder.icmp_signed("<", lanes, left), square, zero)
            builder.store(fused(builder, square, square, builder.load(total)), total)
        return horizontal_sum(builder, _one_group(builder, [total]))

    return sig, codegen


@intrinsic
def _count_places(typingctx, places, start, stop, totals):
    """Add one to totals[places[i]] for start <= i < stop."""
    i64 = types.int64
    sig = types.void(places, i64, i64, totals)

    def codegen(context, builder, signature, args):
        places, start, stop, totals = args
        pp = pointer_to(context, builder, signature.args[0], places, integer(0))
        pt = pointer_to(context, builder, signature.args[3], totals, integer(0))
        with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
            cell = builder.gep(pt, [builder.sext(builder.load(builder.gep(pp, [i])), I64)])
            builder.store(builder.add(builder.load(cell), integer(1)), cell)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _spread_pairs(typingctx, record, places, scales, start, stop, slots, pairs):
    """Write (scales[i], record), start <= i < stop, to the slot of places[i], and move that on by one.

    One array, and not two: a slot costs the time to have its line in the first cache.
    """
    i64 = types.int64
    sig = types.void(i64, places, scales, i64, i64, slots, pairs)

    def codegen(context, builder, signature, args):
        record, places, scales, start, stop, slots, pairs = args
        arrays = ((1, places), (2, scales), (5, slots), (6, pairs))
        pp, ps, pt, pq = (
            pointer_to(context, builder, signature.args[i], array, integer(0)) for i, array in arrays
        )
        pair = ir.VectorType(F64, 2)
        target = builder.bitcast(pq, pair.as_pointer())
        number = splat(builder, builder.sitofp(record, F64), pair)
        last = builder.sub(stop, integer(1))
        with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
            cell = builder.gep(pt, [builder.sext(builder.load(builder.gep(pp, [i])), I64)])
            slot = builder.load(cell)
            builder.store(builder.add(slot, integer(1)), cell)
            later = builder.add(i, integer(_AHEAD))
            later = builder.select(builder.icmp_signed("<", later, last), later, last)
            line = builder.load(builder.gep(pt, [builder.sext(builder.load(builder.gep(pp, [later])), I64)]))
            prefetch(builder, builder.gep(target, [line]), write=True)
            scale = builder.load(builder.gep(ps, [i]))
            both = builder.insert_element(number, scale, ir.Constant(I32, 0))
            builder.store(both, builder.gep(target, [slot]), align=8)
        return context.get_dummy_value()

    return sig, codegen


def _plain_append_bits(word, first, places, at):
    own = [first + bit for bit in range(64) if int(word) >> bit & 1]
    places[at : at + len(own)] = own
    return at + len(own)


def _plain_keep_inside(X, x0, rows, width, h2, share, c, places, tents, count):
    gaps = X.reshape(-1)[x0 : x0 + width] - rows[places[:count]]
    tent = share * (h2 - np.array([float(np.dot(gap, gap)) for gap in gaps]))
    kept = np.flatnonzero(tent > 0.0)
    places[: len(kept)] = places[kept]
    tents[: len(kept)] = tent[kept]
    norms = tent[kept] * tent[kept] * (c + (1.0 - tent[kept]))
    return len(kept), sum((norms * norms).tolist(), 0.0)


def _plain_truncated_squares(X, x0, rows, width, places, scales, lead, squares, count):
    gaps = X.reshape(-1)[x0 : x0 + width] - rows[places[:count]]
    v = np.trunc(scales[:count, None] * np.hstack([gaps, np.full((count, 1), lead)]))
    squares[:count] = (v * v).sum(axis=1)


def _plain_scale_and_bound(tents, factor, h2, lead, scales, count):
    t = tents[:count]
    scales[:count] = factor * t
    last = np.trunc(scales[:count] * lead)
    squares = last * last + scales[:count] * scales[:count] * (h2 * (1.0 - t + _TENT_ERROR))
    return float(squares @ squares)


def _plain_count_places(places, start, stop, totals):
    np.add.at(totals, places[start:stop], 1)


def _plain_spread_pairs(record, places, scales, start, stop, slots, pairs):
    for i in range(start, stop):
        pairs[slots[places[i]]] = scales[i], record
        slots[places[i]] += 1


append_bits = _plain_append_bits if JIT_DISABLED else _append_bits
keep_inside = _plain_keep_inside if JIT_DISABLED else _keep_inside
truncated_squares = _plain_truncated_squares if JIT_DISABLED else _truncated_squares
scale_and_bound = _plain_scale_and_bound if JIT_DISABLED else _scale_and_bound
count_places = _plain_count_places if JIT_DISABLED else _count_places
spread_pairs = _plain_spread_pairs if JIT_DISABLED else _spread_pairs
