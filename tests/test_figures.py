"""Measured figures in README.md and docs come from files that commands wrote.

Three rules. A block of figures is what `benchmarks/figures.py` copies from its sources. Outside of such
blocks, a number that looks measured must be, up to rounding, in a source that the page names
(``<!-- numbers from: FILE ... -->``). A page that names no source has no such number, unless an example on it
prints the number. Numbers in code blocks are run by doctests or are options.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT)
    figures = importlib.import_module("benchmarks.figures")
for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
    del sys.modules[name]  # `test_benchmarks.py` imports them at another size
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in figures.pages()}
# pages that show a file of the repository as it is
WHOLE = {"docs/CHANGELOG.md", "docs/CONTRIBUTING.md", "docs/SECURITY.md"}
PROSE = {name: text for name, text in PAGES.items() if name not in WHOLE}
SOURCES = re.compile(r"<!-- numbers from: (.*?) -->", re.S)
# two or more decimals, a power of ten, or a number with a unit of measurement
MEASURED = re.compile(
    r"(?<![\w.^/-])(?:\d*\.\d{2,}|\d[\d,]*(?:\.\d+)?e[+-]\d+"
    r"|\d[\d,]*(?:\.\d+)?(?= (?:times as|times closer|(?:records|rows|million) a second|Gflop|GB/s|µs)\b))"
)
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?|\.\d+")
# deltas, a version of Python, and the accuracy of a root finder (privacy/scope.md)
PARAMETERS = {"1e-6", "1e-7", "3.10", "1e-12"}


def prose(text):
    """A page without blocks of figures, code, links and comments."""
    text = re.sub(r"<!-- figures: .*?<!-- end of figures -->", "", text, flags=re.S)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    text = re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", text, flags=re.S)
    return text


def values_of(source):
    """All numbers of a file, or of all modules of a folder."""
    files = [source] if source.is_file() else sorted(source.rglob("*.py"))
    assert files, source
    found = " ".join(path.read_text("utf-8") for path in files)
    return {float(match[0].replace(",", "")) for match in NUMBER.finditer(found) if match[0].strip(",.")}


def is_in(number, values):
    digits = len(number.partition(".")[2])
    wanted = float(number.replace(",", ""))
    if "e" in number:
        return any(value == pytest.approx(wanted, rel=1e-9) for value in values)
    return any(abs(value - wanted) <= 0.5 * 10.0**-digits * (1 + 1e-9) for value in values)


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if "<!-- figures:" in text])
def test_blocks_are_what_their_sources_say(name):
    assert figures.rendered(PAGES[name]) == PAGES[name], "run `make figures`"


def test_every_template_is_used_and_every_block_has_one():
    used = {match[2] for text in PAGES.values() for match in figures.BLOCK.finditer(text)}
    opened = sum(text.count("<!-- figures: ") for text in PAGES.values())
    assert used == {path.stem for path in figures.TEMPLATES.glob("*.md")}
    assert opened == sum(text.count("<!-- end of figures -->") for text in PAGES.values())


@pytest.mark.parametrize("name", PROSE)
def test_other_numbers_are_in_the_sources_that_the_page_names(name):
    named = SOURCES.search(PAGES[name])
    examples = re.findall(
        r"^```python\n(>>> .*?)^```", PAGES[name], re.S | re.M
    )  # are run, so they are a source
    values = {float(match[0].replace(",", "")) for match in NUMBER.finditer(" ".join(examples))}
    for source in named[1].split() if named else ():
        values |= values_of(ROOT / source)
    found = {match[0] for match in MEASURED.finditer(prose(PAGES[name]))}
    assert not {number for number in found - PARAMETERS if not is_in(number, values)}


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("It is at .0271 now.", [".0271"]),
        ("0.745 of raw", ["0.745"]),
        ("12 times as fast", ["12"]),
        ("epsilon = 1, delta = 1e-6, n = 30,000, 0.1 MAD", ["1e-6"]),
        ("a noise of 2e-08", ["2e-08"]),
        ("version 3.10 of Python", ["3.10"]),
        ("`0.123` and [a](b0.123)", []),
        ("```\n0.123\n```\n", []),
        ("<!-- figures: x -->\n0.123\n<!-- end of figures -->", []),
    ],
)
def test_what_looks_measured(text, measured):
    assert [match[0] for match in MEASURED.finditer(prose(text))] == measured


def test_a_number_that_is_in_no_source_is_noticed():
    values = values_of(ROOT / "docs" / "experiments" / "single-cell" / "table.md")
    assert is_in(".02", values)
    assert not is_in("0.70713", values)


def test_a_changed_source_changes_the_page(tmp_path, monkeypatch):
    limits = figures.source_path("results/limits")
    for path in figures.SHORT["results"].glob("*.md"):
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")
    rate = figures.first(figures.cell("results/limits", "certified sums, D=20, K=1,000", "rate"))
    changed = limits.read_text("utf-8").replace(f"{rate} records/s", "123,456 records/s")
    (tmp_path / limits.name).write_text(changed, "utf-8")
    monkeypatch.setitem(figures.SHORT, "results", tmp_path)
    changed = figures.rendered(PAGES["README.md"])
    shown = figures.digits(rate)
    assert changed == PAGES["README.md"].replace(f"| {shown} / ", "| 120,000 / ")
    assert changed != PAGES["README.md"]


def test_cells_must_be_there_once():
    with pytest.raises(LookupError, match="0 rows"):
        figures.cell("results/limits", "no such stage", "rate")
    with pytest.raises(LookupError, match="more than once"):
        figures.cell("results/scaling", "10,000", "MB", "records n")
    with pytest.raises(LookupError, match="no table"):
        figures.cell("results/limits", "certified sums, D=20, K=1,000", "no such column")
    with pytest.raises(LookupError, match="no line"):
        figures.told("results/limits", "weather")
    assert figures.digits("1.13e+03 x") == "1,100"
    assert figures.digits("0.0271 ± 0.0010", 3) == "0.0271"
    assert figures.span(["3.1", "43.2", "9.8 x"]) == "3.1 to 43"
