"""How long one call of `transform` takes: median and 99th percentile, for 1 to 100,000 rows.

    python benchmarks/latency.py [--quick] [--only models|kinds] [--output FILE.md]

From 1, 2 and 4 client threads, with the default number of threads and with one, idle and beside one busy
process, which this script starts itself; beside scikit-learn's `PCA.transform` of the same rows. The sides
take turns of a few dozen milliseconds each. Of fewer than 100 calls the 99th percentile is the longest one.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.markdown import arguments_of, machine, print_report, table
from dpmd_fast import Budget, LargeDeltaWarning, Preprocessor, release_atlas, release_mixture
from dpmd_fast.lab.datasets import bounded_noise, make_shape, simulate

SECTIONS = ("models", "kinds")
ROWS = (1, 10, 100, 1_000, 10_000, 100_000)
CLIENTS = (1, 2, 4)
COLUMNS = 10
NOISE = 0.3
TURNS = 8
PAUSE = 0.15  # seconds: threads of OpenBLAS spin for a tenth of one after a product, and look busy
BUSY = "while True: pass"

Call = Callable[[np.ndarray], Any]


@dataclass
class Times:
    """Seconds that calls took."""

    all: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def high(self) -> float:
        return sorted(self.all)[int(0.99 * len(self.all))]

    def __str__(self) -> str:
        return f"{shown(self.median)} {shown(self.high)}"


def shown(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}" if seconds < 9.95e-3 else f"{1e6 * seconds:,.0f}"


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that does nothing but use a core."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def timed(sides: dict[str, Call], X: np.ndarray, clients: int, pause: float) -> dict[str, Times]:
    """Return the times of calls on the same rows; each side has `TURNS` turns of `pause` seconds."""
    found = {name: Times() for name in sides}
    for call in sides.values():
        call(X)
    for _ in range(TURNS):
        time.sleep(PAUSE)  # the last side is PCA
        for name, call in sides.items():
            time.sleep(0.01)
            found[name].all += _turn(call, X, clients, pause)
    return found


def _turn(call: Call, X: np.ndarray, clients: int, pause: float) -> list[float]:
    taken: list[list[float]] = [[] for _ in range(clients)]
    end = time.perf_counter() + pause

    def loop(mine: list[float]) -> None:
        while True:
            start = time.perf_counter()
            call(X)
            stop = time.perf_counter()
            mine.append(stop - start)
            if stop > end:
                return

    if clients == 1:
        loop(taken[0])
    else:
        threads = [threading.Thread(target=loop, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [one for mine in taken for one in mine]


def models() -> tuple[np.ndarray, dict[str, Callable[[Any, int | None], Any]]]:
    """Return 100,000 queries, and what transforms them: an atlas, one with a preprocessor, a mixture."""
    shape = make_shape("sphere", ambient=COLUMNS)
    sample = simulate(shape, 20_000, 500, 0.05, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    X = shape.sample(ROWS[-1], rng) + bounded_noise(ROWS[-1], COLUMNS, 0.2, rng)
    budget = Budget(2.0, 1e-3)
    atlas = release_atlas(sample.references, sample.queries, dim=2, bandwidth=0.6, budget=budget, seed=0)
    units = Preprocessor(center=(1.0,) * COLUMNS, scale=(0.5,) * COLUMNS, log=(True,) * 5 + (False,) * 5)

    def original(points: np.ndarray) -> np.ndarray:
        return np.asarray(units.inverse(points))

    scaled = release_atlas(
        original(sample.references),
        original(sample.queries),
        dim=2,
        bandwidth=0.6,
        budget=budget,
        seed=0,
        preprocess=units,
        accept_risk=True,
    )
    mixture = release_mixture(
        sample.references, components=8, rounds=2, budget=budget, seed=0, accept_risk=True
    )
    X_original = original(X)
    return X, {
        "atlas": lambda points, n_threads: atlas.transform(points, n_threads),
        "atlas with a preprocessor": lambda points, n_threads: scaled.transform(
            X_original[: len(points)], n_threads
        ),
        "mixture": lambda points, n_threads: mixture.transform(points, NOISE, n_threads),
    }


def show_models(quick: bool, X: np.ndarray, made: dict[str, Callable[..., Any]]) -> Iterator[str]:
    """Yield a table for each model."""
    from sklearn.decomposition import PCA

    pca = PCA(2).fit(X)
    sizes, clients = (ROWS[:2], CLIENTS[::2]) if quick else (ROWS, CLIENTS)
    pause = 0.01 if quick else 0.03
    for name, transform in made.items():
        sides: dict[str, Call] = {
            "default": lambda points, transform=transform: transform(points, None),
            "one": lambda points, transform=transform: transform(points, 1),
            "PCA": pca.transform,
        }
        found = {}
        for state in ("idle", "busy"):
            with busy_process() if state == "busy" else _nothing():
                for rows in sizes:
                    for threads in clients if name != "atlas with a preprocessor" else clients[:1]:
                        found[rows, threads, state] = timed(sides, X[:rows], threads, pause)
        yield f"## {name}: us, median and 99th percentile\n\n{_model_table(found)}"


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _model_table(found: dict[tuple[int, int, str], dict[str, Times]]) -> str:
    lines = []
    for rows, clients in dict.fromkeys((rows, clients) for rows, clients, _ in found):
        idle, busy = found[rows, clients, "idle"], found[rows, clients, "busy"]
        lines.append(
            [
                f"{rows:,}",
                str(clients),
                *(str(idle[side]) for side in ("default", "one", "PCA")),
                *(str(busy[side]) for side in ("default", "one", "PCA")),
                f"{busy['default'].median / busy['one'].median:.2f} "
                f"{busy['default'].high / busy['one'].high:.2f}",
            ]
        )
    head = ["rows", "clients", "idle: default threads", "one thread", "PCA"]
    head += ["beside a busy process: default threads", "one thread", "PCA", "default / one"]
    return table(head, lines)


def show_kinds(quick: bool, X: np.ndarray, made: dict[str, Callable[..., Any]]) -> str:
    """Return a table of one row as an array, in a pandas frame, an Arrow batch and a polars frame."""
    import pandas as pd
    import pyarrow as pa

    columns = [f"x{place}" for place in range(COLUMNS)]
    frame = pd.DataFrame(X[:1], columns=columns)
    kinds = {"NumPy": X[:1], "pandas": frame, "Arrow": pa.RecordBatch.from_pandas(frame)}
    try:
        import polars as pl

        kinds["polars"] = pl.from_pandas(frame)
    except ImportError:
        pass
    lines = []
    for name in ("atlas", "mixture"):
        sides: dict[str, Call] = {
            kind: lambda _, given=given, name=name: made[name](given, None) for kind, given in kinds.items()
        }
        found = timed(sides, X[:1], 1, 0.01 if quick else 0.2)
        base = found["NumPy"].median
        lines.append([name, *(f"{times} ({times.median / base:.1f})" for times in found.values())])
    return "## One row in a table: us, median and 99th percentile (ratio)\n\n" + table(["", *kinds], lines)


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    """Yield the Markdown, part by part."""
    yield "# Latency of transform"
    yield f"{COLUMNS} columns.\n\n" + machine(0.5 if quick else 3.0)
    X, made = models()
    if "models" in sections:
        yield from show_models(quick, X, made)
    if "kinds" in sections:
        yield show_kinds(quick, X, made)


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
