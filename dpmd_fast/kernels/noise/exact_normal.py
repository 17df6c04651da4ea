"""Exact samples of round(M xi), xi ~ N(0, 1), from a buffer of random words. No floating point.

Algorithm N of Karney (2016), "Sampling exactly from the normal distribution", on a lattice s = 32 times
finer. Write s |xi| = c + t with an integer c and 0 <= t < 1; the density is then proportional to
exp(-c^2 / 2s^2) exp(-t (2c + t) / 2s^2). So:

1. Draw c with probability proportional to exp(-c^2 / 2s^2) (Karney's N1 and N2): a uniform deviate is
   compared with the distribution function of c.
2. Draw t uniform in [0, 1) and keep it with probability exp(-t (2c + t) / 2s^2), else begin again (N3 and
   N4). In a chain t > z_1 > z_2 > ... of fresh uniforms, where each link also needs an event of probability
   p = (2c + t) / 2s^2, at least n links hold with probability (p t)^n / n!. Their number is even with
   probability sum_n (-p t)^n / n! = exp(-p t), as wanted (von Neumann's coin, Karney's algorithm B).
3. Draw a sign, and digits of t until they tell to which integer M (c + t) / s is nearest (N5).

Every uniform is a sequence of random digits of which only those are drawn that a comparison asks for, so no
comparison is ever rounded. Karney has s = 1, draws c by coins of probability exp(-1/2), and needs a dozen
comparisons per sample; here the first digits decide 24 attempts out of 25 at once, and 80 out of 81 give a
sample. The price is step 1, which needs the distribution function of c: its values are known to 256 bits, by
integer arithmetic that encloses them. Words that agree with one of them in all these bits, or uniforms that
agree in 256 digits, are taken for a defect of the source (probability below 2^-245), and nothing is returned.

An attempt begins with a word of its own, which holds the first digits of all it needs. What else it needs it
takes from the words that follow, and it drops what is left of the last one. An attempt that the end of the
buffer cuts off is not counted: the caller offers its words again with more behind them.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.rows import each_row

LARGEST_DEVIATION = 1 << 40
CUT = -1  # instead of an outcome: the words ended
STUCK = -2  # instead of an outcome: no random words go on like this

_PRECISION = 256  # bits of the distribution function of c
_GUARD = 64  # more bits, in which the errors of its computation stay
_MOST_DIGITS = 256  # of one uniform

# The first word of an attempt, from the highest bit down: first digit of the uniform that selects c (at most
# 13 bits), first choice among 2s^2 (11 bits), sign, first digits of t (39 bits: 3 of 13, or more of fewer).
_CELL_BITS = 5  # s = 2^5
_CHOICE_BITS = 2 * _CELL_BITS + 1
_FRACTION_BITS = 39
_SIGN_AT = _FRACTION_BITS
_CHOICE_AT = _SIGN_AT + 1
_GUIDE_BITS = 64 - _CHOICE_AT - _CHOICE_BITS
_UNDECIDED = 1 << (_CHOICE_BITS - 1)  # no c: no choice is above twice this


class Tables(NamedTuple):
    """The distribution function of c in digits, and what its first digit decides."""

    guide_bits: int  # width of the first digit
    digit_bits: int  # width of all other digits, of all uniforms
    guide: np.ndarray  # c by first digit, or _UNDECIDED
    first: np.ndarray  # smallest c possible, by first digit
    thresholds: np.ndarray  # digits of P(c <= 0), P(c <= 1), ...


@functools.cache
def tables(guide_bits: int = _GUIDE_BITS, digit_bits: int = 13) -> Tables:
    """Return the tables for digits of the given widths; `guide_bits` is at most 13, `digit_bits` 13, 3 or 1.

    Narrow digits give the same distribution. They tie more often, which is good for tests.
    """
    places = -(-(_PRECISION - guide_bits) // digit_bits)
    precision = guide_bits + places * digit_bits
    values = _distribution_function(precision)
    thresholds = np.empty((len(values), 1 + places), np.int64)
    for c, value in enumerate(values):
        thresholds[c, 0] = value >> (places * digit_bits)
        for place in range(places):
            thresholds[c, 1 + place] = (value >> ((places - 1 - place) * digit_bits)) % (1 << digit_bits)
    cells = np.arange(1 << guide_bits)
    first = np.searchsorted(thresholds[:, 0], cells, side="left")
    last = np.searchsorted(thresholds[:, 0], cells, side="right")
    guide = np.where(first == last, first, _UNDECIDED).astype(np.uint16)
    return Tables(guide_bits, digit_bits, guide, first, thresholds)


def _distribution_function(precision: int) -> list[int]:
    """Return floor(2^precision P(c <= i)) for i = 0, 1, ..., as long as 1 - P(c <= i) is above 2^-precision.

    With r = exp(-1 / 2s^2) the weights are w_0 = 1, w_(i+1) = r^(2i+1) w_i. Each number here is a pair of
    integers that enclose it, in units of 2^-unit_bits; the floors of both ends of the result must agree.
    """
    unit_bits = precision + _GUARD
    unit = 1 << unit_bits

    def times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (a[0] * b[0]) >> unit_bits, -((-a[1] * b[1]) >> unit_bits)

    # The terms of the series alternate and fall: it lies between two partial sums that follow each other.
    series, term, n = Fraction(1), Fraction(1), 0
    while term * unit > 1 or n % 2 == 0:
        n += 1
        term /= n << _CHOICE_BITS
        series += -term if n % 2 else term
    r = math.floor(series * unit), math.ceil((series + term) * unit)

    square, step, weight = times(r, r), r, (unit, unit)
    below = [(0, 0)]
    while weight[0] > 0:
        below.append((below[-1][0] + weight[0], below[-1][1] + weight[1]))
        weight, step = times(weight, step), times(step, square)
    if 4 * step[1] > 3 * unit:
        raise ArithmeticError("the weights left out do not fall fast enough")
    total = below[-1][0], below[-1][1] + 4 * weight[1]  # those left out: a geometric series bounds them

    values = []
    for low, high in below[1:]:
        floor, other = (low << precision) // total[1], (high << precision) // total[0]
        if other >= (1 << precision) - 1:
            break
        if floor != other:
            raise ArithmeticError("too few guard bits")
        values.append(floor)
    return values


@device
def _take(width, words, stream):
    """Take the next `width` bits as a number, the first highest; CUT where the words end.

    A stream is (bits not yet taken, from the highest down and zeros behind; how many; next word).
    """
    bits, left, at = stream
    if left >= width:
        return np.int64(bits >> np.uint64(64 - width)), (bits << np.uint64(width), left - width, at)
    if at >= len(words):
        return CUT, stream
    lack = width - left
    number = (bits >> np.uint64(64 - width)) | (words[at] >> np.uint64(64 - lack))
    return np.int64(number), (words[at] << np.uint64(lack), 64 - lack, at + 1)


@device
def _cell(first_digit, tables, uniform, words, stream):
    """Step 1: return c, CUT or STUCK. `uniform` holds the digits of the uniform that selects it."""
    uniform[0] = first_digit
    known = 1
    for c in range(tables.first[first_digit], len(tables.thresholds)):
        threshold = tables.thresholds[c]
        place = 0
        while uniform[place] == threshold[place]:
            place += 1
            if place == len(threshold):
                return STUCK, stream
            if place == known:
                digit, stream = _take(tables.digit_bits, words, stream)
                if digit < 0:
                    return CUT, stream
                uniform[place] = digit
                known += 1
        if uniform[place] < threshold[place]:
            return c, stream
    return STUCK, stream


@device
def _compare(digits, known, digit_bits, words, stream):
    """Compare a fresh uniform with one of which `known` digits are known, drawing digits of both.

    Returns 1 if the fresh one is below, 0 if not, CUT or STUCK; the place where they differ; the digit of
    the fresh one there (before, its digits are those of the other); how many digits of the other are known.
    """
    for place in range(_MOST_DIGITS):
        if place == known:
            digit, stream = _take(digit_bits, words, stream)
            if digit < 0:
                return CUT, place, digit, known, stream
            digits[place] = digit
            known += 1
        digit, stream = _take(digit_bits, words, stream)
        if digit < 0:
            return CUT, place, digit, known, stream
        if digit != digits[place]:
            return (1 if digit < digits[place] else 0), place, digit, known, stream
    return STUCK, 0, np.int64(0), known, stream


@device
def _keeps(c, choice, t, known, chain, digit_bits, words, stream):
    """Step 2: return whether t is kept (1, 0, CUT or STUCK), and how many of its digits are known then.

    A choice among 2s^2 is below 2c, or equal to 2c and another uniform below t: probability (2c + t) / 2s^2.
    """
    even = 1
    length = 0  # known digits of the last uniform of the chain; 0 where that is t itself
    while choice <= 2 * c:
        if choice == 2 * c:
            below, place, digit, known, stream = _compare(t, known, digit_bits, words, stream)
            if below <= 0:
                return (even if below == 0 else below), known, stream
        if length == 0:
            below, place, digit, known, stream = _compare(t, known, digit_bits, words, stream)
        else:
            below, place, digit, length, stream = _compare(chain, length, digit_bits, words, stream)
        if below <= 0:
            return (even if below == 0 else below), known, stream
        if length == 0:
            for i in range(place):
                chain[i] = t[i]
        chain[place] = digit
        length = place + 1
        even = 1 - even
        choice, stream = _take(_CHOICE_BITS, words, stream)
        if choice < 0:
            return CUT, known, stream
    return even, known, stream


@device
def _nearest(c, deviation, t, known, digit_bits, words, stream):
    """Step 3: return the integer nearest to deviation (c + t) / s, or CUT.

    deviation (c + t) / s + 1/2 = whole + (part + deviation y) / 2^bits, where y in [0, 1) has the digits of t
    that follow. They are drawn until only one integer is left below.
    """
    bits = _CELL_BITS
    part = deviation * c + (1 << (_CELL_BITS - 1))
    whole = part >> bits
    part &= (1 << bits) - 1
    place = 0
    while (np.int64(1) << bits) < deviation:
        if place < known:
            digit = t[place]
        else:
            digit, stream = _take(digit_bits, words, stream)
            if digit < 0:
                return np.int64(CUT), stream
        place += 1
        bits += digit_bits
        part = (part << digit_bits) + deviation * digit
        whole += part >> bits
        part &= (np.int64(1) << bits) - 1
    # Only whole and whole + 1 are left; the latter where y >= gap / deviation, compared by long division.
    gap = (np.int64(1) << bits) - part
    if gap >= deviation:
        return whole, stream
    while gap > 0:
        gap <<= digit_bits
        bound = gap // deviation
        gap -= bound * deviation
        if place < known:
            digit = t[place]
        else:
            digit, stream = _take(digit_bits, words, stream)
            if digit < 0:
                return np.int64(CUT), stream
        place += 1
        if digit != bound:
            return whole + (1 if digit > bound else 0), stream
    return whole + 1, stream  # y begins with the digits of the bound, and the bound has no others


@device
def _attempt(words, at, deviation, tables, uniform, t):
    """Run the algorithm once; return whether there is a sample (1, 0, CUT, STUCK), it, the next word."""
    digit_bits = tables.digit_bits
    word = words[at]
    stream = (np.uint64(0), 0, at + 1)
    first_digit = np.int64(word >> np.uint64(64 - tables.guide_bits))
    c, stream = _cell(first_digit, tables, uniform, words, stream)
    if c < 0:
        return c, np.int64(0), at
    choice = np.int64(word >> np.uint64(_CHOICE_AT)) & ((1 << _CHOICE_BITS) - 1)
    fraction = np.int64(word & np.uint64((1 << _FRACTION_BITS) - 1))
    known = _FRACTION_BITS // digit_bits
    for place in range(known):
        t[place] = (fraction >> (_FRACTION_BITS - (place + 1) * digit_bits)) & ((1 << digit_bits) - 1)
    kept, known, stream = _keeps(c, choice, t, known, uniform, digit_bits, words, stream)
    if kept != 1:
        return kept, np.int64(0), stream[2]
    value, stream = _nearest(c, deviation, t, known, digit_bits, words, stream)
    if value < 0:
        return CUT, np.int64(0), at
    sign = np.int64(word >> np.uint64(_SIGN_AT)) & 1
    return 1, (-value if sign == 1 else value), stream[2]


@kernel(in_stages=True)  # 10 % faster
def fill(words, out, deviation, tables):
    """Fill `out` until the words run out; return (samples made, words they used).

    STUCK in place of the number of samples says that the words cannot be random.
    """
    uniform = np.zeros(_MOST_DIGITS, np.int64)
    t = np.zeros(_MOST_DIGITS, np.int64)
    guide = tables.guide
    guide_shift = np.uint64(64 - tables.guide_bits)
    length = 0
    while deviation >> length > 0:
        length += 1
    # The first try at rounding takes as many bits of t as keep everything below 2^63: nearly always enough.
    bits = min(_FRACTION_BITS, 62 - length)
    half = np.int64(1) << (bits + _CELL_BITS - 1)
    below_one = (np.int64(1) << (bits + _CELL_BITS)) - 1
    highest = below_one + 1 - deviation

    made = 0
    at = 0
    while made < len(out) and at < len(words):
        word = words[at]
        c = np.int64(guide[word >> guide_shift])
        low = np.int64(word & np.uint64((1 << (_CHOICE_AT + _CHOICE_BITS)) - 1))
        fraction = (low & ((1 << _FRACTION_BITS) - 1)) >> (_FRACTION_BITS - bits)
        base = deviation * c
        part = ((base & ((1 << _CELL_BITS) - 1)) << bits) + deviation * fraction + half
        if (low >> _CHOICE_AT > 2 * c) & ((part & below_one) <= highest):
            value = (base >> _CELL_BITS) + (part >> (bits + _CELL_BITS))
            minus = -((low >> _SIGN_AT) & 1)
            out[made] = (value ^ minus) - minus
            made += 1
            at += 1
            continue
        kept, value, following = _attempt(words, at, deviation, tables, uniform, t)
        if kept == CUT:
            break
        if kept == STUCK:
            return STUCK, at
        out[made] = value
        made += kept
        at = following
    return made, at


def words_for(count: int) -> int:
    """Return a number of words that nearly always suffices for `count` samples."""
    return count + count // 16 + 64


def fill_rows(
    words: np.ndarray, out: np.ndarray, chunk: int, deviation: int, n_threads: int | None = None
) -> np.ndarray:
    """Fill each `chunk` of `out` from a row of `words`; return samples made and words used per row."""
    progress = np.empty((len(words), 2), np.int64)

    def work(first: int, last: int) -> None:
        for row in range(first, last):
            part = out[row * chunk : (row + 1) * chunk]
            progress[row] = fill(words[row], part, deviation, tables())

    each_row(work, len(words), n_threads, first=1)
    return progress
