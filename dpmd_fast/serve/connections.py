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
from collections.abc import Callable
from typing import Any

# Seconds between looks. A message of 800 MB from the same machine took a worker from 226 to 533 MB, with a
# limit of 256 MB (benchmarks/serve.py).
_LOOK = 0.05
_SHARE = 9  # times as long as a look took, until the next one: at most a tenth of a core
# Bytes from a connection that has not made a call with a token yet: 3,000 refused calls. A call is known only
# when its thread has begun, and gRPC takes what its window allows meanwhile, 18 MB on a busy machine: so this
# holds for what stays, and there is a larger limit before.
_STRANGER, _STRANGER_SECONDS, _STRANGER_MOST = 1 << 20, 2.0, 64 << 20
_MOST = 1000  # connections, beyond which the one that was idle for longest makes room
_BYTES_RECEIVED = 128  # place of tcpi_bytes_received in struct tcp_info, since Linux 4.1
_FOLDER = "/proc/self/fd"


def sockets(port: int) -> dict[str, int]:
    """Return the file descriptor of each connection to our port, by the port and host of its peer."""
    found: dict[str, int] = {}
    for entry in os.listdir(_FOLDER):
        try:
            if not os.readlink(f"{_FOLDER}/{entry}").startswith("socket:"):
                continue
            with _duplicate(int(entry)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port:
                    found[_key(one.getpeername())] = int(entry)
        except OSError:  # closed meanwhile, or not connected
            continue
    return found


def key_of(peer: str) -> str:
    """Return the key of a peer as gRPC writes it: ipv4:127.0.0.1:5000, or ipv6:[::1]:5000, also quoted."""
    from urllib.parse import unquote

    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _key((host.strip("[]"), port))


def _key(address: Any) -> str:
    return f"{address[1]} {str(address[0]).removeprefix('::ffff:')}"


def _duplicate(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))


def received(number: int, key: str) -> int | None:
    """Return the bytes that this process has read from a connection; None if that is another one by now.

    What the system has received and nobody has read takes none of our memory: up to 32 MB of a connection
    that is served slowly (net.ipv4.tcp_rmem).
    """
    try:
        with _duplicate(number) as one:
            if _key(one.getpeername()) != key:
                return None
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            unread = struct.unpack("i", fcntl.ioctl(one, termios.FIONREAD, bytes(4)))[0]
            return int(struct.unpack_from("Q", info, _BYTES_RECEIVED)[0]) - int(unread)
    except (OSError, struct.error):
        return None


def shut(number: int, key: str) -> bool:
    """Shut a connection down, if the descriptor still is that connection."""
    try:
        with _duplicate(number) as one:
            if _key(one.getpeername()) != key:
                return False
            one.shutdown(socket.SHUT_RDWR)
            return True
    except OSError:
        return False


class _Seen:
    """A connection, as it was at the last look."""

    def __init__(self, now: float) -> None:
        self.explained = self.received = 0  # bytes
        self.changed = self.modest = (
            now  # when it received something; when it had little that is not explained
        )
        self.known = False  # whether a call with a token came over it

    def too_large(self, unexplained: int, now: float, most: int) -> bool:
        """Return whether it has received more than it may."""
        if self.known:
            return unexplained > most
        if unexplained <= _STRANGER:
            self.modest = now
        return unexplained > min(_STRANGER_MOST, most) or now - self.modest > _STRANGER_SECONDS


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
    most_bytes : int
        That a connection may receive beyond these.
    closed : callable
        Called with "stalled", "too large" or "too many" for each connection that is closed.
    """

    def __init__(
        self,
        port: int,
        waiting: Callable[[], list[tuple[str, float | None]]],
        credits: Callable[[], dict[str, int]],
        idle_seconds: float,
        most_bytes: int,
        closed: Callable[[str], None],
    ) -> None:
        super().__init__(name="dpmd_fast watch", daemon=True)
        self._port, self._waiting, self._credits = port, waiting, credits
        self._idle, self._most, self._closed = idle_seconds, most_bytes, closed
        self._seen: dict[str, _Seen] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        if not sys.platform.startswith("linux"):
            return
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
        before = {key: received(descriptor, key) for key, descriptor in sockets(self._port).items()}
        since: dict[str, float] = {}  # of connections with open calls
        for peer, waits in self._waiting():
            key = key_of(peer)
            since[key] = min(now if waits is None else waits, since.get(key, now))
        credits: Counter[str] = Counter()
        for peer, size in self._credits().items():
            credits[key_of(peer)] += size
        there = sockets(self._port)
        self._seen = {key: self._seen.get(key) or _Seen(now) for key in there}
        for key, descriptor in there.items():
            seen, earlier, total = self._seen[key], before.get(key, 0), received(descriptor, key)
            if earlier is None or total is None:
                continue
            if total != seen.received:
                seen.received, seen.changed = total, now
            seen.known = seen.known or key in since or key in credits
            # never more than has come: what was small on the way must not pay for what comes later
            seen.explained = min(total, seen.explained + credits[key])
            if seen.too_large(earlier - seen.explained, now, self._most):
                self._shut(descriptor, key, "too large")
            elif now - since.get(key, now) > self._idle:
                self._shut(descriptor, key, "stalled")
        self._make_room(there, set(since))

    def _make_room(self, there: dict[str, int], busy: set[str]) -> None:
        """Close the connections that were idle for longest, if there are too many."""
        most = min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if len(there) <= most:
            return
        idle = [key for key in there if key in self._seen and key not in busy]
        for key in sorted(idle, key=lambda one: self._seen[one].changed)[: len(there) - most]:
            self._shut(there[key], key, "too many")

    def _shut(self, descriptor: int, key: str, why: str) -> None:
        self._seen.pop(key, None)
        if shut(descriptor, key):
            self._closed(why)
