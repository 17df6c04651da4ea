"""One chart and two points, their columns in the lanes of vectors: for points with many columns.

Where points have many columns, few of the charts that lie side by side are in reach together:
`quad_steps.py` would mostly add charts of weight zero. Here a chart is read once for the points near it, two
at a time: the vectors of the chart serve both, and one pair alone would be a chain of operations that wait
for each other. What a chart adds to a point does not depend on the other point: every sum has one order, and
products and sums are fused on every machine.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    F64,
    GROUP,
    I32,
    LANES,
    each_group,
    fused,
    groups_of,
    integer,
    joined,
    load,
    pick,
    pointer_to,
    splat,
    store,
)

TOGETHER = 5  # directions of a part: their sums for two points stay in registers
_ZERO = ir.Constant(GROUP, [0.0] * LANES)
_BOTH = ir.VectorType(F64, 2 * LANES)  # four columns of the one point, then of the other


def _twice(builder, group):
    return joined(builder, group, group)


def _both_sums(builder, both):
    """Emit the sums of the lanes of two points, (0 + 1) + (2 + 3), in turns: a's, b's, a's, b's."""
    a, b = groups_of(builder, both)
    pairs = builder.fadd(pick(builder, a, b, [0, 4, 2, 6]), pick(builder, a, b, [1, 5, 3, 7]))
    return builder.fadd(pairs, pick(builder, pairs, pairs, [2, 3, 0, 1]))


def _each(builder, turns):
    """Emit the two numbers of a group that has them in turns, each in four lanes."""
    return pick(builder, turns, turns, [0, 0, 2, 2, 1, 1, 3, 3])


def pack_parts(firsts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pack a row `firsts` (K, D) and `rows` (K, d, D) of each chart as `add_chart` reads them: (K, stride).

    A part has at most five of the rows. It holds four columns after the other, of each the first row and its
    rows; the last columns are filled up with zeros.
    """
    K, d, D = rows.shape
    vectors = (D + LANES - 1) // LANES
    parts = []
    for e in range(0, d, TOGETHER):
        part = np.concatenate([firsts[:, None], rows[:, e : e + TOGETHER]], axis=1)
        filled = np.zeros((*part.shape[:2], vectors * LANES))
        filled[:, :, :D] = part
        cells = filled.reshape(K, -1, vectors, LANES).transpose(0, 2, 1, 3)
        parts.append(cells.reshape(K, -1))
    return np.concatenate(parts, axis=1)


def _make_add_two(count):
    """Return an intrinsic that adds what `count` directions of a chart move two points by.

    The chart's part begins at element f0 of `frames` (b and the frames) and of `slopes` (offset and slopes);
    the points are rows q1 and q2 of `x`, with masses m1 and m2 of the chart. With gap = x - b,
    tent = share (h2 - |gap|^2)_+, w = mass tent^2 and g_e = gap . frame_e it adds w sum_e g_e slope_e to
    `sums`, and once - w gap (how = 0), w offset (1) or nothing (2); unless how = 2 also w to `totals`. `x`
    and `sums` have rows of `width` elements, a multiple of four; `gaps` is scratch for two of them.
    """
    slots = count + 1

    @intrinsic
    def add_two(typingctx, x, q1, q2, frames, slopes, f0, width, m1, m2, h2, share, how, gaps, sums, totals):
        i64, f64 = types.int64, types.float64
        sig = types.void(x, i64, i64, frames, slopes, i64, i64, f64, f64, f64, f64, i64, gaps, sums, totals)

        def codegen(context, builder, signature, args):
            _, q1, q2, _, _, f0, width, m1, m2, h2, share, how, _, _, _ = args
            zero, one = ir.Constant(F64, 0.0), ir.Constant(F64, 1.0)

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            def cell(start, k, slot):
                at = builder.mul(k, integer(slots))
                return builder.gep(builder.gep(start, [at]), [integer(LANES * slot)])

            rows = [builder.mul(q, width) for q in (q1, q2)]
            px, po = ([pointer(place, row) for row in rows] for place in (0, 13))
            pf, ps = pointer(3, f0), pointer(4, f0)
            pg = [pointer(12, integer(0)), pointer(12, width)]
            pt = [pointer(14, q) for q in (q1, q2)]

            def multiply(k, before):
                x = joined(builder, *(load(builder, builder.gep(start, [k])) for start in px))
                own = builder.fsub(x, _twice(builder, load(builder, cell(pf, k, 0))))
                for value, start in zip(groups_of(builder, own), pg, strict=True):
                    store(builder, value, builder.gep(start, [k]))
                rows = [_twice(builder, load(builder, cell(pf, k, e))) for e in range(1, slots)]
                return [
                    fused(builder, own, row, sums) for row, sums in zip([own, *rows], before, strict=True)
                ]

            zeros = ir.Constant(_BOTH, [0.0] * _BOTH.count)
            found = each_group(builder, width, [zeros] * slots, multiply)
            square, *dots = (_both_sums(builder, sums) for sums in found)
            pulls = builder.icmp_signed("==", how, integer(0))
            again = builder.icmp_signed("==", how, integer(2))
            sign = builder.select(again, zero, builder.select(pulls, ir.Constant(F64, -1.0), one))
            step = builder.select(pulls, integer(1), integer(slots))
            masses = pick(builder, splat(builder, m1), splat(builder, m2), [0, 4, 2, 6])
            tent = builder.fmul(splat(builder, share), builder.fsub(splat(builder, h2), square))
            tent = builder.select(builder.fcmp_ordered(">", tent, _ZERO), tent, _ZERO)
            weights = builder.fmul(builder.fmul(masses, tent), tent)
            factors = _each(builder, builder.fmul(splat(builder, sign), weights))
            along = [_each(builder, builder.fmul(weights, dot)) for dot in dots]
            bases = [builder.select(pulls, start, ps) for start in pg]

            def add(k, _):
                starts = (load(builder, builder.gep(base, [builder.mul(k, step)])) for base in bases)
                values = builder.fmul(factors, joined(builder, *starts))
                for e in range(count):
                    row = _twice(builder, load(builder, cell(ps, k, e + 1)))
                    values = fused(builder, along[e], row, values)
                for value, start in zip(groups_of(builder, values), po, strict=True):
                    target = builder.gep(start, [k])
                    store(builder, builder.fadd(load(builder, target), value), target)
                return []

            each_group(builder, width, [], add)
            for i, target in enumerate(pt):
                weight = builder.extract_element(weights, ir.Constant(I32, i))
                weight = builder.select(again, zero, weight)
                builder.store(builder.fadd(builder.load(target), weight), target)
            return context.get_dummy_value()

        return sig, codegen

    def plain_add_two(x, q1, q2, frames, slopes, f0, width, m1, m2, h2, share, how, gaps, sums, totals):
        def rows(values):
            flat = values.reshape(-1)[f0 : f0 + slots * width]
            return flat.reshape(-1, slots, LANES).transpose(1, 0, 2).reshape(slots, width)

        b, *directions = rows(frames)
        offset, *steps = rows(slopes)
        for q, mass in ((q1, m1), (q2, m2)):
            gap = x[q] - b
            weight = mass * max(share * (h2 - float(gap @ gap)), 0.0) ** 2
            sums[q] += (-weight * gap, weight * offset, 0.0)[how]
            sums[q] += weight * ((np.array(directions) @ gap) @ np.array(steps))
            totals[q] += weight if how < 2 else 0.0

    return plain_add_two if JIT_DISABLED else add_two


_p1, _p2, _p3, _p4, _p5 = (_make_add_two(count) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_chart(
    x, near, start, count, frames, slopes, f0, d, columns, masses, m0, h2, share, how, gaps, sums, totals
):
    """Add what a chart moves the points near[start:start + count] by to their rows of `sums` and `totals`.

    The chart begins at element f0 of `frames` and `slopes`; other arguments are those of the functions for
    two points. `near` has room for one more, and `x`, `sums` and `totals` have a last row that is no point's.
    """
    near[start + count] = len(x) - 1
    width, mass = x.shape[1], masses[m0]
    F, S, T = frames, slopes, totals
    for i in range(start, start + count, 2):
        q1, q2 = np.int64(near[i]), np.int64(near[i + 1])
        m2 = mass if i + 1 < start + count else 0.0
        e, at, once = d, f0, how
        while e > 0:
            here = min(e, TOGETHER)
            if here == 5:
                _p5(x, q1, q2, F, S, at, width, mass, m2, h2, share, once, gaps, sums, T)
            elif here == 4:
                _p4(x, q1, q2, F, S, at, width, mass, m2, h2, share, once, gaps, sums, T)
            elif here == 3:
                _p3(x, q1, q2, F, S, at, width, mass, m2, h2, share, once, gaps, sums, T)
            elif here == 2:
                _p2(x, q1, q2, F, S, at, width, mass, m2, h2, share, once, gaps, sums, T)
            else:
                _p1(x, q1, q2, F, S, at, width, mass, m2, h2, share, once, gaps, sums, T)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            once = 2
