"""Which columns of a table are read, and as which type of number."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points, shown
from dpmd_fast.errors import UserValueError

_NAMES_SHOWN = 20


def checked_columns(columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if not isinstance(columns, (list, tuple)) or not all(isinstance(name, str) for name in columns):
        raise UserValueError(
            f"columns = {shown(columns)}: must be None or a list of column names (strings)",
            argument="columns",
        )
    if not columns:
        raise UserValueError(
            "columns is empty: must hold at least one column name, or be None for all columns"
        )
    if len(set(columns)) < len(columns):
        raise UserValueError(
            f"columns names {_listed(_repeated(columns))} more than once", argument="columns"
        )
    return tuple(columns)


def names_of(table: Any) -> tuple[str, ...] | None:
    """Names of the columns of a table; None for anything else."""
    if is_of(table, "pandas", "DataFrame") or is_of(table, "polars", "DataFrame"):
        return tuple(str(name) for name in table.columns)
    return tuple(table.schema.names) if is_of(table, "pyarrow", "Table", "RecordBatch") else None


def check_unique(what: str, names: Sequence[str] | None) -> None:
    """Refuse a table with two columns of one name, where all of them are used."""
    repeated = _repeated(names or ())
    if repeated:
        raise UserValueError(
            f"{what} has more than one column named {_listed(repeated)}: names must be unique"
        )


def places_of(columns: tuple[str, ...] | None, names: Sequence[str], what: str) -> list[int]:
    """Where the chosen columns are among `names`."""
    place = {name: position for position, name in enumerate(names)}
    chosen = names if columns is None else columns
    unknown = [name for name in chosen if name not in place]
    if unknown:
        raise UserValueError(
            f"columns holds {_listed(unknown)}: {what} has {_listed(names)}", argument="columns"
        )
    repeated = [name for name in _repeated(names) if name in set(chosen)]
    if repeated:
        raise UserValueError(
            f"{what} has more than one column named {_listed(repeated)}: names must be unique"
        )
    return [place[name] for name in chosen]


def chosen_fields(schema: Any, columns: tuple[str, ...] | None, what: str) -> Any:
    """Names and types of the chosen columns, as a schema without metadata."""
    import pyarrow as pa

    positions = places_of(columns, schema.names, what)
    return pa.schema([(schema.names[position], schema.types[position]) for position in positions])


def block_type(
    what: str,
    names: Sequence[str],
    types: Sequence[Any],
    number_type: Callable[[Any], type[np.floating[Any]] | None],
) -> np.dtype[Any]:
    """The type of the blocks, after a look at the columns' types."""
    number_types = [number_type(column_type) for column_type in types]
    if None in number_types:
        others = [
            f"{name!r} ({column_type})"
            for name, column_type, number in zip(names, types, number_types, strict=True)
            if number is None
        ]
        raise UserValueError(
            f"{what} has columns that are not numeric: {_shortened(others)}; choose numeric ones with "
            "columns=[...]"
        )
    return np.dtype(np.float32 if set(number_types) == {np.float32} else np.float64)


def arrow_number_type(arrow_type: Any) -> type[np.floating[Any]] | None:
    """float32, or float64 for the other numbers; None for what is not a number."""
    from pyarrow import types

    if types.is_float32(arrow_type):
        return np.float32
    tests = (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean)
    return np.float64 if any(test(arrow_type) for test in tests) else None


def pandas_number_type(dtype: Any) -> type[np.floating[Any]] | None:
    if hasattr(dtype, "pyarrow_dtype"):
        return arrow_number_type(dtype.pyarrow_dtype)
    if getattr(dtype, "kind", "O") not in "fiub":
        return None
    plain = np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)))  # nullable, sparse
    if plain.itemsize > 8:
        return None
    return np.float32 if plain == np.float32 else np.float64


def pandas_values(series: Any) -> Any:
    """The array behind a pandas column, not copied."""
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def as_type(column: Any, dtype: np.dtype[Any]) -> Any:
    """An Arrow column in the type of the blocks; large integers and decimals are rounded, as NumPy does."""
    import pyarrow as pa

    if pa.types.is_float16(column.type):  # for which older Arrow has no cast
        return pa.array(column.to_numpy(zero_copy_only=False).astype(dtype))
    wanted = pa.from_numpy_dtype(dtype)
    return column if column.type == wanted else column.cast(wanted, safe=False)


def values(column: Any) -> Points:
    """An Arrow column of floats as an array: a view if it can be, with NaN where there is no value."""
    return column.to_numpy(zero_copy_only=False)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _listed(names: Sequence[str]) -> str:
    return _shortened([repr(name) for name in names])


def _shortened(texts: Sequence[str]) -> str:
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_of(value: object, module: str, *names: str) -> bool:
    """Whether a value is of a class of an optional package, without importing the package."""
    loaded = sys.modules.get(module)
    classes = tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
    return isinstance(value, classes)
