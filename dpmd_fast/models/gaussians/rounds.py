"""The rounds of a mixture: all records as one component, then all components in their own frames.

    release(model, tau, lattice) --> noisy sums in the frames of `model` --> the next model

`release_mixture` runs them on the private records. `rehearse` runs them on public points with made-up noise,
to learn before a spend what clipping, noise and the number of components would leave of such points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.posterior import draw_missing, make_components
from dpmd_fast.kernels.sums.exact import MixtureSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.models.gaussians.components import Floats, Gaussians, in_data_units, not_flat, read_moments
from dpmd_fast.models.gaussians.recipe import Recipe, public_normal, start
from dpmd_fast.models.gaussians.regroup import Pairs, Rounds, chosen, evidence, join, split, with_records
from dpmd_fast.models.gaussians.tuning import CLIP, HOMOGENEOUS, LEAST_MASS, SPLIT_AFTER, TRIAL
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import Lattice, choose_lattice

ReleaseSums = Callable[[Gaussians, float, Lattice], Floats]


class Found(NamedTuple):
    """Number of records in the unit of `Recipe.signal`, as the released masses say, and its deviation.

    Clipped records count less, so it is somewhat too small.
    """

    signal: float
    deviation: float


class Made(NamedTuple):
    """The released components, their masses over the noise, what each release spent and what was found."""

    model: Gaussians
    signals: tuple[float, ...]
    spends: list[tuple[str, float]]
    found: Found


def run_rounds(columns: int, recipe: Recipe, mu: float, adjacency: Adjacency, release: ReleaseSums) -> Made:
    """Spend a budget of `mu`: all records as one component, then the rounds of all components."""
    model = whole = public_normal(columns)
    spends: list[tuple[str, float]] = []
    totals: list[Found] = []
    history: Rounds = []
    trials: dict[int, Pairs] = {}  # halves of components, by the round after which they may be joined
    last = len(recipe.shares) - 1
    for number, (share, tau) in enumerate(zip(recipe.shares, recipe.taus, strict=True)):
        if number == 1:
            whole, model = model, start(model, recipe.components)
        size = len(model.weights)
        what = f"round {number}, components: {size}" if number else "all records as one component"
        lattice = choose_lattice(math.sqrt(share) * mu, tau, adjacency)
        found = read_moments(release(model, tau, lattice), lattice.noise_scale)
        model = not_flat(in_data_units(model, found), whole)
        spends.append((what, share * mu**2))
        if number:  # the first release, in public units, may clip most of every record
            unit = tau / (CLIP * (columns + HOMOGENEOUS)) / math.sqrt(share)
            totals.append(Found(unit * float(found.signals.sum()), unit * math.sqrt(size)))
        history = [*history, (share, found.signals)] if number > 1 else [(share, found.signals)]
        if number in trials:
            model, history = join(model, history, trials.pop(number))
        if number in SPLIT_AFTER and number + TRIAL < last:
            seen, now = evidence(history), history[-1][1]
            model, trials[number + TRIAL] = split(model, now, seen, recipe.components)
            history = []
    kept = with_records(evidence(history))
    signals = np.maximum(history[-1][1][kept], LEAST_MASS)
    return Made(chosen(model, kept), tuple(signals.tolist()), spends, _together(totals))


def _together(totals: list[Found]) -> Found:
    """Return the mean of independent estimates, each by the inverse of its variance."""
    weights = [one.deviation**-2 for one in totals]
    mean = math.fsum(w * one.signal for w, one in zip(weights, totals, strict=True)) / math.fsum(weights)
    return Found(mean, math.fsum(weights) ** -0.5)


def rehearse(points: Floats, n: int, recipe: Recipe, mu: float, adjacency: Adjacency, seed: int) -> Gaussians:
    """Return what would be released if `n` records were distributed as public points are.

    `points` (m, D) are in preprocessed units, NaN where missing. The noise is drawn by NumPy: nothing here is
    private, and nothing of it is released.
    """
    rng = np.random.default_rng([5, seed])
    columns = points.shape[1]

    def release(model: Gaussians, tau: float, lattice: Lattice) -> Floats:
        frames = make_mixture_frames(model.log_weights, model.means, model.whitening)
        sums = MixtureSums(frames, tau, lattice.steps, HOMOGENEOUS)
        sums.add(draw_missing(make_components(*model, np.zeros(columns)), points))
        drawn = rng.normal(size=(len(model.weights), columns + 1, columns + 1))
        upper = np.triu(drawn, 1) / math.sqrt(2.0)
        noise = upper + upper.transpose(0, 2, 1) + np.eye(columns + 1) * drawn
        counted = np.asarray(sums.total(), dtype=np.float64) * (lattice.step * n / len(points))
        noisy: Floats = counted + lattice.noise_scale * noise
        return noisy

    return run_rounds(columns, recipe, mu, adjacency, release).model
