"""A private reference in one .npy file, read block by block.

Read, not mapped into memory: where the disk fails or the file shrinks, a mapped file would end the process
without a word, perhaps after a debit. Here it is an error like any other.
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

#: Opens a file that has been looked at, with the columns and the rows of a block; refuses unknown columns.
Opener = Callable[["tuple[str, ...] | None", "int | None"], ReferenceSource]


def unreadable(path: str) -> str:
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
            if file.read(self._offset) != self._head:  # it would be read as if it still had the same shape
                raise UserValueError(f"{self._path} has changed since it was opened: it cannot be read again")
            for start in range(0, rows, self.batch_rows):
                block = self._block(file, start, min(self.batch_rows, rows - start))
                if block is None:  # raised here: the first error may quote what it was reading
                    raise UserValueError(unreadable(self._path))
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
