"""Dask arrays and dataframes as references, and through an atlas.

One task per partition, on one thread each: a worker runs as many at a time as it has threads. Results of
tasks are merged eight at a time, so no process holds the sums of more than a few partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import check_range
from dpmd_fast.columns import is_of, pandas_number_type, places_of
from dpmd_fast.errors import UserTypeError, UserValueError
from dpmd_fast.reference.sources.arrays import ArraySource
from dpmd_fast.reference.sources.engine import EngineSource, Failure, guarded, merged, without_receipt
from dpmd_fast.reference.sources.pandas import PandasSource
from dpmd_fast.reference.tasks import PartialSums, Task

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

_AT_ONCE = 8  # partial sums merged by one task


def is_dask_array(value: object) -> bool:
    return is_of(value, "dask.array", "Array")


def is_dask_frame(value: object) -> bool:
    return is_of(value, "dask.dataframe", "DataFrame")


class DaskSource(EngineSource):
    """A Dask array (rows, D), or a dataframe."""

    def __init__(self, reference: Any, columns: tuple[str, ...] | None) -> None:
        if is_dask_array(reference):
            if columns is not None:
                raise UserValueError(
                    "columns selects by name, and an array has no names: must be None for an array"
                )
            _check_real("reference", reference)
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
        import dask

        sent = dask.delayed(task, pure=False)
        on_part, merge = dask.delayed(_on_part, pure=False), dask.delayed(_merge, pure=False)
        parts = [on_part(sent, self._open, part) for part in self._parts]
        while len(parts) > 1:
            parts = [merge(sent, parts[at : at + _AT_ONCE]) for at in range(0, len(parts), _AT_ONCE)]
        return list(dask.compute(*parts))


def _check_real(name: str, array: Any) -> None:
    if isinstance(array._meta, np.ma.MaskedArray):
        raise UserTypeError(
            f"{name} is a masked array: must be a plain one, as dask.array.ma.filled(array, numpy.nan)"
        )
    if array.dtype.kind not in "biufO":
        raise UserValueError(f"{name} has dtype {array.dtype}: must be real numbers")


def _on_part(task: Task, blocks: Callable[[Any], Iterator[Any]], part: Any) -> PartialSums | Failure:
    return guarded(lambda: task.on(blocks(part), n_threads=1))


def _merge(task: Task, parts: Sequence[PartialSums | Failure]) -> PartialSums | Failure:
    return merged(task, parts)


def _array_blocks(part: Any) -> Iterator[Any]:
    return ArraySource(part if isinstance(part, np.ma.MaskedArray) else np.asarray(part), None, None).blocks()


def _frame_blocks(part: Any) -> Iterator[Any]:
    return PandasSource(part, None, None).blocks()


def transform_dask(atlas: Atlas, Z: Any) -> Any:
    """A Dask array or dataframe moved, lazily; of an array also the status, as a Dask array ``status_``."""
    alone = without_receipt(atlas)
    if is_dask_frame(Z):
        object.__setattr__(atlas, "status_", None)
        meta = alone.transform(Z._meta)
        return Z.map_partitions(_move_frame, alone, meta=meta, enforce_metadata=False)
    import dask
    import dask.array as da

    _check_real("Z", Z)
    if Z.ndim != 2 or Z.shape[1] != atlas.n_columns:
        raise UserValueError(f"Z has shape {Z.shape}: must have {atlas.n_columns} columns")
    whole = Z.rechunk({1: -1})
    dtype = np.dtype(np.float32 if Z.dtype == np.float32 else np.float64)
    sent = dask.delayed(alone, pure=False)
    pairs = [dask.delayed(_move, pure=False, nout=2)(sent, block) for block in whole.to_delayed().ravel()]
    rows = whole.chunks[0]
    moved = [
        da.from_delayed(pair[0], (count, Z.shape[1]), dtype) for pair, count in zip(pairs, rows, strict=True)
    ]
    status = [da.from_delayed(pair[1], (count,), "U7") for pair, count in zip(pairs, rows, strict=True)]
    object.__setattr__(atlas, "status_", da.concatenate(status))
    return da.concatenate(moved)


def _move_frame(frame: Any, atlas: Atlas) -> Any:
    return atlas.transform(frame, 1)


def _move(atlas: Atlas, block: Any) -> tuple[Any, Any]:
    if isinstance(block, np.ma.MaskedArray):
        raise UserTypeError("Z is a masked array: must be a plain one")
    points = np.asarray(block)
    if points.dtype not in (np.float32, np.float64):
        points = points.astype(np.float64)
    check_range("Z", points)
    return atlas.move(points, 1)
