"""Components that released masses show to be noise are given to groups that share one component.

A component without records cannot find any: it stays where it is, while another one may cover two groups.
So its place goes to one half of a component with many records. Two rounds later the halves are joined again
unless they have come apart. All of it is computed from released numbers, and in a fixed order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.models.gaussians.components import Floats, Gaussians, definite, symmetric
from dpmd_fast.models.gaussians.tuning import HALF_NORMAL_MEAN, LEAST_MASS

Pairs = list[tuple[int, int]]  # places of the two halves of a component


def chosen(model: Gaussians, places: NDArray[np.int64] | list[int]) -> Gaussians:
    """Return the components at these places, with weights that add up to 1."""
    weights = model.weights[places]
    return Gaussians(weights / weights.sum(), model.means[places], model.covariances[places])


def with_records(signals: Floats) -> list[int]:
    """Return the places of components whose mass is not noise; all of them if none is."""
    found = [k for k in range(len(signals)) if signals[k] >= LEAST_MASS]
    return found or list(range(len(signals)))


def split(model: Gaussians, signals: Floats, most: int) -> tuple[Gaussians, Pairs]:
    """Split components with many records, as far as there are places for their second halves.

    Parameters
    ----------
    model : Gaussians
    signals : array (K,)
        Released masses over the deviation of their noise.
    most : int
        Number of components that there may be: places beyond K are free, then those that are only noise.

    Returns
    -------
    Gaussians, list of (int, int)
        The components, and the places of the two halves of each that was split.
    """
    K = len(signals)
    heavy = sorted((k for k in range(K) if signals[k] > 2.0 * LEAST_MASS), key=lambda k: (-signals[k], k))
    noise = [k for k in range(K) if signals[k] < LEAST_MASS]
    given_up = noise[::-1][: max(0, len(heavy) - (most - K))]
    kept = [k for k in range(K) if k not in given_up]
    heavy = heavy[: most - len(kept)]
    model = chosen(model, kept)
    weights, means, covariances = (list(part) for part in model)
    pairs: Pairs = []
    for k in (kept.index(k) for k in heavy):
        values, vectors = np.linalg.eigh(covariances[k])
        axis = vectors[:, -1] * np.sign(vectors[np.argmax(np.abs(vectors[:, -1])), -1])
        step = HALF_NORMAL_MEAN * math.sqrt(values[-1]) * axis
        pairs.append((k, len(weights)))
        weights[k] /= 2.0
        covariances[k] = covariances[k] - np.outer(step, step)
        weights.append(weights[k])
        means.append(means[k] - step)
        means[k] = means[k] + step
        covariances.append(covariances[k])
    halves = definite(symmetric(np.array(covariances)))
    return Gaussians(np.array(weights), np.array(means), halves), pairs


def join(model: Gaussians, signals: Floats, pairs: Pairs) -> tuple[Gaussians, Floats]:
    """Join the halves that describe the records no better than one component; return their signals too."""
    weights, means, covariances = (part.copy() for part in model)
    signals = signals.copy()
    gone = set()
    for pair in pairs:
        both = list(pair)
        if signals[both].min() < LEAST_MASS:  # one half took all the records
            continue
        whole = _joined(chosen(model, both))
        if _gain(chosen(model, both), whole) < 0.0:
            first, second = pair
            weights[first] += weights[second]
            signals[first] += signals[second]
            means[first], covariances[first] = whole.means[0], whole.covariances[0]
            gone.add(second)
    kept = [k for k in range(len(weights)) if k not in gone]
    return chosen(Gaussians(weights, means, covariances), kept), signals[kept]


def _joined(parts: Gaussians) -> Gaussians:
    """Return one component with the moments of all parts."""
    mean = parts.weights @ parts.means
    gaps = parts.means - mean
    second = parts.covariances + gaps[:, :, None] * gaps[:, None, :]
    return Gaussians(np.ones(1), mean[None], symmetric(np.einsum("k,kde->de", parts.weights, second)[None]))


def _gain(parts: Gaussians, whole: Gaussians) -> float:
    """Return by how much parts beat the whole: nats per record, if each record belongs to one part.

    The halves of a normal distribution lose 0.19; those of two groups far apart gain several.
    """
    volumes = np.linalg.slogdet(parts.covariances)[1]
    of_whole = float(np.linalg.slogdet(whole.covariances[0])[1])
    entropy = -float(parts.weights @ np.log(parts.weights))
    return 0.5 * (of_whole - float(parts.weights @ volumes)) - entropy
