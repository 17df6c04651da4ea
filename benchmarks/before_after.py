"""Every stage in two states of the code, side by side in one run: idle, and beside a busy process.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py --before ../before [--quick] [--only stages|cold|files] [--output F.md]

Both trees run in processes of their own that take turns; the best turn of each counts, for latencies their
medians. `before_after_stages.py` measures one tree, by public names alone. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.cold_start import _DATA, ROUTES, child_environment
from benchmarks.common import Case, make_problem
from benchmarks.latency import busy_process
from benchmarks.markdown import machine, print_report, table
from benchmarks.transform_file import ANCHORS, MAKE, NOISE, PIECE, PLAIN, RECORDS, SIGMA, TRANSFORM

HERE = Path(__file__).resolve().parents[1]
SECTIONS = ("stages", "cold", "files")
COLD = {
    "first atlas": ROUTES["release_atlas"],
    "Atlas.load and transform": ROUTES["Atlas.load, transform"],
}
COLUMNS = 10  # of the Parquet file

Sides = dict[str, Path]


def make_data(folder: Path, quick: bool) -> None:
    """Write the records, queries and radii that both trees use."""
    small = 20 if quick else 1
    cases = {
        f"sums {D}": Case(D, 50_000 // small, 5, m=1_000 // small, ball=3_000 // small) for D in (20, 60, 100)
    }
    cases |= {f"pca {D} {d}": Case(D, n // small, d, ball=300 // small) for D, n, d in _LOCAL_PCA}
    for name, case in cases.items():
        Y, Z, radius = make_problem(case)
        np.savez(folder / f"{name}.npz", Y=Y, Z=Z, radius=radius)


_LOCAL_PCA = ((20, 30_000, 2), (20, 30_000, 5), (60, 50_000, 5))


def environment(tree: Path, cache: str | None = None) -> dict[str, str]:
    changed = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    return child_environment(**changed, **({} if cache is None else {"NUMBA_CACHE_DIR": cache}))


def measured(tree: Path, folder: Path, quick: bool) -> dict[str, float]:
    """Return what `before_after_stages.py` measures in a tree, by names that end in a unit."""
    script = Path(__file__).with_name("before_after_stages.py")
    command = [sys.executable, str(script), str(folder), *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, env=environment(tree), stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def stages(sides: Sides, folder: Path, quick: bool) -> Iterator[str]:
    """Yield a table of stages on an idle machine, and one beside a busy process."""
    make_data(folder, quick)
    for tree in sides.values():
        measured(tree, folder, True)  # compiles
    for state in ("on an otherwise idle machine", "beside a busy process"):
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(1 if quick else 3):
            for name, tree in sides.items():
                if state.startswith("beside"):
                    with busy_process():
                        turns[name].append(measured(tree, folder, quick))
                else:
                    turns[name].append(measured(tree, folder, quick))
        yield f"## Stages, {state}\n\n{compared({name: best(found) for name, found in turns.items()})}"


def best(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the least of all turns; of latencies and their ratios the median."""
    choose: dict[bool, Callable[..., float]] = {True: lambda values: float(np.median(values)), False: min}
    return {
        name: choose[", us" in name or "times" in name]([turn[name] for turn in turns]) for name in turns[0]
    }


def compared(found: dict[str, dict[str, float]]) -> str:
    """Return a table of two sides and their ratio."""
    before, after = found.values()
    rows = [
        [name, f"{before[name]:.3g}", f"{after[name]:.3g}", f"{before[name] / after[name]:.2f}"]
        for name in after
    ]
    return table(["", *found, "before / after"], rows)


def cold(sides: Sides, folder: Path, quick: bool) -> Iterator[str]:
    """Yield a table of first results with an empty cache of kernels."""
    found: dict[str, dict[str, float]] = {name: {} for name in sides}
    for name, tree in sides.items():
        model = str(folder / f"{name}.dpmd")
        for route, code in COLD.items():
            with tempfile.TemporaryDirectory() as cache:
                save = "" if "load" in code else ".save(sys.argv[1])"
                start = time.perf_counter()
                command = [sys.executable, "-c", f"{_DATA}\n{code}{save}", model]
                subprocess.run(command, check=True, env=environment(tree, cache), stderr=subprocess.DEVNULL)
                found[name][f"{route}, empty cache, s"] = time.perf_counter() - start
    yield f"## First results\n\n{compared(found)}"


def files(sides: Sides, folder: Path, quick: bool) -> Iterator[str]:
    """Yield a table of `dpmd-fast transform`, beside a plain read and write of the same Parquet file."""
    rows = 20_000 if quick else 2_000_000
    found: dict[str, dict[str, float]] = {name: {} for name in sides}
    name_of_row = f"transform of a Parquet file, {rows:,} rows, times a plain read and write"
    for name, tree in sides.items():
        home = folder / f"files {name}"
        home.mkdir()
        sizes = [str(one) for one in (COLUMNS, RECORDS, ANCHORS, SIGMA, NOISE, PIECE, rows)]
        run([MAKE, str(home), *sizes], tree)
        source, target = str(home / f"{rows}.parquet"), str(home / "out.parquet")
        clean = [TRANSFORM, "--atlas", str(home / "atlas.dpmd"), source, "-o", target, "--force"]
        plain = [PLAIN, source, target, "same"]
        times = [(run(plain, tree), run(clean, tree)) for _ in range(1 if quick else 4)]
        least = np.min(times, axis=0)
        found[name] = {name_of_row: float(least[1] / least[0]), "the same, rows, s": float(least[1])}
    yield f"## Files\n\n{compared(found)}"


def run(command: Sequence[str], tree: Path) -> float:
    """Return the seconds that a process takes for some code with arguments."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", *command], check=True, env=environment(tree), stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def report(options: argparse.Namespace) -> Iterator[str]:
    sides = {"before": options.before.resolve(), "after": HERE}
    yield f"# Before and after\n\n{machine(None if options.quick else 5.0)}"
    for section in options.only or SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            yield from {"stages": stages, "cold": cold, "files": files}[section](
                sides, Path(folder), options.quick
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, metavar="TREE", help="a checkout of other code")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one part; may be repeated")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the tables there, too")
    options = parser.parse_args(arguments)
    print_report(report(options), options.output)


if __name__ == "__main__":
    main()
