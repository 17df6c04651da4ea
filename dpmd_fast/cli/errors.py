"""What is printed when a command fails: one line, exit code 2, and nothing about private values.

The text of a `UserError` may be shown: it names arguments, files and columns. Any other error comes from a
bug or from a library and may quote what it was working on, so only its kind and place are shown.
"""

from __future__ import annotations

import os
import traceback

import click

from dpmd_fast.errors import UserError, option_text

PROGRAM = "dpmd-fast"
USER, BUG = 2, 1  # exit codes
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def tell(error: Exception) -> int:
    """Print one line about an error and return the exit code."""
    text = message_of(error)
    if text is None:
        _show(f"internal error, please report it: {_kind_and_place(error)}")
        return BUG
    _show(f"error: {text}")
    return USER


def message_of(error: BaseException) -> str | None:
    """Return what may be shown of an error, or None if it was not meant for the user."""
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, UserError):
        return option_text(error)
    if isinstance(error, MemoryError):
        return "memory ran out: read fewer rows at a time, or use a larger machine"
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name]
        return ": ".join([*names, error.strerror])
    return None


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = PROGRAM if context is None else context.command_path
    text = error.format_message().replace(". Did you mean", ": did you mean").rstrip(".?")
    return f"{text}; see {path} --help"


def _kind_and_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if os.path.abspath(frame.filename).startswith(_PACKAGE + os.sep)]
    chosen = (ours or list(frames))[-1:]
    places = [f" in {os.path.basename(frame.filename)}, line {frame.lineno}" for frame in chosen]
    return type(error).__name__ + "".join(places)


def _show(text: str) -> None:
    """Print one line of printable text."""
    line = " ".join(text.split())
    click.echo(f"{PROGRAM}: " + "".join(c if c.isprintable() else "?" for c in line), err=True)
