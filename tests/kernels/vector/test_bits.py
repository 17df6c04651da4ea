"""Bit masks of candidates against NumPy; with NUMBA_DISABLE_JIT=1 the same tests check the twins."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import small_integers

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import bits

pytestmark = pytest.mark.kernels


@kernel
def run_masks(x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out):
    bits.ball_masks(x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out)


@kernel
def run_near(x, B, b0, depth, half_norms, rests, h0, rest, maybe):
    return bits.near_mask(x, B, b0, depth, half_norms, rests, h0, rest, maybe)


@kernel
def run_bits(word):
    return bits.count_ones(word), bits.count_trailing_zeros(word)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9, 24])
def test_masks(depth):
    rng = np.random.default_rng(depth)
    leaves = 3
    B = small_integers(rng, leaves, depth, 64).astype(np.float32)
    half_norms, rests = (small_integers(rng, leaves, 64).astype(np.float32) for _ in range(2))
    rests = np.abs(rests)
    X = small_integers(rng, 5, depth).astype(np.float32)
    out = np.zeros(3, np.uint64)
    for leaf in range(leaves):
        for q, (maybe, inside) in enumerate([(0.0, 0.0), (-7.0, 5.0), (1.0, 40.0), (-1e4, 1e4), (1e4, -1e4)]):
            rest = float(q)
            run_masks(
                X,
                q * depth,
                B,
                leaf * depth * 64,
                depth,
                half_norms,
                rests,
                leaf * 64,
                rest,
                maybe,
                inside,
                out,
            )
            p = X[q] @ B[leaf] + half_norms[leaf]
            for comp, values, limit in (
                (out[0], p + rest * rests[leaf], maybe),
                (out[1], p - rest * rests[leaf], inside),
            ):
                # integers: ties with the limit occur, and a tie is a hit
                assert int(comp) == sum(1 << j for j in range(64) if values[j] >= limit)
            first = leaf * 64
            near = run_near(X[q], B, first * depth, depth, half_norms, rests, first, rest, maybe)
            assert int(near) == int(out[0])
            if q >= 3:  # all bits, bit 63 among them, or none
                assert [int(word) for word in out[:2]] == ([2**64 - 1, 0] if q == 3 else [0, 2**64 - 1])
    assert out[2] == 0


def test_masks_one_bit_at_a_time():
    out = np.zeros(2, np.uint64)
    for j in range(64):
        half_norms = np.full(64, -1.0, np.float32)
        half_norms[j] = 0.0
        zeros = np.zeros((1, 64), np.float32)
        run_masks(zeros[0], 0, zeros, 0, 1, half_norms, zeros[0], 0, 0.0, -0.5, 0.0, out)
        assert [int(word) for word in out] == [1 << j, 1 << j]


def test_bits_of_a_word():
    rng = np.random.default_rng(0)
    words = [1 << j for j in range(64)] + [2**64 - 1, 2**63 + 1, 2**64 - 2**63, 6 << 60]
    words += [int(word) for word in rng.integers(1, 2**64 - 1, 50, dtype=np.uint64)]
    for word in words:
        ref = bin(word).count("1"), len(bin(word)) - 1 - bin(word).rindex("1")
        assert run_bits(np.uint64(word)) == ref
    assert run_bits(np.uint64(0))[0] == 0
