"""Records that a public function maps one by one, such as a preprocessor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.preprocessor import Floats, Preprocessor
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.open import open_reference
from dpmd_fast.reference.tasks import PartialSums, Task, with_view


class MappedSource(ReferenceSource):
    """A private source whose records are mapped one by one, without warnings about their values."""

    def __init__(self, source: ReferenceSource, mapping: Callable[[Floats], Floats]) -> None:
        super().__init__(
            source.reference,
            n_columns=source.n_columns,
            column_names=source.column_names,
            rows=source.rows,
            dtype=np.dtype(np.float64),
            batch_rows=source.batch_rows,
            rereadable=source.rereadable,
        )
        self.local = source.local
        self._source, self._mapping = source, mapping

    def blocks(self) -> Iterator[Points]:
        for block in self._source.blocks():
            yield mapped_block(self._mapping, block)

    def run(self, task: Task, n_threads: int | None = None) -> PartialSums:
        return self._source.run(with_view(task, partial(mapped_block, self._mapping)), n_threads)


def mapped_block(
    mapping: Callable[[Floats], Floats], block: NDArray[np.floating[Any]], n_threads: int | None = None
) -> Floats:
    """Return the mapped block, without warnings: they would reveal something about its values."""
    with np.errstate(all="ignore"):
        return mapping(np.asarray(block, dtype=np.float64))


def preprocessed_source(
    preprocess: Preprocessor, source: ReferenceSource, *, keep_missing: bool = False
) -> ReferenceSource:
    """Return the records of `source` in preprocessed units.

    Values that are not valid become NaN; with `keep_missing` infinite, so that NaN is what was missing.

    Each record is mapped by itself, with public numbers, so neighbouring data sets stay neighbours, and the
    guarantee of a release of the mapped records holds for the records.
    """
    if source.n_columns != preprocess.n_columns:
        hint = "" if source.column_names is None else "; choose them with columns=[...]"
        raise UserValueError(
            f"reference has {source.n_columns} column(s): must have {preprocess.n_columns}, like the "
            f"preprocessor{hint}"
        )
    preprocess.check_names("reference", source.column_names)
    return MappedSource(source, preprocess.mapping(keep_missing=keep_missing))


def preprocessed_records(
    preprocess: Preprocessor, reference: Any, *, columns: list[str] | None = None
) -> Floats:
    """Return private records in preprocessed units, as one array, which is as private as the records.

    A value that is not finite or beyond 1e100, or not positive in a logged column, becomes NaN without a
    message: releases refuse such records or, with ``on_invalid="drop"``, leave them out.

    Parameters
    ----------
    preprocess : Preprocessor
    reference : array, table, path or paths
        The private records, in original units.
    columns : list of str, optional
        Columns to use, if the reference is a table.
    """
    blocks = list(preprocessed_source(preprocess, open_reference(reference, columns=columns)).blocks())
    return np.concatenate(blocks) if blocks else np.empty((0, preprocess.n_columns))
