"""Small linear algebra with a fixed order of operations, for what is computed from releases.

BLAS chooses its kernels by the processor, and with them the order of sums and whether products and sums are
rounded together: the last bits of its results differ between machines. What is released must not, and the
next round of a release, a file or a map depends on every bit. These functions are made of NumPy's elementwise
operations, which are rounded one by one, and of `einsum`, whose loops are the same on all processors of one
architecture (it is never given `optimize`, with which it calls BLAS).
"""

from __future__ import annotations

import numpy as np

Floats = np.ndarray


def product(A: Floats, B: Floats) -> Floats:
    """Return A B for matrices, or stacks of them."""
    made: Floats = np.einsum("...ij,...jk->...ik", A, B)
    return made


def gram(X: Floats) -> Floats:
    """Return X^T X (D, D) of rows X (n, D)."""
    made: Floats = np.einsum("ni,nj->ij", X, X)
    return made


def covariance(X: Floats) -> Floats:
    """Return the covariance (D, D) of rows X (n, D), divided by n - 1."""
    made: Floats = gram(X - X.mean(axis=0)) / (len(X) - 1)
    return made


def weighted(weights: Floats, values: Floats) -> Floats:
    """Return the sum over k of weights[k] values[k]."""
    made: Floats = np.einsum("k,k...->...", weights, values)
    return made


def cholesky(matrices: Floats) -> Floats:
    """Return lower triangular L (..., n, n) with L L^T the given matrices.

    Raises `numpy.linalg.LinAlgError` if one is not positive definite.
    """
    left = np.array(matrices, dtype=np.float64)
    out = np.zeros_like(left)
    for j in range(left.shape[-1]):
        pivot = left[..., j, j]
        if not (pivot > 0.0).all():
            raise np.linalg.LinAlgError("a matrix is not positive definite")
        root = np.sqrt(pivot)
        below = left[..., j + 1 :, j] / root[..., None]
        out[..., j, j] = root
        out[..., j + 1 :, j] = below
        left[..., j + 1 :, j + 1 :] -= below[..., :, None] * below[..., None, :]
    return out


def lower_inverse(lower: Floats) -> Floats:
    """Return the inverse of lower triangular matrices (..., n, n), lower triangular to the last bit."""
    n = lower.shape[-1]
    left = np.zeros(lower.shape)
    left[..., np.arange(n), np.arange(n)] = 1.0
    for k in range(n):
        left[..., k, : k + 1] /= lower[..., k, k, None]
        left[..., k + 1 :, : k + 1] -= lower[..., k + 1 :, k, None] * left[..., k, None, : k + 1]
    return left


def orthonormal(columns: Floats) -> Floats:
    """Return an orthonormal basis (D, q) of the span of independent columns, each turned as little as can be.

    Gram-Schmidt, twice. Column j is that of the input without what earlier ones have of it: nothing chooses
    its sign.
    """
    out = np.array(columns.T, dtype=np.float64, order="C")
    for j in range(len(out)):
        for _ in range(2):
            for i in range(j):
                out[j] -= (out[i] * out[j]).sum() * out[i]
            out[j] /= np.sqrt((out[j] * out[j]).sum())
    return np.ascontiguousarray(out.T)
