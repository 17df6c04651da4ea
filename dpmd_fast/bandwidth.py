"""The bandwidth of an atlas: what public points say, and a small paid comparison where they do not suffice.

From public points alone one can tell how much signal a bandwidth gives, not how strongly the manifold bends.
So a few bandwidths are tried: for each a pilot round 1 with a small share of the budget, and then one release
that says how far the records lie from each of the pilot maps. Noise in the maps adds to that distance, by an
amount that can be simulated; what is left beyond the best of them is the bias of too large a bandwidth.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.cover import Floats, Prospect, foresee, greedy_cover, smoothed
from dpmd_fast.kernels.charts import Field, move
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.rounds import C, FirstRelease, Mechanism, charts_of, projection_field, release_anchors
from dpmd_fast.sums import FeatureSums

PILOT_SHARE = 0.025  # of the budget of the rounds, for each bandwidth that is tried
COMPARE_SHARE = 0.02  # for the comparison
ENOUGH_SIGNAL = 300.0  # S / s that the rounds can use up
_LEAST_SIGNAL = 45.0
_RATIO = 0.75
_MOST_TRIED = 4
_BIAS_LEFT = 0.4  # what residual rounds leave of the bias of round 1
_NOISE = 0.7  # noise of the finished map, in units of h s / S
_CLIP = 1.5


class Candidate(NamedTuple):
    bandwidth: float
    prospect: Prospect  # at the share of round 1


class Reach(NamedTuple):
    """Bandwidths that make sense for some public points."""

    largest: float
    least: float  # below, some public points would be out of reach


def sensible_range(Z: Floats, dim: int, n_threads: int | None) -> Reach:
    """From half the rms radius of the public points down to their own distance from a smooth copy."""
    rms = math.sqrt(float(((Z - Z.mean(axis=0)) ** 2).sum(axis=1).mean()))
    cap = 0.5 * rms
    moved = np.sqrt(((Z - smoothed(Z, cap, dim, n_threads)) ** 2).sum(axis=1))
    scatter = math.sqrt(float((moved**2).mean()))
    if 4.0 * scatter >= cap:
        cap = min(4.0 * scatter, 0.8 * rms)
    return Reach(cap, min(cap, 1.05 * float(np.quantile(moved, 0.995))))


def public_choice(reach: Reach, scatter_floor: float, look) -> Candidate:  # type: ignore[no-untyped-def]
    """Smallest bandwidth above the scatter of the public points with enough signal, else the largest."""
    best = Candidate(reach.largest, look(reach.largest))
    floor = 4.0 * scatter_floor
    if floor >= reach.largest:
        return best
    for k in range(int(math.log(reach.largest / floor) / math.log(1.12)), -1, -1):
        h = reach.largest / 1.12**k
        candidate = Candidate(h, look(h))
        if candidate.prospect.signal >= ENOUGH_SIGNAL:
            return candidate
    return best


def candidates(start: Candidate, reach: Reach, look) -> list[Candidate]:  # type: ignore[no-untyped-def]
    """The public choice and smaller bandwidths that still have signal."""
    out = [start]
    while len(out) < _MOST_TRIED:
        h = _RATIO * out[-1].bandwidth
        if h < reach.least:
            break
        prospect = look(h)
        if prospect.signal < _LEAST_SIGNAL:
            break
        out.append(Candidate(h, prospect))
    return out


def compare(
    mechanism: Mechanism, tried: list[Candidate], Z: Floats, dim: int, cover: float, mu2: float
) -> Candidate:
    """Spend ``PILOT_SHARE`` of `mu2` on each bandwidth and ``COMPARE_SHARE`` on the comparison; the best."""
    fields: list[Field] = []
    noises, variances = [], []
    kept = []
    for candidate in tried:
        h = candidate.bandwidth
        flat = smoothed(Z, h, dim, mechanism.n_threads)
        release = release_anchors(
            mechanism, greedy_cover(flat, cover * h), h, math.sqrt(PILOT_SHARE * mu2)
        )
        charts = charts_of(release, dim)
        if charts is None:
            continue
        field = projection_field(charts[0])
        fields.append(field)
        variances.append(charts[1])
        noises.append(_simulated_noise(release, field, flat, dim, mechanism.n_threads))
        kept.append(candidate)
    if len(kept) < 2:
        return kept[0] if kept else tried[0]
    distances = _distances(mechanism, fields, 3.0 * math.sqrt(float(np.median(variances))), mu2)
    excess = distances - np.array(noises)
    bias = np.maximum(0.0, excess - excess.min())
    signal = np.array([candidate.prospect.signal for candidate in kept])
    widths = np.array([candidate.bandwidth for candidate in kept])
    noise = _NOISE * widths / signal * (1.0 + (60.0 / signal) ** 2)
    return kept[int(np.argmin(_BIAS_LEFT**2 * bias + noise**2))]


def _simulated_noise(
    release: FirstRelease, field: Field, points: Floats, dim: int, n_threads: int | None
) -> float:
    """Mean squared move of the map when noise of the same size is added to its release once more."""
    rng = np.random.default_rng(0)  # no secret: post-processing of what is released
    F = release.values.shape[1]
    noise = rng.standard_normal(release.values.shape) * release.noise_scale
    upper = np.triu(noise, 1) / math.sqrt(2.0)
    diagonal = np.eye(F) * noise
    again = charts_of(
        release._replace(values=release.values + upper + upper.transpose(0, 2, 1) + diagonal), dim
    )
    if again is None:
        return math.inf
    first, reached = move(field, points, n_threads)
    second, reached_again = move(projection_field(again[0]), points, n_threads)
    both = reached & reached_again
    return float(((first - second)[both] ** 2).sum(axis=1).mean()) if both.any() else math.inf


def _distances(mechanism: Mechanism, fields: list[Field], radius: float, mu2: float) -> Floats:
    """Mean squared distance of the records from each map, distances beyond `radius` counted as `radius`."""
    lattice = choose_lattice(math.sqrt(COMPARE_SHARE * mu2), _CLIP, mechanism.adjacency)
    sums = FeatureSums(len(fields) + 1, _CLIP, lattice, mechanism.n_threads)

    def features(Y: Floats) -> Floats:
        out = np.ones((len(Y), len(fields) + 1))
        for j, field in enumerate(fields):
            X, reached = move(field, Y, mechanism.n_threads)
            with np.errstate(over="ignore", invalid="ignore"):
                lengths = np.sqrt(((Y - X) ** 2).sum(axis=1)) / radius
            out[:, j] = np.where(reached & (lengths < 1.0), lengths, 1.0)
        out[~np.isfinite(Y).all(axis=1)] = 0.0
        return out

    values = mechanism.release(sums, lattice, features)[0]
    mass = max(float(values[-1, -1]), lattice.noise_scale)
    return np.maximum(np.diagonal(values)[:-1], 0.0) / mass * radius * radius


def foreseeing(  # type: ignore[no-untyped-def]
    Z: Floats, n: int, mu: float, dim: int, apart: float, cover: float, n_threads: int | None
):
    """`foresee` as a function of the bandwidth alone, each computed once."""
    known: dict[float, Prospect] = {}

    def look(h: float) -> Prospect:
        if h not in known:
            known[h] = foresee(Z, h, n, mu, dim, apart=apart, cover=cover, c=C, n_threads=n_threads)
        return known[h]

    return look
