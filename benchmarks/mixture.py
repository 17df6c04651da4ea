"""Compare the mixture with scikit-learn, NumPy and the rate of DGEMM; release from a large Parquet file.

    python benchmarks/mixture.py [--quick] [--only rounds|transform|parquet] [--output FILE.md]

prints Markdown. Run it on an idle machine; the idle share just before the run is part of the output.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.bench_mixture import NOISE, factor_models, noisy_points
from benchmarks.common import THREADS, clock, in_turns
from benchmarks.limits import dgemm_rate
from benchmarks.markdown import arguments_of, machine, megabytes, print_report, seconds, table
from benchmarks.memory import peak_memory
from dpmd_fast import Budget, LargeDeltaWarning, Mixture, release_mixture
from dpmd_fast.kernels.sums.exact import MixtureSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.gaussians.tuning import CLIP, HOMOGENEOUS, ROUNDS
from dpmd_fast.privacy.lattice import choose_lattice

PASSES = 2 + ROUNDS  # over the records of a release
SECTIONS = ("rounds", "transform", "parquet")
BUDGET = Budget(epsilon=1.0, delta=1e-8)
_PIECE = 200_000  # records written at a time


def fitted(model: Gaussians) -> GaussianMixture:
    """Return scikit-learn's mixture with these parameters, as if it had been fitted."""
    other = GaussianMixture(len(model.weights), covariance_type="full")
    other.weights_, other.means_, other.covariances_ = model
    other.precisions_cholesky_ = model.whitening
    return other


def one_step(model: Gaussians, Y: np.ndarray) -> GaussianMixture:
    """One step of EM in scikit-learn, from these parameters."""
    step = GaussianMixture(
        len(model.weights),
        max_iter=1,
        weights_init=model.weights,
        means_init=model.means,
        precisions_init=np.linalg.inv(model.covariances),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return step.fit(Y)


def step_alone(model: GaussianMixture, Y: np.ndarray) -> None:
    """The E-step and the M-step of scikit-learn, without what `fit` does before and after."""
    _, log_responsibilities = model._e_step(Y)
    model._m_step(Y, log_responsibilities)


def numpy_posterior(model: Gaussians, X: np.ndarray, noise: float) -> np.ndarray:
    """Posterior means in NumPy, component by component."""
    D = X.shape[1]
    noisy = model.covariances + noise**2 * np.eye(D)
    logs = np.empty((len(X), len(model.weights)))
    for k, root in enumerate(np.linalg.cholesky(noisy)):
        z = np.linalg.solve(root, (X - model.means[k]).T)
        logs[:, k] = np.log(model.weights[k]) - 0.5 * (z**2).sum(axis=0) - np.log(np.diag(root)).sum()
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    out = np.zeros_like(X)
    for k, mean in enumerate(model.means):
        out += shares[:, k, None] * (mean + (X - mean) @ np.linalg.solve(noisy[k], model.covariances[k]))
    return out


def rounds(quick: bool) -> str:
    """One round of exact sums beside one step of EM, and its share of DGEMM."""
    rows = []
    for n, D, K in ((47_000, 20, 12), (50_000, 60, 16)):
        n = n // 10 if quick else n
        rng = np.random.default_rng(0)
        model = Gaussians(*factor_models(D, K, rng))
        Y = noisy_points(model, n, rng)
        tau = CLIP * (D + HOMOGENEOUS)
        lattice = choose_lattice(0.1, tau, "replace-one")
        frames = make_mixture_frames(model.log_weights, model.means, model.whitening)

        def ours(Y=Y, frames=frames, tau=tau, lattice=lattice) -> np.ndarray:
            sums = MixtureSums(frames, tau, lattice.steps, HOMOGENEOUS, THREADS)
            sums.add(Y)
            return sums.total()

        other = fitted(model)
        logs = model.log_weights - 0.5 * np.stack(
            [(((Y - m) @ W) ** 2).sum(axis=1) for m, W in zip(model.means, model.whitening, strict=True)], 1
        )
        counted = float((logs - logs.max(axis=1, keepdims=True) > -9.0).sum()) / n
        sides = {
            "ours": ours,
            "step": partial(step_alone, other, Y),
            "fit": partial(one_step, model, Y),
        }
        best, _ = in_turns(sides, 2 if quick else 7)
        flops = n * (K * D * D + counted * (D + 1) * (D + 2))
        rate = dgemm_rate(800 if quick else 2000)
        rows.append(
            [
                f"{n:,} x {D}, K = {K}",
                f"{counted:.1f}",
                seconds(best["ours"]),
                f"{seconds(best['step'])} = {best['step'] / best['ours']:.1f} x",
                f"{seconds(best['fit'])} = {best['fit'] / best['ours']:.1f} x",
                f"{flops / best['ours'] / 1e9:.1f}",
                f"{rate / 1e9:.1f}",
                f"{flops / best['ours'] / rate:.0%}",
            ]
        )
    columns = ["records", "components that count", "one round s", "E- and M-step of GaussianMixture s"]
    columns += ["GaussianMixture.fit, one step s", "useful Gflop/s", "DGEMM Gflop/s", "share"]
    return (
        "## One round of a mixture\n\n"
        "Exact sums of all components, two threads on every side, the best of several turns. Useful flops: "
        "n K D^2 for the coordinates in all frames, which are triangular, and (D+1)(D+2) for each component "
        "that counts.\n\n" + table(columns, rows)
    )


def transforms(quick: bool) -> str:
    """Cleaning of points beside NumPy and `predict_proba`, and one row alone."""
    rows = []
    for D, K in ((20, 12), (60, 16)):
        rng = np.random.default_rng(1)
        model = Gaussians(*factor_models(D, K, rng))
        X = noisy_points(model, 5_000 if quick else 100_000, rng)
        made = release_mixture(np.zeros((10_000, 2)), budget=Budget(5.0, 1e-3), components=1, seed=0)
        mixture = Mixture(made.guarantee, *model, (1.0,) * K, ())
        noisy = model._replace(covariances=model.covariances + NOISE**2 * np.eye(D))
        sides: dict[str, Any] = {
            "ours": partial(mixture.transform, X, NOISE, THREADS),
            "numpy": partial(numpy_posterior, with_background(model), X, NOISE),
            "less": partial(numpy_posterior, model, X, NOISE),
            "proba": partial(fitted(noisy).predict_proba, X),
            "row": partial(mixture.transform, X[:1], NOISE, THREADS),
            "PCA": partial(PCA(D // 4).fit(X[:1000]).transform, X[:1]),
        }
        best, results = in_turns(sides, 2 if quick else 5)
        for _ in range(200):
            for name in ("row", "PCA"):
                best[name] = min(best[name], clock(sides[name])[0])
        rows.append(
            [
                f"{len(X):,} x {D}, K = {K}",
                seconds(best["ours"]),
                f"{len(X) / best['ours']:,.0f}",
                f"{seconds(best['numpy'])} = {best['numpy'] / best['ours']:.1f} x",
                f"{seconds(best['less'])} = {best['less'] / best['ours']:.1f} x",
                f"{seconds(best['proba'])} = {best['proba'] / best['ours']:.1f} x",
                f"{best['row'] * 1e6:.0f}",
                f"{best['PCA'] * 1e6:.0f}",
                f"{np.abs(results['ours'] - results['numpy']).max():.0e}",
            ]
        )
    columns = ["points", "Mixture.transform s", "rows/s", "NumPy s", "NumPy without background s"]
    columns += ["GaussianMixture.predict_proba s"]
    columns += ["one row, microseconds", "one row of PCA.transform", "largest difference"]
    return "## Cleaning points\n\nTwo threads on every side, the best of several turns.\n\n" + table(
        columns, rows
    )


def write_records(path: Path, rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    model = Gaussians(*factor_models(columns, 12, rng))
    schema = pa.schema([(f"x{j}", pa.float32()) for j in range(columns)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, _PIECE):
            piece = noisy_points(model, min(_PIECE, rows - start), rng).astype(np.float32)
            writer.write_table(pa.table(list(piece.T.copy()), schema=schema), row_group_size=_PIECE // 2)


def release_streamed(path: Path) -> tuple[float, int, int, int]:
    """Seconds of a release, its components, memory before and at its peak; to be run in a fresh process."""
    warnings.simplefilter("ignore", LargeDeltaWarning)
    release = partial(release_mixture, budget=BUDGET, n_threads=THREADS)
    release(np.random.default_rng(0).normal(size=(60_000, 20)), on_missing="fill")  # loads the kernels
    before = peak_memory()
    spent, made = clock(partial(release, path))
    return spent, len(made.weights), before, peak_memory()


def stream_parquet(quick: bool) -> str:
    rows = []
    for count in (100_000, 300_000) if quick else (1_000_000, 10_000_000):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "records.parquet"
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                pool.submit(write_records, path, count, 20).result()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                spent, components, before, peak = pool.submit(release_streamed, path).result()
            size = path.stat().st_size
        rows.append(
            [
                f"{count:,} x 20",
                megabytes(size),
                str(components),
                seconds(spent),
                f"{PASSES * count / spent:,.0f}",
                megabytes(before),
                megabytes(peak),
            ]
        )
    columns = ["float32 records", "file", "components", "whole release s", "records/s in a pass"]
    return (
        "## Release from a Parquet file\n\n"
        f"{PASSES} passes: the check of all records, one component, {ROUNDS} rounds.\n\n"
        + table([*columns, "memory before", "peak"], rows)
    )


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    yield "# The mixture"
    yield machine(0.5 if quick else 3.0, ("scikit-learn",))
    makers = {"rounds": rounds, "transform": transforms, "parquet": stream_parquet}
    for name in sections:
        yield makers[name](quick)


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
