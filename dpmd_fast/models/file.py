"""The sealed format of every model: one Arrow IPC file of named arrays, checked to the last byte when read.

The schema's metadata is a JSON text. It begins with the kind of the model, the version of the format, the
number of bytes of the file and the SHA-256 of all of them, taken with zeros in its own place. These are
looked at first, in the raw bytes: a file that is not as it was written is refused before anything parses it.
Nothing in it is code, and nothing in it is compressed: what is read is no larger than the file, and the
file, its text and the number of its arrays are bounded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.atomic import atomic_write
from dpmd_fast.columns import values as values_of
from dpmd_fast.errors import UserFileNotFoundError, UserValueError

Arrays = dict[str, NDArray[np.float64]]
Metadata = dict[str, Any]
_Model = TypeVar("_Model")


class BadSignature(UserValueError):  # noqa: N818
    """A model is not signed as it should be."""


class _Kind(NamedTuple):
    """What a file may hold."""

    called: str  # in messages
    version: int  # newest that is read
    loader: str


KINDS = {"atlas": _Kind("an atlas", 3, "Atlas.load"), "mixture": _Kind("a mixture", 2, "Mixture.load")}
HEAD_KEYS = frozenset({"format", "version", "bytes", "sha256"})
# No other text of the JSON can look like it: inside a string the quotes would be escaped.
HEAD = '{{"format":"dpmd-fast {}","version":{},"bytes":{:>19},"sha256":"{}",'
HEAD_PATTERN = re.compile(
    rb'\{"format":"dpmd-fast ([a-z]{1,20})","version":(\d{1,9}),"bytes": {0,18}(\d{1,19}),'
    rb'"sha256":"([0-9a-f]{64})",'
)
_START, _END = b"ARROW1\0\0", b"ARROW1"  # of every Arrow IPC file
_KEY = b"dpmd-fast"
_NO_SUM = "0" * 64
_FIRST_BYTES = 1 << 16  # the head is near the beginning, however long the text that it begins is
# Nobody's model is as large as these, and what is larger is refused before it is read or parsed: a file of an
# attacker must not fill the memory. Parsed JSON takes up to 25 times the bytes of its text.
MOST_BYTES = 1 << 34
MOST_TEXT = 1 << 24
MOST_ARRAYS = 10_000
_MOST_AXES = 4  # models have arrays of up to 3
_LONGEST_AXIS = 1 << 40  # more than any file holds
_FRESH = "get a fresh copy of the file"


# Writing


def write_sealed(
    path: str | os.PathLike[str], kind: str, version: int, metadata: Metadata, arrays: Arrays
) -> None:
    """Write the file of a model, which appears complete or not at all."""
    data = sealed(kind, version, metadata, arrays)
    with atomic_write(path, overwrite=True) as partial, open(partial, "wb") as file:
        file.write(data)


def sealed(kind: str, version: int, metadata: Metadata, arrays: Arrays) -> bytes:
    """Return the bytes of a file with its size and checksum filled in."""
    import pyarrow as pa

    rest = json.dumps(metadata, allow_nan=False, separators=(",", ":"))[1:]
    schema = _schema().with_metadata({_KEY: HEAD.format(kind, version, 0, _NO_SUM) + rest})
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
    empty, size = HEAD.format(kind, version, 0, _NO_SUM).encode(), len(data)
    blank = HEAD.format(kind, version, size, _NO_SUM).encode()
    data = data.replace(empty, blank)
    return data.replace(blank, HEAD.format(kind, version, size, hashlib.sha256(data).hexdigest()).encode())


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        {"name": pa.string(), "shape": pa.list_(pa.int64()), "values": pa.large_list(pa.float64())}
    )


# Reading


def read_sealed(
    path: str | os.PathLike[str],
    makers: Mapping[str, Callable[[Metadata, Arrays], _Model]],
    trusted: Any = None,
) -> _Model:
    """Read the file of a model of one of the kinds of `makers`, whose functions make the model.

    With `trusted`, one key or several, only what one of them has signed is taken. A signature that does not
    match is refused in any case.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, was edited or damaged, is of a newer version or is of another kind, or is
        not signed as it should be.
    """
    names = None
    if trusted is not None:
        from dpmd_fast.privacy.keys import trusted_names

        names = trusted_names(trusted)

    name = os.fsdecode(path)
    wanted = " or ".join(KINDS[kind].called for kind in makers)
    if not os.path.exists(name):
        raise UserFileNotFoundError(f"{name} does not exist: must be the file of {wanted}")
    if not os.path.isfile(name):
        raise UserValueError(f"{name} is not {wanted}: it is not a regular file")
    try:
        kind, data = _checked_bytes(name, makers, wanted)
        return _made(kind, data, makers[kind], names)
    except ValueError as problem:
        raise UserValueError(f"{name} {problem}") from None


def _checked_bytes(name: str, makers: Iterable[str], wanted: str) -> tuple[str, bytes]:
    """Return kind and bytes of a complete, unchanged file; what the head refuses is not read to its end."""
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(_FIRST_BYTES)
        if not data.startswith(_START):
            raise UserValueError(f"is truncated; {_FRESH}" if _START.startswith(data) else f"is not {wanted}")
        head = HEAD_PATTERN.search(data)
        if head is None:
            file.seek(-len(_END), os.SEEK_END)
            raise UserValueError(f"is not {wanted}" if file.read() == _END else f"is truncated; {_FRESH}")
        kind, noted = head.group(1).decode(), int(head.group(3))
        _check_kind(kind, int(head.group(2)), makers, wanted)
        if size < noted:
            raise UserValueError(f"is truncated: it has {size} of {noted} bytes; {_FRESH}")
        if size == noted and size > MOST_BYTES:
            raise UserValueError(f"has {size} bytes: a model must have at most {MOST_BYTES}")
        if size == noted:
            file.seek(0)
            data = file.read(size)  # in one piece: adding to what was read would take twice the memory
    if _checksum(data, head.group(), head.group(4)) != head.group(4).decode():
        raise UserValueError(f"was edited or damaged: its checksum does not match; {_FRESH}")
    return kind, data


def _checksum(data: bytes, head: bytes, noted: bytes) -> str:
    """Return the SHA-256 of a file with zeros in place of its checksums, without a copy of the file."""
    total, whole, at = hashlib.sha256(), memoryview(data), 0
    while (found := data.find(head, at)) >= 0:
        total.update(whole[at:found])
        total.update(head.replace(noted, _NO_SUM.encode()))
        at = found + len(head)
    total.update(whole[at:])
    return total.hexdigest()


def _check_kind(kind: str, version: int, makers: Iterable[str], wanted: str) -> None:
    if kind not in KINDS:
        raise UserValueError(
            f"was written by a newer version of dpmd-fast: this version reads no {kind}; update dpmd-fast"
        )
    if kind not in makers:
        raise UserValueError(
            f"is {KINDS[kind].called}, not {wanted}: read it with {KINDS[kind].loader} or load_model"
        )
    newest = KINDS[kind].version
    if version > newest:
        raise UserValueError(
            f"was written by a newer version of dpmd-fast: its format is {version}, this version reads "
            f"{newest}; update dpmd-fast"
        )
    if version < 1:
        raise UserValueError(f"was edited or damaged: there is no format {version}")


def _made(
    kind: str, data: bytes, make: Callable[[Metadata, Arrays], _Model], trusted: frozenset[str] | None
) -> _Model:
    """Return the model of a file with a right checksum, or refuse what `make` does not take."""
    try:
        metadata, arrays = _opened(kind, data)
        if "signature" in metadata or trusted is not None:
            from dpmd_fast.models.signature import check_signature

            check_signature(kind, metadata, arrays, trusted)
        return make(metadata, arrays)
    except BadSignature:
        raise
    except ValueError as problem:
        raise UserValueError(f"is not a valid {kind}: {problem}") from None
    except Exception:  # JSON of other kinds of values
        raise UserValueError(f"is not a valid {kind}: its metadata is malformed") from None


def _opened(kind: str, data: bytes) -> tuple[Metadata, Arrays]:
    """Return the metadata and the arrays of a file."""
    import pyarrow as pa

    try:
        # The messages one after another: the footer could point into the middle of one.
        messages = list(pa.ipc.MessageReader.open_stream(pa.py_buffer(data).slice(len(_START))))
        schema = pa.ipc.read_schema(messages[0])
    except Exception:  # its texts are for those who know Arrow, and of several lines
        raise UserValueError("it cannot be read as an Arrow file") from None
    if set(schema.metadata or {}) != {_KEY} or not schema.equals(_schema()):
        raise UserValueError("its columns or metadata are not those of one")
    text: bytes = schema.metadata[_KEY]
    if len(text) > MOST_TEXT:
        raise UserValueError(f"its metadata has {len(text)} bytes: must have at most {MOST_TEXT}")
    head = HEAD_PATTERN.match(text)
    if head is None or head.group(1).decode() != kind:
        raise UserValueError("its metadata does not begin as that of one")
    metadata: Metadata = json.loads(text, parse_constant=_refuse_constant)
    if not all(map(_is_shape, metadata["shapes"].values())):
        raise UserValueError("its metadata is malformed: shapes must be lists of 1 to 4 positive integers")
    needed = 8 * sum(math.prod(shape) for shape in metadata["shapes"].values())
    if needed > len(data):
        raise UserValueError(f"it lacks bytes: arrays of its shapes need {needed}, and it has {len(data)}")
    if len(messages) > MOST_ARRAYS:
        raise UserValueError(f"it has too many arrays: must have at most {MOST_ARRAYS}")
    try:
        if any(_is_compressed(message.metadata.to_pybytes()) for message in messages[1:]):
            raise UserValueError("its arrays are compressed")
        batches = [pa.ipc.read_record_batch(message, schema) for message in messages[1:]]
        table = pa.Table.from_batches(batches, schema)
        table.validate(full=True)
    except UserValueError:
        raise
    except Exception:
        raise UserValueError("it cannot be read as an Arrow file") from None
    if table.num_rows > MOST_ARRAYS:  # before any of them becomes an object
        raise UserValueError(f"it has too many arrays: must have at most {MOST_ARRAYS}")
    return metadata, _arrays(table)


def _is_compressed(message: bytes) -> bool:
    """Return True if an Arrow message says that its buffers are compressed, or is not of a record batch.

    The message is a FlatBuffers table, which Arrow has verified: field 2 of a Message is its header, and
    field 3 of the header of a record batch is the compression (Message.fbs of Arrow's format).
    """
    header = _field(message, struct.unpack_from("<I", message)[0], 2)
    if header is None:
        return True
    return _field(message, header + struct.unpack_from("<I", message, header)[0], 3) is not None


def _field(message: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a FlatBuffers table, None if it is not there."""
    fields = table - struct.unpack_from("<i", message, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", message, fields)[0]:
        return None
    offset: int = struct.unpack_from("<H", message, fields + entry)[0]
    return table + offset if offset else None


def _arrays(table: Any) -> Arrays:
    arrays: Arrays = {}
    names, shapes, values = (column.combine_chunks() for column in table.columns)
    ends = shapes.offsets.to_pylist()  # `value_lengths` would import all of Arrow's functions
    if shapes.null_count or any(not 1 <= last - first <= _MOST_AXES for first, last in pairwise(ends)):
        raise UserValueError(f"its arrays must have 1 to {_MOST_AXES} axes")  # before shapes become objects
    for name, shape, row in zip(names.to_pylist(), shapes.to_pylist(), values, strict=True):
        if name is None or name in arrays:
            raise UserValueError("the names of its arrays are not unique")
        try:
            flat = values_of(row.values)
            whole = not row.values.null_count and _is_shape(shape) and len(flat) == math.prod(shape)
        except Exception:
            whole = False
        if not whole:
            raise UserValueError(f"the values of {name!r} do not fill its shape")
        arrays[name] = flat.reshape(shape).copy()  # kernels are compiled for arrays that may be written
    return arrays


def _is_shape(shape: Any) -> bool:
    """Return whether this can be the shape of an array; a product over anything else may never end."""
    return (
        isinstance(shape, list)
        and 1 <= len(shape) <= _MOST_AXES
        and all(type(length) is int and 1 <= length <= _LONGEST_AXIS for length in shape)
    )


def _refuse_constant(text: str) -> None:
    raise UserValueError(f"its metadata holds {text}: must be finite numbers")
