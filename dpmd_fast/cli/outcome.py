"""What a command checks before it spends, and says after it."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dpmd_fast.cli.console import plain
from dpmd_fast.cli.errors import message_of
from dpmd_fast.errors import UserOSError, UserRuntimeError, UserValueError

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.privacy.ledger.charge import Receipt

_T = TypeVar("_T")


def check_outputs(outputs: Sequence[str | None], force: bool, inputs: Sequence[str | None]) -> None:
    """Refuse names under which nothing can be written, and those of inputs."""
    from dpmd_fast.reference.sources.overlap import file_identity as identity
    from dpmd_fast.tables.files import check_target

    read = {identity(path) for path in inputs if path is not None} - {None}
    written = [path for path in outputs if path is not None]
    for path in written:
        if identity(path) in read:
            raise UserValueError(f"{path} is read by this command: the output must be another file")
        check_target(path, overwrite=force)
    if len({os.path.abspath(path) for path in written}) < len(written):
        raise UserValueError(f"{written[0]} is given for two outputs: must be different files")


def load_atlas(path: str) -> Atlas:
    """The atlas of a file, or what to do about it."""
    from dpmd_fast.models.atlas import Atlas

    try:
        return Atlas.load(path)
    except ValueError as problem:
        advice = (
            "update dpmd-fast" if "newer version" in str(problem) else "get a fresh copy of what fit wrote"
        )
        raise UserValueError(f"{problem}; {advice}") from None


def rescued(output: str, save: Callable[[str], _T]) -> _T:
    """Save what was paid for; if that fails, in the folder for temporary files, and say where."""
    try:
        return save(output)
    except OSError as problem:
        reason = _reason(output, problem)
        spare = _spare(os.path.basename(output), save)
    if spare is None:
        raise UserOSError(f"{output} could not be written, and the budget is spent: {reason}")
    raise UserOSError(
        f"{output} could not be written ({reason}); the budget is spent, so it was saved as {spare}"
    )


def _spare(name: str, save: Callable[[str], Any]) -> str | None:
    """Save in a new folder for temporary files; the path, or None if there is no room either."""
    try:
        folder = tempfile.mkdtemp(prefix="dpmd-fast-")
    except OSError:
        return None
    try:
        save(os.path.join(folder, name))
    except OSError:
        os.rmdir(folder)
        return None
    return os.path.join(folder, name)


def _reason(output: str, problem: OSError) -> str:
    return problem.strerror or str(problem).removeprefix(f"{output} could not be written: ")


@contextmanager
def already_written(output: str) -> Iterator[None]:
    """Say of an error after the output was written that it is there."""
    try:
        yield
    except (OSError, ValueError) as problem:
        reason = message_of(problem)
        if reason is None:
            raise
        raise UserRuntimeError(f"{output} is written and complete, but then: {reason}") from None


@contextmanager
def overspend_explained(delta: float) -> Iterator[None]:
    """Say what could be paid, where a ledger refuses to pay."""
    from dpmd_fast.privacy.accounting import gdp_epsilon
    from dpmd_fast.privacy.budget import BudgetExceeded

    try:
        yield
    except BudgetExceeded as problem:
        most = gdp_epsilon(math.sqrt(problem.remaining), delta) if problem.remaining > 0.0 else 0.0
        advice = f"at most --epsilon {math.floor(1000.0 * most) / 1000.0:g} can be paid at delta = {delta:g}"
        if most < 1e-3:
            advice = f"what is left is worth less than --epsilon 0.001 at delta = {delta:g}"
        raise UserValueError(f"{problem}; {advice}") from None


def balance(receipt: Receipt | None) -> dict[str, Any] | None:
    """What the ledger says of a spend."""
    if receipt is None:
        return None
    spend = receipt.spend
    left = receipt.ledger.remaining(spend.dataset)
    return {
        "path": receipt.ledger.path,
        "dataset": spend.dataset,
        "spend": spend.id,
        "mu2": spend.mu2,
        "remaining_mu2": left,
    }


def left_of(receipt: Receipt | None) -> list[str]:
    if receipt is None:
        return ["No ledger: nobody keeps the sum of what is spent on this reference."]
    spend = receipt.spend
    total = receipt.ledger.total(spend.dataset).mu2
    left = receipt.ledger.remaining(spend.dataset)
    return [
        f"{left / total:.1%} of the budget of {spend.dataset!r} is left (mu^2 = {left:.4g} of {total:.4g})."
    ]


def atlas_facts(atlas: Atlas) -> dict[str, Any]:
    """What an atlas is, for machines."""
    facts = {
        "columns": list(atlas.column_names) if atlas.column_names is not None else None,
        "n_columns": atlas.n_columns,
        "dim": atlas.dim,
        "bandwidth": atlas.bandwidth,
        "charts": len(atlas.layers[0].masses),
        "signal_to_noise": atlas.signal_to_noise,
        "spends": [{"what": what, "mu2": mu2} for what, mu2 in atlas.spends],
        "guarantee": atlas.guarantee,
    }
    return {name: plain(value) for name, value in facts.items()}


def atlas_rows(atlas: Atlas) -> list[tuple[str, str]]:
    """What an atlas is, for people."""
    signals = ", ".join(f"{signal:.3g}" for signal in atlas.signal_to_noise)
    return [
        ("dimension", f"{atlas.dim} in {atlas.n_columns} columns"),
        ("bandwidth", f"{atlas.bandwidth:.4g}"),
        ("charts", f"{len(atlas.layers[0].masses):,}"),
        ("signal to noise of the rounds", signals),
    ]
