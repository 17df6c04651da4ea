"""Quantiles of private columns: nested histograms on public grids, with exact Gaussian noise.

    records --> NestedCounts (exact integers) --> mechanism.noisy_sums --> fitted_counts --> medians, MADs

Each column has a grid of 4^L bins, and coarser histograms with 4^(L-1), ..., 4 bins are counted as well. Any
range of bins is a union of a few nodes of this tree, so the noise of a rank grows with L and not, as in one
histogram, with the root of the number of bins between; fine bins and wide bounds cost little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer, shown
from dpmd_fast.errors import UserOverflowError, UserValueError
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.privacy.noise import noisy_sums

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BRANCHES = 4  # bins of a histogram under one bin of the next coarser one
_LEVELS = (2, 8)
_MOST = 1 << 62
_RANK_FACTOR = 1.5  # noise of a fitted rank over that of a node: 1.2 in the middle, 1.8 in unlucky places


class Grid(NamedTuple):
    """Public bins of a column; what lies outside counts in the bins at the ends."""

    edges: Floats  # (bins + 1,), increasing, in the units of the column
    geometric: bool  # evenly spaced in the logarithm

    @classmethod
    def between(cls, low: float, high: float, bins: int, geometric: bool) -> Grid:
        """Grid of evenly spaced edges from `low` to `high`, both public."""
        if geometric:
            edges = np.exp(np.linspace(math.log(low), math.log(high), bins + 1))
        else:
            edges = np.linspace(low, high, bins + 1)
        edges[0], edges[-1] = low, high
        if not (np.diff(edges) > 0.0).all():
            raise UserValueError(f"({low!r}, {high!r}) is too narrow for {bins} bins")
        return cls(edges, geometric)


def levels_of(bins: object) -> int:
    """Number of nested histograms for a grid of `bins` bins, or a refusal."""
    count = checked_integer("bins", bins, minimum=1)
    allowed = [BRANCHES**level for level in range(_LEVELS[0], _LEVELS[1] + 1)]
    if count not in allowed:
        raise UserValueError(
            f"bins = {shown(bins)}: must be one of {', '.join(map(str, allowed))}", argument="bins"
        )
    return allowed.index(count) + _LEVELS[0]


@dataclass(frozen=True)
class NestedLattice:
    """Integers of one release of nested histograms.

    Attributes
    ----------
    lattice : Lattice
    unit : int
        What one count stands for in lattice steps.
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
        """Deviation of the noise of a node, in counts."""
        return self.lattice.deviation / self.unit

    @property
    def rank_noise(self) -> float:
        """About the deviation of the noise in a rank, in counts."""
        return _RANK_FACTOR * self.noise_scale


def nested_lattice(mu: float, columns: int, bins: int, adjacency: Adjacency) -> NestedLattice:
    """Lattice for the nested histograms of `columns` columns together at a spend of `mu`."""
    levels = levels_of(bins)
    nodes = columns * levels
    lattice = choose_lattice(mu, math.sqrt(nodes), adjacency)
    unit = math.isqrt(lattice.bound * lattice.bound // nodes)
    return NestedLattice(lattice, unit, columns, bins, levels)


def rank_error(
    n: int, columns: int, budget: Budget, *, bins: int = 1024, adjacency: Adjacency = "replace-one"
) -> float:
    """About the deviation of the noise in the rank of a private quantile, as a share of `n` records.

    From public numbers only. A median that is off by 0.01 in rank is off by 0.037 MAD in a normal column.
    """
    n = checked_integer("n", n, minimum=1)
    columns = checked_integer("columns", columns, minimum=1)
    return nested_lattice(budget.mu, columns, bins, adjacency).rank_noise / n


class NestedCounts:
    """Exact histograms of columns on their grids, on the private side of the wall.

    Counts do not depend on the order of the records, on blocks, or on how records are split over several
    `NestedCounts` whose `counts` are added up: which bins a record is in follows from the record alone.
    """

    def __init__(self, grids: Sequence[Grid]) -> None:
        self._inner = [grid.edges[1:-1] for grid in grids]
        self.counts: Integers = np.zeros((len(grids), len(grids[0].edges) - 1), np.int64)
        self.rows = 0

    def add(self, block: NDArray[np.floating[Any]]) -> None:
        """Count the rows of `block`; a value that is not finite counts nowhere."""
        bins = self.counts.shape[1]
        for column, inner, counts in zip(block.T, self._inner, self.counts, strict=True):
            values = column.astype(np.float64)
            places = np.searchsorted(inner, values[np.isfinite(values)], side="right")
            counts += np.bincount(places, minlength=bins)
        self.rows += len(block)


def nested(counts: Integers) -> list[Integers]:
    """The histograms of all levels, from the coarsest to `counts`."""
    levels = [counts]
    while levels[0].shape[1] > BRANCHES:
        levels.insert(0, levels[0].reshape(len(counts), -1, BRANCHES).sum(axis=2))
    return levels


def noisy_counts(counts: Integers, plan: NestedLattice, entropy: EntropySource) -> list[Floats]:
    """The nested histograms with noise, from the coarsest level on, in counts: what may be seen.

    One release of the mechanism for all columns and levels together; `NestedLattice` has the proof.
    """
    if int(counts.sum(axis=1).max()) * plan.unit >= _MOST:
        raise UserOverflowError("too many records for 64-bit sums at this budget")
    levels = nested(counts)
    nodes = plan.unit * np.concatenate([level.ravel() for level in levels])
    noisy = noisy_sums(nodes[:, None, None], plan.lattice, entropy, 1).ravel()
    noisy /= plan.lattice.step * plan.unit
    ends = np.cumsum([level.size for level in levels])[:-1]
    return [part.reshape(level.shape) for part, level in zip(np.split(noisy, ends), levels, strict=True)]


def fitted_counts(levels: Sequence[Floats], total: float | None = None) -> Floats:
    """Non-negative counts of the finest bins that agree with noisy nested histograms; post-processing.

    Upward, each node is averaged with the sum of the nodes below it, by their variances (least squares).
    Downward, the nodes below one are moved to the nearest non-negative ones that sum to it.

    Parameters
    ----------
    levels : sequence of arrays (D, 4), (D, 16), ...
        With equal noise on every node.
    total : float, optional
        Number of values of every column, where it is public; by default it is estimated.
    """
    D = len(levels[0])
    averaged = [np.asarray(levels[-1], dtype=np.float64)]
    variance = 1.0  # of an averaged node, in that of a noisy one
    for level in levels[-2::-1]:
        below = averaged[0].reshape(D, -1, BRANCHES).sum(axis=2)
        weight = BRANCHES * variance / (1.0 + BRANCHES * variance)
        averaged.insert(0, weight * level + (1.0 - weight) * below)
        variance = weight
    found = averaged[0].sum(axis=1, keepdims=True)
    sums = np.maximum(found, 1.0) if total is None else np.full((D, 1), float(total))
    for level in averaged:
        sums = _nearest_with_sum(level.reshape(D, -1, BRANCHES), sums).reshape(D, -1)
    return sums


def _nearest_with_sum(values: Floats, sums: Floats) -> Floats:
    """Nearest points with non-negative coordinates along the last axis that add up to `sums`."""
    falling = -np.sort(-values, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - sums[..., None]) / np.arange(1, values.shape[-1] + 1)
    kept = np.maximum((falling > excess).sum(axis=-1), 1)
    return np.maximum(values - np.take_along_axis(excess, kept[..., None] - 1, axis=-1), 0.0)


def cumulative(counts: Floats) -> Floats:
    """Distribution function at the edges of the bins, from 0 to 1."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    return sums / sums[-1]


def quantile(edges: Floats, ranks: Floats, rank: float) -> float:
    """Where a piecewise linear distribution function takes the value `rank`, in (0, 1).

    Where it stays there for a while, the middle of that stretch.
    """
    high = int(np.searchsorted(ranks, rank, side="left"))
    low = int(np.searchsorted(ranks, rank, side="right")) - 1
    return 0.5 * (_crossing(edges, ranks, rank, high - 1) + _crossing(edges, ranks, rank, low))


def _crossing(edges: Floats, ranks: Floats, rank: float, place: int) -> float:
    share = (rank - ranks[place]) / (ranks[place + 1] - ranks[place])
    return float(edges[place] + share * (edges[place + 1] - edges[place]))


def median_and_mad(edges: Floats, ranks: Floats) -> tuple[float, float]:
    """Median, and median distance from it; the latter is at least a quarter of the smallest bin."""
    median = quantile(edges, ranks, 0.5)
    distances = np.unique(np.concatenate([[0.0], np.abs(edges - median)]))
    within = np.interp(median + distances, edges, ranks) - np.interp(median - distances, edges, ranks)
    return median, quantile(distances, np.maximum.accumulate(within), 0.5)
