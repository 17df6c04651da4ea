"""Tables of several kinds as record batches that every server takes, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dpmd_fast.columns import is_arrow, is_of, is_pandas, is_polars
from dpmd_fast.errors import UserTypeError

_ROWS = 1 << 16  # of a batch that is sent
_BYTES = 8 << 20


def batches_of(table: Any) -> tuple[Any, Callable[[], Iterator[Any]], Callable[[Any], Any]]:
    """Return the schema of a table, what makes an iterator over its batches, and the way back."""
    if is_pandas(table):
        import pyarrow as pa

        arrow = pa.Table.from_pandas(table)
        return arrow.schema, lambda: pieces(arrow.to_batches()), lambda clean: clean.to_pandas()
    if is_polars(table):
        import polars as pl

        arrow = table.to_arrow()
        return arrow.schema, lambda: pieces(arrow.to_batches()), pl.from_arrow
    if is_of(table, "pyarrow", "RecordBatch"):
        return table.schema, lambda: pieces([table]), _one_batch
    if is_arrow(table):
        return table.schema, lambda: pieces(table.to_batches()), lambda clean: clean
    if is_of(table, "pyarrow", "RecordBatchReader"):
        return table.schema, lambda: pieces(table), lambda clean: clean
    raise UserTypeError(
        f"table is a {type(table).__name__}: must be an Arrow table, batch or reader, or a DataFrame of "
        "pandas or polars"
    )


def pieces(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches in pieces that every server takes."""
    for batch in batches:
        width = batch.nbytes / max(1, batch.num_rows)
        rows = max(1, min(_ROWS, int(_BYTES / max(1.0, width))))
        if batch.num_rows <= rows:
            yield batch
            continue
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _one_batch(clean: Any) -> Any:
    batches = clean.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in clean.columns], schema=clean.schema
    )
