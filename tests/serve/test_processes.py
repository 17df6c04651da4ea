"""`dpmd-fast serve` as users start it: processes, signals, restarts, files, and what a worker loads."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
from samples import make_atlas, make_mixture
from serve.served import ROOT, TOKEN, make_table, running, save_models, until

from dpmd_fast.cli import main
from dpmd_fast.serve import connect

FORBIDDEN = (
    "dpmd_fast.lab",
    "dpmd_fast.mechanisms",
    "dpmd_fast.privacy.entropy",
    "dpmd_fast.privacy.noise",
    "dpmd_fast.reference",
    "dpmd_fast.report",
    "matplotlib",
    "pynndescent",
)
# writes the modules of every process when it ends
SITE = """
import atexit, os, sys
def told():
    with open(os.path.join(os.environ["TOLD"], f"{os.getpid()}.txt"), "w") as file:
        file.write(" ".join(name for name, module in sys.modules.items() if module is not None))
atexit.register(told)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# of the tests\n{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_a_server_from_its_start_to_its_end(models, tmp_path, tokens):
    """Two workers: results, one killed, SIGHUP, metrics of all, modules of all, logs, SIGTERM."""
    folder = tmp_path / "models"
    folder.mkdir()
    made = save_models(folder)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    env = {"PYTHONPATH": path, "TOLD": str(tmp_path)}
    with running(tmp_path, folder, "--workers", "2", "--tokens", str(tokens), env=env) as server:
        table, expected = make_table(500), made["knot"].transform(make_table(500))
        clients = [server.connect("knot", token=TOKEN) for _ in range(4)]
        for client in clients:
            assert client.transform(table).equals(expected)
        first = server.workers()
        assert len(first) == 2
        (folder / "knot.dpmd").write_bytes(b"broken")
        (folder / "extra.dpmd").write_bytes((folder / "plain.dpmd").read_bytes())
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.events("reloaded"))
        assert server.events("reloaded")[0]["broken"] == ["knot.dpmd"]
        os.kill(first[0], signal.SIGKILL)
        for client in clients:  # also those of the killed worker, and with the old model
            assert client.transform(table).equals(expected)
            assert "extra" in client.models()
        until(lambda: len(server.workers()) == 2)
        assert server.workers()[0] != first[0]
        for _ in range(4):
            with server.connect("knot", token=TOKEN) as client:  # the new worker has the old model, too
                assert client.transform(table).equals(expected)
        # a worker that has not answered within 2 s, on a busy machine, is not counted yet
        until(lambda: "dpmd_fast_workers 2" in clients[0].metrics())
        text = clients[0].metrics()
        rows = [line for line in text.splitlines() if line.startswith("dpmd_fast_rows_total")]
        assert 500 * 8 <= float(rows[0].rpartition(" ")[2]) <= 500 * 12
        with server.connect("knot") as nobody, pytest.raises(PermissionError, match="token"):
            nobody.transform(table)
        ends = [*server.workers().values(), server.process.pid]
        assert server.stop() == 0
    assert not server.port_file.exists()
    for line in server.events():  # every line is JSON
        assert not {"values", "text", "columns"} & set(line)
    told = server.log_file.read_text()
    assert TOKEN not in told
    assert "row 1" not in told
    assert {call["token"] for call in server.events("call")} == {2}  # the first line is a comment
    assert {call["outcome"] for call in server.events("call")} <= {"ok", "unavailable"}
    for number in ends:
        loaded = (tmp_path / f"{number}.txt").read_text().split()
        assert "dpmd_fast.serve.tokens" in loaded
        assert [name for name in loaded if name.startswith(FORBIDDEN)] == []
        assert ("dpmd_fast.serve.server" in loaded) == (number != server.process.pid)


PROGRAM = """
import sys
import pyarrow as pa
from dpmd_fast.serve import connect
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer
registry = Registry()
registry.reload(sys.argv[1])
server = ModelServer("grpc://127.0.0.1:0", registry, reload=lambda: registry.reload(sys.argv[1]).to_dict())
table = pa.table({name: [0.1, None] for name in "abc"})
with connect(f"grpc://127.0.0.1:{server.port}") as client:
    client.transform(table, model="knot", on_missing="keep")
    client.transform(table, 0.5, model="scaled", deviation_suffix="_sd")
    client.reload(), client.metrics(), client.models()
server.stop()
print(*sorted(sys.modules))
"""


def test_what_a_server_in_this_process_loads(models):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(models)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "dpmd_fast.models.mixture" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []


def test_a_worker_cannot_import_what_reads_records():
    program = (
        "from dpmd_fast.serve import worker\n"
        "worker.Worker = lambda connection: type('W', (), {'run': lambda self: check()})()\n"
        "def check():\n"
        "    for name in ('reference.sources.open', 'mechanisms.mixture', 'privacy.noise', 'lab.demo'):\n"
        "        try:\n"
        "            __import__(f'dpmd_fast.{name}')\n"
        "        except ImportError:\n"
        "            continue\n"
        "        return 1\n"
        "    return 0\n"
        "import socket\n"
        "worker.main(socket.socketpair()[0].detach())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=env, timeout=60, check=False).returncode == 0


def client_is_served(server):
    with server.connect() as other:
        return other.health()["in_flight"] == 1


def test_calls_in_progress_end_before_the_server_does(models, tmp_path):
    """One worker, which listens itself; SIGTERM while a slow client sends."""
    with running(tmp_path, models, "--log", "events") as server:
        pieces = make_table(50_000).to_batches(1000)
        started, go_on = threading.Event(), threading.Event()

        def slow():
            for place, batch in enumerate(pieces[:20]):
                if place == 5:
                    started.set()
                    go_on.wait(60.0)
                    time.sleep(0.3)  # for the signal to arrive
                yield batch

        reader = pa.RecordBatchReader.from_batches(pieces[0].schema, slow())
        done = []
        with server.connect("knot") as client:
            thread = threading.Thread(target=lambda: done.append(client.transform(reader)))
            thread.start()
            started.wait(20.0)
            until(lambda: client_is_served(server))
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.events("draining"))
            server.process.send_signal(signal.SIGHUP)  # does not end it
            go_on.set()
            assert server.process.wait(60.0) == 0
            thread.join(20.0)
        assert done[0].num_rows == 20_000
    (ended,) = server.events("ended")
    assert (ended["calls_left"], ended["workers_unknown"], ended["workers_left"]) == (0, 0, 0)
    assert not server.events("call")


@pytest.mark.slow
def test_workers_end_with_their_supervisor(models, tmp_path):
    with running(tmp_path, models) as server:
        (worker,) = server.workers().values()
        server.process.kill()
        server.process.wait(20.0)

        def gone():
            try:
                with open(f"/proc/{worker}/stat") as file:
                    return file.read().rpartition(")")[2].split()[0] == "Z"
            except FileNotFoundError:
                return True

        until(gone)


@pytest.mark.slow  # the server of the Dockerfile has TLS, too
@pytest.mark.skipif(not os.access("/usr/bin/openssl", os.X_OK), reason="no openssl")
def test_tls(models, tmp_path, tokens):
    cert, key = tmp_path / "server.crt", tmp_path / "server.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    command += [
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ]
    subprocess.run(command, check=True, capture_output=True)
    options = ["--tokens", str(tokens), "--tls-cert", str(cert), "--tls-key", str(key), "--host", "0.0.0.0"]
    with running(tmp_path, models, *options) as server:
        uri = server.uri("knot", "grpc+tls")
        with connect(uri, TOKEN, tls_root=cert.read_bytes(), timeout=30.0) as client:
            assert client.transform(make_table(5)).num_rows == 5
        with (
            connect(server.uri("knot"), TOKEN, timeout=2.0, patience=0.0) as plain,
            pytest.raises(OSError, match="no answer"),
        ):
            plain.transform(make_table(5))


# Refusals


def refused(capsys, *options):
    assert main(["serve", *map(str, options)]) == 2
    return capsys.readouterr().err.strip().removeprefix("dpmd-fast: error: ")


def test_the_examples_of_the_help_can_be_parsed(models, tokens, tmp_path, monkeypatch, capsys):
    """They would serve until somebody stops them: tests above run such commands."""
    import re

    from dpmd_fast.cli import commands
    from dpmd_fast.serve.supervisor import Supervisor

    text = re.sub(r"\\\n\s*", "", str(commands.commands["serve"].epilog))
    lines = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("dpmd-fast ")]
    assert len(lines) == 2
    os.symlink(models, tmp_path / "models")
    for name in ("tokens.txt", "server.crt", "server.key"):
        (tmp_path / name).write_text("-----BEGIN x")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "tokens.txt").write_text("token")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(Supervisor, "run", lambda self: started.append(self._options))
    for line in lines:
        assert main(line) == 0, capsys.readouterr().err
    assert [options.workers for options in started] == [1, 4]


def test_bad_options_are_refused(models, tmp_path, tokens, capsys):
    serve = ["--models", models, "--port", "0"]
    assert "must be a folder of .dpmd files" in refused(capsys, "--models", tmp_path / "no", "--port", "0")
    for mode in (0o640, 0o604, 0o620, 0o660):
        tokens.chmod(mode)
        assert f"has permissions {mode:03o}: must be a file of tokens" in refused(
            capsys, *serve, "--tokens", tokens
        )
    tokens.chmod(0o600)
    for text, said in (
        ("", "has no tokens"),
        ("two words", "line 1: a token must be"),
        ("ä", "printable ASCII"),
    ):
        tokens.write_text(text)
        assert said in refused(capsys, *serve, "--tokens", tokens)
    assert "does not exist" in refused(capsys, *serve, "--tokens", tmp_path / "none")
    assert "must both be given" in refused(capsys, *serve, "--tls-cert", tokens)
    tokens.write_text("no pem")
    assert "PEM" in refused(capsys, *serve, "--tls-cert", tokens, "--tls-key", tokens)
    assert "--workers = 0: must be from 1" in refused(capsys, *serve, "--workers", "0")
    assert "--max-in-flight = 0: must be" in refused(capsys, *serve, "--max-in-flight", "0")
    assert "--max-batch-rows = -1: must be" in refused(capsys, *serve, "--max-batch-rows", "-1")
    assert "--max-memory = 2047: must be from 2,048" in refused(capsys, *serve, "--max-memory", "2047")
    assert "--idle-seconds = nan: must be" in refused(capsys, *serve, "--idle-seconds", "nan")
    assert "--port = 99999: must be" in refused(capsys, "--models", models, "--port", "99999")


def test_other_machines_need_tokens_and_tls(models, tokens, capsys):
    for host in ("0.0.0.0", "::"):
        serve = ["--models", models, "--port", "0", "--host", host]
        said = refused(capsys, *serve)
        assert "so --tokens FILE and --tls-cert F --tls-key F must be given; --insecure" in said
        assert "so --tls-cert F --tls-key F must be given" in refused(capsys, *serve, "--tokens", tokens)
    assert "must be an address of this machine" in refused(
        capsys, "--models", models, "--port", "0", "--host", "no.such.host.invalid"
    )


def test_a_port_in_use_is_refused(models, capsys):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        assert f"--port = {port}: cannot be used on 127.0.0.1" in refused(
            capsys, "--models", models, "--port", port
        )


def test_a_broken_file_at_the_start_is_refused(tmp_path, capsys):
    save_models(tmp_path)
    (tmp_path / "bad.dpmd").write_bytes(b"no model")
    said = refused(capsys, "--models", tmp_path, "--port", "0")
    assert said == f"{tmp_path}/bad.dpmd is not an atlas or a mixture"


def test_only_models_that_a_trusted_key_has_signed_are_served(tmp_path, capsys):
    """At the start, at a reload, and by a worker that is started again."""
    from dpmd_fast.privacy.keys import create_keys

    key = create_keys(tmp_path / "ours")
    other = create_keys(tmp_path / "theirs")
    folder = tmp_path / "models"
    folder.mkdir()
    made = save_models(folder)
    trusted = ("--trusted", tmp_path / "ours.pub")
    said = refused(capsys, "--models", folder, "--port", "0", *trusted)
    assert "knot.dpmd is not signed, and only models signed by a trusted key are taken" in said
    said = refused(capsys, "--models", folder, "--port", "0", "--trusted", tmp_path / "none.pub")
    assert said == f"{tmp_path}/none.pub does not exist: must be the file of a public key"
    for name, model in made.items():
        model.save(folder / f"{name}.dpmd", key)
    made["plain"].save(folder / "plain.dpmd", other)
    table, expected = make_table(50), made["knot"].transform(make_table(50))
    with running(tmp_path, folder, *map(str, trusted), "--trusted", other.name) as server:
        with server.connect("knot") as client:
            found = client.models()
            assert {name: facts["signed_by"] for name, facts in found.items()} == {
                **dict.fromkeys(made, key.name),
                "plain": other.name,
            }
            make_atlas().save(folder / "extra.dpmd")
            make_mixture().save(folder / "knot.dpmd")  # unsigned: the old one stays
            reloaded = client.reload()
            assert set(reloaded["broken"]) == {"extra.dpmd", "knot.dpmd"}
            assert all("is not signed" in text for text in reloaded["broken"].values())
        (first,) = server.workers().values()
        os.kill(first, signal.SIGKILL)
        until(lambda: server.workers() and first not in server.workers().values())
        with server.connect("knot") as client:
            assert client.transform(table).equals(expected)
            assert sorted(client.models()) == sorted(made)
        assert server.stop() == 0


def test_an_address_that_is_loopback(models):
    from dpmd_fast.serve.options import ServeOptions

    for host in ("127.0.0.1", "127.1.2.3", "localhost"):
        assert ServeOptions(str(models), host=host).is_loopback
    assert not ServeOptions(str(models), host="0.0.0.0", insecure=True).is_loopback
    assert json.dumps(ServeOptions(str(models)).limits_dict())


def test_a_worker_that_is_killed_while_it_drains_is_not_counted_as_done(tmp_path, models):
    with running(tmp_path, models) as server:
        (worker,) = server.workers().values()
        os.kill(worker, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.events("draining"))
        os.kill(worker, signal.SIGKILL)
        server.process.wait(60.0)
    (ended,) = server.events("ended")
    assert (ended["calls_left"], ended["workers_unknown"]) == (None, 1)
