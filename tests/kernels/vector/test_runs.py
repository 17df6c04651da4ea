"""Runs of 64 points against NumPy; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD, small_integers

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import runs
from dpmd_fast.kernels.vector.planes import POINTS
from dpmd_fast.kernels.vector.runs import CHARTS, RUN

pytestmark = pytest.mark.kernels


@kernel
def run_sketches(x, x0, width, center, axes, depth, scale, gaps, turned, q0, pitch, norms):
    runs.sketch_points(x, x0, width, center, axes, depth, scale, gaps, turned, q0, pitch, norms)


@kernel
def run_see(turned, q0, pitch, norms, count, low, high, b0, middles, m0, depth, limits, out, r0, words):
    runs.see_run(turned, q0, pitch, norms, count, low, high, b0, middles, m0, depth, limits, out, r0, words)


@kernel
def run_words(single, s0, half_norms, rests, h0, depth, rows, pitch, r0, words, w0, stride):
    runs.chart_words(single, s0, half_norms, rests, h0, depth, rows, pitch, r0, words, w0, stride)


@kernel
def run_append_numbers(word, values, v0, out, count):
    return runs.append_numbers(word, values, v0, out, count)


@kernel
def run_append_singles(word, values, v0, out, count):
    return runs.append_singles(word, values, v0, out, count)


# as on processors without AVX-512, whatever this one has
append_each = runs.append_singles if JIT_DISABLED else runs._make_append(runs.F32, "f32", False)


@kernel
def run_append_each(word, values, v0, out, count):
    return append_each(word, values, v0, out, count)


def bits_of(word):
    return [int(word) >> j & 1 == 1 for j in range(RUN)]


@pytest.mark.parametrize(("D", "depth"), [(9, 1), (12, 5), (20, 5), (31, 24)])
def test_sketches(D, depth):
    rng = np.random.default_rng(D)
    width, pitch, q0, first = 4 * -(-D // 4), 2 * POINTS + 3, 3, 2
    x = np.full((POINTS + 5, width), GUARD)
    x[first : first + POINTS, :D] = rng.normal(size=(POINTS, D))
    x[first : first + POINTS, D:] = 0.0
    center, axes = np.zeros(width), np.zeros((depth, width))
    center[:D] = rng.normal(size=D)
    axes[:, :D] = np.linalg.qr(rng.normal(size=(D, depth)))[0].T
    turned, norms = np.full((depth + 1, pitch), GUARD), np.full(pitch, GUARD)
    norms[q0 + 1] = np.nan
    gaps = np.full(width * POINTS + 8, GUARD)
    run_sketches(x, first * width, width, center, axes, depth, 0.3, gaps, turned, q0, pitch, norms)
    points = 0.3 * (x[first : first + POINTS] - center)
    places = axes @ points.T
    rests = np.linalg.norm(points - places.T @ axes, axis=1)
    np.testing.assert_allclose(turned[:depth, q0 : q0 + POINTS], places, atol=1e-13)
    np.testing.assert_allclose(turned[depth, q0 : q0 + POINTS], rests, rtol=1e-12)
    sizes = (points**2).sum(axis=1)
    sizes[1] = np.nan
    np.testing.assert_allclose(norms[q0 : q0 + POINTS], sizes, rtol=1e-12)
    assert (turned[:, :q0] == GUARD).all()
    assert (turned[:, q0 + POINTS :] == GUARD).all()
    assert (norms[:q0] == GUARD).all()
    assert (norms[q0 + POINTS :] == GUARD).all()
    assert (gaps[width * POINTS :] == GUARD).all()


@pytest.mark.parametrize("depth", [1, 5, 24])
@pytest.mark.parametrize("count", [POINTS - 1, POINTS + 1, RUN])
def test_points_near_a_box(depth, count):
    """Integers: distances are exact, and some are as large as the limit."""
    rng = np.random.default_rng(depth)
    leaf, sides, pitch, q0 = 2, depth + 1, 3 * RUN, RUN - 5
    turned = small_integers(rng, depth + 1, pitch)
    turned[depth] = np.abs(turned[depth])
    norms = np.zeros(pitch)
    norms[q0 + 3] = norms[q0 + count : q0 + RUN] = np.nan
    low, high = small_integers(rng, 4, sides), small_integers(rng, 4, sides)
    low, high = np.minimum(low, high), np.maximum(low, high)
    middles = small_integers(rng, 4, depth)
    points = turned[:, q0 : q0 + RUN]
    gaps = np.maximum(np.maximum(low[leaf, :, None] - points, points - high[leaf, :, None]), 0.0)
    gaps = (gaps**2).sum(axis=0)
    limit = float(np.sort(gaps[:count])[count // 2])
    limits = 4.0, limit, 0.0, 0.25, 0.0
    out, words = np.full((depth + 2, pitch), GUARD, np.float32), np.zeros(3, np.uint64)
    b0, m0, r0 = leaf * sides, leaf * depth, 11
    run_see(turned, q0, pitch, norms, count, low, high, b0, middles, m0, depth, limits, out, r0, words)
    near = gaps <= limit
    near[3] = near[count:] = False
    assert 0 < near.sum() < count - 1
    assert (gaps == limit).any()
    assert bits_of(words[0]) == near.tolist()
    assert words[1] == words[2] == 0
    rows, points = out[:, r0 : r0 + count], points[:, :count]
    np.testing.assert_array_equal(rows[:depth], points[:depth] - middles[leaf, :, None])
    np.testing.assert_array_equal(rows[depth], points[depth])
    lifts = 0.5 * (1.25 - (rows[: depth + 1] ** 2).sum(axis=0))
    assert rows[depth + 1, 3] == np.inf  # without a norm nothing is sure
    assert (np.delete(rows[depth + 1], 3) == np.delete(lifts, 3)).all()
    assert (out[:, :r0] == np.float32(GUARD)).all()
    assert (out[:, r0 + POINTS * (-(-count // POINTS)) :] == np.float32(GUARD)).all()


@pytest.mark.parametrize("case", ["norms", "squares", "spread", "range"])
def test_where_single_precision_tells_nothing(case):
    """The slack grows with the norms, with the squares of the points and with that of the charts."""
    turned, norms = np.zeros((2, RUN)), np.zeros(RUN)
    turned[0, 3] = 2.0
    norms[5] = 10.0
    spread, rounding, share = 0.0, 0.0, 0.0
    wild = np.zeros(RUN, bool)
    if case == "norms":
        rounding, wild[5] = 0.1, True
    elif case == "squares":
        share, wild[3] = 0.25, True
    elif case == "spread":
        spread, share, wild = 4.0, 0.25, ~wild
    else:
        turned[0, 4], wild[4] = 1e16, True  # its square is beyond single precision
    low, high, words = np.full((1, 2), -1e17), np.full((1, 2), 1e17), np.zeros(2, np.uint64)
    limits, run = (spread, 1.0, rounding, 0.0, share), np.empty(3 * RUN, np.float32)
    run_see(turned, 0, RUN, norms, RUN, low, high, 0, np.zeros((1, 1)), 0, 1, limits, run, 0, words)
    assert bits_of(words[0]) == [True] * RUN
    assert bits_of(words[1]) == wild.tolist()
    assert np.isinf(run[2 * RUN :]).tolist() == wild.tolist()


@pytest.mark.parametrize("depth", [0, 1, 5, 24])
def test_points_near_charts(depth):
    rng = np.random.default_rng(depth)
    leaves, leaf, pitch, r0 = 3, 1, 2 * RUN + 5, 9
    single = small_integers(rng, leaves, depth, RUN).astype(np.float32)
    half_norms, rests = (small_integers(rng, leaves, RUN).astype(np.float32) for _ in range(2))
    rows = small_integers(rng, depth + 2, pitch).astype(np.float32)
    rows[depth + 1, r0 : r0 + 2] = np.inf, -np.inf  # near every chart, near none
    words = np.full((RUN + 1, 2), 7, np.uint64)
    for j in range(0, RUN, CHARTS):
        first = leaf * RUN
        run_words(
            single,
            first * depth + j,
            half_norms,
            rests,
            first + j,
            depth,
            rows,
            pitch,
            r0,
            words,
            2 * j + 1,
            2,
        )
    points = rows[:, r0 : r0 + RUN]
    products = single[leaf].T @ points[:depth] + rests[leaf, :, None] * points[depth] + points[depth + 1]
    near = products >= -half_norms[leaf, :, None]  # integers: ties occur, and a tie is a hit
    assert (products == -half_norms[leaf, :, None]).any()
    assert [bits_of(word) for word in words[:RUN, 1]] == near.tolist()
    assert near[:, 0].all()
    assert not near[:, 1].any()
    assert (words[:, 0] == 7).all()
    assert words[RUN, 1] == 7


@pytest.mark.parametrize(
    ("append", "kind"),
    [(run_append_numbers, np.int32), (run_append_singles, np.float32), (run_append_each, np.float32)],
)
def test_chosen_numbers_are_appended(append, kind):
    rng = np.random.default_rng(1)
    values = np.arange(100).astype(kind)
    words = [0, 1, 1 << 63, 2**64 - 1, 0xFFFF << 16, *(int(word) for word in rng.integers(2**63, size=9))]
    out, count, ref = np.full(64 * len(words) + 16, -1).astype(kind), 3, []
    for place, word in enumerate(words):
        count = append(np.uint64(word), values, place, out, count)
        ref += [place + j for j in range(RUN) if word >> j & 1]
        assert count == 3 + len(ref)
    assert out[3:count].tolist() == ref
    assert (out[:3] == -1).all()
    assert (out[count + 16 :] == -1).all()
