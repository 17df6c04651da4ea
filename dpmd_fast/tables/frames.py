"""Tables in memory: the columns of a model are cleaned, everything else stays as it is.

Columns are found by name, or by position if the model has no names; then the table must have no others.
float32 columns stay float32, other numbers become float64. Missing values are NaN for a model; those that
stay missing come back as null, or as NaN in columns that cannot hold a null.
"""

from __future__ import annotations

import json
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
    places_of,
    quoted,
)
from dpmd_fast.errors import UserValueError
from dpmd_fast.status import FAILED, Codes, words_of
from dpmd_fast.tables.protocol import RowCleaner, called, check_rows, has_deviations, takes_missing

ROWS = 1 << 16  # read and moved at a time
WIDE = np.dtype(np.float64)
NO_VALUES = ("null", "null[pyarrow]", "Null")  # types of columns in which every value is missing

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
        from dpmd_fast.tables.pandas_frames import transform_pandas

        moved, codes = transform_pandas(cleaner, table, n_threads)
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
            chosen = choose(cleaner, schema.names, schema.types, arrow_number_type, what)
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
        if not isinstance(part, pa.RecordBatch) or len(part) > ROWS:
            whole = taken if isinstance(taken, pa.Table) else pa.Table.from_batches([taken])
            pieces = whole.to_batches(max_chunksize=ROWS)
        else:
            pieces = [taken]
        blocks = (arrow_points(piece, WIDE) for piece in pieces)
        cleaned = cleaned_blocks(
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


def _transform_polars(cleaner: RowCleaner, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    import polars as pl

    def number_type(dtype: Any) -> Number | None:
        if dtype == pl.Float32:
            return np.float32
        return np.float64 if dtype.is_numeric() or dtype == pl.Boolean else None

    what = called(cleaner)
    every, types = frame.columns, frame.dtypes
    chosen = choose(cleaner, every, types, number_type, what)
    names = [every[position] for position in chosen]
    wide = [types[position] == pl.Float64 for position in chosen]

    def values(piece: Any, name: str, is_wide: bool) -> Any:
        column = piece.get_column(name)
        return (column if is_wide else column.cast(pl.Float64)).to_numpy()

    pieces = frame.iter_slices(ROWS) if frame.height > ROWS else [frame]
    blocks = (np.stack([values(piece, *one) for one in zip(names, wide, strict=True)], 1) for piece in pieces)
    columns, codes, _ = cleaned_blocks(cleaner, blocks, frame.height, chosen, n_threads, what)
    out = frame.clone()  # shares all columns; `with_columns` would plan a query first
    for position, name, column in zip(chosen, names, columns, strict=True):
        out.replace_column(position, pl.Series(name, column, nan_to_null=True))
    return out, codes


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


def choose(
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
        found.update({place: np.float64 for place in found if str(types[place]) in NO_VALUES})
    chosen = {place: number for place, number in found.items() if number is not None}
    if len(chosen) < len(found):
        others = [f"{names[place]!r} ({types[place]})" for place in found if place not in chosen]
        raise not_numeric(cleaner, what, others)
    return chosen


def cleaned_blocks(
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
