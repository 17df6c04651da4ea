"""The scripts of examples/ run as a reader would run them, and what they print is true."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = ("biomarkers", "nightly_job", "served_model", "single_cells", "surface")


def run(name, folder, *options):
    """Return what a script prints; kernels are those of the package's cache."""
    root = str(EXAMPLES.parent)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", folder / "made", *map(str, options)],
        cwd=folder,
        env={**os.environ, "DPMD_FAST_CACHE": "1", "MPLBACKEND": "agg", "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def numbers(printed, row):
    """Return the numbers of the row of a printed table."""
    (line,) = [line for line in printed.splitlines() if line.startswith(row)]
    return [float(word) for word in line.removeprefix(row).split()]


def check_picture(folder, name):
    data = (folder / "made" / name).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 5_000 < len(data) < 120_000


def test_all_are_run():
    """Every script has a test, begins with a title for a gallery, and is short enough to read."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NAMES)
    for name in NAMES:
        text = (EXAMPLES / f"{name}.py").read_text("utf-8")
        assert 50 <= len(text.splitlines()) <= 150, name
        title, line, _, story = ast.get_docstring(ast.parse(text)).split("\n", 3)
        assert line == "=" * len(title)
        assert f"python examples/{name}.py [OUTPUT_FOLDER]" in story
        assert f"def test_{name}(" in Path(__file__).read_text("utf-8")


def test_biomarkers(tmp_path):
    printed = run("biomarkers", tmp_path, "--records", 12_000)
    assert "Before the spend: helps." in printed
    for row in ("measured values", "missing values", "all values"):
        raw, alone, private = numbers(printed, row)
        assert private < 0.95 * min(raw, alone), row
    within = int(re.search(r"(\d+)% of the true values lie within", printed)[1])
    assert 88 <= within <= 98
    assert "Unconditional: for the mixture" in printed
    check_picture(tmp_path, "panel.png")


@pytest.mark.slow
def test_single_cells(tmp_path):
    printed = run("single_cells", tmp_path)
    assert "With 200 private cells: not enough records." in printed
    raw, alone, private, truth = numbers(printed, "error of a value, raw = 1")
    assert (raw, truth) == (1.0, 0.0)
    assert private < 0.97 * alone < alone < 1.0
    assert "plan said 'helps'; the private model is better than raw and public only." in printed
    check_picture(tmp_path, "cells.png")


@pytest.mark.slow
def test_surface(tmp_path):
    printed = run("surface", tmp_path)
    assert "Before the spend: helps, dimension 2." in printed
    raw, atlas, open_method = (numbers(printed, row) for row in ("raw", "atlas, private", "without privacy"))
    assert atlas[0] < 0.2 * raw[0]
    assert atlas[2] < 0.6 * raw[2]  # what is left lies along the surface
    assert open_method[0] < 0.3 * raw[0]
    check_picture(tmp_path, "surface.png")


@pytest.mark.slow
def test_nightly_job(tmp_path):
    printed = run("nightly_job", tmp_path, "--rows", 5_000)
    errors = re.findall(r"fell from ([\d.]+) to ([\d.]+) spreads", printed)
    assert len(errors) == 3
    assert all(float(after) < 0.8 * float(before) for before, after in errors)
    assert "Budget used by the two nights: 0." in printed
    refusals = [line for line in printed.splitlines() if line.startswith("Refused: ")]
    for refusal, reason in zip(
        refusals, ("is not a trusted key", "was edited or damaged", "nothing was spent"), strict=True
    ):
        assert reason in refusal
    check_picture(tmp_path, "nightly.png")


@pytest.mark.slow
def test_served_model(tmp_path):
    printed = run("served_model", tmp_path)
    assert "The same bits as a transform in this process: True." in printed
    before, after = re.search(r"clean points: ([\d.]+) -> ([\d.]+)\.", printed).groups()
    assert float(after) < 0.7 * float(before)
    assert "A table without a column is refused: the table lacks 1 column(s)" in printed
    assert "The server has ended with code 0." in printed
    check_picture(tmp_path, "served.png")
