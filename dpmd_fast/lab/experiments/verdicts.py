"""Are verdicts before a spend right? Predicted against actual errors where the truth is known.

Shapes, factor models, and real data with noise of known size (see `known_truth_data`). Each case goes the way
of ``fit --model auto``: `plan` weighs atlas, mixture and nothing from public numbers; what it chooses is
released, and the queries are cleaned with it. If it refuses, queries stay as they are; to learn whether the
refusal was right, the better model is released all the same (``accept_risk=True``), as "forced".

Errors are root mean squared errors of a value to its clean value, over that of the raw queries: in the units
of the data, in which it works, where an atlas is the better model, else in units of the columns.
Real data go through ten runs at a middle level of noise, with all queries and with 30 of them: two splits,
new noise in each run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast import Budget, release_atlas
from dpmd_fast.errors import UserError
from dpmd_fast.lab.datasets import Shape, make_shape, simulate
from dpmd_fast.lab.experiments import verdicts_report
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, Value
from dpmd_fast.lab.experiments.held_out import HELD_OUT
from dpmd_fast.lab.experiments.known_truth_data import (
    NHANES,
    Queries,
    add_noise,
    levels,
    load_truth,
    names_of_sets,
)
from dpmd_fast.lab.experiments.methods import PAPER_DELTA, SMALL_DELTA, expected_warnings
from dpmd_fast.lab.factor_models import FactorCase, FactorData
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.models.plan import Plan, plan

QUERIES = 500  # of shapes and factor models
FEW = 30  # queries of real data that cannot do much by themselves
RUNS, QUICK_RUNS, RUNS_A_SPLIT = 10, 2, 5  # new noise and a new release in every run
DELTAS = (PAPER_DELTA, SMALL_DELTA)


class Surface(NamedTuple):
    """A shape and the noise around it, as in benchmarks/accuracy.py."""

    make: Callable[[], Shape]
    sigma: float


SHAPES = {
    "circle": Surface(lambda: make_shape("circle"), 0.1),
    "torus": Surface(lambda: make_shape("torus"), 0.05),
    "torus, more noise": Surface(lambda: make_shape("torus"), 0.15),
    "Swiss roll": Surface(lambda: make_shape("swiss-roll"), 0.15),
    "sphere in R^20": Surface(lambda: make_shape("sphere", ambient=20), 0.3),
    "sphere in R^100": Surface(lambda: make_shape("sphere", ambient=100), 0.05),
    "wavy sheet": Surface(HELD_OUT["wavy-sheet"], 0.05),
    "ellipse": Surface(HELD_OUT["ellipse"], 0.05),
    "figure eight": Surface(HELD_OUT["figure-eight"], 0.05),
    "helix": Surface(HELD_OUT["helix"], 0.05),
}
FACTORS = {
    case.name: case
    for case in (
        FactorCase("3 groups in R^5", 5, 3, 5_000, factors=2),
        FactorCase("3 groups in R^20", 20, 3, 50_000),
        FactorCase("4 groups in R^15", 15, 4, 50_000, noise=0.5),
        FactorCase("4 groups in R^15, far apart", 15, 4, 50_000, noise=0.5, spread=4.0),
        FactorCase("4 groups in R^15, t tails", 15, 4, 50_000, noise=0.5, tails=3.0),
    )
}


def items(profile: Profile) -> list[Row]:
    """List ten runs of each real set first, then every other case, with one more seed at a time."""
    sets = names_of_sets(profile)
    runs = QUICK_RUNS if profile.quick else RUNS
    found = [
        _real(name, levels(name)[1], size, 0.0, SMALL_DELTA, run)
        for size in (0, FEW)
        for name in sets
        for run in range(runs)
    ]
    shapes = dict.fromkeys(["circle"]) if profile.quick else SHAPES
    factors = list(FACTORS)[:1] if profile.quick else list(FACTORS)
    for seed in range(profile.seeds):
        found += [
            _simulated("shape", name, n, epsilon, delta, seed)
            for name in shapes
            for n in ((5_000,) if profile.quick else (5_000, 30_000))
            for epsilon in ((1.0,) if profile.quick else (1.0, 0.3))
            for delta in DELTAS
        ]
        found += [
            _simulated("factors", name, FACTORS[name].records, 1.0, delta, seed)
            for name in factors
            for delta in DELTAS
        ]
        found += [
            _real(name, level, size, missing, SMALL_DELTA, seed)
            for name in sets
            for level in (levels(name)[1:2] if profile.quick else levels(name))
            for size in ((FEW, 100, 0) if name == NHANES else (FEW, 0))  # most sets of cells are small
            for missing in (0.0, 0.2)
            if level != levels(name)[1] or size == 100 or missing
        ]
    return found


def _simulated(kind: str, name: str, n: int, epsilon: float, delta: float, seed: int) -> Row:
    return {"kind": kind, "name": name, "n": n, "epsilon": epsilon, "delta": delta, "seed": seed}


def _real(name: str, level: float, size: int, missing: float, delta: float, seed: int) -> Row:
    """Return an item of real data; `size` 0 is all queries, at most 1,000."""
    about: Row = {"kind": "real", "name": name, "level": level, "size": size, "missing": missing}
    return {**about, "epsilon": 1.0, "delta": delta, "seed": seed}


def measure(item: Row, profile: Profile) -> Tables:
    values: dict[str, Any] = dict(item)
    queries, references = _data(values, profile)
    budget = Budget(values["epsilon"], values["delta"])
    forced_too = values["kind"] != "real" or values["seed"] < profile.seeds
    with expected_warnings():
        row = judge(queries, references, budget, forced=forced_too)
    return {"results": [row]}


def _data(values: dict[str, Any], profile: Profile) -> tuple[Queries, Any]:
    seed = values["seed"]
    if values["kind"] == "real":
        truth = load_truth(profile, values["name"], seed // RUNS_A_SPLIT)
        size = min(values["size"] or len(truth.clean), len(truth.clean))
        return add_noise(truth, values["level"], size, values["missing"] > 0.0, seed), truth.references
    if values["kind"] == "shape":
        surface = SHAPES[values["name"]]
        shape = surface.make()
        sample = simulate(shape, values["n"], QUERIES, surface.sigma, np.random.default_rng([20, seed]))
        # noise is uniform in a ball of radius sqrt(sigma), whose coordinates have this deviation
        deviation = math.sqrt(surface.sigma / (shape.ambient + 2))
        return Queries(sample.clean, sample.queries, deviation), sample.references
    data = FactorData.draw(FACTORS[values["name"]], QUERIES, seed)
    return Queries(data.clean, data.queries, data.case.noise), data.records


def judge(queries: Queries, references: Any, budget: Budget, *, forced: bool) -> dict[str, Value]:
    """Plan, release what is chosen, and compare; `forced`: release also what is not predicted to help."""
    start = time.perf_counter()
    made = plan(queries.noisy, len(references), budget=budget, noise=queries.noise)
    better = made.atlas if made.candidate == "atlas" else made.mixture
    assert better is not None
    raw = _error(queries, queries.raw, made)
    row: dict[str, Value] = {
        "queries": len(queries.noisy),
        "references": len(references),
        "columns": queries.noisy.shape[1],
        "verdict": made.verdict,
        "model": made.model,
        "candidate": made.candidate,
        "predicted": better.predicted_error,
        "raw_predicted": better.raw_error,
        "alone_predicted": better.public_only_error,
        "raw": raw,
        "plan_seconds": time.perf_counter() - start,
    }
    helps = made.model != "nothing"
    row |= {"auto": raw, "actual": None, "expected": None, "advice": made.advice}
    if helps or forced:
        found, expected = release(made, queries, references, budget)
        row |= {"actual": _error(queries, found, made), "expected": expected}
        if helps:
            row["auto"] = row["actual"]
    return row


def _error(queries: Queries, found: Any, made: Plan) -> float:
    """Return the error of a value in the units in which the better model works."""
    if made.candidate == "mixture":
        return math.sqrt(queries.squares(found))
    return math.sqrt(float(((found - queries.clean) ** 2).mean()))


def release(made: Plan, queries: Queries, references: Any, budget: Budget) -> tuple[Any, float | None]:
    """Release the better model as the command line does; return cleaned queries and the error it expects.

    Queries stay as they are if the budget was spent and no chart stands out from the noise.
    """
    noise = queries.noise
    if made.candidate == "mixture":
        mixture = release_mixture(
            references, public=queries.noisy, budget=budget, noise=noise, accept_risk=True
        )
        expected = None if mixture.verdict is None else mixture.verdict.expected_error
        return mixture.transform(queries.noisy, noise=noise), expected
    try:
        atlas = release_atlas(
            references, queries.noisy, dim="auto", budget=budget, noise=noise, accept_risk=True
        )
    except UserError as error:
        if "no chart stands out" not in str(error):
            raise
        return queries.raw, None
    expected = None if atlas.verdict is None else atlas.verdict.expected_error
    return np.asarray(atlas.transform(queries.noisy), dtype=np.float64), expected


VERDICTS = Experiment(
    "verdicts",
    items,
    measure,
    verdicts_report.table,
    verdicts_report.figures,
    seeds=(1, 1),
    needs_data=True,
)
