"""Serving over Arrow Flight: throughput, latency, many requests, faults, and a long mixed load.

    python benchmarks/serve.py [--quick] [--only SECTION] [--minutes N] [--output FILE.md]

Server and clients are processes of this machine, on the loopback address; both sides of a ratio take turns on
the same cores. Clients check every answer against its own query (`benchmarks/serve_load.py`). All waits are
bounded. With --output and --only, other sections that the file has already are kept.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.markdown import idle_share, machine, table, write
from benchmarks.serve_faults import faults
from benchmarks.serve_parts import BATCH, Server, counts, joined, load, make_models, status, under_load
from dpmd_fast import LargeDeltaWarning, load_model
from dpmd_fast.serve import connect

SECTIONS = ("throughput", "latency", "requests", "faults", "soak")


# Throughput


def throughput(folder: Path, quick: bool) -> str:
    """Rows a second of 4 clients over those of 4 threads in process, in turns."""
    seconds, turns = (1.0, 1) if quick else (4.0, 3)
    lines = []
    for name, workers, batches in (
        ("knot", 1, 1),
        ("knot", 1, 20),
        ("cloud", 1, 1),
        ("cloud", 1, 20),
        ("knot", 2, 20),
    ):
        inside, outside, cpu_in, cpu_out = [], [], [], []
        with Server(folder, "--workers", str(workers)) as server:
            for _ in range(turns):
                rate, cpu = in_process(folder, name, seconds)
                inside.append(rate)
                cpu_in.append(cpu)
                more = {
                    "mode": "stream",
                    "models": [name],
                    "rows": BATCH,
                    "batches": batches,
                    "seconds": seconds,
                }
                clients = load(folder, server.uri, 4, 1, **more)
                for client in clients:
                    assert client.stdout is not None
                    client.stdout.readline()
                before = server.cpu()
                for client in clients:
                    assert client.stdin is not None
                    client.stdin.write("\n")
                    client.stdin.flush()
                found = joined(clients, 60.0)
                assert not found["wrong"], "a wrong answer"
                outside.append(found["rows"] / found["seconds"])
                cpu_out.append((found["cpu"] + server.cpu() - before) / found["rows"])
        pick = int(np.argmax(outside))
        lines.append(
            [
                "atlas" if name == "knot" else "mixture",
                str(workers),
                str(batches),
                f"{np.median(inside):,.0f}",
                f"{np.median(outside):,.0f}",
                f"{np.median(np.array(outside) / inside):.2f}",
                f"{outside[pick] / inside[pick]:.2f}",
                f"{np.median(cpu_in) / np.median(cpu_out):.2f}",
            ]
        )
    head = ["model", "workers", "batches in a call", "rows/s in process", "rows/s served", "ratio, median"]
    head += ["in the turn with most rows served", "processor time, in process / served with clients"]
    return (
        "## Throughput: 10,000-row batches of 10 columns, 4 clients\n\n"
        f"In process: 4 threads that transform the same batches. {turns} turns of {seconds:g} s each.\n\n"
        + table(head, lines)
    )


def in_process(folder: Path, name: str, seconds: float) -> tuple[float, float]:
    """Return rows a second and processor seconds for each row of 4 threads."""
    model = load_model(folder / "models" / f"{name}.dpmd")
    with pa.memory_map(str(folder / "pool.arrow")) as file:
        pool = pa.ipc.open_file(file).read_all().combine_chunks()
    parts = [pool.slice(BATCH * k, BATCH).to_batches()[0] for k in range(2)]
    more = () if name == "knot" else (0.3,)
    model.transform(parts[0], *more)
    counts = [0] * 4
    end = time.monotonic() + seconds
    start, used = time.monotonic(), time.process_time()

    def loop(mine: int) -> None:
        while time.monotonic() < end:
            model.transform(parts[counts[mine] % 2], *more)
            counts[mine] += 1

    threads = [threading.Thread(target=loop, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = BATCH * sum(counts)
    return rows / (time.monotonic() - start), (time.process_time() - used) / rows


# Latency and requests


def latency(folder: Path, quick: bool) -> str:
    """One-row calls of 1, 8 and 32 clients."""
    lines = []
    for workers in (1, 2):
        with Server(folder, "--workers", str(workers)) as server:
            for clients in (1, 8, 32):
                processes = min(clients, 4)
                more = {"mode": "rows", "models": ["knot"], "rows": 1, "seconds": 1.0 if quick else 6.0}
                found = joined(load(folder, server.uri, processes, clients // processes, **more), 60.0)
                assert not found["wrong"], "a wrong answer"
                assert not found["failed"], found["errors"]
                rate = found["calls"] / found["seconds"]
                row = [f"{1e3 * found['p50']:.2f}", f"{1e3 * found['p99']:.2f}", f"{rate:,.0f}"]
                lines.append([str(workers), str(clients), *row])
    head = ["workers", "clients", "p50, ms", "p99, ms", "calls/s"]
    note = "Each call is an exchange of its own; up to 4 processes of clients, of which the slowest is shown."
    return f"## Latency: one row\n\n{note}\n\n{table(head, lines)}"


def requests(folder: Path, quick: bool) -> str:
    """100,000 requests, each answer checked."""
    count, processes, threads = (400, 2, 4) if quick else (100_000, 4, 4)
    with Server(folder, "--workers", "2") as server:
        more = {
            "mode": "rows",
            "models": ["knot", "cloud"],
            "rows": 3,
            "seconds": 500.0,
            "count": count // processes,
        }
        found = joined(load(folder, server.uri, processes, threads, **more), 560.0)
        with connect(server.uri) as client:
            text = client.metrics()
    counted = sum(
        int(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("dpmd_fast_requests_total")
    )
    head = [
        "requests",
        "answered",
        "lost",
        "mixed up or wrong",
        "made again",
        "counted by the server",
        "seconds",
    ]
    row = [
        f"{count:,}",
        f"{found['calls']:,}",
        str(found["failed"]),
        str(found["wrong"]),
        str(found["repeated"]),
    ]
    row += [f"{counted:,}", f"{found['seconds']:.0f}"]
    note = (
        f"2 workers, {processes * threads} clients, atlas and mixture in random order, 3 rows a call, each "
    )
    note += "answer compared with that to its own rows, and a random mark in a column that passes through."
    return f"## Many requests\n\n{note}\n\n{table(head, [row])}"


# Soak


def soak(folder: Path, quick: bool, minutes: float) -> str:
    """Mixed load with reloads and new connections; memory of the workers over time."""
    seconds = 10.0 if quick else 60.0 * minutes
    samples: list[tuple[float, int, int]] = []
    with Server(folder, "--workers", "2") as server:
        start = time.monotonic()
        with under_load(folder, server, seconds) as found, connect(server.uri) as client:
            reloads = 0
            while time.monotonic() - start < seconds:
                time.sleep(min(5.0, seconds / 10.0))
                client.reload()
                reloads += 1
                used = [status(number, "VmRSS") for number in server.workers()]
                samples.append((time.monotonic() - start, max(used), status(server.process.pid, "VmRSS")))
        died = len(server.events("worker died"))
    times, workers, supervisor = (np.array(column) for column in zip(*samples, strict=True))
    late = times > 0.3 * times[-1]
    slope = np.polyfit(times[late] / 60.0, workers[late], 1)[0] if late.sum() > 2 else float("nan")
    marks = [int(np.argmin(np.abs(times - share * times[-1]))) for share in (0.1, 0.3, 0.5, 0.7, 0.85, 1.0)]
    lines = [[f"{times[k] / 60.0:.1f}", str(workers[k]), str(supervisor[k])] for k in marks]
    note = f"2 workers, 8 clients, {seconds / 60.0:.1f} minutes, {reloads} reloads: {counts(found)}; "
    note += f"{died} workers died. "
    note += f"Growth after the first 30 %: {slope:+.2f} MB a minute, of the larger worker."
    return f"## Mixed load\n\n{note}\n\n" + table(["minute", "larger worker, MB", "supervisor, MB"], lines)


PARTS = {"throughput": throughput, "latency": latency, "requests": requests, "faults": faults}


def kept_sections(path: Path | None) -> dict[str, str]:
    """Return the sections that a file has already, by their headings."""
    if path is None or not path.exists():
        return {}
    parts = re.split(r"(?m)^(?=## )", path.read_text("utf-8"))[1:]
    return {part.splitlines()[0]: part.strip() for part in parts}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one part; may be repeated")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the mixed load")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the tables there, too")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    found = kept_sections(options.output)
    head = "# Serving\n\n" + machine(None, ("pyarrow",))
    print(head, end="\n\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="dpmd-serve-") as name:
        folder = Path(name)
        make_models(folder)
        for section in options.only or SECTIONS:
            idle = idle_share(0.5 if options.quick else 3.0)
            if section == "soak":
                made = soak(folder, options.quick, options.minutes)
            else:
                made = PARTS[section](folder, options.quick)
            heading, _, rest = made.partition("\n")
            share = "unknown" if idle is None else f"{idle:.0%}"
            made = f"{heading}\n\n- idle share before the run: {share}\n{rest}"
            print(made, end="\n\n", flush=True)
            found[made.splitlines()[0]] = made
            if options.output is not None:
                write(options.output, "\n\n".join([head, *found.values()]) + "\n")


if __name__ == "__main__":
    main()
