"""Connections that are closed: of clients that stall, and of those that send more than a message may hold.

Flight has no limit for a message and no time limit for a client: to read takes memory and time as the client
pleases, and a blocked read cannot be interrupted; an action is received as a whole before its token is looked
at. What ends it is the end of its connection. So a thread looks at all connections, asks the system how many
bytes were read from each, subtracts what finished batches and calls account for, and shuts down sockets where
too much is left. The client sees a closed connection, which is an "unavailable" for Flight; so do its other
calls on it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

# Seconds between looks. A message of 800 MB from the same machine took a worker from 226 to 533 MB, with a
# limit of 256 MB (benchmarks/serve.py).
_LOOK = 0.05
_SHARE = 9  # times as long as a look took, until the next one: at most a tenth of a core
# Bytes from a connection that has not made a call with a token yet: 3,000 refused calls. A call is known only
# when its thread has begun, and gRPC takes what its window allows meanwhile, 18 MB on a busy machine: so this
# holds for what stays, and there is a larger limit before.
_STRANGER, _STRANGER_SECONDS, _STRANGER_MOST = 1 << 20, 2.0, 64 << 20
_STRANGERS_MOST = 128 << 20  # bytes from all such connections together
_MOST = 1000  # connections, beyond which the one that was idle for longest makes room
_MISSED = 2  # looks in succession that do not find a connection, after which its account is forgotten
_BYTES_RECEIVED = 128  # place of tcpi_bytes_received in struct tcp_info, since Linux 4.1
_TAKES_BYTES = (1, 8)  # states: established; closed by the client, but not by us
_FOLDER = "/proc/self/fd"


def watchable() -> bool:
    """Return whether this system tells what a watch must know."""
    return sys.platform.startswith("linux")


def open_files(wanted: int = 4 * _MOST) -> int:
    """Return how many files this process may have open; raise that to what is wanted, if that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Borrowed(socket.socket):
    """A socket of somebody else, who closes it."""

    def __init__(self, number: int) -> None:
        super().__init__(fileno=number)

    def __exit__(self, *problem: object) -> None:
        self.detach()


class Link(NamedTuple):
    """A connection to our port, by the number of its descriptor, which may be another file's at any time.

    No new descriptor is made to look at it: a flood of connections leaves none.
    """

    number: int
    identity: int  # that no other socket has, whatever its number
    size: int  # bytes that this process had read when it was found, or less

    def size_by_now(self) -> int:
        """Return the bytes that this process has read by now, or more."""
        with suppress(OSError), _Borrowed(self.number) as one:
            if _identity(self.number) == self.identity:
                unread = _unread(one)  # first: what comes in between must not be missing
                return _state_and_received(one)[1] - unread
        return self.size

    def shut(self) -> bool:
        with suppress(OSError), _Borrowed(self.number) as one:
            if _identity(self.number) == self.identity:
                one.shutdown(socket.SHUT_RDWR)
                return True
        return False


def links(port: int) -> dict[str, list[Link]]:
    """Return the open connections to our port, by the port and host of the peer.

    There are several of one peer if it connects to several addresses of ours. What the system has received
    and nobody has read takes none of our memory: up to 32 MB of a connection that is served slowly
    (net.ipv4.tcp_rmem).
    """
    found: dict[str, list[Link]] = {}
    for number in _descriptors():
        try:
            with _Borrowed(number) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                    continue
                state, size = _state_and_received(one)
                if state in _TAKES_BYTES:
                    link = Link(number, _identity(number), size - _unread(one))
                    found.setdefault(_key(one.getpeername()), []).append(link)
        except OSError:  # no socket, closed meanwhile, or not connected
            continue
    return found


def _descriptors() -> Iterable[int]:
    try:
        return [int(entry) for entry in os.listdir(_FOLDER)]
    except OSError:  # none is free to read the folder with: so all numbers are in use
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _identity(number: int) -> int:
    return os.fstat(number).st_ino


def _state_and_received(one: socket.socket) -> tuple[int, int]:
    size = _BYTES_RECEIVED + 8
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size).ljust(size, b"\0")
    return info[0], int(struct.unpack_from("Q", info, _BYTES_RECEIVED)[0])


def _unread(one: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(one, termios.FIONREAD, bytes(4)))[0])


def key_of(peer: str) -> str:
    """Return the key of a peer as gRPC writes it: ipv4:127.0.0.1:5000, or ipv6:[::1]:5000, also quoted."""
    from urllib.parse import unquote

    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _key((host.strip("[]"), port))


def _key(address: Any) -> str:
    host = str(address[0]).partition("%")[0]  # gRPC adds the zone of a local address, the system may not
    return f"{address[1]} {host.removeprefix('::ffff:')}"


class _Seen:
    """The account of a peer, as it was at the last look. All are bytes, if nothing else is said."""

    def __init__(self, now: float) -> None:
        self.sizes: dict[int, int] = {}  # of each connection
        self.gone = 0  # of connections that were there
        self.credit = 0  # that finished batches and calls account for, and that no look has dealt with yet
        self.explained = self.unexplained = 0
        self.changed = self.modest = now  # when it received something; when it had little unexplained
        self.known = False  # whether a call with a token came from it
        self.missed = 0  # looks

    def update(self, links: list[Link], now: float) -> None:
        """Count what has come and what accounts for it."""
        before, self.sizes = self.sizes, {link.identity: link.size for link in links}
        self.gone += sum(size for identity, size in before.items() if identity not in self.sizes)
        if self.sizes != before:
            self.changed = now
        if self.credit:
            # never more than has come: what was small on the way must not pay for what comes later
            total = self.gone + sum(link.size_by_now() for link in links)
            self.explained = max(self.explained, min(total, self.explained + self.credit))
            self.credit = 0
        self.unexplained = self.gone + sum(self.sizes.values()) - self.explained

    def too_large(self, now: float, most: int) -> bool:
        """Return whether it has received more than it may."""
        if self.known:
            return self.unexplained > most
        if self.unexplained <= _STRANGER:
            self.modest = now
        return self.unexplained > min(_STRANGER_MOST, most) or now - self.modest > _STRANGER_SECONDS


class Watch(threading.Thread):
    """Closes connections whose calls wait for the client for too long, or receive too much.

    Parameters
    ----------
    port : int
        Of the server.
    waiting : callable
        Returns, for each open call, its peer and the time since when it waits for the client (None if it does
        not).
    credits : callable
        Returns, and forgets, the bytes that finished batches and calls account for, by peer. Who is not among
        them and has no open call never had a token.
    idle_seconds : float
    most_bytes : callable
        Returns how many bytes beyond these a peer may send, for the number of its open calls: Flight has all
        calls of a client on one connection.
    closed : callable
        Called with "stalled", "too large" or "too many" for each peer whose connections are closed.
    """

    def __init__(
        self,
        port: int,
        waiting: Callable[[], list[tuple[str, float | None]]],
        credits: Callable[[], dict[str, int]],
        idle_seconds: float,
        most_bytes: Callable[[int], int],
        closed: Callable[[str], None],
    ) -> None:
        super().__init__(name="dpmd_fast watch", daemon=True)
        self._port, self._waiting, self._credits = port, waiting, credits
        self._idle, self._most, self._closed = idle_seconds, most_bytes, closed
        self._seen: dict[str, _Seen] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        took = 0.0
        while not self._ended.wait(max(_LOOK, _SHARE * took)):
            start = time.thread_time()  # not by the clock: waits for other threads cost nothing
            try:
                self.look()
            except Exception:  # of a system that cannot tell: the limits of the process remain
                continue
            finally:
                took = time.thread_time() - start

    def stop(self) -> None:
        self._ended.set()

    def look(self) -> None:
        """Look at all connections once.

        Bytes come and batches are finished while this thread waits for its turn. So bytes are counted before
        what accounts for them, and again after it for the bound of what may be accounted for.
        """
        now = time.monotonic()
        there = links(self._port)
        calls: Counter[str] = Counter()  # that are open
        since: dict[str, float] = {}
        for peer, waits in self._waiting():
            key = key_of(peer)
            calls[key] += 1
            since[key] = min(now if waits is None else waits, since.get(key, now))
        for peer, size in self._credits().items():
            seen = self._seen.setdefault(key_of(peer), _Seen(now))
            seen.credit, seen.known = seen.credit + size, True
        for key in list(there):
            seen = self._seen.setdefault(key, _Seen(now))
            seen.known = seen.known or key in calls
            seen.update(there[key], now)
            if seen.too_large(now, self._most(calls[key])):
                self._shut(there, key, "too large")
            elif now - since.get(key, now) > self._idle:
                self._shut(there, key, "stalled")
        self._bound_strangers(there)
        self._make_room(there, set(calls))
        for key, seen in list(self._seen.items()):
            seen.missed = 0 if key in there else seen.missed + 1
            if seen.missed == _MISSED:
                del self._seen[key]

    def _bound_strangers(self, there: dict[str, list[Link]]) -> None:
        """Close the largest of the connections that had no token so far, if they have too much together."""
        strangers = {key: self._seen[key].unexplained for key in there if not self._seen[key].known}
        total = sum(strangers.values())
        for key in sorted(strangers, key=lambda one: -strangers[one]):
            if total <= _STRANGERS_MOST:
                return
            total -= strangers[key]
            self._shut(there, key, "too large")

    def _make_room(self, there: dict[str, list[Link]], busy: set[str]) -> None:
        """Close the connections that were idle for longest, if there are too many."""
        most = min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        excess = sum(len(some) for some in there.values()) - most
        idle = (key for key in list(there) if key not in busy)
        for key in sorted(idle, key=lambda one: self._seen[one].changed):
            if excess <= 0:
                return
            excess -= len(there[key])
            self._shut(there, key, "too many")

    def _shut(self, there: dict[str, list[Link]], key: str, why: str) -> None:
        """Shut all connections of a peer; they are no longer there."""
        del self._seen[key]
        if sum(link.shut() for link in there.pop(key)):
            self._closed(why)
