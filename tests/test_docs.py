"""Pages of README.md and docs: links resolve, code runs, commands and options exist, the API is complete."""

import doctest
import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import click
import pytest

import dpmd_fast
from dpmd_fast.cli import commands as command_line

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAMES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    if not {"_build", "figures", "made"} & set(path.relative_to(ROOT).parts)
)
# run as written by tests/test_tutorial.py
SCRIPTS = ("nightly-job", "missing-values", "two-institutions", "dask", "spark")
# pages about a package that need not be installed; `make test` installs all of them
OPTIONAL = {"anndata": "anndata", "duckdb": "duckdb", "engines": "dask", "polars": "polars"}
RECIPES = "docs/howto/serving.md"  # run by tests/serve/test_recipes.py
# commands that no test runs as they stand, and what is tested in their place
NOT_RUN = {
    "README.md": "make demo and make test: the demo is tested in tests/lab, and this is the other",
    "CONTRIBUTING.md": "targets of the Makefile, and tests/golden.py, which tests/test_targets.py runs",
    "docs/howto/containers.md": "need docker and the network",
    "docs/howto/serving.md": "a server that runs until it is stopped: tests/serve",
    "docs/privacy/ledger.md": "fit with an ellipsis: tests/cli",
    "docs/privacy/signing.md": "fit with an ellipsis: howto/two-institutions.md has the whole commands",
    "docs/paper/experiments.md": "take minutes: tests/lab runs their quick form",
    "docs/paper/real-data.md": "need data sets: tests/lab runs their quick form on made-up files",
}
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)


@functools.cache
def text_of(name):
    """A page with the files that it includes."""
    path = ROOT / name
    text = path.read_text("utf-8")

    def included(match):
        return text_of(str((path.parent / match[1]).resolve().relative_to(ROOT)))

    return re.sub(r"^```\{include\} (\S+)\n(?::.*\n)*```$", included, text, flags=re.M)


def fences(name):
    return [(match[3].strip(), match[4]) for match in FENCE.finditer((ROOT / name).read_text("utf-8"))]


# --- links


def slugs(name):
    """Anchors of the headings of a page, as GitHub and the site make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(name)), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(
            other == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", other) is not None for other in found
        )
        found.add(slug if number == 0 else f"{slug}-{number}")
    return found


def links(name):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", (ROOT / name).read_text("utf-8")))
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name):
    for link in links(name):
        if re.match(r"https?:|mailto:", link):
            continue
        place, _, anchor = link.partition("#")
        target = ((ROOT / name).parent / place).resolve() if place else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in slugs(str(target.relative_to(ROOT))), link


def test_every_page_is_reached_from_the_front_page():
    """By the tables of contents, which are fenced, so `links` does not see them."""
    reached, waiting = set(), ["docs/index.md"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        folder = (ROOT / name).parent
        for kind, body in fences(name):
            if kind == "{toctree}":
                for line in body.splitlines():
                    entry = re.sub(r".*<(.*)>", r"\1", line)  # "Title <page>" or "page"
                    if not entry or entry.startswith(":"):
                        continue
                    found = sorted(folder.glob(f"{entry}.md")) if "*" in entry else [folder / f"{entry}.md"]
                    waiting += [str(path.resolve().relative_to(ROOT)) for path in found]
    pages = {name for name in NAMES if name.startswith("docs/")}
    assert pages <= reached
    assert reached - pages <= {name for name in reached if "/made/" in name}


# --- code


WITH_EXAMPLES = [name for name in NAMES if re.search(r"^>>> ", (ROOT / name).read_text("utf-8"), re.M)]
WITH_EXAMPLES.remove("README.md")  # `make test` runs them itself


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name):
    if Path(name).stem in OPTIONAL:
        pytest.importorskip(OPTIONAL[Path(name).stem])
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=flags, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_python_block_is_run_by_something(name):
    """By a doctest, by a tutorial or as a recipe: no page needs something that is not there."""
    for kind, body in fences(name):
        if kind in ("python", "{code-block} python"):
            is_script = Path(name).stem in SCRIPTS and re.match(r"# \w+\.py\n", body)
            assert body.startswith(">>> ") or is_script or name == RECIPES, body
        else:
            assert not re.search(r"^(?:>>> |import |from \w+ import )", body, re.M), body


COMMAND = re.compile(r"^(?:\$ )?(?:dpmd-fast|make|python|pip|docker|git|RUN) ", re.M)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_commands_is_run_or_says_why_not(name):
    """By tests/test_tutorial.py; of the first page the part that follows `make demo`."""
    has_commands = any(kind != "python" and COMMAND.search(body) for kind, body in fences(name))
    is_run = Path(name).stem in SCRIPTS or name == "docs/start.md"
    assert not (is_run and name in NOT_RUN)
    assert has_commands == (is_run or name in NOT_RUN)


def command_lines(name):
    for kind, body in fences(name):
        if kind in ("", "console", "sh", "dockerfile"):
            joined = re.sub(r"\\\n\s*", " ", body)
            yield from (line.strip().removeprefix("$ ") for line in joined.splitlines())
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", (ROOT / name).read_text("utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_exist(name):
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.M))
    targets = {target for group in targets for target in group.split()}
    for line in command_lines(name):
        words = re.sub(r"#.*|\|\|.*", "", line).split()
        if words[:1] == ["make"] and len(words) > 1:
            assert words[1] in targets, line
        if words[:1] != ["dpmd-fast"]:
            continue
        command, rest = command_line, [word for word in words[1:] if word not in ("--quiet", "...", "RUN")]
        while rest and isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+", rest[0]):
            if rest[0].startswith("--"):
                break
            assert rest[0] in command.commands, line
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        for word in rest:
            if word.startswith("-") and word.strip("-"):
                assert word.split("=")[0] in known | {"--help", "--version"}, line


def test_the_reference_of_the_command_line_has_every_option(tmp_path):
    spec = importlib.util.spec_from_file_location("command_line_page", DOCS / "command_line_page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    page.write(tmp_path)
    text = (tmp_path / "api" / "made" / "options.txt").read_text("utf-8")

    def check(command, path):
        section = text.partition(f"## {path}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert f"| `{', '.join(parameter.opts)}" in section, (path, parameter.opts)
        for name, verb in getattr(command, "commands", {}).items():
            check(verb, f"{path} {name}")

    for name, verb in command_line.commands.items():
        check(verb, f"dpmd-fast {name}")


# --- the reference of the API


def listed():
    text = (DOCS / "api" / "index.md").read_text("utf-8")
    return [
        line.strip()
        for _, body in fences("docs/api/index.md")
        for line in body.splitlines()
        if re.fullmatch(r"   [\w.]+", line)
    ], text


def test_the_reference_lists_every_public_name_once():
    names, _ = listed()
    assert len(set(names)) == len(names)
    assert {name for name in names if "." not in name} == set(dpmd_fast.__all__)


@pytest.mark.parametrize("name", listed()[0])
def test_docstrings_of_the_reference_name_all_parameters(name):
    """What the site shows is the docstring: a parameter that it leaves out is documented nowhere."""
    module, _, last = f"dpmd_fast.{name}".rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    doc = inspect.getdoc(thing)
    assert doc
    assert len(doc.split()) >= 8
    if inspect.isfunction(thing):
        for parameter in inspect.signature(thing).parameters:
            assert re.search(rf"\b{parameter}\b", doc), parameter


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
