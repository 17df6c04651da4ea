"""The recipe of a mixture: how many components, how the budget is divided, where the components start.

Everything here is decided by public and released numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.cluster.vq import kmeans2

from dpmd_fast.kernels.linear import cholesky, product
from dpmd_fast.models.gaussians.components import Floats, Gaussians
from dpmd_fast.models.gaussians.tuning import (
    CLIP,
    COMPONENT_SIGNAL,
    FIRST_CLIP,
    FIRST_SHARE,
    FIRST_SHARE_OF_ONE,
    GROWTH,
    HOMOGENEOUS,
    MOST_COMPONENTS,
    ROUNDS,
    START_DRAWS,
    START_VARIANCE,
)
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import relative_sensitivity


@dataclass(frozen=True)
class Recipe:
    """What is decided before the spend.

    Attributes
    ----------
    components : int
    shares : tuple of float
        Of mu^2, for each release; the first takes all records as one component.
    taus : tuple of float
        Norm to which a record is clipped, for each release.
    signal : float
        Number of records over the deviation of the noise of one component that gets the whole budget, clipped
        as in the rounds of several components.
    component_signal : float
        Mean mass of a component over the deviation of its noise, in the last release.
    """

    components: int
    shares: tuple[float, ...]
    taus: tuple[float, ...]
    signal: float
    component_signal: float


def choose_recipe(
    n: int, columns: int, mu: float, adjacency: Adjacency, components: int | None, rounds: int | None
) -> Recipe:
    """Return the recipe for `n` records and a budget of `mu`; None where it is free to choose."""
    mean_square = columns + HOMOGENEOUS
    signal = n * mu / (relative_sensitivity(adjacency) * CLIP * mean_square)
    number = ROUNDS if rounds is None else rounds
    if components is None:
        usual = signal * math.sqrt((1.0 - FIRST_SHARE) / number)  # in a round of the mean share
        components = max(1, min(MOST_COMPONENTS, int(usual / COMPONENT_SIGNAL)))
    if components == 1:
        shares: tuple[float, ...] = (FIRST_SHARE_OF_ONE, 1.0 - FIRST_SHARE_OF_ONE)
        clips = [FIRST_CLIP, FIRST_CLIP]
    else:
        shares = (FIRST_SHARE, *growing(1.0 - FIRST_SHARE, number))
        clips = [FIRST_CLIP, *[CLIP] * number]
    last = signal * math.sqrt(shares[-1]) * CLIP / clips[-1] / components
    return Recipe(components, shares, tuple(clip * mean_square for clip in clips), signal, last)


def growing(total: float, number: int) -> list[float]:
    """Return shares that add up to `total`, each larger than the one before."""
    powers = [GROWTH**i for i in range(number)]
    return [total * power / sum(powers) for power in powers]


def public_normal(columns: int) -> Gaussians:
    """Return the standard normal: what is known of preprocessed columns before a release."""
    return Gaussians(np.ones(1), np.zeros((1, columns)), np.eye(columns)[None])


def start(whole: Gaussians, components: int) -> Gaussians:
    """Return components spread over the released normal of all records, by k-means of draws from it.

    The draws are the same in every run, and public: what follows is measured, wherever it starts.
    """
    if components == 1:
        return whole
    columns = whole.means.shape[1]
    draws = np.random.default_rng(0).normal(size=(START_DRAWS, columns))
    centers: Floats = kmeans2(draws, components, minit="++", seed=0, missing="warn")[0]
    root = cholesky(whole.covariances[0])
    return Gaussians(
        np.full(components, 1.0 / components),
        whole.means + product(centers, root.T),
        np.repeat(START_VARIANCE * whole.covariances, components, axis=0),
    )
