"""The methods that the simulations compare, each a function from a simulated data set to moved queries.

All take one step with the bandwidth of the paper's rule, except the atlas, which chooses its own. Noise comes
from the operating system, so private results differ between runs; data sets depend on the seed alone.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmd_fast import (
    Budget,
    DPManifoldDenoiser,
    ManifoldDenoiser,
    empirical_sensitivity,
    gradient_descent,
    paper_bandwidth,
    release_atlas,
)
from dpmd_fast.errors import UserError
from dpmd_fast.lab.datasets import Floats, Shape, Simulation, distance_to_clean, simulate
from dpmd_fast.lab.experiments.figures import BLUE, GREEN, LIGHT_GREEN, ORANGE, PURPLE, RED, SLATE, Look
from dpmd_fast.lab.experiments.framework import Row, Value
from dpmd_fast.privacy.guarantee import LargeDeltaWarning

PAPER_DELTA, SMALL_DELTA = 0.1, 1e-6
DESCENT_QUERIES = 200  # for gradient descent, which takes many steps


class Geometry(NamedTuple):
    """Bandwidth h and intrinsic dimension d."""

    bandwidth: float
    dim: int


class Moved(NamedTuple):
    """Queries after a method, its guarantee, and its settings."""

    points: Floats
    share: float  # of the queries that were moved
    holds: str
    geometry: Geometry = Geometry(math.nan, 0)
    noise: float = 0.0  # standard deviation on a coordinate of a mean, where the method adds it there
    constant: float | None = None  # C


@dataclass(frozen=True)
class Case:
    """A shape with simulated data around it, and the paper's bandwidth for it."""

    shape: Shape
    sample: Simulation
    bandwidth: float

    @classmethod
    def draw(cls, shape: Shape, n: int, m: int, sigma: float, noise: str, seed: int) -> Case:
        rng = np.random.default_rng([n, round(1000 * sigma), shape.ambient, seed])
        return cls(shape, simulate(shape, n, m, sigma, rng, noise), paper_bandwidth(n, shape.dim, sigma))


Method = Callable[[Case], Moved]


def raw(case: Case) -> Moved:
    """Leave the queries as they are."""
    return Moved(case.sample.queries, 0.0, "nothing released")


def descent(case: Case) -> Moved:
    """Run gradient descent on the first queries only."""
    found = gradient_descent(
        case.sample.references, case.sample.queries[:DESCENT_QUERIES], case.bandwidth, case.shape.dim
    )
    return Moved(found.points, float(np.mean(found.status == "ok")), "not private")


def nonprivate(case: Case) -> Moved:
    """Run Nonprivate-MD."""
    model = ManifoldDenoiser(case.bandwidth, case.shape.dim).fit(case.sample.references)
    points = model.transform(case.sample.queries)
    return Moved(points, float(np.mean(model.status_ == "ok")), "not private")


def paper(epsilon: float, delta: float, constant: float = 1.0) -> Method:
    """Return Algorithm 2 with the paper's conversion."""

    def run(case: Case) -> Moved:
        return _denoised(
            case, Budget(epsilon, delta, "paper"), mechanism="projector", sensitivity_constant=constant
        )

    return run


def direct(epsilon: float, delta: float) -> Method:
    """Return the certified release at the queries, with the exact conversion."""

    def run(case: Case) -> Moved:
        return _denoised(case, Budget(epsilon, delta))

    return run


def atlas(epsilon: float, delta: float) -> Method:
    """Return the atlas with the queries as its anchors, with the exact conversion."""

    def run(case: Case) -> Moved:
        sample = case.sample
        return move_with_atlas(
            sample.references, sample.queries, Budget(epsilon, delta), "auto", case.shape.dim
        )

    return run


def move_with_atlas(
    references: Floats, queries: Floats, budget: Budget, bandwidth: float | Literal["auto"], dim: int
) -> Moved:
    """Release an atlas with the queries as its anchors, and move the queries with it.

    The risk is accepted, because experiments measure what an atlas does, also where it was predicted to do
    harm. Queries stay where they are if no chart stands out from the noise.
    """
    try:
        released = release_atlas(
            references, queries, bandwidth=bandwidth, dim=dim, budget=budget, accept_risk=True
        )
    except UserError as error:
        if "from the noise" not in str(error):
            raise
        h = bandwidth if isinstance(bandwidth, float) else math.nan
        return Moved(queries, 0.0, "unconditional", Geometry(h, dim))
    points, status = released.transform(queries, return_status=True)
    geometry = Geometry(released.bandwidth, released.dim)
    return Moved(
        np.asarray(points, np.float64), float(np.mean(status == "ok")), released.guarantee.holds, geometry
    )


def _denoised(case: Case, budget: Budget, **options: Any) -> Moved:
    model = DPManifoldDenoiser(case.bandwidth, case.shape.dim, budget, accept_risk=True, **options)
    points = model.fit(case.sample.references).transform(case.sample.queries)
    return Moved(points, float(np.mean(model.status_ == "ok")), model.guarantee_.holds)


def needed_constant(case: Case, queries: int) -> float:
    """Return the smallest C that the search finds for this data set, rounded up as a user would."""
    found = empirical_sensitivity(
        case.sample.references, case.sample.queries[:queries], case.bandwidth, case.shape.dim
    )
    return float(math.ceil(found.constant))


@contextmanager
def expected_warnings() -> Iterator[None]:
    """Ignore what the tables report anyway: delta = 0.1, the paper's, and how many queries were moved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDeltaWarning)
        warnings.filterwarnings("ignore", message="no query has enough of the reference")
        yield


def compare(
    case: Case, methods: Iterable[tuple[str, Method]]
) -> tuple[list[dict[str, Value]], dict[str, Floats]]:
    """Return a row of errors for each method, and the moved queries by method."""
    rows: list[dict[str, Value]] = []
    points: dict[str, Floats] = {}
    for name, method in methods:
        with expected_warnings():
            wall, processor = time.perf_counter(), time.process_time()
            moved = method(case)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
        to_manifold = case.shape.distance(moved.points)
        rows.append(
            {
                "method": name,
                "holds": moved.holds,
                "queries": len(moved.points),
                "bandwidth": case.bandwidth,
                "to_manifold": float(to_manifold.mean()),
                "to_manifold_p99": float(np.quantile(to_manifold, 0.99)),
                "to_clean": float(
                    distance_to_clean(moved.points, case.sample.clean[: len(moved.points)]).mean()
                ),
                "moved": moved.share,
                "seconds": wall,
                "processor_seconds": processor,
            }
        )
        points[name] = moved.points
    return rows, points


def guarantees(rows: Iterable[Row]) -> str:
    """Return one line that states the guarantee of each method."""
    holds = {str(row["method"]): str(row["holds"]) for row in rows}
    return "Guarantees: " + "; ".join(f"{method}: {word}" for method, word in holds.items()) + ".\n"


#: The methods of the figures over n and sigma, epsilon = 1.
GRID: Mapping[str, Method] = {
    "raw": raw,
    "GD": descent,
    "Nonprivate-MD": nonprivate,
    "paper's route, C = 1, delta = 0.1": paper(1.0, PAPER_DELTA),
    "certified direct, delta = 0.1": direct(1.0, PAPER_DELTA),
    "certified direct, delta = 1e-6": direct(1.0, SMALL_DELTA),
    "atlas, delta = 0.1": atlas(1.0, PAPER_DELTA),
    "atlas, delta = 1e-6": atlas(1.0, SMALL_DELTA),
}

LOOKS: Mapping[str, Look] = {
    "raw": Look(SLATE, ":", ""),
    "GD": Look(ORANGE, "-", "v"),
    "Nonprivate-MD": Look(BLUE, "-", "s"),
    "paper's route, C = 1, delta = 0.1": Look(RED, "--", "x"),
    "certified direct, delta = 0.1": Look(PURPLE, ":", "^"),
    "certified direct, delta = 1e-6": Look(PURPLE, "-", "^"),
    "atlas, delta = 0.1": Look(LIGHT_GREEN, ":", "o"),
    "atlas, delta = 1e-6": Look(GREEN, "-", "o"),
}
