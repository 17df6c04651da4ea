"""``X`` of an AnnData as a private reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpmd_fast.arguments import Points
from dpmd_fast.columns import checked_matrix, dense_blocks, is_sparse, places_of
from dpmd_fast.reference.sources.base import ReferenceSource


class AnnDataSource(ReferenceSource):
    """``X`` of an AnnData, dense, sparse or on disk; its columns are named by ``var_names``."""

    def __init__(self, adata: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        self._matrix = checked_matrix("reference.X", adata.X)
        names = [str(name) for name in adata.var_names]
        positions = np.array(places_of(columns, names, "reference"), dtype=np.intp)
        super().__init__(
            adata,
            n_columns=len(positions),
            column_names=tuple(names[position] for position in positions),
            rows=int(adata.n_obs),
            dtype=np.dtype(np.float32 if self._matrix.dtype == np.float32 else np.float64),
            batch_rows=batch_rows,
        )
        self._positions = None if columns is None else positions

    def blocks(self) -> Iterator[Points]:
        return dense_blocks(self._matrix, self._positions, self.dtype, self.batch_rows)


def held_by(adata: Any) -> list[Any]:
    """Return the arrays in memory in which an AnnData holds its numbers."""
    found = [adata.X, *(adata.layers[key] for key in adata.layers), *(adata.obsm[key] for key in adata.obsm)]
    return [getattr(part, "data", part) if is_sparse(part) else part for part in found if part is not None]
