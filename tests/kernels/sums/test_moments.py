"""Clipped moments against plain loops, bit for bit, and records that add nothing."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from kernel_samples import Setting, grid_records, grid_setting, square, wide

from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.clip import Clipping
from dpmd_fast.kernels.sums.moments import add_moment_block, record_norms
from dpmd_fast.kernels.sums.pairs import CHUNK, pairs_for_block
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS

BETAS = (2.0, 3.5)


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "K"), [(1, 1), (2, 5), (3, 70), (9, 3), (12, 66)])
@pytest.mark.parametrize("beta", BETAS)
def test_bits_of_the_plain_loop_small(D, K, beta):
    setting, rng = grid_setting(D, K, beta, 1.0)
    Y = grid_records(setting, rng, 24)
    total = setting.total(Y)
    assert total.dtype == np.int64
    assert total.any()
    np.testing.assert_array_equal(total, setting.oracle(Y))


@pytest.mark.parametrize(
    ("D", "K"), [(1, 200), (2, 130), (4, 1), (7, 65), (8, 64), (9, 150), (20, 70), (30, 6)]
)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("share", [0.03, 1.0, 4.0])
def test_bits_of_the_plain_loop(D, K, beta, share):
    setting, rng = grid_setting(D, K, beta, share, h=1.7)
    Y = grid_records(setting, rng, 60 if D < 20 else 30)
    np.testing.assert_array_equal(setting.total(Y), setting.oracle(Y))


@pytest.mark.parametrize("beta", BETAS)
def test_real_coordinates(beta):
    # the order of a sum of squares may now move a last digit, and with it one entry of a vector by one
    rng = np.random.default_rng(3)
    for D, K, scale in ((2, 90, 1e-9), (5, 40, 1.0), (9, 80, 1e9), (21, 30, 1e3)):
        setting = Setting(scale * rng.normal(size=(K, D)), 1.5 * scale * math.sqrt(D), beta)
        Y = scale * rng.normal(size=(40, D))
        difference = np.abs(setting.total(Y) - setting.oracle(Y))
        assert difference.max() <= 2 * math.isqrt(setting.bound) + 1
        assert np.count_nonzero(difference) <= 2 * D + 1


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "share"), [(1, 1.0), (3, 0.2), (9, 1.0), (9, 3.0)])
@pytest.mark.parametrize("beta", BETAS)
def test_the_formula(D, share, beta):
    # an entry of a vector is short by less than one, so a product by less than the sum of its two factors
    rng = np.random.default_rng(D)
    setting = Setting(rng.normal(size=(6, D)) + 5.0, 1.2 * math.sqrt(D), beta, share)
    Y = rng.normal(size=(20, D)) + 5.0
    Y[:10] = setting.locations[0] + 0.3 * rng.normal(size=(10, D))  # in nine dimensions, others reach little
    ref = naive.clipped_moments(setting.locations, Y, setting.h, beta, HOMOGENEOUS, setting.tau)
    allowed = len(Y) * (2 * math.isqrt(setting.bound) + 1) * setting.lattice.step
    np.testing.assert_allclose(setting.lattice.step * setting.total(Y), ref, rtol=0, atol=allowed)
    assert np.abs(ref).max() > 100 * allowed
    norms = record_norms(setting.index, Y, beta, HOMOGENEOUS)
    for y, norm in zip(Y, norms, strict=True):
        alone = naive.clipped_moments(setting.locations, [y], setting.h, beta, HOMOGENEOUS, math.inf)
        assert norm == pytest.approx(math.sqrt((alone**2).sum()), rel=1e-12)


def test_natural_tau_is_the_largest_norm_on_a_location():
    rng = np.random.default_rng(0)
    locations = rng.normal(size=(80, 3))
    locations[7] = locations[11]
    index = build_index(locations, 0.9)
    norms = [
        math.sqrt((naive.clipped_moments(locations, [a], 0.9, 2.0, HOMOGENEOUS, math.inf) ** 2).sum())
        for a in locations
    ]
    assert natural_tau(index, 2.0) == pytest.approx(max(norms), rel=1e-12)
    alone = build_index(np.zeros((1, 4)), 3.0)
    assert natural_tau(alone, 3.5) == pytest.approx(HOMOGENEOUS, rel=1e-15)


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [1e-15, 1e-12, 1e-9, 1e-4, 0.1, 0.25])
@pytest.mark.parametrize("beta", BETAS)
def test_vectors_that_are_too_long_are_scaled_down(excess, beta):
    for D, K in ((1, 2), (3, 6)):
        setting, rng = grid_setting(D, K, beta, 0.05)
        unit = (1.0 + excess) * setting.unit
        Y = grid_records(setting, rng, 8)
        np.testing.assert_array_equal(setting.total_with(Y, unit), setting.oracle(Y, unit))
        for y in Y:
            assert square(setting.total_with(y[None], unit)) <= setting.bound**2
        assert setting.total_with(Y, unit).any()


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [1e2, 1e6, 1e12, 1e150])
@pytest.mark.parametrize("mu", [1.0, 1e6])
def test_vectors_that_are_far_too_long_are_left_out(excess, mu):
    # up to 1e12, squares of their squared lengths would leave 64 bits and could pass as small or negative
    setting = Setting(np.repeat(np.arange(3.0)[:, None], 30, axis=0), 1.5, mu=mu, share=0.05)
    Y = np.linspace(-1.0, 3.0, 9)[:, None]
    assert setting.total(Y).any()
    with np.errstate(all="ignore"):  # of the twins
        assert not setting.total_with(Y, excess * setting.unit).any()


@pytest.mark.parametrize("D", [1, 3, 8, 9, 20])
def test_records_out_of_reach_and_invalid_ones_contribute_nothing(D):
    rng = np.random.default_rng(D)
    setting = Setting(rng.normal(size=(90, D)), 1.5)
    Y = rng.normal(size=(40, D))
    bad = np.repeat(Y[:1], 12, axis=0)
    for i, value in enumerate((np.nan, np.inf, -np.inf, 1e20, -1e100, 1e160, 1.79e308, -1.79e308, 1e6)):
        bad[i, i % D] = value
    bad[9], bad[10], bad[11] = np.nan, np.inf, -1.79e308
    assert not setting.total(bad).any()
    mixed = np.vstack([bad[:5], Y[:13], bad[5:], Y[13:]])
    np.testing.assert_array_equal(setting.total(mixed), setting.total(Y))
    with np.errstate(over="ignore"):
        single = mixed.astype(np.float32)
    np.testing.assert_array_equal(setting.total(single), setting.total(Y.astype(np.float32)))


def test_records_at_the_bandwidth_have_no_weight():
    for h in (7.0, 14.0, 27.0, 49.0):  # 1 / h^2 is rounded up for some of them
        Y = h * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        assert not Setting(np.zeros((1, 2)), h).total(Y).any()


@pytest.mark.parametrize("D", [1, 3, 8, 9, 12, 30])
@pytest.mark.parametrize("beta", BETAS)
def test_a_record_does_not_feel_its_place_or_its_company(D, beta):
    # not only the integers: also the floating-point numbers they are cut from, to the last bit
    Y, locations, h = wide(D, n=400)
    setting = Setting(locations, h * math.sqrt(max(D, 3) / 3), beta, 0.3)
    clipping = Clipping(setting.tau, setting.unit, setting.bound)

    def vectors(Y, n_threads):
        pairs = pairs_for_block(len(locations))
        sums = np.zeros((150, *2 * setting.index.rows.shape[1:]))
        add_moment_block(setting.index, beta, HOMOGENEOUS, clipping, Y, sums, pairs, n_threads)
        found = []
        for start in range(0, len(Y), CHUNK):
            at = start * len(locations)
            for q in range(start, min(start + CHUNK, len(Y))):
                own = slice(at, at + pairs.counts[q])
                found.append((pairs.places[own].tobytes(), pairs.scales[own].tobytes()))
                at = own.stop
        return found

    ref = vectors(Y, 1)
    assert sum(len(places) > 0 for places, _ in ref) > 200
    order = np.random.default_rng(0).permutation(400)
    assert vectors(Y[order], 2) == [ref[q] for q in order]
    assert vectors(Y[7:], 1) == ref[7:]
    assert [vectors(Y[q : q + 1], 1)[0] for q in range(40)] == ref[:40]
    company = np.vstack([np.full((3, D), np.nan), 1e300 * Y[:5], Y, np.repeat(Y[:1], 9, axis=0)])
    assert vectors(company, 1)[8:408] == ref
