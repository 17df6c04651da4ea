"""Register tiles: products of rows with four rows of vectors, in accumulators that stay in registers.

A tile has up to three vectors of columns: 12 accumulators, three vectors and a factor fill the 16 registers
of AVX2, and what NEON splits them into fills 32. Each element is a chain over the rows in order, so that
its bits do not depend on the width.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    GROUP,
    I64,
    LANES,
    SPAN,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
    vectors_of,
)
from dpmd_fast.kernels.width import WIDTH

MOST = 3 * SPAN  # groups of columns in a tile
_MOST_OF_FIVE = 3 * SPAN if WIDTH > LANES else 2 * SPAN  # of five rows: AVX-512 has 32 registers


def emit_sums(builder, rows, sa, columns, sb, depth, starts=None, *, first=None, negative=False):
    """Emit sums[i][j] = starts[i][j] + sum_k rows[i][k sa] columns[j][k sb], one k after the other.

    `columns` are pairs of a pointer and the type of the vector there. k goes from `first`, or else 0, to
    `depth`; products are subtracted if `negative`.
    """
    kinds = [vector for _, vector in columns]
    entry = builder.block
    loop = builder.append_basic_block("tile.loop")
    body = builder.append_basic_block("tile.body")
    done = builder.append_basic_block("tile.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0) if first is None else first, entry)
    sums = [[builder.phi(vector) for vector in kinds] for _ in rows]
    for i, row in enumerate(sums):
        for j, cell in enumerate(row):
            zero = ir.Constant(kinds[j], [0.0] * kinds[j].count)
            cell.add_incoming(starts[i][j] if starts else zero, entry)
    builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
    builder.position_at_end(body)
    ka, kb = builder.mul(k, sa), builder.mul(k, sb)
    right = [load(builder, builder.gep(pointer, [kb]), vector) for pointer, vector in columns]
    for row, cells in zip(rows, sums, strict=True):
        factor = builder.load(builder.gep(row, [ka]))
        left = {vector: splat(builder, factor, vector) for vector in kinds}
        if negative:  # fused as well
            left = {vector: builder.fneg(value) for vector, value in left.items()}
        for cell, value in zip(cells, right, strict=True):
            cell.add_incoming(fused(builder, left[cell.type], value, cell), body)
    k.add_incoming(builder.add(k, integer(1)), body)
    builder.branch(loop)
    builder.position_at_end(done)
    return sums


def for_each_count(builder, count, most, emit):
    """Emit emit(n) for n = 1, ..., `most`, and a jump to that of n = count."""
    done = builder.append_basic_block("count.done")
    cases = [builder.append_basic_block("count.case") for _ in range(most)]
    switch = builder.switch(count, cases[-1])
    for n, case in enumerate(cases[:-1], start=1):
        switch.add_case(integer(n), case)
    for n, case in enumerate(cases, start=1):
        builder.position_at_end(case)
        emit(n)
        builder.branch(done)
    builder.position_at_end(done)


def _make_tile(n_rows, *, odd=False, both=False, most=MOST):
    """Return an intrinsic that adds a product to a tile of C.

    C[i, l] += sum_k A[k sa + i ra] B[k sb + m // W vb + m % W], m = l + 4 skip, for k < depth, i < n_rows
    and the columns l < 4 groups, with at most `most` groups. With `odd`, `skip` may be 1 where a vector has
    two groups: the tile begins with the second one. With `both`, products of depth <= k < end are subtracted;
    else `end` is not used.
    """
    starts = SPAN if odd else 1

    @intrinsic
    def tile(typingctx, A, a0, sa, ra, B, b0, sb, vb, groups, skip, depth, end, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, i64, i64, B, i64, i64, i64, i64, i64, i64, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            A, a0, sa, ra, B, b0, sb, vb, groups, skip, depth, end, C, c0, ldc = args
            pa = pointer_to(context, builder, signature.args[0], A, a0)
            pb = pointer_to(context, builder, signature.args[4], B, b0)
            pc = pointer_to(context, builder, signature.args[12], C, c0)
            rows = [builder.gep(pa, [builder.mul(ra, integer(i))]) for i in range(n_rows)]

            def emit(case):
                first, count = divmod(case - 1, most)
                kinds = [GROUP] * first + vectors_of(count + 1 - first)
                places = [builder.gep(pb, [builder.mul(vb, integer(v))]) for v in range(len(kinds))]
                places[0] = builder.gep(places[0], [integer(LANES * first)])
                columns = list(zip(places, kinds, strict=True))
                sums = emit_sums(builder, rows, sa, columns, sb, depth)
                if both:
                    sums = emit_sums(builder, rows, sa, columns, sb, end, sums, first=depth, negative=True)
                for i in range(n_rows):
                    cell = builder.gep(pc, [builder.mul(ldc, integer(i))])
                    for v, vector in enumerate(kinds):
                        store(builder, builder.fadd(load(builder, cell, vector), sums[i][v]), cell)
                        cell = builder.gep(cell, [integer(vector.count)])

            case = builder.add(groups, builder.mul(skip, integer(most))) if odd else groups
            for_each_count(builder, case, starts * most, emit)
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, a0, sa, ra, B, b0, sb, vb, groups, skip, depth, end, C, c0, ldc):
        a, b, c = A.reshape(-1), B.reshape(-1), C.reshape(-1)
        k, column = np.arange(end if both else depth)[:, None], LANES * skip + np.arange(LANES * groups)
        left = np.where(k < depth, 1.0, -1.0) * a[a0 + k * sa + np.arange(n_rows) * ra]
        product = left.T @ b[b0 + k * sb + column // WIDTH * vb + column % WIDTH]
        cells = c0 + np.arange(n_rows)[:, None] * ldc + np.arange(LANES * groups)
        c[cells] += product

    return plain_tile if JIT_DISABLED else tile


_add_four, _change_four = _make_tile(4, odd=True), _make_tile(4, odd=True, both=True)
_add_one, _change_one = _make_tile(1), _make_tile(1, both=True)
_add_two = _make_tile(2)
_add_five = _make_tile(5, most=_MOST_OF_FIVE)


@device(inline=True)
def _each_tile(tile, V, v, sa, vb, rows, end, C, groups, ldc):
    """Add the Gram matrix of `rows` rows at V[v], 4 groups wide, to the upper 4 x 4 blocks of C, by tiles.

    Column k of row r is at V[v + r sa + k // WIDTH vb + k % WIDTH].
    """
    for i in range(groups):
        a = v + i // SPAN * vb + LANES * (i % SPAN)
        j = i
        while j < groups:
            skip = j % SPAN
            take = min(groups - j, MOST - skip)
            b, c = v + j // SPAN * vb, LANES * (i * ldc + j)
            tile(V, a, sa, 1, V, b, sa, vb, take, skip, rows, end, C, c, ldc)
            j += take


@device
def add_gram(panel, capacity, rows, C, groups):
    """Add the Gram matrix of `rows` packed rows to the upper 4 x 4 blocks of C (ldc = 4 groups)."""
    _each_tile(_add_four, panel, 0, WIDTH, WIDTH * capacity, rows, rows, C, groups, LANES * groups)


@device
def add_gram_and_lead(panel, capacity, rows, C, groups, lead):
    """Add the Gram matrix of all groups but the last, of which only the first column is not zero.

    What is due to that column, all entries of its row, is added to `lead` (4 groups). In tiles of four
    columns with four it would take four times as long.
    """
    stride, last, width = WIDTH * capacity, groups - 1, LANES * groups
    _each_tile(_add_four, panel, 0, WIDTH, stride, rows, rows, C, last, width)
    a = last // SPAN * stride + LANES * (last % SPAN)
    for j in range(0, groups, MOST):
        take, b, c = min(groups - j, MOST), j // SPAN * stride, LANES * j
        _add_one(panel, a, WIDTH, 1, panel, b, WIDTH, stride, take, 0, rows, rows, lead, c, width)


@device
def add_gram_of_rows(V, first, rows, C, groups):
    """Add the Gram matrix of `rows` rows of V (n, 4 groups), from row `first` on, to the same blocks of C."""
    ldc = LANES * groups
    _each_tile(_add_four, V, first * ldc, ldc, WIDTH, rows, rows, C, groups, ldc)


@device
def change_gram(panel, capacity, added, rows, C, groups):
    """Do as `add_gram` with the first `added` of the rows, and subtract the Gram matrix of the others."""
    _each_tile(_change_four, panel, 0, WIDTH, WIDTH * capacity, added, rows, C, groups, LANES * groups)


@device
def change_gram_and_lead(panel, capacity, added, rows, C, groups):
    """Do as `add_gram_and_lead`, and subtract what the rows behind `added` add; the lead is a row of C.

    It is the first one of the last group.
    """
    stride, last, width = WIDTH * capacity, groups - 1, LANES * groups
    _each_tile(_change_four, panel, 0, WIDTH, stride, added, rows, C, last, width)
    a = last // SPAN * stride + LANES * (last % SPAN)
    for j in range(0, groups, MOST):
        take, b, c = min(groups - j, MOST), j // SPAN * stride, LANES * (last * width + j)
        _change_one(panel, a, WIDTH, 1, panel, b, WIDTH, stride, take, 0, added, rows, C, c, width)


@device
def multiply_symmetric(Q, rows, C, Z, width):
    """Set Z[:rows] = Q[:rows] C for a symmetric C; all with row stride `width`, a multiple of four.

    Five rows at a time: a large C is read from the second cache.
    """
    Z[:rows] = 0.0
    r = 0
    while r < rows:
        at, left = r * width, rows - r
        most = _MOST_OF_FIVE if left >= 5 else MOST
        for j in range(0, width, most * LANES):
            take = min((width - j) // LANES, most)
            if left >= 5:
                _add_five(Q, at, 1, width, C, j, width, WIDTH, take, 0, width, 0, Z, at + j, width)
            elif left >= 2:
                _add_two(Q, at, 1, width, C, j, width, WIDTH, take, 0, width, 0, Z, at + j, width)
            else:
                _add_one(Q, at, 1, width, C, j, width, WIDTH, take, 0, width, 0, Z, at + j, width)
        r += 5 if left >= 5 else min(left, 2)
