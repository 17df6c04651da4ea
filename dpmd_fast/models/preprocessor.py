"""The paper's preprocessing of biomarkers: log of skewed columns, median and MAD, clip.

A `Preprocessor` holds public numbers only. They are given, computed from a public sample, or released with a
budget (`private_preprocessor`), never computed from private records without one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.arguments import LARGEST, Points, checked, checked_points, limit_in, shown
from dpmd_fast.columns import DROP, check_unique, names_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.scratch import as_argument
from dpmd_fast.kernels.units import from_units, to_units
from dpmd_fast.kernels.vector.elementary import fixed_exps, fixed_logs
from dpmd_fast.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from dpmd_fast.privacy.ledger.charge import Receipt

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Logs: TypeAlias = Literal["auto"] | bool | Sequence[bool] | Sequence[str]

CLIP = 8.0  # the paper's value
SKEWED = 0.2  # decile skewness of a lognormal column whose third standardised moment is 1
INVALID = (
    f"values of logged columns must be positive as well; pass {DROP} to leave such values out, or "
    "clean the reference"
)
SMALLEST_SCALE = 1e-40
_DECILES = (0.1, 0.5, 0.9)


def preprocessed(name: str, points: Any, preprocess: Preprocessor | None) -> Floats:
    """Return public points in preprocessed units, or checked as they are if `preprocess` is None."""
    if preprocess is None:
        return np.asarray(checked_points(name, points), dtype=np.float64)
    if not isinstance(preprocess, Preprocessor):
        raise UserValueError(
            f"preprocess = {shown(preprocess)}: must be a Preprocessor or None", argument="preprocess"
        )
    return np.asarray(preprocess.forward(points, name=name), dtype=np.float64)


def units_of(points: Points, names: Sequence[str] | None, name: str) -> Preprocessor:
    """Return the units in which a mixture describes columns: medians and MADs of public points.

    No column is logged, and NaN, missing values, are left out. Messages call the points `name`.
    """
    return Preprocessor.from_public(points, log=False, column_names=names, missing=True, name=name)


@dataclass(frozen=True)
class Preprocessor:
    """Log of some columns, centre and scale of all, clip: ``clip((log x - center) / scale, -c, c)``.

    Parameters
    ----------
    center, scale : sequence of float
        For each column, after the logarithm if it is logged. Public numbers, never read off the reference.
    log : sequence of bool
        Which columns are logged; by default none.
    clip : float
        c; 8 in the paper.
    column_names : sequence of str, optional
        If given, tables must have these columns, and messages name them.
    guarantee : Guarantee, optional
        The guarantee of the numbers if a budget paid for them (`private_preprocessor`); None for numbers that
        are public by themselves.
    receipt : Receipt, optional
        The debit that paid for them, if there was a ledger; ``receipt.record_file(path)`` records a file
        there. Never written to files or sent to other processes.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    log: tuple[bool, ...] = ()
    clip: float = CLIP
    column_names: tuple[str, ...] | None = None
    guarantee: Guarantee | None = field(default=None, repr=False)
    receipt: Receipt | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**kept, "receipt": None}  # not the cached arrays, which may come back read-only

    def __post_init__(self) -> None:
        center, scale = _numbers("center", self.center), _numbers("scale", self.scale)
        D = len(center)
        if D < 1:
            raise UserValueError("center is empty: must hold a number for each column, and at least one")
        if len(scale) != D:
            raise UserValueError(f"scale has {len(scale)} number(s): must have {D}, as center")
        if not all(number > SMALLEST_SCALE for number in scale):
            raise UserValueError(f"scale = {scale!r}: all must be above {SMALLEST_SCALE:g}", argument="scale")
        log = _items("log", self.log) or (False,) * D
        if len(log) != D or not all(isinstance(one, (bool, np.bool_)) for one in log):
            raise UserValueError(
                f"log = {shown(self.log)}: must be {D} booleans, as many as center has numbers",
                argument="log",
            )
        names = None if self.column_names is None else _items("column_names", self.column_names)
        if names is not None:
            texts = all(isinstance(name, str) for name in names)
            if not texts or not len(set(names)) == len(names) == D:
                raise UserValueError(
                    f"column_names = {shown(self.column_names)}: must be {D} different texts",
                    argument="column_names",
                )
        if self.guarantee is not None and not isinstance(self.guarantee, Guarantee):
            raise UserValueError(
                f"guarantee = {shown(self.guarantee)}: must be a Guarantee or None", argument="guarantee"
            )
        if self.guarantee is not None and self.guarantee.holds == "conditional":
            raise UserValueError("guarantee: must not be conditional")
        clip = checked("clip", self.clip, positive=True, below=LARGEST)
        for name, value in (("center", center), ("scale", scale), ("clip", clip), ("column_names", names)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "log", tuple(map(bool, log)))

    @classmethod
    def from_public(
        cls,
        sample: Any,
        *,
        log: Logs = "auto",
        clip: float = CLIP,
        skewness: float = SKEWED,
        column_names: Sequence[str] | None = None,
        missing: bool = False,
        name: str = "sample",
    ) -> Preprocessor:
        """Apply the paper's rule to the medians and MADs of a public sample.

        Parameters
        ----------
        sample : array or DataFrame
            Public points. Never the reference or a part of it: no budget would pay for its medians.
        log : "auto", bool, or sequence of bool or of column names
            Which columns to log. The paper says "skewed biomarkers"; "auto" takes those of positive values
            whose decile skewness, (q10 + q90 - 2 q50) / (q90 - q10), is above `skewness` and is smaller in
            size after the logarithm.
        clip, skewness : float
        column_names : sequence of str, optional
            By default those of a DataFrame.
        missing : bool
            Whether NaN is a missing value, to be left out; otherwise it is refused.
        name : str
            What messages call the points.
        """
        points = np.asarray(checked_points(name, sample, missing=missing), dtype=np.float64)
        check_unique(name, names_of(sample) if column_names is None else None)
        names = names_of(sample) if column_names is None else _items("column_names", column_names)
        if names is not None and len(names) != points.shape[1]:
            raise UserValueError(f"column_names holds {len(names)} name(s): must have {points.shape[1]}")
        skewness = checked("skewness", skewness, below=1.0)
        choices = chosen_logs(log, names, points.shape[1])
        there = ~np.isnan(points)
        if not there.any(axis=0).all():
            empty = [label(names, place) for place in np.flatnonzero(~there.any(axis=0))]
            raise UserValueError(
                f"{name} has no values in {', '.join(empty)}: must have some in every column"
            )
        logs, centers, scales = [], [], []
        for place, choice in enumerate(choices):
            column = points[there[:, place], place]
            positive = bool((column > 0.0).all())
            if choice and not positive:
                raise UserValueError(not_positive(name, [label(names, place)]))
            logarithms = fixed_logs(column) if positive else column
            if choice is None:
                before, after = (np.quantile(values, _DECILES).tolist() for values in (column, logarithms))
                choice = positive and is_skewed(before, after, skewness)
            logs.append(choice)
            values = logarithms if choice else column
            centers.append(np.median(values))
            scales.append(np.median(np.abs(values - centers[-1])))
        center, scale = np.array(centers), np.array(scales)
        constant = [label(names, place) for place in np.flatnonzero(scale <= SMALLEST_SCALE)]
        if constant:
            raise UserValueError(
                f"{name} has a median absolute deviation of 0 in {', '.join(constant)}: half of the values "
                "or more are equal and give no unit; leave such columns out, or construct a Preprocessor "
                "with your own numbers"
            )
        return cls(tuple(center.tolist()), tuple(scale.tolist()), tuple(logs), clip, names)

    @property
    def n_columns(self) -> int:
        return len(self.center)

    def forward(self, X: Any, *, name: str = "X") -> Points:
        """Return public points in preprocessed units; float32 stays float32.

        Values that are not finite, or not positive in a logged column, are refused; messages call the points
        `name`. Private records are mapped by `preprocessed_records`, in the room reference/.
        """
        points = self._checked(name, X)
        self._check_positive(name, points)
        return self._clipped(self._scaled(points)).astype(points.dtype, copy=False)

    def forward_block(self, block: Floats, name: str = "X") -> Floats:
        """Return public numbers in preprocessed units; NaN, a missing value, stays NaN."""
        self._check_positive(name, block)
        return self._clipped(self._scaled(block))

    def inverse(self, X: Any) -> Points:
        """Return points in original units; float32 stays float32.

        Undoes `forward` except for the clip: a clipped coordinate becomes the limit in original units.
        Coordinates beyond the limit are allowed.
        """
        points = self._checked("X", X)
        with np.errstate(over="ignore"):
            out = self._original(points).astype(points.dtype, copy=False)
        beyond = np.flatnonzero(~np.isfinite(out).all(axis=0))
        if len(beyond):
            labels = ", ".join(label(self.column_names, place) for place in beyond)
            raise UserValueError(f"X is beyond the range of {out.dtype} in original units in {labels}")
        return out

    def mapping(self, *, keep_missing: bool = False) -> Callable[[Floats], Floats]:
        """Return the function that maps records where they are; it holds public numbers only.

        Values that are not valid become NaN, without a message; with `keep_missing` infinite, so that NaN is
        what was missing.
        """
        public = dataclasses.replace(self, guarantee=None, receipt=None)
        return public._mapped_with_missing if keep_missing else public._mapped

    def _mapped(self, block: Floats) -> Floats:
        """Map records to preprocessed units, and values that are not valid to NaN, without a message."""
        return self._clipped(self._scaled(invalid_to_nan(np.array(self.log))(block)))

    def _mapped_with_missing(self, block: Floats) -> Floats:
        """Map records to preprocessed units; missing values become NaN, those not valid infinite."""
        out = self._mapped(block)
        out[np.isnan(out) & ~np.isnan(block)] = np.inf
        return out

    def moved(
        self,
        points: Floats,
        move: Callable[[Floats], tuple[Floats, Flags]],
        name: str = "Z",
        *,
        keep_beyond: bool = False,
    ) -> tuple[Floats, Flags, Flags]:
        """Move public points by a map of preprocessed units.

        Returns the points in original units, which of them `move` reached, and which were clipped.

        A coordinate that `move` does not change keeps its value to the last bit, even beyond the limit. Any
        other is converted back from its new value: ``forward(moved) = move(forward(points))``. NaN, a missing
        value, is handed to `move` as it is. With `keep_beyond`, a coordinate beyond the limit is moved by as
        much as one at the limit.
        """
        if points.ndim != 2 or points.shape[1] != self.n_columns:
            raise UserValueError(f"{name} must have {self.n_columns} columns; its shape is {points.shape}")
        points = as_argument(points)
        units = (self._flags, *self._arrays[1:])
        beyond = np.empty(points.shape if keep_beyond else (0, self.n_columns))
        before, clipped = np.empty(points.shape), np.empty(len(points), np.bool_)
        without_log = np.empty(self.n_columns, np.bool_)
        to_units(points, *units, float(self.clip), beyond, before, clipped, without_log)
        if without_log.any():
            self._refuse_logs(name, np.flatnonzero(without_log))
        after, reached = move(before)
        if keep_beyond and clipped.any():
            outside = np.abs(beyond) > self.clip
            after = np.where(outside, after + (beyond - before), after)
            before = np.where(outside, beyond, before)
        if after.shape != points.shape:
            raise AssertionError("a map must return as many rows and columns as it gets")
        out = np.empty(points.shape)
        with np.errstate(over="ignore"):  # without the compiler, infinity would warn
            from_units(points, before, as_argument(after), *units, out)
        return out, reached, clipped

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; `from_dict` makes an equal preprocessor of them."""
        given = dataclasses.asdict(dataclasses.replace(self, receipt=None))
        del given["receipt"]
        for name in ("center", "scale", "log"):
            given[name] = list(given[name])
        given["column_names"] = None if self.column_names is None else list(self.column_names)
        given["guarantee"] = None if self.guarantee is None else self.guarantee.to_dict()
        return given

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessor:
        """Return the preprocessor that `to_dict` was called on; refuse anything else."""
        wanted = {one.name for one in dataclasses.fields(cls)} - {"receipt"}
        if not isinstance(values, Mapping) or set(values) != wanted:
            raise UserValueError(f"a preprocessor must have exactly {', '.join(sorted(wanted))}")
        paid = values["guarantee"]
        if paid is not None:
            try:
                paid = Guarantee.from_dict(paid)
            except (KeyError, TypeError):
                raise UserValueError("guarantee: must hold the fields of a Guarantee") from None
        lists = ("center", "scale", "log", *(() if values["column_names"] is None else ("column_names",)))
        if not all(isinstance(values[name], (list, tuple)) for name in lists):
            raise UserValueError(f"{', '.join(lists)}: must be lists")
        return cls(**{**values, **{name: tuple(values[name]) for name in lists}, "guarantee": paid})

    def _checked(self, name: str, X: Any) -> Points:
        self.check_names(name, names_of(X))
        points = checked_points(name, X)
        if points.shape[1] != self.n_columns:
            raise UserValueError(
                f"{name} has {points.shape[1]} features: must have {self.n_columns}, like the preprocessor"
            )
        return points

    def check_names(self, name: str, given: tuple[str, ...] | None) -> None:
        """Refuse columns with other names, or in another order."""
        if given is not None and self.column_names is not None and given != self.column_names:
            raise UserValueError(
                f"{name} has other columns than the preprocessor, or in another order: must have "
                f"{', '.join(map(repr, self.column_names))}"
            )

    def _check_positive(self, name: str, points: Points) -> None:
        logged = self._arrays[0]
        low = logged[(points[:, logged] <= 0.0).any(axis=0)]
        if len(low):
            self._refuse_logs(name, low)

    def _refuse_logs(self, name: str, places: NDArray[np.intp]) -> NoReturn:
        labels = [label(self.column_names, place) for place in places]
        raise UserValueError(not_positive(name, labels))

    @cached_property
    def _flags(self) -> Flags:
        return np.array(self.log)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.intp], Floats, Floats]:
        return np.flatnonzero(self.log), np.array(self.center), np.array(self.scale)

    def _scaled(self, points: Points) -> Floats:
        logged, center, scale = self._arrays
        out = np.array(points, dtype=np.float64)
        # the last bits of the C library's logarithm depend on the machine, of NumPy's also on the position
        out[:, logged] = fixed_logs(out[:, logged])
        out -= center
        out /= scale
        return out

    def _clipped(self, scaled: Floats) -> Floats:
        return np.clip(scaled, -self.clip, self.clip)

    def _original(self, points: Points) -> Floats:
        logged, center, scale = self._arrays
        out = center + scale * np.asarray(points, dtype=np.float64)
        out[:, logged] = fixed_exps(out[:, logged])
        return out


def invalid_to_nan(logged: Flags) -> Callable[[Floats], Floats]:
    """Return a function that replaces values by NaN that are not finite, huge, or logged but not positive."""

    def mapping(block: Floats) -> Floats:
        good = np.abs(block) <= limit_in(block)
        good &= (block > 0.0) | ~logged
        return np.where(good, block, np.nan)

    return mapping


def is_skewed(before: Sequence[float], after: Sequence[float], threshold: float) -> bool:
    """Return True if a column is to be logged, by its 10, 50 and 90 % quantiles before and after the log."""
    skewness = _decile_skewness(*before)
    return skewness > threshold and abs(_decile_skewness(*after)) < skewness


def _decile_skewness(low: float, median: float, high: float) -> float:
    return float((high + low - 2.0 * median) / (high - low)) if high > low else 0.0


def chosen_logs(log: Logs, names: tuple[str, ...] | None, columns: int) -> list[bool | None]:
    """Return for each column whether it is logged; None where the data decide."""
    if isinstance(log, str) and log == "auto":
        return [None] * columns
    if isinstance(log, (bool, np.bool_)):
        return [bool(log)] * columns
    given = [] if isinstance(log, str) or not isinstance(log, (Sequence, np.ndarray)) else list(log)
    if len(given) == columns and all(isinstance(one, (bool, np.bool_)) for one in given):
        return [bool(one) for one in given]
    if names is not None and given and set(given) <= set(names):
        return [name in set(given) for name in names]
    allowed = f"'auto', True, False, {columns} booleans"
    raise UserValueError(f"log = {shown(log)}: must be {allowed}" + (" or names of columns" if names else ""))


def label(names: tuple[str, ...] | None, place: SupportsIndex) -> str:
    """Return the name of a column in messages."""
    return f"column {place}" if names is None else f"column {names[place]!r}"


def not_positive(name: str, labels: Sequence[str]) -> str:
    return f"{name} has values that are not positive in {', '.join(labels)}: logged columns must be positive"


def _items(name: str, values: Any) -> tuple[Any, ...]:
    listed = isinstance(values, (Sequence, np.ndarray)) and np.ndim(values) == 1
    if not listed or isinstance(values, (str, bytes)):
        raise UserValueError(
            f"{name} = {shown(values)}: must be a sequence with one item for each column", argument=name
        )
    return tuple(values)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    given = _items(name, values)
    if not all(isinstance(one, Real) and not isinstance(one, bool) for one in given):
        raise UserValueError(
            f"{name} = {shown(values)}: must be a sequence of numbers, one for each column", argument=name
        )
    numbers = tuple(float(one) if abs(one) <= LARGEST else math.inf for one in given)
    if not all(abs(number) <= LARGEST for number in numbers):  # false for NaN
        raise UserValueError(
            f"{name} = {shown(values)}: all must be finite and at most {LARGEST:g} in size", argument=name
        )
    return numbers
