"""Neighbours of one leaf against plain loops; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import gather
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels

GUARD = 1e6


@kernel
def run_closer(word, X, x0, rows, first, width, h2, share, places, tents, at, inside):
    return gather.append_inside(word, X, x0, rows, first, width, h2, share, places, tents, at, inside)


@kernel
def run_differences(weights, places, start, stop, rows, X, x0, out, width):
    gather.fetch_ahead(rows, places, start, stop, width)
    gather.add_differences(weights, places, start, stop, rows, X, x0, out, width)


@kernel
def run_outers(bases, roots, places, start, stop, count, C):
    gather.add_outers_four(bases, roots, places, start, stop, count, C)


@pytest.mark.parametrize("width", [4, 8, 12, 20, 24])
def test_candidates_closer_than_the_radius(width):
    rng = np.random.default_rng(width)
    rows, X = rng.normal(size=(200, width)), rng.normal(size=(3, width))
    first, q, at = 128, 1, 5
    r2 = ((rows - X[q]) ** 2).sum(axis=1)
    h2 = float(np.quantile(r2, 0.5))
    bits = rng.random(64) < 0.6
    word = np.uint64(sum(1 << j for j in range(64) if bits[j]))
    places, tents = np.full(80, -7, np.int32), np.full(80, GUARD)
    inside = np.array([3])
    end = run_closer(word, X, q * width, rows, first, width, h2, 1.0 / h2, places, tents, at, inside)
    want = [first + j for j in range(64) if bits[j] and r2[first + j] < h2]
    assert places[at:end].tolist() == want
    assert 5 < len(want) < bits.sum()
    np.testing.assert_allclose(tents[at:end], 1.0 - r2[want] / h2, rtol=1e-12, atol=1e-12)
    assert inside[0] == 3 + len(want)
    assert (places[:at] == -7).all()
    assert (tents[end + 1 :] == GUARD).all()


def test_a_candidate_on_the_sphere_is_inside_without_weight():
    rows, X = np.zeros((64, 4)), np.zeros((1, 4))
    rows[0, 0], rows[3, 1], rows[63, 2] = 2.0, 1.0, np.nan
    places, tents, inside = np.zeros(65, np.int32), np.zeros(65), np.zeros(1, np.int64)
    word = np.uint64(1 | 1 << 3 | 1 << 63)
    end = run_closer(word, X, 0, rows, 0, 4, 4.0, 0.25, places, tents, 0, inside)
    assert (end, inside[0]) == (1, 2)
    assert (places[0], tents[0]) == (3, 0.75)
    empty = run_closer(np.uint64(0), X, 0, rows, 0, 4, 4.0, 0.25, places, tents, 2, inside)
    assert (empty, inside[0]) == (2, 2)


@pytest.mark.parametrize("width", [4, 8, 20])
def test_weighted_differences(width):
    rng = np.random.default_rng(width)
    rows, X = rng.normal(size=(50, width)), rng.normal(size=(4, width))
    places = rng.integers(0, 50, 30).astype(np.int32)
    weights = rng.random(30)
    out = np.concatenate([rng.normal(size=width), [GUARD]])
    want = out.copy()
    for i in range(7, 23):
        want[:width] += weights[i] * (rows[places[i]] - X[2])
    run_differences(weights, places, 7, 23, rows, X, 2 * width, out, width)
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_outer_products_of_four(count):
    rng = np.random.default_rng(count)
    bases, roots = rng.normal(size=(40, count, LANES)), rng.random(20)
    places = rng.integers(0, 40, 20).astype(np.int32)
    C = rng.normal(size=(LANES, LANES))
    want = C.copy()
    for i in range(3, 17):
        for row in bases[places[i]]:
            want += roots[i] ** 2 * np.outer(row, row)
    run_outers(bases, roots, places, 3, 17, count, C)
    np.testing.assert_allclose(C, want, rtol=1e-12, atol=1e-13)
