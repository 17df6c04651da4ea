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
def run_measure_four(X, x0, quad, centers, frames, h2, share, scratch, tents, along):
    quads.measure_four_charts(X, x0, quad, centers, frames, h2, share, scratch, tents, along)


@pytest.mark.parametrize(("columns", "dim"), [(2, 1), (3, 1), (3, 2), (4, 3), (7, 2), (9, 8), (60, 5)])
def test_four_charts(columns, dim):
    """In integers, where every order of summation gives the same bits, with guards around the results."""
    rng = np.random.default_rng(columns)
    K = 7  # the last quad has three charts
    centers, frames = small_integers(rng, K, columns), small_integers(rng, K, dim, columns)
    X = small_integers(rng, 3, columns)
    gaps = X[1] - centers
    squares = (gaps**2).sum(axis=1)
    h2, share = float(np.median(squares)), 0.5  # some are out of reach
    along = np.einsum("aek,ak->ae", frames, gaps)
    packed = [quads.pack_quads(values) for values in (centers, frames)]
    scratch = np.full((columns + 1, LANES), GUARD)
    for quad in range(2):
        here = slice(LANES * quad, LANES * (quad + 1))
        tents, coordinates = np.full(LANES + 1, GUARD), np.full((dim + 1, LANES), GUARD)
        run_measure_four(X, columns, quad, *packed, h2, share, scratch, tents, coordinates)
        count = len(centers[here])
        np.testing.assert_array_equal(tents[:count], share * (h2 - squares[here]))
        np.testing.assert_array_equal(coordinates[:dim, :count], along[here].T)
        assert tents[LANES] == GUARD
        assert (coordinates[dim] == GUARD).all()
    assert (scratch[-1] == GUARD).all()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_quads(count, shape):
    values = np.random.default_rng(0).normal(size=(count, *shape))
    packed = quads.pack_quads(values)
    assert packed.shape == ((count + 3) // 4, *shape, LANES)
    for chart in range(LANES * len(packed)):
        here = values[chart] if chart < count else np.zeros(shape)
        np.testing.assert_array_equal(packed[chart // LANES, ..., chart % LANES], here)
