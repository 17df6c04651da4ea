"""What a guarantee covers and what it does not, as data: one entry for each topic, always in the same order.

The topics are those of "What is not promised" in docs/privacy/scope.md. `Guarantee.scope` holds them for
machines; the report and docs show them to people.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from dpmd_fast.errors import UserValueError

Topic: TypeAlias = Literal[
    "released values",
    "other releases",
    "number of records",
    "invalid records",
    "several rows of one person",
    "public points and parameters",
    "work before the release",
    "engine",
    "binding to a reference",
    "randomness",
    "time",
    "memory",
]
TOPICS: tuple[Topic, ...] = Topic.__args__  # type: ignore[attr-defined]


class Covered(NamedTuple):
    """One topic of a guarantee: whether it is covered, and a sentence that says what that means."""

    topic: Topic
    covered: bool
    why: str


Scope: TypeAlias = tuple[Covered, ...]

_COUNTED = "A ledger keeps the sum of all releases charged to it; releases made without it add to that."
_CERTIFIED: Scope = (
    Covered(
        "released values",
        True,
        "Everything that is returned, written or shown after the debit, and all that is computed from it.",
    ),
    Covered("other releases", False, "No ledger was given: another release on the same records spends anew."),
    Covered("number of records", True, "It is private: nothing depends on it but through the noise."),
    Covered("invalid records", True, "Records with values that cannot be used contribute nothing, silently."),
    Covered(
        "several rows of one person", False, "One record is one row: somebody with k rows has k times the mu."
    ),
    Covered(
        "public points and parameters",
        False,
        "Points, bandwidths and other numbers must not be taken from the records; nothing can check that.",
    ),
    Covered(
        "work before the release",
        False,
        "Scaling, choosing rows or columns, or anything else done to the records before is not counted.",
    ),
    Covered("engine", True, "This process read the records itself."),
    Covered("binding to a reference", True, "No fingerprint of the records was computed."),
    Covered(
        "randomness",
        True,
        "The noise is exact, from AES-256 with a key that the operating system drew for it.",
    ),
    Covered("time", False, "How long it takes depends on the records."),
    Covered("memory", False, "How much is read or allocated depends on the records."),
)


def certified_scope(*, adjacency: str, validated: bool, seeded: bool) -> Scope:
    """Return the scope of a release of clipped sums."""
    scope = _CERTIFIED
    if adjacency == "replace-one":
        scope = with_topic(scope, "number of records", False, "It is public: neighbours have equally many.")
    if validated:
        scope = with_topic(
            scope,
            "invalid records",
            False,
            "The records were checked before the debit; that all of them passed is not paid for.",
        )
    return _seeded(scope) if seeded else scope


def paper_scope(*, seeded: bool) -> Scope:
    """Return the scope of the paper's route, if its conditions hold."""
    scope = certified_scope(adjacency="replace-one", validated=True, seeded=False)
    scope = with_topic(
        scope,
        "released values",
        False,
        "Only under the conditions; which queries have neighbours, as their status shows, is not paid for.",
    )
    scope = with_topic(
        scope, "randomness", False, "The noise is added in floating point, whose low bits leak something."
    )
    return _seeded(scope) if seeded else scope


def _seeded(scope: Scope) -> Scope:
    return with_topic(scope, "randomness", False, "A seed was given: whoever knows it subtracts the noise.")


def counted_scope(scope: Scope) -> Scope:
    """Return the scope of a release that is charged to a ledger."""
    return with_topic(scope, "other releases", True, _COUNTED)


def total_scope(*, adjacency: str, validated: bool, conditional: bool) -> Scope:
    """Return the scope of all that was charged to a ledger: what it does not know is not covered."""
    scope = counted_scope(certified_scope(adjacency=adjacency, validated=validated, seeded=False))
    topics: tuple[Topic, ...] = ("engine", "binding to a reference")
    for topic in (*topics, "released values") if conditional else topics:
        scope = with_topic(scope, topic, False, "The guarantee of each release says whether it is covered.")
    return scope


def with_topic(scope: Scope, topic: Topic, covered: bool, why: str) -> Scope:
    """Return the same scope with another entry for one topic."""
    return tuple(Covered(topic, covered, why) if one.topic == topic else one for one in scope)


def joint_scope(one: Scope, other: Scope) -> Scope:
    """Return the scope of two releases together: what both cover, with the reason of one that does not."""
    reasons = {entry.topic: entry for entry in other}
    return tuple(entry if not entry.covered else reasons.get(entry.topic, entry) for entry in one)


def scope_noted(scope: Scope) -> list[dict[str, Any]]:
    """Return the entries in JSON's types."""
    return [entry._asdict() for entry in scope]


def scope_of(entries: Any) -> Scope:
    """Return the scope that `scope_noted` was given; refuse anything else."""
    if not isinstance(entries, Iterable) or isinstance(entries, (str, bytes)):
        raise UserValueError("scope: must be a list of entries")
    made = tuple(Covered(**entry) if isinstance(entry, dict) else entry for entry in entries)
    check_scope(made)
    return made


def check_scope(scope: object) -> None:
    """Refuse what is not a tuple of different topics."""
    sound = isinstance(scope, tuple) and all(
        isinstance(entry, Covered)
        and entry.topic in TOPICS
        and isinstance(entry.covered, bool)
        and isinstance(entry.why, str)
        and bool(entry.why.strip())
        for entry in scope
    )
    if not sound or len({entry.topic for entry in scope}) != len(scope):  # type: ignore[attr-defined, arg-type]
        raise UserValueError("scope: must be a tuple of Covered, one for each topic", argument="scope")
