"""Markdown for the scripts: tables, numbers, a description of the machine.

python benchmarks/markdown.py     # prints the kind of this processor, by which results are named
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.common import THREADS

#: Names of vector instructions by what Linux calls them, the widest first.
WIDEST = {"avx512f": "avx512", "sve": "sve", "avx2": "avx2", "asimd": "neon", "sse2": "sse2"}
#: Generations that need a name of their own, by maker and family: results of AMD's others are named without.
GENERATIONS = {("AuthenticAMD", "26"): "Zen 5"}
PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dpmd-fast")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(value: float) -> str:
    return f"{value:.3g}"


def megabytes(value: float) -> str:
    return f"{value / 2**20:.0f} MB"


def machine(pause: float | None, others: Iterable[str] = ()) -> str:
    """Processor, cores, versions, and the idle share of the processors over `pause` seconds, if wanted.

    `others` are further packages whose versions matter; those that are not installed are left out.
    """
    versions = ", ".join(f"{name} {found}" for name, found in _versions((*PACKAGES, *others)))
    lines = [
        f"- processor: {processor()}, {os.cpu_count()} cores; threads: {THREADS} on each side",
        f"- Python {platform.python_version()}, {versions}",
    ]
    if pause is not None:
        idle = idle_share(pause)
        lines.append(f"- idle share before the run: {'unknown' if idle is None else f'{idle:.0%}'}")
    return "\n".join(lines)


def _versions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def processor() -> str:
    """Return the name of this processor, with its generation where a virtual machine hides the model."""
    name = _told("model name")
    generation = GENERATIONS.get((_told("vendor_id"), _told("cpu family")), "")
    if generation and not re.search(r"\d", name):
        name = f"{name} ({generation})"
    return name or platform.processor() or platform.machine()


def _told(*names: str) -> str:
    """Return what Linux tells of the first processor, "" if nothing."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(names):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def kind_of_processor(name: str | None = None, features: str | None = None) -> str:
    """Maker, model and widest vectors of a processor, by default of this one, as in "amd-epyc-avx2"."""
    words = re.sub(
        r"\((r|tm)\)|@.*|\d+-core|processor|cpu", " ", (processor() if name is None else name).lower()
    )
    flags = set((_told("flags", "Features") if features is None else features).split())
    wide = next((wide for wide in WIDEST if wide in flags), "")
    found = re.findall(r"[a-z0-9]+", f"{words} {WIDEST.get(wide, platform.machine())}")
    return "-".join(found)


def idle_share(pause: float) -> float | None:
    """Share of idle time of all processors over the next `pause` seconds, if /proc/stat exists."""
    try:
        before = _processor_times()
        time.sleep(pause)
        spent = _processor_times() - before
    except OSError:
        return None
    return float(spent[3:5].sum() / spent[:8].sum())


def _processor_times() -> np.ndarray:
    with open("/proc/stat") as stat:
        return np.array(stat.readline().split()[1:], dtype=float)


def arguments_of(
    description: str | None, sections: Sequence[str], given: Sequence[str] | None
) -> argparse.Namespace:
    """The options that the scripts share: `quick`, `only` (all sections if none is named), `output`."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=sections, action="append", help="one part; may be repeated")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the tables there, too")
    options = parser.parse_args(given)
    options.only = options.only or list(sections)
    return options


def print_report(parts: Iterable[str], output: Path | None) -> None:
    """Print each part as it comes, and write all parts so far to `output`."""
    kept: list[str] = []
    for part in parts:
        print(part, end="\n\n", flush=True)
        kept.append(part)
        if output is not None:
            write(output, "\n\n".join(kept) + "\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    print(kind_of_processor())
