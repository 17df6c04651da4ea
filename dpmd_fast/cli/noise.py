"""The option --noise: how far the queries may be off."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import click

from dpmd_fast.cli.settings import read_json
from dpmd_fast.errors import UserFileNotFoundError, UserValueError

WHAT = (
    "the deviation of the measurement error of the queries, as a number in preprocessed units (without "
    "a preprocessor in median absolute deviations of the queries) or as column=value in the unit of each "
    "column; 0 only fills in missing values"
)

noise_option = click.option(
    "--noise",
    "noises",
    multiple=True,
    metavar="NUMBER|COLUMN=NUMBER|FILE.json",
    help=(
        "Deviation of the measurement error of the queries: how far a value is off, typically. One number "
        "for all columns, in preprocessed units, without --preprocess in median absolute deviations of the "
        'queries; or one for each column (may be repeated, or as JSON {"column": number}), in the unit of '
        "the column, relative if it is logged. 0: nothing is noisy, missing values are filled in."
    ),
)


def noise_of(texts: Sequence[str]) -> float | dict[str, Any] | None:
    """Return the noise that the options stand for, None if there are none; the model checks its values."""
    if not texts:
        return None
    if len(texts) == 1:
        (text,) = texts
        number = _number(text)
        if number is not None:
            return number
        if text.lower().endswith(".json"):
            return _read(text)
    by_column: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.rpartition("=")
        number = _number(value)
        if not sign or not name or number is None:
            single = _number(text) is not None or text.lower().endswith(".json")
            wanted = "must be given once" if single else "must be a number, column=number or a .json file"
            raise UserValueError(f"--noise {text!r}: {wanted}")
        if name in by_column:
            raise UserValueError(f"--noise: column {name!r} is given more than once")
        by_column[name] = number
    return by_column


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _read(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a JSON file of noise")
    values = read_json(path)
    numbers = isinstance(values, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values.values()
    )
    if not values or not numbers:
        raise UserValueError(f'{path}: must be a JSON object of numbers such as {{"crp": 0.5}}')
    return {name: math.inf if abs(value) >= 1e300 else float(value) for name, value in values.items()}
