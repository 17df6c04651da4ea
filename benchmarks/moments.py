"""Compare certified moments with NumPy and with the rate of DGEMM; release from large Parquet files.

    python benchmarks/moments.py [--quick] [--only sums|parquet] [--output FILE.md]

prints Markdown. Run it on an idle machine; the idle share just before the run is part of the output.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.common import SIGMA, THREADS, Case, ball_radius, clock, in_turns, make_problem
from benchmarks.limits import moment_flops
from benchmarks.markdown import arguments_of, machine, megabytes, print_report, seconds, table
from benchmarks.memory import peak_memory
from dpmd_fast import Budget, LargeDeltaWarning, release_moments, warmup
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.lab.datasets import bounded_noise, sphere
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.lattice import choose_lattice

SECTIONS = ("sums", "parquet")
BUDGET = Budget(epsilon=1.0, delta=1e-8)
SHARE = 0.06  # of the records in reach of an average location
_BATCH = 8192
_PIECE = 200_000  # records written at a time


# Sums beside NumPy


class Sums(NamedTuple):
    case: Case
    pairs: int  # (record, location) within the bandwidth
    ours: float  # seconds of the exact sums, index of the locations included
    release: float  # seconds of the whole call: checks, sums, noise
    numpy: float
    variant: str  # the faster way for NumPy to use two threads
    flops: float
    dgemm: float  # flops a second
    agreement: float  # largest difference of the sums over the largest entry

    @property
    def rate(self) -> float:
        return self.case.n / self.ours

    @property
    def share(self) -> float:
        return self.flops / self.ours / self.dgemm


def numpy_sums(Y: np.ndarray, locations: np.ndarray, h: float, tau: float, pool: bool) -> np.ndarray:
    """The same sums in floating point: distances by GEMM, then per location the rows in reach, one product.

    Two threads of BLAS, or with `pool` two Python threads over the locations with one of BLAS each.
    """
    K, D = locations.shape
    sums = np.zeros((K, D + 1, D + 1))
    half_norms = 0.5 * np.einsum("ij,ij->i", locations, locations)

    def add(X: np.ndarray, roots: np.ndarray, some: np.ndarray) -> None:
        for a in some:
            rows = np.flatnonzero(roots[a])
            if len(rows) == 0:
                continue
            f = np.empty((len(rows), D + 1))
            np.subtract(np.take(X, rows, axis=0), locations[a], out=f[:, :D])
            f[:, :D] /= h
            f[:, D] = HOMOGENEOUS**0.5
            f *= roots[a, rows, None]
            sums[a] += f.T @ f

    def run(blas: int, workers: int) -> None:
        parts = np.array_split(np.arange(K), workers)
        with threadpool_limits(blas, user_api="blas"), ThreadPoolExecutor(workers) as executor:
            for start in range(0, len(Y), _BATCH):
                X = Y[start : start + _BATCH]
                inside = locations @ X.T
                inside -= half_norms[:, None] - 0.5 * h * h
                inside -= 0.5 * np.einsum("ij,ij->i", X, X)
                inside *= 2.0 / (h * h)  # 1 - |y - a|^2 / h^2: the square root of the weight, for beta = 2
                np.maximum(inside, 0.0, out=inside)
                norms = np.square(inside)
                norms *= HOMOGENEOUS + 1.0 - inside
                lengths = np.sqrt(np.einsum("ij,ij->j", norms, norms))
                inside *= np.sqrt(np.minimum(1.0, tau / np.maximum(lengths, 1e-300)))
                list(executor.map(partial(add, X, inside), parts))

    run(1 if pool else THREADS, THREADS if pool else 1)
    return sums


def compare_case(case: Case, order: int, repeats: int) -> Sums:
    """All sides in turns, the best time of each; DGEMM with square matrices of this order."""
    Y, locations, h = make_problem(case)
    index = build_index(locations, h)
    tau = natural_tau(index, 2.0)
    lattice = choose_lattice(BUDGET.mu, tau, "replace-one")
    A, B = (np.random.default_rng(k).normal(size=(order, order)) for k in range(2))
    C = np.empty_like(A)

    def ours() -> np.ndarray:
        sums = MomentSums(build_index(locations, h), 2.0, tau, lattice.steps, HOMOGENEOUS, THREADS)
        sums.add(Y)
        return sums.total()

    def dgemm() -> None:
        with threadpool_limits(THREADS, user_api="blas"):
            np.matmul(A, B, out=C)

    sides = {
        "ours": ours,
        "release": partial(release_moments, Y, locations, bandwidth=h, budget=BUDGET, n_threads=THREADS),
        "dgemm": dgemm,
        f"{THREADS} BLAS threads": partial(numpy_sums, Y, locations, h, tau, False),
        f"{THREADS} Python threads": partial(numpy_sums, Y, locations, h, tau, True),
    }
    best, results = in_turns(sides, repeats)
    variants = list(sides)[3:]
    variant = min(variants, key=best.__getitem__)
    exact = lattice.step * results["ours"]
    pairs = int(count_neighbors(index, Y).sum())
    return Sums(
        case,
        pairs,
        best["ours"],
        best["release"],
        best[variant],
        variant,
        moment_flops(pairs, case),
        2.0 * order**3 / best["dgemm"],
        float(np.abs(exact - results[variant]).max() / np.abs(exact).max()),
    )


def compare_moments(quick: bool) -> list[Sums]:
    """Exact sums at 1000 locations beside NumPy, for three dimensions; two threads on both sides."""
    n, K = (5_000, 100) if quick else (50_000, 1000)
    warmup()
    rows = []
    for D in (20, 60, 100):
        case = Case(D, n, 5, m=K, ball=int(SHARE * n))
        rows.append(compare_case(case, 1000 if quick else 2500, 2 if quick else 7))
        print(f"{rows[-1].case}: {rows[-1].numpy / rows[-1].ours:.1f} x", file=sys.stderr)
    return rows


def show_sums(results: Sequence[Sums]) -> str:
    rows = [
        [
            str(r.case),
            f"{r.pairs / (r.case.n * r.case.m):.1%}",
            seconds(r.ours),
            f"{r.rate:,.0f}",
            seconds(r.release),
            f"{r.flops / r.ours / 1e9:.1f}",
            f"{r.dgemm / 1e9:.1f}",
            f"{r.share:.0%}",
            f"{seconds(r.numpy)} ({r.variant})",
            f"{r.numpy / r.ours:.1f}",
            f"{r.agreement:.0e}",
        ]
        for r in results
    ]
    columns = [
        "case",
        "records in reach",
        "exact sums s",
        "records/s",
        "whole release s",
        "useful Gflop/s",
        "DGEMM Gflop/s",
        "share",
        "NumPy s",
        "ratio",
        "largest difference",
    ]
    return (
        f"## Certified moments, {results[0].case.m:,} locations\n\n"
        "Two threads everywhere, the best of several turns. Useful flops: pairs (D+1)(D+2) + 2 n K D, the "
        "products of the pairs in reach and one product for all distances; DGEMM takes its turns, too. "
        "NumPy: the same sums in floating point, distances by GEMM, then per location the rows in reach and "
        "one product; the faster of two BLAS and two Python threads.\n\n" + table(columns, rows)
    )


# From Parquet files


class Streamed(NamedTuple):
    rows: int
    columns: int
    locations: int
    bytes: int  # of the file
    once: float  # seconds with on_invalid="drop": one pass
    twice: float  # seconds with on_invalid="raise": the records are checked first
    before: int  # bytes resident before the first release: imports, compiled kernels
    peak: int  # largest resident memory of the process


def write_records(
    path: Path, rows: int, columns: int, locations: int, dim: int = 5
) -> tuple[np.ndarray, float]:
    """Write float32 records around a sphere to one file in pieces; returns public locations and a bandwidth.

    The bandwidth has `SHARE` of the records in reach of an average location.
    """
    rng = np.random.default_rng(0)
    shape = sphere(columns, min(dim, columns - 1), rotation=rng)

    def sample(count: int) -> np.ndarray:
        return shape.sample(count, rng) + bounded_noise(count, columns, SIGMA, rng)

    trial = sample(20_000)
    names = [f"x{j}" for j in range(columns)]
    schema = pa.schema([(name, pa.float32()) for name in names])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, _PIECE):
            piece = sample(min(_PIECE, rows - start)).astype(np.float32)
            writer.write_table(pa.table(list(piece.T.copy()), schema=schema), row_group_size=_PIECE // 2)
    return sample(locations), ball_radius(trial, SHARE * len(trial), rng)


def release_streamed(path: Path, locations: np.ndarray, radius: float) -> tuple[float, float, int, int]:
    """Seconds of two releases, memory before and at its peak; to be run in a fresh process."""
    warnings.simplefilter("ignore", LargeDeltaWarning)
    release = partial(
        release_moments, locations=locations, bandwidth=radius, budget=BUDGET, n_threads=THREADS
    )
    release(np.zeros((10, locations.shape[1])))  # loads the kernels
    before = peak_memory()
    once = clock(partial(release, path, on_invalid="drop"))[0]
    twice = clock(partial(release, path))[0]
    return once, twice, before, peak_memory()


def stream_parquet(rows: int, columns: int, locations: int = 200) -> Streamed:
    """Release from a Parquet file of `rows` records, in a process of its own.

    Raises
    ------
    OSError
        If the temporary folder has no room for twice the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        size = 4 * rows * columns
        if shutil.disk_usage(folder).free < 2 * size:
            raise OSError(f"{folder} has no room for {megabytes(2 * size)}: take fewer rows")
        path = Path(folder) / "records.parquet"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            points, radius = pool.submit(write_records, path, rows, columns, locations).result()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            measured = pool.submit(release_streamed, path, points, radius).result()
        return Streamed(rows, columns, locations, path.stat().st_size, *measured)


def show_streamed(results: Sequence[Streamed]) -> str:
    rows = [
        [
            f"{r.rows:,} x {r.columns}",
            megabytes(r.bytes),
            seconds(r.once),
            f"{r.rows / r.once:,.0f}",
            seconds(r.twice),
            f"{r.rows / r.twice:,.0f}",
            megabytes(r.before),
            megabytes(r.peak),
        ]
        for r in results
    ]
    columns = [
        "float32 records",
        "file",
        "one pass s",
        "records/s",
        "checked first s",
        "records/s",
        "memory before",
        "peak",
    ]
    return (
        f"## Releases from Parquet, {results[0].locations} locations\n\n"
        f"{SHARE:.0%} of the records in reach of a location; one file, read in batches, {THREADS} threads. "
        "One pass: `on_invalid='drop'`; checked first: the default. Memory: resident, in a fresh process.\n\n"
        + table(columns, rows)
    )


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    yield "# Certified moments"
    yield machine(0.5 if quick else 3.0)
    if "sums" in sections:
        yield show_sums(compare_moments(quick))
    if "parquet" in sections:
        sizes = (20_000, 100_000) if quick else (1_000_000, 10_000_000)
        yield show_streamed([stream_parquet(rows, 60) for rows in sizes])


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
