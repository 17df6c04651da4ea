"""Parquet files as a private reference, in memory independent of their size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dpmd_fast.arguments import Points
from dpmd_fast.atomic import file_identity
from dpmd_fast.columns import CHOOSE, chosen_fields
from dpmd_fast.errors import (
    UserFileNotFoundError,
    UserIsADirectoryError,
    UserOSError,
    UserTypeError,
    UserValueError,
)
from dpmd_fast.reference.sources.arrow import ArrowSource

_READ_BYTES = 2**16  # per column


class ParquetSource(ArrowSource):
    """Parquet files, read one after the other."""

    def __init__(
        self,
        reference: Any,
        paths: Sequence[Any],
        columns: tuple[str, ...] | None,
        batch_rows: int | None,
        missing: bool = False,
    ) -> None:
        if not all(isinstance(path, (str, os.PathLike)) for path in paths):
            raise UserTypeError(
                "reference is a list or tuple: must hold paths of Parquet files; convert numbers with "
                "numpy.asarray(values), and join tables with pyarrow.concat_tables(tables)"
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
                    super().__init__(
                        reference, schema, columns, batch_rows, rows=None, name=path, missing=missing
                    )
                elif file_identity(path) in seen:
                    # A record read twice would contribute twice, more than the sensitivity bound allows.
                    raise UserValueError(
                        f"{path} is in the list more than once: each file must be given once"
                    )
                else:
                    self._check_as_first(path, chosen_fields(schema, columns, path))
                self._file_rows.append(parquet.metadata.num_rows)
            seen.add(file_identity(path))
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


@contextmanager
def _parquet_file(path: str) -> Iterator[tuple[Any, Any]]:
    """Open a ParquetFile; yield it with its Arrow schema."""
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
        # Prebuffering would hold the whole file; without a buffer size, whole column chunks would be held.
        parquet = pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)
        schema = parquet.schema_arrow
    if schema is None:
        raise UserValueError(
            f"{path} could not be read: it is not a Parquet file, is truncated, damaged or encrypted, or its "
            "permissions do not allow it"
        )
    with parquet:
        yield parquet, schema
