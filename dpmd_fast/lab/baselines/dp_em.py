"""DP-EM (Park, Foulds, Chaudhuri and Welling, AISTATS 2017): EM whose parameters are perturbed one by one.

Each of J iterations makes 2 K + 1 releases: the weights together, and mean and covariance of each component
by itself. As in the paper, records are clipped to a ball, all noise is normal (the paper's "GGG"), every
release gets the same share of the budget, parameters are read off with the authors' priors, and eigenvalues
of covariances get their floor.

Two things follow the proof instead of the paper:

- The paper divides by the private mass N_k of a component and uses the sensitivity 2 / N_k, which depends
  on the data. Here masses, sums and second moments are released, and divided afterwards. Replacing a record
  changes the masses by at most sqrt(2), the sum of a component by 2 R, and its second moments (positive
  semidefinite) by sqrt(2) R^2 in Frobenius norm, R being the radius of the ball.
- The paper composes by zCDP or the moments accountant. Here mu^2 adds up, which is exact for normal noise.

With ``separate=False`` the sums of all components are one release, and so are the second moments: a
record's responsibilities sum to one, so that the bounds above hold for all components together, and an
iteration is three releases for any K. That is not in the paper. It is the variant closest to the released
mixture, which in addition measures every record in its component's own frame.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast import Budget
from dpmd_fast.lab.baselines.gaussians import Floats, Gaussians, positive, symmetric_noise

ITERATIONS = 10  # the authors' code
_PRIOR_COUNT = 1.01  # of the mean, theirs
_PRIOR_SPREAD = 0.1  # of the covariance, theirs, for data in the unit ball
_FLOOR = 1e-3  # of eigenvalues, theirs, for data in the unit ball
_ROWS = 20_000


def fit_dp_em(
    records: Floats,
    budget: Budget,
    rng: np.random.Generator,
    *,
    components: int,
    radius: float,
    iterations: int = ITERATIONS,
    separate: bool = True,
) -> Gaussians:
    """Return the mixture after the last iteration.

    `records` are in public units in which columns are centred and of like size. `radius` must be public too.
    """
    D = records.shape[1]
    releases = iterations * (2 * components + 1 if separate else 3)
    mu = budget.mu / math.sqrt(releases)
    norms = np.linalg.norm(records, axis=1)
    clipped = records * np.minimum(1.0, radius / np.maximum(norms, 1e-300))[:, None]
    # Like the authors' start, without a look at the records: theirs is random around the mean of all records.
    means = rng.normal(size=(components, D))
    found = Gaussians(np.full(components, 1.0 / components), means, np.stack([np.eye(D)] * components))
    for _ in range(iterations):
        found = _read(*_perturbed(weighted_moments(clipped, found), radius, mu, rng), radius)
    return found


def weighted_moments(records: Floats, model: Gaussians) -> tuple[Floats, Floats, Floats]:
    """Return masses (K,), sums (K, D) and second moments (K, D, D), weighted by responsibilities."""
    K, D = model.means.shape
    masses, sums, squares = np.zeros(K), np.zeros((K, D)), np.zeros((K, D, D))
    for first in range(0, len(records), _ROWS):
        block = records[first : first + _ROWS]
        shares = model.responsibilities(block)
        masses += shares.sum(axis=0)
        sums += shares.T @ block
        for k in range(K):
            squares[k] += (block * shares[:, k, None]).T @ block
    return masses, sums, squares


def _perturbed(
    moments: tuple[Floats, Floats, Floats], radius: float, mu: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Add noise to masses, sums and second moments, each a mu-GDP release of its own."""
    masses, sums, squares = moments
    return (
        masses + math.sqrt(2.0) / mu * rng.normal(size=masses.shape),
        sums + 2.0 * radius / mu * rng.normal(size=sums.shape),
        squares + symmetric_noise(sums.shape, math.sqrt(2.0) * radius**2 / mu, rng),
    )


def _read(masses: Floats, sums: Floats, squares: Floats, radius: float) -> Gaussians:
    """Return the most probable parameters under the authors' priors, from noisy moments."""
    K, D = sums.shape
    masses = np.maximum(masses, 1.0)
    weights = (masses + 1.0) / (masses + 1.0).sum()
    means, covariances = np.empty_like(sums), np.empty_like(squares)
    for k in range(K):
        mean = sums[k] / masses[k]
        norm = float(np.linalg.norm(mean))
        mean *= min(1.0, radius / max(norm, 1e-300))
        pull = _PRIOR_COUNT * masses[k] / (_PRIOR_COUNT + masses[k])
        spread = squares[k] + (pull - masses[k]) * np.outer(mean, mean)
        spread += _PRIOR_SPREAD * radius**2 * np.eye(D)
        means[k] = mean * masses[k] / (masses[k] + _PRIOR_COUNT)
        covariances[k] = positive(spread / (masses[k] + 2.0 * D + 3.0), _FLOOR * radius**2)
    return Gaussians(weights, means, covariances)
