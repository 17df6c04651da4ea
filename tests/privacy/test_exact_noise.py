"""Exact rounded normal noise: equal to plain loops word by word, accepted where small errors are not."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import mpmath
import naive
import numpy as np
import pytest
from scipy import stats

from dpmd_fast.kernels.noise import exact_normal
from dpmd_fast.privacy import noise
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import rounded_normals

# A correct sampler fails a test of up to 100 probabilities less than once in 10^6 runs with other
# seeds; a broken one must fail by the same measure.
ACCEPT = REJECT = 1e-8
SMALL = (1, 4, 11)
DIAGONAL, OFF_DIAGONAL = 2**28, math.ceil(2**28 / math.sqrt(2))
WIDTHS = [(13, 13), (6, 3), (2, 1), (1, 13)]  # of the first digit and of all others; the first pair is in use
ALL_ONES = 2**64 - 1
SEED_0 = [474019074, -294864881, -215518634, -324649382]  # deviation 2^28
TOP_CHOICE = np.uint64(2047 << 40)  # the choice of the first word such that every t is kept


def sample_of(words, count, deviation, widths=WIDTHS[0]):
    """At most `count` samples from `words`, and how many words they used."""
    out = np.empty(min(count, len(words)), np.int64)
    made, used = exact_normal.fill(words, out, deviation, exact_normal.tables(*widths))
    return out[:made], used


def drip(draw, count, deviation, share, widths=WIDTHS[0], keep=True):
    """The protocol of `rounded_normals` with `share` words at a time; `keep=False` drops what is cut off."""
    parts, made, left = [], 0, np.empty(0, np.uint64)
    while made < count:
        left = np.concatenate([left, draw(share)]) if keep else draw(share)
        part, used = sample_of(left, count - made, deviation, widths)
        parts.append(part)
        made += len(part)
        left = left[used:]
    return np.concatenate(parts)


def cells(deviation, scale):
    """Integers -last..last (the ends stand for all beyond) and their probabilities, deviation * `scale`."""
    last = next(k for k in range(1, 1000) if stats.norm.sf((k + 0.5) / deviation) < 1e-4)
    edges = (np.arange(-last, last) + 0.5) / (deviation * scale)
    return last, np.diff(stats.norm.cdf(edges), prepend=0.0, append=1.0)


def integer_p(sample, deviation, scale=1.0):
    """Chi-square of small integers against the rounded normal of deviation * `scale`."""
    last, chances = cells(deviation, scale)
    counts = np.bincount(sample.clip(-last, last) + last, minlength=2 * last + 1)
    return stats.chisquare(counts, chances * len(sample)).pvalue


def chi_square_p(x, count=256):
    """Equally likely cells under N(0, 1)."""
    return stats.chisquare(
        np.bincount((stats.norm.cdf(x) * count).astype(int).clip(0, count - 1), minlength=count)
    ).pvalue


def ks_p(x):
    return stats.kstest(x, "norm").pvalue


def variance_p(x):
    tail = stats.chi2.cdf((x**2).sum(), len(x))
    return 2.0 * min(tail, 1.0 - tail)


REAL_TESTS = (chi_square_p, ks_p, variance_p)


# The digits of the distribution function, and equality with plain loops


@pytest.mark.kernels
@pytest.mark.parametrize("widths", WIDTHS)
def test_thresholds_are_the_digits_of_the_distribution_function(widths):
    guide_bits, digit_bits = widths
    tables = exact_normal.tables(*widths)
    places = tables.thresholds.shape[1] - 1
    precision = guide_bits + places * digit_bits
    assert precision >= 256
    with mpmath.workprec(precision + 200):
        weights = [mpmath.exp(-mpmath.mpf(c * c) / 2048) for c in range(1500)]
        total = mpmath.fsum(weights)
        for c, digits in enumerate(tables.thresholds):
            value = int(digits[0])
            for digit in digits[1:]:
                assert 0 <= digit < 1 << digit_bits
                value = value << digit_bits | int(digit)
            assert value == int(mpmath.floor(mpmath.ldexp(mpmath.fsum(weights[: c + 1]) / total, precision)))
        beyond = mpmath.fsum(weights[len(tables.thresholds) :]) / total
        assert beyond < mpmath.mpf(2) ** -250
    assert len(tables.thresholds) < 32**2  # else one chain would not suffice


@pytest.mark.kernels
@pytest.mark.parametrize("widths", WIDTHS)
def test_guide_decides_where_the_first_digit_does(widths):
    tables = exact_normal.tables(*widths)
    for cell, (c, first) in enumerate(zip(tables.guide, tables.first, strict=True)):
        below = int((tables.thresholds[:, 0] < cell).sum())
        equal = int((tables.thresholds[:, 0] == cell).sum())
        assert first == below
        assert c == (below if equal == 0 else 1024)


@pytest.mark.kernels
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("deviation", [1, 2, 3, 11, OFF_DIAGONAL, DIAGONAL, 2**33 + 1, 2**40 - 1, 2**40])
def test_equal_to_plain_loops(deviation, widths):
    words = open_source(deviation).words(500)
    ref, ref_used = naive.rounded_normals(words, 450, deviation, *widths)
    comp, comp_used = sample_of(words, 450, deviation, widths)
    assert comp.tolist() == ref
    assert comp_used == ref_used


@pytest.mark.kernels
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("deviation", [3, OFF_DIAGONAL, 2**40 - 1])
def test_equal_to_plain_loops_on_long_ways(deviation, widths):
    # Few ones make small digits and small choices: chains of several links, and ties also of 13-bit digits.
    rng = np.random.default_rng(7)
    bits = rng.random((1500, 64)) < rng.choice([0.02, 0.1, 0.5], (1500, 1))
    begins = rng.random(1500) < 0.4
    bits[begins, :13] = rng.random((begins.sum(), 13)) < 0.7  # a large c ...
    bits[begins, 13:24] = False  # ... and choice 0: a chain begins
    words = np.packbits(bits, axis=1).view(">u8").astype(np.uint64).ravel()
    ref, ref_used = naive.rounded_normals(words, 1500, deviation, *widths)
    comp, comp_used = sample_of(words, 1500, deviation, widths)
    assert comp.tolist() == ref
    assert comp_used == ref_used


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("deviation", "c"), [(3, 5), (3, 26), (5, 3), (3 * 5**7, 7), (OFF_DIAGONAL, 0), (OFF_DIAGONAL + 2, 50)]
)
def test_half_integers_are_resolved_by_further_digits(deviation, c):
    boundary = 2 * (deviation * (2 * c + 1) // 64) + 1  # twice a half-integer near the middle of the cell
    tie = Fraction(16 * boundary, deviation) - c  # the t for which deviation (c + t) / 32 = boundary / 2
    assert 0 < tie < 1
    digits = math.floor(tie * 2**39)
    after = tie * 2**39 - digits  # what the digits that follow are compared with
    guide = int(np.flatnonzero(exact_normal.tables().guide == c)[0])
    word = guide << 51 | int(TOP_CHOICE) | digits
    near = math.floor(after * 2**64)
    seen = set()
    for extra in (0, near - 1, near, near + 1, ALL_ONES):
        for following in (0, ALL_ONES):
            words = np.array([word, extra, following, 5 << 60], np.uint64)
            ref, ref_used = naive.rounded_normals(words, 1, deviation)
            comp, comp_used = sample_of(words, 1, deviation)
            assert comp.tolist() == ref
            assert comp_used == ref_used > 1
            y = Fraction(extra, 2**64) + Fraction(following, 2**128)
            below = (boundary - 1) // 2
            assert comp[0] == (below + 1 if y >= after else below)
            seen.add(int(comp[0]))
    assert len(seen) == 2


@pytest.mark.kernels
def test_signs_are_symmetric():
    words = open_source(6).words(300)
    flipped = words ^ np.uint64(1 << 39)
    for deviation in (2, OFF_DIAGONAL):
        # Attempts that read on would meet flipped words there, too: keep to those that do not.
        for word, other in zip(words, flipped, strict=True):
            sample, _ = sample_of(np.array([word]), 1, deviation)
            mirrored, _ = sample_of(np.array([other]), 1, deviation)
            np.testing.assert_array_equal(mirrored, -sample)


# The distribution


@pytest.mark.parametrize(
    ("deviation", "widths"),
    [
        pytest.param(deviation, widths, marks=[pytest.mark.slow] * (widths != WIDTHS[0] and deviation != 4))
        for deviation in SMALL
        for widths in WIDTHS
    ],
)
def test_small_deviations(deviation, widths):
    count = 2_000_000
    words = open_source(10 + deviation).words(5 * count // 2)
    sample, _ = sample_of(words, count, deviation, widths)
    assert len(sample) == count
    assert integer_p(sample, deviation) > ACCEPT
    assert integer_p(sample, deviation, 1.02) < REJECT
    assert integer_p(sample, deviation, 1.0 / 1.02) < REJECT
    # Every t kept, as if step 2 were left out.
    broken, _ = sample_of(words | TOP_CHOICE, count, deviation, widths)
    assert integer_p(broken, deviation) < REJECT


@pytest.mark.parametrize("deviation", SMALL)
def test_rounding_is_to_the_nearest(deviation):
    sample = rounded_normals(open_source(20), 600_000, deviation * 2**20)
    nearest = np.sign(sample) * ((np.abs(sample) + 2**19) >> 20)
    assert integer_p(nearest, deviation) > ACCEPT
    assert integer_p(np.sign(sample) * (np.abs(sample) >> 20), deviation) < REJECT  # toward zero
    assert integer_p(sample >> 20, deviation) < REJECT  # down


@pytest.mark.parametrize("test", REAL_TESTS)
@pytest.mark.parametrize("deviation", [OFF_DIAGONAL, DIAGONAL, 2**40])
def test_large_deviations(deviation, test):
    sample = rounded_normals(open_source(30), 600_000, deviation) / deviation
    assert test(sample) > ACCEPT
    assert test(1.02 * sample) < REJECT
    assert test(sample / 1.02) < REJECT


@pytest.mark.parametrize("deviation", [OFF_DIAGONAL, DIAGONAL])
def test_moments_and_independence(deviation):
    n = 600_000
    x = rounded_normals(open_source(31), n, deviation) / deviation
    # six standard errors: each of these fails by chance once in 5 10^8 runs
    assert abs(x.mean()) < 6.0 / math.sqrt(n)
    assert abs((x**3).mean()) < 6.0 * math.sqrt(15.0 / n)
    assert abs((x**4).mean() - 3.0) < 6.0 * math.sqrt(96.0 / n)
    for lag in (1, 2, 3, 64, noise.CHUNK):
        for power in (1, 2):  # neighbours that share words would show in the squares
            y = x**power - (power - 1)
            assert abs((y[lag:] * y[:-lag]).mean()) < 6.0 * power / math.sqrt(n - lag)


@pytest.mark.parametrize("modulus", [2, 3, 32, 61])
@pytest.mark.parametrize("deviation", [OFF_DIAGONAL, DIAGONAL])
def test_low_digits_are_uniform(deviation, modulus):
    # At these deviations the residues of a rounded normal are uniform to hundreds of decimals.
    sample = rounded_normals(open_source(32), 600_000, deviation)
    assert stats.chisquare(np.bincount(sample % modulus)).pvalue > ACCEPT
    # Power: one of fifty samples rounded to an even number, or to a multiple.
    sample[::50] -= sample[::50] % modulus
    assert stats.chisquare(np.bincount(sample % modulus)).pvalue < REJECT


def test_tails_beyond_four_deviations():
    source, count = open_source(33), 0
    beyond = []
    for _ in range(25):
        sample = rounded_normals(source, 4_000_000, OFF_DIAGONAL)
        count += len(sample)
        beyond.append(sample[np.abs(sample) > 4 * OFF_DIAGONAL] / OFF_DIAGONAL)
    x = np.concatenate(beyond)
    assert len(x) > 6000
    for edge in (4.0, 4.5, 5.0):
        number = int((np.abs(x) > edge).sum())
        assert stats.binomtest(number, count, 2.0 * stats.norm.sf(edge)).pvalue > ACCEPT
    for factor in (0.9, 1.1):  # power: a tail a tenth too light or too heavy
        assert stats.binomtest(int(factor * len(x)), count, 2.0 * stats.norm.sf(4.0)).pvalue < REJECT
    # Its shape: given |x| > 4, sf(|x|) / sf(4) is uniform; that of an exponential tail is not.
    assert stats.kstest(stats.norm.sf(np.abs(x)) / stats.norm.sf(4.0), "uniform").pvalue > ACCEPT
    exponential = 4.0 + np.random.default_rng(0).exponential(0.25, 2 * len(x))
    assert stats.kstest(stats.norm.sf(exponential) / stats.norm.sf(4.0), "uniform").pvalue < REJECT
    assert stats.binomtest(int((x > 0.0).sum()), len(x)).pvalue > ACCEPT


# Buffers, chunks, threads, processes


@pytest.mark.kernels
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("share", [1, 2, 3, 7])
@pytest.mark.parametrize("deviation", [11, 2**40 - 1])
def test_cutting_the_stream_changes_nothing(share, deviation, widths):
    words = open_source(40).words(900)
    ref, ref_used = sample_of(words, 900, deviation, widths)
    at = 0

    def draw(count):
        nonlocal at
        at += count
        assert at < len(words) + share
        return words[at - count : at]

    comp = drip(draw, len(ref), deviation, share, widths)
    np.testing.assert_array_equal(comp, ref)
    assert at - share < ref_used <= at


@pytest.mark.parametrize(("share", "count"), [(1, 20_000), pytest.param(2, 120_000, marks=pytest.mark.slow)])
def test_short_buffers_are_not_biased(share, count):
    sample = drip(open_source(41).words, count, 11, share, widths=(6, 3))
    broken = drip(open_source(41).words, count, 11, share, widths=(6, 3), keep=False)
    assert integer_p(sample, 11) > ACCEPT
    assert integer_p(broken, 11) < REJECT


def test_refills_are_not_biased(monkeypatch):
    ref = rounded_normals(open_source(42), 64 * 2000, 4)
    monkeypatch.setattr(noise, "CHUNK", 64)
    monkeypatch.setattr(exact_normal, "words_for", lambda count: min(count, 3))
    sample = rounded_normals(open_source(42), 64 * 2000, 4)
    assert (sample != ref).any()
    assert integer_p(ref, 4) > ACCEPT
    assert integer_p(sample, 4) > ACCEPT
    assert integer_p(sample, 4, 1.02) < REJECT


CHUNK, AT_A_TIME = noise.CHUNK, noise.CHUNK * noise.CHUNKS_AT_A_TIME


@pytest.mark.parametrize("count", [0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, AT_A_TIME - 1, AT_A_TIME + 12_345])
def test_thread_count_does_not_matter(count):
    ref = rounded_normals(open_source(43), count, OFF_DIAGONAL, n_threads=1)
    comp = rounded_normals(open_source(43), count, OFF_DIAGONAL, n_threads=2)
    assert ref.shape == (count,)
    assert ref.dtype == np.int64
    np.testing.assert_array_equal(comp, ref)
    assert len(np.unique(ref)) >= 0.99 * count


def test_thread_count_does_not_matter_when_words_run_out(monkeypatch):
    monkeypatch.setattr(exact_normal, "words_for", lambda count: count // 2 + 1)
    ref = rounded_normals(open_source(44), 150_000, OFF_DIAGONAL, n_threads=1)
    np.testing.assert_array_equal(rounded_normals(open_source(44), 150_000, OFF_DIAGONAL, n_threads=2), ref)


@pytest.mark.kernels
def test_driver_by_hand(monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", 8)
    monkeypatch.setattr(noise, "CHUNKS_AT_A_TIME", 2)
    monkeypatch.setattr(exact_normal, "words_for", lambda count: count - 1 if count > 1 else 1)
    comp = rounded_normals(open_source(45), 20, 1000, n_threads=1)
    source = open_source(45)
    ref = []
    for chunks in ((8, 8), (4,)):  # stretches first, then what each of them lacks
        stretches = [source.words(size - 1).tolist() for size in chunks]
        for size, words in zip(chunks, stretches, strict=True):
            made = naive.rounded_normals(words, size, 1000)[0]
            while len(made) < size:
                words += source.words(max(size - len(made) - 1, 1)).tolist()
                made = naive.rounded_normals(words, size, 1000)[0]
            ref += made
    assert comp.tolist() == ref


@pytest.mark.kernels
@pytest.mark.fixed_seed
def test_seeded_samples_are_fixed_for_ever():
    # Recorded once: stored results and tests of other modules rest on them.
    assert rounded_normals(open_source(0), 4, 2**28).tolist() == SEED_0


FORK = """
import os
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import rounded_normals

private, seeded = open_source(), open_source(3)
rounded_normals(private, 5, 2**28), rounded_normals(seeded, 5, 2**28)
for child in range(2):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        lines = [rounded_normals(source, 3, 2**28).tolist() for source in (private, seeded)]
        os.write(write, f"{lines[0]};{lines[1]}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(os.read(read, 10_000).decode())
print(f"{rounded_normals(private, 3, 2**28).tolist()};{rounded_normals(seeded, 3, 2**28).tolist()}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_forked_children_draw_their_own_noise():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line.split(";") for line in done.stdout.splitlines()]
    assert len(lines) == 3
    assert len({private for private, _ in lines}) == 3
    assert len({seeded for _, seeded in lines}) == 1


# Refusals


@pytest.mark.kernels
@pytest.mark.parametrize("word", [0, ALL_ONES])
def test_words_that_repeat_are_refused(word):
    class Broken:
        def renew(self):
            pass

        def words(self, count):
            return np.full(count, word, np.uint64)

    with pytest.raises(RuntimeError, match="defective"):
        rounded_normals(Broken(), 10, 1000, n_threads=1)


@pytest.mark.kernels
def test_bad_arguments_are_refused():
    source = open_source(1)
    for bad in (0, -1, 1.0, True, "1", np.array([1, 2])):
        with pytest.raises(ValueError, match=r"^deviation = .*integer >= 1"):
            rounded_normals(source, 10, bad)
    with pytest.raises(ValueError, match=r"^deviation = .*at most"):
        rounded_normals(source, 10, 2**40 + 1)
    for bad in (-1, 1.0, True, "1"):
        with pytest.raises(ValueError, match=r"^size = .*integer >= 0"):
            rounded_normals(source, bad, 10)
