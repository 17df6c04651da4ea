"""Vector micro-kernels: fixed-order reductions and small moves, on LLVM vectors.

Numba may not re-order a sum, so its loops reach a third of what two FMA units can do. These functions
are written one level lower, so that a sum is fast and has one order on every machine, for every thread
count. Each takes contiguous float64 arrays with element offsets (not addresses: the array stays alive
for the call). With ``NUMBA_DISABLE_JIT=1`` plain NumPy twins of the same name stand in.

Rows are made of groups of four doubles. A vector holds one group or two (`width.py`): code is written
once over `SPAN`, and what is left of a row with an odd number of groups is worked on as one group.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.width import WIDTH

LANES = 4  # doubles in a group
SPAN = WIDTH // LANES  # groups in a vector: one or two

F64 = ir.DoubleType()
I64 = ir.IntType(64)
I32 = ir.IntType(32)
GROUP = ir.VectorType(F64, LANES)
VECTOR = ir.VectorType(F64, WIDTH)


def integer(value):
    """Return a 64-bit constant."""
    return ir.Constant(I64, value)


def pointer_to(context, builder, array_type, array, offset):
    """Return a pointer to element `offset` of a contiguous array argument."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def load(builder, pointer, vector=GROUP):
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=_size(vector))


def store(builder, value, pointer):
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=_size(value.type))


def _size(vector):
    return 8 if vector.element == F64 else 4


def splat(builder, scalar, vector=GROUP):
    undefined = ir.Constant(vector, ir.Undefined)
    lane0 = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    first = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(lane0, undefined, first)


def fused(builder, a, b, c):
    """Emit a b + c, rounded once on every target: where there is no instruction, a slow function does it.

    A permission to contract would leave it to the target whether it rounds once or twice.
    """
    vector = a.type
    name = f"llvm.fma.v{vector.count}f{8 * _size(vector)}"
    call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    return builder.call(call, [a, b, c])


def prefetch(builder, pointer, *, write=False):
    """Emit a request to have the line at `pointer` in all caches, to read or to write it."""
    byte = ir.IntType(8).as_pointer()
    call = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32]), "llvm.prefetch.p0i8"
    )
    how = [ir.Constant(I32, value) for value in (int(write), 3, 1)]  # into all levels, data
    builder.call(call, [builder.bitcast(pointer, byte), *how])


def vectors_of(groups):
    """Return the types of the vectors that hold this many groups: the last one may be a group."""
    return [VECTOR] * (groups // SPAN) + [GROUP] * (groups % SPAN)


def groups_of(builder, vector):
    """Emit the groups in a vector, in their order."""
    firsts = range(0, vector.type.count, LANES)
    if len(firsts) == 1:
        return [vector]
    return [pick(builder, vector, vector, range(first, first + LANES)) for first in firsts]


def joined(builder, a, b):
    """Emit a vector of eight from two groups."""
    return pick(builder, a, b, range(2 * LANES))


def pick(builder, a, b, lanes):
    """Emit a vector of some lanes of a, which count from zero, and of b, which count on from there."""
    chosen = list(lanes)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(chosen)), chosen))


def each_vector(builder, count, body):
    """Emit body(k, type) for the vectors of a row of `count` doubles, which begin with elements k = 0, W, ...

    `count` is a multiple of four; the last vector may be a group.
    """
    whole = count if SPAN == 1 else builder.and_(count, integer(-WIDTH))
    with cgutils.for_range_slice(builder, integer(0), whole, integer(WIDTH), intp=I64) as (k, _):
        body(k, VECTOR)
    if SPAN > 1:
        with builder.if_then(builder.icmp_signed("<", whole, count)):
            body(whole, GROUP)


def each_group(builder, count, starts, body, step=LANES):
    """Emit a loop over `count` elements, `step` at a time: body(k, sums) returns the sums after element k."""
    entry = builder.block
    loop = builder.append_basic_block("group.loop")
    inside = builder.append_basic_block("group.body")
    done = builder.append_basic_block("group.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0), entry)
    sums = [builder.phi(start.type) for start in starts]
    for cell, start in zip(sums, starts, strict=True):
        cell.add_incoming(start, entry)
    builder.cbranch(builder.icmp_signed("<", k, count), inside, done)
    builder.position_at_end(inside)
    for cell, value in zip(sums, body(k, sums), strict=True):
        cell.add_incoming(value, builder.block)
    k.add_incoming(builder.add(k, integer(step)), builder.block)
    builder.branch(loop)
    builder.position_at_end(done)
    return sums


def horizontal_sum(builder, vector):
    """Emit the sum of the lanes of a group."""
    lanes = [builder.extract_element(vector, ir.Constant(I32, i)) for i in range(LANES)]
    return builder.fadd(builder.fadd(lanes[0], lanes[2]), builder.fadd(lanes[1], lanes[3]))


def transposed(builder, rows):
    """Emit the columns of four vectors, each as a vector."""
    low01, high01 = (pick(builder, *rows[:2], lanes) for lanes in ([0, 4, 2, 6], [1, 5, 3, 7]))
    low23, high23 = (pick(builder, *rows[2:], lanes) for lanes in ([0, 4, 2, 6], [1, 5, 3, 7]))
    return [
        pick(builder, low01, low23, [0, 1, 4, 5]),
        pick(builder, high01, high23, [0, 1, 4, 5]),
        pick(builder, low01, low23, [2, 3, 6, 7]),
        pick(builder, high01, high23, [2, 3, 6, 7]),
    ]


@intrinsic
def _dot(typingctx, A, a0, B, b0, count):
    sig = types.float64(A, types.int64, B, types.int64, types.int64)

    def codegen(context, builder, signature, args):
        return _reduce(context, builder, signature, args, difference=False)

    return sig, codegen


@intrinsic
def _square_distance(typingctx, A, a0, B, b0, count):
    sig = types.float64(A, types.int64, B, types.int64, types.int64)

    def codegen(context, builder, signature, args):
        return _reduce(context, builder, signature, args, difference=True)

    return sig, codegen


def _reduce(context, builder, signature, args, difference):
    """Emit the sum of products (or squared differences) over `count` elements, a multiple of four."""
    A, a0, B, b0, count = args
    pa = pointer_to(context, builder, signature.args[0], A, a0)
    pb = pointer_to(context, builder, signature.args[2], B, b0)
    return reduce_pairs(builder, pa, pb, count, difference)


def reduce_pairs(builder, pa, pb, count, difference):
    """Emit the sum of products (or squared differences) of `count` elements at two pointers.

    Element i is added to lane i % 8, but in a last group of four to lane i % 4: one order, in one vector of
    eight or two of four.
    """
    totals = [
        cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * WIDTH)) for _ in range(0, 8, WIDTH)
    ]
    even = builder.and_(count, integer(~7))

    def add(offset, total, vector):
        a, b = (load(builder, builder.gep(pointer, [offset]), vector) for pointer in (pa, pb))
        if difference:
            a = b = builder.fsub(a, b)
        builder.store(fused(builder, a, b, builder.load(total)), total)

    with cgutils.for_range_slice(builder, integer(0), even, integer(8), intp=I64) as (i, _):
        for place, total in enumerate(totals):
            add(builder.add(i, integer(WIDTH * place)), total, VECTOR)
    low, high = (part for total in totals for part in groups_of(builder, builder.load(total)))
    last = cgutils.alloca_once_value(builder, low)
    with cgutils.for_range_slice(builder, even, count, integer(LANES), intp=I64) as (i, _):
        add(i, last, GROUP)
    return horizontal_sum(builder, builder.fadd(builder.load(last), high))


@intrinsic
def _center_block(typingctx, M, m0, ldm, sums, i, j, share, scale, C, ldc):
    """Set a 4 x 4 block: C[i.., j..] = scale (M - share sums_i sums_j), and its transpose at C[j.., i..]."""
    f64, i64 = types.float64, types.int64
    sig = types.void(M, i64, i64, sums, i64, i64, f64, f64, C, i64)

    def codegen(context, builder, signature, args):
        M, m0, ldm, sums, i, j, share, scale, C, ldc = args
        pm = pointer_to(context, builder, signature.args[0], M, m0)
        right = load(builder, pointer_to(context, builder, signature.args[3], sums, j))
        pi = pointer_to(context, builder, signature.args[3], sums, i)
        factor = splat(builder, scale)
        rows = []
        for r in range(LANES):
            left = builder.fmul(share, builder.load(builder.gep(pi, [integer(r)])))
            value = load(builder, builder.gep(pm, [builder.mul(ldm, integer(r))]))
            rows.append(builder.fmul(factor, builder.fsub(value, builder.fmul(splat(builder, left), right))))
        upper = pointer_to(context, builder, signature.args[8], C, builder.add(builder.mul(i, ldc), j))
        lower = pointer_to(context, builder, signature.args[8], C, builder.add(builder.mul(j, ldc), i))

        for r, turned in enumerate(transposed(builder, rows)):
            store(builder, turned, builder.gep(lower, [builder.mul(ldc, integer(r))]))
        for r in range(LANES):
            store(builder, rows[r], builder.gep(upper, [builder.mul(ldc, integer(r))]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _update_four(typingctx, A, a0, lda, v, w, x, i, j, stop, y):
    """Update four rows from i: A[r, j:stop] -= v_r w + w_r v; then y[r] = A[r, j:stop] . x[j:stop].

    `a0` is the element A[i, 0]; j and stop are multiples of four. Sums have four lanes on every processor.
    """
    i64 = types.int64
    sig = types.void(A, i64, i64, v, w, x, i64, i64, i64, y)

    def codegen(context, builder, signature, args):
        A, a0, lda, v, w, x, i, j, stop, y = args
        pa = pointer_to(context, builder, signature.args[0], A, a0)
        pv = pointer_to(context, builder, signature.args[3], v, integer(0))
        pw = pointer_to(context, builder, signature.args[4], w, integer(0))
        px = pointer_to(context, builder, signature.args[5], x, integer(0))
        py = pointer_to(context, builder, signature.args[9], y, i)
        zero = ir.Constant(GROUP, [0.0] * LANES)
        rows = [builder.gep(pa, [builder.mul(lda, integer(r))]) for r in range(4)]
        negated = []
        for source in (pv, pw):
            at = [builder.load(builder.gep(source, [builder.add(i, integer(r))])) for r in range(4)]
            negated.append([splat(builder, builder.fsub(ir.Constant(F64, 0.0), value)) for value in at])
        entry = builder.block
        loop = builder.append_basic_block("four.loop")
        body = builder.append_basic_block("four.body")
        done = builder.append_basic_block("four.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(I64)
        k.add_incoming(j, entry)
        sums = [builder.phi(GROUP) for _ in range(4)]
        for total in sums:
            total.add_incoming(zero, entry)
        builder.cbranch(builder.icmp_signed("<", k, stop), body, done)
        builder.position_at_end(body)
        vk, wk, xk = (load(builder, builder.gep(source, [k])) for source in (pv, pw, px))
        for r in range(4):
            cell = builder.gep(rows[r], [k])
            value = fused(builder, negated[0][r], wk, load(builder, cell))
            value = fused(builder, negated[1][r], vk, value)
            store(builder, value, cell)
            sums[r].add_incoming(fused(builder, value, xk, sums[r]), body)
        k.add_incoming(builder.add(k, integer(LANES)), body)
        builder.branch(loop)
        builder.position_at_end(done)
        for r in range(4):
            builder.store(horizontal_sum(builder, sums[r]), builder.gep(py, [integer(r)]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def _add_multiple(typingctx, factor, X, x0, Y, y0, count):
    """Add to Y[y0 + i] the product factor X[x0 + i], i < count, a multiple of four."""
    i64 = types.int64
    sig = types.void(types.float64, X, i64, Y, i64, i64)

    def codegen(context, builder, signature, args):
        factor, X, x0, Y, y0, count = args
        px = pointer_to(context, builder, signature.args[1], X, x0)
        py = pointer_to(context, builder, signature.args[3], Y, y0)

        def add(k, vector):
            cell = builder.gep(py, [k])
            value = load(builder, builder.gep(px, [k]), vector)
            store(
                builder,
                fused(builder, splat(builder, factor, vector), value, load(builder, cell, vector)),
                cell,
            )

        each_vector(builder, count, add)
        return context.get_dummy_value()

    return sig, codegen


def _plain_dot(A, a0, B, b0, count):
    return float(np.dot(A.reshape(-1)[a0 : a0 + count], B.reshape(-1)[b0 : b0 + count]))


def _plain_square_distance(A, a0, B, b0, count):
    gap = A.reshape(-1)[a0 : a0 + count] - B.reshape(-1)[b0 : b0 + count]
    return float(np.dot(gap, gap))


def _plain_center_block(M, m0, ldm, sums, i, j, share, scale, C, ldc):
    block = M.reshape(-1)[m0 + ldm * np.arange(LANES)[:, None] + np.arange(LANES)]
    block = scale * (block - share * np.outer(sums[i : i + LANES], sums[j : j + LANES]))
    C[j : j + LANES, i : i + LANES] = block.T
    C[i : i + LANES, j : j + LANES] = block


def _plain_update_four(A, a0, lda, v, w, x, i, j, stop, y):
    flat = A.reshape(-1)
    for r in range(4):
        cells = slice(a0 + r * lda + j, a0 + r * lda + stop)
        flat[cells] -= v[i + r] * w[j:stop] + w[i + r] * v[j:stop]
        y[i + r] = flat[cells] @ x[j:stop]


def _plain_add_multiple(factor, X, x0, Y, y0, count):
    Y.reshape(-1)[y0 : y0 + count] += factor * X.reshape(-1)[x0 : x0 + count]


dot = _plain_dot if JIT_DISABLED else _dot
square_distance = _plain_square_distance if JIT_DISABLED else _square_distance
center_block = _plain_center_block if JIT_DISABLED else _center_block
update_four = _plain_update_four if JIT_DISABLED else _update_four
add_multiple = _plain_add_multiple if JIT_DISABLED else _add_multiple
