"""Calls in progress, and the limits that keep memory bounded whatever clients send.

A call holds at most one batch and its clean copy; calls beyond the limit are refused at once, before anything
of theirs is read. Large batches take turns, one for each core: what waits has no copy yet.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dpmd_fast.errors import UserValueError
from dpmd_fast.serve.answers import CANCELLED, UNAVAILABLE, CallError

# Rows that are cleaned without waiting for a turn: single rows must not wait behind large batches [choice]
_FEW = 500
_ACTIONS = 16  # at once, beside exchanges
_WINDOW = 32 << 20  # bytes that gRPC receives ahead of what is read: up to 18 MB were seen
_CALL_BYTES = 1 << 16  # of a call without its batches: headers have at most 8,192


@dataclass(frozen=True)
class Limits:
    """Limits of one worker."""

    batch_rows: int = 200_000
    batch_bytes: int = 64 << 20
    in_flight: int = 64
    idle_seconds: float = 60.0  # for which a call may wait for its client
    memory: int = 4 << 30  # bytes of the process, which the system enforces

    def message_bytes(self, calls: int) -> int:
        """Received at once for calls of one client, above which it is cut off; less is refused with a reason.

        One call may send a batch that is too large; each further one, a batch and what gRPC receives ahead.
        """
        one, more = 4 * self.batch_bytes + _WINDOW, self.batch_bytes + _WINDOW
        return max(one, min(one + (calls - 1) * more, self.held_bytes))

    @property
    def held_bytes(self) -> int:
        """Of the batches of all calls: with their copies they take up to three times as much."""
        return max(self.batch_bytes, self.memory // 4)


class Call:
    """One exchange."""

    def __init__(self, context: Any) -> None:
        self.peer: str = context.peer()
        self.rows = 0
        self.model = ""
        self.waits_since: float | None = None
        self._context = context

    @property
    def cancelled(self) -> bool:
        return bool(self._context.is_cancelled())

    def receive(self, reader: Any) -> Any:
        """Return the next chunk, None after the last; raise if the client has gone."""
        import pyarrow as pa

        with self._waiting():
            try:
                return reader.read_chunk()
            except StopIteration:
                if self.cancelled:
                    raise CallError(CANCELLED, "the client has gone") from None
                return None
            except (pa.ArrowException, OSError):
                if self.cancelled:
                    raise CallError(CANCELLED, "the client has gone") from None
                raise UserValueError("the table cannot be read: must be record batches of Arrow") from None

    def send(self, writer: Any, batch: Any) -> None:
        """Send a batch; raise if the client has gone."""
        from pyarrow import flight

        with self._waiting():
            try:
                writer.write_batch(batch)
            except flight.FlightError:
                raise CallError(CANCELLED, "the client has gone") from None

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits_since = time.monotonic()
        try:
            yield
        finally:
            self.waits_since = None


class Calls:
    """All open calls of a process.

    Parameters
    ----------
    limits : Limits
    watched : bool
        Whether somebody asks for `credits`: otherwise nothing is credited.
    """

    def __init__(self, limits: Limits, watched: bool = True) -> None:
        self.limits, self._watched = limits, watched
        self._lock = threading.Lock()
        self._open: set[Call] = set()
        self._held = 0
        self._credits: Counter[str] = Counter()
        self._actions = threading.BoundedSemaphore(_ACTIONS)
        self._turns = threading.BoundedSemaphore(os.cpu_count() or 1)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def waiting(self) -> list[tuple[str, float | None]]:
        """Return the peer of each open call, and since when it waits for it."""
        with self._lock:
            return [(call.peer, call.waits_since) for call in self._open]

    def credit(self, peer: str, size: int = _CALL_BYTES) -> None:
        """Count bytes that a client has sent and that are dealt with; also a call with a token by itself."""
        if not self._watched:
            return
        with self._lock:
            self._credits[peer] += size

    def credits(self) -> dict[str, int]:
        """Return these bytes since the last time, by peer."""
        with self._lock:
            found, self._credits = self._credits, Counter()
        return found

    @contextmanager
    def admitted(self, context: Any) -> Iterator[Call]:
        """Yield a new call, or refuse it at once if there are too many."""
        call = Call(context)
        self.credit(call.peer)
        with self._lock:
            if len(self._open) >= self.limits.in_flight:
                raise CallError(
                    UNAVAILABLE,
                    f"{len(self._open)} calls are in flight, and no more are taken: try again later",
                )
            self._open.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._open.discard(call)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Refuse an action at once if too many are in progress: each keeps a thread, and some wait."""
        if not self._actions.acquire(blocking=False):
            raise CallError(UNAVAILABLE, f"{_ACTIONS} actions are in progress: try again later")
        try:
            yield
        finally:
            self._actions.release()

    @contextmanager
    def holding(self, batch: Any) -> Iterator[None]:
        """Refuse a batch beyond the limits, and check that it is what it says; count its bytes meanwhile."""
        limits, rows = self.limits, batch.num_rows
        if rows > limits.batch_rows:
            raise UserValueError(
                f"a batch has {rows:,} rows: must have at most {limits.batch_rows:,}; send several"
            )
        size = _bytes_of(batch)
        if size > limits.batch_bytes:
            raise UserValueError(
                f"a batch has {size:,} bytes: must have at most {limits.batch_bytes:,}; send several"
            )
        with self._lock:
            if self._held + size > limits.held_bytes:
                raise CallError(UNAVAILABLE, "the batches of other calls fill the memory: try again later")
            self._held += size
        try:
            _check(batch)
            yield
        finally:
            with self._lock:
                self._held -= size

    @contextmanager
    def turn(self, rows: int) -> Iterator[None]:
        """Wait until a core is free for a large batch."""
        if rows <= _FEW:
            yield
            return
        with self._turns:
            yield


def sent_bytes_of(batch: Any) -> int:
    """Return at least the bytes that a batch had on its way, if it was not compressed.

    Arrow adds 16 bytes for each buffer, 16 for each column and up to 63 after each buffer; HTTP and TLS add
    less than a hundredth.
    """
    size = _bytes_of(batch)
    buffers = sum(len(column.buffers()) for column in batch.columns)
    return size + (size >> 6) + 128 * buffers + 1024


def _bytes_of(batch: Any) -> int:
    """Return the bytes of a batch's buffers; what cannot be counted is not a batch."""
    try:
        return int(batch.get_total_buffer_size())
    except Exception:
        raise UserValueError("the table cannot be read: its buffers are damaged") from None


def _check(batch: Any) -> None:
    """Refuse a batch whose offsets, lengths or texts are damaged: Arrow would read beyond its memory."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        raise UserValueError("the table cannot be read: its values are damaged") from None
