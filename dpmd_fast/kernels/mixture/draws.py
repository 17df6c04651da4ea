"""Draws of missing values given those that are there, from random numbers that the row itself fixes.

A row is hashed to a key, and the key is the seed of the row's own random numbers: one chooses a component by
its share in the row, the others make standard normal numbers xi, one for each missing column. With the mean
of the missing values M in that component, and P_MM = L L^T as in `missing`, the draw is mean + L^-T xi: its
covariance (L L^T)^-1 is that of M given the rest. Rows with the same values get the same draw.

A draw must not depend on the block, the thread or the machine. Hash and random numbers are made of 64-bit
integers. A normal number is the sum of twelve 16-bit integers, shifted and divided once: its mean and
variance are exactly 0 and 1, and all that is summed over draws is second moments. Its tails end at 6, where a
normal number lies once in 10^9 draws. More normal tails would need polynomials or tables, for no gain.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import JIT_DISABLED, device
from dpmd_fast.kernels.mixture.missing import factor_pattern

# the constants of splitmix64 (Steele, Lea and Flood 2014): increment, and multipliers of its mixer
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_WORDS = 3  # of 64 bits for a normal number: four summands in each
_CENTER = 12 * 65535 // 2  # mean of the sum of 12 numbers from 0 to 65535
_DEVIATION = math.sqrt(65536.0**2 - 1.0)  # its deviation: 12 variances of (2^32 - 1) / 12


def bits_of_rows(Z: np.ndarray) -> np.ndarray:
    """Return the bits (n, D) of float64 rows as uint64, one pattern for all NaN and one for both zeros."""
    values = Z + 0.0  # makes -0.0 to 0.0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


@device(inline=True)
def _mixed_word(word):
    """Return the output of splitmix64 at the state `word`."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@device(inline=True)
def _word_at(key, place):
    """Return the random word number `place` of a row with this key."""
    return _mixed_word(key + np.uint64(place + 1) * _STEP)


@device(inline=True)
def _chained(key, word):
    """Return the key with one more value's bits in it."""
    return _mixed_word((key + _STEP) ^ word)


def _plain_mixed_word(word):  # NumPy warns where a product of its integers wraps around
    word = int(word)
    word = (word ^ (word >> 30)) * int(_FIRST) & _MASK
    word = (word ^ (word >> 27)) * int(_SECOND) & _MASK
    return np.uint64(word ^ (word >> 31))


def _plain_word_at(key, place):
    return _plain_mixed_word((int(key) + (int(place) + 1) * int(_STEP)) & _MASK)


def _plain_chained(key, word):
    return _plain_mixed_word((int(key) + int(_STEP) & _MASK) ^ int(word))


word_at = _plain_word_at if JIT_DISABLED else _word_at
chained = _plain_chained if JIT_DISABLED else _chained


@device
def _key_of_row(bits, row):
    key = np.uint64(0)
    for j in range(bits.shape[1]):
        key = chained(key, bits[row, j])
    return key


@device
def _normal_number(key, column):
    """Return the standard normal number of a row with this key for one column."""
    total = np.int64(0)
    for w in range(_WORDS):
        word = word_at(key, 1 + _WORDS * column + w)
        for part in range(4):
            total += np.int64((word >> np.uint64(16 * part)) & np.uint64(65535))
    return np.float64(total - _CENTER) / _DEVIATION


@device
def _component_of_row(shares, r, key):
    """Return the component of row r that the row's first random number chooses by the shares."""
    u = np.float64(word_at(key, 0) >> np.uint64(11)) * (1.0 / 9007199254740992.0)  # 53 bits: exact
    total, last = 0.0, 0
    for k in range(len(shares)):
        if shares[k, r] > 0.0:
            last = k
            total += shares[k, r]
            if u < total:
                return k
    return last  # the shares may add up to less than 1 by a rounding


@device(memory=True)
def draw_block(components, block, shares, bits, order, out):
    """Set the missing values of the rows of a block in `out` to draws given what is there.

    `bits` holds those of all rows; `block.fills` what is expected under each component, without noise.
    """
    n, most = len(block.counts), block.fills.shape[2]
    L, step = np.empty((most, most)), np.empty(most)
    keys, chosen = np.empty(n, np.uint64), np.empty(n, np.int64)
    for r in range(n):
        keys[r] = _key_of_row(bits, order[r])
        chosen[r] = _component_of_row(shares, r, keys[r])
    for k in range(len(shares)):
        pattern = -1
        for r in range(n):
            count = block.counts[r]
            if chosen[r] != k or count == 0:
                continue
            if block.patterns[r] != pattern:
                factor_pattern(components.precisions[k], block.columns, r, count, L)
                pattern = block.patterns[r]
            for i in range(count - 1, -1, -1):
                j = block.columns[r, i]
                value = _normal_number(keys[r], j)
                for t in range(i + 1, count):
                    value -= L[t, i] * step[t]
                step[i] = value / L[i, i]
                out[order[r], j] = components.origin[j] + (block.fills[k, r, i] + step[i])
