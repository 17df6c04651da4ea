"""Charts from a list, their columns in the lanes of vectors: for points with many columns.

Where points have many columns, few of the charts that lie side by side are in reach together: `quads.py`
would mostly add charts of weight zero. Two charts are worked on together, because one alone is a chain of
operations that wait for each other; they are added one after the other, so that a sum does not depend on
which charts of weight zero are in the list.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.vector.lanes import (
    F64,
    I32,
    I64,
    LANES,
    VECTOR,
    fused,
    integer,
    load,
    pointer_to,
    prefetch,
    splat,
    store,
)

TOGETHER = 5  # directions of a part: their sums stay in registers, with what they are made of
_LINE = 8  # doubles in a cache line
_ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def _sum_everywhere(builder, vector):
    """Emit the sum of the lanes, in all lanes: (0 + 2) + (1 + 3)."""
    for lanes in ([2, 3, 0, 1], [1, 0, 3, 2]):
        turned = builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, LANES), lanes))
        vector = builder.fadd(vector, turned)
    return vector


def _each_vector(builder, width, starts, body):
    """Emit a loop over `width` elements, four at a time: body(k, sums) returns the sums after element k."""
    entry = builder.block
    loop = builder.append_basic_block("plane.loop")
    inside = builder.append_basic_block("plane.body")
    done = builder.append_basic_block("plane.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0), entry)
    sums = [builder.phi(VECTOR) for _ in starts]
    for cell, start in zip(sums, starts, strict=True):
        cell.add_incoming(start, entry)
    builder.cbranch(builder.icmp_signed("<", k, width), inside, done)
    builder.position_at_end(inside)
    for cell, value in zip(sums, body(k, sums), strict=True):
        cell.add_incoming(value, builder.block)
    k.add_incoming(builder.add(k, integer(LANES)), builder.block)
    builder.branch(loop)
    builder.position_at_end(done)
    return sums


def pack_parts(firsts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pack a row `firsts` (K, D) and `rows` (K, d, D) of each chart as `add_listed` reads them: (K, stride).

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
    """Return an intrinsic that adds what `count` directions of two charts move a point by.

    They are charts[at:at + 2] of parts with `stride` elements for each, from f0 in `frames` (b and the
    frames) and in `slopes` (offset and slopes); the next two are fetched into the cache. With gap = x - b,
    tent = share (h2 - |gap|^2)_+, w = mass tent^2 and g_e = gap . frame_e it adds w sum_e g_e slope_e to
    `sums`, and once - w gap (how = 0), w offset (1) or nothing (2). Returns `total` and both w, added in this
    order. `x` and `sums` hold `width` elements, a multiple of four, and `gaps`, which is scratch, twice as
    many.
    """
    slots = count + 1

    @intrinsic
    def add_two(
        typingctx, x, frames, slopes, f0, stride, charts, at, width, m1, m2, h2, share, how, gaps, sums, total
    ):
        i64, f64 = types.int64, types.float64
        sig = f64(x, frames, slopes, i64, i64, charts, i64, i64, f64, f64, f64, f64, i64, gaps, sums, f64)

        def codegen(context, builder, signature, args):
            _, _, _, f0, stride, _, at, width, m1, m2, h2, share, how, _, _, total = args
            zero = ir.Constant(F64, 0.0)

            def pointer(place, offset):
                return pointer_to(context, builder, signature.args[place], args[place], offset)

            def cell(start, k, slot):
                at = builder.mul(k, integer(slots))
                return builder.gep(builder.gep(start, [at]), [integer(LANES * slot)])

            def number(place):
                found = builder.load(builder.gep(pointer(5, at), [integer(place)]))
                return builder.sext(found, I64)

            starts = [builder.add(f0, builder.mul(stride, number(place))) for place in range(4)]
            ahead = [pointer(1, start) for start in starts[2:]]
            starts = starts[:2]
            px, po = pointer(0, integer(0)), pointer(14, integer(0))
            pf, ps = ([pointer(place, start) for start in starts] for place in (1, 2))
            pg = [pointer(13, integer(0)), pointer(13, width)]

            def multiply(k, totals):
                x, after = load(builder, builder.gep(px, [k])), []
                for start in ahead:
                    for line in range(0, slots * LANES, _LINE):
                        prefetch(builder, builder.gep(cell(start, k, 0), [integer(line)]))
                for chart in range(2):
                    value = builder.fsub(x, load(builder, cell(pf[chart], k, 0)))
                    store(builder, value, builder.gep(pg[chart], [k]))
                    others = [value, *(load(builder, cell(pf[chart], k, e + 1)) for e in range(count))]
                    own = totals[chart * slots : (chart + 1) * slots]
                    after += [fused(builder, value, a, total) for a, total in zip(others, own, strict=True)]
                return after

            totals = [
                _sum_everywhere(builder, total)
                for total in _each_vector(builder, width, [_ZERO] * (2 * slots), multiply)
            ]
            pulls = builder.icmp_signed("==", how, integer(0))
            sign = builder.select(builder.icmp_signed("==", how, integer(1)), ir.Constant(F64, 1.0), zero)
            sign = splat(builder, builder.select(pulls, ir.Constant(F64, -1.0), sign))
            step = builder.select(pulls, integer(1), integer(slots))
            weights, factors, along, bases = [], [], [], []
            for chart, mass in enumerate((m1, m2)):
                square, *dots = totals[chart * slots : (chart + 1) * slots]
                tent = builder.fmul(splat(builder, share), builder.fsub(splat(builder, h2), square))
                tent = builder.select(builder.fcmp_ordered(">", tent, _ZERO), tent, _ZERO)
                weights.append(builder.fmul(builder.fmul(splat(builder, mass), tent), tent))
                factors.append(builder.fmul(sign, weights[-1]))
                along.append([builder.fmul(weights[-1], dot) for dot in dots])
                bases.append(builder.select(pulls, pg[chart], ps[chart]))

            def add(k, _):
                target = builder.gep(po, [k])
                total = load(builder, target)
                for chart in range(2):
                    start = load(builder, builder.gep(bases[chart], [builder.mul(k, step)]))
                    value = builder.fmul(factors[chart], start)
                    for e, coordinate in enumerate(along[chart]):
                        value = fused(builder, coordinate, load(builder, cell(ps[chart], k, e + 1)), value)
                    total = builder.fadd(total, value)
                store(builder, total, target)
                return []

            _each_vector(builder, width, [], add)
            first = ir.Constant(I32, 0)
            after = total
            for weight in weights:
                after = builder.fadd(after, builder.extract_element(weight, first))
            return after

        return sig, codegen

    def plain_add_two(
        x, frames, slopes, f0, stride, charts, at, width, m1, m2, h2, share, how, gaps, sums, total
    ):
        def rows(values, number):
            start = f0 + stride * number
            flat = values.reshape(-1)[start : start + slots * width]
            return flat.reshape(-1, slots, LANES).transpose(1, 0, 2).reshape(slots, width)

        for number, mass in zip(charts[at : at + 2], (m1, m2), strict=True):
            b, *directions = rows(frames, number)
            offset, *steps = rows(slopes, number)
            gap = x - b
            weight = mass * max(share * (h2 - float(gap @ gap)), 0.0) ** 2
            sums += (-weight * gap, weight * offset, 0.0)[how]
            sums += weight * ((np.array(directions) @ gap) @ np.array(steps))
            total += weight
        return total

    return plain_add_two if JIT_DISABLED else add_two


_p1, _p2, _p3, _p4, _p5 = (_make_add_two(count) for count in range(1, TOGETHER + 1))


@device(inline=True)
def add_listed(x, frames, slopes, stride, listed, count, width, d, masses, h2, share, how, gaps, sums):
    """Add what the charts listed[:count] move a point by to `sums`; return the sum of their weights.

    Arguments are those of the functions for two charts; `d` directions, and `masses` of all charts. `listed`
    (int32) has room for three more.
    """
    for i in range(count, count + 3):
        listed[i] = listed[count - 1] if count > 0 else 0
    F, S, L, total = frames, slopes, listed, 0.0
    for i in range(0, count, 2):
        m1 = masses[listed[i]]
        m2 = masses[listed[i + 1]] if i + 1 < count else 0.0
        e, at, once, before = d, 0, how, total
        while e > 0:
            here = min(e, TOGETHER)
            if here == 5:
                total = _p5(x, F, S, at, stride, L, i, width, m1, m2, h2, share, once, gaps, sums, before)
            elif here == 4:
                total = _p4(x, F, S, at, stride, L, i, width, m1, m2, h2, share, once, gaps, sums, before)
            elif here == 3:
                total = _p3(x, F, S, at, stride, L, i, width, m1, m2, h2, share, once, gaps, sums, before)
            elif here == 2:
                total = _p2(x, F, S, at, stride, L, i, width, m1, m2, h2, share, once, gaps, sums, before)
            else:
                total = _p1(x, F, S, at, stride, L, i, width, m1, m2, h2, share, once, gaps, sums, before)
            e -= TOGETHER
            at += (TOGETHER + 1) * width
            once = 2
    return total
