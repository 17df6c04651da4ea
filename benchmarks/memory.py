"""Resident memory of this process, from /proc where there is one.

Unlike `ru_maxrss` this does not count what the parent had at the fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import clock


def resident(key: str) -> int | None:
    """A line of /proc/self/status in bytes: "VmRSS" is now, "VmHWM" the peak."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def peak_memory() -> int:
    """Largest resident memory of this process so far, or since `reset_peak`."""
    found = resident("VmHWM")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if found is None else found


def reset_peak() -> bool:
    """Set the peak of resident memory back to its present value, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Return freed memory to the system, where its C library can."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def growth(call: Callable[[], Any]) -> tuple[float, int, Any]:
    """Return the seconds of a call, its peak memory over what was resident before, and its result.

    Memory that was freed goes back to the system first: a call that fills it again would seem to need none.
    Where the peak cannot be set back, growth counts from the largest peak so far.
    """
    give_back()
    before = resident("VmRSS")
    if before is None or not reset_peak():
        before = peak_memory()
    spent, result = clock(call)
    return spent, max(0, peak_memory() - before), result
