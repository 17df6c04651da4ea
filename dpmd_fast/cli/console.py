"""What a command prints: results on standard output, all else on standard error."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from dpmd_fast.cli.errors import PROGRAM


def answer(as_json: bool, result: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print the result of a command: one JSON object, or lines of text."""
    if as_json:
        click.echo(json.dumps(plain(result), allow_nan=False))
    else:
        for line in lines:
            click.echo(line)


def plain(value: Any) -> Any:
    """Return a value in JSON's types; numbers that are not finite become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


class Stop:
    """Keeps the signal to stop: libraries swallow exceptions of their callbacks, so long loops look here."""

    asked: BaseException | None = None

    @classmethod
    def raise_if_asked(cls) -> None:
        if cls.asked is not None:
            raise cls.asked


class Quiet:
    """Keeps the wish of the user to see no progress."""

    asked = False


class Bar:
    """A progress bar on standard error; silent if that is not a terminal."""

    def __init__(self, what: str, unit: str | None) -> None:
        self._what, self._unit = what, unit
        self._bar: Any = None
        self._quiet = Quiet.asked or not sys.stderr.isatty()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show `done` of `total`; without a unit show the elapsed time only, and no number."""
        Stop.raise_if_asked()
        if self._quiet:
            return
        if self._bar is None:
            from tqdm import tqdm

            size = shutil.get_terminal_size()  # never 0, as some terminals say of themselves
            self._bar = tqdm(
                desc=self._what,
                total=total,
                unit=self._unit or "",
                unit_scale=True,
                leave=False,
                ncols=min(100, size.columns),
                nrows=size.lines,
                bar_format="{desc}: {elapsed}" if self._unit is None else None,
            )
        if self._unit is None:
            self._bar.update(0)
            self._bar.refresh()
            return
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def progress(what: str, unit: str | None = " rows") -> Iterator[Bar]:
    """Yield a progress bar that disappears when the work is done or fails."""
    bar = Bar(what, unit)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def compilation_shown() -> Iterator[None]:
    """Say on a terminal, in one line that is rewritten, how many kernels are compiled."""
    from dpmd_fast.compilation import reporting

    line = ""

    def show(done: int, total: int) -> None:
        nonlocal line
        Stop.raise_if_asked()
        if Quiet.asked or not sys.stderr.isatty():
            return
        text = "" if done == total else f"compiling kernels, once: {done} of {total}"
        click.echo(f"\r{text:<{len(line)}}" + ("" if text else "\r"), err=True, nl=False)
        line = text

    with reporting(show):
        try:
            yield
        finally:
            if line:
                click.echo(err=True)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print each warning of the package in one line; hide others, which may depend on private values."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning):
            click.echo(f"{PROGRAM}: warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
