"""Charts by fours against NumPy; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import GUARD, small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import quads
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels


@kernel
def run_add_four(X, x0, quad, centers, masses, frames, offsets, slopes, h2, share, pull, scratch, out):
    quads.add_four_charts(
        X, x0, quad, centers, masses, frames, offsets, slopes, h2, share, pull, scratch, out
    )


@kernel
def run_measure_four(X, x0, quad, centers, frames, h2, share, scratch, tents, along):
    quads.measure_four_charts(X, x0, quad, centers, frames, h2, share, scratch, tents, along)


@pytest.mark.parametrize(("columns", "dim"), [(2, 1), (3, 1), (3, 2), (4, 3), (7, 2), (9, 8), (60, 5)])
@pytest.mark.parametrize("pull", [0.0, 1.0])
def test_four_charts(columns, dim, pull):
    """In integers, where every order of summation gives the same bits, with guards around the results."""
    rng = np.random.default_rng(columns)
    K = 7  # the last quad has three charts
    centers, offsets = small_integers(rng, K, columns), small_integers(rng, K, columns)
    frames, slopes = small_integers(rng, K, dim, columns), small_integers(rng, K, dim, columns)
    masses = 1.0 + np.arange(K)
    X = small_integers(rng, 3, columns)
    gaps = X[1] - centers
    squares = (gaps**2).sum(axis=1)
    h2, share = float(np.median(squares)), 0.5  # some are out of reach
    along = np.einsum("aek,ak->ae", frames, gaps)
    weights = masses * np.maximum(share * (h2 - squares), 0.0) ** 2
    steps = weights[:, None] * (offsets - pull * gaps + np.einsum("ae,aek->ak", along, slopes))
    packed = [quads.pack_quads(values) for values in (centers, masses, frames, offsets, slopes)]
    scratch = np.full((columns + dim + 1, LANES), GUARD)
    out = np.zeros((columns + 2, LANES))
    out[-1] = GUARD
    for quad in range(2):
        run_add_four(X, columns, quad, *packed, h2, share, pull, scratch, out)
        here = slice(LANES * quad, LANES * (quad + 1))
        tents, coordinates = np.full(LANES + 1, GUARD), np.full((dim + 1, LANES), GUARD)
        run_measure_four(X, columns, quad, packed[0], packed[2], h2, share, scratch, tents, coordinates)
        count = len(centers[here])
        np.testing.assert_array_equal(tents[:count], share * (h2 - squares[here]))
        np.testing.assert_array_equal(coordinates[:dim, :count], along[here].T)
        assert tents[LANES] == GUARD
        assert (coordinates[dim] == GUARD).all()
    np.testing.assert_array_equal(out[:columns].sum(axis=1), steps.sum(axis=0))
    assert out[columns].sum() == weights.sum()
    assert (out[-1] == GUARD).all()
    assert (scratch[-1] == GUARD).all()
    assert weights.sum() > 0.0
    assert not weights.all()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_quads_and_back(count, shape):
    values = np.random.default_rng(0).normal(size=(count, *shape))
    packed = quads.pack_quads(values)
    assert packed.shape == ((count + 3) // 4, *shape, LANES)
    np.testing.assert_array_equal(quads.unpack_quads(packed, count), values)
