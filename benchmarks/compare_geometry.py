"""Compare local PCA and Algorithm 2 with scikit-learn, NumPy and SciPy; measure the memory of a fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import baselines
from benchmarks.common import (
    FULL_CASES,
    QUICK_CASES,
    THREADS,
    Case,
    Problem,
    best_seconds,
    clock,
    fastest,
    make_problem,
)
from benchmarks.markdown import megabytes, seconds, table
from benchmarks.memory import growth
from dpmd_fast import Budget, DPManifoldDenoiser, ManifoldDenoiser, warmup
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import local_tangents

STEPS = 5
BUDGET = Budget(epsilon=1.0, delta=0.1)
THETA = 0.5
_SMALL = 8  # up to this many columns a table of all projectors is worth trying


# Local PCA at all reference points


class LocalPCA(NamedTuple):
    algorithm: str
    search: float  # seconds of the search, for all points
    loops: dict[str, tuple[str, float]]  # by solver: faster way to use two threads, seconds for all points
    ours: float
    agreement: float

    def baseline(self, solver: str) -> float:
        return self.search + self.loops[solver][1]


def compare_local_pca(case: Case, problem: Problem, sample: int, repeats: int) -> LocalPCA:
    Y, radius = problem.Y, problem.radius
    rng = np.random.default_rng(1)
    rows = rng.choice(case.n, min(sample, case.n), replace=False)
    per_point = case.n / len(rows)

    def ask(model: object, points: np.ndarray) -> np.ndarray:
        return model.radius_neighbors(points, return_distance=False)  # type: ignore[attr-defined]

    names = ("kd_tree",) if case.D <= _SMALL else ("brute", "kd_tree")
    models = {name: baselines.search(Y, radius, name) for name in names}
    trial = {name: partial(ask, model, Y[rows[:100]]) for name, model in models.items()}
    algorithm = fastest(trial, 1)[0]
    fit_time = best_seconds(lambda: baselines.search(Y, radius, algorithm), repeats)
    search_time = best_seconds(lambda: ask(models[algorithm], Y[rows]), repeats)

    neighbors = ask(models[algorithm], Y[rows])
    loops = {}
    for solver in ("numpy", "scipy"):
        loop = partial(baselines.local_pca, Y, dim=case.d, solver=solver)
        variants = {
            f"{THREADS} BLAS threads": partial(loop, neighbors),
            f"{THREADS} Python threads": partial(baselines.in_threads, loop, neighbors),
        }
        name, spent = fastest(variants, repeats)
        loops[solver] = name, spent * per_point

    def ours() -> tuple[np.ndarray, np.ndarray]:
        index = build_index(Y, radius)
        return index.order, local_tangents(index, case.d, THREADS)[0]

    order, bases = ours()  # warms up
    found = np.empty((case.n, case.d, case.D))
    found[order] = bases[:, :, : case.D]
    checked = 50
    expected = baselines.local_pca(Y, neighbors[:checked], case.d, "numpy")
    got = found[rows[:checked]]
    difference = np.matmul(got.transpose(0, 2, 1), got) - np.matmul(expected, expected.transpose(0, 2, 1))
    return LocalPCA(
        algorithm,
        fit_time + search_time * per_point,
        loops,
        best_seconds(ours, repeats),
        float(np.abs(difference).max()),
    )


def show_local_pca(results: dict[Case, LocalPCA], sample: int) -> str:
    rows = []
    for case, r in results.items():
        numpy_side, scipy_side = r.baseline("numpy"), r.baseline("scipy")
        rows.append(
            [
                str(case),
                f"{seconds(numpy_side)} ({r.algorithm} {seconds(r.search)}, loop on {r.loops['numpy'][0]})",
                seconds(r.ours),
                f"{numpy_side / r.ours:.1f}",
                seconds(scipy_side),
                f"{scipy_side / r.ours:.1f}",
                f"{r.agreement:.0e}",
            ]
        )
    columns = [
        "case",
        "baseline s",
        "ours s",
        "ratio",
        "baseline with SciPy's top-d eigh s",
        "ratio to that",
        "largest difference of projectors",
    ]
    return (
        "## Local PCA at all reference points\n\n"
        f"Average ball {next(iter(results)).ball} points. Baseline: scikit-learn radius search, then per "
        "point `X - mean`, `X.T @ X / (k - 1)` and `np.linalg.eigh` in batches; its times are extrapolated "
        f"from {sample:,} random points. The second baseline replaces `np.linalg.eigh` by "
        "`scipy.linalg.eigh` with `subset_by_index`. Ours: index and all bases, all points. Projectors "
        "compared at 50 points.\n\n" + table(columns, rows)
    )


# Algorithm 2


class Algorithm2(NamedTuple):
    printed: float  # seconds of transform, one query at a time over all references
    vectorised: float  # seconds of transform, no loop over queries
    by_query: float  # seconds, one query at a time
    variant: str  # name of the fastest way found, SciPy and Python threads included
    fastest: float
    ours: float
    ours_fit: float
    ok: float  # share of queries that kept their neighbours
    agreement: float


def compare_algorithm2(case: Case, problem: Problem, repeats: int) -> Algorithm2:
    Y, Z, radius = problem
    rho = BUDGET.rho / (len(Z) * STEPS)
    scales = (
        1.0 / (case.n * radius**case.d) / np.sqrt(2.0 * THETA * rho),
        1.0 / (case.n * radius ** (case.d - 1)) / np.sqrt(2.0 * (1.0 - THETA) * rho),
    )
    quiet = ManifoldDenoiser(radius, case.d, steps=STEPS, n_threads=THREADS).fit(Y)
    V = np.ascontiguousarray(quiet.tangents_.transpose(0, 2, 1))

    def baseline(sums: str, solver: str) -> Callable[..., np.ndarray]:
        return partial(baselines.NumpyDenoiser(Y, V, radius, sums, solver).transform, steps=STEPS)

    gather = baseline("gather", "numpy")
    difference = quiet.transform(Z) - gather(Z)  # warms up
    by_query = best_seconds(partial(gather, Z, scales=scales), repeats)
    variants = {}
    for sums in ("gather", "tree") if case.D <= _SMALL else ("gather",):
        for solver in ("numpy", "scipy"):
            for pool in (False, True):
                name = f"{sums}, {solver} eigh, {THREADS} {'Python' if pool else 'BLAS'} threads"
                variants[name] = partial(baseline(sums, solver), scales=scales, pool=pool)
    trial = Z[: max(50, len(Z) // 5)]
    best = fastest({name: partial(call, trial) for name, call in variants.items()}, 1)[0]
    some = Z if case.D <= _SMALL else Z[: max(50, len(Z) // 10)]
    dense = partial(baseline("dense", "numpy"), some, scales=scales)
    dense()
    vectorised = best_seconds(dense, 1) * len(Z) / len(some)
    few = Z[: max(20, len(Z) // 50)]
    printed = partial(baseline("printed", "numpy"), few, scales=scales)
    printed()

    def fit() -> DPManifoldDenoiser:
        model = DPManifoldDenoiser(
            radius,
            case.d,
            BUDGET,
            mechanism="projector",
            steps=STEPS,
            theta=THETA,
            accept_risk=True,
            n_threads=THREADS,
        )
        return model.fit(Y)

    fit().transform(Z)  # warms up
    fits, transforms, status = [], [], None
    for _ in range(repeats):  # one fit allows one transform
        spent, model = clock(fit)
        fits.append(spent)
        transforms.append(clock(partial(model.transform, Z))[0])
        status = model.status_
    return Algorithm2(
        best_seconds(printed, 1) * len(Z) / len(few),
        vectorised,
        by_query,
        best,
        best_seconds(partial(variants[best], Z), repeats),
        min(transforms),
        min(fits),
        float(np.mean(status == "ok")),
        float(np.abs(difference).max()),
    )


def show_algorithm2(results: dict[Case, Algorithm2], pca: dict[Case, LocalPCA]) -> str:
    rows = []
    for case, r in results.items():
        baseline_fit = min(pca[case].baseline("numpy"), pca[case].baseline("scipy"))
        both = (baseline_fit + r.fastest) / (r.ours_fit + r.ours)
        rows.append(
            [
                str(case),
                seconds(r.ours),
                f"{seconds(r.printed)} = {r.printed / r.ours:.0f} x",
                f"{seconds(r.vectorised)} = {r.vectorised / r.ours:.0f} x",
                f"{seconds(r.by_query)} = {r.by_query / r.ours:.1f} x",
                f"{seconds(r.fastest)} = {r.fastest / r.ours:.1f} x ({r.variant})",
                f"{both:.1f} x",
                f"{r.ok:.0%}",
                f"{r.agreement:.0e}",
            ]
        )
    columns = [
        "case",
        "ours s",
        "NumPy, as printed",
        "NumPy, no loops",
        "NumPy, ball by ball",
        "fastest with SciPy and Python threads",
        "that, with fit",
        "queries with neighbours to the end",
        "largest difference without noise",
    ]
    return (
        f"## Algorithm 2, {next(iter(results)).m:,} queries, T = {STEPS}\n\n"
        f"Transform only, tangent bases given on both sides; epsilon = {BUDGET.epsilon:g}, delta = "
        f"{BUDGET.delta:g}, theta = {THETA:g}. Noise: ours from the cryptographic source, the others' from "
        "`np.random.default_rng`. As printed: one query at a time, vectorised over all references "
        "(extrapolated from 20 queries). No loops: all weights times the table of all projectors "
        "(above 8 columns extrapolated from a tenth of the queries). Ball by ball: distances by GEMM, then "
        "the rows of each ball and one product. The fastest variant was chosen on a fifth of "
        "the queries. With fit: plus the local PCA of all points (extrapolated, the faster solver). "
        "Queries that the noise moves away from all references are dropped by both sides.\n\n"
        + table(columns, rows)
    )


# Peak memory


def measure_fit_memory(case: Case) -> tuple[float, float, float]:
    """Return peak memory of a fit over the baseline, seconds and mean ball; run it in a fresh process."""
    warmup()
    problem = make_problem(case)
    model = ManifoldDenoiser(problem.radius, case.d, n_threads=THREADS)
    spent, grown, _ = growth(partial(model.fit, problem.Y))
    return grown, spent, float(model.neighbor_counts_.mean())


def show_memory(n: int, balls: Sequence[int]) -> str:
    rows = []
    for ball in balls:
        case = Case(20, n, 2, m=1, ball=ball)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            grown, spent, mean_ball = pool.submit(measure_fit_memory, case).result()
        given, bases = case.n * case.D * 8, case.n * case.d * case.D * 8
        rows.append(
            [
                f"{mean_ball:,.0f}",
                megabytes(grown),
                megabytes(given),
                megabytes(bases),
                f"{grown / (given + bases):.2f}",
                megabytes(mean_ball * case.n * 8),
                seconds(spent),
            ]
        )
    columns = [
        "average ball",
        "peak of fit over data",
        "input n D 8",
        "bases n d D 8",
        "peak / (input + bases)",
        "lists of neighbours would be",
        "fit s",
    ]
    return (
        f"## Peak memory of fit, n = {n:,}, D = 20, d = 2\n\n"
        "Resident memory in a fresh process: largest during fit, less what was resident before it (imports, "
        "compiled kernels, the data).\n\n" + table(columns, rows)
    )


# All together


def compare_geometry(sections: Sequence[str], quick: bool) -> Iterator[str]:
    """Yield the tables of "local-pca", "algorithm2" and "memory"; the second needs the times of the first."""
    sample, repeats = 200 if quick else 1500, 3
    pca, paper = {}, {}
    for case in (QUICK_CASES if quick else FULL_CASES) if {"local-pca", "algorithm2"} & set(sections) else ():
        problem = make_problem(case)
        with threadpool_limits(THREADS, user_api="blas"):
            r = pca[case] = compare_local_pca(case, problem, sample, repeats)
            print(f"{case}: local PCA {r.baseline('numpy') / r.ours:.1f}", file=sys.stderr)
            if "algorithm2" in sections:
                t = paper[case] = compare_algorithm2(case, problem, 2 * repeats)
                print(
                    f"{case}: Algorithm 2 {t.printed / t.ours:.1f}, {t.vectorised / t.ours:.1f}",
                    file=sys.stderr,
                )
    if "local-pca" in sections:
        yield show_local_pca(pca, sample)
    if paper:
        yield show_algorithm2(paper, pca)
    if "memory" in sections:
        yield show_memory(*((10_000, (100, 1000)) if quick else (100_000, (300, 5000))))
