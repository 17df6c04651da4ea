"""The paper's bounds on how far one record can move what its route releases.

Lemma 1 and Lemma 2 of the paper, up to an unknown constant C. `empirical_sensitivity` searches for the C that
a given data set needs.
"""

from __future__ import annotations

import math

from dpmd_fast.errors import UserValueError


def projector_bound(n: int, dim: int, bandwidth: float, constant: float) -> float:
    """Return Delta_P = C / (n h^d), for the projector of Lemma 1 and the averaged projector of Lemma 2."""
    return _bound(n, dim, bandwidth, constant, dim)


def mean_bound(n: int, dim: int, bandwidth: float, constant: float) -> float:
    """Return Delta_m = C / (n h^(d-1)), for the weighted mean of Lemma 2."""
    return _bound(n, dim, bandwidth, constant, dim - 1)


def _bound(n: int, dim: int, bandwidth: float, constant: float, power: int) -> float:
    try:
        bound = constant / n * bandwidth**-power
    except OverflowError:
        bound = math.inf
    if not 0.0 < bound < math.inf:
        raise UserValueError(
            f"bandwidth = {bandwidth!r}: C / (n h^{power}) is {bound!r} in floating point for dim = {dim}; "
            "rescale the data so that the bandwidth is nearer to 1",
            argument="bandwidth",
        )
    return bound
