"""Which components of a mixture count for each record of a chunk, and its coordinates in their frames.

    log e_k = log_weight_k - |u_k|^2 / 2,    u_k = W_k^T (y - m_k)

A component counts if its log e_k, less that of the best, is above `LEAST`. W_k is triangular, so the first
columns of u_k cost little, and their squares are a lower bound of |u_k|^2: a component is left out as soon as
the bound puts it too far behind another one. Rounding is monotone, so it would not have counted with all
columns either: what counts, and every bit of it, is as if all columns were taken. Whatever cannot be compared
(NaN, or all components infinitely far) is not left out early.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.rows import add_squares, place_products, round_up

# Records looked at together. Rounds of benchmarks/mixture.py, D = 20 and 60, processor ms on one thread:
# 32: 25, 81; 64: 21, 72; 128: 18.5, 66; 256: 18, 63; 512: 18, 64. Room in memory grows with it.
CHUNK = 128
LEAST = -9.0  # log of a responsibility, relative to the largest, below which it counts as zero
_WIDE = 48  # columns from which on the first 12 tell too little about which component leads


class Chunk(NamedTuple):
    """Room for what is known of some records."""

    lanes: np.ndarray  # (K + 1, room, 4) sums of squares by lane; the last for coordinates that are kept
    squares: np.ndarray  # (K, room) |u_k|^2, or a lower bound if the component does not count
    best: np.ndarray  # (room,) largest log e_k
    guess: np.ndarray  # (room,) component that leads by the first columns
    guessed: np.ndarray  # (room,) records by that component,
    starts: np.ndarray  # (K + 1,) and where those of each component start
    rivals: np.ndarray  # (K, room + 4) records in which another component may count,
    n_rivals: np.ndarray  # (K,) and their number
    counts: np.ndarray  # (room,) number of components that count
    components: np.ndarray  # (room, K) those components, in order
    places: np.ndarray  # (K, room) where in U the coordinates are
    U: np.ndarray  # (K room + 8 K, width) coordinates of records in the frames that count
    rows: np.ndarray  # (room + 4,) numbers of records,
    sums: np.ndarray  # (room + 4,) and a number for each of them


@device
def make_chunk(K, width, room):
    """Return room for `room` records, at most `CHUNK`."""
    ints = np.int64
    return Chunk(
        lanes=np.zeros((K + 1, room, LANES)),
        squares=np.zeros((K, room)),
        best=np.zeros(room),
        guess=np.zeros(room, ints),
        guessed=np.zeros(room, ints),
        starts=np.zeros(K + 1, ints),
        rivals=np.zeros((K, room + 4), ints),
        n_rivals=np.zeros(K, ints),
        counts=np.zeros(room, ints),
        components=np.zeros((room, K), ints),
        places=np.zeros((K, room), ints),
        U=np.zeros((K * room + 8 * K, width)),
        rows=np.zeros(room + 4, ints),
        sums=np.zeros(room + 4),
    )


@device(inline=True)
def _groups_from(j, width):
    """Return how many groups of four columns to take at once: three, so that the first bound says most."""
    left = (width - j) // LANES
    return 2 if left == 4 else min(left, 3)


@device
def find_components(log_weights, whitening, X, chunk):
    """Set the components that count for the records X, and the coordinates in their frames."""
    K, n, D = len(log_weights), len(X), X.shape[1]
    columns = LANES * ((D + LANES - 1) // LANES)
    opened = _open(whitening, X, columns, chunk)
    _guess(log_weights, n, chunk)
    at = 0
    for k in range(K):
        first, count = chunk.starts[k], chunk.starts[k + 1] - chunk.starts[k]
        for i in range(count):
            chunk.rows[i] = chunk.guessed[first + i]
        at = _place(whitening, k, X, columns, count, at, chunk)
    for r in range(n):
        chunk.best[r] = log_weights[chunk.guess[r]] - 0.5 * chunk.squares[chunk.guess[r], r]
    for k in range(K):
        _close(log_weights[k], whitening, k, X, columns, opened, chunk)
    _choose(log_weights, whitening, X, columns, at, chunk)


@device
def _open(whitening, X, columns, chunk):
    """Set the bounds of all squares from the first columns; return the column to go on from."""
    K, depth, width = whitening.shape
    n = len(X)
    for r in range(n):
        chunk.rows[r] = r
    round_up(chunk.rows, n)
    chunk.lanes[:K] = 0.0
    least = 24 if columns >= _WIDE else 12
    opened = 0
    for k in range(K):
        opened = 0
        while opened < min(least, columns):
            groups = _groups_from(opened, columns)
            w0, l0 = k * depth * width, k * len(chunk.best) * LANES
            add_squares(X, chunk.rows, n, whitening, w0, width, opened, groups, chunk.lanes, l0, chunk.sums)
            opened += groups * LANES
        for r in range(n):
            chunk.squares[k, r] = chunk.sums[r]
    return opened


@device
def _guess(log_weights, n, chunk):
    """Find the component that leads by the bounds in each of n records, and sort the records by it."""
    K = len(log_weights)
    best, guess, starts = chunk.best, chunk.guess, chunk.starts
    for r in range(n):
        best[r] = log_weights[0] - 0.5 * chunk.squares[0, r]
        guess[r] = 0
    for k in range(1, K):
        for r in range(n):
            value = log_weights[k] - 0.5 * chunk.squares[k, r]
            more = value > best[r]
            best[r] = value if more else best[r]
            guess[r] = k if more else guess[r]
    starts[:] = 0
    for r in range(n):
        starts[guess[r] + 1] += 1
    for k in range(K):
        starts[k + 1] += starts[k]
    for r in range(n):
        chunk.guessed[starts[guess[r]]] = r
        starts[guess[r]] += 1
    for k in range(K, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0


@device
def _place(whitening, k, X, columns, count, at, chunk):
    """Put the coordinates of `count` rows in frame k into U from row `at`; return the row after them."""
    if count == 0:
        return at
    K, depth, width = whitening.shape
    rows = chunk.rows
    round_up(rows, count)
    for i in range(count):
        for lane in range(LANES):
            chunk.lanes[K, rows[i], lane] = 0.0
    j = 0
    while j < columns:
        groups = _groups_from(j, columns)
        w0, l0 = k * depth * width, K * len(chunk.best) * LANES
        place_products(
            X, rows, count, whitening, w0, width, j, groups, chunk.lanes, l0, chunk.sums, chunk.U, at * width
        )
        j += groups * LANES
    for i in range(count):
        chunk.squares[k, rows[i]] = chunk.sums[i]
        chunk.places[k, rows[i]] = at + i
    return at + LANES * ((count + LANES - 1) // LANES)


@device
def _close(log_weight, whitening, k, X, columns, opened, chunk):
    """Add the other columns of component k in records in which it may count and was not the guess."""
    depth, width = whitening.shape[1:]
    sums, best, squares, rows = chunk.sums, chunk.best, chunk.squares, chunk.rivals[k]
    count = 0
    for r in range(len(X)):
        rows[count] = r
        low = log_weight - 0.5 * squares[k, r] - best[r] <= LEAST
        count += (chunk.guess[r] != k) & (not low)
    while opened < columns and count > 0:
        groups = _groups_from(opened, columns)
        round_up(rows, count)
        w0, l0 = k * depth * width, k * len(chunk.best) * LANES
        add_squares(X, rows, count, whitening, w0, width, opened, groups, chunk.lanes, l0, sums)
        opened += groups * LANES
        kept = 0
        for i in range(count):
            r = rows[i]
            squares[k, r] = sums[i]
            rows[kept] = r
            kept += not log_weight - 0.5 * sums[i] - best[r] <= LEAST
        count = kept
    chunk.n_rivals[k] = count


@device
def _choose(log_weights, whitening, X, columns, at, chunk):
    """List the components that count for each record, and place the coordinates that are not in U yet."""
    best, squares, counts, rows = chunk.best, chunk.squares, chunk.counts, chunk.rows
    for r in range(len(X)):
        best[r] = best[r] if best[r] > -math.inf else -math.inf  # of NaN as well
        counts[r] = 0
    for k in range(len(log_weights)):
        for i in range(chunk.n_rivals[k]):
            r = chunk.rivals[k, i]
            value = log_weights[k] - 0.5 * squares[k, r]
            best[r] = value if value > best[r] else best[r]
    for k in range(len(log_weights)):
        for i in range(chunk.starts[k], chunk.starts[k + 1]):
            r = chunk.guessed[i]
            chunk.components[r, counts[r]] = k
            counts[r] += log_weights[k] - 0.5 * squares[k, r] - best[r] > LEAST
        count = 0
        for i in range(chunk.n_rivals[k]):
            r = chunk.rivals[k, i]
            near = log_weights[k] - 0.5 * squares[k, r] - best[r] > LEAST
            chunk.components[r, counts[r]] = k
            counts[r] += near
            rows[count] = r
            count += near
        at = _place(whitening, k, X, columns, count, at, chunk)
