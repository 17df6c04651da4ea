"""Charts four at a time: where a point lies in each of them.

The columns of four charts lie side by side in one vector, so a sum over columns needs no sum across lanes,
and four charts cost what one does. The order of every sum is fixed. Four on every processor: charts in reach
of a point come by few, and of eight most would have weight zero.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.vector.lanes import (
    GROUP,
    I64,
    LANES,
    fused,
    integer,
    load,
    pointer_to,
    splat,
    store,
)

_ZERO = ir.Constant(GROUP, [0.0] * LANES)
_COMMON = ((2, 1), (3, 1), (3, 2))  # columns and dimensions for which code without loops is made


def pack_quads(values: np.ndarray) -> np.ndarray:
    """Pack values (K, ...) of charts as (quads, ..., 4); missing charts are zeros."""
    quads = (len(values) + LANES - 1) // LANES
    out = np.zeros((quads * LANES, *values.shape[1:]))
    out[: len(values)] = values
    return np.ascontiguousarray(np.moveaxis(out.reshape(quads, LANES, *values.shape[1:]), 1, -1))


class _Quad:
    """Code for four charts: sums over columns and over tangent directions, as loops or written out.

    `columns` and `d` are numbers known now, in which case nothing but results goes through memory, or values
    of the program.
    """

    def __init__(self, builder, columns, d, gaps):
        self.builder, self.columns, self.d = builder, columns, d
        self.known = isinstance(columns, int)
        self.length = integer(columns * LANES) if self.known else builder.mul(columns, integer(LANES))
        self.memory = gaps  # for (columns, 4)
        self.values = {}

    def cell(self, pointer, k):
        return self.builder.gep(pointer, [self.builder.mul(k, integer(LANES))])

    def row(self, pointer, e):
        return self.builder.gep(pointer, [self.builder.mul(e, self.length)])

    def repeat(self, count, body):
        if self.known:
            for k in range(count):
                body(integer(k))
        else:
            with cgutils.for_range(self.builder, count, intp=I64) as loop:
                body(loop.index)

    def keep(self, k, gap):
        """Keep the difference number k."""
        if self.known:
            self.values[k.constant] = gap
        else:
            store(self.builder, gap, self.cell(self.memory, k))

    def kept(self, k):
        return self.values[k.constant] if self.known else load(self.builder, self.cell(self.memory, k))

    def total(self, count, term):
        """Sum of products a b, term(k) = (a, b), in order."""
        sums = cgutils.alloca_once(self.builder, GROUP)
        self.builder.store(_ZERO, sums)

        def add(k):
            a, b = term(k)
            self.builder.store(fused(self.builder, a, b, self.builder.load(sums)), sums)

        self.repeat(count, add)
        return self.builder.load(sums)

    def squares(self, px, pb):
        """Squared distances of the point to the four centres; differences are kept."""

        def term(k):
            x = splat(self.builder, self.builder.load(self.builder.gep(px, [k])))
            gap = self.builder.fsub(x, load(self.builder, self.cell(pb, k)))
            self.keep(k, gap)
            return gap, gap

        return self.total(self.columns, term)

    def along(self, pv, e):
        row = self.row(pv, e)
        return self.total(self.columns, lambda k: (load(self.builder, self.cell(row, k)), self.kept(k)))


def _for_each_size(builder, columns, d, emit):
    """Call `emit` for sizes that are common, known to the compiler, and for all others."""
    if not _COMMON:
        emit(columns, d)
        return
    done = builder.append_basic_block("quad.done")
    for known in _COMMON:
        same = builder.and_(
            builder.icmp_signed("==", columns, integer(known[0])),
            builder.icmp_signed("==", d, integer(known[1])),
        )
        yes, no = builder.append_basic_block("quad.known"), builder.append_basic_block("quad.other")
        builder.cbranch(same, yes, no)
        builder.position_at_end(yes)
        emit(*known)
        builder.branch(done)
        builder.position_at_end(no)
    emit(columns, d)
    builder.branch(done)
    builder.position_at_end(done)


def _tents(builder, squares, h2, share):
    return builder.fmul(splat(builder, share), builder.fsub(splat(builder, h2), squares))


def _sizes(context, builder, frames_type, frames):
    shape = context.make_array(frames_type)(context, builder, frames).shape
    _, d, columns, _ = cgutils.unpack_tuple(builder, shape)
    return columns, d


@intrinsic
def _measure_four_charts(typingctx, X, x0, quad, centers, frames, h2, share, scratch, tents, along):
    """Locate a point in four charts: tents = share (h2 - |x - b|^2), along[e] = frame_e . (x - b).

    x is at element `x0` of X; `tents` holds (4,), `along` (d, 4), `scratch` (columns, 4).
    """
    i64, f64 = types.int64, types.float64
    sig = types.void(X, i64, i64, centers, frames, f64, f64, scratch, tents, along)

    def codegen(context, builder, signature, args):
        _, x0, quad, _, frames, h2, share, _, _, _ = args

        def pointer(place, offset):
            return pointer_to(context, builder, signature.args[place], args[place], offset)

        def emit(columns, d):
            four = _Quad(builder, columns, d, pointer(7, integer(0)))
            at = builder.mul(quad, four.length)
            squares = four.squares(pointer(0, x0), pointer(3, at))
            store(builder, _tents(builder, squares, h2, share), pointer(8, integer(0)))
            tangents = pointer(4, builder.mul(at, integer(d) if four.known else d))
            target = pointer(9, integer(0))
            four.repeat(d, lambda e: store(builder, four.along(tangents, e), four.cell(target, e)))

        _for_each_size(builder, *_sizes(context, builder, signature.args[4], frames), emit)
        return context.get_dummy_value()

    return sig, codegen


def _plain_measure_four_charts(X, x0, quad, centers, frames, h2, share, scratch, tents, along):
    gaps = X.reshape(-1)[x0 : x0 + centers.shape[1], None] - centers[quad]
    tents[:LANES] = share * (h2 - (gaps * gaps).sum(axis=0))
    along[: frames.shape[1]] = np.einsum("ekl,kl->el", frames[quad], gaps)


measure_four_charts = _plain_measure_four_charts if JIT_DISABLED else _measure_four_charts
