"""Files read and written a batch of rows at a time: Parquet, CSV, Arrow IPC and .npy.

For files of public points: errors here quote what a library says. Private references are read by
`reference.sources`, whose errors do not.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpmd_fast.columns import arrow_number_type
from dpmd_fast.errors import UserFileNotFoundError, UserIsADirectoryError, UserOSError, UserValueError

_SUFFIXES = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".csv": "CSV",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".npy": "npy",
}
_BATCH_BYTES = 8 * 2**20
_FEWEST_ROWS, _MOST_ROWS = 1024, 1 << 14  # so that a batch fits into a processor's cache
_READ_BYTES = 2**16  # per column of a Parquet file
_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 128 * 2**20  # most in a row group that is written
_MAPPED_BYTES = 256 * 2**20  # Arrow files with larger batches, on average, are mapped into memory
_TEXT_SHOWN = 200


class Incoming(NamedTuple):
    """A file that is open for reading."""

    format: str
    schema: Any  # of a table; None for an array
    shape: tuple[int, int] | None  # of an array; None for a table
    rows: int | None  # None if not known before reading
    batches: Iterator[tuple[Any, bool]]  # RecordBatch or array, and whether a row group ends with it
    codecs: dict[str, str] = {}  # noqa: RUF012  # of a Parquet file: compression of every column
    dictionaries: tuple[str, ...] = ()  # of a Parquet file: columns that are written with one


class Writer(Protocol):
    """A file that is being written."""

    def write(self, batch: Any, ends_group: bool) -> None: ...

    def close(self) -> None: ...


def format_of(path: str) -> str:
    """Return the format that the suffix of a file stands for."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _SUFFIXES:
        raise UserValueError(
            f"cannot tell the file format from the name {path!r}: use .parquet, .arrow, .csv or .npy"
        )
    return _SUFFIXES[suffix]


def check_input(path: str) -> None:
    """Refuse a path that does not exist, is not a regular file or is empty."""
    if os.path.isdir(path):
        raise UserIsADirectoryError(f"{path} is a directory: must be a file")
    if not os.path.exists(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a file of points")
    if not os.path.isfile(path):
        raise UserOSError(f"{path} is not a regular file")
    if os.path.getsize(path) == 0:
        raise UserValueError(f"{path} is empty: must be a file of points")


@contextmanager
def open_batches(
    path: str, numbers: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> Iterator[Incoming]:
    """Open a file to read it batch by batch.

    Parameters
    ----------
    path : str
    numbers : sequence of str, optional
        For CSV: the columns to read as numbers; all others are kept as text. By default the columns whose
        first values look like numbers.
    columns : sequence of str, optional
        The only columns to read; by default all.
    """
    kind = format_of(path)
    check_input(path)
    before = _stamp(path)
    opener = {"Parquet": _open_parquet, "CSV": _open_csv, "Arrow": _open_arrow, "npy": _open_npy}[kind]
    with ExitStack() as stack:
        try:
            incoming = opener(path, numbers, columns, stack)
        except Exception as problem:
            raise _complaint(path, kind, problem) from None
        yield incoming._replace(batches=_guarded(path, kind, incoming.batches, before))


def _guarded(path: str, kind: str, items: Iterator[Any], before: tuple[int, int]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as problem:
        raise _complaint(path, kind, problem) from None
    if _stamp(path) != before:  # a reader of truncated text sees only its end
        raise UserValueError(f"{path} was changed while it was read")


def _stamp(path: str) -> tuple[int, int]:
    """Return the size of a file and the time of its last change."""
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _complaint(path: str, kind: str, problem: Exception) -> ValueError:
    return UserValueError(f"{path} could not be read as {kind}: {_first_line(problem)}")


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:_TEXT_SHOWN] if lines else type(problem).__name__


def _batch_rows(columns: int) -> int:
    return int(np.clip(_BATCH_BYTES // (8 * max(columns, 1)), _FEWEST_ROWS, _MOST_ROWS))


def _open_parquet(
    path: str, numbers: Sequence[str] | None, columns: Sequence[str] | None, stack: ExitStack
) -> Incoming:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # With prebuffering the whole file is held, without a buffer size whole column chunks are.
    file = stack.enter_context(pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES))
    schema = file.schema_arrow
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)

    def batches() -> Iterator[tuple[Any, bool]]:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            size = _batch_rows(len(schema.names))
            for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                rows -= batch.num_rows
                yield batch.select(schema.names) if columns is not None else batch, rows == 0

    parts = []
    if file.num_row_groups and file.metadata.row_group(0).num_rows:
        group = file.metadata.row_group(0)
        # Where the footer is damaged, Arrow ends the process when it is asked for a column's metadata, but
        # complains when it reads the column: so a row is read first.
        next(file.iter_batches(1, row_groups=[0]))
        if group.num_columns != file.metadata.num_columns:
            raise UserValueError("its row groups do not have the columns of its schema")
        parts = [group.column(number) for number in range(group.num_columns)]
    return Incoming(
        "Parquet",
        schema,
        None,
        file.metadata.num_rows,
        batches(),
        {part.path_in_schema: part.compression for part in parts},
        tuple(part.path_in_schema for part in parts if part.has_dictionary_page),
    )


def _open_csv(
    path: str, numbers: Sequence[str] | None, columns: Sequence[str] | None, stack: ExitStack
) -> Incoming:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    with arrow_csv.open_csv(path, parse_options=arrow_csv.ParseOptions(newlines_in_values=True)) as first:
        names, types = first.schema.names, first.schema.types
    if numbers is None:
        guessed = zip(names, types, strict=True)
        numbers = [name for name, kind in guessed if arrow_number_type(kind) or pa.types.is_null(kind)]
    wanted = {name: pa.float64() if name in set(numbers) else pa.string() for name in names}
    reader = stack.enter_context(
        arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=_BATCH_BYTES // 4),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=wanted, include_columns=None if columns is None else list(columns)
            ),
        )
    )
    return Incoming("CSV", reader.schema, None, None, ((batch, False) for batch in reader))


def _open_arrow(
    path: str, numbers: Sequence[str] | None, columns: Sequence[str] | None, stack: ExitStack
) -> Incoming:
    import pyarrow as pa

    reader = pa.ipc.open_file(stack.enter_context(arrow_file(path)))
    schema = reader.schema
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)

    def batches() -> Iterator[tuple[Any, bool]]:
        size = _batch_rows(len(schema.names))
        for batch in whole_batches(reader):
            batch = batch if columns is None else batch.select(schema.names)
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size), False

    return Incoming("Arrow", schema, None, None, batches())


def whole_batches(reader: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow IPC file, or refuse one that is not as long as it says.

    Arrow reads a batch whose buffers are too small for its rows without a word, and then beyond their ends.
    """
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate()  # of sizes: takes no time, and reads no values
        yield batch


def arrow_file(path: str) -> Any:
    """Open an Arrow IPC file to read its batches one by one.

    The file is mapped into memory only if its batches are too large to be held: in a mapped file, an error of
    the disk or a truncation ends the process without a message.
    """
    import pyarrow as pa

    with pa.memory_map(path) as mapped:
        batches = pa.ipc.open_file(mapped).num_record_batches
    large = os.path.getsize(path) > _MAPPED_BYTES * max(batches, 1)
    return pa.memory_map(path) if large else pa.OSFile(path)


def _open_npy(
    path: str, numbers: Sequence[str] | None, columns: Sequence[str] | None, stack: ExitStack
) -> Incoming:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.ndarray) or mapped.ndim != 2:
        raise UserValueError("it must hold one array of two dimensions (rows are points)")
    if mapped.dtype.kind not in "fiub":
        raise UserValueError("it must hold real numbers")
    if not mapped.flags.c_contiguous:
        raise UserValueError("it is in Fortran order; save numpy.ascontiguousarray(array)")
    if columns is not None:
        raise UserValueError("an array has no column names to choose by")
    dtype, (rows, width) = mapped.dtype, mapped.shape
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115
    file.seek(mapped.offset)  # type: ignore[attr-defined]  # of a memmap

    def batches() -> Iterator[tuple[Any, bool]]:
        size = _batch_rows(width)
        for start in range(0, rows, size):
            count = min(size, rows - start)
            numbers = np.fromfile(file, dtype, count * width)
            if len(numbers) < count * width:
                raise UserValueError("it ends too early: it was truncated")
            yield numbers.reshape(count, width), False

    return Incoming("npy", None, (rows, width), rows, batches())


def open_writer(path: str, kind: str, incoming: Incoming, schema: Any, moved: Sequence[str]) -> Writer:
    """Open a file to write what `incoming` becomes: `schema` is None for an array, `moved` columns change."""
    if kind == "Parquet":
        return _ParquetWriter(path, incoming, schema, moved)
    if kind == "CSV":
        return _CsvWriter(path, schema)
    return _ArrowWriter(path, schema) if kind == "Arrow" else _NpyWriter(path, incoming)


@contextmanager
def explained(path: str, kind: str) -> Iterator[None]:
    """Turn errors of the libraries that write a file into one line that names it."""
    try:
        yield
    except OSError as problem:
        raise UserOSError(f"{path} could not be written: {_first_line(problem)}") from None
    except Exception as problem:
        raise UserValueError(f"{path} could not be written as {kind}: {_first_line(problem)}") from None


class _ParquetWriter:
    """Keeps the row groups of the input, up to a largest size."""

    def __init__(self, path: str, incoming: Incoming, schema: Any, moved: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        before = incoming.schema.names
        added = [name for name in schema.names if name not in before]
        settings: dict[str, Any] = {"use_dictionary": [name for name in schema.names if name not in moved]}
        if incoming.codecs:
            codecs = {
                path: "NONE" if codec == "UNCOMPRESSED" else codec for path, codec in incoming.codecs.items()
            }
            settings["compression"] = {**dict.fromkeys(added, codecs[next(iter(codecs))]), **codecs}
            # A dictionary of numbers that hardly ever repeat takes time and saves no space.
            settings["use_dictionary"] = [
                *(name for name in incoming.dictionaries if name not in moved),
                *(name for name in added if name not in moved),
            ]
        self._writer = pq.ParquetWriter(path, schema, **settings)
        self._schema = schema
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, batch: Any, ends_group: bool) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if ends_group or self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._rows, self._bytes = [], 0, 0
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()


class _CsvWriter:
    """Quotes values only in batches that have one that needs quotes."""

    def __init__(self, path: str, schema: Any) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(schema.names)
        self._file.write(header.getvalue().encode())

    def write(self, batch: Any, ends_group: bool) -> None:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        for style in ("none", "needed"):
            text = io.BytesIO()
            try:
                arrow_csv.write_csv(
                    batch, text, arrow_csv.WriteOptions(include_header=False, quoting_style=style)
                )
            except pa.ArrowInvalid:
                if style == "needed":
                    raise
                continue
            self._file.write(text.getbuffer())
            return

    def close(self) -> None:
        self._file.close()


class _ArrowWriter:
    def __init__(self, path: str, schema: Any) -> None:
        import pyarrow as pa

        self._writer = pa.ipc.new_file(path, schema)

    def write(self, batch: Any, ends_group: bool) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _NpyWriter:
    def __init__(self, path: str, incoming: Incoming) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        self._shape = incoming.shape
        self._begun = False

    def write(self, batch: Any, ends_group: bool) -> None:
        if not self._begun:
            self._begin(batch.dtype)
        self._file.write(np.ascontiguousarray(batch).data)

    def _begin(self, dtype: np.dtype[Any]) -> None:
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begun = True

    def close(self) -> None:
        if not self._begun:
            self._begin(np.dtype(np.float64))
        self._file.close()
