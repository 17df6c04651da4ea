"""AnnData in and out: cells through an atlas, and `X` as a private reference.

The anndata package is imported by whoever made the object; here it is not needed.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import Points, check_range, checked_threads
from dpmd_fast.columns import is_of, places_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

_BLOCK_BYTES = 8 * 2**20


def denoise_anndata(
    atlas: Atlas,
    adata: Any,
    *,
    use: str = "X",
    key_added: str = "X_dpmd",
    overwrite: bool = False,
    n_threads: int | None = None,
) -> None:
    """Move the cells of an AnnData with an atlas; the result goes into a new key of ``obsm``.

    Parameters
    ----------
    atlas : Atlas
    adata : AnnData
        Public cells. ``X`` may be sparse or on disk; it is made dense a few cells at a time.
    use : str
        "X", or the key of ``obsm`` to move. Columns are found by name in ``X`` and in a DataFrame, if the
        atlas has names; by position otherwise, and then there must be no others.
    key_added : str
        Where the moved points go: ``obsm[key_added]``, float32 if what was moved is. With "X_dpmd",
        ``uns["dpmd"]`` gets the guarantee and ``obs["dpmd_status"]`` the status of each cell.
    overwrite : bool
        Whether these keys may be there already.
    n_threads : int, optional
    """
    if not is_anndata(adata):
        raise UserValueError(f"adata is a {type(adata).__name__}: must be an AnnData")
    if not isinstance(key_added, str) or not key_added.removeprefix("X_"):
        raise UserValueError(
            f"key_added = {key_added!r}: must be a name such as 'X_dpmd'", argument="key_added"
        )
    n_threads = checked_threads(n_threads)
    name = key_added.removeprefix("X_")
    status_key = f"{name}_status"
    taken = {"obsm": key_added in adata.obsm, "uns": name in adata.uns, "obs": status_key in adata.obs}
    if any(taken.values()) and not overwrite:
        where = " and ".join(part for part, there in taken.items() if there)
        raise UserValueError(
            f"key_added = {key_added!r}: adata has its keys in {where} already; choose another, or pass "
            "overwrite=True",
            argument="key_added",
        )
    matrix, positions = _chosen(atlas, adata, use)
    dtype = np.dtype(np.float32 if matrix.dtype == np.float32 else np.float64)
    moved = np.empty((adata.n_obs, atlas.n_columns), dtype)
    status = np.empty(adata.n_obs, dtype="U7")
    start = 0
    for block in _dense_blocks(matrix, positions, dtype, _rows_at_a_time(matrix)):
        check_range(f"adata.{use}", block)
        part = slice(start, start + len(block))
        moved[part] = atlas.transform(block, n_threads)
        status[part] = atlas.status_  # type: ignore[attr-defined]
        start += len(block)
    pandas: Any = sys.modules["pandas"]  # there whenever an AnnData is
    adata.obsm[key_added] = moved
    adata.obs[status_key] = pandas.Categorical(status)
    adata.uns[name] = _record(atlas, use, key_added)


def is_anndata(value: object) -> bool:
    """Whether a value is an AnnData; imports nothing."""
    return is_of(value, "anndata", "AnnData")


class AnnDataSource(ReferenceSource):
    """``X`` of an AnnData, dense, sparse or on disk; its columns are named by ``var_names``."""

    def __init__(self, adata: Any, columns: tuple[str, ...] | None, batch_rows: int | None) -> None:
        self._matrix = _matrix(adata.X, "reference.X")
        names = [str(name) for name in adata.var_names]
        self._positions = np.array(places_of(columns, names, "reference"), dtype=np.intp)
        super().__init__(
            adata,
            n_columns=len(self._positions),
            column_names=tuple(names[position] for position in self._positions),
            rows=int(adata.n_obs),
            dtype=np.dtype(np.float32 if self._matrix.dtype == np.float32 else np.float64),
            batch_rows=batch_rows,
        )
        self._all = None if columns is None else self._positions

    def blocks(self) -> Iterator[Points]:
        return _dense_blocks(self._matrix, self._all, self.dtype, self.batch_rows)


def held_by(adata: Any) -> list[Any]:
    """The arrays in which an AnnData holds its numbers, as far as they are in memory."""
    found = [adata.X, *(adata.layers[key] for key in adata.layers), *(adata.obsm[key] for key in adata.obsm)]
    return [getattr(part, "data", part) if _is_sparse(part) else part for part in found if part is not None]


def _chosen(atlas: Atlas, adata: Any, use: str) -> tuple[Any, Any]:
    """What to move, and the positions of its columns (None for all, in their order)."""
    names: list[str] | None = None
    if use == "X":
        matrix, names = adata.X, [str(name) for name in adata.var_names]
    elif use in adata.obsm:
        matrix = adata.obsm[use]
        if hasattr(matrix, "columns"):
            matrix, names = matrix.to_numpy(), [str(name) for name in matrix.columns]
    else:
        keys = ", ".join(repr(key) for key in ("X", *adata.obsm))
        raise UserValueError(f"use = {use!r}: must be one of {keys}", argument="use")
    matrix = _matrix(matrix, f"adata.{use}")
    if names is not None and atlas.column_names is not None:
        missing = [repr(name) for name in atlas.column_names if name not in set(names)]
        if missing:
            raise UserValueError(
                f"adata.{use} lacks {len(missing)} column(s) of the atlas: {', '.join(missing[:20])}"
            )
        return matrix, np.array(places_of(atlas.column_names, names, f"adata.{use}"), dtype=np.intp)
    if matrix.shape[1] != atlas.n_columns:
        raise UserValueError(
            f"adata.{use} has {matrix.shape[1]} columns: must have {atlas.n_columns}, as the atlas; columns "
            "can only be matched by position here"
        )
    return matrix, None


def _matrix(matrix: Any, what: str) -> Any:
    if matrix is None:
        raise UserValueError(f"{what} is None: must hold numbers")
    dtype = np.dtype(matrix.dtype)
    if len(matrix.shape) != 2 or dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise UserValueError(
            f"{what} has {len(matrix.shape)} dimension(s) of {dtype}: must be a table of real numbers"
        )
    return matrix


def _dense_blocks(matrix: Any, positions: Any, dtype: np.dtype[Any], rows: int) -> Iterator[Points]:
    for start in range(0, matrix.shape[0], rows):
        block = matrix[start : start + rows]
        block = block.toarray() if _is_sparse(block) else np.asarray(block)
        chosen = block if positions is None else block[:, positions]
        yield np.require(chosen, dtype, ["C", "ALIGNED"])


def _rows_at_a_time(matrix: Any) -> int:
    return max(64, _BLOCK_BYTES // (8 * max(1, matrix.shape[1])))


def _is_sparse(matrix: Any) -> bool:
    return type(matrix).__module__.startswith("scipy.sparse")


def _record(atlas: Atlas, use: str, key_added: str) -> dict[str, Any]:
    """What ``uns`` says: the guarantee and where the numbers came from, in types that .h5ad files hold."""
    from dpmd_fast import __version__

    guarantee = dataclasses.asdict(atlas.guarantee)
    return {
        **guarantee,
        "conditions": np.array(guarantee["conditions"], dtype=object),
        "use": use,
        "key_added": key_added,
        "dim": int(atlas.dim),
        "bandwidth": float(atlas.bandwidth),
        "package_version": __version__,
    }
