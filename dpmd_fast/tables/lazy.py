"""Points that Dask, Spark or another engine holds: the atlas is sent to where they are.

Workers get a copy of the atlas without its receipt, and move one partition on one thread each.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import check_range
from dpmd_fast.columns import (
    check_real_dask,
    is_dask_array,
    is_dask_frame,
    is_spark_frame,
    is_spark_number,
    numbered_spark,
)
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.status import WORDS, words_of
from dpmd_fast.tables.frames import atlas_places, not_numeric

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas


def transform_batches(atlas: Atlas, batches: Iterable[Any], n_threads: int | None = 1) -> Iterator[Any]:
    """Yield Arrow record batches with the columns of the atlas moved, one for one; others pass through."""
    alone = _without_receipt(atlas)
    for batch in batches:
        yield alone.transform(batch, n_threads)


def is_lazy(value: object) -> bool:
    """Return True for what `transform_lazy` takes; imports nothing."""
    return is_dask_array(value) or is_dask_frame(value) or is_spark_frame(value)


def transform_lazy(atlas: Atlas, Z: Any, return_status: bool) -> Any:
    """Return a Dask array or dataframe or a Spark DataFrame that is moved when it is computed.

    With `return_status`, also the status of the rows of a Dask array, as lazy as the result.
    """
    alone = _without_receipt(atlas)
    if is_dask_array(Z):
        moved, status = _transform_dask_array(alone, Z)
        return (moved, status) if return_status else moved
    if return_status:
        kind = "Dask dataframe" if is_dask_frame(Z) else "Spark DataFrame"
        raise UserValueError(
            f"return_status = True: must be False for a {kind}; for a column with the status, transform each "
            "partition by itself, or write files and use transform_file with a status_column",
            argument="return_status",
        )
    if is_dask_frame(Z):
        meta = alone.transform(Z._meta)
        return Z.map_partitions(_move_frame, alone, meta=meta, enforce_metadata=False)
    return _transform_spark(alone, Z)


def _without_receipt(atlas: Atlas) -> Atlas:
    """Return a copy for workers, which need not know of a ledger."""
    return replace(atlas, receipt=None)


def _transform_dask_array(atlas: Atlas, Z: Any) -> tuple[Any, Any]:
    dask: Any = importlib.import_module("dask")  # without types
    da: Any = importlib.import_module("dask.array")
    check_real_dask("Z", Z)
    if Z.ndim != 2 or Z.shape[1] != atlas.n_columns:
        raise UserValueError(f"Z has shape {Z.shape}: must have {atlas.n_columns} columns")
    whole = Z.rechunk({1: -1})
    dtype = np.dtype(np.float32 if Z.dtype == np.float32 else np.float64)
    sent = dask.delayed(atlas, pure=False)
    pairs = [
        dask.delayed(_move_block, pure=False, nout=2)(sent, block) for block in whole.to_delayed().ravel()
    ]
    rows = whole.chunks[0]
    moved = [
        da.from_delayed(pair[0], (count, Z.shape[1]), dtype) for pair, count in zip(pairs, rows, strict=True)
    ]
    words = np.array(WORDS).dtype
    status = [da.from_delayed(pair[1], (count,), words) for pair, count in zip(pairs, rows, strict=True)]
    return da.concatenate(moved), da.concatenate(status)


def _move_frame(frame: Any, atlas: Atlas) -> Any:
    return atlas.transform(frame, 1)


def _move_block(atlas: Atlas, block: Any) -> tuple[Any, Any]:
    if isinstance(block, np.ma.MaskedArray):
        raise UserTypeError("Z is a masked array: must be a plain one")
    points = np.asarray(block)
    if points.dtype not in (np.float32, np.float64):
        points = points.astype(np.float64)
    check_range("Z", points)
    moved, codes = atlas.move(points, 1)
    return moved, words_of(codes)


def _transform_spark(atlas: Atlas, frame: Any) -> Any:
    """Move with ``mapInArrow``; columns go by number inside, since Spark reads dots in names as syntax."""
    from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

    fields = frame.schema.fields
    names = [field.name for field in fields]
    moved = set(atlas_places(atlas, names))
    others = [repr(names[place]) for place in sorted(moved) if not is_spark_number(fields[place])]
    if others:
        raise not_numeric("Z", others, atlas.column_names is not None)
    kinds = [
        DoubleType() if place in moved and not isinstance(field.dataType, FloatType) else field.dataType
        for place, field in enumerate(fields)
    ]
    numbered = StructType([StructField(f"c{place}", kind, True) for place, kind in enumerate(kinds)])
    inside = _names_inside(names, moved)

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        outside = [f"c{place}" for place in range(len(inside))]
        named = (pa.RecordBatch.from_arrays(batch.columns, names=inside) for batch in batches)
        for batch in transform_batches(atlas, named):
            yield pa.RecordBatch.from_arrays(batch.columns, names=outside)

    return numbered_spark(frame).mapInArrow(partition, numbered).toDF(*names)


def _names_inside(names: Sequence[str], moved: set[int]) -> list[str]:
    """Return names by which the atlas finds its columns, all of them different."""
    taken = {names[place] for place in moved}
    out = []
    for place, name in enumerate(names):
        label = name if place in moved else f"c{place}"
        while place not in moved and label in taken:
            label += "_"
        out.append(label)
    return out
