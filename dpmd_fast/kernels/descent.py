"""Gradient descent with step halving on F(x) = |f(x)|^2 / 2, f(x) = (I - Pw_x)(x - b_x).

No D x D matrix is formed. With weights a_i = k_i / S, u = x - b and fp = (I - Pw) f,

    grad F = fp - (1/S) sum_i (c_i - c) grad k_i,    c_i = f^T P_i u + fp^T y_i,    c = sum_i a_i c_i,

the second part being the derivative of the weights inside Pw and b.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.borrow import borrow
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.projectors import power
from dpmd_fast.kernels.search.balls import point_masks, search_scratch
from dpmd_fast.kernels.search.index import LEAF, BallIndex, pad_queries, sketch_point
from dpmd_fast.kernels.vector.bits import count_ones, count_trailing_zeros
from dpmd_fast.kernels.vector.lanes import dot, square_distance

OK, NO_NEIGHBOR, FAILED = 0, 1, 2
_ARMIJO = 1e-4
_HALVINGS = 30


def descend(
    index: BallIndex,
    bases: np.ndarray,
    Z: np.ndarray,
    beta: float,
    steps: int,
    tolerance: float,
    n_threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the point, status code, number of accepted steps and last |f| for each row of `Z`."""
    m = len(Z)
    X = pad_queries(index, Z)
    codes, taken, residuals = np.zeros(m, np.int64), np.zeros(m, np.int64), np.full(m, np.nan)
    with threads(n_threads):
        _descend(index, bases, X, float(beta), steps, tolerance * index.radius, codes, taken, residuals)
    return X[:, : index.columns].copy(), codes, taken, residuals


@device(memory=True)
def _neighbors(index, x):
    """Return row numbers and kernel arguments t = 1 - |x - y|^2 / h^2 of the reference points in the ball."""
    width = index.rows.shape[1]
    scratch = search_scratch(index)
    point = scratch[2]
    length = sketch_point(index, x, 0, point, scratch[3], scratch[4])
    leaves, masks = scratch[0], scratch[1]
    found = point_masks(index, x, 0, point, length, leaves, masks)
    count = 0
    for f in range(found):
        count += count_ones(masks[f])
    rows = np.empty(count, np.int64)
    t = np.empty(count)
    at = 0
    one = np.uint64(1)
    for f in range(found):
        word = masks[f]
        while word != 0:
            row = leaves[f] * LEAF + count_trailing_zeros(word)
            word &= word - one
            rows[at] = row
            t[at] = 1.0 - square_distance(x, 0, index.rows, row * width, width) / (
                index.radius * index.radius
            )
            at += 1
    return rows, t


@device
def _apply_projectors(bases, rows, weights, u, out):
    """Set out = sum_i weights_i P_i u."""
    d = bases.shape[1]
    padded = bases.shape[2]
    out[:] = 0.0
    for i in range(len(rows)):
        for c in range(d):
            along = weights[i] * dot(bases, (rows[i] * d + c) * padded, u, 0, padded)
            for k in range(padded):
                out[k] += along * bases[rows[i], c, k]


@device(memory=True)
def _residual(index, bases, x, beta, least, u, f):
    """Fill in u = x - b and f = (I - Pw) u; return neighbours, kernel arguments, weights, mass and F.

    F is infinite where x has fewer than `least` reference points in its ball or no kernel mass.
    """
    rows, t = _neighbors(index, x)
    weights = np.empty(len(rows))
    mass = 0.0
    u[:] = 0.0
    for i in range(len(rows)):
        weights[i] = power(max(t[i], 0.0), beta)
        mass += weights[i]
        for k in range(index.columns):
            u[k] += weights[i] * (x[k] - index.rows[rows[i], k])
    if len(rows) < least or not mass > 0.0:
        return rows, t, weights, mass, math.inf
    u /= mass
    weights /= mass
    _apply_projectors(bases, rows, weights, u, f)
    F = 0.0
    for k in range(len(f)):
        f[k] = u[k] - f[k]
        F += 0.5 * f[k] * f[k]
    return rows, t, weights, mass, F if math.isfinite(F) else math.inf


@device(memory=True)
def _gradient(index, bases, x, beta, rows, t, weights, mass, u, f, g):
    D = index.columns
    d = bases.shape[1]
    padded = bases.shape[2]
    fp = np.empty(padded)
    _apply_projectors(bases, rows, weights, f, fp)
    for k in range(padded):
        fp[k] = f[k] - fp[k]
    values = np.empty(len(rows))
    mean = 0.0
    for i in range(len(rows)):
        value = 0.0
        for c in range(d):
            at = (rows[i] * d + c) * padded
            value += dot(bases, at, f, 0, padded) * dot(bases, at, u, 0, padded)
        for k in range(D):
            value += fp[k] * (index.rows[rows[i], k] - x[k])
        values[i] = value
        mean += weights[i] * value
    g[:] = fp
    scale = 2.0 * beta / (index.radius * index.radius * mass)
    for i in range(len(rows)):
        slope = scale * max(t[i], 0.0) ** (beta - 1.0) * (values[i] - mean)
        for k in range(D):
            g[k] -= slope * (index.rows[rows[i], k] - x[k])


@device(memory=True)
def _descend_one(q, index, bases, X, beta, steps, tolerance, codes, taken, residuals):
    index, bases = borrow(index), borrow(bases)
    D = index.columns
    d, padded = bases.shape[1], bases.shape[2]
    start = X[q].copy()
    x = X[q].copy()
    trial = X[q].copy()
    u, f, g = np.zeros(padded), np.zeros(padded), np.zeros(padded)
    rows, t, weights, mass, F = _residual(index, bases, x, beta, d + 1, u, f)
    code = OK
    if len(rows) < d + 1:
        code = NO_NEIGHBOR
    elif math.inf == F:
        code = FAILED
    count = 0
    while code == OK and count < steps and math.sqrt(2.0 * F) > tolerance:
        _gradient(index, bases, x, beta, rows, t, weights, mass, u, f, g)
        size = dot(g, 0, g, 0, padded)
        if not math.isfinite(size):
            code = FAILED
            break
        eta = 1.0
        accepted = False
        for _ in range(_HALVINGS + 1):
            for k in range(D):
                trial[k] = x[k] - eta * g[k]
            rows, t, weights, mass, F_trial = _residual(index, bases, trial, beta, d + 1, u, f)
            if F_trial <= F - _ARMIJO * eta * size:
                accepted = True
                break
            eta *= 0.5
        if not accepted:
            break
        x[:] = trial
        F = F_trial
        count += 1
    X[q] = x if code == OK else start
    codes[q] = code
    taken[q] = count
    if code == OK:
        residuals[q] = math.sqrt(2.0 * F)


@kernel
def _descend(index, bases, X, beta, steps, tolerance, codes, taken, residuals):
    arguments = index, bases, X, beta, steps, tolerance, codes, taken, residuals
    parallel_for(_descend_one, len(X), 1, arguments)
