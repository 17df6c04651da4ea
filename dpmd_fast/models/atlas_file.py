"""What belongs into the file of an atlas; the format itself is in `models.file`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import checked, checked_bandwidth, checked_integer, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.file import HEAD_KEYS, Arrays, Metadata, read_sealed, sealed, write_sealed
from dpmd_fast.models.geometry.layers import Layer, Subspace
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

_MOST_PASSES = 100  # of a layer; releases make three
_ROUNDING = 1e-6  # of orthonormal columns

_KEYS = {*HEAD_KEYS, "package_version", "guarantee", "dim", "bandwidth", "signal_to_noise", "spends"}
_KEYS |= {"column_names", "layers", "shapes"}
_LATER_KEYS: dict[int, set[str]] = {1: set(), 2: {"preprocess"}, 3: set()}
_OPTIONAL_KEYS: dict[int, set[str]] = {1: {"verdict"}, 2: {"verdict"}, 3: {*OPTIONAL_KEYS, "signature"}}
_LAYER_KEYS = {"bandwidth", "passes", "strength"}
_LAYER_ARRAYS = ("centers", "tangents", "masses")
_CORRECTION_ARRAYS = ("offsets", "slopes")  # of some layers
_SUBSPACE_ARRAYS = ("subspace origin", "subspace basis")


def write_atlas(atlas: Atlas, path: str | os.PathLike[str], key: Any = None) -> None:
    """Write the file of an atlas, signed if there is a key, which appears complete or not at all."""
    try:
        _check(atlas)
    except ValueError as problem:
        raise UserValueError(f"the atlas cannot be saved: {problem}") from None
    metadata, arrays = _metadata(atlas), _arrays(atlas)
    if key is not None or atlas.signature is not None:
        from dpmd_fast.models.signature import with_signature

        metadata = with_signature("atlas", metadata, arrays, key, atlas.receipt, atlas.signature)
    write_sealed(path, "atlas", _version_of(metadata), metadata, arrays)


def read_atlas(path: str | os.PathLike[str], trusted: Any = None) -> Atlas:
    """Read the file of an atlas; anything else is refused as `read_sealed` says."""
    return read_sealed(path, {"atlas": atlas_of}, trusted)


def unsigned_bytes(atlas: Atlas) -> bytes:
    """Return the file of an atlas without its signature, to be compared with that of another."""
    return _sealed(_metadata(atlas), _arrays(atlas))


def _sealed(metadata: Metadata, arrays: Arrays, version: int | None = None) -> bytes:
    """Return the bytes of a file, of the first version that has its keys."""
    return sealed("atlas", _version_of(metadata) if version is None else version, metadata, arrays)


def _version_of(metadata: Metadata) -> int:
    if is_recent(metadata):
        return 3
    return 2 if "preprocess" in metadata else 1


def _metadata(atlas: Atlas) -> Metadata:
    """Return all that is not an array; JSON writes floats so that they are read back exactly."""
    from dpmd_fast import __version__

    preprocess = {} if atlas.preprocess is None else {"preprocess": atlas.preprocess.to_dict()}
    return {
        "package_version": __version__,
        "guarantee": atlas.guarantee.to_dict(),
        "dim": int(atlas.dim),
        "bandwidth": float(atlas.bandwidth),
        "signal_to_noise": [float(signal) for signal in atlas.signal_to_noise],
        "spends": spends_noted(atlas.spends),
        "column_names": names_noted(atlas.column_names),
        "layers": [
            {
                "bandwidth": float(layer.bandwidth),
                "passes": int(layer.passes),
                "strength": float(layer.strength),
            }
            for layer in atlas.layers
        ],
        "shapes": shapes_noted(_arrays(atlas)),
        **preprocess,
        **verdict_noted(atlas.verdict),
    }


def _arrays(atlas: Atlas) -> Arrays:
    found: dict[str, Any] = {}
    if atlas.subspace is not None:
        found = dict(zip(_SUBSPACE_ARRAYS, atlas.subspace, strict=True))
    for number, layer in enumerate(atlas.layers):
        for name in _LAYER_ARRAYS + _CORRECTION_ARRAYS:
            if getattr(layer, name) is not None:
                found[f"layer {number} {name}"] = getattr(layer, name)
    return contiguous(found)


def atlas_of(metadata: Metadata, arrays: Arrays) -> Atlas:
    """Return the atlas of a file, refused unless the file holds exactly what an atlas consists of."""
    version = metadata["version"]
    wanted = _KEYS | _LATER_KEYS[version] | (_OPTIONAL_KEYS[version] & set(metadata))
    check_keys("its metadata", metadata, wanted)
    layers = metadata["layers"]
    for number, layer in enumerate(layers):
        check_keys(f"layer {number}", layer, _LAYER_KEYS)
    guarantee = guarantee_of(metadata)
    _check_arrays(arrays, len(layers))
    check_shapes(arrays, metadata["shapes"])
    atlas = Atlas(
        guarantee=guarantee,
        layers=tuple(Layer(**layer, **_part(arrays, f"layer {k} ")) for k, layer in enumerate(layers)),
        subspace=Subspace(**part) if (part := _part(arrays, "subspace ")) else None,
        dim=metadata["dim"],
        bandwidth=metadata["bandwidth"],
        signal_to_noise=tuple_of(metadata, "signal_to_noise"),
        spends=spends_of(metadata),
        column_names=names_of(metadata),
        preprocess=preprocess_of(metadata),
        verdict=verdict_of(metadata),
        signature=signature_of(metadata),
    )
    _check(atlas)
    return atlas


def _part(arrays: Arrays, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _check_arrays(arrays: Arrays, n_layers: int) -> None:
    """Refuse arrays that are not those of an atlas."""
    wanted = {f"layer {number} {name}" for number in range(n_layers) for name in _LAYER_ARRAYS}
    allowed = {f"layer {number} {name}" for number in range(n_layers) for name in _CORRECTION_ARRAYS}
    if any(name in arrays for name in _SUBSPACE_ARRAYS):
        wanted.update(_SUBSPACE_ARRAYS)
    check_keys("it", arrays, wanted | (allowed & set(arrays)))


def _check(atlas: Atlas) -> None:
    """Refuse an atlas whose parts do not fit together."""
    dim = checked_integer("dim", atlas.dim, minimum=1)
    checked_bandwidth(atlas.bandwidth)
    check_signals(atlas.signal_to_noise)
    check_spends(atlas.spends, atlas.guarantee)
    if not atlas.layers:
        raise UserValueError("it has no layers")
    if atlas.subspace is None:
        columns = inside = atlas.layers[0].centers.shape[-1]
    else:
        columns, inside = len(atlas.subspace.origin), atlas.subspace.basis.shape[-1]
        check_array("subspace origin", atlas.subspace.origin, (columns,))
        check_array("subspace basis", atlas.subspace.basis, (columns, inside))
        _check_frames("subspace basis", atlas.subspace.basis)
    if not dim <= inside <= columns:
        raise UserValueError(
            f"dim = {dim}: does not fit {inside} coordinates of {columns} columns", argument="dim"
        )
    for number, layer in enumerate(atlas.layers):
        _check_layer(f"layer {number}", layer, inside, dim)
    check_columns("atlas", columns, atlas.column_names, atlas.preprocess)


def _check_layer(what: str, layer: Layer, columns: int, dim: int) -> None:
    charts = len(layer.masses)
    check_array(f"{what} centers", layer.centers, (charts, columns))
    check_array(f"{what} tangents", layer.tangents, (charts, columns, dim))
    check_array(f"{what} masses", layer.masses, (charts,))
    if not (layer.masses > 0.0).all():
        raise UserValueError(f"{what} masses: must be positive")
    _check_frames(f"{what} tangents", layer.tangents)
    if layer.offsets is not None:
        check_array(f"{what} offsets", layer.offsets, (charts, columns))
    if layer.slopes is not None:
        check_array(f"{what} slopes", layer.slopes, (charts, dim, columns))
    try:
        checked_bandwidth(layer.bandwidth)
        if checked_integer("passes", layer.passes, minimum=1) > _MOST_PASSES:
            raise UserValueError(
                f"passes = {shown(layer.passes)}: must be at most {_MOST_PASSES}", argument="passes"
            )
        if checked("strength", layer.strength) > 1.0:
            raise UserValueError(f"strength = {layer.strength!r}: must be at most 1", argument="strength")
    except ValueError as problem:
        raise UserValueError(f"{what} {problem}") from None


def _check_frames(name: str, frames: NDArray[np.float64]) -> None:
    """Refuse columns that are not orthonormal: what is called a projection would be none."""
    products = np.matmul(np.swapaxes(frames, -1, -2), frames)
    if not (np.abs(products - np.eye(frames.shape[-1])) <= _ROUNDING).all():
        raise UserValueError(f"{name}: must be orthonormal")
