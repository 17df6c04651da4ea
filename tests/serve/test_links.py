"""What the system says about connections, and floods of them."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time

import pytest
from serve.served import ROOT, TOKEN, until

from dpmd_fast.serve import connect, connections
from dpmd_fast.serve.connections import Link

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@contextlib.contextmanager
def connected(address="127.0.0.1", count=1):
    """Connections from one port to as many addresses of a server: that, their clients, and its ends."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((address, 0)))
        source, clients, ours = ("127.0.0.1", 0), [], []
        for number in range(1, count + 1):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(source)
            one.connect((f"127.0.0.{number}", server.getsockname()[1]))
            source = one.getsockname()
            clients.append(one)
            ours.append(stack.enter_context(server.accept()[0]))
        yield server.getsockname()[1], clients, ours


def only_link(port):
    ((link,),) = connections.links(port).values()
    return link


@needs_linux
def test_only_what_was_read_counts():
    """The system keeps up to 32 MB of a connection that is served slowly, which are not ours."""
    with connected() as (port, (client,), (ours,)):
        client.sendall(b"x" * 50_000)
        link = only_link(port)
        assert (link.number, link.size, link.size_by_now()) == (ours.fileno(), 0, 0)
        assert len(ours.recv(20_000, socket.MSG_WAITALL)) == 20_000
        later = only_link(port)
        assert (later.size, link.size_by_now()) == (20_000, 20_000)


@needs_linux
def test_what_comes_during_a_count_is_not_missing_afterwards(monkeypatch):
    """It may be missing in what is judged, but not in the bound of what may be accounted for."""
    with connected() as (port, (client,), (ours,)):
        client.sendall(b"x" * 1000)
        assert len(ours.recv(1000, socket.MSG_WAITALL)) == 1000
        link = only_link(port)
        ask = {name: getattr(connections, name) for name in ("_unread", "_state_and_received")}

        def patient(name):
            def asked(one):
                answer = ask[name](one)
                client.sendall(b"x" * 10)
                time.sleep(0.02)
                return answer

            return asked

        for name in ask:
            monkeypatch.setattr(connections, name, patient(name))
        assert link.size_by_now() >= 1000
        link = only_link(port)
        assert link.size <= 1000


@needs_linux
def test_all_connections_of_a_peer_count_and_are_shut():
    """One port of a client can be connected to several addresses of a server."""
    with connected("0.0.0.0", 2) as (port, clients, ours):
        for client, own in zip(clients, ours, strict=True):
            client.sendall(b"x" * 2000)
            assert len(own.recv(2000, socket.MSG_WAITALL)) == 2000
        (found,) = connections.links(port).values()
        assert {link.number for link in found} == {own.fileno() for own in ours}
        closed = []
        watch = connections.Watch(
            port,
            list,
            lambda: {f"ipv4:127.0.0.1:{clients[0].getsockname()[1]}": 1},
            60.0,
            lambda _: 3000,
            closed.append,
        )
        watch.look()
        assert closed == ["too large"]
        for client in clients:
            client.settimeout(5.0)
            assert client.recv(1) == b""
        assert connections.links(port) == {}  # although they are not closed yet
        watch.look()
        assert closed == ["too large"]


@needs_linux
def test_a_number_that_is_another_connection_by_now_is_left_alone():
    with connected() as (port, (client,), (ours,)):
        link = only_link(port)
        other = Link(link.number, link.identity + 1, 5)
        assert not other.shut()
        assert other.size_by_now() == 5
        client.sendall(b"x")
        assert ours.recv(1) == b"x"


# Numbers of connections


@needs_linux
def test_too_many_connections_make_room(server, client, monkeypatch):
    monkeypatch.setattr("dpmd_fast.serve.connections._MOST", 5)
    opened = [socket.create_connection(("127.0.0.1", server.port), 5.0) for _ in range(12)]
    try:

        def closed():
            count = 0
            for one in opened:
                one.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    try:
                        while one.recv(4096):
                            pass
                        count += 1
                    except ConnectionError:
                        count += 1
            return count

        until(lambda: closed() >= 7, 20.0)
        assert client.health()["status"] == "ok"
    finally:
        for one in opened:
            one.close()


SMALL_SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer
from dpmd_fast.serve.tokens import Tokens
server = ModelServer("grpc://127.0.0.1:0", Registry(), Tokens([sys.argv[1]]), log_calls=False)
print(server.port, flush=True)
sys.stdin.read()
"""


@needs_linux
def test_a_flood_of_connections_leaves_room_for_clients():
    """All descriptors of the server are in use: none is free to look at connections with."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SMALL_SERVER, TOKEN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        )
        stack.callback(process.stdin.close)  # ends it
        port = int(process.stdout.readline())
        for _ in range(300):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        with connect(f"grpc://127.0.0.1:{port}", TOKEN, timeout=15.0) as client:
            assert client.health()["status"] == "ok"


@needs_linux
def test_the_limit_of_open_files_is_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft - 100
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        assert connections.open_files(few - 1) == few
        assert connections.open_files(few + 10) == few + 10
        assert connections.open_files(hard + 10) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
