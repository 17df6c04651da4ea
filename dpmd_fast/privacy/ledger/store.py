"""The file behind a ledger: one append-only SQLite database.

Every operation opens and closes its own connection, so forked processes and threads never share one. A write
takes the lock first, then reads, then writes: no two writers see the same balance. Commits reach the disk
before they return (rollback journal, ``synchronous=EXTRA``: with less, a power failure can undo a commit).

The row of a data set holds a running SHA-256 of its declaration and all its spends: the head of a chain.
Every operation on the account computes it again, so damage that SQLite does not detect is refused, too.
Signed models hold the head after their own debit, against which edits, deletions and rollbacks show. These
heads leave the ledger, so they are those of a second chain whose declaration says only that the data set is
bound: a digest of the fingerprint would let anybody confirm a guess of all the records.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dpmd_fast.atomic import partial_file, sync_folder
from dpmd_fast.errors import (
    UserFileNotFoundError,
    UserOSError,
    UserPermissionError,
    UserRuntimeError,
    UserTimeoutError,
    UserValueError,
    either,
)

VERSION = 1
_LONGEST_PATH = 300  # in a message
_APPLICATION = 0x64706D64  # "dpmd", in the header of the file

_DECLARED = (
    "name",
    "epsilon",
    "delta",
    "conversion",
    "mu2",
    "adjacency",
    "fingerprint",
    "time",
    "host",
    "pid",
)
_SPENT = ("id", "time", "what", "mechanism", "parameters", "mu2", "holds", "host", "pid")

_SCHEMA = (
    """CREATE TABLE datasets (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    conversion TEXT NOT NULL,
    mu2 REAL NOT NULL,
    adjacency TEXT NOT NULL,
    fingerprint TEXT,
    time TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    spends INTEGER NOT NULL,
    seal TEXT NOT NULL
)""",
    """CREATE TABLE spends (
    id INTEGER PRIMARY KEY,
    dataset INTEGER NOT NULL REFERENCES datasets(id),
    time TEXT NOT NULL,
    what TEXT NOT NULL,
    mechanism TEXT NOT NULL,
    parameters TEXT NOT NULL,
    mu2 REAL NOT NULL CHECK (mu2 > 0),
    holds TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL
)""",
    "CREATE INDEX spends_of_dataset ON spends (dataset, id)",
    """CREATE TABLE files (
    id INTEGER PRIMARY KEY,
    spend INTEGER NOT NULL REFERENCES spends(id),
    path TEXT NOT NULL,
    time TEXT NOT NULL
)""",
    "CREATE INDEX files_of_spend ON files (spend, id)",
    *(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb}{columns} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END"
        for table, verb, columns in (
            ("datasets", "UPDATE", " OF id, " + ", ".join(_DECLARED)),
            ("datasets", "DELETE", ""),
            ("spends", "UPDATE", ""),
            ("spends", "DELETE", ""),
            ("files", "UPDATE", ""),
            ("files", "DELETE", ""),
        )
    ),
)


class Account(NamedTuple):
    """One data set as stored in the file, after its seal has been checked."""

    id: int
    declared: tuple[Any, ...]  # in the order of _DECLARED
    spends: list[tuple[Any, ...]]  # in the order of _SPENT, oldest first
    seal: str
    heads: list[str]  # published: of the chain without the fingerprint, after the declaration and each spend


class Book:
    """The open file inside one transaction."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    def names(self) -> list[str]:
        return [name for (name,) in self._connection.execute("SELECT name FROM datasets ORDER BY id")]

    def account(self, name: str) -> Account:
        """Return the account of a data set; refuse an unknown name or a damaged account."""
        found = self._connection.execute(
            f"SELECT id, spends, seal, {', '.join(_DECLARED)} FROM datasets WHERE name = ?", (name,)
        ).fetchone()
        if found is None:
            known = ", ".join(map(repr, self.names()[:10])) or "no data set"
            raise UserValueError(
                f"dataset = {name!r}: the ledger {self._path} has {known}", argument="dataset"
            )
        number, count, seal, *declared = found
        spends = self._connection.execute(
            f"SELECT {', '.join(_SPENT)} FROM spends WHERE dataset = ? ORDER BY id", (number,)
        ).fetchall()
        computed, heads = _sealed("", declared), [_sealed("", _published(declared))]
        for spend in spends:
            computed = _sealed(computed, spend)
            heads.append(_sealed(heads[-1], spend))
        numbers = [declared[4], *(spend[5] for spend in spends)]
        sound = all(isinstance(value, float) and 0.0 < value < math.inf for value in numbers)
        if computed != seal or len(spends) != count or not sound:
            raise UserValueError(
                f"{self._path} is damaged or was edited: the entries of {name!r} do not match their checksum"
            )
        return Account(number, tuple(declared), spends, seal, heads)

    def declare(self, *declared: Any) -> None:
        """Insert a data set, given in the order of its columns; the name must be new."""
        name = declared[0]
        if self._connection.execute("SELECT 1 FROM datasets WHERE name = ?", (name,)).fetchone():
            raise UserValueError(
                f"dataset = {name!r}: the ledger {self._path} has it already, and a total is final",
                argument="dataset",
            )
        marks = ", ".join("?" * (len(_DECLARED) + 2))
        self._connection.execute(
            f"INSERT INTO datasets ({', '.join(_DECLARED)}, spends, seal) VALUES ({marks})",
            (*declared, 0, _sealed("", declared)),
        )

    def enter(self, account: Account, *spent: Any) -> tuple[int, str]:
        """Add a spend, given in the order of its columns without the id; return the id and published head."""
        marks = ", ".join("?" * len(_SPENT))
        cursor = self._connection.execute(
            f"INSERT INTO spends (dataset, {', '.join(_SPENT[1:])}) VALUES ({marks})", (account.id, *spent)
        )
        number = cursor.lastrowid
        assert number is not None
        seal, head = (_sealed(before, (number, *spent)) for before in (account.seal, account.heads[-1]))
        self._connection.execute(
            "UPDATE datasets SET spends = ?, seal = ? WHERE id = ?",
            (len(account.spends) + 1, seal, account.id),
        )
        return number, head

    def add_file(self, spend: int, path: str, time: str) -> None:
        if not self._connection.execute("SELECT 1 FROM spends WHERE id = ?", (spend,)).fetchone():
            raise UserValueError(
                f"spend_id = {spend!r}: the ledger {self._path} has no such spend", argument="spend_id"
            )
        self._connection.execute(
            "INSERT INTO files (spend, path, time) VALUES (?, ?, ?)", (spend, path, time)
        )

    def files(self, account: Account) -> dict[int, tuple[str, ...]]:
        """Return the files of each spend of an account, oldest first."""
        found: dict[int, tuple[str, ...]] = {}
        rows = self._connection.execute(
            "SELECT spend, path FROM files WHERE spend IN (SELECT id FROM spends WHERE dataset = ?) "
            "ORDER BY id",
            (account.id,),
        )
        for spend, path in rows:
            found[spend] = (*found.get(spend, ()), path)
        return found


def create_file(path: str) -> None:
    """Create an empty ledger at `path` atomically, readable by its owner only; keep an existing one."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise UserFileNotFoundError(f"{folder} does not exist: the ledger {path} cannot be created in it")
    try:
        with partial_file(path, mode=0o600) as partial:
            _fill(partial, path)
            _link(partial, path)
    except OSError as error:
        if error.errno is None:  # has been explained
            raise
        kind = UserPermissionError if isinstance(error, PermissionError) else UserOSError
        raise kind(f"{path} cannot be created: {error.strerror}") from None
    sync_folder(folder)


def _fill(partial: str, path: str) -> None:
    """Write an empty ledger into a partial file."""
    try:
        with _translating_errors(path, 0.0), closing(_connect(partial, 0.0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _create_tables(connection)
            connection.execute("COMMIT")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(f"{partial}-journal")


def _link(partial: str, path: str) -> None:
    """Give a complete file its name, but never in the place of another."""
    try:
        os.link(partial, path)
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        raise UserOSError(
            f"{path} cannot be created: a ledger needs a local file system with hard links ({error.strerror})"
        ) from None


@contextmanager
def open_book(path: str, timeout: float, *, write: bool) -> Iterator[Book]:
    """Open the file in one transaction: commit at the end, roll back if anything is raised.

    Raises
    ------
    FileNotFoundError, PermissionError, OSError
        If there is no such file, or it cannot be read or written.
    TimeoutError
        If others hold the lock for longer than `timeout` seconds.
    ValueError
        If the file is not a ledger, is damaged or is of another version.
    """
    if not os.path.exists(path):
        name = os.fspath(path)
        name = name if len(name) <= _LONGEST_PATH else f"{name[:100]}..."
        creator = either("Ledger(path).create(dataset, epsilon, delta)", "dpmd-fast ledger create")
        raise UserFileNotFoundError(f"{name} does not exist: must be a ledger; {creator} makes one")
    if not os.path.isfile(path):
        raise UserValueError(f"{path} is not a ledger: it is not a regular file")
    with (
        _refusing_after_fork(),
        _translating_errors(path, timeout),
        closing(_connect(path, timeout)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            _check_file(path, connection)
            yield Book(path, connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _connect(path: str, timeout: float) -> sqlite3.Connection:
    # mode=rw: a missing file is an error, not a new and empty ledger
    connection = sqlite3.connect(
        f"{Path(path).as_uri()}?mode=rw", uri=True, timeout=timeout, isolation_level=None
    )
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: flush the disk's own cache as well
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in _SCHEMA:
        connection.execute(statement)


def _check_file(path: str, connection: sqlite3.Connection) -> None:
    """Refuse a file that is not a ledger of this version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise UserValueError(f"{path} is not a ledger: it is empty or the SQLite file of another program")
    if version > VERSION:
        raise UserValueError(
            f"{path} was written by a newer version of dpmd-fast: its format is {version}, this version "
            f"reads {VERSION}"
        )
    if version != VERSION or _tables(connection) != _expected_tables():
        raise UserValueError(f"{path} is damaged or was edited: its tables are not those of a ledger")
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    if journal == "delete" and pages * page_size != os.path.getsize(path):
        raise UserValueError(f"{path} is damaged: it is truncated, or something was appended to it")


def _tables(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


@cache
def _expected_tables() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _create_tables(connection)
        return _tables(connection)


def _sealed(seal: str, row: Any) -> str:
    """Return the running digest after one more row; "" for values that JSON cannot hold."""
    try:
        text = json.dumps([seal, *row], separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return ""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _published(declared: Sequence[Any]) -> list[Any]:
    """Return a declaration that says whether the data set is bound to a reference, not to which."""
    return [
        "bound" if name == "fingerprint" and value is not None else value
        for name, value in zip(_DECLARED, declared, strict=True)
    ]


_operating: set[tuple[int, int]] = set()  # process and thread of every operation in progress


@contextmanager
def _refusing_after_fork() -> Iterator[None]:
    """Refuse to work in a child forked while another thread was in an operation and held locks."""
    me = (os.getpid(), threading.get_ident())
    if any(pid != me[0] for pid, _ in tuple(_operating)):
        raise UserRuntimeError(
            "the process was forked while another thread was using a ledger: its locks cannot be trusted "
            "here; start a new process (spawn) instead"
        )
    _operating.add(me)
    try:
        yield
    finally:
        _operating.discard(me)


@contextmanager
def _translating_errors(path: str, timeout: float) -> Iterator[None]:
    """Raise errors of SQLite as errors about the ledger."""
    try:
        yield
    except UnicodeDecodeError:  # a message of SQLite that quotes damaged text
        raise UserValueError(f"{path} is damaged: it holds text that cannot be read") from None
    except sqlite3.DatabaseError as error:
        raise _translated(path, timeout, str(error)) from error


def _translated(path: str, timeout: float, problem: str) -> Exception:
    if "locked" in problem:
        return UserTimeoutError(
            f"{path} is locked: its file system has no locks, or another process has held it for more than "
            f"{timeout:g} s; nothing was written to it"
        )
    if "not a database" in problem:
        return UserValueError(
            f"{path} is not a ledger: it is not an SQLite file, or its first page is damaged"
        )
    if any(word in problem for word in ("malformed", "decode", "corrupt", "unsupported file format")):
        return UserValueError(f"{path} is damaged: {problem}")
    if "readonly" in problem:
        return UserPermissionError(
            f"{path} cannot be written: its permissions or those of its folder forbid it"
        )
    return UserOSError(f"{path} could not be read or written: {problem}; nothing was written to it")
