"""The bound that spares a record the look at every entry never accepts what the check in integers refuses."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.search.balls import search_scratch
from dpmd_fast.kernels.search.index import build_index, pad_queries
from dpmd_fast.kernels.sums import moments
from dpmd_fast.kernels.sums.clip import Clipping
from dpmd_fast.kernels.sums.pairs import pairs_for_block
from dpmd_fast.kernels.vector import fours
from dpmd_fast.kernels.vector.fours import ROOM

pytestmark = pytest.mark.kernels
C = 0.1


@kernel
def look(index, X, q, c, factor, clipping, places, roots, scales):
    count, _ = moments._find_locations(index, X, q, 2.0, c, places, roots, search_scratch(index))
    lead = index.radius * math.sqrt(c)
    return count, moments._surely_within(index, roots, count, factor, lead, clipping, scales)


@kernel
def bound_of(index, X, q, c, factor, places, roots, scales):
    count, _ = moments._find_locations(index, X, q, 2.0, c, places, roots, search_scratch(index))
    lead, h2 = index.radius * math.sqrt(c), index.radius * index.radius
    return count, moments.scale_and_bound(roots, factor, h2, lead, scales, count)


def sure_and_exact(index, X, q, c, factor, bound):
    """Whether the bound accepts record q, and the sum of squares of what it adds, in integers."""
    K = len(index.rows)
    places, roots, scales = np.zeros(K + ROOM, np.int32), np.zeros(K + ROOM), np.zeros(K + ROOM)
    count, sure = look(index, X, q, c, factor, Clipping(1.0, 1.0, bound), places, roots, scales)
    gaps = X[q, : index.columns] - index.rows[places[:count], : index.columns]
    lead = index.radius * math.sqrt(c)
    total = 0
    for i, gap in enumerate(gaps):
        assert scales[i] == factor * roots[i]
        total += sum(math.trunc(scales[i] * g) ** 2 for g in (*gap.tolist(), lead)) ** 2
    return bool(sure), total


@pytest.mark.parametrize("D", [1, 3, 4, 9, 20])
def test_only_records_that_keep_the_bound_are_accepted(D):
    rng = np.random.default_rng(D)
    index = build_index(rng.normal(size=(40, D)), 1.2 * math.sqrt(D))
    X = pad_queries(index, rng.normal(size=(12, D)))
    accepted = 0
    for q in range(len(X)):
        factor = float(rng.choice([40.0, 1e3, 2e4])) / index.radius
        _, total = sure_and_exact(index, X, q, C, factor, 1)
        edge = math.isqrt(total)
        for bound in (1, edge // 2, edge - 1, edge, edge + 1, edge + edge // 10**6, edge + edge // 3):
            sure, again = sure_and_exact(index, X, q, C, factor, max(bound, 1))
            assert again == total
            assert not sure or total <= bound**2
            accepted += sure
        assert total == 0 or sure_and_exact(index, X, q, C, factor, 2 * edge + 9)[0]
    assert accepted > 0


def test_nothing_is_sure_where_truncation_takes_nothing():
    # all entries are integers before they are cut: the sum is the bound, and rounding could hide more
    index = build_index(np.zeros((1, 1)), 2.0)
    X = pad_queries(index, np.array([[1.0]]))
    factor, c = 4096.0, 0.25  # t = 3/4, differences 1, the last coordinate 1
    _, total = sure_and_exact(index, X, 0, c, factor, 1)
    bound = math.isqrt(total)
    assert bound**2 == total
    assert not sure_and_exact(index, X, 0, c, factor, bound)[0]
    assert sure_and_exact(index, X, 0, c, factor, bound + 1)[0]


@pytest.mark.parametrize("h", [2.0**-460, 2.0**-530, 2.0**460])
def test_nothing_is_sure_where_squares_may_leave_the_range(h):
    index = build_index(np.zeros((1, 1)), h)
    X = pad_queries(index, np.array([[0.5 * h]]))
    places, roots, scales = np.zeros(1 + ROOM, np.int32), np.zeros(1 + ROOM), np.zeros(1 + ROOM)
    with np.errstate(all="ignore"):
        _, sure = look(index, X, 0, C, 100.0 / h, Clipping(1.0, 1.0, 1 << 30), places, roots, scales)
    assert not sure


@pytest.mark.parametrize("D", [1, 3, 8, 20])
def test_the_margin_covers_rounding_where_truncation_takes_nothing(D):
    """Entries of 40 bits and more lose nothing beside rounding: the margin alone keeps the bound above."""
    rng = np.random.default_rng(D)
    below = 0
    for h in (1.0, 2.0**-300, 3.0e50):
        index = build_index(h * rng.normal(size=(9, D)) / (2.0 * math.sqrt(D)), h)
        X = pad_queries(index, h * rng.normal(size=(60, D)) / (2.0 * math.sqrt(D)))
        K = len(index.rows)
        for q in range(len(X)):
            places, roots, scales = np.zeros(K + ROOM, np.int32), np.zeros(K + ROOM), np.zeros(K + ROOM)
            factor, c = 2.0 ** rng.uniform(40.0, 120.0) / h, float(rng.choice([0.0, C, 1e6]))
            count, total = bound_of(index, X, q, c, factor, places, roots, scales)
            gaps = X[q, :D] - index.rows[places[:count], :D]
            exact = 0
            for i, gap in enumerate(gaps):
                entries = (*gap.tolist(), index.radius * math.sqrt(c))
                exact += sum(math.trunc(scales[i] * g) ** 2 for g in entries) ** 2
            assert Fraction(total * moments._SURE) >= exact
            below += Fraction(total) < exact
    assert below > 0  # without the margin the bound would be passed here


def test_distances_are_not_taken_for_shorter_than_they_are():
    """The length that belongs to a tent is at least that of the differences, also where the tent is one."""
    for r in (0.0, 2.0**-60, 2.0**-27, 1e-8, 0.3, 1.0 - 2.0**-53):
        index = build_index(np.zeros((1, 1)), 1.0)
        X = pad_queries(index, np.array([[r]]))
        places, roots, scales = np.zeros(1 + ROOM, np.int32), np.zeros(1 + ROOM), np.zeros(1 + ROOM)
        count, total = bound_of(index, X, 0, 0.0, 2.0**200, places, roots, scales)
        assert count == 1
        assert Fraction(total * moments._SURE) >= Fraction(math.trunc(scales[0] * r)) ** 4
    assert fours._TENT_ERROR >= 4 * 2.0**-53


def test_bounds_are_for_the_usual_kernel_alone():
    """With beta = 1 the roots are no tents: a bound from them would let this record pass."""
    index = build_index(np.zeros((1, 1)), 1.0)
    clipping = Clipping(1.0, 1000.0, 132999)
    pairs = pairs_for_block(1)
    sums = np.zeros((1, 4, 4))
    moments.add_moment_block(index, 1.0, 1e-9, clipping, np.array([[0.9]]), sums, pairs)
    assert 0 < sum(int(value) ** 2 for value in (sums[0, 0, 0], sums[0, 1, 1])) <= clipping.bound**2


@pytest.mark.skipif(not JIT_DISABLED, reason="compiled code has the number in it")
def test_nothing_is_sure_about_sums_of_too_many_terms(monkeypatch):
    index = build_index(np.zeros((1, 1)), 1.0)
    X = pad_queries(index, np.array([[0.5]]))
    assert sure_and_exact(index, X, 0, C, 100.0, 1 << 30)[0]
    monkeypatch.setattr(moments, "_MANY", 4 * index.rows.shape[1])
    assert not sure_and_exact(index, X, 0, C, 100.0, 1 << 30)[0]
