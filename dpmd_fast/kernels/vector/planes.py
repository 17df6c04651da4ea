"""One chart and the points near it, a point in each lane of vectors: for points with many columns.

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
    I32,
    I64,
    LANES,
    VECTOR,
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
    transposed,
)
from dpmd_fast.kernels.width import WIDTH

TOGETHER = 5  # directions of a part: with the distance, six sums for each point, which stay in registers
POINTS = 2 * WIDTH  # at a time, one in each lane of two vectors; the last few in one vector
_ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)
# lanes of two vectors of eight: pairs of even and of odd lanes; the first and the second pair of each half,
# of one vector after the other and of both in turns
_EVEN, _ODD = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]
_OUTER, _INNER = [0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]
_FRONT, _BACK = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]


def columns_of(builder, rows):
    """Emit the four columns of rows that are groups: one for each lane of a vector."""
    if len(rows) == LANES:
        return transposed(builder, rows)
    first, second = ([joined(builder, rows[at + i], rows[at + i + 2]) for i in (0, 1)] for at in (0, 4))
    low, high = ([pick(builder, *two, lanes) for two in (first, second)] for lanes in (_EVEN, _ODD))
    return [pick(builder, *two, lanes) for lanes in (_OUTER, _INNER) for two in (low, high)]


def rows_of(builder, columns):
    """Emit the rows of four columns as vectors: the first has lane 0, and lane 4 if there are eight, ..."""
    if columns[0].type.count == LANES:
        return transposed(builder, columns)
    low, high = (
        [pick(builder, *two, lanes) for two in (columns[:2], columns[2:])] for lanes in (_EVEN, _ODD)
    )
    return [pick(builder, *two, lanes) for lanes in (_FRONT, _BACK) for two in (low, high)]


def _add_rows(builder, columns, targets):
    """Emit the addition of four columns to the groups at the targets, one for each lane of a column."""
    for i, row in enumerate(rows_of(builder, columns)):
        own = targets[i::LANES]
        before = [load(builder, target) for target in own]
        after = builder.fadd(joined(builder, *before) if len(before) > 1 else before[0], row)
        for value, target in zip(groups_of(builder, after), own, strict=True):
            store(builder, value, target)


def kept_lanes(builder, values, left, first):
    """Emit a vector with zero in all lanes but the first `left`, if its own first is lane `first`."""
    places = ir.VectorType(I64, WIDTH)
    lanes = ir.Constant(places, list(range(first, first + WIDTH)))
    there = builder.icmp_signed("<", lanes, splat(builder, left, places))
    return builder.select(there, values, _ZERO)


def weigh(builder, sums, masses, tent, pulls, again):
    """Emit weights from |gap|^2 and the g_e, and the factors of the first vector of a part and of its slopes.

    `tent` are h2 and share. A chart that pulls has the gap as its first vector, one that is there again none.
    """
    square, *dots = sums
    h2, share = tent
    tents = builder.fmul(share, builder.fsub(h2, square))
    tents = builder.select(builder.fcmp_ordered(">", tents, _ZERO), tents, _ZERO)
    weights = builder.fmul(builder.fmul(masses, tents), tents)
    sign = builder.select(pulls, ir.Constant(F64, -1.0), ir.Constant(F64, 1.0))
    sign = splat(builder, builder.select(again, ir.Constant(F64, 0.0), sign), VECTOR)
    return weights, [builder.fmul(weights, factor) for factor in (sign, *dots)]


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
        cells = filled.transpose(0, 2, 1)
        parts.append(cells.reshape(K, -1))
    return np.concatenate(parts, axis=1)


def _make_add_points(count, vectors):
    """Return an intrinsic that adds what `count` directions of a chart move some vectors of points by.

    The chart's part begins at element f0 of `frames` (b and the frames) and of `slopes` (offset and slopes).
    The points are the rows near[n0], near[n0 + 1], ... of `x`; all but the first `left` get no weight. With
    gap = x - b, tent = share (h2 - |gap|^2)_+, w = mass tent^2 and g_e = gap . frame_e it adds
    w sum_e g_e slope_e to `sums`, and once - w gap (how = 0), w offset (1) or nothing (2); unless how = 2
    also w to `totals`. `x` and `sums` have rows of `width` elements, a multiple of four; `gaps` is scratch
    for `POINTS` of them.
    """
    slots, points = count + 1, vectors * WIDTH

    @intrinsic
    def add_points(
        typingctx, x, near, n0, left, frames, slopes, f0, width, mass, h2, share, how, gaps, sums, totals
    ):
        i64, f64 = types.int64, types.float64
        sig = types.void(x, near, i64, i64, frames, slopes, i64, i64, f64, f64, f64, i64, gaps, sums, totals)

        def codegen(context, builder, signature, args):
            _, _, n0, left, _, _, f0, width, mass, h2, share, how, _, _, _ = args

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            listed = pointer(1, n0)
            numbers = [
                builder.zext(builder.load(builder.gep(listed, [integer(i)])), I64) for i in range(points)
            ]

            def by_vectors(values):
                return [values[first : first + WIDTH] for first in range(0, points, WIDTH)]

            px, po = ([pointer(place, builder.mul(q, width)) for q in numbers] for place in (0, 13))
            pf, ps, pg = pointer(4, f0), pointer(5, f0), pointer(12, integer(0))

            def chart(start, k, j, slot):
                at = builder.add(builder.mul(k, integer(slots)), integer(slots * j + slot))
                return splat(builder, builder.load(builder.gep(start, [at])), VECTOR)

            def kept(k, j, g):
                at = builder.mul(builder.add(k, integer(j)), integer(points))
                return builder.gep(pg, [builder.add(at, integer(WIDTH * g))])

            def multiply(k, sums):
                columns = [
                    columns_of(builder, [load(builder, builder.gep(start, [k])) for start in own])
                    for own in by_vectors(px)
                ]
                sums = list(sums)
                for j in range(LANES):
                    b = chart(pf, k, j, 0)
                    gaps = [builder.fsub(own[j], b) for own in columns]
                    for g, gap in enumerate(gaps):
                        store(builder, gap, kept(k, j, g))
                        sums[g] = fused(builder, gap, gap, sums[g])
                    for e in range(1, slots):
                        row = chart(pf, k, j, e)
                        for g, gap in enumerate(gaps):
                            sums[e * vectors + g] = fused(builder, gap, row, sums[e * vectors + g])
                return sums

            def put_offset(k, _):
                for j in range(LANES):
                    for g in range(vectors):
                        store(builder, chart(ps, k, j, 0), kept(k, j, g))
                return []

            found = each_group(builder, width, [_ZERO] * (slots * vectors), multiply)
            pulls = builder.icmp_signed("==", how, integer(0))
            again = builder.icmp_signed("==", how, integer(2))
            tent = splat(builder, h2, VECTOR), splat(builder, share, VECTOR)
            with builder.if_then(builder.not_(pulls)):
                each_group(builder, width, [], put_offset)
            factors, all_weights = [], []
            for g in range(vectors):
                masses = kept_lanes(builder, splat(builder, mass, VECTOR), left, g * WIDTH)
                weights, own = weigh(builder, found[g::vectors], masses, tent, pulls, again)
                all_weights.append(weights)
                factors.append(own)

            def add(k, _):
                values = [[] for _ in range(vectors)]
                for j in range(LANES):
                    new = [
                        builder.fmul(factors[g][0], load(builder, kept(k, j, g), VECTOR))
                        for g in range(vectors)
                    ]
                    for e in range(1, slots):
                        row = chart(ps, k, j, e)
                        new = [fused(builder, factors[g][e], row, new[g]) for g in range(vectors)]
                    for g in range(vectors):
                        values[g].append(new[g])
                for g, starts in enumerate(by_vectors(po)):
                    _add_rows(builder, values[g], [builder.gep(start, [k]) for start in starts])
                return []

            each_group(builder, width, [], add)
            keeps = splat(builder, builder.not_(again), ir.VectorType(ir.IntType(1), WIDTH))
            for own, weights in zip(by_vectors(numbers), all_weights, strict=True):
                kept_weights = builder.select(keeps, weights, _ZERO)
                for lane, q in enumerate(own):
                    target = pointer(14, q)
                    weight = builder.extract_element(kept_weights, ir.Constant(I32, lane))
                    builder.store(builder.fadd(builder.load(target), weight), target)
            return context.get_dummy_value()

        return sig, codegen

    def plain_add_points(
        x, near, n0, left, frames, slopes, f0, width, mass, h2, share, how, gaps, sums, totals
    ):
        def rows(values):
            flat = values.reshape(-1)[f0 : f0 + slots * width]
            return flat.reshape(width, slots).T

        b, *directions = rows(frames)
        offset, *steps = rows(slopes)
        for q in near[n0 : n0 + min(left, points)]:
            gap = x[q] - b
            weight = mass * max(share * (h2 - float(gap @ gap)), 0.0) ** 2
            sums[q] += (-weight * gap, weight * offset, 0.0)[how]
            sums[q] += weight * ((np.array(directions) @ gap) @ np.array(steps))
            totals[q] += weight if how < 2 else 0.0

    return plain_add_points if JIT_DISABLED else add_points


_p1, _p2, _p3, _p4, _p5 = (_make_add_points(count, 2) for count in range(1, TOGETHER + 1))
_h1, _h2, _h3, _h4, _h5 = (_make_add_points(count, 1) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_chart(x, near, count, frames, slopes, f0, d, mass, h2, share, how, gaps, sums, totals):
    """Add what a chart moves the points near[:count] by to their rows of `sums` and `totals`.

    The chart begins at element f0 of `frames` and `slopes`; other arguments are those of the functions for
    several points. `near` has room for `POINTS` - 1 more, and `x`, `sums` and `totals` have a last row that
    is no point's.
    """
    width = x.shape[1]
    for i in range(count, count + POINTS - 1):
        near[i] = len(x) - 1
    F, S, T = frames, slopes, totals
    for i in range(0, count, POINTS):
        e, at, once, left = d, f0, how, count - i
        few = left <= WIDTH
        while e > 0:
            here = min(e, TOGETHER)
            if here == 5:
                if few:
                    _h5(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
                else:
                    _p5(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 4:
                if few:
                    _h4(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
                else:
                    _p4(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 3:
                if few:
                    _h3(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
                else:
                    _p3(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            elif here == 2:
                if few:
                    _h2(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
                else:
                    _p2(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            else:
                if few:
                    _h1(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
                else:
                    _p1(x, near, i, left, F, S, at, width, mass, h2, share, once, gaps, sums, T)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            once = 2
