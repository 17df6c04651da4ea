"""What `benchmarks/serve.py` is made of: models and queries, a server, processes of clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpmd_fast import Budget, load_model, release_atlas, release_mixture
from dpmd_fast.lab.datasets import bounded_noise, make_shape, simulate

COLUMNS, POOL, BATCH = 10, 40_000, 10_000
ROOT = Path(__file__).resolve().parents[1]
LOAD = str(ROOT / "benchmarks" / "serve_load.py")


def make_models(folder: Path) -> None:
    """Write an atlas and a mixture, the pool of queries, and the answers of both to it."""
    models = folder / "models"
    models.mkdir()
    shape = make_shape("sphere", ambient=COLUMNS)
    sample = simulate(shape, 20_000, 500, 0.05, np.random.default_rng(0))
    names = [f"x{place}" for place in range(COLUMNS)]
    budget = Budget(2.0, 1e-3)
    import pandas as pd

    records = pd.DataFrame(sample.references, columns=names)
    anchors = pd.DataFrame(sample.queries, columns=names)
    atlas = release_atlas(records, anchors, dim=2, bandwidth=0.6, budget=budget, seed=0, accept_risk=True)
    atlas.save(models / "knot.dpmd")
    other = release_atlas(records, anchors, dim=2, bandwidth=0.7, budget=budget, seed=1, accept_risk=True)
    other.save(folder / "other.dpmd")
    mixture = release_mixture(records, components=8, rounds=2, budget=budget, seed=0, accept_risk=True)
    mixture.save(models / "cloud.dpmd")
    rng = np.random.default_rng(1)
    X = shape.sample(POOL, rng) + bounded_noise(POOL, COLUMNS, 0.2, rng)
    pool = pa.table({"id": pa.array(range(POOL)), **dict(zip(names, X.T, strict=True))})
    _save(folder / "pool.arrow", pool)
    _save(folder / "answer knot.arrow", load_model(models / "knot.dpmd").transform(pool))
    _save(folder / "answer cloud.arrow", load_model(models / "cloud.dpmd").transform(pool, 0.3))
    _save(folder / "other knot.arrow", load_model(folder / "other.dpmd").transform(pool))


def _save(path: Path, made: Any) -> None:
    with pa.ipc.new_file(str(path), made.schema) as file:
        file.write_table(made.combine_chunks())


class Server:
    """`dpmd-fast serve`, as a user starts it."""

    def __init__(self, folder: Path, *options: str, port: int = 0, models: Path | None = None) -> None:
        self.port_file, self.log = folder / f"port {time.monotonic_ns()}", folder / "log.jsonl"
        command = [sys.executable, "-m", "dpmd_fast", "serve", "--models", str(models or folder / "models")]
        command += ["--port", str(port), "--port-file", str(self.port_file), "--log", "events", *options]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": path})
        end = time.monotonic() + 300.0
        while not self.port_file.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.02)
        self.port = int(self.port_file.read_text())
        self.uri = f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == name]

    def workers(self) -> list[int]:
        dead = {line["worker_pid"] for line in self.events("worker died")}
        return [one["worker_pid"] for one in self.events("worker ready") if one["worker_pid"] not in dead]

    def memory(self, key: str = "VmRSS") -> int:
        """Largest memory of a worker, in MB."""
        return max((status(number, key) for number in self.workers()), default=0)

    def cpu(self) -> float:
        """Processor seconds of supervisor and workers."""
        return sum(cpu_of(number) for number in [self.process.pid, *self.workers()])


def status(number: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) >> 10
    return 0


def cpu_of(number: int) -> float:
    parts = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def load(folder: Path, uri: str, processes: int, threads: int, **more: Any) -> list[subprocess.Popen[str]]:
    """Start processes of clients."""
    started = []
    for number in range(processes):
        given = {"uri": uri, "pool": str(folder / "pool.arrow"), "threads": threads, "seed": number, **more}
        started.append(
            subprocess.Popen(
                [sys.executable, LOAD, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    return started


def joined(started: list[subprocess.Popen[str]], limit: float) -> dict[str, Any]:
    """Wait for processes of clients; return their sums."""
    total: dict[str, Any] = {}
    end = time.monotonic() + limit
    for process in started:
        try:
            text = process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
            found = json.loads(text.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            process.kill()
            process.communicate()
            found = {"failed": 1, "errors": {"a process of clients did not end": 1}}
        for name, value in found.items():
            if isinstance(value, dict):
                sums = total.setdefault(name, {})
                for key, number in value.items():
                    sums[key] = sums.get(key, 0) + number
            elif name in ("p50", "p99", "most", "seconds"):
                total[name] = max(total.get(name, 0.0), value)  # of the slowest process
            else:
                total[name] = total.get(name, 0) + value
    return total


@contextlib.contextmanager
def under_load(folder: Path, server: Server, seconds: float, **more: Any) -> Iterator[dict[str, Any]]:
    """Run 8 clients around a block; the sums are in the dictionary afterwards."""
    given = {"mode": "mixed", "models": ["knot", "cloud"], "seconds": seconds, "reconnect": 0.02, **more}
    started = load(folder, server.uri, 2, 4, **given)
    found: dict[str, Any] = {}
    for process in started:  # what is tried has to come when they call
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(1.0)
    try:
        yield found
    finally:
        found.update(joined(started, seconds + 90.0))


def counts(found: dict[str, Any]) -> str:
    text = (
        f"{found.get('calls', 0):,} answered, {found.get('failed', 0)} lost, {found.get('wrong', 0)} wrong, "
    )
    text += f"{found.get('repeated', 0)} made again, longest {found.get('most', 0.0):.1f} s"
    return text + (f"; {found['errors']}" if found.get("errors") else "")


def wait_for(condition: Any, start: float, limit: float = 60.0) -> float:
    while not condition() and time.monotonic() - start < limit:
        time.sleep(0.02)
    return time.monotonic() - start
