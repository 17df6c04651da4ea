"""What tables and files need of a model: something that cleans rows of numbers.

An atlas is one as it is. A mixture makes one for a noise (`Mixture.cleaner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeGuard

import numpy as np

from dpmd_fast.arguments import Points, check_range, checked_choice, in_range, limit_in, shown
from dpmd_fast.errors import UserValueError, either
from dpmd_fast.status import MISSING, Codes

_NOISE = either("noise=...", "--noise NUMBER")
_CHOICES = ("refuse", "keep")  # what an atlas does with missing values
_KEEP = either("on_missing='keep'", "--on-missing keep")


class InvalidValueError(UserValueError):
    """A public value that is not allowed; the message names its row and column."""


class RowCleaner(Protocol):
    """Cleans rows of `n_columns` numbers, each by itself."""

    @property
    def n_columns(self) -> int: ...

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """Columns of a table to clean; None if they can only be matched by position."""

    @property
    def kind(self) -> str:
        """The kind of model, for messages: "atlas" or "mixture"."""

    @property
    def missing(self) -> str:
        """What becomes of missing values: "refuse", "fill" or "keep"."""

    def move(self, points: Points, n_threads: int | None = None, name: str = "Z") -> tuple[Points, Codes]:
        """Return cleaned points in the type of `points`, and a status code for each.

        `points` have passed `check_rows`, and NaN stands for missing values; messages call them `name`.
        """


@dataclass(frozen=True, eq=False)
class KeepMissing:
    """Cleans complete rows as another cleaner does, and leaves rows with missing values as they are."""

    cleaner: RowCleaner
    missing: ClassVar[str] = "keep"

    @property
    def n_columns(self) -> int:
        return self.cleaner.n_columns

    @property
    def column_names(self) -> tuple[str, ...] | None:
        return self.cleaner.column_names

    @property
    def kind(self) -> str:
        return self.cleaner.kind

    def move(self, points: Points, n_threads: int | None = None, name: str = "Z") -> tuple[Points, Codes]:
        """Return cleaned points in the type of `points`, and a status code for each."""
        there = ~np.isnan(points).any(axis=1)
        if there.all():
            return self.cleaner.move(points, n_threads, name)
        moved, status = np.array(points, order="C"), np.full(len(points), MISSING, np.int8)
        moved[there], status[there] = self.cleaner.move(points[there], n_threads, name)
        return moved, status


class DeviationCleaner(RowCleaner, Protocol):
    """Knows as well how far off its values may be."""

    def move_with_deviations(
        self, points: Points, n_threads: int | None = None, name: str = "Z"
    ) -> tuple[Points, Points, Codes]:
        """Return the same as `move`, and the posterior deviation of every value between the two."""


class NoisyModel(Protocol):
    """Cleans rows once it is known how noisy they are."""

    def cleaner(self, noise: Any, on_missing: str = "fill") -> DeviationCleaner: ...


Model = RowCleaner | NoisyModel


def cleaner_of(model: Model, noise: Any = None, on_missing: str | None = None) -> RowCleaner:
    """Return what cleans rows with a model, or refuse settings that the model does not have.

    `on_missing` of None is what the model does by default: a mixture fills in, an atlas refuses.
    """
    if _is_noisy(model):
        if noise is None:
            raise UserValueError(
                "noise = None: must be the deviation of the queries' measurement error, which a mixture "
                f"needs; pass {_NOISE}, and 0 only to fill in missing values",
                argument="noise",
            )
        return model.cleaner(noise, "fill" if on_missing is None else on_missing)
    cleaner: RowCleaner = model  # type: ignore[assignment]
    if not hasattr(cleaner, "move"):
        raise UserValueError(f"model is a {type(model).__name__}: must be an Atlas or a Mixture")
    prepared = has_deviations(cleaner)
    if noise is not None:
        owner = "a cleaner, which has its own" if prepared else "an atlas, which does not use it"
        raise UserValueError(f"noise = {shown(noise)}: must be None for {owner}", argument="noise")
    if not prepared:
        return keep_or_refuse(cleaner, "refuse" if on_missing is None else on_missing)
    if on_missing not in (None, cleaner.missing):
        raise UserValueError(
            f"on_missing = {shown(on_missing)}: must be left out for a cleaner, which has its own",
            argument="on_missing",
        )
    return cleaner


def keep_or_refuse(cleaner: RowCleaner, on_missing: str) -> RowCleaner:
    """Return a cleaner that refuses missing values as it is, or so that it keeps them."""
    return KeepMissing(cleaner) if checked_choice("on_missing", on_missing, _CHOICES) == "keep" else cleaner


def has_deviations(cleaner: RowCleaner) -> TypeGuard[DeviationCleaner]:
    """Return True if a cleaner offers `move_with_deviations`."""
    return hasattr(cleaner, "move_with_deviations")


def called(cleaner: RowCleaner) -> str:
    """Return the name of the argument of `transform` that the points are, for messages."""
    return "Z" if cleaner.kind == "atlas" else "X"


def takes_missing(cleaner: RowCleaner) -> bool:
    """Return True if rows with missing values may be handed to a cleaner.

    A mixture that is to refuse them does so itself, and names the columns.
    """
    return cleaner.kind != "atlas" or cleaner.missing != "refuse"


def check_rows(cleaner: RowCleaner, what: str, block: Points, first_row: int = 0) -> None:
    """Refuse infinite and huge values, and missing ones for an atlas that does not keep them.

    Messages call the points `what`, and the first row of the block `first_row`.
    """
    if in_range(block):
        return
    missing = takes_missing(cleaner)
    try:
        check_range(what, block, missing=missing)
    except UserValueError as problem:
        bad = ~(np.abs(block) <= limit_in(block))
        if missing:
            bad &= ~np.isnan(block)
        row, place = (int(number) for number in np.argwhere(bad)[0])
        names = cleaner.column_names
        column = f"column {place}" if names is None else f"column {names[place]!r}"
        value = block[row, place]
        kind = "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else "a huge value"
        hint = f"; {_KEEP} leaves rows with missing values as they are" if kind == "NaN" else ""
        raise InvalidValueError(
            f"{problem}; the first is {kind} in row {first_row + row}, {column}{hint}"
        ) from None


def _is_noisy(model: Model) -> TypeGuard[NoisyModel]:
    return hasattr(model, "cleaner")
