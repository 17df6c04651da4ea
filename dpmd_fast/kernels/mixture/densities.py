"""Log densities of rows under the components of a mixture, and the shares of the components in them.

q = |W^T gap|^2 is summed by columns of W. These are triangular, so the first ones cost little, and give a
lower bound of q: a component is left out as soon as the bound puts its density far below another one's.
Rounding is monotone, so it would not have counted with all columns either. Where columns are few and P gap
has the digits for q = gap^T P gap (`direct`), one product gives q and the mean of every component.

What a row gets depends on that row and the components alone, not on the rows beside it.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.mixture.blocks import fill_in
from dpmd_fast.kernels.vector.elementary import fixed_exp, fixed_log
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.rows import (
    affine_rows,
    affine_rows_and_forms,
    groups_from,
    round_up,
    square_rows,
)

_DROPPED = -40.0  # log of a share that does not count


@device
def multiply(components, block, k, rows, count, at, pairs, terms):
    """Set terms[at:] to the products of some rows with the steps of component k, and note the pairs."""
    width = terms.shape[1]
    round_up(rows, count)
    affine_rows(block.Z, rows, count, components.stepped, k * width, components.steps[k], terms[at:])
    for i in range(count):
        pairs[at + i, 0] = k
        pairs[at + i, 1] = rows[i]


@device
def _add_squares(components, block, k, rows, count, start, sums, squares):
    """Add a few columns, from `start`, to the squares of some rows; return the column to go on from."""
    width = block.Z.shape[1]
    groups = groups_from(start, width)
    round_up(rows, count)
    square_rows(
        block.Z, rows, count, components.whitened, k * width, components.whitening[k], start, groups, sums, 0
    )
    for i in range(count):
        squares[k, rows[i]] += sums[i]
    return start + LANES * groups


@device(memory=True)
def complete_logs(components, block, logs, terms):
    """Complete the log densities (K, rows) of a block; of components that do not count, to upper bounds.

    If `direct`, also set `terms` for all pairs of a component and a row, one component after the other.
    """
    width = block.Z.shape[1]
    K, n = logs.shape
    rows, sums, squares = np.empty(n + 4, np.int64), np.empty(n + 4), np.zeros((K, n))
    lanes = np.empty(4 * LANES)
    for r in range(n):
        rows[r] = r
    round_up(rows, n)
    at = opened = 0
    for k in range(K):
        fill_in(block, k)
        if components.direct:
            starts, steps, means = components.stepped, components.steps[k], components.means
            affine_rows_and_forms(
                block.Z, rows, n, starts, k * width, steps, means, k * width, terms[at:], lanes, sums
            )
            for r in range(n):
                logs[k, r] -= 0.5 * sums[r]
            at += n
        else:
            opened = 0
            while opened < components.opening:
                opened = _add_squares(components, block, k, rows, n, opened, sums, squares)
    if components.direct:
        return
    if opened < width:
        _close(components, block, logs, opened, sums, squares)
    for k in range(K):
        for r in range(n):
            logs[k, r] -= 0.5 * squares[k, r]


@device(memory=True)
def _close(components, block, logs, opened, sums, squares):
    """Add the other columns: for the likeliest component of each row, then for those that may count."""
    width = block.Z.shape[1]
    K, n = logs.shape
    best, guess, rows = np.empty(n), np.zeros(n, np.int64), np.empty(n + 4, np.int64)
    for k in range(K):
        for r in range(n):
            value = logs[k, r] - 0.5 * squares[k, r]
            more = k == 0 or value > best[r]
            best[r] = value if more else best[r]
            guess[r] = k if more else guess[r]
    for others in range(2):
        for k in range(K):
            count = 0
            for r in range(n):
                low = logs[k, r] - 0.5 * squares[k, r] - best[r] < _DROPPED
                rows[count] = r
                count += (guess[r] == k) if others == 0 else (guess[r] != k and not low)
            if count == 0:
                continue
            fill_in(block, k)
            start = opened
            while start < width and count > 0:
                start = _add_squares(components, block, k, rows, count, start, sums, squares)
                kept = 0
                for i in range(count):
                    r = rows[i]
                    value = logs[k, r] - 0.5 * squares[k, r]
                    best[r] = value if others == 0 else best[r]
                    rows[kept] = r
                    kept += not value - best[r] < _DROPPED
                count = kept


@device(memory=True)
def set_shares(logs, best, shares):
    """Set the shares of the components (K, rows), zero if they do not count, and the log of the sum."""
    K, n = logs.shape
    totals = np.zeros(n)
    for r in range(n):
        best[r] = logs[0, r]
    for k in range(1, K):
        for r in range(n):
            best[r] = logs[k, r] if logs[k, r] > best[r] else best[r]
    for k in range(K):
        for r in range(n):
            low = logs[k, r] - best[r]
            share = fixed_exp(low)
            shares[k, r] = 0.0 if low < _DROPPED else share
        for r in range(n):
            totals[r] += shares[k, r]
    for r in range(n):
        best[r] += fixed_log(totals[r])
        totals[r] = 1.0 / totals[r]
    for k in range(K):
        for r in range(n):
            shares[k, r] *= totals[r]
