"""One server in this process: results, settings, errors, limits."""

import json
import os
import socket
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight
from serve.served import TOKEN, exchange, make_table, options, told

from dpmd_fast.cli import main
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.serve import connect
from dpmd_fast.serve.tokens import Tokens, read_tokens

# Results


@pytest.mark.parametrize("rows", [0, 1, 999, 70_000])
def test_an_atlas_gives_the_same_bits_as_in_process(client, models, rows):
    table = make_table(rows)
    clean = client.transform(table)
    assert clean.schema.equals(models["knot"].transform(table).schema, check_metadata=True)
    assert clean.combine_chunks().equals(models["knot"].transform(table).combine_chunks())


@pytest.mark.parametrize("model", ["cloud", "scaled"])
@pytest.mark.parametrize("on_missing", ["fill", "keep"])
@pytest.mark.parametrize("noise", [0.3, {"a": 0.1, "b": 0.0, "c": 2.0}, np.array([0.1, 0.2, 0.3]), 0])
def test_a_mixture_gives_the_same_bits_as_in_process(client, models, model, on_missing, noise):
    table = make_table(500, nulls=True)
    clean = client.transform(table, noise, model=model, on_missing=on_missing)
    assert clean.equals(models[model].transform(table, noise, on_missing=on_missing))


def test_batches_come_back_in_their_order_and_sizes(raw, models):
    table = pa.Table.from_batches([make_table(rows, seed=rows).to_batches()[0] for rows in (5, 1, 300, 2)])
    clean = exchange(raw, "knot", table)
    assert [batch.num_rows for batch in clean.to_batches()] == [5, 1, 300, 2]
    assert clean.equals(models["knot"].transform(table))


def test_status_and_deviations(client, models, tmp_path, folder):
    """As the command line adds them, also under names that no header can hold."""
    from pyarrow import parquet as pq

    table = make_table(300, nulls=True).select(["a", "b", "c"])
    pq.write_table(table, tmp_path / "in.parquet")
    command = [
        "transform",
        "--model",
        str(folder / "cloud.dpmd"),
        "--noise",
        "0.5",
        str(tmp_path / "in.parquet"),
    ]
    command += ["--status-column", "wie gehts?", "--deviations", " ±", "-o", str(tmp_path / "out.parquet")]
    assert main(command) == 0
    clean = client.transform(table, 0.5, model="cloud", status_column="wie gehts?", deviation_suffix=" ±")
    assert clean.equals(pq.read_table(tmp_path / "out.parquet"))


def test_kinds_of_tables(client, models):
    table = make_table(100)
    batch = table.to_batches()[0]
    assert client.transform(batch).equals(models["knot"].transform(batch))
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(30))
    assert client.transform(reader).combine_chunks().equals(models["knot"].transform(table).combine_chunks())
    frame = table.drop(["tags"]).to_pandas().set_index("id")
    pd.testing.assert_frame_equal(client.transform(frame), models["knot"].transform(frame))
    lazy = pl.from_arrow(table)
    assert client.transform(lazy).equals(models["knot"].transform(lazy))
    with pytest.raises(TypeError, match="table is a list: must be an Arrow table"):
        client.transform([1, 2])


def test_a_model_without_names_is_matched_by_position(client, models):
    table = make_table(50).select(["a", "b", "c"]).rename_columns(["p", "q", "r"])
    assert client.transform(table, model="plain").equals(models["plain"].transform(table))
    with pytest.raises(
        ValueError, match="the table has 6 columns: must have 3; the atlas has no column names"
    ):
        client.transform(make_table(5), model="plain")


# Settings and errors


def test_schema_errors_have_the_words_of_the_command_line(raw, folder, tmp_path, capsys):
    bad = {
        "lacking": make_table(5).drop(["a"]),
        "text": make_table(5).set_column(2, "a", pa.array(["x"] * 5)),
        "twice": make_table(5).rename_columns(["id", "c", "a", "flag", "b", "a"]),
        "null": make_table(50, nulls=True),
        "infinite": make_table(5).set_column(2, "a", pa.array([1.0, 2.0, np.inf, 1.0, 1.0])),
    }
    for name, table in bad.items():
        path = str(tmp_path / f"{name}.arrow")
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
        assert (
            main(["transform", "--model", str(folder / "knot.dpmd"), path, "-o", str(tmp_path / "o.arrow")])
            == 2
        )
        said = capsys.readouterr().err.strip().removeprefix("dpmd-fast: error: ").replace(path, "the table")
        with pytest.raises(flight.FlightError) as problem:
            exchange(raw, "knot", table)
        assert told(problem) == {"kind": "invalid", "text": said}
        assert said in str(problem.value)


@pytest.mark.parametrize(
    ("model", "headers", "message", "text"),
    [
        ("cloud", {}, None, "--noise = None: must be the deviation"),
        ("cloud", {"noise": "much"}, None, "--noise = 'much': must be a number, or as JSON"),
        ("cloud", {"noise": "[1, 2]"}, None, "--noise"),
        ("cloud", {"noise": '{"a": "x"}'}, None, "--noise"),
        ("cloud", {"noise": "-1"}, None, "--noise"),
        ("cloud", {"noise": "[" * 1500}, None, "--noise"),
        ("cloud", {"noise": "1" + "0" * 400}, None, "--noise"),
        ("cloud", {"noise": "1", "on_missing": "drop"}, None, "--on-missing = 'drop': must be one of"),
        ("knot", {"noise": "1"}, None, "--noise = 1.0: must be None for an atlas"),
        ("knot", {"on_missing": "fill"}, None, "--on-missing = 'fill': must be one of 'refuse', 'keep'"),
        ("knot", {"deviations": "x"}, None, "--deviations = 'x': must be None for an atlas"),
        (
            "knot",
            {"status_column": "id"},
            None,
            "--status-column = 'id': the table has a column of that name",
        ),
        ("cloud", {}, b"[" * 5000, "settings: must be a JSON object"),
        ("cloud", {}, b'{"noise": true}', "settings: must be a JSON object"),
        ("cloud", {}, b'{"no": 1}', "settings: must be a JSON object"),
        ("cloud", {}, b"\xff", "settings: must be a JSON object"),
        ("knot", {}, b'{"status_column": "\\ud800"}', "settings: must be a JSON object"),
        ("nobody", {}, None, "path = 'nobody': no model of that name is served; there are 'cloud', 'knot'"),
        ("", {}, None, "path = '': no model of that name is served"),
    ],
)
def test_bad_settings_are_refused(raw, model, headers, message, text):
    messages = [] if message is None else [message]
    with pytest.raises(flight.FlightError) as problem:
        exchange(raw, model, make_table(5), options(**headers), *messages)
    assert text in told(problem)["text"]
    assert "Traceback" not in str(problem.value)


def test_settings_after_a_batch_are_refused(raw):
    with pytest.raises(flight.FlightError, match="must come before the first batch"):
        exchange(raw, "cloud", make_table(5), options(noise="1"), after=[b"{}"])


@pytest.mark.parametrize("rows", [0, 5])
def test_two_messages_of_settings_are_refused(raw, rows):
    with pytest.raises(flight.FlightError) as problem:
        exchange(raw, "cloud", make_table(rows), options(noise="1"), b"{}", b"{}")
    assert told(problem) == {"kind": "invalid", "text": "settings: must come in one message"}


def test_a_noise_that_no_header_can_hold(client):
    with pytest.raises(ValueError, match=r"noise.*(5000|5,000)"):
        client.transform(make_table(5), np.ones(5000), model="cloud")


def test_long_names_do_not_break_the_answer(client):
    table = make_table(5).rename_columns(["ä" * 3000 + str(number) for number in range(6)])
    with pytest.raises(ValueError, match=r"the table lacks 3 column\(s\) of the atlas: 'a', 'b', 'c'"):
        client.transform(table)
    table = pa.table({"ä" * 3000: ["x"], "b": ["y"], "c": ["z"]})
    with pytest.raises(ValueError, match=r"not numeric: .*\.\.\.$"):
        client.transform(table, model="plain")


def test_every_other_method_answers_without_a_traceback(raw):
    path = flight.FlightDescriptor.for_path
    calls = [
        lambda: list(raw.do_action(flight.Action("shutdown", b""), options())),
        lambda: raw.do_get(flight.Ticket(b"x"), options()).read_all(),
        lambda: raw.do_put(path("knot"), make_table(1).schema, options())[0].close(),
        lambda: raw.get_flight_info(path("nobody"), options()),
        lambda: raw.get_flight_info(flight.FlightDescriptor.for_command(b"knot"), options()),
        lambda: raw.get_flight_info(path("knot", "more"), options()),
    ]
    for call in calls:
        with pytest.raises(flight.FlightServerError) as problem:
            call()
        assert "Traceback" not in str(problem.value)
        assert told(problem)["kind"] in ("invalid", "not found", "unsupported")
    for model in ("nobody", "knot"):
        with pytest.raises(OSError, match="must be do_exchange") as problem:
            raw.get_schema(path(model), options())
        assert "Traceback" not in str(problem.value)


def test_a_header_that_is_not_ascii_shows_no_traceback(server):
    """Arrow refuses it before our code runs. No client library sends one: these are the bytes of a call."""

    def literal(name, value):  # HPACK: a literal header field without indexing
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    path = b"/arrow.flight.protocol.FlightService/ListActions"
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x"}
    fields |= {b"te": b"trailers", b"content-type": b"application/grpc", b"authorization": b"Bearer \xff\xfe"}
    headers = b"".join(literal(name, value) for name, value in fields.items())

    def frame(kind, flags, stream, body):
        return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body

    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)
    data += frame(0, 1, 1, bytes(5))
    answered = b""
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as other:
        other.settimeout(5.0)
        other.sendall(data)
        while b"grpc-status" not in answered:
            part = other.recv(1 << 16)
            assert part, answered
            answered += part
    assert b"codec" in answered  # it is the case that is meant
    assert b"Traceback" not in answered


def test_a_bug_shows_neither_text_nor_place(server, client, monkeypatch, capfd):
    def broken(*_):
        raise ZeroDivisionError("the value 3.14159")

    monkeypatch.setattr("dpmd_fast.serve.server.cleaner_of", broken)
    with pytest.raises(RuntimeError) as problem:
        client.transform(make_table(5))
    assert str(problem.value) == "internal error; the server's log says where"
    logged = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert logged["outcome"] == "internal"
    assert logged["place"].startswith("ZeroDivisionError in server.py, line ")
    assert "3.14159" not in json.dumps(logged)


# Tables that fail while they are read


@pytest.mark.parametrize("good", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", [pa.ArrowInvalid, ZeroDivisionError, OSError])
def test_a_table_that_ends_with_an_error_is_not_taken_for_a_whole_one(client, good, kind):
    batch = make_table(10).to_batches()[0]

    def broken():
        yield from [batch] * good
        raise kind("the disk is full")

    reader = pa.RecordBatchReader.from_batches(batch.schema, broken())
    with pytest.raises(kind, match="the disk is full"):
        client.transform(reader)
    assert client.transform(batch).num_rows == 10


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_batch_that_cannot_be_sent(client, good):
    """The call ends at once, not after its time."""
    batch = make_table(10).to_batches()[0]
    other = pa.RecordBatch.from_pydict({"x": [1]})

    reader = pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * good + [other, batch]))
    start = time.monotonic()
    with pytest.raises(pa.ArrowInvalid):
        client.transform(reader)
    assert time.monotonic() - start < 20.0


# Tokens


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN} x"]
)
def test_calls_without_a_token_are_refused(raw, header):
    chosen = [] if header is None else [(b"authorization", header.encode())]
    refused = flight.FlightCallOptions(timeout=20.0, headers=chosen)
    calls = [
        lambda: exchange(raw, "knot", make_table(5), refused),
        lambda: list(raw.list_flights(options=refused)),
        lambda: list(raw.do_action(flight.Action("metrics", b""), refused)),
        lambda: list(raw.do_action(flight.Action("reload", b""), refused)),
    ]
    for call in calls:
        with pytest.raises(flight.FlightUnauthenticatedError, match="the token is missing or wrong"):
            call()


def test_every_token_is_accepted(server):
    for token in (TOKEN, "another token"):
        with connect(f"grpc://127.0.0.1:{server.port}", token) as client:
            assert client.health()["status"] == "ok"
    with connect(f"grpc://127.0.0.1:{server.port}") as client, pytest.raises(PermissionError, match="token"):
        client.health()


def test_a_token_is_known_by_its_line(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# of the tests\n\nfirst\n#\nsecond\n")
    path.chmod(0o600)
    tokens = Tokens(read_tokens(str(path)))
    assert tokens.owner_of("Bearer first") == 3
    assert tokens.owner_of("Bearer second") == 5
    for header in ("Bearer ", "Bearer", "Bearer #", "", None):  # lines without a token are nobody's
        assert tokens.owner_of(header) is None


# What is served


def test_what_is_served(client, raw, models):
    found = client.models()
    assert list(found) == ["cloud", "knot", "plain", "scaled"]
    assert found["knot"]["columns"] == ["a", "b", "c"]
    assert found["plain"]["columns"] is None
    assert found["cloud"]["model"] == "mixture"
    assert found["knot"]["guarantee"]["epsilon"] == models["knot"].guarantee.epsilon
    assert Guarantee.from_dict(found["knot"]["guarantee"]) == models["knot"].guarantee
    assert found["knot"]["guarantee"]["statement"] == str(models["knot"].guarantee)
    info = raw.get_flight_info(flight.FlightDescriptor.for_path("knot"), options())
    assert json.loads(info.schema.metadata[b"dpmd-fast"]) == found["knot"]
    assert {action.type for action in raw.list_actions(options())} == {"health", "reload", "metrics"}


def test_a_reload_keeps_the_old_model_of_a_broken_file(client, folder, models):
    good = (folder / "knot.dpmd").read_bytes()
    before, table = client.transform(make_table(50)), make_table(50)
    try:
        (folder / "knot.dpmd").write_bytes(good[:-10])
        (folder / "new.dpmd").write_bytes(good)
        os.mkfifo(folder / "pipe.dpmd")
        found = client.reload()
        assert found["new"] == ["new"]
        assert set(found["broken"]) == {"knot.dpmd", "pipe.dpmd"}
        assert "knot.dpmd" in found["broken"]["knot.dpmd"]
        assert client.transform(table).equals(before)
        assert client.transform(table, model="new").equals(before)
        models["plain"].save(folder / "new.dpmd")
        (folder / "knot.dpmd").unlink()
        found = client.reload()
        assert (found["new"], found["gone"]) == (["new"], ["knot"])
        with pytest.raises(ValueError, match="no model of that name is served"):
            client.transform(table)
    finally:
        for name in ("new.dpmd", "pipe.dpmd"):
            (folder / name).unlink()
        (folder / "knot.dpmd").write_bytes(good)
        client.reload()


def test_metrics(client):
    def count(name):
        found = [line for line in client.metrics().splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    before = {name: count(name) for name in ("dpmd_fast_requests", "dpmd_fast_rows", "dpmd_fast_errors")}
    client.transform(make_table(70_000))
    for model in ("nobody", "a" * 50):
        with pytest.raises(ValueError, match="no model"):
            client.transform(make_table(1), model=model)
    assert count("dpmd_fast_requests") - before["dpmd_fast_requests"] == 3
    assert count("dpmd_fast_rows") - before["dpmd_fast_rows"] == 70_000
    assert count("dpmd_fast_errors") - before["dpmd_fast_errors"] == 2
    assert count("dpmd_fast_in_flight") == 0
    assert count("dpmd_fast_request_seconds_count") == count("dpmd_fast_requests")
    assert 'kind="not found"' in client.metrics()
    assert "nobody" not in client.metrics()  # a client cannot make labels
