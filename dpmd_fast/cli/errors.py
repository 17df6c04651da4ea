"""What is said when a command fails: one line, exit code 2, and nothing about private values.

Texts of errors that the package raises on purpose may be shown: they name arguments, files and columns.
Errors that come from elsewhere, from a bug or from a library, may quote what they were working on, so of
those only the kind and the place are told.
"""

from __future__ import annotations

import dis
import os
import re
import traceback
from types import TracebackType

import click

PROGRAM = "dpmd-fast"
USER, BUG = 2, 1  # exit codes
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RAISE = dis.opmap["RAISE_VARARGS"]
_ARGUMENT = re.compile(r"^([a-z]\w*) = ")  # what most messages begin with
_OPTIONS = {"n": "--reference-rows", "n_threads": "--threads"}
_SPOKEN = {  # arguments and functions, as the command line calls them
    "on_invalid='drop'": "--on-invalid drop",
    "with columns=[...]": "with --columns A,B,...",
    "or pass overwrite=True to replace it": "or pass --force",
    "plan(...) says": "dpmd-fast plan says",
    "a bandwidth of your own": "a --bandwidth of your own",
    "must be None with a ledger": "must not be given with a ledger",
    "Ledger(path).create(dataset, epsilon, delta) makes one": "dpmd-fast ledger create makes one",
}


def tell(error: Exception) -> int:
    """Print one line about an error; returns the exit code."""
    text = message_of(error)
    if text is None:
        _show(f"internal error, please report it: {_kind_and_place(error)}")
        return BUG
    _show(f"error: {text}")
    return USER


def message_of(error: BaseException) -> str | None:
    """What may be said about an error; None if it was not meant for the user."""
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, MemoryError):
        return "memory ran out: read fewer rows at a time, or use a larger machine"
    if _raised_on_purpose(error):
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        cause = error.__cause__
        if cause is not None and message_of(cause) is None and str(cause):
            text = text.replace(str(cause), _kind_and_place(cause))
        return _spoken(text)
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name]
        return ": ".join([*names, error.strerror])
    return None


def _spoken(text: str) -> str:
    for python, spoken in _SPOKEN.items():
        text = text.replace(python, spoken)
    if text.startswith("columns "):
        return f"--{text}"
    return _ARGUMENT.sub(lambda name: f"{_OPTIONS.get(name[1], _option(name[1]))} = ", text)


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = PROGRAM if context is None else context.command_path
    text = error.format_message().replace(". Did you mean", ": did you mean").rstrip(".?")
    return f"{text}; see {path} --help"


def _raised_on_purpose(error: BaseException) -> bool:
    """Whether a ``raise`` of this package made the error, and not a function that it called."""
    place = _last(error.__traceback__)
    if place is None:
        return False
    code = place.tb_frame.f_code
    inside = os.path.abspath(code.co_filename).startswith(_PACKAGE + os.sep)
    return inside and code.co_code[place.tb_lasti] == _RAISE


def _last(place: TracebackType | None) -> TracebackType | None:
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place


def _kind_and_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if os.path.abspath(frame.filename).startswith(_PACKAGE + os.sep)]
    chosen = (ours or list(frames))[-1:]
    places = [f" in {os.path.basename(frame.filename)}, line {frame.lineno}" for frame in chosen]
    return type(error).__name__ + "".join(places)


def _show(text: str) -> None:
    """One printable line."""
    line = " ".join(text.split())
    click.echo(f"{PROGRAM}: " + "".join(c if c.isprintable() else "?" for c in line), err=True)
