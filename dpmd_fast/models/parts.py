"""Parts that the files of all models have: what a released model says about itself, read and checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import check_range, checked
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.file import Arrays, Metadata
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.models.verdict import Verdict
from dpmd_fast.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from dpmd_fast.models.signature import Signature

Spends = tuple[tuple[str, float], ...]

OPTIONAL_KEYS = {"preprocess", "verdict"}  # of the metadata

_GUARANTEE_KEYS = {field.name for field in dataclasses.fields(Guarantee)} - {"scope"}


# Written


def spends_noted(spends: Spends) -> list[list[Any]]:
    return [[what, float(mu2)] for what, mu2 in spends]


def names_noted(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def shapes_noted(arrays: Arrays) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in arrays.items()}


def contiguous(arrays: Mapping[str, Any]) -> Arrays:
    return {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}


def is_recent(metadata: Metadata) -> bool:
    """Return whether a file has what versions before signatures do not read: one, or a scope."""
    preprocess = metadata.get("preprocess")
    paid = preprocess.get("guarantee") if isinstance(preprocess, dict) else None
    found = metadata.get("guarantee"), paid
    return "signature" in metadata or any(isinstance(one, dict) and "scope" in one for one in found)


def verdict_noted(verdict: Verdict | None) -> dict[str, Any]:
    return {} if verdict is None else {"verdict": verdict.to_dict()}


# Read


def guarantee_of(metadata: Metadata) -> Guarantee:
    given = metadata["guarantee"]
    check_keys("its guarantee", given, _GUARANTEE_KEYS | ({"scope"} & set(given)))
    return Guarantee.from_dict(given)


def spends_of(metadata: Metadata) -> Spends:
    return tuple((what, mu2) for what, mu2 in tuple_of(metadata, "spends"))


def names_of(metadata: Metadata) -> tuple[str, ...] | None:
    return None if metadata["column_names"] is None else tuple_of(metadata, "column_names")


def preprocess_of(metadata: Metadata) -> Preprocessor | None:
    """Return the preprocessor, None where there is none."""
    if "preprocess" not in metadata:
        return None
    try:
        return Preprocessor.from_dict(metadata["preprocess"])
    except ValueError as problem:
        raise UserValueError(f"its preprocessing: {problem}") from None


def verdict_of(metadata: Metadata) -> Verdict | None:
    """Return the verdict after the spend, None where there is none."""
    return Verdict.from_dict(metadata["verdict"]) if "verdict" in metadata else None


def signature_of(metadata: Metadata) -> Signature | None:
    """Return the signature, which has been checked by then; None where there is none."""
    if "signature" not in metadata:
        return None
    from dpmd_fast.models import signature

    return signature.signature_of(metadata)


def tuple_of(part: dict[str, Any], name: str) -> tuple[Any, ...]:
    if not isinstance(part[name], list):
        raise UserValueError(f"{name}: must be a list")
    return tuple(part[name])


# Checked


def check_keys(what: str, given: Iterable[str], wanted: Iterable[str]) -> None:
    missing, unexpected = set(wanted) - set(given), set(given) - set(wanted)
    if missing:
        raise UserValueError(f"{what} lacks {min(missing)!r}")
    if unexpected:
        raise UserValueError(f"{what} has the unexpected {min(unexpected)!r}")


def check_shapes(arrays: Arrays, shapes: dict[str, list[int]]) -> None:
    """Refuse arrays that are not of the shapes that the metadata says."""
    check_keys("its list of shapes", shapes, arrays)
    for name, array in arrays.items():
        if list(array.shape) != shapes[name]:
            raise UserValueError(f"{name} has shape {array.shape}: must be {shapes[name]}")


def check_signals(signals: tuple[float, ...]) -> None:
    for signal in signals:
        checked("signal_to_noise", signal)


def check_spends(spends: Spends, guarantee: Guarantee) -> None:
    """Refuse releases that cost more than the guarantee says."""
    for what, mu2 in spends:
        if not isinstance(what, str):
            raise UserValueError("spends: must say in words what each release was for")
        checked(f"spends, {what}", mu2)
    spent, claimed = math.fsum(mu2 for _, mu2 in spends), guarantee.mu * guarantee.mu
    if spent > claimed * (1.0 + 1e-6):
        raise UserValueError(f"spends: the sum {spent:g} is more than mu^2 = {claimed:g} of the guarantee")


def check_columns(
    kind: str, columns: int, names: tuple[str, ...] | None, preprocess: Preprocessor | None
) -> None:
    """Refuse names or a preprocessor that do not fit the columns of a model."""
    if names is not None and not all(isinstance(name, str) for name in names):
        raise UserValueError("column_names: must be texts")
    if names is not None and not len(set(names)) == len(names) == columns:
        raise UserValueError(f"column_names: must be {columns} different names")
    if preprocess is None:
        return
    if preprocess.n_columns != columns:
        raise UserValueError(f"preprocess has {preprocess.n_columns} columns: must have {columns}")
    if preprocess.column_names not in (None, names):
        raise UserValueError(f"preprocess has other column names than the {kind}")


def check_array(name: str, array: NDArray[np.float64], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.size == 0:
        raise UserValueError(f"{name} has shape {array.shape}: must be {shape}, and not empty")
    check_range(name, array)
