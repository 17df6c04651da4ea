"""The experiments of `dpmd-fast experiment`, by name.

An experiment is a function ``run(folder, quick, seeds, data)`` that writes its tables and figures into the
folder and returns their paths; `framework.Experiment` makes one. It is registered here by its location, which
is imported when the experiment runs:

    EXPERIMENTS["circle"] = Entry("error against n", "dpmd_fast.lab.experiments.synthetic:CIRCLE.run")
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dpmd_fast.errors import UserValueError

Run = Callable[[str, bool, "int | None", "str | None"], Sequence[str]]


class Entry(NamedTuple):
    """A summary of half a line, and the location of the function: ``module:name``."""

    summary: str
    place: str


EXPERIMENTS: dict[str, Entry] = {
    "circle": Entry(
        "a circle: errors of all methods against n and sigma",
        "dpmd_fast.lab.experiments.synthetic:CIRCLE.run",
    ),
    "torus": Entry("the same on a torus", "dpmd_fast.lab.experiments.synthetic:TORUS.run"),
    "swiss-roll": Entry("the same on a Swiss roll", "dpmd_fast.lab.experiments.synthetic:SWISS_ROLL.run"),
    "sphere": Entry(
        "a sphere in up to 100 dimensions: error, ball size, time",
        "dpmd_fast.lab.experiments.sphere:SPHERE.run",
    ),
    "privacy": Entry(
        "errors against epsilon, and which curves hold",
        "dpmd_fast.lab.experiments.privacy_curves:PRIVACY.run",
    ),
    "single-cell": Entry(
        "clusters of single cells before and after denoising (needs --data)",
        "dpmd_fast.lab.experiments.single_cell:SINGLE_CELL.run",
    ),
    "mixture-factors": Entry(
        "released mixtures of Gaussians against exact posteriors, and baselines",
        "dpmd_fast.lab.experiments.mixture_factors:MIXTURE_FACTORS.run",
    ),
    "mixture-nhanes": Entry(
        "the same on blood markers with noise and missing values (needs --data)",
        "dpmd_fast.lab.experiments.mixture_nhanes:MIXTURE_NHANES.run",
    ),
    "epsilon": Entry(
        "mixtures against epsilon and the number of records, with verdicts (real data with --data)",
        "dpmd_fast.lab.experiments.epsilon_costs:EPSILON_COSTS.run",
    ),
    "known-truth": Entry(
        "all methods on real data with noise of known size (needs --data)",
        "dpmd_fast.lab.experiments.known_truth:KNOWN_TRUTH.run",
    ),
    "verdicts": Entry(
        "predicted against actual errors of shapes and real data (needs --data)",
        "dpmd_fast.lab.experiments.verdicts:VERDICTS.run",
    ),
    "biomarkers": Entry(
        "blood markers of NHANES: local geometry and risk of death (needs --data)",
        "dpmd_fast.lab.experiments.biomarkers:BIOMARKERS.run",
    ),
}


def find(name: str) -> Run:
    """Return the function of an experiment; refuse an unknown name with a list of those that exist."""
    if name not in EXPERIMENTS:
        known = f"must be one of {', '.join(EXPERIMENTS)}" if EXPERIMENTS else "this version has none"
        raise UserValueError(f"experiment {name!r}: {known}")
    module, _, attributes = EXPERIMENTS[name].place.partition(":")
    found: Any = importlib.import_module(module)
    run: Run = functools.reduce(getattr, attributes.split("."), found)
    return run
