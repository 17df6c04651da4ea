"""The integer core on tiny cases, all of them: every record of a small grid, every pair, every bound.

What the proof says of all records is looked at here for all records there are. Nothing is sampled.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpmd_fast.kernels.charts import make_field
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import ExactSums, FeatureSums, MixtureSums, MomentSums, ResidualSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.kernels.sums.residuals import make_frames
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.privacy.noise import noisy_sums

ODD = (np.nan, np.inf, -np.inf, 1e101, -1e200, 1.7e308, 5e-324, -0.0)


def grid(D, reach=3, step=0.25, odd=True):
    """All records with coordinates -reach step .. reach step, and all with one that is odd."""
    values = step * np.arange(-reach, reach + 1)
    rows = list(itertools.product(values, repeat=D))
    if odd:
        rows += [row for value in ODD for row in itertools.product((0.0, value), repeat=D) if value in row]
        rows += [(np.nan,) * D]
    return np.array(rows)


def moments(D, K, tau, bound, beta=2.0):
    locations = 0.5 * np.arange(K)[:, None] * np.eye(D)[0]
    return lambda: MomentSums(build_index(locations, 0.75), beta, tau, (tau / bound, bound), 0.1, 1)


def features(D, tau, bound):
    return lambda: FeatureSums(D, tau, (tau / bound, bound), 1)


def mixtures(D, K, tau, bound):
    means = np.zeros((K, D))
    means[:, 0] = np.linspace(-0.5, 0.5, K)
    whitening = np.stack([(1.0 + k) * np.eye(D) for k in range(K)])
    frames = make_mixture_frames(np.full(K, -math.log(K)), means, whitening)
    return lambda: MixtureSums(frames, tau, (tau / bound, bound), 1.0, 1)


def residuals(D, K, tau, bound):
    """Charts along the first axis that project onto it, twice."""
    centers = np.zeros((K, D))
    centers[:, 0] = np.linspace(-0.5, 0.5, K)
    tangents = np.repeat(np.eye(D)[None, :, :1], K, axis=0)
    field = make_field(centers, tangents, np.ones(K), 1.0, passes=2)
    frames = make_frames(centers, tangents, 1.0, 1.1, 1)
    return lambda: ResidualSums([field], frames, tau, (tau / bound, bound), 0.1, 1)


CORES = {
    **{
        f"moments, D = {D}, K = {K}, tau = {tau}, B = {bound}": (moments(D, K, tau, bound), grid(D), bound)
        for D, K in ((1, 1), (1, 3), (2, 2))
        for tau in (0.05, 0.2)
        for bound in (1, 2, 7, 100)
    },
    **{
        f"features, D = {D}, tau = {tau}, B = {bound}": (features(D, tau, bound), grid(D), bound)
        for D in (1, 2)
        for tau in (0.3, 5.0)
        for bound in (1, 3, 10, 1000)
    },
    **{
        f"residuals, D = {D}, K = {K}, B = {bound}": (residuals(D, K, 0.1, bound), grid(D), bound)
        for D, K in ((2, 1), (2, 3))
        for bound in (1, 7, 100)
    },
    **{
        f"mixture, D = {D}, K = {K}, B = {bound}": (mixtures(D, K, 1.5, bound), grid(D), bound)
        for D, K in ((1, 1), (1, 2), (2, 2))
        for bound in (1, 5, 200)
    },
}


def added(make, *blocks):
    sums = make()
    with np.errstate(all="ignore"):  # as tasks add them
        for block in blocks:
            sums.add(block)
    return sums.total()


def contribution(make, record):
    return added(make, record[None])


@pytest.mark.parametrize("core", CORES)
def test_every_record_and_every_pair(core):
    make, records, bound = CORES[core]
    parts = [contribution(make, record) for record in records]
    different = {part.tobytes(): part for part in parts}
    assert len(different) > 1 or bound < 7  # the grid tells records apart
    for part in different.values():
        # symmetric, of rank one with an integer vector at each place, and within the bound, in integers
        assert (part == part.transpose(0, 2, 1)).all()
        for matrix in part:
            v = np.array([math.isqrt(int(entry)) for entry in np.diagonal(matrix)])
            signs = np.where(matrix[int(np.argmax(v))] < 0, -1, 1)
            assert (np.outer(v * signs, v * signs) == matrix).all()
        assert sum(int(entry) ** 2 for entry in part.ravel()) <= bound**2
    flat = np.array([part.ravel() for part in different.values()], dtype=object)
    inner = flat @ flat.T
    norms = np.diagonal(inner)
    assert (inner >= 0).all()  # every pair: positive semidefinite
    assert (norms[:, None] + norms[None, :] - 2 * inner <= 2 * bound**2).all()  # |G - G'|^2 <= 2 B^2


@pytest.mark.parametrize("core", CORES)
def test_every_pair_adds_up_in_every_order_and_block(core):
    """Failed before for features: the cases were chosen by bounds that none of theirs had."""
    make, records, _ = CORES[core]
    kept = records[:: max(1, len(records) // 8)]
    alone = [contribution(make, record) for record in kept]
    for i, j in itertools.product(range(len(kept)), repeat=2):
        np.testing.assert_array_equal(added(make, kept[[i, j]]), alone[i] + alone[j])
        np.testing.assert_array_equal(added(make, kept[[j]], kept[[i]]), alone[i] + alone[j])


@pytest.mark.parametrize("core", CORES)
def test_the_whole_grid_adds_up_in_blocks_of_every_size(core):
    """Kernels work on several records at a time; what one contributes must not depend on its neighbours."""
    make, records, _ = CORES[core]
    expected = sum(contribution(make, record) for record in records)
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, len(records)):
        for order in (records, np.ascontiguousarray(records[::-1])):
            blocks = [order[start : start + size] for start in range(0, len(order), size)]
            np.testing.assert_array_equal(added(make, *blocks), expected)


def test_every_core_is_enumerated():
    assert {type(make()) for make, _, _ in CORES.values()} == set(ExactSums.__subclasses__())


def test_the_noise_does_not_depend_on_the_sums():
    """A + round(xi) = round(A + xi): what is added to all small integers is one and the same integer."""
    lattice = choose_lattice(1.0, 1.0, "replace-one")
    found = set()
    for A in range(-60, 61):
        sums = np.full((1, 2, 2), A, np.int64)
        steps = noisy_sums(sums, lattice, open_source(5), 1) / lattice.step - A
        assert (steps == np.rint(steps)).all()
        found.add(steps.tobytes())
    assert len(found) == 1


def test_noise_off_the_diagonal_is_never_smaller():
    for deviation in range(1, 20_000):
        off = Lattice(1.0, deviation, 1, 1.0).off_diagonal
        assert 2 * off * off >= deviation * deviation > 2 * (off - 1) * (off - 1)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_no_lattice_costs_more_than_was_asked_for(adjacency):
    most = math.sqrt(2.0) if adjacency == "replace-one" else 1.0
    for k in range(-3000, 1500):
        mu = 10.0 ** (k / 1000.0)
        made = choose_lattice(mu, 1.0, adjacency)
        assert most * made.bound / made.deviation <= mu
        assert made.mu <= mu
