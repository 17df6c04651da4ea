"""Counts of what a server has done, as text for Prometheus.

A worker counts; the supervisor adds up the snapshots of all workers, also of those that have died. Labels are
names of served models and kinds of errors: a client cannot make new ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

#: Upper ends of the histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_HELP = {
    "requests": "Calls that have ended, by model.",
    "rows": "Rows that were sent back clean, by model.",
    "errors": "Calls that ended with an error, by model and kind.",
}
Snapshot = dict[str, Any]


class Metrics:
    """Counters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()  # what, model, kind
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def ended(self, model: str, rows: int, seconds: float, error: str | None) -> None:
        """Count one call; `model` is "" if it named none that is served."""
        place = next((place for place, end in enumerate(BUCKETS) if seconds <= end), len(BUCKETS))
        with self._lock:
            self._counts["requests", model, ""] += 1
            self._counts["rows", model, ""] += rows
            if error is not None:
                self._counts["errors", model, error] += 1
            self._buckets[place] += 1
            self._seconds += seconds

    def snapshot(self, in_flight: int) -> Snapshot:
        """Return all counts in JSON's types."""
        with self._lock:
            counts = [[*key, number] for key, number in self._counts.items()]
            return {
                "counts": counts,
                "buckets": list(self._buckets),
                "seconds": self._seconds,
                "in_flight": in_flight,
            }


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the sum of snapshots."""
    counts: Counter[tuple[str, str, str]] = Counter()
    buckets, seconds, in_flight = [0] * (len(BUCKETS) + 1), 0.0, 0
    for one in snapshots:
        for what, model, kind, number in one["counts"]:
            counts[what, model, kind] += number
        buckets = [mine + more for mine, more in zip(buckets, one["buckets"], strict=True)]
        seconds += one["seconds"]
        in_flight += one["in_flight"]
    made = [[*key, number] for key, number in counts.items()]
    return {"counts": made, "buckets": buckets, "seconds": seconds, "in_flight": in_flight}


def prometheus(snapshot: Snapshot, workers: int) -> str:
    """Return a snapshot in Prometheus' text format."""
    lines = []
    for what, text in _HELP.items():
        lines += [f"# HELP dpmd_fast_{what}_total {text}", f"# TYPE dpmd_fast_{what}_total counter"]
        for name, model, kind, number in sorted(snapshot["counts"]):
            if name == what:
                labels = f'model="{_escaped(model)}"' + (f',kind="{_escaped(kind)}"' if kind else "")
                lines.append(f"dpmd_fast_{what}_total{{{labels}}} {number}")
    name = "dpmd_fast_request_seconds"
    lines += [f"# HELP {name} Time from the start of a call to its end.", f"# TYPE {name} histogram"]
    total = 0
    for end, number in zip((*BUCKETS, "+Inf"), snapshot["buckets"], strict=True):
        total += number
        lines.append(f'{name}_bucket{{le="{end}"}} {total}')
    lines += [f"{name}_sum {snapshot['seconds']:.6f}", f"{name}_count {total}"]
    for gauge, text, value in (
        ("in_flight", "Calls that are open now.", snapshot["in_flight"]),
        ("workers", "Worker processes that are counted here.", workers),
    ):
        lines += [f"# HELP dpmd_fast_{gauge} {text}", f"# TYPE dpmd_fast_{gauge} gauge"]
        lines.append(f"dpmd_fast_{gauge} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
