"""Audits of a mixture: each of its releases by pairs of neighbours, all of them together, whole runs.

Two mixtures are broken on purpose and must be caught: components clipped one by one, as if the
responsibilities of a record did not sum to one, and frames that are taken from the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dpmd_fast.kernels.sums.exact import MixtureSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.lab.audit.attacks import Finding
from dpmd_fast.lab.audit.cases import BUDGET, MANY, audit_sums, scaled
from dpmd_fast.lab.audit.pairs import Floats, Integers, Pair, Part, farthest
from dpmd_fast.lab.audit.runs import Mechanism, Released, audit_runs, farthest_together, recorded_run
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.gaussians.tuning import CLIP, HOMOGENEOUS
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.lattice import choose_lattice

_COLUMNS = 3
_COMPONENTS = 3
_ROUNDS = 2
_FAR = 1e4 * np.eye(_COLUMNS)  # records so far away that they are clipped in every frame


def run_mixture(
    reference: Floats, budget: Budget = BUDGET, broken: Mechanism | None = None, **options: Any
) -> tuple[Mixture, list[Released]]:
    """Release a mixture and record its releases; `broken` replaces `noisy_sums`."""
    return recorded_run(
        lambda: release_mixture(
            reference,
            budget=budget,
            components=_COMPONENTS,
            rounds=_ROUNDS,
            accept_risk=True,
            n_threads=1,
            **options,
        ),
        broken,
    )


def people(n: int, seed: int) -> Floats:
    """Return records in two clusters, some with missing values."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, _COLUMNS)) + 2.0 * rng.integers(0, 2, (n, 1))
    points[rng.random(points.shape) < 0.05] = np.nan
    return points


def worst_records(seed: int) -> Floats:
    """Return records that add much, in many directions: far away, at the edge of the clip, incomplete."""
    rng = np.random.default_rng(seed)
    rays = rng.normal(size=(40, _COLUMNS))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    records = rays * rng.choice([0.1, 1.0, 2.0, 4.0, 30.0, 1e6], size=(40, 1))
    records[::7, 0] = np.nan
    return np.concatenate([records, np.zeros((1, _COLUMNS)), people(20, seed + 1)])


def pairs(effort: float) -> Iterator[Finding]:
    """Audit the release of all records and both rounds, each alone and all together."""
    mixture, releases = run_mixture(people(3_000, 1))
    if len(releases) != 1 + _ROUNDS or len(mixture.spends) != 1 + _ROUNDS:
        raise RuntimeError("the audited run did not make three releases")
    records = worst_records(2)
    contributions = [[made.sums_of(record[None]) for record in records] for made in releases]
    for (name, mu2), made, alone in zip(mixture.spends, releases, contributions, strict=True):
        i, j = farthest(alone)
        pair = Pair([Part(made.total + alone[i], made.total + alone[j], made.lattice)])
        yield audit_sums(f"mixture, {name}", "core", math.sqrt(mu2), pair, scaled(3 * MANY // 2, effort))
    i, j = farthest_together(releases, contributions)
    pair = Pair(
        [
            Part(made.total + alone[i], made.total + alone[j], made.lattice)
            for made, alone in zip(releases, contributions, strict=True)
        ],
        projected=True,
    )
    claimed = mixture.guarantee.mu
    yield audit_sums("mixture, all releases together", "core", claimed, pair, scaled(MANY // 2, effort))


def whole_runs(effort: float) -> Iterator[Finding]:
    """Audit many calls of `release_mixture`, three releases each."""
    yield audit_runs(
        "mixture, all releases together",
        "mechanism",
        scaled(1_000, effort),
        run_mixture,
        people(400, 3),
        worst_records(4),
        what="release_mixture, end to end",
    )


def _components(seed: int = 5) -> Gaussians:
    rng = np.random.default_rng(seed)
    means = 0.3 * rng.normal(size=(_COMPONENTS, _COLUMNS))
    return Gaussians(
        np.full(_COMPONENTS, 1.0 / _COMPONENTS), means, np.repeat(np.eye(_COLUMNS)[None], _COMPONENTS, axis=0)
    )


def _sums(model: Gaussians, records: Floats, mu: float) -> tuple[Integers, Any]:
    """Return the sums of complete records in the frames of a model, and the lattice of their noise."""
    tau = CLIP * (_COLUMNS + HOMOGENEOUS)
    lattice = choose_lattice(mu, tau, "replace-one")
    frames = make_mixture_frames(model.log_weights, model.means, model.whitening)
    sums = MixtureSums(frames, tau, lattice.steps, HOMOGENEOUS, 1)
    sums.add(records)
    return sums.total(), lattice


def clipped_one_by_one(effort: float) -> Iterator[Finding]:
    """Give a record a full share in every component, and clip the components one by one."""
    model = _components()

    def total(records: Floats) -> tuple[Integers, Any]:
        parts = [
            _sums(Gaussians(np.ones(1), model.means[[k]], model.covariances[[k]]), records, BUDGET.mu)
            for k in range(_COMPONENTS)
        ]
        return np.concatenate([values for values, _ in parts]), parts[0][1]

    yield _caught("mixture, responsibilities that do not sum to one", total, _FAR[0], _FAR[1], effort)


def frames_of_the_records(effort: float) -> Iterator[Finding]:
    """Take the frame of a component from the covariance of the records, without noise."""

    def total(records: Floats) -> tuple[Integers, Any]:
        covariance = np.cov(records.T) + 1e-3 * np.eye(_COLUMNS)
        model = Gaussians(np.ones(1), np.zeros((1, _COLUMNS)), covariance[None])
        return _sums(model, records, BUDGET.mu)

    yield _caught("mixture, frames taken from the records", total, 0.0 * _FAR[0], _FAR[0], effort)


def _caught(
    name: str, total: Callable[[Floats], tuple[Integers, Any]], one: Floats, other: Floats, effort: float
) -> Finding:
    """Attack the sums of two data sets that differ in one record."""
    common = np.random.default_rng(6).normal(size=(60, _COLUMNS))
    (first, lattice), (second, _) = (total(np.vstack([common, record])) for record in (one, other))
    pair = Pair([Part(first, second, lattice)])
    return audit_sums(name, "control", BUDGET.mu, pair, scaled(MANY // 2, effort))


GROUPS: tuple[tuple[str, Callable[[float], Iterable[Finding]]], ...] = (
    ("releases of a mixture", pairs),
    ("whole runs of a mixture", whole_runs),
    ("control: responsibilities", clipped_one_by_one),
    ("control: frames", frames_of_the_records),
)
