"""Standard normal variates from a stream of 64-bit words.

The ziggurat of Marsaglia and Tsang (2000) with 256 layers; the layer and the abscissa come from
different bits of a word (Doornik 2005). Floating point: the low bits of a sum x + noise depend on x,
so nothing unconditional may rest on this sampler.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from dpmd_fast.kernels.jit import device, kernel, threads
from dpmd_fast.kernels.parallel import parallel_for
from dpmd_fast.kernels.vector.lanes import LANES, center_block

_LAYERS = 256
CHUNK = 1 << 15  # variates made from one stretch of the word stream, whatever the number of threads


@functools.cache
def ziggurat() -> tuple[np.ndarray, np.ndarray]:
    """Return the layer edges x_0 > ... > x_256 = 0 and the density exp(-x^2 / 2) at each."""
    from scipy.optimize import brentq
    from scipy.special import erfc

    def layers(r: float) -> np.ndarray:
        area = r * math.exp(-0.5 * r * r) + math.sqrt(math.pi / 2.0) * float(erfc(r / math.sqrt(2.0)))
        edges = np.zeros(_LAYERS + 1)
        edges[0] = area * math.exp(0.5 * r * r)
        edges[1] = r
        for i in range(1, _LAYERS):
            density = area / edges[i] + math.exp(-0.5 * edges[i] ** 2)
            if density >= 1.0:  # r too small: the pile is full before the last layer
                edges[-1] = 1.0 + _LAYERS - i if i < _LAYERS - 1 else density - 1.0
                return edges
            edges[i + 1] = math.sqrt(-2.0 * math.log(density))
        edges[-1] = -edges[-1]
        return edges

    r = brentq(lambda r: layers(r)[-1], 3.0, 4.5, xtol=1e-15, rtol=1e-15)
    edges = layers(r)
    edges[-1] = 0.0
    return edges, np.exp(-0.5 * edges**2)


def words_for(count: int) -> int:
    """Return a number of words that almost always suffices for `count` variates."""
    return count + count // 32 + 64


def fill_chunks(words: np.ndarray, out: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Fill each chunk of `out` from a row of `words`; return variates made and words used per chunk."""
    edges, density = ziggurat()
    progress = np.zeros((len(words), 2), np.int64)
    with threads(n_threads):
        _fill_chunks(words, out, edges, density, progress)
    return progress


@device
def _uniform(word):
    """Return a uniform in (0, 1): 52 bits, offset by half a step so that neither end occurs."""
    return (np.float64(word >> np.uint64(12)) + 0.5) * (1.0 / 4503599627370496.0)


@kernel
def fill(words, out, edges, density):
    """Fill `out` until the words run out; return (variates made, words they used).

    A variate that runs out of words in the middle is not made and its words do not count as used:
    the caller offers them again with more behind them. Dropping them would favour variates of few words.
    """
    made = 0
    at = 0
    n_words = len(words)
    while made < len(out):
        start = at
        value = 0.0
        while True:
            if at + 1 > n_words:
                return made, start
            word = words[at]
            at += 1
            layer = np.int64(word & np.uint64(255))
            # the layer came from the low bits of the word, this from the high ones: -1 < u < 1
            u = 2.0 * _uniform(word) - 1.0
            value = u * edges[layer]
            if abs(value) < edges[layer + 1]:
                break
            if layer == 0:
                r = edges[1]
                done = False
                while not done:
                    if at + 2 > n_words:
                        return made, start
                    x = -math.log(_uniform(words[at])) / r
                    y = -math.log(_uniform(words[at + 1]))
                    at += 2
                    if y + y > x * x:
                        value = r + x if u > 0.0 else -(r + x)
                        done = True
                break
            if at + 1 > n_words:
                return made, start
            height = density[layer] + _uniform(words[at]) * (density[layer + 1] - density[layer])
            at += 1
            if height < math.exp(-0.5 * value * value):
                break
        out[made] = value
        made += 1
    return made, at


@device(memory=True)
def _fill_chunk(c, words, out, edges, density, progress):
    made, used = fill(words[c], out[c * CHUNK : min((c + 1) * CHUNK, len(out))], edges, density)
    progress[c, 0] = made
    progress[c, 1] = used


@kernel
def _fill_chunks(words, out, edges, density, progress):
    parallel_for(_fill_chunk, len(words), 1, (words, out, edges, density, progress))


@device(memory=True)
def mirror_upper(matrix):
    """Copy the upper triangle of a padded matrix to the lower one, block by block."""
    padded = len(matrix)
    zero = np.zeros(padded)
    for i in range(0, padded, LANES):
        for j in range(LANES):
            for k in range(j):
                matrix[i + j, i + k] = matrix[i + k, i + j]
        for j in range(i + LANES, padded, LANES):
            center_block(matrix, i * padded + j, padded, zero, i, j, 0.0, 1.0, matrix, padded)


@device(memory=True)
def _add_to_matrix(q, matrices, columns, scales, noise):
    at = q * (columns * (columns + 1) // 2)
    for j in range(columns):
        for k in range(j, columns):
            matrices[q, j, k] += scales[q] * noise[at + k - j]
        at += columns - j
    mirror_upper(matrices[q])


@kernel
def add_symmetric(matrices, columns, scales, noise):
    """Add scale_q N(0, 1) to the entries j <= k of each matrix and the same to (k, j). `noise` is flat."""
    parallel_for(_add_to_matrix, len(matrices), 1, (matrices, columns, scales, noise))
