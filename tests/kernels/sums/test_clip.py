"""The clip: the bound is held by a check in integers, whatever the floating point before it says."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from kernel_samples import on_grid, residual_problem

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.clip import Clipping, clip, make_clipping
from dpmd_fast.kernels.sums.exact import FeatureSums, MomentSums, ResidualSums, symmetric_integers
from dpmd_fast.kernels.sums.features import add_feature_block
from dpmd_fast.kernels.sums.moments import add_moment_block
from dpmd_fast.kernels.sums.pairs import pairs_for_block
from dpmd_fast.kernels.sums.residuals import (
    add_residual_block,
    feature_width,
    make_frames,
    residual_norms,
)
from dpmd_fast.privacy.lattice import choose_lattice

ATTEMPTS = 49  # shrinks of 2^-50, 2^-49, ..., 2^-2
SIDE = 1 << 14  # length of the longest integer vector

# The function itself, with a measure made for the purpose


@kernel
def count_refusals(record, scales, count, squares):
    """Measure `refused` times more than the bound."""
    attempts, refused, bound = record
    for i in range(count):
        squares[i] = bound + 1 if attempts[0] < refused else 0
    attempts[0] += 1


@kernel
def keep_squares(record, scales, count, squares):
    for i in range(count):
        squares[i] = record[i]


@kernel
def run_refusals(attempts, refused, roots, norm, length, clipping, scales, squares):
    record = attempts, refused, clipping.bound
    return clip(count_refusals, record, roots, len(roots), norm, length, clipping, scales, squares)


@kernel
def run_squares(values, clipping, scales, squares):
    return clip(keep_squares, values, np.ones(len(values)), len(values), 1.0, 1.0, clipping, scales, squares)


@pytest.mark.kernels
@pytest.mark.parametrize("refused", [0, 1, 2, 7, ATTEMPTS - 1, ATTEMPTS, ATTEMPTS + 1])
def test_factor_after_refusals(refused):
    clipping = Clipping(0.5, 300.0, 1000)
    roots, attempts = np.array([0.5, 1.0, 0.25]), np.zeros(1, np.int64)
    scales, squares = np.empty(3), np.empty(3)
    kept = run_refusals(attempts, refused, roots, 2.0, 4.0, clipping, scales, squares)
    assert kept == (refused < ATTEMPTS)
    assert attempts[0] == min(refused + 1, ATTEMPTS)
    factor = 300.0 * math.sqrt(0.25) / 4.0
    for attempt in range(min(refused, ATTEMPTS - 1)):
        factor *= 1.0 - 2.0 ** (attempt - 50)
    np.testing.assert_array_equal(scales, factor * roots)


@pytest.mark.kernels
@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_record_without_a_norm_is_not_measured(norm):
    attempts, one = np.zeros(1, np.int64), np.ones(1)
    assert not run_refusals(attempts, 0, one, norm, 1.0, Clipping(1.0, 1.0, 9), one.copy(), one.copy())
    assert attempts[0] == 0


@pytest.mark.kernels
@pytest.mark.parametrize("bound", [5, (1 << 30), (1 << 31) - 1])
def test_the_decision_is_made_in_integers(bound):
    clipping = Clipping(1.0, 1.0, bound)

    def kept(*values):
        found = run_squares(np.array(values, float), clipping, np.empty(len(values)), np.empty(len(values)))
        assert found == (
            all(math.isfinite(value) and value <= bound for value in values)
            and sum(int(value) ** 2 for value in values) <= bound**2
        )
        return found

    assert kept(bound)
    assert kept(bound, 0.0)
    assert not kept(bound + 1)
    assert not kept(bound, 1.0)  # one more than bound^2, which float64 cannot tell from it
    assert not kept(*[float(bound)] * 8)
    for value in (2.0**32, 2.0**63, 2.0**64, 1e150, math.inf, math.nan):  # squares that could wrap around
        assert not kept(value)
        assert not kept(1.0, value)


def test_units_of_a_lattice():
    lattice = choose_lattice(1.0, 3.0, "replace-one")
    clipping = make_clipping(3.0, lattice.steps)
    assert clipping == (3.0, math.sqrt(1.0 / lattice.step), lattice.bound)
    assert clipping.unit**2 * clipping.tau == pytest.approx(lattice.bound, rel=1e-12)


# Its three users: one record of norm 1, whose vector has one entry that is not zero


def moments_of_one(clipping, point=0.0):
    index = build_index(np.zeros((1, 2)), 1.0)
    sums = np.zeros((1, 4, 4))
    add_moment_block(index, 2.0, 1.0, clipping, np.full((1, 2), point), sums, pairs_for_block(1), 1)
    return symmetric_integers(sums, np.zeros(1, np.int64), 3, 1)[0]


def residuals_of_one(clipping, point=0.0):
    frames = make_frames(np.zeros((1, 2)), np.eye(2)[None, :, :1], 1.0, 1.0, 1)
    width = feature_width(2, 1)
    sums = np.zeros((1, width, width))
    X, R = np.full((1, 2), point), np.zeros((1, 2))
    add_residual_block(frames, 1.0, clipping, X, R, sums, pairs_for_block(1, 1), 1)
    return symmetric_integers(sums, np.zeros(1, np.int64), 4, 1)[0]


def features_of_one(clipping, point=0.0):
    sums = np.zeros((1, 4, 4))
    add_feature_block(clipping, np.array([[point, point, 1.0]]), sums, 1)
    return symmetric_integers(sums, np.zeros(1, np.int64), 3, 1)[0]


USERS = [moments_of_one, residuals_of_one, features_of_one]


@pytest.mark.kernels
@pytest.mark.parametrize("total", USERS)
def test_a_factor_that_was_carried_over_the_bound_shrinks(total):
    fits = Clipping(1.0, float(SIDE), SIDE * SIDE)
    assert total(fits)[-1, -1] == SIDE * SIDE
    # one step too long: the least shrink takes the entry below SIDE, and truncation to SIDE - 1
    over = fits._replace(bound=SIDE * SIDE - 1)
    assert total(over)[-1, -1] == (SIDE - 1) ** 2
    assert np.count_nonzero(total(over)) == 1
    # rounded up to the next float above SIDE, nothing is lost
    assert total(fits._replace(unit=math.nextafter(SIDE, math.inf)))[-1, -1] == SIDE * SIDE
    # a good deal too long: several shrinks, and the largest vector they find
    for excess in (1e-12, 1e-6, 1e-3, 0.1, 0.4):
        entry = math.isqrt(int(total(fits._replace(unit=(1.0 + excess) * SIDE))[-1, -1]))
        assert (1.0 - 4.0 * excess) * SIDE - 1.0 <= entry <= SIDE


@pytest.mark.kernels
@pytest.mark.parametrize("total", USERS)
@pytest.mark.parametrize("excess", [10.0, 1e3, 1e6, 1e12, 1e150, math.inf, math.nan])
def test_a_record_that_no_factor_brings_within_the_bound_adds_nothing(total, excess):
    fits = Clipping(1.0, float(SIDE), SIDE * SIDE)
    for point in (0.0, 0.25):
        assert total(fits, point).any()
        with np.errstate(all="ignore"):  # of the twins
            assert not total(fits._replace(unit=excess * SIDE), point).any()


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [0.0, 1e-15, 1e-9, 1e-4, 0.1, 0.25])
@pytest.mark.parametrize("D", [2, 5])
def test_residuals_have_the_bits_of_the_plain_loop(D, excess):
    rng = np.random.default_rng(D)
    K, d, h, normal, c = 9, D - 1, 2.0, 1.5, 0.25
    centers = on_grid(rng.normal(size=(K, D)) * 0.4)
    tangents = np.stack([np.eye(D)[:, rng.permutation(D)[:d]] for _ in range(K)])
    X, R = on_grid(rng.normal(size=(12, D)) * 0.5), on_grid(rng.normal(size=(12, D)) * 0.3)
    R[-1] = 9.0
    frames = make_frames(centers, tangents, h, normal, 1)
    tau = 0.3 * float(residual_norms(frames, X, R, c, 1).max())
    clipping = make_clipping(tau, choose_lattice(1.0, tau, "replace-one").steps)
    clipping = clipping._replace(unit=(1.0 + excess) * clipping.unit)
    width = feature_width(D, d)
    sums = np.zeros((K, width, width))
    add_residual_block(frames, c, clipping, X, R, sums, pairs_for_block(K, d), 1)
    order = frames.balls.order
    comp = symmetric_integers(sums, np.arange(K), d + D + 1, 1)
    ref = naive.residual_sums(X, R, centers[order], tangents[order], h, normal, c, *clipping)
    np.testing.assert_array_equal(comp, ref)
    assert ref.any()


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [0.0, 1e-15, 1e-9, 1e-4, 0.1, 0.25, 100.0])
@pytest.mark.parametrize("F", [1, 4, 7])
def test_features_have_the_bits_of_the_plain_loop(F, excess):
    rng = np.random.default_rng(F)
    features = on_grid(rng.normal(size=(20, F)))
    features[0], features[1, 0], features[2, 0] = 0.0, np.nan, np.inf
    features[3] = 1e200
    tau = 0.5 * F
    clipping = make_clipping(tau, choose_lattice(1.0, tau, "replace-one").steps)
    clipping = clipping._replace(unit=(1.0 + excess) * clipping.unit)
    width = 4 * -(-F // 4)
    sums = np.zeros((1, width, width))
    with np.errstate(over="ignore"):
        add_feature_block(clipping, features, sums, 1)
        ref = naive.feature_sums(features, *clipping)
    comp = symmetric_integers(sums, np.zeros(1, np.int64), F, 1)
    np.testing.assert_array_equal(comp, ref)
    assert ref.any() == (excess < 100.0)


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
