"""The kernels of the atlas against plain loops: fields of charts, residual moments, feature moments."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.charts import apply_fields, make_field, move
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import FeatureSums, MomentSums, ResidualSums
from dpmd_fast.kernels.sums.features import subspace_coordinates
from dpmd_fast.kernels.sums.residuals import make_frames, residual_norms
from dpmd_fast.privacy.lattice import choose_lattice

SIZES = [(2, 1, 5), (3, 1, 67), (3, 2, 70), (9, 3, 130), (12, 2, 1)]


def charts(D, d, K, seed=0):
    rng = np.random.default_rng(seed)
    tangents = np.linalg.qr(rng.standard_normal((K, D, d)))[0]
    return rng.uniform(-1.0, 1.0, (K, D)), tangents, rng.uniform(0.5, 2.0, K), rng


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d", "K"), SIZES)
@pytest.mark.parametrize("passes", [1, 3])
def test_projections(D, d, K, passes):
    centers, tangents, masses, rng = charts(D, d, K)
    h = 0.9 * math.sqrt(D)
    X = rng.uniform(-1.5, 1.5, (40, D))
    ref, ref_reached = naive.atlas_move(X, centers, tangents, masses, h, passes=passes)
    comp, comp_reached = move(make_field(centers, tangents, masses, h, passes=passes), X)
    np.testing.assert_array_equal(comp_reached, ref_reached)
    np.testing.assert_allclose(comp, ref, rtol=1e-11, atol=1e-12)
    assert ref_reached.any()


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d", "K"), SIZES)
def test_corrections(D, d, K):
    centers, tangents, masses, rng = charts(D, d, K, seed=1)
    h = 0.8 * math.sqrt(D)
    X = rng.uniform(-1.5, 1.5, (40, D))
    offsets, slopes = rng.standard_normal((K, D)), rng.standard_normal((K, d, D))
    ref, ref_reached = naive.atlas_move(X, centers, tangents, masses, h, offsets, slopes, 0.7)
    field = make_field(centers, tangents, masses, h, offsets=offsets, slopes=slopes, strength=0.7)
    comp, comp_reached = move(field, X)
    np.testing.assert_array_equal(comp_reached, ref_reached)
    np.testing.assert_allclose(comp, ref, rtol=1e-11, atol=1e-12)


def test_a_point_moves_the_same_in_every_company():
    centers, tangents, masses, rng = charts(9, 2, 100, seed=2)
    field = make_field(centers, tangents, masses, 2.0, passes=3)
    X = rng.uniform(-1.0, 1.0, (777, 9))
    together = move(field, X, 2)[0]
    order = rng.permutation(len(X))
    np.testing.assert_array_equal(move(field, X[order], 1)[0], together[order])
    one_by_one = np.concatenate([move(field, X[i : i + 1], 1)[0] for i in range(0, 777, 97)])
    np.testing.assert_array_equal(one_by_one, together[::97])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_a_record_without_place_is_out_of_reach(bad):
    centers, tangents, masses, _ = charts(3, 1, 20, seed=3)
    X = np.array([[0.0, 0.0, 0.0], [bad, 0.0, 0.0]])
    moved, reached = move(make_field(centers, tangents, masses, 2.0), X)
    assert reached.tolist() == [True, False]
    np.testing.assert_array_equal(moved[1], X[1])


def residual_problem(D, d, K, n, seed=4):
    centers, tangents, masses, rng = charts(D, d, K, seed)
    h = 0.7 * math.sqrt(D)
    field = make_field(centers, tangents, masses, h, passes=3)
    Y = rng.uniform(-1.2, 1.2, (n, D))
    return Y, field, make_frames(centers, tangents, h, 1.1 * h, 1), centers, tangents, h


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d", "K"), SIZES)
def test_residual_moments(D, d, K):
    Y, field, frames, centers, tangents, h = residual_problem(D, d, K, 150)
    X, reached = apply_fields([field], Y)
    R = np.where(reached[:, None], Y - X, np.inf)
    norms = residual_norms(frames, X, np.where(np.isfinite(R), R, 1e9), 0.1)
    tau = 0.6 * float(norms.max())
    lattice = choose_lattice(1.0, tau, "replace-one")
    sums = ResidualSums([field], frames, tau, lattice.steps, 0.1)
    sums.add(Y)
    comp = sums.total() * lattice.step
    ref = naive.residual_moments(X[reached], R[reached], centers, tangents, h, frames.normal, 0.1, tau)
    # truncation takes at most one step of the vectors, of which there are sqrt(bound) in a full one
    np.testing.assert_allclose(comp, ref, atol=150 * 4.0 * tau / math.sqrt(lattice.bound))
    assert np.abs(ref).max() > 0.0


def test_residual_sums_are_bounded_and_do_not_depend_on_blocks():
    Y, field, frames, _, _, _ = residual_problem(3, 2, 70, 400)
    tau = 0.05 * float(residual_norms(frames, Y, np.zeros_like(Y), 0.1).max())
    lattice = choose_lattice(1.0, tau, "replace-one")

    def total(rows, n_threads=None, size=None):
        sums = ResidualSums([field], frames, tau, lattice.steps, 0.1, n_threads)
        for start in range(0, len(rows), size or len(rows)):
            sums.add(rows[start : start + (size or len(rows))])
        return sums.total()

    whole = total(Y)
    for n_threads, size in ((1, 7), (2, 61), (2, 1)):
        np.testing.assert_array_equal(total(Y, n_threads, size), whole)
    np.testing.assert_array_equal(total(Y[::-1].copy()), whole)
    largest = 0
    for row in Y[:100]:
        alone = total(row[None]).astype(object)
        largest = max(largest, int((alone * alone).sum()))
    assert 0 < largest <= lattice.bound**2
    assert largest > 0.99 * lattice.bound**2, "nearly every record is scaled to the bound"


@pytest.mark.parametrize("excess", [10.0, 1e3, 1e6, 1e12, np.inf, np.nan])
def test_vectors_that_are_far_too_long_are_left_out(excess):
    # squares of their squared lengths would leave 64 bits and could pass as small or negative
    Y, field, frames, _, _, _ = residual_problem(3, 2, 70, 60)
    tau = 0.05 * float(residual_norms(frames, Y, np.zeros_like(Y), 0.1).max())
    lattice = choose_lattice(1.0, tau, "replace-one")
    index = build_index(Y[:60].copy(), 0.5)  # records on locations: nothing but the last coordinate
    for sums in (
        MomentSums(index, 2.0, tau, lattice.steps, 0.1),
        ResidualSums([field], frames, tau, lattice.steps, 0.1),
        FeatureSums(3, tau, lattice.steps),
    ):
        sums._clipping = sums._clipping._replace(unit=excess * sums._clipping.unit)
        sums.add(Y)
        assert not sums.total().any()


def adversarial(D, rng):
    """Records that a bound might forget: at centres, far, tiny, subnormal, duplicated, at the edge."""
    base = rng.uniform(-1.0, 1.0, (20, D))
    edge = np.zeros((4, D))
    edge[:, 0] = [1.0, -1.0, 0.7 * math.sqrt(D), np.nextafter(1.0, 2.0)]
    return np.concatenate(
        [base, base[:3], np.zeros((2, D)), edge, base[:3] * 1e-300, base[:2] * 1e-310, base[:2] * 1e9]
    )


@pytest.mark.parametrize(("D", "d", "K"), [(2, 1, 40), (9, 3, 130)])
@pytest.mark.parametrize("share", [0.02, 0.2, 5.0])
def test_neighbours_of_residual_sums_stay_within_the_bound(D, d, K, share):
    _, field, frames, centers, _, _ = residual_problem(D, d, K, 1, seed=7)
    rng = np.random.default_rng(8)
    Y = np.concatenate([adversarial(D, rng), centers[:10]])
    tau = share * float(residual_norms(frames, centers, np.zeros_like(centers), 0.1).max())
    lattice = choose_lattice(0.5, tau, "replace-one")

    def alone(row):
        sums = ResidualSums([field], frames, tau, lattice.steps, 0.1)
        sums.add(row[None])
        return sums.total().astype(object)

    parts = [alone(row) for row in Y]
    largest = 0
    for i, one in enumerate(parts):
        assert int((one * one).sum()) <= lattice.bound**2
        for other in parts[:i]:
            largest = max(largest, int(((one - other) ** 2).sum()))
    assert largest <= 2 * lattice.bound**2
    if share < 1.0:
        assert largest >= lattice.bound**2 // 2


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
