"""Sums of records in the frames of a mixture: against plain loops to the last bit, never beyond the bound."""

from __future__ import annotations

import hashlib
import math

import naive
import numpy as np
import pytest
from kernel_samples import on_another_target, on_grid, square

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel, single_blas
from dpmd_fast.kernels.posterior import draw_missing, make_components
from dpmd_fast.kernels.sums.exact import MixtureSums
from dpmd_fast.kernels.sums.mixtures import make_mixture_frames
from dpmd_fast.kernels.vector.elementary import fixed_exp
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.privacy.lattice import choose_lattice


@kernel
def exponential(x):
    return fixed_exp(x)


class Setting:
    """Components, and the sums of records at them."""

    def __init__(self, log_weights, means, whitening, *, share=1.0, mu=0.5, adjacency="replace-one"):
        self.parts = (np.asarray(log_weights), means, whitening)
        self.frames = make_mixture_frames(*self.parts)
        self.tau = share * (means.shape[1] + 1.0)
        self.lattice = choose_lattice(mu, self.tau, adjacency)
        self.bound = self.lattice.bound

    @classmethod
    def random(cls, D, K, seed=0, *, spread=1.0, **options):
        rng = np.random.default_rng(seed)
        mixing = rng.normal(size=(K, D, D)) / math.sqrt(D)
        covariances = mixing @ mixing.transpose(0, 2, 1) + 0.1 * np.eye(D)
        model = Gaussians(rng.dirichlet(np.full(K, 3.0)), spread * rng.normal(size=(K, D)), covariances)
        return cls(model.log_weights, model.means, model.whitening, **options), model, rng

    def total(self, Y, n_threads=None, batch=None):
        sums = MixtureSums(self.frames, self.tau, self.lattice.steps, 1.0, n_threads)
        for start in range(0, len(Y), batch or max(1, len(Y))):
            sums.add(Y[start : start + (batch or len(Y))])
        return sums.total()


def records(model, rng, n):
    which = rng.choice(len(model.weights), size=n, p=model.weights)
    roots = np.linalg.cholesky(model.covariances)
    return model.means[which] + np.einsum(
        "nde,ne->nd", roots[which], rng.normal(size=(n, model.means.shape[1]))
    )


@pytest.mark.kernels
@pytest.mark.parametrize(("D", "K"), [(1, 1), (1, 3), (2, 2), (3, 5), (7, 4), (8, 3), (13, 2)])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_every_bit_is_that_of_the_loop(D, K, share):
    # on a grid, so that products are exact and no order of sums shows
    rng = np.random.default_rng(10 * D + K)
    means = on_grid(rng.normal(size=(K, D)))
    whitening = on_grid(np.triu(rng.normal(size=(K, D, D))), 0.25)
    setting = Setting(on_grid(rng.normal(size=K)), means, whitening, share=share)
    Y = on_grid(rng.normal(size=(70, D)) * 1.5)
    Y[3], Y[4], Y[5, 0] = means[0], 1e5, np.nan
    unit = math.sqrt(1.0 / setting.lattice.step)
    expected = naive.mixture_sums(*setting.parts, Y, 1.0, setting.tau, unit, setting.bound, exponential)
    np.testing.assert_array_equal(setting.total(Y), expected.astype(np.int64))


@pytest.mark.parametrize(("D", "K"), [(2, 3), (20, 12), (60, 4)])
def test_values_are_those_of_the_formula(D, K):
    setting, model, rng = Setting.random(D, K, spread=0.3)
    Y = records(model, rng, 60)
    sums = np.zeros((K, D + 1, D + 1))
    for y in Y:
        shares, coordinates = naive.mixture_responsibilities(*setting.parts, y)
        features = {k: np.array([*coordinates[k], 1.0]) for k in shares}
        norm = math.sqrt(sum((r * (features[k] @ features[k])) ** 2 for k, r in shares.items()))
        for k, r in shares.items():
            sums[k] += min(1.0, setting.tau / norm) * r * np.outer(features[k], features[k])
    found = setting.total(Y) * setting.lattice.step
    np.testing.assert_allclose(found, sums, atol=4.0 * len(Y) * setting.tau / math.sqrt(setting.bound))


@pytest.mark.parametrize(("D", "K"), [(1, 2), (5, 1), (12, 7), (20, 32), (60, 5)])
def test_bits_do_not_depend_on_threads_batches_order_or_type(D, K):
    setting, model, rng = Setting.random(D, K, spread=0.5)
    Y = records(model, rng, 997).astype(np.float32)
    whole = setting.total(Y)
    for n_threads in (1, 2):
        for batch in (1, 31, 32, 33, 500):
            part = Y if batch > 1 else Y[:60]
            again = setting.total(part, n_threads, batch)
            np.testing.assert_array_equal(again, whole if batch > 1 else setting.total(Y[:60]))
    np.testing.assert_array_equal(setting.total(Y[rng.permutation(len(Y))].astype(np.float64)), whole)


def digest():
    rng = np.random.default_rng(3)
    total = hashlib.sha256()
    for D, K in ((3, 2), (20, 7)):
        whitening = np.round(np.triu(rng.normal(size=(K, D, D))), 6)  # LAPACK may round otherwise elsewhere
        setting = Setting(rng.normal(size=K), np.round(rng.normal(size=(K, D)), 6), whitening)
        total.update(setting.total(np.round(rng.normal(size=(200, D)), 6)).tobytes())
    return total.hexdigest()


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.slow  # the gate has those of test_spectra.py and of tests/kernels/vector
def test_another_target_gives_the_same_bits():
    assert on_another_target(__file__, digest, NUMBA_CPU_NAME="generic") == digest()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200, 1e308])
def test_a_record_that_is_not_valid_adds_nothing_and_disturbs_no_other(value):
    setting, model, rng = Setting.random(9, 4)
    Y = records(model, rng, 50)
    hurt = np.insert(Y, 17, Y[0], axis=0)
    hurt[17, 4] = value
    np.testing.assert_array_equal(setting.total(hurt), setting.total(Y))


def hostile(kind, setting, rng):
    """A record made to move the sums far."""
    _, means, whitening = setting.parts
    K, D = means.shape
    k, j = rng.integers(K), rng.integers(K)
    direction = rng.normal(size=D)
    direction /= np.linalg.norm(direction)
    root = np.linalg.inv(whitening[k].T)  # u in the frame of k is at m + root u
    full = math.sqrt(max(setting.tau - 1.0, 0.0))
    typical = means[k] + root @ rng.normal(size=D)
    return {
        "center": lambda: means[k],
        "between": lambda: means[k] + rng.choice([0.5, rng.uniform()]) * (means[j] - means[k]),
        "typical": lambda: typical,
        "clipped": lambda: means[k] + root @ (direction * full * (1.0 + 1e-15 * rng.integers(-4, 5))),
        "beyond": lambda: means[k] + root @ (direction * 10.0 ** rng.uniform(0, 8)),
        "axis": lambda: means[k] + root[:, rng.integers(D)] * 10.0 ** rng.uniform(0, 8),
        "any size": lambda: direction * 10.0 ** rng.uniform(-300, 300),
        "tiny": lambda: means[k] + 1e-17 * direction,
        "subnormal": lambda: np.full(D, 5e-324) * rng.integers(1, 1000, D),
        "huge": lambda: np.where(rng.random(D) < 0.5, means[k], rng.choice([1e20, 1e150, 1.7e308])),
        "corner": lambda: rng.choice([-8.0, 8.0], size=D),  # where the preprocessor clips
        "incomplete": lambda: np.where(rng.random(D) < 0.4, np.nan, typical),
        "incomplete and far": lambda: np.where(rng.random(D) < 0.4, np.nan, 10.0 ** rng.uniform(0, 300)),
        "invalid": lambda: np.where(np.arange(D) == rng.integers(D), rng.choice([np.nan, np.inf]), means[k]),
    }[kind]()


HOSTILE = (
    *("center", "between", "typical", "clipped", "beyond", "axis", "any size", "tiny", "subnormal", "huge"),
    *("corner", "incomplete", "incomplete and far", "invalid"),
)
POOL = 32  # records of one setting, all of whose pairs are looked at


def hostile_setting(D, rng):
    """Random components, in a fifth of the cases all equal, so that responsibilities are; and a tau."""
    options = {
        "share": float(rng.choice([0.1, 1.0, 1.0, 3.0])),
        "mu": float(rng.choice([1e-4, 0.3, 30.0])),
    }
    spread = float(rng.choice([0.0, 0.3, 1.0, 30.0, 1e4]))
    setting, model, _ = Setting.random(
        D, int(rng.choice([1, 2, 3, 8])), int(rng.integers(1 << 30)), spread=spread, **options
    )
    if rng.random() < 0.2:
        K = len(model.weights)
        model = Gaussians(np.full(K, 1.0 / K), *(np.repeat(part[:1], K, axis=0) for part in model[1:]))
        setting = Setting(model.log_weights, model.means, model.whitening, **options)
    return setting, model


def hostile_pool(setting, model, rng):
    """Integer contributions (POOL, entries) of hostile records, each summed alone, filled in as in a release.

    Two of the records are equal. All of them together, in one block, must add the same.
    """
    records = np.stack([hostile(kind, setting, rng) for kind in rng.choice(HOSTILE, POOL)])
    records[1] = records[0]
    components = make_components(*model, np.zeros(records.shape[1]))
    with np.errstate(all="ignore"):
        filled = [draw_missing(components, record[None], 1) for record in records]
        together = draw_missing(components, records, 2)
    alone = np.stack([setting.total(record, 1) for record in filled])
    np.testing.assert_array_equal(setting.total(together, 2), alone.sum(axis=0))
    return alone.reshape(POOL, -1)


def inner_products(A):
    """Inner products of the rows of A in Python's integers, from halves with exact products in floats."""
    high, low = A >> 15, A & 32767
    assert np.abs(high).max() <= 1 << 16
    assert A.shape[1] < 1 << 20  # so that no sum reaches 2^53
    high, low = high.astype(np.float64), low.astype(np.float64)
    parts = (high @ high.T, high @ low.T, low @ low.T)
    first, mixed, last = (part.astype(np.int64).astype(object) for part in parts)
    return (first << 30) + ((mixed + mixed.T) << 15) + last


def worst_change(D, pools, seed=0):
    """Largest change of the sums by one replacement over its bound, and largest contribution over its own."""
    rng = np.random.default_rng(seed)
    worst = longest = 0.0
    for _ in range(pools):
        setting, model = hostile_setting(D, rng)
        with single_blas():  # threads cost more than they bring to matrices this small
            products = inner_products(hostile_pool(setting, model, rng))
        assert (products >= 0).all()  # of positive semidefinite matrices
        own = np.diagonal(products)
        changes = own[:, None] + own[None] - 2 * products
        assert changes[0, 1] == 0
        assert (own <= setting.bound**2).all()
        assert (changes <= 2 * setting.bound**2).all()
        longest = max(longest, math.sqrt(own.max()) / setting.bound)
        worst = max(worst, math.sqrt(changes.max() / 2) / setting.bound)
    return worst, longest


def test_inner_products_are_exact():
    A = np.random.default_rng(0).integers(-(1 << 30), 1 << 30, size=(5, 300))
    assert (inner_products(A) == A.astype(object) @ A.T.astype(object)).all()
    assert inner_products(A[:1])[0, 0] == square(A[0])


@pytest.mark.parametrize("D", [1, 2, 8, 20, 60])
def test_no_replacement_moves_the_sums_beyond_the_bound(D):
    worst, longest = worst_change(D, 20)
    assert worst > 0.99
    assert longest > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("D", [1, 2, 8, 20, 60])
def test_no_replacement_of_a_million_moves_the_sums_beyond_the_bound(D):
    pairs = POOL * (POOL - 1) // 2
    pools = -(-1_000_000 // pairs)
    worst, longest = worst_change(D, pools, seed=1)
    print(
        f"D = {D}: {pools * pairs:,} pairs, replacement {worst:.9f}, contribution {longest:.9f} of the bound"
    )
    assert worst > 0.999
    assert longest > 0.9999


@pytest.mark.parametrize("K", [1, 2, 10, 32])
def test_the_bound_does_not_grow_with_the_number_of_components(K):
    # all components in one place share a record; its contribution is that of one component over sqrt(K)
    setting = Setting(np.zeros(K), np.zeros((K, 3)), np.repeat(np.eye(3)[None], K, axis=0))
    own = square(setting.total(np.full((1, 3), 1.0)))
    assert own <= setting.bound**2
    assert math.sqrt(own) / setting.bound == pytest.approx(1.0 / math.sqrt(K), rel=1e-2)
