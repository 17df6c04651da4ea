"""Blocks of points that go through charts together: what `narrow_charts.py` and `wide_charts.py` share.

All charts together do not fit into a core's first cache, so points near the same charts are in one block,
which takes a leaf of charts after the other. A point's sums take its charts in the order of the index: its
result does not depend on the other points.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.vector.lanes import LANES

FEW = 8  # leaves: with so few, points are not sorted (3 columns, 5 leaves: sorted they take 3 to 11 % longer)


def padded(values: np.ndarray) -> np.ndarray:
    """Return rows filled up with zeros to a multiple of four columns."""
    out = np.zeros((len(values), LANES * ((values.shape[1] + LANES - 1) // LANES)))
    out[:, : values.shape[1]] = values
    return out


@device(inline=True)
def clear(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] = 0.0


@device(inline=True)
def fetch(X, order, begin, here, x, norms):
    """Put the points of a block side by side; norms of zero say that they move, of NaN that they stopped."""
    for q in range(len(norms)):
        norms[q] = 0.0 if q < here else np.nan
    for q in range(here):
        for k in range(X.shape[1]):
            x[q, k] = X[order[begin + q], k]


@device(inline=True)
def store(x, norms, order, begin, here, X, reached):
    """Put the points of a block that moved to their places, and say of each whether it did."""
    for q in range(here):
        row = order[begin + q]
        reached[row] = norms[q] >= 0.0
        if norms[q] >= 0.0:
            for k in range(X.shape[1]):
                X[row, k] = x[q, k]


@device(inline=True)
def is_far(around, low, high, leaf, more):
    """Return True if no point in the box of a block is near a leaf: no point in it says less."""
    gap = 0.0
    for k in range(low.shape[1]):
        left, right = low[leaf, k] - around[k, 1], around[k, 0] - high[leaf, k]
        side = left if left > right else right
        side = side if side > 0.0 else 0.0
        gap += side * side
    return gap > around[len(around) - 1, 0] + more


@device(inline=True)
def find_nearest(turned, middles, squares, least, nearest):
    """Set `nearest` to the leaves whose middles are nearest to sketches.

    `turned` has the sketches by coordinates, in single precision; `squares` and `least` are scratch.
    """
    count = len(nearest)
    for q in range(count):
        least[q], nearest[q] = np.inf, 0
    for leaf in range(len(middles)):
        for q in range(count):
            squares[q] = 0.0
        for k in range(len(turned)):
            middle = np.float32(middles[leaf, k])
            for q in range(count):
                gap = turned[k, q] - middle
                squares[q] += gap * gap
        for q in range(count):
            closer = squares[q] < least[q]
            least[q] = squares[q] if closer else least[q]
            nearest[q] = np.int32(leaf) if closer else nearest[q]


@device(memory=True)
def sort_by_leaf(nearest, n_leaves, order):
    """Set `order` to the rows by their nearest leaves."""
    ends = np.zeros(n_leaves + 1, np.int64)
    for q in range(len(nearest)):
        ends[nearest[q] + 1] += 1
    for leaf in range(n_leaves):
        ends[leaf + 1] += ends[leaf]
    for q in range(len(nearest)):
        order[ends[nearest[q]]] = q
        ends[nearest[q]] += 1
