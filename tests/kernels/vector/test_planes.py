"""Charts from a list, two at a time, against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.planes import add_listed, pack_parts

SIZES = [(8, 1), (9, 2), (12, 3), (13, 4), (20, 5), (21, 7), (30, 11)]


@kernel
def _listed(x, frames, slopes, listed, count, d, masses, h2, how, gaps, sums):
    stride, width = frames.shape[1], len(x)
    return add_listed(
        x, frames, slopes, stride, listed, count, width, d, masses, h2, 1.0 / h2, how, gaps, sums
    )


def _plain(x, centers, frames, offsets, slopes, masses, h2, how, listed):
    total, sums = 0.0, np.zeros_like(x)
    for chart in listed:
        gap = x - centers[chart]
        weight = masses[chart] * max(0.0, 1.0 - gap @ gap / h2) ** 2
        total += weight
        sums += weight * (offsets[chart] if how else -gap)
        for frame, slope in zip(frames[chart], slopes[chart], strict=True):
            sums += weight * (frame @ gap) * slope
    return total, sums


def _sample(D, d, K=9):
    rng = np.random.default_rng(D)
    x, centers = rng.normal(size=D), 0.5 * rng.normal(size=(K, D))
    frames, offsets, slopes = (rng.normal(size=size) for size in ((K, d, D), (K, D), (K, d, D)))
    return x, centers, frames, offsets, slopes, rng.uniform(0.5, 2.0, K), 1.4 * D


def _run(sample, how, listed):
    x, centers, frames, offsets, slopes, masses, h2 = sample
    d, D = frames.shape[1:]
    width = 4 * ((D + 3) // 4)
    padded, sums = np.zeros(width), np.zeros(width)
    padded[:D] = x
    first = pack_parts(centers, frames)
    second = pack_parts(offsets, slopes) if how else first
    found = np.array([*listed, 0, 0, 0], np.int32)
    gaps = np.empty(2 * width)
    total = _listed(padded, first, second, found, len(listed), d, masses, h2, how, gaps, sums)
    assert not sums[D:].any()
    return total, sums[:D]


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), SIZES)
@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("listed", [[], [3], [0, 1], [1, 4, 8], [0, 2, 3, 5, 6, 7, 8]])
def test_listed_charts(D, d, how, listed):
    x, centers, frames, offsets, slopes, masses, h2 = sample = _sample(D, d)
    ref_total, ref = _plain(x, centers, frames, offsets, slopes if how else frames, masses, h2, how, listed)
    total, sums = _run(sample, how, listed)
    np.testing.assert_allclose(total, ref_total, rtol=1e-12)
    np.testing.assert_allclose(sums, ref, rtol=1e-11, atol=1e-11)


def test_charts_of_weight_zero_leave_every_bit_as_it_is():
    x, centers, frames, offsets, slopes, masses, h2 = _sample(20, 5)
    centers[[0, 3, 4]] += 100.0
    sample = (x, centers, frames, offsets, slopes, masses, h2)
    few, many = _run(sample, 0, [1, 2, 5, 6, 7]), _run(sample, 0, [0, 1, 2, 3, 4, 5, 6, 7])
    assert few[0] == many[0] > 0.0
    np.testing.assert_array_equal(few[1], many[1])
