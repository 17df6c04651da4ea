"""Points that Dask, Spark or another engine holds: the model is sent to where they are.

Workers get a copy of the model without its receipt, and clean one partition on one thread each.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

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
from dpmd_fast.tables.frames import cleaned_places, is_reader, is_table, not_numeric, transform_table
from dpmd_fast.tables.protocol import KeepMissing, Model, RowCleaner, called, check_rows, cleaner_of


def transform_batches(
    model: Model,
    batches: Iterable[Any],
    n_threads: int | None = 1,
    *,
    noise: Any = None,
    on_missing: str | None = None,
) -> Iterator[Any]:
    """Yield Arrow record batches with the columns of a model cleaned, one for one; others pass through.

    Parameters
    ----------
    model : Atlas or Mixture
    batches : iterable of Arrow record batches
    n_threads : int, optional
    noise, on_missing
        As for the model's `transform`; a mixture needs `noise`.
    """
    return _transform_batches(_without_receipt(cleaner_of(model, noise, on_missing)), batches, n_threads)


def _transform_batches(
    cleaner: RowCleaner, batches: Iterable[Any], n_threads: int | None = 1
) -> Iterator[Any]:
    for batch in batches:
        if not is_table(batch) or is_reader(batch):
            raise UserTypeError(f"batches holds a {type(batch).__name__}: must hold Arrow record batches")
        yield transform_table(cleaner, batch, n_threads, False)


def is_lazy(value: object) -> bool:
    """Return True for what `transform_lazy` takes; imports nothing."""
    return is_dask_array(value) or is_dask_frame(value) or is_spark_frame(value)


def transform_lazy(cleaner: RowCleaner, Z: Any, return_status: bool) -> Any:
    """Return a Dask array or dataframe or a Spark DataFrame that is cleaned when it is computed.

    With `return_status`, also the status of the rows of a Dask array, as lazy as the result.
    """
    alone = _without_receipt(cleaner)
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
        meta = transform_table(alone, Z._meta, 1, False)
        return Z.map_partitions(_move_frame, alone, meta=meta, enforce_metadata=False)
    return _transform_spark(alone, Z)


def _without_receipt(cleaner: Any) -> RowCleaner:
    """Return a copy for workers, which need not know of a ledger."""
    if isinstance(cleaner, KeepMissing):
        return KeepMissing(_without_receipt(cleaner.cleaner))
    return replace(cleaner, receipt=None) if hasattr(cleaner, "receipt") else cleaner  # type: ignore[no-any-return]


def _transform_dask_array(cleaner: RowCleaner, Z: Any) -> tuple[Any, Any]:
    dask: Any = importlib.import_module("dask")  # without types
    da: Any = importlib.import_module("dask.array")
    what = called(cleaner)
    check_real_dask(what, Z)
    if Z.ndim != 2 or Z.shape[1] != cleaner.n_columns:
        raise UserValueError(f"{what} has shape {Z.shape}: must have {cleaner.n_columns} columns")
    whole = Z.rechunk({1: -1})
    dtype = np.dtype(np.float32 if Z.dtype == np.float32 else np.float64)
    sent = dask.delayed(cleaner, pure=False)
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


def _move_frame(frame: Any, cleaner: RowCleaner) -> Any:
    return transform_table(cleaner, frame, 1, False)


def _move_block(cleaner: RowCleaner, block: Any) -> tuple[Any, Any]:
    if isinstance(block, np.ma.MaskedArray):
        raise UserTypeError(f"{called(cleaner)} is a masked array: must be a plain one")
    points = np.asarray(block)
    if points.dtype not in (np.float32, np.float64):
        points = points.astype(np.float64)
    check_rows(cleaner, called(cleaner), points)
    moved, codes = cleaner.move(points, 1, called(cleaner))
    return moved, words_of(codes)


def _transform_spark(cleaner: RowCleaner, frame: Any) -> Any:
    """Move with ``mapInArrow``; columns go by number inside, since Spark reads dots in names as syntax."""
    from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

    fields = frame.schema.fields
    names = [field.name for field in fields]
    moved = set(cleaned_places(cleaner, names, called(cleaner)))
    others = [repr(names[place]) for place in sorted(moved) if not is_spark_number(fields[place])]
    if others:
        raise not_numeric(cleaner, called(cleaner), others)
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
        for batch in _transform_batches(cleaner, named):
            yield pa.RecordBatch.from_arrays(batch.columns, names=outside)

    return numbered_spark(frame).mapInArrow(partition, numbered).toDF(*names)


def _names_inside(names: Sequence[str], moved: set[int]) -> list[str]:
    """Return names by which the cleaner finds its columns, all of them different."""
    taken = {names[place] for place in moved}
    out = []
    for place, name in enumerate(names):
        label = name if place in moved else f"c{place}"
        while place not in moved and label in taken:
            label += "_"
        out.append(label)
    return out
