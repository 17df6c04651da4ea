"""Top-d eigenvectors of symmetric matrices that come with a good start and a spectral gap.

`refine` is subspace iteration from a given start (the neighbour's answer, say). With Q the current
rows, R = Q C Q^T and E = Q C - R Q, the identity |C|_F^2 = |R|_F^2 + 2 |E|_F^2 + |C22|_F^2 bounds every
other eigenvalue by |C22|_F: if that is below the smallest of R, Q is near *the dominant* subspace and
Davis-Kahan bounds its angle by |E| / gap. No certificate, no answer: what is left is for
`tridiagonal.py`. Very small matrices are diagonalised by Jacobi rotations.

Matrices are `width` x `width` with `width` the size rounded up to a multiple of four, padding zero.
Vectors are rows.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.vector.lanes import dot
from dpmd_fast.kernels.vector.tiles import multiply_symmetric

JACOBI_MOST = 6
_TOLERANCE = 1e-11  # on the sine of the largest angle to the dominant subspace
_REFINE_STEPS = 40
_EPS = float(np.finfo(np.float64).eps)


@device
def jacobi(A, V, n):
    """Diagonalise the leading n x n block of A in place (cyclic Jacobi); eigenvectors in the rows of V."""
    for i in range(n):
        for j in range(n):
            V[i, j] = 1.0 if i == j else 0.0
    for _ in range(30):
        off = 0.0
        diagonal = 0.0
        for i in range(n):
            diagonal += A[i, i] * A[i, i]
            for j in range(i + 1, n):
                off += A[i, j] * A[i, j]
        if off <= 1e-33 * diagonal or off == 0.0:
            return
        for p in range(n - 1):
            for q in range(p + 1, n):
                if A[p, q] == 0.0:
                    continue
                slope = (A[q, q] - A[p, p]) / (2.0 * A[p, q])
                t = 1.0 / (abs(slope) + math.sqrt(slope * slope + 1.0))
                if slope < 0.0:
                    t = -t
                c = 1.0 / math.sqrt(t * t + 1.0)
                s = t * c
                for k in range(n):
                    x, y = A[k, p], A[k, q]
                    A[k, p] = c * x - s * y
                    A[k, q] = s * x + c * y
                for k in range(n):
                    x, y = A[p, k], A[q, k]
                    A[p, k] = c * x - s * y
                    A[q, k] = s * x + c * y
                for k in range(n):
                    x, y = V[p, k], V[q, k]
                    V[p, k] = c * x - s * y
                    V[q, k] = s * x + c * y


@device
def orthonormalize(Q, rows, width):
    """Orthonormalise rows (Gram-Schmidt, again where one loses much length); return False if dependent."""
    for c in range(rows):
        before = dot(Q, c * width, Q, c * width, width)
        if not before > 0.0:
            return False
        for _ in range(3):
            for e in range(c):
                overlap = dot(Q, c * width, Q, e * width, width)
                for i in range(width):
                    Q[c, i] -= overlap * Q[e, i]
            after = dot(Q, c * width, Q, c * width, width)
            if not after > 0.0:
                return False
            kept = after / before
            before = after
            if kept > 0.5:
                break
        if not kept > 0.5:
            return False
        scale = 1.0 / math.sqrt(before)
        for i in range(width):
            Q[c, i] *= scale
    return True


@device
def _smallest(R, S, V, d):
    """Return the smallest eigenvalue of the leading d x d block of R (S and V are scratch)."""
    if d == 1:
        return R[0, 0]
    if d == 2:
        half = 0.5 * (R[0, 0] - R[1, 1])
        return 0.5 * (R[0, 0] + R[1, 1]) - math.sqrt(half * half + R[0, 1] * R[0, 1])
    for i in range(d):
        for j in range(d):
            S[i, j] = R[i, j]
    jacobi(S, V, d)
    low = S[0, 0]
    for i in range(1, d):
        low = min(low, S[i, i])
    return low


@device
def _all_above(R, S, d, bound):
    """Return whether all eigenvalues of the leading d x d block of R are above `bound` (S is scratch).

    They are if R - bound I has a Cholesky factor: less work than the sweeps that find the eigenvalues.
    """
    for i in range(d):
        for j in range(i + 1):
            value = R[i, j] - bound if i == j else R[i, j]
            for k in range(j):
                value -= S[i, k] * S[j, k]
            if i == j:
                if not value > 0.0:
                    return False
                S[i, i] = math.sqrt(value)
            else:
                S[i, j] = value / S[j, j]
    return True


@device
def _power(C, width, d, eager, Q, Z):
    """Set Q to Q C^eager, orthonormal again; return False if rows became dependent."""
    for step in range(eager):
        if step % 2 == 0:
            multiply_symmetric(Q, d, C, Z, width)
        else:
            multiply_symmetric(Z, d, C, Q, width)
    if eager % 2 == 1:
        for i in range(d):
            for k in range(width):
                Q[i, k] = Z[i, k]
    return orthonormalize(Q, d, width)


@device
def refine(C, width, d, eager, Q, Z, R, S, V):
    """Iterate the subspace of a C of trace about 1 from the rows of Q; `eager` steps go unchecked.

    Returns the number of multiplications that this matrix needed, for the next one's `eager`, with
    Q replaced; or -1 if no certificate was found.
    """
    norm2 = dot(C, 0, C, 0, width * width)
    if not _power(C, width, d, eager, Q, Z):
        return -1
    for step in range(_REFINE_STEPS):
        multiply_symmetric(Q, d, C, Z, width)
        core2 = 0.0
        floor = math.inf
        for i in range(d):
            for j in range(i, d):
                value = dot(Z, i * width, Q, j * width, width)
                R[i, j] = value
                R[j, i] = value
                core2 += value * value if i == j else 2.0 * value * value
            floor = min(floor, R[i, i])
        error2 = 0.0
        side = S.shape[1]
        for i in range(d):
            for k in range(width):
                S[d, k] = Z[i, k]
            for j in range(d):
                r = R[i, j]
                for k in range(width):
                    S[d, k] -= r * Q[j, k]
            error2 += dot(S, d * side, S, d * side, width)
        rest = math.sqrt(max(norm2 - core2 - 2.0 * error2, 0.0) + 64.0 * _EPS * norm2)
        error = math.sqrt(error2)
        # the smallest diagonal element is at least the smallest eigenvalue: a cheap first look
        if floor > rest and error * rest <= _TOLERANCE * (floor - rest) * floor:
            # the same for the smallest eigenvalue f: at least this, for error rest <= tolerance (f - rest) f
            least = 0.5 * (rest + math.sqrt(rest * rest + 4.0 * error * rest / _TOLERANCE))
            simple = d > 2 and _all_above(R, S, d, least)
            if not simple:
                floor = _smallest(R, S, V, d)
            # one more multiplication, already done in Z, shrinks the angle by rest / f or more
            if simple or (floor > rest and error * rest <= _TOLERANCE * (floor - rest) * floor):
                for i in range(d):
                    for k in range(width):
                        Q[i, k] = Z[i, k]
                if not orthonormalize(Q, d, width):
                    return -1
                spare = error <= _TOLERANCE * (floor - rest)
                if simple:
                    spare = _all_above(R, S, d, rest + error / _TOLERANCE)
                return max(eager + step - (1 if spare else 0), 0)
        if rest > (0.9 if step >= 2 else 1.2) * floor or step + eager > _REFINE_STEPS:
            return -1
        for i in range(d):
            for k in range(width):
                Q[i, k] = Z[i, k]
        if not orthonormalize(Q, d, width):
            return -1
    return -1


@device
def by_jacobi(C, A, V, n, d, Q, width):
    """Set Q to the top-d eigenvectors of a very small matrix, largest first; return False if not finite."""
    for i in range(n):
        for j in range(n):
            A[i, j] = C[i, j]
            if not math.isfinite(C[i, j]):
                return False
    jacobi(A, V, n)
    for c in range(d):
        best = c
        for k in range(c + 1, n):
            if A[k, k] > A[best, best]:
                best = k
        for i in range(n):
            V[c, i], V[best, i] = V[best, i], V[c, i]
            Q[c, i] = V[c, i]
        A[best, best] = A[c, c]
        for i in range(n, width):
            Q[c, i] = 0.0
    return True


@device
def leading_rows(C, n, width, d, eager, Q, Z, R, S, A, V):
    """Set the rows of Q to an orthonormal basis of the top-d eigenspace of a C with a trace of about 1.

    Q holds rows to start from, and `eager` what the last call returned for a similar matrix: the
    number of multiplications to do before the first check. Negative if there is no certified answer.
    """
    if n <= JACOBI_MOST:
        return 0 if by_jacobi(C, A, V, n, d, Q, width) else -1
    return refine(C, width, d, eager, Q, Z, R, S, V)


@device
def following_rows(C, n, width, d, eager, Q, Z, R, S, A, V):
    """Do the same from a start that is likely to be good: then even very small matrices are iterated."""
    taken = refine(C, width, d, eager, Q, Z, R, S, V)
    if taken < 0 and n <= JACOBI_MOST and by_jacobi(C, A, V, n, d, Q, width):
        return np.int64(0)
    return np.int64(taken)


@device
def arbitrary_start(Q, n):
    """Fill Q with fixed rows without symmetry, to start from where nothing is known."""
    for c in range(len(Q)):
        for i in range(n):
            Q[c, i] = ((i * 7919 + c * 104729 + 31 * i * i + 17 * (c + 1) * i) % 1021) / 1021.0 - 0.5


@device(memory=True)
def scratch(width, d):
    """Return work arrays for `leading_rows`: Q, Z, R, S, A, V."""
    side = max(width, d + 1)
    small = min(width, JACOBI_MOST)
    return (
        np.zeros((d, width)),
        np.zeros((d, width)),
        np.zeros((d, d)),
        np.zeros((d + 1, side)),
        np.zeros((small, small)),
        np.zeros((max(small, d), max(small, d))),
    )
