"""Lists of places by fours against plain loops; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_samples import GUARD, on_grid

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import fours
from dpmd_fast.kernels.vector.lanes import LANES, square_distance

pytestmark = pytest.mark.kernels


@kernel
def run_append_bits(word, first, places, at):
    return fours.append_bits(word, first, places, at)


@kernel
def run_keep_inside(X, x0, rows, width, h2, share, c, places, tents, count):
    return fours.keep_inside(X, x0, rows, width, h2, share, c, places, tents, count)


@kernel
def run_bound(tents, factor, h2, lead, scales, count):
    return fours.scale_and_bound(tents, factor, h2, lead, scales, count)


@kernel
def run_squares(X, x0, rows, width, places, scales, lead, squares, count):
    fours.truncated_squares(X, x0, rows, width, places, scales, lead, squares, count)


@kernel
def run_distance(X, x0, rows, r0, width):
    return square_distance(X, x0, rows, r0, width)


@kernel
def run_sort(record, places, scales, start, stop, totals, slots, pairs):
    fours.count_places(places, start, stop, totals)
    fours.spread_pairs(record, places, scales, start, stop, slots, pairs)


@pytest.mark.parametrize("word", [0, 1, 1 << 63, 0b1011, 2**64 - 1, 0x8000_0F00_0000_0001])
def test_bits_are_appended_in_order(word):
    places = np.full(80, -7, np.int32)
    end = run_append_bits(np.uint64(word), 128, places, 5)
    assert places[5:end].tolist() == [128 + j for j in range(64) if word >> j & 1]
    assert (places[:5] == -7).all()
    assert (places[end + fours.ROOM :] == -7).all()


@pytest.mark.parametrize("width", [4, 8, 12, 20, 24])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 41])
def test_rows_closer_than_the_radius(width, count):
    rng = np.random.default_rng(100 * width + count)
    rows, X = rng.normal(size=(90, width)), rng.normal(size=(3, width))
    listed = rng.permutation(90)[:count].astype(np.int32)
    rows[listed[1:2]] = np.nan  # is never inside
    places = np.full(count + fours.ROOM + 1, -7, np.int32)
    places[:count] = listed
    tents = np.full(len(places), GUARD)
    r2 = [run_distance(X, width, rows, int(row) * width, width) for row in listed]
    h2 = float(np.nanmedian(r2)) if count else 1.0  # one of them lies on the sphere
    end, square = run_keep_inside(X, width, rows, width, h2, 1.0 / h2, 0.3, places, tents, count)
    want = [i for i in range(count) if 1.0 / h2 * (h2 - r2[i]) > 0.0]
    assert places[:end].tolist() == listed[want].tolist()
    ref = [1.0 / h2 * (h2 - r2[i]) for i in want]
    if JIT_DISABLED:  # NumPy's order of summation
        np.testing.assert_allclose(tents[:end], ref, rtol=1e-12, atol=1e-13)
    else:  # the same bits as one distance alone
        np.testing.assert_array_equal(tents[:end], ref)
    total = 0.0
    for t in tents[:end].tolist():
        norm = t * t * (0.3 + (1.0 - t))
        total += norm * norm
    assert square == total
    assert (places[count + fours.ROOM :] == -7).all()
    assert (tents[count + fours.ROOM :] == GUARD).all()


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 9])
def test_squares_of_truncated_vectors(groups, count):
    rng = np.random.default_rng(10 * groups + count)
    width = LANES * groups
    rows, X = (on_grid(rng.normal(size=(n, width))) for n in (20, 3))
    places = rng.permutation(20)[:count].astype(np.int32)
    scales = rng.choice([0.3, 1.0, 1e-12, 123.456, 16384.0], count)
    squares = np.full(count + fours.ROOM + 1, GUARD)
    run_squares(X, 2 * width, rows, width, places, scales, 0.7, squares, count)
    for i in range(count):
        gaps = [float(x - a) for x, a in zip(X[2], rows[places[i]], strict=True)]
        ref = [math.trunc(float(scales[i]) * value) for value in (*gaps, 0.7)]
        assert squares[i] == sum(v * v for v in ref)
    assert squares[count + fours.ROOM] == GUARD


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8, 9, 21])
def test_scales_and_a_bound_on_the_squares(count):
    rng = np.random.default_rng(count)
    tents, scales = np.full(count + fours.ROOM + 1, np.nan), np.full(count + fours.ROOM + 1, GUARD)
    tents[:count] = t = rng.random(count)
    found = run_bound(tents, 700.0, 2.25, 0.4, scales, count)
    np.testing.assert_array_equal(scales[:count], 700.0 * t)
    squares = np.trunc(700.0 * t * 0.4) ** 2 + (700.0 * t) ** 2 * 2.25 * (1.0 - t)
    assert found == pytest.approx(float(squares @ squares), rel=1e-12)
    assert scales[count + fours.ROOM] == GUARD


def test_pairs_are_counted_and_spread():
    rng = np.random.default_rng(0)
    places, scales = rng.permutation(9).astype(np.int32), rng.random(9)
    totals, slots = np.zeros(9, np.int64), 3 * np.arange(9)
    pairs = np.full((30, 2), GUARD)
    run_sort(41, places, scales, 2, 7, totals, slots, pairs)
    named = places[2:7]
    ref = np.zeros(9, np.int64)
    ref[named] = 1
    np.testing.assert_array_equal(totals, ref)
    np.testing.assert_array_equal(slots, 3 * np.arange(9) + ref)
    assert set(np.flatnonzero(pairs[:, 1] == 41)) == {3 * int(a) for a in named}
    np.testing.assert_array_equal(pairs[3 * named, 0], scales[2:7])
    assert ((pairs == GUARD).sum(axis=0) == 25).all()
