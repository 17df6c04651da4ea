"""Local PCA at every reference point against the plain loop, on every way through the kernel."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from dpmd_fast.kernels import tangents
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import covariance_at, local_tangents

EPS = np.finfo(float).eps


def by_point(Y, h, d, n_threads=None):
    """Bases (n, d, D) and counts in the order of Y."""
    index = build_index(Y, h)
    bases, counts = local_tangents(index, d, n_threads)
    assert (bases[:, :, Y.shape[1] :] == 0.0).all()
    comp_bases, comp_counts = np.empty((len(Y), d, Y.shape[1])), np.empty(len(Y), np.int64)
    comp_bases[index.order], comp_counts[index.order] = bases[:, :, : Y.shape[1]], counts
    return comp_bases, comp_counts


def assert_tangents(Y, h, d, conditioning=10.0, every=1):
    """Projectors to 1e-9 where the eigen-gap permits, at every so many points; orthonormal or zero at all.

    Two covariances that differ by rounding, `conditioning` * eps relative to their trace, have projectors
    that differ by at most that over the relative gap (Davis-Kahan). Points whose gap is too small for 1e-9,
    with a factor of 100 to spare, are not compared; they must be less than half. Returns those compared.
    """
    bases, counts = by_point(Y, h, d)
    gram = bases @ bases.transpose(0, 2, 1)
    np.testing.assert_allclose(gram, (counts > d)[:, None, None] * np.eye(d), rtol=0, atol=1e-12)
    compared = skipped = 0
    for i in range(0, len(Y), every):
        assert counts[i] == len(naive.ball(Y, Y[i], h))
        if counts[i] < d + 1:
            continue
        ref, _, values = naive.top_projector(naive.local_covariance(Y, Y[i], h), d)
        gap = (values[d - 1] - values[d]) / values.sum() if d < len(values) else 1.0
        if 100.0 * conditioning * EPS > 1e-9 * gap:
            skipped += 1
            continue
        compared += 1
        np.testing.assert_allclose(bases[i].T @ bases[i], ref, rtol=0, atol=1e-9)
    assert skipped <= compared
    return compared


def curved(rng, n, D, d, noise):
    """A curved d-dimensional patch in R^D with noise around it."""
    t = rng.uniform(-1.0, 1.0, (n, d))
    frame = np.linalg.qr(rng.standard_normal((D, D)))[0]
    X = np.zeros((n, D))
    X[:, :d] = t
    X[:, d:] = 0.3 * (t**2).sum(axis=1)[:, None] / np.sqrt(D - d) if d < D else 0.0
    return X @ frame.T + noise * rng.standard_normal((n, D))


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), [(2, 1), (3, 2), (7, 1), (9, 2)])
def test_against_the_loop_small(D, d):
    rng = np.random.default_rng(D)
    Y = curved(rng, 70, D, d, 0.02)
    assert assert_tangents(Y, 0.6, d) > 35


# widths below, at and above multiples of four, few and many columns, and every d
QUICK = [(2, 1), (2, 2), (3, 2), (5, 3), (7, 1), (9, 2), (20, 5), (33, 1)]


@pytest.mark.parametrize(
    ("D", "d"),
    [
        pytest.param(D, d, marks=[pytest.mark.slow] * ((D, d) not in QUICK))
        for D in (2, 3, 5, 7, 9, 20, 33)
        for d in (1, 2, 3, 5)
        if d <= D
    ],
)
def test_against_the_loop(D, d):
    rng = np.random.default_rng(100 * D + d)
    Y = curved(rng, 200, D, d, 0.02)
    h = {1: 0.2, 2: 0.4, 3: 0.7, 5: 1.1}[d]
    every = 1 if D < 20 else 4
    assert assert_tangents(Y, h, d, every=every) > 100 // every


@pytest.mark.parametrize("D", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_few_neighbors_have_no_tangent(D):
    rng = np.random.default_rng(D)
    # groups of 1 to 5 points, far apart: exactly those with d+1 or more get a basis
    sizes = [1, 2, 3, 4, 5] * 8
    corners = np.repeat(10.0 * rng.permutation(len(sizes))[:, None] * np.ones(D), sizes, axis=0)
    Y = corners + 0.1 * rng.standard_normal((len(corners), D))
    size = np.repeat(sizes, sizes)
    for d in (1, 2, 3):
        bases, counts = by_point(Y, 3.0, d)
        np.testing.assert_array_equal(counts, size)
        np.testing.assert_array_equal((bases != 0.0).any(axis=(1, 2)), size >= d + 1)
        assert_tangents(Y, 3.0, d)


@pytest.mark.parametrize(("D", "d"), [(3, 2), pytest.param(7, 2, marks=pytest.mark.slow), (20, 3)])
def test_far_from_the_origin(D, d):
    # Coordinates of 1e5 h. Both sides sum products of differences from a mean. The differences of the
    # coordinates are exact and common to both; the mean is rounded, at 1e5 h eps, but a wrong mean enters
    # the scatter by its square only (to first order the deviations sum to zero). So the usual bound holds.
    rng = np.random.default_rng(D)
    h = 0.5 if d == 2 else 0.8
    Y = curved(rng, 200, D, d, 0.02) + 1e5 * h * rng.choice([-1.0, 1.0], D)
    every = 1 if D < 20 else 3
    assert assert_tangents(Y, h, d, every=every) > 100 // every


@pytest.mark.parametrize("D", [3, *(pytest.param(D, marks=pytest.mark.slow) for D in (7, 20))])
@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_tight_clusters_beside_spread_points(D, size):
    # Eight tight clusters in one leaf: about its middle, their scatter is size^2 of the moments, so without
    # the drift guard few of its digits are left (none, for 1e-6). The guard lets 1e-3 pass: conditioning 1e3.
    # Other leaves hold points that fill their balls, and a cluster among such points.
    rng = np.random.default_rng(D)
    shape = np.where(np.arange(D) < 2, 1.0, 0.1)
    corners = np.zeros((8, D))
    corners[:, :2] = 0.45 * np.array([(i % 4, i // 4) for i in range(8)])
    tight = np.repeat(corners, 8, axis=0) + size * shape * rng.standard_normal((64, D))
    spread = 0.5 * shape * rng.uniform(-1.0, 1.0, (60, D)) + 10.0
    mixed = np.vstack([spread[:40] + 10.0, spread[0] + 10.3 + size * shape * rng.standard_normal((24, D))])
    order = rng.permutation(64)
    assert assert_tangents(tight[order], 0.4, 2, conditioning=1e3) > 50
    assert assert_tangents(np.vstack([tight[order], spread, mixed]), 0.4, 2, conditioning=1e3) > 100


@pytest.mark.parametrize("D", [9, *(pytest.param(D, marks=pytest.mark.slow) for D in (20, 33))])
def test_isotropic_noise_goes_the_hard_way(D, monkeypatch):
    rng = np.random.default_rng(D)
    Y = rng.standard_normal((150, D))
    asked = []
    original = tangents.top_subspaces

    def spy(matrices, *rest):
        asked.append(len(matrices))
        return original(matrices, *rest)

    monkeypatch.setattr(tangents, "top_subspaces", spy)
    h = 1.45 * np.sqrt(D)
    assert assert_tangents(Y, h, 2, every=5) >= 25
    assert sum(asked) > 120
    ref = by_point(Y, h, 2)
    del asked[:]
    monkeypatch.setattr(tangents, "_BATCH_BYTES", 8 * tangents.padded_width(D) ** 2 * 20)
    np.testing.assert_array_equal(by_point(Y, h, 2)[0], ref[0])
    assert len(asked) > 5
    assert max(asked) == 20


@pytest.mark.kernels
@pytest.mark.parametrize("D", [1, 3, 7, 9])
def test_duplicates_are_finite(D):
    rng = np.random.default_rng(D)
    few = rng.standard_normal((4, D))
    d = min(D, 2)
    for Y in (np.full((70, D), 0.1), few[rng.integers(0, 4, 70)], np.vstack([np.zeros((66, D)), few])):
        bases, counts = by_point(Y, 1.0, d)
        assert counts.min() >= 1
        for basis, count in zip(bases, counts, strict=True):
            ref = np.eye(d) if count > d else np.zeros((d, d))
            np.testing.assert_allclose(basis @ basis.T, ref, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("D", "d"), [(3, 2), (9, 2), (20, 3)])
def test_thread_count_does_not_matter(D, d):
    rng = np.random.default_rng(D)
    Y = np.vstack([curved(rng, 400, D, d, 0.05), rng.standard_normal((100, D))])
    ref = by_point(Y, 0.8, d, n_threads=1)
    comp = by_point(Y, 0.8, d, n_threads=2)
    np.testing.assert_array_equal(comp[0], ref[0])
    np.testing.assert_array_equal(comp[1], ref[1])


@pytest.mark.kernels
@pytest.mark.parametrize("D", [1, 2, 4, 9])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_covariance(D, offset):
    rng = np.random.default_rng(D)
    Y = rng.standard_normal((130, D)) + offset
    h = np.sqrt(D)
    index = build_index(Y, h)
    empty = 0
    for z in np.vstack([Y[:3], Y[:3] + 0.5 * rng.standard_normal((3, D)), Y[:1] + 100.0]):
        ref = naive.local_covariance(Y, z, h)
        comp, count = covariance_at(index, z)
        assert count == len(naive.ball(Y, z, h))
        empty += count == 0
        # the mean is rounded at offset * eps; its square enters, and the rounding of Y is common to both
        np.testing.assert_allclose(comp, ref, rtol=0, atol=1e-12)
    assert empty == 1
