"""Dask arrays and dataframes as private references.

One task per partition, on one thread each: a worker runs as many at a time as it has threads. Results of
tasks are merged eight at a time, so no process holds the sums of more than a few partitions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dpmd_fast.columns import check_real_dask, is_dask_array, pandas_number_type, places_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.arrays import ArraySource
from dpmd_fast.reference.sources.engine import EngineSource, Failure, guarded, merged
from dpmd_fast.reference.sources.pandas import PandasSource
from dpmd_fast.reference.tasks import PartialSums, Task

_AT_ONCE = 8  # partial sums merged by one task


class DaskSource(EngineSource):
    """A Dask array (rows, D), or a dataframe."""

    def __init__(self, reference: Any, columns: tuple[str, ...] | None) -> None:
        if is_dask_array(reference):
            if columns is not None:
                raise UserValueError(
                    "columns selects by name, and an array has no names: must be None for an array"
                )
            check_real_dask("reference", reference)
            if reference.dtype.kind == "O" or reference.dtype.str[1:] in ("f2", "f12", "f16"):
                raise UserValueError(
                    f"reference holds {reference.dtype}: must be float64, float32, integer or bool; convert "
                    "it with astype"
                )
            if reference.ndim != 2:
                raise UserValueError(
                    f"reference has {reference.ndim} dimension(s): must have 2 (rows are points)"
                )
            if np.isnan(reference.shape[1]):
                raise UserValueError("reference does not tell its number of columns: it must, as shape[1]")
            count = reference.shape[0]
            super().__init__(
                reference,
                self._sums,
                n_columns=int(reference.shape[1]),
                column_names=None,
                rows=None if np.isnan(count) else int(count),
            )
            whole = reference.rechunk({1: -1})
            self._parts = list(whole.to_delayed().ravel())
            self._open: Callable[[Any], Iterator[Any]] = _array_blocks
            return
        names = [str(name) for name in reference.columns]
        places = places_of(columns, names, "reference")
        others = [
            names[place] for place in places if pandas_number_type(reference.dtypes.iloc[place]) is None
        ]
        if others:
            raise UserValueError(
                f"reference has {len(others)} column(s) that are not numeric, {others[0]!r} among them: name "
                "those to use with columns="
            )
        chosen = tuple(names[place] for place in places)
        super().__init__(reference, self._sums, n_columns=len(chosen), column_names=chosen, rows=None)
        self._parts = list(reference[[reference.columns[place] for place in places]].to_delayed())
        self._open = _frame_blocks

    def _sums(self, task: Task) -> list[Any]:
        dask: Any = importlib.import_module("dask")  # without types
        sent = dask.delayed(task, pure=False)
        on_part, merge = dask.delayed(_on_part, pure=False), dask.delayed(_merge, pure=False)
        parts = [on_part(sent, self._open, part, number) for number, part in enumerate(self._parts)]
        while len(parts) > 1:
            parts = [merge(sent, parts[at : at + _AT_ONCE]) for at in range(0, len(parts), _AT_ONCE)]
        return list(dask.compute(*parts))


def _on_part(
    task: Task, blocks: Callable[[Any], Iterator[Any]], part: Any, number: int | None = None
) -> PartialSums | Failure:
    return guarded(lambda: task.on(blocks(part), 1, number))


def _merge(task: Task, parts: Sequence[PartialSums | Failure]) -> PartialSums | Failure:
    return merged(task, parts)


def _array_blocks(part: Any) -> Iterator[Any]:
    return ArraySource(part if isinstance(part, np.ma.MaskedArray) else np.asarray(part), None, None).blocks()


def _frame_blocks(part: Any) -> Iterator[Any]:
    return PandasSource(part, None, None).blocks()
