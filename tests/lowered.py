"""Inner loops of the kernels, compiled for the processor that the environment names, and not run.

    NUMBA_CPU_NAME=skylake-avx512 NUMBA_CPU_FEATURES=+avx512f,... python tests/lowered.py

prints the text of each, as LLVM has optimised it and as assembly, in JSON.
"""

from __future__ import annotations

import json

from numba import types

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import (
    bits,
    elementary,
    gather,
    integers,
    lanes,
    panels,
    planes,
    rows,
    runs,
    singles,
)
from dpmd_fast.kernels.vector.tiles import add_gram, add_gram_of_rows
from dpmd_fast.kernels.vector.weighted_rows import add_rows, weigh_charts
from dpmd_fast.kernels.width import WIDTH

_F, _I, _U = types.float64, types.int64, types.uint64
_F1, _F2, _F3, _I1, _J1, _S1, _S2, _S3, _U1 = (
    types.Array(kind, dimensions, "C")
    for kind, dimensions in (
        (_F, 1), (_F, 2), (_F, 3), (_I, 1), (types.int32, 1),
        (types.float32, 1), (types.float32, 2), (types.float32, 3), (_U, 1),
    )
)  # fmt: skip


@kernel
def gram(panel, count, C):
    add_gram(panel, panel.shape[1], count, C, C.shape[0] // 4)


@kernel
def gram_of_rows(X, C):
    add_gram_of_rows(X, 0, len(X), C, C.shape[0] // 4)


@kernel
def products(X, chosen, W, U, room, out):
    rows.place_rows(X, chosen, len(chosen), W, 0, W.shape[1], W.shape[1], U, 0, room, out)


@kernel
def squares_in_singles(Z, S, W, Q):
    singles.square_columns(Z, Z.shape[1], S, W, 0, Q)


@kernel
def masks(x, leaf, half_norms, rests):
    return bits.near_mask(x, leaf, 0, len(x), half_norms, rests, 0, 0.1, 0.0)


@kernel
def dot(A, B):
    return lanes.dot(A, 0, B, 0, len(A))


@kernel
def square_distance(A, B):
    return lanes.square_distance(A, 0, B, 0, len(A))


@kernel
def add_multiple(A, B):
    lanes.add_multiple(2.0, A, 0, B, 0, len(A))


@kernel
def add_differences(weights, places, X, x, out):
    gather.add_differences(weights, places, 0, len(places), X, x, 0, out, X.shape[1])


@kernel
def pack(A, B, panel):
    panels.pack(A, 0, B, 0.5, panel, 0, 64, len(A) // 4)


@kernel
def truncate(A):
    integers.truncate_in_place(A, 0, 0.5, len(A))


@kernel
def truncated_square(A, B):
    return integers.truncated_square(A, 0, B, 0, 0.5, len(A))


@kernel
def add_chart(x, near, frames, slopes, masses, gaps, sums, totals):
    count = len(near) - planes.POINTS + 1
    planes.add_chart(x, near, count, frames, slopes, 0, 5, masses[0], 1.0, 1.0, 0, gaps, sums, totals)


@kernel
def points_near_charts(single, half_norms, rests, close, words):
    runs.chart_words(single, 0, half_norms, rests, 0, len(single), close, close.shape[1], 0, words, 0, 1)


@kernel
def chart_weights(x, centers, masses, word, weights):
    weigh_charts(x, 0, centers, 0, len(x), masses, 0, 1.0, 1.0, word, weights)


@kernel
def chart_rows(word, weights, rows, size, sums):
    add_rows(word, weights, rows, size, 0, sums, 0)


@kernel
def exponentials(A, B):
    for i in range(len(A)):
        B[i] = elementary.fixed_exp(A[i])


_TYPES = {
    gram: (_F3, _I, _F2),
    gram_of_rows: (_F2, _F2),
    products: (_F2, _I1, _F2, _F2, _F1, _F1),
    squares_in_singles: (_S2, _S2, _S3, _S2),
    masks: (_S1, _S2, _S1, _S1),
    dot: (_F1, _F1),
    square_distance: (_F1, _F1),
    add_multiple: (_F1, _F1),
    add_differences: (_F1, _J1, _F2, _F1, _F1),
    pack: (_F1, _F1, _F1),
    truncate: (_F1,),
    truncated_square: (_F1, _F1),
    add_chart: (_F2, _I1, _F1, _F1, _F1, _F1, _F2, _F2),
    points_near_charts: (_S2, _S2, _S2, _S2, _U1),
    chart_weights: (_F1, _F3, _F1, _U, _F1),
    chart_rows: (_U, _F1, _F2, _I, _F2),
    exponentials: (_F1, _F1),
}


def texts() -> dict[str, dict[str, str]]:
    """Return LLVM's text and the assembly of every loop, by name."""
    out = {}
    for dispatcher, kinds in _TYPES.items():
        dispatcher.compile(kinds)
        (text,), (assembly,) = dispatcher.inspect_llvm().values(), dispatcher.inspect_asm().values()
        out[dispatcher.py_func.__name__] = {"llvm": text, "assembly": assembly}
    return out


if __name__ == "__main__":
    print(json.dumps({"width": WIDTH, "texts": texts()}))
