"""What became of each query: int8 codes inside the package, words wherever a user sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int8]

#: The words, in the order of their codes; kernels write the first three.
WORDS = ("ok", "no_neighbor", "failed", "outside", "clipped", "filled", "missing")
OK, NO_NEIGHBOR, FAILED, OUTSIDE, CLIPPED, FILLED, MISSING = range(len(WORDS))
_WORDS = np.array(WORDS)


def words_of(codes: NDArray[np.integer[Any]]) -> NDArray[np.str_]:
    """Return the word of each code."""
    return np.take(_WORDS, codes)


def codes_of(words: NDArray[np.str_]) -> Codes:
    """Return the code of each word; all must be among `WORDS`."""
    codes = np.zeros(len(words), np.int8)
    for code, word in enumerate(WORDS):
        codes[words == word] = code
    return codes
