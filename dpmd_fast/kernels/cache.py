"""Which folders of compiled kernels are trusted.

What a cache holds is code: Numba keeps it as pickles, and loading one runs whatever it says. So a cache is
used only if nobody but this user and root could have put a file there: both the folder and its files belong
to one of them, group and others may not write, and the same holds for every folder above it, apart from
sticky ones like ``/tmp``, in which others cannot replace what is ours. Otherwise kernels are kept in a
private folder of the user, and a warning says so. What is used is the very path that was looked at.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = ("dpmd-fast", "kernels")  # below the user's folder for caches


def is_trusted_folder(folder: str) -> bool:
    """Return whether only this user and root can have written into `folder`, or exchanged it."""
    return trusted_path_of(folder) is not None


def trusted_path_of(folder: str) -> str | None:
    """Return the path without links of a folder, the one to use if it is trusted; None if it is not."""
    real = os.path.realpath(folder)  # once: a link could be turned elsewhere between a look and the next
    open_to_others = hasattr(os, "geteuid") and _first_open_to_others(real) is not None
    return None if open_to_others else real


def _first_open_to_others(path: str) -> str | None:
    """Return the first folder of a path without links, from the root on, that others can write; None if none.

    From the root on, because only then the answer lasts: in a folder that has passed, nobody else can
    exchange what passes next. A link that has come into the path since it was resolved does not pass.
    """
    parts = path.split(os.sep)
    for end in range(1, len(parts) + 1):
        here = os.sep.join(parts[:end]) or os.sep
        if not _is_ours(here, sticky=end < len(parts)):
            return here
    return None


def is_trusted_file(path: str) -> bool:
    """Return whether a file of a trusted folder is ours too, as it may be older than that, or missing."""
    return not hasattr(os, "geteuid") or not os.path.lexists(path) or _is_ours(path, sticky=False)


def _is_ours(path: str, *, sticky: bool) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISLNK(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
        return False
    return not found.st_mode & _OTHERS_WRITE or (sticky and bool(found.st_mode & stat.S_ISVTX))


def secure(cache: Any) -> bool:
    """Move the cache of a kernel to a trusted folder, if it is not in one; return False if there is none."""
    folder = _trusted_instead_of(cache._cache_path)
    if folder is None:
        return False
    if folder != cache._cache_path:
        made = type(cache._cache_file)(
            cache_path=folder,
            filename_base=cache._impl.filename_base,
            source_stamp=cache._impl.locator.get_source_stamp(),
        )
        cache._cache_path, cache._cache_file = folder, made
    _guard_files(cache._cache_file)
    return True


@functools.cache
def _trusted_instead_of(folder: str) -> str | None:
    """Return the real `folder` if it is trusted, else a private one; None if there is neither."""
    real = os.path.realpath(folder)  # once: a link could be turned elsewhere between a look and the next
    found = _first_open_to_others(real) if hasattr(os, "geteuid") else None
    if found is None:
        return real
    private = _private_folder(real)
    if private is None:
        return None
    _tell(
        f"{found} can be written by other users, who could replace the compiled kernels in {real}: they are "
        f"kept in {os.path.dirname(private)} instead; to use that folder, first let nobody but you write "
        f"{found} (chmod go-w), and then delete {real}, in which others may have left code"
    )
    return private


def _private_folder(real: str) -> str | None:
    """Return a folder that nobody else can enter, one for each folder that it replaces."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(real.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    private = os.path.abspath(caches)
    try:
        for part in ("", *_PRIVATE, name):
            private = os.path.join(private, part) if part else private
            with suppress(FileExistsError):  # one by one: makedirs would give the others the umask's mode
                os.mkdir(private, 0o700)
    except OSError:
        return None
    private = os.path.realpath(private)
    usable = _first_open_to_others(private) is None and os.access(private, os.W_OK | os.X_OK)
    return private if usable else None


_told = False


def _tell(words: str) -> None:
    """Warn, once in a process: the package has several folders of kernels, and one reason."""
    global _told
    if not _told:
        _told = True
        warnings.warn(words, UserWarning, stacklevel=2)


def _guard_files(file: Any) -> None:
    """Let Numba read only files that are ours, and write files that nobody else may write."""
    load_index, load_data = file._load_index, file._load_data

    def checked_index() -> Any:
        return load_index() if is_trusted_file(file._index_path) else {}

    def checked_data(name: str) -> Any:
        path = file._data_path(name)
        if os.path.dirname(name) or not is_trusted_file(path):
            raise FileNotFoundError(path)
        return load_data(name)

    file._load_index, file._load_data, file._open_for_write = checked_index, checked_data, opened_for_write


@contextmanager
def opened_for_write(path: str) -> Iterator[Any]:
    """Write a file that appears complete, with a mode that does not depend on how generous the umask is."""
    partial = f"{path}.tmp.{uuid.uuid4().hex[:16]}"
    try:
        with open(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
