"""Audits of an atlas: each of its releases by pairs of neighbours, all of them together, and whole runs.

The releases of a real run are recorded where they are made. Given the earlier releases, later sums are fixed
functions of the records, so the neighbours' sums can be computed for that run. "Noisy sums" draws fresh noise
on the sums of one run; "end to end" attacks the releases of many runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dpmd_fast.kernels.sums.exact import MomentSums, ResidualSums
from dpmd_fast.lab.audit.attacks import Finding, Kind, audit_one_run
from dpmd_fast.lab.audit.cases import BUDGET, MANY, audit_sums, scaled
from dpmd_fast.lab.audit.pairs import Floats, Integers, Pair, Part, farthest, log_ratio
from dpmd_fast.lab.audit.runs import (
    Mechanism,
    Released,
    audit_runs,
    farthest_together,
    recorded_run,
    weaker,
)
from dpmd_fast.mechanisms.atlas.release import release_atlas
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.reference.tasks import with_view

CANARIES = 430
_SPACING = 2.05  # between canaries, in bandwidths: no anchor is in reach of two
_PUBLIC_SPACING = 0.46
_DENSITY = 100  # records per bandwidth
_DELTA = 1e-6  # the bound for one run loses 2 m delta
_ONE_RUN = Budget(4.5, _DELTA)  # mu = 0.93


def run_atlas(
    reference: Floats,
    public: Floats,
    budget: Budget = BUDGET,
    broken: Mechanism | None = None,
    **options: Any,
) -> tuple[Atlas, list[Released]]:
    """Release an atlas and record its releases; `broken` replaces `noisy_sums`."""
    atlas, releases = recorded_run(
        lambda: release_atlas(reference, public, dim=1, budget=budget, accept_risk=True, **options), broken
    )
    if atlas.subspace is not None:  # rounds work in its coordinates
        down = atlas.subspace.down
        releases = [
            made if made.task.views else made._replace(task=with_view(made.task, down)) for made in releases
        ]
    return atlas, releases


def locations_of(made: Released) -> Floats:
    """Return the locations of a round, in the order of the sums."""
    sums = made.task.make(n_threads=1)
    assert isinstance(sums, MomentSums | ResidualSums)
    index = sums._index if isinstance(sums, MomentSums) else sums._frames.balls
    out = np.empty((len(index.order), index.columns))
    out[index.order] = index.rows[:, : index.columns]
    return out


def pairs(effort: float) -> Iterator[Finding]:
    """Audit two subspace releases, round 1 and two residual rounds, each alone and all together."""
    rng = np.random.default_rng(5)
    plane = np.linalg.qr(rng.normal(size=(8, 2)))[0]

    def circle(n: int, scatter: float) -> Floats:
        angles = rng.uniform(0.0, 2.0 * math.pi, n)
        points = np.column_stack([np.cos(angles), np.sin(angles)]) @ plane.T
        return np.asarray(points + scatter * rng.normal(size=(n, 8)))

    atlas, releases = run_atlas(circle(20_000, 0.02), circle(300, 0.05), bandwidth=0.8, rounds=3, cover=0.5)
    names = [what for what, _ in atlas.spends]
    if len(releases) != 5 or len(names) != 5:
        raise RuntimeError("the audited run did not make five releases")
    off_curve = circle(20, 0.02) * rng.uniform(0.2, 3.0, (20, 1)) + 0.3 * rng.normal(size=(20, 8))
    records = np.concatenate([circle(30, 0.01), off_curve, 1e3 * circle(5, 0.1), np.zeros((1, 8))])
    contributions = [[made.sums_of(record[None]) for record in records] for made in releases]
    for number, (name, made, alone) in enumerate(zip(names, releases, contributions, strict=True)):
        i, j = farthest(alone)
        base = made.total
        pair = Pair([Part(base + alone[i], base + alone[j], made.lattice)])
        claimed = math.sqrt(atlas.spends[number][1])
        count = scaled(3 * MANY // 2 if number < 2 else MANY, effort)
        yield audit_sums(f"atlas, {name.split(' at ')[0]}", "core", claimed, pair, count)
    yield _together(atlas, releases, contributions, effort)


def _together(
    atlas: Atlas, releases: list[Released], contributions: list[list[Integers]], effort: float
) -> Finding:
    i, j = farthest_together(releases, contributions)
    pair = Pair(
        [
            Part(made.total + alone[i], made.total + alone[j], made.lattice)
            for made, alone in zip(releases, contributions, strict=True)
        ],
        projected=True,
    )
    count = scaled(MANY // 2, effort)
    return audit_sums("atlas, all releases together", "core", atlas.guarantee.mu, pair, count)


def whole_runs(effort: float) -> Iterator[Finding]:
    """Audit many calls of `release_atlas`, three releases each."""
    yield audit_atlas_runs("atlas, all releases together", "mechanism", scaled(1_000, effort))


def audit_atlas_runs(
    name: str, kind: Kind, runs: int, broken: Callable[[], Mechanism] | None = None
) -> Finding:
    """Attack everything that `runs` calls of `release_atlas` on each of two neighbours released."""
    rng = np.random.default_rng(6)

    def circle(n: int, scatter: float) -> Floats:
        angles = rng.uniform(0.0, 2.0 * math.pi, n)
        return np.column_stack([np.cos(angles), np.sin(angles)]) + scatter * rng.normal(size=(n, 2))

    common, public = circle(1_500, 0.02), circle(60, 0.03)
    run = partial(run_atlas, public=public, bandwidth=0.8, rounds=3, cover=0.5, n_threads=1)
    records = np.concatenate([circle(40, 0.01), circle(20, 0.2)])
    return audit_runs(name, kind, runs, run, common, records, what="release_atlas, end to end", broken=broken)


def one_run(effort: float) -> Iterator[Finding]:
    """Audit one call of `release_atlas` with canaries."""
    canaries = CANARIES if effort >= 0.1 else CANARIES // 2
    yield audit_canaries("atlas, one run", "mechanism", _ONE_RUN, guesses=0.15, canaries=canaries)


def audit_canaries(
    name: str, kind: Kind, budget: Budget, *, guesses: float, canaries: int = CANARIES, noise: float = 1.0
) -> Finding:
    """Attack one run on records along a line, where a fair coin puts each canary in one of two places.

    The attacker knows everything but the coins, and guesses a share `guesses` of them.
    """
    rng = np.random.default_rng()
    places = 2.0 + _SPACING * np.arange(2 * canaries)
    length = places[-1] + 2.0

    def along(x: Floats) -> Floats:
        return np.column_stack([x, 0.05 * rng.normal(size=len(x))])

    sides = np.column_stack([places, np.zeros_like(places)]).reshape(canaries, 2, 2)
    coins = rng.integers(0, 2, canaries).astype(np.bool_)
    chosen = sides[np.arange(canaries), coins.astype(np.intp)]
    background = along(rng.uniform(0.0, length, int(_DENSITY * length)))
    public = along(np.arange(0.0, length, _PUBLIC_SPACING))
    reference = rng.permutation(np.concatenate([background, chosen]))
    broken = None if noise == 1.0 else partial(weaker, noise)
    atlas, releases = run_atlas(reference, public, budget, broken, bandwidth=1.0, rounds=3)
    scores, mu2 = np.zeros(canaries), np.zeros(canaries)
    for made in releases:
        others = made.total - made.sums_of(chosen)
        first, second = (others + made.sums_of(sides[:, side]) for side in (0, 1))
        owner = np.abs(locations_of(made)[:, :1] - places).argmin(axis=1) // 2
        for i in range(canaries):
            where = owner == i
            # one side of this canary is present, and no other canary is in reach
            part = Part(first[where], second[where], made.lattice)
            scores[i] += log_ratio(part, made.values[where])
            apart = (part.second - part.first).astype(np.float64) / made.lattice.deviation
            mu2[i] += float((apart * apart).sum())
    return audit_one_run(
        name,
        kind,
        atlas.guarantee.mu,
        scores,
        coins,
        max(1, int(guesses * canaries)),
        what="release_atlas, one run",
        pair=math.sqrt(float(np.median(mu2))) / noise,
        delta=_DELTA,
    )


GROUPS: tuple[tuple[str, Callable[[float], Iterable[Finding]]], ...] = (
    ("releases of an atlas", pairs),
    ("whole runs of an atlas", whole_runs),
    ("one run of an atlas", one_run),
)
