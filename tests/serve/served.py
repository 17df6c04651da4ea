"""Servers for the tests, and what they serve."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import flight
from samples import make_atlas, make_mixture

from dpmd_fast import Preprocessor
from dpmd_fast.serve import connect

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-the-tests-0123"


def save_models(folder):
    """An atlas, a mixture, one with a preprocessor, and an atlas without names."""
    made = {
        "knot": make_atlas(),
        "cloud": make_mixture(),
        "scaled": make_mixture(preprocess=Preprocessor((1.0,) * 3, (2.0,) * 3, column_names=("a", "b", "c"))),
        "plain": make_atlas(column_names=None),
    }
    for name, model in made.items():
        model.save(folder / f"{name}.dpmd")
    return made


def make_table(rows=1000, seed=0, nulls=False):
    rng = np.random.default_rng(seed)
    columns = {name: rng.uniform(-1.2, 1.2, rows) for name in "abc"}
    table = pa.table(
        {
            "id": pa.array([f"row {number}" for number in range(rows)], pa.string()),
            "c": columns["c"],
            "a": columns["a"],
            "flag": pa.array(rng.random(rows) < 0.5),
            "b": pa.array(columns["b"], mask=rng.random(rows) < 0.2) if nulls else columns["b"],
            "tags": pa.array([["x"] * (number % 3) for number in range(rows)], pa.list_(pa.string())),
        }
    )
    return table.replace_schema_metadata({"made": "for a test"})


class Running:
    """A server in processes of its own, as a user starts it."""

    def __init__(self, folder, models, *options, env=None):
        self.port_file, self.log_file = folder / "port", folder / "log.jsonl"
        self.port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "dpmd_fast", "serve", "--models", str(models), "--port", "0"]
        command += ["--port-file", str(self.port_file), *options]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                stdout=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, **(env or {})},
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup has it ignored
            )

    def wait(self, seconds=120.0):
        end = time.monotonic() + seconds
        while not self.port_file.exists():
            assert self.process.poll() is None, self.log_file.read_text()
            assert time.monotonic() < end, "the server did not start in time"
            time.sleep(0.02)
        self.port = int(self.port_file.read_text())
        return self

    def uri(self, model="", scheme="grpc"):
        return f"{scheme}://127.0.0.1:{self.port}/{model}"

    def connect(self, model="", **more):
        return connect(self.uri(model), timeout=60.0, **more)

    def events(self, name=None):
        lines = [json.loads(line) for line in self.log_file.read_text().splitlines()]
        return [line for line in lines if name is None or line["event"] == name]

    def workers(self):
        """Processes of the workers that are there now, by their slots."""
        found = {}
        for line in self.events():
            if line["event"] == "worker ready":
                found[line["worker"]] = line["worker_pid"]
            elif line["event"] == "worker died":
                found.pop(line["worker"], None)
        return found

    def stop(self, seconds=60.0):
        """End it as a scheduler does; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def running(folder, models, *options, **more):
    server = Running(folder, models, *options, **more)
    try:
        yield server.wait()
    finally:
        server.stop()


def until(condition, seconds=60.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# Calls without the client of the package


def options(**headers):
    given = {"authorization": f"Bearer {TOKEN}", **headers}
    return flight.FlightCallOptions(
        timeout=20.0,
        headers=[(name.replace("_", "-").encode(), text.encode()) for name, text in given.items()],
    )


def exchange(raw, model, table, chosen=None, *messages, after=()):
    """What comes back; a server that refuses may do so while we still send: then the reader says why."""
    writer, reader = raw.do_exchange(flight.FlightDescriptor.for_path(model), chosen or options())
    try:
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            writer.begin(table.schema)
            for message in messages:
                writer.write_metadata(message)
            for batch in table.to_batches():
                writer.write_batch(batch)
            for message in after:
                writer.write_metadata(message)
            writer.done_writing()
        return reader.read_all()
    finally:
        close_calls([(writer, reader)])


def told(problem):
    return json.loads(problem.value.extra_info)


def open_calls(raw, count):
    opened = []
    for _ in range(count):
        pair = raw.do_exchange(flight.FlightDescriptor.for_path("knot"), options())
        pair[0].begin(make_table(1).schema)
        opened.append(pair)
    return opened


def close_calls(opened):
    for writer, reader in opened:
        reader.cancel()
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            writer.close()
