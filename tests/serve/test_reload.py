"""What the supervisor does when a reload goes wrong, with workers that answer as a test wants."""

import fcntl
import os
import socket
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from serve.served import save_models, until

from dpmd_fast.serve.copies import Copies
from dpmd_fast.serve.forward import Forwarder
from dpmd_fast.serve.options import ServeOptions
from dpmd_fast.serve.supervisor import Supervisor

GOOD = {"served": ["knot"], "new": [], "gone": [], "broken": {}}


class Scene:
    """A supervisor with two workers; `answers` has what they say to "load", by slot."""

    def __init__(self, folder):
        self.models, self.tokens = folder / "models", folder / "tokens"
        self.models.mkdir()
        (folder / "home").mkdir()
        save_models(self.models)
        self.give_tokens("old-token")
        self.supervisor = Supervisor(ServeOptions(str(self.models), tokens=str(self.tokens)))
        self.copies = self.supervisor._copies = Copies(str(self.models), str(folder / "home"))
        self.before = self.supervisor._folder = self.copies.take()
        self.asked, self.killed, self.answers = [], [], {0: GOOD, 1: GOOD}
        for slot in (0, 1):
            self.supervisor._workers[slot] = self.worker(slot)

    def give_tokens(self, text):
        self.tokens.write_text(text)
        self.tokens.chmod(0o600)

    def worker(self, slot):
        def ask(what, **given):
            self.asked.append((slot, what, given["tokens"], given.get("folder")))
            answer = Future()
            said = self.answers[slot] if what == "load" else True
            if isinstance(said, Exception):
                raise said
            answer.set_result(said)
            return answer

        process = SimpleNamespace(kill=lambda: self.killed.append(slot), pid=slot)
        return SimpleNamespace(
            slot=slot,
            ready=True,
            line=SimpleNamespace(ask=ask),
            process=process,
            start_answer=None,
            heard=1e18,
        )

    def what(self):
        return [(slot, what, tokens) for slot, what, tokens, _ in self.asked]


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.copies.close()


def test_a_reload_that_makes_a_worker_fail_leaves_the_old_files(scene, capfd):
    scene.answers[0] = None  # it has died
    found = scene.supervisor._reload()
    assert [asked[:2] for asked in scene.asked] == [(0, "load"), (0, "tokens"), (1, "tokens")]
    assert scene.asked[0][3] != scene.before
    assert scene.killed == [0]
    assert scene.supervisor._folder == scene.before
    assert sorted(os.listdir(scene.before)) == sorted(os.listdir(scene.models))
    assert os.listdir(scene.copies.home) == ["1"]
    assert "the old ones stay" in found["broken"][str(scene.models)]
    assert found["served"] == ["cloud", "knot", "plain", "scaled"]
    assert '"why": "no answer"' in capfd.readouterr().err


@pytest.mark.parametrize("answer", [None, {"failed": "MemoryError"}, ValueError("a bug")])
def test_revoked_tokens_are_revoked_whatever_happens(scene, answer):
    scene.answers[0] = answer
    scene.give_tokens("new-token")
    scene.supervisor._reload()
    assert (1, "tokens", ["new-token"]) in scene.what()
    assert scene.supervisor._tokens == ["new-token"]
    assert scene.supervisor._folder == scene.before


def test_a_folder_that_cannot_be_copied_is_not_loaded(scene, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpmd_fast.serve.copies._copy", full)
    scene.give_tokens("new-token")
    found = scene.supervisor._reload()
    assert scene.what() == [(0, "tokens", ["new-token"]), (1, "tokens", ["new-token"])]
    assert scene.killed == []
    assert found["broken"] == {str(scene.models): "cannot be read"}
    assert found["served"] == ["cloud", "knot", "plain", "scaled"]
    assert os.listdir(scene.copies.home) == ["1"]
    monkeypatch.undo()
    assert scene.supervisor._reload() == GOOD
    assert os.listdir(scene.copies.home) == ["3"]


def test_no_error_leaves_a_reload(scene, monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(scene.copies, "take", broken)
    found = scene.supervisor._reload()
    assert found["broken"] == {str(scene.models): "the reload has failed: the old models stay"}
    assert scene.supervisor._folder == scene.before


def test_a_later_worker_that_cannot_read_what_the_first_could_is_started_again(scene, capfd):
    scene.answers[1] = {**GOOD, "broken": {"knot.dpmd": "cannot be read: MemoryError"}}
    assert scene.supervisor._reload() == GOOD
    assert scene.killed == [1]
    assert '"why": "cannot read knot.dpmd"' in capfd.readouterr().err


@pytest.mark.parametrize("answer", [{**GOOD, "broken": {"knot.dpmd": "no"}}, {"failed": "no port"}])
def test_a_new_worker_that_cannot_read_all_models_is_started_again(scene, answer, capfd):
    worker = scene.supervisor._workers[1]
    worker.ready, worker.start_answer = False, Future()
    worker.start_answer.set_result(answer)
    scene.supervisor._look()
    assert scene.killed == [1]
    assert not worker.ready
    said = capfd.readouterr().err
    assert "worker failed" in said
    assert "knot.dpmd" in said or "no port" in said


def test_the_server_ends_if_nothing_accepts_connections(scene):
    scene.supervisor._forwarder = SimpleNamespace(is_alive=lambda: False)
    with pytest.raises(RuntimeError, match="accepts connections"):
        scene.supervisor._look()


def test_the_folder_of_copies_is_locked(scene):
    """As systemd-tmpfiles tries it, before it removes what is old."""
    other = os.open(scene.copies.home, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)


def test_one_connection_that_fails_does_not_end_the_forwarder(monkeypatch):
    def broken(*_):
        raise OSError(24, "Too many open files")

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    address = listener.getsockname()
    forwarder = Forwarder(listener)
    monkeypatch.setattr(forwarder, "_connect", broken)
    forwarder.start()
    try:
        until(lambda: answers(address))
        with socket.create_connection(address, 5.0) as client:
            assert client.recv(1) == b""  # closed
        with socket.create_connection(address, 5.0) as client:
            assert client.recv(1) == b""
        assert forwarder.is_alive()
    finally:
        forwarder.stop()


def answers(address):
    try:
        with socket.create_connection(address, 5.0):
            return True
    except OSError:
        return False
