"""The micro-kernels against plain NumPy; with NUMBA_DISABLE_JIT=1 the same tests check their twins."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector import bits, lanes, quads, tiles
from dpmd_fast.kernels.vector.lanes import LANES

pytestmark = pytest.mark.kernels

GROUPS = [1, 2, 3, 4, 5, 6, 7]
GUARD = 1e6  # what stands around the arrays: a read or a write out of bounds shows


# Intrinsics and device functions have no wrapper for Python


@kernel
def run_gram(sign, panel, capacity, rows, C, groups):
    if sign > 0.0:
        tiles.add_gram(panel, capacity, rows, C, groups)
    else:
        tiles.subtract_gram(panel, capacity, rows, C, groups)


@kernel
def run_multiply(Q, rows, C, Z, width):
    tiles.multiply_symmetric(Q, rows, C, Z, width)


@kernel
def run_dot(A, a0, B, b0, count):
    return lanes.dot(A, a0, B, b0, count)


@kernel
def run_distance(A, a0, B, b0, count):
    return lanes.square_distance(A, a0, B, b0, count)


@kernel
def run_masks(x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out):
    bits.ball_masks(x, x0, B, b0, depth, half_norms, rests, h0, rest, maybe, inside, out)


@kernel
def run_near(x, B, b0, depth, half_norms, rests, h0, rest, maybe):
    return bits.near_mask(x, B, b0, depth, half_norms, rests, h0, rest, maybe)


@kernel
def run_add_four(X, x0, quad, centers, masses, frames, offsets, slopes, h2, share, pull, scratch, out):
    quads.add_four_charts(
        X, x0, quad, centers, masses, frames, offsets, slopes, h2, share, pull, scratch, out
    )


@kernel
def run_measure_four(X, x0, quad, centers, frames, h2, share, scratch, tents, along):
    quads.measure_four_charts(X, x0, quad, centers, frames, h2, share, scratch, tents, along)


@kernel
def run_center(M, m0, ldm, sums, i, j, share, scale, C, ldc):
    lanes.center_block(M, m0, ldm, sums, i, j, share, scale, C, ldc)


@kernel
def run_pack(row, r0, center, scale, panel, p0, stride, groups):
    lanes.pack(row, r0, center, scale, panel, p0, stride, groups)


@kernel
def run_pack_scaled(rows, r0, scale, panel, p0, stride, groups, count):
    lanes.pack_scaled(rows, r0, scale, panel, p0, stride, groups, count)


@kernel
def run_update(A, a0, lda, v, w, x, i, j, stop, y):
    lanes.update_four(A, a0, lda, v, w, x, i, j, stop, y)


@kernel
def run_add_multiple(factor, X, x0, Y, y0, count):
    lanes.add_multiple(factor, X, x0, Y, y0, count)


@kernel
def run_bits(word):
    return bits.count_ones(word), bits.count_trailing_zeros(word)


def integers(rng, *shape):
    """Small integers: every order of summation gives the same bits."""
    return rng.integers(-9, 10, shape).astype(float)


def packed(X, capacity):
    """Rows of X in panel order: group, row, lane."""
    rows, width = X.shape
    panel = np.full((width // LANES, capacity, LANES), GUARD)
    panel[:, :rows] = X.reshape(rows, width // LANES, LANES).transpose(1, 0, 2)
    return panel


def upper_blocks(groups):
    block = np.arange(LANES * groups) // LANES
    return block[:, None] <= block


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 64])
def test_gram_of_packed_rows(groups, rows):
    rng = np.random.default_rng(groups)
    X = integers(rng, rows, LANES * groups)
    start = integers(rng, LANES * groups, LANES * groups)
    for sign in (1.0, -1.0):
        ref = np.where(upper_blocks(groups), start + sign * X.T @ X, start)
        comp = start.copy()
        run_gram(sign, packed(X, 64), 64, rows, comp, groups)
        np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_product_with_a_symmetric_matrix(groups, rows):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    Q, C = integers(rng, 6, width), integers(rng, width, width)
    C += C.T
    comp = np.full((6, width), GUARD)
    run_multiply(Q, rows, C, comp, width)
    np.testing.assert_array_equal(comp[:rows], Q[:rows] @ C)
    np.testing.assert_array_equal(comp[rows:], GUARD)


@pytest.mark.parametrize("count", [4, 8, 12, 16, 28, 40])
def test_dot_and_square_distance(count):
    rng = np.random.default_rng(count)
    A, B = integers(rng, 7, 40), integers(rng, 3, 48)
    a, b = A.ravel()[5 : 5 + count], B.ravel()[49 : 49 + count]
    assert run_dot(A, 5, B, 49, count) == np.dot(a, b)
    assert run_distance(A, 5, B, 49, count) == np.dot(a - b, a - b)
    A, B = rng.standard_normal(count), rng.standard_normal(count)
    assert run_dot(A, 0, B, 0, count) == pytest.approx(np.dot(A, B), rel=1e-13, abs=1e-13)
    B = 1e8 * (1.0 + A)
    A = B + 1e-3
    ref = np.dot(A - B, A - B)
    assert run_distance(A, 0, B, 0, count) == pytest.approx(ref, rel=1e-14)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9, 24])
def test_masks(depth):
    rng = np.random.default_rng(depth)
    leaves = 3
    B = integers(rng, leaves, depth, 64).astype(np.float32)
    half_norms, rests = (integers(rng, leaves, 64).astype(np.float32) for _ in range(2))
    rests = np.abs(rests)
    X = integers(rng, 5, depth).astype(np.float32)
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


@pytest.mark.parametrize(("columns", "dim"), [(2, 1), (3, 1), (3, 2), (4, 3), (7, 2), (9, 8), (60, 5)])
@pytest.mark.parametrize("pull", [0.0, 1.0])
def test_four_charts(columns, dim, pull):
    """In integers, where every order of summation gives the same bits, with guards around the results."""
    rng = np.random.default_rng(columns)
    K = 7  # the last quad has three charts
    centers, offsets = integers(rng, K, columns), integers(rng, K, columns)
    frames, slopes = integers(rng, K, dim, columns), integers(rng, K, dim, columns)
    masses = 1.0 + np.arange(K)
    X = integers(rng, 3, columns)
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


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
def test_center_block(groups):
    rng = np.random.default_rng(groups)
    ldm, ldc = LANES * (groups + 1), LANES * groups
    M, sums = integers(rng, ldc, ldm), integers(rng, ldm)
    comp = np.full((ldc, ldc), GUARD)
    ref = np.full((ldc, ldc), GUARD)
    full = 0.5 * (M[:, :ldc] - 0.25 * np.outer(sums[:ldc], sums[:ldc]))
    for i in range(0, ldc, LANES):
        for j in range(i, ldc, 2 * LANES):  # every second block: the others stay as they are
            run_center(M, i * ldm + j, ldm, sums, i, j, 0.25, 0.5, comp, ldc)
            block = full[i : i + LANES, j : j + LANES]
            ref[j : j + LANES, i : i + LANES] = block.T
            ref[i : i + LANES, j : j + LANES] = block
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
def test_pack(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    rows, center = integers(rng, 5, width), integers(rng, width)
    ref = packed(0.5 * (rows - center), 8)
    comp = np.full_like(ref, GUARD)
    for t in range(5):
        run_pack(rows, t * width, center, 0.5, comp, LANES * t, LANES * 8, groups)
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
def test_pack_of_several_rows(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    rows = integers(rng, 7, width)
    ref = packed(0.5 * rows[1:6], 8)
    comp = np.full_like(ref, GUARD)
    run_pack_scaled(rows, width, 0.5, comp, 0, LANES * 8, groups, 2)
    run_pack_scaled(rows, 3 * width, 0.5, comp, LANES * 2, LANES * 8, groups, 3)
    np.testing.assert_array_equal(comp, ref)


@pytest.mark.parametrize("groups", GROUPS)
def test_update_of_four_rows(groups):
    rng = np.random.default_rng(groups)
    width = LANES * groups
    for i in range(0, width, LANES):
        for j, stop in ((0, width), (i, width), (0, i)):
            A, (v, w, x) = integers(rng, width, width), integers(rng, 3, width)
            rows, columns = slice(i, i + 4), slice(j, stop)
            ref = A.copy()
            ref[rows, columns] -= np.outer(v[rows], w[columns]) + np.outer(w[rows], v[columns])
            ref_y = np.full(width, GUARD)
            ref_y[rows] = ref[rows, columns] @ x[columns]
            y = np.full(width, GUARD)
            run_update(A, i * width, width, v, w, x, i, j, stop, y)
            np.testing.assert_array_equal(A, ref)
            np.testing.assert_array_equal(y, ref_y)


@pytest.mark.parametrize("count", [0, 4, 8, 20])
def test_add_multiple(count):
    rng = np.random.default_rng(count)
    X, Y = integers(rng, 3, 24), integers(rng, 2, 28)
    ref = Y.copy()
    ref.reshape(-1)[5 : 5 + count] += -3.0 * X.reshape(-1)[24 : 24 + count]
    run_add_multiple(-3.0, X, 24, Y, 5, count)
    np.testing.assert_array_equal(Y, ref)


def test_bits_of_a_word():
    rng = np.random.default_rng(0)
    words = [1 << j for j in range(64)] + [2**64 - 1, 2**63 + 1, 2**64 - 2**63, 6 << 60]
    words += [int(word) for word in rng.integers(1, 2**64 - 1, 50, dtype=np.uint64)]
    for word in words:
        ref = bin(word).count("1"), len(bin(word)) - 1 - bin(word).rindex("1")
        assert run_bits(np.uint64(word)) == ref
    assert run_bits(np.uint64(0))[0] == 0
