"""polars frames: the columns of a model are cleaned, all others are shared with the result."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.columns import Number
from dpmd_fast.status import Codes
from dpmd_fast.tables.frames import ROWS, Chosen, choose, cleaned_blocks
from dpmd_fast.tables.layouts import Layouts
from dpmd_fast.tables.protocol import RowCleaner, called

# Rows of a result whose columns share memory, which takes less time. A column that outlives the others keeps
# the memory of all of them, so it is not done for many rows.
_FEW = 1000


class _Layout(NamedTuple):
    """What follows from the names and types of the columns of a frame alone."""

    chosen: Chosen
    wide: list[bool]  # whether each of them is float64
    plain: bool  # whether Python turns all their values into the same floats as polars


_layouts: Layouts[_Layout] = Layouts(operator.eq)


def transform_polars(cleaner: RowCleaner, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    """Return the frame with its columns cleaned, and a status code for each row."""
    what, names, types = called(cleaner), frame.columns, frame.dtypes
    layout = _layouts.find(cleaner, (names, types), lambda: _layout(cleaner, names, types, what))
    chosen = layout.chosen
    pieces = frame.iter_slices(ROWS) if frame.height > ROWS else [frame]
    blocks = (_points(piece, layout) for piece in pieces)
    cleaned = cleaned_blocks(cleaner, blocks, frame.height, chosen, n_threads, what)
    out = frame.clone()  # shares all columns; `with_columns` would plan a query first
    for position, column in zip(chosen, _series(cleaned.columns), strict=True):
        out.replace_column(position, column.rename(names[position]))
    return out, cleaned.codes


def _layout(cleaner: RowCleaner, names: list[str], types: list[Any], what: str) -> _Layout:
    """Return the layout of frames with these columns, or refuse them."""
    import polars as pl

    chosen = choose(cleaner, names, types, _number_type, what)
    kinds = [types[position] for position in chosen]
    plain = all(kind.is_float() or kind.is_integer() or kind == pl.Boolean for kind in kinds)
    return _Layout(chosen, [kind == pl.Float64 for kind in kinds], plain)


def _number_type(dtype: Any) -> Number | None:
    import polars as pl

    if dtype == pl.Float32:
        return np.float32
    return np.float64 if dtype.is_numeric() or dtype == pl.Boolean else None


def _points(frame: Any, layout: _Layout) -> Points:
    """Return the chosen columns side by side as one array (rows, D) of float64, with NaN for nulls."""
    import polars as pl

    if frame.height == 1 and layout.plain:  # an array of each column takes five times as long
        return np.array([[frame.item(0, position) for position in layout.chosen]], np.float64)

    def values(position: int, is_wide: bool) -> Points:
        column = frame.to_series(position)
        return (column if is_wide else column.cast(pl.Float64)).to_numpy()  # type: ignore[no-any-return]

    return np.stack([values(*one) for one in zip(layout.chosen, layout.wide, strict=True)], axis=1)


def _series(columns: Points | list[Points]) -> list[Any]:
    """Return cleaned columns as series, with nulls for NaN."""
    import polars as pl

    if not isinstance(columns, np.ndarray) or columns.shape[1] > _FEW:
        return [pl.Series(values=column, nan_to_null=True) for column in columns]
    places, rows = range(len(columns)), columns.shape[1]
    together = pl.Series(values=columns.ravel(), nan_to_null=True)  # five times as long as a slice
    return [together.slice(place * rows, rows) for place in places]
