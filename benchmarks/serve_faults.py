"""Faults under load, for `benchmarks/serve.py`: killed workers, restarts, reloads, hostile clients."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.markdown import table
from benchmarks.serve_parts import COLUMNS, Server, counts, under_load, wait_for
from dpmd_fast.serve import connect


def faults(folder: Path, quick: bool) -> str:
    seconds = 4.0 if quick else 10.0
    lines = []
    for what in (kill_one, kill_only, restart, reload_often, stall, garbage, many_rows, one_message):
        try:
            lines.append(what(folder, seconds))
        except Exception as problem:
            lines.append(
                [what.__name__, f"not as expected: {type(problem).__name__}: {str(problem)[:300]}", ""]
            )
    note = (
        "8 clients with mixed load meanwhile: 1 to 10,000 rows, atlas and mixture, new connections, mistakes."
    )
    head = ["what", "what happens", "the other clients"]
    return f"## Faults\n\n{note}\n\n{table(head, lines)}"


def kill_one(folder: Path, seconds: float) -> list[str]:
    with Server(folder, "--workers", "2") as server:
        with under_load(folder, server, seconds) as found:
            time.sleep(1.0)
            start = time.monotonic()
            os.kill(server.workers()[0], signal.SIGKILL)
            back = wait_for(lambda: len(server.events("worker ready")) == 3, start)
        return ["kill -9 of one of 2 workers", f"a new worker is ready after {back:.1f} s", counts(found)]


def kill_only(folder: Path, seconds: float) -> list[str]:
    with Server(folder) as server:
        with under_load(folder, server, seconds) as found:
            time.sleep(1.0)
            start = time.monotonic()
            os.kill(server.workers()[0], signal.SIGKILL)
            back = wait_for(lambda: len(server.events("worker ready")) == 2, start)
        return ["kill -9 of the only worker", f"the port answers again after {back:.1f} s", counts(found)]


def restart(folder: Path, seconds: float) -> list[str]:
    server = Server(folder)
    try:
        with under_load(folder, server, seconds + 5.0) as found:
            start = time.monotonic()
            code = server.stop()
            ended = time.monotonic() - start
            left = server.events("ended")[0]["calls_left"]
            server = Server(folder, port=server.port)
            back = time.monotonic() - start
    finally:
        server.stop()
    text = f"SIGTERM: calls in progress end ({left} cut off), exit code {code} after {ended:.1f} s; "
    return ["restart on the same port", f"{text}started again after {back:.1f} s", counts(found)]


def reload_often(folder: Path, seconds: float) -> list[str]:
    models = folder / "reloaded"
    models.mkdir(exist_ok=True)
    versions = [(folder / "models" / "knot.dpmd").read_bytes(), (folder / "other.dpmd").read_bytes()]
    target = models / "knot.dpmd"
    target.write_bytes(versions[0])
    second = folder / "answer knot 2.arrow"
    second.write_bytes((folder / "other knot.arrow").read_bytes())
    count = broken = 0
    try:
        with (
            Server(folder, "--workers", "2", models=models) as server,
            under_load(folder, server, seconds, models=["knot"]) as found,
            connect(server.uri) as client,
        ):
            end = time.monotonic() + seconds - 4.0
            while time.monotonic() < end:
                count += 1
                partial = models / "partial"
                partial.write_bytes(b"broken" if count % 5 == 0 else versions[count % 2])
                partial.rename(target)
                broken += len(client.reload()["broken"])
                time.sleep(0.1)
    finally:
        second.unlink()
    text = f"{count} reloads of 2 versions, every fifth file broken: {broken} named; "
    text += "each answer is that of one version"
    return ["reload under load, 2 workers", text, counts(found)]


def stall(folder: Path, seconds: float) -> list[str]:
    with Server(folder, "--idle-seconds", "2") as server:
        with under_load(folder, server, seconds) as found:
            start = time.monotonic()
            raw = flight.connect(server.uri)
            schema = pa.schema([(f"x{place}", pa.float64()) for place in range(COLUMNS)])
            calls = []
            for _ in range(20):
                calls.append(raw.do_exchange(flight.FlightDescriptor.for_path("knot")))
                calls[-1][0].begin(schema)
            ended = "?"
            try:
                calls[0][1].read_chunk()
            except flight.FlightUnavailableError:
                ended = f"{time.monotonic() - start:.1f} s"
            closed = wait_for(lambda: bool(server.events("connection closed")), start)
            assert closed < 30.0
            for writer, reader in calls:
                with contextlib.suppress(Exception):
                    reader.cancel()
                with contextlib.suppress(Exception):
                    writer.close()
        text = "20 calls that send a schema and nothing more, --idle-seconds 2: "
        text += f"their connection is closed after {ended}"
        return ["a client that stalls", text, counts(found)]


def garbage(folder: Path, seconds: float) -> list[str]:
    rng = np.random.default_rng(0)
    with Server(folder) as server:
        with under_load(folder, server, seconds) as found:
            closed = 0
            for number in range(300):
                with socket.create_connection(("127.0.0.1", server.port), 5.0) as other:
                    other.settimeout(0.5)
                    with contextlib.suppress(OSError):
                        start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
                        other.sendall(start + rng.bytes(int(rng.integers(1, 20_000))))
                        while other.recv(1 << 16):
                            pass
                        closed += 1
        died = len(server.events("worker died"))
    text = f"300 connections with random bytes, half after a good preface: {closed} closed by the server, "
    text += f"{died} workers died"
    return ["a client that sends garbage", text, counts(found)]


def many_rows(folder: Path, seconds: float) -> list[str]:
    rows = 10_000_000
    with Server(folder) as server:
        before = server.memory()
        data = np.random.default_rng(0).uniform(-1.0, 1.0, rows)
        big = pa.table({f"x{place}": data for place in range(COLUMNS)})
        with (
            under_load(folder, server, seconds + 20.0) as found,
            connect(server.uri + "/knot", timeout=280.0) as client,
        ):
            start = time.monotonic()
            clean = client.transform(big)
            taken = time.monotonic() - start
        peak = server.memory("VmHWM")
    text = f"{clean.num_rows:,} rows of 800 MB come back in {taken:.0f} s; "
    text += f"worker: {before} MB before, {peak} MB at most"
    return ["10 million rows, sent by `connect`", text, counts(found)]


def one_message(folder: Path, seconds: float) -> list[str]:
    rows = 10_000_000
    with Server(folder) as server:
        before = server.memory()
        data = np.zeros(rows)
        batch = pa.record_batch({f"x{place}": data for place in range(COLUMNS)})
        said = "it was taken"
        with under_load(folder, server, seconds) as found:
            raw = flight.connect(server.uri)
            options = flight.FlightCallOptions(timeout=60.0)
            writer, reader = raw.do_exchange(flight.FlightDescriptor.for_path("knot"), options)
            with contextlib.suppress(Exception):
                writer.begin(batch.schema)
                writer.write_batch(batch)
                writer.done_writing()
            try:
                reader.read_all()
            except Exception as problem:
                said = f"{type(problem).__name__}: {str(problem).partition(' gRPC client')[0][:120]}"
            with contextlib.suppress(Exception):
                writer.close()
        closed = [line["why"] for line in server.events("connection closed")]
        peak, died = server.memory("VmHWM"), len(server.events("worker died"))
    text = f"800 MB in one message: {said}; connection closed as {closed}; "
    text += f"worker: {before} MB before, {peak} MB at most, {died} died"
    return ["10 million rows in one batch", text, counts(found)]
