"""Weights, means and averaged projectors at query points against the plain loop."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.projectors import local_geometry
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import local_tangents


def sample(D, d, n, seed=0):
    """A noisy d-dimensional patch in R^D and queries near it."""
    rng = np.random.default_rng(seed + 100 * D + d)
    frame = np.linalg.qr(rng.standard_normal((D, D)))[0]
    scale = np.where(np.arange(D) < d, 1.0, 0.05)
    Y = (scale * rng.uniform(-1.0, 1.0, (n, D))) @ frame.T
    X = (scale * rng.uniform(-1.2, 1.2, (12, D))) @ frame.T
    return Y, X


def projectors_of(index, bases):
    """P_{y_i} in the order of the reference, (n, D, D)."""
    D = index.columns
    P = np.empty((len(bases), D, D))
    P[index.order] = np.einsum("icj,ick->ijk", bases[:, :, :D], bases[:, :, :D])
    return P


def assert_geometry(Y, X, h, d, beta):
    D = Y.shape[1]
    index = build_index(Y, h)
    bases, _ = local_tangents(index, d)
    P = projectors_of(index, bases)
    comp = local_geometry(index, bases, X, beta)
    assert (comp.offsets[:, D:] == 0.0).all()
    assert (comp.projectors[:, D:] == 0.0).all()
    np.testing.assert_array_equal(comp.projectors, comp.projectors.transpose(0, 2, 1))
    for q, x in enumerate(X):
        count, mass, mean, Pw = naive.weighted_geometry(Y, P, x, h, beta)
        assert comp.counts[q] == count
        np.testing.assert_allclose(comp.masses[q], mass, rtol=1e-9, atol=0)
        if mass > 0.0:
            np.testing.assert_allclose(x + comp.offsets[q, :D], mean, rtol=0, atol=1e-9)
            np.testing.assert_allclose(comp.projectors[q, :D, :D], Pw, rtol=0, atol=1e-9)
        else:
            assert (comp.offsets[q] == 0.0).all()
            assert (comp.projectors[q] == 0.0).all()
    return comp


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "d"), [(1, 1), (2, 1), (4, 2), (9, 2)])
@pytest.mark.parametrize("beta", [2.0, 2.5])
def test_against_the_loop_small(D, d, beta):
    Y, X = sample(D, d, 80)
    comp = assert_geometry(Y, X[:6], 0.5, d, beta)
    assert (comp.masses > 0.0).sum() >= 4


@pytest.mark.parametrize("D", [2, 3, 7, 8, 20])
@pytest.mark.parametrize("beta", [2, 2.5, 3.0])
def test_against_the_loop(D, beta):
    d = 1 if D == 2 else 2
    Y, X = sample(D, d, 250)
    comp = assert_geometry(Y, X, 0.6, d, beta)
    assert comp.counts.max() > 32  # more than one panel of 64 basis rows
    # far from the origin the mean is still right to 1e-9 of h
    assert_geometry(Y + 1e4, X + 1e4, 0.6, d, beta)


def test_kernel_by_hand():
    # one reference point at distance h/2, and one on the sphere: counted, without weight
    Y = np.array([[0.5, 0.0], [0.0, 1.0], [0.0, -5.0]])
    index = build_index(Y, 1.0)
    bases = np.zeros((3, 1, 4))
    bases[:, 0, 1] = 1.0
    for beta in (2.0, 2.5, 3.0):
        comp = local_geometry(index, bases, np.zeros((1, 2)), beta)
        assert comp.counts[0] == 2
        assert comp.masses[0] == pytest.approx(0.75**beta, rel=1e-14)
        np.testing.assert_allclose(comp.offsets[0], [0.5, 0.0, 0.0, 0.0], rtol=0, atol=1e-15)
        np.testing.assert_allclose(comp.projectors[0], np.diag([0.0, 1.0, 0.0, 0.0]), rtol=0, atol=1e-15)


@pytest.mark.kernels
@pytest.mark.parametrize("D", [3, 9])
def test_no_mass_gives_zeros(D):
    Y, _ = sample(D, 1, 70)
    X = np.vstack([np.full((1, D), 50.0), np.full((1, D), -1e9), Y[:1]])
    comp = assert_geometry(Y, X, 0.5, 1, 2.0)
    np.testing.assert_array_equal(comp.counts[:2], 0)
    np.testing.assert_array_equal(comp.masses[:2], 0.0)
    assert comp.counts[2] > 1
    # points on the sphere alone: counted, without mass
    edge = np.zeros((2, D))
    edge[0, 0], edge[1, 0] = 2.0, -2.0
    comp = assert_geometry(edge, np.zeros((1, D)), 2.0, 1, 2.0)
    assert (comp.counts[0], comp.masses[0]) == (2, 0.0)


@pytest.mark.parametrize("D", [3, 20])
def test_thread_count_does_not_matter(D):
    Y, X = sample(D, 2, 600)
    index = build_index(Y, 0.6)
    bases, _ = local_tangents(index, 2)
    ref = local_geometry(index, bases, np.vstack([X, Y]), 2.5, n_threads=1)
    comp = local_geometry(index, bases, np.vstack([X, Y]), 2.5, n_threads=2)
    for a, b in zip(comp, ref, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(count_neighbors(index, np.vstack([X, Y])), ref.counts)


@pytest.mark.parametrize(
    ("n", "D"), [(300, 1), (300, 3), (300, 8), (300, 20), (9000, 1), (9000, 2), (9000, 12)]
)
def test_single_precision_reference(n, D):
    Y = np.random.default_rng(D).standard_normal((n, D)).astype(np.float32)
    ref = build_index(Y.astype(np.float64), 0.5)
    comp = build_index(Y, 0.5)
    for name, a, b in zip(ref._fields, comp, ref, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert np.asarray(a).dtype == np.asarray(b).dtype


def test_records_on_the_sphere_of_radius_h_have_no_weight():
    # 1 - r^2 / h^2 must be exactly zero there, also where 1 / h^2 is rounded up
    for h in (7.0, 14.0, 27.0, 49.0):
        Y = h * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        index = build_index(Y, h)
        geometry = local_geometry(index, local_tangents(index, 1)[0], np.zeros((1, 2)), 2.0)
        assert geometry.counts[0] == 4
        assert geometry.masses[0] == 0.0
