"""One function that reads any released model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dpmd_fast.models.file import Arrays, Metadata, read_sealed

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture


def load_model(path: str | os.PathLike[str], *, trusted: Any = None) -> Atlas | Mixture:
    """Read an atlas or a mixture, whichever the file holds; a truncated or edited file is refused.

    Parameters
    ----------
    path : path
    trusted : path or str, or several, optional
        Public keys: paths of their files, or their names, ``ed25519:...``. What none of them has signed is
        refused. Without it unsigned files are taken, and ``model.signature`` is None for them.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, was edited or damaged, is of a newer version, is not a model or is not
        signed by a trusted key.
    """
    return read_sealed(path, {"atlas": _atlas, "mixture": _mixture}, trusted)


def unsigned_bytes(model: Atlas | Mixture) -> bytes:
    """Return the file of a model without its signature: the same bytes for two files of one model."""
    from dpmd_fast.models import atlas_file, mixture_file
    from dpmd_fast.models.atlas import Atlas

    if isinstance(model, Atlas):
        return atlas_file.unsigned_bytes(model)
    return mixture_file.unsigned_bytes(model)


# The kernels of a model are imported when a file holds one.


def _atlas(metadata: Metadata, arrays: Arrays) -> Atlas | Mixture:
    from dpmd_fast.models.atlas_file import atlas_of

    return atlas_of(metadata, arrays)


def _mixture(metadata: Metadata, arrays: Arrays) -> Atlas | Mixture:
    from dpmd_fast.models.mixture_file import mixture_of

    return mixture_of(metadata, arrays)
