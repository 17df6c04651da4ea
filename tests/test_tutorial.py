"""The pages of docs/ do what they say: commands are run as written, and print what is printed there."""

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpmd_fast

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
        ("tutorial.md", 22),
        pytest.param("tutorial_dask.md", 6, marks=pytest.mark.slow),
        pytest.param("tutorial_spark.md", 7, marks=pytest.mark.slow),
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


def test_the_examples_of_integrations_run_as_written():
    result = doctest.testfile(
        str(DOCS / "integrations.md"),
        module_relative=False,
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
        encoding="utf-8",
    )
    assert result.attempted >= 40
    assert result.failed == 0


# --- the reference


def entries():
    """Headings of the reference, each with its signatures and its paragraph."""
    text = (DOCS / "api.md").read_text("utf-8")
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        block, paragraph = re.match(r"\s*```python\n(.*?)```\n(.*?)(?=^## |\Z)", body, re.M | re.S).groups()
        yield heading.strip(), block.strip().splitlines(), paragraph.strip()


def named(heading):
    """What a heading stands for."""
    if "." not in heading:
        return getattr(dpmd_fast, heading)
    module, _, name = heading.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def shape_of(function):
    """Parameters of a function: names, kinds and defaults."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if p.name != "self"]


def test_the_reference_names_every_public_name():
    headings = [heading for heading, _, _ in entries()]
    assert len(set(headings)) == len(headings)
    assert set(dpmd_fast.__all__) <= set(headings)
    assert {heading for heading in headings if "." not in heading} == set(dpmd_fast.__all__)


@pytest.mark.parametrize("heading", [heading for heading, _, _ in entries()])
def test_signatures_of_the_reference_are_those_of_the_code(heading):
    thing = named(heading)
    ((block, paragraph),) = [(block, text) for other, block, text in entries() if other == heading]
    name = heading.rpartition(".")[2]
    assert len(paragraph.split()) >= 10
    for line in block:
        place, bracket, arguments = line.partition("(")
        assert place.split(".")[0] == name
        target = thing
        for attribute in place.split(".")[1:]:
            target = inspect.getattr_static(thing, attribute, None)
            assert target is not None or attribute in getattr(thing, "__annotations__", {})
            target = getattr(thing, attribute, None)
        if bracket:
            space = {}
            exec(f"def written({arguments}: pass", space)
            assert shape_of(space["written"]) == shape_of(target), line
    if inspect.isclass(thing):  # attributes that the paragraph names
        for attribute in re.findall(rf"`{name}\.(\w+)", paragraph):
            known = hasattr(thing, attribute) or attribute in thing.__annotations__
            assert known, attribute
