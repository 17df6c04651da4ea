"""Arrow tables and streams as a private reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.columns import (
    arrow_number_type,
    arrow_type_or_missing,
    as_type,
    block_type,
    chosen_fields,
    is_of,
    values,
)
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.sources.base import KINDS, ReferenceSource, with_fixed_error


class ArrowSource(ReferenceSource):
    """A reference read as Arrow record batches of a known schema."""

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
        missing: bool = False,
    ) -> None:
        self._schema = chosen_fields(schema, columns, name)
        number_type = arrow_type_or_missing if missing else arrow_number_type
        super().__init__(
            reference,
            n_columns=len(self._schema.names),
            column_names=tuple(self._schema.names),
            rows=rows,
            dtype=block_type(name, self._schema.names, self._schema.types, number_type),
            batch_rows=batch_rows,
            rereadable=rereadable,
        )

    def _read(self, batches: Iterable[Any], complaint: str) -> Iterator[Any]:
        """Yield the chosen columns of the batches in the type of the blocks; raise errors as `complaint`."""
        # Slice first: a table in memory may be one batch, and converting it would copy all of it.
        pieces = (
            batch.slice(start, min(self.batch_rows, batch.num_rows - start))
            for batch in batches
            for start in range(0, batch.num_rows, self.batch_rows)
        )
        return with_fixed_error(map(self._numbers, pieces), complaint)

    def _numbers(self, batch: Any) -> Any:
        import pyarrow as pa

        names = self._schema.names
        return pa.RecordBatch.from_arrays([as_type(batch.column(name), self.dtype) for name in names], names)

    def _regrouped(self, batches: Iterable[Any]) -> Iterator[Points]:
        """Yield blocks of `batch_rows` rows, whatever the sizes of the batches."""
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


class TableSource(ArrowSource):
    """An Arrow Table or RecordBatch."""

    def __init__(
        self, table: Any, columns: tuple[str, ...] | None, batch_rows: int | None, missing: bool = False
    ) -> None:
        super().__init__(table, table.schema, columns, batch_rows, rows=table.num_rows, missing=missing)

    def blocks(self) -> Iterator[Points]:
        table = self.reference
        batches = table.to_batches() if is_of(table, "pyarrow", "Table") else [table]
        complaint = f"reference could not be read: its {type(table).__name__} is not valid, or memory ran out"
        return self._regrouped(self._read(batches, complaint))


class StreamSource(ArrowSource):
    """An object that exports an Arrow stream; a RecordBatchReader can be read once, others repeatedly."""

    def __init__(
        self, stream: Any, columns: tuple[str, ...] | None, batch_rows: int | None, missing: bool = False
    ) -> None:
        once = is_of(stream, "pyarrow", "RecordBatchReader")
        # Kept for the first pass: an object that exports only once has exported for the schema.
        self._reader = stream if once else open_stream(stream)
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
            missing=missing,
        )

    def blocks(self) -> Iterator[Points]:
        reader, self._reader = self._reader, None
        kind = type(self.reference).__name__
        if reader is None and self.rereadable:
            reader = open_stream(self.reference)
        if reader is None:
            raise UserValueError(
                f"reference is a {kind} that can be read only once and has been read: give a table, for "
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
                f"reference is a {kind} that gave different records on the second read: give a table or "
                "Parquet files"
            )
        self._rows_seen = rows


def open_stream(stream: Any) -> Any:
    """Return a RecordBatchReader of an object with ``__arrow_c_stream__``; None if its export fails."""
    import pyarrow as pa

    if type(stream).__module__.startswith("polars"):
        names = getattr(stream, "columns", None) or [getattr(stream, "name", "")]
        if any("\0" in name for name in names):  # polars would abort the process
            raise UserValueError("columns: a column name holds a null character; rename it")
    try:
        return pa.RecordBatchReader.from_stream(stream)
    except Exception:
        return None
