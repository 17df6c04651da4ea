"""Nested histograms on public grids: their bins, their sensitivity and the noise they need.

Each column has a grid of 4^L bins and coarser histograms with 4^(L-1), ..., 4 bins. Any range of bins is a
union of a few nodes of this tree, so the noise of a rank grows with L, not, as in a single histogram, with
the square root of the number of bins in the range. Fine bins and wide bounds therefore cost little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.vector.elementary import fixed_exps, fixed_logs
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import Lattice, choose_lattice

Floats = NDArray[np.float64]

BRANCHES = 4  # bins within one bin of the next coarser histogram
_LEVELS = (2, 8)
_RANK_FACTOR = 1.5  # noise of a fitted rank over that of a node: 1.2 in the middle, 1.8 at worst


class Grid(NamedTuple):
    """Public bins of a column; values outside count in the first or last bin."""

    edges: Floats  # (bins + 1,), increasing, in the units of the column
    geometric: bool  # whether edges are evenly spaced in the logarithm

    @classmethod
    def between(cls, low: float, high: float, bins: int, geometric: bool) -> Grid:
        """Return a grid of evenly spaced edges from `low` to `high`, both public."""
        if geometric:
            ends = fixed_logs(np.array([low, high]))
            edges = fixed_exps(np.linspace(ends[0], ends[1], bins + 1))
        else:
            edges = np.linspace(low, high, bins + 1)
        edges[0], edges[-1] = low, high
        if not (np.diff(edges) > 0.0).all():
            raise UserValueError(f"({low!r}, {high!r}) is too narrow for {bins} bins")
        return cls(edges, geometric)


def levels_of(bins: object) -> int:
    """Return the number of nested histograms for a grid of `bins` bins; refuse other numbers of bins."""
    count = checked_integer("bins", bins, minimum=1)
    allowed = [BRANCHES**level for level in range(_LEVELS[0], _LEVELS[1] + 1)]
    if count not in allowed:
        raise UserValueError(
            f"bins = {shown(bins)}: must be one of {', '.join(map(str, allowed))}", argument="bins"
        )
    return allowed.index(count) + _LEVELS[0]


@dataclass(frozen=True)
class NestedLattice:
    """The integers behind one release of nested histograms.

    Attributes
    ----------
    lattice : Lattice
    unit : int
        Lattice steps per count.
    columns, bins, levels : int

    Notes
    -----
    Privacy: in each of the `levels` histograms of each column a record is in one bin or, where its value is
    not valid, in none. Its contribution is `unit` at these nodes and 0 elsewhere: non-negative integers, of
    squared norm at most ``columns * levels * unit^2 <= bound^2``. Two such have a non-negative inner product,
    so replacing a record moves the sums by at most sqrt(2) bound, adding or removing one by at most bound: in
    counts, Delta = sqrt(2 columns levels), or sqrt(columns levels). With noise of deviation M on every node,
    rounded to integers and sampled exactly, mu = sqrt(2) bound / M (or bound / M), whatever the data.
    """

    lattice: Lattice
    unit: int
    columns: int
    bins: int
    levels: int

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise of a node, in counts."""
        return self.lattice.deviation / self.unit

    @property
    def rank_noise(self) -> float:
        """Approximate standard deviation of the noise in a rank, in counts."""
        return _RANK_FACTOR * self.noise_scale


def nested_lattice(mu: float, columns: int, bins: int, adjacency: Adjacency) -> NestedLattice:
    """Return the lattice for the nested histograms of `columns` columns together, at a spend of `mu`."""
    levels = levels_of(bins)
    nodes = columns * levels
    lattice = choose_lattice(mu, math.sqrt(nodes), adjacency)
    unit = math.isqrt(lattice.bound * lattice.bound // nodes)
    return NestedLattice(lattice, unit, columns, bins, levels)


def rank_error(
    n: int, columns: int, budget: Budget, *, bins: int = 1024, adjacency: Adjacency = "replace-one"
) -> float:
    """Return the approximate deviation of the noise in the rank of a private quantile, as a share of `n`.

    Uses public numbers only. In a normal column, an error of 0.01 in the rank of the median is 0.037 MAD.
    """
    n = checked_integer("n", n, minimum=1)
    columns = checked_integer("columns", columns, minimum=1)
    return nested_lattice(budget.mu, columns, bins, adjacency).rank_noise / n
