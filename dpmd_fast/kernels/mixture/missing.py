"""Missing values of one row under one normal distribution, from its precision matrix.

With the precision P of all columns, z missing in the columns M and gap = z - m, zero in M: the expectation of
the gap in M is -(P_MM)^-1 P_M gap. Only systems of the size of M are solved, with the Cholesky factor L of
P_MM, which rows with the same M share.
"""

from __future__ import annotations

import math

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.vector.elementary import fixed_log
from dpmd_fast.kernels.vector.lanes import dot


@device
def factor_pattern(P, columns, r, count, L):
    """Set L to the Cholesky factor of P_MM; return half the logarithm of its determinant."""
    half = 0.0
    for i in range(count):
        a = columns[r, i]
        for j in range(i + 1):
            value = P[a, columns[r, j]]
            for t in range(j):
                value -= L[i, t] * L[j, t]
            L[i, j] = math.sqrt(value) if i == j else value / L[j, j]
        half += fixed_log(L[i, i])
    return half


@device
def expected_gap(P, columns, r, count, L, gap, out):
    """Set out[:count] to the expected gap in the missing columns; `gap` is zero there and in the padding."""
    width = P.shape[1]
    for i in range(count):
        value = -dot(P, columns[r, i] * width, gap, 0, width)
        for t in range(i):
            value -= L[i, t] * out[t]
        out[i] = value / L[i, i]
    for i in range(count - 1, -1, -1):
        value = out[i]
        for t in range(i + 1, count):
            value -= L[t, i] * out[t]
        out[i] = value / L[i, i]


@device
def added_variances(G, columns, r, count, L, T, out):
    """Set out[j] to what the variance of column j grows by because the columns M are missing; G = P S."""
    D = G.shape[1]
    for j in range(D):
        out[j] = 0.0
    for i in range(count):
        a = columns[r, i]
        for j in range(D):
            T[i, j] = G[a, j]
        for t in range(i):
            factor = L[i, t]
            for j in range(D):
                T[i, j] -= factor * T[t, j]
        for j in range(D):
            T[i, j] /= L[i, i]
            out[j] += T[i, j] * T[i, j]
