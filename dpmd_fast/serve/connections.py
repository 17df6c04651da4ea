"""Connections that are closed: of clients that stall, and of those that send more than a message may hold.

Flight has no limit for a message and no time limit for a client: to read takes memory and time as the client
pleases, and a blocked read cannot be interrupted. What ends it is the end of its connection. So a thread
looks at all connections with open calls, asks the system how many bytes each has received, and shuts down
sockets. The client sees a closed connection, which is an "unavailable" for Flight; so do its other calls on
it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

# Seconds between looks. A message of 800 MB from the same machine took a worker from 226 to 533 MB, with a
# limit of 256 MB (benchmarks/serve.py).
_LOOK = 0.05
_BYTES_RECEIVED = 128  # place of tcpi_bytes_received in struct tcp_info, since Linux 4.1
_FOLDER = "/proc/self/fd"


def sockets() -> dict[str, int]:
    """Return the file descriptor of each TCP connection of this process, by the port and host of its peer."""
    found: dict[str, int] = {}
    for entry in os.listdir(_FOLDER):
        try:
            if not os.readlink(f"{_FOLDER}/{entry}").startswith("socket:"):
                continue
            with _duplicate(int(entry)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
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
    """Return the bytes that a connection has received; None if the descriptor is another one by now."""
    try:
        with _duplicate(number) as one:
            if _key(one.getpeername()) != key:
                return None
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            return int(struct.unpack_from("Q", info, _BYTES_RECEIVED)[0])
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


class Watch(threading.Thread):
    """Closes connections whose calls wait for the client for too long, or receive too much at once.

    Parameters
    ----------
    waiting : callable
        Returns, for each open call, its peer, the time since when it waits for the client (None if it does
        not) and the number of batches that it has received.
    idle_seconds : float
    most_bytes : int
        That a call may receive before a batch is complete.
    closed : callable
        Called with "stalled" or "too large" for each connection that is closed.
    """

    def __init__(
        self,
        waiting: Callable[[], list[tuple[str, float | None, int]]],
        idle_seconds: float,
        most_bytes: int,
        closed: Callable[[str], None],
    ) -> None:
        super().__init__(name="dpmd_fast watch", daemon=True)
        self._waiting, self._idle, self._most, self._closed = waiting, idle_seconds, most_bytes, closed
        self._known: dict[str, int] = {}  # descriptors by keys
        self._marks: dict[str, tuple[int, int]] = {}  # bytes when so many batches had come
        self._ended = threading.Event()

    def run(self) -> None:
        if not sys.platform.startswith("linux"):
            return
        while not self._ended.wait(_LOOK):
            try:
                self.look()
            except Exception:  # of a system that cannot tell: the limits of the process remain
                continue

    def stop(self) -> None:
        self._ended.set()

    def look(self) -> None:
        """Look at all connections once."""
        calls: Counter[str] = Counter()
        batches: Counter[str] = Counter()
        since: dict[str, float] = {}
        now = time.monotonic()
        for peer, waits, count in self._waiting():
            key = key_of(peer)
            calls[key] += 1
            batches[key] += count
            if waits is not None:
                since[key] = min(waits, since.get(key, now))
        self._marks = {key: mark for key, mark in self._marks.items() if key in calls}
        if not calls:
            self._known = {}
            return
        if any(key not in self._known for key in calls):
            self._known = sockets()
        for key, number in calls.items():
            descriptor = self._known.get(key)
            bytes_now = None if descriptor is None else received(descriptor, key)
            if descriptor is None or bytes_now is None:
                self._known.pop(key, None)
                continue
            mark, had = self._marks.get(key, (bytes_now, -1))
            if had != batches[key] + number:
                self._marks[key] = bytes_now, batches[key] + number
            elif bytes_now - mark > self._most * number:
                self._shut(descriptor, key, "too large")
                continue
            if now - since.get(key, now) > self._idle:
                self._shut(descriptor, key, "stalled")

    def _shut(self, descriptor: int, key: str, why: str) -> None:
        self._known.pop(key, None)
        self._marks.pop(key, None)
        if shut(descriptor, key):
            self._closed(why)
