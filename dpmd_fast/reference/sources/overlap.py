"""Check whether public points are the private reference, or overlap it in memory or on disk."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.atomic import file_identity
from dpmd_fast.columns import (
    arrow_number_type,
    is_anndata,
    is_arrow,
    is_pandas,
    is_polars,
    pandas_values,
)
from dpmd_fast.reference.sources.anndata import held_by
from dpmd_fast.reference.sources.arrow import open_stream
from dpmd_fast.reference.sources.base import ReferenceSource


def overlaps(reference: Any, array: Any) -> bool:
    """Return True if two arrays, tables or paths are one object, or overlap in memory or on disk."""
    if isinstance(reference, ReferenceSource):
        reference = reference.reference
    if array is reference:
        return True
    if not _files(array).isdisjoint(_files(reference)):
        return True
    theirs = _memory(array)
    return any(_overlap(mine, other) for mine in _memory(reference) for other in theirs)


def _files(value: Any) -> set[tuple[int, int]]:
    """Return the identities of the files that a path or a list of paths names."""
    paths = value if isinstance(value, (list, tuple)) else [value]
    found = (file_identity(path) for path in paths if isinstance(path, (str, os.PathLike)))
    return {identity for identity in found if identity is not None}


def _memory(value: Any) -> list[NDArray[Any]]:
    """Return arrays over the memory that holds the numbers of a value, where that takes no copy."""
    if isinstance(value, np.ndarray):
        return [np.asarray(value)]
    if isinstance(value, (list, tuple)):  # rows cut out of an array
        return [np.asarray(item) for item in value if isinstance(item, np.ndarray)]
    if is_pandas(value):
        columns = [pandas_values(value.iloc[:, position]) for position in range(value.shape[1])]
        return [piece for column in columns for piece in _pandas_memory(column)]
    if is_arrow(value):
        return [piece for column in value.columns for piece in _arrow_memory(column)]
    if is_polars(value):
        reader = open_stream(value)
        return [] if reader is None else _memory(reader.read_all())
    if is_anndata(value):
        return [piece for part in held_by(value) for piece in _memory(part)]
    # Of other objects only those in memory: a stream would be read, a lazy array computed.
    in_memory = hasattr(value, "__array__") and not hasattr(value, "__dask_graph__")
    return [np.asarray(value)] if in_memory and not hasattr(value, "__arrow_c_stream__") else []


def _pandas_memory(column: Any) -> list[NDArray[Any]]:
    if isinstance(column, np.ndarray):
        return [column]
    return _arrow_memory(column.__arrow_array__()) if hasattr(column.dtype, "pyarrow_dtype") else []


def _arrow_memory(column: Any) -> list[NDArray[Any]]:
    """Return the bytes of a column's numbers, chunk by chunk; disjoint slices of a column do not overlap."""
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
