"""One function that reads any released model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dpmd_fast.models.file import Arrays, Metadata, read_sealed

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture


def load_model(path: str | os.PathLike[str]) -> Atlas | Mixture:
    """Read an atlas or a mixture, whichever the file holds; a truncated or edited file is refused.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, was edited or damaged, is of a newer version or is not a model.
    """
    return read_sealed(path, {"atlas": _atlas, "mixture": _mixture})


# The kernels of a model are imported when a file holds one.


def _atlas(metadata: Metadata, arrays: Arrays) -> Atlas | Mixture:
    from dpmd_fast.models.atlas_file import atlas_of

    return atlas_of(metadata, arrays)


def _mixture(metadata: Metadata, arrays: Arrays) -> Atlas | Mixture:
    from dpmd_fast.models.mixture_file import mixture_of

    return mixture_of(metadata, arrays)
