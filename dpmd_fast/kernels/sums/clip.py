"""The clip that bounds what one record adds to exact sums. The privacy proof rests on this file.

A record adds the matrices v_i v_i^T at its places i (locations, charts, ...), with the integer vectors

    v_i = trunc(factor root_i f_i),

f_i its features at that place and root_i the square root of its weight there. One factor serves all places.
Floating point only proposes the factor; it is accepted if, in integers,

    sum_i (v_i . v_i)^2 <= bound^2,

which is the squared Frobenius norm of all that the record adds. A record for which no factor is accepted
adds nothing. A caller may do without the look at every entry where a bound from above, with room for all
rounding, proves that the first factor is accepted (`moments.py`): the outcome is the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device

_FIRST_SHRINK = 2.0**-50  # rounding can carry the proposed factor over the bound by some last digits


class Clipping(NamedTuple):
    """The bound on a record's contribution, as a norm and in lattice steps."""

    tau: float
    unit: float  # lattice steps per one, for vectors: 1 / sqrt(step of the matrices)
    bound: int  # tau in lattice steps; below 2^31, so that twice its square is a 64-bit integer


NO_CLIPPING = Clipping(1.0, 1.0, 1)  # where nothing is clipped


def make_clipping(tau: float, steps: tuple[float, int]) -> Clipping:
    """Return the clipping to norm `tau` on a lattice with this step and bound."""
    step, bound = steps
    return Clipping(float(tau), float(np.sqrt(1.0 / step)), int(bound))


@device(inline=True)
def add_square(total, square, bound):
    """Return total + square^2, in integers; something above bound^2 if either is too large for the bound.

    `square` is a float that holds an integer: beyond 64 bits it is large, and does not wrap around. It may be
    NaN, which is too large.
    """
    limit = bound * bound
    if not square <= bound or total > limit:  # before a square could leave 64 bits
        return limit + 1
    return total + np.int64(square) * np.int64(square)


@device
def _within(squares, count, bound):
    """Return whether the sum of squares[i]^2 over i < count is at most bound^2, in integers."""
    total = 0
    for i in range(count):
        total = add_square(total, squares[i], bound)
    return total <= bound * bound


@device(inline=True)
def first_factor(norm, length, clipping):
    """Return the factor that `clip` tries first; 0 for a record without weight, or not finite."""
    usable = norm > 0.0 and norm < math.inf
    factor = clipping.unit * math.sqrt(min(1.0, clipping.tau / (norm if usable else 1.0))) / length
    return factor if usable else 0.0


@device(inline=True)
def clip(measure, record, roots, count, norm, length, clipping, scales, squares):
    """Fill scales[i] = factor roots[i] / length for i < count with a factor that keeps the bound.

    Parameters
    ----------
    measure : device function
        ``measure(record, scales, count, squares)`` sets squares[i] = v_i . v_i, the vectors truncated at
        these scales.
    record : tuple
        Whatever `measure` needs to know of the record.
    roots, count
        Square roots of the weights, and the number of places.
    norm : float
        Norm of the contribution before clipping, in floating point.
    length : float
        What one in the features of `measure` stands for: they may come undivided by the bandwidth.
    scales, squares
        Room for `count` numbers each.

    Returns
    -------
    bool
        False if the record adds nothing: without weight, not finite, or out of bounds at every factor.
    """
    factor = first_factor(norm, length, clipping)
    return clip_from(measure, record, roots, count, factor, clipping, scales, squares)


@device(inline=True)
def clip_from(measure, record, roots, count, factor, clipping, scales, squares):
    """Do what `clip` does from a factor that `first_factor` gave."""
    if not factor > 0.0:
        return False
    shrink = _FIRST_SHRINK
    while shrink < 0.5:
        for i in range(count):
            scales[i] = factor * roots[i]
        measure(record, scales, count, squares)
        if _within(squares, count, clipping.bound):
            return True
        factor *= 1.0 - shrink
        shrink *= 2.0
    return False
