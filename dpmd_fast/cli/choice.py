"""What fit knows before it spends: the public points beside the reference, and which model they speak for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dpmd_fast.errors import UserValueError

if TYPE_CHECKING:
    from dpmd_fast.arguments import Points
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.reference.sources.base import ReferenceSource


class PublicInput(NamedTuple):
    """Public points, None if there are none, and the private reference, opened but not read."""

    points: Points | None
    names: tuple[str, ...] | None
    preprocess: Preprocessor | None
    source: ReferenceSource

    @property
    def table(self) -> Any:
        """The points with the names of their columns."""
        return None if self.points is None else named(self.points, self.names)


def named(points: Points, names: Sequence[str] | None) -> Any:
    """Return points with the names of their columns, as an Arrow table; an array if they have none."""
    if names is None:
        return points
    import pyarrow as pa

    return pa.table([pa.array(column) for column in points.T], names=list(names))


def public_of(
    references: tuple[str, ...],
    queries: str | None,
    columns: Sequence[str] | None,
    kind: str,
    batch_rows: int | None,
    preprocess: Preprocessor | None,
) -> PublicInput:
    """Read the public points and open the reference with their columns."""
    from dpmd_fast.cli.reference import matched
    from dpmd_fast.reference.sources.files import open_files

    points, names = None, None if columns is None else tuple(columns)
    if queries is not None:
        points, names = matched(references, queries, "--queries", columns, missing=kind != "atlas")
    return PublicInput(points, names, preprocess, open_files(references, names, batch_rows))


def choose_model(
    public: PublicInput,
    settings: dict[str, Any],
    terms: dict[str, Any],
    n_public: int | None,
    *,
    accept_risk: bool,
) -> str:
    """Return the model that public numbers speak for, and say why; refuse if none is predicted to help."""
    from dpmd_fast.mechanisms.spend import public_count
    from dpmd_fast.models.plan import plan

    n = public_count(public.source, terms["adjacency"], n_public)
    made = plan(public.table, n, preprocess=public.preprocess, **settings, **terms)
    if made.model == "nothing" and not accept_risk:
        raise UserValueError(
            f"{made.verdict}: {made.advice} Nothing was spent; --accept-risk spends all the same"
        )
    click.echo(made.advice, err=True)
    return made.candidate
