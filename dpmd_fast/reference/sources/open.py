"""The private reference as blocks of rows, for sums over records: arrays, tables, streams and Parquet.

A source gives the same rows in the same order for every kind of input; how a table or a file is cut
into chunks does not show in its blocks. What must not be told about a private reference stays untold:
errors name files, columns and types, never a value, a row or a count, and errors of the readers
underneath are replaced, because their texts may quote what they were reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked, checked_integer
from dpmd_fast.atomic import identity
from dpmd_fast.columns import (
    DROP,
    arrow_number_type,
    checked_columns,
    is_anndata,
    is_dask_array,
    is_dask_frame,
    is_of,
    is_spark_frame,
    names_of,
    pandas_values,
    places_of,
)
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.sources.base import (
    KINDS,
    ArraySource,
    PandasSource,
    ParquetSource,
    ReferenceSource,
    StreamSource,
    TableSource,
    exported,
)


def open_reference(
    reference: Any, *, columns: Sequence[str] | None = None, batch_rows: int | None = None
) -> ReferenceSource:
    """Look at what the reference is, without reading its values.

    Parameters
    ----------
    reference : array, table, stream or path
        A two-dimensional NumPy array; a pandas DataFrame; a pyarrow Table, RecordBatch or
        RecordBatchReader (which can be read only once); any object with ``__arrow_c_stream__``, as a
        polars DataFrame; an AnnData, of which ``X`` is read; the path of a Parquet file, or a list of
        paths, read in that order. A source that is open already is returned as it is.
    columns : list of str, optional
        Columns of a table to read, in this order. By default all, and then all must be numeric.
    batch_rows : int, optional
        Most rows in a block; about 8 MB of them by default, and at least 1024.

    Notes
    -----
    Missing values of tables become NaN. Integers, booleans and decimals become float64.
    """
    if batch_rows is not None:
        batch_rows = checked_integer("batch_rows", batch_rows, minimum=1)
    columns = checked_columns(columns)
    if isinstance(reference, ReferenceSource):
        if columns not in (None, reference.column_names):
            raise UserValueError(
                "columns: must be None or those that it reads, for a source that is open already"
            )
        return reference
    if isinstance(reference, np.ndarray):
        return ArraySource(reference, columns, batch_rows)
    if isinstance(reference, (str, os.PathLike)):
        return ParquetSource(reference, [reference], columns, batch_rows)
    if isinstance(reference, (list, tuple)):
        return ParquetSource(reference, reference, columns, batch_rows)
    if is_of(reference, "pandas", "DataFrame"):
        return PandasSource(reference, columns, batch_rows)
    if is_of(reference, "pyarrow", "Table", "RecordBatch"):
        return TableSource(reference, columns, batch_rows)
    if is_dask_array(reference) or is_dask_frame(reference):
        from dpmd_fast.reference.sources.dask import DaskSource

        return DaskSource(reference, columns)
    if is_spark_frame(reference):
        from dpmd_fast.reference.sources.spark import SparkSource

        return SparkSource(reference, columns)
    if hasattr(reference, "__arrow_c_stream__"):
        return StreamSource(reference, columns, batch_rows)
    if is_anndata(reference):
        from dpmd_fast.reference.sources.anndata import AnnDataSource

        return AnnDataSource(reference, columns, batch_rows)
    kind = type(reference).__name__
    if type(reference).__module__.startswith("scipy.sparse"):
        raise UserTypeError("reference is a sparse matrix: must be dense, for instance values.toarray()")
    if isinstance(reference, Iterator):
        raise UserTypeError(
            f"reference is an iterator ({kind}): its columns are not known before it is read, and it can be "
            "read only once; must be a table, an array or Parquet files, or for one pass a "
            "pyarrow.RecordBatchReader.from_batches(schema, batches)"
        )
    raise UserTypeError(f"reference is a {kind}: must be {KINDS}")


def is_table_or_file(reference: Any) -> bool:
    """Whether `reference` is a source, an Arrow table or stream, an AnnData or a path; not for arrays."""
    if isinstance(reference, (list, tuple)):
        return len(reference) > 0 and all(isinstance(item, (str, os.PathLike)) for item in reference)
    if isinstance(reference, (str, os.PathLike, ReferenceSource)) or is_anndata(reference):
        return True
    if is_dask_array(reference) or is_dask_frame(reference):
        return True
    if is_spark_frame(reference):
        return True
    return hasattr(reference, "__arrow_c_stream__") and not is_of(reference, "pandas", "DataFrame")


_DROP = f"pass {DROP} to leave such records out, or clean the reference"


def check_valid(source: ReferenceSource, most: float, advice: str = _DROP) -> None:
    """Refuse, in one pass, a reference with values that are not finite or beyond `most` in size."""
    most = checked("most", most, positive=True)
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once, so its values cannot be checked first: pass "
            f"{DROP}, or give a table or Parquet files"
        )
    from dpmd_fast.reference.tasks import ValidTask

    if source.run(ValidTask(most)).values.any():
        raise UserValueError(
            f"reference contains non-finite or too large values: all must be finite and at most {most:g} in "
            f"size; {advice}"
        )


def by_name(name: str, points: Any, names: tuple[str, ...] | None) -> Any:
    """Public points with the columns of the reference, in its order, where both have names."""
    given = names_of(points)
    if given is None or names is None or given == names:
        return points
    missing = [column for column in names if column not in given]
    if missing:
        raise UserValueError(
            f"{name} lacks {len(missing)} column(s) of the reference, {missing[0]!r} among them"
        )
    places = places_of(names, given, name)
    if is_of(points, "pandas", "DataFrame"):
        return points.iloc[:, places]
    return points[:, places] if is_of(points, "polars", "DataFrame") else points.select(places)


def check_count(source: ReferenceSource, adjacency: str) -> None:
    """Refuse a declared number of records where it is private: comparing it would tell about them."""
    if adjacency == "add-remove" and getattr(source, "declared", False):
        raise UserValueError(
            "rows: must be None in engine_reference under 'add-remove': their number is private"
        )


def check_public(name: str, points: Any, reference: Any) -> None:
    """Refuse public points that are the private reference or overlap it in memory or on disk."""
    if overlaps(reference, points):
        raise UserValueError(
            f"{name} is part of the reference: must be public points; taking them from the private reference "
            "would void the guarantee"
        )


def shares_memory(source: ReferenceSource, array: Any) -> bool:
    """Whether `array` (an array, table or path) is the reference, or overlaps it in memory or on disk."""
    return overlaps(source.reference, array)


def overlaps(reference: Any, array: Any) -> bool:
    """Whether two arrays, tables or paths are one object, or overlap in memory or on disk."""
    if isinstance(reference, ReferenceSource):
        reference = reference.reference
    if array is reference:
        return True
    if not _files(array).isdisjoint(_files(reference)):
        return True
    theirs = _memory(array)
    return any(_overlap(mine, other) for mine in _memory(reference) for other in theirs)


def _files(value: Any) -> set[tuple[int, int]]:
    """The files that a path or a list of paths names."""
    paths = value if isinstance(value, (list, tuple)) else [value]
    found = (identity(path) for path in paths if isinstance(path, (str, os.PathLike)))
    return {identity for identity in found if identity is not None}


def _memory(value: Any) -> list[NDArray[Any]]:
    """Arrays over the memory in which a value holds its numbers, as far as that is known without a copy."""
    if isinstance(value, np.ndarray):
        return [np.asarray(value)]
    if isinstance(value, (list, tuple)):  # rows cut out of an array
        return [np.asarray(item) for item in value if isinstance(item, np.ndarray)]
    if is_of(value, "pandas", "DataFrame"):
        columns = [pandas_values(value.iloc[:, position]) for position in range(value.shape[1])]
        return [piece for column in columns for piece in _pandas_memory(column)]
    if is_of(value, "pyarrow", "Table", "RecordBatch"):
        return [piece for column in value.columns for piece in _arrow_memory(column)]
    if is_of(value, "polars", "DataFrame"):
        reader = exported(value)
        return [] if reader is None else _memory(reader.read_all())
    if is_anndata(value):
        from dpmd_fast.reference.sources.anndata import held_by

        return [piece for part in held_by(value) for piece in _memory(part)]
    # Of other objects only those whose values are at hand: streams would be read, lazy arrays computed.
    at_hand = hasattr(value, "__array__") and not hasattr(value, "__dask_graph__")
    return [np.asarray(value)] if at_hand and not hasattr(value, "__arrow_c_stream__") else []


def _pandas_memory(column: Any) -> list[NDArray[Any]]:
    if isinstance(column, np.ndarray):
        return [column]
    return _arrow_memory(column.__arrow_array__()) if hasattr(column.dtype, "pyarrow_dtype") else []


def _arrow_memory(column: Any) -> list[NDArray[Any]]:
    """The bytes of a column's numbers, chunk by chunk; slices of a column do not overlap one another."""
    if arrow_number_type(column.type) is None:
        return []
    bits = column.type.bit_width
    pieces = []
    for chunk in getattr(column, "chunks", [column]):
        numbers = chunk.buffers()[1]
        if numbers is not None and numbers.is_cpu and len(chunk):
            start, stop = chunk.offset * bits // 8, -(-(chunk.offset + len(chunk)) * bits // 8)
            pieces.append(np.frombuffer(numbers, dtype=np.uint8)[start:stop])
    return pieces


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, 10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
