"""Measure the limits of the machine, and the share of them that the stages reach.

    python benchmarks/limits.py [--quick] [--only limits|stages|parts] [--output FILE.md]

Limits: the rate of DGEMM, of copying memory, of the stream cipher. Prints Markdown; run it on an idle
machine.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks import parts
from benchmarks.common import THREADS, Case, best_seconds, make_problem
from benchmarks.markdown import arguments_of, machine, print_report, seconds, table
from benchmarks.transform import RECORDS, preprocessed_case
from dpmd_fast import Atlas, Budget, LargeDeltaWarning, release_atlas, release_moments, warmup
from dpmd_fast.kernels.charts import move
from dpmd_fast.kernels.noise import exact_normal
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import BallIndex, build_index
from dpmd_fast.kernels.sums.exact import MomentSums, ResidualSums
from dpmd_fast.kernels.sums.residuals import ResidualFrames, make_frames
from dpmd_fast.kernels.tangents import local_tangents
from dpmd_fast.lab.datasets import bounded_noise, make_shape, simulate
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.privacy.noise import rounded_normals, standard_normals

SECTIONS = ("limits", "stages", "parts")
BUDGET = Budget(epsilon=1.0, delta=1e-6)
_TURNS = 7


# Limits


def dgemm_rate(order: int = 1500, threads: int = THREADS, repeats: int = 3) -> float:
    """Flops a second of a product of square matrices."""
    A, B = (np.random.default_rng(k).normal(size=(order, order)) for k in range(2))
    C = np.empty_like(A)
    with threadpool_limits(threads, user_api="blas"):
        np.matmul(A, B, out=C)
        return 2.0 * order**3 / best_seconds(partial(np.matmul, A, B, out=C), repeats)


def copy_rate(size: int = 1 << 28, repeats: int = 3) -> float:
    """Bytes a second read, and as many written, by one thread that copies memory beyond the caches."""
    source, target = np.ones(size // 8), np.zeros(size // 8)
    return size / best_seconds(partial(np.copyto, target, source), repeats)


def cipher_rate(count: int = 4_000_000, repeats: int = 3) -> float:
    """Bytes a second of the stream of random words, which one thread makes."""
    source = open_source()
    return 8.0 * count / best_seconds(partial(source.words, count), repeats)


# What is counted as work


def moment_flops(pairs: int, case: Case) -> float:
    """Products of the pairs in reach, and one product for all distances."""
    return pairs * (case.D + 1.0) * (case.D + 2.0) + 2.0 * case.n * case.m * case.D


def exact_sums(Y: np.ndarray, index: BallIndex, tau: float, threads: int = THREADS) -> np.ndarray:
    lattice = choose_lattice(BUDGET.mu, tau, "replace-one")
    sums = MomentSums(index, 2.0, tau, lattice.steps, HOMOGENEOUS, threads)
    sums.add(Y)
    return sums.total()


def transform_flops(atlas: Atlas, points: np.ndarray) -> float:
    """Of each pass and chart in reach, its distance and the weighted projection; the way to a subspace."""
    inside = points if atlas.subspace is None else atlas.subspace.down(points)
    total = 0.0 if atlas.subspace is None else 4.0 * points.size * inside.shape[1]
    for layer in atlas.layers:
        _, columns, dim = layer.tangents.shape
        index, once = build_index(layer.centers, layer.bandwidth), replace(layer, passes=1).field()
        for _ in range(layer.passes):
            pairs = float(count_neighbors(index, inside).sum())
            total += pairs * (3.0 * columns + 4.0 * dim * columns + 2.0 * columns)
            inside = move(once, inside)[0]
    return total


class Stage(NamedTuple):
    name: str
    seconds: float
    work: float  # flops or bytes
    limit: str  # "DGEMM", "copy" or "cipher"
    per_second: str  # rate in units of the stage
    pruned: float = 0.0  # of the work, what the search does not do
    beside: float = 0.0  # rate of the limit, if it was measured in turns with the stage


def _sums_case(D: int, quick: bool) -> Case:
    n, K, ball = (3_000, 100, 180) if quick else (50_000, 1_000, 3_000)
    return Case(D, n, 5, m=K, ball=ball)


def stages(quick: bool) -> Iterator[Stage]:
    for D in (20, 60, 100):
        case = _sums_case(D, quick)
        n, K = case.n, case.m
        Y, locations, h = make_problem(case)
        index = build_index(locations, h)
        tau = natural_tau(index, 2.0)
        pairs = int(count_neighbors(index, Y).sum())
        spent, dgemm = _in_turns(partial(exact_sums, Y, index, tau), quick)
        rate = f"{n / spent:,.0f} records"
        distances = 2.0 * case.n * case.m * case.D
        name, flops = f"certified sums, D={D}, K={K:,}", moment_flops(pairs, case)
        yield Stage(name, spent, flops, "DGEMM", rate, distances, dgemm)
    for case in (Case(20, n, 2, ball=300), Case(60, n, 5, ball=300)):
        Y, _, h = make_problem(case)
        index = build_index(Y, h)
        pairs = int(count_neighbors(index, Y).sum())
        spent, dgemm = _in_turns(partial(local_tangents, index, case.d, THREADS), quick)
        name, flops = f"local PCA, D={case.D}, d={case.d}", pairs * case.D * (case.D + 1.0)
        yield Stage(name, spent, flops, "DGEMM", f"{case.n / spent:,.0f} points", beside=dgemm)
    m = 5_000 if quick else 100_000
    for D in (3, 60):
        atlas, Z = make_atlas(D, m)
        spent = _timed(partial(atlas.transform, Z, n_threads=THREADS))
        rate = f"{m / spent:,.0f} points"
        yield Stage(f"transform, D={D}, arithmetic", spent, transform_flops(atlas, Z), "DGEMM", rate)
        yield Stage(f"transform, D={D}, input and output", spent, Z.nbytes, "copy", rate)
        if D == 3:
            yield _residuals(atlas, Z)
    atlas, Z = preprocessed_case(records=20_000 if quick else RECORDS)
    inside = np.asarray(atlas.preprocess.forward(Z))
    spent, dgemm = _in_turns(partial(atlas.transform, Z, n_threads=1), quick, threads=1)
    name, rate = "transform, D=20, d=5, preprocessed, 1 thread", f"{len(Z) / spent:,.0f} points"
    yield Stage(name, spent, transform_flops(atlas, inside), "DGEMM", rate, beside=dgemm)
    count = 200_000 if quick else 10_000_000
    words = exact_normal.words_for(count)
    source = open_source()
    for threads in (1, THREADS):
        spent = _timed(partial(rounded_normals, source, count, 2**28, threads))
        rate = f"{count / spent / 1e6:,.0f} million"
        yield Stage(f"exact noise, {threads} thread(s)", spent, 8.0 * words, "cipher", rate)
        spent = _timed(partial(standard_normals, source, count, threads))
        rate = f"{count / spent / 1e6:,.0f} million"
        yield Stage(f"normal variates, {threads} thread(s)", spent, 8.0 * count, "cipher", rate)
    yield from _reading(20_000 if quick else 1_000_000)


def _add_residuals(atlas: Atlas, Y: np.ndarray, threads: int) -> tuple[Callable[[], None], ResidualFrames]:
    """The sums of a residual round at the charts of the second layer, the move of the records before it."""
    layer, field = atlas.layers[1], atlas.layers[0].field()
    frames = make_frames(layer.centers, layer.tangents, layer.bandwidth, layer.bandwidth)
    lattice = choose_lattice(BUDGET.mu, 1.0, "replace-one")

    def add() -> None:
        sums = ResidualSums([field], frames, 1.0, lattice.steps, HOMOGENEOUS, threads)
        sums.add(Y)
        sums.total()

    return add, frames


def _residuals(atlas: Atlas, Y: np.ndarray) -> Stage:
    add, frames = _add_residuals(atlas, Y, THREADS)
    K, D, dim = atlas.layers[1].tangents.shape
    spent, features = _timed(add), dim + D + 1.0
    pairs = float(count_neighbors(frames.balls, Y).sum())
    flops = pairs * features * (features + 1.0) + transform_flops(replace(atlas, layers=atlas.layers[:1]), Y)
    return Stage(
        f"residual sums, D={D}, K={K:,}, with the move",
        spent,
        flops,
        "DGEMM",
        f"{len(Y) / spent:,.0f} records",
    )


def _reading(rows: int) -> Iterator[Stage]:
    """A release of a few locations from Parquet: what it costs to read and check the records."""
    from benchmarks.moments import write_records

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.parquet"
        locations, h = write_records(path, rows, columns=20, locations=1)
        size = 4.0 * 20 * rows

        def read() -> None:
            for batch in pq.ParquetFile(path).iter_batches(65_536):
                batch.num_rows  # noqa: B018

        def release(**options: Any) -> None:
            release_moments(path, locations, bandwidth=h, budget=BUDGET, n_threads=THREADS, **options)

        calls = {
            "Parquet, read by pyarrow alone": read,
            "Parquet, release at one location": partial(release, on_invalid="drop"),
            "Parquet, checked first": release,
        }
        for name, call in calls.items():
            spent = _timed(call)
            yield Stage(f"{name}, D=20", spent, size, "copy", f"{rows / spent:,.0f} records")


def make_atlas(D: int, m: int) -> tuple[Atlas, np.ndarray]:
    """An atlas of a surface in R^D, torus or sphere, and points to move."""
    shape = make_shape("torus") if D == 3 else make_shape("sphere", ambient=D)
    sample = simulate(shape, 30_000, 1_000, 0.05, np.random.default_rng(0))
    atlas = release_atlas(sample.references, sample.queries, dim=2, budget=Budget(1.0, 0.1))
    rng = np.random.default_rng(1)
    return atlas, shape.sample(m, rng) + bounded_noise(m, shape.ambient, 0.2, rng)


def _timed(call: Callable[[], Any]) -> float:
    call()
    return best_seconds(call, 3)


def _in_turns(call: Callable[[], Any], quick: bool, threads: int = THREADS) -> tuple[float, float]:
    """Seconds of a stage and the rate of DGEMM, in turns: the speed of a machine drifts within seconds."""
    call()
    order = 500 if quick else 2500
    turns = [(best_seconds(call, 1), dgemm_rate(order, threads, 1)) for _ in range(_TURNS)]
    return min(spent for spent, _ in turns), max(rate for _, rate in turns)


def show_limits(rates: dict[str, float]) -> str:
    rows = [
        [f"DGEMM, {THREADS} threads", f"{rates['DGEMM'] / 1e9:.1f} Gflop/s"],
        ["copy of memory, 1 thread", f"{rates['copy'] / 1e9:.1f} GB/s read, as much written"],
        ["AES-256-CTR, 1 thread", f"{rates['cipher'] / 1e9:.2f} GB/s"],
    ]
    return "## Limits of the machine\n\n" + table(["", "rate"], rows)


def show_stages(found: Sequence[Stage], rates: dict[str, float]) -> str:
    rows = []
    for stage in found:
        rate, limit = stage.work / stage.seconds, stage.beside or rates[stage.limit]
        done = (stage.work - stage.pruned) / stage.seconds
        unit = "Gflop/s" if stage.limit == "DGEMM" else "GB/s"
        rows.append(
            [
                stage.name,
                seconds(stage.seconds),
                f"{stage.per_second}/s",
                f"{rate / 1e9:.3g} {unit}",
                f"{stage.limit}, {limit / 1e9:.3g} {unit}",
                f"{rate / limit:.0%}" + (f" ({done / limit:.0%})" if stage.pruned else ""),
            ]
        )
    return (
        "## Stages beside their limit\n\n"
        f"{THREADS} threads unless said otherwise. Useful flops. Sums: pairs (D+1)(D+2) + 2 n K D; in "
        "brackets without the latter, distances most of which the search does without. Local PCA "
        "pairs D (D+1), as if every ball were summed anew; only the rows that change are, so the share may "
        "exceed 100 %. Transform: 9 to 25 flops a column for each pass and chart in reach (2 or 3 columns "
        "where the charts live in a subspace, and the way there). Residuals: pairs F (F+1) with F = d + D + "
        f"1, and the move. Sums and local PCA in turns with DGEMM, the best of {_TURNS} of each. Noise: "
        "8 bytes of the stream a sample, and 1/16 in reserve. Parquet: bytes of the float32 values.\n\n"
        + table(["stage", "s", "rate", "useful work", "limit", "share"], rows)
    )


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    yield "# Limits"
    yield machine(0.5 if quick else 3.0)
    warmup()
    sizes = (500, 1 << 24, 200_000) if quick else (2500, 1 << 28, 4_000_000)
    rates = {"DGEMM": dgemm_rate(sizes[0]), "copy": copy_rate(sizes[1]), "cipher": cipher_rate(sizes[2])}
    yield show_limits(rates)
    if "stages" in sections:
        yield show_stages(list(stages(quick)), rates)
    if "parts" in sections:
        atlas, Z = make_atlas(3, 5_000 if quick else 100_000)
        add, frames = _add_residuals(atlas, Z, 1)
        rate = dgemm_rate(sizes[0], threads=1)
        yield parts.show(atlas.layers[0].field(), frames, Z, add, rate)
        Y, locations, h = make_problem(_sums_case(20, quick))
        index = build_index(locations, h)
        yield parts.show_sums(index, Y, partial(exact_sums, Y, index, natural_tau(index, 2.0), 1), rate)


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
