"""The verb report: one HTML page about a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.checks import check_outputs, kind_of
from dpmd_fast.cli.console import answer
from dpmd_fast.cli.models import check_settings, load_given, model_options, path_of
from dpmd_fast.cli.noise import noise_of, noise_option
from dpmd_fast.cli.options import force_option, json_option, threads_option
from dpmd_fast.errors import UserValueError

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture

SAMPLE = 20_000  # points that a report looks at


@click.command(
    short_help="Write an HTML page about a model.",
    epilog="""\b
Example:
  dpmd-fast report --model atlas.dpmd queries.parquet -o report.html
  dpmd-fast report --model mixture.dpmd --noise 0.5 queries.parquet -o mixture.html
""",
)
@model_options
@click.argument("queries", metavar="[QUERIES]", required=False)
@noise_option
@click.option("--ledger", metavar="FILE", help="Show what is left of the budget.")
@click.option("--dataset", metavar="NAME", help="Name of the reference in the ledger.")
@click.option("-o", "--output", required=True, metavar="FILE.html", help="The report.")
@force_option
@threads_option
@json_option
def report(
    model_path: str | None,
    atlas_path: str | None,
    trusted: tuple[str, ...],
    queries: str | None,
    noises: tuple[str, ...],
    ledger: str | None,
    dataset: str | None,
    output: str,
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write one HTML page about a model and what it does to the points of a file.

    A large file is sampled evenly over its rows. Of a mixture there is a page without QUERIES as well.
    Nothing is spent.
    """
    check_outputs((output,), force, (path_of(model_path, atlas_path), queries, ledger, *noises))
    if (ledger is None) != (dataset is None):
        raise click.UsageError("--ledger and --dataset: must be given together, or neither")
    noise = noise_of(noises)
    account: dict[str, Any] = {}
    if ledger is not None and dataset is not None:
        from dpmd_fast.privacy.ledger.ledger import Ledger

        account = {"ledger": Ledger(ledger), "dataset": dataset}
    model = load_given(model_path, atlas_path, trusted)
    if queries is not None:
        check_settings(model, noise)
    elif kind_of(model) == "atlas":
        raise click.UsageError("Missing argument 'QUERIES'.")
    elif noise is not None:
        raise click.UsageError("--noise is that of QUERIES: must not be given without them")
    report_on(model, queries, output, threads, noise, trusted=bool(trusted), **account)
    answer(as_json, {"report": output, "guarantee": model.guarantee}, [f"{output}: written"])


def report_on(
    model: Atlas | Mixture,
    queries: str | None,
    path: str,
    threads: int | None,
    noise: Any = None,
    rows: int | None = None,
    *,
    kept: bool = False,
    trusted: bool = False,
    **account: Any,
) -> None:
    """Write a report about a model and a sample of the points of a file, evenly spread over its rows.

    `kept` says that the output of the command keeps missing values, `trusted` that the model is signed by a
    key that the user trusts. The page shows them filled in by a
    mixture, and leaves out the rows of an atlas that have some.
    """
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.report.page import write_report
    from dpmd_fast.tables.files import read_points

    if queries is None:
        assert isinstance(model, Mixture)
        write_report(path, mixture=model, **account)
        return
    model.prepare()
    filled = isinstance(model, Mixture)
    points, _ = read_points(queries, model.column_names, most=SAMPLE, missing=filled or kept)
    if not filled and kept:
        import numpy as np

        points = points[~np.isnan(points).any(axis=1)]
        if not len(points):
            raise UserValueError(f"{queries} has no row without missing values: a report needs at least one")
    looked_at = f"{len(points):,}" if rows is None else f"{len(points):,} of {rows:,}"
    from dpmd_fast.models.signature import words_about

    asked = {
        "queries": queries,
        "points looked at": looked_at,
        "signature": words_about(model.signature, trusted=trusted),
    }
    if kept:
        here = "shows what is expected there" if filled else "leaves out rows that have some"
        asked["missing values"] = f"left missing in the output; this page {here}"
    if isinstance(model, Mixture):
        write_report(path, mixture=model, queries=points, noise=noise, parameters=asked, **account)
        return
    moved, status = model.transform(points, threads, return_status=True)
    write_report(
        path, queries=points, denoised=moved, status=status, atlas=model, parameters=asked, **account
    )
