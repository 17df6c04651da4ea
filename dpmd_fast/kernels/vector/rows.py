"""Products of chosen rows with a matrix, and their squares, with the same bits on every machine.

An element is a chain of fused multiply-adds from the first row of the matrix to the last: it depends on its
row and its column alone. Rows are taken by fours, columns by up to three vectors.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    LANES,
    SPAN,
    fused,
    groups_of,
    horizontal_sum,
    integer,
    load,
    pick,
    pointer_to,
    store,
    vectors_of,
)
from dpmd_fast.kernels.vector.tiles import MOST, emit_sums, for_each_count
from dpmd_fast.kernels.width import WIDTH

_SQUARED = 3  # most groups of columns whose squares are added up in one go


def _columns_at(builder, pointer, n_groups):
    """Pairs of a pointer and a type of vector, for columns side by side."""
    kinds = vectors_of(n_groups)
    return [(builder.gep(pointer, [integer(WIDTH * v)]), vector) for v, vector in enumerate(kinds)]


def _emit_products(context, builder, signature, args, n_groups):
    """Emit T of `_make_row_tile` from the first ten arguments of a tile; return the four rows, and T."""
    A, lda, rows, r0, S, s0, B, b0, ldb, depth = args[:10]
    pr = pointer_to(context, builder, signature.args[2], rows, r0)
    ps = pointer_to(context, builder, signature.args[4], S, s0)
    pb = pointer_to(context, builder, signature.args[6], B, b0)
    taken = [builder.load(builder.gep(pr, [integer(i)])) for i in range(4)]
    lines = [pointer_to(context, builder, signature.args[0], A, builder.mul(lda, row)) for row in taken]
    starts = [load(builder, *start) for start in _columns_at(builder, ps, n_groups)]
    columns = _columns_at(builder, pb, n_groups)
    return lines, emit_sums(builder, lines, integer(1), columns, ldb, depth, [starts] * 4)


def _store_rows(builder, target, ldc, sums):
    for i, row in enumerate(sums):
        line = builder.gep(target, [builder.mul(ldc, integer(i))])
        for v, cell in enumerate(row):
            store(builder, cell, builder.gep(line, [integer(WIDTH * v)]))


def _fours(builder, row):
    """Emit the groups of a row of vectors: sums over columns have four lanes on every processor."""
    return [group for vector in row for group in groups_of(builder, vector)]


def _make_row_tile(squares):
    """Return an intrinsic for four rows of A that may lie anywhere, and sums that begin with the vector S.

    With T[i, j] = S[s0 + j] + sum_k A[lda rows[r0 + i] + k] B[b0 + k ldb + j], j < 4 groups, it sets
    C[c0 + i ldc + j] = T[i, j], or with `squares` C[c0 + i ldc] to the sum of the squares of T[i]. There are
    at most `MOST` groups, for squares three.
    """

    @intrinsic
    def tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, C, c0, ldc):
        i64 = types.int64
        sig = types.void(A, i64, rows, i64, S, i64, B, i64, i64, i64, i64, C, i64, i64)

        def codegen(context, builder, signature, args):
            groups, C, c0, ldc = args[10:]
            target = pointer_to(context, builder, signature.args[11], C, c0)

            def emit(count):
                _, sums = _emit_products(context, builder, signature, args, count)
                if not squares:
                    _store_rows(builder, target, ldc, sums)
                    return
                for i in range(4):
                    first, *others = _fours(builder, sums[i])
                    total = builder.fmul(first, first)
                    for cell in others:
                        total = fused(builder, cell, cell, total)
                    place = builder.gep(target, [builder.mul(ldc, integer(i))])
                    builder.store(horizontal_sum(builder, total), place)

            for_each_count(builder, groups, _SQUARED if squares else MOST, emit)
            return context.get_dummy_value()

        return sig, codegen

    def plain_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, C, c0, ldc):
        width = LANES * groups
        start = S.reshape(-1)[s0 : s0 + width]
        product = _plain_product(A, lda * rows[r0 : r0 + 4], B, b0, ldb, depth, start)
        c, targets = C.reshape(-1), c0 + ldc * np.arange(4)
        if squares:
            c[targets] = (product**2).sum(axis=1)
        else:
            c[targets[:, None] + np.arange(width)] = product

    return plain_tile if JIT_DISABLED else tile


def _sums_across(builder, rows):
    """Emit the sums of the lanes of four groups, each as `horizontal_sum` adds them, as one group."""
    halves = [
        builder.fadd(pick(builder, a, b, [0, 1, 4, 5]), pick(builder, a, b, [2, 3, 6, 7]))
        for a, b in ((rows[0], rows[2]), (rows[1], rows[3]))
    ]
    return builder.fadd(pick(builder, *halves, [0, 4, 2, 6]), pick(builder, *halves, [1, 5, 3, 7]))


@intrinsic
def _square_tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, L, q, q0, C, c0, ldc):
    """Set products T as in `_make_row_tile`, and sums of their squares.

    It sets C[c0 + i ldc + 4j + l] = T[i, 4j + l]; adds T[i, 4j + l]^2 to L[4i + l], one j after the other,
    each product and sum rounded; and sets q[q0 + i] to the sum of the four lanes.
    """
    i64 = types.int64
    sig = types.void(A, i64, rows, i64, S, i64, B, i64, i64, i64, i64, L, q, i64, C, i64, i64)

    def codegen(context, builder, signature, args):
        groups, L, q, q0, C, c0, ldc = args[10:]
        target = pointer_to(context, builder, signature.args[14], C, c0)
        pl = pointer_to(context, builder, signature.args[11], L, integer(0))
        out = pointer_to(context, builder, signature.args[12], q, q0)

        def emit(count):
            _, sums = _emit_products(context, builder, signature, args, count)
            _store_rows(builder, target, ldc, sums)
            lanes = []
            for i in range(4):
                place = builder.gep(pl, [integer(LANES * i)])
                total = load(builder, place)
                for cell in _fours(builder, sums[i]):
                    total = builder.fadd(total, builder.fmul(cell, cell))
                store(builder, total, place)
                lanes.append(total)
            store(builder, _sums_across(builder, lanes), out)

        for_each_count(builder, groups, MOST, emit)
        return context.get_dummy_value()

    return sig, codegen


def _plain_square_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, L, q, q0, C, c0, ldc):
    width = LANES * groups
    start = S.reshape(-1)[s0 : s0 + width]
    product = _plain_product(A, lda * rows[r0 : r0 + 4], B, b0, ldb, depth, start)
    lanes = L.reshape(4, LANES)
    for j in range(groups):
        lanes += product[:, LANES * j : LANES * (j + 1)] ** 2
    q.reshape(-1)[q0 : q0 + 4] = (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])
    C.reshape(-1)[c0 + ldc * np.arange(4)[:, None] + np.arange(width)] = product


@intrinsic
def _gap_tile(typingctx, A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, a, M, m0, L, q, q0, C, c0, ldc):
    """Set products T as in `_make_row_tile`, and products of these with the rows they come from.

    It sets C[c0 + i ldc + 4j + l] = T[i, 4j + l]; adds (A[lda t + a + 4j + l] - M[m0 + 4j + l]) T[i, 4j + l]
    to L[4i + l], t = rows[r0 + i], one j after the other; and sets q[q0 + i] to the sum of the four lanes.
    """
    i64 = types.int64
    sig = types.void(
        A, i64, rows, i64, S, i64, B, i64, i64, i64, i64, i64, M, i64, L, q, i64, C, i64, i64
    )  # fmt: skip

    def codegen(context, builder, signature, args):
        groups, a, M, m0, L, q, q0, C, c0, ldc = args[10:]
        target = pointer_to(context, builder, signature.args[17], C, c0)
        pm = pointer_to(context, builder, signature.args[12], M, m0)
        pl = pointer_to(context, builder, signature.args[14], L, integer(0))
        out = pointer_to(context, builder, signature.args[15], q, q0)

        def emit(count):
            lines, sums = _emit_products(context, builder, signature, args, count)
            _store_rows(builder, target, ldc, sums)
            centers = [load(builder, builder.gep(pm, [integer(LANES * j)])) for j in range(count)]
            lanes = []
            for i in range(4):
                place = builder.gep(pl, [integer(LANES * i)])
                total = load(builder, place)
                for j, cell in enumerate(_fours(builder, sums[i])):
                    own = load(builder, builder.gep(lines[i], [builder.add(a, integer(LANES * j))]))
                    total = fused(builder, builder.fsub(own, centers[j]), cell, total)
                store(builder, total, place)
                lanes.append(total)
            store(builder, _sums_across(builder, lanes), out)

        for_each_count(builder, groups, MOST, emit)
        return context.get_dummy_value()

    return sig, codegen


def _plain_gap_tile(A, lda, rows, r0, S, s0, B, b0, ldb, depth, groups, a, M, m0, L, q, q0, C, c0, ldc):
    width = LANES * groups
    lines = lda * rows[r0 : r0 + 4]
    product = _plain_product(A, lines, B, b0, ldb, depth, S.reshape(-1)[s0 : s0 + width])
    own = A.reshape(-1)[(lines + a)[:, None] + np.arange(width)] - M.reshape(-1)[m0 : m0 + width]
    lanes = L.reshape(4, LANES)
    for j in range(groups):
        part = slice(LANES * j, LANES * (j + 1))
        lanes += own[:, part] * product[:, part]
    q.reshape(-1)[q0 : q0 + 4] = (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])
    C.reshape(-1)[c0 + ldc * np.arange(4)[:, None] + np.arange(width)] = product


@intrinsic
def _combination(typingctx, factors, f0, sf, X, x0, sx, count, groups, Y, y0):
    """Set Y[y0 + i], i < 4 groups, to the sum over k < count of factors[f0 + k sf] X[x0 + k sx + i]."""
    i64 = types.int64
    sig = types.void(factors, i64, i64, X, i64, i64, i64, i64, Y, i64)

    def codegen(context, builder, signature, args):
        factors, f0, sf, X, x0, sx, count, groups, Y, y0 = args
        pf = pointer_to(context, builder, signature.args[0], factors, f0)
        px = pointer_to(context, builder, signature.args[3], X, x0)
        target = pointer_to(context, builder, signature.args[8], Y, y0)

        def emit(n_groups):
            sums = emit_sums(builder, [pf], sf, _columns_at(builder, px, n_groups), sx, count)
            _store_rows(builder, target, integer(0), sums)

        for_each_count(builder, groups, MOST, emit)
        return context.get_dummy_value()

    return sig, codegen


def _plain_combination(factors, f0, sf, X, x0, sx, count, groups, Y, y0):
    total = np.zeros(LANES * groups)
    for k in range(count):
        total += factors.reshape(-1)[f0 + k * sf] * X.reshape(-1)[x0 + k * sx :][: len(total)]
    Y.reshape(-1)[y0 : y0 + len(total)] = total


def _plain_product(A, lines, B, b0, ldb, depth, start):
    a, b = A.reshape(-1), B.reshape(-1)
    total = np.tile(start, (len(lines), 1))
    for k in range(depth):
        total += a[lines + k][:, None] * b[b0 + k * ldb + np.arange(len(start))]
    return total


_row_tile, _row_squares = _make_row_tile(False), _make_row_tile(True)
_squares_and_products = _plain_square_tile if JIT_DISABLED else _square_tile
_forms_and_products = _plain_gap_tile if JIT_DISABLED else _gap_tile
_combine = _plain_combination if JIT_DISABLED else _combination


@device(inline=True)
def affine_rows(X, rows, count, S, s0, W, U):
    """Set U[i] = S[s0:] + X[rows[i]] W for i < count, each element in one order.

    `rows` and U must have room for a multiple of four; what `rows` holds beyond `count` are rows of X.
    """
    depth, width = W.shape
    ldx = X.shape[1]
    j = 0
    while j < width:
        groups = _tile_from(j, width)
        for i in range(0, count, 4):
            _row_tile(X, ldx, rows, i, S, s0 + j, W, j, width, depth, groups, U, i * width + j, width)
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
            groups, s, m, u = _tile_from(j, width), s0 + j, m0 + j, i * width + j
            _forms_and_products(
                X, ldx, rows, i, S, s, W, j, width, depth, groups, j, M, m, lanes, out, i, U, u, width
            )
            j += groups * LANES


@device(inline=True)
def square_rows(X, rows, count, S, s0, W, j, groups, out, o0):
    """Set out[o0 + i] to the sum of squares of 4 `groups` elements of S[s0:] + X[rows[i]] W, from element j.

    W is upper triangular, `groups` is 1 to 3, and `rows` and `out` are as in `affine_rows`.
    """
    depth, width = W.shape
    ldx = X.shape[1]
    stop = min(depth, j + groups * LANES)
    for i in range(0, count, 4):
        _row_squares(X, ldx, rows, i, S, s0 + j, W, j, width, stop, groups, out, o0 + i, 1)


@device(inline=True)
def combine_rows(factors, f0, sf, X, x0, sx, count, Y, y0, length):
    """Set Y[y0 + i] to the sum over k < count of factors[f0 + k sf] X[x0 + k sx + i], i < length."""
    j = 0
    while j < length:
        groups = _tile_from(j, length)
        _combine(factors, f0, sf, X, x0 + j, sx, count, groups, Y, y0 + j)
        j += groups * LANES


@device(inline=True)
def groups_from(j, width):
    """Return how many groups of columns `square_rows` takes from column j: three, but first two by two.

    It is the same on every processor, since what is added up in one go depends on it.
    """
    left = (width - j) // LANES
    return _SQUARED if left % _SQUARED == 0 else min(left, 2)


@device(inline=True)
def _tile_from(j, width):
    """Return how many groups of columns a tile takes from column j: three vectors, but first two by two."""
    left = (width - j) // LANES
    vectors = (left + SPAN - 1) // SPAN
    return min(left, SPAN * (3 if vectors % 3 == 0 else min(vectors, 2)))


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
            groups, u = _tile_from(j, columns), u0 + i * width + j
            at, below, stop = w0 + j, w0 + width + j, min(depth, j + groups * LANES)
            _squares_and_products(
                X, depth, rows, i, W, at, W, below, width, stop, groups, lanes, out, i, U, u, width
            )
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
