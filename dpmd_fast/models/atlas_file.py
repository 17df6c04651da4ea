"""The file of an atlas: one Arrow IPC file of named arrays, checked to the last byte when it is read.

The schema's metadata is a JSON text. It begins with the format, its version, the number of bytes of the
file and the SHA-256 of all of them, taken with zeros in its own place. These are looked at first, in the raw
bytes: a file that is not as it was written is refused before anything parses it. Nothing in it is code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import check_range, checked, checked_bandwidth, checked_integer, shown
from dpmd_fast.atomic import atomic_write
from dpmd_fast.columns import values as values_of
from dpmd_fast.errors import UserFileNotFoundError, UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.privacy.guarantee import Guarantee

Arrays = dict[str, NDArray[np.float64]]

_VERSION = 2  # with preprocessing; files without are of version 1
_START, _END = b"ARROW1\0\0", b"ARROW1"  # of every Arrow IPC file
_KEY = b"dpmd-fast"
# No other text of the JSON can look like it: inside a string the quotes would be escaped.
_HEAD = '{{"format":"dpmd-fast atlas","version":{},"bytes":{:>19},"sha256":"{}",'
_HEAD_PATTERN = re.compile(
    rb'\{"format":"dpmd-fast atlas","version":(\d{1,9}),"bytes": {0,18}(\d{1,19}),"sha256":"([0-9a-f]{64})",'
)
_NO_SUM = "0" * 64
_FRESH = "get a fresh copy of the file"
_MOST_PASSES = 100  # of a layer; releases make three
_ROUNDING = 1e-6  # of orthonormal columns

_KEYS = {"format", "version", "bytes", "sha256", "package_version"}
_KEYS |= {"guarantee", "dim", "bandwidth", "signal_to_noise", "spends", "column_names", "layers", "shapes"}
_LATER_KEYS: dict[int, set[str]] = {1: set(), 2: {"preprocess"}}
_GUARANTEE_KEYS = {field.name for field in dataclasses.fields(Guarantee)}
_LAYER_KEYS = {"bandwidth", "passes", "strength"}
_LAYER_ARRAYS = ("centers", "tangents", "masses")
_CORRECTION_ARRAYS = ("offsets", "slopes")  # of some layers
_SUBSPACE_ARRAYS = ("subspace origin", "subspace basis")


def write_atlas(atlas: Atlas, path: str | os.PathLike[str]) -> None:
    """Write the file of an atlas, which appears complete or not at all."""
    try:
        _check(atlas)
    except ValueError as problem:
        raise UserValueError(f"the atlas cannot be saved: {problem}") from None
    data = _sealed(_metadata(atlas), _arrays(atlas))
    with atomic_write(path, overwrite=True) as partial, open(partial, "wb") as file:
        file.write(data)


def read_atlas(path: str | os.PathLike[str]) -> Atlas:
    """Read the file of an atlas.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, was edited or damaged, is of a newer version or is not an atlas.
    """
    name = os.fsdecode(path)
    if not os.path.exists(name):
        raise UserFileNotFoundError(f"{name} does not exist: must be the file of an atlas")
    if not os.path.isfile(name):
        raise UserValueError(f"{name} is not an atlas: it is not a regular file")
    with open(name, "rb") as file:
        data = file.read()
    try:
        _check_bytes(data)
        text, arrays = _opened(data)
        return _atlas(text, arrays)
    except ValueError as problem:
        raise UserValueError(f"{name} {problem}") from None


def _check_bytes(data: bytes) -> None:
    """Refuse bytes that are not a complete, unchanged file of this version."""
    if not data.startswith(_START):
        raise UserValueError(f"is truncated; {_FRESH}" if _START.startswith(data) else "is not an atlas")
    head = _HEAD_PATTERN.search(data)
    if head is None:
        raise UserValueError("is not an atlas" if data.endswith(_END) else f"is truncated; {_FRESH}")
    version, size, checksum = head.groups()
    if int(version) > _VERSION:
        raise UserValueError(
            f"was written by a newer version of dpmd-fast: its format is {int(version)}, this version reads "
            f"{_VERSION}; update dpmd-fast"
        )
    if int(version) < 1:
        raise UserValueError(f"was edited or damaged: there is no format {int(version)}")
    if len(data) < int(size):
        raise UserValueError(f"is truncated: it has {len(data)} of {int(size)} bytes; {_FRESH}")
    blank = head.group().replace(checksum, _NO_SUM.encode())
    if hashlib.sha256(data.replace(head.group(), blank)).hexdigest().encode() != checksum:
        raise UserValueError(f"was edited or damaged: its checksum does not match; {_FRESH}")


def _sealed(metadata: dict[str, Any], arrays: Arrays, version: int | None = None) -> bytes:
    """The bytes of a file with its size and checksum filled in; of the first version that has its keys."""
    import pyarrow as pa

    if version is None:
        version = 2 if "preprocess" in metadata else 1

    rest = json.dumps(metadata, allow_nan=False, separators=(",", ":"))[1:]
    schema = _schema().with_metadata({_KEY: _HEAD.format(version, 0, _NO_SUM) + rest})
    flat = [array.ravel() for array in arrays.values()]
    ends = np.cumsum([0, *map(len, flat)], dtype=np.int64)
    columns = [
        pa.array(list(arrays), pa.string()),
        pa.array([array.shape for array in arrays.values()], pa.list_(pa.int64())),
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(flat))),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    # the schema is in the file twice, before and after the arrays
    empty, size = _HEAD.format(version, 0, _NO_SUM).encode(), len(data)
    blank = _HEAD.format(version, size, _NO_SUM).encode()
    data = data.replace(empty, blank)
    return data.replace(blank, _HEAD.format(version, size, hashlib.sha256(data).hexdigest()).encode())


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        {"name": pa.string(), "shape": pa.list_(pa.int64()), "values": pa.large_list(pa.float64())}
    )


def _opened(data: bytes) -> tuple[bytes, Arrays]:
    """The metadata's text and the arrays of a file."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        metadata = table.schema.metadata or {}
    except Exception:  # its texts are for those who know Arrow, and of several lines
        raise UserValueError("is not an atlas: it cannot be read as an Arrow file") from None
    if set(metadata) != {_KEY} or not table.schema.equals(_schema()):
        raise UserValueError("is not a valid atlas: its columns or metadata are not those of one")
    arrays: Arrays = {}
    names, shapes, values = (column.combine_chunks() for column in table.columns)
    for name, shape, row in zip(names.to_pylist(), shapes.to_pylist(), values, strict=True):
        if name is None or name in arrays:
            raise UserValueError("is not a valid atlas: the names of its arrays are not unique")
        try:
            flat = values_of(row.values)
            whole = not row.values.null_count and len(flat) == math.prod(shape) and min(shape) >= 1
        except Exception:
            whole = False
        if not whole:
            raise UserValueError(f"is not a valid atlas: the values of {name!r} do not fill its shape")
        arrays[name] = flat.reshape(shape).copy()  # kernels are compiled for arrays that may be written
    return metadata[_KEY], arrays


def _metadata(atlas: Atlas) -> dict[str, Any]:
    """All that is not an array; JSON writes floats so that they are read back exactly."""
    from dpmd_fast import __version__

    preprocess = {} if atlas.preprocess is None else {"preprocess": atlas.preprocess.to_dict()}
    return {
        "package_version": __version__,
        "guarantee": dataclasses.asdict(atlas.guarantee),
        "dim": int(atlas.dim),
        "bandwidth": float(atlas.bandwidth),
        "signal_to_noise": [float(signal) for signal in atlas.signal_to_noise],
        "spends": [[what, float(mu2)] for what, mu2 in atlas.spends],
        "column_names": None if atlas.column_names is None else list(atlas.column_names),
        "layers": [
            {
                "bandwidth": float(layer.bandwidth),
                "passes": int(layer.passes),
                "strength": float(layer.strength),
            }
            for layer in atlas.layers
        ],
        "shapes": {name: list(array.shape) for name, array in _arrays(atlas).items()},
        **preprocess,
    }


def _arrays(atlas: Atlas) -> Arrays:
    found: dict[str, Any] = {}
    if atlas.subspace is not None:
        found = dict(zip(_SUBSPACE_ARRAYS, atlas.subspace, strict=True))
    for number, layer in enumerate(atlas.layers):
        for name in _LAYER_ARRAYS + _CORRECTION_ARRAYS:
            if getattr(layer, name) is not None:
                found[f"layer {number} {name}"] = getattr(layer, name)
    return {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in found.items()}


def _atlas(text: bytes, arrays: Arrays) -> Atlas:
    """The atlas of a file, refused unless the file holds exactly what an atlas consists of."""
    try:
        metadata = json.loads(text, parse_constant=_refuse_constant)
        _check_keys("its metadata", metadata, _KEYS | _LATER_KEYS[metadata["version"]])
        layers, guarantee = metadata["layers"], metadata["guarantee"]
        for number, layer in enumerate(layers):
            _check_keys(f"layer {number}", layer, _LAYER_KEYS)
        _check_keys("its guarantee", guarantee, _GUARANTEE_KEYS)
        _check_arrays(arrays, metadata["shapes"], len(layers))
        names = metadata["column_names"]
        atlas = Atlas(
            guarantee=Guarantee(**{**guarantee, "conditions": _tuple(guarantee, "conditions")}),
            layers=tuple(Layer(**layer, **_part(arrays, f"layer {k} ")) for k, layer in enumerate(layers)),
            subspace=Subspace(**part) if (part := _part(arrays, "subspace ")) else None,
            dim=metadata["dim"],
            bandwidth=metadata["bandwidth"],
            signal_to_noise=_tuple(metadata, "signal_to_noise"),
            spends=tuple((what, mu2) for what, mu2 in _tuple(metadata, "spends")),
            column_names=None if names is None else _tuple(metadata, "column_names"),
            preprocess=_preprocess(metadata),
        )
        _check(atlas)
    except ValueError as problem:
        raise UserValueError(f"is not a valid atlas: {problem}") from None
    except Exception:  # JSON of other kinds of values
        raise UserValueError("is not a valid atlas: its metadata is malformed") from None
    return atlas


def _preprocess(metadata: dict[str, Any]) -> Preprocessor | None:
    if "preprocess" not in metadata:
        return None
    try:
        return Preprocessor.from_dict(metadata["preprocess"])
    except ValueError as problem:
        raise UserValueError(f"its preprocessing: {problem}") from None


def _part(arrays: Arrays, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _tuple(part: dict[str, Any], name: str) -> tuple[Any, ...]:
    if not isinstance(part[name], list):
        raise UserValueError(f"{name}: must be a list")
    return tuple(part[name])


def _check_keys(what: str, given: Iterable[str], wanted: set[str]) -> None:
    missing, unexpected = wanted - set(given), set(given) - wanted
    if missing:
        raise UserValueError(f"{what} lacks {min(missing)!r}")
    if unexpected:
        raise UserValueError(f"{what} has the unexpected {min(unexpected)!r}")


def _check_arrays(arrays: Arrays, shapes: dict[str, list[int]], n_layers: int) -> None:
    """Refuse arrays that are not those of an atlas, or not of the shapes that the metadata says."""
    wanted = {f"layer {number} {name}" for number in range(n_layers) for name in _LAYER_ARRAYS}
    allowed = {f"layer {number} {name}" for number in range(n_layers) for name in _CORRECTION_ARRAYS}
    if any(name in arrays for name in _SUBSPACE_ARRAYS):
        wanted.update(_SUBSPACE_ARRAYS)
    _check_keys("it", arrays, wanted | (allowed & set(arrays)))
    _check_keys("its list of shapes", shapes, set(arrays))
    for name, array in arrays.items():
        if list(array.shape) != shapes[name]:
            raise UserValueError(f"{name} has shape {array.shape}: must be {shapes[name]}")


def _check(atlas: Atlas) -> None:
    """Refuse an atlas whose parts do not fit together."""
    dim = checked_integer("dim", atlas.dim, minimum=1)
    checked_bandwidth(atlas.bandwidth)
    for signal in atlas.signal_to_noise:
        checked("signal_to_noise", signal)
    for what, mu2 in atlas.spends:
        if not isinstance(what, str):
            raise UserValueError("spends: must say in words what each release was for")
        checked(f"spends, {what}", mu2)
    spent, claimed = math.fsum(mu2 for _, mu2 in atlas.spends), atlas.guarantee.mu * atlas.guarantee.mu
    if spent > claimed * (1.0 + 1e-6):
        raise UserValueError(f"spends: the sum {spent:g} is more than mu^2 = {claimed:g} of the guarantee")
    if not atlas.layers:
        raise UserValueError("it has no layers")
    if atlas.subspace is None:
        columns = inside = atlas.layers[0].centers.shape[-1]
    else:
        columns, inside = len(atlas.subspace.origin), atlas.subspace.basis.shape[-1]
        _check_array("subspace origin", atlas.subspace.origin, (columns,))
        _check_array("subspace basis", atlas.subspace.basis, (columns, inside))
        _check_frames("subspace basis", atlas.subspace.basis)
    if not dim <= inside <= columns:
        raise UserValueError(
            f"dim = {dim}: does not fit {inside} coordinates of {columns} columns", argument="dim"
        )
    for number, layer in enumerate(atlas.layers):
        _check_layer(f"layer {number}", layer, inside, dim)
    names = atlas.column_names
    if names is not None and not all(isinstance(name, str) for name in names):
        raise UserValueError("column_names: must be texts")
    if names is not None and not len(set(names)) == len(names) == columns:
        raise UserValueError(f"column_names: must be {columns} different names")
    if atlas.preprocess is not None:
        _check_preprocess(atlas.preprocess, columns, names)


def _check_preprocess(preprocess: Preprocessor, columns: int, names: tuple[str, ...] | None) -> None:
    if preprocess.n_columns != columns:
        raise UserValueError(f"preprocess has {preprocess.n_columns} columns: must have {columns}")
    if preprocess.column_names not in (None, names):
        raise UserValueError("preprocess has other column names than the atlas")


def _check_layer(what: str, layer: Layer, columns: int, dim: int) -> None:
    charts = len(layer.masses)
    _check_array(f"{what} centers", layer.centers, (charts, columns))
    _check_array(f"{what} tangents", layer.tangents, (charts, columns, dim))
    _check_array(f"{what} masses", layer.masses, (charts,))
    if not (layer.masses > 0.0).all():
        raise UserValueError(f"{what} masses: must be positive")
    _check_frames(f"{what} tangents", layer.tangents)
    if layer.offsets is not None:
        _check_array(f"{what} offsets", layer.offsets, (charts, columns))
    if layer.slopes is not None:
        _check_array(f"{what} slopes", layer.slopes, (charts, dim, columns))
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


def _check_array(name: str, array: NDArray[np.float64], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.size == 0:
        raise UserValueError(f"{name} has shape {array.shape}: must be {shape}, and not empty")
    check_range(name, array)


def _check_frames(name: str, frames: NDArray[np.float64]) -> None:
    """Refuse columns that are not orthonormal: what is called a projection would be none."""
    products = np.matmul(np.swapaxes(frames, -1, -2), frames)
    if not (np.abs(products - np.eye(frames.shape[-1])) <= _ROUNDING).all():
        raise UserValueError(f"{name}: must be orthonormal")


def _refuse_constant(text: str) -> None:
    raise UserValueError(f"its metadata holds {text}: must be finite numbers")
