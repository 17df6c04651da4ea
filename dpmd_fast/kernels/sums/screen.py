"""Bounds in single precision on how likely components are, to leave out early those that cannot count.

With z = y - origin, u = s + W^T z and s = W^T (origin - m): let v be u as single precision has it, and q the
sum of its squares. Rounding z, W, s and D sums changes u by at most

    e = gamma (|s| + |W| |z|),    gamma = (D + 8) 2^-24,

in Frobenius norms, and for every eta > 0

    (1 - eta) |v|^2 - (1 + 1/eta) e^2  <=  |u|^2  <=  (1 + eta) |v|^2 + (1 + 1/eta) e^2.

Twice the eta that is needed leaves room for the rounding of q, and of all that follows in double precision.
The coordinates that a record is summed with come from y itself, in double precision: that they too are
rounded, in numbers as large as m and y, is added to e. No component that counts is therefore left out, and
what a record adds does not depend on these bounds. A record beyond `reach`, at which single precision could
overflow, has no bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.singles import TOGETHER, list_above, raise_floor, square_columns

_LARGEST = 1e18  # of |z| and |W|: their products and squares stay in single precision
_TINY = 1e-20  # covers what is lost below the smallest numbers of single precision


class Screen(NamedTuple):
    """Components as single precision has them."""

    origin: np.ndarray  # (D,) mean of the means
    offsets: np.ndarray  # (K, padded) s, float32
    whitening: np.ndarray  # (K, D, padded) W, float32, padded to a multiple of four
    slack: np.ndarray  # (K, 2): (1 + 1/eta) e^2 is at most slack[k, 0] + slack[k, 1] |z|^2
    rounding: np.ndarray  # (K,) of log weights
    eta: float
    reach: float  # largest |z|^2 with bounds


def make_screen(log_weights: np.ndarray, means: np.ndarray, whitening: np.ndarray) -> Screen:
    """Return the screen of components with `means` (K, D) and upper triangular `whitening` (K, D, D)."""
    K, D = means.shape
    eta = max(2.0**-10, D * 2.0**-21)
    gamma = (D + 8) * 2.0**-24
    with np.errstate(over="ignore", invalid="ignore"):  # then there are no bounds
        origin = means.mean(axis=0)
        shifts = np.einsum("kd,kde->ke", origin - means, whitening)
        sizes, far = np.sqrt((whitening**2).sum(axis=(1, 2))), np.sqrt((shifts**2).sum(axis=1))
        double = D * 2.0**-50 * sizes
        own = np.sqrt((means**2).sum(axis=1)) + np.sqrt((origin**2).sum())
        fixed, growing = gamma * far + double * own + _TINY, gamma * sizes + double
        slack = (1.0 + 2.0 / eta) * 2.0 * np.stack([fixed**2, growing**2], axis=1)
    largest = max(float(sizes.max()), float(far.max()))
    usable = largest < _LARGEST and bool(np.isfinite(slack).all())
    reach = min(_LARGEST, _LARGEST / max(largest, 1e-300)) ** 2 if usable else -1.0
    singles = np.zeros((K, D + 1, LANES * -(-D // LANES)), np.float32)
    if usable:
        singles[:, 0, :D], singles[:, 1:, :D] = shifts, whitening
    rounding = 1e-9 * (1.0 + np.abs(log_weights))
    return Screen(origin, singles[:, 0].copy(), singles[:, 1:].copy(), slack, rounding, eta, reach)


@device
def list_likely(screen, log_weights, least, n, Z, norms, squares, floor, rows, counts):
    """List for each component the records, of n, in which its log density may be above best + `least`.

    rows[k, :counts[k]] are the records of component k. `squares` (K, room) and `floor` (room,) are room.
    """
    K = len(log_weights)
    more, less = 0.5 * (1.0 + screen.eta), 0.5 * (1.0 - screen.eta)
    room = squares.shape[1]
    for r in range(n):
        floor[r] = -math.inf
    for k in range(K):
        square_columns(Z, n, screen.offsets, screen.whitening, k, squares)
        low = log_weights[k] - screen.rounding[k] - 0.5 * screen.slack[k, 0]
        slope = -0.5 * screen.slack[k, 1]
        for r in range(0, n, TOGETHER):
            raise_floor(squares, k * room + r, norms, floor, r, low, -more, slope)
    for r in range(n):
        floor[r] = floor[r] if norms[r] <= screen.reach else math.nan  # nothing can be compared with it
    for k in range(K):
        high = log_weights[k] + screen.rounding[k] + 0.5 * screen.slack[k, 0] - least
        slope = 0.5 * screen.slack[k, 1]
        count, own = 0, rows[k]
        for r in range(0, n, TOGETHER):
            count = list_above(squares, k * room + r, norms, floor, r, high, -less, slope, own, count)
        while count > 0 and own[count - 1] >= n:  # room that holds no record
            count -= 1
        counts[k] = count
