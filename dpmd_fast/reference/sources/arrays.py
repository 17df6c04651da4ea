"""A NumPy array as a private reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource


class ArraySource(ReferenceSource):
    """A two-dimensional array of numbers."""

    def __init__(self, array: NDArray[Any], columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        if columns is not None:
            raise UserValueError(
                "columns selects by name: must be None for an array, which has no column names"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise UserTypeError(
                "reference is a masked array: must be a plain one, for instance array.filled(numpy.nan)"
            )
        if array.dtype.kind == "c":
            raise UserValueError("reference holds complex numbers: Complex data not supported, must be real")
        if array.dtype.kind not in "fiub":
            raise UserValueError(
                "reference holds values that are not numbers: must be a rectangular array of numbers"
            )
        if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
            raise UserValueError(
                f"reference holds {array.dtype}: must be float64, float32, integer or bool; convert it with "
                "astype"
            )
        if array.ndim != 2:
            raise UserValueError(f"reference has {array.ndim} dimension(s): must have 2 (rows are points)")
        single = array.dtype.kind == "f" and array.dtype.itemsize == 4
        super().__init__(
            array,
            n_columns=array.shape[1],
            column_names=None,
            rows=array.shape[0],
            dtype=np.dtype(np.float32 if single else np.float64),
            batch_rows=batch_rows,
        )
        self._array = np.asarray(array)  # a plain array: slices of a matrix or memmap keep their class

    def blocks(self) -> Iterator[Points]:
        for start in range(0, len(self._array), self.batch_rows):
            yield np.require(self._array[start : start + self.batch_rows], self.dtype, ["C", "ALIGNED"])
