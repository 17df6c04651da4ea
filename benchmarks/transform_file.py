"""The command `dpmd-fast transform` on a large Parquet file, beside a plain read-and-write of the same file.

    python benchmarks/transform_file.py [--rows 20000000] [--columns 10] [--folder DIR] [--output FILE.md]

prints Markdown: seconds, rows a second, processor seconds and peak memory, at a tenth of the rows and at all
of them. The file is made in pieces, in a folder that is removed in the end. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.compare import machine, megabytes, seconds, table

RECORDS, ANCHORS, SIGMA, NOISE = 100_000, 3_000, 0.05, 0.2
PIECE = 250_000  # rows written at a time, and of a row group
SIDES = {
    "plain, pyarrow's defaults": "plain default",
    "plain, as `transform` writes": "plain same",
    "`dpmd-fast transform`": "transform",
    "`dpmd-fast transform --threads 1`": "transform one",
}

# What the processes do; each is started anew and tells the peak of its own memory.
MAKE = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from dpmd_fast import Budget, release_atlas
from dpmd_fast.lab.datasets import bounded_noise, sphere
folder, columns, records, anchors, sigma, noise, piece, *sizes = sys.argv[1:]
columns, records, anchors, piece = int(columns), int(records), int(anchors), int(piece)
rng = np.random.default_rng(0)
shape = sphere(columns, 2, rotation=rng)
def sample(rows, spread):
    return shape.sample(rows, rng) + bounded_noise(rows, columns, float(spread), rng)
names = [f"x{j}" for j in range(columns)]
reference = pa.table(dict(zip(names, sample(records, sigma).T)))
atlas = release_atlas(reference, sample(anchors, noise), dim=2, budget=Budget(1.0, 1e-6), accept_risk=True)
atlas.save(folder + "/atlas.dpmd")
schema = pa.schema([(name, pa.float64()) for name in names], metadata={"origin": "simulated"})
for rows in map(int, sizes):
    with pq.ParquetWriter(f"{folder}/{rows}.parquet", schema) as writer:
        for start in range(0, rows, piece):
            points = sample(min(piece, rows - start), noise)
            writer.write_table(pa.table([column.copy() for column in points.T], schema=schema))
"""
PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        print(line.split()[1])
"""
PLAIN = """
import os, sys
import pyarrow.parquet as pq
source, target, same = sys.argv[1:]
file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 16)
settings = {"use_dictionary": False} if same == "same" else {}
with pq.ParquetWriter(target, file.schema_arrow, **settings) as writer:
    for group in range(file.num_row_groups):
        writer.write_table(file.read_row_group(group))
with open(target, "rb") as written:
    os.fsync(written.fileno())
"""
TRANSFORM = """
import sys
from dpmd_fast.cli import main
assert main(["transform", *sys.argv[1:]]) == 0
"""


class Measured(NamedTuple):
    side: str
    rows: int
    seconds: float
    processor: float  # seconds of all cores
    peak: int  # bytes


def run(command: Sequence[str]) -> tuple[float, float, int]:
    """Seconds, processor seconds and peak memory of a process that runs some code with arguments."""
    code, *arguments = command
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    elapsed, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return elapsed, used, 1024 * int(done.stdout.splitlines()[-1])


def measure(folder: Path, rows: int, turns: int) -> list[Measured]:
    """All sides in turns, the fastest turn of each."""
    source, target = str(folder / f"{rows}.parquet"), str(folder / "out.parquet")
    transform = [TRANSFORM, "--atlas", str(folder / "atlas.dpmd"), source, "-o", target, "--force"]
    commands = {
        "plain default": [PLAIN, source, target, "default"],
        "plain same": [PLAIN, source, target, "same"],
        "transform": transform,
        "transform one": [*transform, "--threads", "1"],
    }
    best: dict[str, Measured] = {}
    for _ in range(turns):
        for name, side in SIDES.items():
            found = Measured(name, rows, *run(commands[side]))
            print(f"{rows:,} rows, {name}: {found.seconds:.1f} s", file=sys.stderr)
            if name not in best or found.seconds < best[name].seconds:
                best[name] = found
    return list(best.values())


def show(results: Sequence[Measured], columns: int) -> str:
    rows = []
    for found in results:
        plain = {other.side: other.seconds for other in results if other.rows == found.rows}
        same = plain["plain, as `transform` writes"]
        rows.append(
            [
                f"{found.rows:,}",
                found.side,
                seconds(found.seconds),
                f"{found.rows / found.seconds:,.0f}",
                f"{found.seconds / same:.2f}",
                seconds(found.processor),
                megabytes(found.peak),
            ]
        )
    header = ["rows", "", "s", "rows/s", "times plain, as `transform` writes", "processor s", "peak memory"]
    return (
        f"## Parquet through an atlas, {columns} float64 columns, all of them moved\n\n"
        "Whole processes, start-up included. Plain: read row group by row group, write, sync.\n\n"
        + table(header, rows)
    )


def report(rows: int, columns: int, turns: int, parent: str | None) -> Iterator[str]:
    yield "# Files through an atlas"
    yield machine(3.0)
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder, sizes = Path(name), sorted({max(rows // 10, 1), rows})
        settings = [columns, RECORDS, ANCHORS, SIGMA, NOISE, PIECE, *sizes]
        run([MAKE, name, *map(str, settings)])
        bytes_of = [(folder / f"{size}.parquet").stat().st_size for size in sizes]
        yield f"- files: {', '.join(map(megabytes, bytes_of))}"
        yield show([found for size in sizes for found in measure(folder, size, turns)], columns)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2, help="of every side")
    parser.add_argument("--folder", help="where the temporary folder is made; needs room for twice the file")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the table there, too")
    options = parser.parse_args(arguments)
    parts = []
    for part in report(options.rows, options.columns, options.turns, options.folder):
        print(part, end="\n\n", flush=True)
        parts.append(part)
    if options.output:
        options.output.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
