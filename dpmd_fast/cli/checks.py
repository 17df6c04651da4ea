"""What a command checks before it spends, and what it reports afterwards."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dpmd_fast.cli.console import plain
from dpmd_fast.cli.errors import message_of
from dpmd_fast.errors import UserError, UserOSError, UserRuntimeError, UserValueError
from dpmd_fast.privacy.ledger.last_debit import note_debit

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.privacy.ledger.charge import Receipt

_T = TypeVar("_T")
_WEIGHTS_SHOWN = 8


def check_outputs(outputs: Sequence[str | None], force: bool, inputs: Sequence[str | None]) -> None:
    """Refuse outputs that cannot be written, and outputs that are inputs."""
    from dpmd_fast.atomic import check_target, file_identity

    read = {file_identity(path) for path in inputs if path is not None} - {None}
    written = [path for path in outputs if path is not None]
    for path in written:
        if file_identity(path) in read:
            raise UserValueError(f"{path} is read by this command: the output must be another file")
        check_target(path, overwrite=force)
    if len({os.path.abspath(path) for path in written}) < len(written):
        raise UserValueError(f"{written[0]} is given for two outputs: must be different files")


def rescued(output: str, save: Callable[[str], _T]) -> _T:
    """Save what was paid for; if that fails, save it in a temporary folder and say where."""
    try:
        saved = save(output)
        note_debit(f"what was spent paid for {output}, which is complete")
        return saved
    except OSError as problem:
        known = isinstance(problem, UserError)
        reason = message_of(problem) if known else f"{output} could not be written: {problem.strerror}"
        spare = _spare(os.path.basename(output), save)
    if spare is None:
        raise UserOSError(f"{reason}; the budget is spent, and the result could not be saved elsewhere")
    raise UserOSError(f"{reason}; the budget is spent, so the result was saved as {spare}")


def _spare(name: str, save: Callable[[str], Any]) -> str | None:
    """Save in a new temporary folder and return the path, or None if that fails as well."""
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


@contextmanager
def already_written(output: str) -> Iterator[None]:
    """Say of an error that comes after the output was written that the output is complete."""
    try:
        yield
    except (OSError, ValueError) as problem:
        reason = message_of(problem)
        if reason is None:
            raise
        raise UserRuntimeError(f"{output} is written and complete, but then: {reason}") from None


@contextmanager
def overspend_explained(delta: float) -> Iterator[None]:
    """Where a ledger refuses to pay, add what it could pay."""
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


def ledger_facts(receipt: Receipt | None) -> dict[str, Any] | None:
    """Return the debit and the balance after it, for machines."""
    if receipt is None:
        return None
    return {
        "path": receipt.ledger.path,
        "dataset": receipt.spend.dataset,
        "spend": receipt.spend.id,
        "mu2": receipt.spend.mu2,
        "remaining_mu2": receipt.spend.remaining_mu2,
    }


def ledger_lines(receipt: Receipt | None) -> list[str]:
    """Return the balance after the debit, for people."""
    if receipt is None:
        return ["No ledger: the spend is not recorded anywhere."]
    spend = receipt.spend
    left, total = spend.remaining_mu2, spend.total_mu2
    assert left is not None
    assert total is not None
    return [
        f"{left / total:.1%} of the budget of {spend.dataset!r} is left (mu^2 = {left:.4g} of {total:.4g})."
    ]


def kind_of(model: Atlas | Mixture) -> str:
    """Return "atlas" or "mixture"."""
    return model.kind


def model_facts(model: Atlas | Mixture) -> dict[str, Any]:
    """Return the public parameters of a model, for machines."""
    from dpmd_fast.models.mixture import Mixture

    facts: dict[str, Any] = {
        "model": kind_of(model),
        "columns": list(model.column_names) if model.column_names is not None else None,
        "n_columns": model.n_columns,
    }
    if isinstance(model, Mixture):
        facts |= {"components": len(model.weights), "weights": model.weights.tolist()}
    else:
        charts = len(model.layers[0].masses)
        facts |= {"dim": model.dim, "bandwidth": model.bandwidth, "charts": charts}
    facts |= {
        "signal_to_noise": model.signal_to_noise,
        "spends": [{"what": what, "mu2": mu2} for what, mu2 in model.spends],
        "guarantee": model.guarantee,
    }
    return {name: plain(value) for name, value in facts.items()}


def model_rows(model: Atlas | Mixture) -> list[tuple[str, str]]:
    """Return the public parameters of a model, for people."""
    from dpmd_fast.models.mixture import Mixture

    if isinstance(model, Mixture):
        weights = sorted(model.weights.tolist(), reverse=True)
        found = model.signal_to_noise
        more = ", ..." if len(weights) > _WEIGHTS_SHOWN else ""
        return [
            ("components", f"{len(weights)} in {model.n_columns} columns"),
            ("weights", ", ".join(f"{weight:.3g}" for weight in weights[:_WEIGHTS_SHOWN]) + more),
            ("mass over noise of a component", f"{min(found):.3g} to {max(found):.3g}"),
            ("releases", str(len(model.spends))),
        ]
    signals = ", ".join(f"{signal:.3g}" for signal in model.signal_to_noise)
    return [
        ("dimension", f"{model.dim} in {model.n_columns} columns"),
        ("bandwidth", f"{model.bandwidth:.4g}"),
        ("charts", f"{len(model.layers[0].masses):,}"),
        ("signal to noise of the rounds", signals),
    ]
