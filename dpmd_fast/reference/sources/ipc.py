"""A private reference in one Arrow IPC file, read batch by batch; not memory-mapped (see `npy`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.arrow import ArrowSource
from dpmd_fast.reference.sources.npy import Opener, cannot_read
from dpmd_fast.tables.formats import arrow_file, whole_batches


def look_at_ipc(path: str) -> Opener:
    """Read the schema and the number of rows of an Arrow IPC file."""
    import pyarrow as pa

    with pa.memory_map(path) as mapped:  # reads the metadata of a batch only
        reader = pa.ipc.open_file(mapped)
        rows = sum(batch.num_rows for batch in whole_batches(reader))
        return partial(ArrowFileSource, path, reader.schema, rows)


class ArrowFileSource(ArrowSource):
    """The record batches of an Arrow IPC file."""

    def __init__(
        self, path: str, schema: Any, rows: int, columns: tuple[str, ...] | None, batch_rows: int | None
    ) -> None:
        super().__init__(path, schema, columns, batch_rows, rows=rows)
        self._path = path

    def blocks(self) -> Iterator[Points]:
        return self._counted(self._regrouped(self._read(self._batches(), cannot_read(self._path))))

    def _batches(self) -> Iterator[Any]:
        import pyarrow as pa

        with arrow_file(self._path) as file:
            yield from whole_batches(pa.ipc.open_file(file))

    def _counted(self, blocks: Iterator[Points]) -> Iterator[Points]:
        rows = 0
        for block in blocks:
            rows += len(block)
            yield block
        if rows != self.rows:
            raise UserValueError(f"{self._path} has changed since it was opened: it cannot be read again")
