"""Compare exact fixed-radius search with faiss, scikit-learn and SciPy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import KDTree, NearestNeighbors

from benchmarks.baselines import in_threads
from benchmarks.common import QUICK_CASES, THREADS, Case, Problem, best_seconds, make_problem
from benchmarks.markdown import seconds, table
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index

CASES = (Case(3, 30_000, 2), Case(20, 30_000, 2), Case(60, 50_000, 5), Case(100, 30_000, 5))
_SMALL = 8  # up to this many columns trees are worth their time
_ASKED = 10_000  # points asked for; every side's time is for these

SAME = "yes: counts in float64, on the boundary included"
LISTS = "no: it also returns the lists"
SINGLE = "no: lists, in float32; points near the boundary may differ"


def faiss_counts(X: np.ndarray, points: np.ndarray, radius: float) -> np.ndarray:
    """Sizes of the balls by faiss' exact range search, in single precision."""
    import faiss

    faiss.omp_set_num_threads(THREADS)
    index = faiss.IndexFlatL2(X.shape[1])
    index.add(X)
    limits = index.range_search(points, np.float32(radius * radius))[0]
    return np.diff(limits.astype(np.int64))


def sklearn_counts(Y: np.ndarray, points: np.ndarray, radius: float) -> np.ndarray:
    model = NearestNeighbors(radius=radius, algorithm="brute", n_jobs=THREADS).fit(Y)
    found = model.radius_neighbors(points, return_distance=False)
    return np.fromiter(map(len, found), int, len(found))


def tree_counts(Y: np.ndarray, points: np.ndarray, radius: float) -> np.ndarray:
    tree = KDTree(Y)
    return in_threads(lambda part: tree.query_radius(part, radius, count_only=True), points)


def scipy_counts(Y: np.ndarray, points: np.ndarray, radius: float) -> np.ndarray:
    return cKDTree(Y).query_ball_point(points, radius, workers=THREADS, return_length=True)


def our_counts(Y: np.ndarray, points: np.ndarray, radius: float) -> np.ndarray:
    return count_neighbors(build_index(Y, radius), points, THREADS)


def sides_of(case: Case, problem: Problem, asked: int) -> dict[str, tuple[Callable[[], Any], str]]:
    """Return, by name, the call and whether it does the same as ours."""
    Y, _, radius = problem
    points = Y[np.random.default_rng(1).choice(len(Y), asked, replace=False)]
    sides: dict[str, tuple[Callable[[], Any], str]] = {
        "dpmd_fast": (partial(our_counts, Y, points, radius), ""),
        "scikit-learn, brute force": (partial(sklearn_counts, Y, points, radius), LISTS),
    }
    if case.D <= _SMALL:
        sides["scikit-learn KDTree, count_only"] = partial(tree_counts, Y, points, radius), SAME
        sides["SciPy cKDTree, return_length"] = partial(scipy_counts, Y, points, radius), SAME
    if importlib.util.find_spec("faiss") is not None:
        single = Y.astype(np.float32), points.astype(np.float32)
        sides["faiss IndexFlatL2.range_search"] = partial(faiss_counts, *single, radius), SINGLE
    return sides


def show_search(quick: bool) -> str:
    """Time index and search of all sides in one run; compare the counts point by point."""
    rows = []
    for case in QUICK_CASES if quick else CASES:
        problem, asked = make_problem(case), min(_ASKED, case.n)
        sides = sides_of(case, problem, asked)
        ours, own = 0.0, np.zeros(asked, int)
        for name, (call, same) in sides.items():
            counts = np.asarray(call())
            spent = best_seconds(call, 3)
            if not same:
                ours, own = spent, counts
            rows.append(
                [
                    f"{case}, average ball {own.mean():.0f}",
                    name,
                    seconds(spent),
                    "" if not same else f"{spent / ours:.1f} x",
                    "" if not same else f"{np.count_nonzero(counts != own)} of {asked:,}",
                    same,
                ]
            )
        print(f"{case}: search done", file=sys.stderr)
    columns = ["case", "side", "s", "ratio", "counts that differ", "the same thing?"]
    return (
        f"## Points within a radius, {_ASKED:,} of the points asked for\n\n"
        f"Index built and points asked for, {THREADS} threads on every side. Ours fuses the search with what "
        "is done to the neighbours and never holds lists; here it counts. Trees are left out above "
        f"{_SMALL} columns, where they lose to brute force by an order of magnitude.\n\n"
        + table(columns, rows)
    )
