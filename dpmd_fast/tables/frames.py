"""Tables in memory: the columns of a model are cleaned, everything else stays as it is.

Columns are found by name, or by position if the model has no names; then the table must have no others.
float32 columns stay float32, other numbers become float64. Missing values are NaN for a model; those that
stay missing come back as null, or as NaN in columns that cannot hold a null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dpmd_fast.arguments import Points, shown
from dpmd_fast.columns import (
    Number,
    arrow_array,
    arrow_number_type,
    arrow_points,
    is_arrow,
    is_of,
    is_pandas,
    is_polars,
    listed,
    pandas_blocks,
    pandas_number_type,
    pandas_values,
    places_of,
    quoted,
)
from dpmd_fast.errors import UserValueError
from dpmd_fast.status import FAILED, Codes, words_of
from dpmd_fast.tables.protocol import RowCleaner, called, check_rows, has_deviations, takes_missing

_ROWS = 1 << 16  # read and moved at a time
_FEW = 1000  # rows of a frame that may be copied to see what it is
_WIDE = np.dtype(np.float64)
_NO_VALUES = ("null", "null[pyarrow]", "Null")  # types of columns in which every value is missing

_LARGEST = {number: float(np.finfo(number).max) for number in (np.float32, np.float64)}

Chosen = dict[int, Number]  # position of each column that is cleaned, in the order of the model, and its type

# Schema of the last table that a cleaner got, its columns that are cleaned, and the schema of the result: to
# find them takes longer than to clean a row.
_layouts: WeakKeyDictionary[RowCleaner, tuple[Any, Chosen, Any]] = WeakKeyDictionary()


class _Cleaned(NamedTuple):
    columns: list[Points]  # each in its type
    codes: Codes
    deviations: list[Points]  # NaN where the value is missing or unchanged; empty unless asked for


def is_table(value: object) -> bool:
    """Return True for what `transform_table` takes; imports nothing."""
    return is_pandas(value) or is_polars(value) or is_arrow(value) or is_reader(value)


def is_reader(value: object) -> bool:
    """Return True for an Arrow RecordBatchReader."""
    return is_of(value, "pyarrow", "RecordBatchReader")


def transform_table(cleaner: RowCleaner, table: Any, n_threads: int | None, return_status: bool) -> Any:
    """Return the same kind of table with its columns cleaned, and the status of each row if asked.

    Columns that are not cleaned, the order of the columns, an index and metadata are kept.
    """
    if is_reader(table):
        return _transform_reader(cleaner, table, n_threads, return_status)
    if is_pandas(table):
        moved, codes = _transform_pandas(cleaner, table, n_threads)
    elif is_polars(table):
        moved, codes = _transform_polars(cleaner, table, n_threads)
    else:
        moved, codes = ArrowTransform(cleaner, table.schema, called(cleaner))(table, n_threads)
    return (moved, words_of(codes)) if return_status else moved


def cleaned_places(cleaner: RowCleaner, names: Sequence[str], what: str) -> list[int]:
    """Return the positions of the columns of the cleaner among those of a table, or refuse the table."""
    if cleaner.column_names is None:
        if len(names) != cleaner.n_columns:
            raise UserValueError(
                f"{what} has {len(names)} columns: must have {cleaner.n_columns}; the {cleaner.kind} has no "
                "column names, so columns can only be matched by position"
            )
        return list(range(len(names)))
    present = set(names)
    missing = [name for name in cleaner.column_names if name not in present]
    if missing:
        raise UserValueError(
            f"{what} lacks {len(missing)} column(s) of the {cleaner.kind}: {quoted(missing)}"
        )
    return places_of(cleaner.column_names, names, what)


def not_numeric(cleaner: RowCleaner, what: str, columns: Sequence[str]) -> UserValueError:
    """Return the error for columns of the cleaner that are not numeric in a table."""
    by_position = f"; the {cleaner.kind} has no column names, so columns can only be matched by position"
    hint = by_position if cleaner.column_names is None else ""
    return UserValueError(
        f"{what} has {len(columns)} column(s) that are not numeric: {listed(columns)}{hint}"
    )


class ArrowTransform:
    """Cleans tables and record batches of one schema; may be called by several threads at once.

    Parameters
    ----------
    cleaner : RowCleaner
    schema : pyarrow.Schema
    what : str
        What messages call the table.
    deviation_suffix : str, optional
        If given, the posterior deviation of each cleaned column is added, after all columns and in their
        order, under the column's name with this suffix.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the results.
    added : tuple of str
        Names of the columns that are added.
    """

    def __init__(
        self, cleaner: RowCleaner, schema: Any, what: str, deviation_suffix: str | None = None
    ) -> None:
        self._cleaner, self._what = cleaner, what
        known = _layouts.get(cleaner)
        if known is None or not known[0].equals(schema, check_metadata=True):
            chosen = _choose(cleaner, schema.names, schema.types, arrow_number_type, what)
            known = _layouts[cleaner] = schema, chosen, schema_after(schema, chosen)
        _, self._chosen, self.schema = known
        self.added: tuple[str, ...] = ()
        if deviation_suffix is not None:
            self.schema, self.added = _with_deviations(self.schema, self._chosen, deviation_suffix, what)

    def __call__(self, part: Any, n_threads: int | None, first_row: int = 0) -> tuple[Any, Codes]:
        """Return the cleaned table or batch, and a status code for each row.

        Messages call the first row `first_row`.
        """
        import pyarrow as pa

        taken = part.select(list(self._chosen))
        if not isinstance(part, pa.RecordBatch) or len(part) > _ROWS:
            whole = taken if isinstance(taken, pa.Table) else pa.Table.from_batches([taken])
            pieces = whole.to_batches(max_chunksize=_ROWS)
        else:
            pieces = [taken]
        blocks = (arrow_points(piece, _WIDE) for piece in pieces)
        cleaned = _cleaned(
            self._cleaner,
            blocks,
            part.num_rows,
            self._chosen,
            n_threads,
            self._what,
            bool(self.added),
            first_row,
        )
        columns = [None if place in self._chosen else part.column(place) for place in range(part.num_columns)]
        gaps = self._cleaner.missing != "refuse"
        for position, column in zip(self._chosen, cleaned.columns, strict=True):
            nan_is_null = gaps and self.schema.field(position).nullable
            columns[position] = arrow_array(column, nan_is_null=nan_is_null)
        deviations = sorted(zip(self._chosen, cleaned.deviations, strict=False))  # none unless asked for
        columns += [arrow_array(column, nan_is_null=True) for _, column in deviations]
        return type(part).from_arrays(columns, schema=self.schema), cleaned.codes


def _with_deviations(schema: Any, chosen: Chosen, suffix: Any, what: str) -> tuple[Any, tuple[str, ...]]:
    """Return the schema with the columns of the deviations, and their names."""
    import pyarrow as pa

    if not isinstance(suffix, str) or not suffix:
        raise UserValueError(
            f"deviation_suffix = {shown(suffix)}: must be None or a text such as '_sd'",
            argument="deviation_suffix",
        )
    places = sorted(chosen)
    added = tuple(schema.names[place] + suffix for place in places)
    if taken := set(added) & set(schema.names):
        raise UserValueError(
            f"deviation_suffix = {suffix!r}: {what} has columns with these names already: "
            f"{quoted(sorted(taken))}",
            argument="deviation_suffix",
        )
    for place, name in zip(places, added, strict=True):
        schema = schema.append(pa.field(name, pa.from_numpy_dtype(chosen[place])))
    return schema, added


def _transform_reader(cleaner: RowCleaner, reader: Any, n_threads: int | None, return_status: bool) -> Any:
    import pyarrow as pa

    if return_status:
        raise UserValueError(
            "return_status = True: must be False for a RecordBatchReader, whose batches are moved when they "
            "are read; transform them one by one, or use transform_file with a status_column",
            argument="return_status",
        )
    transform = ArrowTransform(cleaner, reader.schema, called(cleaner))

    def batches() -> Iterator[Any]:
        start = 0
        for batch in reader:
            yield transform(batch, n_threads, start)[0]
            start += len(batch)

    return pa.RecordBatchReader.from_batches(transform.schema, batches())


def _transform_pandas(cleaner: RowCleaner, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    what, labels = called(cleaner), frame.columns
    names = [str(label) for label in labels]
    places = cleaned_places(cleaner, names, what)
    if places == [*range(len(names))] and (points := _one_array(frame)) is not None:
        check_rows(cleaner, what, points)
        moved, codes = cleaner.move(points, n_threads, what)
        return type(frame)(moved, index=frame.index, columns=labels, copy=False).__finalize__(frame), codes
    before = list(frame.dtypes)
    types = before.copy()
    by_label = labels.is_unique  # by position it takes five times as long

    def column_at(place: int) -> Any:
        return frame[labels[place]] if by_label else frame.iloc[:, place]

    if takes_missing(cleaner) and object in types:
        for place in places:
            types[place] = _type_of(column_at(place))
    chosen = _choose(cleaner, names, types, pandas_number_type, what)
    blank = np.full(len(frame), np.nan)
    arrays = [
        blank if str(types[place]) == _NO_VALUES[0] else pandas_values(column_at(place)) for place in chosen
    ]
    single = set(chosen.values()) == {np.float32}
    blocks = pandas_blocks(arrays, len(frame), np.dtype(np.float32) if single else _WIDE, _ROWS)
    cleaned = _cleaned(cleaner, blocks, len(frame), chosen, n_threads, what)
    out = frame.copy(deep=False)
    for position, column in zip(chosen, cleaned.columns, strict=True):
        out.isetitem(position, _as_pandas(column, before[position]))
    return out, cleaned.codes


def _one_array(frame: Any) -> Points | None:
    """Return the values of a small frame that pandas keeps as one array of floats, None of any other.

    For few rows: to look at the type of every column takes longer than to clean them. If pandas gives the
    same memory twice, there is nothing but one array, hence one type; a single column may be of any kind.
    """
    plain = type(frame) is sys.modules["pandas"].DataFrame and 0 < len(frame) <= _FEW
    points: Points = frame.to_numpy() if plain and frame.shape[1] > 1 else np.empty(0, np.int8)
    same = points.dtype in (np.float32, np.float64) and points.ctypes.data == frame.to_numpy().ctypes.data
    return points if same else None


def _type_of(column: Any) -> Any:
    """Return the type of a pandas column, "null" for objects that are all missing."""
    if column.dtype == object and len(column) and column.isna().all():
        return _NO_VALUES[0]
    return column.dtype


def _as_pandas(column: Points, before: Any) -> Any:
    """Return a column backed as it was before: by NumPy, with a mask, or by Arrow."""
    pandas: Any = sys.modules["pandas"]
    if hasattr(before, "pyarrow_dtype"):
        return pandas.arrays.ArrowExtensionArray(arrow_array(column, nan_is_null=True))
    if hasattr(before, "numpy_dtype"):
        return pandas.arrays.FloatingArray(column, np.isnan(column))
    return column


def _transform_polars(cleaner: RowCleaner, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    import polars as pl

    def number_type(dtype: Any) -> Number | None:
        if dtype == pl.Float32:
            return np.float32
        return np.float64 if dtype.is_numeric() or dtype == pl.Boolean else None

    what = called(cleaner)
    chosen = _choose(cleaner, frame.columns, frame.dtypes, number_type, what)
    names = [frame.columns[position] for position in chosen]
    blocks = (
        np.stack([piece.get_column(name).cast(pl.Float64).to_numpy() for name in names], axis=1)
        for piece in frame.iter_slices(_ROWS)
    )
    columns, codes, _ = _cleaned(cleaner, blocks, frame.height, chosen, n_threads, what)
    series = [pl.Series(name, column, nan_to_null=True) for name, column in zip(names, columns, strict=True)]
    return frame.with_columns(series), codes


def schema_after(schema: Any, chosen: Chosen) -> Any:
    """Return the schema with the types of the moved columns."""
    import pyarrow as pa

    types, fields = schema.types, list(schema)
    wanted = {number: pa.from_numpy_dtype(number) for number in set(chosen.values())}
    changed = {}
    for position, number in chosen.items():
        if types[position] != wanted[number]:
            changed[fields[position].name] = str(np.dtype(number))
            fields[position] = fields[position].with_type(wanted[number])
    if not changed:
        return schema
    return pa.schema(fields, metadata=_metadata_after(schema.metadata, changed))


def _metadata_after(
    metadata: dict[bytes, bytes] | None, changed: dict[str, str]
) -> dict[bytes, bytes] | None:
    """Return metadata in which pandas, if it noted the types of columns there, finds the new ones."""
    if not changed or metadata is None or b"pandas" not in metadata:
        return metadata
    try:
        noted = json.loads(metadata[b"pandas"])
        for column in noted["columns"]:
            if column["field_name"] in changed:
                name = changed[column["field_name"]]
                column.update(pandas_type=name, numpy_type=name, metadata=None)
    except (ValueError, KeyError, TypeError, AttributeError):  # not what pandas writes
        return metadata
    return {**metadata, b"pandas": json.dumps(noted).encode()}


def _choose(
    cleaner: RowCleaner,
    names: Sequence[str],
    types: Sequence[Any],
    number_type: Callable[[Any], Number | None],
    what: str,
) -> Chosen:
    """Return the columns of a table that are cleaned, or refuse the table."""
    places = cleaned_places(cleaner, names, what)
    numbers = {kind: number_type(kind) for kind in {types[place] for place in places}}
    found = {place: numbers[types[place]] for place in places}
    if takes_missing(cleaner):
        found.update({place: np.float64 for place in found if str(types[place]) in _NO_VALUES})
    chosen = {place: number for place, number in found.items() if number is not None}
    if len(chosen) < len(found):
        others = [f"{names[place]!r} ({types[place]})" for place in found if place not in chosen]
        raise not_numeric(cleaner, what, others)
    return chosen


def _cleaned(
    cleaner: RowCleaner,
    blocks: Iterable[Points],
    rows: int,
    chosen: Chosen,
    n_threads: int | None,
    what: str,
    deviations: bool = False,
    first_row: int = 0,
) -> _Cleaned:
    """Return the cleaned columns of all blocks together."""
    numbers_of = list(chosen.values())
    table = np.empty((len(chosen), rows)) if set(numbers_of) == {np.float64} else None  # all columns at once
    columns: list[Points] = [np.empty(rows, number) for number in numbers_of] if table is None else [*table]
    spreads: list[Points] = [np.empty_like(column) for column in columns] if deviations else []
    status = np.empty(rows, np.int8)
    most = np.array([_LARGEST[number] for number in numbers_of])
    least = min(most)
    start = 0
    for block in blocks:
        check_rows(cleaner, what, block, first_row + start)
        part = slice(start, start + len(block))
        if deviations:
            assert has_deviations(cleaner)
            moved, spread, status[part] = cleaner.move_with_deviations(block, n_threads, what)
        else:
            moved, status[part] = cleaner.move(block, n_threads, what)
        if len(moved) and not (-least <= moved.min() and moved.max() <= least):  # never true of NaN
            within = np.abs(moved) <= most
            if cleaner.missing != "refuse":
                within |= np.isnan(moved)  # still missing
            beyond = ~within.all(axis=1)
            moved[beyond] = block[beyond]
            status[part][beyond] = FAILED
        if table is not None:
            table[:, part] = moved.T
        else:
            for column, numbers in zip(columns, moved.T, strict=True):
                column[part] = numbers
        if deviations:
            known = (spread <= most) & ~np.isnan(moved) & (status[part] != FAILED)[:, None]
            for column, numbers in zip(spreads, np.where(known, spread, np.nan).T, strict=True):
                column[part] = numbers
        start += len(block)
    return _Cleaned(columns, status, spreads)
