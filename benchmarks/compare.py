"""Compare with scikit-learn, NumPy, SciPy, faiss, OpenDP, diffprivlib and dp-accounting.

    python benchmarks/compare.py [--quick] [--only SECTION] [--output FILE.md]

Ratios are measured in one run, with as many threads on both sides where the other side can use them, and each
table says whether the two do the same thing. Prints Markdown. Run it on an idle machine; the idle share just
before the run is part of the output. Peers that are not installed (`pip install dpmd-fast[bench]`) are left
out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.compare_geometry import compare_geometry
from benchmarks.compare_privacy import show_accounting, show_covariance, show_noise
from benchmarks.compare_search import show_search
from benchmarks.markdown import arguments_of, machine, megabytes, print_report, seconds, table
from dpmd_fast import LargeDeltaWarning, warmup

__all__ = ["machine", "megabytes", "seconds", "table"]  # for the other scripts

SECTIONS = ("local-pca", "algorithm2", "memory", "search", "noise", "accounting", "covariance")
PEERS = ("faiss-cpu", "opendp", "diffprivlib", "dp-accounting")


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    """Yield the Markdown, part by part."""
    yield "# dpmd_fast side by side"
    yield machine(0.5 if quick else 3.0, PEERS)
    warmup()
    yield from compare_geometry(sections, quick)
    if "search" in sections:
        yield show_search(quick)
    if "noise" in sections:
        yield from show_noise(200_000 if quick else 10_000_000, 3)
    if "accounting" in sections:
        yield show_accounting(1 if quick else 5)
    if "covariance" in sections:
        yield show_covariance(*((2_000, (3,), 30.0) if quick else (20_000, (3, 5, 10, 60), 30.0)))


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    warnings.simplefilter("ignore", LargeDeltaWarning)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
