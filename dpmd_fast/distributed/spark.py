"""A Spark DataFrame as a reference, and through an atlas, with ``mapInArrow``.

Every task sums several partitions of the DataFrame into one row of bytes; rows are merged eight at a time,
and at most eight come to the driver. Between the stages Spark keeps them in the shuffle files of its
executors, like any other rows: those disks hold private values then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.columns import checked_columns, is_of, places_of
from dpmd_fast.distributed.engine import EngineSource, arrow_batches, transform_batches, without_receipt
from dpmd_fast.tasks import PartialSums, Task

if TYPE_CHECKING:
    from dpmd_fast.atlas import Atlas

_ROW = "shape array<bigint>, sums binary, records bigint"
_AT_ONCE = 8  # partial sums merged by one task
_TASKS_PER_CORE = 2
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "decimal")


def is_spark_frame(value: object) -> bool:
    return is_of(value, "pyspark.sql", "DataFrame")


class SparkSource(EngineSource):
    """The numeric columns of a DataFrame, or those that are named."""

    def __init__(self, frame: Any, columns: Sequence[str] | None) -> None:
        names, types = [name for name, _ in frame.dtypes], dict(frame.dtypes)
        chosen = [names[place] for place in places_of(checked_columns(columns), names, "reference")]
        others = [name for name in chosen if not types[name].startswith(_NUMBERS)]
        if others:
            raise ValueError(
                f"reference has {len(others)} column(s) that are not numeric, {others[0]!r} among them: name "
                "those to use with columns="
            )
        super().__init__(frame, self._sums, n_columns=len(chosen), column_names=tuple(chosen), rows=None)
        self._frame = frame.select([f"`{name}`" for name in chosen])

    def _sums(self, task: Task) -> Iterator[PartialSums]:
        context = self._frame.sparkSession.sparkContext
        parts = self._frame.rdd.getNumPartitions()
        most = _TASKS_PER_CORE * context.defaultParallelism
        gathered = self._frame.coalesce(most) if parts > most else self._frame
        parts = min(parts, most)
        made = gathered.mapInArrow(summing(task), _ROW)
        while parts > _AT_ONCE:
            parts = -(-parts // _AT_ONCE)
            made = made.repartition(parts).mapInArrow(merging(task), _ROW)
        for row in made.collect():
            yield _unpacked(row.shape, row.sums, row.records)


def summing(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: the batches of a partition to one row with its partial sums."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        yield _packed(task.on(arrow_batches(batches), n_threads=1))

    return partition


def merging(task: Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for ``mapInArrow``: rows that `summing` made to one of their sum."""

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield _packed(task.merge(_unpacked(row["shape"], row["sums"], row["records"]) for row in rows))

    return partition


def _packed(sums: PartialSums) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {
            "shape": pa.array([list(sums.values.shape)], pa.list_(pa.int64())),
            "sums": pa.array([np.ascontiguousarray(sums.values).tobytes()], pa.binary()),
            "records": pa.array([sums.rows], pa.int64()),
        }
    )


def _unpacked(shape: Sequence[int], sums: bytes, rows: int) -> PartialSums:
    return PartialSums(np.frombuffer(sums, np.int64).reshape(shape), rows)


def transform_spark(atlas: Atlas, frame: Any) -> Any:
    """A Spark DataFrame with the columns of the atlas moved, lazily; others pass through."""
    alone = without_receipt(atlas)
    wanted = atlas.column_names
    names = [name for name, _ in frame.dtypes]
    if wanted is None and len(names) != atlas.n_columns:
        raise ValueError(
            f"Z has {len(names)} columns: must have {atlas.n_columns}; the atlas has no column names, so "
            "columns can only be matched by position"
        )
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise ValueError(f"Z lacks {len(missing)} column(s) of the atlas, {missing[0]!r} among them")
    moved = set(names if wanted is None else wanted)
    schema = ", ".join(
        f"`{name}` {kind if name not in moved or kind == 'float' else 'double'}"
        for name, kind in frame.dtypes
    )

    object.__setattr__(atlas, "status_", None)

    def partition(batches: Iterable[Any]) -> Iterator[Any]:
        return transform_batches(alone, batches)

    return frame.mapInArrow(partition, schema)
