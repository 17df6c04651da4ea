"""Exact normal noise on the integers, for releases whose guarantee holds without conditions."""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer
from dpmd_fast.errors import UserMemoryError, UserRuntimeError, UserValueError
from dpmd_fast.kernels.noise import exact_normal
from dpmd_fast.privacy.entropy import EntropySource

# Samples made from one stretch of the word stream, and stretches drawn at a time: fixed, so that the samples
# of a seeded source do not depend on the number of threads. Stretch and samples fit in a processor's cache.
CHUNK = 1 << 14
CHUNKS_AT_A_TIME = 32
_UNMADE = np.iinfo(np.int64).min  # beyond what any sample can be


def rounded_normals(
    source: EntropySource, size: SupportsIndex, deviation: SupportsIndex, n_threads: int | None = None
) -> NDArray[np.int64]:
    """Independent samples of round(deviation * xi), xi ~ N(0, 1), to the nearest integer, exactly.

    Parameters
    ----------
    source : EntropySource
        Where the random words come from. Given uniform words the distribution of the samples is exact: there
        is no floating point on the way and no tail is cut off.
    size : int >= 0
    deviation : int
        From 1 to 2^40; fastest up to 2^31.
    n_threads : int, optional
        Does not change the samples.

    Raises
    ------
    RuntimeError
        The words of `source` repeat themselves as random words do not (probability below 2^-200 per release).
    MemoryError
        A thread found no memory. Errors of parallel kernels can get lost, so every sample is looked at.

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
    out = np.full(count, _UNMADE)
    for start in range(0, count, CHUNK * CHUNKS_AT_A_TIME):
        _fill(source, out[start : start + CHUNK * CHUNKS_AT_A_TIME], scale, n_threads)
    if (out == _UNMADE).any():
        raise UserMemoryError("noise could not be made completely: a thread found no memory")
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
            # The words of a sample that was cut off come first again: to drop them would favour short ways.
            left = np.concatenate([left, source.words(exact_normal.words_for(len(part) - made))])
            more, used = exact_normal.fill(left, part[made:], deviation, exact_normal.tables())
            made = made + more if more >= 0 else more
            left = left[used:]
        if made == exact_normal.STUCK:
            raise UserRuntimeError("the words of the entropy source repeat themselves: it is defective")
