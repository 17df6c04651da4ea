"""Compile all kernels before the first request."""

from __future__ import annotations

import warnings

import numpy as np


def warmup() -> None:
    """Compile every kernel for the usual types, or load it from the cache.

    The first call on a machine takes minutes on two cores; later ones load the cache in well under a second.
    Kernels compute in float64, so one compilation serves float32 and float64 input.
    """
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the random data below
        _run_all(rng)


def _run_all(rng: np.random.Generator) -> None:
    from dpmd_fast.baselines.gradient_descent import gradient_descent
    from dpmd_fast.baselines.manifold_denoiser import ManifoldDenoiser
    from dpmd_fast.kernels.charts import make_field, move
    from dpmd_fast.kernels.search.balls import count_neighbors
    from dpmd_fast.kernels.search.index import build_index
    from dpmd_fast.mechanisms.atlas.release import release_atlas
    from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
    from dpmd_fast.mechanisms.mixture import release_mixture
    from dpmd_fast.mechanisms.projector import dp_projector
    from dpmd_fast.privacy.budget import Budget

    for columns in (3, 9):  # small and larger matrices have different eigensolvers
        reference, queries = rng.normal(size=(200, columns)), rng.normal(size=(4, columns))
        anchors = rng.normal(size=(40, columns))
        budget = Budget(epsilon=0.5, delta=1e-3)
        ManifoldDenoiser(bandwidth=3.0, dim=1).fit(reference).transform(queries)
        for mechanism in ("moments", "projector"):
            private = DPManifoldDenoiser(bandwidth=3.0, dim=1, budget=budget, mechanism=mechanism)
            private.fit(reference).transform(queries)
        atlas = release_atlas(
            reference,
            anchors,
            dim=1,
            budget=Budget(50.0, 1e-3),
            bandwidth=3.0,
            rounds=2,
            accept_risk=True,
        )
        atlas.transform(queries)  # of few rows, for which there are kernels
        dp_projector(reference, queries[0], 3.0, 1, budget)
        gradient_descent(reference, queries, 3.0, 1, steps=2)
        count_neighbors(build_index(reference, 3.0), queries)
    frames = np.repeat(np.eye(9, 1)[None], 4, axis=0)  # charts of many columns have a kernel of their own
    move(make_field(rng.normal(size=(4, 9)), frames, np.ones(4), 3.0), rng.normal(size=(1, 9)))
    records = rng.normal(size=(1000, 3))
    records[::7, 1] = np.nan
    mixture = release_mixture(records, budget=Budget(50.0, 1e-4), components=2, rounds=1, accept_risk=True)
    for rows in (1, 1000):  # few rows are worked on by one thread
        for points in (records[:rows], np.nan_to_num(records[:rows])):
            mixture.posterior(points, 0.5)
            mixture.transform(points, 0.5)
            mixture.score_samples(points)
