"""The verb plan: what a release would cost and give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.console import aligned, answer
from dpmd_fast.cli.models import COVER, check_kind, columns_for, kind_option, or_auto, require, shape_options
from dpmd_fast.cli.noise import WHAT, noise_of, noise_option
from dpmd_fast.cli.options import (
    INTEGER_OR_AUTO,
    adjacency_option,
    budget_of,
    budget_options,
    columns_option,
    json_option,
    preprocessor_of,
    threads_option,
)

if TYPE_CHECKING:
    from dpmd_fast.models.plan import Plan
    from dpmd_fast.models.plan_mixture import MixturePlan


@click.command(
    short_help="Predict cost and error from public numbers.",
    epilog="""\b
Example:
  dpmd-fast plan --reference-rows 50000 --queries queries.parquet --dim 1 --epsilon 1 --delta 1e-6
  dpmd-fast plan --model mixture --reference-rows 50000 --queries queries.parquet --noise 0.5 \\
      --epsilon 1 --delta 1e-6
""",
)
@kind_option
@click.option("--reference-rows", type=int, required=True, help="Number of private records, if it is public.")
@click.option(
    "--queries", required=True, metavar="FILE", help="Public points: .parquet, .csv, .arrow or .npy."
)
@columns_option
@shape_options
@click.option("--rounds", type=INTEGER_OR_AUTO, help="Mixture: number of releases.  [default: auto]")
@noise_option
@budget_options
@adjacency_option
@threads_option
@json_option
def plan(
    kind: str,
    reference_rows: int,
    queries: str,
    columns: Sequence[str] | None,
    dim: Any,
    bandwidth: Any,
    cover: float | None,
    components: Any,
    preprocess_path: str | None,
    rounds: Any,
    noises: tuple[str, ...],
    epsilon: float,
    delta: float,
    conversion: str,
    adjacency: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Predict what a model would cost and give, from public numbers.

    Nothing is spent and no reference is read.
    """
    noise = noise_of(noises)
    check_kind(
        kind,
        atlas={"--dim": dim, "--bandwidth": bandwidth, "--cover": cover},
        mixture={"--components": components, "--rounds": rounds, "--noise": noise},
    )
    if kind == "atlas":
        require({"--dim": dim})
    elif noise is None:
        raise click.UsageError(f"--noise: must be given with --model mixture: {WHAT}")
    budget = budget_of(epsilon, delta, conversion)
    preprocess = preprocessor_of(preprocess_path)
    from dpmd_fast.tables.files import read_points

    points, names = read_points(queries, columns_for(columns, preprocess), missing=kind == "mixture")
    common: dict[str, Any] = {"budget": budget, "adjacency": adjacency, "n_threads": threads}
    if kind == "mixture":
        from dpmd_fast.models.plan_mixture import plan_mixture
        from dpmd_fast.models.preprocessor import units_of

        mixture = plan_mixture(
            points,
            reference_rows,
            noise=noise,
            components=or_auto(components),
            rounds=or_auto(rounds),
            preprocess=units_of(points, names, queries) if preprocess is None else preprocess,
            **common,
        )
        answer(as_json, vars(mixture), [*aligned(_mixture_rows(mixture)), mixture.advice])
        return
    if preprocess is not None:
        points = preprocess.forward(points, name=queries)
    from dpmd_fast.models.plan import plan as predict

    atlas = predict(
        points,
        reference_rows,
        dim=dim,
        bandwidth=or_auto(bandwidth),
        cover=COVER if cover is None else cover,
        **common,
    )
    answer(as_json, vars(atlas), [*aligned(_atlas_rows(atlas)), atlas.advice])


def _atlas_rows(made: Plan) -> list[tuple[str, str]]:
    return [
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


def _mixture_rows(made: MixturePlan) -> list[tuple[str, str]]:
    alone = f"{made.public_only_error:.3g} of that" if made.raw_error > 0.0 else "nothing to remove"
    return [
        ("components", str(made.components)),
        ("rounds", str(made.rounds)),
        ("records over noise", f"{made.signal_to_noise:.3g}"),
        ("mass over noise of a component", f"{made.component_signal:.3g}"),
        ("records that would be enough", f"{made.enough_records:,}"),
        ("squared error of the queries", f"{made.raw_error:.3g} in preprocessed units"),
        ("after a linear filter of their own", alone),
        ("spends mu^2", f"{made.mu2:.4g}"),
    ]
