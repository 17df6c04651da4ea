"""A pandas DataFrame as a private reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpmd_fast.arguments import Points
from dpmd_fast.columns import block_type, pandas_blocks, pandas_number_type, pandas_values, places_of
from dpmd_fast.reference.sources.base import ReferenceSource


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
