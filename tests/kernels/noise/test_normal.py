"""Normal noise: accepted by tests that reject what is slightly wrong, the same for every thread count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.noise import normal
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import noisy_means, noisy_projectors, standard_normals

# A correct sampler fails a test of up to 100 probabilities less than once in 10^6 runs with other
# seeds; a broken one must fail by the same measure.
ACCEPT = REJECT = 1e-8
EDGE = 3.6541528853610088  # where the base layer ends, as published for 256 layers


@kernel
def uniform_of(word):
    return normal._uniform(word)


def chi_square_p(sample, cells=128):
    """Equally likely cells under N(0, 1)."""
    counts = np.bincount((stats.norm.cdf(sample) * cells).astype(int).clip(0, cells - 1), minlength=cells)
    return stats.chisquare(counts).pvalue


def ks_p(sample):
    return stats.kstest(sample, "norm").pvalue


def variance_p(sample):
    tail = stats.chi2.cdf((sample**2).sum(), len(sample))
    return 2.0 * min(tail, 1.0 - tail)


def tail_p(sample, edge=EDGE):
    """Frequency beyond the base of the ziggurat."""
    return stats.binomtest(int((np.abs(sample) > edge).sum()), len(sample), 2.0 * stats.norm.sf(edge)).pvalue


TESTS = (chi_square_p, ks_p, variance_p)


def drip(source, count, share, keep=True):
    """The protocol of `standard_normals` with `share` words at a time; `keep=False` drops unfinished ones."""
    out = np.empty(count)
    made = 0
    left = np.empty(0, np.uint64)
    while made < count:
        left = np.concatenate([left, source.words(share)]) if keep else source.words(share)
        more, used = normal.fill(left, out[made : made + share + 1], *normal.ziggurat())
        made += more
        left = left[used:]
    return out


@pytest.mark.parametrize("test", TESTS)
def test_distribution(test):
    sample = standard_normals(open_source(1), 500_000)
    assert test(sample) > ACCEPT
    assert test(1.02 * sample) < REJECT
    assert test(sample / 1.02) < REJECT


def test_moments_and_independence():
    n = 500_000
    sample = standard_normals(open_source(2), n)
    # six standard errors: each of these fails by chance once in 5 10^8 runs
    assert abs(sample.mean()) < 6.0 / math.sqrt(n)
    assert abs((sample**3).mean()) < 6.0 * math.sqrt(15.0 / n)
    assert abs((sample**4).mean() - 3.0) < 6.0 * math.sqrt(96.0 / n)
    for lag in (1, 2, 255, 256, normal.CHUNK):
        for power in (1, 2):  # neighbours that share words would show in the squares
            x = sample**power - (power - 1)
            assert abs((x[lag:] * x[:-lag]).mean()) < 6.0 * power / math.sqrt(n - lag)


def test_tail_beyond_the_base():
    source = open_source(3)
    rounds = [standard_normals(source, 4_000_000) for _ in range(6)]
    beyond = np.concatenate([part[np.abs(part) > EDGE] for part in rounds])
    count, chance = sum(len(part) for part in rounds), 2.0 * stats.norm.sf(EDGE)
    assert len(beyond) > 5500
    assert stats.binomtest(len(beyond), count, chance).pvalue > ACCEPT
    for factor in (0.0, 0.9, 1.1):  # power: a tail that is a tenth too light or too heavy
        assert stats.binomtest(int(factor * len(beyond)), count, chance).pvalue < REJECT
    # its shape: given |x| > edge, sf(x) / sf(edge) is uniform; an exponential tail is not
    shape = stats.norm.sf(np.abs(beyond)) / stats.norm.sf(EDGE)
    assert stats.kstest(shape, "uniform").pvalue > ACCEPT
    exponential = EDGE + np.random.default_rng(0).exponential(1.0 / EDGE, len(beyond))
    assert stats.kstest(stats.norm.sf(exponential) / stats.norm.sf(EDGE), "uniform").pvalue < REJECT
    assert stats.binomtest(int((beyond > 0.0).sum()), len(beyond)).pvalue > ACCEPT


@pytest.mark.parametrize("count", [0, 1, 100, normal.CHUNK - 1, normal.CHUNK, normal.CHUNK + 1, 200_001])
def test_thread_count_does_not_matter(count):
    ref = standard_normals(open_source(4), count, n_threads=1)
    comp = standard_normals(open_source(4), count, n_threads=2)
    assert ref.shape == (count,)
    np.testing.assert_array_equal(comp, ref)
    assert len(np.unique(ref)) == count


def test_thread_count_does_not_matter_when_words_run_out(monkeypatch):
    monkeypatch.setattr(normal, "words_for", lambda count: count // 2 + 1)
    ref = standard_normals(open_source(4), 150_000, n_threads=1)
    np.testing.assert_array_equal(standard_normals(open_source(4), 150_000, n_threads=2), ref)


@pytest.mark.kernels
@pytest.mark.parametrize("share", [1, 2, 3, 7])
def test_cutting_the_stream_changes_nothing(share):
    # 3000 variates go through every way: wedges, rejections and (by the words set below) the tail
    words = open_source(5).words(4000)
    words[100:103] = [0, 1 << 60, 5 << 60]  # layer 0 at its outer end, then a tail that is refused ...
    words[103:105] = [1 << 60, 1 << 40]  # ... and one that is taken

    class Source:
        at = 0

        def words(self, count):
            self.at += count
            return words[self.at - count : self.at]

    ref = np.empty(3000)
    made, used = normal.fill(words, ref, *normal.ziggurat())
    assert made == 3000
    assert used > 3040
    assert (np.abs(ref) > EDGE).any()
    np.testing.assert_array_equal(drip(Source(), 3000, share), ref)
    assert (drip(Source(), 2000, share, keep=False) != ref[:2000]).any()


@pytest.mark.parametrize("share", [1, *(pytest.param(share, marks=pytest.mark.slow) for share in (2, 3))])
def test_short_buffers_are_not_biased(share):
    # a longer buffer loses fewer variates: more are needed to see it
    count = {1: 150_000, 2: 300_000, 3: 600_000}[share]
    sample = drip(open_source(6), count, share)
    broken = drip(open_source(6), count, share, keep=False)
    assert min(test(sample) for test in TESTS) > ACCEPT
    assert tail_p(sample) > ACCEPT
    assert min(min(test(broken) for test in TESTS), tail_p(broken)) < REJECT


def test_refills_of_the_mechanism_are_not_biased(monkeypatch):
    monkeypatch.setattr(normal, "words_for", lambda count: min(count, 3))
    monkeypatch.setattr("dpmd_fast.privacy.noise.normal.CHUNK", 64)
    count = 64  # one chunk, refilled over and over
    source = open_source(7)
    sample = np.concatenate([standard_normals(source, count, n_threads=1) for _ in range(3000)])
    assert min(test(sample) for test in TESTS) > ACCEPT
    assert tail_p(sample) > ACCEPT


@pytest.mark.kernels
def test_ziggurat_areas():
    edges, density = normal.ziggurat()
    assert len(edges) == 257
    assert edges[1] == pytest.approx(EDGE, rel=1e-13)
    assert edges[256] == 0.0
    assert (np.diff(edges) < 0.0).all()
    np.testing.assert_allclose(density, np.exp(-0.5 * edges**2), rtol=1e-15)
    base = edges[1] * density[1] + math.sqrt(2.0 * math.pi) * stats.norm.sf(edges[1])
    layers = edges[1:256] * np.diff(density[1:])
    np.testing.assert_allclose(layers, base, rtol=1e-11)
    assert edges[0] * density[1] == pytest.approx(base, rel=1e-13)


@pytest.mark.kernels
def test_uniforms_are_inside_the_open_interval():
    top = 2**64 - 1
    for word in (0, 1, 1 << 11, 1 << 63, top - (1 << 11), top):
        value = uniform_of(np.uint64(word))
        assert 0.0 < value < 1.0
        assert value == pytest.approx((word >> 11) / 2.0**53, abs=2.0**-52)


@pytest.mark.kernels
def test_symmetric_noise_by_hand():
    matrices = np.arange(32.0).reshape(2, 4, 4)
    matrices += matrices.transpose(0, 2, 1)
    start = matrices.copy()
    normal.add_symmetric(matrices, 3, np.array([1.0, 10.0]), np.arange(1.0, 13.0))
    W = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    np.testing.assert_array_equal(matrices[:, :3, :3] - start[:, :3, :3], [W, 10.0 * (W + 6.0)])
    np.testing.assert_array_equal(matrices[:, 3:], start[:, 3:])  # the padding is no column
    np.testing.assert_array_equal(matrices[:, :, 3:], start[:, :, 3:])


def test_noisy_projectors():
    m, D = 40_000, 3
    P = np.zeros((m, 4, 4))
    P[:, :D, :D] = np.diag([1.0, 1.0, 0.0])
    scales = np.where(np.arange(m) % 2 == 0, 0.5, 2.0)
    noisy = noisy_projectors(P.copy(), D, scales, open_source(8))
    np.testing.assert_array_equal(noisy, noisy.transpose(0, 2, 1))
    np.testing.assert_array_equal(noisy[:, D:], 0.0)
    W = (noisy - P)[:, :D, :D] / scales[:, None, None]
    entries = np.array([W[:, j, k] for j in range(D) for k in range(j, D)])
    for entry in entries:  # diagonal and off it alike: N(0, scale^2)
        for group in (entry[::2], entry[1::2]):
            assert variance_p(group) > ACCEPT
            assert variance_p(1.05 * group) < REJECT
            assert ks_p(group) > ACCEPT
    assert np.abs(np.corrcoef(entries) - np.eye(6)).max() < 4.0 / math.sqrt(m)
    again = noisy_projectors(P.copy(), D, scales, open_source(8), n_threads=1)
    np.testing.assert_array_equal(again, noisy)


def test_noisy_means():
    m, D = 20_000, 3
    means = np.random.default_rng(0).standard_normal((m, D))
    before = means.copy()
    scales = np.where(np.arange(m) % 2 == 0, 0.5, 2.0)
    noisy = noisy_means(means, scales, open_source(9))
    np.testing.assert_array_equal(means, before)
    W = (noisy - means) / scales[:, None]
    for column in W.T:
        for group in (column[::2], column[1::2]):
            assert variance_p(group) > ACCEPT
            assert variance_p(1.1 * group) < REJECT  # by 15 deviations
            assert ks_p(group) > ACCEPT
    assert np.abs(np.corrcoef(W.T) - np.eye(D)).max() < 6.0 / math.sqrt(m)
    np.testing.assert_array_equal(noisy_means(means, scales, open_source(9), n_threads=1), noisy)
