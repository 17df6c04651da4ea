"""How many doubles a vector of the kernels holds, by the processor that Numba compiles for.

Eight where there is AVX-512, four elsewhere: LLVM splits vectors of four into halves for NEON and SSE2. The
width changes no bit of a result: elements of products are chains of their own, integers are exact in any
order, and what is summed across lanes has a fixed number of them, whatever vectors hold them.

Numba compiles for the host unless ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` say otherwise, and has both
in the keys of its cache: code of one width is never taken for another. ``DPMD_FAST_LANES=8`` asks for vectors
of eight on any processor. They are no faster there, but tests can run them.
"""

from __future__ import annotations

import os
from typing import Any

from dpmd_fast.kernels import late

_SWITCH = "DPMD_FAST_LANES"
NARROW, WIDE = 4, 8


def target_features() -> str:
    """Return the features of the processor that Numba compiles for, as LLVM writes them: ``+avx,-avx2``."""
    if late.is_active():  # then nothing is set that would make Numba compile for another one
        from llvmlite.binding import get_host_cpu_features

        return str(get_host_cpu_features().flatten())
    import numba
    from numba.core import codegen

    config: Any = numba.config
    return str(codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES)


def width_for(features: str) -> int:
    """Return the number of doubles in a vector on a processor with these features.

    A list that does not mention AVX-512, as that of a processor by name alone, gets vectors of four, which
    are right on every processor.
    """
    mentions = [word for word in features.split(",") if word[1:] == "avx512f"]
    return WIDE if mentions[-1:] == ["+avx512f"] else NARROW


def chosen_width() -> str:
    """Return the width that the environment asks for, "" if it leaves it to the processor."""
    asked = os.environ.get(_SWITCH, "")
    if asked not in ("", str(NARROW), str(WIDE)):
        raise ValueError(f"{_SWITCH} must be {NARROW} or {WIDE}, not {asked!r}")
    return asked


#: Doubles in a vector of this process.
WIDTH = int(chosen_width() or width_for(target_features()))
#: Whether there is an instruction of AVX-512 that moves chosen lanes to the front, whatever the width.
HAS_COMPRESSION = width_for(target_features()) == WIDE
