"""Tables through an atlas: its columns are moved, everything else of a table stays as it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import Points, check_range
from dpmd_fast.columns import arrow_number_type, as_type, is_of, pandas_number_type, places_of, values
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.pandas import PandasSource

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

_ROWS = 1 << 16  # read and moved at a time
_NAMES_SHOWN = 20

Number = type[np.floating[Any]]
Chosen = dict[int, Number]  # position of each column that is moved, in the order of the atlas, and its type


def is_table(value: object) -> bool:
    """Whether `transform_table` takes it; imports nothing."""
    return (
        is_of(value, "pandas", "DataFrame")
        or is_of(value, "polars", "DataFrame")
        or is_of(value, "pyarrow", "Table", "RecordBatch", "RecordBatchReader")
    )


def transform_table(atlas: Atlas, table: Any, n_threads: int | None = None) -> Any:
    """The table with the columns of the atlas moved, of the same type; sets ``atlas.status_``.

    Columns are found by name, or by position if the atlas has no names; then the table must have no others.
    float32 columns stay float32, the others become float64. Columns that are not moved, the order of the
    columns, an index and metadata are kept. A RecordBatchReader gives one that moves a batch when it is read.
    """
    if is_of(table, "pandas", "DataFrame"):
        return _transform_pandas(atlas, table, n_threads)
    if is_of(table, "polars", "DataFrame"):
        return _transform_polars(atlas, table, n_threads)
    return _transform_arrow(atlas, table, n_threads)


def _transform_pandas(atlas: Atlas, frame: Any, n_threads: int | None) -> Any:
    chosen = _choose(atlas, [str(name) for name in frame.columns], list(frame.dtypes), pandas_number_type)
    part = frame.iloc[:, list(chosen)].set_axis(range(len(chosen)), axis=1)  # names may be there twice
    blocks = PandasSource(part, None, _ROWS).blocks()
    columns = _moved(atlas, blocks, len(frame), chosen, n_threads)
    out = frame.copy(deep=False)
    for position, column in zip(chosen, columns, strict=True):
        out.isetitem(position, _as_pandas(column, frame.dtypes.iloc[position]))
    return out


def _as_pandas(column: Points, before: Any) -> Any:
    """A column backed as it was before: by NumPy, with a mask, or by Arrow."""
    pandas: Any = sys.modules["pandas"]
    if hasattr(before, "pyarrow_dtype"):
        import pyarrow as pa

        return pandas.array(column, dtype=pandas.ArrowDtype(pa.from_numpy_dtype(column.dtype)))
    if hasattr(before, "numpy_dtype"):
        return pandas.array(column, dtype="Float32" if column.dtype == np.float32 else "Float64")
    return column


def _transform_polars(atlas: Atlas, frame: Any, n_threads: int | None) -> Any:
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
    columns = _moved(atlas, blocks, frame.height, chosen, n_threads)
    return frame.with_columns(map(pl.Series, names, columns))


def _transform_arrow(atlas: Atlas, table: Any, n_threads: int | None) -> Any:
    import pyarrow as pa

    chosen = _choose(atlas, table.schema.names, table.schema.types, arrow_number_type)
    schema = schema_after(table.schema, chosen)

    def transformed(part: Any) -> Any:
        whole = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
        pieces = whole.select(list(chosen)).to_batches(max_chunksize=_ROWS)
        blocks = (
            np.stack([values(as_type(column, np.dtype(np.float64))) for column in piece.columns], axis=1)
            for piece in pieces
        )
        columns = list(part.columns)
        for position, column in zip(
            chosen, _moved(atlas, blocks, part.num_rows, chosen, n_threads), strict=True
        ):
            columns[position] = pa.array(column)
        return type(part).from_arrays(columns, schema=schema)

    if isinstance(table, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(schema, map(transformed, table))
    return transformed(table)


def schema_after(schema: Any, chosen: Chosen) -> Any:
    """The schema with the types of the moved columns."""
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
    """Metadata in which pandas, if it left its types there, does not find those before the change."""
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
    atlas: Atlas, names: Sequence[str], types: Sequence[Any], number_type: Callable[[Any], Number | None]
) -> Chosen:
    """The columns of a table that the atlas moves, or a complaint."""
    wanted = atlas.column_names
    by_position = ""
    if wanted is None:
        by_position = "; the atlas has no column names, so columns can only be matched by position"
        if len(names) != atlas.n_columns:
            raise UserValueError(f"Z has {len(names)} columns: must have {atlas.n_columns}{by_position}")
        positions = list(range(len(names)))
    else:
        present = set(names)
        missing = [repr(name) for name in wanted if name not in present]
        if missing:
            shown = ", ".join(missing[:_NAMES_SHOWN])
            raise UserValueError(f"Z lacks {len(missing)} column(s) of the atlas: {shown}")
        positions = places_of(wanted, names, "Z")
    chosen = {position: number_type(types[position]) for position in positions}
    others = [f"{names[position]!r} ({types[position]})" for position, number in chosen.items() if not number]
    if others:
        shown = ", ".join(others[:_NAMES_SHOWN])
        raise UserValueError(f"Z has {len(others)} column(s) that are not numeric: {shown}{by_position}")
    return {position: number for position, number in chosen.items() if number}


def _moved(
    atlas: Atlas, blocks: Iterable[Points], rows: int, chosen: Chosen, n_threads: int | None
) -> list[Points]:
    """The moved columns of all blocks together, each in its type; sets the status."""
    columns: list[Points] = [np.empty(rows, dtype=number) for number in chosen.values()]
    status = np.empty(rows, dtype="U7")
    most = np.array([np.finfo(number).max for number in chosen.values()], dtype=np.float64)
    start = 0
    for block in blocks:
        check_range("Z", block)
        part = slice(start, start + len(block))
        moved, status[part] = atlas.move(block, n_threads)
        beyond = ~(np.abs(moved) <= most).all(axis=1)
        if beyond.any():
            moved[beyond] = block[beyond]
            status[part][beyond] = "failed"
        for column, numbers in zip(columns, moved.T, strict=True):
            column[part] = numbers
        start += len(block)
    object.__setattr__(atlas, "status_", status)
    return columns
