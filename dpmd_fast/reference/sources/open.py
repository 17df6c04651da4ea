"""Open a private reference of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpmd_fast.arguments import checked_integer
from dpmd_fast.columns import (
    checked_columns,
    is_anndata,
    is_arrow,
    is_dask_array,
    is_dask_frame,
    is_pandas,
    is_spark_frame,
)
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.sources.arrays import ArraySource
from dpmd_fast.reference.sources.arrow import StreamSource, TableSource
from dpmd_fast.reference.sources.base import KINDS, ReferenceSource
from dpmd_fast.reference.sources.pandas import PandasSource
from dpmd_fast.reference.sources.parquet import ParquetSource


def open_reference(
    reference: Any,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int | None = None,
    missing: bool = False,
) -> ReferenceSource:
    """Open a reference without reading its values.

    Parameters
    ----------
    reference : array, table, stream or path
        A two-dimensional NumPy array; a pandas DataFrame; a pyarrow Table, RecordBatch or RecordBatchReader
        (which can be read only once); any object with ``__arrow_c_stream__``, such as a polars DataFrame; an
        AnnData, whose ``X`` is read; the path of a Parquet file, or a list of paths, read in that order; a
        Dask or Spark frame. An open source is returned as it is.
    columns : list of str, optional
        Columns of a table to read, in this order. By default all, and then all must be numeric.
    batch_rows : int, optional
        Largest number of rows in a block; by default about 8 MB, and at least 1024 rows.
    missing : bool
        Whether a column of Arrow's type null, without any value, is taken as NaN; otherwise it is refused.

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
                "columns: must be None, or the columns that it reads, for a source that is already open"
            )
        return reference
    if isinstance(reference, np.ndarray):
        return ArraySource(reference, columns, batch_rows)
    if isinstance(reference, (str, os.PathLike)):
        return ParquetSource(reference, [reference], columns, batch_rows, missing)
    if isinstance(reference, (list, tuple)):
        return ParquetSource(reference, reference, columns, batch_rows, missing)
    if is_pandas(reference):
        return PandasSource(reference, columns, batch_rows)
    if is_arrow(reference):
        return TableSource(reference, columns, batch_rows, missing)
    if is_dask_array(reference) or is_dask_frame(reference):
        from dpmd_fast.reference.sources.dask import DaskSource

        return DaskSource(reference, columns)
    if is_spark_frame(reference):
        from dpmd_fast.reference.sources.spark import SparkSource

        return SparkSource(reference, columns)
    if hasattr(reference, "__arrow_c_stream__"):
        return StreamSource(reference, columns, batch_rows, missing)
    if is_anndata(reference):
        from dpmd_fast.reference.sources.anndata import AnnDataSource

        return AnnDataSource(reference, columns, batch_rows)
    kind = type(reference).__name__
    if type(reference).__module__.startswith("scipy.sparse"):
        raise UserTypeError("reference is a sparse matrix: must be dense, for instance values.toarray()")
    if isinstance(reference, Iterator):
        raise UserTypeError(
            f"reference is an iterator ({kind}): its columns are not known before it is read, and it can be "
            "read only once; must be a table, an array or Parquet files, or, to be read once, a "
            "pyarrow.RecordBatchReader.from_batches(schema, batches)"
        )
    raise UserTypeError(f"reference is a {kind}: must be {KINDS}")


def is_table_or_file(reference: Any) -> bool:
    """Return True for a source, an Arrow table or stream, an AnnData, a path or an engine's frame."""
    if isinstance(reference, (list, tuple)):
        return len(reference) > 0 and all(isinstance(item, (str, os.PathLike)) for item in reference)
    if isinstance(reference, (str, os.PathLike, ReferenceSource)) or is_anndata(reference):
        return True
    if is_dask_array(reference) or is_dask_frame(reference):
        return True
    if is_spark_frame(reference):
        return True
    return hasattr(reference, "__arrow_c_stream__") and not is_pandas(reference)
