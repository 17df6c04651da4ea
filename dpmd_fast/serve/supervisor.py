"""The supervisor: starts workers, starts them again when they die, and answers for all of them.

It serves nothing itself and keeps copies of the files that are served, so that all workers, also those that
are started later, have the same models: a file that is replaced or damaged meanwhile has no effect before a
reload.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from dpmd_fast.atomic import atomic_write
from dpmd_fast.errors import UserError, UserRuntimeError, UserValueError, text_of
from dpmd_fast.serve.control import Line, Message, result_of
from dpmd_fast.serve.copies import Copies
from dpmd_fast.serve.forward import Forwarder
from dpmd_fast.serve.log import log
from dpmd_fast.serve.metrics import Snapshot, merged, prometheus
from dpmd_fast.serve.options import ServeOptions, reserve
from dpmd_fast.serve.tokens import SHORT

_CHILD = "import sys; sys.path[:] = {path!r}; from dpmd_fast.serve.worker import main; main({descriptor})"
_LOOK = 0.1  # seconds between looks at signals and the clock
_LOAD_SECONDS = 100.0  # for a worker to load models: less than a client's worker waits for the answer
_METRICS_SECONDS = 2.0
_SILENT = (
    150.0  # seconds after which a worker that reports nothing is taken for dead: it reports every second
)
_LIVED = 10.0  # seconds after which a worker that dies is started again at once
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


class _Process:
    """A worker, as the supervisor sees it."""

    def __init__(self, slot: int, inbox: SimpleQueue[tuple[_Process, Message | None]]) -> None:
        self.slot, self.started = slot, time.monotonic()
        self.ready = self.ended = False
        self.metrics: Snapshot | None = None
        self.heard = self.started
        self.start_answer: Future[Any] | None = None
        ours, theirs = socket.socketpair()
        self.line = Line(ours, lambda message: inbox.put((self, message)))
        settings = {**os.environ, "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE")}
        path = [os.path.abspath(part) for part in sys.path]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(path=path, descriptor=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=settings,
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        self.line.start()


class Supervisor:
    """Runs a server until a signal ends it."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._inbox: SimpleQueue[tuple[_Process, Message | None]] = SimpleQueue()
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._workers: dict[int, _Process] = {}
        self._retired: Snapshot = merged([])  # counts of workers that have died
        self._again: dict[int, float] = {}  # when a slot gets a worker again
        self._waits: dict[int, float] = {}
        self._tokens = options.read_tokens()
        self._tls = options.read_tls()
        self._copies: Copies | None = None
        self._folder = ""  # of the copies that are served
        self._port = 0
        self._forwarder: Forwarder | None = None

    def run(self) -> None:
        """Serve; return after SIGTERM or SIGINT, when calls in progress have ended."""
        options = self._options
        held, self._port = reserve(options)
        self._forwarder = Forwarder(held) if options.workers > 1 else None
        self._copies = Copies(options.models)
        try:
            with held, self._listening():
                self._folder = self._copies.take()
                if not self._begin():
                    return
                if self._forwarder is not None:
                    self._forwarder.start()
                if options.port_file is not None:
                    _write(options.port_file, f"{self._port}\n")
                try:
                    log("ready", uri=options.location(self._port), workers=options.workers)
                    self._serve()
                finally:
                    if options.port_file is not None:
                        with suppress(OSError):
                            os.unlink(options.port_file)
        finally:
            for worker in self._workers.values():
                worker.process.kill()
                worker.process.wait()
                worker.line.close()
            if self._forwarder is not None and self._forwarder.is_alive():
                self._forwarder.stop()
            self._copies.close()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Put signals into a queue."""
        before = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # of nohup
                before[number] = signal.signal(number, lambda number, frame: self._signals.put(number))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # Start

    def _begin(self) -> bool:
        """Start all workers, the first one alone: it compiles what is not in the cache. False if stopped."""
        for line, token in enumerate(self._tokens or [], 1):
            if 0 < len(token) < SHORT:
                told = f"the token in line {line} has fewer than {SHORT} characters and can be guessed"
                log("warning", text=told)
        for slot in range(self._options.workers):
            self._start(slot, strict=slot == 0)
            if slot == 0 and not self._wait_for([0]):
                return False
        return self._wait_for(range(self._options.workers))

    def _start(self, slot: int, strict: bool = False) -> None:
        options = self._options
        worker = self._workers[slot] = _Process(slot, self._inbox)
        worker.start_answer = worker.line.ask(
            "start",
            location=options.location(self._port) if self._forwarder is None else options.inner_location,
            limits=options.limits_dict(),
            tls=self._tls,
            log_calls=options.log_calls,
            shown_as=options.models,
            trusted=options.trusted,
            strict=strict,
            **self._given(),
        )

    def _given(self) -> dict[str, Any]:
        return {"folder": self._folder, "tokens": self._tokens}

    def _wait_for(self, slots: Any) -> bool:
        """Wait until workers are ready, for the first time; raise if one cannot start."""
        for slot in slots:
            worker = self._workers[slot]
            assert worker.start_answer is not None
            while not worker.start_answer.done():
                if not self._signals.empty() and self._signals.get() != signal.SIGHUP:
                    return False
                time.sleep(0.02)
            answer = worker.start_answer.result()
            if answer is None:
                raise UserRuntimeError("a worker ended before it was ready")
            if "failed" in answer:
                raise UserRuntimeError(answer["failed"])
            if answer["broken"]:
                raise UserValueError("; ".join(answer["broken"].values()))
            self._is_ready(worker, answer)
        return True

    def _is_ready(self, worker: _Process, answer: dict[str, Any]) -> None:
        if not worker.ready:
            worker.ready, worker.heard = True, time.monotonic()
            if self._forwarder is not None:
                self._forwarder.add(worker.slot, answer["port"])
            log(
                "worker ready",
                worker=worker.slot,
                worker_pid=worker.process.pid,
                models=len(answer["served"]),
            )

    # Life

    def _serve(self) -> None:
        while True:
            if not self._signals.empty():
                number = self._signals.get()
                if number != signal.SIGHUP:
                    self._drain(signal.Signals(number).name)
                    return
                if any(worker.ready for worker in self._workers.values()):
                    self._reload()
                else:  # later: somebody has to try the files
                    self._signals.put(number)
            with suppress(Empty):
                self._handle(*self._inbox.get(timeout=_LOOK))
            self._look()

    def _handle(self, worker: _Process, message: Message | None) -> None:
        if message is None:
            self._died(worker)
        elif message.get("tell") == "metrics":
            worker.metrics, worker.heard = message["metrics"], time.monotonic()
        elif message.get("ask") == "metrics":
            worker.line.answer(message, self._metrics())
        elif message.get("ask") == "reload":
            worker.line.answer(message, self._reload())

    def _look(self) -> None:
        """See which workers have become ready or have to be started."""
        if self._forwarder is not None and not self._forwarder.is_alive():
            raise UserRuntimeError("what accepts connections has failed: the server ends")
        for worker in self._workers.values():
            if not worker.ready and worker.start_answer is not None and worker.start_answer.done():
                answer, worker.start_answer = worker.start_answer.result(), None
                why = _failure(answer, strict=True)
                if why is None:
                    self._is_ready(worker, answer)
                else:
                    log("worker failed", worker=worker.slot, why=why)
                    worker.process.kill()  # it is started again later
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.ready and now - worker.heard > _SILENT:
                log("worker silent", worker=worker.slot, worker_pid=worker.process.pid)
                worker.heard = now
                worker.process.kill()
        for slot in [slot for slot, when in self._again.items() if when <= now]:
            del self._again[slot]
            self._start(slot)

    def _died(self, worker: _Process) -> None:
        worker.process.kill()
        code = worker.process.wait()
        worker.line.close()
        if worker.metrics is not None:
            self._retired = merged([self._retired, {**worker.metrics, "in_flight": 0}])
        if self._workers.get(worker.slot) is not worker:
            return
        del self._workers[worker.slot]
        if self._forwarder is not None:
            self._forwarder.remove(worker.slot)
        lived = time.monotonic() - worker.started
        wait = 0.0 if lived > _LIVED else self._waits.get(worker.slot, _FIRST_WAIT)
        self._waits[worker.slot] = _FIRST_WAIT if lived > _LIVED else min(2.0 * wait, _LONGEST_WAIT)
        self._again[worker.slot] = time.monotonic() + wait
        log("worker died", worker=worker.slot, worker_pid=worker.process.pid, code=code, again_in=wait)

    def _drain(self, why: str) -> None:
        """Let workers end their calls."""
        seconds = self._options.drain_seconds
        log("draining", why=why, seconds=seconds)
        if self._forwarder is not None:
            self._forwarder.close()
        for worker in self._workers.values():
            worker.line.tell({"tell": "drain", "seconds": seconds})
        end = time.monotonic() + seconds + 5.0
        left: dict[int, int] = {}  # calls, by slots of workers that have said so
        silent = {worker.slot for worker in self._workers.values() if worker.ready}
        running = set(self._workers.values())
        while running and time.monotonic() < end:
            if not self._signals.empty() and self._signals.get() != signal.SIGHUP:
                break  # somebody does not want to wait
            with suppress(Empty):
                worker, message = self._inbox.get(timeout=_LOOK)
                if message is None:
                    running.discard(worker)
                elif "ask" in message:
                    worker.line.answer(message, None)  # unavailable: calls that wait for it can end
                elif message.get("tell") == "ended":
                    left[worker.slot] = int(message["left"])
        unknown = len(silent - set(left))
        calls = None if unknown else sum(left.values())
        log("ended", calls_left=calls, workers_unknown=unknown, workers_left=len(running))

    # For all workers

    def _metrics(self) -> str:
        asked = [(worker, worker.line.ask("metrics")) for worker in self._workers.values() if worker.ready]
        end = time.monotonic() + _METRICS_SECONDS
        for worker, future in asked:
            worker.metrics = result_of(future, max(0.0, end - time.monotonic())) or worker.metrics
        known = [worker.metrics for worker, _ in asked if worker.metrics is not None]
        return prometheus(merged([self._retired, *known]), len(known))

    def _reload(self) -> dict[str, Any]:
        """Have all workers read new copies of the files and tokens; return what was found."""
        before = self._folder
        try:
            found = self._reloaded()
        except Exception as problem:  # whatever it is, what is served goes on
            log("reload failed", why=type(problem).__name__)
            self._folder = before if os.path.isdir(before) else self._folder
            with suppress(Exception):
                self._give_tokens()
            broken = {self._options.models: "the reload has failed: the old models stay"}
            found = {"served": [], "new": [], "gone": [], "broken": broken}
        log("reloaded", **{**found, "broken": [*found["broken"]]})
        return found

    def _reloaded(self) -> dict[str, Any]:
        assert self._copies is not None
        broken: dict[str, str] = {}
        try:
            self._tokens = self._options.read_tokens()
        except (UserError, OSError) as problem:
            broken[os.path.basename(str(self._options.tokens))] = _text(problem)
        before, found = self._folder, None
        try:
            self._folder = self._copies.take()
        except (UserError, OSError) as problem:
            broken[self._options.models] = _text(problem)
        else:
            found = self._loaded_by_all(before)
            if found is None:  # perhaps because of a file: nobody else tries it
                self._folder, before = before, self._folder
                broken[self._options.models] = "a worker failed while it read the files: the old ones stay"
            self._copies.drop(before)
        if found is None:
            self._give_tokens()
            found = {"served": self._copies.names(self._folder), "new": [], "gone": [], "broken": {}}
        return {**found, "broken": {**found["broken"], **broken}}

    def _loaded_by_all(self, before: str) -> dict[str, Any] | None:
        """Return what the first worker has found, None if it failed; then have the others read the same."""
        assert self._copies is not None
        found: dict[str, Any] | None = None
        for worker in sorted(self._workers.values(), key=lambda one: not one.ready):
            if not worker.ready:
                worker.process.kill()  # it is reading the old copies: it starts again with the new ones
                continue
            answer = result_of(worker.line.ask("load", **self._given()), _LOAD_SECONDS)
            why = _failure(answer, strict=found is not None)
            if why is not None:
                log("reload failed", worker=worker.slot, why=why)
                worker.process.kill()  # it is started again
                if found is None:
                    return None
            elif found is None:
                found = answer
                self._copies.put_back(before, self._folder, answer["broken"])
        return found

    def _give_tokens(self) -> None:
        """Have all workers accept the tokens of now, with the models that they have."""
        asked = []
        for worker in self._workers.values():
            if worker.ready:
                asked.append((worker, worker.line.ask("tokens", tokens=self._tokens)))
            else:
                worker.process.kill()  # it was started with the old ones, and starts again
        end = time.monotonic() + _LOAD_SECONDS
        for worker, future in asked:
            if result_of(future, max(0.0, end - time.monotonic())) is None:
                worker.process.kill()


def _failure(answer: dict[str, Any] | None, strict: bool) -> str | None:
    """Return why a worker has failed to load, None if it has not.

    `strict`: also if it could not read some file. The first one of a reload may: those files are put back.
    """
    if answer is None:
        return "no answer"
    if "failed" in answer:
        return str(answer["failed"])
    if strict and answer["broken"]:
        return "cannot read " + ", ".join(answer["broken"])
    return None


def _write(path: str, text: str) -> None:
    with atomic_write(path, overwrite=True) as partial, open(partial, "w") as file:
        file.write(text)


def _text(problem: Exception) -> str:
    return text_of(problem) if isinstance(problem, UserError) else "cannot be read"
