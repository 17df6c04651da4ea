"""Replay: whatever a release shows must be a function of its noisy values and of public numbers.

    run a route on Y, and record its noisy releases
    run it on a neighbour Y', and feed it the noisy releases of Y
    compare: results, files, warnings, logs, errors, output, ledger, and the sequence of what was asked for

If the noise pays for all that depends on the records, both runs are alike to the last byte. Any difference is
a choice that no budget paid for, however small its effect. The noise itself, and the sensitivity that it is
scaled to, are audited elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.mechanisms import preprocessor, spend
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.ledger import ledger as ledgers
from dpmd_fast.privacy.ledger.last_debit import last_debit, note_debit
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.sources.arrays import ArraySource
from dpmd_fast.reference.sources.arrow import StreamSource, TableSource
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.engine import EngineSource
from dpmd_fast.reference.sources.pandas import PandasSource
from dpmd_fast.reference.sources.parquet import ParquetSource
from dpmd_fast.reference.tasks import Task

Floats = NDArray[np.float64]
_SOURCES = (ArraySource, ParquetSource, TableSource, StreamSource, PandasSource)
Route = Callable[[Floats, dict[str, Any]], Any]  # of records and of the account to be charged


class OffTheTape(Exception):  # noqa: N818
    """A run asked for another release than the one that was recorded."""


class Tape:
    """The noisy releases of one run, which other runs are given instead of their own."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Floats]] = []
        self._at: int | None = None

    def rewound(self) -> Tape:
        """Return the same tape at its beginning, for a run that is fed with it."""
        again = Tape()
        again.made, again._at = self.made, 0
        return again

    def noise(self, sums: Any, lattice: Any, *rest: Any) -> Floats:
        """Stand in for `noisy_sums`."""
        asked = _digest([lattice, sums.shape, str(sums.dtype)])
        if self._at is None:
            self.made.append((asked, noisy_sums(sums, lattice, *rest)))
            return np.array(self.made[-1][1])
        if self._at >= len(self.made) or self.made[self._at][0] != asked:
            raise OffTheTape
        self._at += 1
        return np.array(self.made[self._at - 1][1])

    @property
    def left(self) -> int:
        return 0 if self._at is None else len(self.made) - self._at


class Trace(NamedTuple):
    """All that somebody outside sees of a run, as digests and texts."""

    result: str
    error: str
    warnings: tuple[str, ...]
    logs: tuple[str, ...]
    printed: str
    files: tuple[tuple[str, str], ...]  # names and digests of what is left in the working folder
    ledger: str
    debit: str  # what an interrupted program would say of it
    choices: tuple[str, ...]  # what was asked of the records, in the order of the passes
    releases: int  # that were recorded and not asked for

    def differences(self, other: Trace) -> tuple[str, ...]:
        """Return the names of the fields in which two traces differ."""
        return tuple(name for name in self._fields if getattr(self, name) != getattr(other, name))


def observe(route: Route, records: Floats, tape: Tape, adjacency: Adjacency) -> Trace:
    """Run a route with a ledger of its own in an empty folder, and return all that can be seen of it."""
    folder = tempfile.mkdtemp(prefix="replay-", dir=folder_in_memory())
    before = os.getcwd()
    choices: list[str] = []
    printed, logged, told = io.StringIO(), _Lines(), []
    result, error = "", ""
    try:
        os.chdir(folder)
        note_debit(None)
        with ExitStack() as stack:
            stack.enter_context(_without_clocks())
            stack.enter_context(patch.object(spend, "noisy_sums", tape.noise))
            stack.enter_context(patch.object(preprocessor, "noisy_sums", tape.noise))
            stack.enter_context(_passes_noted(choices))
            stack.enter_context(contextlib.redirect_stdout(printed))
            stack.enter_context(contextlib.redirect_stderr(printed))
            stack.enter_context(_logging_to(logged))
            told = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            book = Ledger("budget.db")
            book.create("people", 1e3, 1e-3, adjacency)
            try:
                result = _digest(_plain(route(records, {"ledger": "budget.db", "dataset": "people"})))
            except Exception as problem:  # of any kind: it is what the caller sees
                error = f"{type(problem).__name__}: {problem}"
            entries = json.dumps([_plain(entry) for entry in book.history("people")])

        def shown(text: str) -> str:
            return text.replace(folder, "")  # whose name is random

        return Trace(
            result,
            shown(error),
            tuple(shown(f"{one.category.__name__}: {one.message}") for one in told),
            tuple(map(shown, logged.lines)),
            shown(printed.getvalue()),
            _left_in(folder),
            shown(entries),
            shown(last_debit() or ""),
            tuple(choices),
            tape.left,
        )
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def replayed(
    route: Route, first: Floats, neighbours: Iterator[Floats], adjacency: Adjacency
) -> Iterator[tuple[str, ...]]:
    """Run a route on `first` and, with its releases, on each of the neighbours; yield what differs."""
    tape = Tape()
    seen = observe(route, first, tape, adjacency)
    if seen.error or not tape.made:  # refusals are alike, too
        raise RuntimeError(f"the first run released nothing that can be compared: {seen.error}")
    for second in neighbours:
        yield seen.differences(observe(route, second, tape.rewound(), adjacency))


# Neighbours


def neighbours(
    records: Floats, public: Floats, adjacency: Adjacency, rng: np.random.Generator, *, invalid: bool = True
) -> Iterator[Floats]:
    """Yield neighbours of a data set, one after another without an end: the hostile and the harmless."""
    while True:
        place = int(rng.integers(len(records)))
        if adjacency == "add-remove" and rng.random() < 0.4:
            yield np.delete(records, place, axis=0)
            continue
        other = records.copy()
        if adjacency == "add-remove":
            other = np.insert(other, place, other[place], axis=0)
        other[place] = _hostile(records, public, rng, invalid)
        yield other


def _hostile(records: Floats, public: Floats, rng: np.random.Generator, invalid: bool) -> Floats:
    """Return a record that may be treated unlike others: near, far, at an edge, not valid."""
    D = records.shape[1]
    kinds: list[Callable[[], Any]] = [
        lambda: rng.normal(size=D),
        lambda: np.asarray(public[rng.integers(len(public))], dtype=np.float64),
        lambda: np.zeros(D),
        lambda: np.full(D, -0.0),
        lambda: records[rng.integers(len(records))].copy(),
        lambda: rng.normal(size=D) * 10.0 ** rng.uniform(-8.0, 8.0),
        lambda: rng.choice([-1.0, 1.0], D) * 10.0 ** rng.uniform(50.0, 100.0),
        lambda: np.full(D, 5e-324),
        lambda: np.nextafter(records[0], np.inf),
    ]
    if invalid:
        kinds += [
            lambda: np.full(D, np.nan),
            lambda: np.where(np.arange(D) == rng.integers(D), np.nan, rng.normal(size=D)),
            lambda: np.where(np.arange(D) == rng.integers(D), np.inf, rng.normal(size=D)),
            lambda: np.where(np.arange(D) == rng.integers(D), -1e101, rng.normal(size=D)),
            lambda: np.full(D, np.finfo(np.float64).max),
        ]
    return np.asarray(kinds[int(rng.integers(len(kinds)))](), dtype=np.float64)


# What is seen


def folder_in_memory() -> str | None:
    """Return a folder in memory, where there is one: a ledger waits for the disk at every entry."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


@contextmanager
def _without_clocks() -> Iterator[None]:
    """Give ledger entries one time, host and process: two runs differ in them anyway."""
    with patch.object(ledgers, "_signature", lambda: ("2000-01-01T00:00:00+00:00", "host", 1)):
        yield


@contextmanager
def _passes_noted(choices: list[str]) -> Iterator[None]:
    """Note the task of every pass over records, and every plain read."""

    def noted(run: Callable[..., Any]) -> Callable[..., Any]:
        def noting(source: ReferenceSource, task: Task, n_threads: int | None = None) -> Any:
            choices.append(_digest(replace(task, ticket="")))  # which is random
            return run(source, task, n_threads)

        return noting

    def reading(read: Callable[..., Any]) -> Callable[..., Any]:
        def noting(source: ReferenceSource) -> Any:
            choices.append(f"read {type(source).__name__}")
            return read(source)

        return noting

    with ExitStack() as stack:
        for kind in (ReferenceSource, EngineSource):
            stack.enter_context(patch.object(kind, "run", noted(kind.run)))
        for holder in _SOURCES:
            stack.enter_context(patch.object(holder, "blocks", reading(holder.blocks)))
        yield


class _Lines(logging.Handler):
    """Keeps the text of everything that is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}")


@contextmanager
def _logging_to(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)  # Numba says at DEBUG what it compiles
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def _left_in(folder: str) -> tuple[tuple[str, str], ...]:
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            shown = os.path.relpath(path, folder)
            if shown == "budget.db":  # compared entry by entry
                continue
            with open(path, "rb") as file:
                found.append((shown, hashlib.sha256(file.read()).hexdigest()))
    return tuple(sorted(found))


def _digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(_plain(value))).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value as nested tuples of bytes, numbers and texts: all of it, in a fixed order."""
    if isinstance(value, np.ndarray):
        kind = value.astype("U") if value.dtype.kind in "OU" else value
        return ("array", str(value.dtype), value.shape, np.ascontiguousarray(kind).tobytes())
    if isinstance(value, Ledger) or type(value).__name__ == "Receipt":
        return type(value).__name__  # its entries are compared
    if is_dataclass(value) and not isinstance(value, type):
        return (
            type(value).__name__,
            *((one.name, _plain(getattr(value, one.name))) for one in fields(value)),
        )
    if isinstance(value, functools.partial):
        return ("partial", _plain(value.func), _plain(value.args), _plain(value.keywords))
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, dict):
        return ("dict", *((str(key), _plain(one)) for key, one in sorted(value.items(), key=str)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_plain, value))
    if isinstance(value, (str, bytes, int, float, bool, type(None), np.generic)):
        return value.hex() if isinstance(value, float) else repr(value)
    return repr(value)
