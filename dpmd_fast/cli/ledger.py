"""The verb ledger: declare data sets, and show what has been spent on them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.console import answer
from dpmd_fast.cli.options import adjacency_option, columns_option, json_option

if TYPE_CHECKING:
    from dpmd_fast.privacy.ledger.ledger import Ledger

_ledger_option = click.option("--ledger", "path", required=True, metavar="FILE", help="The ledger.")


@click.group(short_help="Keep the budget of data sets in a file.", no_args_is_help=False)
def ledger() -> None:
    """Keep the privacy budget of named data sets in a file.

    \b
    Example:
      dpmd-fast ledger create --ledger budget.db --dataset clinic --epsilon 3 --delta 1e-6
      dpmd-fast ledger show --ledger budget.db
    """


@ledger.command(
    epilog="""\b
Example:
  dpmd-fast ledger create --ledger budget.db --dataset clinic --epsilon 3 --delta 1e-6
"""
)
@_ledger_option
@click.option("--dataset", required=True, metavar="NAME", help="A public name for the reference.")
@click.option("--epsilon", type=float, required=True, help="Of all that may ever be spent.")
@click.option("--delta", type=float, required=True, help="Of all that may ever be spent.")
@adjacency_option
@click.option(
    "--bind-to",
    "references",
    multiple=True,
    metavar="FILE",
    help="Bind the name to this reference by a fingerprint; the ledger is then as private as the records.",
)
@columns_option
@json_option
def create(
    path: str,
    dataset: str,
    epsilon: float,
    delta: float,
    adjacency: Any,
    references: tuple[str, ...],
    columns: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Declare a data set and all that may ever be spent on it. A total is final."""
    from dpmd_fast.privacy.guarantee import not_below
    from dpmd_fast.privacy.ledger.ledger import Ledger

    fingerprint = None
    if references:
        from dpmd_fast.reference.sources.files import open_files

        fingerprint = Ledger.fingerprint_of(open_files(references, columns))
    book = Ledger(path)
    book.create(dataset, epsilon, delta, adjacency, fingerprint=fingerprint)
    made = _account(book, dataset)
    answer(
        as_json,
        {"ledger": book.path, "dataset": made},
        [
            f"{dataset!r} may spend ({not_below(made['epsilon'])}, {not_below(made['delta'])}) under "
            f"{made['adjacency']} adjacency, mu^2 = {made['mu2']:.4g}."
        ],
    )


@ledger.command(
    epilog="""\b
Example:
  dpmd-fast ledger show --ledger budget.db --dataset clinic
"""
)
@_ledger_option
@click.option("--dataset", metavar="NAME", help="One data set.  [default: all]")
@json_option
def show(path: str, dataset: str | None, as_json: bool) -> None:
    """Show totals, spends and what is left."""
    from dpmd_fast.privacy.ledger.ledger import Ledger

    book = Ledger(path)
    names = book.datasets() if dataset is None else (dataset,)
    accounts = [_account(book, name) for name in names]
    lines = [line for account in accounts for line in _lines(account)]
    answer(as_json, {"ledger": book.path, "datasets": accounts}, lines or ["No data set has been declared."])


@ledger.command(
    epilog="""\b
Example:
  dpmd-fast ledger verify --ledger budget.db --model atlas.dpmd --trusted clinic.key.pub
"""
)
@_ledger_option
@click.option("--model", "models", multiple=True, required=True, metavar="FILE", help="A signed model.")
@click.option("--trusted", multiple=True, metavar="KEY", help="A public key that must have signed it.")
@json_option
def verify(path: str, models: tuple[str, ...], trusted: tuple[str, ...], as_json: bool) -> None:
    """Check that the ledger still holds the debits of signed models, and all entries before them.

    An entry that was edited or deleted, and a ledger that was rolled back, do not agree with what was signed.
    The debit of a model must be the mu^2 of its guarantee, and all debits together no more than the total. No
    debit has paid for two different models.
    """
    from dpmd_fast.errors import UserValueError
    from dpmd_fast.models.load import load_model, unsigned_bytes
    from dpmd_fast.privacy.ledger.ledger import Ledger

    book, checked = Ledger(path), []
    paid: dict[tuple[str, int], tuple[str, str]] = {}  # the first model of each debit, and its digest
    for name in models:
        model = load_model(name, trusted=list(trusted) or None)
        found = model.signature
        if found is None or found.ledger is None:
            lacks = "is not signed" if found is None else "was signed without a ledger"
            raise UserValueError(f"{name} {lacks}: there is nothing to compare the ledger with")
        entry = found.ledger
        try:
            statement = book.statement(entry.dataset)
            statement.check_entry(entry.spend, entry.head, model.guarantee)
            statement.check_sums()
        except ValueError as problem:
            raise UserValueError(f"{name}: {problem}") from None
        contents = hashlib.sha256(unsigned_bytes(model)).hexdigest()
        first, before = paid.setdefault((entry.dataset, entry.spend), (name, contents))
        if contents != before:
            raise UserValueError(
                f"{first} and {name} are different models of one debit, spend {entry.spend} of "
                f"{entry.dataset!r}: one of them is not paid for"
            )
        checked.append(
            {
                "model": name,
                "dataset": entry.dataset,
                "spend": entry.spend,
                "key": found.key,
                "preprocessing": statement.preprocessing_paid(entry.spend),
            }
        )
    answer(as_json, {"ledger": book.path, "models": checked}, [_verified(one) for one in checked])


def _verified(one: dict[str, Any]) -> str:
    line = (
        f"{one['model']}: spend {one['spend']} of {one['dataset']} and all entries before it are as they "
        f"were signed, by {one['key']}"
    )
    return line + ("; its preprocessing was not paid from here" if one["preprocessing"] is False else "")


def _account(book: Ledger, name: str) -> dict[str, Any]:
    from dpmd_fast.privacy.accounting import gdp_epsilon

    statement = book.statement(name)
    total, left = statement.total, statement.remaining
    spends = [
        {
            "id": spend.id,
            "time": spend.time,
            "what": spend.what,
            "mechanism": spend.mechanism,
            "mu2": spend.mu2,
            "holds": spend.holds,
            "parameters": spend.parameters,
            "files": spend.files,
            "head": spend.head,
        }
        for spend in statement.history
    ]
    return {
        "name": name,
        "epsilon": total.epsilon,
        "delta": total.delta,
        "adjacency": total.adjacency,
        "bound": total.fingerprint is not None,
        "mu2": total.mu2,
        "remaining_mu2": left,
        "remaining_epsilon": gdp_epsilon(math.sqrt(left), total.delta) if left > 1e-12 * total.mu2 else 0.0,
        "guarantee": statement.guarantee,
        "head": statement.head,
        "spends": spends,
    }


def _lines(account: dict[str, Any]) -> list[str]:
    from dpmd_fast.privacy.guarantee import not_below

    share = math.floor(1000.0 * account["remaining_mu2"] / account["mu2"]) / 10.0
    worth = math.floor(1000.0 * account["remaining_epsilon"] + 1e-6) / 1000.0  # mu and back is inexact
    numbers = f"{not_below(account['epsilon'])}, {not_below(account['delta'])}"
    total = f"({numbers}) under {account['adjacency']} adjacency"
    lines = [f"{account['name']}: {total}; {share:g} % is left, worth epsilon = {worth:g}"]
    for spend in account["spends"]:
        files = "".join(f" -> {name}" for name in spend["files"][-1:])
        paid = f"mu^2 = {spend['mu2']:.4g}"
        lines.append(f"  {spend['id']:>4}  {spend['time']:%Y-%m-%d %H:%M}  {paid}  {spend['what']}{files}")
    chain = f"  the chain of its declaration and {len(account['spends'])} spend(s) ends in {account['head']}"
    return [*lines, chain, f"  {account['guarantee']}"]
