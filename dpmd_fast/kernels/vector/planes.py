"""One chart and the points near it, their columns in the lanes of vectors: for points with many columns.

An affine map of many columns has far more numbers than a few directions and their slopes
(`weighted_rows.py`). A chart is read once for several points: its vectors serve all of them, and one point
alone would be a chain of operations that wait for each other. What a chart adds to a point does not depend on
the other points: every sum has one order, and products and sums are fused on every machine.
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
    I64,
    LANES,
    SPAN,
    each_group,
    fused,
    integer,
    load,
    pick,
    pointer_to,
    splat,
    store,
)

TOGETHER = 5  # directions of a part: with the distance, six sums for each point, which stay in registers
POINTS = 2 * SPAN  # at a time: AVX-512 has 32 registers for their sums, others 16
_ZERO = ir.Constant(GROUP, [0.0] * LANES)
_PLACES = ir.Constant(ir.VectorType(I64, LANES), [lane % POINTS for lane in range(LANES)])


def _lane_sums(builder, groups):
    """Emit the sums of the lanes, (0 + 1) + (2 + 3), of a group for each point: lane p has that of point p.

    Two points fill the lanes twice.
    """
    pairs = []
    for a, b in zip(groups[::2], groups[1::2], strict=True):
        even, odd = (pick(builder, a, b, lanes) for lanes in ([0, 4, 2, 6], [1, 5, 3, 7]))
        pairs.append(builder.fadd(even, odd))
    low, high = (pick(builder, pairs[0], pairs[-1], lanes) for lanes in ([0, 1, 4, 5], [2, 3, 6, 7]))
    return builder.fadd(low, high)


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


def _make_add_points(count):
    """Return an intrinsic that adds what `count` directions of a chart move `POINTS` points by.

    The chart's part begins at element f0 of `frames` (b and the frames) and of `slopes` (offset and slopes).
    The points are the rows near[n0], near[n0 + 1], ... of `x`; all but the first `left` get no weight. With
    gap = x - b, tent = share (h2 - |gap|^2)_+, w = mass tent^2 and g_e = gap . frame_e it adds
    w sum_e g_e slope_e to `sums`, and once - w gap (how = 0), w offset (1) or nothing (2); unless how = 2
    also w to `totals`. `x` and `sums` have rows of `width` elements, a multiple of four; `gaps` is scratch
    for `POINTS` of them.
    """
    slots = count + 1

    @intrinsic
    def add_points(
        typingctx, x, near, n0, left, frames, slopes, f0, width, mass, h2, share, how, gaps, sums, totals
    ):
        i64, f64 = types.int64, types.float64
        sig = types.void(x, near, i64, i64, frames, slopes, i64, i64, f64, f64, f64, i64, gaps, sums, totals)

        def codegen(context, builder, signature, args):
            _, _, n0, left, _, _, f0, width, mass, h2, share, how, _, _, _ = args
            zero, one = ir.Constant(F64, 0.0), ir.Constant(F64, 1.0)

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            def cell(start, k, slot, of):
                at = builder.add(builder.mul(k, integer(of)), integer(LANES * slot))
                return builder.gep(start, [at])

            listed = pointer(1, n0)
            numbers = [builder.load(builder.gep(listed, [integer(i)])) for i in range(POINTS)]
            px, po = ([pointer(place, builder.mul(q, width)) for q in numbers] for place in (0, 13))
            pf, ps, pg = pointer(4, f0), pointer(5, f0), pointer(12, integer(0))

            def multiply(k, before):
                b = load(builder, cell(pf, k, 0, slots))
                gaps = [builder.fsub(load(builder, builder.gep(start, [k])), b) for start in px]
                for point, gap in enumerate(gaps):
                    store(builder, gap, cell(pg, k, point, POINTS))
                after = [fused(builder, gap, gap, before[point]) for point, gap in enumerate(gaps)]
                for e in range(1, slots):
                    row, first = load(builder, cell(pf, k, e, slots)), POINTS * e
                    after += [fused(builder, gap, row, before[first + i]) for i, gap in enumerate(gaps)]
                return after

            def put_offset(k, _):
                offset = load(builder, cell(ps, k, 0, slots))
                for point in range(POINTS):
                    store(builder, offset, cell(pg, k, point, POINTS))
                return []

            found = each_group(builder, width, [_ZERO] * (slots * POINTS), multiply)
            square, *dots = (
                _lane_sums(builder, found[first : first + POINTS]) for first in range(0, len(found), POINTS)
            )
            pulls = builder.icmp_signed("==", how, integer(0))
            again = builder.icmp_signed("==", how, integer(2))
            sign = builder.select(again, zero, builder.select(pulls, ir.Constant(F64, -1.0), one))
            with builder.if_then(builder.not_(pulls)):
                each_group(builder, width, [], put_offset)
            there = builder.icmp_signed("<", _PLACES, splat(builder, left, _PLACES.type))
            masses = builder.select(there, splat(builder, mass), _ZERO)
            tent = builder.fmul(splat(builder, share), builder.fsub(splat(builder, h2), square))
            tent = builder.select(builder.fcmp_ordered(">", tent, _ZERO), tent, _ZERO)
            weights = builder.fmul(builder.fmul(masses, tent), tent)
            factors = [builder.fmul(weights, dot) for dot in (splat(builder, sign), *dots)]
            own = [
                [pick(builder, values, values, [point] * LANES) for values in factors]
                for point in range(POINTS)
            ]

            def add(k, _):
                rows = [load(builder, cell(ps, k, e, slots)) for e in range(1, slots)]
                for point, (first, *others) in enumerate(own):
                    value = builder.fmul(first, load(builder, cell(pg, k, point, POINTS)))
                    for factor, row in zip(others, rows, strict=True):
                        value = fused(builder, factor, row, value)
                    target = builder.gep(po[point], [k])
                    store(builder, builder.fadd(load(builder, target), value), target)
                return []

            each_group(builder, width, [], add)
            for point, q in enumerate(numbers):
                weight = builder.extract_element(weights, ir.Constant(I32, point))
                target = pointer(14, q)
                weight = builder.select(again, zero, weight)
                builder.store(builder.fadd(builder.load(target), weight), target)
            return context.get_dummy_value()

        return sig, codegen

    def plain_add_points(
        x, near, n0, left, frames, slopes, f0, width, mass, h2, share, how, gaps, sums, totals
    ):
        def rows(values):
            flat = values.reshape(-1)[f0 : f0 + slots * width]
            return flat.reshape(-1, slots, LANES).transpose(1, 0, 2).reshape(slots, width)

        b, *directions = rows(frames)
        offset, *steps = rows(slopes)
        for q in near[n0 : n0 + min(left, POINTS)]:
            gap = x[q] - b
            weight = mass * max(share * (h2 - float(gap @ gap)), 0.0) ** 2
            sums[q] += (-weight * gap, weight * offset, 0.0)[how]
            sums[q] += weight * ((np.array(directions) @ gap) @ np.array(steps))
            totals[q] += weight if how < 2 else 0.0

    return plain_add_points if JIT_DISABLED else add_points


_p1, _p2, _p3, _p4, _p5 = (_make_add_points(count) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_chart(
    x, near, start, count, frames, slopes, f0, d, columns, masses, m0, h2, share, how, gaps, sums, totals
):
    """Add what a chart moves the points near[start:start + count] by to their rows of `sums` and `totals`.

    The chart begins at element f0 of `frames` and `slopes`; other arguments are those of the functions for
    several points. `near` has room for `POINTS` - 1 more, and `x`, `sums` and `totals` have a last row that
    is no point's.
    """
    stop, width, mass = start + count, x.shape[1], masses[m0]
    for i in range(stop, stop + POINTS - 1):
        near[i] = len(x) - 1
    F, S, T = frames, slopes, totals
    for i in range(start, stop, POINTS):
        e, at, once = d, f0, how
        while e > 0:
            here = min(e, TOGETHER)
            if here == 5:
                _p5(x, near, i, stop - i, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 4:
                _p4(x, near, i, stop - i, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 3:
                _p3(x, near, i, stop - i, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 2:
                _p2(x, near, i, stop - i, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            else:
                _p1(x, near, i, stop - i, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            once = 2
