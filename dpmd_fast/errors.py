"""Errors that are meant for the user.

A `UserError` was raised by this package on purpose: its text names arguments, files and columns and never a
value of the private reference, so it may be shown, logged and sent on. Any other exception comes from a bug
or from a library and may quote what it was working on.

Each class below is also one of Python's own, so ``except ValueError`` works as usual.
"""

from __future__ import annotations

import re

_EITHER = re.compile("\x02([^\x1f]*)\x1f([^\x03]*)\x03")


def either(python: str, command_line: str) -> str:
    """Part of a message that the command line words differently: ``ledger=...``, ``--ledger FILE``."""
    return f"\x02{python}\x1f{command_line}\x03"


def text_of(error: Exception) -> str:
    """Return the text of an error, with both wordings if it has two, to quote it in another `UserError`."""
    return error.text if isinstance(error, UserError) else str(error)


#: Options of the command line that have other names than the arguments in Python.
OPTIONS = {
    "deviation_suffix": "--deviations",
    "n": "--reference-rows",
    "n_threads": "--threads",
    "path": "--ledger",
}


def option_text(error: UserError) -> str:
    """Return the command line's text, with the argument that it begins with as an option.

    ``noise['a']`` becomes ``--noise['a']``.
    """
    name, text = error.argument, error.command_line_text
    if name is None or not text.startswith(name):
        return text
    name = name.partition("[")[0]
    return OPTIONS.get(name, f"--{name.replace('_', '-')}") + text[len(name) :]


class UserError(Exception):
    """An error whose text is safe to show.

    Parameters
    ----------
    text : str
        May hold parts made by `either`; ``str(error)`` has their Python wording.
    argument : str, optional
        The argument that is wrong, where the text begins with its name: an option, on the command line.
    """

    def __init__(self, text: str, *, argument: str | None = None) -> None:
        super().__init__(_EITHER.sub(r"\1", text))
        self.argument = argument
        self.text = text
        self.command_line_text = _EITHER.sub(r"\2", text)


class UserValueError(UserError, ValueError):
    """A value that is not allowed."""


class UserTypeError(UserError, TypeError):
    """A value of a kind that is not supported."""


class UserOSError(UserError, OSError):
    """A file that cannot be read or written."""


class UserFileNotFoundError(UserError, FileNotFoundError):
    """A file or folder that is not there."""


class UserFileExistsError(UserError, FileExistsError):
    """A file that must not be replaced."""


class UserIsADirectoryError(UserError, IsADirectoryError):
    """A folder where a file is needed."""


class UserPermissionError(UserError, PermissionError):
    """A file that permissions protect."""


class UserTimeoutError(UserError, TimeoutError):
    """Another process has held a file for too long."""


class UserRuntimeError(UserError, RuntimeError):
    """Something that could not be completed."""


class UserMemoryError(UserError, MemoryError):
    """Work for which there is not enough memory."""


class UserOverflowError(UserError, OverflowError):
    """Sums that would leave the range of their integers."""
