"""Measure the stages of whatever `dpmd_fast` is found first, by public names alone, for `before_after.py`.

    PYTHONPATH=TREE PYTHONSAFEPATH=1 python benchmarks/before_after_stages.py FOLDER [--quick]

prints one JSON object: seconds, or microseconds, by the names of the stages. Nothing else of this folder is
imported, so that any state of the code can be measured.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

import dpmd_fast as d

THREADS = 2
Row = tuple[str, float]


def least(call: Callable[[], Any], repeats: int = 3) -> float:
    """Return the seconds of the fastest call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def latencies(call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of a call, in microseconds."""
    times = np.empty(calls)
    for place in range(calls):
        start = time.perf_counter()
        call()
        times[place] = time.perf_counter() - start
    return tuple(1e6 * np.quantile(times, [0.5, 0.99]))  # type: ignore[return-value]


def _risk(door: Any) -> dict[str, Any]:
    """Return what makes a door release although it may not help, where it asks."""
    return {"accept_risk": True} if "accept_risk" in inspect.signature(door).parameters else {}


def paper(folder: Path) -> Iterator[Row]:
    """Local PCA of all records, and Algorithm 2."""
    for path in sorted(folder.glob("pca *.npz")):
        data = np.load(path)
        _, columns, dim = path.stem.split()
        plain = d.ManifoldDenoiser(float(data["radius"]), int(dim), n_threads=THREADS)
        yield f"local PCA, D = {columns}, d = {dim}, s", least(lambda plain=plain, Y=data["Y"]: plain.fit(Y))
        if (columns, dim) == ("20", "2"):
            yield "Algorithm 2, 1,000 queries, s", min(_algorithm_2(data, int(dim)) for _ in range(3))


def _algorithm_2(data: Any, dim: int) -> float:
    """Return the seconds of a transform; there is one for a fit."""
    private = d.DPManifoldDenoiser(
        float(data["radius"]),
        dim,
        d.Budget(1.0, 0.1),
        mechanism="projector",
        sensitivity_constant=1.0,
        n_threads=THREADS,
        seed=0,
        **_risk(d.DPManifoldDenoiser),
    ).fit(data["Y"])
    start = time.perf_counter()
    private.transform(data["Z"])
    return time.perf_counter() - start


def sums(folder: Path) -> Iterator[Row]:
    """Certified sums at 1,000 locations, with their noise."""
    for columns in (20, 60, 100):
        data = np.load(folder / f"sums {columns}.npz")
        radius = float(data["radius"])

        def release(data: Any = data, radius: float = radius) -> Any:
            return d.release_moments(
                data["Y"],
                data["Z"],
                bandwidth=radius,
                budget=d.Budget(1.0, 1e-6),
                seed=0,
                n_threads=THREADS,
                **_risk(d.release_moments),
            )

        yield f"certified release, D = {columns}, s", least(release)


def near_sphere(count: int, columns: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    points = rng.normal(size=(count, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return np.pad(points, ((0, 0), (0, columns - 3))) + spread * rng.normal(size=(count, columns))


def curved(count: int, rng: np.random.Generator, shape_seed: int) -> np.ndarray:
    """Return points of a surface of dimension 5 that fills 20 columns, every other of them skewed."""
    shape = np.random.default_rng(shape_seed)
    linear, bent = shape.normal(size=(2, 5, 20)) / np.sqrt(5)
    phases = shape.uniform(0.0, 6.0, 20)
    place = rng.normal(size=(count, 5))
    points = place @ linear + 0.3 * np.sin(place @ bent + phases) + 0.2 * rng.normal(size=(count, 20))
    points[:, ::2] = np.exp(points[:, ::2])
    return points


def transforms(quick: bool) -> Iterator[Row]:
    """Atlases: many rows, one row, with a preprocessor."""
    rng = np.random.default_rng(0)
    many = 2_000 if quick else 100_000
    budget = d.Budget(2.0, 1e-3)
    settings: dict[str, Any] = {"budget": budget, "seed": 0, "accept_risk": True}
    for columns in (3, 60):
        Y, Z = near_sphere(20_000, columns, 0.02, rng), near_sphere(500, columns, 0.05, rng)
        atlas = d.release_atlas(Y, Z, dim=2, **settings)
        X = near_sphere(many, columns, 0.05, rng)
        name = f"transform, {many:,} rows, D = {columns}, s"
        yield name, least(lambda atlas=atlas, X=X: atlas.transform(X, THREADS))
    Y, Z = near_sphere(20_000, 10, 0.02, rng), near_sphere(500, 10, 0.05, rng)
    atlas, one = d.release_atlas(Y, Z, dim=2, **settings), Z[:1]
    pca = PCA(2).fit(Y)
    calls = 200 if quick else 5_000
    for call in (lambda: atlas.transform(one), lambda: pca.transform(one)):
        latencies(call, 50)
    ours, theirs = (
        latencies(lambda: atlas.transform(one), calls),
        latencies(lambda: pca.transform(one), calls),
    )
    alone = latencies(lambda: atlas.transform(one, 1), calls)
    yield "one row, median, us", ours[0]
    yield "one row, 99th percentile, us", ours[1]
    yield "one row, times `PCA.transform`", ours[0] / theirs[0]
    yield "one row, 99th percentile, times one thread's", ours[1] / alone[1]
    settings["budget"] = d.Budget(1.0, 1e-6)
    for shape_seed in (5, 0):  # charts in a subspace of 8 columns, and in all
        anchors = curved(3_000, rng, shape_seed)
        units = d.Preprocessor.from_public(anchors)
        bent = d.release_atlas(curved(200_000, rng, shape_seed), anchors, dim=5, preprocess=units, **settings)
        rows = curved(many // 5, rng, shape_seed)
        inside = 20 if bent.subspace is None else bent.subspace.basis.shape[1]
        case = f"D = 20, d = 5, preprocessed, charts in {inside} columns"
        name = f"transform, {len(rows):,} rows, {case}, one thread, s"
        yield name, least(lambda bent=bent, rows=rows: bent.transform(rows, 1))


def mixtures(quick: bool) -> Iterator[Row]:
    """A release of a mixture of 12 components, and its transform."""
    rng = np.random.default_rng(1)
    n, many = (2_000, 2_000) if quick else (47_000, 100_000)
    loads, centers = rng.normal(size=(12, 4, 20)), 2.0 * rng.normal(size=(12, 20))

    def sample(count: int) -> np.ndarray:
        group = rng.integers(12, size=count)
        hidden = np.einsum("nf,nfc->nc", rng.normal(size=(count, 4)), loads[group])
        points: np.ndarray = centers[group] + hidden + 0.3 * rng.normal(size=(count, 20))
        return points

    Y, X = sample(n), sample(many)
    settings: dict[str, Any] = {"budget": d.Budget(2.0, 1e-6), "seed": 0, "accept_risk": True}

    def release() -> Any:
        return d.release_mixture(Y, components=12, rounds=6, n_threads=THREADS, **settings)

    yield f"mixture of {n:,} x 20, 12 components, 6 rounds, s", least(release)
    mixture = release()
    yield f"its transform, {many:,} rows, s", least(lambda: mixture.transform(X, 0.5, THREADS))


def main(folder: str, *flags: str) -> None:
    warnings.simplefilter("ignore")
    quick = "--quick" in flags
    places = Path(folder)
    found = dict([*paper(places), *sums(places), *transforms(quick), *mixtures(quick)])
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
