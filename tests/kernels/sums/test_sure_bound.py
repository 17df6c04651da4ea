"""The bound that spares a record the look at every entry never accepts what the check in integers refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.search.balls import search_scratch
from dpmd_fast.kernels.search.index import build_index, pad_queries
from dpmd_fast.kernels.sums import moments
from dpmd_fast.kernels.sums.clip import Clipping
from dpmd_fast.kernels.vector.fours import ROOM

pytestmark = pytest.mark.kernels
C = 0.1


@kernel
def look(index, X, q, c, factor, clipping, places, roots, scales):
    count, _ = moments._find_locations(index, X, q, 2.0, c, places, roots, search_scratch(index))
    lead = index.radius * math.sqrt(c)
    return count, moments._surely_within(index, roots, count, factor, lead, clipping, scales)


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
