"""The cells of an AnnData, cleaned with a model.

The anndata package is imported by whoever made the object; here it is not needed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from dpmd_fast.arguments import checked_threads
from dpmd_fast.columns import checked_matrix, dense_blocks, is_anndata
from dpmd_fast.errors import UserValueError
from dpmd_fast.status import words_of
from dpmd_fast.tables.frames import cleaned_places
from dpmd_fast.tables.protocol import Model, RowCleaner, check_rows, cleaner_of

_BLOCK_BYTES = 8 * 2**20


def denoise_anndata(
    model: Model,
    adata: Any,
    *,
    use: str = "X",
    key_added: str = "X_dpmd",
    noise: Any = None,
    on_missing: str | None = None,
    overwrite: bool = False,
    n_threads: int | None = None,
) -> None:
    """Clean the cells of an AnnData with a model, and store the result in a new key of ``obsm``.

    Parameters
    ----------
    model : Atlas or Mixture
    adata : AnnData
        Public cells. ``X`` may be sparse or on disk; a few cells at a time are made dense.
    use : str
        "X", or the key of ``obsm`` to clean. Columns are found by name in ``X`` and in a DataFrame, if the
        model has names; by position otherwise, and then there must be no others.
    key_added : str
        Where the cleaned points go: ``obsm[key_added]``, float32 if what was cleaned is. With "X_dpmd",
        ``uns["dpmd"]`` gets the guarantee and ``obs["dpmd_status"]`` the status of each cell.
    noise
        For a mixture, which needs it: see `Mixture.transform`.
    on_missing : str, optional
        What becomes of missing values, which are NaN: see the model's `transform`.
    overwrite : bool
        Whether to replace these keys if they exist.
    n_threads : int, optional
    """
    if not is_anndata(adata):
        raise UserValueError(f"adata is a {type(adata).__name__}: must be an AnnData")
    if not isinstance(key_added, str) or not key_added.removeprefix("X_"):
        raise UserValueError(
            f"key_added = {key_added!r}: must be a name such as 'X_dpmd'", argument="key_added"
        )
    n_threads = checked_threads(n_threads)
    cleaner = cleaner_of(model, noise, on_missing)
    if not hasattr(model, "guarantee"):
        raise UserValueError(f"model is a {type(model).__name__}: must be an Atlas or a Mixture")
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
    matrix, positions = _chosen(cleaner, adata, use)
    dtype = np.dtype(np.float32 if matrix.dtype == np.float32 else np.float64)
    moved = np.empty((adata.n_obs, cleaner.n_columns), dtype)
    status = np.empty(adata.n_obs, np.int8)
    start = 0
    for block in dense_blocks(matrix, positions, dtype, _rows_at_a_time(matrix)):
        check_rows(cleaner, f"adata.{use}", block, start)
        part = slice(start, start + len(block))
        moved[part], status[part] = cleaner.move(block, n_threads, f"adata.{use}")
        start += len(block)
    pandas: Any = sys.modules["pandas"]  # there whenever an AnnData is
    adata.obsm[key_added] = moved
    adata.obs[status_key] = pandas.Categorical(words_of(status))
    adata.uns[name] = _record(model, use, key_added, noise)


def _chosen(cleaner: RowCleaner, adata: Any, use: str) -> tuple[Any, Any]:
    """Return the matrix to clean, and the positions of the model's columns in it (None for all, in order)."""
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
    what = f"adata.{use}"
    matrix = checked_matrix(what, matrix)
    if names is not None and cleaner.column_names is not None:
        return matrix, np.array(cleaned_places(cleaner, names, what), dtype=np.intp)
    if matrix.shape[1] != cleaner.n_columns:
        raise UserValueError(
            f"{what} has {matrix.shape[1]} columns: must have {cleaner.n_columns}, as the {cleaner.kind}; "
            "columns can only be matched by position here"
        )
    return matrix, None


def _rows_at_a_time(matrix: Any) -> int:
    return max(64, _BLOCK_BYTES // (8 * max(1, int(matrix.shape[1]))))


def _record(model: Any, use: str, key_added: str, noise: Any) -> dict[str, Any]:
    """Return the guarantee and the origin of the numbers for ``uns``, in types that .h5ad files hold."""
    from dpmd_fast import __version__

    guarantee = model.guarantee.to_dict()
    if noise is None:
        settings: dict[str, Any] = {"dim": int(model.dim), "bandwidth": float(model.bandwidth)}
    else:
        own = hasattr(noise, "keys")  # by column; names of columns may not be keys of a file
        settings = {
            "components": len(model.weights),
            "noise": np.array([noise[name] for name in model.column_names] if own else noise, np.float64),
            "noise_unit": "that of the columns" if own else "that of preprocessed columns",
        }
    return {
        **guarantee,
        "conditions": np.array(guarantee["conditions"], dtype=object),
        "scope": json.dumps(guarantee.get("scope", [])),  # .h5ad files hold no lists of records
        "use": use,
        "key_added": key_added,
        **settings,
        "package_version": __version__,
    }
