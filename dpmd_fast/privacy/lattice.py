"""The integers behind a certified release: lattice step, noise deviation, bound on a record's contribution.

In units of the step, a record adds integer matrices v v^T with sum (v . v)^2 <= bound^2 over all locations.
They are positive semidefinite, so two of them have a non-negative inner product and replacing one record
moves the sums by at most sqrt(2) bound in Frobenius norm; adding or removing one, by at most bound. Gaussian
noise of deviation M on the diagonal and at least M / sqrt(2) off it has deviation M in Frobenius norm, hence
mu = sqrt(2) bound / M (or bound / M), whatever the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dpmd_fast.arguments import checked
from dpmd_fast.errors import UserValueError
from dpmd_fast.privacy.guarantee import Adjacency

_BOUND = 1 << 28  # vectors have entries of up to 14 bits: truncation loses a few parts in 10,000
_LEAST_BOUND = 1 << 16
_LARGEST_BOUND = 1 << 30  # its square, doubled, is a 64-bit integer
_DEVIATIONS = (1 << 10, 1 << 40)
_TAUS = (1e-100, 1e100)  # far from the ends of floating point


def relative_sensitivity(adjacency: Adjacency) -> float:
    """Return the sensitivity of the sums, in units of the bound on one record's contribution."""
    return math.sqrt(2.0) if adjacency == "replace-one" else 1.0


class Steps(NamedTuple):
    """The part of a lattice that sums over records need; it reveals nothing about noise or budget."""

    step: float
    bound: int


@dataclass(frozen=True)
class Lattice:
    """Integers that make the release exact.

    Attributes
    ----------
    step : float
        Size of one lattice step, in the units of the moments.
    deviation : int
        M: deviation of the noise on the diagonal, in steps.
    bound : int
        Bound on the norm of a record's contribution, in steps.
    mu : float
        GDP cost of the release: at most what was asked for.
    """

    step: float
    deviation: int
    bound: int
    mu: float

    @property
    def steps(self) -> Steps:
        return Steps(self.step, self.bound)

    @property
    def off_diagonal(self) -> int:
        """Deviation of the noise off the diagonal, in steps: M / sqrt(2), rounded up."""
        square = self.deviation * self.deviation
        root = math.isqrt(square // 2)
        return root if 2 * root * root >= square else root + 1

    @property
    def noise_scale(self) -> float:
        """Deviation of the noise on the diagonal, in the units of the moments."""
        return self.step * self.deviation


def choose_lattice(mu: float, tau: float, adjacency: Adjacency) -> Lattice:
    """Return the lattice for contributions clipped to norm `tau` and a spend of `mu`.

    Raises
    ------
    ValueError
        If `mu` is too small or too large for 64-bit sums, or `tau` for floating point.
    """
    mu = checked("mu", mu, positive=True)
    tau = checked("tau", tau, positive=True)
    if not _TAUS[0] <= tau <= _TAUS[1]:
        raise UserValueError(f"tau = {tau!r}: must lie between {_TAUS[0]:g} and {_TAUS[1]:g}", argument="tau")
    sensitivity = relative_sensitivity(adjacency)
    deviation = math.ceil(min(max(_BOUND * sensitivity / mu, _DEVIATIONS[0]), _DEVIATIONS[1]))
    most = deviation * mu / sensitivity
    if not _LEAST_BOUND <= most <= _LARGEST_BOUND:
        raise UserValueError(
            f"mu = {mu!r}: must lie between {sensitivity * _LEAST_BOUND / _DEVIATIONS[1]:.1g} and "
            f"{sensitivity * _LARGEST_BOUND / _DEVIATIONS[0]:.1g}; choose another budget",
            argument="mu",
        )
    bound = math.floor(most)
    while sensitivity * bound / deviation > mu:  # the division above may have been rounded up
        bound -= 1
    return Lattice(tau / bound, deviation, bound, sensitivity * bound / deviation)
