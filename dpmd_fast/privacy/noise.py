"""The wall: the one module that adds noise to values computed from the reference.

Input is private, output is public. Everything computed from the output is post-processing.
"""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer
from dpmd_fast.errors import UserMemoryError, UserRuntimeError, UserValueError
from dpmd_fast.kernels.jit import threads
from dpmd_fast.kernels.noise import exact_normal, normal
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.lattice import Lattice

Floats = NDArray[np.float64]
_ROUNDING = 2.0**-40  # noise below this share of the values it hides may be lost in their rounding
_NOISE_LOST = "noise is incomplete: a thread found no memory"
# Samples made from one stretch of the word stream, and stretches drawn at a time: fixed, so that the samples
# of a seeded source do not depend on the number of threads. Stretch and samples fit in a processor's cache.
CHUNK = 1 << 14
CHUNKS_AT_A_TIME = 32
_NOT_DRAWN = np.iinfo(np.int64).min  # no sample can have this value


def standard_normals(source: EntropySource, count: int, n_threads: int | None = None) -> Floats:
    """Return `count` standard normal variates from `source`; the same for every number of threads."""
    source.renew()
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
    """Return True if some noise is so small relative to the `sizes` of the values that rounding hides it."""
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
    # An error in a thread of a parallel kernel can get lost, which would leave its matrices without noise.
    if not np.allclose(projectors[:, 0, 0], first, rtol=1e-12, atol=0.0, equal_nan=True):
        raise UserMemoryError(_NOISE_LOST)
    return projectors


def noisy_means(means: Floats, scales: Floats, source: EntropySource, n_threads: int | None = None) -> Floats:
    """Add N(0, scale^2) to every coordinate of each row.

    Privacy: the Gaussian mechanism, rho = Delta^2 / (2 scale^2) for rows that move by at most Delta.
    """
    noise = standard_normals(source, means.size, n_threads).reshape(means.shape)
    return means + scales[:, None] * noise


def rounded_normals(
    source: EntropySource, size: SupportsIndex, deviation: SupportsIndex, n_threads: int | None = None
) -> NDArray[np.int64]:
    """Draw independent samples of round(deviation * xi), xi ~ N(0, 1), to the nearest integer, exactly.

    Parameters
    ----------
    source : EntropySource
        Source of the random words. If they are uniform, the distribution of the samples is exact: no floating
        point is involved and no tail is cut off.
    size : int >= 0
    deviation : int
        From 1 to 2^40; fastest up to 2^31.
    n_threads : int, optional
        Does not change the samples.

    Raises
    ------
    RuntimeError
        If the words of `source` repeat as random words do not (probability below 2^-200 per release).
    MemoryError
        If a thread ran out of memory. Errors of parallel kernels can get lost, so every sample is checked.

    Notes
    -----
    For an integer A, A + round(xi) = round(A + xi). So an integer statistic plus this noise is
    post-processing of the statistic plus real-valued normal noise, and has the guarantee of that Gaussian
    mechanism, mu = Delta / deviation.
    """
    count = checked_integer("size", size)
    scale = checked_integer("deviation", deviation, minimum=1)
    if scale > exact_normal.LARGEST_DEVIATION:
        raise UserValueError(
            f"deviation = {deviation!r}: must be at most {exact_normal.LARGEST_DEVIATION}",
            argument="deviation",
        )
    source.renew()
    out = np.full(count, _NOT_DRAWN)
    for start in range(0, count, CHUNK * CHUNKS_AT_A_TIME):
        _fill(source, out[start : start + CHUNK * CHUNKS_AT_A_TIME], scale, n_threads)
    if (out == _NOT_DRAWN).any():
        raise UserMemoryError(_NOISE_LOST)
    return out


def _fill(source: EntropySource, out: NDArray[np.int64], deviation: int, n_threads: int | None) -> None:
    chunks = -(-len(out) // CHUNK)
    stretch = exact_normal.words_for(min(len(out), CHUNK))
    words = source.words(chunks * stretch).reshape(chunks, stretch)
    progress = exact_normal.fill_rows(words, out, CHUNK, deviation, n_threads)
    for chunk in range(chunks):
        made, used = progress[chunk]
        part = out[chunk * CHUNK : (chunk + 1) * CHUNK]
        left = words[chunk, used:]
        while exact_normal.STUCK < made < len(part):
            # The words of an unfinished sample come first again: dropping them would bias the samples
            # towards those that need few words.
            left = np.concatenate([left, source.words(exact_normal.words_for(len(part) - made))])
            more, used = exact_normal.fill(left, part[made:], deviation, exact_normal.tables())
            made = made + more if more >= 0 else more
            left = left[used:]
        if made == exact_normal.STUCK:
            raise UserRuntimeError("the words of the entropy source repeat themselves: it is defective")


def noisy_sums(
    sums: NDArray[np.int64], lattice: Lattice, source: EntropySource, n_threads: int | None = None
) -> Floats:
    """Add integer-rounded normal noise to symmetric integer matrices (K, F, F); return them in real units.

    The deviation is M on the diagonal and M / sqrt(2), rounded up, off it; one draw for each pair j <= k.

    Privacy: for integer A, A + round(xi) = round(A + xi), so this is post-processing of the Gaussian
    mechanism in the Frobenius norm, with the sensitivity that `lattice` states in integers. The normal is
    sampled exactly and nothing is rounded before the noise is added: low bits reveal nothing.
    """
    K, F, _ = sums.shape
    j, k = np.triu_indices(F, 1)
    noisy = sums.copy()
    diagonal = rounded_normals(source, K * F, lattice.deviation, n_threads).reshape(K, F)
    noisy[:, np.arange(F), np.arange(F)] += diagonal
    above = rounded_normals(source, K * len(j), lattice.off_diagonal, n_threads).reshape(K, len(j))
    noisy[:, j, k] += above
    noisy[:, k, j] = noisy[:, j, k]
    released: Floats = lattice.step * noisy
    return released
