"""Compare one release by a Dask cluster and by Spark with one process, from the same Parquet files.

    python benchmarks/engines.py [--rows 1000000] [--rows 10000000] [--spark] [--output FILE.md]

60 columns of float32, 200 locations, each file of 250,000 records one partition. Every engine gets one and
two workers of one thread; the single process gets one and two threads. A second pass is timed: workers have
started and loaded the kernels. The released bits must be equal.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.moments import write_records
from dpmd_fast import Budget, Release, release_moments

COLUMNS, LOCATIONS, PART = 60, 200, 250_000
BUDGET = Budget(1.0, 1e-8)


def write_parts(folder: Path, rows: int) -> tuple[list[str], np.ndarray, float]:
    """Files of `PART` records, and the locations and bandwidth of the first."""
    paths = []
    locations, radius = np.empty((0, COLUMNS)), 0.0
    for number in range(max(1, rows // PART)):
        path = folder / f"part-{number:04d}.parquet"
        found = write_records(path, min(rows, PART), COLUMNS, LOCATIONS)
        if number == 0:
            locations, radius = found
        paths.append(str(path))
    return paths, locations, radius


def release(reference: Any, locations: np.ndarray, radius: float, threads: int | None) -> Release:
    return release_moments(
        reference, locations, bandwidth=radius, budget=BUDGET, seed=1, on_invalid="drop", n_threads=threads
    )


def timed(
    reference: Any, locations: np.ndarray, radius: float, threads: int | None = None
) -> tuple[float, Release]:
    release(reference, locations, radius, threads)  # workers start, kernels are loaded
    start = time.perf_counter()
    found = release(reference, locations, radius, threads)
    return time.perf_counter() - start, found


@contextmanager
def dask_frame(paths: list[str], workers: int) -> Iterator[Any]:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        yield dd.read_parquet(paths)


@contextmanager
def spark_frame(paths: list[str], workers: int) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session.read.parquet(*paths)
    finally:
        session.stop()


def rows_of(count: int, engines: Sequence[Any]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        paths, locations, radius = write_parts(Path(folder), count)
        wanted = None
        for threads in (1, 2):
            seconds, found = timed(paths, locations, radius, threads)
            wanted = found if wanted is None else wanted
            np.testing.assert_array_equal(found.values, wanted.values)
            yield f"| {count:,} | one process, {threads} thread(s) | {seconds:.1f} | {count / seconds:,.0f} |"
        for engine in engines:
            for workers in (1, 2):
                with engine(paths, workers) as reference:
                    seconds, found = timed(reference, locations, radius)
                np.testing.assert_array_equal(found.values, wanted.values)
                name = engine.__name__.removesuffix("_frame").capitalize()
                yield f"| {count:,} | {name}, {workers} worker(s) | {seconds:.1f} | {count / seconds:,.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    engines = [dask_frame, spark_frame] if options.spark else [dask_frame]
    lines = ["| records | who | seconds | records a second |", "| --- | --- | --- | --- |"]
    for count in options.rows or [1_000_000, 10_000_000]:
        for line in rows_of(count, engines):
            print(line, flush=True)
            lines.append(line)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
