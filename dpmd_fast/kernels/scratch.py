"""Memory for kernels: arguments, arrays that begin with a cache line, scratch of which a part is used.

A vector of AVX-512 is as long as a line: in an array that begins elsewhere, each load of one takes two lines.

NumPy asks the system for pages of two megabytes, which are cleared as a whole when one number is written: an
array that is touched here and there costs all of its memory. In small pages it costs what is used.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

LINE = 64  # bytes in a cache line


def as_argument(values: Any) -> np.ndarray:
    """Return float64 as kernels take them; an array that is so already is not copied.

    For a read-only array, such as a mapped file, Numba would compile a kernel once more.
    """
    if type(values) is np.ndarray and values.dtype == np.float64 and values.flags.carray:
        return values  # `require` takes longer than one row through an atlas may
    return np.require(values, np.float64, ["C", "ALIGNED", "WRITEABLE"])


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """Return zeros of which the first is at the start of a cache line."""
    count, size = int(np.prod(shape, dtype=np.int64)), np.dtype(dtype).itemsize
    room = np.zeros(count + LINE // size, dtype)
    first = -room.ctypes.data % LINE // size
    return room[first : first + count].reshape(shape)


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that no vector lies across two of them."""
    out = aligned_zeros(values.shape)
    out[...] = values
    return out


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
