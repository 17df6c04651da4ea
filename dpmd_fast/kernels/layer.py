"""The threads of Numba's parallel loops, as this package wants them."""

from __future__ import annotations

import functools
import os


@functools.cache
def start_layer() -> None:
    """Start Numba's threads, so that compiled code finds them; those of GNU OpenMP sleep while they wait.

    By default they spin, and keep a thread that they wait for from its core: beside a busy process releases
    took twice as long. On an idle machine sleeping costs a few per cent. A choice of the user's stands.
    """
    import numba

    chosen = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    if not chosen:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        numba.get_num_threads()  # loads the library, which reads its settings now
    finally:
        if not chosen:
            os.environ.pop("OMP_WAIT_POLICY", None)  # for no other library, and no other process
