"""A mixture made ready for one noise: points in, expected clean points out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpmd_fast.arguments import LARGEST, Points, checked, checked_numbers
from dpmd_fast.columns import is_of, listed, quoted
from dpmd_fast.errors import UserValueError, either
from dpmd_fast.kernels.posterior import PosteriorComponents, log_densities, posterior
from dpmd_fast.models.preprocessor import Flags, Floats, label
from dpmd_fast.status import CLIPPED, FAILED, FILLED, MISSING, Codes

if TYPE_CHECKING:
    from dpmd_fast.models.preprocessor import Preprocessor

_BLOCK_BYTES = 1 << 24  # of the points cleaned at a time
_LARGEST_DOUBLE = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class MixtureCleaner:
    """A mixture with its components prepared for one noise: moves points, wherever it is sent.

    Attributes
    ----------
    components : PosteriorComponents
        Sent along, so that every machine works with the same bits.
    missing : "fill", "keep" or "refuse"
    column_names : tuple of str or None
    preprocess : Preprocessor or None
    result : "means" or "deviations"
        What `move` returns.
    """

    components: PosteriorComponents = field(repr=False)
    missing: str = "fill"
    column_names: tuple[str, ...] | None = None
    preprocess: Preprocessor | None = field(default=None, repr=False)
    result: str = "means"
    kind: ClassVar[str] = "mixture"

    @property
    def n_columns(self) -> int:
        return self.components.n_columns

    def move(self, points: Points, n_threads: int | None = None, name: str = "X") -> tuple[Points, Codes]:
        """Return cleaned points, or deviations, in the type of `points`, and a status code for each.

        `points` must have the mixture's columns and be finite, or NaN where missing; messages call them
        `name`.
        """
        moved, deviations, codes = self._moved(points, n_threads, name, self.result == "deviations")
        return (moved if deviations is None else deviations), codes

    def move_with_deviations(
        self, points: Points, n_threads: int | None = None, name: str = "X"
    ) -> tuple[Points, Points, Codes]:
        """Return cleaned points, the standard deviation of each value and a status code for each row."""
        moved, deviations, codes = self._moved(points, n_threads, name, True)
        assert deviations is not None
        return moved, deviations, codes

    def _moved(
        self, points: Points, n_threads: int | None, name: str, with_deviations: bool
    ) -> tuple[Points, Points | None, Codes]:
        moved = np.empty_like(points, order="C")
        deviations = np.empty_like(moved) if with_deviations else None
        status = np.zeros(len(points), np.int8)
        largest = float(np.finfo(moved.dtype).max)
        for part in _parts(points):
            block = np.asarray(points[part], dtype=np.float64)
            gone = np.isnan(block) if np.isnan(block.min()) else None
            if gone is not None and self.missing == "refuse":
                raise _missing_values(name, self.column_names, gone)
            target: Any = moved[part] if moved.dtype == np.float64 else None
            result, spread, clipped = self._cleaned(
                block, n_threads, name, with_deviations, target, complete=gone is None
            )
            failed = _beyond(largest, result, spread)
            if gone is not None:
                status[part][gone.any(axis=1)] = FILLED if self.missing == "fill" else MISSING
            if clipped is not None:
                status[part][clipped] = CLIPPED
            if gone is not None and self.missing == "keep":
                result[gone] = np.nan
            if failed is not None:
                status[part][failed] = FAILED
                result[failed] = block[failed]
                if spread is not None:
                    spread[failed] = np.nan
            if result is not target:
                moved[part] = result
            if deviations is not None:
                deviations[part] = spread
        return moved, deviations, status

    def _cleaned(
        self,
        block: Floats,
        n_threads: int | None,
        name: str,
        with_deviations: bool,
        target: Floats | None,
        *,
        complete: bool,
    ) -> tuple[Floats, Floats | None, Flags | None]:
        """Return means and deviations of a block in original units, and which rows were clipped.

        The means may be put into `target`.
        """
        if self.preprocess is None:
            return *self._expected(block, n_threads, with_deviations, target, complete), None
        spread: Floats | None = None

        def move(inside: Floats) -> tuple[Floats, Flags]:
            nonlocal spread
            means, spread = self._expected(inside, n_threads, with_deviations)
            return means, np.ones(len(means), np.bool_)

        result, _, clipped = self.preprocess.moved(block, move, name, keep_beyond=True)
        return result, _original_deviations(self.preprocess, result, spread), clipped

    def _expected(
        self,
        inside: Floats,
        n_threads: int | None,
        with_deviations: bool,
        target: Floats | None = None,
        complete: bool = False,
    ) -> tuple[Floats, Floats | None]:
        return posterior(
            self.components,
            inside,
            deviations=with_deviations,
            n_threads=n_threads,
            out=target,
            complete=complete,
        )[:2]


class MixtureScorer:
    """Passes points through as they are and keeps their log densities, block by block, in `scores`."""

    missing = "fill"
    kind = "mixture"

    def __init__(self, cleaner: MixtureCleaner) -> None:
        self._components, self._preprocess = cleaner.components, cleaner.preprocess
        self.n_columns, self.column_names = cleaner.n_columns, cleaner.column_names
        self.scores: list[Floats] = []

    def move(self, points: Points, n_threads: int | None = None, name: str = "X") -> tuple[Points, Codes]:
        for part in _parts(points):
            block = np.asarray(points[part], dtype=np.float64)
            if self._preprocess is not None:
                block = self._preprocess.forward_block(block, name)
            self.scores.append(log_densities(self._components, block, n_threads))
        return points, np.zeros(len(points), np.int8)


def checked_noise(
    noise: Any, columns: int, names: tuple[str, ...] | None, preprocess: Preprocessor | None
) -> Floats:
    """Return the deviation of the noise in every column (D,), in preprocessed units, or refuse it."""
    if isinstance(noise, Mapping) or is_of(noise, "pandas", "Series"):
        return _noise_by_name(noise, names, preprocess)
    if isinstance(noise, (list, tuple, np.ndarray)) and np.ndim(noise) > 0:
        values = checked_numbers("noise", noise)
        if values.shape != (columns,):
            raise UserValueError(
                f"noise has shape {values.shape}: must be a number, or an array with one for each of the "
                f"{columns} columns",
                argument="noise",
            )
        wide = values.astype(np.float64)
        if not ((wide >= 0.0) & (wide < LARGEST)).all():
            raise UserValueError(
                f"noise: all its numbers must be finite, >= 0 and < {LARGEST:g}", argument="noise"
            )
        return wide
    return np.full(columns, checked("noise", noise, below=LARGEST))


def _noise_by_name(noise: Any, names: tuple[str, ...] | None, preprocess: Preprocessor | None) -> Floats:
    if names is None:
        raise UserValueError(
            "noise is given by column: must be a number or an array, since the mixture has no column names",
            argument="noise",
        )
    given = dict(noise.items())
    if unknown := [str(name) for name in given if name not in names]:
        raise UserValueError(
            f"noise holds {quoted(unknown)}: the mixture has {quoted(names)}", argument="noise"
        )
    if absent := [name for name in names if name not in given]:
        raise UserValueError(
            f"noise lacks {quoted(absent)}: must have a number for every column", argument="noise"
        )
    values = np.array([checked(f"noise[{name!r}]", given[name], below=LARGEST) for name in names])
    scaled: Floats = values if preprocess is None else values / np.array(preprocess.scale)
    if not (scaled < LARGEST).all():
        wide = [name for name, value in zip(names, scaled, strict=True) if not value < LARGEST]
        raise UserValueError(
            f"noise in {quoted(wide)}: must be < {LARGEST:g} in preprocessed units", argument="noise"
        )
    return scaled


def _original_deviations(preprocess: Preprocessor, values: Floats, spread: Floats | None) -> Floats | None:
    """Return deviations in original units; of a logged column that of the logarithm times the value."""
    if spread is None:
        return None
    logged = np.flatnonzero(preprocess.log)
    out: Floats = spread * np.array(preprocess.scale)
    out[:, logged] *= values[:, logged]
    return out


def _beyond(largest: float, result: Floats, spread: Floats | None) -> Flags | None:
    """Return which rows have a number beyond `largest` or NaN; None if no row has."""
    parts = [result] if spread is None else [result, spread]
    if largest == _LARGEST_DOUBLE:  # beyond it are infinities alone, which no sum of doubles hides
        with np.errstate(over="ignore", invalid="ignore"):
            if all(np.isfinite(part.sum()) for part in parts):
                return None
    if all(-largest <= part.min() and part.max() <= largest for part in parts):  # never true of NaN
        return None
    good = np.logical_and.reduce([(np.abs(part) <= largest).all(axis=1) for part in parts])
    return np.asarray(~good)


def _missing_values(name: str, names: tuple[str, ...] | None, gone: Flags) -> UserValueError:
    labels = [label(names, place) for place in np.flatnonzero(gone.any(axis=0))]
    refused = either("on_missing='refuse'", "--on-missing refuse")
    return UserValueError(f"{name} has missing values in {listed(labels)}: must have none with {refused}")


def _parts(points: Points) -> Iterator[slice]:
    rows = max(1024, _BLOCK_BYTES // (8 * points.shape[1]))
    return (slice(start, start + rows) for start in range(0, len(points), rows))
