"""What the experiments on real data share: the rule for h and d, and the methods.

The paper chooses h and d by "local k-nearest-neighbor distances and principal component analysis" and says no
more. Here h is 1.5 times the median distance of a query to its 15th neighbour, and d the median number of
principal components that hold 80 % of the variance of these 15. Nonprivate-MD and the paper's route look for
the neighbours in the reference, as the paper does, and no budget pays for that; the certified routes look for
them among the public queries. Noise comes from the operating system: private results differ between runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import Budget, DPManifoldDenoiser, release_atlas
from dpmd_fast.errors import UserValueError
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.mechanisms.algorithm2 import denoise_with_projectors, plan_spend
from dpmd_fast.metrics import nearest_neighbors
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.guarantee import LargeDeltaWarning
from dpmd_fast.privacy.sensitivity import mean_bound
from dpmd_fast.reference.local_pca import FittedReference, denoise, fit_reference

Floats = NDArray[np.float64]

NEIGHBORS = 15
REACH = 1.5
VARIANCE = 0.8
PAPER_DELTA, SMALL_DELTA = 0.1, 1e-6
THETA = 0.5
_BETA = 2.0


class Geometry(NamedTuple):
    bandwidth: float
    dim: int


class Moved(NamedTuple):
    """Queries after a method, what it promises, and how it was set."""

    points: Floats
    share: float  # of the queries that were moved
    holds: str
    geometry: Geometry
    noise: float = 0.0  # deviation of the noise on a coordinate of a mean, where the method adds it there
    constant: float | None = None  # C


def local_geometry(queries: Floats, points: Floats | None = None) -> Geometry:
    """h and d from the neighbours of the queries among `points`, by default among the queries themselves."""
    own = np.arange(len(queries)) if points is None else None
    among = queries if points is None else points
    k = min(NEIGHBORS, len(among) - (points is None))
    distances, rows = nearest_neighbors(queries, among, k, own=own)
    near = among[rows]
    spectra = np.linalg.svd(near - near.mean(axis=1, keepdims=True), compute_uv=False) ** 2
    held = np.cumsum(spectra, axis=1) / np.maximum(spectra.sum(axis=1, keepdims=True), 1e-300)
    needed = 1 + (held < VARIANCE - 1e-12).sum(axis=1)
    dim = min(int(np.median(needed)), queries.shape[1] - 1, k - 1)
    return Geometry(REACH * float(np.median(distances[:, -1])), max(1, dim))


@dataclass(frozen=True, eq=False)
class PaperRoute:
    """Nonprivate-MD and Algorithm 2 around one set of local PCAs, which take most of the time."""

    references: Floats
    queries: Floats
    geometry: Geometry
    fitted: FittedReference

    @classmethod
    def fit(cls, references: Floats, queries: Floats) -> PaperRoute:
        geometry = local_geometry(queries, references)
        return cls(references, queries, geometry, fit_reference(references, *geometry, _BETA, None))

    def nonprivate(self) -> Moved:
        points, status = denoise(self.fitted, self.queries, 1)
        return Moved(points, float(np.mean(status == "ok")), "not private", self.geometry)

    def private(self, epsilon: float, delta: float, schedule: str | None, constant: float = 1.0) -> Moved:
        """Algorithm 2 with the paper's conversion."""
        spend = plan_spend(
            self.fitted,
            self.queries,
            Budget(epsilon, delta, "paper"),
            1,
            THETA,
            schedule,
            constant,
            seeded=False,
        )
        points, status = denoise_with_projectors(self.fitted, self.queries, spend, 1, open_source(None))
        return Moved(
            points,
            float(np.mean(status == "ok")),
            spend.guarantee.holds,
            self.geometry,
            float(spend.scales[:, 0, 1].max()),
            constant,
        )

    def change(self) -> float:
        """How far the mean at a query moves if one record is replaced by one out of its reach; the largest.

        In closed form: without the record of weight a at distance r from the mean, it moves by a r / (1 - a).
        Computed from the reference without noise, so it is not private itself.
        """
        h, d = self.geometry
        largest = 0.0
        for x in self.queries:
            squares = ((self.references - x) ** 2).sum(axis=1)
            near = np.flatnonzero(squares < h * h)
            if len(near) <= d + 1:  # with one less the query would not be moved at all
                continue
            weights = (1.0 - squares[near] / (h * h)) ** _BETA
            weights /= weights.sum()
            points = self.references[near]
            apart = np.sqrt(((points - weights @ points) ** 2).sum(axis=1))
            largest = max(largest, float((weights * apart / np.maximum(1.0 - weights, 1e-12)).max()))
        return largest

    def needed_constant(self) -> float:
        """The C at which the paper's bound covers that change; the true one is as large or larger."""
        h, d = self.geometry
        return max(1.0, self.change() / mean_bound(len(self.references), d, h, 1.0))


def direct(references: Floats, queries: Floats, budget: Budget) -> Moved:
    """The certified release around the queries, h and d from the queries alone."""
    geometry = local_geometry(queries)
    model = DPManifoldDenoiser(*geometry, budget).fit(references)
    points = model.transform(queries)
    return Moved(points, float(np.mean(model.status_ == "ok")), model.guarantee_.holds, geometry)


def atlas(references: Floats, queries: Floats, budget: Budget) -> Moved:
    """The atlas with the queries as its public points, h and d from the queries alone."""
    geometry = local_geometry(queries)
    try:
        made = release_atlas(
            references, queries, bandwidth=geometry.bandwidth, dim=geometry.dim, budget=budget
        )
    except RuntimeError as error:  # the budget is spent, the queries stay where they are
        if "no chart stands out" not in str(error):
            raise
        return Moved(queries, 0.0, "unconditional", geometry)
    points, status = made.move(queries)
    moved = float(np.mean(status == "ok"))
    return Moved(
        np.asarray(points, np.float64), moved, made.guarantee.holds, Geometry(made.bandwidth, made.dim)
    )


def quietly(run: Callable[[], Moved]) -> Moved:
    """Without the warnings that the tables speak of: delta = 0.1, and how many queries were moved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDeltaWarning)
        warnings.filterwarnings("ignore", message="no query has enough of the reference")
        return run()


def data_file(profile: Profile, name: str) -> Path:
    """A file of the data folder."""
    if profile.data is None:
        raise UserValueError("data = None: must be the folder of the data sets", argument="data")
    path = profile.data / name
    if not path.is_file():
        raise UserValueError(
            f"data = {str(profile.data)!r}: has no {name}; docs/experiments.md says what it holds",
            argument="data",
        )
    return path
