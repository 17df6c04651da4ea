"""One point and the charts near it: the bits of one chart after the other."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector.few_points import add_to_point
from dpmd_fast.kernels.vector.planes import POINTS, add_chart, pack_parts
from dpmd_fast.kernels.width import WIDTH

pytestmark = pytest.mark.kernels
SIZES = [(9, 1), (9, 2), (12, 3), (13, 4), (20, 5), (21, 7), (30, 11)]


@kernel
def _by_point(x, q, near, count, frames, slopes, d, masses, h2, how, gaps, moves, weights, sums, totals):
    field = frames, slopes, d, masses, h2, 1.0 / h2, how
    add_to_point(x, q, near, count, field, gaps, moves, weights, sums, totals)


@kernel
def _by_chart(x, near, count, frames, slopes, f0, d, mass, h2, how, gaps, sums, totals):
    add_chart(x, near, count, frames, slopes, f0, d, mass, h2, 1.0 / h2, how, gaps, sums, totals)


@pytest.mark.parametrize(("D", "d"), SIZES)
@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("count", [1, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH])
def test_charts_near_a_point(D, d, how, count):
    rng = np.random.default_rng([D, count])
    K, points, q, width, h2 = 30, 5, 3, 4 * -(-D // 4), 4.0 * D
    x = np.zeros((points + 1, width))
    x[:-1, :D] = rng.normal(size=(points, D))
    frames = pack_parts(0.5 * rng.normal(size=(K, D)), rng.normal(size=(K, d, D)))
    slopes = pack_parts(rng.normal(size=(K, D)), rng.normal(size=(K, d, D))) if how else frames
    masses, chosen = rng.uniform(0.5, 2.0, K), rng.permutation(K)[:count]
    near, gaps = np.full(count + WIDTH, 99, np.int32), np.full(POINTS * width + 8, GUARD)
    near[:count] = chosen
    start = rng.normal(size=width)  # sums begin with what the charts before have added
    sums, totals = np.tile(start, (points + 1, 1)), np.full((points + 1, 1), 0.25)
    moves, weights = np.full((-(-d // 5) + 1, WIDTH, width), GUARD), np.full(WIDTH + 1, GUARD)
    _by_point(x, q, near, count, frames, slopes, d, masses, h2, how, gaps, moves, weights, sums, totals)
    assert (moves[-1] == GUARD).all()
    assert weights[-1] == GUARD
    assert (gaps[WIDTH * width :] == GUARD).all()
    ref_sums, ref_totals = np.tile(start, (points + 1, 1)), np.full((points + 1, 1), 0.25)
    for a in chosen:
        found, f0 = np.array([q] * POINTS, np.int32), a * frames.shape[1]
        _by_chart(x, found, 1, frames, slopes, f0, d, masses[a], h2, how, gaps, ref_sums, ref_totals)
    others = np.arange(points + 1) != q
    assert (sums[others] == start).all()
    assert (totals[others] == 0.25).all()
    assert totals[q, 0] > 0.25
    if JIT_DISABLED:  # the twins are products of NumPy's
        np.testing.assert_allclose(sums[q], ref_sums[q], rtol=1e-12)
    else:
        np.testing.assert_array_equal(sums[q], ref_sums[q])
    np.testing.assert_array_equal(totals[q], ref_totals[q])
