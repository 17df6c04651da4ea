"""Tables in memory: the columns of a model are cleaned, everything else stays as it is.

Columns are found by name, or by position if the model has no names; then the table must have no others.
float32 columns stay float32, other numbers become float64. Missing values are NaN for a model; those that
stay missing come back as null, or as NaN in columns that cannot hold a null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.arguments import Points, shown
from dpmd_fast.columns import (
    Number,
    are_one_tensor,
    arrow_array,
    arrow_number_type,
    arrow_points,
    arrow_rows,
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
from dpmd_fast.tables.layouts import Layouts
from dpmd_fast.tables.protocol import RowCleaner, called, check_rows, has_deviations, takes_missing

ROWS = 1 << 16  # read and moved at a time
WIDE = np.dtype(np.float64)
NO_VALUES = ("null", "null[pyarrow]", "Null")  # types of columns in which every value is missing

_LARGEST = {number: float(np.finfo(number).max) for number in (np.float32, np.float64)}

Chosen = dict[int, Number]  # position of each column that is cleaned, in the order of the model, and its type


class _Layout(NamedTuple):
    """What follows from the schema of an Arrow table alone."""

    chosen: Chosen
    places: list[int] | None  # of the chosen columns; None if they are the whole table, in its order
    one_tensor: bool
    schema: Any  # of the result
    nullable: list[bool]  # of the chosen columns


class Cleaned(NamedTuple):
    columns: Points | list[Points]  # one array (D, rows) if all are of one type; otherwise each in its own
    codes: Codes
    deviations: list[Points]  # NaN where the value is missing or unchanged; empty unless asked for
    complete: bool  # no value of the columns is NaN; False may be wrong


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
        from dpmd_fast.tables.polars_frames import transform_polars

        moved, codes = transform_polars(cleaner, table, n_threads)
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
        self._layout = _layouts.find(cleaner, schema, lambda: _layout(cleaner, schema, what))
        self.schema = self._layout.schema
        self.added: tuple[str, ...] = ()
        if deviation_suffix is not None:
            chosen = self._layout.chosen
            self.schema, self.added = _with_deviations(self.schema, chosen, deviation_suffix, what)

    def __call__(self, part: Any, n_threads: int | None, first_row: int = 0) -> tuple[Any, Codes]:
        """Return the cleaned table or batch, and a status code for each row.

        Messages call the first row `first_row`.
        """
        import pyarrow as pa

        chosen, places, one_tensor, _, nullable = self._layout
        taken = part if places is None else part.select(places)
        if not isinstance(part, pa.RecordBatch) or len(part) > ROWS:
            whole = taken if isinstance(taken, pa.Table) else pa.Table.from_batches([taken])
            pieces = whole.to_batches(max_chunksize=ROWS)
        else:
            pieces = [taken]
        cleaned = cleaned_blocks(
            self._cleaner,
            (arrow_points(piece, one_tensor) for piece in pieces),
            part.num_rows,
            chosen,
            n_threads,
            self._what,
            bool(self.added),
            first_row,
        )
        gaps = self._cleaner.missing != "refuse" and not cleaned.complete
        if isinstance(cleaned.columns, np.ndarray) and not gaps:
            made = arrow_rows(cleaned.columns)
        else:
            made = [
                arrow_array(column, nan_is_null=gaps and may_be_null)
                for column, may_be_null in zip(cleaned.columns, nullable, strict=True)
            ]
        columns = made
        if places is not None:
            columns = [None if place in chosen else part.column(place) for place in range(part.num_columns)]
            for place, column in zip(places, made, strict=True):
                columns[place] = column
        deviations = sorted(zip(chosen, cleaned.deviations, strict=False))  # none unless asked for
        columns += [arrow_array(column, nan_is_null=True) for _, column in deviations]
        return type(part).from_arrays(columns, schema=self.schema), cleaned.codes


def _has_plain_types(schema: Any) -> bool:
    """Return False if Arrow compares a type or part of one loosely: an extension's, or a dictionary of lists.

    Of the first it leaves out parameters, of the second metadata of fields.
    """
    import pyarrow as pa

    types = list(schema.types)
    while types:
        kind = types.pop()
        if isinstance(kind, pa.BaseExtensionType):
            return False
        if isinstance(kind, pa.DictionaryType):
            if kind.value_type.num_fields:
                return False
            types.append(kind.value_type)
        types += [kind.field(place).type for place in range(kind.num_fields)]
    return True


_layouts: Layouts[_Layout] = Layouts(
    lambda schema, other: schema.equals(other, check_metadata=True), _has_plain_types
)


def _layout(cleaner: RowCleaner, schema: Any, what: str) -> _Layout:
    """Return the layout of tables with a schema, or refuse them."""
    types = schema.types
    chosen = choose(cleaner, schema.names, types, arrow_number_type, what)
    places, after = list(chosen), schema_after(schema, chosen)
    return _Layout(
        chosen,
        None if places == list(range(len(types))) else places,
        are_one_tensor(types[place] for place in places),
        after,
        [after.field(place).nullable for place in places],
    )


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
) -> Cleaned:
    """Return the cleaned columns of all blocks together."""
    kinds = set(chosen.values())
    columns: Points | list[Points]
    if len(kinds) == 1:
        columns = np.empty((len(chosen), rows), next(iter(kinds)))
    else:
        columns = [np.empty(rows, number) for number in chosen.values()]
    spreads: list[Points] = [np.empty_like(column) for column in columns] if deviations else []
    status = np.empty(rows, np.int8)
    most = np.array([_LARGEST[number] for number in chosen.values()])
    least = min(_LARGEST[number] for number in kinds)
    complete, start = True, 0
    for block in blocks:
        check_rows(cleaner, what, block, first_row + start)
        part = slice(start, start + len(block))
        if deviations:
            assert has_deviations(cleaner)
            moved, spread, status[part] = cleaner.move_with_deviations(block, n_threads, what)
        else:
            moved, status[part] = cleaner.move(block, n_threads, what)
        if len(moved) and not (-least <= moved.min() and moved.max() <= least):  # never true of NaN
            complete = False
            within = np.abs(moved) <= most
            if cleaner.missing != "refuse":
                within |= np.isnan(moved)  # still missing
            beyond = ~within.all(axis=1)
            moved[beyond] = block[beyond]
            status[part][beyond] = FAILED
        if isinstance(columns, np.ndarray):
            columns[:, part] = moved.T
        else:
            for column, numbers in zip(columns, moved.T, strict=True):
                column[part] = numbers
        if deviations:
            known = (spread <= most) & ~np.isnan(moved) & (status[part] != FAILED)[:, None]
            for column, numbers in zip(spreads, np.where(known, spread, np.nan).T, strict=True):
                column[part] = numbers
        start += len(block)
    return Cleaned(columns, status, spreads, complete)
