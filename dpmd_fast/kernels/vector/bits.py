"""Bit masks of the ball search: 64 candidates in a word, in single precision; counting and finding bits."""

from __future__ import annotations

from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import I64, fused, integer, pointer_to, splat
from dpmd_fast.kernels.width import WIDTH

SINGLE_MOST = 1e30  # beyond this, squares leave the range of single precision
F32 = ir.FloatType()
_LANES = 2 * WIDTH  # a vector holds twice as many numbers as in double precision
_VECTOR = ir.VectorType(F32, _LANES)


def _fetch(builder, pointer, offset):
    at = builder.bitcast(builder.gep(pointer, [integer(offset)]), _VECTOR.as_pointer())
    return builder.load(at, align=4)


def _products(builder, px, pb, ph, depth):
    """Emit p_j = sum_k x_k B[64 k + j] + half_norms[j], j < 64, as vectors."""
    start = [_fetch(builder, ph, at) for at in range(0, 64, _LANES)]
    entry = builder.block
    loop = builder.append_basic_block("masks.loop")
    body = builder.append_basic_block("masks.body")
    done = builder.append_basic_block("masks.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(integer(0), entry)
    sums = [builder.phi(_VECTOR) for _ in start]
    for total, first in zip(sums, start, strict=True):
        total.add_incoming(first, entry)
    builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
    builder.position_at_end(body)
    scalar = splat(builder, builder.load(builder.gep(px, [k])), _VECTOR)
    row = builder.gep(pb, [builder.mul(k, integer(64))])
    for j, total in enumerate(sums):
        total.add_incoming(fused(builder, scalar, _fetch(builder, row, _LANES * j), total), body)
    k.add_incoming(builder.add(k, integer(1)), body)
    builder.branch(loop)
    builder.position_at_end(done)
    return sums


def word_of(builder, hits):
    """Emit vectors of comparisons as the first bits of a word."""
    lanes, word = hits[0].type.count, integer(0)
    for place, hit in enumerate(hits):
        bits = builder.zext(builder.bitcast(hit, ir.IntType(lanes)), I64)
        word = builder.or_(word, builder.shl(bits, integer(place * lanes)))
    return word


@intrinsic
def _ball_masks(typingctx, x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out):
    """Compare one query with a leaf of 64 points, in single precision: two 64-bit words.

    With p_j = sum_k x[x0 + k] B[b0 + 64 k + j] + half_norms[h0 + j] and q_j = rest * rests[h0 + j]:
    bit j of out[0] is p_j + q_j >= maybe, bit j of out[1] is p_j - q_j >= inside.
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(x, i64, B, i64, i64, half_norms, rests, i64, f64, f64, f64, out)

    def codegen(context, builder, signature, args):
        x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out = args
        px = pointer_to(context, builder, signature.args[0], x, x0)
        pb = pointer_to(context, builder, signature.args[2], B, b0)
        ph = pointer_to(context, builder, signature.args[5], half_norms, h0)
        pr = pointer_to(context, builder, signature.args[6], rests, h0)
        words = pointer_to(context, builder, signature.args[11], out, integer(0))
        rest, maybe, inside = (
            splat(builder, builder.fptrunc(value, F32), _VECTOR) for value in (rest, maybe, inside)
        )
        near, sure = [], []
        for j, total in enumerate(_products(builder, px, pb, ph, depth)):
            cross = builder.fmul(rest, _fetch(builder, pr, _LANES * j))
            near.append(builder.fcmp_ordered(">=", builder.fadd(total, cross), maybe))
            sure.append(builder.fcmp_ordered(">=", builder.fsub(total, cross), inside))
        builder.store(word_of(builder, near), words)
        builder.store(word_of(builder, sure), builder.gep(words, [integer(1)]))
        return context.get_dummy_value()

    return sig, codegen


def _make_near_mask(whole):
    """Return an intrinsic for the first word of `_ball_masks`; a whole sketch has no rests."""

    @intrinsic
    def near_mask(typingctx, x, B, b0, depth, half_norms, rests, h0, rest, maybe):
        i64, f64 = types.int64, types.float64
        sig = types.uint64(x, B, i64, i64, half_norms, rests, i64, f64, f64)

        def codegen(context, builder, signature, args):
            x, B, b0, depth, half_norms, rests, h0, rest, maybe = args
            px = pointer_to(context, builder, signature.args[0], x, integer(0))
            pb = pointer_to(context, builder, signature.args[1], B, b0)
            ph = pointer_to(context, builder, signature.args[4], half_norms, h0)
            pr = pointer_to(context, builder, signature.args[5], rests, h0)
            rest, maybe = (splat(builder, builder.fptrunc(value, F32), _VECTOR) for value in (rest, maybe))
            near = []
            for j, total in enumerate(_products(builder, px, pb, ph, depth)):
                if not whole:
                    total = builder.fadd(total, builder.fmul(rest, _fetch(builder, pr, _LANES * j)))
                near.append(builder.fcmp_ordered(">=", total, maybe))
            return word_of(builder, near)

        return sig, codegen

    return near_mask


@intrinsic
def _count_trailing_zeros(typingctx, word):
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
def _count_ones(typingctx, word):
    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


def _plain_ball_masks(x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out):
    columns = B.reshape(-1)[b0 : b0 + 64 * depth].reshape(depth, 64)
    p = x.reshape(-1)[x0 : x0 + depth] @ columns + half_norms.reshape(-1)[h0 : h0 + 64]
    q = p.dtype.type(rest) * rests.reshape(-1)[h0 : h0 + 64]
    out[0] = sum(1 << j for j in range(64) if p[j] + q[j] >= p.dtype.type(maybe))
    out[1] = sum(1 << j for j in range(64) if p[j] - q[j] >= p.dtype.type(inside))


def _plain_near_mask(x, B, b0, depth, half_norms, rests, h0, rest, maybe):
    words = [0, 0]
    _plain_ball_masks(x, 0, B, b0, depth, half_norms, rests, h0, rest, maybe, 0.0, words)
    return words[0]


def _plain_count_trailing_zeros(word):
    return (int(word) & -int(word)).bit_length() - 1


def _plain_count_ones(word):
    return int(word).bit_count()


near_mask = _plain_near_mask if JIT_DISABLED else _make_near_mask(whole=False)
whole_near_mask = _plain_near_mask if JIT_DISABLED else _make_near_mask(whole=True)
ball_masks = _plain_ball_masks if JIT_DISABLED else _ball_masks
count_trailing_zeros = _plain_count_trailing_zeros if JIT_DISABLED else _count_trailing_zeros
count_ones = _plain_count_ones if JIT_DISABLED else _count_ones
