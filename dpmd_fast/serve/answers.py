"""Errors as clients see them: one text, one kind, never a traceback.

Arrow sends the traceback of any Python error that is not one of Flight's to the client, with whatever values
its text quotes. So every method of the server ends in `answer_to`. The exact text and its kind are also in
the error's `extra_info`, as JSON; the text of the error itself has remarks of gRPC around it.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from typing import Any, NamedTuple

from dpmd_fast.errors import UserError, option_text

INVALID, UNKNOWN, REFUSED = "invalid", "not found", "unauthenticated"
UNAVAILABLE, UNSUPPORTED, CANCELLED, INTERNAL = "unavailable", "unsupported", "cancelled", "internal"
_LONGEST = 1000  # bytes of a text: the end of a call has room for 8,192, and the text is in it three times
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class CallError(Exception):
    """An error for the client, of one of the kinds above."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Answer(NamedTuple):
    """What a call that failed ends with."""

    kind: str
    error: Any  # of pyarrow.flight
    place: str | None  # where a bug is, for the log


def answer_to(problem: BaseException, cancelled: bool = False) -> Answer:
    """Return what the client is told about an exception, and what the log is."""
    from pyarrow import flight

    place = None
    if isinstance(problem, CallError):
        kind, text = problem.kind, problem.text
    elif isinstance(problem, UserError):
        kind, text = INVALID, option_text(problem)
    elif cancelled:
        kind, text = CANCELLED, "the client has gone"
    elif isinstance(problem, MemoryError):
        kind, text = UNAVAILABLE, "memory ran out: send fewer rows at a time"
    else:
        kind, text = INTERNAL, "internal error; the server's log says where"
        place = kind_and_place(problem)
    text = _short(text)
    errors = {
        REFUSED: flight.FlightUnauthenticatedError,
        UNAVAILABLE: flight.FlightUnavailableError,
        CANCELLED: flight.FlightCancelledError,
        INTERNAL: flight.FlightInternalError,
    }
    extra = json.dumps({"kind": kind, "text": text}, ensure_ascii=False).encode()
    return Answer(kind, errors.get(kind, flight.FlightServerError)(text, extra), place)


def hide_tracebacks() -> None:
    """Have Arrow send no traceback of what fails before our code runs: a header that is not ASCII, for one.

    Arrow has Python format the exception, in a thread of gRPC, which Python has not started. Elsewhere
    tracebacks stay as they are.
    """
    original = traceback.format_exception
    if getattr(original, "hides", False):
        return

    def format_exception(*given: Any, **more: Any) -> list[str]:
        if isinstance(threading.current_thread(), threading._DummyThread):
            return ["not shown"]
        return original(*given, **more)

    format_exception.hides = True  # type: ignore[attr-defined]
    traceback.format_exception = format_exception


def kind_and_place(problem: BaseException) -> str:
    """Return the kind of an exception and the last line of the package that it passed, without its text."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if os.path.abspath(frame.filename).startswith(_PACKAGE + os.sep)]
    chosen = (ours or list(frames))[-1:]
    return type(problem).__name__ + "".join(
        f" in {os.path.basename(frame.filename)}, line {frame.lineno}" for frame in chosen
    )


def _short(text: str) -> str:
    """Return one line of printable text of at most `_LONGEST` bytes."""
    line = "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
    data = line.encode("utf-8", "replace")
    return line if len(data) <= _LONGEST else data[: _LONGEST - 3].decode("utf-8", "ignore") + "..."
