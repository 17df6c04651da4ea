"""What epsilon costs with a mixture: errors of 40 queries with gaps by epsilon and number of records.

Simulated records in three groups, which everybody can make, and blood markers (NHANES) if their folder is
given. Groups of 40 queries have noise of half a MAD or about that, and 20 % of their values are missing.
Medians and MADs of the clean queries are public; they are the units of all errors. The same queries at
every epsilon and number of records.

`plan` gives its verdict for each group of queries. What it refuses is released all the same
(``accept_risk=True``), to measure what the refusal saved or lost. The error is the mean square of all values
over that of the raw queries, in which public medians replace missing values.

Without a budget: the queries alone get the better of two methods for each split, by their true errors, which
nobody could choose: each column pulled to its public median, or a linear filter after IterativeImputer.
GaussianMixture has the same records without any privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmd_fast import Budget
from dpmd_fast.lab.baselines.gaussians import Gaussians
from dpmd_fast.lab.baselines.linear import queries_alone
from dpmd_fast.lab.baselines.without_privacy import gaussian_mixture, iterative_imputer
from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments import epsilon_costs_report
from dpmd_fast.lab.experiments.epsilon_costs_report import ALONE, FILTER, NOT_PRIVATE, PULLED, SIMULATED
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, Value
from dpmd_fast.lab.experiments.known_truth import MOST_COMPONENTS, RECORDS_A_COLUMN
from dpmd_fast.lab.experiments.known_truth_data import NHANES, Queries, Truth, add_noise, load_truth
from dpmd_fast.lab.experiments.methods import SMALL_DELTA
from dpmd_fast.lab.factor_models import MAD_TO_DEVIATION, FactorCase, FactorData
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.models.plan import plan
from dpmd_fast.models.preprocessor import Preprocessor, units_of

EPSILONS, QUICK_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.3, 3.0)
RECORDS = {SIMULATED: (1_000, 5_000, 20_000, 50_000), NHANES: (1_000, 5_000, 20_000, 47_100)}
QUICK_RECORDS = (500, 4_000)
QUERIES = 40  # cleaned together
GROUPS, QUICK_GROUPS = 5, 2  # of queries in each split
PUBLIC = 1_000  # clean simulated queries: the source of public medians and MADs
LEVEL = {SIMULATED: 1.0, NHANES: 0.5}  # of noise; NHANES in MADs, simulated over the case's own


def items(profile: Profile) -> list[Row]:
    sets = [SIMULATED] if profile.data is None else [SIMULATED, NHANES]
    return [
        {"set": name, "records": n, "seed": seed}
        for seed in range(profile.seeds)
        for name in sets
        for n in (QUICK_RECORDS if profile.quick else RECORDS[name])
    ]


def measure(item: Row, profile: Profile) -> Tables:
    values: dict[str, Any] = dict(item)
    name, seed = values["set"], values["seed"]
    truth = _truth(profile, name, seed)
    records = truth.references[: values["records"]]
    units = units_of(truth.clean, None, "queries")
    groups = _groups(truth, LEVEL[name], QUICK_GROUPS if profile.quick else GROUPS, seed)
    about: dict[str, Value] = {"columns": records.shape[1], "given": len(records)}
    without = _without_budget(records, groups, units, seed)
    results: list[Row] = []
    verdicts: list[Row] = []
    for epsilon in QUICK_EPSILONS if profile.quick else EPSILONS:
        budget = Budget(epsilon, SMALL_DELTA)
        mixture = release_mixture(records, budget=budget, preprocess=units, accept_risk=True)
        cleaned = [mixture.transform(group.noisy, noise=_noise(group, units)) for group in groups]
        found = {"epsilon": epsilon, "error": _error(groups, cleaned, units)}
        results.append({**about, **found, "components": len(mixture.weights)})
        for number, group in enumerate(groups):
            made = plan(
                group.noisy, len(records), budget=budget, noise=_noise(group, units), preprocess=units
            )
            verdicts.append(
                {
                    "epsilon": epsilon,
                    "group": number,
                    "verdict": made.verdict,
                    "candidate": made.candidate,
                    "predicted": (made.predicted_error / made.raw_error) ** 2,
                    "alone_predicted": (made.public_only_error / made.raw_error) ** 2,
                }
            )
    return {"results": results, "without": [{**about, **row} for row in without], "verdicts": verdicts}


def _without_budget(
    records: Floats, groups: Sequence[Queries], units: Preprocessor, seed: int
) -> list[dict[str, Value]]:
    """Return the errors of what needs no budget: the queries alone, and GaussianMixture without privacy."""
    deviations = MAD_TO_DEVIATION * np.array(units.scale)
    by_column = Gaussians(np.ones(1), np.array(units.center)[None], np.diag(deviations**2)[None])
    pulled, filtered = [], []
    for group in groups:
        pulled.append(by_column.posterior(group.noisy, group.deviation)[0])
        filled = iterative_imputer(group.noisy, group.noisy, seed)
        filtered.append(queries_alone(filled, group.deviation).posterior(filled, group.deviation)[0])
    errors = {PULLED: _error(groups, pulled, units), FILTER: _error(groups, filtered, units)}
    errors[ALONE] = min(errors.values())
    size = min(MOST_COMPONENTS, max(1, len(records) // (RECORDS_A_COLUMN * records.shape[1])))
    model = gaussian_mixture(records, size, seed)
    cleaned = [model.posterior(group.noisy, group.deviation)[0] for group in groups]
    errors[NOT_PRIVATE] = _error(groups, cleaned, units)
    return [{"method": method, "error": error} for method, error in errors.items()]


def _error(groups: Sequence[Queries], found: Sequence[Floats], units: Preprocessor) -> float:
    """Return the mean squared error of all values in public units over that of the raw queries."""
    center, scale = np.array(units.center), np.array(units.scale)
    after = before = 0.0
    for group, points in zip(groups, found, strict=True):
        raw = np.where(group.missing, center, group.noisy)
        before += float((((raw - group.clean) / scale) ** 2).sum())
        after += float((((points - group.clean) / scale) ** 2).sum())
    return after / before


def _noise(group: Queries, units: Preprocessor) -> Floats:
    """Return the deviation of the noise in public units."""
    noise: Floats = group.deviation / np.array(units.scale)
    return noise


def _groups(truth: Truth, level: float, count: int, seed: int) -> list[Queries]:
    """Return groups of different noisy queries with missing values."""
    all_of_them = add_noise(truth, level, count * QUERIES, True, seed)
    return [
        Queries(all_of_them.clean[rows], all_of_them.noisy[rows], all_of_them.deviation)
        for rows in (slice(k * QUERIES, (k + 1) * QUERIES) for k in range(count))
    ]


@functools.lru_cache(maxsize=1)
def _truth(profile: Profile, name: str, seed: int) -> Truth:
    if name == NHANES:
        return load_truth(profile, name, seed)
    most = QUICK_RECORDS[-1] if profile.quick else RECORDS[SIMULATED][-1]
    case = FactorCase("3 groups in R^20", 20, 3, most)
    data = FactorData.draw(case, PUBLIC, seed)
    return Truth(name, data.clean, data.records, case.noise, lambda points: math.nan)


EPSILON_COSTS = Experiment(
    "epsilon",
    items,
    measure,
    epsilon_costs_report.table,
    epsilon_costs_report.figures,
    seeds=(3, 1),
)
