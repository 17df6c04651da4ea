"""The verb transform: files of public points through an atlas."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.console import answer, progress
from dpmd_fast.cli.options import force_option, json_option, report_option, status_option, threads_option
from dpmd_fast.cli.outcome import already_written, check_outputs, load_atlas

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas

SAMPLE = 20_000  # points that a report looks at


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
    from dpmd_fast.tables.files import transform_file

    atlas = load_atlas(atlas_path)
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


def report_on(
    atlas: Atlas,
    queries: str,
    path: str,
    threads: int | None,
    rows: int | None = None,
    **account: Any,
) -> None:
    """A report about an atlas and some points of a file, evenly spread over its rows."""
    from dpmd_fast.report.page import write_report
    from dpmd_fast.tables.files import read_points

    points, _ = read_points(queries, atlas.column_names, most=SAMPLE)
    looked_at = f"{len(points):,}" if rows is None else f"{len(points):,} of {rows:,}"
    write_report(
        path,
        queries=points,
        denoised=atlas.transform(points, threads),
        status=atlas.status_,  # type: ignore[attr-defined]
        atlas=atlas,
        parameters={"queries": queries, "points looked at": looked_at},
        **account,
    )
