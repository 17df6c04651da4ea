"""Top-d eigenvectors of any symmetric matrix: tridiagonal form, multisection, inverse iteration.

Three times as fast as a full decomposition for the sizes at hand, because only d vectors are formed.
An answer is accepted if its residual is at rounding level; `top_subspaces` leaves the rest to `spectra.py`.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.eigen.iteration import (
    JACOBI_MOST,
    arbitrary_start,
    leading_rows,
    orthonormalize,
    scratch,
)
from dpmd_fast.kernels.eigen.spectra import top_vectors
from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.vector.lanes import add_multiple, dot, update_four
from dpmd_fast.kernels.vector.tiles import multiply_symmetric

_SECTIONS = 32
_SECTION_WIDTH = 1e-6
_COLD = 3  # unchecked multiplications before a matrix is asked whether it has a gap
_EPS = float(np.finfo(np.float64).eps)


def top_subspaces(matrices: np.ndarray, columns: int, dim: int, n_threads: int | None = None) -> np.ndarray:
    """Return orthonormal bases (m, dim, padded) of the top eigenspaces of padded symmetric matrices.

    The matrices need a trace of about 1 (within some orders of magnitude) or none at all; NaN is
    returned for one that is not finite.
    """
    m, padded, _ = matrices.shape
    bases = np.zeros((m, dim, padded))
    solved = np.zeros(m, np.bool_)
    with threads(n_threads):
        _top_subspaces(matrices, columns, bases, solved)
    for q in np.flatnonzero(~solved):
        if np.isfinite(matrices[q]).all():
            bases[q, :, :columns] = top_vectors(matrices[q, :columns, :columns], dim)[:, ::-1].T
        else:
            bases[q] = np.nan
    return bases


@device
def _reflector(A, k, n, width, v):
    """Set v and row k of A to the Householder vector of that row beyond column k; return (tau, alpha)."""
    first = k + 1
    tail = 0.0
    for j in range(first + 1, n):
        tail += A[k, j] * A[k, j]
    lead = A[k, first]
    v[:] = 0.0
    if tail == 0.0:
        for j in range(width):
            A[k, j] = 0.0
        return 0.0, lead
    norm = math.sqrt(lead * lead + tail)
    alpha = -norm if lead > 0.0 else norm
    scale = 1.0 / (lead - alpha)
    v[first] = 1.0
    for j in range(first + 1, n):
        v[j] = A[k, j] * scale
    for j in range(width):
        A[k, j] = v[j]
    return (alpha - lead) / alpha, alpha


@device
def _tridiagonalize(A, n, width, diagonal, off, tau, work):
    """Reduce the symmetric A by Householder reflectors; number k is left in row k, zero before column k + 1.

    The rank-two update of one reflector and the product with the next share a pass over the matrix.
    """
    v, w, x, y = work[0], work[1], work[2], work[3]
    v[:] = 0.0
    w[:] = 0.0
    for k in range(n - 2):
        # rows below k are one reflector (v, w) behind; bring row k up to date first
        add_multiple(-v[k], w, 0, A, k * width, width)
        add_multiple(-w[k], v, 0, A, k * width, width)
        diagonal[k] = A[k, k]
        tau[k], off[k] = _reflector(A, k, n, width, x)
        for j in range(k + 1):
            v[j] = 0.0
            w[j] = 0.0
        start = ((k + 1) // 4) * 4
        for i in range(start, width, 4):
            update_four(A, i * width, width, v, w, x, i, start, width, y)
        t = tau[k]
        for j in range(k + 1):
            y[j] = 0.0
        shift = -0.5 * t * t * dot(x, 0, y, 0, width)
        for j in range(width):
            v[j] = x[j]
            w[j] = t * y[j] + shift * x[j]
    for k in range(max(n - 2, 0), n):
        add_multiple(-v[k], w, 0, A, k * width, width)
        add_multiple(-w[k], v, 0, A, k * width, width)
        diagonal[k] = A[k, k]
    if n > 1:
        off[n - 2] = A[n - 2, n - 1]


@device(memory=True)
def _multisect(diagonal, off2, n, d, low, high, values):
    """Find the d largest eigenvalues of a tridiagonal matrix, counting sign changes at 32 points at once.

    To about 1e-6 of the norm, in single precision: inverse iteration finds the rest of the digits.
    """
    norm = max(abs(low), abs(high))
    scale = 1.0 / norm
    width = np.float32(_SECTION_WIDTH)
    tiny = np.float32(1e-14)
    zero, one = np.float32(0.0), np.float32(1.0)
    at = np.empty(_SECTIONS, np.float32)
    pivot = np.empty(_SECTIONS, np.float32)
    below = np.empty(_SECTIONS, np.float32)
    lows = np.full(d, np.float32(scale * low))
    highs = np.full(d, np.float32(scale * high))
    for k in range(d):
        while highs[k] - lows[k] > width:
            a = lows[k]
            step = (highs[k] - a) / np.float32(_SECTIONS + 1)
            for t in range(_SECTIONS):
                at[t] = a + step * np.float32(t + 1)
                pivot[t] = one
                below[t] = zero
            coupling = zero
            for i in range(n):
                entry = np.float32(scale * diagonal[i])
                for t in range(_SECTIONS):
                    p = entry - at[t] - coupling / pivot[t]
                    p = p if abs(p) > tiny else -tiny
                    pivot[t] = p
                    below[t] += one if p < zero else zero
                coupling = np.float32(scale * scale * off2[i])
            moved = False
            for e in range(k, d):  # the counts tell something about the smaller ones, too
                most = np.float32(n - 1 - e)
                for t in range(_SECTIONS):
                    if below[t] <= most:
                        if at[t] > lows[e]:
                            lows[e] = at[t]
                            moved = moved or e == k
                    elif at[t] < highs[e]:
                        highs[e] = at[t]
                        moved = moved or e == k
            if not moved:
                break
        values[k] = 0.5 * norm * (np.float64(lows[k]) + np.float64(highs[k]))


@device
def _count_above(diagonal, off2, n, x, tiny):
    """Count the eigenvalues of the tridiagonal matrix above x."""
    above = 0
    pivot = 1.0
    coupling = 0.0
    for i in range(n):
        pivot = diagonal[i] - x - coupling / pivot
        pivot = pivot if abs(pivot) > tiny else -tiny
        if pivot > 0.0:
            above += 1
        coupling = off2[i]
    return above


@device
def _factor(diagonal, off, n, shift, tiny, work):
    """Factor T - shift (LU with partial pivoting)."""
    upper, upper1, upper2, lower, swapped = work[0], work[1], work[2], work[3], work[4]
    for i in range(n):
        upper[i] = diagonal[i] - shift
        upper1[i] = off[i] if i < n - 1 else 0.0
        upper2[i] = 0.0
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


@device
def _solve(n, work, x, forward):
    """Set x to (T - shift)^-1 x with the factors of `_factor`; the first solve skips the forward half."""
    upper, upper1, upper2, lower, swapped = work[0], work[1], work[2], work[3], work[4]
    if forward:
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


@device
def _normalize(n, width, k, Q, x):
    """Remove from x the first k rows of Q and scale it to length one; return False if nothing is left."""
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(x[i]))
    if not (largest > 0.0 and largest < math.inf):
        return False
    for i in range(n):
        x[i] /= largest
    for e in range(k):
        add_multiple(-dot(Q, e * width, x, 0, width), Q, e * width, x, 0, width)
    length = dot(x, 0, x, 0, width)
    if not length > 0.0:
        return False
    length = 1.0 / math.sqrt(length)
    for i in range(n):
        x[i] *= length
    return True


@device(memory=True)
def _inverse_iteration(diagonal, off, n, d, values, Q, width, norm, work):
    """Set the rows of Q to eigenvectors of the tridiagonal matrix near `values`, orthogonal to each other."""
    x = np.zeros(width)
    tiny = _EPS * norm
    for k in range(d):
        for i in range(n):  # a fixed start without symmetry, so that no eigenvector is missed
            x[i] = 1.0 + 0.25 * ((i * 7919 + k * 104729) % 17) / 17.0
        shift = values[k]
        for sweep in range(3):
            # the Rayleigh quotient of the first iterate has the digits that multisection left out
            if sweep == 0 or sweep == 2:
                _factor(diagonal, off, n, shift, tiny, work)
            _solve(n, work, x, sweep > 0)
            if not _normalize(n, width, k, Q, x):
                return False
            quotient = diagonal[n - 1] * x[n - 1] * x[n - 1]
            for i in range(n - 1):
                quotient += x[i] * (diagonal[i] * x[i] + 2.0 * off[i] * x[i + 1])
            if abs(quotient - values[k]) <= 2.0 * _SECTION_WIDTH * norm:
                shift = quotient
        for i in range(width):
            Q[k, i] = x[i]
        values[k] = shift
    return True


@device
def direct(C, A, n, width, d, Q, Z, work):
    """Set the rows of Q to the top-d eigenvectors of C; return False if unsure.

    `A` and `work` (10, width) are scratch.
    """
    diagonal, off, off2, tau, values = work[5], work[6], work[7], work[8], work[9]
    for i in range(width):
        for j in range(width):
            A[i, j] = C[i, j]
    _tridiagonalize(A, n, width, diagonal, off, tau, work)
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
                base = ((k + 1) // 4) * 4
                overlap = dot(A, k * width + base, Q, c * width + base, width - base)
                add_multiple(-tau[k] * overlap, A, k * width + base, Q, c * width + base, width - base)
    if not orthonormalize(Q, d, width):
        return False
    multiply_symmetric(Q, d, C, Z, width)
    for c in range(d):
        add_multiple(-values[c], Q, c * width, Z, c * width, width)
        exact = 64.0 * n * _EPS * norm
        if not math.sqrt(dot(Z, c * width, Z, c * width, width)) <= exact:
            return False
        # an eigenvector, but is it one of the top d? Values closer than multisection can tell are left
        if _count_above(diagonal, off2, n, values[c] + exact, _EPS * _EPS * norm) > c:
            return False
    return True


@device
def _may_have_gap(C, n, width, d):
    """Return whether a matrix with d equal eigenvalues and only noise beside them has a gap below them.

    With t the trace, what is not in those eigenvalues has a squared norm of |C|^2 - t^2 / d. A guess that
    costs time when it is wrong, nothing else.
    """
    trace = 0.0
    for i in range(n):
        trace += C[i, i]
    top2 = trace * trace / d
    return dot(C, 0, C, 0, width * width) - top2 < 0.8 * top2 / d


@device(memory=True)
def _top_subspace(q, matrices, D, bases, solved):
    padded, d = matrices.shape[1], bases.shape[1]
    C = matrices[q]
    Q, Z, R, S, A, V = scratch(padded, d)
    solved[q] = False
    if D <= JACOBI_MOST or _may_have_gap(C, D, padded, d):
        arbitrary_start(Q, D)
        solved[q] = leading_rows(C, D, padded, d, np.int64(_COLD), Q, Z, R, S, A, V) >= 0
    if not solved[q] and D > 2:
        full = np.empty((padded, padded))
        solved[q] = direct(C, full, D, padded, d, Q, Z, np.zeros((10, padded)))
    bases[q] = Q


@kernel
def _top_subspaces(matrices, D, bases, solved):
    parallel_for(_top_subspace, len(matrices), 4, (matrices, D, bases, solved))
