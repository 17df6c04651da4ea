"""Which columns of a table are used, and how their values become blocks of numbers.

Shared by the readers of private references (`reference`) and of public points (`tables`). Optional packages
are never imported here: a value of theirs can only be there if they are loaded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points, shown
from dpmd_fast.errors import UserTypeError, UserValueError, either

Number = type[np.floating[Any]]
_NAMES_SHOWN = 20
_ARROW_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
# How a user chooses columns, or has invalid records dropped: for messages.
CHOOSE = either("columns=[...]", "--columns A,B,...")
DROP = either("on_invalid='drop'", "--on-invalid drop")


# Kinds of values


def is_of(value: object, module: str, *names: str) -> bool:
    """Return True if a value is of a class of an optional package, without importing the package."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return False
    return isinstance(value, tuple([getattr(loaded, name, ()) for name in names]))


def is_pandas(value: object) -> bool:
    return is_of(value, "pandas", "DataFrame")


def is_polars(value: object) -> bool:
    return is_of(value, "polars", "DataFrame")


def is_arrow(value: object) -> bool:
    """Return True for an Arrow table or record batch."""
    return is_of(value, "pyarrow", "Table", "RecordBatch")


def is_anndata(value: object) -> bool:
    return is_of(value, "anndata", "AnnData")


def is_dask_array(value: object) -> bool:
    return is_of(value, "dask.array", "Array")


def is_dask_frame(value: object) -> bool:
    return is_of(value, "dask.dataframe", "DataFrame")


def is_spark_frame(value: object) -> bool:
    return is_of(value, "pyspark.sql", "DataFrame")


def is_sparse(matrix: object) -> bool:
    return type(matrix).__module__.startswith("scipy.sparse")


# Names


def checked_columns(columns: object) -> tuple[str, ...] | None:
    """Return the names of chosen columns, None for all, or refuse what is not a list of different names."""
    if columns is None:
        return None
    if not isinstance(columns, (list, tuple)) or not all(isinstance(name, str) for name in columns):
        raise UserValueError(
            f"columns = {shown(columns)}: must be None or a list of column names (strings)",
            argument="columns",
        )
    if not columns:
        raise UserValueError(
            "columns is empty: must hold at least one column name, or be None for all columns",
            argument="columns",
        )
    if repeated := _repeated(columns):
        raise UserValueError(f"columns names {quoted(repeated)} more than once", argument="columns")
    return tuple(columns)


def names_of(table: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a table, None for anything else."""
    if is_pandas(table) or is_polars(table):
        return tuple(str(name) for name in table.columns)
    return tuple(table.schema.names) if is_arrow(table) else None


def check_unique(what: str, names: Sequence[str] | None) -> None:
    """Refuse a table with two columns of one name."""
    if repeated := _repeated(names or ()):
        raise UserValueError(
            f"{what} has more than one column named {quoted(repeated)}: names must be unique"
        )


def places_of(columns: tuple[str, ...] | None, names: Sequence[str], what: str) -> list[int]:
    """Return the positions of the chosen columns (None for all) among `names`."""
    place = {name: position for position, name in enumerate(names)}
    chosen = names if columns is None else columns
    if unknown := [name for name in chosen if name not in place]:
        raise UserValueError(
            f"columns holds {quoted(unknown)}: {what} has {quoted(names)}", argument="columns"
        )
    wanted = set(chosen)
    check_unique(what, [name for name in names if name in wanted])
    return [place[name] for name in chosen]


def quoted(names: Sequence[str]) -> str:
    """Return names for a message, in quotes."""
    return listed([repr(name) for name in names])


def listed(texts: Sequence[str]) -> str:
    """Return texts with commas between them; of many only the first ones."""
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


# Types


def chosen_fields(schema: Any, columns: tuple[str, ...] | None, what: str) -> Any:
    """Return names and types of the chosen columns as an Arrow schema without metadata."""
    import pyarrow as pa

    positions = places_of(columns, schema.names, what)
    return pa.schema([(schema.names[position], schema.types[position]) for position in positions])


def block_type(
    what: str,
    names: Sequence[str],
    types: Sequence[Any],
    number_type: Callable[[Any], Number | None],
) -> np.dtype[Any]:
    """Return float32 if all columns are float32, float64 otherwise; refuse columns that are not numeric."""
    numbers = [number_type(column_type) for column_type in types]
    others = [
        f"{name!r} ({column_type})"
        for name, column_type, number in zip(names, types, numbers, strict=True)
        if number is None
    ]
    if others:
        raise UserValueError(
            f"{what} has columns that are not numeric: {listed(others)}; choose numeric ones with {CHOOSE}"
        )
    return np.dtype(np.float32 if set(numbers) == {np.float32} else np.float64)


def arrow_number_type(arrow_type: Any) -> Number | None:
    """Return float32, float64 for other numbers, None for what is not a number."""
    from pyarrow import types

    if types.is_float32(arrow_type):
        return np.float32
    tests = (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean)
    return np.float64 if any(test(arrow_type) for test in tests) else None


def arrow_type_or_missing(arrow_type: Any) -> Number | None:
    """Return the same, and float64 for a column of type null, in which every value is missing."""
    from pyarrow import types

    return np.float64 if types.is_null(arrow_type) else arrow_number_type(arrow_type)


def pandas_number_type(dtype: Any) -> Number | None:
    """Return the same for the dtype of a pandas column."""
    if hasattr(dtype, "pyarrow_dtype"):
        return arrow_number_type(dtype.pyarrow_dtype)
    if getattr(dtype, "kind", "O") not in "fiub":
        return None
    plain = np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)))  # nullable, sparse
    if plain.itemsize > 8:
        return None
    return np.float32 if plain == np.float32 else np.float64


def is_spark_number(field: Any) -> bool:
    """Return True for a numeric or boolean field of a Spark schema."""
    from pyspark.sql.types import BooleanType, NumericType

    return isinstance(field.dataType, (NumericType, BooleanType))


def check_real_dask(name: str, array: Any) -> None:
    """Refuse a Dask array that is masked or does not hold real numbers."""
    if isinstance(array._meta, np.ma.MaskedArray):
        raise UserTypeError(
            f"{name} is a masked array: must be a plain one, as dask.array.ma.filled(array, numpy.nan)"
        )
    if array.dtype.kind not in "biufO":
        raise UserValueError(f"{name} has dtype {array.dtype}: must be real numbers")


def checked_matrix(what: str, matrix: Any) -> Any:
    """Return a dense, sparse or on-disk matrix of an AnnData if it holds real numbers, or refuse it."""
    if matrix is None:
        raise UserValueError(f"{what} is None: must hold numbers")
    dtype = np.dtype(matrix.dtype)
    if len(matrix.shape) != 2 or dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise UserValueError(
            f"{what} has {len(matrix.shape)} dimension(s) of {dtype}: must be a table of real numbers"
        )
    return matrix


# Values


def as_type(column: Any, dtype: np.dtype[Any]) -> Any:
    """Return an Arrow column as `dtype`; large integers and decimals are rounded, as NumPy does."""
    import pyarrow as pa

    wanted = pa.from_numpy_dtype(dtype)
    if column.type == wanted:
        return column
    if pa.types.is_float16(column.type):  # for which older Arrow has no cast
        return pa.array(column.to_numpy(zero_copy_only=False).astype(dtype))
    return column.cast(wanted, safe=False)


def values(column: Any) -> Points:
    """Return an Arrow column of floats as an array: a view if possible, with NaN where a value is missing."""
    if len(column) and not column.null_count and hasattr(column, "buffers"):  # to_numpy() imports pandas
        dtype = np.dtype(column.type.to_pandas_dtype())
        return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def arrow_array(numbers: Points, nan_is_null: bool = False) -> Any:
    """Return contiguous floats as an Arrow array over the same memory, with nulls for NaN if asked."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(numbers)]  # pa.array() would import pandas
    if nan_is_null and (missing := np.isnan(numbers)).any():
        buffers[0] = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = pa.float32() if numbers.dtype == np.float32 else pa.float64()
    return pa.Array.from_buffers(kind, len(numbers), buffers)


def arrow_rows(table: Points) -> list[Any]:
    """Return the rows of a contiguous array of floats as Arrow arrays over the same memory, without nulls."""
    import pyarrow as pa

    kind = pa.float32() if table.dtype == np.float32 else pa.float64()
    number = table.shape[1]
    memory, size = pa.py_buffer(table), number * table.itemsize
    return [
        pa.Array.from_buffers(kind, number, [None, memory.slice(row * size, size)])
        for row in range(len(table))
    ]


def arrow_block(columns: Iterable[Any], dtype: np.dtype[Any]) -> Points:
    """Return Arrow columns side by side as one array (rows, D)."""
    return np.stack([values(as_type(column, dtype)) for column in columns], axis=1)


def are_one_tensor(types: Iterable[Any]) -> bool:
    """Return True if Arrow makes one tensor of columns of these types that is as exact as float64."""
    kinds = {str(kind) for kind in types}
    return kinds == {"float"} or ("double" in kinds and kinds <= {"double", "float"} | _ARROW_INTEGERS)


def arrow_points(batch: Any, one_tensor: bool) -> Points:
    """Return the columns of a record batch side by side as one array (rows, D) of float64.

    `one_tensor` is what `are_one_tensor` says of their types.
    """
    if one_tensor and hasattr(batch, "to_tensor"):
        try:
            tensor = batch.to_tensor(null_to_nan=True, row_major=True).to_numpy()
            return tensor.astype(np.float64, copy=False)  # type: ignore[no-any-return]
        except (TypeError, ValueError, NotImplementedError):
            pass  # an older Arrow, whose tensors have no settings or one type alone
    return arrow_block(batch.columns, np.dtype(np.float64))


def pandas_values(series: Any) -> Any:
    """Return the array behind a pandas column, not copied."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def pandas_blocks(
    columns: Sequence[Any], rows: int, dtype: np.dtype[Any], batch_rows: int
) -> Iterator[Points]:
    """Yield the `pandas_values` of some columns as arrays of at most `batch_rows` rows.

    Missing values become NaN. Columns are not converted to Arrow, which would guess the types of objects.
    """

    def numbers(column: Any) -> Points:
        if isinstance(column, np.ndarray):
            return column.astype(dtype, copy=False)
        if hasattr(column.dtype, "pyarrow_dtype"):
            return values(as_type(column.__arrow_array__(), dtype))
        return column.to_numpy(dtype=dtype, na_value=np.nan)  # type: ignore[no-any-return]

    for start in range(0, rows, batch_rows):
        stop = min(start + batch_rows, rows)
        yield np.stack([numbers(column[start:stop]) for column in columns], axis=1)


def dense_blocks(matrix: Any, positions: Any, dtype: np.dtype[Any], batch_rows: int) -> Iterator[Points]:
    """Yield rows of a dense, sparse or on-disk matrix as dense arrays; `positions` None for all columns."""
    for start in range(0, matrix.shape[0], batch_rows):
        block = matrix[start : start + batch_rows]
        block = block.toarray() if is_sparse(block) else np.asarray(block)
        chosen = block if positions is None else block[:, positions]
        yield np.require(chosen, dtype, ["C", "ALIGNED"])


def numbered_spark(frame: Any) -> Any:
    """Return a Spark DataFrame with columns c0, c1, ...: Spark reads dots and backticks as syntax."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.schema.fields))))
