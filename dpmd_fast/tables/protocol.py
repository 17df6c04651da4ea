"""What tables and files need of a model: something that cleans rows of numbers.

An atlas is one as it is. A mixture makes one for a noise (`Mixture.cleaner`).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from dpmd_fast.arguments import Points, check_range, shown
from dpmd_fast.errors import UserValueError, either
from dpmd_fast.status import Codes

_NOISE = either("noise=...", "--noise NUMBER")


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


def cleaner_of(model: Model, noise: Any = None, on_missing: str = "fill") -> RowCleaner:
    """Return what cleans rows with a model, or refuse settings that the model does not have."""
    if _is_noisy(model):
        if noise is None:
            raise UserValueError(
                "noise = None: must be the deviation of the queries' measurement error, which a mixture "
                f"needs; pass {_NOISE}, and 0 only to fill in missing values",
                argument="noise",
            )
        return model.cleaner(noise, on_missing)
    cleaner: RowCleaner = model  # type: ignore[assignment]
    if not hasattr(cleaner, "move"):
        raise UserValueError(f"model is a {type(model).__name__}: must be an Atlas or a Mixture")
    prepared = has_deviations(cleaner)
    if noise is not None:
        owner = "a cleaner, which has its own" if prepared else "an atlas, which does not use it"
        raise UserValueError(f"noise = {shown(noise)}: must be None for {owner}", argument="noise")
    if on_missing not in ("fill", cleaner.missing):
        owner = "a cleaner, which has its own" if prepared else "an atlas, which refuses missing values"
        raise UserValueError(
            f"on_missing = {shown(on_missing)}: must be left out for {owner}", argument="on_missing"
        )
    return cleaner


def has_deviations(cleaner: RowCleaner) -> TypeGuard[DeviationCleaner]:
    """Return True if a cleaner offers `move_with_deviations`."""
    return hasattr(cleaner, "move_with_deviations")


def called(cleaner: RowCleaner) -> str:
    """Return the name of the argument of `transform` that the points are, for messages."""
    return "Z" if cleaner.kind == "atlas" else "X"


def check_rows(cleaner: RowCleaner, what: str, block: Points) -> None:
    """Refuse infinite and huge values, and missing ones for an atlas.

    A mixture that is to refuse missing values does so itself, and names the columns.
    """
    check_range(what, block, missing=cleaner.kind != "atlas")


def _is_noisy(model: Model) -> TypeGuard[NoisyModel]:
    return hasattr(model, "cleaner")
