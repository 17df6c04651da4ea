"""Things that several tests are made with."""

from __future__ import annotations

import re

import numpy as np

from dpmd_fast import Atlas, Budget, Mixture
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.privacy.guarantee import certified_guarantee


def said(number, text):
    """Return True if a text has a whole number; digits among others, as of 0.81400397, are a coincidence."""
    return re.search(rf"(?<![\d.]){number}(?!\d)", text) is not None


def frames(rng, *shape):
    return np.ascontiguousarray(np.linalg.qr(rng.normal(size=shape))[0])


def make_atlas(column_names=("a", "b", "c"), wide=None):
    """Projections onto 60 charts all over a cube; in a subspace of `wide` columns."""
    rng = np.random.default_rng(0)
    layer = Layer(
        centers=rng.uniform(-1.0, 1.0, size=(60, 3)),
        tangents=frames(rng, 60, 3, 2),
        masses=rng.uniform(1.0, 2.0, size=60),
        bandwidth=0.8,
        passes=3,
        strength=1.0,
    )
    budget = Budget(1.0, 1e-6)
    return Atlas(
        guarantee=certified_guarantee(
            budget, mu=budget.mu, adjacency="replace-one", seeded=False, validated=False
        ),
        layers=(layer,),
        subspace=None if wide is None else Subspace(rng.normal(size=wide), frames(rng, wide, 3)),
        dim=2,
        bandwidth=0.8,
        signal_to_noise=(100.0,),
        spends=(("round 1", budget.mu**2),),
        column_names=column_names,
    )


def make_mixture(column_names=("a", "b", "c"), components=4, preprocess=None, seed=0):
    """A mixture of correlated components; with `column_names` None in three columns without names."""
    rng = np.random.default_rng(seed)
    K, D = components, 3 if column_names is None else len(column_names)
    roots = rng.normal(size=(K, D, D)) * 0.4
    weights = rng.uniform(1.0, 2.0, size=K)
    budget = Budget(1.0, 1e-6)
    return Mixture(
        guarantee=certified_guarantee(
            budget, mu=budget.mu, adjacency="replace-one", seeded=False, validated=False
        ),
        weights=weights / weights.sum(),
        means=rng.uniform(-2.0, 2.0, size=(K, D)),
        covariances=roots @ roots.transpose(0, 2, 1) + 0.05 * np.eye(D),
        signal_to_noise=(50.0,) * K,
        spends=(("start", 0.25 * budget.mu**2), ("round 1", 0.75 * budget.mu**2)),
        column_names=column_names,
        preprocess=preprocess,
    )
