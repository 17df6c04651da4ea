"""The table of lemmas in docs/privacy/proof.md names functions and tests that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "privacy" / "proof.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([^|`]+?) \| [^|]+ \| `(dpmd_fast[\w.]+)` \| `(tests/[\w/.]+\.py)::(\w+)` \|$", TEXT, re.M
)


def test_the_lemmas_are_there():
    found = {re.sub(r" \(.*", "", name) for name, *_ in ROWS}
    assert {"PSD inner product", "clipping", "truncation", "rounding", "filter composition"} <= found
    table = TEXT[TEXT.index("## The proof beside the code") :].split("\n## ")[0]
    assert len(ROWS) == len([line for line in table.splitlines() if line.startswith("| ")]) - 2


@pytest.mark.parametrize(("lemma", "function", "file", "test"), ROWS)
def test_its_function_and_its_test_exist(lemma, function, file, test):
    parts = function.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        break
    assert found is not None
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
