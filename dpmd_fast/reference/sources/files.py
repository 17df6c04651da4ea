"""A private reference in files of any format: Parquet, Arrow IPC, CSV or .npy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dpmd_fast.columns import checked_columns
from dpmd_fast.errors import UserFileNotFoundError, UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.ipc import look_at_ipc
from dpmd_fast.reference.sources.npy import look_at_npy
from dpmd_fast.reference.sources.open import open_reference
from dpmd_fast.tables.formats import open_batches

_IN_MEMORY = (".csv",)
_ARROW = (".arrow", ".feather", ".ipc")


def open_files(
    paths: Sequence[str], columns: Sequence[str] | None, batch_rows: int | None = None
) -> ReferenceSource:
    """Open the reference: one or several Parquet files, or one .arrow, .csv or .npy file."""
    suffixes = {os.path.splitext(path)[1].lower() for path in paths}
    chosen = None if columns is None else list(columns)
    others = suffixes & {*_ARROW, *_IN_MEMORY, ".npy"}
    if not others:
        return open_reference(list(paths), columns=chosen, batch_rows=batch_rows)
    if len(paths) > 1:
        raise UserValueError(f"reference: several files must all be Parquet; {sorted(others)[0]} was given")
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
            with open_batches(path) as incoming:
                return tuple(incoming.schema.names)
        import pyarrow.parquet as pq

        return tuple(pq.read_schema(path).names)
    except Exception:  # told by whoever reads it
        return None
