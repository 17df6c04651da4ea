"""The verb denoise: the estimator `DPManifoldDenoiser` on files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from dpmd_fast.cli.checks import (
    already_written,
    check_outputs,
    ledger_facts,
    ledger_lines,
    overspend_explained,
    rescued,
)
from dpmd_fast.cli.console import answer, progress
from dpmd_fast.cli.options import (
    account_of,
    adjacency_option,
    budget_of,
    budget_options,
    columns_option,
    force_option,
    json_option,
    ledger_options,
    reference_options,
    report_option,
    status_option,
    threads_option,
)
from dpmd_fast.compilation import ensure

if TYPE_CHECKING:
    from dpmd_fast.arguments import Points
    from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
    from dpmd_fast.tables.files import FileResult


@click.command(
    short_help="Denoise these queries only, for a budget.",
    epilog="""\b
Example:
  dpmd-fast denoise --reference reference.parquet queries.parquet --mechanism moments --dim 1 \\
      --bandwidth 0.6 --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o clean.parquet
""",
)
@click.argument("queries_file", metavar="QUERIES", required=False)
@click.option("--queries", "queries_option", metavar="FILE", help="The same as QUERIES.")
@reference_options
@columns_option
@click.option(
    "--mechanism",
    type=click.Choice(["moments", "projector"]),
    default="moments",
    show_default=True,
    help="'moments' holds for every data set; 'projector' is the paper's Algorithm 2, conditional.",
)
@click.option("--bandwidth", type=float, required=True, help="Ball radius.")
@click.option("--dim", type=int, required=True, help="Intrinsic dimension.")
@click.option("--steps", type=int, default=1, show_default=True, help="Updates of each query.")
@click.option("--theta", type=float, default=0.5, show_default=True, help="Projectors' share ('projector').")
@click.option(
    "--sensitivity-constant", type=float, default=1.0, show_default=True, help="C of Lemma 2 ('projector')."
)
@budget_options
@adjacency_option
@ledger_options
@click.option("-o", "--output", required=True, metavar="FILE", help="The queries, moved; all else as it was.")
@status_option
@force_option
@report_option
@threads_option
@json_option
def denoise(
    queries_file: str | None,
    queries_option: str | None,
    references: tuple[str, ...],
    batch_rows: int | None,
    seed: int | None,
    columns: Sequence[str] | None,
    mechanism: str,
    bandwidth: float,
    dim: int,
    steps: int,
    theta: float,
    sensitivity_constant: float,
    epsilon: float,
    delta: float,
    conversion: str,
    adjacency: str,
    ledger: str | None,
    dataset: str | None,
    no_ledger: bool,
    output: str,
    status_column: str | None,
    force: bool,
    report_path: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Denoise these queries only: every run spends its budget.

    Use an atlas (fit, transform) if there are more to come.
    """
    if (queries_file is None) == (queries_option is None):
        raise click.UsageError("QUERIES: must be given once")
    queries = str(queries_file or queries_option)
    from dpmd_fast.tables.files import check_pair

    check_outputs((output, report_path), force, (*references, queries, ledger))
    check_pair(queries, output, status_column)
    budget = budget_of(epsilon, delta, conversion)
    account = account_of(ledger, dataset, no_ledger)
    from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser

    model = DPManifoldDenoiser(
        bandwidth,
        dim,
        budget,
        mechanism=mechanism,
        steps=steps,
        theta=theta,
        sensitivity_constant=sensitivity_constant,
        adjacency=adjacency,
        seed=seed,
        n_threads=threads,
        batch_rows=batch_rows,
        **account,
    )
    with overspend_explained(delta):
        points, names = _matched(references, queries, columns, output, status_column, force)
        ensure("moments" if mechanism == "moments" else "paper")
        moved = _denoised(model, references, points, names)
    made = _written(model, moved, queries, output, status_column, force)
    with already_written(output):
        if report_path is not None:
            _report(model, moved, report_path)
        guarantee = model.guarantee_
        # The status of the paper's route depends on the records, and no budget pays for it.
        told = made.status if mechanism == "moments" else {"queries": made.rows}
        result = {
            "output": made.path,
            "rows": made.rows,
            "status": made.status if mechanism == "moments" else None,
            "guarantee": guarantee,
            "ledger": ledger_facts(model.receipt_),
            "report": report_path,
        }
        counts = ", ".join(f"{number:,} {word}" for word, number in told.items())
        answer(as_json, result, [f"{made.path}: {counts}", *ledger_lines(model.receipt_), str(guarantee)])


class _Moved(NamedTuple):
    """Public queries, before and after."""

    before: Points
    after: Points
    names: tuple[str, ...] | None


def _matched(
    references: Sequence[str],
    queries: str,
    columns: Sequence[str] | None,
    output: str,
    status_column: str | None,
    force: bool,
) -> tuple[Points, tuple[str, ...] | None]:
    """Return the queries and the names of their columns, after a rehearsal of writing the output."""
    from dpmd_fast.cli.reference import matched
    from dpmd_fast.tables.files import replace_points

    points, names = matched(references, queries, "QUERIES", columns)
    replace_points(
        queries, output, points, names, status_column=status_column, overwrite=force, rehearse=True
    )
    return points, names


def _denoised(
    model: DPManifoldDenoiser, references: Sequence[str], points: Points, names: tuple[str, ...] | None
) -> _Moved:
    """Fit and transform, which spends the budget."""
    import numpy as np

    from dpmd_fast.arguments import LARGEST
    from dpmd_fast.cli.reference import Watched
    from dpmd_fast.reference.sources.files import open_files
    from dpmd_fast.reference.sources.validity import check_valid

    source = open_files(references, names, model.batch_rows)
    with progress("reading the reference", " rows" if model.adjacency == "replace-one" else None) as bar:
        watched = Watched(source, bar)
        with warnings.catch_warnings():
            # columns were matched by name already
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            if model.mechanism == "moments":
                model.fit(watched)
            else:
                check_valid(watched, LARGEST, "clean the reference")
                model.fit(np.concatenate([np.empty((0, source.n_columns)), *watched.blocks()]))
            return _Moved(points, model.transform(points), names)


def _written(
    model: DPManifoldDenoiser,
    moved: _Moved,
    queries: str,
    output: str,
    status_column: str | None,
    force: bool,
) -> FileResult:
    from dpmd_fast.tables.files import replace_points

    def save(path: str) -> FileResult:
        made = replace_points(
            queries,
            path,
            moved.after,
            moved.names,
            status=model.status_,
            status_column=status_column,
            overwrite=force,
        )
        if model.receipt_ is not None:
            model.receipt_.record_file(made.path)
        return made

    return rescued(output, save)


def _report(model: DPManifoldDenoiser, moved: _Moved, path: str) -> None:
    from dpmd_fast.report.page import write_report

    asked = {name: value for name, value in model.get_params().items() if name not in ("ledger", "dataset")}
    write_report(
        path,
        queries=moved.before,
        denoised=moved.after,
        status=model.status_,
        guarantee=model.guarantee_,
        receipt=model.receipt_,
        parameters=asked,
        column_names=moved.names,
    )
