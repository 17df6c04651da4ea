"""Exact sums of clipped moments: equal to plain loops, within their bound for all neighbours, order-free."""

from __future__ import annotations

import math
import os
from pathlib import Path

import naive
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

import dpmd_fast.kernels.sums.exact
from dpmd_fast import Budget, release_moments
from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.scratch import sparse_memory
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.clip import Clipping
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.moments import add_moment_block, record_norms
from dpmd_fast.kernels.sums.pairs import CHUNK, pairs_for_block
from dpmd_fast.kernels.vector import integers
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.mechanisms.moments import HOMOGENEOUS, natural_tau
from dpmd_fast.privacy.lattice import choose_lattice

BUDGET = Budget(epsilon=1.0, delta=1e-6)
BETAS = (2.0, 3.5)
GUARD = 1e6


class Setting:
    """Locations with all that fixes the integer vector of a record."""

    def __init__(self, locations, h, beta=2.0, share=1.0, mu=1.0, adjacency="replace-one"):
        self.locations, self.h, self.beta = locations, float(h), beta
        self.index = build_index(locations, h)
        self.tau = share * natural_tau(self.index, beta)
        self.lattice = choose_lattice(mu, self.tau, adjacency)
        self.bound = self.lattice.bound
        self.unit = math.sqrt(1.0 / self.lattice.step)

    def total(self, *blocks, n_threads=1):
        sums = MomentSums(self.index, self.beta, self.tau, self.lattice.steps, HOMOGENEOUS, n_threads)
        for Y in blocks:
            sums.add(Y)
        return sums.total()

    def oracle(self, Y, unit=None):
        """The sums in Python's integers; the norm is summed in the order of the leaves."""
        order = self.index.order
        out = np.empty((len(order), *2 * (self.locations.shape[1] + 1,)), dtype=object)
        out[order] = naive.moment_sums(
            self.locations[order],
            Y,
            self.h,
            self.beta,
            HOMOGENEOUS,
            self.tau,
            self.unit if unit is None else unit,
            self.bound,
        )
        return out

    def total_with(self, Y, unit):
        """As `total`, with another `unit` than the one that belongs to the bound."""
        sums = MomentSums(self.index, self.beta, self.tau, self.lattice.steps, HOMOGENEOUS)
        sums._clipping = sums._clipping._replace(unit=unit)
        sums.add(Y)
        return sums.total()


def square(A):
    """Squared Frobenius norm of integers, without overflow."""
    entries = A[A != 0].astype(object)
    return int(entries @ entries) if len(entries) else 0


def on_grid(points, step=1.0 / 16.0):
    """Multiples of 1/16: differences, squares and their sums are exact."""
    return np.round(points / step) * step


def grid_setting(D, K, beta, share, h=2.0):
    rng = np.random.default_rng(1000 * D + K)
    locations = on_grid(rng.normal(size=(K, D)) * 0.5 * h / math.sqrt(D))
    locations[K // 2 :: 7] = locations[0]  # duplicates
    return Setting(locations, h, beta, share), rng


def grid_records(setting, rng, n):
    """On locations, at the bandwidth exactly, outside, twice, and in between."""
    A, h, D = setting.locations, setting.h, setting.locations.shape[1]
    Y = A[rng.integers(len(A), size=n)].copy()
    Y[n // 8 :] += on_grid(rng.normal(size=(n - n // 8, D)) * 0.4 * h / math.sqrt(D))
    for i in range(3):
        Y[i] = A[i % len(A)]
        Y[i, i % D] += h if i else -h
    Y[3] = Y[4]
    Y[5] = 100.0
    Y[6, 0] += 5e-324
    return Y


# The micro-kernels


@kernel
def run_truncated_square(X, x0, A, a0, scale, count):
    return integers.truncated_square(X, x0, A, a0, scale, count)


@kernel
def run_pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups):
    integers.pack_truncated(X, x0, A, a0, scale, panel, p0, stride, groups)


@pytest.mark.kernels
@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8])
def test_micro_kernels_round_toward_zero(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    X, A = (np.full((7, width), GUARD) for _ in range(2))
    X[2], A[4] = rng.integers(-9, 10, width), rng.integers(-9, 10, width)
    for scale in (0.3, -0.7, 1.0, 1e-12, 123.456, 16384.0):
        ref = [math.trunc(scale * float(x - a)) for x, a in zip(X[2], A[4], strict=True)]
        assert run_truncated_square(X, 2 * width, A, 4 * width, scale, width) == sum(v * v for v in ref)
        panel = np.full((groups, 5, LANES), GUARD)
        run_pack_truncated(X, 2 * width, A, 4 * width, scale, panel, LANES * 3, LANES * 5, groups)
        np.testing.assert_array_equal(panel[:, 3].ravel(), ref)
        np.testing.assert_array_equal(np.delete(panel, 3, axis=1), GUARD)


# The kernel against plain loops


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "K"), [(1, 1), (2, 5), (3, 70), (9, 3), (12, 66)])
@pytest.mark.parametrize("beta", BETAS)
def test_bits_of_the_plain_loop_small(D, K, beta):
    setting, rng = grid_setting(D, K, beta, 1.0)
    Y = grid_records(setting, rng, 24)
    total = setting.total(Y)
    assert total.dtype == np.int64
    assert total.any()
    np.testing.assert_array_equal(total, setting.oracle(Y))


@pytest.mark.parametrize(
    ("D", "K"), [(1, 200), (2, 130), (4, 1), (7, 65), (8, 64), (9, 150), (20, 70), (30, 6)]
)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("share", [0.03, 1.0, 4.0])
def test_bits_of_the_plain_loop(D, K, beta, share):
    setting, rng = grid_setting(D, K, beta, share, h=1.7)
    Y = grid_records(setting, rng, 60 if D < 20 else 30)
    np.testing.assert_array_equal(setting.total(Y), setting.oracle(Y))


@pytest.mark.parametrize("beta", BETAS)
def test_real_coordinates(beta):
    # the order of a sum of squares may now move a last digit, and with it one entry of a vector by one
    rng = np.random.default_rng(3)
    for D, K, scale in ((2, 90, 1e-9), (5, 40, 1.0), (9, 80, 1e9), (21, 30, 1e3)):
        setting = Setting(scale * rng.normal(size=(K, D)), 1.5 * scale * math.sqrt(D), beta)
        Y = scale * rng.normal(size=(40, D))
        difference = np.abs(setting.total(Y) - setting.oracle(Y))
        assert difference.max() <= 2 * math.isqrt(setting.bound) + 1
        assert np.count_nonzero(difference) <= 2 * D + 1


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "share"), [(1, 1.0), (3, 0.2), (9, 1.0), (9, 3.0)])
@pytest.mark.parametrize("beta", BETAS)
def test_the_formula(D, share, beta):
    # an entry of a vector is short by less than one, so a product by less than the sum of its two factors
    rng = np.random.default_rng(D)
    setting = Setting(rng.normal(size=(6, D)) + 5.0, 1.2 * math.sqrt(D), beta, share)
    Y = rng.normal(size=(20, D)) + 5.0
    ref = naive.clipped_moments(setting.locations, Y, setting.h, beta, HOMOGENEOUS, setting.tau)
    allowed = len(Y) * (2 * math.isqrt(setting.bound) + 1) * setting.lattice.step
    np.testing.assert_allclose(setting.lattice.step * setting.total(Y), ref, rtol=0, atol=allowed)
    assert np.abs(ref).max() > 100 * allowed
    norms = record_norms(setting.index, Y, beta, HOMOGENEOUS)
    for y, norm in zip(Y, norms, strict=True):
        alone = naive.clipped_moments(setting.locations, [y], setting.h, beta, HOMOGENEOUS, math.inf)
        assert norm == pytest.approx(math.sqrt((alone**2).sum()), rel=1e-12)


def test_natural_tau_is_the_largest_norm_on_a_location():
    rng = np.random.default_rng(0)
    locations = rng.normal(size=(80, 3))
    locations[7] = locations[11]
    index = build_index(locations, 0.9)
    norms = [
        math.sqrt((naive.clipped_moments(locations, [a], 0.9, 2.0, HOMOGENEOUS, math.inf) ** 2).sum())
        for a in locations
    ]
    assert natural_tau(index, 2.0) == pytest.approx(max(norms), rel=1e-12)
    alone = build_index(np.zeros((1, 4)), 3.0)
    assert natural_tau(alone, 3.5) == pytest.approx(HOMOGENEOUS, rel=1e-15)


# The bound is held by the check in integers, whatever the floating point before it says


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [1e-15, 1e-12, 1e-9, 1e-4, 0.1, 0.25])
@pytest.mark.parametrize("beta", BETAS)
def test_vectors_that_are_too_long_are_scaled_down(excess, beta):
    for D, K in ((1, 2), (3, 6)):
        setting, rng = grid_setting(D, K, beta, 0.05)
        unit = (1.0 + excess) * setting.unit
        Y = grid_records(setting, rng, 8)
        np.testing.assert_array_equal(setting.total_with(Y, unit), setting.oracle(Y, unit))
        for y in Y:
            assert square(setting.total_with(y[None], unit)) <= setting.bound**2
        assert setting.total_with(Y, unit).any()


@pytest.mark.kernels
@pytest.mark.parametrize("excess", [1e2, 1e6, 1e12, 1e150])
@pytest.mark.parametrize("mu", [1.0, 1e6])
def test_vectors_that_are_far_too_long_are_left_out(excess, mu):
    # up to 1e12, squares of their squared lengths would leave 64 bits and could pass as small or negative
    setting = Setting(np.repeat(np.arange(3.0)[:, None], 30, axis=0), 1.5, mu=mu, share=0.05)
    Y = np.linspace(-1.0, 3.0, 9)[:, None]
    assert setting.total(Y).any()
    assert not setting.total_with(Y, excess * setting.unit).any()


# Sensitivity


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


# Records that contribute nothing


@pytest.mark.parametrize("D", [1, 3, 8, 9, 20])
def test_records_out_of_reach_and_invalid_ones_contribute_nothing(D):
    rng = np.random.default_rng(D)
    setting = Setting(rng.normal(size=(90, D)), 1.5)
    Y = rng.normal(size=(40, D))
    bad = np.repeat(Y[:1], 12, axis=0)
    for i, value in enumerate((np.nan, np.inf, -np.inf, 1e20, -1e100, 1e160, 1.79e308, -1.79e308, 1e6)):
        bad[i, i % D] = value
    bad[9], bad[10], bad[11] = np.nan, np.inf, -1.79e308
    assert not setting.total(bad).any()
    mixed = np.vstack([bad[:5], Y[:13], bad[5:], Y[13:]])
    np.testing.assert_array_equal(setting.total(mixed), setting.total(Y))
    with np.errstate(over="ignore"):
        single = mixed.astype(np.float32)
    np.testing.assert_array_equal(setting.total(single), setting.total(Y.astype(np.float32)))


def test_records_at_the_bandwidth_have_no_weight():
    for h in (7.0, 14.0, 27.0, 49.0):  # 1 / h^2 is rounded up for some of them
        Y = h * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        assert not Setting(np.zeros((1, 2)), h).total(Y).any()


# Bits do not depend on threads, batches, order, or where the records come from


def wide(D, K=150, n=5003):
    rng = np.random.default_rng(D)
    scales = np.where(np.arange(D) < 3, 1.0, 0.1)
    return scales * rng.normal(size=(n, D)), scales * rng.normal(size=(K, D)), 1.1


@pytest.mark.parametrize("D", [3, 12])
def test_threads_and_batches(D):
    Y, locations, h = wide(D)
    setting = Setting(locations, h, 3.5)
    options = {"bandwidth": h, "budget": BUDGET, "seed": 5}
    for n, sizes in ((5003, (777, 4096, 5003)), (300, (1, 7, 299))):
        ref = setting.total(Y[:n])
        assert ref.any()
        np.testing.assert_array_equal(setting.total(Y[:n], n_threads=2), ref)
        noisy = release_moments(Y[:n], locations, **options).values
        for size in sizes:
            blocks = [Y[start : min(start + size, n)] for start in range(0, n, size)]
            for n_threads in (1, 2):
                np.testing.assert_array_equal(setting.total(*blocks, n_threads=n_threads), ref)
                comp = release_moments(Y[:n], locations, batch_rows=size, n_threads=n_threads, **options)
                np.testing.assert_array_equal(comp.values, noisy)


@pytest.mark.parametrize("D", [1, 3, 8, 9, 12, 30])
@pytest.mark.parametrize("beta", BETAS)
def test_a_record_does_not_feel_its_place_or_its_company(D, beta):
    # not only the integers: also the floating-point numbers they are cut from, to the last bit
    Y, locations, h = wide(D, n=400)
    setting = Setting(locations, h * math.sqrt(max(D, 3) / 3), beta, 0.3)
    clipping = Clipping(setting.tau, setting.unit, setting.bound)

    def vectors(Y, n_threads):
        pairs = pairs_for_block(len(locations))
        sums = np.zeros((150, *2 * setting.index.rows.shape[1:]))
        add_moment_block(setting.index, beta, HOMOGENEOUS, clipping, Y, sums, pairs, n_threads)
        found = []
        for start in range(0, len(Y), CHUNK):
            at = start * len(locations)
            for q in range(start, min(start + CHUNK, len(Y))):
                own = slice(at, at + pairs.counts[q])
                found.append((pairs.places[own].tobytes(), pairs.scales[own].tobytes()))
                at = own.stop
        return found

    ref = vectors(Y, 1)
    assert sum(len(places) > 0 for places, _ in ref) > 200
    order = np.random.default_rng(0).permutation(400)
    assert vectors(Y[order], 2) == [ref[q] for q in order]
    assert vectors(Y[7:], 1) == ref[7:]
    assert [vectors(Y[q : q + 1], 1)[0] for q in range(40)] == ref[:40]
    company = np.vstack([np.full((3, D), np.nan), 1e300 * Y[:5], Y, np.repeat(Y[:1], 9, axis=0)])
    assert vectors(company, 1)[8:408] == ref


@pytest.mark.parametrize("D", [3, 12])
def test_order_and_merging(D):
    Y, locations, h = wide(D)
    setting = Setting(locations, h)
    ref = setting.total(Y)
    rng = np.random.default_rng(0)
    for order in (np.arange(len(Y))[::-1], rng.permutation(len(Y)), np.argsort(Y[:, 0])):
        np.testing.assert_array_equal(setting.total(Y[order]), ref)
    owner = rng.integers(0, 5, len(Y))
    parts = [setting.total(Y[owner == k]) for k in range(5)]
    for order in (range(5), (3, 1, 4, 0, 2)):
        np.testing.assert_array_equal(sum(parts[k] for k in order), ref)
    np.testing.assert_array_equal(setting.total(*(Y[owner == k] for k in (4, 2, 0, 1, 3))), ref)
    np.testing.assert_array_equal(setting.total(Y[:0], Y, Y[:0]), ref)
    np.testing.assert_array_equal(setting.total(np.asfortranarray(Y)), ref)
    np.testing.assert_array_equal(setting.total(np.repeat(Y, 2, axis=0)[::2]), ref)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_streams_and_files(dtype, tmp_path):
    Y, locations, h = wide(9, K=70, n=3001)
    Y = Y.astype(dtype)
    names = [f"x{j}" for j in range(9)]
    table = pa.table({name: Y[:, j] for j, name in enumerate(names)})
    chunked = pa.concat_tables(
        [table.slice(a, b - a) for a, b in ((0, 1), (1, 700), (700, 701), (701, 3001))]
    )
    shuffled = np.random.default_rng(0).permutation(3001)
    pq.write_table(table, tmp_path / "odd.parquet", row_group_size=777)
    pq.write_table(table.take(shuffled), tmp_path / "shuffled.parquet", row_group_size=13)
    cuts = (0, 10, 11, 2000, 3001)
    pieces = []
    for number in range(4):
        pieces.append(tmp_path / f"piece-{number}.parquet")
        part = table.slice(cuts[number], cuts[number + 1] - cuts[number])
        pq.write_table(part, pieces[-1], row_group_size=101 + number)
    extra = table.append_column("name", pa.array(["secret"] * 3001)).select(["name", *reversed(names)])
    references = {
        "table": table,
        "chunks": chunked,
        "batch": table.combine_chunks().to_batches()[0],
        "pandas": pd.DataFrame(Y, columns=names),
        "polars": pl.DataFrame(Y, schema=names),
        "file": tmp_path / "odd.parquet",
        "path as text": str(tmp_path / "shuffled.parquet"),
        "files": pieces,
        "files in another order": [pieces[k] for k in (2, 0, 3, 1)],
        "more columns": extra,
    }
    options = {"bandwidth": h, "budget": BUDGET, "seed": 5, "n_threads": 1}
    ref = release_moments(Y.astype(np.float64), locations, **options).values
    np.testing.assert_array_equal(release_moments(Y, locations, **options).values, ref)
    for name, reference in references.items():
        columns = names if name == "more columns" else None
        for batch_rows in (None, 77, 1000):
            comp = release_moments(reference, locations, columns=columns, batch_rows=batch_rows, **options)
            np.testing.assert_array_equal(comp.values, ref, err_msg=name)
    stream = pa.RecordBatchReader.from_batches(table.schema, chunked.to_batches(max_chunksize=17))
    comp = release_moments(stream, locations, on_invalid="drop", **options)
    np.testing.assert_array_equal(comp.values, ref)


def test_moving_on_to_integers(monkeypatch):
    Y, locations, h = wide(5, K=70, n=1000)
    setting = Setting(locations, h)
    ref = setting.total(Y)
    flushed = []
    flush = dpmd_fast.kernels.sums.exact.ExactSums._flush

    def counted(self):
        flushed.append(self._recent_rows)
        flush(self)

    monkeypatch.setattr(dpmd_fast.kernels.sums.exact.ExactSums, "_flush", counted)
    for rows in (1, 2, 37, 999, 1000):
        flushed.clear()
        monkeypatch.setattr(dpmd_fast.kernels.sums.exact, "EXACT", rows * setting.bound + 1)
        np.testing.assert_array_equal(setting.total(Y[:500], Y[500:503], Y[503:]), ref)
        if rows == 1000:  # all fit: nothing has to move on
            assert not flushed
            continue
        assert max(flushed) <= rows
        assert sum(flushed) == 1000
        assert len(flushed) >= 1000 // rows


def test_more_records_than_64_bits_hold_are_refused():
    setting = Setting(np.zeros((1, 2)), 1.0)
    sums = MomentSums(setting.index, 2.0, setting.tau, setting.lattice.steps, HOMOGENEOUS)
    sums.add(np.zeros((3, 2)))
    sums.rows = (1 << 62) // setting.bound - 2
    ref = sums.total()
    with pytest.raises(OverflowError, match="64-bit"):
        sums.add(np.zeros((3, 2)))
    np.testing.assert_array_equal(sums.total(), ref)  # nothing was added


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "dtype"), [((7,), np.int32), ((5, 3), np.float64), ((4, 0), np.float64)])
def test_sparse_memory_is_an_array(shape, dtype):
    found = sparse_memory(shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.flags.c_contiguous
    assert not found.any()
    found[...] = 1
    assert (found == 1).all()
    assert not sparse_memory(shape, dtype).any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_sparse_memory_costs_what_is_touched():
    before = resident()
    found = sparse_memory((1 << 26,))  # 512 MB
    found[:: 1 << 21] = 1.0
    assert resident() - before < 8 << 20
    assert found.sum() == 32.0


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sparse_memory_is_not_shared_with_a_child():
    found = sparse_memory((10,))
    child = os.fork()
    if child == 0:
        found[:] = 1.0
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not found.any()


def test_no_sparse_memory_is_a_memory_error():
    with pytest.raises(MemoryError, match="MB of scratch"):
        sparse_memory((1 << 58,))
