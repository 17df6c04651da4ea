"""Clipped second moments of one vector per record, summed exactly; coordinates in a subspace.

The vectors come in as rows and must be functions of their record alone: `subspace_coordinates` computes them
in a fixed order, where a matrix product would depend on the block.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.rows import each_row
from dpmd_fast.kernels.scratch import as_argument
from dpmd_fast.kernels.sums.clip import Clipping, clip
from dpmd_fast.kernels.sums.pairs import check_done
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import panel_vectors
from dpmd_fast.kernels.vector.tiles import add_gram
from dpmd_fast.kernels.width import WIDTH

_CHUNK = 256  # records in one partial sum
_FEW_AXES = 6  # of a subspace: with so few, coordinates are summed one after the other, in registers


def subspace_coordinates(
    Y: np.ndarray, center: np.ndarray, basis: np.ndarray, n_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates V^T (y - m) (n, q) and the part outside (n, D), for `basis` V (D, q)."""
    n, D = Y.shape
    inside, outside = np.empty((n, basis.shape[1])), np.empty((n, D))
    done = np.zeros(n, np.bool_)
    with threads(n_threads):
        _coordinates(as_argument(Y), as_argument(center), as_argument(basis), inside, outside, done)
    check_done(done)
    return inside, outside


def inside_coordinates(
    Y: np.ndarray, center: np.ndarray, basis: np.ndarray, n_threads: int | None = None
) -> np.ndarray:
    """Return the coordinates of `subspace_coordinates`, to the last bit, without what is outside."""
    points, inside = as_argument(Y), np.empty((len(Y), basis.shape[1]))
    center, basis = as_argument(center), as_argument(basis)
    each_row(lambda first, last: _inside(points, center, basis, inside, first, last), len(Y), n_threads)
    return inside


def subspace_points(
    X: np.ndarray, center: np.ndarray, basis: np.ndarray, n_threads: int | None = None
) -> np.ndarray:
    """Return the points m + V x (n, D) with coordinates `X` (n, q)."""
    points, out = as_argument(X), np.empty((len(X), len(center)))
    center, across = as_argument(center), as_argument(basis.T)
    each_row(lambda first, last: _points(points, center, across, out, first, last), len(X), n_threads)
    return out


def add_feature_block(
    clipping: Clipping, features: np.ndarray, sums: np.ndarray, n_threads: int | None = None
) -> None:
    """Add the rows f of `features`, each as a clipped f f^T, to `sums` (1, width, width), upper blocks."""
    F = features.shape[1]
    width = sums.shape[1]
    chunks = -(-len(features) // _CHUNK)
    partial = np.zeros((chunks, width, width))
    done = np.zeros(chunks, np.bool_)
    with threads(n_threads):
        _add(as_argument(features), F, clipping, partial, done)
    check_done(done)
    sums[0] += partial.sum(axis=0)


@device
def _project(Y, i, center, basis, inside):
    D, q = basis.shape
    if q <= _FEW_AXES:
        for e in range(q):
            total = 0.0
            for k in range(D):
                total += (Y[i, k] - center[k]) * basis[k, e]
            inside[i, e] = total
        return
    for e in range(q):
        inside[i, e] = 0.0
    for k in range(D):
        value = Y[i, k] - center[k]
        for e in range(q):
            inside[i, e] += value * basis[k, e]


@kernel(rows="Y")
def _inside(Y, center, basis, inside, first, last):
    for i in range(first, last):
        _project(Y, i, center, basis, inside)


@device
def _coordinates_of(i, Y, center, basis, inside, outside, done):
    _project(Y, i, center, basis, inside)
    for k in range(Y.shape[1]):
        value = Y[i, k] - center[k]
        for e in range(basis.shape[1]):
            value -= basis[k, e] * inside[i, e]
        outside[i, k] = value
    done[i] = True


@kernel
def _coordinates(Y, center, basis, inside, outside, done):
    parallel_for(_coordinates_of, len(Y), _CHUNK, (Y, center, basis, inside, outside, done))


@kernel(rows="X")
def _points(X, center, across, out, first, last):
    q = X.shape[1]
    D = len(center)
    for i in range(first, last):
        for k in range(D):
            out[i, k] = center[k]
        for e in range(q):
            value = X[i, e]
            for k in range(D):
                out[i, k] += value * across[e, k]


@device(inline=True)
def _measure(record, scales, count, squares):
    """Set squares[0] = v . v, for `clip`."""
    f, F = record
    total = 0.0
    for k in range(F):
        value = np.trunc(scales[0] * f[k])
        total += value * value
    squares[0] = total


@device(memory=True)
def _add_chunk(chunk, features, F, clipping, partial, done):
    first, last = chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(features))
    sums = partial[chunk]
    groups = sums.shape[0] // LANES
    panel = np.zeros((panel_vectors(groups), _CHUNK, WIDTH))
    roots, scales, squares = np.ones(1), np.empty(1), np.empty(1)
    for i in range(first, last):
        f = features[i]
        square = 0.0
        for k in range(F):
            square += f[k] * f[k]
        if clip(_measure, (f, F), roots, 1, square, 1.0, clipping, scales, squares):
            for k in range(F):
                panel[k // WIDTH, i - first, k % WIDTH] = np.trunc(scales[0] * f[k])
    add_gram(panel, _CHUNK, last - first, sums, groups)
    done[chunk] = True


@kernel
def _add(features, F, clipping, partial, done):
    parallel_for(_add_chunk, len(partial), 1, (features, F, clipping, partial, done))
