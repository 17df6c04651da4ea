"""Limits of a server in this process: sizes, numbers of calls, clients that stall or send garbage."""

import socket
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight
from serve.served import TOKEN, close_calls, exchange, make_table, open_calls, options, running, until

from dpmd_fast.serve import connect
from dpmd_fast.serve.calls import Limits, sent_bytes_of
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NESTED = pa.struct([("y", pa.list_(pa.int8())), ("z", pa.string())])
NOISE = np.random.default_rng(5).bytes(5000)


def test_a_batch_beyond_the_limits_is_refused(raw, client):
    table = pa.table({name: np.zeros(100_001) for name in "abc"})
    with pytest.raises(flight.FlightServerError, match="a batch has 100,001 rows: must have at most 100,000"):
        exchange(raw, "knot", table)
    assert client.transform(table).num_rows == 100_001  # in pieces
    wide = pa.table({**{name: [0.0] for name in "abc"}, "text": ["x" * (65 << 20)]})
    with pytest.raises(flight.FlightServerError, match="must have at most 67,108,864; send several"):
        exchange(raw, "knot", wide)


def test_calls_beyond_the_limit_are_refused_at_once(server, raw, client):
    opened = open_calls(raw, 6)
    try:
        until(lambda: server.calls.in_flight == 6)
        start = time.monotonic()
        with pytest.raises(flight.FlightUnavailableError, match="6 calls are in flight"):
            exchange(raw, "knot", make_table(1))
        assert time.monotonic() - start < 10.0
        assert client.health()["in_flight"] == 6  # actions are answered
        done = threading.Event()
        waiting = threading.Thread(target=lambda: client.transform(make_table(5)) and done.set())
        waiting.start()  # tries again
        time.sleep(0.1)
        assert not done.is_set()
    finally:
        close_calls(opened)
    waiting.join(20.0)
    assert done.is_set()
    until(lambda: server.calls.in_flight == 0)


def test_a_client_that_stalls_is_cut_off(impatient):
    server = impatient
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as other:
        opened = open_calls(other, 1)
        until(lambda: server.calls.in_flight == 1)
        until(lambda: server.calls.in_flight == 0, 10.0)
        with pytest.raises(flight.FlightUnavailableError):
            opened[0][1].read_chunk()
        close_calls(opened)
    with connect(f"grpc://127.0.0.1:{server.port}/knot") as client:
        assert client.transform(make_table(5)).num_rows == 5


def test_a_client_that_does_not_take_its_answers_is_cut_off(impatient):
    server = impatient
    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(100_000))] * 3, names=list("abc"))
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as other:
        writer, reader = other.do_exchange(flight.FlightDescriptor.for_path("knot"), options())
        writer.begin(batch.schema)

        def send():
            try:
                for _ in range(200):
                    writer.write_batch(batch)
            except (flight.FlightError, pa.ArrowException, OSError):
                pass

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: server.calls.in_flight == 1)
        until(lambda: server.calls.in_flight == 0, 15.0)
        sending.join(10.0)
        assert not sending.is_alive()
        close_calls([(writer, reader)])


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE + NOISE[:500], NOISE],
)
def test_garbage_does_no_harm(server, client, data):
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as other:
        other.sendall(data)
        other.settimeout(0.2)
        try:
            while other.recv(4096):
                pass
        except OSError:
            pass
    assert client.health()["status"] == "ok"


def test_the_client_checks_its_arguments():
    for uri in ("", "http://x", "grpc://", "grpc://127.0.0.1:99999", "grpc://h:1/a/b", None, 5):
        with pytest.raises(ValueError, match=r"uri = .*: must be grpc://HOST:PORT/MODEL"):
            connect(uri)
    with pytest.raises(ValueError, match="token: must be a text of ASCII"):
        connect("grpc://127.0.0.1:1", "ä")


def test_no_server():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        uri = f"grpc://127.0.0.1:{held.getsockname()[1]}/knot"
        with connect(uri, timeout=10.0, patience=0.1) as client:
            with pytest.raises(OSError, match="no answer: "):
                client.transform(make_table(1))
            assert client.repeated >= 1


def test_patience_begins_when_there_is_no_worker():
    """Not with the call: a long one that loses its worker is made again, too."""
    lefts = []

    def call(left):
        lefts.append(left)
        if len(lefts) == 1:
            time.sleep(0.5)
        if len(lefts) < 3:
            raise flight.FlightUnavailableError("gone")
        return "done"

    with connect("grpc://127.0.0.1:1", timeout=60.0) as client:
        assert client._repeated(call, 0.4) == "done"
        assert lefts[0] > lefts[1] > lefts[2]
        lefts.clear()
        with pytest.raises(OSError, match="no answer"):
            client._repeated(call, 0.0)


def memory_of(process):
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
@pytest.mark.slow  # 1 GB, and it depends on how fast the watch gets a core
def test_a_large_action_without_a_token_is_cut_off(folder, models, tmp_path):
    """gRPC receives it as a whole before its token is looked at."""
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "tokens").chmod(0o600)
    with running(tmp_path, folder, "--tokens", str(tmp_path / "tokens")) as server:
        (worker,) = server.workers().values()
        before = memory_of(worker)
        body = b"x" * (1 << 30)
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as nobody, pytest.raises(flight.FlightError):
            list(nobody.do_action(flight.Action("health", body), flight.FlightCallOptions(timeout=60.0)))
        until(lambda: server.events("connection closed"), 5.0)
        assert server.events("connection closed")[0]["why"] == "too large"
        assert memory_of(worker) - before < 700  # MB: of 1,024, what came within a look
        with server.connect("knot", token=TOKEN) as client:
            assert client.transform(make_table(200_000)).num_rows == 200_000
        assert server.workers() == {0: worker}
        assert len(server.events("connection closed")) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_a_long_call_is_not_taken_for_a_large_message(folder, models):
    registry = Registry()
    registry.reload(str(folder))
    made = ModelServer("grpc://127.0.0.1:0", registry, limits=Limits(batch_bytes=4 << 20), log_calls=False)
    try:
        batches = pa.table({name: np.zeros(50_000) for name in "abcd"}).to_batches() * 60  # 96 MB, for 48 MB
        whole = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
        with connect(f"grpc://127.0.0.1:{made.port}/knot", timeout=100.0) as client:
            assert client.transform(whole).num_rows == 3_000_000
    finally:
        made.stop()


@pytest.mark.parametrize("rows", [0, 1, 3, 1000])
def test_a_batch_accounts_for_all_that_it_had_on_its_way(rows):
    """Otherwise what is left would add up, and end the connection of a client that sends many."""
    wide = pa.table({f"column {number}": pa.array(["ab", None, "c"] * rows) for number in range(200)})
    nested = pa.table({"x": pa.array([[{"y": [1, 2], "z": None}]] * rows, pa.list_(NESTED))})
    for table in (make_table(rows, nulls=True), wide, nested):
        batch = pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in table.columns], schema=table.schema
        )
        sent = batch.serialize()
        got = pa.ipc.read_record_batch(sent, batch.schema)
        assert sent.size + 200 <= sent_bytes_of(got)  # and Flight's own fields
    large = pa.record_batch({"x": np.zeros(100_000)})
    assert sent_bytes_of(large) < 1.02 * large.serialize().size  # and hides nothing else
