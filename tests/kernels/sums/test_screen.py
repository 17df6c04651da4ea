"""Bounds that leave components out: against exact fractions, none that counts may be missing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.sums.screen import list_likely, make_screen
from dpmd_fast.kernels.vector.singles import TOGETHER, take_columns

pytestmark = pytest.mark.kernels
LEAST = -9.0


@kernel
def run(screen, log_weights, least, X, Z, norms, squares, floor, rows, counts):
    take_columns(X, screen.origin, Z, norms)
    list_likely(screen, log_weights, least, len(X), Z, norms, squares, floor, rows, counts)


def likely(log_weights, means, whitening, X):
    """Which components (K, n) the screen keeps, and its bounds."""
    K, D = means.shape
    room = TOGETHER * -(-len(X) // TOGETHER)
    screen = make_screen(log_weights, means, whitening)
    rows, counts = np.zeros((K, room + 1), np.int64), np.zeros(K, np.int64)
    norms, squares, floor = np.zeros(room), np.zeros((K, room), np.float32), np.zeros(room)
    Z = np.zeros((D, room), np.float32)
    with np.errstate(all="ignore"):
        run(screen, log_weights, LEAST, X, Z, norms, squares, floor, rows, counts)
    kept = np.zeros((K, len(X)), np.bool_)
    for k in range(K):
        kept[k, rows[k, : counts[k]]] = True
    return kept, screen, norms, squares


def exact_squares(means, whitening, X):
    """|W^T (x - m)|^2 (K, n) in fractions."""
    out = []
    for m, W in zip(means.tolist(), whitening.tolist(), strict=True):
        out.append([])
        for x in X.tolist():
            gap = [Fraction(a) - Fraction(b) for a, b in zip(x, m, strict=True)]
            u = [sum(g * Fraction(W[i][e]) for i, g in enumerate(gap)) for e in range(len(m))]
            out[-1].append(sum(value * value for value in u))
    return out


def sample(D, K, rng, shift=0.0, scale=1.0):
    whitening = np.triu(rng.normal(size=(K, D, D))) / scale
    means = (rng.normal(size=(K, D)) + shift) * scale
    X = means[rng.integers(K, size=30)] + scale * rng.normal(size=(30, D)) * 10.0 ** rng.uniform(
        -2, 2, (30, 1)
    )
    return rng.normal(size=K), means, whitening, X


@pytest.mark.parametrize(("D", "K"), [(1, 2), (3, 5), (8, 4), (13, 3)])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e12), (3.0, 1e-12)])
def test_bounds_hold_and_what_is_left_out_cannot_count(D, K, shift, scale):
    rng = np.random.default_rng(D)
    log_weights, means, whitening, X = sample(D, K, rng, shift, scale)
    kept, screen, norms, squares = likely(log_weights, means, whitening, X)
    exact = exact_squares(means, whitening, X)
    logs = np.array([[lw - float(q) / 2 for q in row] for lw, row in zip(log_weights, exact, strict=True)])
    counting = logs - logs.max(axis=0) > LEAST
    assert not (counting & ~kept).any()
    for k in range(K):
        for r in range(len(X)):
            assert norms[r] <= screen.reach
            slack = screen.slack[k] @ [1.0, norms[r]]
            assert abs(float(exact[k][r]) - float(squares[k, r])) <= screen.eta * squares[k, r] + slack
    if shift == 0.0:  # and the bounds are of use: nearly nothing else is kept
        assert (kept & ~counting).mean() < 0.05


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e19, 1e200])
def test_a_record_without_bounds_keeps_all_components(value):
    log_weights, means, whitening, X = sample(5, 4, np.random.default_rng(0))
    before = likely(log_weights, means, whitening, X)[0]
    X[7, 2] = value
    kept = likely(log_weights, means, whitening, X)[0]
    assert kept[:, 7].all()
    assert not before.all()
    np.testing.assert_array_equal(np.delete(kept, 7, axis=1), np.delete(before, 7, axis=1))


@pytest.mark.parametrize("scale", [1e-30, 1e-200])
def test_frames_beyond_single_precision_keep_all_components(scale):
    log_weights, means, whitening, X = sample(3, 4, np.random.default_rng(0), scale=scale)
    assert likely(log_weights, means, whitening, X)[0].all()
