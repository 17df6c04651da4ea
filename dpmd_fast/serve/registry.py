"""The models of a folder: read at the start, and again when asked.

    folder/knot.dpmd  -->  "knot": model, digest of its file, what clients may know of it

A reload replaces all models in one step. A call keeps the model that it began with. A file that cannot be
read is named, and the model that was there under its name stays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpmd_fast.errors import UserError, UserFileNotFoundError, UserValueError

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture

SUFFIX = ".dpmd"


@dataclass(frozen=True)
class Served:
    """A model under its name."""

    name: str
    model: Atlas | Mixture
    digest: str  # SHA-256 of its file
    facts: dict[str, Any]  # what clients may know of it, in JSON's types


@dataclass(frozen=True)
class Reloaded:
    """What a reload has found, by names of models."""

    served: tuple[str, ...]
    new: tuple[str, ...]  # new, or of another content than before
    gone: tuple[str, ...]
    broken: dict[str, str]  # file names and what is wrong with them

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def model_files(folder: str) -> dict[str, str]:
    """Return the path of each model's file in a folder, by the model's name."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except FileNotFoundError:
        raise UserFileNotFoundError(f"{folder} does not exist: must be a folder of models") from None
    except NotADirectoryError:
        raise UserValueError(f"{folder} is a file: must be a folder of models") from None
    return {
        name.removesuffix(SUFFIX): os.path.join(folder, name)
        for name in names
        if name.endswith(SUFFIX) and not name.startswith(".")
    }


def load(path: str, trusted: Sequence[str] = ()) -> tuple[Atlas | Mixture, str]:
    """Read a model, and the digest of its file: the one place where a served model is loaded.

    With names of trusted keys, only what one of them has signed is read.
    """
    from dpmd_fast.models.load import load_model

    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would keep us waiting
        raise UserValueError(f"{path} is not a file")
    digest = _digest(path)  # before: of a file that is replaced meanwhile, the next reload sees a difference
    model = load_model(path, trusted=list(trusted) or None)
    model.prepare()
    return model, digest


def _digest(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            total.update(part)
    return total.hexdigest()


class Registry:
    """The models that are served now."""

    def __init__(self, trusted: Sequence[str] = ()) -> None:
        self.trusted = tuple(trusted)  # names of the keys, one of which must have signed a model; () for any
        self._models: dict[str, Served] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> Served | None:
        return self._models.get(name)

    def all(self) -> list[Served]:
        return list(self._models.values())

    def reload(self, folder: str, shown_as: str | None = None) -> Reloaded:
        """Read the models of a folder; texts about broken files call it `shown_as`."""
        with self._lock:
            before = self._models
            after: dict[str, Served] = {}
            broken: dict[str, str] = {}
            for name, path in model_files(folder).items():
                known = before.get(name)
                try:
                    if not name.isprintable() or not name:
                        raise UserValueError("its name must be printable text")
                    if known is not None and _digest(path) == known.digest:
                        after[name] = known
                        continue
                    model, digest = load(path, self.trusted)
                    after[name] = Served(name, model, digest, facts_of(name, model, digest))
                except Exception as problem:  # whatever is wrong with one file, the others are served
                    shown = isinstance(problem, UserError)
                    text = str(problem) if shown else f"cannot be read: {type(problem).__name__}"
                    broken[name + SUFFIX] = text.replace(folder, shown_as or folder)
                    if known is not None:
                        after[name] = known
            self._models = after
        return Reloaded(
            served=tuple(after),
            new=tuple(name for name, one in after.items() if before.get(name) is not one),
            gone=tuple(name for name in before if name not in after),
            broken=broken,
        )


def facts_of(name: str, model: Atlas | Mixture, digest: str) -> dict[str, Any]:
    """Return what clients may know of a model: guarantee, columns, verdict."""
    from dpmd_fast.models.mixture import Mixture

    mixture = isinstance(model, Mixture)
    return {
        "name": name,
        "model": "mixture" if mixture else "atlas",
        "columns": None if model.column_names is None else list(model.column_names),
        "n_columns": model.n_columns,
        "guarantee": model.guarantee.to_dict(),
        "verdict": None if model.verdict is None else model.verdict.to_dict(),
        "noise": "needed" if mixture else "not used",
        "on_missing": ["fill", "keep", "refuse"] if mixture else ["refuse", "keep"],
        "sha256": digest,
        "signed_by": None if model.signature is None else model.signature.key,
    }
