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
from dpmd_fast.cli.choice import PublicInput, choose_model, public_of
from dpmd_fast.cli.console import aligned, answer, progress
from dpmd_fast.cli.models import (
    COVER,
    check_kind,
    columns_for,
    key_option,
    kind_option,
    or_auto,
    require,
    shape_options,
)
from dpmd_fast.cli.noise import noise_of, noise_option
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
    risk_option,
    threads_option,
)
from dpmd_fast.compilation import ensure, route_of

if TYPE_CHECKING:
    from dpmd_fast.arguments import Points
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.privacy.keys import SigningKey
    from dpmd_fast.reference.sources.base import ReferenceSource


@click.command(
    short_help="Spend a budget once, and write a model.",
    epilog="""\b
Example:
  dpmd-fast ledger create --ledger budget.db --dataset clinic --epsilon 3 --delta 1e-6
  dpmd-fast fit --reference reference.parquet --queries queries.parquet --noise 0.5 \\
      --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o model.dpmd
  dpmd-fast fit --model atlas --dim 1 --reference reference.parquet --queries queries.parquet \\
      --epsilon 1 --delta 1e-6 --ledger budget.db --dataset clinic -o circle.dpmd
""",
)
@kind_option
@reference_options
@click.option(
    "--queries",
    "--anchors",
    "--public",
    "queries",
    metavar="FILE",
    help="Public points to clean, or points like them; never records. An atlas is built around them; for "
    "a mixture without --preprocess, their medians and MADs become the units of the columns.",
)
@columns_option
@shape_options
@click.option("--rounds", type=INTEGER_OR_AUTO, default="auto", show_default=True, help="Number of releases.")
@click.option(
    "--on-missing",
    type=click.Choice(["fill", "drop", "raise"]),
    help="Mixture: what becomes of records with missing values.  [default: fill]",
)
@noise_option
@risk_option
@budget_options
@adjacency_option
@click.option("--n-public", type=int, help="A public guess of the number of records, for 'add-remove'.")
@on_invalid_option
@ledger_options
@key_option
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
    queries: str | None,
    columns: Sequence[str] | None,
    dim: Any,
    bandwidth: Any,
    cover: float | None,
    components: Any,
    preprocess_path: str | None,
    rounds: Any,
    on_missing: str | None,
    noises: tuple[str, ...],
    accept_risk: bool,
    epsilon: float,
    delta: float,
    conversion: str,
    adjacency: Any,
    n_public: int | None,
    on_invalid: str,
    ledger: str | None,
    dataset: str | None,
    no_ledger: bool,
    key: str | None,
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
        atlas={"--dim": dim, "--bandwidth": bandwidth, "--cover": cover},
        mixture={"--components": components, "--on-missing": on_missing},
    )
    check_outputs((output, report_path), force, (*references, queries, ledger, preprocess_path, key))
    if kind != "mixture":
        require({"--queries": queries})
    budget = budget_of(epsilon, delta, conversion)
    account = account_of(ledger, dataset, no_ledger)
    signer = _signer(key)
    preprocess = preprocessor_of(preprocess_path)
    public = public_of(references, queries, columns_for(columns, preprocess), kind, batch_rows, preprocess)
    noise = noise_of(noises)
    options: dict[str, Any] = {"noise": noise, "accept_risk": accept_risk}
    shape = {"bandwidth": or_auto(bandwidth), "dim": or_auto(dim), "cover": COVER if cover is None else cover}
    mixed = {"components": or_auto(components), "on_missing": on_missing or "fill"}
    chosen = kind
    if kind == "auto":
        assert public.points is not None  # --queries was required
        ensure(*route_of("prediction", public.points.shape[1]), "posterior")
        chosen = choose_model(
            public,
            {**shape, "components": mixed["components"], "rounds": rounds, "noise": noise},
            {"budget": budget, "adjacency": adjacency, "n_threads": threads},
            n_public,
            accept_risk=accept_risk,
        )
    options |= mixed if chosen == "mixture" else shape
    prepared = _prepared(public, chosen, options)
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
    rescued(output, model.save if signer is None else partial(model.save, key=signer))
    with already_written(output):
        if report_path is not None:
            _report(model, prepared, report_path, threads, {"budget": budget, **options, "rounds": rounds})
        _answer(model, output, report_path, signer, as_json)


def _answer(
    model: Atlas | Mixture, output: str, report_path: str | None, signer: SigningKey | None, as_json: bool
) -> None:
    """Print what was released, the verdict first."""
    facts = {kind_of(model): output, **model_facts(model), "ledger": ledger_facts(model.receipt)}
    facts["signed_by"] = None if signer is None else signer.name
    answer(
        as_json,
        {**facts, "report": report_path},
        [
            *([str(model.verdict)] if model.verdict is not None else []),
            *aligned([(kind_of(model), output), *model_rows(model)]),
            *ledger_lines(model.receipt),
            str(model.guarantee),
            *([] if signer is None else [f"{output} is signed by {signer.name}."]),
        ],
    )


def _signer(key: str | None) -> SigningKey | None:
    """Return the key that signs the model, read before anything is spent."""
    if key is None:
        return None
    from dpmd_fast.privacy.keys import signing_key

    return signing_key(key)


class _Prepared(NamedTuple):
    """What a release needs besides the terms: the function, the private records, public points."""

    release: Callable[..., Atlas | Mixture]
    source: ReferenceSource
    anchors: Points | None


def _prepared(public: PublicInput, chosen: str, options: dict[str, Any]) -> _Prepared:
    if chosen == "mixture":
        from dpmd_fast.mechanisms.mixture import release_mixture

        points = public.table
        return _Prepared(
            partial(release_mixture, public=points, preprocess=public.preprocess, **options),
            public.source,
            public.points,
        )
    from dpmd_fast.mechanisms.atlas.release import release_atlas

    assert public.points is not None
    release = partial(release_atlas, anchors=public.points, preprocess=public.preprocess, **options)
    return _Prepared(release, public.source, public.points)


def _report(
    model: Atlas | Mixture, prepared: _Prepared, path: str, threads: int | None, asked: dict[str, Any]
) -> None:
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.report.page import write_report

    noise = asked.pop("noise")
    by_column = isinstance(noise, dict)
    asked["noise"] = ", ".join(f"{name} {size:g}" for name, size in noise.items()) if by_column else noise
    if isinstance(model, Mixture):
        known = noise is not None and prepared.anchors is not None
        cleaned = {"queries": prepared.anchors, "noise": noise} if known else {}
        write_report(path, mixture=model, parameters=asked, **cleaned)
        return
    assert prepared.anchors is not None
    moved, status = model.transform(prepared.anchors, threads, return_status=True)
    write_report(path, queries=prepared.anchors, denoised=moved, status=status, atlas=model, parameters=asked)
