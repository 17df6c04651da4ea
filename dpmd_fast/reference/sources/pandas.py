"""A pandas DataFrame as a private reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.columns import as_type, block_type, pandas_number_type, pandas_values, places_of, values
from dpmd_fast.reference.sources.base import ReferenceSource


class PandasSource(ReferenceSource):
    """A DataFrame, read column by column: conversion to Arrow would guess the type of object columns."""

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
        for start in range(0, self.rows, self.batch_rows):
            stop = min(start + self.batch_rows, self.rows)
            yield np.stack([self._numbers(column[start:stop]) for column in self._columns], axis=1)

    def _numbers(self, column: Any) -> Points:
        if isinstance(column, np.ndarray):
            return column.astype(self.dtype, copy=False)
        if hasattr(column.dtype, "pyarrow_dtype"):
            return values(as_type(column.__arrow_array__(), self.dtype))
        return np.asarray(column.to_numpy(dtype=self.dtype, na_value=np.nan))
