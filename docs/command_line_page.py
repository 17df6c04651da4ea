"""Write the reference of the command line from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from dpmd_fast.cli import commands

_ESCAPED = str.maketrans({"|": "\\|", "<": "&lt;", "*": "\\*", "_": "\\_"})


def write(docs: Path) -> None:
    """Write ``api/made/options.txt``, which ``api/cli.md`` includes."""
    folder = docs / "api" / "made"
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(_lines(commands, click.Context(commands, info_name="dpmd-fast")))
    target = folder / "options.txt"
    if not target.exists() or target.read_text("utf-8") != text:  # else Sphinx would read it again
        target.write_text(text, "utf-8")


def _lines(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of a command, and those of its verbs: a line for each option."""
    if context.parent is not None:
        yield f"## {context.command_path}\n"
        yield f"{_one_line(command.help or command.short_help or '')}\n"
    rows = [_row(one, context) for one in command.params]
    if rows:
        yield "| option | meaning |\n| --- | --- |"
        yield from rows
        yield ""
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            yield from _lines(verb, click.Context(verb, info_name=name, parent=context))


def _row(one: click.Parameter, context: click.Context) -> str:
    if isinstance(one, click.Argument):
        needed = "required" if one.required else "may be left out"
        return f"| `{one.make_metavar(context).strip('[]')}` | argument, {needed} |"
    assert isinstance(one, click.Option)
    value = "" if one.is_flag else f" {one.make_metavar(context)}"
    shown = f"`{', '.join(one.opts)}{value}`".replace("|", "\\|")
    notes = ["required"] if one.required else []
    if one.show_default and one.default is not None:
        notes.append(f"default {one.default}")
    more = f" ({', '.join(notes)})" if notes else ""
    return f"| {shown} | {_one_line(one.help or '')}{more} |"


def _one_line(text: str) -> str:
    return " ".join(text.replace("\b", "").split()).translate(_ESCAPED)
