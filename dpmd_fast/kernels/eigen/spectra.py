"""All eigenvalues and eigenvectors of small symmetric matrices, with the same bits on every machine.

LAPACK's last bits depend on the processor that BLAS finds, and where eigenvalues are equal, or a direction
has no sign of its own, its choice of eigenvectors does as well. What is computed from a release must not:
a map, the next round and the file would be others on another machine. Here the order of all operations is
fixed: Householder reflections to tridiagonal form, then QL steps with Wilkinson's shift (Bowdler, Martin,
Reinsch and Wilkinson 1968). Additions, multiplications, divisions and square roots, none of them contracted,
are rounded in one way everywhere. `tridiagonal.py` is for the few largest eigenvectors of many matrices.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel
from dpmd_fast.kernels.rows import each_row

_EPS = float(np.finfo(np.float64).eps)
_MOST_STEPS = 60  # for one eigenvalue; two are usual
_LARGE_EXPONENT = 1000
_NEARLY = 1.0 - 1e-6  # entries this near to the largest count as equal: the first of them decides the sign


def spectra(matrices: np.ndarray, n_threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (..., n), ascending, and eigenvectors (..., n, n) in columns, as `np.linalg.eigh`.

    The largest entry of each vector, by size, is positive; of several that are nearly as large it is the
    first. Equal eigenvalues keep the order in which they were found. NaN is returned for a matrix that is not
    finite.
    """
    shape = matrices.shape
    stacked = np.ascontiguousarray(matrices, dtype=np.float64).reshape(-1, *shape[-2:])
    values, vectors = np.empty(stacked.shape[:2]), np.empty(stacked.shape)
    found = np.zeros(len(stacked), np.bool_)

    def work(first: int, last: int) -> None:
        part = slice(first, last)
        _spectra(stacked[part], values[part], vectors[part], found[part])

    each_row(work, len(stacked), n_threads)
    if not found.all():
        raise ArithmeticError("eigenvalues of a symmetric matrix were not found")
    return values.reshape(shape[:-1]), vectors.reshape(shape)


def top_vectors(matrices: np.ndarray, dim: int, n_threads: int | None = None) -> np.ndarray:
    """Return the eigenvectors (..., n, dim) of the largest eigenvalues, the largest last."""
    return np.ascontiguousarray(spectra(matrices, n_threads)[1][..., -dim:])


@device
def _reflect(A, k, n, v):
    """Set v, from k + 1 on, to the vector that reflects row k of A onto one entry; return (factor, entry)."""
    tail = 0.0
    for j in range(k + 2, n):
        tail += A[k, j] * A[k, j]
    lead = A[k, k + 1]
    if tail == 0.0:
        return 0.0, lead
    norm = math.sqrt(lead * lead + tail)
    entry = -norm if lead > 0.0 else norm
    v[k + 1] = 1.0
    for j in range(k + 2, n):
        v[j] = A[k, j] / (lead - entry)
    return (entry - lead) / entry, entry


@device(memory=True)
def _reduce(A, n, diagonal, off, Z):
    """Set `diagonal` and `off` to the tridiagonal Q^T A Q, the rows of Z to the columns of Q; A is lost."""
    v, w, factors = np.zeros(n), np.zeros(n), np.zeros(n)
    for k in range(n - 2):
        factor, off[k] = _reflect(A, k, n, v)
        factors[k] = factor
        if factor == 0.0:
            continue
        for j in range(k + 1, n):
            w[j] = 0.0
        for i in range(k + 1, n):  # row by row: sums over columns would not be vectorised
            own = factor * v[i]
            for j in range(k + 1, n):
                w[j] += own * A[i, j]
        overlap = 0.0
        for j in range(k + 1, n):
            overlap += w[j] * v[j]
        overlap *= 0.5 * factor
        for j in range(k + 1, n):
            w[j] -= overlap * v[j]
        for i in range(k + 1, n):
            left, right = v[i], w[i]
            for j in range(k + 1, n):
                A[i, j] -= left * w[j] + right * v[j]
        for j in range(k + 1, n):
            A[k, j] = v[j]
    for k in range(n):
        diagonal[k] = A[k, k]
    if n > 1:
        off[n - 2] = A[n - 2, n - 1]
    _gather(A, n, factors, w, Z)


@device
def _gather(A, n, factors, w, Z):
    """Set the rows of Z to the columns of the product of the reflections that `_reduce` left in A."""
    for i in range(n):
        for j in range(n):
            Z[i, j] = 1.0 if i == j else 0.0
    for k in range(n - 3, -1, -1):
        if factors[k] == 0.0:
            continue
        for j in range(k + 1, n):
            w[j] = 0.0
        for i in range(k + 1, n):
            own = A[k, i]
            for j in range(k + 1, n):
                w[j] += own * Z[i, j]
        for i in range(k + 1, n):
            own = factors[k] * A[k, i]
            for j in range(k + 1, n):
                Z[i, j] -= own * w[j]
    for i in range(n):
        for j in range(i):
            Z[i, j], Z[j, i] = Z[j, i], Z[i, j]


@device
def _turn(Z, i, n, c, s):
    """Turn rows i and i + 1 of Z into each other."""
    for j in range(n):
        low, high = Z[i, j], Z[i + 1, j]
        Z[i + 1, j] = s * low + c * high
        Z[i, j] = c * low - s * high


@device
def _diagonalize(diagonal, off, n, Z):
    """Replace a tridiagonal matrix by its eigenvalues, and the rows of Z accordingly; False if they fail."""
    off[n - 1] = 0.0
    norm = 0.0
    for i in range(n):
        norm = max(norm, abs(diagonal[i]) + abs(off[i]))
    small = _EPS * norm  # of the whole: where all is zero up to rounding, nothing is small beside the rest
    for first in range(n):
        steps = 0
        while True:
            last = first
            while last < n - 1 and abs(off[last]) > small:
                last += 1
            if last == first:
                break
            steps += 1
            if steps > _MOST_STEPS:
                return False
            g = (diagonal[first + 1] - diagonal[first]) / (2.0 * off[first])
            r = math.sqrt(g * g + 1.0)
            g = diagonal[last] - diagonal[first] + off[first] / (g + (r if g >= 0.0 else -r))
            s, c, shift = 1.0, 1.0, 0.0
            whole = True
            for i in range(last - 1, first - 1, -1):
                f, b = s * off[i], c * off[i]
                r = math.sqrt(f * f + g * g)
                off[i + 1] = r
                if r == 0.0:
                    diagonal[i + 1] -= shift
                    off[last] = 0.0
                    whole = False
                    break
                s, c = f / r, g / r
                g = diagonal[i + 1] - shift
                r = (diagonal[i] - g) * s + 2.0 * c * b
                shift = s * r
                diagonal[i + 1] = g + shift
                g = c * r - b
                _turn(Z, i, n, c, s)
            if whole:
                diagonal[first] -= shift
                off[first] = g
                off[last] = 0.0
    return True


@device
def _sorted_order(values, n, order):
    """Set `order` to the places of the values, ascending; equal ones in the order of their places."""
    for i in range(n):
        j = i
        while j > 0 and values[order[j - 1]] > values[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@device
def _sign(row, n):
    """Return the sign of the first entry of a row that is, by size, nearly the largest."""
    largest = 0.0
    for j in range(n):
        largest = max(largest, abs(row[j]))
    for j in range(n):
        if abs(row[j]) >= _NEARLY * largest:
            return -1.0 if row[j] < 0.0 else 1.0
    return 1.0


@device
def _spectrum(C, A, Z, diagonal, off, order, values, vectors):
    """Set values and vectors of one matrix; return False if they were not found."""
    n = len(C)
    largest = 0.0
    for i in range(n):
        for j in range(n):
            A[i, j] = 0.5 * C[i, j] + 0.5 * C[j, i]
            if not math.isfinite(A[i, j]):
                values[:] = np.nan
                vectors[:] = np.nan
                return True
            largest = max(largest, abs(A[i, j]))
    exponent = min(max(math.frexp(largest)[1], -_LARGE_EXPONENT), _LARGE_EXPONENT)
    scale = math.ldexp(1.0, -exponent)  # a power of two: no digit is lost, and no square overflows
    for i in range(n):
        for j in range(n):
            A[i, j] *= scale
    _reduce(A, n, diagonal, off, Z)
    if not _diagonalize(diagonal, off, n, Z):
        return False
    _sorted_order(diagonal, n, order)
    for k in range(n):
        row = Z[order[k]]
        sign = _sign(row, n)
        values[k] = diagonal[order[k]] / scale
        for j in range(n):
            vectors[j, k] = sign * row[j]
    return True


@kernel
def _spectra(matrices, values, vectors, found):
    n = matrices.shape[1]
    A, Z = np.empty((n, n)), np.empty((n, n))
    diagonal, off, order = np.empty(n), np.empty(n), np.empty(n, np.int64)
    for q in range(len(matrices)):
        found[q] = _spectrum(matrices[q], A, Z, diagonal, off, order, values[q], vectors[q])
