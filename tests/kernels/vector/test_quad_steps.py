"""Four charts and the points near them, against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.quad_steps import POINTS, add_four_charts, directions_for, pack_fours
from dpmd_fast.kernels.vector.quads import pack_quads

SIZES = [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (7, 7)]


@kernel
def _add(x, near, count, frames, slopes, f0, d, D, masses, m0, h2, how, gaps, sums, totals):
    share = 1.0 / h2
    add_four_charts(
        x, near, 1, count, frames, slopes, f0, d, D, masses, m0, h2, share, how, gaps, sums, totals
    )


def _sample(D, d, K=7, points=9):
    rng = np.random.default_rng(D)
    X, centers = rng.normal(size=(points, D)), 0.5 * rng.normal(size=(K, D))
    frames, offsets, slopes = (rng.normal(size=size) for size in ((K, d, D), (K, D), (K, d, D)))
    return X, centers, frames, offsets, slopes, 1.0 + np.arange(K), 3.0 * D


def _run(sample, quad, how, near):
    X, centers, frames, offsets, slopes, masses, h2 = sample
    d, D = frames.shape[1:]
    x = np.zeros((len(X) + 1, LANES * ((D + 3) // LANES)))
    x[:-1, :D] = X
    sums, totals = np.zeros((len(x), LANES * D)), np.zeros((len(x), LANES))
    first = pack_fours(centers, frames)
    second = pack_fours(offsets, slopes) if how else first
    found = np.array([0, *near, *[0] * (POINTS - 1), 77], np.int64)
    gaps = np.full(POINTS * LANES * D + 1, GUARD)
    charts = first, second, quad * first.shape[1], directions_for(d), D
    weights = pack_quads(masses).reshape(-1)
    _add(x, found, len(near), *charts, weights, LANES * quad, h2, how, gaps, sums, totals)
    assert gaps[-1] == GUARD
    assert found[-1] == 77
    return totals[:-1], sums[:-1].reshape(-1, D, LANES)


def _plain(sample, quad, how, near):
    X, centers, frames, offsets, slopes, masses, h2 = sample
    totals, sums = np.zeros((len(X), LANES)), np.zeros((len(X), X.shape[1], LANES))
    for q in near:
        for lane, a in enumerate(range(LANES * quad, min(LANES * quad + LANES, len(centers)))):
            gap = X[q] - centers[a]
            weight = masses[a] * max(0.0, 1.0 - gap @ gap / h2) ** 2
            totals[q, lane] += weight
            sums[q, :, lane] += weight * (offsets[a] if how else -gap)
            for frame, slope in zip(frames[a], (slopes if how else frames)[a], strict=True):
                sums[q, :, lane] += weight * (frame @ gap) * slope
    return totals, sums


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), SIZES)
@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("near", [[], [3], [0, 1], [1, 4, 8], [0, 2, 3, 5, 6], [0, 2, 3, 4, 5, 6, 7, 8]])
def test_four_charts_and_points_near_them(D, d, how, near):
    sample = _sample(D, d)
    for quad in range(2):
        totals, sums = _run(sample, quad, how, near)
        ref_totals, ref = _plain(sample, quad, how, near)
        np.testing.assert_allclose(totals, ref_totals, rtol=1e-12)
        np.testing.assert_allclose(sums, ref, rtol=1e-11, atol=1e-11)
        assert ref.any() or len(near) < 5


@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize(("D", "d"), [(3, 2), (6, 5), (7, 6)])
def test_a_point_gets_the_same_bits_beside_every_other(D, d, how):
    sample = _sample(D, d)
    alone = [_run(sample, 1, how, [q]) for q in range(9)]
    for near in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 0, 7, 1, 6, 2, 5, 3, 4]):
        totals, sums = _run(sample, 1, how, near)
        assert totals.any()
        for q, (own_totals, own_sums) in enumerate(alone):
            np.testing.assert_array_equal(totals[q], own_totals[q])
            np.testing.assert_array_equal(sums[q], own_sums[q])


@pytest.mark.parametrize("d", [4, 6])
def test_directions_of_zeros_change_no_bit(d):
    X, centers, frames, offsets, slopes, masses, h2 = _sample(7, d)
    more = [np.concatenate([rows, np.zeros((7, 1, 7))], axis=1) for rows in (frames, slopes)]
    for how in (0, 1):
        few = _run((X, centers, frames, offsets, slopes, masses, h2), 0, how, range(9))
        filled = _run((X, centers, more[0], offsets, more[1], masses, h2), 0, how, range(9))
        for part, other in zip(few, filled, strict=True):
            np.testing.assert_array_equal(part, other)
