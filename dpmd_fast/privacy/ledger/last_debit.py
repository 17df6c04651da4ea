"""What to say of the last debit of this process if it is interrupted: a signal may come at any moment.

Imports nothing, because the command line asks before it knows whether there will be a debit.
"""

from __future__ import annotations

_words: str | None = None


def last_debit() -> str | None:
    """Return a clause about the last debit and what became of it; None if there was none."""
    return _words


def note_debit(words: str | None) -> None:
    """Say something else from now on."""
    global _words
    _words = words
