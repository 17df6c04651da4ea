"""Options that several verbs share, and the values they stand for."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dpmd_fast.cli.settings import read_json
from dpmd_fast.errors import UserFileNotFoundError, UserValueError, text_of

if TYPE_CHECKING:
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.privacy.budget import Budget

    _ParamType = click.ParamType[Any]  # generic only in newer versions of click
else:
    _ParamType = click.ParamType

_F = TypeVar("_F", bound=Callable[..., Any])


class _NumberOrAuto(_ParamType):
    """A number, or the word "auto"."""

    def __init__(self, number: type[int] | type[float]) -> None:
        self.name = "integer" if number is int else "number"
        self._number = number

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{self.name.upper()}|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto" or isinstance(value, (int, float)):
            return value
        try:
            return self._number(value)
        except ValueError:
            self.fail(
                f"{value!r}: must be a{'n' * (self.name == 'integer')} {self.name} or 'auto'", param, ctx
            )


INTEGER_OR_AUTO, NUMBER_OR_AUTO = _NumberOrAuto(int), _NumberOrAuto(float)


class _Columns(_ParamType):
    """Names with commas between them; a name with a comma in it stands in double quotes."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            names = next(csv.reader([value], skipinitialspace=True), [])
        except csv.Error:  # a line break
            names = []
        if not names or not all(names):
            self.fail(f"{value!r}: must be names of columns with commas between them", param, ctx)
        return names


def joined(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Join several options into one decorator; --help lists them in this order."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
threads_option = click.option("--threads", type=int, help="Threads to use.  [default: all]")
risk_option = click.option(
    "--accept-risk",
    is_flag=True,
    help="Spend even if plan predicts no gain, harm or too few records.",
)

force_option = click.option("--force", is_flag=True, help="Replace an output that is there already.")
columns_option = click.option(
    "--columns",
    type=_Columns(),
    metavar="A,B,...",
    help="Columns to use, by name.  [default: all, if all are numeric]",
)
status_option = click.option(
    "--status-column", metavar="NAME", help="Add a column with the status of each point."
)
report_option = click.option("--report", "report_path", metavar="FILE.html", help="Write a report as well.")
budget_options = joined(
    click.option("--epsilon", type=float, required=True, help="Of the budget, positive."),
    click.option(
        "--delta", type=float, required=True, help="Of the budget; far below 1 / number of records."
    ),
    click.option(
        "--conversion",
        type=click.Choice(["gdp", "zcdp", "paper"]),
        default="gdp",
        show_default=True,
        help="How (epsilon, delta) becomes noise; 'gdp' is exact.",
    ),
)
adjacency_option = click.option(
    "--adjacency",
    type=click.Choice(["replace-one", "add-remove"]),
    default="replace-one",
    show_default=True,
    help="Which data sets count as neighbours. With 'add-remove' the number of records is private.",
)
ledger_options = joined(
    click.option("--ledger", metavar="FILE", help="The ledger that pays."),
    click.option("--dataset", metavar="NAME", help="Name of the reference in the ledger."),
    click.option(
        "--no-ledger", is_flag=True, help="Spend without a ledger: the spend is not recorded anywhere."
    ),
)
reference_options = joined(
    click.option(
        "--reference",
        "references",
        multiple=True,
        required=True,
        metavar="FILE",
        help="The private records: Parquet (may be repeated), .arrow, .csv or .npy.",
    ),
    click.option("--batch-rows", type=int, help="Records to read at a time."),
    click.option("--seed", type=int, help="Makes the run reproducible, and NOT private; not with a ledger."),
)


def budget_of(epsilon: float, delta: float, conversion: str) -> Budget:
    from dpmd_fast.privacy.budget import Budget

    return Budget(epsilon, delta, conversion)  # type: ignore[arg-type]


def account_of(ledger: str | None, dataset: str | None, no_ledger: bool) -> dict[str, Any]:
    """Return the arguments `ledger` and `dataset` of a release.

    Refuses a ledger or a data set that does not exist, before anything is read. The release checks its debit
    against the same look.
    """
    if no_ledger:
        if ledger is not None or dataset is not None:
            raise click.UsageError("--no-ledger: must not be given with --ledger or --dataset")
        return {}
    if ledger is None or dataset is None:
        raise click.UsageError(
            "--ledger FILE and --dataset NAME: must both be given, so that the spend is counted (dpmd-fast "
            "ledger create makes them); or --no-ledger"
        )
    from dpmd_fast.privacy.ledger.charge import open_account

    return {"ledger": open_account(ledger, dataset), "dataset": dataset}


def preprocessor_of(path: str | None) -> Preprocessor | None:
    """Read a preprocessor from a JSON file."""
    if path is None:
        return None
    from dpmd_fast.models.preprocessor import Preprocessor

    if not os.path.isfile(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a JSON file of a preprocessor")
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserValueError(
            f"{path} is not a preprocessor: must be a JSON object, as Preprocessor.to_dict() makes it"
        )
    try:
        return Preprocessor.from_dict(values)
    except (TypeError, ValueError) as problem:
        raise UserValueError(f"{path} is not a preprocessor: {text_of(problem)}") from None


on_invalid_option = click.option(
    "--on-invalid",
    type=click.Choice(["raise", "drop"]),
    default="raise",
    show_default=True,
    help="What becomes of records with non-finite or huge values, or missing ones that nothing fills in.",
)
