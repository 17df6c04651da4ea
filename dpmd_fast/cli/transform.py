"""The verb transform: move the points of a file with an atlas."""

from __future__ import annotations

import time
from typing import Any

import click

from dpmd_fast.cli.checks import already_written, check_outputs
from dpmd_fast.cli.console import answer, progress
from dpmd_fast.cli.options import force_option, json_option, report_option, status_option, threads_option


@click.command(
    short_help="Move the points of a file with an atlas.",
    epilog="""\b
Example:
  dpmd-fast transform --atlas atlas.dpmd queries.parquet -o clean.parquet --status-column status
""",
)
@click.option("--atlas", "atlas_path", required=True, metavar="FILE.dpmd", help="What fit has written.")
@click.argument("queries", metavar="QUERIES")
@click.option("-o", "--output", required=True, metavar="FILE", help="The points, moved; all else as it was.")
@status_option
@force_option
@report_option
@threads_option
@json_option
def transform(
    atlas_path: str,
    queries: str,
    output: str,
    status_column: str | None,
    force: bool,
    report_path: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Move the points of a file toward the manifold; costs no budget and needs no reference.

    QUERIES and the output are .parquet, .csv or .arrow files, or both .npy. Columns are found by the names
    that the atlas has; other columns and the metadata are kept. Memory does not grow with the file.
    """
    check_outputs((output, report_path), force, (atlas_path, queries))
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.tables.files import transform_file

    atlas = Atlas.load(atlas_path)
    start = time.perf_counter()
    with progress("transform") as bar:
        made = transform_file(
            atlas,
            queries,
            output,
            status_column=status_column,
            overwrite=force,
            n_threads=threads,
            progress=bar,
        )
    seconds = time.perf_counter() - start
    with already_written(output):
        if report_path is not None:
            from dpmd_fast.cli.report import report_on

            report_on(atlas, queries, report_path, threads, made.rows)
        result: dict[str, Any] = {
            "output": made.path,
            "rows": made.rows,
            "status": made.status,
            "seconds": seconds,
            "report": report_path,
            "guarantee": atlas.guarantee,
        }
        counts = ", ".join(f"{number:,} {word}" for word, number in made.status.items()) or "no rows"
        answer(as_json, result, [f"{made.path}: {counts}", str(atlas.guarantee)])
