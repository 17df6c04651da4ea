"""Tables in memory: the columns of an atlas are moved, everything else stays as it is.

Columns are found by name, or by position if the atlas has no names; then the table must have no others.
float32 columns stay float32, other numbers become float64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import Points, check_range
from dpmd_fast.columns import (
    Number,
    arrow_array,
    arrow_block,
    arrow_number_type,
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

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

_ROWS = 1 << 16  # read and moved at a time
_WIDE = np.dtype(np.float64)

Chosen = dict[int, Number]  # position of each column that is moved, in the order of the atlas, and its type


def is_table(value: object) -> bool:
    """Return True for what `transform_table` takes; imports nothing."""
    return is_pandas(value) or is_polars(value) or is_arrow(value) or _is_reader(value)


def transform_table(atlas: Atlas, table: Any, n_threads: int | None, return_status: bool) -> Any:
    """Return the same kind of table with the columns of the atlas moved, and the status of each row if asked.

    Columns that are not moved, the order of the columns, an index and metadata are kept.
    """
    if _is_reader(table):
        return _transform_reader(atlas, table, n_threads, return_status)
    if is_pandas(table):
        moved, codes = _transform_pandas(atlas, table, n_threads)
    elif is_polars(table):
        moved, codes = _transform_polars(atlas, table, n_threads)
    else:
        moved, codes = ArrowTransform(atlas, table.schema)(table, n_threads)
    return (moved, words_of(codes)) if return_status else moved


def atlas_places(atlas: Atlas, names: Sequence[str], what: str = "Z") -> list[int]:
    """Return the positions of the columns of the atlas among those of a table, or refuse the table."""
    if atlas.column_names is None:
        if len(names) != atlas.n_columns:
            raise UserValueError(
                f"{what} has {len(names)} columns: must have {atlas.n_columns}; the atlas has no column "
                "names, so columns can only be matched by position"
            )
        return list(range(len(names)))
    present = set(names)
    missing = [name for name in atlas.column_names if name not in present]
    if missing:
        raise UserValueError(f"{what} lacks {len(missing)} column(s) of the atlas: {quoted(missing)}")
    return places_of(atlas.column_names, names, what)


def not_numeric(what: str, columns: Sequence[str], by_name: bool) -> UserValueError:
    """Return the error for columns of the atlas that are not numeric in a table."""
    hint = "" if by_name else "; the atlas has no column names, so columns can only be matched by position"
    return UserValueError(
        f"{what} has {len(columns)} column(s) that are not numeric: {listed(columns)}{hint}"
    )


class ArrowTransform:
    """Moves tables and record batches of one schema; may be called by several threads at once.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the results.
    """

    def __init__(self, atlas: Atlas, schema: Any, what: str = "Z") -> None:
        self._atlas, self._what = atlas, what
        self._chosen = _choose(atlas, schema.names, schema.types, arrow_number_type, what)
        self.schema = schema_after(schema, self._chosen)

    def __call__(self, part: Any, n_threads: int | None) -> tuple[Any, Codes]:
        """Return the moved table or batch, and a status code for each row."""
        import pyarrow as pa

        whole = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
        pieces = whole.select(list(self._chosen)).to_batches(max_chunksize=_ROWS)
        blocks = (arrow_block(piece.columns, _WIDE) for piece in pieces)
        columns = list(part.columns)
        moved, codes = _moved(self._atlas, blocks, part.num_rows, self._chosen, n_threads, self._what)
        for position, column in zip(self._chosen, moved, strict=True):
            columns[position] = arrow_array(column)
        return type(part).from_arrays(columns, schema=self.schema), codes


def _is_reader(value: object) -> bool:
    return is_of(value, "pyarrow", "RecordBatchReader")


def _transform_reader(atlas: Atlas, reader: Any, n_threads: int | None, return_status: bool) -> Any:
    import pyarrow as pa

    if return_status:
        raise UserValueError(
            "return_status = True: must be False for a RecordBatchReader, whose batches are moved when they "
            "are read; transform them one by one, or use transform_file with a status_column",
            argument="return_status",
        )
    transform = ArrowTransform(atlas, reader.schema)
    return pa.RecordBatchReader.from_batches(
        transform.schema, (transform(batch, n_threads)[0] for batch in reader)
    )


def _transform_pandas(atlas: Atlas, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    chosen = _choose(atlas, [str(name) for name in frame.columns], list(frame.dtypes), pandas_number_type)
    arrays = [pandas_values(frame.iloc[:, position]) for position in chosen]
    single = set(chosen.values()) == {np.float32}
    blocks = pandas_blocks(arrays, len(frame), np.dtype(np.float32) if single else _WIDE, _ROWS)
    columns, codes = _moved(atlas, blocks, len(frame), chosen, n_threads)
    out = frame.copy(deep=False)
    for position, column in zip(chosen, columns, strict=True):
        out.isetitem(position, _as_pandas(column, frame.dtypes.iloc[position]))
    return out, codes


def _as_pandas(column: Points, before: Any) -> Any:
    """Return a column backed as it was before: by NumPy, with a mask, or by Arrow."""
    pandas: Any = sys.modules["pandas"]
    if hasattr(before, "pyarrow_dtype"):
        import pyarrow as pa

        return pandas.array(column, dtype=pandas.ArrowDtype(pa.from_numpy_dtype(column.dtype)))
    if hasattr(before, "numpy_dtype"):
        return pandas.array(column, dtype="Float32" if column.dtype == np.float32 else "Float64")
    return column


def _transform_polars(atlas: Atlas, frame: Any, n_threads: int | None) -> tuple[Any, Codes]:
    import polars as pl

    def number_type(dtype: Any) -> Number | None:
        if dtype == pl.Float32:
            return np.float32
        return np.float64 if dtype.is_numeric() or dtype == pl.Boolean else None

    chosen = _choose(atlas, frame.columns, frame.dtypes, number_type)
    names = [frame.columns[position] for position in chosen]
    blocks = (
        np.stack([piece.get_column(name).cast(pl.Float64).to_numpy() for name in names], axis=1)
        for piece in frame.iter_slices(_ROWS)
    )
    columns, codes = _moved(atlas, blocks, frame.height, chosen, n_threads)
    return frame.with_columns(map(pl.Series, names, columns)), codes


def schema_after(schema: Any, chosen: Chosen) -> Any:
    """Return the schema with the types of the moved columns."""
    import pyarrow as pa

    fields = list(schema)
    changed = {}
    for position, number in chosen.items():
        wanted = pa.from_numpy_dtype(number)
        if fields[position].type != wanted:
            changed[fields[position].name] = str(np.dtype(number))
            fields[position] = fields[position].with_type(wanted)
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
    atlas: Atlas,
    names: Sequence[str],
    types: Sequence[Any],
    number_type: Callable[[Any], Number | None],
    what: str = "Z",
) -> Chosen:
    """Return the columns of a table that the atlas moves, or refuse the table."""
    found = {place: number_type(types[place]) for place in atlas_places(atlas, names, what)}
    chosen = {place: number for place, number in found.items() if number is not None}
    if len(chosen) < len(found):
        others = [f"{names[place]!r} ({types[place]})" for place in found if place not in chosen]
        raise not_numeric(what, others, atlas.column_names is not None)
    return chosen


def _moved(
    atlas: Atlas,
    blocks: Iterable[Points],
    rows: int,
    chosen: Chosen,
    n_threads: int | None,
    what: str = "Z",
) -> tuple[list[Points], Codes]:
    """Return the moved columns of all blocks together, each in its type, and the status codes."""
    columns: list[Points] = [np.empty(rows, dtype=number) for number in chosen.values()]
    status = np.empty(rows, np.int8)
    most = np.array([np.finfo(number).max for number in chosen.values()], dtype=np.float64)
    start = 0
    for block in blocks:
        check_range(what, block)
        part = slice(start, start + len(block))
        moved, status[part] = atlas.move(block, n_threads, what)
        beyond = ~(np.abs(moved) <= most).all(axis=1)
        if beyond.any():
            moved[beyond] = block[beyond]
            status[part][beyond] = FAILED
        for column, numbers in zip(columns, moved.T, strict=True):
            column[part] = numbers
        start += len(block)
    return columns, status
