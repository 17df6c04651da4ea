"""Which components of a mixture count for each record of a chunk, and its coordinates in their frames.

    log e_k = log_weight_k - |u_k|^2 / 2,    u_k = W_k^T (y - m_k)

A component counts if its log e_k, less that of the best, is above `LEAST`. Bounds in single precision leave
out most of those that do not (`screen.py`); coordinates, log e_k and the choice itself are in double
precision, every bit as if nothing had been left out. Whatever cannot be compared (NaN, or all components
infinitely far) is not left out early.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.sums.screen import list_likely, take_rows
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.rows import place_rows, round_up
from dpmd_fast.kernels.vector.singles import TOGETHER

# Records looked at together. A round took 3 % less time with 256 than with 128; room in memory grows with it.
CHUNK = 10 * TOGETHER
LEAST = -9.0  # log of a responsibility, relative to the largest, below which it counts as zero


class Chunk(NamedTuple):
    """Room for what is known of some records."""

    Z: np.ndarray  # (D, room) records from the origin of the screen, float32
    norms: np.ndarray  # (room,) their squared lengths
    bounds: np.ndarray  # (K, room) |u_k|^2 in single precision
    rows: np.ndarray  # (K, room) records in which component k may count,
    n_rows: np.ndarray  # (K,) and their number
    squares: np.ndarray  # (K, room) |u_k|^2 in these
    best: np.ndarray  # (room,) largest log e_k
    counts: np.ndarray  # (room,) number of components that count
    components: np.ndarray  # (room, K) those components, in order
    places: np.ndarray  # (K, room) where in U the coordinates are
    U: np.ndarray  # (K room + 4 K, width) coordinates of records in the frames that may count
    lanes: np.ndarray  # (16,)
    sums: np.ndarray  # (room,)


@device
def make_chunk(K, D, width, records):
    """Return room for `records`, at most `CHUNK`."""
    ints = np.int64
    room = TOGETHER * ((records + TOGETHER - 1) // TOGETHER)
    return Chunk(
        Z=np.zeros((D, room), np.float32),
        norms=np.zeros(room),
        bounds=np.zeros((K, room), np.float32),
        rows=np.zeros((K, room + 1), ints),
        n_rows=np.zeros(K, ints),
        squares=np.zeros((K, room)),
        best=np.zeros(room),
        counts=np.zeros(room, ints),
        components=np.zeros((room, K), ints),
        places=np.zeros((K, room), ints),
        U=np.zeros((K * room + LANES * K, width)),
        lanes=np.zeros(4 * LANES),
        sums=np.zeros(room),
    )


@device
def find_components(screen, log_weights, whitening, X, chunk):
    """Set the components that count for the records X, and the coordinates in their frames."""
    n = len(X)
    take_rows(screen, X, chunk.Z, chunk.norms)
    list_likely(
        screen,
        log_weights,
        LEAST,
        n,
        chunk.Z,
        chunk.norms,
        chunk.bounds,
        chunk.best,
        chunk.rows,
        chunk.n_rows,
    )
    _place(whitening, X, chunk)
    _choose(log_weights, n, chunk)


@device
def _place(whitening, X, chunk):
    """Put the coordinates of records in the frames that may count into U, and set the squares."""
    K, depth, width = whitening.shape
    columns = LANES * ((X.shape[1] + LANES - 1) // LANES)
    at = 0
    for k in range(K):
        rows, count = chunk.rows[k], chunk.n_rows[k]
        if count == 0:
            continue
        round_up(rows, count)
        w0, u0 = k * depth * width, at * width
        place_rows(X, rows, count, whitening, w0, width, columns, chunk.U, u0, chunk.lanes, chunk.sums)
        for i in range(count):
            chunk.squares[k, rows[i]] = chunk.sums[i]
            chunk.places[k, rows[i]] = at + i
        at += LANES * ((count + LANES - 1) // LANES)


@device
def _choose(log_weights, n, chunk):
    """List the components that count for each of n records."""
    best, squares, counts = chunk.best, chunk.squares, chunk.counts
    for r in range(n):
        best[r] = -math.inf
        counts[r] = 0
    for k in range(len(log_weights)):
        for i in range(chunk.n_rows[k]):
            r = chunk.rows[k, i]
            value = log_weights[k] - 0.5 * squares[k, r]
            best[r] = value if value > best[r] else best[r]
    for k in range(len(log_weights)):
        for i in range(chunk.n_rows[k]):
            r = chunk.rows[k, i]
            if log_weights[k] - 0.5 * squares[k, r] - best[r] > LEAST:
                chunk.components[r, counts[r]] = k
                counts[r] += 1
