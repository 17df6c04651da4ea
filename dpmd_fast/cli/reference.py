"""The private reference of a command, and the public points beside it.

Messages about the reference never show a value, a row or a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpmd_fast.arguments import Points
from dpmd_fast.atomic import file_identity
from dpmd_fast.cli.console import Bar
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.files import names_in


def check_apart(paths: Sequence[str], public: str, name: str) -> None:
    """Refuse public points that come from a file of the reference."""
    mine = file_identity(public)
    if mine is not None and mine in {file_identity(path) for path in paths}:
        raise UserValueError(
            f"{name}: {public} is the reference; must be public points, since taking them from the private "
            "reference would void the guarantee"
        )


def matched(
    paths: Sequence[str],
    public: str,
    name: str,
    columns: Sequence[str] | None,
    *,
    missing: bool = False,
) -> tuple[Points, tuple[str, ...] | None]:
    """Return the public points of a file, and the names of the columns to take from the reference.

    Columns are those in `columns`, by default all of the public file. An array has no names: then the
    reference must be an array, too, or `columns` names its columns in the order of the array. With `missing`,
    NaN are allowed in the public points.
    """
    from dpmd_fast.tables.files import read_points

    check_apart(paths, public, name)
    public_array = public.lower().endswith(".npy")
    points, names = read_points(public, None if public_array else columns, missing=missing)
    if paths[0].lower().endswith(".npy"):
        if names is not None:
            raise UserValueError(
                f"{name}: {public} has named columns and {paths[0]} has none; must both be .npy or tables"
            )
        if columns is not None:
            raise UserValueError("--columns: must not be given for .npy files, which have no names")
        return points, None
    if names is None:
        if columns is None:
            raise UserValueError(
                f"{name}: {public} has no names; give --columns, the names of the columns of {paths[0]} in "
                "the same order"
            )
        names = tuple(columns)
    if len(names) != points.shape[1]:
        raise UserValueError(f"--columns: {len(names)} names for {points.shape[1]} columns of {public}")
    there = names_in(paths[0])
    absent = [] if there is None else [repr(one) for one in names if one not in there]
    if absent:
        raise UserValueError(
            f"{paths[0]} lacks column(s) {', '.join(absent[:20])} of {public}: choose columns that both "
            "have, with --columns"
        )
    return points, names


class Watched(ReferenceSource):
    """A source that reports the number of rows read to a progress bar, which shows it if it is public."""

    def __init__(self, source: ReferenceSource, bar: Bar) -> None:
        super().__init__(
            source.reference,
            n_columns=source.n_columns,
            column_names=source.column_names,
            rows=source.rows,
            dtype=source.dtype,
            batch_rows=source.batch_rows,
            rereadable=source.rereadable,
        )
        self._source, self._bar, self._read = source, bar, 0

    def blocks(self) -> Iterator[Points]:
        for block in self._source.blocks():
            yield block
            self._read += len(block)
            self._bar(self._read)
