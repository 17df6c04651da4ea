"""The line between the supervisor and a worker: JSON objects, one in a line, both ways.

Either side makes requests, ``{"ask": what, "id": n, ...}``, and gets ``{"id": n, "answer": ...}``; a message
without an answer is ``{"tell": what, ...}``.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as _Late
from contextlib import suppress
from typing import Any

Message = dict[str, Any]


class Line:
    """One end; `heard` is called in a thread of its own with every request and message, None at the end."""

    def __init__(self, connection: socket.socket, heard: Callable[[Message | None], None]) -> None:
        self._connection, self._heard = connection, heard
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, message: Message) -> bool:
        """Send a message; return False if the other side has gone."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._connection.sendall(data)
        except OSError:
            return False
        return True

    def ask(self, what: str, **more: Any) -> Future[Any]:
        """Send a request; the result is its answer, None if the other side has gone."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._waiting[number] = future
        if not self.tell({"ask": what, "id": number, **more}):
            self._settle(number, None)
        return future

    def answer(self, request: Message, answer: Any) -> None:
        self.tell({"id": request["id"], "answer": answer})

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _listen(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if "answer" in message:
                        self._settle(message["id"], message["answer"])
                    else:
                        self._heard(message)
        except (OSError, ValueError):
            pass
        for number in list(self._waiting):
            self._settle(number, None)
        self._heard(None)

    def _settle(self, number: int, answer: Any) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)


def result_of(future: Future[Any], seconds: float) -> Any:
    """Return the answer to a request, None if there is none in time."""
    try:
        return future.result(seconds)
    except _Late:
        return None
