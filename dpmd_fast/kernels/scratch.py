"""Scratch memory of which only a part is used.

NumPy asks the system for pages of two megabytes, which are cleared as a whole when one number is written: an
array that is touched here and there costs all of its memory. In small pages it costs what is used.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def sparse_memory(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """Return zeros in small pages that belong to this process alone, also after a fork."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    own = {}
    if hasattr(mmap, "MAP_PRIVATE"):  # without it, a child would share the memory with its parent
        own["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        pages = mmap.mmap(-1, size, **own)
    except OSError as error:
        raise MemoryError(f"no memory for {size / 2**20:.0f} MB of scratch") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
