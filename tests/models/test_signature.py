"""Signed models: a relabelled guarantee is refused, and a ledger that was changed since does not agree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import make_atlas, make_mixture

from dpmd_fast import Atlas, Budget, Ledger, Mixture, load_model, release_moments
from dpmd_fast.models.signature import UNCHECKED, UNSIGNED, Signature, words_about
from dpmd_fast.privacy.keys import create_keys, is_signed, public_key_of, signing_key, trusted_names
from dpmd_fast.privacy.ledger.charge import Receipt

MODELS = {"atlas": make_atlas(), "mixture": make_mixture()}
OLD = Path(__file__).parent / "old"


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def key(tmp_path):
    create_keys(tmp_path / "clinic.key")
    return tmp_path / "clinic.key"


@pytest.fixture
def public(key):
    return f"{key}.pub"


@pytest.fixture
def path(kind, tmp_path, key):
    MODELS[kind].save(tmp_path / "model.dpmd", key)
    return tmp_path / "model.dpmd"


def rewritten(path, kind, change):
    """The file with other metadata or arrays, and a checksum that fits: what anybody can do."""
    from dpmd_fast.models.file import _opened, sealed

    metadata, arrays = _opened(kind, path.read_bytes())
    version = metadata["version"]
    for name in ("format", "version", "bytes", "sha256"):
        del metadata[name]
    metadata, arrays = change(metadata, {name: array.copy() for name, array in arrays.items()})
    path.write_bytes(sealed(kind, version, metadata, arrays))


# Keys


def test_keys(tmp_path, key, public):
    made = signing_key(key)
    assert made.name == public_key_of(public) == signing_key(made).name
    assert os.stat(key).st_mode & 0o777 == 0o600
    assert "PRIVATE" not in repr(made)
    assert is_signed(made.name, b"text", made.sign(b"text"))
    assert not is_signed(made.name, b"texts", made.sign(b"text"))
    assert not is_signed(made.name, b"text", made.sign(b"text")[:-1] + "z")
    assert not is_signed("ed25519:" + 64 * "0", b"text", made.sign(b"text"))
    with pytest.raises(ValueError, match="exists already: a key is never written over"):
        create_keys(key)
    (tmp_path / "other.pub").touch()
    with pytest.raises(ValueError, match="exists already"):
        create_keys(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert create_keys(tmp_path / "second").name != made.name


@pytest.mark.parametrize("bad", [7, None, b"x", [], "ed25519:abc", "ed25519:" + 63 * "0" + "G"])
def test_what_is_no_trusted_key(bad):
    with pytest.raises(ValueError, match="trusted"):
        trusted_names(bad if bad is not None else [None])


def test_files_that_are_no_keys(tmp_path, key):
    (tmp_path / "text").write_text("a text\n")
    (tmp_path / "huge").write_bytes(bytes(10**6))
    for name in ("text", "huge"):
        with pytest.raises(ValueError, match="is not a public key"):
            public_key_of(tmp_path / name)
        with pytest.raises(ValueError, match="is not a private key"):
            signing_key(tmp_path / name)
    with pytest.raises(ValueError, match=r"is a private key: must be the public one, .*\.pub"):
        public_key_of(key)
    with pytest.raises(ValueError, match="is not a private key"):
        signing_key(f"{key}.pub")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        public_key_of(tmp_path / "none")
    with pytest.raises(ValueError, match="key is a int"):
        signing_key(7)


# Files


def test_a_signed_model_is_taken_by_those_who_trust_its_key(kind, path, key, public, tmp_path):
    name = signing_key(key).name
    other = create_keys(tmp_path / "other").name
    for trusted in (public, name, [other, public], (name,), {name}):
        assert load_model(path, trusted=trusted).signature.key == name
    assert type(MODELS[kind]).load(path, trusted=name).signature.ledger is None
    assert load_model(path).signature.key == name
    with pytest.raises(ValueError, match=f"is signed by {name}, which is not a trusted key$"):
        load_model(path, trusted=other)
    signature = load_model(path).signature
    assert words_about(signature, trusted=True) == f"signed by {name}"
    assert words_about(signature, trusted=False) == f"signed by {name}{UNCHECKED}"


def test_an_unsigned_model_says_so(kind, tmp_path, public):
    MODELS[kind].save(tmp_path / "plain.dpmd")
    assert load_model(tmp_path / "plain.dpmd").signature is None
    assert {words_about(None, trusted=trusted) for trusted in (False, True)} == {UNSIGNED}
    with pytest.raises(
        ValueError, match=r"is not signed, and only models signed by a trusted key are taken$"
    ):
        load_model(tmp_path / "plain.dpmd", trusted=public)


def relabelled(metadata, arrays):
    metadata["guarantee"]["epsilon"] /= 2
    metadata["guarantee"]["mu"] /= 4
    metadata["spends"] = [[what, mu2 / 16] for what, mu2 in metadata["spends"]]
    return metadata, arrays


def moved(metadata, arrays):
    name = sorted(arrays)[0]
    arrays[name].flat[0] = np.nextafter(arrays[name].flat[0], 9.0)
    return metadata, arrays


EDITS = {
    "guarantee": relabelled,
    "array": moved,
    "condition": lambda metadata, arrays: (
        {**metadata, "guarantee": {**metadata["guarantee"], "conditions": ["None."]}},
        arrays,
    ),
    "signal": lambda metadata, arrays: (
        {**metadata, "signal_to_noise": [2.0 * x for x in metadata["signal_to_noise"]]},
        arrays,
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_model_that_was_relabelled_and_sealed_again_is_refused(kind, path, public, what):
    """Failed before: anybody could halve the epsilon of a file and write a checksum that fits."""
    rewritten(path, kind, EDITS[what])
    for trusted in (None, public):
        with pytest.raises(ValueError, match=r"has a signature that does not match what it says"):
            load_model(path, trusted=trusted)


def test_without_its_signature_a_relabelled_model_is_unsigned(kind, path, public):
    def stripped(metadata, arrays):
        metadata, arrays = relabelled(metadata, arrays)
        del metadata["signature"]
        return metadata, arrays

    rewritten(path, kind, stripped)
    assert load_model(path).signature is None
    with pytest.raises(ValueError, match="is not signed"):
        load_model(path, trusted=public)


def test_a_signature_cannot_be_given_to_another_key_or_model(kind, path, public, tmp_path):
    other = create_keys(tmp_path / "other")

    def renamed(metadata, arrays):
        metadata["signature"]["key"] = other.name
        return metadata, arrays

    kept = path.read_bytes()
    rewritten(path, kind, renamed)
    with pytest.raises(ValueError, match="does not match"):
        load_model(path, trusted=other)
    path.write_bytes(kept)
    loaded = load_model(path)
    changed = replace(loaded, spends=(*loaded.spends, ("more", 1e-9)))
    with pytest.raises(ValueError, match="was changed since it was signed"):
        changed.save(tmp_path / "changed.dpmd")
    replace(changed, signature=None).save(tmp_path / "changed.dpmd")
    assert load_model(tmp_path / "changed.dpmd").signature is None


def test_a_loaded_model_keeps_its_signature(path, public):
    again = path.with_name("again.dpmd")
    load_model(path).save(again)
    assert again.read_bytes() == path.read_bytes()
    assert load_model(again, trusted=public).signature == load_model(path).signature


@pytest.mark.parametrize(
    "bad",
    [7, None, [], {}, {"key": "x"}, {"key": 1, "ledger": None, "value": "a"},
     {"key": "x", "ledger": [], "value": "a"},
     {"key": "x", "ledger": {"dataset": "d", "spend": "1", "head": "h"}, "value": "a"},
     {"key": "x", "ledger": {"dataset": "d", "spend": True, "head": "h"}, "value": "a"},
     {"key": "ed25519:" + 64 * "f", "ledger": None, "value": 128 * "0"}],
)  # fmt: skip
def test_malformed_signatures(kind, path, bad):
    def change(metadata, arrays):
        return {**metadata, "signature": bad}, arrays

    rewritten(path, kind, change)
    with pytest.raises(ValueError, match=r"malformed|does not match"):
        load_model(path)


def test_files_of_before_are_read(kind, tmp_path):
    """Files of the version before signatures are read, unsigned, and written as they were."""
    old = OLD / f"{kind}.dpmd"
    loaded = load_model(old)
    assert loaded.signature is None
    assert loaded.guarantee.scope == ()
    loaded.save(tmp_path / "again.dpmd")
    assert (tmp_path / "again.dpmd").read_bytes() == old.read_bytes()

    def signed(metadata, arrays):  # an old version with a new key
        return {**metadata, "signature": {}}, arrays

    rewritten(tmp_path / "again.dpmd", kind, signed)
    with pytest.raises(ValueError, match="malformed"):
        load_model(tmp_path / "again.dpmd")


def test_a_ledger_of_before_has_a_chain(tmp_path, capsys):
    """A ledger of the version before signatures is read, and its chain begins with its first entry."""
    from dpmd_fast.cli import main

    shutil.copy(OLD / "budget.db", tmp_path / "budget.db")
    ledger = Ledger(tmp_path / "budget.db")
    before = ledger.statement("clinic")
    assert before.history[0].head == before.head
    spend = ledger.spend("clinic", 0.001, "after")
    after = ledger.statement("clinic")
    after.check_entry(1, before.head)
    after.check_entry(spend.id, spend.head)
    assert main(["ledger", "show", "--ledger", ledger.path]) == 0
    told = capsys.readouterr().out
    assert f"the chain of its declaration and 2 spend(s) ends in {after.head}" in told


# The ledger's chain


def spent(folder, *, more=1):
    """A model that a ledger paid for, with entries after it."""
    ledger = Ledger(folder / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    ledger.spend("clinic", 0.01, "before")
    spend = ledger.spend("clinic", 0.02, "the model")
    model = replace(make_atlas(), receipt=Receipt(ledger, spend))
    for _ in range(more):
        ledger.spend("clinic", 0.001, "after")
    return ledger, model


def edited(path, *statements):
    """Edit a ledger as its owner can, and recompute its checksum: what the seal cannot notice."""
    from dpmd_fast.privacy.ledger.store import _DECLARED, _SPENT, _sealed

    with sqlite3.connect(path) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        (declared,) = connection.execute(f"SELECT {', '.join(_DECLARED)} FROM datasets").fetchall()
        rows = connection.execute(f"SELECT {', '.join(_SPENT)} FROM spends ORDER BY id").fetchall()
        seal = _sealed("", declared)
        for row in rows:
            seal = _sealed(seal, row)
        connection.execute("UPDATE datasets SET seal = ?, spends = ?", (seal, len(rows)))
        for _, sql in triggers:
            connection.execute(sql)
    connection.close()


def test_the_fingerprint_of_the_records_is_not_in_published_heads(tmp_path, monkeypatch):
    """Failed before: a head was a digest of the fingerprint, by which a guess of all records is confirmed."""
    moment = ("2026-01-01T00:00:00+00:00", "here", 1)  # the ledgers differ in the fingerprint alone
    monkeypatch.setattr("dpmd_fast.privacy.ledger.ledger._signature", lambda: moment)
    heads, seals = {}, {}
    for name, fingerprint in (("free", None), ("one", 64 * "1"), ("two", 64 * "2")):
        ledger = Ledger(tmp_path / f"{name}.db")
        ledger.create("clinic", 3.0, 1e-6, fingerprint=fingerprint)
        empty = ledger.statement("clinic").head
        spends = [ledger.spend("clinic", 0.01, what, fingerprint=fingerprint) for what in ("a", "b")]
        assert [spend.head for spend in spends] == [spend.head for spend in ledger.history("clinic")]
        heads[name] = (empty, *(spend.head for spend in spends))
        assert ledger.statement("clinic").head == heads[name][-1]
        with sqlite3.connect(ledger.path) as connection:
            (seals[name],) = connection.execute("SELECT seal FROM datasets").fetchone()
        connection.close()
    assert heads["one"] == heads["two"]
    assert len({*heads["one"], *heads["free"]}) == 6
    assert seals["free"] == heads["free"][-1]  # as before
    assert len({*seals.values(), *heads["one"]}) == 6  # the file itself still notices another fingerprint


def test_the_place_in_the_ledger_is_signed(tmp_path, key, public):
    ledger, model = spent(tmp_path)
    model.save(tmp_path / "model.dpmd", key)
    entry = load_model(tmp_path / "model.dpmd", trusted=public).signature.ledger
    history = ledger.history("clinic")
    assert (entry.dataset, entry.spend, entry.head) == ("clinic", 2, history[1].head)
    assert len({spend.head for spend in history}) == 3
    assert ledger.statement("clinic").head == history[-1].head
    ledger.statement("clinic").check_entry(entry.spend, entry.head)

    def other_place(metadata, arrays):
        metadata["signature"]["ledger"]["spend"] = 1
        return metadata, arrays

    rewritten(tmp_path / "model.dpmd", "atlas", other_place)
    with pytest.raises(ValueError, match="does not match"):
        load_model(tmp_path / "model.dpmd")


ATTACKS = {
    "edited": (["UPDATE spends SET mu2 = 0.0001 WHERE id = 1"], "are not those that were signed"),
    "edited itself": (["UPDATE spends SET mu2 = 0.0001 WHERE id = 2"], "are not those that were signed"),
    "another total": (["UPDATE datasets SET mu2 = 9.0, epsilon = 9.0"], "are not those that were signed"),
    "deleted before": (["DELETE FROM files", "DELETE FROM spends WHERE id = 1"], "are not those"),
    "rolled back": (["DELETE FROM files", "DELETE FROM spends WHERE id >= 2"], "has no spend 2"),
    "renamed": (["UPDATE datasets SET name = 'other'"], "dataset = 'clinic'"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ledger_that_was_changed_does_not_agree_with_a_signed_model(tmp_path, key, public, attack, capsys):
    """Failed before: an edit with a recomputed checksum left no trace."""
    from dpmd_fast.cli import main

    ledger, model = spent(tmp_path)
    model.save(tmp_path / "model.dpmd", key)
    verify = ["ledger", "verify", "--ledger", ledger.path, "--model", str(tmp_path / "model.dpmd")]
    assert main([*verify, "--trusted", public]) == 0
    assert "are as they were signed" in capsys.readouterr().out
    statements, told = ATTACKS[attack]
    edited(ledger.path, *statements)
    assert Ledger(ledger.path).datasets()  # the ledger by itself is fine
    assert Ledger(ledger.path).statement(Ledger(ledger.path).datasets()[0]).head
    assert main([*verify, "--trusted", public]) == 2
    assert told in capsys.readouterr().err


def test_a_restored_backup_does_not_agree(tmp_path, key):
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    shutil.copy(ledger.path, tmp_path / "backup.db")
    model = replace(make_atlas(), receipt=Receipt(ledger, ledger.spend("clinic", 0.02, "the model")))
    model.save(tmp_path / "model.dpmd", key)
    entry = load_model(tmp_path / "model.dpmd").signature.ledger
    with pytest.raises(ValueError, match="it was rolled back, or is another ledger"):
        Ledger(tmp_path / "backup.db").statement("clinic").check_entry(entry.spend, entry.head)
    Ledger(tmp_path / "backup.db").spend("clinic", 0.02, "the model")  # at another time
    with pytest.raises(ValueError, match="are not those that were signed"):
        Ledger(tmp_path / "backup.db").statement("clinic").check_entry(entry.spend, entry.head)


def test_a_head_is_known_at_once_and_later(tmp_path):
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    made = release_moments(
        np.random.default_rng(0).normal(size=(50, 2)), np.eye(2), bandwidth=1.0, budget=Budget(1.0, 1e-6),
        ledger=ledger, dataset="clinic", on_invalid="drop",
    )  # fmt: skip
    assert made.receipt.spend.head == ledger.history("clinic")[0].head is not None


KILLED = """
    import sys
    from dataclasses import replace
    from samples import make_atlas
    from dpmd_fast import Ledger
    from dpmd_fast.privacy.ledger.charge import Receipt
    ledger, key, folder = Ledger(sys.argv[1]), sys.argv[2], sys.argv[3]
    print("ready", flush=True)
    for number in range(1000):
        spend = ledger.spend("clinic", 1e-6, "a model")
        replace(make_atlas(), receipt=Receipt(ledger, spend)).save(f"{folder}/{spend.id}.dpmd", key)
        print(number, flush=True)
"""


@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_kills_leave_a_chain_that_every_signed_file_agrees_with(tmp_path, key, public, kills):
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), ledger.path, key, tmp_path]
    rng = np.random.default_rng(kills)
    for _ in range(kills):
        with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE) as process:
            for _ in range(rng.integers(2, 6)):
                assert process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.02))
            process.send_signal(signal.SIGKILL)
    statement = ledger.statement("clinic")
    files = sorted(tmp_path.glob("*.dpmd"))
    assert len(files) >= kills
    for file in files:
        entry = load_model(file, trusted=public).signature.ledger
        statement.check_entry(entry.spend, entry.head)
        assert file.stem == str(entry.spend)
    assert len(statement.history) >= len(files)


# The command line


def test_the_command_line_signs_and_refuses(tmp_path, monkeypatch, capsys):
    from dpmd_fast.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["keys", "create", "-o", "a.key", "--json"]) == 0
    name = json.loads(capsys.readouterr().out)["name"]
    assert name == public_key_of("a.key.pub")
    assert main(["keys", "create", "-o", "a.key"]) == 2
    make_mixture().save("plain.dpmd")
    make_mixture().save("signed.dpmd", "a.key")
    points = np.zeros((3, make_mixture().n_columns))
    np.save("q.npy", points)
    capsys.readouterr()
    transform = "transform --noise 0.5 q.npy --force -o out.npy --model"
    assert main([*transform.split(), "plain.dpmd"]) == 0
    assert "unsigned: nobody vouches for this guarantee" in capsys.readouterr().out
    assert main([*transform.split(), "plain.dpmd", "--trusted", "a.key.pub"]) == 2
    assert "is not signed" in capsys.readouterr().err
    for trusted in ("a.key.pub", name):
        assert main([*transform.split(), "signed.dpmd", "--trusted", trusted, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["signed_by"] == name
    assert main([*transform.split(), "signed.dpmd", "--trusted", "ed25519:" + 64 * "0"]) == 2
    assert "is not a trusted key" in capsys.readouterr().err
    assert main([*transform.split(), "signed.dpmd", "--trusted", "a.key"]) == 2
    assert "must be the public one" in capsys.readouterr().err


def test_signatures_are_plain_data():
    one = Signature("ed25519:" + 64 * "0", None, 128 * "1")
    assert Signature.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert isinstance(MODELS["atlas"], Atlas)
    assert isinstance(MODELS["mixture"], Mixture)
