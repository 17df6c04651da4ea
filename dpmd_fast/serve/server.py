"""The Flight server of a process: batches of a client in, clean batches out, in their order.

    do_exchange, path NAME      clean the batches of a table with the model NAME
    list_flights, get_flight_info      what is served: guarantee, columns, verdict
    do_action health | reload | metrics

Settings of an exchange are headers of the call, with the names of the command line's options: noise,
on-missing, status-column, deviations. Those that do not fit into a header come as a JSON object in the
metadata of a message before the first batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dpmd_fast import __version__
from dpmd_fast.arguments import shown
from dpmd_fast.columns import quoted
from dpmd_fast.errors import UserValueError
from dpmd_fast.serve.answers import (
    INVALID,
    REFUSED,
    UNKNOWN,
    UNSUPPORTED,
    CallError,
    answer_to,
    hide_tracebacks,
)
from dpmd_fast.serve.calls import Call, Calls, Limits, sent_bytes_of
from dpmd_fast.serve.connections import Watch, watchable
from dpmd_fast.serve.log import log
from dpmd_fast.serve.metrics import Metrics, prometheus
from dpmd_fast.serve.registry import Registry, Served
from dpmd_fast.serve.tokens import Tokens
from dpmd_fast.tables.formats import Incoming
from dpmd_fast.tables.protocol import cleaner_of
from dpmd_fast.tables.rewrite import CleaningRewriter

KEY = b"dpmd-fast"  # of the facts about a model, in the metadata of its schema
TABLE = "the table"  # what messages call what the client sends
SETTINGS = {
    "noise": "noise",
    "on-missing": "on_missing",
    "status-column": "status_column",
    "deviations": "deviation_suffix",
}  # headers, and the arguments in Python
ACTIONS = {
    "health": "Whether the server answers, as JSON.",
    "reload": "Read the models and tokens again; returns what was found, as JSON.",
    "metrics": "Counts of all workers, as text for Prometheus.",
}
#: Other methods are refused before they begin: of get_schema, for one, Arrow sends tracebacks in any case.
_OFFERED = frozenset(
    {
        flight.FlightMethod.DO_EXCHANGE,
        flight.FlightMethod.LIST_FLIGHTS,
        flight.FlightMethod.GET_FLIGHT_INFO,
        flight.FlightMethod.DO_ACTION,
        flight.FlightMethod.LIST_ACTIONS,
    }
)
_MOST_SETTINGS = 1 << 20  # bytes of settings in a message: a noise for each of 30,000 columns


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without a token, before anything of theirs is read, and keeps the headers of others."""

    def __init__(self, tokens: Tokens, refused: Callable[[], None]) -> None:
        self._tokens, self._refused = tokens, refused

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> _Caller:
        answer = None
        try:
            if info.method not in _OFFERED:
                raise CallError(
                    UNSUPPORTED, "must be do_exchange, list_flights, get_flight_info, or do_action"
                )
            given = {name.lower(): values for name, values in headers.items()}
            owner = self._tokens.owner_of(_text(given.get("authorization", [""])[0]))
            if owner is None:
                raise CallError(REFUSED, "the token is missing or wrong: authorization must be Bearer TOKEN")
            wanted = {name: _text(given[name][0]) for name in SETTINGS if given.get(name)}
            return _Caller(owner, wanted)
        except Exception as problem:
            answer = answer_to(problem)
        if answer.kind == REFUSED:
            self._refused()
        raise answer.error


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The number of a call's token, and its settings."""

    def __init__(self, token: int, headers: dict[str, str]) -> None:
        self.token, self.headers = token, headers


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


class ModelServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the models of a registry, from the moment that it is made until `stop`.

    Parameters
    ----------
    location : str
        As ``grpc://127.0.0.1:8815``; port 0 takes a free one, and `port` says which.
    registry : Registry
    tokens : Tokens
    limits : Limits
    tls : pair of bytes, optional
        Certificate and key.
    reload : callable, optional
        What the action does; returns what was found, in JSON's types. By default it is not offered.
    metrics : callable, optional
        Returns the text for Prometheus. By default of this process alone.
    log_calls : bool
    """

    def __init__(
        self,
        location: str,
        registry: Registry,
        tokens: Tokens | None = None,
        limits: Limits | None = None,
        tls: tuple[bytes, bytes] | None = None,
        reload: Callable[[], dict[str, Any]] | None = None,
        metrics: Callable[[], str] | None = None,
        log_calls: bool = True,
    ) -> None:
        self.counts, self.calls = Metrics(), Calls(limits or Limits(), watchable())
        hide_tracebacks()
        self._refused_at = -1.0
        self._registry, self._reload, self._log_calls = registry, reload, log_calls
        self._metrics = metrics or (lambda: prometheus(self.snapshot(), 1))
        super().__init__(
            location,
            tls_certificates=None if tls is None else [tls],
            middleware={"gate": _Gate(tokens or Tokens(None), self._refused)},
        )
        self._watch = Watch(
            self.port,
            self.calls.waiting,
            self.calls.credits,
            self.calls.limits.idle_seconds,
            self.calls.limits.message_bytes,
            lambda why: log("connection closed", why=why),
        )
        if watchable():
            self._watch.start()

    def snapshot(self) -> dict[str, Any]:
        """Return the counts of this process."""
        return self.counts.snapshot(self.calls.in_flight)

    def stop(self) -> None:
        """Take no more calls, and return when those in progress have ended."""
        self.shutdown()
        self._watch.stop()

    def _refused(self) -> None:
        """Count a call without a token; log it, but not more than once a second."""
        self.counts.ended("", 0, 0.0, REFUSED)
        now = time.monotonic()
        if now - self._refused_at >= 1.0:
            self._refused_at = now
            log("refused", kind=REFUSED)

    # Exchanges

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Clean the batches of a client with the model that the path names."""
        start = time.perf_counter()
        call, caller, answer = None, context.get_middleware("gate"), None
        try:
            with self.calls.admitted(context) as call:
                self._exchange(call, caller, descriptor, reader, writer)
        except Exception as problem:
            answer = answer_to(problem, call is not None and call.cancelled)
        self._ended("exchange", call, caller, time.perf_counter() - start, answer)
        if answer is not None:
            raise answer.error

    def _exchange(self, call: Call, caller: _Caller, descriptor: Any, reader: Any, writer: Any) -> None:
        served = self._find(descriptor)
        call.model = served.name
        settings = _from_headers(caller.headers)
        chunk = call.receive(reader)
        if chunk is not None and chunk.data is None:
            settings |= _from_message(chunk.app_metadata)
            chunk = call.receive(reader)
            if chunk is not None and chunk.data is None:
                raise UserValueError("settings: must come in one message")
        cleaner = cleaner_of(served.model, settings.get("noise"), settings.get("on_missing"))
        schema = _schema_of(reader) if chunk is None else chunk.data.schema
        rewriter = CleaningRewriter(
            cleaner,
            TABLE,
            Incoming("Flight", schema, None, None, iter(())),
            settings.get("status_column"),
            settings.get("deviation_suffix"),
        )
        writer.begin(rewriter.schema)
        while chunk is not None:
            batch = chunk.data
            if batch is None:
                raise UserValueError("settings: must come before the first batch")
            self.calls.credit(call.peer, sent_bytes_of(batch))
            with self.calls.holding(batch):
                with self.calls.turn(batch.num_rows):
                    clean = rewriter.rewrite(batch, call.rows, None)[0]
                call.send(writer, clean)
            call.rows += batch.num_rows
            chunk = batch = clean = None  # nothing is held while the client prepares the next one
            chunk = call.receive(reader)

    def _find(self, descriptor: Any) -> Served:
        path = descriptor.path or []
        name = path[0].decode("utf-8", "replace") if len(path) == 1 else None
        served = None if name is None else self._registry.find(name)
        if served is not None:
            return served
        names = quoted([one.name for one in self._registry.all()]) or "none: no model is served"
        if name is None:
            raise CallError(INVALID, f"path: must be the name of one model, among {names}")
        raise CallError(UNKNOWN, f"path = {shown(name)}: no model of that name is served; there are {names}")

    def _ended(self, what: str, call: Call | None, caller: Any, seconds: float, answer: Any) -> None:
        model, rows = ("", 0) if call is None else (call.model, call.rows)
        kind = None if answer is None else answer.kind
        self.counts.ended(model, rows, seconds, kind)
        if self._log_calls or (answer is not None and answer.place is not None):
            facts = {} if answer is None or answer.place is None else {"place": answer.place}
            token = getattr(caller, "token", 0)
            log(
                "call",
                what=what,
                model=model,
                rows=rows,
                ms=round(1000.0 * seconds, 2),
                outcome=kind or "ok",
                token=token,
                **facts,
            )

    # What is served

    def list_flights(self, context: Any, criteria: Any) -> Any:
        with self._explained("list", context):
            return iter([self._info(served) for served in self._registry.all()])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._explained("info", context):
            return self._info(self._find(descriptor))

    def _info(self, served: Served) -> Any:
        return flight.FlightInfo(
            _schema(served), flight.FlightDescriptor.for_path(served.name.encode()), [], -1, -1
        )

    def list_actions(self, context: Any) -> Any:
        self.calls.credit(context.peer())
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Any:
        with self._explained("action", context), self.calls.acting():
            if action.type == "health":
                facts = {
                    "status": "ok",
                    "version": __version__,
                    "models": [one.name for one in self._registry.all()],
                    "in_flight": self.calls.in_flight,
                }
                text = json.dumps(facts)
            elif action.type == "metrics":
                text = self._metrics()
            elif action.type == "reload" and self._reload is not None:
                text = json.dumps(self._reload())
            else:
                raise CallError(UNSUPPORTED, f"action: must be one of {', '.join(ACTIONS)}")
            return iter([flight.Result(text.encode())])

    @contextmanager
    def _explained(self, what: str, context: Any) -> Iterator[None]:
        """Turn any exception into one that clients may see."""
        self.calls.credit(context.peer())
        answer = None
        try:
            yield
        except Exception as problem:
            answer = answer_to(problem)
        if answer is not None:
            if answer.place is not None:
                log("call", what=what, outcome=answer.kind, place=answer.place)
            raise answer.error


def _schema(served: Served) -> Any:
    names = served.model.column_names or [f"column {place}" for place in range(served.model.n_columns)]
    facts = json.dumps(served.facts, ensure_ascii=False)
    return pa.schema([(name, pa.float64()) for name in names], metadata={KEY: facts.encode()})


def _schema_of(reader: Any) -> Any:
    try:
        return reader.schema
    except (pa.ArrowInvalid, OSError, StopIteration):
        raise UserValueError("the table cannot be read: must be record batches of Arrow") from None


def _from_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return settings by their names in Python."""
    found: dict[str, Any] = {SETTINGS[name]: text for name, text in headers.items()}
    if "noise" in found:
        found["noise"] = _noise(found["noise"])
    return found


def _noise(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return _plain_noise(json.loads(text))
    except (ValueError, RecursionError):
        raise UserValueError(
            f"noise = {shown(text)}: must be a number, or as JSON a list or an object of numbers",
            argument="noise",
        ) from None


def _plain_noise(value: Any) -> Any:
    """Return a noise that JSON holds: a number, a list of numbers or an object of numbers."""
    single = [value]
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else single
    if not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in parts):
        raise ValueError
    try:
        numbers = [float(one) for one in parts]
    except OverflowError:
        raise ValueError from None
    if isinstance(value, dict):
        return dict(zip(value, numbers, strict=True))
    return numbers if isinstance(value, list) else numbers[0]


def _from_message(metadata: Any) -> dict[str, Any]:
    """Return the settings in the metadata of a message, under their names in Python."""
    try:
        if metadata is None or metadata.size > _MOST_SETTINGS:
            raise ValueError
        given = json.loads(metadata.to_pybytes())
        json.dumps(given, ensure_ascii=False).encode()  # refuses half a character, which Arrow cannot hold
        if not isinstance(given, dict) or not set(given) <= set(SETTINGS.values()):
            raise ValueError
        for name, value in given.items():
            if name == "noise":
                given[name] = _plain_noise(value)
            elif not isinstance(value, str):
                raise ValueError
    except (ValueError, RecursionError):
        allowed = ", ".join(SETTINGS.values())
        raise UserValueError(f"settings: must be a JSON object with texts or numbers of {allowed}") from None
    return given
