"""Records that any engine which maps batches holds.

    reference = engine_reference(run, columns=["x", "y"], rows=10**9)
    atlas = release_atlas(reference, anchors, dim=1, budget=...)

`run(task)` is the engine's part: it applies ``partial_sums(task, arrow_batches(batches, columns),
partition=number)`` to every partition, in any process, and returns the results in any order, each partition
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.arguments import Points, checked_integer
from dpmd_fast.columns import (
    arrow_block,
    arrow_number_type,
    block_type,
    checked_columns,
    is_arrow,
    places_of,
)
from dpmd_fast.errors import UserOverflowError, UserRuntimeError, UserTypeError, UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.tasks import MismatchedSums, PartialSums, Task


def engine_reference(
    run: Callable[[Task], Iterable[PartialSums]],
    *,
    columns: Sequence[str] | int,
    rows: int | None = None,
) -> ReferenceSource:
    """A private reference for `release_moments` and `release_atlas` whose records stay in an engine.

    Parameters
    ----------
    run : callable
        Takes a task and returns the `partial_sums` of all partitions, each exactly once; a partition that was
        computed twice must be returned once. It is called for every pass: several times for an atlas. Give
        ``partition=`` to `partial_sums`: a partition that comes twice is then refused, whoever computed it.
    columns : list of str, or int
        Names of the columns, or their number, in the order in which the batches hold them.
    rows : int, optional
        Number of records, where that is public, so not under add-remove adjacency; `release_atlas` then needs
        no ``n_public``, and a pass that sums another number is refused.
    """
    if not callable(run):
        raise UserValueError("run: must be a function of a task")
    names = None if isinstance(columns, int) else checked_columns(list(columns))
    width = checked_integer("columns", columns, minimum=1) if isinstance(columns, int) else len(names or ())
    if rows is not None:
        rows = checked_integer("rows", rows, minimum=1)
    source = EngineSource(run, run, n_columns=width, column_names=names, rows=rows)
    source.declared = rows is not None
    return source


class Failure(NamedTuple):
    """What a worker says of an error: its kind. Its text may quote records, and engines log it."""

    kind: str


def guarded(work: Callable[[], PartialSums]) -> PartialSums | Failure:
    """The result of `work`, or that it failed: nothing for the engine to log."""
    try:
        return work()
    except Exception as error:
        return Failure(type(error).__name__)


def merged(task: Task, parts: Iterable[PartialSums | Failure]) -> PartialSums | Failure:
    """The sum of `parts`, or one of the failures among them."""
    good: list[PartialSums] = []
    for part in parts:
        if isinstance(part, Failure):
            return part
        good.append(part)
    return task.merge(good)


class EngineSource(ReferenceSource):
    """Records that never come here: tasks go to them."""

    local = False
    declared = False  # whether the number of records is what the caller said

    def __init__(
        self,
        reference: Any,
        run: Callable[[Task], Iterable[PartialSums | Failure]],
        *,
        n_columns: int,
        column_names: tuple[str, ...] | None,
        rows: int | None,
    ) -> None:
        super().__init__(
            reference,
            n_columns=n_columns,
            column_names=column_names,
            rows=rows,
            dtype=np.dtype(np.float64),
            batch_rows=None,
        )
        self._run = run
        self._counted = rows

    def blocks(self) -> Iterator[Points]:
        raise UserValueError(
            "reference is held by an engine: release_moments and release_atlas send sums to where the "
            "records are; anything else needs an array, a table or files"
        )

    def run(self, task: Task, n_threads: int | None = None) -> PartialSums:
        try:
            found = merged(task, self._run(replace(task, columns=self.n_columns)))
        except (MismatchedSums, UserOverflowError):
            raise
        except Exception as error:
            found = Failure(type(error).__name__)
        if isinstance(found, PartialSums):
            if self._counted is not None and found.rows != self._counted:
                raise MismatchedSums(
                    "the engine summed another number of records than it holds: each partition must be "
                    "returned exactly once, in every pass"
                )
            self._counted = found.rows
            return found
        # outside of the handler, so that the engine's error does not travel along
        raise UserRuntimeError(
            f"the engine failed ({found.kind}); what it says about that may quote records, and is not "
            "repeated here"
        )


def arrow_batches(batches: Iterable[Any], columns: Sequence[str] | None = None) -> Iterator[Points]:
    """Arrow record batches as arrays (rows, D), for `partial_sums`; missing values become NaN.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch or Table
    columns : list of str, optional
        Columns to take, in this order; all by default.
    """
    wide = np.dtype(np.float64)
    wanted = checked_columns(columns)
    for batch in batches:
        if not is_arrow(batch):
            raise UserTypeError(
                f"batches holds a {type(batch).__name__}: must hold Arrow record batches or tables"
            )
        places = places_of(wanted, batch.schema.names, "a batch")
        chosen = [(batch.schema.names[place], batch.schema.types[place]) for place in places]
        block_type("a batch", [name for name, _ in chosen], [kind for _, kind in chosen], arrow_number_type)
        if batch.num_rows and places:
            yield arrow_block([batch.column(place) for place in places], wide)
