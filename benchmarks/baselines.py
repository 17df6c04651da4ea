"""Baselines of `compare.py`: what a careful user would write with scikit-learn, NumPy and SciPy.

Every function runs on one thread of Python; `in_threads` splits the work over two. Which of the variants is
fastest depends on D, so `compare.py` tries them and takes the best.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.neighbors import KDTree, NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks.common import THREADS

_BATCH = 64


def in_threads(call: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
    """Run `call` on equal parts of `items`, one Python thread and one BLAS thread each."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(THREADS) as pool:
        return np.concatenate(list(pool.map(call, np.array_split(items, THREADS))))


def top_eigenvectors(matrices: np.ndarray, dim: int, solver: str) -> np.ndarray:
    """Return the top `dim` eigenvectors (m, D, dim) of symmetric matrices given by their lower triangles."""
    if solver == "numpy":
        return np.linalg.eigh(matrices)[1][:, :, -dim:]
    D = matrices.shape[1]
    wanted = (D - dim, D - 1)
    out = np.empty((len(matrices), D, dim))
    for i, matrix in enumerate(matrices):
        out[i] = scipy.linalg.eigh(matrix, subset_by_index=wanted, check_finite=False)[1]
    return out


def search(Y: np.ndarray, radius: float, algorithm: str) -> NearestNeighbors:
    """Return a scikit-learn radius search on two threads."""
    return NearestNeighbors(radius=radius, algorithm=algorithm, n_jobs=THREADS).fit(Y)


def local_pca(Y: np.ndarray, neighbors: np.ndarray, dim: int, solver: str) -> np.ndarray:
    """Return the top `dim` eigenvectors (m, D, dim) of the covariance of every list of neighbours."""
    D = Y.shape[1]
    out = np.empty((len(neighbors), D, dim))
    covariances = np.empty((_BATCH, D, D))
    for start in range(0, len(neighbors), _BATCH):
        part = neighbors[start : start + _BATCH]
        for i, rows in enumerate(part):
            X = np.take(Y, rows, axis=0)
            X -= X.sum(axis=0) / len(X)
            np.matmul(X.T, X, out=covariances[i])
            covariances[i] /= len(X) - 1
        out[start : start + len(part)] = top_eigenvectors(covariances[: len(part)], dim, solver)
    return out


class NumpyDenoiser:
    """Algorithm 2 in vectorised NumPy, tangent bases given.

    Parameters
    ----------
    Y : (n, D) references
    V : (n, dim, D) tangent bases
    radius : float
    sums : {"printed", "gather", "dense", "tree"}
        How the weighted sums are formed. ``"printed"``: as the algorithm is printed, one query at a time,
        vectorised over all references. ``"gather"``: distances by GEMM, then per query the rows in the ball
        and one product. ``"dense"``: all weights against the table of all projectors, in one product.
        ``"tree"``: a k-d tree and a sparse product with that table. The last two are for small D.
    solver : {"numpy", "scipy"}
        Full batched eigh, or LAPACK for the top eigenvectors only, one matrix at a time.
    """

    def __init__(self, Y: np.ndarray, V: np.ndarray, radius: float, sums: str, solver: str) -> None:
        self.V, self.h2, self.sums, self.solver = V, radius * radius, sums, solver
        self.center = Y.mean(axis=0)  # keeps the cancellation in the GEMM distances small
        self.Y = Y - self.center
        norms = np.einsum("ij,ij->i", self.Y, self.Y)
        self.table = np.ascontiguousarray(np.column_stack([self.Y, -0.5 * norms]).T)
        n, D = Y.shape
        if sums in ("dense", "tree"):
            projectors = np.matmul(V.transpose(0, 2, 1), V).reshape(n, D * D)
            self.features = np.hstack([projectors, self.Y, np.ones((n, 1))])
        if sums == "tree":
            self.tree = KDTree(self.Y)

    def transform(
        self, Z: np.ndarray, steps: int, scales: tuple[float, float] = (0.0, 0.0), pool: bool = False
    ) -> np.ndarray:
        """Move the queries `steps` times; `scales` are the deviations of projector and mean noise."""
        if pool:
            return in_threads(lambda part: self.transform(part, steps, scales), Z)
        rng = np.random.default_rng()
        ways = {"printed": self._printed, "gather": self._gather, "dense": self._dense, "tree": self._tree}
        sums = ways[self.sums]
        dim = self.V.shape[1]
        alive = np.arange(len(Z))  # a query without neighbours is not followed any further
        X = Z - self.center
        for _ in range(steps):
            counts, means, projectors = sums(X)
            if counts.min(initial=len(self.Y)) <= dim:
                keep = counts > dim
                alive, X, means, projectors = alive[keep], X[keep], means[keep], projectors[keep]
            if not len(alive):
                break
            if scales[0] > 0.0:
                # eigh reads the lower triangle only: that is the symmetric matrix of Algorithm 1
                projectors += scales[0] * rng.standard_normal(projectors.shape)
                means += scales[1] * rng.standard_normal(means.shape)
            U = top_eigenvectors(projectors, dim, self.solver)
            step = means - X
            along = np.matmul(U, np.matmul(U.transpose(0, 2, 1), step[:, :, None]))[:, :, 0]
            X += step - along
        out = Z.copy()
        out[alive] = X + self.center
        return out

    def _depths(self, X: np.ndarray) -> np.ndarray:
        """(1 - |x - y|^2 / h^2) h^2 / 2 for all pairs, negative outside the ball."""
        depths = np.column_stack([X, np.ones(len(X))]) @ self.table
        depths -= 0.5 * (np.einsum("ij,ij->i", X, X) - self.h2)[:, None]
        return depths

    def _printed(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        m, D = X.shape
        counts, means, projectors = np.zeros(m, int), np.zeros((m, D)), np.zeros((m, D, D))
        bases = self.V.reshape(-1, D)
        for q, x in enumerate(X):
            gaps = self.Y - x
            weights = np.maximum(0.0, 1.0 - np.einsum("ij,ij->i", gaps, gaps) / self.h2) ** 2
            counts[q] = np.count_nonzero(weights)
            weights /= max(weights.sum(), 1e-300)
            means[q] = weights @ self.Y
            projectors[q] = (bases * np.repeat(weights, self.V.shape[1])[:, None]).T @ bases
        return counts, means, projectors

    def _gather(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        m, D = X.shape
        counts, means, projectors = np.zeros(m, int), np.zeros((m, D)), np.zeros((m, D, D))
        for start in range(0, m, _BATCH):
            for q, depths in enumerate(self._depths(X[start : start + _BATCH]), start):
                rows = np.flatnonzero(depths > 0.0)
                if len(rows) == 0:
                    continue
                roots = depths[rows]
                roots /= np.linalg.norm(roots)  # square roots of the weights, for beta = 2
                counts[q] = len(rows)
                means[q] = (roots * roots) @ np.take(self.Y, rows, axis=0)
                bases = np.take(self.V, rows, axis=0)
                bases *= roots[:, None, None]
                bases = bases.reshape(-1, D)
                np.matmul(bases.T, bases, out=projectors[q])
        return counts, means, projectors

    def _dense(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts, sums = [], []
        for start in range(0, len(X), _BATCH):
            depths = self._depths(X[start : start + _BATCH])
            np.maximum(depths, 0.0, out=depths)
            counts.append(np.count_nonzero(depths, axis=1))
            np.square(depths, out=depths)
            sums.append(depths @ self.features)
        return np.concatenate(counts), *self._split(np.concatenate(sums))

    def _tree(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        balls = self.tree.query_radius(X, self.h2**0.5)
        counts = np.fromiter(map(len, balls), int, len(balls))
        rows = np.concatenate(balls)
        gaps = np.take(self.Y, rows, axis=0) - np.repeat(X, counts, axis=0)
        roots = self.h2 - np.einsum("ij,ij->i", gaps, gaps)
        starts = np.concatenate([[0], np.cumsum(counts)])
        weights = scipy.sparse.csr_matrix((roots * roots, rows, starts), shape=(len(X), len(self.Y)))
        return counts, *self._split(weights @ self.features)

    def _split(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        D = self.Y.shape[1]
        sums /= np.where(sums[:, -1:] > 0.0, sums[:, -1:], 1.0)
        return sums[:, D * D : -1], sums[:, : D * D].reshape(-1, D, D)
