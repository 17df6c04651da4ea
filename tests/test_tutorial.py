"""The tutorials of docs/howto do what they say: commands run as written, and print what is printed there."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs" / "howto"
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
        pytest.param("nightly-job.md", 16, marks=pytest.mark.slow),
        pytest.param("missing-values.md", 8, marks=pytest.mark.slow),
        ("two-institutions.md", 12),
        pytest.param("dask.md", 6, marks=pytest.mark.slow),
        pytest.param("spark.md", 7, marks=pytest.mark.slow),
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
