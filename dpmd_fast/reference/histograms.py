"""Exact histograms of private columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.privacy.histograms import Grid

Integers = NDArray[np.int64]


class NestedCounts:
    """Exact histograms of columns on their grids. Private.

    Counts do not depend on the order of the records, on blocks, or on how records are split over several
    `NestedCounts` whose `counts` are added up: a record's bins depend on that record alone.
    """

    def __init__(self, grids: Sequence[Grid]) -> None:
        self._inner = [grid.edges[1:-1] for grid in grids]
        self.counts: Integers = np.zeros((len(grids), len(grids[0].edges) - 1), np.int64)
        self.rows = 0

    def add(self, block: NDArray[np.floating[Any]]) -> None:
        """Count the rows of `block`; values that are not finite are not counted."""
        bins = self.counts.shape[1]
        for column, inner, counts in zip(block.T, self._inner, self.counts, strict=True):
            values = column.astype(np.float64)
            places = np.searchsorted(inner, values[np.isfinite(values)], side="right")
            counts += np.bincount(places, minlength=bins)
        self.rows += len(block)
