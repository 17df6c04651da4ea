"""Files that appear under their name complete, or not at all.

A file is written under a random name in the folder of its target, flushed to disk, and then renamed or
linked. Whatever fails before that leaves the target as it was and removes the partial file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dpmd_fast.errors import (
    UserFileExistsError,
    UserFileNotFoundError,
    UserIsADirectoryError,
    UserOSError,
    UserValueError,
    either,
)


@contextmanager
def atomic_write(
    target: str | os.PathLike[str], *, overwrite: bool = False, rehearse: bool = False, mode: int = 0o666
) -> Iterator[str]:
    """Yield the path of an empty partial file; when the block ends, give the file its name.

    Parameters
    ----------
    target : path
        Checked as by `check_target`, before the block begins.
    overwrite : bool
        Whether a file of that name may be replaced. If not, one that appears during the block is not
        replaced either.
    rehearse : bool
        Remove the file in the end instead: what can fail has then failed.
    mode : int
        Of the file, before the umask.
    """
    name = os.fsdecode(target)
    _check_name(name, overwrite)
    try:
        with partial_file(name, mode) as partial:
            yield partial
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            if rehearse:
                return
            _publish(partial, name, overwrite)
    except OSError as problem:
        if problem.errno is None:  # has been explained
            raise
        raise UserOSError(f"{name} could not be written: {problem.strerror}") from None
    sync_folder(os.path.dirname(name))


@contextmanager
def partial_file(target: str, mode: int = 0o666) -> Iterator[str]:
    """Yield the path of a new, empty file in the folder of `target`, and remove that path in the end."""
    partial = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), mode))
        yield partial
    finally:  # also where a signal comes in between
        with suppress(FileNotFoundError):
            os.unlink(partial)


def check_target(target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Refuse a name under which no file can be written; nothing stays on disk."""
    name = os.fsdecode(target)
    _check_name(name, overwrite)
    try:
        with partial_file(name):
            pass
    except OSError as problem:
        raise UserOSError(f"{name} cannot be written: {problem.strerror}") from None


def sync_folder(folder: str) -> None:
    """Make new names in a folder survive a loss of power, where the system can open folders."""
    with suppress(OSError):
        descriptor = os.open(folder or os.curdir, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_identity(path: object) -> tuple[int, int] | None:
    """Return what all names of one file share (device and inode), or None if there is no such file."""
    try:
        found = os.stat(path)  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _check_name(name: str, overwrite: bool) -> None:
    if not os.path.basename(name):
        raise UserValueError(f"{name!r} cannot be written: must be the name of a file")
    folder = os.path.dirname(name) or os.curdir
    if not os.path.isdir(folder):
        raise UserFileNotFoundError(f"{name} cannot be written: there is no folder {folder}")
    try:
        os.stat(name)
        there = True
    except FileNotFoundError:
        there = False
    except OSError as problem:
        raise UserOSError(f"{name} cannot be written: {problem.strerror}") from None
    if os.path.isdir(name):
        raise UserIsADirectoryError(f"{name} is a directory: must be the name of a file")
    if there and not os.path.isfile(name):
        raise UserOSError(f"{name} cannot be written: it is not a regular file")
    if there and not overwrite:
        advice = either("overwrite=True to replace it", "--force")
        raise UserFileExistsError(f"{name} exists: choose another name, or pass {advice}")


def _publish(partial: str, target: str, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(partial, target)  # fails if the name is taken
            return
        except FileExistsError:
            raise UserFileExistsError(
                f"{target} could not be written: another file has got that name since the work began"
            ) from None
        except OSError:  # no hard links on this file system
            _check_name(target, overwrite)
    os.replace(partial, target)
