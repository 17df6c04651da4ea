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
    integer,
    load,
    pointer_to,
    prefetch,
    splat,
    store,
    transposed,
)
from dpmd_fast.kernels.width import WIDTH

ROOM = LANES  # elements behind the end of lists that may be written
_AHEAD = 8  # pairs whose slots are fetched ahead of time


@intrinsic
def _append_bits(typingctx, word, first, places, at):
    """Append first + j for each bit j of `word` to places[at:]; return the end of the list."""
    i64 = types.int64
    sig = i64(types.uint64, i64, places, i64)

    def codegen(context, builder, signature, args):
        word, first, places, at = args
        pp = pointer_to(context, builder, signature.args[2], places, integer(0))
        entry = builder.block
        loop = builder.append_basic_block("bits.loop")
        body = builder.append_basic_block("bits.body")
        done = builder.append_basic_block("bits.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        bits, end = builder.phi(I64), builder.phi(I64)
        bits.add_incoming(word, entry)
        end.add_incoming(at, entry)
        builder.cbranch(builder.icmp_unsigned("!=", bits, integer(0)), body, done)
        builder.position_at_end(body)
        row = builder.add(first, builder.cttz(bits, ir.Constant(ir.IntType(1), 1)))
        builder.store(builder.trunc(row, I32), builder.gep(pp, [end]))
        bits.add_incoming(builder.and_(bits, builder.sub(bits, integer(1))), body)
        end.add_incoming(builder.add(end, integer(1)), body)
        builder.branch(loop)
        builder.position_at_end(done)
        return end

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

    even = builder.and_(width, integer(-2 * LANES))
    with cgutils.for_range_slice(builder, integer(0), even, integer(2 * LANES), intp=I64) as (k, _):
        for place, part in enumerate(totals):
            add(builder.add(k, integer(WIDTH * place)), part, VECTOR)
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
def _keep_inside(typingctx, X, x0, rows, width, h2, share, places, tents, count):
    """Keep those of the rows places[:count] that are closer to the point at X[x0] than the radius.

    Sets tents[i] = share (h2 - r^2) > 0; returns their number. `ROOM` elements behind the end of both lists
    may be written.
    """
    i64, f64 = types.int64, types.float64
    sig = i64(X, i64, rows, i64, f64, f64, places, tents, i64)

    def codegen(context, builder, signature, args):
        X, x0, rows, width, h2, share, places, tents, count = args
        px = pointer_to(context, builder, signature.args[0], X, x0)
        pr = pointer_to(context, builder, signature.args[2], rows, integer(0))
        pp = pointer_to(context, builder, signature.args[6], places, integer(0))
        pt = pointer_to(context, builder, signature.args[7], tents, integer(0))
        end = cgutils.alloca_once_value(builder, integer(0))
        limit, factor = splat(builder, h2), splat(builder, share)
        with cgutils.for_range_slice(builder, integer(0), count, integer(LANES), intp=I64) as (i, _):
            _, found = _four_places(builder, pp, i, count)
            lines = [builder.gep(pr, [builder.mul(row, width)]) for row in found]
            r2 = _square_distances(builder, px, lines, width)
            tent = builder.fmul(factor, builder.fsub(limit, r2))
            slot = builder.load(end)
            for lane, row in enumerate(found):
                value = builder.extract_element(tent, ir.Constant(I32, lane))
                builder.store(builder.trunc(row, I32), builder.gep(pp, [slot]))
                builder.store(value, builder.gep(pt, [slot]))
                keeps = builder.and_(
                    builder.fcmp_ordered(">", value, ir.Constant(F64, 0.0)),
                    builder.icmp_signed("<", builder.add(i, integer(lane)), count),
                )
                slot = builder.add(slot, builder.zext(keeps, I64))
            builder.store(slot, end)
        return builder.load(end)

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
def _spread_pairs(typingctx, record, places, scales, start, stop, slots, records, sorted_scales):
    """Write `record` and scales[i], start <= i < stop, to the slot of places[i], and move that on by one."""
    i64 = types.int64
    sig = types.void(i64, places, scales, i64, i64, slots, records, sorted_scales)

    def codegen(context, builder, signature, args):
        record, places, scales, start, stop, slots, records, sorted_scales = args
        arrays = ((1, places), (2, scales), (5, slots), (6, records), (7, sorted_scales))
        pp, ps, pt, pr, pq = (
            pointer_to(context, builder, signature.args[i], array, integer(0)) for i, array in arrays
        )
        number = builder.trunc(record, I32)
        last = builder.sub(stop, integer(1))
        with cgutils.for_range_slice(builder, start, stop, integer(1), intp=I64) as (i, _):
            cell = builder.gep(pt, [builder.sext(builder.load(builder.gep(pp, [i])), I64)])
            slot = builder.load(cell)
            builder.store(builder.add(slot, integer(1)), cell)
            later = builder.add(i, integer(_AHEAD))
            later = builder.select(builder.icmp_signed("<", later, last), later, last)
            line = builder.load(builder.gep(pt, [builder.sext(builder.load(builder.gep(pp, [later])), I64)]))
            for start_of in (pr, pq):
                prefetch(builder, builder.gep(start_of, [line]), write=True)
            builder.store(number, builder.gep(pr, [slot]))
            builder.store(builder.load(builder.gep(ps, [i])), builder.gep(pq, [slot]))
        return context.get_dummy_value()

    return sig, codegen


def _plain_append_bits(word, first, places, at):
    own = [first + bit for bit in range(64) if int(word) >> bit & 1]
    places[at : at + len(own)] = own
    return at + len(own)


def _plain_keep_inside(X, x0, rows, width, h2, share, places, tents, count):
    gaps = X.reshape(-1)[x0 : x0 + width] - rows[places[:count]]
    tent = share * (h2 - np.array([float(np.dot(gap, gap)) for gap in gaps]))
    kept = np.flatnonzero(tent > 0.0)
    places[: len(kept)] = places[kept]
    tents[: len(kept)] = tent[kept]
    return len(kept)


def _plain_truncated_squares(X, x0, rows, width, places, scales, lead, squares, count):
    gaps = X.reshape(-1)[x0 : x0 + width] - rows[places[:count]]
    v = np.trunc(scales[:count, None] * np.hstack([gaps, np.full((count, 1), lead)]))
    squares[:count] = (v * v).sum(axis=1)


def _plain_count_places(places, start, stop, totals):
    np.add.at(totals, places[start:stop], 1)


def _plain_spread_pairs(record, places, scales, start, stop, slots, records, sorted_scales):
    for i in range(start, stop):
        slot = slots[places[i]]
        slots[places[i]] += 1
        records[slot], sorted_scales[slot] = record, scales[i]


append_bits = _plain_append_bits if JIT_DISABLED else _append_bits
keep_inside = _plain_keep_inside if JIT_DISABLED else _keep_inside
truncated_squares = _plain_truncated_squares if JIT_DISABLED else _truncated_squares
count_places = _plain_count_places if JIT_DISABLED else _count_places
spread_pairs = _plain_spread_pairs if JIT_DISABLED else _spread_pairs
