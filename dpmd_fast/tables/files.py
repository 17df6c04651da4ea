"""Files of public points: through an atlas to another file, or into memory.

    file --> batches --> Atlas.transform --> batches --> partial file --> the name that was asked for

Reading, moving and writing overlap, and a few batches are all that is held in memory. The partial file gets
its name when it is complete; whatever goes wrong before leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points, check_range, checked_threads, shown
from dpmd_fast.columns import arrow_number_type, as_type, checked_columns, places_of, values
from dpmd_fast.errors import (
    UserFileExistsError,
    UserFileNotFoundError,
    UserIsADirectoryError,
    UserOSError,
    UserValueError,
)
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.tables.formats import Incoming, explained, format_of, open_batches, open_writer
from dpmd_fast.tables.rewrite import Mover, Replacer, Rewriter, run

#: Called with the rows done so far, and with all rows or None if they are not known.
Progress = Callable[[int, "int | None"], None]
_NAMES_SHOWN = 20


class FileResult(NamedTuple):
    """What became of a file."""

    path: str
    rows: int
    status: dict[str, int]  # how many points have each of the words of `Atlas.status_`


def transform_file(
    atlas: Atlas,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    status_column: str | None = None,
    overwrite: bool = False,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> FileResult:
    """Move the points of a file and write another file, in memory that does not grow with them.

    Parameters
    ----------
    atlas : Atlas
    source, target : path
        Parquet (.parquet, .pq), Arrow IPC (.arrow, .feather, .ipc) or CSV (.csv), one into another as you
        like; or both .npy. Columns are found as in `Atlas.transform`. All other columns, the order of the
        columns and the metadata of the schema are kept; of Parquet also codecs and row groups, as far as
        these are not above 128 MB or a million rows.
    status_column : str, optional
        Name of a further column for what `Atlas.status_` says.
    overwrite : bool
        Whether `target` may be there already; it is replaced when all is done.
    n_threads : int, optional
    progress : callable, optional
        Called as ``progress(done, total)`` after every batch; `total` is None if it is not known.

    Returns
    -------
    FileResult

    Raises
    ------
    ValueError, OSError
        Without a trace of `target`.
    """
    read, written = os.fsdecode(source), os.fsdecode(target)
    n_threads = checked_threads(n_threads)
    check_pair(read, written, status_column)
    numbers = _numbers(atlas, read)
    return _rewrite(
        read,
        written,
        numbers,
        lambda incoming: Mover(atlas, read, incoming, status_column),
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
) -> FileResult:
    """Write a file with the columns `names` (None for .npy) replaced by `points`, and all else as it was."""
    read, written = os.fsdecode(source), os.fsdecode(target)
    check_pair(read, written, status_column)
    return _rewrite(
        read,
        written,
        names,
        lambda incoming: Replacer(points, names, status, read, incoming, status_column),
        overwrite,
    )


def check_pair(read: str, written: str, status_column: str | None = None) -> None:
    """Refuse to write what was read from one file to another, where the formats do not allow it."""
    kinds = format_of(read), format_of(written)
    if kinds[0] != kinds[1] and "npy" in kinds:
        raise UserValueError(
            f"{written}: must end in .npy if and only if {read} does; an array has no columns"
        )
    if kinds[0] == "npy" and status_column is not None:
        raise UserValueError(
            f"status_column = {shown(status_column)}: must be None for an array, which has no names",
            argument="status_column",
        )
    if os.path.exists(read) and os.path.exists(written) and os.path.samefile(read, written):
        raise UserValueError(f"{written} is the file to be read: must be another one")


def read_points(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, *, most: int | None = None
) -> tuple[Points, tuple[str, ...] | None]:
    """Public points of a file, in memory, and the names of their columns (None for .npy).

    Parameters
    ----------
    path : path
        Of a format that `transform_file` reads.
    columns : sequence of str, optional
        Columns of a table to read; ignored for .npy. By default all, and then all must be numeric.
    most : int, optional
        Then no more points than that, evenly spread over the rows.
    """
    name = os.fsdecode(path)
    chosen = checked_columns(None if columns is None else list(columns))
    with open_batches(name, numbers=chosen) as incoming:
        if incoming.schema is None:
            return _checked(name, _gathered((batch for batch, _ in incoming.batches), most)), None
        names, types = incoming.schema.names, incoming.schema.types
    positions = places_of(chosen, names, name)
    numeric = [column for column, kind in zip(names, types, strict=True) if arrow_number_type(kind)]
    others = [repr(names[position]) for position in positions if not arrow_number_type(types[position])]
    if others:
        raise UserValueError(
            f"{name} has columns that are not numeric: {_listed(others)}; choose among "
            f"{_listed(list(map(repr, numeric))) or 'those of another file'}, with columns=[...]"
        )
    wanted = [names[position] for position in positions]
    with open_batches(name, numbers=wanted, columns=wanted) as incoming:
        single = {arrow_number_type(kind) for kind in incoming.schema.types} == {np.float32}
        dtype = np.dtype(np.float32 if single else np.float64)
        blocks = (
            np.stack([values(as_type(column, dtype)) for column in batch.columns], axis=1)
            for batch, _ in incoming.batches
        )
        return _checked(name, _gathered(blocks, most)), tuple(wanted)


@contextmanager
def appearing(target: str, *, overwrite: bool = False) -> Iterator[str]:
    """A path to write a file to; it gets its name only if all goes well.

    That the name can be used is checked first, and the place for the partial file is made.
    """
    check_target(target, overwrite=overwrite)
    folder = os.path.dirname(target) or os.curdir
    partial = os.path.join(folder, f".{secrets.token_hex(8)}.part")
    try:
        with open(partial, "xb"):
            pass
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        publish(partial, target, overwrite=overwrite)
    except OSError as problem:
        if problem.errno is None:  # has been explained
            raise
        raise UserOSError(f"{target} could not be written: {problem.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)


def publish(partial: str, target: str, *, overwrite: bool) -> None:
    """Give a complete file its name; without `overwrite` not if another file got it in the meantime."""
    if not overwrite:
        try:
            os.link(partial, target)
            return
        except FileExistsError:
            raise UserFileExistsError(
                f"{target} could not be written: another file has got that name since the work began"
            ) from None
        except OSError:  # no links on this file system: a look, then
            check_target(target)
    os.replace(partial, target)


def check_target(target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Refuse a name under which no file can be written; writes nothing that stays."""
    name = os.fsdecode(target)
    if not os.path.basename(name):
        raise UserValueError(f"{name!r} cannot be written: must be the name of a file")
    folder = os.path.dirname(name) or os.curdir
    if not os.path.isdir(folder):
        raise UserFileNotFoundError(f"{name} cannot be written: there is no folder {folder}")
    try:
        os.stat(name)
        there = True
    except FileNotFoundError:
        there = False
    except OSError as problem:
        raise UserOSError(f"{name} cannot be written: {problem.strerror}") from None
    if os.path.isdir(name):
        raise UserIsADirectoryError(f"{name} is a directory: must be the name of a file")
    if there and not os.path.isfile(name):
        raise UserOSError(f"{name} cannot be written: it is not a regular file")
    if there and not overwrite:
        raise UserFileExistsError(f"{name} exists: choose another name, or pass overwrite=True to replace it")
    trial = os.path.join(folder, f".{secrets.token_hex(8)}.part")
    try:
        with open(trial, "xb"):
            pass
    except OSError as problem:
        raise UserOSError(f"{name} cannot be written: {problem.strerror}") from None
    finally:  # also where a signal comes in between
        with suppress(FileNotFoundError):
            os.unlink(trial)


def _rewrite(
    read: str,
    written: str,
    numbers: Sequence[str] | None,
    rewriter: Callable[[Incoming], Rewriter],
    overwrite: bool,
    progress: Progress | None = None,
    n_threads: int | None = 1,
) -> FileResult:
    kind = format_of(written)
    with open_batches(read, numbers) as incoming, appearing(written, overwrite=overwrite) as partial:
        rewriting = rewriter(incoming)
        with explained(written, kind):
            writer = open_writer(partial, kind, incoming, rewriting.schema, rewriting.moved)

        def write(batch: Any, ends_group: bool) -> None:
            with explained(written, kind):
                writer.write(batch, ends_group)

        try:
            run(incoming, rewriting, write, progress, n_threads)
        except BaseException:
            with suppress(Exception):
                writer.close()
            raise
        with explained(written, kind):
            writer.close()
    return FileResult(written, rewriting.rows, rewriting.status)


def _numbers(atlas: Atlas, path: str) -> Sequence[str] | None:
    """Columns that are numbers, which a CSV file does not say."""
    if format_of(path) != "CSV" or atlas.column_names is not None:
        return atlas.column_names
    with open_batches(path) as incoming:
        names: list[str] = incoming.schema.names
        return names


def _gathered(blocks: Iterable[Points], most: int | None) -> list[Points]:
    """All rows, or every 2^k-th with the smallest k that leaves no more than `most`."""
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


def _checked(name: str, blocks: list[Points]) -> Points:
    if not sum(map(len, blocks)):
        raise UserValueError(f"{name} has no rows: must have at least 1")
    points = np.concatenate(blocks)
    points = points if points.dtype in (np.float32, np.float64) else points.astype(np.float64)
    check_range(name, points)
    return points


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
