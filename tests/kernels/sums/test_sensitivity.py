"""How far one record can move the sums of moments: never beyond the bound, and nearly up to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from kernel_samples import Setting, square

from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.mechanisms.moments import HOMOGENEOUS

BETAS = (2.0, 3.5)


def locations_of(layout, D, K, rng):
    """Public locations in units of the bandwidth."""
    if layout == "cloud":
        return rng.normal(size=(K, D)) * 0.4 / math.sqrt(D)
    if layout == "spread":
        return rng.uniform(-2.0, 2.0, (K, D)) / math.sqrt(D)
    if layout == "line":
        return np.outer(0.3 * np.arange(K), np.eye(D)[0])
    if layout == "same":
        return np.tile(rng.normal(size=D), (K, 1))
    if layout == "clusters":
        return 10.0 * rng.integers(0, 3, (K, D)).astype(float)
    assert layout == "touching"  # neighbours at exactly the bandwidth
    return np.cumsum(np.eye(D)[rng.integers(D, size=K)], axis=0)


def clipped_at(setting, anchor, direction):
    """A record on the ray whose norm passes tau within its last digits, if one does."""
    low, high = 0.0, 1.0
    for _ in range(10):
        steps = np.linspace(low, high, 65)
        records = anchor + setting.h * steps[:, None] * direction
        above = record_norms(setting.index, records, setting.beta, HOMOGENEOUS, 1) > setting.tau
        last = int(np.flatnonzero(above)[-1]) if above[:-1].any() else 0
        low, high = steps[min(last, 63)], steps[min(last, 63) + 1]
    return anchor + setting.h * low * direction


LAYOUTS = ("cloud", "spread", "line", "same", "clusters", "touching")
RECORDS = (
    "anchor",
    "near",
    "edge",
    "inside",
    "longest",
    "clipped",
    "tiny",
    "subnormal",
    "huge",
    "invalid",
    "mean",
)


def record_of(kind, setting, rng):
    A, h = setting.locations, setting.h
    D = A.shape[1]
    anchor = A[rng.integers(len(A))].copy()
    direction = rng.normal(size=D)
    direction /= np.linalg.norm(direction)
    axis = np.eye(D)[rng.integers(D)] * rng.choice([-1.0, 1.0])
    return {
        "anchor": lambda: anchor,
        "near": lambda: anchor + rng.uniform(0.0, 1.0) * h * direction,
        "edge": lambda: anchor + h * axis,
        "inside": lambda: anchor + math.nextafter(h, 0.0) * axis,
        "longest": lambda: anchor + math.sqrt((1.0 - 2.0 * HOMOGENEOUS) / 3.0) * h * direction,
        "clipped": lambda: clipped_at(setting, anchor, direction),
        "tiny": lambda: anchor + 1e-17 * h * direction,
        "subnormal": lambda: np.full(D, 5e-324) * rng.integers(1, 1000, D),
        "huge": lambda: np.where(rng.random(D) < 0.5, anchor, rng.choice([1e20, 1e160, 1.7e308])),
        "invalid": lambda: np.where(np.arange(D) == rng.integers(D), rng.choice([np.nan, np.inf]), anchor),
        "mean": lambda: A.mean(axis=0),
    }[kind]()


@st.composite
def neighbours(draw):
    """Locations, records, and which of them becomes what other record."""
    D, K = draw(st.integers(1, 30)), draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.integers(-9, 9))
    center = draw(st.sampled_from([0.0, 1.0, -1e3, 1e6]))
    locations = scale * (center + locations_of(draw(st.sampled_from(LAYOUTS)), D, K, rng))
    share = draw(st.sampled_from([1e-3, 0.2, 1.0, 1.0, 5.0]))
    mu = draw(st.sampled_from([1e-5, 0.2, 1.0, 300.0]))
    setting = Setting(locations, scale, draw(st.sampled_from(BETAS)), share, mu)
    kinds = draw(st.lists(st.sampled_from(RECORDS), min_size=1, max_size=12))
    Y = np.array([record_of(kind, setting, rng) for kind in kinds])
    Y[rng.integers(len(Y))] = Y[rng.integers(len(Y))]
    return setting, Y, int(rng.integers(len(Y))), record_of(draw(st.sampled_from(RECORDS)), setting, rng)


def search_neighbours(examples):
    """Largest change of the sums over the bound, and of the contribution of one record over its own."""
    found = [0.0, 0.0]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(neighbours())
    def check(case):
        setting, Y, i, record = case
        other = np.vstack([Y[:i], record, Y[i + 1 :]])
        change = square(setting.total(Y) - setting.total(other))
        assert change <= 2 * setting.bound**2
        for y in (Y[i], record):
            own = square(setting.total(y[None]))
            assert own <= setting.bound**2
            found[1] = max(found[1], math.sqrt(own) / setting.bound)
        ratio = math.sqrt(change / 2) / setting.bound
        found[0] = max(found[0], ratio)
        target(ratio)

    check()
    return found


def test_no_neighbour_changes_the_sums_beyond_the_bound():
    worst, longest = search_neighbours(150)
    assert worst > 0.5
    assert longest > 0.99


@pytest.mark.slow
def test_no_neighbour_changes_the_sums_beyond_the_bound_long():
    worst, longest = search_neighbours(4000)
    print(worst, longest)
    assert worst > 0.9
    assert longest > 0.999


@pytest.mark.parametrize("D", [1, 2, 3, 7, 8, 9, 16, 30])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("beta", BETAS)
def test_the_bound_is_nearly_reached(D, scale, beta):
    # far apart, a record on one location against a record on the other: both have full norm
    rng = np.random.default_rng(D)
    locations = scale * (3.0 * np.arange(70)[:, None] + 1e-3 * rng.normal(size=(70, D)))
    for share in (1.0, 0.1):
        setting = Setting(locations, scale, beta, share)
        common = locations[:50] + 0.3 * scale * rng.normal(size=(50, D)) / math.sqrt(D)
        one, two = (np.vstack([common[:25], locations[a], common[25:]]) for a in (0, 69))
        change = square(setting.total(one) - setting.total(two))
        assert 0.99 * 2 * setting.bound**2 < change <= 2 * setting.bound**2
        # added or removed: half of that
        change = square(setting.total(one) - setting.total(common))
        assert 0.99 * setting.bound**2 < change <= setting.bound**2


@pytest.mark.parametrize("share", [0.02, 1.0, 6.0])
def test_clipping_is_over_all_locations_together(share):
    # a record in reach of many locations contributes no more than one in reach of a single one
    locations = np.vstack([np.zeros((199, 2)), [[50.0, 0.0]]])
    setting = Setting(locations, 1.0, share=share)
    for y, reached in ((locations[:1], 199), (locations[-1:], 1)):
        total = setting.total(y)
        assert np.count_nonzero(total.any(axis=(1, 2))) == reached
        norm = math.sqrt(square(total)) / setting.bound
        norm_before = HOMOGENEOUS * math.sqrt(reached) / setting.tau
        assert norm == pytest.approx(min(1.0, norm_before), rel=2e-2)
