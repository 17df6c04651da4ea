"""A chart and the points near it, several at a time, against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.planes import POINTS, add_chart, pack_parts

SIZES = [(8, 1), (9, 2), (12, 3), (13, 4), (20, 5), (21, 7), (30, 11)]


@kernel
def _add(x, near, count, frames, slopes, f0, d, mass, h2, how, gaps, sums, totals):
    add_chart(x, near, count, frames, slopes, f0, d, mass, h2, 1.0 / h2, how, gaps, sums, totals)


def _plain(X, center, frames, offset, slopes, mass, h2, how, near):
    totals, sums = np.zeros(len(X)), np.zeros_like(X)
    for q in near:
        gap = X[q] - center
        weight = mass * max(0.0, 1.0 - gap @ gap / h2) ** 2
        totals[q] += weight
        sums[q] += weight * (offset if how else -gap)
        for frame, slope in zip(frames, slopes, strict=True):
            sums[q] += weight * (frame @ gap) * slope
    return totals, sums


def _sample(D, d, K=3, points=9):
    rng = np.random.default_rng(D)
    X, centers = rng.normal(size=(points, D)), 0.5 * rng.normal(size=(K, D))
    frames, offsets, slopes = (rng.normal(size=size) for size in ((K, d, D), (K, D), (K, d, D)))
    return X, centers, frames, offsets, slopes, 1.4 * D


def _run(sample, chart, how, near, mass=1.3):
    X, centers, frames, offsets, slopes, h2 = sample
    d, D = frames.shape[1:]
    width = 4 * ((D + 3) // 4)
    x, sums, totals = np.zeros((len(X) + 1, width)), np.zeros((len(X) + 1, width)), np.zeros(len(X) + 1)
    x[:-1, :D] = X
    first = pack_parts(centers, frames)
    second = pack_parts(offsets, slopes) if how else first
    found, f0 = np.array([*near, *[0] * (POINTS - 1)], np.int32), chart * first.shape[1]
    gaps = np.full(POINTS * width + 8, GUARD)
    _add(x, found, len(near), first, second, f0, d, mass, h2, how, gaps, sums, totals)
    assert (found[len(near) :] == len(X)).all()  # what fills up the last points
    assert (gaps[POINTS * width :] == GUARD).all()
    assert not sums[:, D:].any()
    assert not totals[-1]
    assert not sums[-1].any()
    return totals[:-1], sums[:-1, :D]


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), SIZES)
@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("near", [[], [3], [0, 1], [1, 4, 8], [5, 0, 7, 2], [0, 2, 3, 5, 6, 7, 8]])
def test_a_chart_and_points_near_it(D, d, how, near):
    X, centers, frames, offsets, slopes, h2 = sample = _sample(D, d)
    steps = slopes if how else frames
    ref_totals, ref = _plain(X, centers[1], frames[1], offsets[1], steps[1], 1.3, h2, how, near)
    totals, sums = _run(sample, 1, how, near)
    np.testing.assert_allclose(totals, ref_totals, rtol=1e-12)
    np.testing.assert_allclose(sums, ref, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("how", [0, 1])
def test_a_point_gets_the_same_bits_beside_every_other(how):
    sample = _sample(20, 7)
    alone = [_run(sample, 2, how, [q]) for q in range(9)]
    for near in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 0, 7, 1, 6, 2, 5, 3, 4]):
        totals, sums = _run(sample, 2, how, near)
        assert totals.any()
        for q, (own_totals, own_sums) in enumerate(alone):
            assert totals[q] == own_totals[q]
            np.testing.assert_array_equal(sums[q], own_sums[q])


def test_a_chart_out_of_reach_adds_nothing():
    sample = _sample(20, 5)
    sample[1][0] += 100.0
    totals, sums = _run(sample, 0, 0, [0, 1, 2])
    assert not totals.any()
    assert not sums.any()
