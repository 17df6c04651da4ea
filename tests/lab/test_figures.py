"""Mean distance to the manifold over five seeds at (1, 0.1): published figures stay as they are."""

import warnings

import numpy as np
import pytest

from dpmd_fast import Budget, DPManifoldDenoiser, LargeDeltaWarning, ManifoldDenoiser, paper_bandwidth
from dpmd_fast.lab.datasets import distance_to_manifold, make_shape, simulate

# shape, n, sigma, h; then raw, Nonprivate-MD and Algorithm 2 at C = 1, 10, 40
FIGURES = {
    "circle": ({}, 20_000, 0.1, paper_bandwidth(20_000, 1, 0.1), (0.134, 0.0268, 0.0266, 0.0468, 0.159)),
    "torus": ({}, 30_000, 0.05, 0.45, (0.0822, 0.0123, 0.0132, 0.0625, 0.183)),
    "sphere": ({"ambient": 20}, 30_000, 0.05, 0.45, (0.2015, 0.0200, 0.0382, 0.320, 1.243)),
}


def algorithm_2(*arguments, **options):
    return DPManifoldDenoiser(*arguments, mechanism="projector", accept_risk=True, **options)


@pytest.mark.fixed_seed
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "torus")) for name in FIGURES]
)
def test_published_figures(name):
    options, n, sigma, h, expected = FIGURES[name]
    shape = make_shape(name, **options)
    errors = []
    for seed in range(5):
        data = simulate(shape, n, 1000, sigma, np.random.default_rng(seed))
        results = [data.queries, ManifoldDenoiser(h, shape.dim).fit(data.references).transform(data.queries)]
        for constant in (1, 10, 40):
            private = algorithm_2(
                h, shape.dim, Budget(1.0, 0.1, "paper"), sensitivity_constant=constant, seed=1000 + seed
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LargeDeltaWarning)
                private.fit(data.references)
            results.append(private.transform(data.queries))
        errors.append([distance_to_manifold(points, shape).mean() for points in results])
    mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1)
    print(name, mean.round(4), spread.round(4))
    # two standard errors of the mean, and a unit of the last digit given
    allowed = 2.0 * spread / np.sqrt(5) + 5e-3 * np.array(expected)
    assert np.all(np.abs(mean - expected) <= allowed), (mean, spread)
