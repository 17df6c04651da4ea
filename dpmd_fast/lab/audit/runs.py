"""Whole runs of a mechanism that makes several releases: recorded where they are made, and attacked together.

Given the earlier releases, later sums are fixed functions of the records, so the neighbours' sums can be
computed for the run that was made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from dpmd_fast.lab.audit.attacks import SEEN, Finding, Kind, audit_pair
from dpmd_fast.lab.audit.pairs import Floats, Integers, Pair, Part, farthest, recorded, run_scores
from dpmd_fast.mechanisms import spend
from dpmd_fast.privacy.lattice import Lattice
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.tasks import SumTask


class Released(NamedTuple):
    """One release of a run: its task, the exact sums of all records, the noisy values."""

    task: SumTask
    lattice: Lattice
    total: Integers
    values: Floats

    def sums_of(self, records: Floats) -> Integers:
        """Return what `records` add to the sums."""
        return self.task.on([records], 1).values


Mechanism = Callable[..., Floats]  # with the arguments of `noisy_sums`


def weaker(noise: float, sums: Integers, lattice: Lattice, *rest: Any) -> Floats:
    """Add less noise than the lattice demands: a broken mechanism."""
    return noisy_sums(sums, replace(lattice, deviation=round(noise * lattice.deviation)), *rest)


def recorded_run(release: Callable[[], Any], broken: Mechanism | None = None) -> tuple[Any, list[Released]]:
    """Call `release` and record the releases that it makes; `broken` replaces `noisy_sums`."""
    with ExitStack() as stack:
        if broken is not None:
            stack.enter_context(patch.object(spend, "noisy_sums", broken))
        sums = stack.enter_context(recorded(spend, "noisy_sums"))
        calls = stack.enter_context(recorded(spend.Mechanism, "release"))
        model = release()
    releases = [
        Released(task, lattice, made.arguments[0], values)
        for ((_, task, lattice), values), made in zip(calls, sums, strict=True)
    ]
    return model, releases


def farthest_together(releases: list[Released], contributions: list[list[Integers]]) -> tuple[int, int]:
    """Return the two records farthest apart over all releases, in units of each release's noise."""
    joint = [
        np.concatenate(
            [one.ravel() / made.lattice.deviation for one, made in zip(parts, releases, strict=True)]
        )
        for parts in zip(*contributions, strict=True)
    ]
    return farthest(joint)


Run = Callable[..., tuple[Any, list[Released]]]  # on records, with `broken`


def audit_runs(
    name: str,
    kind: Kind,
    runs: int,
    run: Run,
    common: Floats,
    records: Floats,
    *,
    what: str,
    broken: Callable[[], Mechanism] | None = None,
) -> Finding:
    """Attack everything that `runs` runs on each of two neighbours released.

    The neighbours are `common` and one of the two of `records` that are farthest apart. `broken()` makes the
    mechanism of each run.
    """
    model, releases = run(common)
    i, j = farthest_together(releases, [[made.sums_of(one[None]) for one in records] for made in releases])
    pair = records[[i, j]]
    neighbours = [np.concatenate([common, one[None]]) for one in pair]

    def parts(side: int, made: list[Released]) -> list[Part]:
        sides = []
        for release in made:
            alone = [release.sums_of(one[None]) for one in pair]
            totals = [release.total - alone[side] + one for one in alone]
            sides.append(Part(totals[0], totals[1], release.lattice))
        return sides

    def draw(side: int, count: int) -> Floats:
        rows = []
        for _ in range(count):
            _, made = run(neighbours[side], broken=None if broken is None else broken())
            rows.append(run_scores(parts(side, made), [release.values for release in made]))
        return np.array(rows)

    mu = Pair(parts(0, run(neighbours[0])[1])).mu
    return audit_pair(name, kind, model.guarantee.mu, draw, runs, what=what, pair=mu, seen=SEEN)
