"""Files of public points: rewritten with a model, or read into memory.

    file --> batches --> model --> batches --> partial file --> target

Reading, moving and writing overlap, and a few batches are all that is held in memory. The target appears when
it is complete; whatever goes wrong before leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points, check_range, checked_threads, shown
from dpmd_fast.atomic import atomic_write
from dpmd_fast.columns import CHOOSE, arrow_block, arrow_number_type, checked_columns, places_of, quoted
from dpmd_fast.errors import UserValueError
from dpmd_fast.tables.formats import Incoming, explained, format_of, open_batches, open_writer
from dpmd_fast.tables.nulls import refuse_nulls
from dpmd_fast.tables.protocol import Model, RowCleaner, cleaner_of
from dpmd_fast.tables.rewrite import CleaningRewriter, PointsRewriter, Rewriter, run

#: Called with the rows cleaned so far, and with all rows or None if they are not known.
Progress = Callable[[int, "int | None"], None]


class FileResult(NamedTuple):
    """A file that was written."""

    path: str
    rows: int
    status: dict[str, int]  # number of points with each status that occurred


def transform_file(
    model: Model,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    noise: Any = None,
    on_missing: str | None = None,
    deviation_suffix: str | None = None,
    status_column: str | None = None,
    overwrite: bool = False,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> FileResult:
    """Clean the points of a file with a model and write another file; memory does not grow with the file.

    Parameters
    ----------
    model : Atlas or Mixture
    source, target : path
        Parquet (.parquet, .pq), Arrow IPC (.arrow, .feather, .ipc) or CSV (.csv), in any combination; or both
        .npy. Columns are found as in `Atlas.transform`. All other columns, the order of the columns and the
        metadata of the schema are kept; of Parquet also codecs, and row groups of up to 128 MB and a million
        rows.
    noise : number, array or mapping, optional
        For a mixture, which needs it: see `Mixture.transform`.
    on_missing : {"fill", "keep", "refuse"}, optional
        What becomes of missing values, which are nulls, NaN and the empty cells of a CSV file: see the
        model's `transform`. By default a mixture fills them in, and an atlas refuses them. Those that are
        kept become nulls, and NaN in .npy.
    deviation_suffix : str, optional
        For a mixture and a table: adds a column with the posterior deviation of each cleaned column, under
        the column's name with this suffix; after all columns and before the status.
    status_column : str, optional
        Name of a column to add, with the status of each row: see `Atlas.transform`.
    overwrite : bool
        Whether to replace `target` if it exists, which is done at the very end.
    n_threads : int, optional
    progress : callable, optional
        Called as ``progress(done, total)`` after every batch; `total` is None if it is not known.

    Returns
    -------
    FileResult

    Raises
    ------
    ValueError, OSError
        Nothing is left at `target`.
    """
    read, written = os.fsdecode(source), os.fsdecode(target)
    n_threads = checked_threads(n_threads)
    cleaner = cleaner_of(model, noise, on_missing)
    check_pair(read, written, status_column, deviation_suffix)
    numbers = _numbers(cleaner, read)

    def make_rewriter(incoming: Incoming) -> CleaningRewriter:
        rewriter = CleaningRewriter(cleaner, read, incoming, status_column, deviation_suffix)
        refuse_nulls(read, cleaner)
        return rewriter

    return _rewrite(
        read,
        written,
        numbers,
        make_rewriter,
        overwrite,
        progress,
        n_threads,
    )


def replace_points(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    points: Points,
    names: Sequence[str] | None,
    *,
    status: NDArray[np.str_] | None = None,
    status_column: str | None = None,
    overwrite: bool = False,
    rehearse: bool = False,
) -> FileResult:
    """Write a file with the columns `names` (None for .npy) replaced by `points`, and all else as it was.

    With `rehearse` all is written but nothing stays: what can fail has then failed.
    """
    read, written = os.fsdecode(source), os.fsdecode(target)
    check_pair(read, written, status_column)
    return _rewrite(
        read,
        written,
        names,
        lambda incoming: PointsRewriter(points, names, status, read, incoming, status_column),
        overwrite,
        rehearse=rehearse,
    )


def check_pair(
    read: str, written: str, status_column: str | None = None, deviation_suffix: str | None = None
) -> None:
    """Refuse an input and an output whose formats do not go together, and one file for both."""
    kinds = format_of(read), format_of(written)
    if kinds[0] != kinds[1] and "npy" in kinds:
        raise UserValueError(
            f"{written}: must end in .npy if and only if {read} does; an array has no columns"
        )
    for name, value in (("status_column", status_column), ("deviation_suffix", deviation_suffix)):
        if kinds[0] == "npy" and value is not None:
            raise UserValueError(
                f"{name} = {shown(value)}: must be None for an array, which has no names", argument=name
            )
    if os.path.exists(read) and os.path.exists(written) and os.path.samefile(read, written):
        raise UserValueError(f"{written} is the file to be read: must be another one")


def read_points(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    most: int | None = None,
    missing: bool = False,
) -> tuple[Points, tuple[str, ...] | None]:
    """Return the public points of a file and the names of their columns (None for .npy).

    Parameters
    ----------
    path : path
        Of a format that `transform_file` reads.
    columns : sequence of str, optional
        Columns of a table to read; ignored for .npy. By default all, and then all must be numeric.
    most : int, optional
        Return at most this many points, evenly spread over the rows.
    missing : bool
        Whether values may be missing: nulls, NaN and the empty cells of a CSV file, which become NaN.
    """
    name = os.fsdecode(path)
    chosen = checked_columns(None if columns is None else list(columns))
    with open_batches(name, numbers=chosen) as incoming:
        if incoming.schema is None:
            return _checked(name, _gathered((batch for batch, _ in incoming.batches), most), missing), None
        names, types = incoming.schema.names, incoming.schema.types
    positions = places_of(chosen, names, name)
    numeric = [column for column, kind in zip(names, types, strict=True) if arrow_number_type(kind)]
    others = [names[position] for position in positions if not arrow_number_type(types[position])]
    if others:
        raise UserValueError(
            f"{name} has columns that are not numeric: {quoted(others)}; choose among "
            f"{quoted(numeric) or 'those of another file'}, with {CHOOSE}"
        )
    wanted = [names[position] for position in positions]
    with open_batches(name, numbers=wanted, columns=wanted) as incoming:
        single = {arrow_number_type(kind) for kind in incoming.schema.types} == {np.float32}
        dtype = np.dtype(np.float32 if single else np.float64)
        blocks = (arrow_block(batch.columns, dtype) for batch, _ in incoming.batches)
        return _checked(name, _gathered(blocks, most), missing), tuple(wanted)


def _rewrite(
    read: str,
    written: str,
    numbers: Sequence[str] | None,
    make_rewriter: Callable[[Incoming], Rewriter],
    overwrite: bool,
    progress: Progress | None = None,
    n_threads: int | None = 1,
    rehearse: bool = False,
) -> FileResult:
    kind = format_of(written)
    target = atomic_write(written, overwrite=overwrite, rehearse=rehearse)
    with open_batches(read, numbers) as incoming, target as partial:
        rewriter = make_rewriter(incoming)
        with explained(written, kind):
            writer = open_writer(partial, kind, incoming, rewriter.schema, rewriter.moved)

        def write(batch: Any, ends_group: bool) -> None:
            with explained(written, kind):
                writer.write(batch, ends_group)

        try:
            run(incoming, rewriter, write, progress, n_threads)
        except BaseException:
            with suppress(Exception):
                writer.close()
            raise
        with explained(written, kind):
            writer.close()
    return FileResult(written, rewriter.rows, rewriter.status)


def _numbers(cleaner: RowCleaner, path: str) -> Sequence[str] | None:
    """Return the columns to read as numbers, which a CSV file does not say."""
    if format_of(path) != "CSV" or cleaner.column_names is not None:
        return cleaner.column_names
    with open_batches(path) as incoming:
        names: list[str] = incoming.schema.names
        return names


def _gathered(blocks: Iterable[Points], most: int | None) -> list[Points]:
    """Keep all rows, or every 2^k-th with the smallest k that leaves no more than `most`."""
    kept: list[Points] = []
    stride, count, seen = 1, 0, 0
    for block in blocks:
        part = block[-seen % stride :: stride]
        kept.append(part)
        seen += len(block)
        count += len(part)
        while most is not None and count > most:
            kept = [np.concatenate(kept)[::2]]
            count, stride = len(kept[0]), 2 * stride
    return kept


def _checked(name: str, blocks: list[Points], missing: bool) -> Points:
    if not sum(map(len, blocks)):
        raise UserValueError(f"{name} has no rows: must have at least 1")
    points = np.concatenate(blocks)
    points = points if points.dtype in (np.float32, np.float64) else points.astype(np.float64)
    check_range(name, points, missing=missing)
    return points
