"""A process of clients for `benchmarks/serve.py`: every answer is checked against its own query.

    python benchmarks/serve_load.py '{"uri": ..., "pool": "pool.arrow", "mode": "mixed", ...}'

Rows are cleaned one by one, so the answer to any slice of a table is the same slice of the table's answer, to
the last bit. A query also carries a number of its own in a column that passes through.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from dpmd_fast.serve import Client, connect

SIZES = (1, 1, 1, 10, 100, 1000, 10_000)  # rows of a call of mixed load


class Pool:
    """Queries and their answers, by model and noise."""

    def __init__(self, path: str) -> None:
        with pa.memory_map(path) as file:
            self.queries = pa.ipc.open_file(file).read_all().combine_chunks()
        self.answers: dict[str, list[Any]] = {}
        for made in sorted(Path(path).parent.glob("answer *.arrow")):
            with pa.memory_map(str(made)) as file:
                name = made.stem.split(" ")[1]  # several for a model that is replaced meanwhile
                self.answers.setdefault(name, []).append(pa.ipc.open_file(file).read_all().combine_chunks())


class Clients:
    """Threads that call until the time is over or a number of calls is made."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.pool = given, Pool(given["pool"])
        self.lock = threading.Lock()
        self.left = given.get("count", 1 << 60)
        self.end = float("inf")
        self.ready = threading.Barrier(given["threads"], self.begin)
        self.begun = 0.0
        self.totals = dict.fromkeys(("calls", "rows", "failed", "wrong", "repeated"), 0)
        self.latencies: list[float] = []
        self.gaps: list[float] = []
        self.errors: dict[str, int] = {}

    def begin(self) -> None:
        self.begun = time.monotonic()
        self.end = self.begun + self.given["seconds"]
        print("ready", flush=True)

    def take(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0 and time.monotonic() < self.end

    def run(self) -> dict[str, Any]:
        threads = [threading.Thread(target=self.loop, args=(n,)) for n in range(self.given["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.monotonic() - self.begun
        latencies = sorted(self.latencies)

        def at(share: float) -> float:
            return latencies[min(len(latencies) - 1, int(share * len(latencies)))] if latencies else 0.0

        return {
            **self.totals,
            "seconds": taken,
            "p50": at(0.5),
            "p99": at(0.99),
            "most": at(1.0),
            "errors": self.errors,
            "cpu": time.process_time(),
        }

    def loop(self, number: int) -> None:
        rng = random.Random(1000 * self.given.get("seed", 0) + number)
        client = connect(self.given["uri"], self.given.get("token"), timeout=self.given.get("timeout", 60.0))
        mine: list[float] = []
        client.health()
        with contextlib.suppress(Exception):
            self.call(client, rng, counted=False)  # imports and connects: not part of what is timed
        self.ready.wait(120.0)
        while self.take():
            if self.given.get("reconnect") and rng.random() < self.given["reconnect"]:
                self.count(repeated=client.repeated)
                client.close()
                client = connect(self.given["uri"], self.given.get("token"), timeout=60.0)
            start = time.perf_counter()
            try:
                self.call(client, rng)
            except Exception as problem:
                with self.lock:
                    self.totals["failed"] += 1
                    text = f"{type(problem).__name__}: {str(problem)[:100]}"
                    self.errors[text] = self.errors.get(text, 0) + 1
            mine.append(time.perf_counter() - start)
        self.count(repeated=client.repeated)
        client.close()
        with self.lock:
            self.latencies += mine

    def count(self, **more: int) -> None:
        with self.lock:
            for name, number in more.items():
                self.totals[name] += number

    def call(self, client: Client, rng: random.Random, counted: bool = True) -> None:
        mode = self.given["mode"]
        queries = self.pool.queries
        name = rng.choice(self.given["models"])
        rows = rng.choice(SIZES) if mode == "mixed" else self.given["rows"]
        first = rng.randrange(queries.num_rows - rows + 1)
        mark = rng.getrandbits(62)
        asked = queries.slice(first, rows).append_column("mark", pa.array(np.full(rows, mark)))
        if mode == "mixed" and rng.random() < 0.02:  # a mistake of the client
            try:
                client.transform(asked.drop(["x0"]), model=name)
            except ValueError:
                self.count(calls=counted)
                return
        clean = client.transform(asked, 0.3 if name == "cloud" else None, model=name)
        right = (
            clean.num_rows == rows
            and clean["mark"].to_pylist() == [mark] * rows
            and any(
                clean.drop(["mark"]).combine_chunks().equals(answer.slice(first, rows).combine_chunks())
                for answer in self.pool.answers[name]
            )
        )
        self.count(calls=counted, rows=rows, wrong=not right)


def stream(given: dict[str, Any]) -> dict[str, Any]:
    """Send batches in calls of `batches` each until the time is over; of the answers the last is checked."""
    pool = Pool(given["pool"])
    name, rows, batches = given["models"][0], given["rows"], given["batches"]
    parts = [pool.queries.slice(rows * (k % 2), rows).to_batches()[0] for k in range(batches)]
    table = pa.Table.from_batches(parts)
    answers = [pool.answers[name][0].slice(rows * (k % 2), rows) for k in range(batches)]
    done = calls = 0
    with connect(given["uri"], given.get("token")) as client:
        noise = 0.3 if name == "cloud" else None
        client.transform(table, noise, model=name)
        print("ready", flush=True)
        sys.stdin.readline()
        start = time.monotonic()
        used = time.process_time()
        while time.monotonic() - start < given["seconds"]:
            clean = client.transform(table, noise, model=name)
            done += clean.num_rows
            calls += 1
        taken = time.monotonic() - start
    right = clean.combine_chunks().equals(pa.concat_tables(answers).combine_chunks())
    return {
        "rows": done,
        "seconds": taken,
        "calls": calls,
        "wrong": not right,
        "cpu": time.process_time() - used,
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    print(
        json.dumps(stream(settings) if settings["mode"] == "stream" else Clients(settings).run()), flush=True
    )
