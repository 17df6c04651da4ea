"""The verb plan: will a release help, and which one?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.choice import named
from dpmd_fast.cli.console import aligned, answer
from dpmd_fast.cli.models import COVER, check_kind, columns_for, kind_option, or_auto, shape_options
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
from dpmd_fast.compilation import ensure, route_of

if TYPE_CHECKING:
    from dpmd_fast.models.plan import Plan

_COLUMNS_SHOWN = 30


@click.command(
    short_help="Say whether a release would help, and which.",
    epilog="""\b
Example:
  dpmd-fast plan --reference-rows 50000 --queries queries.parquet --noise 0.5 --epsilon 1 --delta 1e-6
  dpmd-fast plan --reference-rows 50000 --queries queries.parquet --dim 1 --epsilon 1 --delta 1e-6
""",
)
@kind_option
@click.option("--reference-rows", type=int, required=True, help="Number of private records, if it is public.")
@click.option(
    "--queries",
    "--public",
    "queries",
    required=True,
    metavar="FILE",
    help="Public points: .parquet, .csv, .arrow or .npy.",
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
    """Say whether an atlas or a mixture would help these queries, and by how much, from public numbers.

    Nothing is spent and no reference is read.
    """
    noise = noise_of(noises)
    check_kind(
        kind,
        atlas={"--dim": dim, "--bandwidth": bandwidth, "--cover": cover},
        mixture={"--components": components, "--rounds": rounds},
    )
    if kind == "mixture" and noise is None:
        raise click.UsageError(f"--noise: must be given with --model mixture: {WHAT}")
    budget = budget_of(epsilon, delta, conversion)
    preprocess = preprocessor_of(preprocess_path)
    from dpmd_fast.models.plan import plan as predict
    from dpmd_fast.tables.files import read_points

    points, names = read_points(queries, columns_for(columns, preprocess), missing=kind != "atlas")
    ensure(
        *(() if kind == "mixture" else route_of("prediction", points.shape[1])),
        *(() if kind == "atlas" else ("posterior",)),
    )
    made = predict(
        named(points, names),
        reference_rows,
        model=kind,
        noise=noise,
        dim=or_auto(dim),
        bandwidth=or_auto(bandwidth),
        cover=COVER if cover is None else cover,
        components=or_auto(components),
        rounds=or_auto(rounds),
        preprocess=preprocess,
        budget=budget,
        adjacency=adjacency,
        n_threads=threads,
    )
    answer(as_json, facts_of(made), [*lines_of(made), *_column_lines(made)])


def facts_of(made: Plan) -> dict[str, Any]:
    """Return a plan for machines."""
    facts = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    for name in ("atlas", "mixture"):
        part = facts[name]
        if part is not None:
            fields = {one.name: getattr(part, one.name) for one in dataclasses.fields(part)}
            fields = {one: value for one, value in fields.items() if one not in ("search", "recipe")}
            facts[name] = fields | {"verdict": part.verdict.to_dict()}
    facts["columns"] = [one._asdict() for one in made.columns]
    return facts


def lines_of(made: Plan) -> list[str]:
    """Return a plan for people: the verdict first."""
    rows = [
        ("verdict", made.verdict),
        ("error of a value, raw", _with_unit(made.raw_error, made.unit)),
        ("predicted after the model", _with_unit(made.predicted_error, made.unit)),
        ("the queries alone, no budget", _with_unit(made.public_only_error, made.unit)),
    ]
    if made.candidate == "atlas" and made.atlas is not None:
        atlas = made.atlas
        rows += [
            ("queries in reach", f"{atlas.reach:.0%}"),
            ("distance left by noise, by bias", f"{atlas.noise_error:.3g}, {atlas.bias_error:.3g}"),
            ("dimension", str(atlas.dim)),
            ("bandwidth to begin with", f"{atlas.bandwidth:.4g}"),
            ("rounds", str(atlas.rounds)),
            ("charts", str(atlas.anchors)),
            ("signal to noise", f"{atlas.signal_to_noise:.3g}"),
            ("epsilon for three rounds", f"{made.recommended_epsilon:.3g}"),
            ("time, one core", f"about {made.seconds:.1f} s and reading"),
        ]
    elif made.mixture is not None:
        mixture = made.mixture
        rows += [
            ("components", str(mixture.components)),
            ("rounds", str(mixture.rounds)),
            ("records over noise", f"{mixture.signal_to_noise:.3g}"),
            ("mass over noise of a component", f"{mixture.component_signal:.3g}"),
            ("records that would be enough", f"{mixture.enough_records:,}"),
        ]
    rows.append(("would spend mu^2", f"{made.mu2:.4g}"))
    return [made.advice, *aligned(rows)]


def _column_lines(made: Plan) -> list[str]:
    if not made.columns:
        return []
    shown = [(one.name, f"{one.raw:.3g} -> {one.predicted:.3g}") for one in made.columns[:_COLUMNS_SHOWN]]
    more = len(made.columns) - len(shown)
    start = "Predicted error of a value by column, in its unit"
    return [
        f"{start}:" if made.model != "nothing" else f"{start}, if it were released all the same:",
        *aligned(shown),
        *([f"... and {more} more"] if more else []),
    ]


def _with_unit(error: float, unit: str) -> str:
    return "not known" if math.isnan(error) else f"{error:.3g} {unit}"
