"""Register tiles: products of packed panels with a 4 x 12 block of accumulators kept in registers."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.vector.lanes import (
    I64,
    LANES,
    VECTOR,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
)


def emit_sums(builder, rows, sa, groups, sb, depth, starts=None, vector=VECTOR):
    """Emit sums[i][j] = starts[i][j] + sum_k rows[i][k sa] groups[j][k sb], one k after the other."""
    zero = ir.Constant(vector, [0.0] * vector.count)
    entry = builder.block
    loop = builder.append_basic_block("tile.loop")
    body = builder.append_basic_block("tile.body")
    done = builder.append_basic_block("tile.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0), entry)
    sums = [[builder.phi(vector) for _ in groups] for _ in rows]
    for i, row in enumerate(sums):
        for j, cell in enumerate(row):
            cell.add_incoming(starts[i][j] if starts else zero, entry)
    builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
    builder.position_at_end(body)
    ka, kb = builder.mul(k, sa), builder.mul(k, sb)
    right = [load(builder, builder.gep(g, [kb]), vector) for g in groups]
    for row, cells in zip(rows, sums, strict=True):
        left = splat(builder, builder.load(builder.gep(row, [ka])), vector)
        for cell, factor in zip(cells, right, strict=True):
            cell.add_incoming(fused(builder, left, factor, cell), body)
    k.add_incoming(builder.add(k, integer(1)), body)
    builder.branch(loop)
    builder.position_at_end(done)
    return sums


def _make_tile(n_rows, n_groups, negative):
    """Return an intrinsic that adds a product to a tile of C, or subtracts it.

    C[i, 4j + l] += sum_k A[k sa + i ra] B[k sb + j gb + l], i < n_rows, j < n_groups, l < 4.
    """

    @intrinsic
    def tile(typingctx, A, a0, sa, ra, B, b0, sb, gb, depth, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, i64, i64, B, i64, i64, i64, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            A, a0, sa, ra, B, b0, sb, gb, depth, C, c0, ldc = args
            pa = pointer_to(context, builder, signature.args[0], A, a0)
            pb = pointer_to(context, builder, signature.args[4], B, b0)
            pc = pointer_to(context, builder, signature.args[9], C, c0)
            rows = [builder.gep(pa, [builder.mul(ra, integer(i))]) for i in range(n_rows)]
            groups = [builder.gep(pb, [builder.mul(gb, integer(j))]) for j in range(n_groups)]
            sums = emit_sums(builder, rows, sa, groups, sb, depth)
            for i in range(n_rows):
                target = builder.gep(pc, [builder.mul(ldc, integer(i))])
                for j in range(n_groups):
                    cell = builder.gep(target, [integer(LANES * j)])
                    combine = builder.fsub if negative else builder.fadd
                    store(builder, combine(load(builder, cell), sums[i][j]), cell)
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, a0, sa, ra, B, b0, sb, gb, depth, C, c0, ldc):
        a, b, c = A.reshape(-1), B.reshape(-1), C.reshape(-1)
        k = np.arange(depth)[:, None]
        left = a[a0 + k * sa + np.arange(n_rows) * ra]
        columns = (np.arange(n_groups)[:, None] * gb + np.arange(LANES)).ravel()
        product = left.T @ b[b0 + k * sb + columns]
        cells = c0 + np.arange(n_rows)[:, None] * ldc + np.arange(n_groups * LANES)
        c[cells] += -product if negative else product

    return plain_tile if JIT_DISABLED else tile


_t41, _t42, _t43 = (_make_tile(4, j, False) for j in (1, 2, 3))
_n41, _n42, _n43 = (_make_tile(4, j, True) for j in (1, 2, 3))
_t11, _t13 = (_make_tile(1, j, False) for j in (1, 3))
_t21, _t23 = (_make_tile(2, j, False) for j in (1, 3))


@device
def add_gram(panel, capacity, rows, C, groups):
    """Add the Gram matrix of `rows` packed rows to the upper 4 x 4 blocks of C (ldc = 4 groups)."""
    gs = LANES * capacity
    ldc = LANES * groups
    for i in range(groups):
        j = i
        while j + 3 <= groups:
            _t43(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)
            j += 3
        if groups - j == 2:
            _t42(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)
        elif groups - j == 1:
            _t41(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)


@device
def add_gram_of_rows(V, first, rows, C, groups):
    """Add the Gram matrix of `rows` rows of V (n, 4 groups), from row `first` on, to the same blocks of C."""
    ldc = LANES * groups
    v = first * ldc
    for i in range(groups):
        a, j = v + LANES * i, i
        while j + 3 <= groups:
            _t43(V, a, ldc, 1, V, v + LANES * j, ldc, LANES, rows, C, LANES * (i * ldc + j), ldc)
            j += 3
        if groups - j == 2:
            _t42(V, a, ldc, 1, V, v + LANES * j, ldc, LANES, rows, C, LANES * (i * ldc + j), ldc)
        elif groups - j == 1:
            _t41(V, a, ldc, 1, V, v + LANES * j, ldc, LANES, rows, C, LANES * (i * ldc + j), ldc)


@device
def subtract_gram(panel, capacity, rows, C, groups):
    """Subtract what `add_gram` adds."""
    gs = LANES * capacity
    ldc = LANES * groups
    for i in range(groups):
        j = i
        while j + 3 <= groups:
            _n43(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)
            j += 3
        if groups - j == 2:
            _n42(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)
        elif groups - j == 1:
            _n41(panel, i * gs, LANES, 1, panel, j * gs, LANES, gs, rows, C, LANES * (i * ldc + j), ldc)


@device
def multiply_symmetric(Q, rows, C, Z, width):
    """Set Z[:rows] = Q[:rows] C for a symmetric C; all with row stride `width`, a multiple of four."""
    Z[:rows] = 0.0
    r = 0
    while r < rows:
        pair = rows - r > 1
        at = r * width
        j = 0
        while j < width:
            if width - j >= 3 * LANES:
                if pair:
                    _t23(Q, at, 1, width, C, j, width, LANES, width, Z, at + j, width)
                else:
                    _t13(Q, at, 1, width, C, j, width, LANES, width, Z, at + j, width)
                j += 3 * LANES
            else:
                if pair:
                    _t21(Q, at, 1, width, C, j, width, LANES, width, Z, at + j, width)
                else:
                    _t11(Q, at, 1, width, C, j, width, LANES, width, Z, at + j, width)
                j += LANES
        r += 2 if pair else 1
