"""One point and the charts near it, a chart in each lane of vectors: where few points are near a chart.

What a chart adds has the bits of `planes.py`: the same sums in the same order, and one chart after the other.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    I32,
    I64,
    LANES,
    VECTOR,
    each_group,
    fused,
    groups_of,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.vector.planes import TOGETHER, columns_of, kept_lanes, rows_of, weigh
from dpmd_fast.kernels.width import WIDTH

_ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)


def _make_weigh_charts(count):
    """Return an intrinsic for what `count` directions of some charts move a point by.

    The charts are near[n0], near[n0 + 1], ..., as many as a vector has lanes; all but the first `left` get no
    weight. `field` are the frames and slopes of `planes.py`, the masses, and the length of a chart's row in
    the former, whose part begins with element f0; `tent` are h2 and share. The point is row `q` of `x`.

    What `planes.py` adds to sums for each chart is added to row `q` of `sums` if `only` says that the part is
    a chart's only one, otherwise put into a row of `moves`, from element m0 on; what it adds to totals is put
    into `weights`, unless how = 2. `gaps` is scratch for as many rows.
    """
    slots = count + 1

    @intrinsic
    def weigh_charts(
        typingctx, x, q, near, n0, left, field, f0, width, tent, how, gaps, only, sums, moves, m0, weights
    ):
        i64 = types.int64
        alone = types.boolean
        sig = types.void(
            x, i64, near, i64, i64, field, i64, i64, tent, i64, gaps, alone, sums, moves, i64, weights
        )

        def codegen(context, builder, signature, args):
            _, q, _, n0, left, _, f0, width, _, how, _, only, _, _, m0, _ = args

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            def of_field(place, offset):
                array = builder.extract_value(args[5], place)
                return pointer_to(context, builder, signature.args[5].types[place], array, offset)

            stride = builder.extract_value(args[5], 3)
            tents = [splat(builder, builder.extract_value(args[8], place), VECTOR) for place in (0, 1)]
            row = builder.mul(q, width)
            px, ps = pointer(0, row), pointer(12, row)
            listed, of_masses = pointer(2, n0), of_field(2, integer(0))
            pg, pm, pw = pointer(10, integer(0)), pointer(13, m0), pointer(15, integer(0))
            numbers = [
                builder.zext(builder.load(builder.gep(listed, [integer(i)])), I64) for i in range(WIDTH)
            ]
            starts = [builder.add(builder.mul(number, stride), f0) for number in numbers]
            of_frames, of_slopes = ([of_field(place, start) for start in starts] for place in (0, 1))
            masses = _ZERO
            for lane, number in enumerate(numbers):
                mass = builder.load(builder.gep(of_masses, [number]))
                masses = builder.insert_element(masses, mass, ir.Constant(I32, lane))

            def taken(firsts, k):
                """Emit the vectors of four columns: element `slots` j + e has slot e of column k + j."""
                at = builder.mul(k, integer(slots))
                found = []
                for t in range(slots):
                    here = builder.add(at, integer(LANES * t))
                    found += columns_of(
                        builder, [load(builder, builder.gep(first, [here])) for first in firsts]
                    )
                return found

            def kept(k, j):
                return builder.gep(pg, [builder.mul(builder.add(k, integer(j)), integer(WIDTH))])

            def multiply(k, sums):
                sums, chart = list(sums), taken(of_frames, k)
                for j in range(LANES):
                    value = splat(
                        builder, builder.load(builder.gep(px, [builder.add(k, integer(j))])), VECTOR
                    )
                    gap = builder.fsub(value, chart[slots * j])
                    store(builder, gap, kept(k, j))
                    sums[0] = fused(builder, gap, gap, sums[0])
                    for e in range(1, slots):
                        sums[e] = fused(builder, gap, chart[slots * j + e], sums[e])
                return sums

            found = each_group(builder, width, [_ZERO] * slots, multiply)
            pulls = builder.icmp_signed("==", how, integer(0))
            again = builder.icmp_signed("==", how, integer(2))
            weights, factors = weigh(
                builder, found, kept_lanes(builder, masses, left, 0), tents, pulls, again
            )

            def add(k, _):
                chart, new = taken(of_slopes, k), []
                for j in range(LANES):
                    first = builder.select(pulls, load(builder, kept(k, j), VECTOR), chart[slots * j])
                    total = builder.fmul(factors[0], first)
                    for e in range(1, slots):
                        total = fused(builder, factors[e], chart[slots * j + e], total)
                    new.append(total)
                halves = [groups_of(builder, row) for row in rows_of(builder, new)]
                rows = [row for half in zip(*halves, strict=True) for row in half]
                with builder.if_else(only) as (adds, puts):
                    with adds:
                        target = builder.gep(ps, [k])
                        total = load(builder, target)
                        for row in rows:
                            total = builder.fadd(total, row)
                        store(builder, total, target)
                    with puts:
                        for lane, row in enumerate(rows):
                            at = builder.add(builder.mul(integer(lane), width), k)
                            store(builder, row, builder.gep(pm, [at]))
                return []

            each_group(builder, width, [], add)
            with builder.if_then(builder.not_(again)):
                store(builder, weights, pw)
            return context.get_dummy_value()

        return sig, codegen

    def plain_weigh_charts(
        x, q, near, n0, left, field, f0, width, tent, how, gaps, only, sums, moves, m0, weights
    ):
        frames, slopes, masses, stride = field
        h2, share = tent
        for lane, a in enumerate(near[n0 : n0 + min(left, WIDTH)]):

            def rows(values, first):
                flat = values.reshape(-1)[first : first + slots * width]
                return flat.reshape(width, slots).T

            b, *directions = rows(frames, a * stride + f0)
            offset, *steps = rows(slopes, a * stride + f0)
            gap = x[q] - b
            weight = masses[a] * max(share * (h2 - float(gap @ gap)), 0.0) ** 2
            move = (-weight * gap, weight * offset, 0.0)[how]
            move = move + weight * ((np.array(directions) @ gap) @ np.array(steps))
            if only:
                sums[q] += move
            else:
                moves.reshape(-1)[m0 + lane * width : m0 + (lane + 1) * width] = move
            if how < 2:
                weights[lane] = weight

    return plain_weigh_charts if JIT_DISABLED else weigh_charts


@intrinsic
def _add_moves(typingctx, moves, parts, lanes, width, sums, s0):
    """Add the rows of `moves` (parts, lanes of a vector, width) to sums[s0:s0 + width], lane by lane."""
    i64 = types.int64
    sig = types.void(moves, i64, i64, i64, sums, i64)

    def codegen(context, builder, signature, args):
        _, parts, lanes, width, _, s0 = args
        start = pointer_to(context, builder, signature.args[0], args[0], integer(0))
        target = pointer_to(context, builder, signature.args[4], args[4], s0)

        def add(k, _):
            def add_lane(lane, totals):
                def add_part(part, totals):
                    row = builder.add(builder.mul(part, integer(WIDTH)), lane)
                    at = builder.gep(start, [builder.add(builder.mul(row, width), k)])
                    return [builder.fadd(totals[0], load(builder, at))]

                return each_group(builder, parts, totals, add_part, 1)

            at = builder.gep(target, [k])
            store(builder, each_group(builder, lanes, [load(builder, at)], add_lane, 1)[0], at)
            return []

        each_group(builder, width, [], add)
        return context.get_dummy_value()

    return sig, codegen


def _plain_add_moves(moves, parts, lanes, width, sums, s0):
    for lane in range(lanes):
        for part in range(parts):
            sums.reshape(-1)[s0 : s0 + width] += moves[part, lane]


add_moves = _plain_add_moves if JIT_DISABLED else _add_moves
_c1, _c2, _c3, _c4, _c5 = (_make_weigh_charts(count) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_to_point(x, q, near, count, field, gaps, moves, weights, sums, totals):
    """Add what the charts near[:count] move point `q` by to its rows of `sums` and `totals`.

    `field` are the frames, slopes, d, masses, h2, share and how of `planes.add_chart`. `near` has room for as
    many more as a vector has lanes; `moves` (parts, lanes, width), `weights` (lanes) and `gaps` (as many
    rows) are scratch.
    """
    frames, slopes, d, masses, h2, share, how = field
    F, tent, width = (frames, slopes, masses, frames.shape[1]), (h2, share), x.shape[1]
    one, S, M, W = d <= TOGETHER, sums, moves, weights
    for i in range(count, count + WIDTH - 1):
        near[i] = near[count - 1]
    for i in range(0, count, WIDTH):
        left, e, at, own, parts = count - i, d, 0, how, 0
        while e > 0:
            here, m0 = min(e, TOGETHER), parts * WIDTH * width
            if here == 5:
                _c5(x, q, near, i, left, F, at, width, tent, own, gaps, one, S, M, m0, W)
            elif here == 4:
                _c4(x, q, near, i, left, F, at, width, tent, own, gaps, one, S, M, m0, W)
            elif here == 3:
                _c3(x, q, near, i, left, F, at, width, tent, own, gaps, one, S, M, m0, W)
            elif here == 2:
                _c2(x, q, near, i, left, F, at, width, tent, own, gaps, one, S, M, m0, W)
            else:
                _c1(x, q, near, i, left, F, at, width, tent, own, gaps, one, S, M, m0, W)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            own = 2
            parts += 1
        lanes = min(WIDTH, left)
        if not one:
            add_moves(moves, parts, lanes, width, sums, q * width)
        for lane in range(lanes):
            totals[q, 0] += weights[lane]
