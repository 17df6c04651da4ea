"""Exact integer sums over records, added block by block.

Blocks are summed in float64, where sums of integers are exact below 2^53, and moved to 64-bit integers before
they get there. So the sums do not depend on the order of the records, on blocks, or on how records are split
over several sums that are added up.

Every kind of sums takes `steps`, the step of the lattice and the bound on a record's contribution in steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.charts import Field, apply_fields
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.scratch import aligned_zeros
from dpmd_fast.kernels.search.index import BallIndex
from dpmd_fast.kernels.sums.clip import Clipping, make_clipping
from dpmd_fast.kernels.sums.features import add_feature_block
from dpmd_fast.kernels.sums.mixtures import MixtureFrames, add_mixture_block, mixture_width
from dpmd_fast.kernels.sums.moments import add_moment_block
from dpmd_fast.kernels.sums.pairs import Pairs, block_rows, pairs_for_block
from dpmd_fast.kernels.sums.residuals import ResidualFrames, add_residual_block, feature_width
from dpmd_fast.kernels.vector.lanes import LANES

Rows = NDArray[np.floating[Any]]
EXACT = 1 << 53  # float64 sums of integers are exact below this
SUM_LIMIT = 1 << 62  # 64-bit sums stay below this


class ExactSums(ABC):
    """Sums of integer matrices (K, F, F) over records of `columns` numbers.

    `add` trusts its caller to give records with `columns` columns.
    """

    def __init__(
        self,
        locations: int,
        features: int,
        width: int,
        clipping: Clipping,
        columns: int,
        n_threads: int | None,
    ) -> None:
        self._features = features
        self._clipping = clipping
        self._n_threads = n_threads
        self._recent = aligned_zeros((locations, width, width))
        self._totals: NDArray[np.int64] | None = None
        self._recent_rows = 0
        self.columns = columns
        self.bound = clipping.bound
        self.rows = 0

    @abstractmethod
    def _add_block(self, Y: Rows) -> None:
        """Add records to `_recent`."""

    @abstractmethod
    def _order(self) -> NDArray[np.integer[Any]]:
        """Return the caller's number of each location."""

    def add(self, Y: Rows) -> None:
        """Add the rows of `Y`."""
        if (self.rows + len(Y)) * self.bound >= SUM_LIMIT:
            raise OverflowError("too many records for 64-bit sums")
        size = min(block_rows(len(self._recent)), (EXACT - 1) // self.bound)
        for start in range(0, len(Y), size):
            block = Y[start : start + size]
            if (self._recent_rows + len(block)) * self.bound >= EXACT:
                self._flush()
            self._add_block(block)
            self._recent_rows += len(block)
        self.rows += len(Y)

    def total(self) -> NDArray[np.int64]:
        """Return the sums (K, F, F) in the order of the locations, symmetric."""
        return symmetric_integers(
            self._recent, self._order(), self._features, self._n_threads, before=self._totals
        )

    def _flush(self) -> None:
        """Move the recent sums to 64-bit integers."""
        if self._totals is None:
            self._totals = self._recent.astype(np.int64)
        else:
            self._totals += self._recent.astype(np.int64)
        self._recent[:] = 0.0
        self._recent_rows = 0


@contextmanager
def _all_clipped(pairs: Pairs, rows: int) -> Iterator[None]:
    """Refuse sums in which a record was not clipped by its own values.

    Should a parallel loop lose an iteration without an error, what `pairs` held of other records would be
    taken for its own. A count below zero adds nothing.
    """
    pairs.counts[:rows] = -1
    yield
    if (pairs.counts[:rows] < 0).any():
        raise MemoryError("records could not be summed: a thread found no memory")


class MomentSums(ExactSums):
    """Moments of ((y - a) / h, sqrt(c)) at locations a."""

    def __init__(
        self,
        index: BallIndex,
        beta: float,
        tau: float,
        steps: tuple[float, int],
        c: float,
        n_threads: int | None = None,
    ) -> None:
        K, width = index.rows.shape
        super().__init__(K, index.columns + 1, width, make_clipping(tau, steps), index.columns, n_threads)
        self._index = index
        self._beta, self._c = beta, c
        self._pairs = pairs_for_block(K)

    def _order(self) -> NDArray[np.integer[Any]]:
        return self._index.order

    def _add_block(self, Y: Rows) -> None:
        with _all_clipped(self._pairs, len(Y)):
            add_moment_block(
                self._index,
                self._beta,
                self._c,
                self._clipping,
                Y,
                self._recent,
                self._pairs,
                self._n_threads,
            )


class ResidualSums(ExactSums):
    """Moments of (V^T (x - b) / h, r / h_N, sqrt(c)) at charts, x and r from the fields so far."""

    def __init__(
        self,
        fields: list[Field],
        frames: ResidualFrames,
        tau: float,
        steps: tuple[float, int],
        c: float,
        n_threads: int | None = None,
    ) -> None:
        K, columns, dim = len(frames.balls.rows), frames.balls.columns, frames.frames.shape[1]
        width = feature_width(columns, dim)
        super().__init__(K, dim + columns + 1, width, make_clipping(tau, steps), columns, n_threads)
        self._fields = fields
        self._frames = frames
        self._c = c
        self._pairs = pairs_for_block(K, dim)

    def _order(self) -> NDArray[np.integer[Any]]:
        return self._frames.balls.order

    def _add_block(self, Y: Rows) -> None:
        Y = np.asarray(Y, dtype=np.float64)
        X, reached = apply_fields(self._fields, Y, self._n_threads)
        residuals = Y - X
        residuals[~reached] = np.inf  # out of reach of every chart: contributes nothing
        with _all_clipped(self._pairs, len(Y)):
            add_residual_block(
                self._frames,
                self._c,
                self._clipping,
                X,
                residuals,
                self._recent,
                self._pairs,
                self._n_threads,
            )


class FeatureSums(ExactSums):
    """Moments of one vector of `features` per record, at one location; `add` takes the vectors."""

    def __init__(
        self, features: int, tau: float, steps: tuple[float, int], n_threads: int | None = None
    ) -> None:
        width = LANES * ((features + LANES - 1) // LANES)
        super().__init__(1, features, width, make_clipping(tau, steps), features, n_threads)

    def _order(self) -> NDArray[np.integer[Any]]:
        return np.zeros(1, np.int64)

    def _add_block(self, Y: Rows) -> None:
        add_feature_block(self._clipping, Y, self._recent, self._n_threads)


class MixtureSums(ExactSums):
    """Moments of (W_k^T (y - m_k), sqrt(c)) in the frames of the components k of a mixture."""

    def __init__(
        self,
        frames: MixtureFrames,
        tau: float,
        steps: tuple[float, int],
        c: float,
        n_threads: int | None = None,
    ) -> None:
        K, D = len(frames.whitening), frames.columns
        super().__init__(K, D + 1, mixture_width(D), make_clipping(tau, steps), D, n_threads)
        self._frames = frames
        self._c = c

    def _order(self) -> NDArray[np.integer[Any]]:
        return np.arange(len(self._recent))

    def _add_block(self, Y: Rows) -> None:
        add_mixture_block(self._frames, self._c, self._clipping, Y, self._recent, self._n_threads)


def symmetric_integers(
    recent: np.ndarray,
    order: np.ndarray,
    features: int,
    n_threads: int | None = None,
    *,
    before: np.ndarray | None = None,
) -> np.ndarray:
    """Return sums (K, width, width), of which the upper blocks are filled in, as whole integer matrices.

    `recent` holds integers below 2^53 in float64; `before` holds 64-bit integers that are added to them.
    Location a goes to the place order[a].
    """
    earlier = np.empty((0, 0, 0), np.int64) if before is None else before
    out = np.empty((len(recent), features, features), np.int64)
    with threads(n_threads):
        _symmetric(recent, earlier, order, out)
    return out


@device
def _symmetric_at(a, recent, before, order, out):
    F, place = out.shape[1], order[a]
    for j in range(F):
        for k in range(j, F):
            value = np.int64(recent[a, j, k])
            if len(before) > 0:
                value += before[a, j, k]
            out[place, j, k] = value
            out[place, k, j] = value


@kernel
def _symmetric(recent, before, order, out):
    parallel_for(_symmetric_at, len(recent), 1, (recent, before, order, out))
