"""The private reference as blocks of rows, for sums over records: arrays, tables, streams and Parquet.

A source gives the same rows in the same order for every kind of input; how a table or a file is cut
into chunks does not show in its blocks. What must not be told about a private reference stays untold:
errors name files, columns and types, never a value, a row or a count, and errors of the readers
underneath are replaced, because their texts may quote what they were reading.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.privacy.accounting import checked, checked_integer
from dpmd_fast.validation import Points

_BLOCK_BYTES = 8 * 2**20
_FEWEST_ROWS = 1024  # by default: below it, wide records would be summed a handful at a time
_READ_BYTES = 2**16  # per column of a Parquet file
_NAMES_SHOWN = 20

_KINDS = (
    "a NumPy array, a pandas or polars DataFrame, a pyarrow Table, RecordBatch or RecordBatchReader, "
    "or the path of a Parquet file or a list of such paths"
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
    rereadable : bool
        Whether `blocks` can be called more than once.
    dtype : numpy.dtype
        Of every block: float32 if all columns are, float64 otherwise.
    batch_rows : int
        Rows of every block but the last, which may have fewer.
    """

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
            raise ValueError("reference has 0 feature(s) while a minimum of 1 is required.")
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


def open_reference(
    reference: Any, *, columns: Sequence[str] | None = None, batch_rows: int | None = None
) -> ReferenceSource:
    """Look at what the reference is, without reading its values.

    Parameters
    ----------
    reference : array, table, stream or path
        A two-dimensional NumPy array; a pandas DataFrame; a pyarrow Table, RecordBatch or
        RecordBatchReader (which can be read only once); any object with ``__arrow_c_stream__``, as a
        polars DataFrame; the path of a Parquet file, or a list of paths, read in that order.
    columns : list of str, optional
        Columns of a table to read, in this order. By default all, and then all must be numeric.
    batch_rows : int, optional
        Most rows in a block; about 8 MB of them by default, and at least 1024.

    Notes
    -----
    Missing values of tables become NaN. Integers, booleans and decimals become float64.
    """
    if batch_rows is not None:
        batch_rows = checked_integer("batch_rows", batch_rows, minimum=1)
    columns = _checked_columns(columns)
    if isinstance(reference, np.ndarray):
        return _ArraySource(reference, columns, batch_rows)
    if isinstance(reference, (str, os.PathLike)):
        return _ParquetSource(reference, [reference], columns, batch_rows)
    if isinstance(reference, (list, tuple)):
        return _ParquetSource(reference, reference, columns, batch_rows)
    if _is_of(reference, "pandas", "DataFrame"):
        return _PandasSource(reference, columns, batch_rows)
    if _is_of(reference, "pyarrow", "Table", "RecordBatch"):
        return _TableSource(reference, columns, batch_rows)
    if hasattr(reference, "__arrow_c_stream__"):
        return _StreamSource(reference, columns, batch_rows)
    kind = type(reference).__name__
    if type(reference).__module__.startswith("scipy.sparse"):
        raise TypeError("reference is a sparse matrix: must be dense, for instance values.toarray()")
    if isinstance(reference, Iterator):
        raise TypeError(
            f"reference is an iterator ({kind}): its columns are not known before it is read, and it can be "
            "read only once; must be a table, an array or Parquet files, or for one pass a "
            "pyarrow.RecordBatchReader.from_batches(schema, batches)"
        )
    raise TypeError(f"reference is a {kind}: must be {_KINDS}")


def is_table_or_file(reference: Any) -> bool:
    """Whether `reference` is an Arrow table or stream or a path of a file, not an array or a DataFrame."""
    if isinstance(reference, (list, tuple)):
        return len(reference) > 0 and all(isinstance(item, (str, os.PathLike)) for item in reference)
    if isinstance(reference, (str, os.PathLike)):
        return True
    return hasattr(reference, "__arrow_c_stream__") and not _is_of(reference, "pandas", "DataFrame")


def check_valid(source: ReferenceSource, most: float) -> None:
    """Refuse, in one pass, a reference with values that are not finite or beyond `most` in size."""
    most = checked("most", most, positive=True)
    if not source.rereadable:
        raise ValueError(
            "reference is a stream that can be read only once, so its values cannot be checked first: pass "
            "on_invalid='drop', or give a table or Parquet files"
        )
    valid = True
    for block in source.blocks():  # to the end in any case: when it stops would tell where
        with np.errstate(invalid="ignore"):
            valid &= bool(float(block.min()) >= -most and float(block.max()) <= most)  # false for NaN
    if not valid:
        raise ValueError(
            f"reference contains non-finite or too large values: all must be finite and at most {most:g} in "
            "size; pass on_invalid='drop' to leave such records out, or clean the reference"
        )


def shares_memory(source: ReferenceSource, array: Any) -> bool:
    """Whether `array` (an array, table or path) is the reference, or overlaps it in memory or on disk."""
    if array is source.reference:
        return True
    if not _files(array).isdisjoint(_files(source.reference)):
        return True
    theirs = _memory(array)
    return any(_overlap(mine, other) for mine in _memory(source.reference) for other in theirs)


class _ArraySource(ReferenceSource):
    def __init__(self, array: NDArray[Any], columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        if columns is not None:
            raise ValueError("columns selects by name, and an array has no names: must be None for an array")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("reference is a masked array: must be a plain one, as array.filled(numpy.nan)")
        if array.dtype.kind == "c":
            raise ValueError("reference holds complex numbers: Complex data not supported, must be real")
        if array.dtype.kind not in "fiub":
            raise ValueError(
                "reference holds values that are not numbers: must be a rectangular array of numbers"
            )
        if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
            raise ValueError(
                f"reference holds {array.dtype}: must be float64, float32, integer or bool; convert it with "
                "astype"
            )
        if array.ndim != 2:
            raise ValueError(f"reference has {array.ndim} dimension(s): must have 2 (rows are points)")
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


class _PandasSource(ReferenceSource):
    """A DataFrame, read through its own columns: as Arrow, a column of objects would be guessed at."""

    def __init__(self, frame: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        names = [str(name) for name in frame.columns]
        positions = _positions(columns, names, "reference")
        dtypes = [frame.dtypes.iloc[position] for position in positions]
        chosen = tuple(names[position] for position in positions)
        super().__init__(
            frame,
            n_columns=len(chosen),
            column_names=chosen,
            rows=len(frame),
            dtype=_block_type("reference", chosen, dtypes, _pandas_number_type),
            batch_rows=batch_rows,
        )
        self._columns = [_pandas_values(frame.iloc[:, position]) for position in positions]

    def blocks(self) -> Iterator[Points]:
        assert self.rows is not None
        for start in range(0, self.rows, self.batch_rows):
            stop = min(start + self.batch_rows, self.rows)
            yield np.stack([self._numbers(column[start:stop]) for column in self._columns], axis=1)

    def _numbers(self, column: Any) -> Points:
        if isinstance(column, np.ndarray):
            return column.astype(self.dtype, copy=False)
        if hasattr(column.dtype, "pyarrow_dtype"):
            return _values(_as_type(column.__arrow_array__(), self.dtype))
        return column.to_numpy(dtype=self.dtype, na_value=np.nan)


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
        self._schema = _chosen_fields(schema, columns, name)
        super().__init__(
            reference,
            n_columns=len(self._schema.names),
            column_names=tuple(self._schema.names),
            rows=rows,
            dtype=_block_type(name, self._schema.names, self._schema.types, _arrow_number_type),
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
        return pa.RecordBatch.from_arrays([_as_type(batch.column(name), self.dtype) for name in names], names)

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

        return np.stack([_values(column) for column in pa.Table.from_batches(batches).columns], axis=1)


class _TableSource(_ArrowSource):
    def __init__(self, table: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        super().__init__(table, table.schema, columns, batch_rows, rows=table.num_rows)

    def blocks(self) -> Iterator[Points]:
        table = self.reference
        batches = table.to_batches() if _is_of(table, "pyarrow", "Table") else [table]
        complaint = f"reference could not be read: its {type(table).__name__} is not valid, or memory ran out"
        return self._regrouped(self._read(batches, complaint))


class _StreamSource(_ArrowSource):
    """What exports an Arrow stream: a RecordBatchReader only once, other objects each time they are asked."""

    def __init__(self, stream: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        once = _is_of(stream, "pyarrow", "RecordBatchReader")
        # Kept for the first pass: a look at the schema uses up an object that can export only once.
        self._reader = stream if once else _exported(stream)
        if self._reader is None:
            kind = type(stream).__name__
            raise TypeError(f"reference is a {kind} that cannot be read as an Arrow table: must be {_KINDS}")
        self._rows_seen: int | None = None
        super().__init__(
            stream,
            self._reader.schema,
            columns,
            batch_rows,
            rows=stream.height if _is_of(stream, "polars", "DataFrame") else None,
            rereadable=not once,
        )

    def blocks(self) -> Iterator[Points]:
        reader, self._reader = self._reader, None
        kind = type(self.reference).__name__
        if reader is None and self.rereadable:
            reader = _exported(self.reference)
        if reader is None:
            raise ValueError(
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
            raise ValueError(
                f"reference is a {kind} that gave other records when it was read again: give a table or "
                "Parquet files"
            )
        self._rows_seen = rows


class _ParquetSource(_ArrowSource):
    """Parquet files, one after the other, in memory that does not grow with them."""

    def __init__(
        self,
        reference: Any,
        paths: Sequence[Any],
        columns: tuple[str, ...] | None,
        batch_rows: int | None,
    ) -> None:
        if not all(isinstance(path, (str, os.PathLike)) for path in paths):
            raise TypeError(
                "reference is a list or tuple: must hold paths of Parquet files; for numbers give an array, "
                "numpy.asarray(values), for several tables one, pyarrow.concat_tables(tables)"
            )
        if not paths:
            raise ValueError("reference is an empty list: must hold at least one path of a Parquet file")
        self._paths = [os.fsdecode(path) for path in paths]
        self._columns = columns
        self._file_rows: list[int] = []
        seen: set[tuple[int, int] | None] = set()
        for path in self._paths:
            with _parquet_file(path) as (parquet, schema):
                if not seen:
                    super().__init__(reference, schema, columns, batch_rows, rows=None, name=path)
                elif _identity(path) in seen:
                    # A record that is read twice counts twice, which its bounded share does not allow for.
                    raise ValueError(f"{path} is in the list more than once: each file must be given once")
                else:
                    self._check_as_first(path, _chosen_fields(schema, columns, path))
                self._file_rows.append(parquet.metadata.num_rows)
            seen.add(_identity(path))
        self.rows = sum(self._file_rows)

    def _check_as_first(self, path: str, fields: Any) -> None:
        first = self._paths[0]
        if fields.names != self._schema.names:
            raise ValueError(
                f"{path} does not have the columns of {first}: all files must have the same names in the "
                "same order; choose columns that all have with columns=[...]"
            )
        for name, ours, expected in zip(fields.names, fields.types, self._schema.types, strict=True):
            if ours != expected:
                raise ValueError(f"{path} has {name!r} as {ours}: must be {expected}, as in {first}")

    def blocks(self) -> Iterator[Points]:
        return self._regrouped(self._batches())

    def _batches(self) -> Iterator[Any]:
        for path, rows in zip(self._paths, self._file_rows, strict=True):
            with _parquet_file(path) as (parquet, schema):
                fields = _chosen_fields(schema, self._columns, path)
                if parquet.metadata.num_rows != rows or fields != self._schema:
                    raise ValueError(f"{path} has changed since it was opened: it cannot be read again")
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
            raise ValueError(complaint)
        if item is None:
            return
        yield item


@contextmanager
def _parquet_file(path: str) -> Iterator[tuple[Any, Any]]:
    """An open ParquetFile and its Arrow schema."""
    import pyarrow.parquet as pq

    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a directory: must be a Parquet file; give its files as a list")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: must be a Parquet file")
    if not os.path.isfile(path):
        raise OSError(f"{path} is not a regular file: must be a Parquet file")
    parquet: Any = None
    schema = None
    with suppress(Exception):
        # With prebuffering the whole file is held, without a buffer size whole column chunks are.
        parquet = pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)
        schema = parquet.schema_arrow
    if schema is None:
        raise ValueError(
            f"{path} could not be read: it is not a Parquet file, is truncated, damaged or encrypted, or its "
            "permissions do not allow it"
        )
    with parquet:
        yield parquet, schema


def _exported(stream: Any) -> Any:
    """A RecordBatchReader of an object with ``__arrow_c_stream__``, or None if it does not give one."""
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(stream)
    except Exception:
        return None


def _checked_columns(columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if not isinstance(columns, (list, tuple)) or not all(isinstance(name, str) for name in columns):
        raise ValueError(f"columns = {columns!r}: must be None or a list of column names (strings)")
    if not columns:
        raise ValueError("columns is empty: must hold at least one column name, or be None for all columns")
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns names {_listed(_repeated(columns))} more than once")
    return tuple(columns)


def _positions(columns: tuple[str, ...] | None, names: Sequence[str], what: str) -> list[int]:
    """Where the chosen columns are among `names`."""
    place = {name: position for position, name in enumerate(names)}
    chosen = names if columns is None else columns
    unknown = [name for name in chosen if name not in place]
    if unknown:
        raise ValueError(f"columns holds {_listed(unknown)}: {what} has {_listed(names)}")
    repeated = [name for name in _repeated(names) if name in set(chosen)]
    if repeated:
        raise ValueError(f"{what} has more than one column named {_listed(repeated)}: names must be unique")
    return [place[name] for name in chosen]


def _chosen_fields(schema: Any, columns: tuple[str, ...] | None, what: str) -> Any:
    """Names and types of the chosen columns, as a schema without metadata."""
    import pyarrow as pa

    positions = _positions(columns, schema.names, what)
    return pa.schema([(schema.names[position], schema.types[position]) for position in positions])


def _block_type(
    what: str,
    names: Sequence[str],
    types: Sequence[Any],
    number_type: Callable[[Any], type[np.floating[Any]] | None],
) -> np.dtype[Any]:
    """The type of the blocks, after a look at the columns' types."""
    number_types = [number_type(column_type) for column_type in types]
    if None in number_types:
        others = [
            f"{name!r} ({column_type})"
            for name, column_type, number in zip(names, types, number_types, strict=True)
            if number is None
        ]
        raise ValueError(
            f"{what} has columns that are not numeric: {_shortened(others)}; choose numeric ones with "
            "columns=[...]"
        )
    return np.dtype(np.float32 if set(number_types) == {np.float32} else np.float64)


def _arrow_number_type(arrow_type: Any) -> type[np.floating[Any]] | None:
    """float32, or float64 for the other numbers; None for what is not a number."""
    from pyarrow import types

    if types.is_float32(arrow_type):
        return np.float32
    tests = (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean)
    return np.float64 if any(test(arrow_type) for test in tests) else None


def _pandas_number_type(dtype: Any) -> type[np.floating[Any]] | None:
    if hasattr(dtype, "pyarrow_dtype"):
        return _arrow_number_type(dtype.pyarrow_dtype)
    if getattr(dtype, "kind", "O") not in "fiub":
        return None
    plain = np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)))  # nullable, sparse
    if plain.itemsize > 8:
        return None
    return np.float32 if plain == np.float32 else np.float64


def _pandas_values(series: Any) -> Any:
    """The array behind a pandas column, not copied."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def _as_type(column: Any, dtype: np.dtype[Any]) -> Any:
    """An Arrow column in the type of the blocks; large integers and decimals are rounded, as NumPy does."""
    import pyarrow as pa

    if pa.types.is_float16(column.type):  # for which older Arrow has no cast
        return pa.array(column.to_numpy(zero_copy_only=False).astype(dtype))
    wanted = pa.from_numpy_dtype(dtype)
    return column if column.type == wanted else column.cast(wanted, safe=False)


def _values(column: Any) -> Points:
    """An Arrow column of floats as an array: a view if it can be, with NaN where there is no value."""
    return column.to_numpy(zero_copy_only=False)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _listed(names: Sequence[str]) -> str:
    return _shortened([repr(name) for name in names])


def _shortened(texts: Sequence[str]) -> str:
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_of(value: object, module: str, *names: str) -> bool:
    """Whether a value is of a class of an optional package, without importing the package."""
    loaded = sys.modules.get(module)
    classes = tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
    return isinstance(value, classes)


def _identity(path: Any) -> tuple[int, int] | None:
    """The same for all names of a file; None if there is no such file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _files(value: Any) -> set[tuple[int, int]]:
    """The files that a path or a list of paths names."""
    paths = value if isinstance(value, (list, tuple)) else [value]
    found = (_identity(path) for path in paths if isinstance(path, (str, os.PathLike)))
    return {identity for identity in found if identity is not None}


def _memory(value: Any) -> list[NDArray[Any]]:
    """Arrays over the memory in which a value holds its numbers, as far as that is known without a copy."""
    if isinstance(value, np.ndarray):
        return [np.asarray(value)]
    if isinstance(value, (list, tuple)):  # rows cut out of an array
        return [np.asarray(item) for item in value if isinstance(item, np.ndarray)]
    if _is_of(value, "pandas", "DataFrame"):
        columns = [_pandas_values(value.iloc[:, position]) for position in range(value.shape[1])]
        return [piece for column in columns for piece in _pandas_memory(column)]
    if _is_of(value, "pyarrow", "Table", "RecordBatch"):
        return [piece for column in value.columns for piece in _arrow_memory(column)]
    if _is_of(value, "polars", "DataFrame"):
        reader = _exported(value)
        return [] if reader is None else _memory(reader.read_all())
    # Of other objects only those whose values are at hand: streams would be read, lazy arrays computed.
    at_hand = hasattr(value, "__array__") and not hasattr(value, "__dask_graph__")
    return [np.asarray(value)] if at_hand and not hasattr(value, "__arrow_c_stream__") else []


def _pandas_memory(column: Any) -> list[NDArray[Any]]:
    if isinstance(column, np.ndarray):
        return [column]
    return _arrow_memory(column.__arrow_array__()) if hasattr(column.dtype, "pyarrow_dtype") else []


def _arrow_memory(column: Any) -> list[NDArray[Any]]:
    """The bytes of a column's numbers, chunk by chunk; slices of a column do not overlap one another."""
    if _arrow_number_type(column.type) is None:
        return []
    bits = column.type.bit_width
    pieces = []
    for chunk in getattr(column, "chunks", [column]):
        numbers = chunk.buffers()[1]
        if numbers is not None and numbers.is_cpu and len(chunk):
            start, stop = chunk.offset * bits // 8, -(-(chunk.offset + len(chunk)) * bits // 8)
            pieces.append(np.frombuffer(numbers, dtype=np.uint8)[start:stop])
    return pieces


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, 10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
