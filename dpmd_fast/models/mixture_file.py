"""What belongs into the file of a mixture; the format itself is in `models.file`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.linear import cholesky
from dpmd_fast.models.file import HEAD_KEYS, Arrays, Metadata, read_sealed, sealed, write_sealed
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.models.parts import (
    OPTIONAL_KEYS,
    check_array,
    check_columns,
    check_keys,
    check_shapes,
    check_signals,
    check_spends,
    contiguous,
    guarantee_of,
    is_recent,
    names_noted,
    names_of,
    preprocess_of,
    shapes_noted,
    signature_of,
    spends_noted,
    spends_of,
    tuple_of,
    verdict_noted,
    verdict_of,
)

_ROUNDING = 1e-9  # of the sum of weights, and of covariances as correlations
_SMALLEST_VARIANCE = 1e-80  # the square of the smallest scale of a preprocessor

_KEYS = {*HEAD_KEYS, "package_version", "guarantee", "signal_to_noise", "spends", "column_names", "shapes"}
_ARRAYS = ("weights", "means", "covariances")


def write_mixture(mixture: Mixture, path: str | os.PathLike[str], key: Any = None) -> None:
    """Write the file of a mixture, signed if there is a key, which appears complete or not at all."""
    try:
        _check(mixture)
    except ValueError as problem:
        raise UserValueError(f"the mixture cannot be saved: {problem}") from None
    metadata, arrays = _metadata(mixture), _arrays(mixture)
    if key is not None or mixture.signature is not None:
        from dpmd_fast.models.signature import with_signature

        metadata = with_signature("mixture", metadata, arrays, key, mixture.receipt, mixture.signature)
    write_sealed(path, "mixture", _version_of(metadata), metadata, arrays)


def read_mixture(path: str | os.PathLike[str], trusted: Any = None) -> Mixture:
    """Read the file of a mixture; anything else is refused as `read_sealed` says."""
    return read_sealed(path, {"mixture": mixture_of}, trusted)


def unsigned_bytes(mixture: Mixture) -> bytes:
    """Return the file of a mixture without its signature, to be compared with that of another."""
    return _sealed(_metadata(mixture), _arrays(mixture))


def _sealed(metadata: Metadata, arrays: Arrays, version: int | None = None) -> bytes:
    return sealed("mixture", _version_of(metadata) if version is None else version, metadata, arrays)


def _version_of(metadata: Metadata) -> int:
    return 2 if is_recent(metadata) else 1


def _metadata(mixture: Mixture) -> Metadata:
    """Return all that is not an array; JSON writes floats so that they are read back exactly."""
    from dpmd_fast import __version__

    preprocess = {} if mixture.preprocess is None else {"preprocess": mixture.preprocess.to_dict()}
    return {
        "package_version": __version__,
        "guarantee": mixture.guarantee.to_dict(),
        "signal_to_noise": [float(signal) for signal in mixture.signal_to_noise],
        "spends": spends_noted(mixture.spends),
        "column_names": names_noted(mixture.column_names),
        "shapes": shapes_noted(_arrays(mixture)),
        **preprocess,
        **verdict_noted(mixture.verdict),
    }


def _arrays(mixture: Mixture) -> Arrays:
    return contiguous({name: getattr(mixture, name) for name in _ARRAYS})


def mixture_of(metadata: Metadata, arrays: Arrays) -> Mixture:
    """Return the mixture of a file, refused unless the file holds exactly what a mixture consists of."""
    optional = OPTIONAL_KEYS | ({"signature"} if metadata["version"] >= 2 else set())
    check_keys("its metadata", metadata, _KEYS | (optional & set(metadata)))
    guarantee = guarantee_of(metadata)
    check_keys("it", arrays, _ARRAYS)
    check_shapes(arrays, metadata["shapes"])
    mixture = Mixture(
        guarantee=guarantee,
        weights=arrays["weights"],
        means=arrays["means"],
        covariances=arrays["covariances"],
        signal_to_noise=tuple_of(metadata, "signal_to_noise"),
        spends=spends_of(metadata),
        column_names=names_of(metadata),
        preprocess=preprocess_of(metadata),
        verdict=verdict_of(metadata),
        signature=signature_of(metadata),
    )
    _check(mixture)
    return mixture


def _check(mixture: Mixture) -> None:
    """Refuse a mixture whose parts do not fit together."""
    if np.ndim(mixture.means) != 2:
        raise UserValueError(f"means has {np.ndim(mixture.means)} dimension(s): must have 2")
    components, columns = mixture.means.shape
    check_array("weights", mixture.weights, (components,))
    check_array("means", mixture.means, (components, columns))
    check_array("covariances", mixture.covariances, (components, columns, columns))
    if not (mixture.weights > 0.0).all():
        raise UserValueError("weights: must be positive")
    if not abs(float(mixture.weights.sum()) - 1.0) <= _ROUNDING:
        raise UserValueError("weights: must add up to 1")
    _check_covariances(mixture.covariances)
    check_signals(mixture.signal_to_noise)
    if len(mixture.signal_to_noise) != components:
        raise UserValueError(
            f"signal_to_noise has {len(mixture.signal_to_noise)} number(s): must have {components}, one for "
            "each component"
        )
    check_spends(mixture.spends, mixture.guarantee)
    check_columns("mixture", columns, mixture.column_names, mixture.preprocess)


def _check_covariances(covariances: NDArray[np.float64]) -> None:
    """Refuse matrices that are not covariances; of any scale, since they are looked at as correlations."""
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    if not (variances >= _SMALLEST_VARIANCE).all():
        raise UserValueError(f"covariances: all variances must be at least {_SMALLEST_VARIANCE:g}")
    scales = np.sqrt(variances)
    for number, (covariance, scale) in enumerate(zip(covariances, scales, strict=True)):
        correlation = covariance / scale[:, None] / scale
        if not (np.abs(correlation - correlation.T) <= _ROUNDING).all():
            raise UserValueError(f"covariances: must be symmetric, and that of component {number} is not")
        try:
            cholesky(correlation)
        except np.linalg.LinAlgError:
            raise UserValueError(
                f"covariances: must be positive definite, and that of component {number} is not"
            ) from None
