"""Digests of every seeded route, to show that a change of the code has not changed a bit of the results.

    python tests/golden.py record before.json     # at the commit before the change
    python tests/golden.py compare before.json    # after it
    python tests/golden.py show moments plans     # digests of some parts, as JSON

`test_targets.py` compares them between compile targets and libraries. None are kept in the repository: they
depend on the versions of NumPy, for its random numbers, and of pyarrow, for the bytes of files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dpmd_fast import (
    Atlas,
    Budget,
    ManifoldDenoiser,
    Mixture,
    Preprocessor,
    dp_projector,
    empirical_sensitivity,
    gradient_descent,
    plan,
    private_preprocessor,
)
from dpmd_fast import DPManifoldDenoiser as CheckedDenoiser
from dpmd_fast import release_atlas as checked_atlas
from dpmd_fast import release_mixture as checked_mixture
from dpmd_fast import release_moments as checked_moments

BUDGET = Budget(2.0, 1e-4)
SEED = 7
# digests are of what is released, whether it helps or not
release_atlas = partial(checked_atlas, accept_risk=True)
release_mixture = partial(checked_mixture, accept_risk=True)
release_moments = partial(checked_moments, accept_risk=True)
DPManifoldDenoiser = partial(CheckedDenoiser, accept_risk=True)


def digest(*values: Any) -> str:
    """SHA-256 of arrays, numbers, texts and bytes, with their types and shapes."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, bytes):
            total.update(value)
            continue
        array = np.ascontiguousarray(value)
        total.update(f"{array.dtype.str} {array.shape} ".encode())
        total.update(array.astype("U").tobytes() if array.dtype.kind in "OU" else array.tobytes())
    return total.hexdigest()[:16]


def settled(points: np.ndarray) -> np.ndarray:
    """Points without their last bits, in which sines, exponentials and products of libraries differ."""
    return np.rint(points * 2.0**30) * 2.0**-30


def circle(n: int, columns: int, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    points = rng.normal(0.0, noise, (n, columns))
    points[:, 0] += np.cos(angles)
    points[:, 1] += np.sin(angles)
    return settled(points)


def sphere(n: int, columns: int, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    out = rng.normal(0.0, noise, (n, columns))
    out[:, :3] += points
    return settled(out)


def positive(n: int, seed: int) -> np.ndarray:
    """Positive columns in unlike units, near a curve in their logarithms."""
    return settled(np.exp(circle(n, 3, 0.05, seed)) * np.array([1.0, 50.0, 0.02]))


def of_atlas(atlas: Atlas) -> list[Any]:
    values: list[Any] = [atlas.dim, atlas.bandwidth, list(atlas.signal_to_noise)]
    values += [[mu2 for _, mu2 in atlas.spends], [what for what, _ in atlas.spends]]
    for layer in atlas.layers:
        values += [layer.centers, layer.tangents, layer.masses, layer.bandwidth, layer.passes, layer.strength]
        values += [part for part in (layer.offsets, layer.slopes) if part is not None]
    if atlas.subspace is not None:
        values += [atlas.subspace.origin, atlas.subspace.basis]
    return values


def of_mixture(mixture: Mixture) -> list[Any]:
    values: list[Any] = [mixture.weights, mixture.means, mixture.covariances, list(mixture.signal_to_noise)]
    return [*values, [mu2 for _, mu2 in mixture.spends], [what for what, _ in mixture.spends]]


def of_file(model: Atlas | Mixture) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.dpmd")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def moments() -> dict[str, str]:
    out = {}
    for columns in (2, 3, 12, 60):
        Y, Z = circle(3000, columns, 0.05, 1), circle(40, columns, 0.1, 2)
        for adjacency in ("replace-one", "add-remove"):
            made = release_moments(Y, Z, bandwidth=0.9, budget=BUDGET, adjacency=adjacency, seed=SEED)
            out[f"moments {columns} {adjacency}"] = digest(made.values, made.tau, made.noise_scale, made.mass)
        cleaned = made.cleaned(1)
        out[f"moments {columns} read-out"] = digest(made.mean, made.covariance, made.tangents(1))
        out[f"moments {columns} cleaned"] = digest(cleaned.values, cleaned.mean, cleaned.tangents(1))
    Y[::7, 1] = np.nan
    made = release_moments(
        Y, Z, bandwidth=0.7, budget=BUDGET, beta=3.0, tau=0.05, on_invalid="drop", seed=SEED, batch_rows=77
    )
    out["moments of invalid records"] = digest(made.values)
    return out


def atlases() -> dict[str, Atlas]:
    large = Budget(20.0, 1e-4)
    Z2, Z3, Z12 = circle(400, 2, 0.1, 4), sphere(300, 3, 0.1, 4), sphere(300, 12, 0.1, 4)
    scales = Preprocessor.from_public(positive(300, 6))
    return {
        "atlas auto, D = 2": release_atlas(circle(20000, 2, 0.05, 3), Z2, dim=1, budget=large, seed=SEED),
        "atlas auto in everything, D = 3": release_atlas(
            sphere(30000, 3, 0.05, 3), Z3, dim="auto", budget=large, seed=SEED
        ),
        "atlas, bandwidth given, D = 3": release_atlas(
            sphere(5000, 3, 0.05, 3), Z3, dim=2, bandwidth=0.8, rounds=3, budget=large, seed=SEED
        ),
        "atlas auto, D = 12": release_atlas(
            sphere(20000, 12, 0.05, 3),
            Z12,
            dim=2,
            budget=large,
            adjacency="add-remove",
            n_public=20000,
            seed=SEED,
        ),
        "atlas, bandwidth given, D = 12": release_atlas(
            sphere(20000, 12, 0.05, 3), Z12, dim=2, bandwidth=0.9, rounds=2, budget=large, seed=SEED
        ),
        "atlas with a preprocessor": release_atlas(
            positive(20000, 5), positive(300, 6), dim=1, budget=large, preprocess=scales, seed=SEED
        ),
    }


def transforms(name: str, atlas: Atlas) -> dict[str, str]:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    D = atlas.n_columns
    Z = positive(3000, 9) if atlas.preprocess is not None else sphere(3000, max(D, 3), 0.3, 9)[:, :D]
    names = [f"c{k}" for k in range(D)]
    frame = pd.DataFrame(Z, columns=names)
    frame["c0"] = frame["c0"].astype(np.float32)
    table = pa.Table.from_pandas(frame)
    return {
        f"{name}: array": digest(atlas.transform(Z)),
        f"{name}: one row, one thread": digest(atlas.transform(Z[5:6], 1)),
        f"{name}: float32": digest(atlas.transform(Z.astype(np.float32))),
        f"{name}: pandas": digest(*(column.to_numpy() for _, column in atlas.transform(frame).items())),
        f"{name}: arrow": digest(*(column.to_numpy() for column in atlas.transform(table).columns)),
        f"{name}: polars": digest(
            *(s.to_numpy() for s in atlas.transform(pl.from_pandas(frame)).iter_columns())
        ),
    }


def clusters(n: int, columns: int, missing: float, seed: int) -> np.ndarray:
    """Three clusters of correlated columns, some of their values missing."""
    rng = np.random.default_rng(seed)
    loadings, means = np.random.default_rng(0).normal(size=(2, columns, 3))
    points = means.T[rng.integers(0, 3, n)] * 1.5 + rng.normal(size=(n, 3)) @ loadings.T
    points += 0.3 * rng.normal(size=points.shape)
    points[rng.random(points.shape) < missing] = np.nan
    return settled(points)


def mixtures() -> dict[str, str]:
    units = settled(np.exp(clusters(500, 5, 0.0, 2)))
    made = {
        "mixture, D = 4": release_mixture(clusters(20000, 4, 0.0, 1), budget=BUDGET, seed=SEED),
        "mixture of incomplete records, D = 20": release_mixture(
            clusters(8000, 20, 0.05, 1), budget=BUDGET, components=3, rounds=2, seed=SEED
        ),
        "mixture of one component": release_mixture(
            clusters(5000, 3, 0.1, 1),
            budget=BUDGET,
            components=1,
            adjacency="add-remove",
            n_public=5000,
            on_missing="drop",
            seed=SEED,
        ),
        "mixture with a preprocessor": release_mixture(
            settled(np.exp(clusters(8000, 5, 0.05, 1))),
            budget=BUDGET,
            preprocess=Preprocessor.from_public(units),
            components=2,
            seed=SEED,
        ),
    }
    out = {}
    for name, mixture in made.items():
        X = clusters(700, mixture.n_columns, 0.1, 3)
        X = X if mixture.preprocess is None else settled(np.exp(X))
        out[name] = digest(*of_mixture(mixture))
        out[f"{name}: file"] = digest(of_file(mixture))
        out[f"{name}: transform"] = digest(*mixture.transform(X, 0.5, return_status=True))
        out[f"{name}: one row, one thread"] = digest(mixture.transform(X[5:6], 0.5, 1))
        out[f"{name}: posterior, float32"] = digest(*mixture.posterior(X.astype(np.float32), 0.2))
        out[f"{name}: densities"] = digest(mixture.score_samples(X, 0.3), mixture.sample(50, seed=SEED))
    foreseen = plan(clusters(300, 6, 0.1, 4), 20000, budget=BUDGET, noise=0.5)
    assert foreseen.mixture is not None
    out["plan of a mixture"] = digest(
        foreseen.verdict,
        foreseen.advice,
        foreseen.raw_error,
        foreseen.predicted_error,
        foreseen.public_only_error,
        foreseen.components,
        foreseen.rounds,
        foreseen.signal_to_noise,
        list(foreseen.mixture.by_column),
    )
    return out


def denoisers() -> dict[str, str]:
    out = {}
    for columns, dim in ((3, 2), (12, 2)):
        Y, Z = sphere(3000, columns, 0.03, 1), sphere(50, columns, 0.2, 2)
        for steps in (1, 2):
            for mechanism in ("moments", "projector"):
                made = DPManifoldDenoiser(0.8, dim, BUDGET, mechanism=mechanism, steps=steps, seed=SEED).fit(
                    Y
                )
                moved = made.transform(Z)
                out[f"{mechanism} {columns} {steps}"] = digest(moved, made.status_)
        made = DPManifoldDenoiser(
            0.8, dim, BUDGET, mechanism="projector", schedule="per-query", sensitivity_constant=3.0, seed=SEED
        )
        moved = made.fit(Y).transform(Z)
        out[f"projector {columns} per query"] = digest(moved, made.noise_scales_)
        for calibration, budget in (("classic", Budget(0.9, 1e-4)), ("budget", BUDGET)):
            made = dp_projector(Y, Z[0], 0.8, dim, budget, calibration, seed=SEED)
            out[f"Algorithm 1 {columns} {calibration}"] = digest(made.projector, made.basis, made.noise_scale)
        plain = ManifoldDenoiser(0.8, dim, steps=2).fit(Y)
        out[f"Nonprivate-MD {columns}"] = digest(plain.transform(Z), plain.tangents_, plain.neighbor_counts_)
        ended = gradient_descent(Y, Z, 0.8, dim)
        out[f"gradient descent {columns}"] = digest(ended.points, ended.iterations, ended.residuals)
    found = empirical_sensitivity(sphere(800, 3, 0.03, 1), Z[:2, :3], 0.8, 2, candidates=6)
    out["empirical sensitivity"] = digest(found.mean_change, found.projector_change, found.tangent_change)
    return out


def preprocessors() -> dict[str, str]:
    out = {}
    for adjacency in ("replace-one", "add-remove"):
        made = private_preprocessor(
            positive(4000, 5),
            bounds=[(0.01, 100.0), (0.1, 5000.0), (1e-4, 1.0)],
            budget=BUDGET,
            adjacency=adjacency,
            seed=SEED,
        )
        out[f"preprocessor {adjacency}"] = digest(made.center, made.scale, made.log)
    scales = Preprocessor.from_public(positive(300, 6))
    out["preprocessor, public"] = digest(
        scales.center, scales.scale, scales.log, scales.forward(positive(20, 7))
    )
    return out


def plans() -> dict[str, str]:
    out = {}
    for columns in (2, 12):
        made = plan(circle(300, columns, 0.1, 4), 20000, dim=1, budget=BUDGET)
        out[f"plan {columns}"] = digest(
            made.bandwidth,
            made.rounds,
            made.anchors,
            made.signal_to_noise,
            made.noise_error,
            made.mu2,
            made.verdict,
        )
    return out


def dask_sources() -> dict[str, str]:
    import dask
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    Y, Z = circle(3000, 3, 0.05, 1), circle(40, 3, 0.1, 2)
    array = da.from_array(Y, chunks=(500, 2))
    frame = dd.from_pandas(pd.DataFrame(Y, columns=["a", "b", "c"]), npartitions=4)
    with dask.config.set(scheduler="synchronous"):
        made = [release_moments(R, Z, bandwidth=0.9, budget=BUDGET, seed=SEED) for R in (array, frame)]
        atlas = release_atlas(array, Z, dim=1, bandwidth=0.9, budget=Budget(50.0, 1e-4), seed=SEED)
        moved = atlas.transform(da.from_array(Z, chunks=(15, 3))).compute()
    return {
        "moments of a Dask array": digest(made[0].values),
        "moments of a Dask frame": digest(made[1].values),
        "atlas of a Dask array": digest(*of_atlas(atlas)),
        "Dask array transformed": digest(moved),
    }


def parquet() -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Y, Z = circle(3000, 3, 0.05, 1), circle(40, 3, 0.1, 2)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{number}.parquet") for number in range(2)]
        for path, part in zip(paths, (Y[:1000], Y[1000:]), strict=True):
            pq.write_table(
                pa.table({name: part[:, k] for k, name in enumerate("abc")}), path, row_group_size=300
            )
        made = release_moments(paths, Z, bandwidth=0.9, budget=BUDGET, seed=SEED, batch_rows=123)
    return {"moments of Parquet files": digest(made.values)}


def every_atlas() -> dict[str, str]:
    out = {}
    for name, atlas in atlases().items():
        out[name] = digest(*of_atlas(atlas))
        out[f"{name}: file"] = digest(of_file(atlas))
        out |= transforms(name, atlas)
    return out


def small() -> dict[str, str]:
    """A few digests that need every kind of computation, for the fast tests."""
    Y, Z, Q = sphere(4000, 9, 0.05, 3), sphere(200, 9, 0.1, 4), sphere(300, 9, 0.3, 9)
    large = Budget(20.0, 1e-4)
    made = release_moments(Y, Z[:30], bandwidth=0.9, budget=BUDGET, seed=SEED)
    atlas = release_atlas(Y, Z, dim=2, bandwidth=0.9, rounds=2, budget=large, seed=SEED)
    assert atlas.subspace is not None
    scales = Preprocessor.from_public(settled(np.exp(clusters(300, 5, 0.0, 2))))
    mixture = release_mixture(
        settled(np.exp(clusters(3000, 5, 0.05, 1))), budget=large, preprocess=scales, components=4, seed=SEED
    )
    X = settled(np.exp(clusters(200, 5, 0.1, 3)))
    bounds = [(0.01, 100.0), (0.1, 5000.0), (1e-4, 1.0)]
    bought = private_preprocessor(positive(2000, 5), bounds=bounds, budget=BUDGET, seed=SEED)
    denoiser = DPManifoldDenoiser(0.9, 2, BUDGET, mechanism="moments", steps=2, seed=SEED).fit(Y)
    return {
        "moments": digest(made.values, made.cleaned(2).values, made.cleaned(2).tangents(2)),
        "atlas": digest(*of_atlas(atlas)),
        "atlas: file": digest(of_file(atlas)),
        "atlas: transform": digest(atlas.transform(Q)),
        "mixture": digest(*of_mixture(mixture)),
        "mixture: transform": digest(mixture.transform(X, 0.5), mixture.sample(20, seed=SEED)),
        "preprocessor": digest(bought.center, bought.scale, bought.forward(positive(20, 7))),
        "denoiser": digest(denoiser.transform(Z[:50])),
    }


PARTS: dict[str, Callable[[], dict[str, str]]] = {
    "moments": moments,
    "denoisers": denoisers,
    "preprocessors": preprocessors,
    "plans": plans,
    "mixtures": mixtures,
    "dask": dask_sources,
    "parquet": parquet,
    "atlases": every_atlas,
    "small": small,
}


def recorded(parts: Sequence[str] = ()) -> dict[str, str]:
    """The digest of every route of some parts, by name; of all parts by default."""
    out: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts or PARTS:
            out |= PARTS[part]()
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare", "show"))
    parser.add_argument("names", nargs="+", help="a file, or parts to show")
    asked = parser.parse_args()
    if asked.action == "show":
        print(json.dumps(recorded(asked.names)))
        return 0
    path = asked.names[0]
    now = recorded()
    if asked.action == "record":
        with open(path, "w", encoding="utf-8") as file:
            json.dump(now, file, indent=1, sort_keys=True)
        print(f"{len(now)} digests recorded")
        return 0
    with open(path, encoding="utf-8") as file:
        before = json.load(file)
    changed = sorted(name for name in before if before[name] != now.get(name))
    for name in changed:
        print(f"differs: {name}: {before[name]} -> {now.get(name)}")
    print(f"{len(now.keys() - before.keys())} digests are new")
    print(f"{len(before) - len(changed)} of {len(before)} digests are equal")
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
