"""References held by an engine: Dask, Spark, or any other that maps batches.

A release is a sum over records. The engine computes partial sums where the records are, `merge_sums` adds
them up, and the client adds the noise once. Workers see tasks made of public and released values; they never
see a budget or entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpmd_fast.columns import is_of
from dpmd_fast.reference.sources.engine import arrow_batches, engine_reference, transform_batches
from dpmd_fast.reference.tasks import PartialSums, merge_sums, partial_sums

__all__ = [
    "PartialSums",
    "arrow_batches",
    "engine_reference",
    "merge_sums",
    "partial_sums",
    "transform_batches",
]


def lazy_transform(Z: object) -> Callable[[Any, Any], Any] | None:
    """Return the function that transforms points held by an engine; None if no engine holds `Z`."""
    if is_of(Z, "dask.array", "Array") or is_of(Z, "dask.dataframe", "DataFrame"):
        from dpmd_fast.reference.sources.dask import transform_dask

        return transform_dask
    if is_of(Z, "pyspark.sql", "DataFrame"):
        from dpmd_fast.reference.sources.spark import transform_spark

        return transform_spark
    return None
