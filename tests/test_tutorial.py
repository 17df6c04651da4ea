"""Tutorials of the docs do what they say: commands run as written, and print what is printed there."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_CHECKER = doctest.OutputChecker()


def blocks(page):
    return [(match[1], match[2]) for match in _BLOCK.finditer((DOCS / page).read_text("utf-8"))]


def commands(text):
    """Commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command = re.match(r"(?:.*\\\n)*.*", part)[0]  # lines may end in a backslash
        yield command, part[len(command) + 1 :]


class Shell:
    """One shell for all commands of a page."""

    def __init__(self, folder):
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            # Dask warns if the port of its dashboard is taken, as by a cluster of another test
            env={**os.environ, "PATH": path, "DPMD_FAST_CACHE": "1", "PYTHONWARNINGS": "ignore:Port"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command):
        """What a command prints, and its exit code."""
        self._process.stdin.write(f'{command}\necho "--done-- $?"\n')
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.startswith("--done-- "):
                return "".join(lines), int(line.split()[1])
            lines.append(line)
        raise AssertionError(f"the shell ended: {''.join(lines)}")

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.mark.parametrize(
    ("page", "least"),
    [
        pytest.param("howto/nightly-job.md", 16, marks=pytest.mark.slow),
        pytest.param("howto/missing-values.md", 8, marks=pytest.mark.slow),
        ("howto/two-institutions.md", 12),
        pytest.param("howto/dask.md", 6, marks=pytest.mark.slow),
        pytest.param("howto/spark.md", 7, marks=pytest.mark.slow),
    ],
)
def test_the_tutorial_runs_as_written(page, least, tmp_path):
    if "spark" in page and shutil.which("java") is None:
        pytest.skip("no Java")
    shell = Shell(tmp_path)
    run = 0
    try:
        for language, text in blocks(page):
            if language in ("python", "sh"):
                name = re.match(r"# (\S+)\n", text)[1]
                (tmp_path / name).write_text(text, "utf-8")
                continue
            assert language == "console"
            for command, expected in commands(text):
                printed, code = shell.run(command)
                assert code == 0, (command, printed)
                same = _CHECKER.check_output(expected, printed, doctest.ELLIPSIS)
                assert same, f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}"
                run += 1
    finally:
        shell.close()
    assert run >= least


@pytest.mark.slow
def test_the_commands_of_the_first_page_run_on_the_tables_of_its_examples(tmp_path):
    """The page makes its people in Python; here they are written to the files that its commands name."""
    page = (DOCS / "start.md").read_text("utf-8")
    made = {}
    for example in doctest.DocTestParser().get_examples(page):
        if "release_mixture(" in example.source:
            break
        exec(compile(example.source, "start.md", "exec"), made)
    made["queries"].to_parquet(tmp_path / "queries.parquet")
    made["people"](50_000).to_parquet(tmp_path / "records.parquet")
    (section,) = re.findall(r"^## The same on the command line$.*?^```sh\n(.*?)^```$", page, re.M | re.S)
    lines = re.sub(r"\\\n *", "", section).splitlines()
    assert len(lines) == 5
    shell = Shell(tmp_path)
    try:
        for line in lines:
            printed, code = shell.run(line)
            assert code == 0, (line, printed)
            if " plan " in line:
                assert re.search(r"^verdict +helps$", printed, re.M), printed
    finally:
        shell.close()
    clean = pq.read_table(tmp_path / "clean.parquet")
    assert set(clean.column_names) == {name + end for name in made["names"] for end in ("", "_sd")}
    assert all(column.null_count == 0 for column in clean.columns)
    assert "<html" in (tmp_path / "model.html").read_text("utf-8")
