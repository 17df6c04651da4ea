"""The wall: the one module that adds noise to values computed from the reference.

What goes in is private; what comes out may be seen. Everything after it is post-processing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.errors import UserMemoryError
from dpmd_fast.kernels.jit import threads
from dpmd_fast.kernels.noise import normal
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.exact_noise import rounded_normals
from dpmd_fast.privacy.lattice import Lattice

Floats = NDArray[np.float64]
_ROUNDING = 2.0**-40  # noise below this share of the values it hides is not worth the name
_NOISE_LOST = "noise could not be made completely: a thread found no memory"


def standard_normals(source: EntropySource, count: int, n_threads: int | None = None) -> Floats:
    """`count` standard normal variates from `source`; the same for every number of threads."""
    out = np.full(count, np.nan)
    chunks = -(-count // normal.CHUNK)
    stretch = normal.words_for(min(count, normal.CHUNK))
    words = source.words(chunks * stretch).reshape(chunks, stretch)
    progress = normal.fill_chunks(words, out, n_threads)
    for chunk in range(chunks):
        made, used = progress[chunk]
        part = out[chunk * normal.CHUNK : (chunk + 1) * normal.CHUNK]
        left = words[chunk, used:]
        while made < len(part):
            left = np.concatenate([left, source.words(normal.words_for(len(part) - made))])
            more, used = normal.fill(left, part[made:], *normal.ziggurat())
            made += more
            left = left[used:]
    if np.isnan(out).any():
        raise UserMemoryError(_NOISE_LOST)
    return out


def lost_in_rounding(scales: float | Floats, sizes: float | Floats) -> bool:
    """Whether some noise is so small beside the `sizes` of what it hides that rounding would swallow it."""
    return bool(np.any(scales < _ROUNDING * np.asarray(sizes)))


def noisy_projectors(
    projectors: Floats, columns: int, scales: Floats, source: EntropySource, n_threads: int | None = None
) -> Floats:
    """Add W, symmetric with W_jk ~ N(0, scale^2) independently for j <= k, to each matrix, in place.

    Privacy: if one record moves a matrix by at most Delta in Frobenius norm, its entries with j <= k
    move by at most Delta in l2 norm, so this is the Gaussian mechanism with rho = Delta^2 / (2 scale^2).
    """
    per_matrix = columns * (columns + 1) // 2
    noise = standard_normals(source, len(projectors) * per_matrix, n_threads)
    first = projectors[:, 0, 0] + scales * noise[::per_matrix]
    with threads(n_threads):
        normal.add_symmetric(projectors, columns, np.ascontiguousarray(scales, dtype=np.float64), noise)
    # An error of a thread of a parallel kernel can get lost, and its matrices would be without noise.
    if not np.allclose(projectors[:, 0, 0], first, rtol=1e-12, atol=0.0, equal_nan=True):
        raise UserMemoryError(_NOISE_LOST)
    return projectors


def noisy_means(means: Floats, scales: Floats, source: EntropySource, n_threads: int | None = None) -> Floats:
    """Add N(0, scale^2) to every coordinate of each row.

    Privacy: the Gaussian mechanism, rho = Delta^2 / (2 scale^2) for rows that move by at most Delta.
    """
    noise = standard_normals(source, means.size, n_threads).reshape(means.shape)
    return means + scales[:, None] * noise


def noisy_sums(
    sums: NDArray[np.int64], lattice: Lattice, source: EntropySource, n_threads: int | None = None
) -> Floats:
    """Add the normal rounded to integers to symmetric integer matrices (K, F, F); returns them in real units.

    Deviation M on the diagonal, M / sqrt(2) rounded up off it, one draw for each pair j <= k.

    Privacy: for integer A, A + round(xi) = round(A + xi), so this is post-processing of the Gaussian
    mechanism in the Frobenius norm, with the sensitivity that `lattice` states in integers. The normal is
    sampled exactly and nothing is rounded before the noise is in: no low bit tells anything.
    """
    K, F, _ = sums.shape
    j, k = np.triu_indices(F, 1)
    noisy = sums.copy()
    diagonal = rounded_normals(source, K * F, lattice.deviation, n_threads).reshape(K, F)
    noisy[:, np.arange(F), np.arange(F)] += diagonal
    above = rounded_normals(source, K * len(j), lattice.off_diagonal, n_threads).reshape(K, len(j))
    noisy[:, j, k] += above
    noisy[:, k, j] = noisy[:, j, k]
    return lattice.step * noisy
