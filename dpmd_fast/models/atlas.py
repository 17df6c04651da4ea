"""The atlas: a map that denoises any number of points, made from a few certified releases."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points, checked_table, checked_threads
from dpmd_fast.compilation import ensure
from dpmd_fast.kernels.charts import WIDE, Field, apply_fields
from dpmd_fast.models.geometry.layers import Floats, Layer, Subspace
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.status import CLIPPED, FAILED, OUTSIDE, Codes, words_of
from dpmd_fast.tables.protocol import RowCleaner, check_rows, keep_or_refuse

if TYPE_CHECKING:
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.models.signature import Signature
    from dpmd_fast.models.verdict import Verdict
    from dpmd_fast.privacy.ledger.charge import Receipt

_BLOCK_BYTES = 1 << 22  # of the points moved at a time: what stays in the caches
_SMALLER = 4  # with a preprocessor, which makes more arrays, blocks are a quarter as large: 8 % less time


class ChartView(NamedTuple):
    """Charts for inspection, in the coordinates of the data, preprocessed if they are."""

    centers: Floats  # (K, D)
    tangents: Floats  # (K, D, d)
    masses: Floats  # (K,)


@dataclass(frozen=True, eq=False)
class Atlas:
    """A released map toward the manifold of a private reference.

    Everything in it was released under `guarantee` or is public: transforming points with it costs no budget,
    needs no reference and can be done anywhere, any number of times, by any number of threads.

    Attributes
    ----------
    guarantee : Guarantee
    layers : tuple of Layer
        Projections onto charts first, then the corrections of the residual rounds.
    subspace : Subspace or None
        Affine subspace in which the layers work; None for all of R^D.
    dim : int
    bandwidth : float
    spends : tuple of (str, float)
        What each release was for and its mu^2, in the order of the releases.
    column_names : tuple of str or None
        Columns of the reference, where it was a table.
    preprocess : Preprocessor or None
        Then `transform` takes and returns original units; charts and `bandwidth` are in preprocessed ones.
    verdict : Verdict or None
        Whether it helps points like its anchors, judged after the spend; None in files of older versions.
    receipt : Receipt or None
        The debit that paid for it, if there was a ledger. Not in the file: a loaded atlas has none.
    signature : Signature or None
        Of a loaded atlas: who vouches for it, None if it is not signed.
    """

    kind = "atlas"
    missing = "refuse"  # what becomes of missing values: see `tables.protocol`

    guarantee: Guarantee
    layers: tuple[Layer, ...] = field(repr=False)
    subspace: Subspace | None = field(repr=False)
    dim: int
    bandwidth: float
    signal_to_noise: tuple[float, ...]  # of each round, median S / s
    spends: tuple[tuple[str, float], ...] = field(repr=False)
    column_names: tuple[str, ...] | None = None
    preprocess: Preprocessor | None = field(default=None, repr=False)
    verdict: Verdict | None = None
    receipt: Receipt | None = field(default=None, repr=False)
    signature: Signature | None = None

    @property
    def n_columns(self) -> int:
        if self.subspace is not None:
            return len(self.subspace.origin)
        return int(self.layers[0].centers.shape[1])

    @property
    def charts(self) -> ChartView:
        """Centres, tangents and masses of the charts of round 1, in preprocessed units."""
        first = self.layers[0]
        if self.subspace is None:
            return ChartView(first.centers, first.tangents, first.masses)
        basis = self.subspace.basis
        return ChartView(
            self.subspace.up(first.centers), np.einsum("dq,kqe->kde", basis, first.tangents), first.masses
        )

    def transform(
        self,
        Z: Any,
        n_threads: int | None = None,
        *,
        on_missing: str = "refuse",
        return_status: bool = False,
    ) -> Any:
        """Denoise points: array in, array out; table in, the same kind of table out with its columns moved.

        Parameters
        ----------
        Z : array or table
            Public points. Of a table (pandas, polars, Arrow) the columns of the atlas are moved and all
            others pass through. An Arrow RecordBatchReader gives one that moves each batch when it is read;
            a Dask array or dataframe and a Spark DataFrame give one that the workers move when it is
            computed.
        n_threads : int, optional
            By default one for a few rows, and at most as many as there are idle cores.
        on_missing : "refuse" or "keep"
            Refuse missing values, which are NaN and nulls, or leave rows that have some unchanged.
        return_status : bool
            Whether to return the status of each row as well. For a Dask array it is a lazy array, too; for
            RecordBatchReaders, Dask dataframes and Spark DataFrames it is refused.

        Returns
        -------
        result : as Z
            With `preprocess`, a coordinate that does not change keeps its value to the last bit.
        status : array of str
            Only with `return_status`. "ok": moved. "outside": unchanged, since no chart is in reach.
            "failed": unchanged, since the result is beyond the range of its type. "missing": unchanged, since
            a value is missing. With `preprocess` also "clipped": moved, but from the limit, since a
            coordinate lies beyond it.
        """
        n_threads = checked_threads(n_threads)
        cleaner: RowCleaner = self if on_missing == "refuse" else keep_or_refuse(self, on_missing)
        if type(Z) is not np.ndarray:
            from dpmd_fast.tables.frames import is_table, transform_table
            from dpmd_fast.tables.lazy import is_lazy, transform_lazy

            if is_table(Z):
                return transform_table(cleaner, Z, n_threads, return_status)
            if is_lazy(Z):
                return transform_lazy(cleaner, Z, return_status)
        points = checked_table("Z", Z, self.n_columns)
        check_rows(cleaner, "Z", points)
        moved, codes = cleaner.move(points, n_threads)
        return (moved, words_of(codes)) if return_status else moved

    def move(self, points: Points, n_threads: int | None = None, name: str = "Z") -> tuple[Points, Codes]:
        """Return moved points in the type of `points`, and a status code for each.

        `points` must be finite and have the atlas's columns; messages call them `name`.
        """
        size = _BLOCK_BYTES if self.preprocess is None else _BLOCK_BYTES // _SMALLER
        most = max(1024, size // (8 * points.shape[1]))
        if len(points) <= most:
            return self._moved_block(points, n_threads, name)
        rows = -(-len(points) // -(-len(points) // most))  # blocks of about one size
        moved, status = np.empty_like(points, order="C"), np.empty(len(points), np.int8)
        for start in range(0, len(points), rows):
            part = slice(start, start + rows)
            moved[part], status[part] = self._moved_block(points[part], n_threads, name)
        return moved, status

    def _moved_block(self, points: Points, n_threads: int | None, name: str) -> tuple[Points, Codes]:
        block = np.asarray(points, dtype=np.float64)
        status = np.zeros(len(points), np.int8)
        if self.preprocess is None:
            result, reached = self.moved_inside(block, n_threads)
        else:
            result, reached, clipped = self.preprocess.moved(
                block, lambda inside: self.moved_inside(inside, n_threads), name
            )
            status[clipped] = CLIPPED
            largest = np.finfo(points.dtype).max
            if not -largest <= result.min(initial=0.0) <= result.max(initial=0.0) <= largest:  # also with NaN
                status[reached & ~(np.abs(result) <= largest).all(axis=1)] = FAILED
        if not reached.all():
            status[~reached] = OUTSIDE
        if (stay := (status == OUTSIDE) | (status == FAILED)).any():
            result[stay] = block[stay]
        return result.astype(points.dtype, copy=False), status

    def moved_inside(self, points: Floats, n_threads: int | None) -> tuple[Floats, NDArray[np.bool_]]:
        """Move finite points in preprocessed units; also return which of them a chart reaches."""
        inside = points if self.subspace is None else self.subspace.down(points, n_threads)
        result, reached = apply_fields(self._fields, inside, n_threads)
        return (result if self.subspace is None else self.subspace.up(result, n_threads)), reached

    def prepare(self) -> None:
        """Compile the kernels of `transform`, or load them from the cache, as its first call does."""
        columns = self.layers[0].centers.shape[1]  # as many in all layers
        routes = ["wide transform" if columns >= WIDE else "transform"]
        if self.subspace is not None:
            routes.append("coordinates")
        if self.preprocess is not None:
            routes.append("units")
        ensure(*routes)

    @cached_property
    def _fields(self) -> list[Field]:
        self.prepare()
        # always from the arrays, so that a loaded atlas gives the same bits as the one that was saved
        return [layer.field() for layer in self.layers]

    def save(self, path: str | os.PathLike[str], key: Any = None) -> None:
        """Write one file; it appears under its name only when it is complete.

        If a ledger paid for the atlas, the name of the file is noted there. With `key`, the path of a private
        key that ``dpmd-fast keys create`` has made, the file is signed: the guarantee, all numbers and the
        place of the debit in the ledger.
        """
        from dpmd_fast.models.atlas_file import write_atlas

        write_atlas(self, path, key)
        if self.receipt is not None:
            self.receipt.record_file(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trusted: Any = None) -> Atlas:
        """Read what `save` wrote; a truncated or edited file is refused.

        With `trusted`, one public key or several, what none of them has signed is refused, too.
        """
        from dpmd_fast.models.atlas_file import read_atlas

        return read_atlas(path, trusted)
