"""A private reference read block by block: arrays, tables, streams and Parquet files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.atomic import identity
from dpmd_fast.columns import (
    CHOOSE,
    arrow_number_type,
    as_type,
    block_type,
    chosen_fields,
    is_of,
    pandas_blocks,
    pandas_number_type,
    pandas_values,
    places_of,
    values,
)
from dpmd_fast.errors import (
    UserFileNotFoundError,
    UserIsADirectoryError,
    UserOSError,
    UserTypeError,
    UserValueError,
)

if TYPE_CHECKING:
    from dpmd_fast.reference.tasks import PartialSums, Task

_BLOCK_BYTES = 8 * 2**20
_FEWEST_ROWS = 1024  # by default: below it, wide records would be summed a handful at a time
_READ_BYTES = 2**16  # per column of a Parquet file

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
        None if not known before reading. Public only where the adjacency says so: with add-remove it
        must not reach a message or a decision.
    local : bool
        Whether the records come here, as `blocks`.
    rereadable : bool
        Whether `blocks` can be called more than once.
    dtype : numpy.dtype
        Of every block: float32 if all columns are, float64 otherwise.
    batch_rows : int
        Rows of every block but the last, which may have fewer.
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
            raise UserValueError("reference has 0 feature(s) while a minimum of 1 is required.")
        self.reference = reference
        self.n_columns = n_columns
        self.column_names = column_names
        self.rows = rows
        self.dtype = dtype
        self.rereadable = rereadable
        self.batch_rows = batch_rows or max(_FEWEST_ROWS, _BLOCK_BYTES // (n_columns * dtype.itemsize))

    @abstractmethod
    def blocks(self) -> Iterator[Points]:
        """C-contiguous blocks of rows, from the first row; views of an array where that is possible."""

    def run(self, task: Task, n_threads: int | None = None) -> PartialSums:
        """What `task` makes of all records, in one pass."""
        return task.on(self.blocks(), n_threads)


class ArraySource(ReferenceSource):
    def __init__(self, array: NDArray[Any], columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        if columns is not None:
            raise UserValueError(
                "columns selects by name, and an array has no names: must be None for an array"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise UserTypeError(
                "reference is a masked array: must be a plain one, as array.filled(numpy.nan)"
            )
        if array.dtype.kind == "c":
            raise UserValueError("reference holds complex numbers: Complex data not supported, must be real")
        if array.dtype.kind not in "fiub":
            raise UserValueError(
                "reference holds values that are not numbers: must be a rectangular array of numbers"
            )
        if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
            raise UserValueError(
                f"reference holds {array.dtype}: must be float64, float32, integer or bool; convert it with "
                "astype"
            )
        if array.ndim != 2:
            raise UserValueError(f"reference has {array.ndim} dimension(s): must have 2 (rows are points)")
        single = array.dtype.kind == "f" and array.dtype.itemsize == 4
        super().__init__(
            array,
            n_columns=array.shape[1],
            column_names=None,
            rows=array.shape[0],
            dtype=np.dtype(np.float32 if single else np.float64),
            batch_rows=batch_rows,
        )
        self._array = np.asarray(array)  # not a subclass: a slice of a matrix or memmap is one again

    def blocks(self) -> Iterator[Points]:
        for start in range(0, len(self._array), self.batch_rows):
            yield np.require(self._array[start : start + self.batch_rows], self.dtype, ["C", "ALIGNED"])


class PandasSource(ReferenceSource):
    """A DataFrame; `pandas_blocks` reads it."""

    def __init__(self, frame: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        names = [str(name) for name in frame.columns]
        positions = places_of(columns, names, "reference")
        dtypes = [frame.dtypes.iloc[position] for position in positions]
        chosen = tuple(names[position] for position in positions)
        super().__init__(
            frame,
            n_columns=len(chosen),
            column_names=chosen,
            rows=len(frame),
            dtype=block_type("reference", chosen, dtypes, pandas_number_type),
            batch_rows=batch_rows,
        )
        self._columns = [pandas_values(frame.iloc[:, position]) for position in positions]

    def blocks(self) -> Iterator[Points]:
        assert self.rows is not None
        return pandas_blocks(self._columns, self.rows, self.dtype, self.batch_rows)


class _ArrowSource(ReferenceSource):
    """What arrives as record batches of a known schema."""

    def __init__(
        self,
        reference: Any,
        schema: Any,
        columns: tuple[str, ...] | None,
        batch_rows: int | None,
        *,
        rows: int | None,
        rereadable: bool = True,
        name: str = "reference",
    ) -> None:
        self._schema = chosen_fields(schema, columns, name)
        super().__init__(
            reference,
            n_columns=len(self._schema.names),
            column_names=tuple(self._schema.names),
            rows=rows,
            dtype=block_type(name, self._schema.names, self._schema.types, arrow_number_type),
            batch_rows=batch_rows,
            rereadable=rereadable,
        )

    def _read(self, batches: Iterable[Any], complaint: str) -> Iterator[Any]:
        """The chosen columns of the batches in the type of the blocks, or a complaint."""
        # Cut first: a table in memory may be a single batch, and its conversion would be a copy of it all.
        pieces = (
            batch.slice(start, min(self.batch_rows, batch.num_rows - start))
            for batch in batches
            for start in range(0, batch.num_rows, self.batch_rows)
        )
        return _guarded(map(self._numbers, pieces), complaint)

    def _numbers(self, batch: Any) -> Any:
        import pyarrow as pa

        names = self._schema.names
        return pa.RecordBatch.from_arrays([as_type(batch.column(name), self.dtype) for name in names], names)

    def _regrouped(self, batches: Iterable[Any]) -> Iterator[Points]:
        """Blocks of `batch_rows` rows, whatever the sizes of the batches."""
        waiting: list[Any] = []
        missing = self.batch_rows
        for batch in batches:
            start = 0
            while batch.num_rows - start >= missing:
                waiting.append(batch.slice(start, missing))
                yield self._block(waiting)
                start += missing
                waiting, missing = [], self.batch_rows
            if start < batch.num_rows:
                waiting.append(batch.slice(start))
                missing -= batch.num_rows - start
        if waiting:
            yield self._block(waiting)

    @staticmethod
    def _block(batches: list[Any]) -> Points:
        import pyarrow as pa

        return np.stack([values(column) for column in pa.Table.from_batches(batches).columns], axis=1)


class TableSource(_ArrowSource):
    def __init__(self, table: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        super().__init__(table, table.schema, columns, batch_rows, rows=table.num_rows)

    def blocks(self) -> Iterator[Points]:
        table = self.reference
        batches = table.to_batches() if is_of(table, "pyarrow", "Table") else [table]
        complaint = f"reference could not be read: its {type(table).__name__} is not valid, or memory ran out"
        return self._regrouped(self._read(batches, complaint))


class StreamSource(_ArrowSource):
    """What exports an Arrow stream: a RecordBatchReader only once, other objects each time they are asked."""

    def __init__(self, stream: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        once = is_of(stream, "pyarrow", "RecordBatchReader")
        # Kept for the first pass: a look at the schema uses up an object that can export only once.
        self._reader = stream if once else exported(stream)
        if self._reader is None:
            kind = type(stream).__name__
            raise UserTypeError(
                f"reference is a {kind} that cannot be read as an Arrow table: must be {KINDS}"
            )
        self._rows_seen: int | None = None
        super().__init__(
            stream,
            self._reader.schema,
            columns,
            batch_rows,
            rows=stream.height if is_of(stream, "polars", "DataFrame") else None,
            rereadable=not once,
        )

    def blocks(self) -> Iterator[Points]:
        reader, self._reader = self._reader, None
        kind = type(self.reference).__name__
        if reader is None and self.rereadable:
            reader = exported(self.reference)
        if reader is None:
            raise UserValueError(
                f"reference is a {kind} that can be read only once, and it has been read: give a table, for "
                "instance reader.read_all(), or Parquet files"
            )
        complaint = f"reference could not be read: its {kind} failed; read it by itself to see why"
        return self._counted(self._regrouped(self._read(reader, complaint)))

    def _counted(self, blocks: Iterator[Points]) -> Iterator[Points]:
        rows = 0
        for block in blocks:
            rows += len(block)
            yield block
        if self._rows_seen not in (None, rows):
            kind = type(self.reference).__name__
            raise UserValueError(
                f"reference is a {kind} that gave other records when it was read again: give a table or "
                "Parquet files"
            )
        self._rows_seen = rows


class ParquetSource(_ArrowSource):
    """Parquet files, one after the other, in memory that does not grow with them."""

    def __init__(
        self,
        reference: Any,
        paths: Sequence[Any],
        columns: tuple[str, ...] | None,
        batch_rows: int | None,
    ) -> None:
        if not all(isinstance(path, (str, os.PathLike)) for path in paths):
            raise UserTypeError(
                "reference is a list or tuple: must hold paths of Parquet files; for numbers give an array, "
                "numpy.asarray(values), for several tables one, pyarrow.concat_tables(tables)"
            )
        if not paths:
            raise UserValueError("reference is an empty list: must hold at least one path of a Parquet file")
        self._paths = [os.fsdecode(path) for path in paths]
        self._columns = columns
        self._file_rows: list[int] = []
        seen: set[tuple[int, int] | None] = set()
        for path in self._paths:
            with _parquet_file(path) as (parquet, schema):
                if not seen:
                    super().__init__(reference, schema, columns, batch_rows, rows=None, name=path)
                elif identity(path) in seen:
                    # A record that is read twice counts twice, which its bounded share does not allow for.
                    raise UserValueError(
                        f"{path} is in the list more than once: each file must be given once"
                    )
                else:
                    self._check_as_first(path, chosen_fields(schema, columns, path))
                self._file_rows.append(parquet.metadata.num_rows)
            seen.add(identity(path))
        self.rows = sum(self._file_rows)

    def _check_as_first(self, path: str, fields: Any) -> None:
        first = self._paths[0]
        if fields.names != self._schema.names:
            raise UserValueError(
                f"{path} does not have the columns of {first}: all files must have the same names in the "
                "same order; choose columns that all have with " + CHOOSE
            )
        for name, ours, expected in zip(fields.names, fields.types, self._schema.types, strict=True):
            if ours != expected:
                raise UserValueError(f"{path} has {name!r} as {ours}: must be {expected}, as in {first}")

    def blocks(self) -> Iterator[Points]:
        return self._regrouped(self._batches())

    def _batches(self) -> Iterator[Any]:
        for path, rows in zip(self._paths, self._file_rows, strict=True):
            with _parquet_file(path) as (parquet, schema):
                fields = chosen_fields(schema, self._columns, path)
                if parquet.metadata.num_rows != rows or fields != self._schema:
                    raise UserValueError(f"{path} has changed since it was opened: it cannot be read again")
                batches = parquet.iter_batches(
                    batch_size=min(self.batch_rows, max(rows, 1)), columns=self._schema.names
                )
                yield from self._read(
                    batches,
                    f"{path} could not be read: it is damaged, was changed meanwhile, or memory ran out",
                )


def _guarded(items: Iterator[Any], complaint: str) -> Iterator[Any]:
    """`items`, with any error replaced by a fixed text: its own may quote values."""
    while True:
        failed = False
        try:
            item = next(items, None)
        except Exception:
            failed = True
        if failed:  # raised here, outside: as a context, the first error would still be shown
            raise UserValueError(complaint)
        if item is None:
            return
        yield item


@contextmanager
def _parquet_file(path: str) -> Iterator[tuple[Any, Any]]:
    """An open ParquetFile and its Arrow schema."""
    import pyarrow.parquet as pq

    if os.path.isdir(path):
        raise UserIsADirectoryError(
            f"{path} is a directory: must be a Parquet file; give its files as a list"
        )
    if not os.path.exists(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a Parquet file")
    if not os.path.isfile(path):
        raise UserOSError(f"{path} is not a regular file: must be a Parquet file")
    parquet: Any = None
    schema = None
    with suppress(Exception):
        # With prebuffering the whole file is held, without a buffer size whole column chunks are.
        parquet = pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)
        schema = parquet.schema_arrow
    if schema is None:
        raise UserValueError(
            f"{path} could not be read: it is not a Parquet file, is truncated, damaged or encrypted, or its "
            "permissions do not allow it"
        )
    with parquet:
        yield parquet, schema


def exported(stream: Any) -> Any:
    """A RecordBatchReader of an object with ``__arrow_c_stream__``, or None if it does not give one."""
    import pyarrow as pa

    if type(stream).__module__.startswith("polars"):
        names = getattr(stream, "columns", None) or [getattr(stream, "name", "")]
        if any("\0" in name for name in names):  # polars would end the process
            raise UserValueError("columns: the name of one holds a null character; rename it")
    try:
        return pa.RecordBatchReader.from_stream(stream)
    except Exception:
        return None
