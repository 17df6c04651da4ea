"""The transform of an atlas: beside NumPy on the same charts, and a million queries from the file alone.

    python benchmarks/transform.py [--queries 1000000] [--output FILE.md]

Two threads on both sides. The NumPy side is without loops over queries or charts: distances, weights and the
projections onto all tangent planes are matrix products on blocks of queries; the best of several block sizes
counts. The million queries go through `Atlas.load(path).transform` in a process that has seen neither the
reference nor the release. A second table is about one thread and no NumPy: a plain atlas of 10 columns, and a
curved one of dimension 5 in 20 columns, half of them logged, with a preprocessor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.memory import peak_memory
from dpmd_fast import Atlas, Budget, Preprocessor, release_atlas
from dpmd_fast.lab.datasets import Shape, bounded_noise, make_shape, simulate, sphere
from dpmd_fast.models.geometry.layers import Layer
from dpmd_fast.privacy.guarantee import LargeDeltaWarning

THREADS = 2
BLOCKS = (500, 2000, 8000)
COMPARED = 100_000
ALONE = 20_000  # queries of the table for one thread
RECORDS, ANCHORS = 200_000, 3_000


def numpy_layer(X: np.ndarray, layer: Layer, block: int) -> np.ndarray:
    """What a layer does to points, in matrix products."""
    K, D, d = layer.tangents.shape
    frames = layer.tangents.transpose(0, 2, 1).reshape(K * d, D)
    feet = np.einsum("kde,kd->ke", layer.tangents, layer.centers).reshape(-1)
    out = np.empty_like(X)
    for start in range(0, len(X), block):
        x = X[start : start + block].copy()
        for _ in range(layer.passes):
            w = np.maximum(1.0 - cdist(x, layer.centers, "sqeuclidean") / layer.bandwidth**2, 0.0)
            w *= w
            w *= layer.masses
            total = w.sum(axis=1)
            w /= np.where(total > 0.0, total, 1.0)[:, None]
            along = x @ frames.T
            along -= feet
            along *= np.repeat(w, d, axis=1)
            if layer.slopes is None or layer.offsets is None:
                new = w @ layer.centers + along @ frames
            else:
                new = x + layer.strength * (w @ layer.offsets + along @ layer.slopes.reshape(K * d, D))
            x = np.where((total > 0.0)[:, None], new, x)
        out[start : start + block] = x
    return out


def numpy_transform(atlas: Atlas, Z: np.ndarray, block: int) -> np.ndarray:
    subspace = atlas.subspace
    x = Z if subspace is None else (Z - subspace.origin) @ subspace.basis
    for layer in atlas.layers:
        x = numpy_layer(x, layer, block)
    return x if subspace is None else subspace.origin + x @ subspace.basis.T


def fastest(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def queries_near(shape: Shape, count: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return shape.sample(count, rng) + bounded_noise(count, shape.ambient, 0.2, rng)


def fresh_process(path: Path, queries: Path) -> dict[str, float]:
    """Rate and memory of one transform in a process of its own."""
    command = [sys.executable, __file__, "--child", str(path), str(queries)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(path: str, queries: str) -> None:
    def peak() -> float:
        return peak_memory() / 2**20

    atlas = Atlas.load(path)
    atlas.transform(atlas.charts.centers, n_threads=THREADS)  # compiled code from the cache
    before = peak()
    Z = np.load(queries)
    seconds = fastest(lambda: atlas.transform(Z, n_threads=THREADS), 1)
    both = 2.0 * Z.nbytes / 2**20  # input and output
    print(json.dumps({"seconds": seconds, "before": before, "more": peak() - before - both}))


def rows(count: int) -> list[str]:
    out = [
        "| | charts | NumPy, 100,000 queries | ours | ratio | from the file, one process | memory over "
        "input and output |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for D in (3, 60):
        shape = make_shape("torus") if D == 3 else make_shape("sphere", ambient=D)
        sample = simulate(shape, 30_000, 1_000, 0.05, np.random.default_rng(0))
        atlas = release_atlas(sample.references, sample.queries, dim=2, budget=Budget(1.0, 0.1))
        Z = queries_near(shape, COMPARED)
        moved = atlas.transform(Z, n_threads=THREADS)  # warms up
        with threadpool_limits(THREADS):
            np.testing.assert_allclose(numpy_transform(atlas, Z, BLOCKS[0]), moved, atol=1e-8)
            theirs, ours = np.inf, np.inf
            for block in BLOCKS:
                theirs = min(theirs, fastest(partial(numpy_transform, atlas, Z, block), 2))
                ours = min(ours, fastest(partial(atlas.transform, Z, n_threads=THREADS), 3))
        with tempfile.TemporaryDirectory() as folder:
            path, many = Path(folder, "a.dpmd"), Path(folder, "q.npy")
            atlas.save(path)
            np.save(many, queries_near(shape, count))
            alone = fresh_process(path, many)
        charts = " + ".join(str(len(layer.masses)) for layer in atlas.layers)
        rate = count / alone["seconds"]
        memory = f"{alone['more']:.0f} MB (process {alone['before']:.0f} MB)"
        out.append(
            f"| D={D} | {charts} | {theirs:.2f} s | {ours:.3f} s | **{theirs / ours:.0f}** | "
            f"{count:,} in {alone['seconds']:.2f} s: {rate:,.0f}/s | {memory} |"
        )
    return out


def plain_case() -> tuple[Atlas, np.ndarray]:
    """Return an atlas of a sphere in 10 columns, and queries."""
    rng = np.random.default_rng(0)
    shape = sphere(10, 2, rotation=rng)
    reference = shape.sample(RECORDS, rng) + bounded_noise(RECORDS, 10, 0.05, rng)
    anchors = shape.sample(ANCHORS, rng) + bounded_noise(ANCHORS, 10, 0.2, rng)
    atlas = release_atlas(reference, anchors, dim=2, budget=Budget(1.0, 1e-6), accept_risk=True)
    return atlas, queries_near(shape, ALONE)


def preprocessed_case(columns: int = 20, dim: int = 5, records: int = RECORDS) -> tuple[Atlas, np.ndarray]:
    """Return an atlas of a curved surface that fills all columns, every other of them skewed, and queries."""
    rng = np.random.default_rng(0)
    linear, curved = rng.normal(size=(2, dim, columns)) / np.sqrt(dim)
    phases = rng.uniform(0.0, 6.0, columns)

    def sample(count: int) -> np.ndarray:
        place = rng.normal(size=(count, dim))
        points = place @ linear + 0.3 * np.sin(place @ curved + phases)
        points += 0.2 * rng.normal(size=points.shape)
        points[:, ::2] = np.exp(points[:, ::2])
        return points

    reference, anchors = sample(records), sample(ANCHORS)
    atlas = release_atlas(
        reference,
        anchors,
        dim=dim,
        budget=Budget(1.0, 1e-6),
        preprocess=Preprocessor.from_public(anchors),
        accept_risk=True,
    )
    return atlas, sample(ALONE)


def rows_alone() -> list[str]:
    """Return the table of one thread: rows a second, and the share of the preprocessor."""
    out = [
        "| one thread | charts | columns of the charts | rows/s | us a row | of which preprocessing |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, case in (("D=10, d=2", plain_case), ("D=20, d=5, preprocessed", preprocessed_case)):
        atlas, Z = case()
        atlas.transform(Z, n_threads=1)  # warms up
        seconds, mapping = fastest(partial(atlas.transform, Z, n_threads=1), 5), 0.0
        if (prepare := atlas.preprocess) is not None:
            everything = np.ones(len(Z), np.bool_)
            mapping = fastest(partial(prepare.moved, Z, lambda inside, all=everything: (inside, all)), 5)
        charts = " + ".join(str(len(layer.masses)) for layer in atlas.layers)
        each, own = 1e6 * seconds / len(Z), 1e6 * mapping / len(Z)
        width = atlas.layers[0].centers.shape[1]
        out.append(f"| {name} | {charts} | {width} | {len(Z) / seconds:,.0f} | {each:.2f} | {own:.2f} |")
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    if options.child is not None:
        child(*options.child)
        return
    text = "\n".join(["# Transforms of an atlas", "", *rows(options.queries), "", *rows_alone()])
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
