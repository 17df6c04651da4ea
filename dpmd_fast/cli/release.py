"""The verbs that release an atlas: plan, fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.checks import (
    already_written,
    atlas_facts,
    atlas_rows,
    check_outputs,
    ledger_facts,
    ledger_lines,
    overspend_explained,
    rescued,
)
from dpmd_fast.cli.console import aligned, answer, progress
from dpmd_fast.cli.options import (
    INTEGER_OR_AUTO,
    NUMBER_OR_AUTO,
    account_of,
    adjacency_option,
    budget_of,
    budget_options,
    columns_option,
    force_option,
    joined,
    json_option,
    ledger_options,
    on_invalid_option,
    preprocessor_of,
    reference_options,
    report_option,
    threads_option,
)

if TYPE_CHECKING:
    from dpmd_fast.arguments import Points
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.preprocessor import Preprocessor

_DIM = "Intrinsic dimension of the manifold; 'auto' reads it off public points, then off the release."
_shape_options = joined(
    click.option("--dim", type=INTEGER_OR_AUTO, required=True, help=_DIM),
    click.option(
        "--bandwidth", type=NUMBER_OR_AUTO, default="auto", show_default=True, help="Radius of the charts."
    ),
    click.option(
        "--cover", type=float, default=0.3, show_default=True, help="Distance of charts in bandwidths."
    ),
    click.option(
        "--preprocess", "preprocess_path", metavar="FILE.json", help="Preprocessor: log, scale and clip."
    ),
)


@click.command(
    short_help="Predict cost and error from public numbers.",
    epilog="""\b
Example:
  dpmd-fast plan --reference-rows 50000 --queries queries.parquet --dim 1 --epsilon 1 --delta 1e-6
""",
)
@click.option("--reference-rows", type=int, required=True, help="Number of private records, if it is public.")
@click.option(
    "--queries", required=True, metavar="FILE", help="Public points: .parquet, .csv, .arrow or .npy."
)
@columns_option
@_shape_options
@budget_options
@adjacency_option
@threads_option
@json_option
def plan(
    reference_rows: int,
    queries: str,
    columns: Sequence[str] | None,
    dim: Any,
    bandwidth: Any,
    cover: float,
    preprocess_path: str | None,
    epsilon: float,
    delta: float,
    conversion: str,
    adjacency: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Predict what an atlas would cost and give, from public numbers.

    Nothing is spent and no reference is read.
    """
    budget = budget_of(epsilon, delta, conversion)
    preprocess = preprocessor_of(preprocess_path)
    from dpmd_fast.models.plan import plan as predict
    from dpmd_fast.tables.files import read_points

    points, _ = read_points(queries, _columns_for(columns, preprocess))
    if preprocess is not None:
        points = preprocess.forward(points, name=queries)
    made = predict(
        points,
        reference_rows,
        dim=dim,
        budget=budget,
        bandwidth=bandwidth,
        cover=cover,
        adjacency=adjacency,
        n_threads=threads,
    )
    rows = [
        ("dimension", str(made.dim)),
        ("bandwidth to begin with", f"{made.bandwidth:.4g}"),
        ("rounds", str(made.rounds)),
        ("charts", str(made.anchors)),
        ("signal to noise", f"{made.signal_to_noise:.3g}"),
        ("error from noise", f"{made.noise_error:.3g}"),
        ("spends mu^2", f"{made.mu2:.4g}"),
        ("epsilon for three rounds", f"{made.recommended_epsilon:.3g}"),
        ("time, one core", f"about {made.seconds:.1f} s and reading"),
    ]
    answer(as_json, vars(made), [*aligned(rows), made.advice])


@click.command(
    short_help="Spend a budget once, and write an atlas.",
    epilog="""\b
Example:
  dpmd-fast ledger create --ledger budget.db --dataset clinic --epsilon 3 --delta 1e-6
  dpmd-fast fit --reference reference.parquet --anchors queries.parquet --dim 1 \\
      --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o atlas.dpmd
""",
)
@reference_options
@click.option(
    "--anchors", required=True, metavar="FILE", help="Public points around the manifold, never records."
)
@columns_option
@_shape_options
@click.option("--rounds", type=INTEGER_OR_AUTO, default="auto", show_default=True, help="Number of releases.")
@budget_options
@adjacency_option
@click.option("--n-public", type=int, help="A public guess of the number of records, for 'add-remove'.")
@on_invalid_option
@ledger_options
@click.option("-o", "--output", required=True, metavar="FILE.dpmd", help="The atlas.")
@force_option
@report_option
@threads_option
@json_option
def fit(
    references: tuple[str, ...],
    batch_rows: int | None,
    seed: int | None,
    anchors: str,
    columns: Sequence[str] | None,
    dim: Any,
    bandwidth: Any,
    cover: float,
    preprocess_path: str | None,
    rounds: Any,
    epsilon: float,
    delta: float,
    conversion: str,
    adjacency: Any,
    n_public: int | None,
    on_invalid: str,
    ledger: str | None,
    dataset: str | None,
    no_ledger: bool,
    output: str,
    force: bool,
    report_path: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Spend a budget on a private reference once, and write an atlas.

    The atlas denoises any number of points, anywhere, at no further cost (dpmd-fast transform).
    """
    check_outputs((output, report_path), force, (*references, anchors, ledger, preprocess_path))
    budget = budget_of(epsilon, delta, conversion)
    account = account_of(ledger, dataset, no_ledger)
    preprocess = preprocessor_of(preprocess_path)
    from dpmd_fast.cli.reference import Watched, matched
    from dpmd_fast.mechanisms.atlas.release import release_atlas
    from dpmd_fast.reference.sources.files import open_files

    points, names = matched(references, anchors, "--anchors", _columns_for(columns, preprocess))
    source = open_files(references, names, batch_rows)
    with (
        progress("reading the reference", " rows" if adjacency == "replace-one" else None) as bar,
        overspend_explained(delta),
    ):
        atlas = release_atlas(
            Watched(source, bar),
            points,
            bandwidth=bandwidth,
            dim=dim,
            budget=budget,
            rounds=rounds,
            cover=cover,
            adjacency=adjacency,
            on_invalid=on_invalid,
            preprocess=preprocess,
            n_public=n_public,
            seed=seed,
            n_threads=threads,
            **account,
        )
    rescued(output, atlas.save)
    with already_written(output):
        if report_path is not None:
            asked = {"budget": budget, "bandwidth": bandwidth, "dim": dim, "rounds": rounds, "cover": cover}
            _report(atlas, points, report_path, threads, asked)
        answer(
            as_json,
            {
                "atlas": output,
                **atlas_facts(atlas),
                "ledger": ledger_facts(atlas.receipt),
                "report": report_path,
            },
            [
                *aligned([("atlas", output), *atlas_rows(atlas)]),
                *ledger_lines(atlas.receipt),
                str(atlas.guarantee),
            ],
        )


def _report(atlas: Atlas, points: Points, path: str, threads: int | None, asked: dict[str, Any]) -> None:
    from dpmd_fast.report.page import write_report

    moved, status = atlas.transform(points, threads, return_status=True)
    write_report(path, queries=points, denoised=moved, status=status, atlas=atlas, parameters=asked)


def _columns_for(columns: Sequence[str] | None, preprocess: Preprocessor | None) -> Sequence[str] | None:
    """Return the columns that were asked for, by default those of the preprocessor."""
    return columns if columns is not None or preprocess is None else preprocess.column_names
