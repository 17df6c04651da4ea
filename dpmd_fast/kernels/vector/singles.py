"""Squared lengths of many rows under triangular matrices, in single precision, with rows in the lanes.

For bounds: a vector holds twice as many numbers as in double precision.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.vector.lanes import LANES, fixed_fused, integer, load, pointer_to, splat, store
from dpmd_fast.kernels.vector.tiles import emit_sums

_SINGLES = 8
_VECTORS = 3  # with four columns: 12 sums, 3 vectors of rows and a factor fill the 16 registers
TOGETHER = _VECTORS * _SINGLES  # rows that are worked on together
_VECTOR = ir.VectorType(ir.FloatType(), _SINGLES)


@intrinsic
def _add_squares(typingctx, Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0):
    """Add to Q[q0 + r], r < 24, the squares of S[s0 + j] + sum_i Z[z0 + i ldz + r] W[w0 + i ldw + j].

    i < depth, and j < 4.
    """
    i64 = types.int64
    sig = types.void(Z, i64, i64, S, i64, W, i64, i64, i64, Q, i64)

    def codegen(context, builder, signature, args):
        Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0 = args
        pz = pointer_to(context, builder, signature.args[0], Z, z0)
        ps = pointer_to(context, builder, signature.args[3], S, s0)
        pw = pointer_to(context, builder, signature.args[5], W, w0)
        pq = pointer_to(context, builder, signature.args[9], Q, q0)
        columns = [builder.gep(pw, [integer(j)]) for j in range(LANES)]
        rows = [builder.gep(pz, [integer(_SINGLES * v)]) for v in range(_VECTORS)]
        starts = []
        for j in range(LANES):
            start = splat(builder, builder.load(builder.gep(ps, [integer(j)])), _VECTOR)
            starts.append([start] * _VECTORS)
        sums = emit_sums(builder, columns, ldw, rows, ldz, depth, fixed_fused, starts, _VECTOR)
        for v in range(_VECTORS):
            place = builder.gep(pq, [integer(_SINGLES * v)])
            total = load(builder, place, _VECTOR)
            for j in range(LANES):
                total = fixed_fused(builder, sums[j][v], sums[j][v], total)
            store(builder, total, place)
        return context.get_dummy_value()

    return sig, codegen


def _plain_add_squares(Z, z0, ldz, S, s0, W, w0, ldw, depth, Q, q0):
    # in double precision and rounded at the end: never less exact than the compiled one
    j, i = np.arange(LANES), np.arange(depth)[:, None]
    product = Z.reshape(-1)[z0 + i * ldz + np.arange(TOGETHER)].T.astype(np.float64) @ W.reshape(-1)[
        w0 + i * ldw + j
    ].astype(np.float64)
    product += S.reshape(-1)[s0 + j]
    Q.reshape(-1)[q0 : q0 + TOGETHER] += (product**2).sum(axis=1).astype(np.float32)


add_squares = _plain_add_squares if JIT_DISABLED else _add_squares


@device(inline=True)
def square_columns(Z, n, S, W, k, Q):
    """Set Q[k, r], r < n, to the squared length of S[k] + Z[:, r] W[k], all of them float32.

    W (K, D, width) is upper triangular, its width a multiple of four; Z (D, room) has room for a multiple of
    24 rows, as has Q (K, room), and all that is in it must be finite.
    """
    depth, width = W.shape[1:]
    room = Z.shape[1]
    Q[k, :] = np.float32(0.0)
    for r in range(0, n, TOGETHER):
        for j in range(0, width, LANES):
            stop = min(depth, j + LANES)
            add_squares(Z, r, room, S, k * width + j, W, k * depth * width + j, width, stop, Q, k * room + r)
