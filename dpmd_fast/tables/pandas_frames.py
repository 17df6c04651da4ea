"""pandas frames: the columns of a model are cleaned, and come back as they were backed before."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.columns import arrow_array, pandas_blocks, pandas_number_type, pandas_values
from dpmd_fast.status import Codes
from dpmd_fast.tables.frames import NO_VALUES, ROWS, WIDE, choose, cleaned_blocks, cleaned_places
from dpmd_fast.tables.protocol import RowCleaner, called, check_rows, takes_missing

_FEW = 1000  # rows of a frame that may be copied to see what it is


def transform_pandas(cleaner: RowCleaner, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    """Return the frame with its columns cleaned, and a status code for each row."""
    what, labels = called(cleaner), frame.columns
    names = [str(label) for label in labels]
    places = cleaned_places(cleaner, names, what)
    whole = len(places) == len(names)
    reordered = whole and places != [*range(len(names))]
    if (points := _one_array(frame, None if whole else places)) is not None:
        if reordered:
            points = points.take(places, axis=1)
        check_rows(cleaner, what, points)
        moved, codes = cleaner.move(points, n_threads, what)
        if reordered:
            moved = moved.take(np.argsort(places, kind="stable"), axis=1)
        if whole:
            out = type(frame)(moved, index=frame.index, columns=labels, copy=False).__finalize__(frame)
        else:  # into a copy: to put in one column after the other takes ten times as long
            out = frame.copy()
            out.iloc[:, places] = moved
        return out, codes
    before = list(frame.dtypes)
    types = before.copy()
    by_label = labels.is_unique  # by position it takes five times as long

    def column_at(place: int) -> Any:
        return frame[labels[place]] if by_label else frame.iloc[:, place]

    if takes_missing(cleaner) and object in types:
        for place in places:
            types[place] = _type_of(column_at(place))
    chosen = choose(cleaner, names, types, pandas_number_type, what)
    blank = np.full(len(frame), np.nan)
    arrays = [
        blank if str(types[place]) == NO_VALUES[0] else pandas_values(column_at(place)) for place in chosen
    ]
    single = set(chosen.values()) == {np.float32}
    blocks = pandas_blocks(arrays, len(frame), np.dtype(np.float32) if single else WIDE, ROWS)
    cleaned = cleaned_blocks(cleaner, blocks, len(frame), chosen, n_threads, what)
    out = frame.copy(deep=False)
    for position, column in zip(chosen, cleaned.columns, strict=True):
        out.isetitem(position, _as_pandas(column, before[position]))
    return out, cleaned.codes


def _one_array(frame: Any, places: list[int] | None = None) -> Points | None:
    """Return the values of a small frame, or of some columns, that pandas keeps as one array of floats.

    None of any other. For few rows: to look at the type of every column takes longer than to clean them. If
    pandas gives the same memory twice, there is nothing but one array, hence one type; a single column may be
    of any kind.
    """
    if not (type(frame) is sys.modules["pandas"].DataFrame and 0 < len(frame) <= _FEW):
        return None
    taken = frame if places is None else frame.take(places, axis=1)
    points: Points = taken.to_numpy() if taken.shape[1] > 1 else np.empty(0, np.int8)
    same = points.dtype in (np.float32, np.float64) and points.ctypes.data == taken.to_numpy().ctypes.data
    return points if same else None


def _type_of(column: Any) -> Any:
    """Return the type of a pandas column, "null" for objects that are all missing."""
    if column.dtype == object and len(column) and column.isna().all():
        return NO_VALUES[0]
    return column.dtype


def _as_pandas(column: Points, before: Any) -> Any:
    """Return a column backed as it was before: by NumPy, with a mask, or by Arrow."""
    pandas: Any = sys.modules["pandas"]
    if hasattr(before, "pyarrow_dtype"):
        return pandas.arrays.ArrowExtensionArray(arrow_array(column, nan_is_null=True))
    if hasattr(before, "numpy_dtype"):
        return pandas.arrays.FloatingArray(column, np.isnan(column))
    return column
