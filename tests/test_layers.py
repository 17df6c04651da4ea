"""The walls between the rooms of the package, read off its imports: lazy ones count, typing-only ones do not.

CONTRIBUTING.md says what each room is for.
"""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import dpmd_fast

PACKAGE = Path(dpmd_fast.__file__).parent
#: What the modules of a room may import, by the beginning of a module's name; "" is the package itself.
MAY_IMPORT = {
    "kernels": ("kernels",),
    "errors": (),
    "arguments": ("errors",),
    "columns": ("arguments", "errors"),
    "atomic": ("errors",),
    "status": (),
    "privacy": ("arguments", "atomic", "errors", "kernels", "privacy"),
    "tables": ("arguments", "atomic", "columns", "errors", "kernels", "status", "tables"),
    "models": (
        "arguments",
        "atomic",
        "columns",
        "compilation",
        "errors",
        "kernels",
        "models",
        "privacy",
        "status",
        "tables",
    ),
    "reference": (
        "arguments",
        "atomic",
        "columns",
        "errors",
        "kernels",
        "models.preprocessor",
        "privacy",
        "reference",
        "status",
        "tables.formats",
    ),
    "mechanisms": (
        "arguments",
        "columns",
        "compilation",
        "errors",
        "kernels",
        "mechanisms",
        "models",
        "privacy",
        "reference",
        "status",
    ),
    "baselines": ("arguments", "baselines", "columns", "errors", "kernels", "privacy", "reference", "status"),
    "metrics": ("arguments", "errors", "metrics"),
    "report": (
        "arguments",
        "atomic",
        "columns",
        "errors",
        "kernels",
        "metrics",
        "models",
        "privacy",
        "report",
        "status",
        "tables",
    ),
    "serve": (
        "arguments",
        "atomic",
        "columns",
        "compilation",
        "errors",
        "models",
        "serve",
        "status",
        "tables",
    ),
    "cli": ("",),
    "lab": ("",),
    "compilation": ("errors", "kernels"),
    "__init__": ("",),
    "__main__": ("cli",),
}
#: Modules that few may import.
NOISE = "privacy.noise"
ENTROPY = "privacy.entropy"
ONLY_FOR = {
    NOISE: ("mechanisms", "lab.audit"),
    ENTROPY: (NOISE, "mechanisms", "lab"),
    "lab": ("lab", "cli.lab"),
    "cli": ("cli", "__main__", "lab.audit.routes"),  # which replays commands
    "serve": ("serve", "cli"),
}
#: Imported by `dpmd_fast` itself, so that ``import dpmd_fast`` reads no more than this.
AT_IMPORT = {"", "kernels", "kernels.cache", "privacy", "privacy.ledger", "privacy.ledger.fingerprinting"}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def within(name: str, beginning: str) -> bool:
    return beginning == "" or name == beginning or name.startswith(beginning + ".")


def resolved(module: str, name: str) -> str:
    """The module that ``from dpmd_fast.module import name`` reads."""
    if name == "__version__":
        return "errors"  # a plain constant: no room is entered
    if module == "":  # a public name, at home elsewhere, or a module
        home = dpmd_fast._HOME_OF.get(name)
        return home if home is not None else name if name in MODULES else "__init__"
    inner = f"{module}.{name}"
    return inner if inner in MODULES else module


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Modules of the package that a file imports, without those for type checking alone."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if within(alias.name, "dpmd_fast"):
                        found.add(alias.name.removeprefix("dpmd_fast").removeprefix(".") or "__init__")
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                if node.module and within(node.module, "dpmd_fast"):
                    module = node.module.removeprefix("dpmd_fast").removeprefix(".")
                    found.update(resolved(module, alias.name) for alias in node.names)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if lazy:
                    visit(node.body)
            else:
                for body in ("body", "orelse", "finalbody"):
                    visit(getattr(node, body, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    visit(ast.parse(path.read_text("utf-8")).body)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_imports_stay_within_the_walls(name):
    room = name.split(".")[0]
    assert room in MAY_IMPORT, f"{name} is in no room"
    for imported in imports(MODULES[name]):
        allowed = any(within(imported, beginning) for beginning in MAY_IMPORT[room])
        assert allowed, f"{name} imports {imported}: {room} may import {MAY_IMPORT[room]}"
        for guarded, doors in ONLY_FOR.items():
            if within(imported, guarded) and name != "__init__":
                assert any(within(name, door) for door in doors), f"{name} imports {imported}"


def test_the_test_sees_lazy_imports_and_public_names(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from dpmd_fast.lab import demo\n"
        "def f():\n    from dpmd_fast import release_atlas\n"
        "    try:\n        import dpmd_fast.privacy.noise\n"
        "    except ImportError:\n        from dpmd_fast.reference.sources import parquet\n"
    )
    assert imports(path) == {"mechanisms.atlas.release", "privacy.noise", "reference.sources.parquet"}
    assert imports(path, lazy=False) == set()


def test_no_module_is_imported_back():
    order = graphlib.TopologicalSorter({name: imports(path, lazy=False) for name, path in MODULES.items()})
    list(order.static_order())  # raises CycleError


def test_few_modules_lie_at_the_root():
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_the_package_itself_imports_little():
    assert imports(MODULES["__init__"], lazy=False) <= AT_IMPORT
