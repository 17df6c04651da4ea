"""Moments of residuals against plain loops, and within their bound."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from kernel_samples import residual_problem

from dpmd_fast.kernels.charts import apply_fields
from dpmd_fast.kernels.sums.exact import ResidualSums
from dpmd_fast.kernels.sums.residuals import residual_norms
from dpmd_fast.privacy.lattice import choose_lattice

SIZES = [(2, 1, 5), (3, 1, 67), (3, 2, 70), (9, 3, 130), (12, 2, 1)]


@pytest.mark.parametrize(
    ("D", "d", "K"), [pytest.param(*size, marks=[pytest.mark.kernels] * (size[2] < 130)) for size in SIZES]
)
def test_residual_moments(D, d, K):
    Y, field, frames, centers, tangents, h = residual_problem(D, d, K, 150)
    X, reached = apply_fields([field], Y)
    R = np.where(reached[:, None], Y - X, np.inf)
    norms = residual_norms(frames, X, np.where(np.isfinite(R), R, 1e9), 0.1)
    tau = 0.6 * float(norms.max())
    lattice = choose_lattice(1.0, tau, "replace-one")
    sums = ResidualSums([field], frames, tau, lattice.steps, 0.1)
    sums.add(Y)
    comp = sums.total() * lattice.step
    ref = naive.residual_moments(X[reached], R[reached], centers, tangents, h, frames.normal, 0.1, tau)
    # truncation takes at most one step of the vectors, of which there are sqrt(bound) in a full one
    np.testing.assert_allclose(comp, ref, atol=150 * 4.0 * tau / math.sqrt(lattice.bound))
    assert np.abs(ref).max() > 0.0


def test_residual_sums_are_bounded_and_do_not_depend_on_blocks():
    Y, field, frames, _, _, _ = residual_problem(3, 2, 70, 400)
    tau = 0.05 * float(residual_norms(frames, Y, np.zeros_like(Y), 0.1).max())
    lattice = choose_lattice(1.0, tau, "replace-one")

    def total(rows, n_threads=None, size=None):
        sums = ResidualSums([field], frames, tau, lattice.steps, 0.1, n_threads)
        for start in range(0, len(rows), size or len(rows)):
            sums.add(rows[start : start + (size or len(rows))])
        return sums.total()

    whole = total(Y)
    for n_threads, size in ((1, 7), (2, 61), (2, 1)):
        np.testing.assert_array_equal(total(Y, n_threads, size), whole)
    np.testing.assert_array_equal(total(Y[::-1].copy()), whole)
    largest = 0
    for row in Y[:100]:
        alone = total(row[None]).astype(object)
        largest = max(largest, int((alone * alone).sum()))
    assert 0 < largest <= lattice.bound**2
    assert largest > 0.99 * lattice.bound**2, "nearly every record is scaled to the bound"


@pytest.mark.parametrize(("D", "d"), [(9, 3), pytest.param(20, 5, marks=pytest.mark.slow), (22, 7)])
def test_with_many_columns_a_record_adds_the_same_in_every_company(D, d):
    Y, field, frames, _, _, _ = residual_problem(D, d, 130, 300)
    Y *= 0.7
    tau = 0.2 * float(residual_norms(frames, Y, np.zeros_like(Y), 0.1).max())
    lattice = choose_lattice(1.0, tau, "replace-one")

    def total(rows, n_threads=None, size=1000):
        sums = ResidualSums([field], frames, tau, lattice.steps, 0.1, n_threads)
        for start in range(0, len(rows), size):
            sums.add(rows[start : start + size])
        return sums.total()

    alone = np.array([total(row[None], 1) for row in Y])
    assert (alone != 0).any(axis=(1, 2, 3)).mean() > 0.9
    whole = alone.sum(axis=0)
    order = np.random.default_rng(1).permutation(len(Y))
    for rows, n_threads, size in ((Y, 1, 300), (Y, 2, 300), (Y[order], 2, 129), (Y[::-1], 1, 64), (Y, 1, 7)):
        np.testing.assert_array_equal(total(np.ascontiguousarray(rows), n_threads, size), whole)
    for bad in (np.nan, 1e300):  # a record of no place adds nothing, and changes nothing beside it
        mixed = np.repeat(Y, 2, axis=0)
        mixed[::2] = 0.0
        mixed[::2, D - 1] = bad
        np.testing.assert_array_equal(total(mixed, 1), whole)


def adversarial(D, rng):
    """Records that a bound might forget: at centres, far, tiny, subnormal, duplicated, at the edge."""
    base = rng.uniform(-1.0, 1.0, (20, D))
    edge = np.zeros((4, D))
    edge[:, 0] = [1.0, -1.0, 0.7 * math.sqrt(D), np.nextafter(1.0, 2.0)]
    return np.concatenate(
        [base, base[:3], np.zeros((2, D)), edge, base[:3] * 1e-300, base[:2] * 1e-310, base[:2] * 1e9]
    )


@pytest.mark.parametrize(("D", "d", "K"), [(2, 1, 40), (9, 3, 130)])
@pytest.mark.parametrize("share", [0.02, 0.2, 5.0])
def test_neighbours_of_residual_sums_stay_within_the_bound(D, d, K, share):
    _, field, frames, centers, _, _ = residual_problem(D, d, K, 1, seed=7)
    rng = np.random.default_rng(8)
    Y = np.concatenate([adversarial(D, rng), centers[:10]])
    tau = share * float(residual_norms(frames, centers, np.zeros_like(centers), 0.1).max())
    lattice = choose_lattice(0.5, tau, "replace-one")

    def alone(row):
        sums = ResidualSums([field], frames, tau, lattice.steps, 0.1)
        sums.add(row[None])
        return sums.total().astype(object)

    parts = [alone(row) for row in Y]
    largest = 0
    for i, one in enumerate(parts):
        assert int((one * one).sum()) <= lattice.bound**2
        for other in parts[:i]:
            largest = max(largest, int(((one - other) ** 2).sum()))
    assert largest <= 2 * lattice.bound**2
    if share < 1.0:
        assert largest >= lattice.bound**2 // 2
