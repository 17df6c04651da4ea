"""Real data with noise of known size: blood markers and single cells whose clean values are kept.

Blood markers are NHANES, 20 columns, as logarithms in median absolute deviations (MAD) of the queries, as in
`biomarkers`. Single cells are the first 10 principal components of public queries, as in `single_cell`. The
values of the queries are taken as the truth; normal noise of a known deviation is added to them. Its size is
in MADs for blood markers; for cells it is relative to the deviation of the smallest component, and the same
in all of them. Queries are at most a quarter of a set; the first of them are the smaller groups of queries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments import single_cell
from dpmd_fast.lab.experiments.biomarkers import FILE, MARKERS, load
from dpmd_fast.lab.experiments.cox import fit_cox
from dpmd_fast.lab.experiments.framework import Profile
from dpmd_fast.lab.experiments.mixture_methods import missing_values
from dpmd_fast.lab.experiments.real_data import data_file, data_folder
from dpmd_fast.metrics import clustering_scores, concordance_index
from dpmd_fast.models.preprocessor import Preprocessor, units_of

NHANES = "nhanes"
LEVELS = {True: (0.25, 0.5, 1.0), False: (0.5, 1.0, 2.0)}  # of noise, for blood markers and for cells
SIZES, QUICK_SIZES = (30, 100, 1_000), (30, 100)  # numbers of queries
QUICK_PEOPLE = 6_000
FEWEST_FOR_SCORES = 100  # queries, to rank risks or to find clusters


@dataclass(frozen=True, eq=False)
class Truth:
    """Clean queries and references in the same units, and what the scores need."""

    name: str
    clean: Floats
    references: Floats
    smallest: float  # what levels of noise are relative to
    score: Callable[[Floats], float]  # C-index or ARI of the first queries

    def sizes(self, profile: Profile) -> list[int]:
        """Return the numbers of queries: those wanted, or as many as there are."""
        wanted = QUICK_SIZES if profile.quick else SIZES
        return sorted({min(size, len(self.clean)) for size in wanted})


@dataclass(frozen=True, eq=False)
class Queries:
    """Noisy queries and their clean values."""

    clean: Floats
    noisy: Floats  # NaN where missing
    deviation: float

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.noisy)

    @functools.cached_property
    def scale(self) -> Floats:
        """The unit of each column: the median absolute deviation of the noisy queries, as in `plan`."""
        return np.array(units_of(self.noisy, None, "queries").scale)

    @property
    def noise(self) -> Floats:
        """The deviation of the noise in these units."""
        return self.deviation / self.scale

    @functools.cached_property
    def raw(self) -> Floats:
        """The queries with the columns' medians in the place of missing values."""
        return np.where(self.missing, np.nanmedian(self.noisy, axis=0), self.noisy)

    def squares(self, found: Floats, where: NDArray[np.bool_] | None = None) -> float:
        """Return the mean squared error of a value in units of the columns."""
        squares = ((found - self.clean) / self.scale) ** 2
        return float(squares.mean() if where is None else squares[where].mean())


def names_of_sets(profile: Profile) -> list[str]:
    """Return blood markers and the sets of cells in the folder; in a quick run one small set."""
    folder = data_folder(profile)
    cells = [path.stem for path in sorted(folder.glob("*.npz")) if path.stem not in single_cell.NOT_CELLS]
    if profile.quick:
        cells = [path.stem for path in single_cell.set_files(profile)][:1] if cells else []
    data_file(profile, FILE)
    return [NHANES, *cells]


def levels(name: str) -> tuple[float, ...]:
    """Return the levels of noise of a set."""
    return LEVELS[name == NHANES]


@functools.lru_cache(maxsize=1)
def load_truth(profile: Profile, name: str, seed: int) -> Truth:
    """Split a set into queries and references."""
    if name == NHANES:
        return _people(data_file(profile, FILE), profile, seed)
    return _cells(data_file(profile, f"{name}.npz"), profile, seed)


def add_noise(truth: Truth, level: float, size: int, missing: bool, seed: int) -> Queries:
    """Return the first `size` queries with noise, and without 20 % of their values if `missing`.

    The same noise at every size.
    """
    deviation = level * truth.smallest
    noisy = truth.clean + deviation * np.random.default_rng([9, seed]).normal(size=truth.clean.shape)
    if missing:
        noisy = np.where(missing_values(noisy.shape, seed), np.nan, noisy)
    return Queries(truth.clean[:size], noisy[:size], deviation)


def _people(path: Path, profile: Profile, seed: int) -> Truth:
    people = load(path)
    order = np.random.default_rng([13, seed]).permutation(len(people.months))
    if profile.quick:
        order = order[:QUICK_PEOPLE]
    queries, references = _split(order, profile)
    preprocess = Preprocessor.from_public(people.markers[queries], column_names=MARKERS)
    Z, Y = (preprocess.forward(people.markers[rows]).astype(np.float64) for rows in (queries, references))
    dead = people.cause > 0
    cox = fit_cox(Y, people.months[references], dead[references])

    def concordance(points: Floats) -> float:
        own = queries[: len(points)]
        if len(points) < FEWEST_FOR_SCORES or not dead[own].any():
            return float("nan")
        return concordance_index(people.months[own], dead[own], cox.risk(points))

    return Truth(NHANES, Z, Y, 1.0, concordance)


def _cells(path: Path, profile: Profile, seed: int) -> Truth:
    from sklearn.cluster import KMeans

    cells = single_cell.read_cells(path)
    order = np.random.default_rng([13, seed]).permutation(len(cells.values))
    queries, references = _split(order, profile)
    values = single_cell.logarithms(cells.values, cells.kind, queries)
    view = single_cell.reduction(values[queries])
    Z, Y = view(values[queries]), view(values[references])

    def agreement(points: Floats) -> float:
        types = cells.types[queries[: len(points)]]
        if len(points) < FEWEST_FOR_SCORES:
            return float("nan")
        found = KMeans(len(set(types.tolist())), n_init=10, random_state=seed).fit_predict(points)
        return float(clustering_scores(types, found).ari)

    return Truth(path.stem, Z, Y, float(Z.std(axis=0).min()), agreement)


def _split(order: NDArray[np.int64], profile: Profile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    m = min((QUICK_SIZES if profile.quick else SIZES)[-1], len(order) // 4)
    return order[:m], order[m:]
