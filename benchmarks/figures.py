"""Write the measured figures of README.md and docs from the files that commands have written.

    python benchmarks/figures.py            # rewrites every block of figures; `make figures`
    python benchmarks/figures.py --check    # exits with 1 if a block is not what its sources say

A block of figures in a page begins with ``<!-- figures: NAME -->`` and ends with ``<!-- end of figures -->``.
Its text is the template ``docs/figures/NAME.md``, in which ``{{ ... }}`` looks cells up in the tables of
``benchmarks/results`` and ``docs/experiments``. So a number is copied by this script or not at all.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "docs" / "figures"
SHORT = {"results": ROOT / "benchmarks" / "results", "experiments": ROOT / "docs" / "experiments"}
#: Processors whose results README and docs show, by the ends of the files' names; the first stands alone
#: where one is shown.
KINDS = {"amd-epyc-avx2": "AMD EPYC, AVX2", "amd-epyc-avx512": "AMD EPYC, AVX-512"}
KIND = next(iter(KINDS))
ORDER = (
    "limits",
    "compare",
    "mixture",
    "latency",
    "scaling",
    "transform",
    "cold-start",
    "engines",
    "serve",
    "accuracy",
)
RULE = re.compile(r"\|( ?-+ ?\|)+")  # between the names of the columns and the rows
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.S)


class Table(NamedTuple):
    """One table of a Markdown file, with the headings above it."""

    heading: str
    columns: list[str]
    rows: list[list[str]]


def source_path(name: str) -> Path:
    """Return the file of a short name: ``results/limits``, ``experiments/torus/table``.

    Where results are named by the kind of processor, ``limits-amd-epyc-avx2.md``, that of `KIND` is taken.
    """
    folder, _, rest = name.partition("/")
    plain = SHORT[folder] / f"{rest}.md"
    return plain if plain.exists() else plain.with_stem(f"{rest}-{KIND}")


def exists(name: str) -> bool:
    return source_path(name).exists()


def kinds(*names: str) -> list[tuple[str, str]]:
    """Return the kinds of processors that have all of these results, with their titles."""
    return [
        (kind, title)
        for kind, title in KINDS.items()
        if all(exists(f"results/{name}-{kind}") for name in names)
    ]


def idle_before(kind: str) -> str:
    """Return the idle share of a processor before `make compare`."""
    return told(f"results/compare-{kind}", "idle share before the run").replace("%", " %")


def results() -> list[tuple[str, str]]:
    """Return all files of results, in the order of `ORDER`, each with a title if it has none."""
    paths = sorted(SHORT["results"].glob("*.md"), key=lambda path: (place_of(path), path.name))
    named = [(path.name, path.stem.split("-")[0].capitalize()) for path in paths]
    titled = [path.read_text("utf-8").startswith("# ") for path in paths]
    return [(name, "" if has else title) for (name, title), has in zip(named, titled, strict=True)]


def place_of(path: Path) -> int:
    return next((k for k, name in enumerate(ORDER) if path.stem.startswith(name)), len(ORDER))


@cache
def tables_of(path: Path) -> list[Table]:
    found: list[Table] = []
    headings: dict[int, str] = {}
    lines = path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if match := re.match(r"(#+) (.*)", line):
            headings = {level: text for level, text in headings.items() if level < len(match[1])}
            headings[len(match[1])] = match[2]
        elif line.startswith("|") and RULE.match("".join(lines[number + 1 : number + 2])):
            found.append(Table(" / ".join(headings.values()), cells_of(line), []))
        elif line.startswith("|") and found and not RULE.match(line):
            found[-1].rows.append(cells_of(line))
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def fitting_tables(name: str, column: str, heading: str) -> list[tuple[Table, int]]:
    """Return the tables below a heading that contains `heading`, with the place of a column in each.

    "`release_atlas` s +1" is the column after "`release_atlas` s": some names, such as MB, recur in a table.
    """
    wanted, _, step = column.partition(" +")
    found = []
    for table in tables_of(source_path(name)):
        if heading in table.heading and wanted in table.columns:
            if table.columns.count(wanted) > 1:
                raise LookupError(f"{name}: {wanted!r} is there more than once below {table.heading!r}")
            found.append((table, table.columns.index(wanted) + int(step or 0)))
    if not found:
        raise LookupError(f"{name}: no table below {heading!r} with the column {wanted!r}")
    return found


def cell(name: str, row: str, column: str, heading: str = "") -> str:
    """Return one cell: `row` is how the row begins, its first cells joined by `` | ``."""
    wanted = [part.strip() for part in row.split("|")]
    found = [
        cells[place]
        for table, place in fitting_tables(name, column, heading)
        for cells in table.rows
        if cells[: len(wanted)] == wanted
    ]
    if len(found) != 1:
        raise LookupError(f"{name}: {len(found)} rows begin with {row!r} below {heading!r}")
    return found[0]


def column(name: str, column: str, heading: str = "") -> list[str]:
    """Return the cells of a column that are not empty."""
    ((table, place),) = fitting_tables(name, column, heading)
    return [cells[place] for cells in table.rows if cells[place]]


def label(name: str, column: str, heading: str = "") -> str:
    """Return the name of a column, for instance of the one after a known one."""
    ((table, place),) = fitting_tables(name, column, heading)
    return table.columns[place]


def told(name: str, what: str) -> str:
    """Return what a file says about the machine or the run: the rest of its line "- what: ..."."""
    match = re.search(rf"^- {re.escape(what)}: (.*)$", source_path(name).read_text("utf-8"), re.M)
    if match is None:
        raise LookupError(f"{name}: no line '- {what}: ...'")
    return match[1]


def has(name: str, text: str) -> bool:
    return text in source_path(name).read_text("utf-8")


def mean(text: str) -> str:
    """Return the mean of "0.0271 ± 0.0010", "0.707 (0.056)" or "0.881 [0.852, 0.906]"."""
    return re.split(r" ± | [(\[]", text)[0]


def first(text: str) -> str:
    """Return the first number of a cell, as it is written there."""
    match = re.search(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)
    if match is None:
        raise LookupError(f"no number in {text!r}")
    return match[0]


def times(text: str) -> str:
    """Return the ratio of "6.97 = 268 x (tree, two threads)"."""
    match = re.search(r"= ([\d.,]+) x", text)
    if match is None:
        raise LookupError(f"no ratio in {text!r}")
    return match[1]


def pair(text: str) -> str:
    """Return "42 129", a median and a 99th percentile in microseconds, in words."""
    median, high = text.split(" ")
    return f"{median} µs (99 %: {high})"


def number(text: str) -> float:
    return float(first(text).replace(",", ""))


def digits(text: str, count: int = 2) -> str:
    """Round the first number of a cell to so many significant digits."""
    value = float(f"{number(text):.{count}g}")
    return f"{value:,.0f}" if abs(value) >= 10 ** (count - 1) else f"{value:.{count}g}"


def span(texts: Sequence[str], count: int = 2) -> str:
    """Return the smallest and the largest of some cells: "10 to 43"."""
    ordered = sorted(texts, key=number)
    return f"{digits(ordered[0], count)} to {digits(ordered[-1], count)}"


def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    made.globals.update(cell=cell, column=column, span=span, label=label, told=told, has=has, results=results)
    made.globals.update(kinds=kinds, exists=exists)
    made.filters.update(
        idle_before=idle_before, mean=mean, first=first, digits=digits, times=times, pair=pair
    )
    return made


def rendered(text: str) -> str:
    """Return a page with every block of figures written anew."""
    made = environment()
    return BLOCK.sub(lambda m: f"{m[1]}{made.get_template(f'{m[2]}.md').render().strip()}\n{m[4]}", text)


def pages() -> Iterator[Path]:
    """All pages that people read: README.md and docs, without templates and tables that experiments wrote."""
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if not {"_build", "figures", "experiments", "made"} & set(path.relative_to(ROOT / "docs").parts):
            yield path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if something would change"
    )
    check = parser.parse_args(arguments).check
    changed = 0
    for path in pages():
        text = path.read_text("utf-8")
        new = rendered(text)
        if new != text:
            changed += 1
            print(f"{path.relative_to(ROOT)}: {'old figures' if check else 'written anew'}")
            if not check:
                path.write_text(new, "utf-8")
    return int(check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
