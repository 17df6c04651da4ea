"""One point and the charts near it, a chart in each lane of vectors: where few points are near a chart.

What a chart adds has the bits of `planes.py`: the same sums in the same order, and one chart after the other.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    F64,
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
from dpmd_fast.kernels.vector.planes import PLACES, TOGETHER, ZERO, columns_of, rows_of
from dpmd_fast.kernels.width import WIDTH


def _make_add_charts(count):
    """Return an intrinsic that adds what `count` directions of some charts move a point by.

    Of the charts near[n0], near[n0 + 1], ..., as many as a vector has lanes, all but the first `left` get no
    weight. A chart's part begins `f0` elements behind its first in `frames` and `slopes`, which have rows of
    `stride` elements. The point is row `q` of `x`; all else is as in `planes.py`.
    """
    slots = count + 1

    @intrinsic
    def add_charts(
        typingctx, x, q, near, n0, left, frames, slopes, stride, f0, width, masses, h2, share, how, gaps, sums, totals
    ):
        i64, f64 = types.int64, types.float64
        sig = types.void(
            x, i64, near, i64, i64, frames, slopes, i64, i64, i64, masses, f64, f64, i64, gaps, sums, totals
        )

        def codegen(context, builder, signature, args):
            _, q, _, n0, left, _, _, stride, f0, width, _, h2, share, how, _, _, _ = args

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            listed, weights_of = pointer(2, n0), pointer(10, integer(0))
            numbers = [builder.zext(builder.load(builder.gep(listed, [integer(i)])), I64) for i in range(WIDTH)]
            starts = [builder.add(builder.mul(number, stride), f0) for number in numbers]
            pf, ps = ([pointer(place, start) for start in starts] for place in (5, 6))
            px, po, pg = pointer(0, builder.mul(q, width)), pointer(15, builder.mul(q, width)), pointer(14, integer(0))
            masses = ZERO
            for lane, number in enumerate(numbers):
                mass = builder.load(builder.gep(weights_of, [number]))
                masses = builder.insert_element(masses, mass, ir.Constant(I32, lane))

            def cells(firsts, k):
                """Emit the vectors of four columns: element `slots` j + e has slot e of column k + j."""
                at = builder.mul(k, integer(slots))
                found = []
                for t in range(slots):
                    here = builder.add(at, integer(LANES * t))
                    found += columns_of(builder, [load(builder, builder.gep(first, [here])) for first in firsts])
                return found

            def kept(k, j):
                return builder.gep(pg, [builder.mul(builder.add(k, integer(j)), integer(WIDTH))])

            def multiply(k, sums):
                sums, chart = list(sums), cells(pf, k)
                for j in range(LANES):
                    value = splat(builder, builder.load(builder.gep(px, [builder.add(k, integer(j))])), VECTOR)
                    gap = builder.fsub(value, chart[slots * j])
                    store(builder, gap, kept(k, j))
                    sums[0] = fused(builder, gap, gap, sums[0])
                    for e in range(1, slots):
                        sums[e] = fused(builder, gap, chart[slots * j + e], sums[e])
                return sums

            square, *dots = each_group(builder, width, [ZERO] * slots, multiply)
            pulls = builder.icmp_signed("==", how, integer(0))
            again = builder.icmp_signed("==", how, integer(2))
            sign = builder.select(pulls, ir.Constant(F64, -1.0), ir.Constant(F64, 1.0))
            sign = splat(builder, builder.select(again, ir.Constant(F64, 0.0), sign), VECTOR)
            there = builder.icmp_signed("<", PLACES[0], splat(builder, left, PLACES[0].type))
            tent = builder.fmul(
                splat(builder, share, VECTOR), builder.fsub(splat(builder, h2, VECTOR), square)
            )
            tent = builder.select(builder.fcmp_ordered(">", tent, ZERO), tent, ZERO)
            weights = builder.fmul(builder.fmul(builder.select(there, masses, ZERO), tent), tent)
            factors = [builder.fmul(weights, dot) for dot in (sign, *dots)]

            def add(k, _):
                chart, new = cells(ps, k), []
                for j in range(LANES):
                    first = builder.select(pulls, load(builder, kept(k, j), VECTOR), chart[slots * j])
                    total = builder.fmul(factors[0], first)
                    for e in range(1, slots):
                        total = fused(builder, factors[e], chart[slots * j + e], total)
                    new.append(total)
                rows = [groups_of(builder, row) for row in rows_of(builder, new)]
                target = builder.gep(po, [k])
                value = load(builder, target)
                for row in [row for part in zip(*rows, strict=True) for row in part]:
                    value = builder.fadd(value, row)
                store(builder, value, target)
                return []

            each_group(builder, width, [], add)
            weights = builder.select(again, ZERO, weights)
            target = pointer(16, q)
            total = builder.load(target)
            for lane in range(WIDTH):
                total = builder.fadd(total, builder.extract_element(weights, ir.Constant(I32, lane)))
            builder.store(total, target)
            return context.get_dummy_value()

        return sig, codegen

    return add_charts


_c1, _c2, _c3, _c4, _c5 = (_make_add_charts(count) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_to_point(x, q, near, count, frames, slopes, d, masses, h2, share, how, gaps, sums, totals):
    """Add what the charts near[:count] move point `q` by to its rows of `sums` and `totals`.

    `near` has room for as many more as a vector has lanes. Other arguments are those of `planes.add_chart`.
    """
    width, stride = x.shape[1], frames.shape[1]
    F, S, T, M = frames, slopes, totals, masses
    for i in range(count, count + WIDTH - 1):
        near[i] = near[count - 1]
    for i in range(0, count, WIDTH):
        e, at, once = d, 0, how
        while e > 0:
            here = min(e, TOGETHER)
            if here == 5:
                _c5(x, q, near, i, count - i, F, S, stride, at, width, M, h2, share, once, gaps, sums, T)
            elif here == 4:
                _c4(x, q, near, i, count - i, F, S, stride, at, width, M, h2, share, once, gaps, sums, T)
            elif here == 3:
                _c3(x, q, near, i, count - i, F, S, stride, at, width, M, h2, share, once, gaps, sums, T)
            elif here == 2:
                _c2(x, q, near, i, count - i, F, S, stride, at, width, M, h2, share, once, gaps, sums, T)
            else:
                _c1(x, q, near, i, count - i, F, S, stride, at, width, M, h2, share, once, gaps, sums, T)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            once = 2
