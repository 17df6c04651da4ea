"""Logs: one JSON object in a line, on standard error.

They name models, kinds of errors and numbers of rows. Values, names of columns, texts of errors and tokens
are never in them: they belong to the client.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_LONGEST = 4000  # bytes: lines of several processes into one pipe stay whole up to 4,096


def log(event: str, **facts: Any) -> None:
    """Write one line with the time, the process and the given facts."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = json.dumps({"time": stamp, "event": event, "pid": os.getpid(), **facts}, default=str)
    data = line.encode()
    if len(data) > _LONGEST:
        data = json.dumps({"time": stamp, "event": event, "pid": os.getpid(), "too_long": True}).encode()
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, data + b"\n")
    except OSError:  # nobody reads it any more: no reason to stop serving
        return
