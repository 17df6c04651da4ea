"""The verb transform: clean the points of a file with a model."""

from __future__ import annotations

import time
from typing import Any

import click

from dpmd_fast.cli.checks import already_written, check_outputs, kind_of
from dpmd_fast.cli.console import answer, progress
from dpmd_fast.cli.models import check_settings, load_given, model_options, path_of
from dpmd_fast.cli.noise import noise_of, noise_option
from dpmd_fast.cli.options import force_option, json_option, report_option, status_option, threads_option
from dpmd_fast.kernels import late


@click.command(
    short_help="Clean the points of a file with a model.",
    epilog="""\b
Example:
  dpmd-fast transform --model atlas.dpmd queries.parquet -o clean.parquet --status-column status
  dpmd-fast transform --model mixture.dpmd --noise 0.5 queries.parquet -o better.parquet
  dpmd-fast transform --model mixture.dpmd --noise x=0.2 --noise y=0.1 --deviations _sd queries.parquet \\
      -o known.parquet
""",
)
@model_options
@click.argument("queries", metavar="QUERIES")
@noise_option
@click.option(
    "--on-missing",
    type=click.Choice(["fill", "keep", "refuse"]),
    help="What becomes of missing values: a mixture can fill them in, and an atlas leaves rows with missing "
    "values as they are under keep.  [default: fill for a mixture, refuse for an atlas]",
)
@click.option(
    "--deviations",
    metavar="SUFFIX",
    help="For a mixture: add a column NAME + SUFFIX with the error bar of each value of column NAME.",
)
@click.option("-o", "--output", required=True, metavar="FILE", help="The points, clean; all else as it was.")
@status_option
@force_option
@report_option
@threads_option
@json_option
def transform(
    model_path: str | None,
    atlas_path: str | None,
    trusted: tuple[str, ...],
    queries: str,
    noises: tuple[str, ...],
    on_missing: str | None,
    deviations: str | None,
    output: str,
    status_column: str | None,
    force: bool,
    report_path: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Clean the points of a file; costs no budget and needs no reference.

    An atlas moves them toward the manifold. A mixture replaces each by what is expected behind its noise, and
    fills in missing values.

    QUERIES and the output are .parquet, .csv or .arrow files, or both .npy. Columns are found by the names
    that the model has; other columns and the metadata are kept. Memory does not grow with the file.
    """
    late.avoid()  # before anything imports a kernel
    check_outputs((output, report_path), force, (path_of(model_path, atlas_path), queries, *noises, *trusted))
    noise = noise_of(noises)
    model = load_given(model_path, atlas_path, trusted)
    check_settings(model, noise, **{"--deviations": deviations})
    if kind_of(model) == "atlas" and on_missing == "fill":
        raise click.UsageError("--on-missing fill is for a mixture: must be keep or refuse with an atlas")
    from dpmd_fast.tables.files import transform_file

    model.prepare()
    start = time.perf_counter()
    with progress("transform") as bar:
        made = transform_file(
            model,
            queries,
            output,
            noise=noise,
            on_missing=on_missing,
            deviation_suffix=deviations,
            status_column=status_column,
            overwrite=force,
            n_threads=threads,
            progress=bar,
        )
    seconds = time.perf_counter() - start
    with already_written(output):
        if report_path is not None:
            from dpmd_fast.cli.report import report_on

            report_on(
                model,
                queries,
                report_path,
                threads,
                noise,
                made.rows,
                kept=on_missing == "keep",
                trusted=bool(trusted),
            )
        result: dict[str, Any] = {
            "output": made.path,
            "rows": made.rows,
            "status": made.status,
            "seconds": seconds,
            "report": report_path,
            "model": kind_of(model),
            "guarantee": model.guarantee,
            "signed_by": None if model.signature is None else model.signature.key,
        }
        counts = ", ".join(f"{number:,} {word}" for word, number in made.status.items()) or "no rows"
        from dpmd_fast.models.signature import words_about

        lines = [
            f"{made.path}: {counts}",
            str(model.guarantee),
            f"The model is {words_about(model.signature, trusted=bool(trusted))}.",
        ]
        answer(as_json, result, lines)
