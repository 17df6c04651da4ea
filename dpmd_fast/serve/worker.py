"""A worker process: one Flight server, told by the supervisor what to serve.

It is started anew and not forked: gRPC and its threads do not survive a fork. A worker that dies takes no
other along.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

#: Rooms that a worker must never enter: whatever asks for them fails.
BLOCKED = ("dpmd_fast.reference", "dpmd_fast.mechanisms", "dpmd_fast.privacy.noise", "dpmd_fast.lab")
_METRICS_SECONDS = 1.0  # between reports of counts: what a killed worker has counted since is lost
_ANSWER_SECONDS = 120.0  # for what the supervisor does on behalf of a client: a reload compiles, at worst


def main(descriptor: int) -> None:
    """Serve until the supervisor says so, or has gone."""
    for name in BLOCKED:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it raises ImportError
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor hears them, and says what to do
    connection = socket.socket(fileno=descriptor)
    code = Worker(connection).run()
    sys.stderr.flush()
    if code is None:  # calls of clients that do not end are still there: nothing waits for them
        os._exit(0)
    sys.exit(code)


class Worker:
    """Answers the supervisor: ``start`` once, then ``load``, ``tokens``, ``metrics``, ``drain``."""

    def __init__(self, connection: socket.socket) -> None:
        from dpmd_fast.serve.control import Line
        from dpmd_fast.serve.registry import Registry
        from dpmd_fast.serve.tokens import Tokens

        self._line = Line(connection, self._heard)
        self._registry, self._tokens = Registry(), Tokens(None)
        self._server: Any = None
        self._shown_as = ""
        self._ended = threading.Event()
        self._seconds = 0.0  # for which calls may go on after that
        self._requests: Any = None

    def run(self) -> int | None:
        """Return the exit code, None if calls were left over."""
        from queue import SimpleQueue

        self._requests = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self._line.start()
        while not self._ended.wait(_METRICS_SECONDS):
            if self._server is not None:
                self._line.tell({"tell": "metrics", "metrics": self._server.snapshot()})
        return self._drain()

    def _heard(self, request: dict[str, Any] | None) -> None:
        """Take a request in the thread that listens; work on it in another, which may take its time."""
        if request is None:
            self._ended.set()
        elif request.get("tell") == "drain":
            self._seconds = float(request["seconds"])
            self._ended.set()
        elif request.get("ask") == "metrics":
            self._line.answer(request, None if self._server is None else self._server.snapshot())
        elif request.get("ask") == "tokens":  # at once, also while models are read
            self._tokens.replace(request["tokens"])
            self._line.answer(request, True)
        else:
            self._requests.put(request)

    def _work(self) -> None:
        from dpmd_fast.serve.answers import kind_and_place

        while True:
            request = self._requests.get()
            try:
                answer = self._start(request) if request["ask"] == "start" else self._load(request)
            except Exception as problem:
                from dpmd_fast.errors import UserError

                text = str(problem) if isinstance(problem, UserError) else kind_and_place(problem)
                answer = {"failed": text}
            self._line.answer(request, answer)

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        import pyarrow as pa

        from dpmd_fast.errors import UserOSError
        from dpmd_fast.serve.calls import Limits
        from dpmd_fast.serve.connections import open_files
        from dpmd_fast.serve.server import ModelServer

        limits = Limits(**request["limits"])
        self._shown_as = request["shown_as"]
        self._registry.trusted = tuple(request["trusted"])
        found = self._load(request)
        if request["strict"] and found["broken"]:
            return found  # the supervisor gives up
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
        open_files()
        tls = request["tls"]
        try:
            self._server = ModelServer(
                request["location"],
                self._registry,
                self._tokens,
                limits,
                None if tls is None else (tls[0].encode(), tls[1].encode()),
                reload=lambda: self._asked("reload"),
                metrics=lambda: str(self._asked("metrics")),
                log_calls=request["log_calls"],
            )
        except (OSError, ValueError, pa.ArrowException):
            more = "" if tls is None else ", or its certificate and key do not fit together"
            raise UserOSError(f"cannot listen on {request['location']}: it is in use{more}") from None
        return {**found, "port": self._server.port}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        self._tokens.replace(request["tokens"])
        return self._registry.reload(request["folder"], self._shown_as).to_dict()

    def _asked(self, what: str) -> Any:
        """Return what the supervisor answers, for all workers."""
        from dpmd_fast.serve.answers import UNAVAILABLE, CallError
        from dpmd_fast.serve.control import result_of

        answer = result_of(self._line.ask(what), _ANSWER_SECONDS)
        if answer is None:
            raise CallError(UNAVAILABLE, "the supervisor does not answer: try again later")
        return answer

    def _drain(self) -> int | None:
        """Take no more calls, and wait for those in progress."""
        if self._server is None:
            return 0
        stopping = threading.Thread(target=self._server.stop, daemon=True)
        stopping.start()
        stopping.join(self._seconds)
        left = self._server.calls.in_flight
        self._line.tell({"tell": "metrics", "metrics": self._server.snapshot()})
        self._line.tell({"tell": "ended", "left": left})
        return None if stopping.is_alive() else 0
