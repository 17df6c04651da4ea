"""The ledger itself: sums, refusals, crashes, threads and processes, and files that are no ledgers."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import random
import socket
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest

from dpmd_fast import Budget, BudgetExceeded, Ledger
from dpmd_fast.privacy.accounting import gdp_delta, gdp_epsilon
from dpmd_fast.privacy.ledger import ledger as ledger_module
from dpmd_fast.privacy.ledger import store as ledger_store

TOTAL = Budget(1.0, 1e-6).mu ** 2
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.db")
    made.create("a", 1.0, 1e-6)
    return made


def raw(ledger, statement, *values):
    """What plain SQLite reads or does, without the package."""
    connection = sqlite3.connect(ledger.path)
    try:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def run(code, *arguments):
    """JSON that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# What is kept


def test_history_says_what_was_entered(ledger):
    before = datetime.now(timezone.utc)
    parameters = {"bandwidth": 0.1 + 0.2, "columns": ["x", "\u00e4"], "nested": {"tau": None, "log": True}}
    first = ledger.spend("a", 0.01, "the first", mechanism="moments", parameters=parameters)
    second = ledger.spend("a", 0.02, "the second", holds="conditional", adjacency="replace-one")
    history = ledger.history("a")
    assert history == (first, second)
    assert [spend.what for spend in history] == ["the first", "the second"]
    assert [spend.mu2 for spend in history] == [0.01, 0.02]
    assert [spend.holds for spend in history] == ["unconditional", "conditional"]
    assert history[0].parameters == parameters
    assert (history[0].mechanism, history[1].mechanism) == ("moments", "gaussian")
    assert {(spend.host, spend.pid) for spend in history} == {(socket.gethostname(), os.getpid())}
    assert before <= history[0].time <= history[1].time <= datetime.now(timezone.utc)
    assert history[0].time.utcoffset() == timedelta(0)
    assert (first.dataset, first.file, first.files) == ("a", None, ())
    assert first.id < second.id
    assert pickle.loads(pickle.dumps(history)) == history
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.mu2 = 0.0
    assert ledger.remaining("a") == pytest.approx(TOTAL - 0.03, rel=1e-15)


def test_totals_and_names(ledger):
    ledger.create("b", 2.0, 1e-5, adjacency="add-remove")
    assert ledger.datasets() == ("a", "b")
    total = ledger.total("b")
    assert (total.dataset, total.epsilon, total.delta) == ("b", 2.0, 1e-5)
    assert (total.conversion, total.adjacency, total.fingerprint) == ("gdp", "add-remove", None)
    assert total.mu2 == ledger.remaining("b") == pytest.approx(Budget(2.0, 1e-5).mu ** 2, rel=1e-14)
    assert gdp_delta(math.sqrt(total.mu2), 2.0) == pytest.approx(1e-5, rel=1e-9)
    assert ledger.history("b") == ()
    ledger.spend("b", 0.01, "x", adjacency="add-remove")
    assert ledger.remaining("a") == ledger.total("a").mu2


def test_a_ledger_is_a_value(tmp_path, ledger, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Ledger("ledger.db") == ledger == Ledger(os.fsencode(ledger.path).decode())
    assert copy.deepcopy(ledger) == ledger == pickle.loads(pickle.dumps(ledger))
    assert Ledger(ledger.path, timeout=1.0) != ledger
    relative = Ledger("ledger.db")
    monkeypatch.chdir("/")
    assert relative.remaining("a") == TOTAL
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.path = "elsewhere"
    for path in ("", None, 3):
        with pytest.raises(ValueError, match=r"^path = "):
            Ledger(path)
    for timeout in (-1.0, math.nan, math.inf, "1"):
        with pytest.raises(ValueError, match=r"^timeout = "):
            Ledger("x", timeout=timeout)


def test_files_of_a_release(ledger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = ledger.spend("a", 0.01, "x")
    ledger.spend("a", 0.01, "y")
    ledger.record_file(first.id, "one.dpmd")
    ledger.record_file(first.id, tmp_path / "t\u00e4nd two.dpmd")
    with_files, without = ledger.history("a")
    assert with_files.files == (str(tmp_path / "one.dpmd"), str(tmp_path / "t\u00e4nd two.dpmd"))
    assert with_files.file == str(tmp_path / "t\u00e4nd two.dpmd")
    assert without.file is None
    ledger.record_file(first.id, b"/odd\xff".decode("utf-8", "surrogateescape"))
    assert ledger.history("a")[0].file == "/odd\\xff"
    for bad in (0, -1, 1.0, True, None):
        with pytest.raises(ValueError, match=r"^spend_id = "):
            ledger.record_file(bad, "x")
    with pytest.raises(ValueError, match=r"^spend_id = 99: .*no such spend"):
        ledger.record_file(99, "x")
    with pytest.raises(ValueError, match=r"^path = "):
        ledger.record_file(first.id, "")


def test_a_clock_that_goes_back_does_not_matter(ledger, monkeypatch):
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for k in range(4):
        now = (start - timedelta(days=k)).isoformat()
        monkeypatch.setattr(ledger_module, "_signature", lambda now=now: (now, "host", 1))
        ledger.spend("a", 0.001, f"spend {k}")
    assert [spend.what for spend in ledger.history("a")] == [f"spend {k}" for k in range(4)]
    assert ledger.history("a")[0].time == start


def test_the_file_is_its_owners_and_alone(ledger, tmp_path):
    ledger.spend("a", 0.01, "x")
    assert stat.S_IMODE(os.stat(ledger.path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["ledger.db"]


@pytest.mark.parametrize("name", ["a#b?c=d&e%41.db", "\u00e4 b.db", ":memory:", "file:x", "x.db?mode=memory"])
def test_odd_names_are_names(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Ledger(name).create("a", 1.0, 1e-6)
    Ledger(tmp_path / name).spend("a", 0.01, "x")
    assert os.listdir(tmp_path) == [name]
    assert len(Ledger(name).history("a")) == 1


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match=r"l\.db cannot be created: .*hard links"):
        Ledger(tmp_path / "l.db").create("a", 1.0, 1e-6)
    assert os.listdir(tmp_path) == []


def test_commits_are_durable(ledger):
    connection = ledger_store._connect(ledger.path, 1.0)
    assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


# Sums


@pytest.mark.parametrize("parts", [1, 3, 7, 10, 49])
def test_a_budget_in_equal_parts_can_be_spent(ledger, parts):
    total = ledger.total("a").mu2
    for _ in range(parts):
        ledger.spend("a", total / parts, "a part")
    assert ledger.remaining("a") <= 1e-15 * total
    with pytest.raises(BudgetExceeded):
        ledger.spend("a", total / parts, "one too many")


def test_the_tolerance_is_there_once(ledger):
    total = ledger.total("a").mu2
    ledger.spend("a", total, "all")
    accepted = 0
    for _ in range(5):
        try:
            ledger.spend("a", 0.9e-12 * total, "crumb")
            accepted += 1
        except BudgetExceeded:
            assert ledger.remaining("a") == 0.0
    assert accepted <= 1
    assert sum(Fraction(spend.mu2) for spend in ledger.history("a")) <= Fraction(total) * (
        1 + Fraction(1e-12)
    )


def test_small_spends_are_not_lost_beside_large_ones(ledger):
    # added one after the other in floating point, these would vanish
    total = ledger.total("a").mu2
    ledger.spend("a", total * (1.0 - 2.0**-50), "nearly all")
    for _ in range(8):
        ledger.spend("a", total * 2.0**-54, "little")
    spent = sum(Fraction(spend.mu2) for spend in ledger.history("a"))
    assert ledger.remaining("a") == float(Fraction(total) - spent) < total * 2.0**-50


def test_an_overspend_is_refused_with_the_exact_figures(ledger):
    total = ledger.total("a").mu2
    spent = [total / 3, total / 7, 1e-9]
    for mu2 in spent:
        ledger.spend("a", mu2, "x")
    left = float(Fraction(total) - sum(map(Fraction, spent)))
    before = ledger.history("a")
    with pytest.raises(BudgetExceeded) as refused:
        ledger.spend("a", 0.9 * total, "the atlas")
    assert (refused.value.asked, refused.value.remaining) == (0.9 * total, left)
    assert "the atlas" in str(refused.value)
    assert "'a'" in str(refused.value)
    assert ledger.history("a") == before
    assert ledger.remaining("a") == left
    ledger.spend("a", left, "the rest")


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, -1e-9, 0.0, -0.0, True, "1", None, [1.0]], ids=repr
)
def test_bad_amounts_are_refused(ledger, bad):
    with pytest.raises(ValueError, match=r"^mu2 = "):
        ledger.spend("a", bad, "x")
    with pytest.raises(ValueError, match=r"^mu2 = "):
        ledger.check("a", bad, "x")
    assert ledger.history("a") == ()


def test_the_guarantee_of_all_spends(ledger):
    nothing = ledger.guarantee("a")
    assert (nothing.epsilon, nothing.mu, nothing.holds) == (0.0, 0.0, "unconditional")
    for mu2 in (0.01, 0.02):
        ledger.spend("a", mu2, "x")
    two = ledger.guarantee("a")
    assert (two.delta, two.adjacency, two.holds) == (1e-6, "replace-one", "unconditional")
    assert two.mu == pytest.approx(math.sqrt(0.03), rel=1e-14)
    assert two.epsilon == pytest.approx(gdp_epsilon(math.sqrt(0.03), 1e-6), rel=1e-12)
    assert "2 spend(s)" in two.statement
    assert two.epsilon <= float(two.statement.split("(")[2].split(",")[0]) <= two.epsilon * 1.00001
    assert any("ledger are not counted" in text for text in two.conditions)
    ledger.spend("a", 0.001, "Algorithm 2 of the paper", holds="conditional")
    conditional = ledger.guarantee("a")
    assert conditional.holds == "conditional"
    assert "Algorithm 2 of the paper" in conditional.statement
    assert any("1 of the spends" in text for text in conditional.conditions)
    ledger.spend("a", ledger.remaining("a"), "the rest")
    assert ledger.guarantee("a").epsilon == pytest.approx(1.0, rel=1e-12)
    assert ledger.guarantee("a").epsilon <= 1.0
    assert ledger.guarantee("a").holds == "conditional"


# Refusals


def test_a_total_is_final(ledger):
    ledger.spend("a", 0.01, "x")
    for epsilon in (1.0, 100.0):
        with pytest.raises(ValueError, match=r"^dataset = 'a': .*already.*final"):
            ledger.create("a", epsilon, 1e-6)
    assert ledger.remaining("a") == pytest.approx(TOTAL - 0.01, rel=1e-14)


@pytest.mark.parametrize("call", ["spend", "check", "remaining", "history", "total", "guarantee"])
def test_unknown_and_impossible_names(ledger, call):
    arguments = (0.01, "x") if call in ("spend", "check") else ()
    with pytest.raises(ValueError, match=r"^dataset = 'b': the ledger .* has 'a'"):
        getattr(ledger, call)("b", *arguments)
    for bad in ("", "  ", "two\nlines", "\ud800", "x" * 2000, None, 1, b"a"):
        with pytest.raises(ValueError, match=r"^dataset = .*one line"):
            getattr(ledger, call)(bad, *arguments)
        with pytest.raises(ValueError, match=r"^dataset = .*one line"):
            ledger.create(bad, 1.0, 1e-6)


def test_another_adjacency_is_refused(ledger):
    ledger.create("b", 1.0, 1e-6, adjacency="add-remove")
    for name, other in (("a", "add-remove"), ("b", "replace-one")):
        with pytest.raises(ValueError, match=rf"^adjacency = '{other}': .*do not add up"):
            ledger.spend(name, 0.01, "x", adjacency=other)
        assert ledger.history(name) == ()
    with pytest.raises(ValueError, match=r"^adjacency = 'bounded'"):
        ledger.spend("a", 0.01, "x", adjacency="bounded")
    with pytest.raises(ValueError, match=r"^adjacency = None"):
        ledger.create("c", 1.0, 1e-6, adjacency=None)


def test_other_arguments_are_checked(ledger):
    for name, bad in (
        ("what", "two\nlines"),
        ("what", None),
        ("mechanism", ""),
        ("holds", "not private"),
        ("holds", True),
    ):
        arguments = {"what": "x", name: bad}
        with pytest.raises(ValueError, match=rf"^{name} = "):
            ledger.spend("a", 0.01, **arguments)
    for bad in ({"x": math.nan}, {"x": {1}}, {1: 2}, {"x": object()}, {"x": "y" * 20_000}, [1], "x"):
        with pytest.raises(ValueError, match=r"^parameters"):
            ledger.spend("a", 0.01, "x", parameters=bad)
    for epsilon, delta in ((0.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0), (True, 1e-6)):
        with pytest.raises(ValueError, match=r"^(epsilon|delta) = "):
            ledger.create("c", epsilon, delta)
    assert ledger.history("a") == ()
    assert ledger.datasets() == ("a",)


def test_a_fingerprint_binds_a_name(ledger):
    ledger.create("bound", 1.0, 1e-6, fingerprint="sha256:1")
    ledger.spend("bound", 0.01, "x", fingerprint="sha256:1")
    with pytest.raises(ValueError, match="another reference"):
        ledger.spend("bound", 0.01, "x", fingerprint="sha256:2")
    with pytest.raises(ValueError, match="is bound to one reference"):
        ledger.spend("bound", 0.01, "x")
    assert len(ledger.history("bound")) == 1
    ledger.spend("a", 0.01, "x", fingerprint="sha256:2")  # bound to none


# Files that are not as they should be


def test_there_has_to_be_a_file(tmp_path):
    missing = Ledger(tmp_path / "missing.db")
    for call in (missing.datasets, lambda: missing.remaining("a"), lambda: missing.spend("a", 0.1, "x")):
        with pytest.raises(FileNotFoundError, match=r"missing\.db does not exist: must be a ledger"):
            call()
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="cannot be created"):
        Ledger(tmp_path / "no folder" / "l.db").create("a", 1.0, 1e-6)
    with pytest.raises(ValueError, match="not a regular file"):
        Ledger(tmp_path).create("a", 1.0, 1e-6)
    os.symlink(tmp_path / "nowhere", tmp_path / "link.db")
    with pytest.raises(FileNotFoundError):
        Ledger(tmp_path / "link.db").create("a", 1.0, 1e-6)


def test_foreign_files_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "file"
    made = Ledger(path)

    def refused(pattern):
        before = path.read_bytes()
        for call in (
            lambda: made.create("a", 1.0, 1e-6),
            lambda: made.spend("a", 0.1, "x"),
            lambda: made.remaining("a"),
            lambda: made.record_file(1, "x"),
        ):
            with pytest.raises(ValueError, match=pattern):
                call()
        assert path.read_bytes() == before

    path.write_bytes(b"")
    refused("is not a ledger")
    path.write_bytes(b"not a database, but long enough to be looked at " * 100)
    refused("is not a ledger")
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE datasets (name)")
    other.close()
    refused("another program")


def test_other_versions_and_other_tables_are_refused(ledger):
    raw(ledger, "PRAGMA user_version = 2")
    with pytest.raises(ValueError, match="newer version of dpmd-fast: its format is 2, this version reads 1"):
        ledger.remaining("a")
    raw(ledger, "PRAGMA user_version = 0")
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.remaining("a")
    raw(ledger, "PRAGMA user_version = 1")
    assert ledger.remaining("a") == TOTAL
    raw(ledger, "DROP TRIGGER spends_delete")
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.spend("a", 0.01, "x")


def test_nothing_is_taken_back(ledger):
    spend = ledger.spend("a", 0.01, "x")
    ledger.record_file(spend.id, "x")
    for statement in (
        "UPDATE spends SET mu2 = 0.001",
        "DELETE FROM spends",
        "UPDATE datasets SET mu2 = 100.0",
        "UPDATE datasets SET epsilon = 100.0",
        "UPDATE datasets SET name = 'b'",
        "DELETE FROM datasets",
        "DELETE FROM files",
        "UPDATE files SET path = 'y'",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="a ledger only grows"):
            raw(ledger, statement)
    assert ledger.history("a")[0].mu2 == 0.01


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE spends SET mu2 = 0.001 WHERE id = 2",
        "UPDATE spends SET holds = 'unconditional' WHERE id = 2",
        "DELETE FROM spends WHERE id = 1",
        "DELETE FROM spends WHERE id = 3",
        "UPDATE datasets SET mu2 = 100.0",
        "UPDATE datasets SET adjacency = 'add-remove'",
        "UPDATE datasets SET spends = 2",
        "INSERT INTO spends SELECT 9, dataset, time, what, mechanism, parameters, mu2, holds, host, pid "
        "FROM spends WHERE id = 1",
        "UPDATE spends SET mu2 = 'text' WHERE id = 1",
        "UPDATE spends SET what = x'ff' WHERE id = 1",
        "UPDATE spends SET what = CAST(x'ff' AS TEXT) WHERE id = 1",
    ],
)
def test_edits_are_noticed(ledger, statement):
    for _ in range(3):
        ledger.spend("a", 0.01, "x", holds="conditional")
    triggers = raw(ledger, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    for name, _ in triggers:
        raw(ledger, f"DROP TRIGGER {name}")
    raw(ledger, statement)
    for _, sql in triggers:
        raw(ledger, sql)
    for call in (lambda: ledger.remaining("a"), lambda: ledger.spend("a", 0.01, "x")):
        with pytest.raises(ValueError, match="damaged"):
            call()


def test_damage_never_makes_budget(ledger, tmp_path):
    ledger.create("b", 2.0, 1e-6)
    for k in range(12):
        ledger.spend("ab"[k % 2], 0.001 + 1e-5 * k, f"spend {k}", parameters={"k": k})
    good = {name: (ledger.total(name), ledger.remaining(name)) for name in "ab"}
    whole = Path(ledger.path).read_bytes()
    rng = random.Random(0)
    damaged = Ledger(tmp_path / "damaged.db", timeout=0.5)
    pages = [number for number in range(len(whole)) if whole[number]]
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        data[rng.choice(pages)] ^= 1 << rng.randrange(8)
        with open(damaged.path, "wb") as file:
            file.write(data)
        for name in "ab":
            try:
                assert (damaged.total(name), damaged.remaining(name)) == good[name]
            except (ValueError, OSError):
                refused += 1
    assert refused > 400  # of 800: most bytes that are not zero matter
    cut = [whole[:size] for size in (0, 50, 1000, 4096, len(whole) - 4096, len(whole) - 1)]
    for data in (*cut, whole + b"x", whole + whole):
        with open(damaged.path, "wb") as file:
            file.write(data)
        with pytest.raises(ValueError, match=r"not a ledger|damaged"):
            damaged.spend("a", 0.001, "x")


def test_a_file_that_may_not_be_written(ledger, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    os.chmod(ledger.path, 0o400)
    assert ledger.remaining("a") == TOTAL
    with pytest.raises(PermissionError, match="cannot be written"):
        ledger.spend("a", 0.01, "x")


@pytest.mark.parametrize("problem", ["disk I/O error", "database or disk is full", "something else"])
def test_other_troubles_are_told(ledger, problem, monkeypatch):
    def fail(*_):
        raise sqlite3.OperationalError(problem)

    monkeypatch.setattr(ledger_store.Book, "enter", fail)
    with pytest.raises(OSError, match=problem):
        ledger.spend("a", 0.01, "x")
    monkeypatch.undo()
    assert ledger.history("a") == ()


def test_the_readonly_message(ledger):
    assert isinstance(
        ledger_store._translated("p", 1.0, "attempt to write a readonly database"), PermissionError
    )


# Several at once


@pytest.mark.parametrize("lock", ["EXCLUSIVE", "IMMEDIATE", "DEFERRED"])
def test_a_lock_that_stays_is_told_after_the_timeout(ledger, lock):
    impatient = Ledger(ledger.path, timeout=0.3)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute(f"BEGIN {lock}")
    holder.execute("SELECT * FROM spends").fetchall()  # a reader, too, keeps a commit waiting
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"is locked: .* more than 0\.3 s; nothing was written"):
        impatient.spend("a", 0.01, "x")
    assert 0.25 < time.monotonic() - start < 20.0
    holder.execute("ROLLBACK")
    holder.close()
    assert impatient.history("a") == ()
    impatient.spend("a", 0.01, "x")


def test_waiting_for_others_is_not_a_failure(ledger):
    holder = sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
    timer.start()
    ledger.spend("a", 0.01, "x")
    timer.join()
    holder.close()


def test_threads_cannot_overspend_together(ledger):
    part = ledger.total("a").mu2 / 20

    def spend(_):
        try:
            return ledger.spend("a", part, "a part").id
        except BudgetExceeded:
            return None

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(spend, range(30)))
    ids = [answer for answer in answers if answer is not None]
    assert len(ids) == len(set(ids)) == 20
    assert sorted(ids) == [entry.id for entry in ledger.history("a")]
    assert not ledger_store._operating


def test_threads_may_create_one_ledger_together(tmp_path):
    made = Ledger(tmp_path / "new.db")

    def create(name):
        try:
            made.create(name, 1.0, 1e-6)
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, ["a", "b", "a", "b", "c", "c", "a", "b"])) == 3
    assert sorted(made.datasets()) == ["a", "b", "c"]
    assert os.listdir(tmp_path) == ["new.db"]


@needs_fork
def test_after_a_fork(ledger):
    # a child has connections of its own, unless it was copied in the middle of an operation
    answers = run(
        """
        import json, os, sys, threading
        from dpmd_fast.privacy.ledger.ledger import Ledger
        from dpmd_fast.privacy.ledger.store import open_book
        ledger = Ledger(sys.argv[1], timeout=3.0)

        def in_child(what):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    answer = f"spend {ledger.spend('a', 0.001, what).pid == os.getpid()}"
                except Exception as error:
                    answer = str(error)
                finally:
                    os.write(write, answer.encode())
                    os._exit(0)
            os.waitpid(pid, 0)
            return os.read(read, 1000).decode()

        ledger.spend("a", 0.001, "parent")
        answers = [in_child("child")]
        begun, done = threading.Event(), threading.Event()

        def hold():
            with open_book(ledger.path, 1.0, write=False):
                begun.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        begun.wait()
        answers.append(in_child("child of a busy process"))
        done.set()
        thread.join()
        ledger.spend("a", 0.001, "parent again")
        answers.append(in_child("second child"))
        print(json.dumps(answers))
        """,
        ledger.path,
    )
    assert answers[0] == answers[2] == "spend True"
    assert "forked while another thread" in answers[1]
    assert [spend.what for spend in ledger.history("a")] == [
        "parent",
        "child",
        "parent again",
        "second child",
    ]


@needs_fork
def test_a_kill_at_any_step_of_a_spend(ledger):
    # SQLite calls back after every instruction of its machine; the child dies at the n-th
    outcomes = run(
        """
        import json, os, signal, sys
        from dpmd_fast.privacy.ledger import store as ledger_store
        from dpmd_fast.privacy.ledger.ledger import Ledger
        ledger = Ledger(sys.argv[1])
        connect = ledger_store._connect

        def deadly(*arguments):
            connection = connect(*arguments)
            steps = iter(range(at))
            connection.set_progress_handler(
                lambda: next(steps, None) is None and os.kill(os.getpid(), signal.SIGKILL), 1
            )
            return connection

        outcomes, at = [], 1
        while True:
            before = ledger.remaining("a")
            pid = os.fork()
            if pid == 0:
                ledger_store._connect = deadly
                ledger.spend("a", 0.0001, "x")
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            lost = round((before - ledger.remaining("a")) / 0.0001, 6)
            outcomes.append([at, status, lost])
            if status == 0:
                break
            at += 5
        print(json.dumps(outcomes))
        """,
        ledger.path,
    )
    assert outcomes[-1][1:] == [0, 1.0]
    assert len(outcomes) > 20
    assert {status for _, status, _ in outcomes[:-1]} == {9}
    assert {lost for _, _, lost in outcomes[:-1]} <= {0.0, 1.0}
    assert outcomes[0][2] == 0.0
    assert len(ledger.history("a")) == sum(lost for _, _, lost in outcomes)


STRESS = """
import json, os, random, signal, sys, time, traceback
from dpmd_fast.privacy.budget import BudgetExceeded
from dpmd_fast.privacy.ledger.ledger import Ledger

path, acknowledged, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
ledger = Ledger(path)
ledger.create("data 0", 1.0, 1e-6)
total = ledger.total("data 0").mu2


def work(seed):
    rng = random.Random(seed)
    out = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    place = len(ledger.datasets()) - 1
    while True:
        name = f"data {place}"
        try:
            spend = ledger.spend(name, total * rng.uniform(0.01, 0.1), "stress")
            os.write(out, json.dumps([name, spend.id, spend.mu2]).encode() + b"\\n")
        except BudgetExceeded:  # then the next data set, which another process may have created
            place += 1
            if f"data {place}" not in ledger.datasets():
                try:
                    ledger.create(f"data {place}", 1.0, 1e-6)
                except ValueError:
                    pass


def start(seed):
    pid = os.fork()
    if pid == 0:
        try:
            work(seed)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


rng = random.Random(7)
workers, kills, failed, started = [start(k) for k in range(8)], 0, 0, 8
end = time.monotonic() + seconds
while time.monotonic() < end or len(ledger.datasets()) < 3:  # longer on a busy machine
    time.sleep(rng.uniform(0.005, 0.06))
    victim = rng.choice(workers)
    os.kill(victim, signal.SIGKILL)
    failed += os.waitpid(victim, 0)[1] != signal.SIGKILL
    kills += 1
    workers[workers.index(victim)] = start(started)
    started += 1
for pid in workers:
    os.kill(pid, signal.SIGKILL)
    failed += os.waitpid(pid, 0)[1] != signal.SIGKILL
print(json.dumps([kills, failed]))
"""


@needs_fork
@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_eight_processes_that_are_killed_never_overspend(tmp_path, seconds):
    ledger = Ledger(tmp_path / "ledger.db")
    acknowledged = tmp_path / "acknowledged"
    kills, failed = run(STRESS, ledger.path, acknowledged, seconds)
    assert failed == 0  # none died of anything but the kill
    assert kills > 10
    acks = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    # read without the package
    found = {
        number: (name, mu2)
        for number, name, mu2 in raw(
            ledger, "SELECT s.id, d.name, s.mu2 FROM spends s JOIN datasets d ON d.id = s.dataset"
        )
    }
    missing = [ack for ack in acks if found.get(ack[1]) != (ack[0], ack[2])]
    assert not missing
    assert len({ack[1] for ack in acks}) == len(acks)
    totals = dict(raw(ledger, "SELECT name, mu2 FROM datasets"))
    sums = {name: sum(Fraction(mu2) for of, mu2 in found.values() if of == name) for name in totals}
    shares = {name: float(sums[name] / Fraction(totals[name])) for name in totals}
    assert all(sums[name] <= Fraction(totals[name]) * (1 + Fraction(1e-12)) for name in totals)
    finished = sorted(shares.values())[1:]  # one was still being spent
    assert len(totals) >= 3
    assert min(finished) > 0.9  # a refusal came at the end of each
    for name in totals:  # and the ledger agrees with its own seals
        assert ledger.remaining(name) == pytest.approx(float(Fraction(totals[name]) - sums[name]), abs=1e-15)
    print(
        f"\n{seconds} s: {len(found)} spends on {len(totals)} data sets, {len(acks)} acknowledged and all "
        f"there, {kills} kills; sum/total {min(finished):.4f} to {max(shares.values()):.6f}"
    )


@needs_fork
def test_what_a_crash_left_half_written_is_undone(ledger, tmp_path):
    ledger.spend("a", 0.01, "x")
    left = run(
        """
        import json, os, signal, sys
        from dpmd_fast.privacy.ledger import store as ledger_store
        path = sys.argv[1]
        connect = ledger_store._connect

        def spilling(*arguments):
            connection = connect(*arguments)
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("PRAGMA cache_spill = 1")
            return connection

        pid = os.fork()
        if pid == 0:
            ledger_store._connect = spilling
            with ledger_store.open_book(path, 5.0, write=True) as book:
                account = book.account("a")
                for k in range(200):  # enough to write pages before the end of the transaction
                    book.add_file(1, "x" * 900, "now")
                book.enter(account, "now", "x", "m", "{}", 0.01, "unconditional", "h", 1)
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        print(json.dumps([os.path.exists(path + "-journal"), os.path.getsize(path)]))
        """,
        ledger.path,
    )
    assert left[0]
    (spend,) = ledger.history("a")
    assert spend.files == ()
    assert os.listdir(tmp_path) == ["ledger.db"]
    assert os.path.getsize(ledger.path) < left[1]
    ledger.spend("a", 0.01, "x")
