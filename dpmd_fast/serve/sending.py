"""Batches of a caller's table on their way to a server: whose error it is when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


class Sent:
    """What a sending thread has done."""

    def __init__(self) -> None:
        self.rows = 0
        self.problem: Exception | None = None


def send_all(send: Callable[[Any], None], second: Any, rest: Iterator[Any], writer: Any, sent: Sent) -> None:
    import pyarrow as pa
    from pyarrow import flight

    batch = second
    try:
        while batch is not None:
            try:
                send(batch)
            except (pa.ArrowException, flight.FlightError) as problem:  # the reader says what went wrong
                sent.problem = of_table(problem)
                return
            batch = next_of(rest)
    except Exception as problem:  # a table that ends too early must not pass for a whole one
        sent.problem = problem
    finally:
        with suppress(Exception):
            writer.done_writing()


class TableError(Exception):
    """An error of the caller's table and not of the server: it goes to the caller as it is."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem


def next_of(batches: Iterator[Any]) -> Any:
    """Return the next batch, None after the last."""
    try:
        return next(batches, None)
    except Exception as problem:
        raise TableError(problem) from None


def of_table(problem: Exception) -> TableError | None:
    """Return a failed write as an error of the table; None if it is one of the connection."""
    from pyarrow import flight

    return None if isinstance(problem, (flight.FlightError, OSError)) else TableError(problem)
