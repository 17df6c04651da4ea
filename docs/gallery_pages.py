"""Write one page for each script of examples/, with the pictures that the script draws.

Run by conf.py at the start of a build. ``DPMD_DOCS_GALLERY=0`` runs no script: pages then show the pictures
of the last build, if there are any. A script whose pictures are newer than the script and the package is not
run again.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

CELL = "# %%\n"  # begins a part of a script: comment lines to read, then code


def write(docs: Path) -> None:
    made = docs / "gallery" / "made"
    made.mkdir(exist_ok=True)
    scripts = sorted((docs.parent / "examples").glob("[!_]*.py"))
    for script in scripts:
        if os.environ.get("DPMD_DOCS_GALLERY", "1") != "0" and is_old(made / script.stem, script):
            run(script, made / script.stem)
        change(made / f"{script.stem}.md", page(script, made))
    change(made / "list.inc", "\n\n".join(entry(script, made) for script in scripts) + "\n")
    pages = {made / f"{script.stem}.md" for script in scripts}
    if not scripts:
        pages = {made / "none.md"}
        change(made / "none.md", "# No examples\n\nThis checkout has no `examples` folder.\n")
    for old in set(made.glob("*.md")) - pages:
        old.unlink()


def is_old(folder: Path, script: Path) -> bool:
    """Return True if the pictures are older than the script or the package, or not there."""
    pictures = list(folder.glob("*.png"))
    package = script.parents[1] / "dpmd_fast"
    newest = max(path.stat().st_mtime for path in (script, *package.rglob("*.py")))
    return not pictures or min(path.stat().st_mtime for path in pictures) < newest


def run(script: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    root = script.parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stdout}{done.stderr}")


def title_and_text(script: Path) -> tuple[str, str]:
    title, _, text = (ast.get_docstring(ast.parse(script.read_text("utf-8"))) or script.stem).partition("\n")
    return title, text.lstrip("=\n")


def pictures_of(script: Path, made: Path) -> list[Path]:
    return sorted((made / script.stem).glob("*.png"))


def entry(script: Path, made: Path) -> str:
    """Return what the front page of the gallery shows of a script."""
    title, text = title_and_text(script)
    shown = [f"![{title}](made/{script.stem}/{picture.name})" for picture in pictures_of(script, made)[:1]]
    return "\n\n".join([f"## [{title}](made/{script.stem}.md)", text.split("\n\n")[0], *shown])


def page(script: Path, made: Path) -> str:
    source = script.read_text("utf-8")
    title, text = title_and_text(script)
    shown = [f"![{title}]({script.stem}/{picture.name})" for picture in pictures_of(script, made)]
    shown = shown or ["No pictures in this build: `make docs` runs the script and shows them."]
    after = source.splitlines(keepends=True)[ast.parse(source).body[0].end_lineno :]  # without the docstring
    parts = [part for cell in "".join(after).split(CELL) for part in told(cell)]
    return "\n\n".join([f"# {title}", text, *shown, *parts]) + "\n"


def told(cell: str) -> list[str]:
    """Return the text and the code of one part of a script."""
    lines = cell.strip("\n").splitlines()
    count = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines))
    text = "\n".join(line.removeprefix("#").strip() for line in lines[:count])
    code = "\n".join(lines[count:]).strip("\n")
    return [part for part in (text, f"```python\n{code}\n```" if code else "") if part]


def change(path: Path, text: str) -> None:
    """Write a page only if it differs, so that Sphinx does not read it again."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
