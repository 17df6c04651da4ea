"""What the watch of connections counts, and whom it closes: connections are made up here."""

import pytest

from dpmd_fast.serve import connect, connections
from dpmd_fast.serve.calls import Limits
from dpmd_fast.serve.connections import Link
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer

MB = 1 << 20
SERVER = 1  # port of a server that there is not
PORT = 5000
PEER = f"ipv4:127.0.0.1:{PORT}"


class Scene:
    """Connections as the system would show them, and a watch that looks at them."""

    def __init__(self, monkeypatch):
        self.sizes = {PORT: 0}  # bytes of each connection, by the port of its peer
        self.missing = False  # whether the list lacks them
        self.calls = []  # pairs of peer and time
        self.credits = dict  # what the watch calls
        self.listed = 0
        self.closed = []
        self._others = connections.links  # of servers that other tests have left behind, with a watch each
        monkeypatch.setattr(connections, "links", self._links)
        monkeypatch.setattr(Link, "size_by_now", lambda link: self.sizes[link.identity])
        monkeypatch.setattr(Link, "shut", lambda link: self.sizes.pop(link.identity) is not None)

    def _links(self, port):
        if port != SERVER:
            return self._others(port)
        self.listed += 1
        found = {} if self.missing else self.sizes
        return {connections.key_of(f"ipv4:127.0.0.1:{one}"): [Link(7, one, found[one])] for one in found}

    def watch(self, most=lambda calls: 100 * MB):
        return connections.Watch(
            SERVER, lambda: self.calls, lambda: self.credits(), 60.0, most, self.closed.append
        )


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


# How many bytes a connection may have


@pytest.mark.parametrize(("calls", "looks"), [(1, 101), (5, 141), (0, 65)])
def test_small_batches_do_not_hide_a_large_message(scene, calls, looks):
    """At every look 1 MB more has come, and finished batches account for 1,000 bytes of it.

    All calls of a client are on one connection: each further one may have a batch on its way.
    """
    scene.calls = [(PEER, None)] * calls
    scene.credits = lambda: {PEER: 1000} if calls else {}
    watch = scene.watch(lambda count: (100 + 10 * (count - 1)) * MB)
    come = 0
    while not scene.closed and come < 1 << 30:
        come = scene.sizes[PORT] = come + MB
        watch.look()
    assert scene.closed == ["too large"]
    assert come // MB == looks


@pytest.mark.parametrize(("calls", "closed"), [(8, []), (1, ["too large"])])
def test_each_call_may_have_a_batch_on_its_way(scene, calls, closed):
    scene.calls = [(PEER, None)] * calls
    scene.sizes[PORT] = 8 * 50 * MB
    scene.watch(Limits().message_bytes).look()
    assert scene.closed == closed


def test_many_calls_do_not_fill_the_memory():
    limits = Limits()
    sizes = [limits.message_bytes(calls) for calls in (0, 1, 2, 8, 64)]
    assert [size // MB for size in sizes] == [288, 288, 384, 960, 1024]
    assert Limits(memory=1).message_bytes(64) == limits.message_bytes(1)  # never less than one call has


@pytest.mark.parametrize(("token", "closed_at"), [(False, 2.5), (True, None)])
def test_a_stranger_may_have_more_than_a_megabyte_for_two_seconds(scene, monkeypatch, token, closed_at):
    """A call with a token is a stranger until its thread has begun, which takes a while on a busy machine."""
    clock = 100.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: clock)
    scene.sizes[PORT] = 18 * MB
    watch = scene.watch()
    while not scene.closed and clock < 110.0:
        scene.calls = [(PEER, None)] if token and clock >= 101.5 else []
        watch.look()
        clock += 0.5
    assert scene.closed == ([] if closed_at is None else ["too large"])
    assert closed_at is None or clock == 100.0 + closed_at + 0.5


def test_strangers_have_a_bound_together(scene):
    """The largest are closed; who has a call with a token is not among them."""
    scene.sizes = {PORT: 60 * MB}
    watch = scene.watch()
    watch.look()
    assert scene.closed == []  # alone
    scene.calls = [(PEER, None)]
    scene.sizes |= {5001: 30 * MB, 5002: 50 * MB, 5003: 40 * MB, 5004: 45 * MB}
    watch.look()
    assert scene.closed == ["too large"]
    assert sorted(scene.sizes) == [5000, 5001, 5003, 5004]


# Accounts


@pytest.mark.parametrize("new", [False, True])
def test_what_comes_and_is_finished_during_a_look_is_not_too_large(scene, new):
    """A thread that waits for its turn sees bytes of batches that were finished after it asked for those."""
    finished = 0

    def credits():
        """200 MB come before the answer, and as much after it; a batch is finished when it has come."""
        nonlocal finished
        scene.missing = False
        answer, finished = finished + 200 * MB, 200 * MB
        scene.sizes[PORT] += 400 * MB
        return {PEER: answer}

    scene.credits, scene.calls, scene.missing = credits, [(PEER, None)], new
    watch = scene.watch()
    for _ in range(20):
        watch.look()
    assert scene.closed == []
    scene.sizes[PORT] += 400 * MB  # nothing will account for these
    watch.look()
    assert scene.closed == ["too large"]


@pytest.mark.parametrize(("looks", "closed"), [(1, []), (2, ["too large"])])
def test_an_account_outlives_a_list_that_lacks_it(scene, looks, closed):
    scene.sizes[PORT], scene.credits = 300 * MB, lambda: {PEER: 300 * MB}
    watch = scene.watch()
    watch.look()
    scene.missing, scene.credits = True, dict
    for _ in range(looks):
        watch.look()
    assert len(watch._seen) == 2 - looks
    scene.missing, scene.credits = False, lambda: {PEER: 1000}
    watch.look()
    assert scene.closed == closed


def test_a_look_that_fails_keeps_what_accounts_for_bytes(scene, monkeypatch):
    scene.sizes[PORT], scene.credits = 300 * MB, lambda: {PEER: 300 * MB}
    watch = scene.watch()

    def failing(seen, links, now):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(connections._Seen, "update", failing)
        with pytest.raises(MemoryError):
            watch.look()
    scene.credits = dict  # they are told once
    watch.look()
    assert scene.closed == []


def test_what_is_explained_stays_so(scene, monkeypatch):
    """A count that falls short once must not take away what was accounted for."""
    scene.sizes[PORT], scene.credits = 300 * MB, lambda: {PEER: 300 * MB}
    watch = scene.watch()
    watch.look()
    with monkeypatch.context() as patch:
        patch.setattr(Link, "size_by_now", lambda link: 150 * MB)
        watch.look()
    scene.credits = dict
    watch.look()
    assert scene.closed == []


def test_a_new_connection_of_the_same_peer_inherits_no_bytes(scene, monkeypatch):
    scene.sizes[PORT], scene.credits = 300 * MB, lambda: {PEER: 300 * MB}
    watch = scene.watch()
    watch.look()
    monkeypatch.setattr(connections, "links", lambda port: {connections.key_of(PEER): [Link(7, 1, 101 * MB)]})
    scene.sizes, scene.credits = {1: 101 * MB}, dict
    watch.look()
    assert scene.closed == ["too large"]


def test_connections_are_listed_once_in_a_look(scene, monkeypatch):
    """And counted again only where batches were finished: 1,000 that are idle take 30 ms of a core."""
    again = []
    monkeypatch.setattr(Link, "size_by_now", lambda link: again.append(link.identity) or link.size)
    scene.sizes = {5000 + number: 0 for number in range(10)}
    scene.credits = lambda: {PEER: 1000}
    scene.watch().look()
    assert scene.listed == 1
    assert again == [PORT]


def test_nothing_is_credited_where_nobody_watches(folder, models, monkeypatch):
    monkeypatch.setattr("dpmd_fast.serve.server.watchable", lambda: False)
    registry = Registry()
    registry.reload(str(folder))
    made = ModelServer("grpc://127.0.0.1:0", registry, log_calls=False)
    try:
        with connect(f"grpc://127.0.0.1:{made.port}") as client:
            assert client.health()["status"] == "ok"
        assert made.calls.credits() == {}
        assert not made._watch.is_alive()
    finally:
        made.stop()


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("ipv4:127.0.0.1:5000", "5000 127.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "5000 ::1"),
        ("ipv6:[::ffff:10.0.0.1]:5000", "5000 10.0.0.1"),
        ("ipv6:%5Bfe80::1%254%5D:5000", "5000 fe80::1"),
    ],
)
def test_the_key_of_a_peer(peer, key):
    assert connections.key_of(peer) == key
