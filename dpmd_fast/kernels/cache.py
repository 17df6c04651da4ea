"""Whether there is a folder to keep compiled kernels in; looked at before any kernel is defined.

Numba looks for one when a function is defined, and refuses to define it where none can be written: on a
read-only installation without a home, say. Kernels are then compiled in memory, anew in every process:
slow to begin with, but no less right.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator

_SWITCH = "DPMD_FAST_CACHE"  # that `kernels.jit` looks at; child processes inherit it


def disable_unsafe_cache() -> None:
    """Switch the cache off, with a warning, where there is no folder for it."""
    if os.environ.get(_SWITCH, "1") == "0" or os.name == "nt":
        return
    if any(_writable(folder) for folder in _folders()):
        return
    os.environ[_SWITCH] = "0"
    warnings.warn(
        "no folder can be written that would keep compiled kernels: every process compiles anew, for a "
        "minute or two; set NUMBA_CACHE_DIR to a folder that can be written",
        UserWarning,
        stacklevel=3,
    )


def _folders() -> Iterator[str]:
    """Where Numba would look, in its order."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield given
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__")
    if sys.platform == "darwin":
        yield os.path.expanduser("~/Library/Caches/numba")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        yield os.path.join(home, "numba")


def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
