"""Tokens: who may call, from a file that nobody but its owner can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence

from dpmd_fast.errors import UserFileNotFoundError, UserPermissionError, UserValueError

_LARGEST = 1 << 20  # bytes of a file of tokens
_MOST_CHARACTERS = 1000  # of a token: headers of a call have room for a few thousand
SHORT = 16  # characters, below which a token can be guessed


def read_private(path: str, what: str, others: int = stat.S_IRWXG | stat.S_IRWXO) -> bytes:
    """Return the content of a regular file, or refuse one that is missing or open to others.

    `others` are the permissions that it must not have.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserFileNotFoundError(f"{path} does not exist: must be {what}") from None
    with os.fdopen(file, "rb") as opened:  # permissions of what was opened, not of what has the name by now
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UserValueError(f"{path} is not a file: must be {what}")
        if found.st_mode & others:
            raise UserPermissionError(
                f"{path} has permissions {stat.S_IMODE(found.st_mode):03o}: must be {what} that only its "
                f"owner can read; chmod 600 {path}"
            )
        if found.st_size > _LARGEST:
            raise UserValueError(f"{path} has {found.st_size:,} bytes: must have at most {_LARGEST:,}")
        return opened.read(_LARGEST)


def read_tokens(path: str) -> list[str]:
    """Return the token of each line of a file, "" for lines that are empty or begin with #.

    So the place of a token is the number of its line, which logs name.
    """
    data = read_private(path, "a file of tokens")
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise UserValueError(f"{path}: tokens must be printable ASCII") from None
    tokens = []
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token or token.startswith("#"):
            tokens.append("")
            continue
        if not token.isprintable() or " " in token or len(token) > _MOST_CHARACTERS:
            raise UserValueError(
                f"{path}, line {number}: a token must be at most {_MOST_CHARACTERS:,} printable characters "
                "without spaces"
            )
        tokens.append(token)
    if not any(tokens):
        raise UserValueError(f"{path} has no tokens: must have one in a line")
    return tokens


class Tokens:
    """The tokens that are accepted, as digests; None of them if everybody may call."""

    def __init__(self, tokens: Sequence[str] | None) -> None:
        self._digests: tuple[tuple[int, bytes], ...] | None = None
        self.replace(tokens)

    def replace(self, tokens: Sequence[str] | None) -> None:
        """Accept these tokens from now on; in one step, so that calls see the old or the new ones.

        Empty ones are lines without a token: nobody has them.
        """
        self._digests = (
            None
            if tokens is None
            else tuple((line, _digest(token)) for line, token in enumerate(tokens, 1) if token)
        )

    def owner_of(self, header: str | None) -> int | None:
        """Return the number of the token in the value of a header, 0 if none is needed, None if refused.

        All tokens are compared, each in constant time, whichever it is.
        """
        digests = self._digests
        if digests is None:
            return 0
        kind, _, token = (header or "").partition(" ")
        given = _digest(token.strip())
        found = None
        for number, digest in digests:
            if hmac.compare_digest(digest, given):
                found = number
        return found if kind.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
