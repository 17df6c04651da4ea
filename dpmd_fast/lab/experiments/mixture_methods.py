"""The methods of the experiments on the released mixture, and their scores.

All of them turn queries with normal noise of known deviation, and with missing values, into means and
standard deviations of the clean values. Private ones get epsilon = 1. The noise of the released mixture
comes from the operating system; that of the private baselines is floating-point noise from a seeded
generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import Budget
from dpmd_fast.errors import UserError
from dpmd_fast.lab.baselines.dp_em import fit_dp_em
from dpmd_fast.lab.baselines.gaussians import Floats, Gaussians
from dpmd_fast.lab.baselines.linear import analyze_gauss
from dpmd_fast.lab.experiments.figures import BLUE, BROWN, GREEN, GREY, LIGHT_GREEN, ORANGE, PURPLE, RED, Look
from dpmd_fast.lab.experiments.framework import Row, Value, intervals
from dpmd_fast.lab.experiments.methods import PAPER_DELTA, SMALL_DELTA, expected_warnings
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.models.preprocessor import Preprocessor

EPSILON = 1.0
#: Radius of the ball to which Analyze-Gauss and DP-EM clip, over sqrt(D) and a column's standard deviation.
#: Best of 0.8, 1, 1.35 and 1.7 on NHANES at three noise levels.
RADIUS = 1.7
NORMAL = 1.96  # half the width of a 95 % interval in standard deviations
MISSING = 0.2

EXACT = "exact posterior"
RAW = "raw"
ALONE = "queries alone"
ONE = "one component, delta = 1e-6"
MIXTURE_PAPER = "mixture, delta = 0.1"
MIXTURE = "mixture, delta = 1e-6"
ANALYZE_GAUSS = "Analyze-Gauss, delta = 1e-6"
DP_EM = "DP-EM, delta = 1e-6"
DP_EM_JOINT = "DP-EM with joint noise, delta = 1e-6"
NOT_PRIVATE = "GaussianMixture, not private"

LOOKS: Mapping[str, Look] = {
    RAW: Look(GREY, ":", ""),
    EXACT: Look(BROWN, "--", "D"),
    NOT_PRIVATE: Look(BLUE, "-", "s"),
    MIXTURE_PAPER: Look(LIGHT_GREEN, ":", "o"),
    MIXTURE: Look(GREEN, "-", "o"),
    ONE: Look(ORANGE, "-", "v"),
    ANALYZE_GAUSS: Look(PURPLE, "-", "^"),
    DP_EM: Look(RED, "-", "x"),
    DP_EM_JOINT: Look(RED, ":", "+"),
    ALONE: Look(GREY, "-", "P"),
}


class Cleaner(Protocol):
    """A released mixture, or `Gaussians`."""

    def posterior(self, X: Any, noise: Any, /) -> tuple[Any, Any]: ...


def released(
    records: Floats,
    delta: float,
    components: int | None = None,
    preprocess: Preprocessor | None = None,
) -> Cleaner | None:
    """Release a mixture with epsilon = 1; None if the release is refused before the spend."""
    with expected_warnings():
        try:
            return release_mixture(
                records,
                budget=Budget(EPSILON, delta),
                components="auto" if components is None else components,
                preprocess=preprocess,
            )
        except UserError as error:
            if "too few" not in str(error):
                raise
            return None


def released_mixtures(records: Floats, preprocess: Preprocessor | None = None) -> dict[str, Cleaner | None]:
    """Release mixtures at both deltas, and one component at the small one."""
    return {
        MIXTURE_PAPER: released(records, PAPER_DELTA, None, preprocess),
        MIXTURE: released(records, SMALL_DELTA, None, preprocess),
        ONE: released(records, SMALL_DELTA, 1, preprocess),
    }


def private_baselines(
    records: Floats, groups: int, deviation: float, rng: np.random.Generator
) -> dict[str, Gaussians]:
    """Fit the private baselines to records in public units, in which columns have about this deviation."""
    budget = Budget(EPSILON, SMALL_DELTA)
    radius = RADIUS * deviation * math.sqrt(records.shape[1])
    return {
        ANALYZE_GAUSS: analyze_gauss(records, budget, rng, radius=radius),
        DP_EM: fit_dp_em(records, budget, rng, components=groups, radius=radius),
        DP_EM_JOINT: fit_dp_em(
            records, budget, rng, components=groups, radius=radius, iterations=3, separate=False
        ),
    }


def size_of(cleaner: object) -> int:
    """Return the number of components of a released mixture or of `Gaussians`."""
    return len(cleaner.weights)  # type: ignore[attr-defined]


def squared_error(found: Floats, clean: Floats, where: NDArray[np.bool_] | None = None) -> float:
    """Return the mean squared error of all values, or of those at `where`."""
    squares = (found - clean) ** 2
    return float(squares.mean() if where is None else squares[where].mean())


def coverage(
    means: Floats, deviations: Floats, clean: Floats, where: NDArray[np.bool_] | None = None
) -> float:
    """Return the share of clean values within 1.96 deviations of their mean."""
    inside = np.abs(means - clean) <= NORMAL * deviations
    return float(inside.mean() if where is None else inside[where].mean())


def missing_values(shape: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Return which values are missing: each with probability 0.2, but at least one per row is there."""
    rng = np.random.default_rng([5, seed])
    missing = rng.random(shape) < MISSING
    missing[missing.all(axis=1), 0] = False
    return missing


def cell(rows: Sequence[Row], column: str, *, form: str = ".3f", spread: bool = False, **of: Value) -> str:
    """Format the mean of a column over the rows with these values, with its 95 % interval if wanted.

    Rows without a number are releases that were refused; a cell without rows is empty.
    """
    own = [row for row in rows if all(row.get(key) == value for key, value in of.items())]
    found = intervals(own, (), column).get(())
    if found is None:
        return "refused" if own else ""
    half = f" ± {found.half:{form}}" if spread and found.seeds > 1 else ""
    return f"{found.mean:{form}}{half}"
