"""Top-d eigenvectors of small symmetric matrices, many in a row.

Three ways, each checked before it is believed:

1. `refine`: subspace iteration from a good start (the neighbour's answer). With Q the current rows,
   R = Q C Q^T and E = Q C - R Q, the identity |C|_F^2 = |R|_F^2 + 2 |E|_F^2 + |C22|_F^2 bounds every
   other eigenvalue by |C22|_F: if that is below the smallest of R, Q is near *the dominant* subspace
   and Davis-Kahan bounds its angle by |E| / gap. No certificate, no answer.
2. `direct`: Householder tridiagonal form, multisection for the top d values, inverse iteration;
   accepted if the residual is at rounding level.
3. LAPACK's `eigh`, for what is left.

Matrices are `width` x `width` with `width` the size rounded up to a multiple of four, padding zero.
Vectors are rows.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.tiles import dot, multiply_symmetric

JACOBI_MOST = 6
_TOLERANCE = 1e-11  # on the sine of the largest angle to the dominant subspace
_REFINE_STEPS = 40
_SECTIONS = 8
_EPS = float(np.finfo(np.float64).eps)


@kernel
def jacobi(A, V, n):
    """Cyclic Jacobi on the leading n x n block of A, in place; eigenvectors in the rows of V."""
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


@kernel
def orthonormalize(Q, rows, width):
    """Gram-Schmidt on the first `rows` rows, twice where a row loses much of its length. False if dependent."""
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
            kept = after / before
            before = after
            if kept > 0.5:
                break
        if not before > 0.0 or not kept > 0.5:
            return False
        scale = 1.0 / math.sqrt(before)
        for i in range(width):
            Q[c, i] *= scale
    return True


@kernel
def _smallest(R, S, V, d):
    """Smallest eigenvalue of the leading d x d block of R (S and V are scratch)."""
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


@kernel
def _power(C, width, d, eager, Q, Z):
    """Q <- Q C^eager, orthonormal again. False if rows became dependent."""
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


@kernel
def refine(C, width, d, eager, Q, Z, R, S, V):
    """Subspace iteration on a C of trace about 1, from the rows of Q; `eager` steps go unchecked.

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
        if error * rest <= _TOLERANCE * (floor - rest) * floor:
            floor = _smallest(R, S, V, d)
            # one more multiplication, already done in Z, shrinks the angle by rest / floor or more
            if error * rest <= _TOLERANCE * (floor - rest) * floor:
                for i in range(d):
                    for k in range(width):
                        Q[i, k] = Z[i, k]
                if not orthonormalize(Q, d, width):
                    return -1
                spare = error * floor <= _TOLERANCE * (floor - rest) * floor
                return max(eager + step - (1 if spare else 0), 0)
        if (rest > 0.9 * floor and step >= 2) or step + eager > _REFINE_STEPS:
            return -1
        for i in range(d):
            for k in range(width):
                Q[i, k] = Z[i, k]
        if not orthonormalize(Q, d, width):
            return -1
    return -1


@kernel
def _tridiagonalize(A, n, width, diagonal, off, tau, v, w):
    """Householder reduction of the symmetric A; reflector k is kept in row k of A."""
    for k in range(n - 2):
        first = k + 1
        base = (first // 4) * 4
        tail = 0.0
        for j in range(first + 1, n):
            tail += A[k, j] * A[k, j]
        x = A[k, first]
        if tail == 0.0:
            tau[k] = 0.0
            off[k] = x
            continue
        norm = math.sqrt(x * x + tail)
        alpha = -norm if x > 0.0 else norm
        lead = x - alpha
        tau[k] = -lead / alpha
        off[k] = alpha
        scale = 1.0 / lead
        for j in range(base, first):
            v[j] = 0.0
        v[first] = 1.0
        for j in range(first + 1, n):
            v[j] = A[k, j] * scale
        for j in range(n, width):
            v[j] = 0.0
        for j in range(first, n):
            A[k, j] = v[j]
        t = tau[k]
        for j in range(first, n):
            w[j] = t * dot(A, j * width + base, v, base, width - base)
        for j in range(base, first):
            w[j] = 0.0
        for j in range(n, width):
            w[j] = 0.0
        shift = -0.5 * t * dot(w, base, v, base, width - base)
        for j in range(first, n):
            w[j] += shift * v[j]
        for i in range(first, n):
            vi, wi = v[i], w[i]
            for j in range(base, width):
                A[i, j] -= vi * w[j] + wi * v[j]
    off[n - 2] = A[n - 2, n - 1]
    for i in range(n):
        diagonal[i] = A[i, i]


@kernel
def _multisect(diagonal, off2, n, d, low, high, values):
    """The d largest eigenvalues of a tridiagonal matrix, by counting sign changes at 8 points at once."""
    norm = max(abs(low), abs(high))
    if norm == 0.0:
        for k in range(d):
            values[k] = 0.0
        return
    width = 4.0 * _EPS * norm
    tiny = _EPS * _EPS * norm
    at = np.empty(_SECTIONS)
    pivot = np.empty(_SECTIONS)
    below = np.empty(_SECTIONS)
    for k in range(d):
        a = low
        b = high if k == 0 else min(high, values[k - 1] + width)
        while b - a > width:
            for t in range(_SECTIONS):
                at[t] = a + (b - a) * (t + 1) / (_SECTIONS + 1)
                pivot[t] = 1.0
                below[t] = 0.0
            for i in range(n):
                coupling = off2[i - 1] if i > 0 else 0.0
                for t in range(_SECTIONS):
                    p = diagonal[i] - at[t] - coupling / pivot[t]
                    p = p if abs(p) > tiny else -tiny
                    pivot[t] = p
                    below[t] += 1.0 if p < 0.0 else 0.0
            new_a, new_b = a, b
            for t in range(_SECTIONS):
                if below[t] <= n - 1 - k:
                    new_a = max(new_a, at[t])
                else:
                    new_b = min(new_b, at[t])
            if new_a == a and new_b == b:
                break
            a, b = new_a, new_b
        values[k] = 0.5 * (a + b)


@kernel
def _inverse_iteration(diagonal, off, n, d, values, Q, width, norm, work):
    """Eigenvectors of the tridiagonal matrix for `values`, orthogonal to each other, in the rows of Q."""
    upper, upper1, upper2, lower, swapped, x = work[0], work[1], work[2], work[3], work[4], work[5]
    tiny = _EPS * norm
    for k in range(d):
        for i in range(n):
            upper[i] = diagonal[i] - values[k]
            upper1[i] = off[i] if i < n - 1 else 0.0
            upper2[i] = 0.0
            # a fixed start without symmetry, so that no eigenvector is missed
            x[i] = 1.0 + 0.25 * ((i * 7919 + k * 104729) % 17) / 17.0
        for i in range(n - 1):
            sub = off[i]
            if abs(upper[i]) >= abs(sub):
                swapped[i] = 0.0
                lower[i] = sub / upper[i] if upper[i] != 0.0 else 0.0
                upper[i + 1] -= lower[i] * upper1[i]
            else:
                swapped[i] = 1.0
                lower[i] = upper[i] / sub
                held = upper1[i]
                upper[i] = sub
                upper1[i] = upper[i + 1]
                upper[i + 1] = held - lower[i] * upper1[i]
                if i < n - 2:
                    upper2[i] = upper1[i + 1]
                    upper1[i + 1] = -lower[i] * upper2[i]
        for i in range(n):
            if abs(upper[i]) < tiny:
                upper[i] = tiny
        for sweep in range(3):
            if sweep > 0:
                for i in range(n - 1):
                    if swapped[i] != 0.0:
                        x[i], x[i + 1] = x[i + 1], x[i] - lower[i] * x[i + 1]
                    else:
                        x[i + 1] -= lower[i] * x[i]
            x[n - 1] /= upper[n - 1]
            if n > 1:
                x[n - 2] = (x[n - 2] - upper1[n - 2] * x[n - 1]) / upper[n - 2]
            for i in range(n - 3, -1, -1):
                x[i] = (x[i] - upper1[i] * x[i + 1] - upper2[i] * x[i + 2]) / upper[i]
            largest = 0.0
            for i in range(n):
                largest = max(largest, abs(x[i]))
            if not largest > 0.0:
                return False
            for i in range(n):
                x[i] /= largest
            for e in range(k):
                overlap = 0.0
                for i in range(n):
                    overlap += Q[e, i] * x[i]
                for i in range(n):
                    x[i] -= overlap * Q[e, i]
            length = 0.0
            for i in range(n):
                length += x[i] * x[i]
            if not length > 0.0:
                return False
            length = 1.0 / math.sqrt(length)
            for i in range(n):
                x[i] *= length
        for i in range(n):
            Q[k, i] = x[i]
        for i in range(n, width):
            Q[k, i] = 0.0
    return True


@kernel
def direct(C, A, n, width, d, Q, Z, work):
    """Top-d eigenvectors of C in the rows of Q. `A` and `work` (11, width) are scratch. False if unsure."""
    diagonal, off, off2, tau, values = work[6], work[7], work[8], work[9], work[10]
    for i in range(width):
        for j in range(width):
            A[i, j] = C[i, j]
    _tridiagonalize(A, n, width, diagonal, off, tau, work[0], work[1])
    low, high = diagonal[0], diagonal[0]
    for i in range(n):
        reach = (abs(off[i - 1]) if i > 0 else 0.0) + (abs(off[i]) if i < n - 1 else 0.0)
        low = min(low, diagonal[i] - reach)
        high = max(high, diagonal[i] + reach)
        off2[i] = off[i] * off[i] if i < n - 1 else 0.0
    norm = max(abs(low), abs(high))
    if not (norm > 0.0 and norm < math.inf):
        return False
    _multisect(diagonal, off2, n, d, low - _EPS * norm, high + _EPS * norm, values)
    if not _inverse_iteration(diagonal, off, n, d, values, Q, width, norm, work):
        return False
    for c in range(d):
        for k in range(n - 3, -1, -1):
            if tau[k] != 0.0:
                overlap = 0.0
                for j in range(k + 1, n):
                    overlap += A[k, j] * Q[c, j]
                overlap *= tau[k]
                for j in range(k + 1, n):
                    Q[c, j] -= overlap * A[k, j]
    if not orthonormalize(Q, d, width):
        return False
    multiply_symmetric(Q, d, C, Z, width)
    for c in range(d):
        error = 0.0
        for j in range(n):
            gap = Z[c, j] - values[c] * Q[c, j]
            error += gap * gap
        if not math.sqrt(error) <= 64.0 * n * _EPS * norm:
            return False
    return True


@kernel
def by_lapack(C, n, d, Q, width):
    """Top-d eigenvectors by LAPACK; False if C is not finite."""
    for i in range(n):
        for j in range(n):
            if not math.isfinite(C[i, j]):
                return False
    _, vectors = np.linalg.eigh(np.ascontiguousarray(C[:n, :n]))
    for c in range(d):
        for i in range(n):
            Q[c, i] = vectors[i, n - 1 - c]
        for i in range(n, width):
            Q[c, i] = 0.0
    return True


@kernel
def by_jacobi(C, A, V, n, d, Q, width):
    """Top-d eigenvectors of a very small matrix, largest first."""
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


@kernel
def top_eigenvectors(C, n, width, d, eager, Q, Z, R, S, A, V, work):
    """Rows of Q: an orthonormal basis of the top-d eigenspace of C, which has a trace of about 1.

    Q holds rows to start from, and `eager` what the last call returned for a similar matrix: the
    number of multiplications to do before the first check, or -1 to go straight to `direct`.
    If C is not finite, -2 is returned and Q is zero.
    """
    if n <= JACOBI_MOST:
        return 0 if by_jacobi(C, A, V, n, d, Q, width) else _none(Q)
    if eager >= 0:
        eager = refine(C, width, d, eager, Q, Z, R, S, V)
        if eager >= 0:
            return eager
    if direct(C, A, n, width, d, Q, Z, work) or by_lapack(C, n, d, Q, width):
        return -1
    return _none(Q)


@kernel
def _none(Q):
    Q[:] = 0.0
    return -2


@kernel
def arbitrary_start(Q, n):
    """Fixed rows without symmetry, to start from where nothing is known."""
    for c in range(len(Q)):
        for i in range(n):
            Q[c, i] = ((i * 7919 + c * 104729 + 31 * i * i + 17 * (c + 1) * i) % 1021) / 1021.0 - 0.5


@kernel
def scratch(width, d):
    """Work arrays of `top_eigenvectors`: Q, Z, R, S, A, V, work."""
    side = max(width, d + 1)
    return (
        np.zeros((d, width)),
        np.zeros((d, width)),
        np.zeros((d, d)),
        np.zeros((d + 1, side)),
        np.zeros((width, width)),
        np.zeros((side, side)),
        np.zeros((11, width)),
    )
