"""Signed models: a relabelled guarantee is refused, and a ledger that was changed since does not agree."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import warnings
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
COST = make_atlas().guarantee.mu ** 2


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


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_a_private_key_that_others_may_use_is_told(key, mode, tmp_path, capsys):
    """Failed before: a key that everybody may read signed in silence."""
    from dpmd_fast.cli import main

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        name = signing_key(key).name
    key.chmod(mode)
    with pytest.warns(UserWarning, match=r"clinic\.key is a private key that other users may read or write"):
        assert signing_key(key).name == name
    np.save(tmp_path / "q.npy", np.zeros((3, 2)))
    fit = f"fit --key {key} --reference {tmp_path}/none.npy --queries {tmp_path}/q.npy -o {tmp_path}/m.dpmd"
    assert main([*fit.split(), "--epsilon", "1", "--delta", "1e-6", "--no-ledger"]) == 2
    assert "warning: " + str(key) in capsys.readouterr().err  # before anything is spent


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
    "version of the package": lambda metadata, arrays: ({**metadata, "package_version": "9.9"}, arrays),
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


def test_a_signature_outlives_the_version_that_made_it(path, public, monkeypatch):
    made = load_model(path).signature
    monkeypatch.setattr("dpmd_fast.__version__", "99.0")
    again = path.with_name("again.dpmd")
    load_model(path).save(again)
    assert again.read_bytes() == path.read_bytes()
    assert load_model(again, trusted=public).signature.package_version == made.package_version != "99.0"
    load_model(path).save(again, create_keys(path.with_name("other.key")))
    assert load_model(again).signature.package_version == "99.0"


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
    spend = ledger.spend("clinic", COST, "the model")
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


def test_a_model_that_is_loaded_and_signed_again_keeps_its_place(tmp_path, key, public):
    """Failed before: the second signature said that no ledger had paid."""
    ledger, model = spent(tmp_path)
    first, second = tmp_path / "model.dpmd", tmp_path / "second.dpmd"
    model.save(first, key)
    other = create_keys(tmp_path / "other.key")
    loaded = load_model(first)
    loaded.save(second, other)
    found = load_model(second, trusted=other.name).signature
    assert found.ledger == load_model(first).signature.ledger is not None
    ledger.statement("clinic").check_entry(found.ledger.spend, found.ledger.head, model.guarantee)
    replace(loaded, bandwidth=0.9).save(second, other)  # nobody has said that this debit paid for it
    assert load_model(second).signature.ledger is None
    forged = replace(loaded.signature, ledger=replace(loaded.signature.ledger, spend=1))
    replace(loaded, signature=forged).save(second, other)
    assert load_model(second).signature.ledger is None


def verified(ledger, path):
    from dpmd_fast.cli import main

    return main(["ledger", "verify", "--ledger", ledger.path, "--model", str(path)])


def test_one_debit_does_not_pay_for_two_models(tmp_path, key, capsys):
    """Failed before. A machine that is cloned after its debit releases twice, and signs both."""
    from dpmd_fast.cli import main

    ledger, model = spent(tmp_path)
    first, second = tmp_path / "model.dpmd", tmp_path / "second.dpmd"
    model.save(first, key)
    load_model(first).save(second, create_keys(tmp_path / "other.key"))  # the same model
    verify = ["ledger", "verify", "--ledger", ledger.path, "--model", str(first), "--model", str(second)]
    assert main(verify) == 0
    (layer,) = model.layers
    other = replace(layer, masses=np.nextafter(layer.masses, 9.0))
    replace(model, layers=(other,)).save(second, key)
    assert main(verify) == 2
    assert "are different models of one debit, spend 2 of 'clinic'" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.5, 0.999, 1.001, 4.0])
def test_a_debit_of_another_size_does_not_agree(tmp_path, key, share, capsys):
    """Failed before: what a model claimed was not compared with what it had paid."""
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    spend = ledger.spend("clinic", share * COST, "the model")
    replace(make_atlas(), receipt=Receipt(ledger, spend)).save(tmp_path / "model.dpmd", key)
    assert verified(ledger, tmp_path / "model.dpmd") == 2
    told = capsys.readouterr().err
    assert (
        f"spend 1 of 'clinic' has paid mu^2 = {share * COST:.9g}, and the guarantee says {COST:.9g}" in told
    )


def test_a_debit_under_another_adjacency_does_not_agree(tmp_path, key, capsys):
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6, "add-remove")
    model = replace(make_atlas(), receipt=Receipt(ledger, ledger.spend("clinic", COST, "the model")))
    model.save(tmp_path / "model.dpmd", key)
    assert verified(ledger, tmp_path / "model.dpmd") == 2
    assert "the guarantee is one under 'replace-one'" in capsys.readouterr().err


SUMS = {
    "a larger total": ("UPDATE datasets SET mu2 = 9.0", "epsilon and delta allow"),
    "a smaller budget": ("UPDATE datasets SET epsilon = 1.0", "epsilon and delta allow"),
    "more than the total": ("UPDATE spends SET mu2 = 5.0 WHERE id = 1", "more than its total"),
}


@pytest.mark.parametrize("attack", SUMS)
def test_a_ledger_whose_numbers_do_not_add_up(tmp_path, key, attack, capsys):
    """Failed before: an edit before the signature was signed with the rest, and nothing was added up."""
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    ledger.spend("clinic", 0.01, "before")
    spend = ledger.spend("clinic", COST, "the model")
    statement, told = SUMS[attack]
    edited(ledger.path, statement)
    found = ledger.history("clinic")[-1]  # the chain as it is now is what is signed
    assert found.id == spend.id
    replace(make_atlas(), receipt=Receipt(ledger, found)).save(tmp_path / "model.dpmd", key)
    assert verified(ledger, tmp_path / "model.dpmd") == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("here", [True, False])
def test_the_preprocessing_of_a_model_is_part_of_what_it_paid(tmp_path, key, here, capsys):
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 3.0, 1e-6)
    ledger.spend("clinic", 0.25 * COST if here else 0.2 * COST, "preprocessing")
    spend = ledger.spend("clinic", 0.75 * COST, "the model", parameters={"preprocessing_mu2": 0.25 * COST})
    replace(make_atlas(), receipt=Receipt(ledger, spend)).save(tmp_path / "model.dpmd", key)
    assert verified(ledger, tmp_path / "model.dpmd") == 0
    assert ("its preprocessing was not paid from here" in capsys.readouterr().out) != here


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
    one = Signature("ed25519:" + 64 * "0", None, 128 * "1", "1.0")
    assert Signature.from_dict(json.loads(json.dumps(one.to_dict())), "1.0") == one
    with pytest.raises(ValueError, match="malformed"):
        Signature.from_dict(one.to_dict(), None)
    assert isinstance(MODELS["atlas"], Atlas)
    assert isinstance(MODELS["mixture"], Mixture)
