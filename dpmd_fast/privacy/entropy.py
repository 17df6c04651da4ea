"""The random words behind every noise draw: a cryptographic stream keyed by the operating system.

AES-256 in counter mode. Its 128-bit counter does not wrap, and distinguishing 2^40 blocks (16 TiB) of it from
uniform words has an advantage below 2^-49 if AES is a good permutation. On processors with AES instructions
it runs at about twice the speed of ChaCha20.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from contextlib import suppress
from typing import NoReturn, SupportsIndex

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from dpmd_fast.arguments import checked_integer
from dpmd_fast.errors import UserTypeError, UserValueError

_DOMAIN = b"dpmd_fast seeded noise, version 1:"
_CHUNK = 1 << 20
_ZEROS = memoryview(bytes(_CHUNK))
# Releases of `cryptography` that do not treat counter mode as a stream want block - 1 spare bytes of output.
_SPARE_WORDS = 2


class EntropySource:
    """A stream of independent uniform 64-bit words.

    Parameters
    ----------
    key : bytes, optional
        32 bytes that fix the stream. By default they come from the operating system, and a child process
        gets new ones after a fork: two processes must never add the same noise.

    Attributes
    ----------
    private : bool
        Whether the words are secret. False for a given key: whoever knows it can subtract the noise.

    Notes
    -----
    Safe to share between threads. Copying and pickling are refused, since two holders of one stream would
    draw the same noise. A keyed stream continues unchanged in a forked child: it protects nothing, and the
    words of a seed must depend on nothing but the seed.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) != 32:
            raise UserValueError(f"key has {len(key)} bytes: must have 32")
        self.private = key is None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stream = _open_stream(os.urandom(32) if key is None else key)
        _sources.add(self)

    def words(self, count: SupportsIndex) -> NDArray[np.uint64]:
        """Return the next `count` words of the stream, in a new array."""
        size = checked_integer("count", count)
        result = np.empty(size + _SPARE_WORDS, dtype=np.uint64)
        target = result.data.cast("B")
        n_bytes = 8 * size
        with self._lock:
            # The fork hook below misses a fork made by C code.
            if self.private and self._pid != os.getpid():
                self._renew()
            for start in range(0, n_bytes, _CHUNK):
                self._stream.update_into(_ZEROS[: n_bytes - start], target[start:])
        return result[:size]

    def renew(self) -> None:
        """Draw a new key from the operating system, unless one was given.

        Noise calls this before each of its draws, when the sums that it protects are there. What this means
        for a virtual machine that is cloned:

        - Cloned before the key is drawn, the copies add different noise if the operating system has reseeded
          its random numbers since, which depends on the system. If it has not, they draw the same key: copies
          with the same sums release the same values, which show no more than one of them; of copies whose
          records differ by then, the difference of the sums shows without noise.
        - Cloned after the key is drawn, the copies have the same sums and add the same noise to them.
        - Copies that add different noise make two releases, and a debit before the clone has paid for one.
        """
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        # The key comes first: if the system gives none, `_pid` stays old and `words` tries again.
        if self.private:
            self._stream = _open_stream(os.urandom(32))
        self._pid = os.getpid()

    def _after_fork(self) -> None:
        # Another thread of the parent may hold the lock; that thread does not exist in the child.
        self._lock = threading.Lock()
        self._renew()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UserTypeError(
            "an EntropySource cannot be copied or pickled: two holders would draw the same noise"
        )


def open_source(seed: SupportsIndex | None = None) -> EntropySource:
    """Open a source of random words.

    Parameters
    ----------
    seed : int >= 0, optional
        Makes the stream reproducible, for tests and comparisons; the source is then not private. By default
        the key comes from the operating system.
    """
    if seed is None:
        return EntropySource()
    number = checked_integer("seed", seed)
    return EntropySource(hashlib.sha256(_DOMAIN + str(number).encode("ascii")).digest())


def _open_stream(key: bytes) -> CipherContext:
    # The counter may start at zero because no key is used for two streams.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


_sources: weakref.WeakSet[EntropySource] = weakref.WeakSet()


def _renew_all() -> None:
    for source in list(_sources):
        with suppress(OSError, NotImplementedError):  # a hook's errors are lost; `words` raises them again
            source._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
