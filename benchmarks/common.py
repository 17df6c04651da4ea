"""Profiles, data and clocks shared by the asv suites and the scripts.

`DPMD_BENCH_PROFILE` chooses the sizes of the suites: "quick" (the default, a few minutes in all), "full"
(those of `compare.py`), or "tiny", with which the tests run every benchmark once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpmd_fast.lab.datasets import bounded_noise, simulate, sphere
from dpmd_fast.lab.datasets import circle as circle_shape

THREADS = 2
TIMEOUT = 600  # seconds: the first call of a kernel on a machine compiles it
SIGMA = 0.05
T = TypeVar("T")


class Case(NamedTuple):
    """Size of a problem: `n` references and `m` queries around S^`d` in R^`D`, `ball` points per ball."""

    D: int
    n: int
    d: int
    m: int = 1000
    ball: int = 300

    def __str__(self) -> str:
        return f"D={self.D}, n={self.n:,}, d={self.d}"


class Problem(NamedTuple):
    """References, queries and the radius that puts `ball` references into an average ball."""

    Y: np.ndarray
    Z: np.ndarray
    radius: float


FULL_CASES = (
    Case(3, 30_000, 2),
    Case(20, 30_000, 2),
    Case(20, 30_000, 5),
    Case(60, 50_000, 2),
    Case(60, 50_000, 5),
    Case(100, 30_000, 2),
    Case(100, 30_000, 5),
)
QUICK_CASES = (
    Case(3, 3_000, 2, m=100, ball=100),
    Case(20, 3_000, 2, m=100, ball=100),
    Case(60, 3_000, 5, m=100, ball=100),
)
TINY_CASES = (
    Case(3, 400, 2, m=20, ball=30),
    Case(20, 400, 2, m=20, ball=30),
)

PROFILE = os.environ.get("DPMD_BENCH_PROFILE", "quick")
if PROFILE not in ("tiny", "quick", "full"):
    raise ValueError(f"DPMD_BENCH_PROFILE = {PROFILE!r}: must be 'quick', 'full' or 'tiny'")


def sized(tiny: T, quick: T, full: T) -> T:
    """Return the value for the current profile."""
    return {"tiny": tiny, "quick": quick, "full": full}[PROFILE]


THREAD_COUNTS = sized((THREADS,), (THREADS,), (1, THREADS))
CASES = sized(TINY_CASES, QUICK_CASES, FULL_CASES)


class Suite:
    """Settings of all suites for asv. `setup` warms up, so asv need not."""

    timeout = TIMEOUT
    rounds = 1  # processes for each benchmark and parameter
    warmup_time = 0.0
    sample_time = sized(0.0, 0.02, 0.1)
    repeat = sized((1, 1, 0.0), (2, 5, 0.4), (3, 10, 5.0))  # least, most, seconds after which asv stops


def ball_radius(Y: np.ndarray, average: float, rng: np.random.Generator) -> float:
    """Estimate the radius at which balls around the rows of `Y` hold `average` rows, from a sample."""
    centers = Y[rng.choice(len(Y), min(256, len(Y)), replace=False)]
    others = Y[rng.choice(len(Y), min(20_000, len(Y)), replace=False)]
    squares = -2.0 * centers @ others.T
    squares += (centers * centers).sum(axis=1)[:, None]
    squares += (others * others).sum(axis=1)
    return float(np.sqrt(max(np.quantile(squares, average / len(Y)), 0.0)))


@lru_cache(maxsize=2)
def make_problem(case: Case, seed: int = 0) -> Problem:
    """Draw points of a randomly rotated sphere with noise; queries are noisier but have neighbours.

    References carry noise uniform in the ball of radius 0.05, queries of radius sqrt(0.05), or half the
    bandwidth where that is less: beyond, a query off the manifold would see no reference at all.
    """
    rng = np.random.default_rng(seed)
    shape = sphere(case.D, case.d, rotation=rng)
    Y = shape.sample(case.n, rng) + bounded_noise(case.n, case.D, SIGMA, rng)
    radius = ball_radius(Y, case.ball, rng)
    noise = bounded_noise(case.m, case.D, min(SIGMA**0.5, 0.5 * radius), rng)
    return Problem(Y, shape.sample(case.m, rng) + noise, radius)


@lru_cache(maxsize=1)
def make_circle(n: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw references, queries and clean points of the paper's circle."""
    data = simulate(circle_shape(), n, m, SIGMA, np.random.default_rng(seed))
    return data.references, data.queries, data.clean


def best_seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest wall time of `repeats` calls."""
    return min(clock(call)[0] for _ in range(repeats))


def clock(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall time of one call, and its result."""
    time.sleep(0.05)  # lets the worker threads of other libraries stop spinning
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def fastest(variants: dict[str, Callable[[], object]], repeats: int) -> tuple[str, float]:
    """Return name and time of the variant with the shortest best time, after one call to warm up."""
    times = {}
    for name, call in variants.items():
        call()
        times[name] = best_seconds(call, repeats)
    best = min(times, key=times.__getitem__)
    return best, times[best]


def in_turns(sides: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the best time of each side over `repeats` alternating turns, and its result in the warm-up."""
    results = {name: call() for name, call in sides.items()}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats):
        for name, call in sides.items():
            best[name] = min(best[name], clock(call)[0])
    return best, results
