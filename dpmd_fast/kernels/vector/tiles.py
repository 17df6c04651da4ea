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
    fixed_fused,
    fused,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    splat,
    store,
)


def _emit_sums(builder, rows, sa, groups, sb, depth, multiply_add, starts=None):
    """Emit sums[i][j] = starts[j] + sum_k rows[i][k sa] groups[j][k sb], one k after the other."""
    zero = ir.Constant(VECTOR, [0.0] * LANES)
    entry = builder.block
    loop = builder.append_basic_block("tile.loop")
    body = builder.append_basic_block("tile.body")
    done = builder.append_basic_block("tile.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0), entry)
    sums = [[builder.phi(VECTOR) for _ in groups] for _ in rows]
    for row in sums:
        for cell, start in zip(row, starts or [zero] * len(groups), strict=True):
            cell.add_incoming(start, entry)
    builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
    builder.position_at_end(body)
    ka, kb = builder.mul(k, sa), builder.mul(k, sb)
    right = [load(builder, builder.gep(g, [kb])) for g in groups]
    for row, cells in zip(rows, sums, strict=True):
        left = splat(builder, builder.load(builder.gep(row, [ka])))
        for cell, factor in zip(cells, right, strict=True):
            cell.add_incoming(multiply_add(builder, left, factor, cell), body)
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
            sums = _emit_sums(builder, rows, sa, groups, sb, depth, fused)
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


def _make_fixed_tile(n_groups):
    """Return an intrinsic that sets a tile of C to a product, in an order and with roundings that are fixed.

    C[c0 + i ldc + 4j + l] = sum_k A[a0 + i lda + k] B[b0 + k ldb + 4j + l], i < 4, j < n_groups, l < 4.
    """

    @intrinsic
    def tile(typingctx, A, a0, lda, B, b0, ldb, depth, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, i64, B, i64, i64, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            A, a0, lda, B, b0, ldb, depth, C, c0, ldc = args
            pa = pointer_to(context, builder, signature.args[0], A, a0)
            pb = pointer_to(context, builder, signature.args[3], B, b0)
            pc = pointer_to(context, builder, signature.args[7], C, c0)
            rows = [builder.gep(pa, [builder.mul(lda, integer(i))]) for i in range(4)]
            groups = [builder.gep(pb, [integer(LANES * j)]) for j in range(n_groups)]
            sums = _emit_sums(builder, rows, integer(1), groups, ldb, depth, fixed_fused)
            for i in range(4):
                target = builder.gep(pc, [builder.mul(ldc, integer(i))])
                for j, cell in enumerate(sums[i]):
                    store(builder, cell, builder.gep(target, [integer(LANES * j)]))
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, a0, lda, B, b0, ldb, depth, C, c0, ldc):
        product = _plain_product(A, a0 + lda * np.arange(4), B, b0, ldb, depth, np.zeros(LANES * n_groups))
        C.reshape(-1)[c0 + ldc * np.arange(4)[:, None] + np.arange(LANES * n_groups)] = product

    return plain_tile if JIT_DISABLED else tile


def _make_row_tile(n_groups, squares):
    """Return an intrinsic for four rows of A that may lie anywhere, and sums that begin with the vector S.

    With T[i, 4j + l] = S[s0 + 4j + l] + sum_k A[lda rows[r0 + i] + k] B[b0 + k ldb + 4j + l], it sets
    C[c0 + i ldc + 4j + l] = T[i, 4j + l], or with `squares` C[c0 + i] to the sum of the squares of T[i].
    """

    @intrinsic
    def tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, rows, i64, S, i64, B, i64, i64, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            A, lda, rows, r0, S, s0, B, b0, ldb, depth, C, c0, ldc = args
            pr = pointer_to(context, builder, signature.args[2], rows, r0)
            ps = pointer_to(context, builder, signature.args[4], S, s0)
            pb = pointer_to(context, builder, signature.args[6], B, b0)
            pc = pointer_to(context, builder, signature.args[10], C, c0)
            taken = [builder.load(builder.gep(pr, [integer(i)])) for i in range(4)]
            lines = [
                pointer_to(context, builder, signature.args[0], A, builder.mul(lda, row)) for row in taken
            ]
            groups = [builder.gep(pb, [integer(LANES * j)]) for j in range(n_groups)]
            starts = [load(builder, builder.gep(ps, [integer(LANES * j)])) for j in range(n_groups)]
            sums = _emit_sums(builder, lines, integer(1), groups, ldb, depth, fixed_fused, starts)
            for i in range(4):
                target = builder.gep(pc, [builder.mul(ldc, integer(i))])
                if squares:
                    total = builder.fmul(sums[i][0], sums[i][0])
                    for cell in sums[i][1:]:
                        total = fixed_fused(builder, cell, cell, total)
                    builder.store(horizontal_sum(builder, total), target)
                else:
                    for j, cell in enumerate(sums[i]):
                        store(builder, cell, builder.gep(target, [integer(LANES * j)]))
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, C, c0, ldc):
        width = LANES * n_groups
        start = S.reshape(-1)[s0 : s0 + width]
        product = _plain_product(A, lda * rows[r0 : r0 + 4], B, b0, ldb, depth, start)
        c, targets = C.reshape(-1), c0 + ldc * np.arange(4)
        if squares:
            c[targets] = (product**2).sum(axis=1)
        else:
            c[targets[:, None] + np.arange(width)] = product

    return plain_tile if JIT_DISABLED else tile


def _plain_product(A, lines, B, b0, ldb, depth, start):
    a, b = A.reshape(-1), B.reshape(-1)
    total = np.tile(start, (len(lines), 1))
    for k in range(depth):
        total += a[lines + k][:, None] * b[b0 + k * ldb + np.arange(len(start))]
    return total


_f1, _f2, _f3 = (_make_fixed_tile(j) for j in (1, 2, 3))
_r1, _r2, _r3 = (_make_row_tile(j, False) for j in (1, 2, 3))
_s1, _s2, _s3 = (_make_row_tile(j, True) for j in (1, 2, 3))


@device
def multiply_fixed(X, rows, depth, W, U, width):
    """Set U[:rows, :width] = X[:rows, :depth] W[:depth, :width], each element in one order on every machine.

    An element is a chain of fused multiply-adds from k = 0 to depth - 1: it depends on its row of X and its
    column of W alone. Rows are taken by fours, so X and U must have room for a multiple of four; `width` is a
    multiple of four.
    """
    multiply_upper_fixed(X, rows, depth, W, U, width, depth)


@device
def multiply_upper_fixed(X, rows, depth, W, U, width, offset):
    """Do the same where W[k, e] = 0 for k > e + offset, without most of the zeros."""
    ldx, ldw, ldu = X.shape[1], W.shape[1], U.shape[1]
    j = 0
    while j < width:
        left = width - j
        if left >= 3 * LANES and left != 4 * LANES:
            stop = min(depth, j + 3 * LANES + offset)
            for r in range(0, rows, 4):
                _f3(X, r * ldx, ldx, W, j, ldw, stop, U, r * ldu + j, ldu)
            j += 3 * LANES
        elif left >= 2 * LANES:
            stop = min(depth, j + 2 * LANES + offset)
            for r in range(0, rows, 4):
                _f2(X, r * ldx, ldx, W, j, ldw, stop, U, r * ldu + j, ldu)
            j += 2 * LANES
        else:
            stop = min(depth, j + LANES + offset)
            for r in range(0, rows, 4):
                _f1(X, r * ldx, ldx, W, j, ldw, stop, U, r * ldu + j, ldu)
            j += LANES


@device(inline=True)
def affine_rows(X, rows, count, S, s0, W, U):
    """Set U[i] = S[s0:] + X[rows[i]] W for i < count, each element in one order, as in `multiply_fixed`.

    `rows` and U must have room for a multiple of four; what `rows` holds beyond `count` are rows of X.
    """
    depth, width = W.shape
    ldx = X.shape[1]
    j = 0
    while j < width:
        groups = groups_from(j, width)
        if groups == 3:
            for i in range(0, count, 4):
                _r3(X, ldx, rows, i, S, s0 + j, W, j, width, depth, U, i * width + j, width)
        elif groups == 2:
            for i in range(0, count, 4):
                _r2(X, ldx, rows, i, S, s0 + j, W, j, width, depth, U, i * width + j, width)
        else:
            for i in range(0, count, 4):
                _r1(X, ldx, rows, i, S, s0 + j, W, j, width, depth, U, i * width + j, width)
        j += groups * LANES


@device(inline=True)
def square_rows(X, rows, count, S, s0, W, j, groups, out, o0):
    """Set out[o0 + i] to the sum of squares of 4 `groups` elements of S[s0:] + X[rows[i]] W, from element j.

    W is upper triangular, `groups` is 1 to 3, and `rows` and `out` are as in `affine_rows`.
    """
    depth, width = W.shape
    ldx = X.shape[1]
    stop = min(depth, j + groups * LANES)
    if groups == 3:
        for i in range(0, count, 4):
            _s3(X, ldx, rows, i, S, s0 + j, W, j, width, stop, out, o0 + i, 1)
    elif groups == 2:
        for i in range(0, count, 4):
            _s2(X, ldx, rows, i, S, s0 + j, W, j, width, stop, out, o0 + i, 1)
    else:
        for i in range(0, count, 4):
            _s1(X, ldx, rows, i, S, s0 + j, W, j, width, stop, out, o0 + i, 1)


@device(inline=True)
def groups_from(j, width):
    """Return how many groups of four columns to take at once from column j: three, but first two by two."""
    left = (width - j) // LANES
    return 3 if left % 3 == 0 else min(left, 2)
