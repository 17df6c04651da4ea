"""Components that released masses show to be noise are given to groups that share one component.

A component without records cannot find any: it stays where it is, while another one may cover two groups.
So its place goes to one half of a component with many records. Two rounds later the halves are joined again
unless they have come apart. All of it is computed from released numbers, and in a fixed order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import cholesky, weighted
from dpmd_fast.kernels.vector.elementary import fixed_logs
from dpmd_fast.models.gaussians.components import Floats, Gaussians, definite, symmetric
from dpmd_fast.models.gaussians.tuning import EVIDENCE_ROUNDS, HALF_NORMAL_MEAN, LEAST_MASS, SPLIT_SIGNAL

Pairs = list[tuple[int, int]]  # places of the two halves of a component
Rounds = list[tuple[float, Floats]]  # share of the budget and signals (K,) of rounds with the same components


def chosen(model: Gaussians, places: NDArray[np.int64] | list[int]) -> Gaussians:
    """Return the components at these places, with weights that add up to 1."""
    weights = model.weights[places]
    return Gaussians(weights / weights.sum(), model.means[places], model.covariances[places])


def evidence(rounds: Rounds) -> Floats:
    """Return masses over the deviation of their noise, from the last rounds together.

    One round is not enough: a group with a mass of 4 deviations is below 3 in every sixth round.
    """
    last = rounds[-EVIDENCE_ROUNDS:]
    total = sum((math.sqrt(share) * signals for share, signals in last), np.zeros(len(last[0][1])))
    combined: Floats = total / math.sqrt(math.fsum(share for share, _ in last))
    return combined


def with_records(signals: Floats) -> list[int]:
    """Return the places of components whose mass is not noise; all of them if none is."""
    found = [k for k in range(len(signals)) if signals[k] >= LEAST_MASS]
    return found or list(range(len(signals)))


def split(model: Gaussians, signals: Floats, seen: Floats, most: int) -> tuple[Gaussians, Pairs]:
    """Split components with many records, as far as there are places for their second halves.

    Parameters
    ----------
    model : Gaussians
    signals : array (K,)
        Released masses over the deviation of their noise: those of many records are split.
    seen : array (K,)
        `evidence` of the masses: components without any may be given up.
    most : int
        Number of components that there may be: places beyond K are free, then those that are only noise.

    Returns
    -------
    Gaussians, list of (int, int)
        The components, and the places of the two halves of each that was split.
    """
    K = len(signals)
    heavy = sorted((k for k in range(K) if signals[k] > SPLIT_SIGNAL), key=lambda k: (-signals[k], k))
    noise = [k for k in range(K) if seen[k] < LEAST_MASS]
    given_up = noise[::-1][: max(0, len(heavy) - (most - K))]
    kept = [k for k in range(K) if k not in given_up]
    heavy = heavy[: most - len(kept)]
    model = chosen(model, kept)
    weights, means, covariances = (list(part) for part in model)
    pairs: Pairs = []
    for k in (kept.index(k) for k in heavy):
        values, vectors = spectra(covariances[k])
        step = HALF_NORMAL_MEAN * math.sqrt(values[-1]) * vectors[:, -1]
        pairs.append((k, len(weights)))
        weights[k] /= 2.0
        covariances[k] = covariances[k] - np.outer(step, step)
        weights.append(weights[k])
        means.append(means[k] - step)
        means[k] = means[k] + step
        covariances.append(covariances[k])
    halves = definite(symmetric(np.array(covariances)))
    return Gaussians(np.array(weights), np.array(means), halves), pairs


def join(model: Gaussians, rounds: Rounds, pairs: Pairs) -> tuple[Gaussians, Rounds]:
    """Join the halves that describe the records no better than one component, and add up their signals."""
    weights, means, covariances = (part.copy() for part in model)
    table = np.array([signals for _, signals in rounds])
    gone = set()
    for pair in pairs:
        both = list(pair)
        if table[-1, both].min() < LEAST_MASS:  # one half took all the records
            continue
        halves = chosen(model, both)
        whole = _joined(halves)
        if _gain(halves, whole) < 0.0:
            first, second = pair
            weights[first] += weights[second]
            table[:, first] += table[:, second]
            means[first], covariances[first] = whole.means[0], whole.covariances[0]
            gone.add(second)
    kept = [k for k in range(len(weights)) if k not in gone]
    joined = [(share, row[kept]) for (share, _), row in zip(rounds, table, strict=True)]
    return chosen(Gaussians(weights, means, covariances), kept), joined


def _joined(parts: Gaussians) -> Gaussians:
    """Return one component with the moments of all parts."""
    mean = weighted(parts.weights, parts.means)
    gaps = parts.means - mean
    second = parts.covariances + gaps[:, :, None] * gaps[:, None, :]
    return Gaussians(np.ones(1), mean[None], symmetric(weighted(parts.weights, second)[None]))


def _gain(parts: Gaussians, whole: Gaussians) -> float:
    """Return by how much parts beat the whole: nats per record, if each record belongs to one part.

    The halves of a normal distribution lose 0.19; those of two groups far apart gain several.
    """
    entropy = -float((parts.weights * fixed_logs(parts.weights)).sum())
    return float(_log_volumes(whole)[0]) - float((parts.weights * _log_volumes(parts)).sum()) - entropy


def _log_volumes(parts: Gaussians) -> Floats:
    """Return half the logarithm of the determinant of each covariance (K,)."""
    roots = np.diagonal(cholesky(parts.covariances), axis1=1, axis2=2)
    volumes: Floats = fixed_logs(roots).sum(axis=1)
    return volumes
