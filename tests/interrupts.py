"""A fit on the command line that is interrupted: what it leaves, at ten moments, cold and warm.

    python tests/interrupts.py

Prints a table. The tests run a few of the moments (`test_compilation.py`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmd_fast import Ledger

FIT = (
    "fit --model atlas --queries queries.parquet --dim 1 --rounds 1 --epsilon 1 --delta 1e-6 --accept-risk "
    "--ledger budget.db --dataset clinic --reference reference.parquet -o atlas.dpmd"
)
STARTED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
STARTED += "import sys; from dpmd_fast.cli import main; sys.exit(main(sys.argv[1:]))"
SPENT = re.compile(
    r"mu\^2 = [0-9.]+ of data set 'clinic' stays spent \(spend 1\); no file is recorded for it"
)
NOTHING = "no incomplete file was left behind, and nothing was spent"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Outcome(NamedTuple):
    """What became of a fit that got a signal."""

    code: int
    seconds: float  # from the signal to the end of the process
    spends: int
    file: bool
    recorded: bool
    said: str
    left: int  # processes that go on compiling

    @property
    def honest(self) -> bool:
        """Whether there is no spend, or a file for it, or a clear word of what was spent."""
        if self.spends == 0:
            return not self.file and (self.code == 0 or NOTHING in self.said)
        return self.recorded or self.file or SPENT.search(self.said) is not None


def make_files(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    for name, count, scatter in (("reference", rows, 0.05), ("queries", 300, 0.2)):
        angle = rng.uniform(0.0, 2.0 * np.pi, count)
        points = np.c_[np.cos(angle), np.sin(angle)] + scatter * rng.normal(size=(count, 2))
        pq.write_table(pa.table({"x": points[:, 0], "y": points[:, 1]}), folder / f"{name}.parquet")


def interrupted(folder: Path, number: int, seconds: float, cache: str) -> Outcome:
    """Start a fit, send a signal after some seconds, and look at what is left."""
    for name in ("budget.db", "atlas.dpmd"):
        (folder / name).unlink(missing_ok=True)
    Ledger(folder / "budget.db").create("clinic", 3.0, 1e-6)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STARTED, *FIT.split()],
        env={**os.environ, "DPMD_FAST_CACHE": "1", "NUMBA_CACHE_DIR": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    start = time.perf_counter()
    said = process.communicate(timeout=240)[1]
    took = time.perf_counter() - start
    history = Ledger(folder / "budget.db").history("clinic")
    made = (folder / "atlas.dpmd").exists()
    recorded = any(spend.files for spend in history)
    return Outcome(process.returncode, took, len(history), made, recorded, said.strip(), compiling(cache))


def compiling(cache: str) -> int:
    """Count the processes that compile into this folder."""
    wanted, found = f"NUMBA_CACHE_DIR={cache}".encode(), 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found += (
                wanted in (place / "environ").read_bytes().split(b"\0")
                and b"_serve" in (place / "cmdline").read_bytes()
            )
        except OSError:
            continue
    return found


def table(moments: int = 10) -> Any:
    """Yield a line for each signal and moment of a cold and of a warm fit."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder, 200_000)
        warm = os.path.join(place, "warm")
        start = time.perf_counter()
        interrupted(folder, signal.SIGINT, 600.0, warm)
        cold_seconds = time.perf_counter() - start
        start = time.perf_counter()
        interrupted(folder, signal.SIGINT, 600.0, warm)
        warm_seconds = time.perf_counter() - start
        yield f"a cold fit takes {cold_seconds:.1f} s, a warm one {warm_seconds:.1f} s"
        for kind, whole in (("cold", cold_seconds), ("warm", warm_seconds)):
            for step in range(moments):
                for number in SIGNALS:
                    after = whole * (step + 0.5) / moments
                    with tempfile.TemporaryDirectory() as empty:
                        done = interrupted(folder, number, after, warm if kind == "warm" else empty)
                    yield (
                        f"{kind} {signal.Signals(number).name:8} after {after:5.1f} s: "
                        f"ended in {done.seconds:4.2f} s, code {done.code:4}, spends {done.spends}, "
                        f"file {done.file!s:5}, left {done.left}, "
                        f"{'honest' if done.honest else 'NOT HONEST'}: {done.said[-90:]}"
                    )


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
