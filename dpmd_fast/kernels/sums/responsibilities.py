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
from dpmd_fast.kernels.sums.clip import first_factor
from dpmd_fast.kernels.sums.screen import list_likely
from dpmd_fast.kernels.vector.elementary import fixed_exp
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.rows import place_rows, round_up
from dpmd_fast.kernels.vector.singles import TOGETHER, take_columns

# Records looked at together. A round took 3 % less time with 256 than with 128; room in memory grows with it.
CHUNK = 240  # a multiple of `TOGETHER` on every processor
LEAST = -9.0  # log of a responsibility, relative to the largest, below which it counts as zero


class Chunk(NamedTuple):
    """Room for what is known of some records.

    A place stands for a record and a component that may count for it. Places follow each other by component,
    in the order of the records, and each component takes a multiple of four: what is left has no record, and
    the number `room` for its owner.
    """

    Z: np.ndarray  # (D, room) records from the origin of the screen, float32
    norms: np.ndarray  # (room,) their squared lengths
    bounds: np.ndarray  # (K, room) |u_k|^2 in single precision
    rows: np.ndarray  # (K, room) records in which component k may count,
    n_rows: np.ndarray  # (K,) and their number
    first: np.ndarray  # (K + 1,) place of the first of them
    best: np.ndarray  # (room + 1,) largest log e_k
    sums: np.ndarray  # (room + 1,) over the places of a record
    factors: np.ndarray  # (room + 1,) that the clip tries first
    owners: np.ndarray  # (places,) record
    squares: np.ndarray  # (places,) |u_k|^2
    sizes: np.ndarray  # (places,) log e_k, then e_k over the best
    roots: np.ndarray  # (places,) square roots of the responsibilities
    scales: np.ndarray  # (places,) what coordinates are multiplied with
    U: np.ndarray  # (places, width) coordinates in the frame, and sqrt(c)
    lanes: np.ndarray  # (16,)


@device(memory=True)
def make_chunk(K, D, width, records):
    """Return room for `records`, at most `CHUNK`."""
    ints = np.int64
    room = TOGETHER * ((records + TOGETHER - 1) // TOGETHER)
    places = K * (room + LANES)
    return Chunk(
        Z=np.zeros((D, room), np.float32),
        norms=np.zeros(room),
        bounds=np.zeros((K, room), np.float32),
        rows=np.zeros((K, room + 1), ints),
        n_rows=np.zeros(K, ints),
        first=np.zeros(K + 1, ints),
        best=np.zeros(room + 1),
        sums=np.zeros(room + 1),
        factors=np.zeros(room + 1),
        owners=np.empty(places, ints),
        squares=np.empty(places),
        sizes=np.empty(places),
        roots=np.empty(places),
        scales=np.empty(places),
        U=np.zeros((places, width)),
        lanes=np.zeros(4 * LANES),
    )


@device
def find_components(screen, log_weights, whitening, c, X, chunk):
    """Set the places of the records X: coordinates, log e_k and the largest of them for each record."""
    take_columns(X, screen.origin, chunk.Z, chunk.norms)
    list_likely(
        screen,
        log_weights,
        LEAST,
        len(X),
        chunk.Z,
        chunk.norms,
        chunk.bounds,
        chunk.best,
        chunk.rows,
        chunk.n_rows,
    )
    K, depth, width = whitening.shape
    D, lead = depth - 1, math.sqrt(c)
    columns = LANES * ((D + LANES - 1) // LANES)
    best, U, nobody = chunk.best, chunk.U, len(chunk.best) - 1
    best[:] = -math.inf
    best[nobody] = 0.0
    at = 0
    for k in range(K):
        rows, count = chunk.rows[k], chunk.n_rows[k]
        chunk.first[k] = at
        if count == 0:
            continue
        round_up(rows, count)
        squares, sizes, owners = chunk.squares[at:], chunk.sizes[at:], chunk.owners[at:]
        w0, u0 = k * depth * width, at * width
        place_rows(X, rows, count, whitening, w0, width, columns, U, u0, chunk.lanes, squares)
        for i in range(count):
            r = rows[i]
            value = log_weights[k] - 0.5 * squares[i]
            best[r] = value if value > best[r] else best[r]
            sizes[i] = value
            owners[i] = r
            U[at + i, D] = lead
        while count % LANES:
            sizes[count], owners[count] = -math.inf, nobody
            count += 1
        at += count
    chunk.first[K] = at


@device
def weigh(c, clipping, chunk):
    """Set the square roots of the responsibilities in all places, and the factors that the clip tries first.

    One step after the other for all of them, so that none waits for the roots and divisions of another.
    """
    places = chunk.first[len(chunk.first) - 1]
    best, sums, factors, owners = chunk.best, chunk.sums, chunk.factors, chunk.owners
    squares, sizes, roots = chunk.squares, chunk.sizes, chunk.roots
    for p in range(places):
        sizes[p] -= best[owners[p]]
    for p in range(places):
        sizes[p] = fixed_exp(sizes[p] if sizes[p] > LEAST else -math.inf)
    sums[:] = 0.0
    for p in range(places):
        sums[owners[p]] += sizes[p]
    for p in range(places):
        roots[p] = sums[owners[p]]
    for p in range(places):
        counts = sizes[p] > 0.0  # where it does not, there may be no sum, and coordinates may be infinite
        share = sizes[p] / (roots[p] if counts else 1.0)
        norm = share * ((squares[p] if counts else 0.0) + c)
        roots[p] = math.sqrt(share)
        sizes[p] = norm * norm
    sums[:] = 0.0
    for p in range(places):
        sums[owners[p]] += sizes[p]
    for r in range(len(sums)):
        factors[r] = first_factor(math.sqrt(sums[r]), 1.0, clipping)
