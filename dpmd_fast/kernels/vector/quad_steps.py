"""Four charts and the points near them: for points with few columns.

A lane belongs to one of the four charts, so a sum over columns needs no sum across lanes. What is read of the
charts serves two points, whose sums stay in registers. Vectors have four numbers on every machine: with eight
of two points each an AMD EPYC with AVX-512 takes 3 to 8 % longer, since they have to be put together and
taken apart. What charts add to a point does not depend on the other points: every sum has one order, and
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
    LANES,
    each_group,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
)
from dpmd_fast.kernels.vector.quads import pack_quads

POINTS = 2  # at a time
_DIRECTIONS = (1, 2, 3, 5, 7)  # for which there is code; others are filled up with zeros
_ZERO = ir.Constant(GROUP, [0.0] * LANES)


def pack_fours(firsts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pack a row `firsts` (K, D) and `rows` (K, d, D) of each chart as `add_four_charts` reads them.

    Of four charts (quads, stride) it holds one column after the other, of each the first row and its rows,
    and of these a number for every chart. Missing charts and directions are zeros.
    """
    K, d, D = rows.shape
    parts = np.zeros((K, 1 + directions_for(d), D))
    parts[:, 0], parts[:, 1 : 1 + d] = firsts, rows
    cells = pack_quads(parts).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(cells).reshape(len(cells), -1)


def directions_for(d: int) -> int:
    """Return with how many directions charts of `d` are packed: a zero more changes no bit of a sum."""
    return next(count for count in _DIRECTIONS if count >= d)


def _make_add(count):
    """Return an intrinsic that adds what four charts with `count` directions move `POINTS` points by.

    The charts begin at element f0 of `frames` (b and the frames) and of `slopes` (offset and slopes), their
    masses at element m0 of `masses`; the points are rows near[n0], near[n0 + 1], ... of `x`. With
    gap = x - b, w = mass (share (h2 - |gap|^2))_+^2 and g_e = gap . frame_e it adds w sum_e g_e slope_e to
    the point's row of `sums` (columns, 4), and - w gap (how = 0) or w offset (1), and w to its row of
    `totals`. `gaps` is scratch for as many numbers as `sums` has for all these points.
    """
    slots = count + 1

    @intrinsic
    def add(
        typingctx, x, near, n0, frames, slopes, f0, columns, masses, m0, h2, share, how, gaps, sums, totals
    ):
        i64, f64 = types.int64, types.float64
        sig = types.void(
            x, near, i64, frames, slopes, i64, i64, masses, i64, f64, f64, i64, gaps, sums, totals
        )

        def codegen(context, builder, signature, args):
            _, _, n0, _, _, f0, columns, _, m0, h2, share, how, _, _, _ = args

            def start_of(place):
                return pointer_to(context, builder, signature.args[place], args[place], integer(0))

            def rows_of(place, length):
                start = start_of(place)
                return [builder.gep(start, [builder.mul(q, length)]) for q in rows]

            def cell(start, k, slot):
                return builder.gep(
                    builder.gep(start, [builder.mul(k, integer(slots))]), [integer(LANES * slot)]
                )

            length = builder.mul(columns, integer(LANES))
            listed = builder.gep(start_of(1), [n0])
            rows = [builder.load(builder.gep(listed, [integer(i)])) for i in range(POINTS)]
            pitch = context.make_array(signature.args[0])(context, builder, args[0]).shape
            px = rows_of(0, builder.extract_value(pitch, 1))
            po, pt = rows_of(13, length), rows_of(14, integer(LANES))
            pf, ps = (builder.gep(start_of(place), [f0]) for place in (3, 4))
            pg, pm = start_of(12), builder.gep(start_of(7), [m0])

            def multiply(k, before):
                column = builder.lshr(k, integer(2))
                b = load(builder, cell(pf, k, 0))
                kept = builder.gep(pg, [builder.mul(k, integer(POINTS))])
                after, gaps = [], []
                for i, start in enumerate(px):
                    x = splat(builder, builder.load(builder.gep(start, [column])))
                    gaps.append(builder.fsub(x, b))
                    store(builder, gaps[i], builder.gep(kept, [integer(LANES * i)]))
                    after.append(fused(builder, gaps[i], gaps[i], before[i]))
                for e in range(1, slots):
                    row = load(builder, cell(pf, k, e))
                    after += [fused(builder, row, gap, before[POINTS * e + i]) for i, gap in enumerate(gaps)]
                return after

            found = each_group(builder, length, [_ZERO] * (POINTS * slots), multiply)
            pulls = builder.icmp_signed("==", how, integer(0))
            sign = builder.select(pulls, ir.Constant(F64, -1.0), ir.Constant(F64, 1.0))
            step = builder.select(pulls, integer(POINTS), integer(slots))
            bases = [builder.select(pulls, builder.gep(pg, [integer(LANES * i)]), ps) for i in range(POINTS)]
            mass = load(builder, pm)
            weights, factors, along = [], [], []
            for i in range(POINTS):
                tent = builder.fmul(splat(builder, share), builder.fsub(splat(builder, h2), found[i]))
                tent = builder.select(builder.fcmp_ordered(">", tent, _ZERO), tent, _ZERO)
                weights.append(builder.fmul(builder.fmul(mass, tent), tent))
                factors.append(builder.fmul(splat(builder, sign), weights[i]))
                along.append([builder.fmul(weights[i], found[POINTS * e + i]) for e in range(1, slots)])

            def put(value, target):
                store(builder, builder.fadd(load(builder, target), value), target)

            def add(k, _):
                at = builder.mul(k, step)
                starts = [load(builder, builder.gep(base, [at])) for base in bases]
                values = [builder.fmul(*pair) for pair in zip(factors, starts, strict=True)]
                for e in range(count):
                    row = load(builder, cell(ps, k, e + 1))
                    values = [fused(builder, along[i][e], row, value) for i, value in enumerate(values)]
                for value, start in zip(values, po, strict=True):
                    put(value, builder.gep(start, [k]))
                return []

            each_group(builder, length, [], add)
            for weight, target in zip(weights, pt, strict=True):
                put(weight, target)
            return context.get_dummy_value()

        return sig, codegen

    return add


def _make_plain_add(count):
    """Return the twin in NumPy of what `_make_add` returns."""
    slots = count + 1

    def plain_add(x, near, n0, frames, slopes, f0, columns, masses, m0, h2, share, how, gaps, sums, totals):
        def rows(values):
            cells = values.reshape(-1)[f0 : f0 + slots * LANES * columns].reshape(columns, slots, LANES)
            return cells[:, 0], cells[:, 1:]

        (b, directions), (offset, steps) = rows(frames), rows(slopes)
        for q in near[n0 : n0 + POINTS]:
            gap = x[q, :columns, None] - b
            weight = masses[m0 : m0 + LANES] * np.maximum(share * (h2 - (gap * gap).sum(axis=0)), 0.0) ** 2
            along = np.einsum("kel,kl->el", directions, gap)
            sums[q] += (weight * ((offset if how else -gap) + np.einsum("el,kel->kl", along, steps))).reshape(
                -1
            )
            totals[q] += weight

    return plain_add


_make = _make_plain_add if JIT_DISABLED else _make_add
_f1, _f2, _f3, _f5, _f7 = (_make(count) for count in _DIRECTIONS)


@device(inline=True)
def add_four_charts(
    x, near, start, count, frames, slopes, f0, d, columns, masses, m0, h2, share, how, gaps, sums, totals
):
    """Add what four charts move the points near[start:start + count] by to their rows of `sums` and `totals`.

    `d` is the number of directions that they are packed with; other arguments are those of the functions for
    some points. `near` has room for so many more, and `x`, `sums` and `totals` have a last row that is no
    point's.
    """
    for i in range(POINTS - 1):
        near[start + count + i] = len(x) - 1
    F, S, M, T = frames, slopes, masses, totals
    for i in range(start, start + count, POINTS):
        if d == 1:
            _f1(x, near, i, F, S, f0, columns, M, m0, h2, share, how, gaps, sums, T)
        elif d == 2:
            _f2(x, near, i, F, S, f0, columns, M, m0, h2, share, how, gaps, sums, T)
        elif d == 3:
            _f3(x, near, i, F, S, f0, columns, M, m0, h2, share, how, gaps, sums, T)
        elif d == 5:
            _f5(x, near, i, F, S, f0, columns, M, m0, h2, share, how, gaps, sums, T)
        else:
            _f7(x, near, i, F, S, f0, columns, M, m0, h2, share, how, gaps, sums, T)
