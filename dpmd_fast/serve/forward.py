"""Connections of clients, handed on to the worker that has the fewest, byte for byte.

Only for several workers: Flight switches SO_REUSEPORT off, so that they cannot listen on one port themselves,
and gRPC does not survive a fork with a listening socket. One worker listens itself, and nothing stands in
between. Bytes are not looked at: TLS and tokens are between client and worker. A client that comes while no
worker is ready waits for one.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter, deque
from contextlib import suppress

from dpmd_fast.serve.connections import open_files
from dpmd_fast.serve.log import log

_BUFFER = 1 << 18  # bytes that are handed on at once
_LOOK = 0.05  # seconds between looks at clients that wait
_PATIENCE = 15.0  # seconds that a client waits for a worker
_IDLE = 5.0  # seconds without a byte, after which a connection may be dropped for a new one
_MOST = 2000  # connections; fewer if the system allows fewer open files
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self._left = memoryview(b"")  # what the target did not take yet
        self.ended = False

    @property
    def pending(self) -> bool:
        return len(self._left) > 0

    def read(self, buffer: memoryview) -> None:
        """Take what has come, and send on what goes at once; only the rest is kept."""
        try:
            count = self.source.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        self.ended = count == 0
        self._left = buffer[:count]
        self.write()
        if self.pending:
            self._left = memoryview(bytes(self._left))  # the buffer is for all connections

    def write(self) -> None:
        if not self.pending:
            return
        try:
            self._left = self._left[self.target.send(self._left) :]
        except BlockingIOError:
            return
        except OSError:
            self._left, self.ended = memoryview(b""), True


class _Pair:
    """A client and its worker."""

    def __init__(self, client: socket.socket, worker: socket.socket, slot: int) -> None:
        self.client, self.worker, self.slot = client, worker, slot
        self.ways = (_Way(client, worker), _Way(worker, client))
        self.connected = False
        self.used = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether one side has ended, and the other one has got all that it sent."""
        return any(way.ended and not way.pending for way in self.ways)

    def wanted(self, one: socket.socket) -> int:
        """Return the events of a socket that can be acted on now."""
        if not self.connected:
            return _WRITE if one is self.worker else 0
        events = 0
        for way in self.ways:
            if way.source is one and not way.pending and not way.ended:
                events |= _READ
            if way.target is one and way.pending:
                events |= _WRITE
        return events


class Forwarder(threading.Thread):
    """Accepts the connections of `listener`."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(name="dpmd_fast forward", daemon=True)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._ports: dict[int, int] = {}  # of workers, by slot
        self._pairs: dict[socket.socket, _Pair] = {}  # under both sockets
        self._waiting: deque[tuple[float, socket.socket]] = deque()
        self._closing = self._ended = False
        self._most = room()
        self._buffer = memoryview(bytearray(_BUFFER))

    def add(self, slot: int, port: int) -> None:
        """Hand connections to a worker, which listens on a port of the loopback address."""
        with self._lock:
            self._ports[slot] = port

    def remove(self, slot: int) -> None:
        with self._lock:
            self._ports.pop(slot, None)

    def close(self) -> None:
        """Accept no more connections; those that are there go on."""
        self._closing = True

    def stop(self) -> None:
        self._ended = True
        self.join(2.0)

    def run(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(512)
        self._selector.register(self._listener, _READ)
        while not self._ended:
            if self._closing and self._listener.fileno() >= 0:
                self._selector.unregister(self._listener)
                self._listener.close()
            for key, events in self._selector.select(_LOOK):
                try:
                    self._act(key.fileobj, events)
                except Exception as problem:  # of one connection: all others go on
                    log("connection failed", kind=type(problem).__name__)
                    self._drop(self._pairs.get(key.fileobj))  # type: ignore[call-overload]
            self._connect_waiting()
        for pair in set(self._pairs.values()):
            self._drop(pair)
        for _, client in self._waiting:
            client.close()
        self._listener.close()
        self._selector.close()

    def _act(self, one: object, events: int) -> None:
        if one is self._listener:
            self._accept()
            return
        assert isinstance(one, socket.socket)
        pair = self._pairs.get(one)
        if pair is None:
            return
        if not pair.connected:
            if pair.worker.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._retry(pair)
                return
            pair.connected = True
        for way in pair.ways:
            if way.target is one and events & _WRITE:
                way.write()
            if way.source is one and events & _READ:
                way.read(self._buffer)
        pair.used = time.monotonic()
        if pair.over:
            self._drop(pair)
        else:
            self._listen_to(pair)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if len(self._pairs) // 2 + len(self._waiting) >= self._most and not self._make_room():
                    client.close()
                    continue
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._waiting.append((time.monotonic() + _PATIENCE, client))

    def _make_room(self) -> bool:
        """Drop the connection that was used least recently, unless it is in use: clients connect again."""
        oldest = min(self._pairs.values(), key=lambda pair: pair.used, default=None)
        if oldest is None or time.monotonic() - oldest.used < _IDLE:
            return False
        self._drop(oldest)
        return True

    def _connect_waiting(self) -> None:
        now = time.monotonic()
        for _ in range(len(self._waiting)):
            until, client = self._waiting.popleft()
            try:
                connected = self._connect(client)
            except Exception as problem:  # as of too many open files: the others go on
                log("connection failed", kind=type(problem).__name__)
                self._drop(self._pairs.get(client))
                client.close()
                continue
            if not connected:
                if now < until and not self._closing:
                    self._waiting.append((until, client))
                else:
                    client.close()

    def _connect(self, client: socket.socket) -> bool:
        with self._lock:
            ports = dict(self._ports)
        if not ports:
            return False
        load = Counter(pair.slot for pair in self._pairs.values())
        slot = min(ports, key=lambda one: load[one])
        worker = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        worker.setblocking(False)
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        worker.connect_ex(("127.0.0.1", ports[slot]))
        pair = _Pair(client, worker, slot)
        self._pairs[client] = self._pairs[worker] = pair
        self._listen_to(pair)
        return True

    def _retry(self, pair: _Pair) -> None:
        """Have a client wait again, whose worker has gone."""
        self.remove(pair.slot)
        del self._pairs[pair.client], self._pairs[pair.worker]
        self._forget(pair.worker)
        self._waiting.append((time.monotonic() + _PATIENCE, pair.client))

    def _listen_to(self, pair: _Pair) -> None:
        for one in (pair.client, pair.worker):
            wanted = pair.wanted(one)
            try:
                known = self._selector.get_key(one)
            except KeyError:
                if wanted:
                    self._selector.register(one, wanted)
                continue
            if not wanted:
                self._selector.unregister(one)
            elif known.events != wanted:
                self._selector.modify(one, wanted)

    def _drop(self, pair: _Pair | None) -> None:
        if pair is None:
            return
        for one in (pair.client, pair.worker):
            self._pairs.pop(one, None)
            self._forget(one)

    def _forget(self, one: socket.socket) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(one)
        one.close()


def room() -> int:
    """Return how many connections there can be, each with two open files; raise the limit of open files."""
    return max(1, min(_MOST, (open_files(2 * _MOST + 100) - 100) // 2))
