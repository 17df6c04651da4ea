"""Processes that debit and write signed models are killed at random moments: nothing is lost or spent twice.

Each worker notes what it begins and what it was told is done, in a file of its own that a kill cannot undo.
Afterwards these notes, the ledger and the models must agree.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter

import pytest
from samples import make_atlas, make_mixture

from dpmd_fast import Ledger, load_model
from dpmd_fast.privacy.keys import create_keys

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
COST = make_atlas().guarantee.mu ** 2

WORKERS = """
import json, os, random, signal, sys, time, traceback
from dataclasses import replace
from samples import make_atlas, make_mixture
from dpmd_fast import Ledger
from dpmd_fast.privacy.keys import signing_key
from dpmd_fast.privacy.ledger.charge import Receipt

path, folder, kills, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ledger, key = Ledger(path), signing_key(sys.argv[5])
models = [make_atlas(), make_mixture()]
cost = models[0].guarantee.mu ** 2


def work(number):
    notes = os.open(f"{folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(*what):
        os.write(notes, json.dumps([number, *what]).encode() + b"\\n")

    for step in range(10**9):
        token = f"model {number}.{step}"
        note("begun", token)
        spend = ledger.spend("clinic", cost, token)
        note("paid", token, spend.id)
        model = replace(models[step % 2], receipt=Receipt(ledger, spend))
        model.save(f"{folder}/{spend.id}.dpmd", key)
        note("saved", token, spend.id)


def start(number):
    pid = os.fork()
    if pid == 0:
        try:
            work(number)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def seen():
    return sum(name.endswith(".dpmd") for name in os.listdir(folder))


rng, failed, pace = random.Random(seed), 0, 0.01
workers = [start(number) for number in range(3)]
for number in range(3, 3 + kills):
    before, began = seen(), time.monotonic()
    while seen() == before and time.monotonic() < began + 60.0:
        time.sleep(0.0005)
    pace = 0.7 * pace + 0.3 * (time.monotonic() - began)  # of one model, on however busy a machine
    time.sleep(rng.uniform(0.0, 3.0 * pace))
    victim = rng.randrange(3)
    os.kill(workers[victim], signal.SIGKILL)
    failed += os.waitpid(workers[victim], 0)[1] != signal.SIGKILL
    workers[victim] = start(number)
for pid in workers:
    os.kill(pid, signal.SIGKILL)
    failed += os.waitpid(pid, 0)[1] != signal.SIGKILL
print(failed)
"""


def agreed(ledger, folder, public):
    """Compare the notes of all workers with the ledger and the models; return where the kills came."""
    notes = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]
    begun = [token for _, what, token, *_ in notes if what == "begun"]
    paid = {token: spend for _, what, token, *spend in notes if what == "paid"}
    saved = {token: spend for _, what, token, *spend in notes if what == "saved"}
    last = {number: what for number, what, *_ in notes}
    statement = ledger.statement("clinic")  # opens, and its chain is that of its entries
    statement.check_sums()
    entries = {entry.what: entry for entry in statement.history}
    # each model is paid for once, nothing else is, and nothing that a worker was told is lost
    assert len(entries) == len(statement.history)
    assert set(entries) <= set(begun)
    assert all([entries[token].id] == spend for token, spend in paid.items())
    assert len(entries) - len(paid) <= sum(what == "begun" for what in last.values())
    assert math.fsum(entry.mu2 for entry in statement.history) == pytest.approx(len(entries) * COST)
    assert statement.remaining == pytest.approx(statement.total.mu2 - len(entries) * COST)
    # every model is whole, signed, paid for by its own debit, and none that a worker has written is lost
    models = sorted(folder.glob("*.dpmd"))
    for file in models:
        model = load_model(file, trusted=public)
        place = model.signature.ledger
        statement.check_entry(place.spend, place.head, model.guarantee)
        assert file.stem == str(place.spend)
    names = {file.stem for file in models}
    assert {str(*spend) for spend in saved.values()} <= names
    assert all(entries[token].files == (f"{folder}/{spend[0]}.dpmd",) for token, spend in saved.items())
    assert len(names) - len(saved) <= sum(what == "paid" for what in last.values())
    return Counter(last.values()), len(entries), len(models)


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_while_workers_debit_and_sign(tmp_path, kills):
    assert make_mixture().guarantee.mu ** 2 == COST
    key, folder = create_keys(tmp_path / "clinic.key"), tmp_path / "models"
    folder.mkdir()
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 5e3, 1e-6)
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", WORKERS, ledger.path, folder, str(kills), "1", tmp_path / "clinic.key"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")  # none died of anything but its kill
    stages, debits, models = agreed(ledger, folder, key.name)
    assert debits >= models >= kills
    if kills >= 200:  # moments of all kinds
        assert min(stages["begun"], stages["paid"]) >= 10
    ledger.spend("clinic", COST, "and it goes on")
    print(f"\n{kills + 3} kills: in a debit {stages['begun']}, in a save {stages['paid']}, after one "
          f"{stages['saved']}; {debits} debits, {models} models, all agree")  # fmt: skip


@pytest.mark.parametrize("harm", ["a debit lost", "a debit twice", "a model without a debit", "cut"])
def test_the_comparison_would_notice(tmp_path, harm):
    """What a kill must not do, done by hand."""
    from dataclasses import replace

    from dpmd_fast.privacy.ledger.charge import Receipt

    key, folder = create_keys(tmp_path / "clinic.key"), tmp_path / "models"
    folder.mkdir()
    ledger = Ledger(tmp_path / "budget.db")
    ledger.create("clinic", 5e3, 1e-6)
    notes = []
    for step in range(3):
        spend = ledger.spend("clinic", COST, f"model 0.{step}")
        notes += [[0, "begun", spend.what], [0, "paid", spend.what, spend.id]]
        replace(make_atlas(), receipt=Receipt(ledger, spend)).save(folder / f"{spend.id}.dpmd", key)
        notes += [[0, "saved", spend.what, spend.id]]
    write = (folder / "notes").write_text
    write("".join(json.dumps(note) + "\n" for note in notes))
    assert agreed(ledger, folder, key.name)[1:] == (3, 3)
    if harm == "a debit lost":
        notes += [[1, "begun", "model 1.0"], [1, "paid", "model 1.0", 4]]
    elif harm == "a debit twice":
        ledger.spend("clinic", COST, "model 0.1")
    elif harm == "a model without a debit":
        backup = Ledger(tmp_path / "other.db")
        backup.create("clinic", 5e3, 1e-6)
        made = replace(make_atlas(), receipt=Receipt(backup, backup.spend("clinic", COST, "model 0.2")))
        made.save(folder / "1.dpmd", key)
    else:
        (folder / "2.dpmd").write_bytes((folder / "2.dpmd").read_bytes()[:-100])
    write("".join(json.dumps(note) + "\n" for note in notes))
    with pytest.raises((AssertionError, ValueError, KeyError)):
        agreed(ledger, folder, key.name)
