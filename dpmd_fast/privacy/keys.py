"""Keys that sign released models: Ed25519, in PEM files as OpenSSL writes them.

A private key signs; its public key tells what it has signed. A name such as ``ed25519:3b6a...`` is the public
key itself, as 64 digits: short enough to be printed, mailed or read over the telephone.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from dpmd_fast.arguments import shown
from dpmd_fast.atomic import atomic_write
from dpmd_fast.errors import UserFileNotFoundError, UserValueError

_NAME = re.compile(r"ed25519:([0-9a-f]{64})")
_MOST_BYTES = 10_000  # of a key file; they have about 120
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
PUBLIC = ".pub"  # added to the name of the file of a private key

Trusted = Any  # a key as `public_key_of` takes it, or several


@dataclass(frozen=True)
class SigningKey:
    """A private key. Whoever has it can sign in its owner's name; it is never shown."""

    _key: Ed25519PrivateKey = field(repr=False)

    @property
    def name(self) -> str:
        """The public key that belongs to it."""
        return _name_of(self._key.public_key())

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, as 128 digits."""
        return self._key.sign(message).hex()


def create_keys(path: str | os.PathLike[str]) -> SigningKey:
    """Write a new private key, readable by its owner alone, and beside it the public key, as `path` + ".pub".

    Existing files are never written over: what a lost key has signed cannot be signed again.
    """
    private = os.fsdecode(path)
    if not private or os.path.isdir(private):
        raise UserValueError(f"path = {shown(private)}: must be the name of a file", argument="path")
    for name in (private, private + PUBLIC):
        if os.path.lexists(name):
            raise UserValueError(f"{name} exists already: a key is never written over")
    key = Ed25519PrivateKey.generate()
    text = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with atomic_write(private + PUBLIC, overwrite=False) as partial, open(partial, "wb") as file:
        file.write(text)
    try:
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with atomic_write(private, overwrite=False, mode=0o600) as partial, open(partial, "wb") as file:
            file.write(pem)
    except BaseException:
        os.unlink(private + PUBLIC)  # it belongs to no key
        raise
    return SigningKey(key)


def signing_key(key: Any) -> SigningKey:
    """Return the private key of a file, or one that was read before; warn if others may use the file."""
    if isinstance(key, SigningKey):
        return key
    if not isinstance(key, (str, os.PathLike)):
        raise UserValueError(
            f"key is a {type(key).__name__}: must be the path of a private key", argument="key"
        )
    name = os.fsdecode(key)
    data = _bytes_of(name, "a private key")
    found: Any = None
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = load_pem_private_key(data, password=None)
    if not isinstance(found, Ed25519PrivateKey):
        raise UserValueError(
            f"{name} is not a private key: must be a PEM file with an Ed25519 key without a passphrase, as "
            "dpmd-fast keys create makes it"
        )
    if hasattr(os, "geteuid") and os.stat(name).st_mode & _OTHERS:  # Windows has no such modes
        warnings.warn(
            f"{name} is a private key that other users may read or write, and sign in your name: chmod 600 "
            "makes it yours; if somebody may have read it, make a new one",
            UserWarning,
            stacklevel=2,
        )
    return SigningKey(found)


def trusted_names(trusted: Trusted) -> frozenset[str]:
    """Return the names of one trusted key, or of several: names, or paths of public keys."""
    single = isinstance(trusted, (str, os.PathLike, SigningKey)) or not isinstance(trusted, Iterable)
    names = frozenset(map(public_key_of, [trusted] if single else trusted))
    if not names:
        raise UserValueError("trusted is empty: must name at least one key", argument="trusted")
    return names


def public_key_of(key: Any) -> str:
    """Return the name of a public key: of its file, of a private key, or as it is."""
    if isinstance(key, SigningKey):
        return key.name
    if isinstance(key, str) and _NAME.fullmatch(key):
        return key
    if isinstance(key, str) and key.startswith("ed25519:"):
        raise UserValueError(f"trusted = {shown(key)}: must have 64 hexadecimal digits", argument="trusted")
    if not isinstance(key, (str, os.PathLike)):
        raise UserValueError(
            f"trusted is a {type(key).__name__}: must be the path of a public key or its name, ed25519:...",
            argument="trusted",
        )
    name = os.fsdecode(key)
    data = _bytes_of(name, "a public key")
    if b"PRIVATE" in data:
        raise UserValueError(f"{name} is a private key: must be the public one, {name}{PUBLIC}")
    found: Any = None
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = load_pem_public_key(data)
    if not isinstance(found, Ed25519PublicKey):
        raise UserValueError(f"{name} is not a public key: must be a PEM file with an Ed25519 key")
    return _name_of(found)


def is_signed(name: str, message: bytes, signature: str) -> bool:
    """Return whether the private key that belongs to the public key `name` has signed a message."""
    found = _NAME.fullmatch(name)
    if found is None or not re.fullmatch(r"[0-9a-f]{128}", signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(found[1])).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _name_of(key: Ed25519PublicKey) -> str:
    return "ed25519:" + key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _bytes_of(name: str, what: str) -> bytes:
    if not os.path.isfile(name):
        raise UserFileNotFoundError(f"{name} does not exist: must be the file of {what}")
    with open(name, "rb") as file:
        return file.read(_MOST_BYTES)
