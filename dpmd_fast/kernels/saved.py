"""Compiled kernels as plain machine code, for processes that do without Numba (`late.py`).

Beside each kernel that Numba puts into its cache, `keep` writes the same object code to a file of its own,
with lines in front that say for what it was compiled and which functions it calls. `load` checks all of
that, links the code and gives it to the stand-in of the kernel. It runs with the arguments that
`signatures.py` names and no others; whatever does not fit is left to Numba, as are kernels that take named
tuples or return something.

    SHA-256 of all that follows     one line of JSON: key, symbol, calls     object code

The digest finds damage. It keeps nobody out: files are trusted for where they are, as Numba's are
(`cache.py`).

Numba's functions take a place for the result, one for an exception, and then every number of every
argument: for an array who owns it (nobody here), its size, its address, its shape and its strides.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from dpmd_fast.kernels import late
from dpmd_fast.kernels.cache import is_trusted_file, is_trusted_folder, opened_for_write, trusted_path_of
from dpmd_fast.kernels.signatures import LETTERS, NAMED, TUPLES, types_of, words_of

_PACKAGE = "dpmd_fast.kernels."
_LARGEST = 1 << 24  # bytes of a file
_SYMBOLS = 2  # the type of a section of symbols, in an object file
_HEAD = 5  # numbers before the shape of an array: two owners, elements, bytes of an element, address


def keep(function: Any, compiled: Any) -> None:
    """Write the machine code of a kernel that Numba has just compiled, if it can be run without Numba."""
    if not late.is_usual() or not function.__module__.startswith(_PACKAGE):
        return
    name = f"{function.__module__.removeprefix(_PACKAGE)}.{function.__name__}"
    if str(compiled.signature.return_type) != "none" or any(word in NAMED for word in words_of(name)):
        return
    if tuple(compiled.signature.args) != types_of(name):  # for other arguments, which a stand-in does not get
        return
    with suppress(FileExistsError):
        os.mkdir(_folder(), 0o755)
    path = _trusted_path(name)
    if path is None:
        return
    code = bytes(compiled.library._get_compiled_object())
    about = {
        "key": _key(name),
        "symbol": compiled.fndesc.llvm_func_name,
        "calls": list(_undefined(code)),
    }
    with opened_for_write(path) as file:
        file.write(_sealed(json.dumps(about).encode() + b"\n" + code))


def _sealed(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def load(names: Sequence[str]) -> bool:
    """Give the stand-ins of kernels their code; return False, and change nothing, if any has none."""
    from dpmd_fast.kernels.signatures import dispatcher_of

    found = {}
    for name in names:
        stand_in = dispatcher_of(name)
        if not isinstance(stand_in, late.StandIn):
            return False
        with suppress(Exception):  # of a damaged file: anything
            found[name] = stand_in.code or _loaded(name)
        if found.get(name) is None:
            return False
    for name, code in found.items():
        dispatcher_of(name).code = code
    return True


def is_empty(names: Iterable[str]) -> bool:
    """Return whether no version of any of these kernels was ever kept, where they would be kept."""
    given, here = os.environ.get("NUMBA_CACHE_DIR"), Path(__file__).parent
    folder = Path(given) if given else here / "__pycache__"
    if not os.access(folder, os.W_OK) or not is_trusted_folder(str(folder)):
        return False  # Numba keeps them elsewhere
    kept = {path.name.partition("-")[0] for path in (folder if given else here).rglob("*.nbi")}
    return kept.isdisjoint(".".join(name.split(".")[-2:]) for name in names)


def is_kept(name: str) -> bool:
    """Return whether there is code of a kernel, as its sources are now."""
    try:
        return _read(name) is not None
    except Exception:  # of a damaged file: anything
        return False


def _loaded(name: str) -> _Code | None:
    found = _read(name)
    if found is None:
        return None
    about, code = found
    linker = _linker()
    if not linker.knows(about["calls"]):  # LLVM would end the process
        return None
    return _Code(linker.address(code, about["symbol"]), words_of(name))


def _read(name: str) -> tuple[dict[str, Any], bytes] | None:
    """Return what is said about the code of a kernel, and the code; None if it is not to be run."""
    path = _trusted_path(name)
    if path is None or not is_trusted_file(path):
        return None
    with open(path, "rb") as file:
        whole = file.read(_LARGEST)
    _, _, content = whole.partition(b"\n")
    if whole != _sealed(content):
        return None
    line, _, code = content.partition(b"\n")
    about = json.loads(line)
    return (about, code) if about["key"] == _key(name) else None


def _folder() -> str:
    given = os.environ.get("NUMBA_CACHE_DIR")
    return os.path.join(given, "dpmd-fast") if given else str(Path(__file__).parent / "__pycache__")


def _trusted_path(name: str) -> str | None:
    """Return where the code of a kernel is or will be; None if others could write there."""
    folder = trusted_path_of(_folder())
    return None if folder is None else os.path.join(folder, f"{name}.code")


def _key(name: str) -> str:
    """Return a digest of all that the machine code of a kernel depends on."""
    return hashlib.sha256(f"{name} {' '.join(words_of(name))} {_surroundings()}".encode()).hexdigest()


@functools.cache
def _surroundings() -> str:
    import llvmlite
    from llvmlite import binding

    from dpmd_fast.kernels.jit import kernel_digest
    from dpmd_fast.kernels.width import WIDTH

    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    versions = sys.version, llvmlite.__version__, late.numba_version()
    return repr((WIDTH, kernel_digest(), *versions, *processor))


def _undefined(code: bytes) -> Iterator[str]:
    """Yield the names that an object file (ELF, 64 bits) takes from elsewhere."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an object file of this system")
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + i * size) for i in range(count)]
    for _, kind, _, _, first, length, texts, _, _, step in sections:
        for at in range(first, first + length, step) if kind == _SYMBOLS else ():
            text, _, _, section = struct.unpack_from("<IBBH", code, at)
            begin = sections[texts][4] + text
            name = code[begin : code.index(b"\0", begin)].decode()
            if section == 0 and name:
                yield name


class _Linker:
    """Links object code with Numba's run-time functions, which are in libraries that need no Numba."""

    def __init__(self) -> None:
        from llvmlite import binding

        self._binding = binding
        for name, place in _library("core/runtime/_nrt_python").c_helpers.items():
            binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", place)
        for name, place in _library("_helperlib").c_helpers.items():
            binding.add_symbol(f"numba_{name}", place)
        with suppress(Exception):  # newer versions do that by themselves
            binding.initialize_native_target()
            binding.initialize_native_asmprinter()
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)

    def knows(self, names: Sequence[str]) -> bool:
        return all(self._binding.address_of_symbol(name) is not None for name in names)

    def address(self, code: bytes, symbol: str) -> int:
        self._engine.add_object_file(self._binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        found = int(self._engine.get_function_address(symbol))
        if not found:
            raise KeyError(symbol)
        return found


_linker = functools.cache(_Linker)


def _library(path: str) -> Any:
    """Load an extension module of Numba's by itself."""
    for suffix in EXTENSION_SUFFIXES:
        file = late.numba_folder() / f"{path}{suffix}"
        if file.exists():
            name = file.name.partition(".")[0]
            loader = ExtensionFileLoader(name, str(file))
            spec = spec_from_file_location(name, file, loader=loader)
            assert spec is not None
            module = module_from_spec(spec)
            loader.exec_module(module)
            return module
    raise FileNotFoundError(path)


class _Code:
    """The code of a kernel, called as the kernel is."""

    def __init__(self, address: int, words: Sequence[str]) -> None:
        self._words = words
        kinds = [ctypes.c_double if kind == "f" else ctypes.c_int64 for word in words for kind in _flat(word)]
        # gives up Python's lock during the call
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(address)

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        """Run the kernel; return NotImplemented for arguments of other types than its own."""
        numbers: list[Any] = []
        if not _flatten(self._words, arguments, numbers):
            return NotImplemented
        nothing, problem = ctypes.c_void_p(), ctypes.c_void_p()
        if self._call(ctypes.byref(nothing), ctypes.byref(problem), *numbers) != 0:
            raise MemoryError("a kernel failed, most likely for lack of memory")
        return None


def _flat(word: str) -> str:
    """Return the kinds of the numbers that stand for an argument: f for a double, i for an integer."""
    if word in TUPLES:
        return "".join(map(_flat, TUPLES[word].split()))
    return "i" * (_HEAD + 2 * int(word[1:])) if word[1:] else word


def _flatten(words: Sequence[str], values: Sequence[Any], numbers: list[Any]) -> bool:
    """Append the numbers that stand for some arguments; return False if one is of another type."""
    return len(words) == len(values) and all(
        _flatten(TUPLES[word].split(), value, numbers)
        if word in TUPLES and type(value) is tuple
        else _append_array(word, value, numbers)
        if word[1:]
        else _append_number(word, value, numbers)
        for word, value in zip(words, values, strict=True)
    )


def _append_array(word: str, value: Any, numbers: list[Any]) -> bool:
    if type(value) is not np.ndarray or word in TUPLES:
        return False
    flags = value.flags
    fits = value.dtype == LETTERS[word[0]] and value.ndim == int(word[1:])
    if not (fits and flags.c_contiguous and flags.writeable and flags.aligned):
        return False
    numbers += (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    return True


def _append_number(word: str, value: Any, numbers: list[Any]) -> bool:
    fits = type(value) is {"f": float, "i": int}.get(word)
    if fits and word == "i":
        fits = -(2**63) <= value < 2**63  # ctypes would cut it off
    if fits:
        numbers.append(value)
    return fits
