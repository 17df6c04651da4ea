"""A Spark DataFrame as a reference, and through an atlas, with ``mapInArrow``.

Every task sums several partitions of the DataFrame into one row of bytes; rows are merged eight at a time,
and at most eight come to the driver. Between the stages Spark keeps them in the shuffle files of its
executors, like any other rows: those disks hold private values then. Columns go by position inside, since
Spark reads dots and backticks in names as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.columns import checked_columns, is_of, places_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.engine import (
    EngineSource,
    Failure,
    arrow_batches,
    guarded,
    merged,
    transform_batches,
    without_receipt,
)
from dpmd_fast.reference.tasks import PartialSums, Task

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

_ROW = "shape array<bigint>, sums binary, records bigint"
_AT_ONCE = 8  # partial sums merged by one task
_TASKS_PER_CORE = 2


def is_spark_frame(value: object) -> bool:
    return is_of(value, "pyspark.sql", "DataFrame")


class SparkSource(EngineSource):
    """The numeric columns of a DataFrame, or those that are named."""

    def __init__(self, frame: Any, columns: Sequence[str] | None) -> None:
        self._context = _context_of(frame)
        fields = frame.schema.fields
        names = [field.name for field in fields]
        places = places_of(checked_columns(columns), names, "reference")
        others = [names[place] for place in places if not _is_number(fields[place])]
        if others:
            raise UserValueError(
                f"reference has {len(others)} column(s) that are not numeric, {others[0]!r} among them: name "
                "those to use with columns="
            )
        chosen = tuple(names[place] for place in places)
        super().__init__(frame, self._sums, n_columns=len(chosen), column_names=chosen, rows=None)
        self._frame = _numbered(frame).select([f"c{place}" for place in places])

    def _sums(self, task: Task) -> Iterator[PartialSums | Failure]:
        # not more than there are partitions; asking for their number would run what comes before a shuffle
        parts = _TASKS_PER_CORE * self._context.defaultParallelism
        made = self._frame.coalesce(parts).mapInArrow(summing(task), _ROW)
        while parts > _AT_ONCE:
            parts = -(-parts // _AT_ONCE)
            made = made.repartition(parts).mapInArrow(merging(task), _ROW)
        for row in made.collect():
            yield _unpacked(row.shape, row.sums, row.records)


def _context_of(frame: Any) -> Any:
    try:
        return frame.sparkSession.sparkContext
    except Exception:  # PySpark has a kind of its own for this
        raise UserValueError(
            "reference is a DataFrame of Spark Connect: must be of a classic session, or read the files "
            "through another engine"
        ) from None


def _numbered(frame: Any) -> Any:
    """The same frame with columns c0, c1, ..."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.schema.fields))))


def _is_number(field: Any) -> bool:
    from pyspark.sql.types import BooleanType, NumericType

    return isinstance(field.dataType, (NumericType, BooleanType))


def summing(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: the batches of a partition to one row with its partial sums."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        yield _packed(guarded(lambda: task.on(arrow_batches(batches), n_threads=1)))

    return partition


def merging(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: rows that `summing` made to one of their sum."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield _packed(merged(task, (_unpacked(row["shape"], row["sums"], row["records"]) for row in rows)))

    return partition


def _packed(sums: PartialSums | Failure) -> Any:
    import pyarrow as pa

    if isinstance(sums, Failure):
        shape, data, rows = None, sums.kind.encode("utf-8"), 0
    else:
        shape, data, rows = list(sums.values.shape), np.ascontiguousarray(sums.values).tobytes(), sums.rows
    return pa.RecordBatch.from_pydict(
        {
            "shape": pa.array([shape], pa.list_(pa.int64())),
            "sums": pa.array([data], pa.binary()),
            "records": pa.array([rows], pa.int64()),
        }
    )


def _unpacked(shape: Sequence[int] | None, sums: bytes, rows: int) -> PartialSums | Failure:
    if shape is None:
        return Failure(bytes(sums).decode("utf-8"))
    return PartialSums(np.frombuffer(sums, np.int64).reshape(shape), rows)


def transform_spark(atlas: Atlas, frame: Any) -> Any:
    """A Spark DataFrame with the columns of the atlas moved, lazily; others pass through."""
    from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

    alone = without_receipt(atlas)
    fields = frame.schema.fields
    names = [field.name for field in fields]
    wanted = atlas.column_names
    if wanted is None and len(names) != atlas.n_columns:
        raise UserValueError(
            f"Z has {len(names)} columns: must have {atlas.n_columns}; the atlas has no column names, so "
            "columns can only be matched by position"
        )
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise UserValueError(f"Z lacks {len(missing)} column(s) of the atlas, {missing[0]!r} among them")
    moved = set(range(len(names)) if wanted is None else places_of(wanted, names, "Z"))
    others = [names[place] for place in sorted(moved) if not _is_number(fields[place])]
    if others:
        raise UserValueError(f"Z has {len(others)} column(s) that are not numeric, {others[0]!r} among them")
    kinds = [
        DoubleType() if place in moved and not isinstance(field.dataType, FloatType) else field.dataType
        for place, field in enumerate(fields)
    ]
    numbered = StructType([StructField(f"c{place}", kind, True) for place, kind in enumerate(kinds)])
    inside = _names_inside(names, moved)
    object.__setattr__(atlas, "status_", None)

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        outside = [f"c{place}" for place in range(len(inside))]
        named = (pa.RecordBatch.from_arrays(batch.columns, names=inside) for batch in batches)
        for batch in transform_batches(alone, named):
            yield pa.RecordBatch.from_arrays(batch.columns, names=outside)

    return _numbered(frame).mapInArrow(partition, numbered).toDF(*names)


def _names_inside(names: Sequence[str], moved: set[int]) -> list[str]:
    """Names by which the atlas finds its columns, all of them different."""
    taken = {names[place] for place in moved}
    out = []
    for place, name in enumerate(names):
        label = name if place in moved else f"c{place}"
        while place not in moved and label in taken:
            label += "_"
        out.append(label)
    return out
