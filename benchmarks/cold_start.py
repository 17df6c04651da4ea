"""The first result on a machine: seconds of every route, and of every kernel, with an empty cache.

    python benchmarks/cold_start.py [--quick] [--only SECTION] [--output FILE.md]

Each route runs in processes of its own with a new NUMBA_CACHE_DIR, once cold and once more from the cache.
Processor seconds are user and system time of the process and of those that compile for it: on a machine that
others use too they are the honest number. Kernels are compiled one after the other in one process.
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
budget = d.Budget(1.0, 1e-6)
"""
ROUTES = {
    "import": "",
    "release_moments": "d.release_moments(Y, Z, bandwidth=0.5, budget=budget)",
    "release_atlas": "d.release_atlas(Y, Z, dim=1, budget=budget, accept_risk=True)",
    "Atlas.load, transform": "d.Atlas.load(sys.argv[1]).transform(Z)",
    "release_mixture": "d.release_mixture(Y, budget=budget, components=2, accept_risk=True)",
    "Mixture.load, transform": "d.Mixture.load(sys.argv[2]).transform(Z, 0.1)",
    "dp_projector": "d.dp_projector(Y, Z[0], 0.5, 1, budget)",
    "ManifoldDenoiser": "d.ManifoldDenoiser(0.5, 1).fit(Y).transform(Z)",
    "DPManifoldDenoiser, projector": (
        'd.DPManifoldDenoiser(0.5, 1, budget, mechanism="projector").fit(Y).transform(Z)'
    ),
    "warmup, transform": 'd.warmup("transform")',
    "warmup, all": "d.warmup()",
}
_MODELS = """
d.release_atlas(Y, Z, dim=1, budget=d.Budget(50.0, 1e-3), accept_risk=True).save(sys.argv[1])
d.release_mixture(Y, budget=d.Budget(50.0, 1e-3), components=2, accept_risk=True).save(sys.argv[2])
"""
_KERNELS = """
import json, sys, time
from dpmd_fast.kernels.signatures import dispatcher_of, groups_of, types_of
chosen = sys.argv[1:]
for group in groups_of():
    for name in group:
        if chosen and not any(part in name for part in chosen):
            continue
        kernel, given = dispatcher_of(name), types_of(name)
        start = time.process_time()
        kernel.compile(given)
        print(json.dumps([name, time.process_time() - start]), flush=True)
"""


def run(code: str, cache: str, *arguments: str, **settings: str) -> tuple[float, float]:
    """Return wall and processor seconds of a program with its kernels in the folder `cache`."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "DPMD_FAST_CACHE": "1", **settings}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show_routes(names: Sequence[str]) -> str:
    """Time routes with an empty cache and with a full one."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = [os.path.join(folder, name) for name in ("atlas.dpmd", "mixture.dpmd")]
        run(_DATA + _MODELS, os.path.join(folder, "first"), *models)
        for name in names:
            with tempfile.TemporaryDirectory() as cache:
                cold = run(_DATA + ROUTES[name], cache, *models)
                warm = run(_DATA + ROUTES[name], cache, *models)
            rows.append([name, *(f"{value:.1f}" for value in (*cold, *warm))])
    columns = ("route", "cold, s", "processor s", "from the cache, s", "processor s")
    return f"## Routes, from the start of Python\n\n{table(columns, rows)}"


def kernel_seconds(*parts: str) -> list[tuple[str, float]]:
    """Compile the kernels whose names contain one of `parts`, all by default; return processor seconds."""
    settings = {**os.environ, "DPMD_FAST_CACHE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _KERNELS, *parts], check=True, env=settings, capture_output=True, text=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def show_kernels(*parts: str) -> str:
    found = kernel_seconds(*parts)
    rows = [[name, f"{spent:.1f}"] for name, spent in found]
    rows.append(["together", f"{sum(spent for _, spent in found):.1f}"])
    return f"## Kernels, compiled in one process\n\n{table(('kernel', 'processor s'), rows)}"


def report(sections: Sequence[str], quick: bool) -> Iterator[str]:
    """Yield the Markdown, part by part."""
    yield "# Cold start"
    yield machine(0.5 if quick else 3.0)
    if "routes" in sections:
        yield show_routes(list(ROUTES)[:2] if quick else list(ROUTES))
    if "kernels" in sections:
        yield show_kernels(*(["search.index"] if quick else []))


def main(arguments: Sequence[str] | None = None) -> None:
    options = arguments_of(__doc__, SECTIONS, arguments)
    print_report(report(options.only, options.quick), options.output)


if __name__ == "__main__":
    main()
