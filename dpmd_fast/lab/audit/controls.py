"""Negative controls: mechanisms broken on purpose, which an audit must catch.

Each breaks one thing from outside, by wrapping the real code; no option of the package can turn one on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpmd_fast.lab.audit.atlas import CANARIES, audit_atlas_runs, audit_canaries
from dpmd_fast.lab.audit.attacks import Finding, audit_pair
from dpmd_fast.lab.audit.cases import (
    BANDWIDTH,
    BUDGET,
    LOCATIONS,
    MANY,
    audit_sums,
    fork_parts,
    scaled,
    worst_neighbours,
)
from dpmd_fast.lab.audit.pairs import Floats, ForkedPair, Integers, Pair, Part, Setting
from dpmd_fast.lab.audit.runs import Mechanism
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.lattice import Lattice
from dpmd_fast.privacy.noise import noisy_means, noisy_sums


def _caught(name: str, pair: Pair, effort: float) -> Finding:
    return audit_sums(name, "control", BUDGET.mu, pair, scaled(MANY // 2, effort))


def less_noise(effort: float) -> Iterator[Finding]:
    """Scale the noise by 0.7."""
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    part = setting.part(*worst_neighbours(setting))
    weak = replace(setting.lattice, deviation=round(0.7 * setting.lattice.deviation))
    pair = Pair([part], lattice=weak)
    yield _caught("noise scaled by 0.7", pair, effort)


def without_root_two(effort: float) -> Iterator[Finding]:
    """Claim replace-one with the noise of add-remove."""
    pair_setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    neighbours = worst_neighbours(pair_setting)
    broken = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu, adjacency="add-remove")
    yield _caught("sensitivity without sqrt(2)", Pair([broken.part(*neighbours)]), effort)


def without_clipping(effort: float) -> Iterator[Finding]:
    """Sum contributions without clipping them to tau."""
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
    """Spend the whole budget in each of two rounds."""
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    part = setting.part(*worst_neighbours(setting))
    yield _caught("budget counted once for two rounds", Pair([part, part]), effort)


def shared_stream(effort: float) -> Iterator[Finding]:
    """Use an entropy source that misses a fork: both children draw the same noise, and it cancels."""
    # a source with a given key stays unchanged in a child, like one without a fork hook
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
    """Add Gaussian noise in plain floating point: the low bits of small results reveal the true value.

    If the neighbours have values 0 and 1, a result near 0 is either noise near 0, which has fine digits, or 1
    plus noise near -1, which is a multiple of 2^-53 (after Mironov 2012).
    """
    entropy = open_source()

    def draw(side: int, count: int) -> Floats:
        values = noisy_means(np.full((count, 1), 1.0 - side), np.full(count, 1.0 / BUDGET.mu), entropy)[:, 0]
        fine = np.mod(values * 2.0**53, 1.0) != 0.0
        return np.asarray((np.abs(values) < 0.25) & fine, dtype=np.float64)

    yield audit_pair(
        "plain floating-point noise, low bits",
        "control",
        BUDGET.mu,
        draw,
        scaled(MANY // 2, effort),
        what="low bits of a noisy mean",
    )


def weak_atlas(effort: float) -> Iterator[Finding]:
    """Release an atlas with a tenth of the noise, once: what a single run can detect."""
    yield audit_canaries(
        "atlas with noise scaled by 0.1, one run",
        "control",
        Budget(2.0, 1e-6),
        guesses=0.3,
        noise=0.1,
        canaries=CANARIES if effort >= 0.1 else CANARIES // 2,
    )


def same_noise_every_round(effort: float) -> Iterator[Finding]:
    """Release an atlas whose rounds share one noise stream: one round reveals the noise of the next."""

    def broken() -> Mechanism:
        key = os.urandom(32)

        def shared(sums: Integers, lattice: Lattice, _: EntropySource, *rest: Any) -> Floats:
            return noisy_sums(sums, lattice, EntropySource(key), *rest)

        return shared

    yield audit_atlas_runs("atlas with one noise stream for all rounds", "control", 200, broken)


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
