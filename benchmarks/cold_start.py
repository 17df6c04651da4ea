"""The first result on a machine: seconds of every route, and of every kernel, with an empty cache.

    python benchmarks/cold_start.py [--quick] [--only SECTION] [--output FILE.md]

Each route runs in processes of its own with a new NUMBA_CACHE_DIR, once cold and once more from the cache.
Processor seconds are user and system time of the process and of those that compile for it: on a machine that
others use too they are the honest number. Those of the kernels are told by the processes that compile for
`warmup`. Python's byte code is there already, as after an installation by pip.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.markdown import arguments_of, machine, print_report, table

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("routes", "kernels")
_DATA = """
import sys, warnings
import numpy as np
import dpmd_fast as d
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
angles = rng.uniform(0.0, 6.2832, 2_050)
points = np.column_stack([np.cos(angles), np.sin(angles)])
Y, Z = points[50:], points[:50] + 0.01
Y_wide, Z_wide = rng.normal(size=(2_000, 12)), rng.normal(size=(50, 12))
budget = d.Budget(1.0, 1e-6)
"""
ROUTES = {
    "release_moments": "d.release_moments(Y, Z, bandwidth=0.5, budget=budget)",
    "release_atlas": "d.release_atlas(Y, Z, dim=1, budget=budget, accept_risk=True)",
    "Atlas.load, transform": "d.Atlas.load(sys.argv[1]).transform(Z)",
    "Atlas.load, transform, charts in 12 columns": "d.Atlas.load(sys.argv[3]).transform(Z_wide)",
    "release_mixture": "d.release_mixture(Y, budget=budget, components=2, accept_risk=True)",
    "Mixture.load, transform": "d.Mixture.load(sys.argv[2]).transform(Z, 0.1)",
    "dp_projector": "d.dp_projector(Y, Z[0], 0.5, 1, budget)",
    "ManifoldDenoiser": "d.ManifoldDenoiser(0.5, 1).fit(Y).transform(Z)",
}
# Compiles all kernels, or those of a purpose, and prints what each took.
_WARMUP = """
import json, sys
import dpmd_fast as d
from dpmd_fast import compilation
d.warmup(*sys.argv[1:])
print(json.dumps(compilation.seconds))
"""
_MODELS = """
d.release_atlas(Y, Z, dim=1, budget=d.Budget(50.0, 1e-3), accept_risk=True).save(sys.argv[1])
d.release_mixture(Y, budget=d.Budget(50.0, 1e-3), components=2, accept_risk=True).save(sys.argv[2])
settings = {"dim": 2, "bandwidth": 4.0, "budget": d.Budget(50.0, 1e-3), "accept_risk": True}
wide = d.release_atlas(Y_wide, Z_wide, **settings)
assert wide.subspace is None
wide.save(sys.argv[3])
"""


class Spent(NamedTuple):
    """What a program took, and what it printed."""

    wall: float
    processor: float
    output: str


def child_environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that keeps byte code, with changes."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "DPMD_FAST_CACHE": "1", **changes}


def run(code: str, cache: str, *arguments: str) -> Spent:
    """Run a program with its kernels in the folder `cache`."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = child_environment(NUMBA_CACHE_DIR=cache, PYTHONPATH=path)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(wall, used, done.stdout)


def twice(name: str, code: str, cache: str, *arguments: str) -> tuple[list[str], str]:
    """Run a program with an empty cache and with a full one; return a row and what was printed."""
    cold, warm = run(code, cache, *arguments), run(code, cache, *arguments)
    return [name, *(f"{value:.1f}" for value in (*cold[:2], *warm[:2]))], cold.output


def show_routes(names: Sequence[str], rows: list[list[str]], folder: str) -> str:
    """Time routes with an empty cache and with a full one, after the `rows` that are there already."""
    models = [os.path.join(folder, name) for name in ("atlas.dpmd", "mixture.dpmd", "wide.dpmd")]
    if names:
        run(_DATA + _MODELS, os.path.join(folder, "all"), *models)
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            rows.append(twice(name, _DATA + ROUTES[name], cache, *models)[0])
    columns = ("route", "cold, s", "processor s", "from the cache, s", "processor s")
    return f"## Routes, from the start of Python\n\n{table(columns, rows)}"


def show_kernels(found: dict[str, float]) -> str:
    rows = [[name, f"{spent:.1f}"] for name, spent in sorted(found.items(), key=lambda one: -one[1])]
    rows.append(["together", f"{sum(found.values()):.1f}"])
    return f"## Kernels\n\n{table(('kernel', 'processor s'), rows)}"


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    """Yield the Markdown, part by part."""
    yield "# Cold start"
    yield machine(0.5 if quick else 3.0)
    with tempfile.TemporaryDirectory() as folder:
        run(_WARMUP, os.path.join(folder, "other"), "transform")  # makes the byte code
        purposes = ["transform"] if quick else []
        name = f"warmup, {' '.join(purposes) or 'all'}"
        row, printed = twice(name, _WARMUP, os.path.join(folder, "all"), *purposes)
        if "kernels" in sections:
            yield show_kernels(json.loads(printed))
        if "routes" in sections:
            yield show_routes([] if quick else list(ROUTES), [row], folder)


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
