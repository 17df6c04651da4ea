"""The released mixture on blood markers: noise of known size added to people whose true values are known.

NHANES as in `biomarkers`: 20 markers, 1,000 people are the queries and about 47,000 the reference; log,
median and MAD. Medians and MADs are those of the queries before noise is added: they stand for what is
publicly known about the markers. Then normal noise of deviation 1/4, 1/2 and 1 MAD is added to the queries,
or 20 % of their values are taken away.

Scores: mean squared error over that of the raw queries; C-index of a Cox model of death from any cause
(markers alone), fitted to the clean reference; error of filled-in values over that of the columns' means;
share of true values within the 95 % error bars. The same for 30 and 100 queries instead of 1,000, where
queries alone have less to learn from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.lab.baselines.gaussians import Floats
from dpmd_fast.lab.baselines.linear import queries_alone
from dpmd_fast.lab.baselines.without_privacy import (
    gaussian_copula,
    gaussian_mixture,
    has_gcimpute,
    iterative_imputer,
)
from dpmd_fast.lab.experiments import mixture_nhanes_report
from dpmd_fast.lab.experiments.biomarkers import FILE, MARKERS, People, load
from dpmd_fast.lab.experiments.cox import fit_cox
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables
from dpmd_fast.lab.experiments.mixture_methods import (
    ALONE,
    MIXTURE,
    MIXTURE_PAPER,
    NOT_PRIVATE,
    RAW,
    Cleaner,
    coverage,
    missing_values,
    private_baselines,
    released_mixtures,
    size_of,
    squared_error,
)
from dpmd_fast.lab.experiments.real_data import data_file
from dpmd_fast.lab.factor_models import MAD_TO_DEVIATION
from dpmd_fast.metrics import concordance_index
from dpmd_fast.models.preprocessor import Preprocessor

NOISES = (0.25, 0.5, 1.0)
QUERIES, QUICK_QUERIES, QUICK_PEOPLE = 1_000, 300, 6_000
FEW = (30, 100)
DRAWS, QUICK_DRAWS = 10, 1  # of so few queries, from all of them
GROUPS = 4  # components of DP-EM: best of 2, 4 and 8
COMPONENTS, QUICK_COMPONENTS = 20, 4  # of GaussianMixture


def items(profile: Profile) -> list[Row]:
    data_file(profile, FILE)
    return [{"seed": seed} for seed in range(profile.seeds)]


def measure(item: Row, profile: Profile) -> Tables:
    seed = int(item["seed"])  # type: ignore[arg-type]
    people = load(data_file(profile, FILE))
    queries, references = split(people, profile, seed)
    preprocess = Preprocessor.from_public(people.markers[queries], column_names=MARKERS)
    Z, Y = (preprocess.forward(people.markers[rows]).astype(np.float64) for rows in (queries, references))
    models: dict[str, Cleaner | None] = dict(released_mixtures(Y))
    models |= private_baselines(Y, GROUPS, MAD_TO_DEVIATION, np.random.default_rng([7, seed]))
    models[NOT_PRIVATE] = gaussian_mixture(Y, QUICK_COMPONENTS if profile.quick else COMPONENTS, seed)
    noisy = {sigma: Z + sigma * np.random.default_rng([9, seed]).normal(size=Z.shape) for sigma in NOISES}
    missing = missing_values(Z.shape, seed)
    dead = people.cause > 0
    cox = fit_cox(Y, people.months[references], dead[references])

    def concordance(points: Floats) -> float:
        return concordance_index(people.months[queries], dead[queries], cox.risk(points))

    clean = concordance(Z)
    about = {"references": len(Y), "queries": len(Z), "c_clean": clean}
    results: list[Row] = []
    bars: list[Row] = []
    for sigma, X in noisy.items():
        raw = squared_error(X, Z)
        results.append({"noise": sigma, "method": RAW, **about, "error": 1.0, "c": concordance(X)})
        for method, model in {ALONE: queries_alone(X, sigma), **models}.items():
            size = None if model is None else size_of(model)
            row: dict[str, object] = {"noise": sigma, "method": method, **about, "components": size}
            if model is not None:
                means, deviations = model.posterior(X, sigma)
                row |= {"error": squared_error(means, Z) / raw, "c": concordance(means)}
                bars.append({"noise": sigma, "method": method, "coverage": coverage(means, deviations, Z)})
            results.append(row)  # type: ignore[arg-type]
    fill, fill_bars = _filled(Z, Y, models, missing, seed)
    return {
        "results": results,
        "fill": fill,
        "coverage": bars + fill_bars,
        "few": _few(Z, noisy, models, missing, seed, QUICK_DRAWS if profile.quick else DRAWS),
    }


def split(people: People, profile: Profile, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of queries and of references."""
    order = np.random.default_rng(100 + seed).permutation(len(people.months))
    if profile.quick:
        order = order[:QUICK_PEOPLE]
    m = min(QUICK_QUERIES if profile.quick else QUERIES, len(order) // 4)
    return np.sort(order[:m]), np.sort(order[m:])


def _filled(
    Z: Floats, Y: Floats, models: dict[str, Cleaner | None], missing: NDArray[np.bool_], seed: int
) -> tuple[list[Row], list[Row]]:
    """Return errors of filled-in values over those of column means, without noise, and coverage."""
    holes = np.where(missing, np.nan, Z)
    plain = squared_error(np.broadcast_to(Z.mean(axis=0), Z.shape), Z, missing)
    rows: list[Row] = [
        {"method": "column means", "error": 1.0},
        {
            "method": "IterativeImputer on the queries alone",
            "error": squared_error(iterative_imputer(holes, holes, seed), Z, missing) / plain,
        },
        {
            "method": "IterativeImputer on the reference, not private",
            "error": squared_error(iterative_imputer(Y, holes, seed), Z, missing) / plain,
        },
    ]
    if has_gcimpute():
        error = squared_error(gaussian_copula(Y, holes), Z, missing) / plain
        rows.append({"method": "gcimpute on the reference, not private", "error": error})
    bars: list[Row] = []
    for method, model in models.items():
        if model is None:
            rows.append({"method": method, "error": None})
            continue
        means, deviations = model.posterior(holes, 0.0)
        rows.append({"method": method, "error": squared_error(means, Z, missing) / plain})
        bars.append({"noise": 0.0, "method": method, "coverage": coverage(means, deviations, Z, missing)})
    return rows, bars


def _few(
    Z: Floats,
    noisy: dict[float, Floats],
    models: dict[str, Cleaner | None],
    missing: NDArray[np.bool_],
    seed: int,
    draws: int,
) -> list[Row]:
    """Return errors where queries are few: of complete ones, with 20 % missing, and of filled-in values."""
    rng = np.random.default_rng([11, seed])
    rows: list[Row] = []
    for m in FEW:
        for _ in range(draws):
            some = rng.choice(len(Z), size=min(m, len(Z)), replace=False)
            z, gone = Z[some], missing[some]
            for sigma, X in {0.0: Z, **noisy}.items():
                x = X[some]
                holes = np.where(gone, np.nan, x)
                filled = iterative_imputer(holes, holes, seed)
                plain = squared_error(np.broadcast_to(z.mean(axis=0), z.shape), z, gone)
                raw = squared_error(x, z) if sigma else None
                alone = queries_alone(filled, sigma)
                cleaned = {ALONE: alone.posterior(filled, sigma)[0] if sigma else filled}
                complete = {ALONE: queries_alone(x, sigma).posterior(x, sigma)[0]} if sigma else {}
                for method in (MIXTURE_PAPER, MIXTURE, NOT_PRIVATE):
                    model = models[method]
                    if model is not None:
                        cleaned[method] = model.posterior(holes, sigma)[0]
                        if sigma:
                            complete[method] = model.posterior(x, sigma)[0]
                for method, points in cleaned.items():
                    row: dict[str, object] = {"queries": m, "noise": sigma, "method": method}
                    row["fill_error"] = squared_error(points, z, gone) / plain
                    if raw is not None:
                        row["error"] = squared_error(complete[method], z) / raw
                        row["error_missing"] = squared_error(points, z, ~gone) / raw
                    rows.append(row)  # type: ignore[arg-type]
    return rows


MIXTURE_NHANES = Experiment(
    "mixture-nhanes",
    items,
    measure,
    mixture_nhanes_report.table,
    mixture_nhanes_report.figures,
    seeds=(5, 1),
    needs_data=True,
)
