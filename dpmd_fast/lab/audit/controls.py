"""Negative controls: mechanisms that are broken on purpose, and that an audit must catch.

Each breaks one thing from outside, on top of the code that is used; nothing of it can be switched on in a
release.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpmd_fast.lab.audit.atlas import CANARIES, Mechanism, audit_canaries, audit_runs
from dpmd_fast.lab.audit.attacks import Finding, audit_pair
from dpmd_fast.lab.audit.cases import (
    BANDWIDTH,
    BUDGET,
    LOCATIONS,
    MANY,
    fork_parts,
    scaled,
    worst_neighbours,
)
from dpmd_fast.lab.audit.pairs import Floats, ForkedPair, Integers, Pair, Part, Setting
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.lattice import Lattice
from dpmd_fast.privacy.noise import noisy_means, noisy_sums


def _caught(name: str, pair: Pair, effort: float) -> Finding:
    return audit_pair(
        name,
        "control",
        BUDGET.mu,
        pair.draw,
        scaled(MANY // 2, effort),
        direction=pair.direction,
        pair=pair.mu,
    )


def less_noise(effort: float) -> Iterator[Finding]:
    """Noise of 0.7 of its deviation."""
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    part = setting.part(*worst_neighbours(setting))
    weak = replace(setting.lattice, deviation=round(0.7 * setting.lattice.deviation))
    pair = Pair([part], lattice=weak)
    yield _caught("noise scaled by 0.7", pair, effort)


def without_root_two(effort: float) -> Iterator[Finding]:
    """Noise for one record that comes or goes, sold as noise for one that is replaced."""
    pair_setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    neighbours = worst_neighbours(pair_setting)
    broken = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu, adjacency="add-remove")
    yield _caught("sensitivity without sqrt(2)", Pair([broken.part(*neighbours)]), effort)


def without_clipping(effort: float) -> Iterator[Finding]:
    """Contributions as they come, tau or not."""
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu, share=0.2)
    totals = []
    for records in worst_neighbours(setting):
        sums = setting.sums()
        sums._clipping = sums._clipping._replace(tau=1e9, bound=(1 << 31) - 1)
        sums.add(records)
        totals.append(sums.total())
    pair = Pair([Part(totals[0], totals[1], setting.lattice)])
    yield _caught("clipping left out", pair, effort)


def counted_once(effort: float) -> Iterator[Finding]:
    """Two rounds, each with the whole budget."""
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    part = setting.part(*worst_neighbours(setting))
    yield _caught("budget counted once for two rounds", Pair([part, part]), effort)


def shared_stream(effort: float) -> Iterator[Finding]:
    """A source that does not notice a fork: both children draw the same noise, and it cancels."""
    # a source with a given key goes on unchanged in a child, as one without a fork hook would
    pair = ForkedPair(fork_parts(), EntropySource(os.urandom(32)))
    yield audit_pair(
        "one noise stream shared by two forks",
        "control",
        BUDGET.mu,
        pair.draw,
        scaled(MANY // 2, effort),
        direction=pair.direction,
    )


def plain_floating_point(effort: float) -> Iterator[Finding]:
    """A Gaussian in plain floating point: what was added shows in the low bits of small results.

    With values 0 and 1 of the neighbours, a result near 0 is noise near 0, which has fine digits, or 1 plus
    noise near -1, which is a multiple of 2^-53 (after Mironov 2012).
    """
    entropy = open_source()

    def draw(side: int, count: int) -> Floats:
        values = noisy_means(np.full((count, 1), 1.0 - side), np.full(count, 1.0 / BUDGET.mu), entropy)[:, 0]
        fine = np.mod(values * 2.0**53, 1.0) != 0.0
        return ((np.abs(values) < 0.25) & fine).astype(np.float64)

    yield audit_pair(
        "plain floating-point noise, low bits",
        "control",
        BUDGET.mu,
        draw,
        scaled(MANY // 2, effort),
        what="low bits of a noisy mean",
    )


def weak_atlas(effort: float) -> Iterator[Finding]:
    """An atlas whose rounds add a tenth of the noise, in one run: what a single run can see."""
    yield audit_canaries(
        "atlas with noise scaled by 0.1, one run",
        "control",
        Budget(2.0, 1e-6),
        guesses=0.3,
        noise=0.1,
        canaries=CANARIES if effort >= 0.1 else CANARIES // 2,
    )


def same_noise_every_round(effort: float) -> Iterator[Finding]:
    """An atlas whose rounds all begin the same stream: the noise of one round tells that of the next."""

    def broken() -> Mechanism:
        key = os.urandom(32)

        def shared(sums: Integers, lattice: Lattice, _: EntropySource, *rest: Any) -> Floats:
            return noisy_sums(sums, lattice, EntropySource(key), *rest)

        return shared

    yield audit_runs("atlas with one noise stream for all rounds", "control", 200, broken)


GROUPS: tuple[tuple[str, Callable[[float], Iterable[Finding]]], ...] = (
    ("control: noise", less_noise),
    ("control: sensitivity", without_root_two),
    ("control: clipping", without_clipping),
    ("control: budget", counted_once),
    ("control: forks", shared_stream),
    ("control: floating point", plain_floating_point),
    ("control: one run", weak_atlas),
    ("control: rounds", same_noise_every_round),
)
