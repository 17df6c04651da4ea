"""Signatures of models: whoever holds a key vouches for all that a file says.

    message = domain, kind, SHA-256 of (metadata, arrays, place in the ledger)

The metadata are the guarantee, the spends, the parameters and the version of the package that signed; the
place is the data set, the number of the debit and the head of the ledger's chain after it. So a file whose
guarantee was relabelled does not pass, and a ledger that was rolled back or edited since does not agree with
it. How the file is laid out is not signed: the version of its format, its size and checksum.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpmd_fast.errors import UserValueError
from dpmd_fast.models.file import HEAD_KEYS, Arrays, BadSignature, Metadata

if TYPE_CHECKING:  # the ledger needs SQLite; keys, imported below, need cryptography
    from dpmd_fast.privacy.ledger.charge import Receipt

_DOMAIN = b"dpmd_fast signed model, version 1"
KEY = "signature"  # of the metadata
_PACKAGE = "package_version"  # of the metadata
#: Of the file, not of the model, which may be written again.
_OF_THE_FILE = HEAD_KEYS | {KEY}
#: Words about a model that nobody vouches for.
UNSIGNED = "unsigned: nobody vouches for this guarantee"
#: Words about a signature by a key that may be anybody's.
UNCHECKED = ", a key that was not checked: anybody can make one (--trusted KEY)"


@dataclass(frozen=True)
class LedgerEntry:
    """The debit that paid for a model: where it stands in the chain of its data set."""

    dataset: str
    spend: int
    head: str  # digest of the chain up to this debit


@dataclass(frozen=True)
class Signature:
    """Who vouches for a model.

    Attributes
    ----------
    key : str
        Name of the public key, ``ed25519:...``.
    ledger : LedgerEntry or None
        The debit that paid for the model, if a ledger did.
    value : str
        The signature, as 128 digits.
    package_version : str
        Version of the package that signed; a model that is written again by another one keeps it.
    """

    key: str
    ledger: LedgerEntry | None
    value: str
    package_version: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in JSON's types, but for the version, which the metadata of the file have."""
        return {name: value for name, value in asdict(self).items() if name != _PACKAGE}

    @classmethod
    def from_dict(cls, given: Any, package_version: Any) -> Signature:
        """Return the signature that `to_dict` was called on; refuse anything else."""
        if not isinstance(given, dict) or set(given) != {"key", "ledger", "value"}:
            raise UserValueError("its signature is malformed")
        entry = given["ledger"]
        if entry is not None and (not isinstance(entry, dict) or set(entry) != {"dataset", "spend", "head"}):
            raise UserValueError("its signature is malformed")
        texts = [given["key"], given["value"], package_version]
        texts += [] if entry is None else [entry["dataset"], entry["head"]]
        number = 1 if entry is None else entry["spend"]
        if not all(isinstance(text, str) for text in texts) or type(number) is not int:
            raise UserValueError("its signature is malformed")
        place = None if entry is None else LedgerEntry(**entry)
        return cls(given["key"], place, given["value"], package_version)


def with_signature(
    kind: str,
    metadata: Metadata,
    arrays: Arrays,
    key: Any,
    receipt: Receipt | None,
    present: Signature | None,
) -> Metadata:
    """Return the metadata with a signature by `key`; without a key, with the one that is there already.

    A model that was loaded has no receipt. Signed again, it keeps the place in the ledger that its signature
    vouches for, unless it was changed since: then nobody says that this debit has paid for it.
    """
    if key is None and present is None:
        return metadata
    from dpmd_fast.privacy.keys import signing_key

    kept = False
    if present is not None:
        before = {**metadata, _PACKAGE: present.package_version}
        kept = _matches(present, kind, before, arrays)
        if key is None and not kept:
            raise UserValueError(
                f"the {kind} was changed since it was signed: sign it again with key=, or replace its "
                "signature by None"
            )
        if key is None:
            return {**before, KEY: present.to_dict()}
    place = _place_of(receipt)
    if place is None and present is not None and kept:
        place = present.ledger
    signer = signing_key(key)
    value = signer.sign(_message(kind, metadata, arrays, signer.name, place))
    return {**metadata, KEY: Signature(signer.name, place, value, metadata[_PACKAGE]).to_dict()}


def _place_of(receipt: Receipt | None) -> LedgerEntry | None:
    if receipt is None:
        return None
    spend = receipt.spend
    if spend.head is None:
        raise UserValueError("the receipt does not know its place in the ledger: it cannot be signed")
    return LedgerEntry(spend.dataset, spend.id, spend.head)


def _matches(signature: Signature, kind: str, metadata: Metadata, arrays: Arrays) -> bool:
    """Return whether a signature is one of this model."""
    from dpmd_fast.privacy.keys import is_signed

    message = _message(kind, metadata, arrays, signature.key, signature.ledger)
    return is_signed(signature.key, message, signature.value)


def check_signature(
    kind: str, metadata: Metadata, arrays: Arrays, trusted: frozenset[str] | None
) -> Signature | None:
    """Return the signature of a model that was read, None for an unsigned one; refuse a wrong one.

    With `trusted`, names of keys, only what one of them has signed is taken.
    """
    if KEY not in metadata:
        if trusted is not None:
            raise BadSignature("is not signed, and only models signed by a trusted key are taken")
        return None
    found = Signature.from_dict(metadata[KEY], metadata.get(_PACKAGE))
    if not _matches(found, kind, metadata, arrays):
        raise BadSignature(
            "has a signature that does not match what it says: it was edited, or signed as another model"
        )
    if trusted is not None and found.key not in trusted:
        raise BadSignature(f"is signed by {found.key}, which is not a trusted key")
    return found


def _message(
    kind: str,
    metadata: Metadata,
    arrays: Arrays,
    key: str,
    entry: LedgerEntry | None,
) -> bytes:
    """Return what is signed: it depends on all that a file says, not on how the file is laid out."""
    rest = {name: value for name, value in metadata.items() if name not in _OF_THE_FILE}
    place = None if entry is None else asdict(entry)
    text = json.dumps([kind, key, place, rest], sort_keys=True, allow_nan=False, separators=(",", ":"))
    digest = hashlib.sha256(_framed(text.encode("ascii")))
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(_framed(json.dumps([name, list(array.shape)]).encode("ascii")))
        digest.update(array.astype("<f8", copy=False).data.cast("B"))
    return _DOMAIN + b": " + digest.hexdigest().encode("ascii")


def _framed(part: bytes) -> bytes:
    """Return a part with its length, so that no two lists of parts look alike."""
    return len(part).to_bytes(8, "little") + part


def signature_of(metadata: Metadata) -> Signature | None:
    """Return the signature of a file, which has been checked; None where there is none."""
    return Signature.from_dict(metadata[KEY], metadata.get(_PACKAGE)) if KEY in metadata else None


def words_about(signature: Signature | None, *, trusted: bool) -> str:
    """Return who vouches for a model, in a line; `trusted` if the key was compared with those of the user."""
    if signature is None:
        return UNSIGNED
    return f"signed by {signature.key}{'' if trusted else UNCHECKED}"
