"""Time and peak memory against the number of records, columns, queries, locations and threads.

    python benchmarks/scaling.py [--quick] [--only n|D|m|K|threads] [--keep CELLS.jsonl] [--output FILE.md]

Every cell is measured in a fresh process, after a small call that loads the kernels: the best time of up to
three calls, and the peak of resident memory during the first over what was resident before it. Records come
from Parquet files, read in batches, except for the paper's route, which needs them in memory. Prints
Markdown. Run it on an idle machine; the full run takes about ten minutes and a gigabyte of disk. With
`--keep` an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

import dpmd_fast
from benchmarks.common import SIGMA, THREADS, Case, clock, make_problem
from benchmarks.markdown import machine, print_report, seconds, table
from benchmarks.memory import growth
from benchmarks.moments import write_records
from dpmd_fast import Atlas, Budget, DPManifoldDenoiser, LargeDeltaWarning, release_atlas, release_moments
from dpmd_fast.lab.datasets import bounded_noise, simulate, sphere

BUDGET = Budget(epsilon=20.0, delta=1e-9)  # all charts stand out of the noise at all sizes
BANDWIDTH = 0.5  # of atlases, on spheres of radius 1; fixed, so that the number of charts is
ENOUGH = 2.0  # seconds after which a cell is not measured again
ROUTES = {
    "moments": "`release_moments`",
    "atlas": "`release_atlas`",
    "transform": "`Atlas.transform`",
    "paper": "paper's route",
}


class Cell(NamedTuple):
    """One measurement: `n` records of S^`d` in R^`D`, `m` queries, `K` locations."""

    route: str
    n: int = 100_000
    D: int = 20
    d: int = 2
    m: int = 1000
    K: int = 200
    threads: int = THREADS
    bandwidth: float = BANDWIDTH


class Measured(NamedTuple):
    seconds: float
    memory: int  # bytes, peak over what was there
    charts: int = 0


# What a fresh process does


def records_path(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.n}-{cell.D}-{cell.d}.parquet"


def make_call(cell: Cell, folder: Path) -> tuple[Callable[[], Any], Atlas | None]:
    """What is measured, with all that it needs in place, kernels loaded; the atlas, if one is used."""
    options = {"budget": BUDGET, "n_threads": cell.threads}
    shape, rng = sphere(cell.D, cell.d), np.random.default_rng(1)
    if cell.route == "moments":
        chosen = np.load(records_path(folder, cell).with_suffix(".npz"))
        locations = chosen["locations"][: cell.K]
        call = partial(
            release_moments, locations=locations, bandwidth=float(chosen["radius"]), on_invalid="drop"
        )
        call(locations[:10] + 0.01, **options)
        return partial(call, str(records_path(folder, cell)), **options), None
    if cell.route == "atlas":
        anchors = np.load(records_path(folder, cell).with_suffix(".npz"))["locations"][: cell.m]
        call = partial(
            release_atlas,
            anchors=anchors,
            bandwidth=cell.bandwidth,
            dim=cell.d,
            rounds=3,
            accept_risk=True,
        )
        call(np.repeat(anchors, 5, axis=0), **options)
        return partial(call, str(records_path(folder, cell)), on_invalid="drop", **options), None
    if cell.route == "transform":
        sample = simulate(shape, 20_000, 4_000, SIGMA, rng)
        atlas = release_atlas(
            sample.references,
            sample.queries,
            bandwidth=cell.bandwidth,
            dim=cell.d,
            budget=BUDGET,
            rounds=3,
            accept_risk=True,
        )
        points = shape.sample(cell.m, rng) + bounded_noise(cell.m, cell.D, 0.2, rng)
        atlas.transform(points[:100], n_threads=cell.threads)
        return partial(atlas.transform, points, n_threads=cell.threads), atlas
    case = Case(cell.D, cell.n, cell.d, m=cell.m)
    small, problem = make_problem(case._replace(n=1000, m=10)), make_problem(case)

    def fit_transform(Y: np.ndarray, Z: np.ndarray, radius: float) -> np.ndarray:
        model = DPManifoldDenoiser(radius, cell.d, mechanism="projector", accept_risk=True, **options)
        return model.fit(Y).transform(Z)

    fit_transform(*small)
    return partial(fit_transform, *problem), None


def measure_here(cell: Cell, folder: Path) -> Measured:
    """One cell, in this process."""
    warnings.simplefilter("ignore", LargeDeltaWarning)
    call, atlas = make_call(cell, folder)
    best, memory, result = growth(call)
    layers = getattr(result if atlas is None else atlas, "layers", ())
    del result
    spent = best
    for _ in range(2):
        if spent > ENOUGH:
            break
        more = clock(call)[0]
        best, spent = min(best, more), spent + more
    return Measured(best, memory, sum(len(layer.masses) for layer in layers))


def write_file(cell: Cell, folder: Path, locations: int) -> None:
    path = records_path(folder, cell)
    if path.exists():
        return
    points, radius = write_records(path, cell.n, cell.D, locations, dim=cell.d)
    np.savez(path.with_suffix(".npz"), locations=points, radius=radius)


# The tables


class Axis(NamedTuple):
    title: str
    text: str
    cells: dict[str, list[tuple[float, Cell]]]  # by route: what varies, and the cell


def _vary(field: str, values: Sequence[int], **fixed: Any) -> list[tuple[float, Cell]]:
    return [(float(value), Cell(**{**fixed, field: value})) for value in values]


def axes(quick: bool) -> dict[str, Axis]:
    """The tables by name."""
    if quick:
        records, columns, queries, places = (2_000, 8_000), (2, 20), (100, 1_000), (20, 100)
        n, few, m, most, widths = 3_000, 2_000, 500, 8_000, (1.0, 0.7)
    else:
        records, columns = (10_000, 100_000, 1_000_000, 10_000_000), (2, 5, 20, 60, 100, 200)
        queries, places = (1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000)
        n, few, m, most, widths = 100_000, 30_000, 100_000, 1_000_000, (1.0, 0.5, 0.25)
    ours = ("moments", "atlas")
    return {
        "n": Axis(
            "Against the number of records n",
            "D = 20, d = 2; 200 locations, 6 % of the records in reach of each; atlas from 1,000 anchors, "
            f"bandwidth fixed at {BANDWIDTH}, three rounds, which with the subspace makes five passes over "
            "the file; paper's route: fit with 300 points in an average ball and one step of 1,000 queries, "
            f"the records in memory, above n = {most:,} left out for its memory.",
            {
                **{route: _vary("n", records, route=route) for route in ours},
                "paper": _vary("n", [count for count in records if count <= most], route="paper"),
            },
        ),
        "D": Axis(
            "Against the number of columns D",
            f"d = 1; n = {n:,}, 200 locations; transform of {m:,} points; paper's route with n = {few:,}. "
            "From 8 columns on the atlas looks for a subspace first, and its charts live there.",
            {
                **{route: _vary("D", columns, route=route, n=n, d=1) for route in ours},
                "transform": _vary("D", columns, route="transform", d=1, m=m),
                "paper": _vary("D", columns, route="paper", d=1, n=few),
            },
        ),
        "m": Axis(
            "Against the number of queries m",
            f"D = 20, d = 2. Paper's route: n = {few:,}, fit and one step. The time of releases does not "
            "depend on the queries.",
            {
                "transform": _vary("m", queries, route="transform"),
                "paper": _vary("m", queries, route="paper", n=few),
            },
        ),
        "K": Axis(
            "Against the number of locations K",
            f"D = 20, d = 2, n = {n:,}. Of the atlas the bandwidth varies, and K is the number of charts "
            "that came out, over all rounds; 10,000 are out of reach, since at most 4,000 public points are "
            "covered.",
            {
                "moments": _vary("K", places, route="moments", n=n),
                "atlas": [(h, Cell("atlas", n=n, m=4_000, bandwidth=h)) for h in widths],
                "transform": [(h, Cell("transform", m=m, bandwidth=h)) for h in widths],
            },
        ),
        "threads": Axis(
            "Against the number of threads",
            f"D = 20, d = 2, n = {n:,} ({few:,} for the paper's route), 1,000 locations, {m:,} points moved.",
            {
                "moments": _vary("threads", (1, 2), route="moments", n=n, K=places[1]),
                "atlas": _vary("threads", (1, 2), route="atlas", n=n),
                "transform": _vary("threads", (1, 2), route="transform", m=m),
                "paper": _vary("threads", (1, 2), route="paper", n=few),
            },
        ),
    }


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x, y = np.log(np.asarray(xs)), np.log(np.asarray(ys))
    return float(((x - x.mean()) * (y - y.mean())).sum() / np.square(x - x.mean()).sum())


def show_axis(name: str, axis: Axis, found: dict[Cell, Measured]) -> str:
    """One table: a row for each value, time and memory of each route, fitted exponents below."""
    by_route = {
        route: {
            (found[cell].charts if name == "K" and found[cell].charts else x): found[cell] for x, cell in row
        }
        for route, row in axis.cells.items()
    }
    values = sorted({x for row in by_route.values() for x in row})
    columns, rows, slopes, last = [name], [[f"{x:,.0f}"] for x in values], ["exponent"], ["last step"]
    for route, row in by_route.items():
        columns += [f"{ROUTES[route]} s", "MB"]
        for line, x in zip(rows, values, strict=True):
            cell = row.get(x)
            line += ["", ""] if cell is None else [seconds(cell.seconds), f"{cell.memory / 2**20:,.0f}"]
        xs = sorted(row)
        times = [row[x].seconds for x in xs]
        memory = [max(row[x].memory, 2**20) for x in xs]
        slopes += [f"{exponent(xs, times):.2f}", f"{exponent(xs, memory):.2f}"]
        last += [f"{exponent(xs[-2:], times[-2:]):.2f}", f"{exponent(xs[-2:], memory[-2:]):.2f}"]
    fitted = [slopes] if len(values) == 2 else [slopes, last]
    return f"## {axis.title}\n\n{axis.text}\n\n{table(columns, rows + fitted)}"


def measure(cell: Cell, folder: Path) -> Measured:
    """One cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", json.dumps(cell), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{cell} failed:\n{done.stderr}")
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def measure_axis(axis: Axis, keep: Path | None = None) -> dict[Cell, Measured]:
    """All cells of a table; each Parquet file is written once, in a process of its own, and removed."""
    cells = [cell for row in axis.cells.values() for _, cell in row]
    from_files = [cell for cell in cells if cell.route in ("moments", "atlas")]
    found = {} if keep is None else kept(keep)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        most = max((max(cell.K, cell.m) for cell in from_files), default=0)
        for cell in sorted(cells, key=lambda cell: (cell.n, cell.D)):
            if cell in found:
                continue
            if cell in from_files and not records_path(folder, cell).exists():
                command = [sys.executable, __file__, "--write", json.dumps(cell), "--folder", name]
                subprocess.run([*command, "--locations", str(most)], check=True)
            found[cell] = measure(cell, folder)
            print(f"{cell}: {found[cell].seconds:.3g} s", file=sys.stderr)
            if keep is not None:
                with keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([code(), cell, found[cell]]) + "\n")
    return found


def kept(path: Path) -> dict[Cell, Measured]:
    """Cells that an earlier run has measured, of the same code."""
    lines = map(json.loads, path.read_text("utf-8").splitlines() if path.exists() else [])
    return {Cell(*cell): Measured(*found) for measured, cell, found in lines if measured == code()}


@cache
def code() -> str:
    """Of the sources of the package."""
    total = hashlib.sha256()
    for source in sorted(Path(dpmd_fast.__file__).parent.rglob("*.py")):
        total.update(source.read_bytes())
    return total.hexdigest()[:16]


def report(sections: Sequence[str], quick: bool, keep: Path | None = None) -> Iterator[str]:
    yield "# Scaling"
    yield machine(0.5 if quick else 3.0)
    yield (
        f"epsilon = {BUDGET.epsilon:g}, delta = {BUDGET.delta:g}. {THREADS} threads but in the last table; "
        "every cell in a fresh process. Seconds: after a small call that loads the kernels, the best of up "
        "to three. MB: peak of resident memory over what was resident before. Exponents: slope of the "
        "logarithms by least squares over all rows, and over the last two."
    )
    for name, axis in axes(quick).items():
        if name in sections:
            yield show_axis(name, axis, measure_axis(axis, keep))


def main(arguments: Sequence[str] | None = None) -> None:
    sections = tuple(axes(True))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=sections, action="append", help="one table; may be repeated")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the tables there, too")
    parser.add_argument("--keep", type=Path, metavar="CELLS.jsonl", help="of cells measured so far")
    for name in ("--cell", "--write", "--folder", "--locations"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell is not None:
        found = measure_here(Cell(*json.loads(options.cell)), Path(options.folder))
        print(json.dumps(found))
    elif options.write is not None:
        write_file(Cell(*json.loads(options.write)), Path(options.folder), int(options.locations))
    else:
        print_report(report(options.only or sections, options.quick, options.keep), options.output)


if __name__ == "__main__":
    main()
