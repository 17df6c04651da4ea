"""Argument checks, made before any work and before any budget is spent.

Messages name the argument, what was given and what is allowed. A message about a private reference shows its
type and its public shape, never a value, a row or a count.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from numbers import Number, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.errors import UserMemoryError, UserTypeError, UserValueError

Points = NDArray[np.floating[Any]]

# Values in units of the bandwidth stay below 1e140, so that sums of their squares do not overflow.
LARGEST = 1e100
_LONGEST_SHOWN = 200  # characters of an argument in a message
_SMALLEST = 1e-40
_MOST_STEPS = 100_000
_MOMENT_COPIES = 4  # of the sums of moments, from floats to what is released
_LEAST_SPREAD = 1e-30  # of anchors: bandwidths have a smallest value, in memory and in atlas files


def checked(name: str, value: object, *, positive: bool = False, below: float = math.inf) -> float:
    """Return `value` as a float, or refuse it.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        The argument. Booleans, strings, arrays, NaN and infinities are refused.
    positive : bool
        Refuse 0 too; negative numbers are always refused.
    below : float
        Exclusive upper limit.

    Raises
    ------
    ValueError
        Its message names the argument, what was given and what is allowed.
    """
    lower = "> 0" if positive else ">= 0"
    allowed = f"a finite number {lower}" + (f" and < {below:g}" if below < math.inf else "")
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer too large for a float
            number = math.inf
        except TypeError:  # numpy.timedelta64 registers as a number
            number = math.nan
    # NaN fails here: every comparison with NaN is false.
    if not (0.0 <= number < below and number < math.inf) or (positive and number == 0.0):
        raise UserValueError(f"{name} = {shown(value)}: must be {allowed}", argument=name)
    return number


def shown(value: object) -> str:
    """Return the text for an argument in a message: a short number or string as it is, else its type.

    An array passed where a number belongs may be the private reference, so its values are never shown.
    """
    exact = isinstance(value, (int, Fraction))
    if exact and max(abs(value.numerator), value.denominator).bit_length() > 256:  # type: ignore[attr-defined]
        return "a number of more than 77 digits"
    plain = value is None or isinstance(value, (bool, str, bytes, Number, np.generic))
    if plain and len(text := repr(value)) <= _LONGEST_SHOWN:
        return text
    return f"<{type(value).__name__}>"


def checked_integer(name: str, value: object, *, minimum: int = 0, most_bits: int = 256) -> int:
    """Return `value` as an int of at least `minimum`, or refuse it."""
    try:
        number = minimum - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise UserValueError(f"{name} = {shown(value)}: must be an integer >= {minimum}", argument=name)
    if number.bit_length() > most_bits:
        raise UserValueError(f"{name} = {shown(value)}: must be below 2^{most_bits}", argument=name)
    return number


def checked_points(name: str, values: Any, *, columns: int | None = None, missing: bool = False) -> Points:
    """Return `values` as a finite two-dimensional float array (float32 stays float32), or refuse it.

    With `missing`, NaN stands for a missing value and is allowed.
    """
    array = checked_table(name, values, columns)
    check_range(name, array, missing=missing)
    return array


def checked_table(name: str, values: Any, columns: int | None = None) -> Points:
    """Return `values` as a two-dimensional array of any floats, or refuse it."""
    array = checked_numbers(name, values)
    if array.ndim != 2:
        hint = ". Reshape your data: one point is one row, values.reshape(1, -1)" if array.ndim == 1 else ""
        raise UserValueError(f"{name} has {array.ndim} dimension(s): must have 2 (rows are points){hint}")
    rows, width = array.shape
    if width < 1:
        raise UserValueError(
            f"{name} has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    if rows < 1:
        raise UserValueError(
            f"{name} has 0 sample(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    if columns is not None and width != columns:
        raise UserValueError(f"{name} has {width} features: must have {columns}, as the reference")
    return array


def checked_point(name: str, values: Any, columns: int) -> Points:
    """Return `values` as one finite point of `columns` coordinates."""
    array = checked_numbers(name, values)
    if array.shape not in ((columns,), (1, columns)):
        raise UserValueError(f"{name} has shape {array.shape}: must be one point, shape ({columns},)")
    check_range(name, array)
    return array.reshape(columns)


def checked_geometry(bandwidth: Any, dim: Any, beta: Any, columns: int) -> tuple[float, int, float]:
    """Return bandwidth, dim and beta; refuse them unless bandwidth > 0, 1 <= dim < D and beta >= 2."""
    h = checked_bandwidth(bandwidth)
    d = checked_integer("dim", dim, minimum=1)
    if d >= columns:
        raise UserValueError(
            f"dim = {d}: must be below the number of columns; the points have {columns} feature(s)",
            argument="dim",
        )
    return h, d, checked_beta(beta)


def checked_bandwidth(bandwidth: Any) -> float:
    h = checked("bandwidth", bandwidth, positive=True)
    if not _SMALLEST < h < LARGEST:
        raise UserValueError(
            f"bandwidth = {shown(bandwidth)}: must lie between {_SMALLEST:g} and {LARGEST:g}",
            argument="bandwidth",
        )
    return h


def checked_beta(beta: Any) -> float:
    exponent = checked("beta", beta, positive=True)
    if exponent < 2.0:
        raise UserValueError(f"beta = {shown(beta)}: must be at least 2", argument="beta")
    return exponent


def check_anchors(Z: NDArray[np.float64], dim: int | None) -> None:
    """Refuse public points from which no atlas can be made; `dim` is None for "auto"."""
    D = Z.shape[1]
    if dim is not None and dim >= D:
        raise UserValueError(
            f"dim = {dim}: must be below the number of columns, {D}",
            argument="dim",
        )
    if len(Z) < D + 2:
        raise UserValueError(
            f"anchors has {len(Z)} points: an atlas of {D} columns needs at least {D + 2}; if the noise of "
            "the points is given, a mixture can be considered",
            argument="anchors",
        )
    if dim is None and D < 2:
        raise UserValueError(
            "dim = 'auto': must be a number below the number of columns, 1",
            argument="dim",
        )
    spread = float(np.ptp(Z, axis=0).max())
    if not spread > _LEAST_SPREAD:
        raise UserValueError(
            f"anchors span {spread:g} in their widest column: must not all be equal, and must span more than "
            f"{_LEAST_SPREAD:g}"
        )


def checked_cover(value: object) -> float:
    """Return the distance between charts in units of the bandwidth, in (0, 1], or refuse it."""
    cover = checked("cover", value, positive=True)
    if cover > 1.0:
        raise UserValueError(f"cover = {shown(value)}: must be at most 1", argument="cover")
    return cover


def checked_steps(value: object, name: str = "steps") -> int:
    """Return a number of repetitions, at least 1 and few enough to finish, or refuse it."""
    steps = checked_integer(name, value, minimum=1)
    if steps > _MOST_STEPS:
        raise UserValueError(f"{name} = {shown(value)}: must be at most {_MOST_STEPS}", argument=name)
    return steps


def checked_threads(n_threads: Any) -> int | None:
    """Return None (all threads) or an integer of at least 1, or refuse it."""
    return None if n_threads is None else checked_integer("n_threads", n_threads, minimum=1)


def checked_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return `value` if it is one of the `allowed` strings or integers, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in allowed:
        raise UserValueError(
            f"{name} = {shown(value)}: must be one of {', '.join(map(repr, allowed))}", argument=name
        )
    return value


def is_auto(name: str, value: object) -> bool:
    """Return whether a parameter is "auto"; refuse any other text."""
    if isinstance(value, str) and value != "auto":
        raise UserValueError(f"{name} = {shown(value)}: must be a number or 'auto'", argument=name)
    return isinstance(value, str)


def check_enough(name: str, rows: int, dim: int) -> None:
    """Refuse a reference of fewer than dim + 2 points."""
    if rows < dim + 2:
        raise UserValueError(f"{name} has {rows} sample(s): must have at least dim + 2 = {dim + 2}")


def check_memory(locations: int, columns: int) -> None:
    """Refuse, before a spend, moments of so many locations that there is no memory for them."""
    size = _MOMENT_COPIES * 8 * locations * (columns + 1) ** 2
    try:
        np.empty(size, np.uint8)
    except MemoryError:
        raise UserMemoryError(
            f"moments of {locations} locations in {columns} columns need {size / 2**30:.1f} GB, more than "
            "there is: take fewer locations"
        ) from None


def in_range(array: Points) -> bool:
    """Return True if there are values, and none is NaN, infinite or huge."""
    if not array.size:
        return False
    return float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST  # never true of NaN


def limit_in(array: Points, most: float = LARGEST) -> float:
    """Return `most`, or the largest number of a type that has none as large.

    NumPy compares an array of float32 with a number that is rounded to float32: 1e100 would be infinite
    there, and infinite values would be within it.
    """
    return min(most, float(np.finfo(array.dtype).max))


def check_range(name: str, array: Points, *, missing: bool = False) -> None:
    """Refuse infinities, values whose squares would overflow and, unless they may be `missing`, NaN."""
    if in_range(array):
        return
    if missing:
        if np.isinf(array).any():
            raise UserValueError(f"{name} contains infinity: all values must be finite, or NaN where missing")
    elif not np.isfinite(array).all():
        raise UserValueError(f"{name} contains NaN or infinity: all values must be finite")
    # fmax and fmin pass over NaN
    if array.size and max(float(np.fmax.reduce(array, None)), -float(np.fmin.reduce(array, None))) > LARGEST:
        raise UserValueError(
            f"{name} contains values beyond {LARGEST:g}: their squares would overflow; rescale"
        )


def checked_numbers(name: str, values: Any) -> Points:
    """Return `values` as an array of floats of any shape, or refuse it."""
    if type(values) is np.ndarray and (values.dtype == np.float64 or values.dtype == np.float32):
        return values
    if isinstance(values, np.ma.MaskedArray):
        raise UserTypeError(
            f"{name} is a masked array: must be a plain one, for instance values.filled(numpy.nan)"
        )
    if type(values).__module__.startswith("scipy.sparse"):
        raise UserTypeError(f"{name} is a sparse matrix: must be dense, for instance values.toarray()")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and hasattr(values, "isna"):  # a table of pandas: pandas.NA is missing
            array = values.to_numpy(dtype=np.float64, na_value=np.nan)
        elif array.dtype.kind == "O":  # mixed number types, or not numbers at all
            array = array.astype(np.float64)
    except Exception:  # of any kind; its message could show a value
        array = np.empty(0, dtype="U")
    if array.dtype.kind == "c":
        raise UserValueError(f"{name} holds complex numbers: Complex data not supported, must be real")
    if array.dtype.kind not in "fiub":
        raise UserValueError(
            f"{name} holds values that are not numbers: must be a rectangular array of numbers"
        )
    with np.errstate(over="ignore"):  # from extended precision; the caller refuses infinities
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
