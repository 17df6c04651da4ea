"""Copies of the files that are served, in a folder that is removed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from dpmd_fast.serve.registry import SUFFIX, model_files


class Copies:
    """Copies of a folder of models, one folder for each time that they are taken."""

    def __init__(self, models: str, home: str | None = None) -> None:
        self._models = models
        self.home = tempfile.mkdtemp(prefix="dpmd-fast-serve-") if home is None else home
        # systemd-tmpfiles removes what is old from temporary folders, but nothing below a locked one
        self._lock = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._generation = 0

    def take(self) -> str:
        """Return a new folder with copies of the files of all models."""
        self._generation += 1
        folder = os.path.join(self.home, str(self._generation))
        os.mkdir(folder, 0o700)
        try:
            for name, path in model_files(self._models).items():
                _copy(path, os.path.join(folder, name + SUFFIX))
        except BaseException:
            self.drop(folder)
            raise
        return folder

    def put_back(self, before: str, folder: str, names: Iterable[str]) -> None:
        """Put the old copies in the places of files that no worker could read."""
        for name in names:
            new, old = os.path.join(folder, name), os.path.join(before, name)
            with suppress(OSError):
                if os.path.exists(old):
                    os.replace(old, new)
                else:
                    os.unlink(new)

    def names(self, folder: str) -> list[str]:
        return sorted(model_files(folder))

    def drop(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.drop(self.home)
        os.close(self._lock)


def _copy(path: str, target: str) -> None:
    """Copy a file; what cannot be read becomes an empty file, which is named as broken when it is read.

    An error while writing, as on a full disk, says nothing about the file, and is raised.
    """
    parts = _parts_of(path) if os.path.isfile(path) else iter(())
    with open(target, "wb") as file:
        while True:
            try:
                part = next(parts, b"")
            except OSError:
                file.seek(0)
                file.truncate()
                return
            if not part:
                return
            file.write(part)


def _parts_of(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            yield part
