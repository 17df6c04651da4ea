"""Medians and MADs from released histograms: post-processing of noisy counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.privacy.histograms import BRANCHES

Floats = NDArray[np.float64]


def fitted_counts(levels: Sequence[Floats], total: float | None = None) -> Floats:
    """Fit non-negative counts of the finest bins to noisy nested histograms; post-processing.

    From fine to coarse, each node is averaged with the sum of its children, weighted by their variances
    (least squares). From coarse to fine, the children of a node are moved to the nearest non-negative values
    that sum to it.

    Parameters
    ----------
    levels : sequence of arrays (D, 4), (D, 16), ...
        Noisy counts, with equal noise on every node.
    total : float, optional
        Number of values of every column, if it is public; estimated by default.
    """
    D = len(levels[0])
    averaged = [np.asarray(levels[-1], dtype=np.float64)]
    variance = 1.0  # of an averaged node, in units of that of a noisy one
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
    """Return the nearest points with non-negative coordinates along the last axis that add up to `sums`."""
    falling = -np.sort(-values, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - sums[..., None]) / np.arange(1, values.shape[-1] + 1)
    kept = np.maximum((falling > excess).sum(axis=-1), 1)
    return np.maximum(values - np.take_along_axis(excess, kept[..., None] - 1, axis=-1), 0.0)


def cumulative(counts: Floats) -> Floats:
    """Return the distribution function at the edges of the bins, from 0 to 1."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    ranks: Floats = sums / sums[-1]
    return ranks


def quantile(edges: Floats, ranks: Floats, rank: float) -> float:
    """Return where a piecewise linear distribution function takes the value `rank`, in (0, 1).

    If it takes it on an interval, return the middle of the interval.
    """
    high = int(np.searchsorted(ranks, rank, side="left"))
    low = int(np.searchsorted(ranks, rank, side="right")) - 1
    return 0.5 * (_crossing(edges, ranks, rank, high - 1) + _crossing(edges, ranks, rank, low))


def _crossing(edges: Floats, ranks: Floats, rank: float, place: int) -> float:
    share = (rank - ranks[place]) / (ranks[place + 1] - ranks[place])
    return float(edges[place] + share * (edges[place + 1] - edges[place]))


def median_and_mad(edges: Floats, ranks: Floats) -> tuple[float, float]:
    """Return the median, and the median distance from it, which is at least a quarter of the smallest bin."""
    median = quantile(edges, ranks, 0.5)
    distances = np.unique(np.concatenate([[0.0], np.abs(edges - median)]))
    within = np.interp(median + distances, edges, ranks) - np.interp(median - distances, edges, ranks)
    return median, quantile(distances, np.maximum.accumulate(within), 0.5)
