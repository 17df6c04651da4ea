"""The verb fit: spend a budget, write a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dpmd_fast.cli.checks import (
    already_written,
    check_outputs,
    kind_of,
    ledger_facts,
    ledger_lines,
    model_facts,
    model_rows,
    overspend_explained,
    rescued,
)
from dpmd_fast.cli.console import aligned, answer, progress
from dpmd_fast.cli.models import COVER, check_kind, columns_for, kind_option, or_auto, require, shape_options
from dpmd_fast.cli.options import (
    INTEGER_OR_AUTO,
    account_of,
    adjacency_option,
    budget_of,
    budget_options,
    columns_option,
    force_option,
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
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.reference.sources.base import ReferenceSource


@click.command(
    short_help="Spend a budget once, and write a model.",
    epilog="""\b
Example:
  dpmd-fast ledger create --ledger budget.db --dataset clinic --epsilon 3 --delta 1e-6
  dpmd-fast fit --reference reference.parquet --anchors queries.parquet --dim 1 \\
      --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o atlas.dpmd
  dpmd-fast fit --model mixture --reference reference.parquet --queries queries.parquet \\
      --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o markers.dpmd
""",
)
@kind_option
@reference_options
@click.option("--anchors", metavar="FILE", help="Atlas: public points around the manifold, never records.")
@click.option(
    "--queries",
    metavar="FILE",
    help="Mixture: public points, never records, whose medians and MADs become the units of the columns; "
    "instead of --preprocess.",
)
@columns_option
@shape_options
@click.option("--rounds", type=INTEGER_OR_AUTO, default="auto", show_default=True, help="Number of releases.")
@click.option(
    "--on-missing",
    type=click.Choice(["fill", "drop", "raise"]),
    help="Mixture: what becomes of records with missing values.  [default: fill]",
)
@budget_options
@adjacency_option
@click.option("--n-public", type=int, help="A public guess of the number of records, for 'add-remove'.")
@on_invalid_option
@ledger_options
@click.option("-o", "--output", required=True, metavar="FILE.dpmd", help="The model.")
@force_option
@report_option
@threads_option
@json_option
def fit(
    kind: str,
    references: tuple[str, ...],
    batch_rows: int | None,
    seed: int | None,
    anchors: str | None,
    queries: str | None,
    columns: Sequence[str] | None,
    dim: Any,
    bandwidth: Any,
    cover: float | None,
    components: Any,
    preprocess_path: str | None,
    rounds: Any,
    on_missing: str | None,
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
    """Spend a budget on a private reference once, and write a model.

    The model denoises any number of points, anywhere, at no further cost (dpmd-fast transform): an atlas
    those near a curve or surface; a mixture all others, and it fills in what is missing.
    """
    check_kind(
        kind,
        atlas={"--anchors": anchors, "--dim": dim, "--bandwidth": bandwidth, "--cover": cover},
        mixture={"--queries": queries, "--components": components, "--on-missing": on_missing},
    )
    check_outputs((output, report_path), force, (*references, anchors, queries, ledger, preprocess_path))
    if kind == "atlas":
        require({"--anchors": anchors, "--dim": dim})
    elif queries is not None and preprocess_path is not None:
        raise click.UsageError("--queries and --preprocess: must not both be given; either gives the units")
    budget = budget_of(epsilon, delta, conversion)
    account = account_of(ledger, dataset, no_ledger)
    preprocess = preprocessor_of(preprocess_path)
    chosen = columns_for(columns, preprocess)
    if kind == "mixture":
        options = {"components": or_auto(components), "on_missing": on_missing or "fill"}
        prepared = _mixture(references, queries, chosen, batch_rows, preprocess, options)
    else:
        cover = COVER if cover is None else cover
        options = {"bandwidth": or_auto(bandwidth), "dim": dim, "cover": cover}
        prepared = _atlas(references, str(anchors), chosen, batch_rows, preprocess, options)
    from dpmd_fast.cli.reference import Watched

    with (
        progress("reading the reference", " rows" if adjacency == "replace-one" else None) as bar,
        overspend_explained(delta),
    ):
        model = prepared.release(
            Watched(prepared.source, bar),
            budget=budget,
            rounds=rounds,
            adjacency=adjacency,
            on_invalid=on_invalid,
            n_public=n_public,
            seed=seed,
            n_threads=threads,
            **account,
        )
    rescued(output, model.save)
    with already_written(output):
        if report_path is not None:
            _report(model, prepared, report_path, threads, {"budget": budget, **options, "rounds": rounds})
        facts = {kind_of(model): output, **model_facts(model), "ledger": ledger_facts(model.receipt)}
        answer(
            as_json,
            {**facts, "report": report_path},
            [
                *aligned([(kind_of(model), output), *model_rows(model)]),
                *ledger_lines(model.receipt),
                str(model.guarantee),
            ],
        )


class _Prepared(NamedTuple):
    """What a release needs besides the terms: the function, the private records, public points."""

    release: Callable[..., Atlas | Mixture]
    source: ReferenceSource
    anchors: Points | None


def _atlas(
    references: tuple[str, ...],
    anchors: str,
    columns: Sequence[str] | None,
    batch_rows: int | None,
    preprocess: Preprocessor | None,
    options: dict[str, Any],
) -> _Prepared:
    from dpmd_fast.cli.reference import matched
    from dpmd_fast.mechanisms.atlas.release import release_atlas
    from dpmd_fast.reference.sources.files import open_files

    points, names = matched(references, anchors, "--anchors", columns)
    release = partial(release_atlas, anchors=points, preprocess=preprocess, **options)
    return _Prepared(release, open_files(references, names, batch_rows), points)


def _mixture(
    references: tuple[str, ...],
    queries: str | None,
    columns: Sequence[str] | None,
    batch_rows: int | None,
    preprocess: Preprocessor | None,
    options: dict[str, Any],
) -> _Prepared:
    from dpmd_fast.cli.reference import matched
    from dpmd_fast.mechanisms.mixture import release_mixture
    from dpmd_fast.models.preprocessor import units_of
    from dpmd_fast.reference.sources.files import open_files

    names = columns
    if queries is not None:
        points, names = matched(references, queries, "--queries", columns, missing=True)
        preprocess = units_of(points, names, queries)
    release = partial(release_mixture, preprocess=preprocess, **options)
    return _Prepared(release, open_files(references, names, batch_rows), None)


def _report(
    model: Atlas | Mixture, prepared: _Prepared, path: str, threads: int | None, asked: dict[str, Any]
) -> None:
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.report.page import write_report

    if isinstance(model, Mixture):
        write_report(path, mixture=model, parameters=asked)
        return
    assert prepared.anchors is not None
    moved, status = model.transform(prepared.anchors, threads, return_status=True)
    write_report(path, queries=prepared.anchors, denoised=moved, status=status, atlas=model, parameters=asked)
