"""The verb report: one HTML page about an atlas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.checks import check_outputs
from dpmd_fast.cli.console import answer
from dpmd_fast.cli.options import force_option, json_option, threads_option

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

SAMPLE = 20_000  # points that a report looks at


@click.command(
    short_help="Write an HTML page about an atlas.",
    epilog="""\b
Example:
  dpmd-fast report --atlas atlas.dpmd queries.parquet -o report.html
""",
)
@click.option("--atlas", "atlas_path", required=True, metavar="FILE.dpmd", help="What fit has written.")
@click.argument("queries", metavar="QUERIES")
@click.option("--ledger", metavar="FILE", help="Show what is left of the budget.")
@click.option("--dataset", metavar="NAME", help="Name of the reference in the ledger.")
@click.option("-o", "--output", required=True, metavar="FILE.html", help="The report.")
@force_option
@threads_option
@json_option
def report(
    atlas_path: str,
    queries: str,
    ledger: str | None,
    dataset: str | None,
    output: str,
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write one HTML page about an atlas and what it does to the points of a file.

    A large file is sampled evenly over its rows. Nothing is spent.
    """
    check_outputs((output,), force, (atlas_path, queries, ledger))
    if (ledger is None) != (dataset is None):
        raise click.UsageError("--ledger and --dataset: must be given together, or neither")
    account: dict[str, Any] = {}
    if ledger is not None and dataset is not None:
        from dpmd_fast.privacy.ledger.ledger import Ledger

        account = {"ledger": Ledger(ledger), "dataset": dataset}
    from dpmd_fast.models.atlas import Atlas

    atlas = Atlas.load(atlas_path)
    report_on(atlas, queries, output, threads, **account)
    answer(as_json, {"report": output, "guarantee": atlas.guarantee}, [f"{output}: written"])


def report_on(
    atlas: Atlas,
    queries: str,
    path: str,
    threads: int | None,
    rows: int | None = None,
    **account: Any,
) -> None:
    """Write a report about an atlas and a sample of the points of a file, evenly spread over its rows."""
    from dpmd_fast.report.page import write_report
    from dpmd_fast.tables.files import read_points

    points, _ = read_points(queries, atlas.column_names, most=SAMPLE)
    moved, status = atlas.transform(points, threads, return_status=True)
    looked_at = f"{len(points):,}" if rows is None else f"{len(points):,} of {rows:,}"
    write_report(
        path,
        queries=points,
        denoised=moved,
        status=status,
        atlas=atlas,
        parameters={"queries": queries, "points looked at": looked_at},
        **account,
    )
