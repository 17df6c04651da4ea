"""The released mixture on factor models, where the best guess of a clean point is known.

See `lab.factor_models`. Errors are mean squares of the differences to the values before the noise, over
those of the raw queries. Then 20 % of the values of the noisy queries are taken away and filled in: errors
of these values over those of the columns' true means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.lab.baselines.gaussians import Floats
from dpmd_fast.lab.baselines.linear import queries_alone
from dpmd_fast.lab.baselines.without_privacy import gaussian_mixture
from dpmd_fast.lab.experiments.figures import INK, canvas, legend_below
from dpmd_fast.lab.experiments.framework import (
    Experiment,
    Profile,
    Row,
    Tables,
    intervals,
    markdown,
)
from dpmd_fast.lab.experiments.mixture_methods import (
    ALONE,
    ANALYZE_GAUSS,
    DP_EM,
    DP_EM_JOINT,
    EXACT,
    LOOKS,
    MIXTURE,
    MIXTURE_PAPER,
    NOT_PRIVATE,
    ONE,
    Cleaner,
    cell,
    coverage,
    missing_values,
    private_baselines,
    released_mixtures,
    size_of,
    squared_error,
)
from dpmd_fast.lab.factor_models import FactorCase, FactorData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES, QUICK_QUERIES = 1_000, 200
LARGEST_FIT = 2_000_000  # values of a reference that GaussianMixture is fitted to: minutes beyond
UNEQUAL = (0.7, 0.2, 0.07, 0.03)
CASES = (
    FactorCase("3 groups in R^5, n = 5k", 5, 3, 5_000, factors=2),
    FactorCase("3 groups in R^5, n = 200k", 5, 3, 200_000, factors=2),
    FactorCase("3 groups in R^20, n = 5k", 20, 3, 5_000),
    FactorCase("3 groups in R^20, n = 50k", 20, 3, 50_000),
    FactorCase("3 groups in R^20, n = 200k", 20, 3, 200_000),
    FactorCase("4 groups in R^15, n = 50k", 15, 4, 50_000, noise=0.5),
    FactorCase("same, groups near", 15, 4, 50_000, noise=0.5, spread=0.3),
    FactorCase("same, groups far", 15, 4, 50_000, noise=0.5, spread=4.0),
    FactorCase("same, weights .7 to .03", 15, 4, 50_000, noise=0.5, weights=UNEQUAL),
    FactorCase("same, t tails (3 degrees)", 15, 4, 50_000, noise=0.5, tails=3.0),
    FactorCase("same, a binary column", 15, 4, 50_000, noise=0.5, binary=True),
    FactorCase("same, public scales wrong by 3", 15, 4, 50_000, noise=0.5, scale_error=3.0),
    FactorCase("same, wild units and logarithms", 15, 4, 50_000, noise=0.5, wild=True),
    FactorCase("6 groups in R^60, n = 200k", 60, 6, 200_000),
    FactorCase("4 groups in R^100, n = 50k", 100, 4, 50_000),
    FactorCase("4 groups in R^100, n = 200k", 100, 4, 200_000),
)
QUICK = (
    FactorCase("2 groups in R^4, n = 4k", 4, 2, 4_000, factors=2),
    FactorCase(
        "t tails, a binary column, wild units", 4, 2, 4_000, factors=2, tails=3.0, binary=True, wild=True
    ),
)
COLUMNS = (EXACT, NOT_PRIVATE, MIXTURE_PAPER, MIXTURE, ONE, ANALYZE_GAUSS, DP_EM, DP_EM_JOINT, ALONE)
BARS = (EXACT, MIXTURE_PAPER, MIXTURE, ONE)
FILLS = (*BARS, NOT_PRIVATE, ANALYZE_GAUSS, DP_EM, DP_EM_JOINT)


def cases(profile: Profile) -> Sequence[FactorCase]:
    return QUICK if profile.quick else CASES


def items(profile: Profile) -> list[Row]:
    return [{"case": case.name, "seed": seed} for seed in range(profile.seeds) for case in cases(profile)]


def measure(item: Row, profile: Profile) -> Tables:
    case = next(case for case in cases(profile) if case.name == item["case"])
    seed = int(item["seed"])  # type: ignore[arg-type]
    data = FactorData.draw(case, QUICK_QUERIES if profile.quick else QUERIES, seed)
    missing = missing_values(data.clean.shape, seed)
    holes = np.where(missing, np.nan, data.queries)
    rows: list[Row] = []

    def add(method: str, complete: tuple[Floats, Floats], filled: tuple[Floats, Floats], size: int) -> None:
        rows.append(
            {
                "method": method,
                "components": size,
                "error": squared_error(complete[0], data.clean) / raw,
                "coverage": coverage(*complete, data.clean),
                "fill_error": squared_error(filled[0], data.clean, missing) / plain,
                "fill_coverage": coverage(*filled, data.clean, missing),
            }
        )

    raw = squared_error(data.queries, data.clean)
    means = np.broadcast_to(data.truth.weights @ data.truth.means, data.clean.shape)
    plain = squared_error(means, data.clean, missing)
    exact = data.truth.posterior
    add(EXACT, exact(data.queries, case.noise), exact(holes, case.noise), len(data.truth.weights))
    for method, model in _in_public_units(data, seed).items():
        complete, filled = (
            _natural(data, *model.posterior(data.scaled(values), case.noise / data.scale))
            for values in (data.queries, holes)
        )
        add(method, complete, filled, size_of(model))
    preprocess = data.units.preprocessor(data.center, data.scale)
    for method, mixture in released_mixtures(data.units.original(data.records), preprocess).items():
        if mixture is None:
            rows.append({"method": method, "components": None})
            continue
        complete, filled = (
            _from_original(data, *mixture.posterior(data.units.original(values), case.noise / data.scale))
            for values in (data.queries, holes)
        )
        add(method, complete, filled, size_of(mixture))
    return {"results": rows}


def _in_public_units(data: FactorData, seed: int) -> dict[str, Cleaner]:
    """Fit all baselines to records in public units."""
    case, records = data.case, data.scaled(data.records)
    noise = case.noise / data.scale
    found: dict[str, Cleaner] = {ALONE: queries_alone(data.scaled(data.queries), noise)}
    found |= private_baselines(records, case.groups, 1.0, np.random.default_rng([7, seed]))
    if records.size <= LARGEST_FIT:
        found[NOT_PRIVATE] = gaussian_mixture(records, 2 * case.groups)
    return found


def _natural(data: FactorData, means: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    return means * data.scale + data.center, deviations * data.scale


def _from_original(data: FactorData, means: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    return data.units.natural(means), data.units.natural_deviations(means, deviations)


def table(tables: Tables, profile: Profile) -> str:
    rows = tables["results"]
    queries = QUICK_QUERIES if profile.quick else QUERIES
    names = [case.name for case in cases(profile)]
    errors = [
        [
            name,
            *(cell(rows, "error", case=name, method=method) for method in COLUMNS),
            _excess(rows, name),
            cell(rows, "components", form=".0f", case=name, method=MIXTURE),
        ]
        for name in names
    ]
    fills = [
        [name, *(cell(rows, "fill_error", case=name, method=method) for method in FILLS)] for name in names
    ]
    bars = [
        [
            name,
            *(cell(rows, "coverage", case=name, method=method) for method in BARS),
            *(cell(rows, "fill_coverage", case=name, method=method) for method in BARS),
        ]
        for name in names
    ]
    return "\n".join(
        [
            f"# Released mixture on factor models, epsilon = 1, {profile.seeds} seed(s)\n",
            f"## Error of {queries:,} noisy queries after cleaning; raw = 1\n\nMeans over the seeds. The "
            "exact posterior knows the true parameters: no method can do better on average. Excess: of the "
            "mixture at delta = 1e-6 over it. Analyze-Gauss and DP-EM have floating-point noise. "
            "GaussianMixture has twice as many components as there are groups; it was not fitted to the "
            "largest references.\n\n" + markdown(["case", *COLUMNS, "excess", "components (1e-6)"], errors),
            "## Filling in 20 % of the values of noisy queries; error / that of the columns' true means\n\n"
            + markdown(["case", *FILLS], fills),
            "## Coverage of 95 % error bars (mean ± 1.96 deviations): share of all values\n\n"
            + markdown(["case", *BARS, *(f"filled in: {method}" for method in BARS)], bars),
        ]
    )


def _excess(rows: Sequence[Row], case: str) -> str:
    """Return by how much the mixture's mean error exceeds that of the exact posterior."""
    error = intervals([row for row in rows if row["case"] == case], ("method",), "error")
    ours = error.get((MIXTURE,))
    return "" if ours is None else f"{100.0 * (ours.mean / error[(EXACT,)].mean - 1.0):+.1f} %"


def figures(tables: Tables, profile: Profile) -> Mapping[str, Figure]:
    """Draw the error of every method over that of the exact posterior, one line per case."""
    names = [case.name for case in cases(profile)]
    error = intervals(tables["results"], ("case", "method"), "error")
    figure = canvas(9.0, 1.6 + 0.38 * len(names))
    axis: Any = figure.subplots()
    for method in COLUMNS:
        have = [
            (place, error[name, method].mean) for place, name in enumerate(names) if (name, method) in error
        ]
        look = LOOKS[method]
        axis.plot(
            [value for _, value in have],
            [place for place, _ in have],
            color=look.color,
            marker=look.mark,
            linestyle="",
            label=method,
        )
    axis.axvline(1.0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(names)), labels=names)
    axis.invert_yaxis()
    axis.set_xlim(0.0, 1.1)
    axis.set_xlabel("mean squared error after cleaning (raw queries = 1)")
    legend_below(figure, axis, 3)
    return {"errors": figure}


MIXTURE_FACTORS = Experiment("mixture-factors", items, measure, table, figures, seeds=(5, 1))
