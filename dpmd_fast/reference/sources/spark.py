"""A Spark DataFrame as a private reference, with ``mapInArrow``.

Every task sums several partitions of the DataFrame into one row of bytes; rows are merged eight at a time,
and at most eight come to the driver. Between the stages Spark keeps them in the shuffle files of its
executors, like any other rows: those disks hold private values then. Columns go by position inside, since
Spark reads dots and backticks in names as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpmd_fast.columns import checked_columns, is_spark_number, numbered_spark, places_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.engine import (
    EngineSource,
    Failure,
    arrow_batches,
    guarded,
    merged,
)
from dpmd_fast.reference.tasks import PartialSums, Task

_ROW = "shape array<bigint>, sums binary, records bigint, parts array<string>"
_FIELDS = ("shape", "sums", "records", "parts")
_AT_ONCE = 8  # partial sums merged by one task
_TASKS_PER_CORE = 2


class SparkSource(EngineSource):
    """The numeric columns of a DataFrame, or those that are named."""

    def __init__(self, frame: Any, columns: Sequence[str] | None) -> None:
        self._context = _context_of(frame)
        fields = frame.schema.fields
        names = [field.name for field in fields]
        places = places_of(checked_columns(columns), names, "reference")
        others = [names[place] for place in places if not is_spark_number(fields[place])]
        if others:
            raise UserValueError(
                f"reference has {len(others)} column(s) that are not numeric, {others[0]!r} among them: name "
                "those to use with columns="
            )
        chosen = tuple(names[place] for place in places)
        super().__init__(frame, self._sums, n_columns=len(chosen), column_names=chosen, rows=None)
        self._frame = numbered_spark(frame).select([f"c{place}" for place in places])

    def _sums(self, task: Task) -> Iterator[PartialSums | Failure]:
        # not more than there are partitions; asking for their number would run what comes before a shuffle
        parts = _TASKS_PER_CORE * self._context.defaultParallelism
        made = self._frame.coalesce(parts).mapInArrow(summing(task), _ROW)
        while parts > _AT_ONCE:
            parts = -(-parts // _AT_ONCE)
            made = made.repartition(parts).mapInArrow(merging(task), _ROW)
        for row in made.collect():
            yield _unpacked(row.shape, row.sums, row.records, row.parts)


def _context_of(frame: Any) -> Any:
    try:
        return frame.sparkSession.sparkContext
    except Exception:  # PySpark has a kind of its own for this
        raise UserValueError(
            "reference is a DataFrame of Spark Connect: must be of a classic session, or read the files "
            "through another engine"
        ) from None


def summing(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: the batches of a partition to one row with its partial sums."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        yield _packed(guarded(lambda: task.on(arrow_batches(batches), 1, _partition_number())))

    return partition


def merging(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: rows that `summing` made to one of their sum."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield _packed(merged(task, (_unpacked(*map(row.get, _FIELDS)) for row in rows)))

    return partition


def _packed(sums: PartialSums | Failure) -> Any:
    import pyarrow as pa

    if isinstance(sums, Failure):
        shape, data, rows, parts = None, sums.kind.encode("utf-8"), 0, []
    else:
        shape, data = list(sums.values.shape), np.ascontiguousarray(sums.values).tobytes()
        rows, parts = sums.rows, list(sums.parts)
    return pa.RecordBatch.from_pydict(
        {
            "shape": pa.array([shape], pa.list_(pa.int64())),
            "sums": pa.array([data], pa.binary()),
            "records": pa.array([rows], pa.int64()),
            "parts": pa.array([parts], pa.list_(pa.string())),
        }
    )


def _partition_number() -> int | None:
    """Return the number of the partition that a worker of Spark is summing: the same if it does so again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else int(context.partitionId())


def _unpacked(
    shape: Sequence[int] | None, sums: bytes, rows: int, parts: Sequence[str]
) -> PartialSums | Failure:
    if shape is None:
        return Failure(bytes(sums).decode("utf-8"))
    return PartialSums(np.frombuffer(sums, np.int64).reshape(shape), rows, tuple(parts))
