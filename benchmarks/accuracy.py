"""Compare the errors of the atlas with those of the other methods, at epsilon = 1.

    python benchmarks/accuracy.py [--seeds 5] [--only NAME] [--keep RESULTS.jsonl] [--output FILE.md]

Every figure is a distance to the manifold, over 1,000 queries (500 in R^100): mean, and the 99th percentile.
Nonprivate-MD at its own best may choose bandwidth and number of steps by the very errors that are reported.
Results are kept one line at a time; a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast import (
    Budget,
    DPManifoldDenoiser,
    ManifoldDenoiser,
    empirical_sensitivity,
    paper_bandwidth,
    release_atlas,
)
from dpmd_fast.lab.datasets import Shape, Simulation, make_shape, simulate
from dpmd_fast.lab.experiments.held_out import HELD_OUT
from dpmd_fast.privacy.guarantee import LargeDeltaWarning

TEXT = (
    "Distance to the manifold at epsilon = 1, mean / 99th percentile over 1,000 queries (500 in R^100), "
    "means over 5 seeds. n = 20,000 for curves, 50,000 for the Swiss roll, else 30,000; noise of radius "
    "sigma on the records and sqrt(sigma) on the queries, sigma = .1 for the circle, .05 or .15 for the "
    "torus, .15 for the Swiss roll, .3 in R^20, else .05. The atlas finds its own bandwidth within its "
    "budget. Nonprivate-MD at its best may choose bandwidth and steps by the very errors shown here. C: "
    "what `empirical_sensitivity` finds for the paper's route."
)
DELTAS = (0.1, 1e-6)
STEPS = 8
WIDTHS = 10  # bandwidths of Nonprivate-MD, from 0.3 to 2 times what the shape's own scale suggests


class Case(NamedTuple):
    """One row of the table."""

    shape: Callable[[], Shape]
    n: int
    sigma: float
    widths: tuple[float, float]  # bandwidths that Nonprivate-MD tries
    m: int = 1000


CASES = {
    "circle": Case(lambda: make_shape("circle"), 20_000, 0.1, (0.2, 1.2)),
    "torus": Case(lambda: make_shape("torus"), 30_000, 0.05, (0.2, 1.2)),
    "torus, more noise": Case(lambda: make_shape("torus"), 30_000, 0.15, (0.3, 1.4)),
    "Swiss roll": Case(lambda: make_shape("swiss-roll"), 50_000, 0.15, (0.5, 2.5)),
    "sphere in R^20": Case(lambda: make_shape("sphere", ambient=20), 30_000, 0.3, (0.3, 1.6)),
    "sphere in R^100": Case(lambda: make_shape("sphere", ambient=100), 30_000, 0.05, (0.2, 1.2), 500),
    "wavy sheet": Case(HELD_OUT["wavy-sheet"], 30_000, 0.05, (0.15, 1.0)),
    "ellipse": Case(HELD_OUT["ellipse"], 20_000, 0.05, (0.05, 0.6)),
    "figure eight": Case(HELD_OUT["figure-eight"], 20_000, 0.05, (0.05, 0.6)),
    "helix": Case(HELD_OUT["helix"], 20_000, 0.05, (0.05, 0.6)),
}


class Kept:
    """Results by key, written to disk as they are computed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self._values = {tuple(key): value for key, value in map(json.loads, lines)}

    def get(self, key: tuple[Any, ...], make: Callable[..., Any], *arguments: Any) -> Any:
        if key not in self._values:
            self._values[key] = make(*arguments)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self._values[key]]) + "\n")
            print(*key, flush=True)
        return self._values[key]


def errors(points: np.ndarray, shape: Shape) -> list[float]:
    distances = shape.distance(points)
    return [float(distances.mean()), float(np.quantile(distances, 0.99))]


def nonprivate(sample: Simulation, shape: Shape, bandwidth: float, steps: int) -> list[list[float]]:
    """Return the errors of Nonprivate-MD after 1, 2, ... steps."""
    model = ManifoldDenoiser(bandwidth, shape.dim).fit(sample.references)
    points, found = sample.queries, []
    for _ in range(steps):
        points = model.transform(points)
        found.append(errors(points, shape))
    return found


def needed_constant(sample: Simulation, shape: Shape, bandwidth: float) -> float:
    """Return the C of Lemma 2 that this data set needs, rounded up."""
    found = empirical_sensitivity(sample.references, sample.queries[:2], bandwidth, shape.dim)
    return float(np.ceil(found.constant))


def paper(sample: Simulation, shape: Shape, bandwidth: float, delta: float, constant: float) -> list[float]:
    budget = Budget(1.0, delta, conversion="paper")
    model = DPManifoldDenoiser(
        bandwidth,
        shape.dim,
        budget,
        mechanism="projector",
        sensitivity_constant=constant,
        accept_risk=True,
    )
    return errors(model.fit(sample.references).transform(sample.queries), shape)


def atlas(sample: Simulation, shape: Shape, delta: float) -> list[float]:
    released = release_atlas(sample.references, sample.queries, dim=shape.dim, budget=Budget(1.0, delta))
    return errors(released.transform(sample.queries), shape)


def measure(name: str, case: Case, seeds: int, kept: Kept) -> dict[str, np.ndarray]:
    """Return the errors (seeds, 2) of every method."""
    shape = case.shape()
    h = paper_bandwidth(case.n, shape.dim, case.sigma)
    widths = np.geomspace(*case.widths, WIDTHS)
    found: dict[str, list[Any]] = {}
    for seed in range(seeds):
        sample = simulate(shape, case.n, case.m, case.sigma, np.random.default_rng([20, seed]))
        grid = [
            kept.get((name, seed, "nonprivate", k), nonprivate, sample, shape, width, STEPS)
            for k, width in enumerate(widths)
        ]
        constant = kept.get((name, 0, "C"), needed_constant, sample, shape, h)
        row = {
            "raw": errors(sample.queries, shape),
            "nonprivate": kept.get((name, seed, "paper's h"), nonprivate, sample, shape, h, 1)[0],
            "grid": grid,
            "C": constant,
        }
        for delta in DELTAS:
            row[f"atlas {delta:g}"] = kept.get((name, seed, "atlas", delta), atlas, sample, shape, delta)
            for c in (1.0, constant):
                label = "C = 1" if c == 1.0 else "C found"
                row[f"{label} {delta:g}"] = kept.get(
                    (name, seed, label, delta), paper, sample, shape, h, delta, c
                )
        for method, value in row.items():
            found.setdefault(method, []).append(value)
    return {method: np.array(values) for method, values in found.items()}


def table(results: dict[str, dict[str, np.ndarray]]) -> Iterator[str]:
    yield (
        "| mean / p99 | raw | Nonprivate-MD, paper's h | at its best (h, steps) | paper's route, C = 1 | "
        "C that the data need | **atlas, certified** (± sd) |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, found in results.items():
        case = CASES[name]
        means = found["grid"][..., 0].mean(axis=0)
        k, step = np.unravel_index(means.argmin(), means.shape)
        best = found["grid"][:, k, step].mean(axis=0)
        width = np.geomspace(*case.widths, WIDTHS)[k]
        for delta in DELTAS:
            atlas_errors = found[f"atlas {delta:g}"]
            spread = atlas_errors[:, 0].std(ddof=1) if len(atlas_errors) > 1 else 0.0
            cells = [
                f"{name}, delta = {delta:g}",
                _pair(found["raw"].mean(axis=0)),
                _pair(found["nonprivate"].mean(axis=0)),
                f"{_pair(best)} ({width:.2f}, {step + 1})",
                _pair(found[f"C = 1 {delta:g}"].mean(axis=0)),
                f"{_pair(found[f'C found {delta:g}'].mean(axis=0))} (C = {found['C'][0]:.0f})",
                f"**{_short(atlas_errors[:, 0].mean())} ± {_short(spread)}** / "
                f"{_short(atlas_errors[:, 1].mean())}",
            ]
            yield "| " + " | ".join(cells) + " |"


def _pair(values: Sequence[float] | np.ndarray) -> str:
    return " / ".join(_short(value) for value in values)


def _short(value: float) -> str:
    return f"{value:.4f}".lstrip("0") if value < 1 else f"{value:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--keep", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)  # delta = 0.1 is the paper's setting
    kept = Kept(options.keep)
    results = {name: measure(name, CASES[name], options.seeds, kept) for name in options.only or list(CASES)}
    text = f"# Accuracy\n\n{TEXT}\n\n" + "\n".join(table(results))
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
