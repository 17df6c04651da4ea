"""The verb preprocess: scales of columns for fit, from public points or for a budget."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.checks import already_written, check_outputs, overspend_explained, rescued
from dpmd_fast.cli.console import aligned, answer, progress
from dpmd_fast.cli.options import (
    account_of,
    adjacency_option,
    budget_of,
    columns_option,
    force_option,
    json_option,
    ledger_options,
    on_invalid_option,
)
from dpmd_fast.cli.settings import read_json
from dpmd_fast.errors import UserFileNotFoundError, UserValueError

if TYPE_CHECKING:
    from dpmd_fast.models.preprocessor import Preprocessor


@click.command(
    short_help="Scales of columns, from public points or for a budget.",
    epilog="""\b
Example:
  dpmd-fast preprocess --public queries.parquet -o scales.json
  dpmd-fast preprocess --reference reference.parquet --bounds bounds.json --epsilon 0.5 --delta 1e-6 \\
      --ledger budget.db --dataset clinic -o private-scales.json
""",
)
@click.option(
    "--public",
    metavar="FILE",
    help="Public points whose medians and MADs to take, of the values that are there; costs nothing.",
)
@click.option("--reference", "references", multiple=True, metavar="FILE", help="Or: the private records.")
@click.option(
    "--bounds", metavar="FILE.json", help='With --reference: public limits, {"column": [low, high]}.'
)
@columns_option
@click.option("--log", default="auto", show_default=True, help="Columns to log: auto, all, none or A,B,...")
@click.option("--clip", type=float, default=8.0, show_default=True, help="In scaled units.")
@click.option("--epsilon", type=float, help="Of the budget, with --reference.")
@click.option("--delta", type=float, help="Of the budget, with --reference.")
@adjacency_option
@on_invalid_option
@ledger_options
@click.option("-o", "--output", required=True, metavar="FILE.json", help="The preprocessor.")
@force_option
@json_option
def preprocess(
    public: str | None,
    references: tuple[str, ...],
    bounds: str | None,
    columns: Sequence[str] | None,
    log: str,
    clip: float,
    epsilon: float | None,
    delta: float | None,
    adjacency: Any,
    on_invalid: str,
    ledger: str | None,
    dataset: str | None,
    no_ledger: bool,
    output: str,
    force: bool,
    as_json: bool,
) -> None:
    """Find centre and scale of columns, and which to log, for fit --preprocess."""
    check_outputs((output,), force, (public, *references, bounds, ledger))
    if (public is None) == (not references):
        raise click.UsageError("--public or --reference: one of them must be given")
    if public is not None:
        if bounds is not None or epsilon is not None or delta is not None or ledger is not None or dataset:
            raise click.UsageError("--public costs nothing: must be given without bounds, budget and ledger")
        made = _from_public(public, columns, _logs(log), clip)
    else:
        if bounds is None or epsilon is None or delta is None:
            raise click.UsageError("--bounds, --epsilon and --delta: must be given with --reference")
        limits = _bounds_of(bounds, columns)
        budget = budget_of(epsilon, delta, "gdp")
        account = account_of(ledger, dataset, no_ledger)
        from dpmd_fast.cli.reference import Watched
        from dpmd_fast.mechanisms.preprocessor import private_preprocessor
        from dpmd_fast.reference.sources.files import open_files

        source = open_files(references, list(limits))
        with (
            progress("reading the reference", " rows" if adjacency == "replace-one" else None) as bar,
            overspend_explained(delta),
        ):
            made = private_preprocessor(
                Watched(source, bar),
                bounds=limits,
                budget=budget,
                log=_logs(log),
                clip=clip,
                adjacency=adjacency,
                on_invalid=on_invalid,
                **account,
            )
    text = json.dumps(made.to_dict(), indent=1) + "\n"
    if public is not None:
        _write(text, output, force)
    else:
        rescued(output, lambda path: _write_paid(made, text, path, force))
    names = made.column_names or tuple(map(str, range(made.n_columns)))
    rows = [
        (name, f"{'log, ' if logged else ''}center {center:.4g}, scale {scale:.4g}")
        for name, center, scale, logged in zip(names, made.center, made.scale, made.log, strict=True)
    ]
    promise = [] if made.guarantee is None else [str(made.guarantee)]
    with already_written(output):
        answer(as_json, {"output": output, **made.to_dict()}, [*aligned(rows), *promise])


def _from_public(path: str, columns: Sequence[str] | None, log: Any, clip: float) -> Preprocessor:
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.tables.files import read_points

    points, names = read_points(path, columns, missing=True)
    return Preprocessor.from_public(points, log=log, clip=clip, column_names=names, missing=True, name=path)


def _logs(text: str) -> Any:
    return {"auto": "auto", "all": True, "none": False}.get(text, text.split(","))


def _bounds_of(path: str, columns: Sequence[str] | None) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise UserFileNotFoundError(f"{path} does not exist: must be a JSON file of bounds")
    values = read_json(path)
    if not isinstance(values, dict) or not values:
        raise UserValueError(f'{path}: must be a JSON object such as {{"age": [0, 120]}}')
    missing = [repr(name) for name in columns or () if name not in values]
    if missing:
        raise UserValueError(f"{path} lacks {', '.join(missing)}: must have bounds for each of --columns")
    return {name: values[name] for name in (columns or values)}


def _write_paid(made: Preprocessor, text: str, path: str, force: bool) -> None:
    _write(text, path, force)
    if made.receipt is not None:
        made.receipt.record_file(path)


def _write(text: str, path: str, force: bool) -> None:
    from dpmd_fast.atomic import atomic_write

    with atomic_write(path, overwrite=force) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write(text)
