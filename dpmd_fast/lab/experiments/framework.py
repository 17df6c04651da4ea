"""The runner of experiments: a list of work items, a function that measures one, a table and figures of all.

    items --> measure(item) --> journal.jsonl --> *.parquet --> table.md, *.png
              one at a time     a line per item    all numbers

A run shows progress on a terminal and may be interrupted at any time: the same command resumes at the first
item that is not in the journal, and a run with more seeds adds to the journal. Items are measured one after
the other; the kernels use all cores. An experiment is an object of a module::

    def items(profile):
        sizes = (1_000, 2_000) if profile.quick else (10_000, 50_000)
        return [{"n": n, "seed": seed} for n in sizes for seed in range(profile.seeds)]

    def measure(item, profile):
        x = np.random.default_rng([item["n"], item["seed"]]).normal(size=item["n"])
        return {"results": [{"method": "mean", "error": abs(x.mean())}]}

    def table(tables, profile):
        found = intervals(tables["results"], ("n", "method"), "error")
        return markdown(["n", "method", "error"], [[*key, str(one)] for key, one in found.items()])

    def figures(tables, profile):
        figure = canvas(6.0, 4.0)
        axis = figure.subplots()
        ...
        return {"error": figure}        # written as error.png

    EXPERIMENT = Experiment("average", items, measure, table, figures)

and is registered in `registry`. ``EXPERIMENT.run(folder, quick=True)`` runs it without the command line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmd_fast import __version__
from dpmd_fast.arguments import checked_integer
from dpmd_fast.errors import UserValueError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | bool | None
Row = Mapping[str, Value]
Tables = Mapping[str, Sequence[Row]]

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Profile:
    """The options of a run: small sizes or the paper's, number of seeds, folder of real data."""

    quick: bool
    seeds: int
    data: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """One command that makes tables and figures.

    Parameters
    ----------
    name : str
        As on the command line.
    items : callable
        ``items(profile)``: the work items, flat dictionaries that identify them. They must not depend on
        private values, and those of a run with fewer seeds must be among those of a run with more.
    measure : callable
        ``measure(item, profile)``: rows of numbers by table. The item's columns are prepended to every row.
        ``"results"`` is the main table; others hold, for example, points to draw.
    table : callable
        ``table(tables, profile)``: the text of ``table.md``.
    figures : callable
        ``figures(tables, profile)``: figures by the name of their file without ``.png``.
    seeds : (int, int)
        Default number of seeds in a full and in a quick run.
    needs_data : bool
        Whether the folder `data` must be given.
    """

    name: str
    items: Callable[[Profile], Sequence[Row]]
    measure: Callable[[Row, Profile], Tables]
    table: Callable[[Tables, Profile], str]
    figures: Callable[[Tables, Profile], Mapping[str, Figure]]
    seeds: tuple[int, int] = (10, 2)
    needs_data: bool = False

    def run(
        self,
        folder: str | os.PathLike[str],
        quick: bool = False,
        seeds: int | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """Measure the items that are not in the journal, write tables and figures, and return their paths."""
        profile = Profile(quick, self._checked_seeds(quick, seeds), self._checked_data(data))
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        about: dict[str, Value] = {"experiment": self.name, "quick": quick, "version": __version__}
        if profile.data is not None:
            about["data"] = _digest(profile.data)
        journal = Journal(place / JOURNAL, about)
        items = self.items(profile)
        missing = [item for item in items if item not in journal]
        with _progress(self.name, len(items), len(items) - len(missing)) as advance:
            for item in missing:
                advance(item)
                journal.append(item, self.measure(item, profile))
        return _write(self, place, journal.tables(items), profile)

    def _checked_seeds(self, quick: bool, seeds: int | None) -> int:
        if seeds is None:
            return self.seeds[1] if quick else self.seeds[0]
        return checked_integer("seeds", seeds, minimum=1)

    def _checked_data(self, data: str | os.PathLike[str] | None) -> Path | None:
        if data is None:
            if self.needs_data:
                raise UserValueError(
                    f"data = None: {self.name} needs the folder of its data sets", argument="data"
                )
            return None
        if not Path(data).is_dir():
            raise UserValueError(f"data = {os.fsdecode(data)!r}: must be an existing folder", argument="data")
        return Path(data)


class Journal:
    """The rows of finished items, in a file with one line per item.

    The first line identifies the run; the journal of another run is refused. A last line that an interruption
    cut short is dropped and overwritten.
    """

    def __init__(self, path: Path, run: Mapping[str, Value]) -> None:
        self._path = path
        self._rows: dict[str, dict[str, list[dict[str, Value]]]] = {}
        if not path.exists():
            path.write_text(json.dumps(dict(run)) + "\n", "utf-8")
            return
        text = path.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        if not lines:
            path.write_text(json.dumps(dict(run)) + "\n", "utf-8")
            return
        try:
            first, *others = map(json.loads, lines)
            if first != dict(run):
                raise UserValueError(
                    f"{path} belongs to another run: {_label(first)}, and this is {_label(run)}; choose "
                    "another folder, or delete the file to start over"
                )
            self._rows = {_key(item): rows for item, rows in others}
        except (json.JSONDecodeError, TypeError, AttributeError):
            raise UserValueError(f"{path} is damaged: delete it to start over") from None
        if whole != text:
            path.write_text(whole, "utf-8")

    def __contains__(self, item: Row) -> bool:
        return _key(item) in self._rows

    def append(self, item: Row, tables: Tables) -> None:
        rows = {name: [_plain(row) for row in many] for name, many in tables.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([_plain(item), rows]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[_key(item)] = rows

    def tables(self, items: Iterable[Row]) -> dict[str, list[Row]]:
        """Return all rows of the given items by table, the item's columns first."""
        found: dict[str, list[Row]] = {}
        for item in items:
            for name, rows in self._rows[_key(item)].items():
                found.setdefault(name, []).extend({**_plain(item), **row} for row in rows)
        return found


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval (Student's t), nan for a single seed."""

    mean: float
    half: float
    seeds: int

    def __str__(self) -> str:
        if not math.isfinite(self.half):
            return _number(self.mean)
        digits = decimals(self.half if self.half > 0.0 else self.mean)
        return f"{self.mean:,.{digits}f} ± {self.half:,.{digits}f}"


def interval(values: Iterable[float]) -> Interval:
    """Return the mean of `values` and its 95 % interval."""
    import numpy as np
    from scipy.stats import t

    given = np.asarray(list(values), dtype=np.float64)
    if len(given) < 2:
        return Interval(float(given.mean()), math.nan, len(given))
    error = float(given.std(ddof=1)) / math.sqrt(len(given))
    return Interval(float(given.mean()), float(t.ppf(0.975, len(given) - 1)) * error, len(given))


def intervals(rows: Iterable[Row], by: Sequence[str], value: str) -> dict[tuple[Value, ...], Interval]:
    """Return the interval of column `value` for each combination of the columns `by`, in order of appearance.

    Rows without a value (None or nan) are skipped.
    """
    groups: dict[tuple[Value, ...], list[float]] = {}
    for row in rows:
        number = row.get(value)
        if isinstance(number, (int, float)) and math.isfinite(number):
            groups.setdefault(tuple(row[column] for column in by), []).append(float(number))
    return {key: interval(values) for key, values in groups.items()}


def markdown(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table; floats get three significant digits."""
    rows = [list(heads), ["---"] * len(heads)]
    rows += [[_number(cell) if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def decimals(error: float) -> int:
    """Return how many decimals show two significant digits of an error."""
    return min(6, max(0, 1 - math.floor(math.log10(error)))) if error > 0.0 else 1


def _number(value: float) -> str:
    if not math.isfinite(value) or value == 0.0:
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def _write(experiment: Experiment, folder: Path, tables: Tables, profile: Profile) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from matplotlib import style

    from dpmd_fast.atomic import atomic_write
    from dpmd_fast.lab.experiments.figures import STYLE, save_png

    paths = []

    @contextmanager
    def writing(name: str) -> Iterator[str]:
        target = str(folder / name)
        with atomic_write(target, overwrite=True) as partial:
            yield partial
        paths.append(target)

    about = {"experiment": experiment.name, "version": __version__, "seeds": str(profile.seeds)}
    for name, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        table = pa.table({column: [row.get(column) for row in rows] for column in columns})
        table = table.replace_schema_metadata(about)
        with writing(f"{name}.parquet") as path:
            pq.write_table(table, path)
    with writing("table.md") as path:
        Path(path).write_text(experiment.table(tables, profile), "utf-8")
    with style.context(["default", STYLE]):
        for name, figure in experiment.figures(tables, profile).items():
            with writing(f"{name}.png") as path:
                save_png(figure, path)
    return paths


@contextmanager
def _progress(name: str, total: int, done: int) -> Iterator[Callable[[Row], None]]:
    """Show a bar on a terminal and nothing elsewhere; an interruption prints how to resume."""
    from tqdm import tqdm

    width = min(100, shutil.get_terminal_size().columns)
    bar = tqdm(total=total, initial=done, desc=name, unit="item", disable=None, leave=False, ncols=width)
    begun = 0

    def advance(item: Row) -> None:
        nonlocal begun
        bar.update(1 if begun else 0)
        bar.set_postfix_str(", ".join(f"{key} {value}" for key, value in item.items()), refresh=True)
        begun += 1

    try:
        yield advance
    except (KeyboardInterrupt, SystemExit, SystemError) as stop:
        signal = stop.__cause__ if isinstance(stop, SystemError) else stop  # a compiled kernel wraps it
        if not isinstance(signal, (KeyboardInterrupt, SystemExit)):
            raise
        bar.close()
        reached = done + max(0, begun - 1)
        print(
            f"{name}: stopped after {reached} of {total} items; run the same command again to resume",
            file=sys.stderr,
        )
        raise signal from None
    finally:
        bar.close()


def _digest(folder: Path) -> str:
    """Hash all data sets in a folder, so that results of other data are not mistaken for these."""
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.iterdir() if one.suffix in (".npz", ".parquet")):
        digest.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _key(item: Mapping[str, Any]) -> str:
    return json.dumps(_plain(item), sort_keys=True)


def _plain(row: Mapping[str, Any]) -> dict[str, Value]:
    """Convert NumPy scalars to Python's."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}


def _label(run: Mapping[str, Value]) -> str:
    size = "quick" if run["quick"] else "full"
    data = f", data {run['data']}" if "data" in run else ""
    return f"{run['experiment']}, {size}, version {run['version']}{data}"
