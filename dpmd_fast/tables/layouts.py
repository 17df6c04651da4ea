"""What follows from the schema of a table alone, kept from call to call.

To find it takes longer than to clean a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from dpmd_fast.tables.protocol import KeepMissing, RowCleaner

_KEPT = 4  # schemas of each cleaner: tables of a few kinds may take turns, and each is compared with all

Layout = TypeVar("Layout")


class Layouts(Generic[Layout]):
    """Layouts of the last few schemas of each cleaner; may be used by several threads at once.

    Parameters
    ----------
    same : callable
        Whether two schemas are equal, in all that a layout depends on.
    is_kept : callable, optional
        Whether the layout of a schema is kept: not if `same` may take it for another.
    """

    def __init__(
        self, same: Callable[[Any, Any], bool], is_kept: Callable[[Any], bool] = lambda _: True
    ) -> None:
        self._same, self._is_kept = same, is_kept
        # Tuples are never changed: threads that add at the same time can only lose what one of them added.
        self._known: WeakKeyDictionary[RowCleaner, tuple[tuple[str, Any, Layout], ...]] = WeakKeyDictionary()

    def find(self, cleaner: RowCleaner, schema: Any, make: Callable[[], Layout]) -> Layout:
        """Return the layout of a schema for a cleaner, from `make` if it is not among the last ones."""
        missing = cleaner.missing  # it decides which types are allowed
        owner = cleaner.cleaner if isinstance(cleaner, KeepMissing) else cleaner  # one for each call
        known = self._known.get(owner, ())
        for kept, other, layout in known:
            if kept == missing and self._same(schema, other):
                return layout
        made = make()
        if self._is_kept(schema):
            self._known[owner] = ((missing, schema, made), *known[: _KEPT - 1])
        return made
