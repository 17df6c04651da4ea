"""A private reference in one .npy file, read block by block.

Not memory-mapped: if the disk failed or the file shrank, a mapped file would kill the process without a
message, perhaps after a debit. Reading raises an ordinary error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.arrays import ArraySource
from dpmd_fast.reference.sources.base import ReferenceSource

#: Takes columns and rows per block, and opens a file whose header has been read; refuses unknown columns.
Opener = Callable[["tuple[str, ...] | None", "int | None"], ReferenceSource]


def cannot_read(path: str) -> str:
    """Return the message about a file that cannot be read to the end."""
    return f"{path} could not be read: it is damaged, was changed meanwhile, or memory ran out"


def look_at_npy(path: str) -> Opener:
    """Read the header of a .npy file."""
    return partial(ArrayFileSource, path, np.load(path, mmap_mode="r", allow_pickle=False))


class ArrayFileSource(ArraySource):
    """A two-dimensional array in a .npy file."""

    def __init__(
        self, path: str, mapped: Any, columns: tuple[str, ...] | None, batch_rows: int | None
    ) -> None:
        super().__init__(mapped, columns, batch_rows)
        self.reference = self._path = path
        self._array = np.empty((0, 0))
        self._stored, self._offset = mapped.dtype, mapped.offset
        self._shape, self._by_rows = mapped.shape, mapped.flags.c_contiguous
        with open(path, "rb") as file:
            self._head = file.read(self._offset)

    def blocks(self) -> Iterator[Points]:
        rows = self._shape[0]
        with open(self._path, "rb") as file:
            if file.read(self._offset) != self._head:  # its shape or type may have changed
                raise UserValueError(f"{self._path} has changed since it was opened: it cannot be read again")
            for start in range(0, rows, self.batch_rows):
                block = self._block(file, start, min(self.batch_rows, rows - start))
                if block is None:  # raised here, without the first error, which may quote what it was reading
                    raise UserValueError(cannot_read(self._path))
                yield np.require(block, self.dtype, ["C", "ALIGNED"])

    def _block(self, file: BinaryIO, start: int, count: int) -> NDArray[Any] | None:
        rows, width = self._shape
        try:
            if self._by_rows:
                return self._numbers(file, start * width, count * width).reshape(count, width)
            columns = [self._numbers(file, column * rows + start, count) for column in range(width)]
            return np.stack(columns, axis=1)
        except (OSError, ValueError, MemoryError):
            return None

    def _numbers(self, file: BinaryIO, first: int, count: int) -> NDArray[Any]:
        file.seek(self._offset + first * self._stored.itemsize)
        numbers = np.fromfile(file, self._stored, count)
        if len(numbers) < count:
            raise UserValueError("the file ends too early")
        return numbers
