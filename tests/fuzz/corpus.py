"""Edited atlases and ledgers, each with a name: what somebody with an editor and a checksum could make.

Atlases are sealed anew after the edit, so that more than the checksum has to notice it. Ledgers are edited by
SQL, with the triggers out of the way, or in their bytes and beside them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import sqlite3
from functools import cache, partial

import numpy as np

from dpmd_fast import Ledger
from dpmd_fast.models.atlas_file import _arrays, _metadata, _sealed
from dpmd_fast.models.file import HEAD, HEAD_PATTERN
from fuzz.harness import folder
from fuzz.targets import atlas

# Atlases


@cache
def good_atlas(kind="plain"):
    path = folder() / f"good {kind}.dpmd"
    atlas(kind).save(path)
    return path.read_bytes()


def resealed(data):
    """The bytes with a size and checksum that fit them, where the place of both is still there."""
    head = HEAD_PATTERN.search(data)
    if head is None:
        return data
    kind, version = head.group(1).decode(), head.group(2).decode()
    blank = HEAD.format(kind, version, len(data), "0" * 64)
    if len(blank) != len(head.group()):
        return data
    data = data.replace(head.group(), blank.encode())
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(blank.encode(), blank.replace("0" * 64, digest).encode())


def _places(value, path=()):
    """Paths of all values inside metadata."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from _places(item, (*path, key))


def edited(metadata, place, value, how):
    """Edit the value at one of all places of metadata, where it is; the path to it."""
    places = list(_places(metadata))
    *way, last = path = places[place % len(places)]
    part = metadata
    for key in way:
        part = part[key]
    if how == "put":
        part[last] = value
    elif how == "drop":
        del part[last]
    elif how == "add" and isinstance(part, dict):
        part["more"] = value
    elif isinstance(part, list):
        part.insert(last, copy.deepcopy(part[last]))
    return path


def _poisoned(value):
    def change(array):
        array = array.copy()
        array.flat[-1] = value
        return array

    return change


ARRAY_EDITS = {
    "NaN": _poisoned(np.nan),
    "infinity": _poisoned(np.inf),
    "minus infinity": _poisoned(-np.inf),
    "beyond 1e100": _poisoned(1e101),
    "1e99": _poisoned(1e99),
    "negative": lambda array: -np.abs(array) - 1.0,
    "zero": np.zeros_like,
    "doubled": lambda array: 2.0 * array,
    "huge": lambda array: 1e90 * array,
    "a row less": lambda array: array[1:],
    "a row more": lambda array: np.concatenate([array, array[:1]]),
    "a column less": lambda array: array[..., 1:],
    "flat": np.ravel,
    "turned": lambda array: array.T,
    "another axis": lambda array: array[None],
    "rows in reverse": lambda array: array[::-1],
    "subnormal": lambda array: 1e-310 * np.sign(array),
    "same": lambda array: array,
}


def _atlas_edit(change, kind="plain", legal=False, version=None):
    metadata, arrays = json.loads(json.dumps(_metadata(atlas(kind)))), dict(_arrays(atlas(kind)))
    change(metadata, arrays)
    text = json.dumps(metadata)
    if "NaN" in text or "Infinity" in text:
        raise AssertionError("JSON cannot hold it")
    return _sealed(metadata, arrays, version=version), legal


def _put(*path_and_value):
    *way, last, value = path_and_value

    def change(metadata, arrays):
        for key in way:
            metadata = metadata[key]
        metadata[last] = value

    return change


def _drop(*path):
    *way, last = path

    def change(metadata, arrays):
        for key in way:
            metadata = metadata[key]
        del metadata[last]

    return change


def _array(name, how, noted=True):
    def change(metadata, arrays):
        arrays[name] = np.ascontiguousarray(ARRAY_EDITS[how](arrays[name]), dtype=np.float64)
        if noted:
            metadata["shapes"][name] = list(arrays[name].shape)

    return change


def _without(name):
    def change(metadata, arrays):
        del arrays[name], metadata["shapes"][name]

    return change


def _exchanged(a, b):
    def change(metadata, arrays):
        arrays[a], arrays[b] = arrays[b], arrays[a]

    return change


def _all_arrays(prefix, change_one):
    def change(metadata, arrays):
        for name in [name for name in arrays if name.endswith(prefix)]:
            arrays[name] = change_one(arrays[name])

    return change


def _again(name, other):
    def change(metadata, arrays):
        arrays[other] = arrays[name]
        metadata["shapes"][other] = metadata["shapes"][name]

    return change


_FIELDS = ("guarantee", "dim", "bandwidth", "signal_to_noise", "spends", "column_names", "layers", "shapes")
_PROMISES = ("epsilon", "delta", "mu", "adjacency", "holds", "statement", "conditions")
_OF_LAYERS = ("bandwidth", "passes", "strength")
_WRONG = {
    "null": None,
    "a text": "x",
    "a list": [],
    "a mapping": {},
    "true": True,
    "minus one": -1,
    "zero": 0,
}
_NULLABLE = {("column_names", "null")}
_ARRAYS = ("layer 0 centers", "layer 0 tangents", "layer 0 masses", "layer 1 offsets", "layer 1 slopes")

ATLAS_EDITS = {
    "nothing": partial(_atlas_edit, lambda metadata, arrays: None, legal=True),
    "nothing, subspace": partial(_atlas_edit, lambda metadata, arrays: None, "subspace", True),
    "nothing, preprocessed": partial(_atlas_edit, lambda metadata, arrays: None, "preprocessed", True),
    **{f"no {field}": partial(_atlas_edit, _drop(field)) for field in (*_FIELDS, "package_version")},
    **{
        f"{field} is {word}": partial(_atlas_edit, _put(field, value))
        for field in _FIELDS
        for word, value in _WRONG.items()
        if (field, word) not in _NULLABLE and not (field in ("signal_to_noise", "spends") and value == [])
    },
    "column names of none": partial(_atlas_edit, _put("column_names", [])),
    "column names as a mapping": partial(_atlas_edit, _put("column_names", {"x": 1, "y": 2})),
    **{
        f"no {field} of the guarantee": partial(_atlas_edit, _drop("guarantee", field)) for field in _PROMISES
    },
    **{
        f"{field} of the guarantee is {word}": partial(_atlas_edit, _put("guarantee", field, value))
        for field in _PROMISES
        for word, value in _WRONG.items()
        if not (field == "statement" and isinstance(value, str))
        and not (field == "conditions" and value in ([], {}))
    },
    "a smaller epsilon": partial(_atlas_edit, _put("guarantee", "epsilon", 1e-3)),
    "a smaller delta": partial(_atlas_edit, _put("guarantee", "delta", 1e-300)),
    "a delta of 1": partial(_atlas_edit, _put("guarantee", "delta", 1.0)),
    "a larger mu": partial(_atlas_edit, _put("guarantee", "mu", 1e3)),
    "a smaller mu than was spent": partial(_atlas_edit, _put("guarantee", "mu", 1e-3)),
    "another adjacency": partial(_atlas_edit, _put("guarantee", "adjacency", "bounded")),
    "another word for what holds": partial(_atlas_edit, _put("guarantee", "holds", "private")),
    "an empty statement": partial(_atlas_edit, _put("guarantee", "statement", "")),
    **{f"no {field} of a layer": partial(_atlas_edit, _drop("layers", 0, field)) for field in _OF_LAYERS},
    **{
        f"{field} of a layer is {word}": partial(_atlas_edit, _put("layers", 1, field, value))
        for field in _OF_LAYERS
        for word, value in _WRONG.items()
        if (field, word) != ("strength", "zero")
    },
    "passes without end": partial(_atlas_edit, _put("layers", 0, "passes", 10**12)),
    "passes beyond 64 bits": partial(_atlas_edit, _put("layers", 0, "passes", 10**30)),
    "half a pass": partial(_atlas_edit, _put("layers", 0, "passes", 1.5)),
    "a strength of 1e300": partial(_atlas_edit, _put("layers", 1, "strength", 1e300)),
    "a strength of 2": partial(_atlas_edit, _put("layers", 1, "strength", 2.0)),
    "another bandwidth than that of the charts": partial(_atlas_edit, _put("bandwidth", 17.0), legal=True),
    "a dimension less": partial(_atlas_edit, _put("dim", 2)),
    "a dimension beyond 64 bits": partial(_atlas_edit, _put("dim", 10**30)),
    "a layer less": partial(_atlas_edit, _drop("layers", 1)),
    "a signal more than layers": partial(_atlas_edit, _put("signal_to_noise", [1.0] * 9), legal=True),
    "no signal": partial(_atlas_edit, _put("signal_to_noise", []), legal=True),
    "a signal of a text": partial(_atlas_edit, _put("signal_to_noise", ["1", "2"])),
    "spent nothing": partial(_atlas_edit, _put("spends", []), legal=True),
    "spent more": partial(_atlas_edit, _put("spends", [["round 1", 1e9]])),
    "spent less than nothing": partial(_atlas_edit, _put("spends", [["round 1", -1.0]])),
    "spent on a number": partial(_atlas_edit, _put("spends", [[1, 1.0]])),
    "spent on three": partial(_atlas_edit, _put("spends", [["a", 0.1, 0.1]])),
    "one name": partial(_atlas_edit, _put("column_names", ["x"]), "named"),
    "a name twice": partial(_atlas_edit, _put("column_names", ["x", "x"]), "named"),
    "a number as a name": partial(_atlas_edit, _put("column_names", ["x", 1]), "named"),
    "other names": partial(_atlas_edit, _put("column_names", ["u", "v"]), "named", True),
    "code": partial(_atlas_edit, _put("code", "import os")),
    **{
        f"{name}: {how}": partial(_atlas_edit, _array(name, how))
        for name in _ARRAYS
        for how in ("NaN", "infinity", "beyond 1e100", "a row less", "a row more", "flat", "another axis")
        if (name, how) != ("layer 0 masses", "flat")  # it is
    },
    **{
        f"{name}: a row less, not noted": partial(_atlas_edit, _array(name, "a row less", False))
        for name in _ARRAYS
    },
    **{f"no {name}": partial(_atlas_edit, _without(name)) for name in _ARRAYS if "layer 0" in name},
    "a correction without slopes": partial(_atlas_edit, _without("layer 1 slopes"), legal=True),
    "negative masses": partial(_atlas_edit, _array("layer 0 masses", "negative")),
    "no mass": partial(_atlas_edit, _array("layer 0 masses", "zero")),
    "doubled tangents": partial(_atlas_edit, _array("layer 0 tangents", "doubled")),
    "no tangents": partial(_atlas_edit, _array("layer 1 tangents", "zero")),
    "huge tangents": partial(_atlas_edit, _array("layer 0 tangents", "huge")),
    "huge slopes": partial(_atlas_edit, _array("layer 1 slopes", "huge"), legal=True),
    "huge offsets": partial(_atlas_edit, _array("layer 1 offsets", "1e99"), legal=True),
    "a doubled basis": partial(_atlas_edit, _array("subspace basis", "doubled"), "subspace"),
    "no basis": partial(_atlas_edit, _array("subspace basis", "zero"), "subspace"),
    "half a subspace": partial(_atlas_edit, _without("subspace basis"), "subspace"),
    "a turned basis": partial(_atlas_edit, _array("subspace basis", "turned"), "subspace"),
    "a NaN in the basis": partial(_atlas_edit, _array("subspace basis", "NaN"), "subspace"),
    "the other half": partial(_atlas_edit, _without("subspace origin"), "subspace"),
    "exchanged arrays": partial(_atlas_edit, _exchanged("layer 0 masses", "layer 0 centers")),
    "an array more": partial(_atlas_edit, _again("layer 0 masses", "layer 0 weights")),
    "an array of a third layer": partial(_atlas_edit, _again("layer 0 masses", "layer 2 masses")),
    "an array again": partial(_atlas_edit, _again("layer 0 masses", "layer 00 masses")),
    "all charts in reverse": partial(
        _atlas_edit, _all_arrays("", lambda array: array[::-1].copy()), legal=True
    ),
    "no preprocessing in version 2": partial(_atlas_edit, lambda metadata, arrays: None, version=2),
    "preprocessing in version 1": partial(
        _atlas_edit, lambda metadata, arrays: None, "preprocessed", version=1
    ),
    "version 0": partial(_atlas_edit, lambda metadata, arrays: None, version=0),
    "version 4": partial(_atlas_edit, lambda metadata, arrays: None, version=4),
    **{
        f"preprocessing: {field} is {word}": partial(
            _atlas_edit, _put("preprocess", field, value), "preprocessed"
        )
        for field in ("center", "scale", "log", "clip")
        for word, value in _WRONG.items()
        if not (field == "log" and value == [])
    },
    "preprocessing: of another column": partial(
        _atlas_edit, _put("preprocess", "center", [0.0]), "preprocessed"
    ),
    "preprocessing: other names": partial(
        _atlas_edit, _put("preprocess", "column_names", ["u", "v"]), "preprocessed"
    ),
    "preprocessing: a scale of 1e-300": partial(
        _atlas_edit, _put("preprocess", "scale", [1e-300, 1.0]), "preprocessed"
    ),
    "preprocessing: a scale of 1e308": partial(
        _atlas_edit, _put("preprocess", "scale", [1e308, 1.0]), "preprocessed"
    ),
    "preprocessing: a center of 1e308": partial(
        _atlas_edit, _put("preprocess", "center", [1e308, 1.0]), "preprocessed"
    ),
    "preprocessing: nothing": partial(_atlas_edit, _put("preprocess", None), "preprocessed"),
}

# Ledgers


def ledger_path():
    good_ledger()
    return folder() / "good.db"


@cache
def good_ledger():
    """One data set that has spent three times, another that has not."""
    ledger = Ledger(folder() / "good.db")
    ledger.create("clinic", 3.0, 1e-6)
    ledger.create("bank", 1.0, 1e-6, "add-remove")
    for number in range(3):
        spend = ledger.spend("clinic", 0.05, f"release {number}", parameters={"dim": 2})
    ledger.record_file(spend.id, "atlas.dpmd")
    return (folder() / "good.db").read_bytes()


def _sql(*statements, triggers=True):
    """Run statements on the file, as one who knows about the triggers would."""

    def change(path):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            kept = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("PRAGMA foreign_keys = OFF")
            for name, _ in kept:
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
            if triggers:
                for _, sql in kept:
                    with contextlib.suppress(sqlite3.OperationalError):  # of a table that is gone
                        connection.execute(sql)
        return False

    return change


def _noted(change):
    """An edit of names of files, which are notes: no seal covers them, and no budget depends on them."""
    return lambda path: change(path) or True


def _beside(suffix, data):
    """Another file beside the ledger, as of a crash; SQLite may look at it."""

    def change(path):
        path.with_name(path.name + suffix).write_bytes(data() if callable(data) else data)
        return True

    return change


def _bytes(edit, legal=False):
    def change(path):
        path.write_bytes(edit(path.read_bytes()))
        return legal

    return change


def _of_another_program(path):
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE datasets (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO datasets VALUES (1, 'clinic')")
        connection.commit()
    return False


def _folder(path):
    path.unlink()
    path.mkdir()
    return False


def _in_wal_mode(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return True


def _wal_of_another(path):
    other = path.with_name("other.db")
    shutil.copy(path, other)
    _in_wal_mode(other)
    with contextlib.closing(sqlite3.connect(other, isolation_level=None)) as connection:
        kept = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'spends_delete'").fetchone()[0]
        connection.execute("DROP TRIGGER spends_delete")
        connection.execute("DELETE FROM spends")
        connection.execute(kept)
        shutil.copy(f"{other}-wal", f"{path}-wal")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{other}{suffix}")
    return False


_NUMBERS = {
    "NaN": "'nan'",
    "a text": "'much'",
    "minus one": "-1.0",
    "zero": "0.0",
    "infinity": "9e999",
    "an integer": "1",
    "bytes": "x'00'",
}
_TEXT = {"a number": "1", "bytes": "x'ff'", "empty": "''", "another": "'other'"}


def _set(table, column, values, row):
    """One edit of a column for each of the values."""
    return {
        f"{column} of {table} is {word}": _sql(
            f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE id = {row}"
        )
        for word, value in values.items()
    }


LEDGER_EDITS = {
    "nothing": lambda path: True,
    "no spends table": _sql("DROP TABLE spends"),
    "no datasets table": _sql("DROP TABLE datasets"),
    "no files table": _sql("DROP TABLE files"),
    "no tables": _sql("DROP TABLE spends", "DROP TABLE files", "DROP TABLE datasets"),
    "no triggers": _sql(triggers=False),
    "no index": _sql("DROP INDEX spends_of_dataset"),
    "a table more": _sql("CREATE TABLE more (id INTEGER)"),
    "a view": _sql("CREATE VIEW more AS SELECT * FROM spends"),
    "a trigger more": _sql("CREATE TRIGGER undo AFTER INSERT ON spends BEGIN DELETE FROM spends; END"),
    "a column more in spends": _sql("ALTER TABLE spends ADD COLUMN more TEXT"),
    "a column more in datasets": _sql("ALTER TABLE datasets ADD COLUMN more REAL DEFAULT 1"),
    "a column renamed": _sql("ALTER TABLE spends RENAME COLUMN mu2 TO mu"),
    **_set("spends", "mu2", _NUMBERS, 2),
    **_set("datasets", "mu2", _NUMBERS, 1),
    **_set("datasets", "epsilon", _NUMBERS, 1),
    **_set("datasets", "delta", _NUMBERS, 1),
    **_set("spends", "what", _TEXT, 1),
    **_set("spends", "time", _TEXT, 1),
    **_set("spends", "parameters", _TEXT, 1),
    **_set("spends", "holds", _TEXT, 1),
    **_set("spends", "host", _TEXT, 1),
    **_set("datasets", "conversion", _TEXT, 1),
    **_set("datasets", "adjacency", _TEXT, 1),
    **_set("datasets", "time", _TEXT, 1),
    **_set("datasets", "host", _TEXT, 1),
    **_set("datasets", "seal", _TEXT, 1),
    **_set("datasets", "fingerprint", _TEXT, 1),
    "a total edited up": _sql("UPDATE datasets SET mu2 = 100 WHERE id = 1"),
    "a total edited down": _sql("UPDATE datasets SET mu2 = 0.2 WHERE id = 1"),
    "a spend edited down": _sql("UPDATE spends SET mu2 = 1e-9 WHERE id = 1"),
    "a spend deleted": _sql("DELETE FROM spends WHERE id = 3"),
    "a spend deleted and not counted": _sql(
        "DELETE FROM spends WHERE id = 3", "UPDATE datasets SET spends = 2 WHERE id = 1"
    ),
    "all spends deleted": _sql("DELETE FROM spends", "UPDATE datasets SET spends = 0"),
    "spends given to another": _sql("UPDATE spends SET dataset = 2"),
    "a spend of nobody": _sql("UPDATE spends SET dataset = 77 WHERE id = 1"),
    "a spend twice": _sql(
        "INSERT INTO spends SELECT 9, dataset, time, what, mechanism, parameters, mu2, holds, host, "
        "pid FROM spends WHERE id = 1"
    ),
    "spends in another order": _sql("UPDATE spends SET id = 10 WHERE id = 1"),
    "fewer spends counted": _sql("UPDATE datasets SET spends = 1 WHERE id = 1"),
    "a seal of another": _sql(
        "UPDATE datasets SET seal = (SELECT seal FROM datasets WHERE id = 2) WHERE id = 1"
    ),
    "names exchanged": _sql(
        "UPDATE datasets SET name = 'x' WHERE id = 1", "UPDATE datasets SET name = 'clinic' WHERE id = 2"
    ),
    "a name as bytes": _sql("UPDATE datasets SET name = x'ff' WHERE id = 1"),
    "no data set": _sql("DELETE FROM datasets"),
    "a version of the future": _sql("PRAGMA user_version = 99"),
    "version 0": _sql("PRAGMA user_version = 0"),
    "a negative version": _sql("PRAGMA user_version = -1"),
    "another application": _sql("PRAGMA application_id = 1"),
    "a file name that is a number": _noted(_sql("UPDATE files SET path = 7")),
    "files of nobody": _noted(_sql("UPDATE files SET spend = 77")),
    "another program": _of_another_program,
    "a folder": _folder,
    "gone": lambda path: path.unlink() or False,
    "empty": _bytes(lambda data: b""),
    "one byte": _bytes(lambda data: data[:1]),
    "half": _bytes(lambda data: data[: len(data) // 2]),
    "a page less": _bytes(lambda data: data[:-4096]),
    "a byte less": _bytes(lambda data: data[:-1]),
    "a byte more": _bytes(lambda data: data + b"\0"),
    "twice": _bytes(lambda data: data + data),
    "zeros": _bytes(lambda data: bytes(len(data))),
    "another header": _bytes(lambda data: b"SQLite format 4\0" + data[16:]),
    "another page size": _bytes(lambda data: data[:16] + b"\x02\x00" + data[18:]),
    "a text": _bytes(lambda data: b"dataset,mu2\nclinic,1\n"),
    "in WAL mode": _in_wal_mode,
    "WAL of another ledger": _wal_of_another,
    "an empty WAL beside": _beside("-wal", b""),
    "a WAL of noise beside": _beside("-wal", b"noise" * 100),
    "an empty journal beside": _beside("-journal", b""),
    "a journal of noise beside": _beside("-journal", b"noise" * 100),
    "shared memory beside": _beside("-shm", bytes(32768)),
}
