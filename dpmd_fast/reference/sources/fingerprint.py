"""A digest of all values of a private reference, which binds a name in a ledger to one data set."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.columns import is_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.sources.open import is_table_or_file, open_reference

_DOMAIN = b"dpmd_fast fingerprint, version 1:"


def fingerprint_of(reference: Any, columns: list[str] | None = None) -> str:
    """Return a SHA-256 of the values in row order, the same for all kinds of input.

    Private: no budget pays for it (see `Ledger.fingerprint_of`).
    """
    if isinstance(reference, ReferenceSource):
        source = reference
    elif is_of(reference, "pandas", "DataFrame") or is_table_or_file(reference):
        source = open_reference(reference, columns=columns)
    else:
        source = open_reference(_as_array(reference), columns=columns)
    if not source.local:
        raise UserValueError(
            "reference is held by an engine, which keeps no order of the records, and a fingerprint needs "
            "one: use a data set that is not bound to a fingerprint, or give files"
        )
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once: a fingerprint needs an extra pass; give a "
            "table or Parquet files"
        )
    digest = hashlib.sha256(_DOMAIN + str(source.n_columns).encode("ascii"))
    for block in source.blocks():
        with np.errstate(all="ignore"):  # a warning would reveal that some record is not finite
            wide = np.array(block, dtype="<f8", order="C")
            wide += 0.0  # -0.0 becomes 0.0
        wide[np.isnan(wide)] = np.nan
        digest.update(wide.data)
    return f"sha256:{digest.hexdigest()}"


def _as_array(reference: Any) -> NDArray[Any]:
    try:
        return np.asarray(reference)
    except Exception:  # raised by the object: its text may show a value
        problem = "holds values that are not numbers: must be a rectangular array of numbers"
    raise UserValueError(f"reference {problem}")
