"""Write the results of asv as Markdown tables.

    python benchmarks/asv_tables.py [--results .asv/results] [--output FILE.md]

takes the newest results file of this machine. The exit status is 1 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.common import PROFILE
from benchmarks.markdown import kind_of_processor, machine, table, write

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Row(NamedTuple):
    """One benchmark at one setting of its parameters; None is a failure, NaN means not applicable."""

    benchmark: str
    parameters: str
    value: float | None
    unit: str


def newest(folder: Path) -> Path:
    """Return the newest results file of all machines in `folder`."""
    files = [path for path in folder.glob("*/*.json") if path.name != "machine.json"]
    if not files:
        raise FileNotFoundError(f"{folder} has no results: run `make bench` first")
    return max(files, key=lambda path: path.stat().st_mtime)


def read_rows(results: Path, benchmarks: Path) -> list[Row]:
    """Read the results of one asv file, with units, for the benchmarks that the last run found."""
    stored = json.loads(results.read_text("utf-8"))
    described = json.loads(benchmarks.read_text("utf-8"))
    known = {name: found for name, found in described.items() if isinstance(found, dict)}
    columns = stored["result_columns"]
    rows: list[Row] = []
    for name, values in sorted(stored["results"].items()):
        if name not in known:
            continue
        entry = dict(zip(columns, values, strict=False))
        found = entry["result"]
        settings = list(itertools.product(*entry.get("params") or []))
        if found is None:
            found = [None] * len(settings)
        for parameters, value in zip(settings, found, strict=True):
            given = zip(known[name]["param_names"], parameters, strict=True)
            text = ", ".join(p if "=" in p else f"{label}={p}" for label, p in given)
            rows.append(Row(name, text, _number(value), known[name].get("unit", "")))
    return rows


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def shown(row: Row) -> str:
    """Format a value with a readable unit."""
    value = row.value
    if value is None:
        return "**failed**"
    if math.isnan(value):
        return "not applicable"
    if row.unit == "seconds":
        scale, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
        return f"{value / scale:.3g} {unit}"
    if row.unit == "bytes":
        return f"{value / 2**20:.0f} MB" if value >= 2**20 else f"{value / 2**10:.0f} kB"
    if row.unit == "share":
        return f"{value:.0%}"
    if value >= 1e6:
        return f"{value / 1e6:.3g} million {row.unit}"
    return f"{value:.3g} {row.unit}".strip()


def sections(rows: Sequence[Row]) -> Iterator[str]:
    """Return one table per suite."""
    for suite, group in itertools.groupby(rows, key=lambda row: row.benchmark.partition(".")[0]):
        lines = [[row.benchmark.partition(".")[2], _readable(row.parameters), shown(row)] for row in group]
        yield f"## {suite}\n\n" + table(["benchmark", "parameters", "result"], lines)


def _readable(parameters: str) -> str:
    return parameters.replace("Case(", "").replace(")", "").replace("'", "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path(".asv/results"))
    parser.add_argument(
        "--output", type=Path, default=Path(f"benchmarks/results/suites-{PROFILE}-{kind_of_processor()}.md")
    )
    options = parser.parse_args(arguments)
    rows = read_rows(newest(options.results), options.results / "benchmarks.json")
    failed = [row for row in rows if row.value is None]
    title = f"# The asv suites, {PROFILE} profile"
    text = (
        f"{len(rows)} results of {len({row.benchmark for row in rows})} benchmarks, {len(failed)} failed. "
        "Times are medians of a few samples, peaks of memory those of the whole process."
    )
    write(options.output, "\n\n".join([title, machine(None), text, *sections(rows)]) + "\n")
    print(f"{options.output}: {text} (Python {platform.python_version()})")
    for row in failed:
        print(f"failed: {row.benchmark} {row.parameters}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
