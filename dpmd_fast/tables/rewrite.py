"""Batches of one file into those of another: moved by an atlas, or replaced by points that are at hand.

    reading (a thread) --> moving (a thread for each core) --> counting --> writing (a thread)

Every batch is moved by one thread, so that no core waits for another, and batches are written in their order.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.columns import places_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.tables.formats import Incoming
from dpmd_fast.tables.frames import schema_after

_STATUS = ("ok", "outside", "clipped", "failed", "no_neighbor")
Rewritten = tuple[Any, NDArray[np.int64]]  # a batch, and how many of its rows have each status


class Rewriter(ABC):
    """What becomes of each batch; counts rows and states when they are told."""

    def __init__(self, path: str, schema: Any, moved: Sequence[str], status_column: str | None) -> None:
        self.path = path
        self.schema = schema
        self.moved = moved
        self.rows = 0
        self._counts = np.zeros(len(_STATUS), np.int64)
        self._status = status_column is not None
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
        return {word: int(count) for word, count in zip(_STATUS, self._counts, strict=True) if count}

    @abstractmethod
    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, NDArray[np.str_]]:
        """The new batch, without a column for the status, and the status; its first row is `start`."""

    def rewrite(self, batch: Any, start: int, n_threads: int | None) -> Rewritten:
        """The new batch; may be called by several threads at once."""
        moved, status = self.transformed(batch, start, n_threads)
        codes = np.zeros(len(status), np.int8)
        for code, word in enumerate(_STATUS):
            codes[status == word] = code
        counts = np.bincount(codes, minlength=len(_STATUS))
        if not self._status:
            return moved, counts
        import pyarrow as pa

        words = pa.DictionaryArray.from_arrays(pa.array(codes), list(_STATUS)).cast(pa.string())
        return pa.RecordBatch.from_arrays([*moved.columns, words], schema=self.schema), counts

    def count(self, counts: NDArray[np.int64]) -> None:
        self.rows += int(counts.sum())
        self._counts += counts


class Mover(Rewriter):
    """Through an atlas."""

    def __init__(self, atlas: Atlas, path: str, incoming: Incoming, status_column: str | None) -> None:
        self._atlas = atlas
        self.path = path
        schema, moved = incoming.schema, atlas.column_names
        if schema is not None:
            moved = moved or tuple(schema.names)
            schema = self.transformed(schema.empty_table(), 0, None)[0].schema
        super().__init__(path, schema, moved or (), status_column)

    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, NDArray[np.str_]]:
        atlas: Any = copy.copy(self._atlas)  # leaves its own status behind; its arrays are shared
        try:
            return atlas.transform(batch, n_threads), atlas.status_
        except ValueError as problem:
            text = str(problem)
            where = f" (among rows {start} to {start + len(batch) - 1})" if len(batch) else ""
            if "NaN" in text:
                where += "; fill or leave out such rows first"
            named = text.removeprefix("Z ") if text.startswith("Z ") else f"cannot be transformed: {text}"
            raise UserValueError(f"{self.path} {named}{where}") from None


class Replacer(Rewriter):
    """Points that are there already, in the order of the rows."""

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
        self._given = np.full(len(points), "ok") if status is None else status
        self._places: list[int] = []
        schema = incoming.schema
        if schema is not None:
            self._places = places_of(tuple(names or ()), schema.names, path)
            number = np.float32 if points.dtype == np.float32 else np.float64
            schema = schema_after(schema, dict.fromkeys(self._places, number))
        self._schema_moved = schema
        super().__init__(path, schema, names or (), status_column)

    def transformed(self, batch: Any, start: int, n_threads: int | None) -> tuple[Any, NDArray[np.str_]]:
        part = slice(start, start + len(batch))
        if self._schema_moved is None:
            return self._points[part], self._given[part]
        import pyarrow as pa

        columns = list(batch.columns)
        for place, numbers in zip(self._places, self._points[part].T, strict=True):
            columns[place] = pa.array(np.ascontiguousarray(numbers))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema_moved), self._given[part]


def run(
    incoming: Incoming,
    rewriting: Rewriter,
    write: Callable[[Any, bool], None],
    progress: Callable[[int, int | None], None] | None,
    n_threads: int | None,
) -> None:
    """All batches of a file, in their order."""
    items = incoming.batches
    going: deque[Future[None]] = deque()

    def finish(rewritten: Rewritten, ends_group: bool) -> None:
        while going:
            going.popleft().result()
        rewriting.count(rewritten[1])
        going.append(writing.submit(write, rewritten[0], ends_group))
        if progress is not None:
            progress(rewriting.rows, incoming.rows)

    with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:
        coming: Future[Any] = reading.submit(next, items, None)
        start = 0
        if (item := coming.result()) is not None:  # by all cores: only then is known how they can be used
            coming = reading.submit(next, items, None)
            finish(rewriting.rewrite(item[0], 0, n_threads), item[1])
            start = len(item[0])
            workers, each = _division(n_threads)
            waiting: deque[tuple[Future[Rewritten], bool]] = deque()
            with ThreadPoolExecutor(workers) as moving:
                while (item := coming.result()) is not None:
                    coming = reading.submit(next, items, None)
                    waiting.append((moving.submit(rewriting.rewrite, item[0], start, each), item[1]))
                    start += len(item[0])
                    if len(waiting) > workers:
                        done, ends_group = waiting.popleft()
                        finish(done.result(), ends_group)
                for done, ends_group in waiting:
                    finish(done.result(), ends_group)
        while going:
            going.popleft().result()


def _division(n_threads: int | None) -> tuple[int, int | None]:
    """Threads that move batches, and threads that each of them may use."""
    import numba

    from dpmd_fast.kernels.jit import resolve_threads

    try:
        several = numba.threading_layer() != "workqueue"  # which serves one thread at a time
    except ValueError:  # no kernel has been run
        several = False
    return (resolve_threads(n_threads), 1) if several else (1, n_threads)
