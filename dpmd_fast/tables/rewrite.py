"""Rewrites the batches of a file: columns cleaned with a model, or replaced by points that are in memory.

    reading (one thread) --> rewriting (one thread for each core) --> counting --> writing (one thread)

One thread rewrites one batch, so that no core waits for another; batches are written in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points, checked_numbers, shown
from dpmd_fast.columns import places_of
from dpmd_fast.errors import UserValueError, text_of
from dpmd_fast.kernels.jit import resolve_threads
from dpmd_fast.status import WORDS, Codes, codes_of
from dpmd_fast.tables.formats import Incoming
from dpmd_fast.tables.frames import ArrowTransform, schema_after
from dpmd_fast.tables.protocol import InvalidValueError, RowCleaner, check_rows, has_deviations

MOST_UNWRITTEN = 8  # batches that wait to be written: others are rewritten while a row group is written

Rewritten = tuple[Any, NDArray[np.int64]]  # a batch, and how many of its rows have each status


class Rewriter(ABC):
    """Makes a new batch of each batch of a file, and counts rows and their status.

    Attributes
    ----------
    schema : pyarrow.Schema or None
        Of the new batches; None for an array.
    moved : sequence of str
        Names of the columns of numbers that change or are added.
    rows : int
        Counted so far.
    """

    def __init__(self, path: str, schema: Any, moved: Sequence[str], status_column: str | None) -> None:
        self.schema = schema
        self.moved = moved
        self.rows = 0
        self._counts = np.zeros(len(WORDS), np.int64)
        self._adds_status = status_column is not None
        if status_column is not None:
            import pyarrow as pa

            if status_column in schema.names:
                raise UserValueError(
                    f"status_column = {status_column!r}: {path} has a column of that name already",
                    argument="status_column",
                )
            self.schema = schema.append(pa.field(status_column, pa.string(), nullable=False))

    @property
    def status(self) -> dict[str, int]:
        """Number of rows with each status that occurred."""
        return {word: int(count) for word, count in zip(WORDS, self._counts, strict=True) if count}

    @abstractmethod
    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, Codes]:
        """Return the new batch without the status column, and a status code for each of its rows.

        `start` is the number of the batch's first row in the file.
        """

    def rewrite(self, batch: Any, start: int, n_threads: int | None) -> Rewritten:
        """Return the new batch and the counts of its status; may be called by several threads at once."""
        moved, codes = self.transformed(batch, start, n_threads)
        counts = np.bincount(codes, minlength=len(WORDS))
        if not self._adds_status:
            return moved, counts
        import pyarrow as pa

        words = pa.DictionaryArray.from_arrays(pa.array(codes), list(WORDS)).cast(pa.string())
        return pa.RecordBatch.from_arrays([*moved.columns, words], schema=self.schema), counts

    def count(self, counts: NDArray[np.int64]) -> None:
        self.rows += int(counts.sum())
        self._counts += counts


class CleaningRewriter(Rewriter):
    """Replaces the columns of a model by their cleaned values, and adds their deviations if asked."""

    def __init__(
        self,
        cleaner: RowCleaner,
        path: str,
        incoming: Incoming,
        status_column: str | None,
        deviation_suffix: str | None = None,
    ) -> None:
        self._cleaner, self._path = cleaner, path
        if deviation_suffix is not None and not has_deviations(cleaner):
            raise UserValueError(
                f"deviation_suffix = {shown(deviation_suffix)}: must be None for an atlas, which has no "
                "deviations",
                argument="deviation_suffix",
            )
        schema, moved = incoming.schema, cleaner.column_names or ()
        if schema is not None:
            self._transform = ArrowTransform(cleaner, schema, path, deviation_suffix)
            moved = (*(moved or schema.names), *self._transform.added)
            schema = self._transform.schema
        elif incoming.shape is not None and incoming.shape[1] != cleaner.n_columns:
            raise UserValueError(
                f"{path} has {incoming.shape[1]} columns: must have {cleaner.n_columns}, as the "
                f"{cleaner.kind}"
            )
        super().__init__(path, schema, moved, status_column)

    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, Codes]:
        try:
            if self.schema is not None:
                return self._transform(batch, n_threads, start)
            points = checked_numbers(self._path, batch)
            check_rows(self._cleaner, self._path, points, start)
            return self._cleaner.move(points, n_threads, self._path)
        except InvalidValueError:  # names the row
            raise
        except UserValueError as problem:
            remedy = "fill" if self._cleaner.missing == "refuse" else "correct"
            raise UserValueError(
                f"{text_of(problem)} (among rows {start} to {start + len(batch) - 1}); {remedy} or leave out "
                "such rows first"
            ) from None


class PointsRewriter(Rewriter):
    """Replaces columns by points that are in memory, in the order of the rows."""

    def __init__(
        self,
        points: Points,
        names: Sequence[str] | None,
        status: NDArray[np.str_] | None,
        path: str,
        incoming: Incoming,
        status_column: str | None,
    ) -> None:
        self._points = points
        self._codes = np.zeros(len(points), np.int8) if status is None else codes_of(status)
        self._places: list[int] = []
        schema = incoming.schema
        if schema is not None:
            self._places = places_of(tuple(names or ()), schema.names, path)
            number = np.float32 if points.dtype == np.float32 else np.float64
            schema = schema_after(schema, dict.fromkeys(self._places, number))
        self._schema_moved = schema
        super().__init__(path, schema, names or (), status_column)

    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, Codes]:
        part = slice(start, start + len(batch))
        if self._schema_moved is None:
            return self._points[part], self._codes[part]
        import pyarrow as pa

        columns = list(batch.columns)
        for place, numbers in zip(self._places, self._points[part].T, strict=True):
            columns[place] = pa.array(np.ascontiguousarray(numbers))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema_moved), self._codes[part]


def run(
    incoming: Incoming,
    rewriter: Rewriter,
    write: Callable[[Any, bool], None],
    progress: Callable[[int, int | None], None] | None,
    n_threads: int | None,
) -> None:
    """Rewrite and write all batches of a file, in their order."""
    items = incoming.batches
    being_written: deque[Future[None]] = deque()
    failed: list[BaseException] = []

    def write_on(batch: Any, ends_group: bool) -> None:
        if failed:  # a file that could not be written is not written on
            return
        try:
            write(batch, ends_group)
        except BaseException as problem:
            failed.append(problem)
            raise

    def finish(rewritten: Rewritten, ends_group: bool) -> None:
        while len(being_written) >= MOST_UNWRITTEN or (being_written and being_written[0].done()):
            being_written.popleft().result()
        rewriter.count(rewritten[1])
        being_written.append(writing.submit(write_on, rewritten[0], ends_group))
        if progress is not None:
            progress(rewriter.rows, incoming.rows)

    with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:
        coming: Future[Any] = reading.submit(next, items, None)
        start = 0
        if (item := coming.result()) is not None:  # alone: the model makes ready what all threads use
            coming = reading.submit(next, items, None)
            finish(rewriter.rewrite(item[0], 0, n_threads), item[1])
            start = len(item[0])
        workers = resolve_threads(n_threads)
        waiting: deque[tuple[Future[Rewritten], bool]] = deque()
        with ThreadPoolExecutor(workers) as moving:
            while item is not None and (item := coming.result()) is not None:
                coming = reading.submit(next, items, None)
                waiting.append((moving.submit(rewriter.rewrite, item[0], start, 1), item[1]))
                start += len(item[0])
                if len(waiting) > workers:
                    done, ends_group = waiting.popleft()
                    finish(done.result(), ends_group)
            for done, ends_group in waiting:
                finish(done.result(), ends_group)
        while being_written:
            being_written.popleft().result()
