"""Sums over private records as tasks that can be sent to where the records are.

    task --> partial_sums on every part of the records --> merge_sums --> noise, once, at the client

A task holds public and released values only. Its result on a part of the records is private: integers that
add up to the same total however the records are divided. Results are returned, never written anywhere. A
record that was summed twice would count twice, and cost twice the mu: so every result carries the names of
its partitions and the ticket of its task, and sums in which one comes twice are refused.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import __version__
from dpmd_fast.arguments import checked_numbers, limit_in
from dpmd_fast.errors import UserOverflowError, UserRuntimeError, UserValueError
from dpmd_fast.kernels.jit import kernel_digest
from dpmd_fast.kernels.sums.exact import SUM_LIMIT, ExactSums

Block = NDArray[np.floating[Any]]
View = Callable[[Any, int | None], Any]  # maps a block of records, with this number of threads
_Task = TypeVar("_Task", bound="SumTask | ValidTask")


class MismatchedSums(UserValueError):  # noqa: N818
    """The partial sums do not belong to the task."""


class PartialSums(NamedTuple):
    """The result of a task on some of the records. Private: protect it like the records."""

    values: NDArray[np.int64]
    rows: int
    parts: tuple[str, ...] = ()  # ticket of the task and name of every partition that was summed

    def __repr__(self) -> str:  # engines log the results of tasks
        return "PartialSums(private)"


class OtherVersion(UserRuntimeError):  # noqa: N818
    """The worker runs different code than the client."""


@functools.cache
def code_version() -> str:
    """Return the version of the package with a digest of all its code, and of what compiles its kernels."""
    import numba

    total = hashlib.sha256(f"{numba.__version__} {np.__version__} {kernel_digest()}".encode())
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        if "lab" not in path.relative_to(package).parts[:1]:
            total.update(path.read_bytes())
    return f"{__version__} ({total.hexdigest()[:16]})"


def _new_ticket() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SumTask:
    """Sums of integer matrices over records.

    Attributes
    ----------
    make : callable
        ``make(n_threads=...)`` returns empty sums.
    views : tuple of callables
        Applied in turn to each block of records before it is added; each must map every row by itself.
    columns : int or None
        Number of columns of the records, if `partial_sums` is to check it.
    version : str
        Version of the client's package with a digest of its code: only the same code gives the same bits.
    ticket : str
        Random; results of another task are not added up with those of this one.
    """

    make: Callable[..., ExactSums]
    views: tuple[View, ...] = ()
    columns: int | None = None
    version: str = field(default_factory=code_version)
    ticket: str = field(default_factory=_new_ticket, compare=False)

    def on(
        self, blocks: Iterable[Block], n_threads: int | None = None, partition: str | int | None = None
    ) -> PartialSums:
        _check_version(self.version)
        sums = self.make(n_threads=n_threads)
        with np.errstate(all="ignore"):  # a warning would reveal that some record is not finite
            for block in blocks:
                records = _apply_views(block, self.views, n_threads)
                _check_columns(records, sums.columns)
                _check_count(sums.rows + len(records), sums.bound)
                sums.add(records)
        return PartialSums(sums.total(), sums.rows, (_named(self.ticket, partition),))

    def merge(self, parts: Iterable[PartialSums]) -> PartialSums:
        empty = self.make(n_threads=1)
        values, rows = empty.total(), 0
        seen: set[str] = set()
        for part in parts:
            _check_part(part, values, self.ticket, seen)
            rows += part.rows
            _check_count(rows, empty.bound)
            values += part.values
        return PartialSums(values, rows, tuple(sorted(seen)))


@dataclass(frozen=True)
class ValidTask:
    """Counts the parts that hold a value which is not finite or exceeds `most` in size.

    With `missing`, NaN stands for a missing value and is valid.
    """

    most: float
    missing: bool = False
    views: tuple[View, ...] = ()
    columns: int | None = None
    version: str = field(default_factory=code_version)
    ticket: str = field(default_factory=_new_ticket, compare=False)

    def on(
        self, blocks: Iterable[Block], n_threads: int | None = None, partition: str | int | None = None
    ) -> PartialSums:
        _check_version(self.version)
        valid, rows = True, 0
        for block in blocks:  # always to the end: the time of an early stop would reveal a position
            with np.errstate(all="ignore"):
                seen = _apply_views(block, self.views, n_threads)
                if self.missing:
                    valid &= not bool((np.abs(seen) > limit_in(seen, self.most)).any())
                elif seen.size:  # the comparisons are false for NaN
                    valid &= bool(float(seen.min()) >= -self.most and float(seen.max()) <= self.most)
            rows += len(block)
        return PartialSums(np.array([0 if valid else 1]), rows, (_named(self.ticket, partition),))

    def merge(self, parts: Iterable[PartialSums]) -> PartialSums:
        invalid, rows = np.zeros(1, np.int64), 0
        seen: set[str] = set()
        for part in parts:
            _check_part(part, invalid, self.ticket, seen)
            invalid += part.values
            rows += part.rows
        return PartialSums(invalid, rows, tuple(sorted(seen)))


Task = SumTask | ValidTask


def with_view(task: _Task, view: View) -> _Task:
    """Return the task that applies `view` to the records first."""
    return replace(task, views=(view, *task.views))


def partial_sums(
    task: Task,
    blocks: Iterable[Block],
    n_threads: int | None = None,
    *,
    partition: str | int | None = None,
) -> PartialSums:
    """Return the result of `task` on some of the records, given as arrays (rows, D).

    Parameters
    ----------
    task : SumTask or ValidTask
    blocks : iterable of arrays (rows, D)
    n_threads : int, optional
    partition : str or int, optional
        A public name of these records, the same whenever they are summed: a number or a key of the engine.
        Then a partition that was computed twice is noticed where the results are added up. Without a name,
        only one and the same result that comes twice is.
    """
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, (str, int))):
        raise UserValueError(
            f"partition is a {type(partition).__name__}: must be a text or an integer", argument="partition"
        )
    return task.on((_checked_block(block, task.columns) for block in blocks), n_threads, partition)


def merge_sums(task: Task, parts: Iterable[PartialSums]) -> PartialSums:
    """Add up the results of a task; each record must be in exactly one of the parts.

    Parts that come twice, or belong to another task, are refused.
    """
    return task.merge(parts)


def _checked_block(block: Any, columns: int | None) -> Block:
    records = checked_numbers("blocks", block)
    if records.ndim != 2:
        raise UserValueError(
            f"blocks holds an array of {records.ndim} dimension(s): must have 2 (rows are records)"
        )
    if columns is not None:
        _check_columns(records, columns)
    return records


def _check_columns(records: Block, columns: int) -> None:
    if records.shape[1] != columns:
        raise UserValueError(f"blocks holds an array of {records.shape[1]} column(s): must have {columns}")


def _check_count(rows: int, bound: int) -> None:
    """Refuse more records than 64-bit sums have room for."""
    if rows * bound >= SUM_LIMIT:
        raise UserOverflowError("too many records for 64-bit sums at this budget")


def _check_version(asked: str) -> None:
    if asked != code_version():
        raise OtherVersion(
            f"the client runs dpmd-fast {asked}, this worker {code_version()}: install one version everywhere"
        )


def _named(ticket: str, partition: str | int | None) -> str:
    """Return the name of a partition in the results of one task; a random one if it has none."""
    if partition is None:
        return f"{ticket} random {secrets.token_hex(16)}"
    return f"{ticket} {type(partition).__name__} {partition}"


def _check_part(part: Any, like: NDArray[np.int64], ticket: str, seen: set[str]) -> None:
    sums = part.values if isinstance(part, PartialSums) else None
    if not isinstance(sums, np.ndarray) or sums.shape != like.shape or sums.dtype != np.int64:
        raise MismatchedSums("a partial sum does not belong to this task")
    if not isinstance(part.rows, (int, np.integer)) or part.rows < 0:
        raise MismatchedSums("a partial sum lacks its number of records")
    names = part.parts
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
        raise MismatchedSums("a partial sum lacks the names of its partitions")
    if not all(name.startswith(f"{ticket} ") for name in names):
        raise MismatchedSums("a partial sum belongs to another pass over the records")
    if not seen.isdisjoint(names) or len(set(names)) != len(names):
        raise MismatchedSums("a partition was summed twice: each must be returned exactly once")
    seen.update(names)


def _apply_views(block: Block, views: tuple[View, ...], n_threads: int | None) -> Block:
    for view in views:
        block = view(block, n_threads)
    return block
