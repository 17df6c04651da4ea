"""Products of chosen rows with a matrix, and their squares, with the same bits on every machine.

An element is a chain of fused multiply-adds from the first row of the matrix to the last: it depends on its
row and its column alone. Rows are taken by fours, columns by four, eight or twelve.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.vector.lanes import (
    I32,
    LANES,
    fused,
    horizontal_sum,
    integer,
    load,
    pointer_to,
    store,
)
from dpmd_fast.kernels.vector.tiles import emit_sums


def _emit_products(context, builder, signature, args, n_groups):
    """Emit T of `_make_row_tile` from the first ten arguments of a tile; return the four rows and T."""
    A, lda, rows, r0, S, s0, B, b0, ldb, depth = args[:10]
    pr = pointer_to(context, builder, signature.args[2], rows, r0)
    ps = pointer_to(context, builder, signature.args[4], S, s0)
    pb = pointer_to(context, builder, signature.args[6], B, b0)
    taken = [builder.load(builder.gep(pr, [integer(i)])) for i in range(4)]
    lines = [pointer_to(context, builder, signature.args[0], A, builder.mul(lda, row)) for row in taken]
    groups = [builder.gep(pb, [integer(LANES * j)]) for j in range(n_groups)]
    starts = [load(builder, builder.gep(ps, [integer(LANES * j)])) for j in range(n_groups)]
    return lines, emit_sums(builder, lines, integer(1), groups, ldb, depth, [starts] * 4)


def _store_rows(builder, target, ldc, sums):
    for i, row in enumerate(sums):
        line = builder.gep(target, [builder.mul(ldc, integer(i))])
        for j, cell in enumerate(row):
            store(builder, cell, builder.gep(line, [integer(LANES * j)]))


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
            C, c0, ldc = args[10:]
            _, sums = _emit_products(context, builder, signature, args, n_groups)
            target = pointer_to(context, builder, signature.args[10], C, c0)
            if squares:
                for i in range(4):
                    total = builder.fmul(sums[i][0], sums[i][0])
                    for cell in sums[i][1:]:
                        total = fused(builder, cell, cell, total)
                    place = builder.gep(target, [builder.mul(ldc, integer(i))])
                    builder.store(horizontal_sum(builder, total), place)
            else:
                _store_rows(builder, target, ldc, sums)
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


def _sums_across(builder, rows):
    """Emit the sums of the lanes of four vectors, each as `horizontal_sum` adds them, as one vector."""

    def pick(a, b, lanes):
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, LANES), lanes))

    halves = [
        builder.fadd(pick(a, b, [0, 1, 4, 5]), pick(a, b, [2, 3, 6, 7]))
        for a, b in ((rows[0], rows[2]), (rows[1], rows[3]))
    ]
    return builder.fadd(pick(*halves, [0, 4, 2, 6]), pick(*halves, [1, 5, 3, 7]))


def _make_square_tile(n_groups):
    """Return an intrinsic for products T as in `_make_row_tile`, and for sums of their squares.

    It sets C[c0 + i ldc + 4j + l] = T[i, 4j + l]; adds T[i, 4j + l]^2 to L[4i + l], one j after the other,
    each product and sum rounded; and sets q[q0 + i] to the sum of the four lanes.
    """

    @intrinsic
    def tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, L, q, q0, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, rows, i64, S, i64, B, i64, i64, i64, L, q, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            L, q, q0, C, c0, ldc = args[10:]
            _, sums = _emit_products(context, builder, signature, args, n_groups)
            _store_rows(builder, pointer_to(context, builder, signature.args[13], C, c0), ldc, sums)
            pl = pointer_to(context, builder, signature.args[10], L, integer(0))
            lanes = []
            for i in range(4):
                place = builder.gep(pl, [integer(LANES * i)])
                total = load(builder, place)
                for cell in sums[i]:
                    total = builder.fadd(total, builder.fmul(cell, cell))
                store(builder, total, place)
                lanes.append(total)
            out = pointer_to(context, builder, signature.args[11], q, q0)
            store(builder, _sums_across(builder, lanes), out)
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, L, q, q0, C, c0, ldc):
        width = LANES * n_groups
        start = S.reshape(-1)[s0 : s0 + width]
        product = _plain_product(A, lda * rows[r0 : r0 + 4], B, b0, ldb, depth, start)
        lanes = L.reshape(4, LANES)
        for j in range(n_groups):
            lanes += product[:, LANES * j : LANES * (j + 1)] ** 2
        q.reshape(-1)[q0 : q0 + 4] = (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])
        C.reshape(-1)[c0 + ldc * np.arange(4)[:, None] + np.arange(width)] = product

    return plain_tile if JIT_DISABLED else tile


def _make_gap_tile(n_groups):
    """Return an intrinsic for products T as in `_make_row_tile`, and of these with the rows they come from.

    It sets C[c0 + i ldc + 4j + l] = T[i, 4j + l]; adds (A[lda t + a + 4j + l] - M[m0 + 4j + l]) T[i, 4j + l]
    to L[4i + l], t = rows[r0 + i], one j after the other; and sets q[q0 + i] to the sum of the four lanes.
    """

    @intrinsic
    def tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, a, M, m0, L, q, q0, C, c0, ldc):
        i64 = types.int64
        sig = types.void(
            A, i64, rows, i64, S, i64, B, i64, i64, i64, i64, M, i64, L, q, i64, C, i64, i64
        )  # fmt: skip

        def codegen(context, builder, signature, args):
            a, M, m0, L, q, q0, C, c0, ldc = args[10:]
            lines, sums = _emit_products(context, builder, signature, args, n_groups)
            _store_rows(builder, pointer_to(context, builder, signature.args[16], C, c0), ldc, sums)
            pm = pointer_to(context, builder, signature.args[11], M, m0)
            pl = pointer_to(context, builder, signature.args[13], L, integer(0))
            centers = [load(builder, builder.gep(pm, [integer(LANES * j)])) for j in range(n_groups)]
            lanes = []
            for i in range(4):
                place = builder.gep(pl, [integer(LANES * i)])
                total = load(builder, place)
                for j, cell in enumerate(sums[i]):
                    own = load(builder, builder.gep(lines[i], [builder.add(a, integer(LANES * j))]))
                    total = fused(builder, builder.fsub(own, centers[j]), cell, total)
                store(builder, total, place)
                lanes.append(total)
            out = pointer_to(context, builder, signature.args[14], q, q0)
            store(builder, _sums_across(builder, lanes), out)
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, a, M, m0, L, q, q0, C, c0, ldc):
        width = LANES * n_groups
        lines = lda * rows[r0 : r0 + 4]
        product = _plain_product(A, lines, B, b0, ldb, depth, S.reshape(-1)[s0 : s0 + width])
        own = A.reshape(-1)[(lines + a)[:, None] + np.arange(width)] - M.reshape(-1)[m0 : m0 + width]
        lanes = L.reshape(4, LANES)
        for j in range(n_groups):
            part = slice(LANES * j, LANES * (j + 1))
            lanes += own[:, part] * product[:, part]
        q.reshape(-1)[q0 : q0 + 4] = (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])
        C.reshape(-1)[c0 + ldc * np.arange(4)[:, None] + np.arange(width)] = product

    return plain_tile if JIT_DISABLED else tile


def _make_combination(n_groups):
    """Return an intrinsic that sets Y[y0 + i] to the sum over k of factors[f0 + k sf] X[x0 + k sx + i]."""

    @intrinsic
    def combination(typingctx, factors, f0, sf, X, x0, sx, count, Y, y0):
        i64 = types.int64
        sig = types.void(factors, i64, i64, X, i64, i64, i64, Y, i64)

        def codegen(context, builder, signature, args):
            factors, f0, sf, X, x0, sx, count, Y, y0 = args
            pf = pointer_to(context, builder, signature.args[0], factors, f0)
            px = pointer_to(context, builder, signature.args[3], X, x0)
            groups = [builder.gep(px, [integer(LANES * j)]) for j in range(n_groups)]
            sums = emit_sums(builder, [pf], sf, groups, sx, count)
            _store_rows(builder, pointer_to(context, builder, signature.args[7], Y, y0), integer(0), sums)
            return context.get_dummy_value()

        return sig, codegen

    def plain_combination(factors, f0, sf, X, x0, sx, count, Y, y0):
        total = np.zeros(LANES * n_groups)
        for k in range(count):
            total += factors.reshape(-1)[f0 + k * sf] * X.reshape(-1)[x0 + k * sx :][: len(total)]
        Y.reshape(-1)[y0 : y0 + len(total)] = total

    return plain_combination if JIT_DISABLED else combination


def _plain_product(A, lines, B, b0, ldb, depth, start):
    a, b = A.reshape(-1), B.reshape(-1)
    total = np.tile(start, (len(lines), 1))
    for k in range(depth):
        total += a[lines + k][:, None] * b[b0 + k * ldb + np.arange(len(start))]
    return total


_r1, _r2, _r3 = (_make_row_tile(j, False) for j in (1, 2, 3))
_s1, _s2, _s3 = (_make_row_tile(j, True) for j in (1, 2, 3))
_q1, _q2, _q3 = (_make_square_tile(j) for j in (1, 2, 3))
_c1, _c2, _c3 = (_make_combination(j) for j in (1, 2, 3))
_g1, _g2, _g3 = (_make_gap_tile(j) for j in (1, 2, 3))


@device(inline=True)
def affine_rows(X, rows, count, S, s0, W, U):
    """Set U[i] = S[s0:] + X[rows[i]] W for i < count, each element in one order.

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
def affine_rows_and_forms(X, rows, count, S, s0, W, M, m0, U, lanes, out):
    """Do the same, and set out[i] = (X[rows[i]] - M[m0:]) . U[i], in one order too.

    `lanes` is room for 16 numbers, and `out` for a multiple of four.
    """
    depth, width = W.shape
    ldx = X.shape[1]
    for i in range(0, count, 4):
        lanes[:] = 0.0
        j = 0
        while j < width:
            groups, u0 = groups_from(j, width), i * width + j
            if groups == 3:
                _g3(X, ldx, rows, i, S, s0 + j, W, j, width, depth, j, M, m0 + j, lanes, out, i, U, u0, width)
            elif groups == 2:
                _g2(X, ldx, rows, i, S, s0 + j, W, j, width, depth, j, M, m0 + j, lanes, out, i, U, u0, width)
            else:
                _g1(X, ldx, rows, i, S, s0 + j, W, j, width, depth, j, M, m0 + j, lanes, out, i, U, u0, width)
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
def combine_rows(factors, f0, sf, X, x0, sx, count, Y, y0, length):
    """Set Y[y0 + i] to the sum over k < count of factors[f0 + k sf] X[x0 + k sx + i], i < length."""
    j = 0
    while j < length:
        groups = groups_from(j, length)
        if groups == 3:
            _c3(factors, f0, sf, X, x0 + j, sx, count, Y, y0 + j)
        elif groups == 2:
            _c2(factors, f0, sf, X, x0 + j, sx, count, Y, y0 + j)
        else:
            _c1(factors, f0, sf, X, x0 + j, sx, count, Y, y0 + j)
        j += groups * LANES


@device(inline=True)
def groups_from(j, width):
    """Return how many groups of four columns to take at once from column j: three, but first two by two."""
    left = (width - j) // LANES
    return 3 if left % 3 == 0 else min(left, 2)


@device(inline=True)
def place_rows(X, rows, count, W, w0, width, columns, U, u0, lanes, out):
    """Set U[u0 + width i + j], j < columns, to elements of (1, X[rows[i]]) W, out[i] to their sum of squares.

    W (depth + 1, width) starts at w0 and is upper triangular below its first row; `columns` is a multiple of
    four. `lanes` is room for 16 numbers; `rows`, U and `out` are as in `affine_rows`.
    """
    depth = X.shape[1]
    for i in range(0, count, 4):
        lanes[:] = 0.0
        j = 0
        while j < columns:
            groups, u = groups_from(j, columns), u0 + i * width + j
            at, below, stop = w0 + j, w0 + width + j, min(depth, j + groups * LANES)
            if groups == 3:
                _q3(X, depth, rows, i, W, at, W, below, width, stop, lanes, out, i, U, u, width)
            elif groups == 2:
                _q2(X, depth, rows, i, W, at, W, below, width, stop, lanes, out, i, U, u, width)
            else:
                _q1(X, depth, rows, i, W, at, W, below, width, stop, lanes, out, i, U, u, width)
            j += groups * LANES


@device(inline=True)
def round_up(rows, count):
    """Repeat the last of some rows up to a multiple of four.

    It is read once: LLVM 22 turns ``while i % 4: rows[i] = rows[i - 1]; i += 1`` into one wide load and one
    wide store, as if the steps did not depend on each other.
    """
    last = rows[count - 1] if count > 0 else 0
    while count % 4:
        rows[count] = last
        count += 1
