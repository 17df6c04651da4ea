"""The rule for h and d, and the methods, of the experiments on real data.

The paper chooses h and d by "local k-nearest-neighbor distances and principal component analysis" and says no
more. Here h is 1.5 times the median distance of a query to its 15th neighbour, and d the median number of
principal components that hold 80 % of the variance of these 15. Nonprivate-MD and the paper's route search
the reference for neighbours, as the paper does, and no budget pays for that; the certified routes search the
public queries. Noise comes from the operating system, so private results differ between runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpmd_fast import Budget, DPManifoldDenoiser
from dpmd_fast.errors import UserValueError
from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments.framework import Profile, Value
from dpmd_fast.lab.experiments.methods import Geometry, Moved, expected_warnings, move_with_atlas
from dpmd_fast.mechanisms.algorithm2 import denoise_with_projectors, plan_spend
from dpmd_fast.metrics import nearest_neighbors
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.sensitivity import mean_bound
from dpmd_fast.reference.local_pca import FittedReference, denoise, fit_reference

NEIGHBORS = 15
REACH = 1.5
VARIANCE = 0.8
THETA = 0.5
_BETA = 2.0


class Run(NamedTuple):
    """A method with its name and budget, ready to run."""

    method: str
    epsilon: float | None
    delta: float | None
    move: Callable[[], Moved]

    def __call__(self) -> tuple[Moved, dict[str, Value]]:
        """Return the moved queries, and the columns of the table that describe the method."""
        with expected_warnings():
            moved = self.move()
        return moved, {
            "method": self.method,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "holds": moved.holds,
            "moved": moved.share,
            "bandwidth": moved.geometry.bandwidth,
            "dim": moved.geometry.dim,
            "noise": moved.noise,
            "C": moved.constant,
        }


def local_geometry(queries: Floats, points: Floats | None = None) -> Geometry:
    """Choose h and d from the queries' neighbours among `points`, by default among the queries themselves."""
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
    """Nonprivate-MD and Algorithm 2 with one shared set of local PCAs, which take most of the time."""

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
        """Run Algorithm 2 with the paper's conversion."""
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
        """Return how far the mean at a query can move if one record is replaced by one out of reach.

        In closed form: removing a record of weight a at distance r from the mean moves it by a r / (1 - a).
        Computed from the reference without noise, so the number itself is not private.
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
        """Return the C at which the paper's bound covers that change; the true one is no smaller."""
        h, d = self.geometry
        return max(1.0, self.change() / mean_bound(len(self.references), d, h, 1.0))


def direct(references: Floats, queries: Floats, budget: Budget) -> Moved:
    """Run the certified release at the queries, with h and d from the queries alone."""
    geometry = local_geometry(queries)
    model = DPManifoldDenoiser(*geometry, budget, accept_risk=True).fit(references)
    points = model.transform(queries)
    return Moved(points, float(np.mean(model.status_ == "ok")), model.guarantee_.holds, geometry)


def atlas(references: Floats, queries: Floats, budget: Budget) -> Moved:
    """Move the queries with an atlas, with h and d from the queries alone."""
    return move_with_atlas(references, queries, budget, *local_geometry(queries))


def data_folder(profile: Profile) -> Path:
    """Return the folder of the data sets."""
    if profile.data is None:
        raise UserValueError("data = None: must be the folder of the data sets", argument="data")
    return profile.data


def data_file(profile: Profile, name: str) -> Path:
    """Return the path of a file in the data folder."""
    path = data_folder(profile) / name
    if not path.is_file():
        raise UserValueError(
            f"data = {str(profile.data)!r}: has no {name}; docs/paper/real-data.md describes the file",
            argument="data",
        )
    return path
