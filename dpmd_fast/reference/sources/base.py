"""A private reference that is read block by block.

Every kind of input gives the same rows in the same order: blocks do not depend on the chunks of a table or a
file. Errors name files, columns and types, never a value, a row or a count; errors of the underlying readers
are replaced, because they may quote what they were reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserValueError

if TYPE_CHECKING:
    from dpmd_fast.reference.tasks import PartialSums, Task

_BLOCK_BYTES = 8 * 2**20
_FEWEST_ROWS = 1024  # rows of a block by default; with fewer, wide records would be summed a few at a time


KINDS = (
    "a NumPy array, a pandas or polars DataFrame, a pyarrow Table, RecordBatch or RecordBatchReader, the "
    "path of a Parquet file or a list of such paths, or a Dask or Spark frame"
)


class ReferenceSource(ABC):
    """A private reference that is read block by block.

    Attributes
    ----------
    n_columns : int
    column_names : tuple of str, or None
        None for an array.
    rows : int or None
        None if not known before reading. Public under replace-one only: under add-remove it must not reach a
        message or a decision.
    local : bool
        Whether this process reads the records, as `blocks`; False if an engine holds them.
    rereadable : bool
        Whether `blocks` can be called more than once.
    dtype : numpy.dtype
        Type of every block: float32 if all columns are, float64 otherwise.
    batch_rows : int
        Rows of every block; the last may have fewer.
    """

    local: bool = True

    def __init__(
        self,
        reference: Any,
        *,
        n_columns: int,
        column_names: tuple[str, ...] | None,
        rows: int | None,
        dtype: np.dtype[Any],
        batch_rows: int | None,
        rereadable: bool = True,
    ) -> None:
        if n_columns < 1:
            raise UserValueError("reference has no columns: must have at least one")
        self.reference = reference
        self.n_columns = n_columns
        self.column_names = column_names
        self.rows = rows
        self.dtype = dtype
        self.rereadable = rereadable
        self.batch_rows = batch_rows or max(_FEWEST_ROWS, _BLOCK_BYTES // (n_columns * dtype.itemsize))

    @abstractmethod
    def blocks(self) -> Iterator[Points]:
        """Yield C-contiguous blocks of rows, from the first row; views of an array if possible."""

    def run(self, task: Task, n_threads: int | None = None) -> PartialSums:
        """Return the result of `task` on all records, in one pass."""
        return task.on(self.blocks(), n_threads)


def with_fixed_error(items: Iterator[Any], complaint: str) -> Iterator[Any]:
    """Yield `items`; raise any error with the text `complaint`, since its own may quote values."""
    while True:
        failed = False
        try:
            item = next(items, None)
        except Exception:
            failed = True
        if failed:  # raised outside the handler: otherwise the first error would be shown as its context
            raise UserValueError(complaint)
        if item is None:
            return
        yield item
