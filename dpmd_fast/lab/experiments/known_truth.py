"""Is a private reference worth its budget? All methods on real data with noise of known size.

See `known_truth_data` for data and noise. 30, 100 and 1,000 queries, or as many as there are; all values, or
20 % of them missing. epsilon = 1. Scores: mean squared error of all values over that of the raw queries, in
which medians replace missing values; the same for missing values alone; C-index (death from any cause, Cox
model of the clean references) or agreement of clusters with cell types (ARI), from 100 queries on.

Atlas, direct release and Nonprivate-MD take complete points only. Nonprivate-MD gets the bandwidth and the
dimension with the smallest true error, which nobody could choose, and at most 2,000 of the references: local
PCA at all of NHANES takes too long. Mixtures and GaussianMixture do not depend on the noise: they are made
once for each split, in units of the clean queries. Methods that are predicted to harm run all the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast import Budget, DPManifoldDenoiser, ManifoldDenoiser, release_atlas
from dpmd_fast.errors import UserError
from dpmd_fast.lab.baselines.gaussians import Gaussians
from dpmd_fast.lab.baselines.linear import queries_alone
from dpmd_fast.lab.baselines.without_privacy import gaussian_mixture, iterative_imputer
from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments import known_truth_report
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, Value
from dpmd_fast.lab.experiments.known_truth_data import (
    Queries,
    Truth,
    add_noise,
    levels,
    load_truth,
    names_of_sets,
)
from dpmd_fast.lab.experiments.known_truth_report import (
    ALONE,
    ATLAS,
    DIRECT,
    IMPUTER,
    MIXTURE,
    MIXTURE_PAPER,
    NONPRIVATE,
    NOT_PRIVATE,
    RAW,
)
from dpmd_fast.lab.experiments.methods import PAPER_DELTA, SMALL_DELTA, expected_warnings
from dpmd_fast.lab.experiments.real_data import local_geometry
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.models.plan import plan
from dpmd_fast.models.preprocessor import units_of

EPSILON = 1.0
MOST_REFERENCES = 2_000  # of Nonprivate-MD
MOST_COMPONENTS, RECORDS_A_COLUMN = 10, 20  # of GaussianMixture: one for so many records for each column
WIDTHS = (0.7, 1.0)  # bandwidths of Nonprivate-MD over the rms radius of the clean queries
DIMS = (2, 5)
DELTAS = {MIXTURE_PAPER: PAPER_DELTA, MIXTURE: SMALL_DELTA}


class Models(NamedTuple):
    """What was learned from the references of one split."""

    mixtures: Mapping[str, Mixture]
    scale: Floats  # units of the mixtures
    not_private: Gaussians
    surfaces: tuple[ManifoldDenoiser, ...]


def items(profile: Profile) -> list[Row]:
    return [
        {"set": name, "noise": level, "seed": seed}
        for seed in range(profile.seeds)
        for name in names_of_sets(profile)
        for level in levels(name)
    ]


def measure(item: Row, profile: Profile) -> Tables:
    values: dict[str, Any] = dict(item)
    level, seed = values["noise"], values["seed"]
    truth = load_truth(profile, values["set"], seed)
    results: list[Row] = []
    verdicts: list[Row] = []
    with expected_warnings():
        models = _learn(profile, values["set"], seed)
        for size in truth.sizes(profile):
            for missing in (False, True):
                queries = add_noise(truth, level, size, missing, seed)
                about: dict[str, Value] = {
                    "references": len(truth.references),
                    "queries": size,
                    "missing": 0.2 if missing else 0.0,
                }
                cleaned = _clean(queries, truth, models, seed)
                scored = {method: _scores(queries, truth, found) for method, found in cleaned.items()}
                results += [{**about, "method": method, **row} for method, row in scored.items()]
                verdicts += [
                    {**about, **_verdict(queries, truth, name, delta, scored)}
                    for name, delta in DELTAS.items()
                ]
    return {"results": results, "verdicts": verdicts}


def _scores(queries: Queries, truth: Truth, found: Floats | None) -> dict[str, Value]:
    """Return the scores of cleaned queries, None where there are none."""
    if found is None:
        return {"error": None, "fill": None, "score": None}
    raw, gone = queries.squares(queries.raw), queries.missing
    fill = None
    if gone.any():
        fill = queries.squares(found, gone) / queries.squares(queries.raw, gone)
    score = truth.score(found)
    return {
        "error": queries.squares(found) / raw,
        "fill": fill,
        "score": None if math.isnan(score) else score,
        "score_clean": None if math.isnan(score) else truth.score(queries.clean),
    }


def _verdict(
    queries: Queries, truth: Truth, mixture: str, delta: float, scored: Mapping[str, Mapping[str, Value]]
) -> dict[str, Value]:
    """Return the verdict of `plan`, and the error of what it chose; squares, like those of the methods."""
    budget = Budget(EPSILON, delta)
    made = plan(queries.noisy, len(truth.references), budget=budget, noise=queries.noise)
    actual = scored[mixture if made.candidate == "mixture" else ATLAS]["error"]
    return {
        "delta": delta,
        "verdict": made.verdict,
        "model": made.model,
        "candidate": made.candidate,
        "predicted": (made.predicted_error / made.raw_error) ** 2,
        "alone_predicted": (made.public_only_error / made.raw_error) ** 2,
        "actual": actual if made.candidate == "mixture" or delta == SMALL_DELTA else None,
    }


def _clean(queries: Queries, truth: Truth, models: Models, seed: int) -> dict[str, Floats | None]:
    """Return the queries after each method; None for methods that cannot take them."""
    X, deviation = queries.noisy, queries.deviation
    complete = not queries.missing.any()
    filled = X if complete else iterative_imputer(X, X, seed)
    found: dict[str, Floats | None] = {RAW: queries.raw, IMPUTER: None if complete else filled}
    found[ALONE] = queries_alone(filled, deviation).posterior(filled, deviation)[0]
    found |= dict.fromkeys((NONPRIVATE, DIRECT, ATLAS))
    if complete:
        moved = [model.transform(X) for model in models.surfaces]
        found[NONPRIVATE] = min(moved, key=queries.squares)
        geometry = local_geometry(X)
        direct = DPManifoldDenoiser(*geometry, Budget(EPSILON, SMALL_DELTA), accept_risk=True)
        direct.fit(truth.references)
        found[DIRECT] = direct.transform(X)
        found[ATLAS] = _with_atlas(queries, truth)
    for name, mixture in models.mixtures.items():
        found[name] = mixture.transform(X, noise=deviation / models.scale)
    found[NOT_PRIVATE] = models.not_private.posterior(X, deviation)[0]
    return found


def _with_atlas(queries: Queries, truth: Truth) -> Floats:
    """Return the queries after an atlas; as they are if the budget is spent and no chart stands out."""
    try:
        made = release_atlas(
            truth.references,
            queries.noisy,
            dim="auto",
            budget=Budget(EPSILON, SMALL_DELTA),
            noise=queries.noise,
            accept_risk=True,
        )
    except UserError as error:
        if "no chart stands out" not in str(error):
            raise
        return queries.raw
    return np.asarray(made.transform(queries.noisy), dtype=np.float64)


@functools.lru_cache(maxsize=1)
def _learn(profile: Profile, name: str, seed: int) -> Models:
    """Learn from the references what does not depend on the noise; kept for the next level of noise."""
    truth = load_truth(profile, name, seed)
    Y = truth.references
    units = units_of(truth.clean, None, "queries")
    mixtures = {
        label: release_mixture(Y, budget=Budget(EPSILON, delta), preprocess=units, accept_risk=True)
        for label, delta in DELTAS.items()
    }
    size = min(MOST_COMPONENTS, max(1, len(Y) // (RECORDS_A_COLUMN * Y.shape[1])))
    radius = math.sqrt(float(truth.clean.var(axis=0).sum()))
    some = Y[:MOST_REFERENCES]
    surfaces = tuple(
        ManifoldDenoiser(width * radius, dim).fit(some)
        for width in WIDTHS
        for dim in DIMS
        if dim < Y.shape[1]
    )
    return Models(mixtures, np.array(units.scale), gaussian_mixture(Y, size, seed), surfaces)


KNOWN_TRUTH = Experiment(
    "known-truth",
    items,
    measure,
    known_truth_report.table,
    known_truth_report.figures,
    seeds=(5, 1),
    needs_data=True,
)
