"""Audits of the mechanisms by pairs of neighbours; `atlas.py` has those of an atlas.

"Noisy sums": the release code computes the integer sums of both neighbours once, and the mechanism draws
fresh noise for each release. "End to end": each release is a call of the public function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.lab.audit.attacks import SEEN, Finding, Kind, audit_pair
from dpmd_fast.lab.audit.pairs import (
    Floats,
    ForkedPair,
    Pair,
    Part,
    Setting,
    candidates,
    farthest,
    recorded,
    run_scores,
)
from dpmd_fast.mechanisms import algorithm2, projector
from dpmd_fast.mechanisms import moment_denoiser as direct
from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
from dpmd_fast.mechanisms.moments import release_moments
from dpmd_fast.mechanisms.preprocessor import nested, noisy_counts
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.histograms import Grid, nested_lattice
from dpmd_fast.privacy.noise import noisy_means, noisy_projectors, noisy_sums
from dpmd_fast.reference.histograms import NestedCounts

BUDGET = Budget(4.0, 1e-5)  # mu = 0.92: large enough to measure, small enough to be realistic
SMALL = Budget(1.0, 1e-6)
MANY = 200_000  # releases counted per side; a quarter as many more fit the attack
LOCATIONS = np.array([[0.0, 0.0], [0.4, 0.0], [5.0, 0.0], [5.0, 0.3]])
BANDWIDTH = 1.0


def data(n: int = 60) -> Floats:
    """Return records around the locations that both neighbours share."""
    rng = np.random.default_rng(1)
    return LOCATIONS[rng.integers(len(LOCATIONS), size=n)] + 0.3 * rng.normal(size=(n, 2))


def scaled(count: int, effort: float) -> int:
    return max(1_000, int(count * effort))


def worst_records(setting: Setting) -> tuple[Floats, Floats]:
    """Return the two candidates whose contributions are farthest apart; with "add-remove", none and one."""
    records = candidates(setting.locations, setting.bandwidth, np.random.default_rng(2))
    alone = [setting.total(record[None]) for record in records]
    if setting.adjacency == "add-remove":
        squares = [float((one.astype(np.float64) ** 2).sum()) for one in alone]
        return records[:0], records[[int(np.argmax(squares))]]
    i, j = farthest(alone)
    return records[[i]], records[[j]]


def worst_neighbours(setting: Setting) -> tuple[Floats, Floats]:
    """Return data sets that differ in the worst record."""
    first, second = worst_records(setting)
    return np.concatenate([data(), first]), np.concatenate([data(), second])


def audit_sums(name: str, kind: Kind, claimed: float, pair: Pair, releases: int) -> Finding:
    """Attack fresh noise on the sums of a pair."""
    return audit_pair(name, kind, claimed, pair.draw, releases, direction=pair.direction, pair=pair.mu)


def moments(effort: float) -> Iterator[Finding]:
    """Audit `release_moments`."""
    settings: tuple[tuple[Budget, Adjacency, int], ...] = (
        (BUDGET, "replace-one", MANY),
        (BUDGET, "add-remove", MANY),
        (SMALL, "replace-one", 5 * MANY),
    )
    for budget, adjacency, releases in settings:
        setting = Setting(LOCATIONS, BANDWIDTH, budget.mu, adjacency=adjacency)
        pair = Pair([setting.part(*worst_neighbours(setting))])
        name = f"moments, {adjacency}, ({budget.epsilon:g}, {budget.delta:g})"
        yield audit_sums(name, "core", budget.mu, pair, scaled(releases, effort))
    yield _moments_end_to_end(effort)
    yield _low_bits(effort)


def _moments_end_to_end(effort: float) -> Finding:
    setting = Setting(LOCATIONS, BANDWIDTH, BUDGET.mu)
    neighbours = worst_neighbours(setting)
    pair = Pair([setting.part(*neighbours)])
    # like `Pair`, `shown` expects only the locations where the neighbours differ
    differ = (setting.total(neighbours[0]) != setting.total(neighbours[1])).any(axis=(1, 2))

    def draw(side: int, count: int) -> Floats:
        values = [
            release_moments(
                neighbours[side],
                LOCATIONS,
                bandwidth=BANDWIDTH,
                budget=BUDGET,
                accept_risk=True,
                n_threads=1,
            ).values
            for _ in range(count)
        ]
        return pair.shown([np.array(values)[:, differ]])

    return audit_pair(
        "moments, replace-one, (4, 1e-05)",
        "mechanism",
        BUDGET.mu,
        draw,
        scaled(4_000, effort),
        what="release_moments, end to end",
        direction=pair.direction,
        pair=pair.mu,
        seen=SEEN,
    )


def _low_bits(effort: float) -> Finding:
    """Attack the lowest byte of the lattice steps, the attack that breaks plain floating point."""
    setting = Setting(LOCATIONS[:1], BANDWIDTH, BUDGET.mu, adjacency="add-remove")
    lattice, entropy = setting.lattice, open_source()

    def draw(side: int, count: int) -> Floats:
        sums = np.full((count, 1, 1), side * lattice.bound)
        values = noisy_sums(sums, lattice, entropy).ravel()
        steps = np.rint(values / lattice.step)
        return np.where(steps * lattice.step == values, np.mod(steps, 256.0), -1.0)

    return audit_pair(
        "moments, low bits",
        "mechanism",
        BUDGET.mu,
        draw,
        scaled(MANY, effort),
        what="low bits of a noisy sum",
        pair=lattice.mu,
    )


def forks(effort: float) -> Iterator[Finding]:
    """Audit two releases from one source in two forked children, each of which must draw its own noise."""
    pair = ForkedPair(fork_parts(), open_source())
    releases = scaled(MANY // 2, effort)
    yield audit_sums("moments released by two forks", "core", BUDGET.mu, pair, releases)


def fork_parts() -> list[Part]:
    """Return moments at the same two locations in two orders, for half of mu^2 each."""
    mu = BUDGET.mu / math.sqrt(2.0)
    settings = [Setting(places, BANDWIDTH, mu) for places in (LOCATIONS[[0, 2]], LOCATIONS[[2, 0]])]
    neighbours = worst_neighbours(settings[0])
    return [setting.part(*neighbours) for setting in settings]


def histograms(effort: float) -> Iterator[Finding]:
    """Audit the nested histograms behind private medians: all columns and levels together."""
    plan = nested_lattice(BUDGET.mu, columns=2, bins=16, adjacency="replace-one")
    rng = np.random.default_rng(3)
    background, worst = rng.uniform(0.0, 1.0, (60, 2)), (np.array([[0.1, 0.1]]), np.array([[0.9, 0.9]]))
    counts = []
    for record in worst:
        counted = NestedCounts([Grid.between(0.0, 1.0, 16, False)] * 2)
        counted.add(np.concatenate([background, record]))
        counts.append(counted.counts)
    sides = [np.concatenate([level.ravel() for level in nested(c)]) / plan.noise_scale for c in counts]
    entropy = open_source()

    def draw(side: int, count: int) -> Floats:
        levels = noisy_counts(np.tile(counts[side], (count, 1)), plan, entropy)
        rows = np.concatenate([level.reshape(count, 2, -1) for level in levels], axis=2)
        ordered = np.concatenate(
            [rows[:, :, :4].reshape(count, -1), rows[:, :, 4:].reshape(count, -1)], axis=1
        )
        return ordered / plan.noise_scale - 0.5 * (sides[0] + sides[1])

    yield audit_pair(
        "nested histograms",
        "core",
        BUDGET.mu,
        draw,
        scaled(MANY, effort),
        what="noisy counts",
        direction=sides[1] - sides[0],
        pair=float(np.linalg.norm(sides[1] - sides[0])),
    )


def two_steps(effort: float) -> Iterator[Finding]:
    """Audit `DPManifoldDenoiser(steps=2)`: the second release is made where the first moved the queries."""
    rng = np.random.default_rng(4)
    queries = np.array([[0.0, 0.1], [5.0, 0.1]])
    around = np.repeat(queries, 60, axis=0) + rng.normal(size=(120, 2)) * [0.3, 0.05]
    # off the queries: on a query a contribution has no entries off the diagonal
    longest = BANDWIDTH * math.sqrt((1.0 - 2.0 * HOMOGENEOUS) / 3.0)
    neighbours = [np.concatenate([around, query[None] + math.sqrt(0.5) * longest]) for query in queries]

    def transform(side: int) -> tuple[list[Part], list[Floats], float]:
        """Return the releases of one run: sums of both neighbours at its locations, its values, its mu."""
        model = DPManifoldDenoiser(BANDWIDTH, 1, BUDGET, steps=2, accept_risk=True, n_threads=1)
        model.fit(neighbours[side])
        with recorded(direct, "noisy_moments") as calls:
            model.transform(queries)
        parts = []
        for call in calls:
            _, index, _, beta, tau, lattice, *_ = call.arguments
            totals = []
            for records in neighbours:
                sums = MomentSums(index, beta, tau, lattice.steps, HOMOGENEOUS, 1)
                sums.add(records)
                totals.append(sums.total())
            parts.append(Part(totals[0], totals[1], lattice))
        return parts, [call.result.values for call in calls], model.guarantee_.mu

    parts, _, claimed = transform(0)
    pair = Pair(parts)
    yield audit_sums("denoiser, two steps", "core", claimed, pair, scaled(MANY, effort))

    def draw(side: int, count: int) -> Floats:
        runs = (transform(side) for _ in range(count))
        return np.array([run_scores(parts, values) for parts, values, _ in runs])

    yield audit_pair(
        "denoiser, two steps",
        "mechanism",
        claimed,
        draw,
        scaled(2_000, effort),
        what="both releases of transform, end to end",
        pair=pair.mu,
        seen=SEEN,
    )


def algorithm_one(effort: float) -> Iterator[Finding]:
    """Audit `dp_projector` where C is known: projectors of lines in a plane are at most sqrt(2) apart."""
    cross = 0.5 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    # one more record on an axis decides which axis is the tangent
    neighbours = [np.concatenate([np.tile(cross, (5, 1)), cross[[2 * side]]]) for side in (0, 1)]
    constant = math.sqrt(2.0) * len(neighbours[0]) * BANDWIDTH

    def release(side: int) -> projector.ProjectorRelease:
        return projector.dp_projector(
            neighbours[side], [0.0, 0.0], BANDWIDTH, 1, BUDGET, "budget", sensitivity_constant=constant
        )

    matrices = []
    for side in (0, 1):
        with recorded(projector, "noisy_projectors") as calls:
            claimed = release(side).guarantee.mu
        matrix, columns, scales = calls[0].arguments[:3]
        matrices.append(matrix)
    entropy = open_source()
    upper = np.triu_indices(2)
    sides = [matrix[0][upper] / scales[0] for matrix in matrices]

    def draw(side: int, count: int) -> Floats:
        tiled = np.tile(matrices[side], (count, 1, 1))
        noisy = noisy_projectors(tiled, columns, np.full(count, scales[0]), entropy)
        return np.asarray(noisy[:, upper[0], upper[1]] / scales[0] - 0.5 * (sides[0] + sides[1]))

    gap = sides[1] - sides[0]
    yield audit_pair(
        "Algorithm 1, C known",
        "core",
        claimed,
        draw,
        scaled(MANY, effort),
        what="noisy projectors",
        direction=gap,
        pair=float(np.linalg.norm(gap)),
    )

    def draw_projector(side: int, count: int) -> Floats:
        return np.array([release(side).projector[1, 1] for _ in range(count)])

    yield audit_pair(
        "Algorithm 1, C known",
        "mechanism",
        claimed,
        draw_projector,
        scaled(4_000, effort),
        what="dp_projector, end to end",
        pair=float(np.linalg.norm(gap)),
        seen=SEEN,
    )


def algorithm_two(effort: float) -> Iterator[Finding]:
    """Audit Algorithm 2 where C is known: means in a ball are at most 2 h apart, projectors sqrt(2)."""
    # the two records at the edge have almost no weight, but turn the tangent at the one that has
    edge = np.array([[0.72, 0.69], [-0.998, 0.0]])
    neighbours = [np.concatenate([edge, [[0.9 - 1.8 * side, 0.0]]]) for side in (0, 1)]
    constant = 2.0 * len(neighbours[0]) * BANDWIDTH
    inputs = []
    for side in (0, 1):
        model = DPManifoldDenoiser(
            BANDWIDTH,
            1,
            BUDGET,
            mechanism="projector",
            sensitivity_constant=constant,
            accept_risk=True,
            n_threads=1,
        )
        with (
            recorded(algorithm2, "noisy_projectors") as projectors,
            recorded(algorithm2, "noisy_means") as means,
        ):
            model.fit(neighbours[side]).transform([[0.0, 0.0]])
        inputs.append((projectors[0].arguments, means[0].arguments))
    claimed = model.guarantee_.mu
    entropy = open_source()
    upper = np.triu_indices(2)

    def coordinates(side: int, matrices: Floats, points: Floats) -> Floats:
        projector_scale, mean_scale = inputs[side][0][2][0], inputs[side][1][1][0]
        entries = matrices[:, upper[0], upper[1]] / projector_scale
        return np.concatenate([entries, points / mean_scale], axis=1)

    def draw(side: int, count: int) -> Floats:
        (matrix, columns, scales, *_), (mean, mean_scales, *_) = inputs[side]
        noisy = noisy_projectors(np.tile(matrix, (count, 1, 1)), columns, np.repeat(scales, count), entropy)
        points = noisy_means(np.tile(mean, (count, 1)), np.repeat(mean_scales, count), entropy)
        return coordinates(side, noisy, points)

    first, second = (coordinates(side, inputs[side][0][0], inputs[side][1][0])[0] for side in (0, 1))
    yield audit_pair(
        "Algorithm 2, C known",
        "mechanism",
        claimed,
        draw,
        scaled(MANY, effort),
        what="noisy projectors and means",
        direction=second - first,
        pair=float(np.linalg.norm(second - first)),
    )


Group = Callable[[float], Iterable[Finding]]
GROUPS: tuple[tuple[str, Group], ...] = (
    ("moments", moments),
    ("two forks", forks),
    ("nested histograms", histograms),
    ("denoiser with two steps", two_steps),
    ("Algorithm 1", algorithm_one),
    ("Algorithm 2", algorithm_two),
)
