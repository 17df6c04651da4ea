"""Exact integer sums over records, on the private side of the wall.

Blocks of records are added in float64, where sums of integers are exact below 2^53, and moved on to 64-bit
integers before they get there. So the sums do not depend on the order of the records, on blocks, or on how
records are split over several sums that are added up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.charts import Field, move
from dpmd_fast.kernels.search.index import BallIndex
from dpmd_fast.kernels.sums.features import add_feature_block
from dpmd_fast.kernels.sums.moments import (
    EXACT,
    Clipping,
    Room,
    add_block,
    block_rows,
    room_for_block,
    symmetric_integers,
)
from dpmd_fast.kernels.sums.residuals import ResidualFrames, add_residual_block, feature_width
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.privacy.lattice import Lattice, Steps

Rows = NDArray[np.floating[Any]]
MOST = 1 << 62
_COPIES = 4  # of the sums, from floats to what is released


def check_memory(locations: int, columns: int) -> None:
    """Refuse, before a spend, moments of so many locations that there is no memory for them."""
    size = 8 * locations * (columns + 1) ** 2
    try:
        np.empty(_COPIES * size, np.uint8)
    except MemoryError:
        raise MemoryError(
            f"moments of {locations} locations in {columns} columns need {_COPIES * size / 2**30:.1f} GB, "
            "more than there is: take fewer locations"
        ) from None


class TooManyRecords(OverflowError):  # noqa: N818
    """The sums could leave 64 bits."""

    def __init__(self) -> None:
        super().__init__("too many records for 64-bit sums at this budget")


class ExactSums(ABC):
    """Sums of integer matrices (K, F, F) over records, each bounded by `bound` in norm."""

    _n_threads: int | None

    def __init__(self, locations: int, features: int, width: int, bound: int, columns: int) -> None:
        self._features = features
        self._columns = columns
        self.bound = bound
        self._recent = np.zeros((locations, width, width))
        self._totals: NDArray[np.int64] | None = None
        self._recent_rows = 0
        self.rows = 0

    @abstractmethod
    def _add_block(self, Y: Rows) -> None:
        """Add records to `_recent`."""

    @abstractmethod
    def _order(self) -> NDArray[np.integer[Any]]:
        """The caller's number of each location."""

    def add(self, Y: Rows) -> None:
        """Add the rows of `Y`."""
        if Y.shape[1] != self._columns:
            raise ValueError(f"blocks holds an array of {Y.shape[1]} column(s): must have {self._columns}")
        if (self.rows + len(Y)) * self.bound >= MOST:
            raise TooManyRecords
        size = min(block_rows(len(self._recent)), (EXACT - 1) // self.bound)
        for start in range(0, len(Y), size):
            block = Y[start : start + size]
            if (self._recent_rows + len(block)) * self.bound >= EXACT:
                self._settle()
            self._add_block(block)
            self._recent_rows += len(block)
        self.rows += len(Y)

    def total(self) -> NDArray[np.int64]:
        """The sums (K, F, F) in the order of the locations, symmetric."""
        if self._totals is not None:
            self._settle()
        sums = self._recent if self._totals is None else self._totals
        return symmetric_integers(sums, self._order(), self._features, self._n_threads)

    def _settle(self) -> None:
        """Move the recent sums to 64-bit integers."""
        if self._totals is None:
            self._totals = self._recent.astype(np.int64)
        else:
            self._totals += self._recent.astype(np.int64)
        self._recent[:] = 0.0
        self._recent_rows = 0


@contextmanager
def _all_clipped(room: Room, rows: int) -> Iterator[None]:
    """Refuse sums in which a record was not clipped by its own values.

    Errors of threads inside a parallel kernel can get lost, as when there is no memory for their scratch:
    what `room` held of other records would then be taken for theirs. A reach below zero adds nothing.
    """
    room.reach[:rows] = -1
    yield
    if (room.reach[:rows] < 0).any():
        raise MemoryError("records could not be summed: a thread found no memory")


def _clipping(beta: float, c: float, tau: float, lattice: Lattice | Steps) -> Clipping:
    return Clipping(beta, c, tau, float(np.sqrt(1.0 / lattice.step)), lattice.bound)


class MomentSums(ExactSums):
    """Moments of ((y - a) / h, sqrt(c)) at locations a."""

    def __init__(
        self,
        index: BallIndex,
        beta: float,
        tau: float,
        lattice: Lattice | Steps,
        c: float,
        n_threads: int | None = None,
    ) -> None:
        K, width = index.rows.shape
        super().__init__(K, index.columns + 1, width, lattice.bound, index.columns)
        self._index = index
        self._clipping = _clipping(beta, c, tau, lattice)
        self._n_threads = n_threads
        self._room = room_for_block(K)

    def _order(self) -> NDArray[np.integer[Any]]:
        return self._index.order

    def _add_block(self, Y: Rows) -> None:
        with _all_clipped(self._room, len(Y)):
            add_block(self._index, self._clipping, Y, self._recent, self._room, self._n_threads)


class ResidualSums(ExactSums):
    """Moments of (V^T (x - b) / h, r / h_N, sqrt(c)) at charts, x and r from the fields so far."""

    def __init__(
        self,
        fields: list[Field],
        frames: ResidualFrames,
        tau: float,
        lattice: Lattice | Steps,
        c: float,
        n_threads: int | None = None,
    ) -> None:
        K, columns, dim = len(frames.balls.rows), frames.balls.columns, frames.frames.shape[1]
        super().__init__(K, dim + columns + 1, feature_width(columns, dim), lattice.bound, columns)
        self._fields = fields
        self._frames = frames
        self._clipping = _clipping(2.0, c, tau, lattice)
        self._n_threads = n_threads
        self._room = room_for_block(K, dim)

    def _order(self) -> NDArray[np.integer[Any]]:
        return self._frames.balls.order

    def _add_block(self, Y: Rows) -> None:
        Y = np.asarray(Y, dtype=np.float64)
        X, reached = apply_fields(self._fields, Y, self._n_threads)
        residuals = Y - X
        residuals[~reached] = np.inf  # out of reach of every chart: contributes nothing
        with _all_clipped(self._room, len(Y)):
            add_residual_block(
                self._frames, self._clipping, X, residuals, self._recent, self._room, self._n_threads
            )


class FeatureSums(ExactSums):
    """Moments of one vector of `features` per record, at one location; `add` takes the vectors."""

    def __init__(
        self, features: int, tau: float, lattice: Lattice | Steps, n_threads: int | None = None
    ) -> None:
        width = LANES * ((features + LANES - 1) // LANES)
        super().__init__(1, features, width, lattice.bound, features)
        self._clipping = _clipping(2.0, 1.0, tau, lattice)
        self._n_threads = n_threads

    def _order(self) -> NDArray[np.integer[Any]]:
        return np.zeros(1, np.int64)

    def _add_block(self, Y: Rows) -> None:
        add_feature_block(self._clipping, Y, self._recent, self._n_threads)


def apply_fields(
    fields: list[Field], X: Rows, n_threads: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Move the rows of `X` with one field after the other; whether the first one had charts in reach."""
    moved, reached = move(fields[0], X, n_threads)
    for field in fields[1:]:
        moved = move(field, moved, n_threads)[0]
    return moved, reached
