"""Hostile calls of a server of models: tables, settings, paths, tokens, actions, and bytes on the wire.

A call must end as `transform` in this process ends, with the same bits or the same words, or with one of the
documented kinds of errors; never with a traceback. The server must answer the next one.
"""

import json
import socket
import threading
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import flight
from samples import make_atlas, make_mixture

from dpmd_fast.errors import UserError
from dpmd_fast.serve.answers import CANCELLED, INVALID, REFUSED, UNAVAILABLE, UNKNOWN, UNSUPPORTED
from dpmd_fast.serve.calls import Limits
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer
from dpmd_fast.serve.tokens import Tokens
from fuzz.harness import TALLY, Finding, folder, fuzzed
from fuzz.strategies import COLUMNS, NAMES, byte_edits

TOKEN = "the token of the fuzz tests"
KINDS = {INVALID, REFUSED, UNAVAILABLE, UNKNOWN, UNSUPPORTED, CANCELLED}
MODELS = {
    "knot": lambda: make_atlas(column_names=NAMES[:3]),
    "plain": lambda: make_atlas(column_names=None),
    "cloud": lambda: make_mixture(column_names=NAMES[:3]),
}
HEADERS = {
    "noise": [
        *("0.5", "0.5", "0.5", "0", "-1", "nan", "inf", "1e400", "x", "[1, 2, 3]", "[1]", "[]", "{}", "true"),
        *('{"x": 1}', '{"x": 1, "y": 2, "z": 0.5}', '{"x": "1"}', "[" * 2000, "null", '"1"', "1" * 3000),
        *("0x1", "1_0", " 1"),
    ],
    "on-missing": ["fill", "keep", "refuse", "drop", "", "FILL"],
    "status-column": ["status", "x", "text", "", "a" * 1000],
    "deviations": ["_sd", "", "x"],
    "authorization": ["Bearer", "Bearer wrong", f"bearer {TOKEN}", "Basic abc", ""],
}
MESSAGES = [
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{" * 3000,
        b'{"noise": 0.5}',
        b'{"noise": {"x": 1e999}}',
        b'{"a": 1}',
    ),
    *(
        b'{"noise": [[1]]}',
        b'{"on_missing": 5}',
        b'{"status_column": "\\ud800"}',
        b'{"noise": 0.1, "noise": 2}',
    ),
    *(b'{"deviation_suffix": "\\u0000"}', b'{"status_column": "' + b"x" * 5000 + b'"}'),
]
PATHS = ["knot", "plain", "cloud", "nobody", "", "../knot", "knot.dpmd", "a" * 5000, "ä", "%00", "knot\n"]


class Watched(ModelServer):
    """Notes what Arrow would send with a traceback."""

    def __init__(self, *given, **more):
        self.leaked = []
        super().__init__(*given, **more)

    def _noting(self, call, *given):
        try:
            return call(*given)
        except flight.FlightError:
            raise
        except BaseException as problem:
            self.leaked.append(repr(problem)[:500])
            raise

    def do_exchange(self, *given):
        return self._noting(super().do_exchange, *given)

    def do_action(self, *given):
        return self._noting(super().do_action, *given)

    def list_flights(self, *given):
        return self._noting(super().list_flights, *given)

    def get_flight_info(self, *given):
        return self._noting(super().get_flight_info, *given)


@cache
def server():
    place = folder() / "served"
    place.mkdir()
    for name, make in MODELS.items():
        make().save(place / f"{name}.dpmd")
    registry = Registry()
    assert not registry.reload(str(place)).broken
    limits = Limits(batch_rows=1000, in_flight=8, idle_seconds=2.0)
    return Watched(
        "grpc://127.0.0.1:0",
        registry,
        Tokens([TOKEN]),
        limits,
        reload=lambda: registry.reload(str(place)).to_dict(),
        log_calls=False,
    )


@cache
def model(name):
    return MODELS[name]()


@cache
def client():
    return flight.connect(f"grpc://127.0.0.1:{server().port}")


def options(headers, token=True):
    given = {"authorization": f"Bearer {TOKEN}", **headers} if token else headers
    pairs = [(name.encode(), text.encode()) for name, text in given.items()]
    return flight.FlightCallOptions(timeout=30.0, headers=pairs)


@st.composite
def headers(draw):
    names = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=2, unique=True))
    return {name: draw(st.sampled_from(HEADERS[name])) for name in names}


def judged(family, what, call):
    """Make a call; return its result or the text of its error; refuse any other outcome."""
    server().leaked.clear()
    result = text = None
    try:
        result = call()
    except (flight.FlightError, pa.ArrowException, OSError) as problem:
        shown = str(problem)
        if "Traceback" in shown or ".py" in shown:
            raise Finding(f"{family}: a traceback", f"{what}\n{shown[:2000]}") from None
        told = getattr(problem, "extra_info", None)
        kind, text = "of the protocol", None
        if told:
            facts = json.loads(told)
            kind, text = facts["kind"], facts["text"]
            if kind not in KINDS:
                raise Finding(f"{family}: {kind}", f"{what}\n{shown[:2000]}") from None
        TALLY[family, f"refused, {kind}"] += 1
    else:
        TALLY[family, "accepted"] += 1
    if server().leaked:
        raise Finding(f"{family}: another error than Flight's", f"{what}\n{server().leaked}")
    check_health(family, what)
    return result, text


def check_health(family, what):
    try:
        (answer,) = client().do_action(flight.Action("health", b""), options({}))
    except Exception as problem:
        raise Finding(f"{family}: the server is gone", f"{what}\n{problem!r}") from None
    assert json.loads(answer.body.to_pybytes())["status"] == "ok"


def exchange(path, table, headers, message, times=1):
    writer, reader = client().do_exchange(flight.FlightDescriptor.for_path(path), options(headers))
    try:
        with suppress(flight.FlightError, pa.ArrowException, OSError):  # the reader says why
            writer.begin(table.schema)
            for _ in range(times if message is not None else 0):
                writer.write_metadata(message)
            for batch in table.to_batches():
                writer.write_batch(batch)
            writer.done_writing()
        return reader.read_all()
    finally:
        reader.cancel()
        with suppress(Exception):
            writer.close()


@fuzzed(
    0.13,
    column=st.sampled_from(sorted(COLUMNS)),
    place=st.integers(0, 2),
    rows=st.sampled_from([0, 1, 20, 1000, 1001]),
    path=st.sampled_from([*PATHS[:3] * 4, *PATHS]),
    given=headers(),
    message=st.one_of(st.none(), st.none(), st.sampled_from(MESSAGES)),
    times=st.sampled_from([1, 1, 1, 0, 2, 3]),
)
def test_exchanges(column, place, rows, path, given, message, times):
    points = np.random.default_rng(rows).uniform(-1.0, 1.0, size=(rows, 3))
    good = pa.table({NAMES[k]: points[:, k] for k in range(3)})
    try:
        table = COLUMNS[column](good, place)
    except (pa.ArrowException, ValueError, IndexError):  # there is no such table
        table = good
    what = (
        f"{path[:50]!r}: {column}, {place}, {rows} rows, {given}, {message and message[:100]}, {times} times"
    )
    result, text = judged("serving, exchanges", what, lambda: exchange(path, table, given, message, times))
    if path not in MODELS or set(given) - {"noise", "on-missing"} or message is not None or rows > 1000:
        return
    try:
        chosen = {"noise": float(given["noise"])} if "noise" in given else {}
        expected = model(path).transform(table, **chosen, **_on_missing(given))
    except (UserError, TypeError, ValueError) as problem:
        if result is not None and isinstance(problem, UserError):
            raise Finding("serving: accepts what transform refuses", f"{what}\n{problem}") from None
        return
    if result is None or not result.combine_chunks().equals(expected.combine_chunks()):
        same = result is not None and str(result) == str(expected)  # NaN is not equal to itself
        if not same:
            raise Finding("serving: another result than transform's", f"{what}\n{text}\n{result}\n{expected}")


def _on_missing(given):
    return {"on_missing": given["on-missing"]} if "on-missing" in given else {}


@fuzzed(
    0.03,
    method=st.sampled_from(["action", "get", "put", "info", "schema", "list", "handshake"]),
    name=st.sampled_from(["health", "metrics", "reload", "shutdown", "", "a" * 5000, "ä", *PATHS]),
    body=st.sampled_from([b"", b"x", b"\xff" * 5000]),
    given=headers(),
    command=st.booleans(),
)
def test_other_methods(method, name, body, given, command):
    make = flight.FlightDescriptor
    where = make.for_command(body) if command else make.for_path(*name.split("/"))
    chosen = options(given)

    def call():
        raw = client()
        if method == "action":
            return [one.body.size for one in raw.do_action(flight.Action(name, body), chosen)]
        if method == "get":
            return raw.do_get(flight.Ticket(body), chosen).read_all()
        if method == "put":
            writer, _ = raw.do_put(where, pa.schema([("x", pa.float64())]), chosen)
            return writer.close()
        if method == "info":
            return raw.get_flight_info(where, chosen)
        if method == "schema":
            return raw.get_schema(where, chosen)
        if method == "list":
            return [one.descriptor for one in raw.list_flights(body, chosen)]
        return raw.authenticate_basic_token(b"user", body[:50], chosen)

    judged("serving, other methods", f"{method} {name[:50]!r} {body[:20]!r} {given} {command}", call)


@cache
def recorded():
    """The bytes that a good client sends."""
    kept = bytearray()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        def forward():
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", server().port))

            def back():
                with suppress(OSError):
                    while data := far.recv(65536):
                        near.sendall(data)

            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            with suppress(OSError):
                while data := near.recv(65536):
                    kept.extend(data)
                    far.sendall(data)
            far.close()
            near.close()

        thread = threading.Thread(target=forward, daemon=True)
        thread.start()
        with flight.connect(f"grpc://127.0.0.1:{listener.getsockname()[1]}") as raw:
            table = pa.table(
                {**{name: np.linspace(-1.0, 1.0, 40) for name in NAMES[:3]}, "text": ["a text"] * 40}
            )
            given = options({"noise": "0.5"})
            writer, reader = raw.do_exchange(flight.FlightDescriptor.for_path("cloud"), given)
            with writer:
                writer.begin(table.schema)
                writer.write_table(table)
                writer.done_writing()
                assert reader.read_all().num_rows == 40
        thread.join(5.0)
    return bytes(kept)


@fuzzed(0.04, edit=byte_edits(), begin=st.sampled_from([0, 200, 400, 600]))
def test_bytes(edit, begin):
    """Edited bytes of a good call: first of HTTP/2, then mostly of schemas and batches."""
    good = recorded()
    data = good[:begin] + edit.value(good[begin:], good)
    server().leaked.clear()
    answered = b""
    with socket.create_connection(("127.0.0.1", server().port), 5.0) as other:
        other.settimeout(0.05)
        with suppress(OSError):
            other.sendall(data)
            while part := other.recv(1 << 16):
                answered += part
    if b"Traceback" in answered or server().leaked:
        raise Finding("serving, bytes: a traceback", f"{begin}, {edit.label}\n{server().leaked}")
    check_health("serving, bytes", edit.label)
    TALLY["serving, bytes", "answered" if answered else "no answer"] += 1
