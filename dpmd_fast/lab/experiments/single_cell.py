"""Clustering of single cells before and after denoising (Tables 1 and S4), and what a guarantee costs there.

The protocol is that of the appendix: library size, logarithm, scaling; min(500, ceil(2 sqrt n)) cells are
queries, at most 5,000 of the others references; h and d by local geometry (see `real_data`); each query of
the paper's route gets (epsilon, delta)/queries; k-means with as many clusters as the queries have types.
The limit on the number of queries, the clustering and the number of steps (1) are ours.

Noise on D x D matrices cannot be drawn for 20,000 genes. So the 2,000 genes of largest variance, their means
and standard deviations, and 10 principal components are computed from the queries, which are public, and all
methods work in these 10 coordinates. PCA of all cells, which is not private, is shown for comparison. Library
sizes are normalised to the median of the queries: no budget pays for the median of all cells.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import Budget
from dpmd_fast.errors import UserValueError
from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments import single_cell_report
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, Value
from dpmd_fast.lab.experiments.methods import PAPER_DELTA, SMALL_DELTA, Moved
from dpmd_fast.lab.experiments.real_data import PaperRoute, Run, atlas, data_file, data_folder, direct
from dpmd_fast.metrics import clustering_scores, neighborhood_purity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = ("goolam", "yan", "pollen", "zeisel")
NOT_CELLS = ("coil20",)
KINDS = {"pollen": "log10", "wang_219genes": "log", "wang_scgpt": "embedding", "pbmc68k_reduced": "log"}
MOST_QUERIES, MOST_REFERENCES = 500, 5_000
GENES, COMPONENTS = 2_000, 10
CLIP = 10.0
EPSILONS, QUICK_EPSILONS = (1.0, 10.0, 100.0), (1.0, 100.0)
QUICK_CELLS = 150


class Cells(NamedTuple):
    """A set of cells as the file has it, and the type of each cell."""

    values: Floats
    kind: str
    types: NDArray[np.int64]


def items(profile: Profile) -> list[Row]:
    return [{"set": path.stem, "seed": seed} for path in set_files(profile) for seed in range(profile.seeds)]


def measure(item: Row, profile: Profile) -> Tables:
    name, seed = str(item["set"]), int(item["seed"])  # type: ignore[arg-type]
    path = data_file(profile, f"{name}.npz")
    cells = read_cells(path)
    queries, references = split(len(cells.values), seed)
    types = cells.types[queries]
    values = logarithms(cells.values, cells.kind, queries)
    view = reduction(values[queries])
    Z, Y = view(values[queries]), view(values[references])
    about = {"cells": len(cells.values), "references": len(Y), "queries": len(Z), "types": len(set(types))}
    rows: list[dict[str, Value]] = []
    for run in _runs(Z, Y, _of_all(path)[queries], _of_all(path)[references], profile):
        moved, settings = run()
        rows.append({**about, **settings, **_scores(moved.points, types, seed)})
    return {"results": rows}


def _runs(Z: Floats, Y: Floats, Z_all: Floats, Y_all: Floats, profile: Profile) -> Iterator[Run]:
    route = PaperRoute.fit(Y, Z)

    yield Run("Original", None, None, lambda: Moved(Z, 0.0, "nothing released"))
    yield Run("Nonprivate-MD", None, None, route.nonprivate)
    yield Run("paper's route, C = 1", 1.0, PAPER_DELTA, lambda: route.private(1.0, PAPER_DELTA, "per-query"))
    yield Run(
        "paper's route, C found",
        1.0,
        PAPER_DELTA,
        lambda: route.private(1.0, PAPER_DELTA, "per-query", route.needed_constant()),
    )
    budgets = [(1.0, PAPER_DELTA)]
    budgets += [(epsilon, SMALL_DELTA) for epsilon in (QUICK_EPSILONS if profile.quick else EPSILONS)]
    for epsilon, delta in budgets:
        for name, method in (("certified direct", direct), ("atlas", atlas)):
            yield Run(name, epsilon, delta, functools.partial(method, Y, Z, Budget(epsilon, delta)))
    yield Run("Original, PCA of all cells", None, None, lambda: Moved(Z_all, 0.0, "not private"))
    yield Run(
        "Nonprivate-MD, PCA of all cells", None, None, lambda: PaperRoute.fit(Y_all, Z_all).nonprivate()
    )


def split(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the queries and those of the references."""
    order = np.random.default_rng(seed).permutation(n)
    m = min(MOST_QUERIES, math.ceil(2.0 * math.sqrt(n)))
    return np.sort(order[:m]), np.sort(order[m : m + MOST_REFERENCES])


def reduction(values: Floats) -> Callable[[Floats], Floats]:
    """Fit scaling and principal components to some cells; return the map for any cells."""
    deviations = values.std(axis=0)
    genes = np.sort(np.argsort(-deviations, kind="stable")[:GENES])
    genes = genes[deviations[genes] > 0.0]
    center, scale = values[:, genes].mean(axis=0), deviations[genes]

    def scaled(cells: Floats) -> Floats:
        return np.asarray(np.clip((cells[:, genes] - center) / scale, -CLIP, CLIP))

    own = scaled(values)
    middle = own.mean(axis=0)
    components = min(COMPONENTS, len(values) - 1, len(genes))
    if len(values) <= len(genes):
        axes = np.linalg.svd(own - middle, full_matrices=False)[2][:components].T
    else:
        axes = np.linalg.eigh(np.cov(own.T))[1][:, ::-1][:, :components]
    return lambda cells: np.ascontiguousarray((scaled(cells) - middle) @ axes)


def _scores(points: Floats, types: NDArray[np.int64], seed: int) -> dict[str, Value]:
    from sklearn.cluster import KMeans

    found = KMeans(len(set(types)), n_init=10, random_state=seed).fit_predict(points)
    scores = clustering_scores(types, found)
    purity = neighborhood_purity(points, types)
    return {"ari": scores.ari, "acc": scores.acc, "nmi": scores.nmi, "purity": purity}


def set_files(profile: Profile) -> list[Path]:
    """List the paper's sets first, then the others; in a quick run, only the small ones."""
    folder = data_folder(profile)
    found = [path for path in sorted(folder.glob("*.npz")) if path.stem not in NOT_CELLS]
    if not found:
        raise UserValueError(
            f"data = {str(folder)!r}: has no set of cells, NAME.npz with X and labels; "
            "docs/paper/real-data.md describes the files",
            argument="data",
        )
    found.sort(key=lambda path: (PAPERS.index(path.stem) if path.stem in PAPERS else len(PAPERS), path.stem))
    if profile.quick:
        found = [path for path in found if _count(path) <= QUICK_CELLS] or found[:1]
    return found


def _count(path: Path) -> int:
    return len(_arrays(path)[1])


def _arrays(path: Path, values: bool = False) -> tuple[Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["X"] if values else None, file["labels"]
    except (KeyError, ValueError, OSError):
        raise UserValueError(f"{path.name}: must be an .npz file with X (cells, genes) and labels") from None


@functools.lru_cache(maxsize=1)
def read_cells(path: Path) -> Cells:
    X, labels = _arrays(path, values=True)
    if X.ndim != 2 or labels.shape != (len(X),):
        raise UserValueError(f"{path.name}: X must have a row for each of the labels")
    return Cells(np.asarray(X, dtype=np.float64), _kind(path.stem, X), labels.astype(np.int64))


def _kind(name: str, X: Any) -> str:
    """Look up the sets that are not counts; others are counts if no value is negative."""
    return KINDS.get(name, "counts" if X.min() >= 0 else "log")


def logarithms(X: Floats, kind: str, public: NDArray[np.int64] | None = None) -> Floats:
    """Normalise counts to the median library size of the cells `public` (default: all) and take log(1 + x).

    Logarithms and embeddings stay as they are.
    """
    if kind in ("log", "embedding"):
        return np.ascontiguousarray(X)
    counts = 10.0**X - 1.0 if kind == "log10" else X
    sizes = counts.sum(axis=1, keepdims=True)
    sizes[sizes == 0.0] = 1.0
    middle = np.median(sizes if public is None else sizes[public])
    return np.ascontiguousarray(np.log1p(counts / sizes * middle))


@functools.lru_cache(maxsize=1)
def _of_all(path: Path) -> Floats:
    """Return all cells in the principal components of all cells, cached for all seeds."""
    cells = read_cells(path)
    values = logarithms(cells.values, cells.kind)
    return reduction(values)(values)


def table(tables: Tables, profile: Profile) -> str:
    return single_cell_report.table(tables["results"], profile, PAPERS)


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    return single_cell_report.figures(tables["results"], profile)


SINGLE_CELL = Experiment(
    "single-cell",
    items,
    measure,
    table,
    figures,
    seeds=(10, 2),
    needs_data=True,
)
