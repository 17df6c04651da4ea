"""Moments of one vector per record, and coordinates in a subspace, against plain loops."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.kernels.sums.features import subspace_coordinates
from dpmd_fast.privacy.lattice import choose_lattice


@pytest.mark.parametrize("F", [2, 5, 24])
def test_feature_moments(F):
    rng = np.random.default_rng(F)
    features = rng.standard_normal((1000, F)) * rng.uniform(0.01, 3.0, (1000, 1))
    features[3] = 0.0
    features[4, 1] = np.nan
    features[5, 0] = np.inf
    features[6] = 1e200
    tau = 0.7
    lattice = choose_lattice(1.0, tau, "add-remove")
    sums = FeatureSums(F, tau, lattice.steps)
    sums.add(features)
    whole = sums.total()
    np.testing.assert_allclose(
        whole[0] * lattice.step,
        naive.feature_moments(features, tau),
        atol=1000 * 4.0 * tau / math.sqrt(lattice.bound),
    )
    again = FeatureSums(F, tau, lattice.steps, 1)
    for start in range(0, 1000, 77):
        again.add(features[::-1][start : start + 77])
    np.testing.assert_array_equal(again.total(), whole)
    for row in features[7:40]:
        alone = FeatureSums(F, tau, lattice.steps)
        alone.add(row[None])
        assert int((alone.total().astype(object) ** 2).sum()) <= lattice.bound**2


@pytest.mark.kernels
def test_subspace_coordinates_do_not_depend_on_blocks():
    rng = np.random.default_rng(0)
    Y, center = rng.standard_normal((501, 20)), rng.standard_normal(20)
    basis = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    inside, outside = subspace_coordinates(Y, center, basis, 2)
    np.testing.assert_allclose(inside, (Y - center) @ basis, atol=1e-12)
    np.testing.assert_allclose(outside, Y - center - inside @ basis.T, atol=1e-12)
    for i in range(0, 501, 50):
        np.testing.assert_array_equal(subspace_coordinates(Y[i : i + 1], center, basis, 1)[0][0], inside[i])
