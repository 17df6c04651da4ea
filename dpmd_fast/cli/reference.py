"""The private reference of a command, and the public points beside it.

Messages about the reference never show a value, a row or a count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from dpmd_fast.arguments import Points
from dpmd_fast.atomic import file_identity
from dpmd_fast.cli.console import Bar
from dpmd_fast.columns import checked_columns
from dpmd_fast.errors import UserFileNotFoundError, UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.open import open_reference

_IN_MEMORY = (".csv",)
_ARROW = (".arrow", ".feather", ".ipc")


def open_private(
    paths: Sequence[str], columns: Sequence[str] | None, batch_rows: int | None = None
) -> ReferenceSource:
    """Open the reference: one or several Parquet files, or one .arrow, .csv or .npy file."""
    suffixes = {os.path.splitext(path)[1].lower() for path in paths}
    chosen = None if columns is None else list(columns)
    others = suffixes & {*_ARROW, *_IN_MEMORY, ".npy"}
    if not others:
        return open_reference(list(paths), columns=chosen, batch_rows=batch_rows)
    if len(paths) > 1:
        raise UserValueError(f"--reference: several files must all be Parquet; {sorted(others)[0]} was given")
    path, suffix = paths[0], suffixes.pop()
    if not os.path.isfile(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a file")
    # Errors of the readers may quote what they read; raised outside, so that they are not even a context.
    try:
        reference = _load(path, suffix, chosen)
    except Exception:
        reference = None
    if reference is None:
        kind = {".csv": "CSV file with numbers in the chosen columns", ".npy": "two-dimensional .npy array"}
        raise UserValueError(
            f"{path} could not be read: it is damaged, not a {kind.get(suffix, 'Arrow IPC file')}, lacks a "
            "column, or its permissions do not allow it"
        )
    if suffix not in _IN_MEMORY:
        source: ReferenceSource = reference(checked_columns(chosen), batch_rows)
        return source
    return open_reference(reference, columns=chosen, batch_rows=batch_rows)


def _load(path: str, suffix: str, columns: list[str] | None) -> Any:
    from dpmd_fast.reference.sources.ipc import look_at_ipc
    from dpmd_fast.reference.sources.npy import look_at_npy

    if suffix not in _IN_MEMORY:
        return look_at_npy(path) if suffix == ".npy" else look_at_ipc(path)
    import pyarrow as pa
    from pyarrow import csv

    types = None if columns is None else dict.fromkeys(columns, pa.float64())
    options = csv.ConvertOptions(column_types=types, include_columns=columns)
    return csv.read_csv(path, convert_options=options)


def names_in(path: str) -> tuple[str, ...] | None:
    """Return the column names of a reference, which are public; None if it has none or cannot be read."""
    suffix = os.path.splitext(path)[1].lower()
    try:
        if suffix == ".npy":
            return None
        if suffix in (*_ARROW, *_IN_MEMORY):
            from dpmd_fast.tables.formats import open_batches

            with open_batches(path) as incoming:
                return tuple(incoming.schema.names)
        import pyarrow.parquet as pq

        return tuple(pq.read_schema(path).names)
    except Exception:  # told by whoever reads it
        return None


def check_apart(paths: Sequence[str], public: str, name: str) -> None:
    """Refuse public points that come from a file of the reference."""
    mine = file_identity(public)
    if mine is not None and mine in {file_identity(path) for path in paths}:
        raise UserValueError(
            f"{name}: {public} is the reference; must be public points, since taking them from the private "
            "reference would void the guarantee"
        )


def matched(
    paths: Sequence[str], public: str, name: str, columns: Sequence[str] | None
) -> tuple[Points, tuple[str, ...] | None]:
    """Return the public points of a file, and the names of the columns to take from the reference.

    Columns are those in `columns`, by default all of the public file. An array has no names: then the
    reference must be an array, too, or `columns` names its columns in the order of the array.
    """
    from dpmd_fast.tables.files import read_points

    check_apart(paths, public, name)
    public_array = public.lower().endswith(".npy")
    points, names = read_points(public, None if public_array else columns)
    if paths[0].lower().endswith(".npy"):
        if names is not None:
            raise UserValueError(
                f"{name}: {public} has named columns and {paths[0]} has none; must both be .npy or tables"
            )
        if columns is not None:
            raise UserValueError("--columns: must not be given for .npy files, which have no names")
        return points, None
    if names is None:
        if columns is None:
            raise UserValueError(
                f"{name}: {public} has no names; give --columns, the names of the columns of {paths[0]} in "
                "the same order"
            )
        names = tuple(columns)
    if len(names) != points.shape[1]:
        raise UserValueError(f"--columns: {len(names)} names for {points.shape[1]} columns of {public}")
    there = names_in(paths[0])
    missing = [] if there is None else [repr(one) for one in names if one not in there]
    if missing:
        raise UserValueError(
            f"{paths[0]} lacks column(s) {', '.join(missing[:20])} of {public}: choose columns that both "
            "have, with --columns"
        )
    return points, names


class Watched(ReferenceSource):
    """A source that reports the number of rows read to a progress bar, which shows it if it is public."""

    def __init__(self, source: ReferenceSource, bar: Bar) -> None:
        super().__init__(
            source.reference,
            n_columns=source.n_columns,
            column_names=source.column_names,
            rows=source.rows,
            dtype=source.dtype,
            batch_rows=source.batch_rows,
            rereadable=source.rereadable,
        )
        self._source, self._bar, self._read = source, bar, 0

    def blocks(self) -> Iterator[Points]:
        for block in self._source.blocks():
            yield block
            self._read += len(block)
            self._bar(self._read)
