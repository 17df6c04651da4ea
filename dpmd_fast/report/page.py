"""One self-contained HTML page about a run: parameters, guarantee, budget, and how the queries moved.

It is made from public and released values alone: no function here takes a reference.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import checked_points
from dpmd_fast.atomic import atomic_write, check_target
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.report.checks import (
    Section,
    bandwidth_of,
    check_mixture_run,
    check_sections,
    checked_like,
    checked_names,
    checked_status,
    guarantee_of,
    ledger_of,
    model_of,
    one_line,
    texts_of,
)
from dpmd_fast.report.facts import (
    atlas_facts,
    facts_of,
    in_numbers,
    meaning_of,
    mixture_facts,
    mixture_tiles,
    run_tiles,
)
from dpmd_fast.report.headline import cleaned_headline, model_headline, truth_headline
from dpmd_fast.report.known import bars_of, cleaned_of, known_of, mixture_truth_of
from dpmd_fast.report.mixture import components_of, whole_of
from dpmd_fast.report.parts import Account, account_of, budgeting, signals_of
from dpmd_fast.report.plots import before_and_after, plane_of
from dpmd_fast.report.queries import (
    AMONG,
    COMPARED,
    DRAWN,
    MOVED,
    geometry_of,
    moved_of,
    sample_rows,
    truth_of,
    unchanged_of,
)

__all__ = ["Section", "write_report"]


_CAUTION = (
    "An atlas moves a point to the surface near which the records lie. Along the surface, nobody can tell "
    "noise from signal: that part of the error stays. There are no error bars for single values."
)
_PUBLIC = (
    "Everything here is public, was released under the guarantee above, or was computed from such values; "
    "the reference was not read."
)


def write_report(
    path: str | os.PathLike[str],
    *,
    queries: ArrayLike | None = None,
    denoised: ArrayLike | None = None,
    status: ArrayLike | None = None,
    guarantee: Guarantee | None = None,
    atlas: Atlas | None = None,
    mixture: Mixture | None = None,
    noise: Any = None,
    title: str = "Denoising with a private reference",
    receipt: Receipt | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    public_points: ArrayLike | None = None,
    parameters: Mapping[str, Any] | None = None,
    truth: ArrayLike | None = None,
    column_names: Sequence[str] | None = None,
    sections: Sequence[Section] = (),
) -> None:
    """Write a report, which appears complete or not at all. It begins with the verdict after the spend.

    Parameters
    ----------
    path : path
        An HTML file; an existing one is replaced.
    queries, denoised : array (m, D)
        Public points before and after. A mixture cleans the queries itself, so `denoised` is left out; they
        may have missing values (NaN), or be left out for a page about the mixture alone.
    status : array (m,) of str
        What ``atlas.transform(queries, return_status=True)`` returns, or ``status_`` of an estimator. Not
        with a mixture.
    guarantee : Guarantee, optional
        ``guarantee_`` of an estimator. Not needed with a model, which has its own.
    atlas : Atlas, optional
        The atlas that moved the queries.
    mixture : Mixture, optional
        The mixture that is to clean them.
    noise : number, array (D,) or mapping, optional
        With a mixture and queries: as for `Mixture.transform`.
    title : str
    receipt : Receipt, optional
        ``receipt_`` of an estimator; by default that of the model. Names the ledger and the data set.
    ledger : Ledger, optional
    dataset : str, optional
        Its name in the ledger. The page shows what has been spent and what is left.
    public_points : array (n, D), optional
        Points among which neighbours are searched. Public: never the reference. By default the queries.
    parameters : mapping, optional
        Of the run: public numbers, texts and a `Budget`, for instance ``get_params()``.
    truth : array (m, D), optional
        For simulated data, the queries without their noise.
    column_names : sequence of str, optional
        By default those of the model.
    sections : sequence of Section
        Shown after the results and before the details.
    """
    check_target(path, overwrite=True)
    if not isinstance(title, str):
        raise UserValueError(f"title is a {type(title).__name__}: must be a text")
    model = model_of(atlas, mixture)
    guarantee = guarantee_of(guarantee, model)
    asked = texts_of(parameters)
    check_sections(sections)
    ledger, dataset, own = ledger_of(ledger, dataset, receipt, model)
    account = None if ledger is None else account_of(ledger, str(dataset), own)
    if mixture is not None:
        made = {"denoised": denoised, "status": status, "public_points": public_points}
        check_mixture_run(queries, noise, truth, made)
        parts = _mixture_parts(mixture, queries, noise, truth, column_names, asked, account)
    elif noise is not None:
        raise UserValueError("noise: must be left out without a mixture")
    else:
        run = {"queries": queries, "denoised": denoised, "status": status}
        for name, value in run.items():
            if value is None:
                raise UserValueError(f"{name} = None: must be given, unless the page is about a mixture")
        bandwidth = bandwidth_of(atlas, parameters)
        parts = _moved_parts(
            run, atlas, guarantee, public_points, truth, column_names, asked, account, bandwidth
        )
    page = {
        **dict.fromkeys(
            (
                "maps",
                "signal",
                "moved",
                "unchanged",
                "geometry",
                "components",
                "known",
                "bars",
                "truth",
                "caution",
            )
        ),
        **parts,
        "title": one_line(title),
        "guarantee": guarantee,
        "meaning": meaning_of(guarantee),
        "in_numbers": in_numbers(guarantee),
        "budget": budgeting(guarantee, model, account),
        "sections": sections,
        "versions": _versions(),
        "time": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
    }
    data = _render(page)
    with atomic_write(path, overwrite=True) as partial, open(partial, "wb") as file:
        file.write(data)


def _moved_parts(
    run: Mapping[str, Any],
    atlas: Atlas | None,
    guarantee: Guarantee,
    public_points: ArrayLike | None,
    truth: ArrayLike | None,
    column_names: Sequence[str] | None,
    asked: Mapping[str, str],
    account: Account | None,
    bandwidth: float | None,
) -> dict[str, Any]:
    """Return the parts of a page about queries that an atlas or an estimator moved."""
    raw = checked_points("queries", run["queries"])
    m, D = raw.shape
    if D < 2:
        raise UserValueError("queries has 1 feature: must have at least 2")
    if atlas is not None and atlas.n_columns != D:
        raise UserValueError(f"queries has {D} features: must have {atlas.n_columns}, as the atlas")
    clean = checked_like("denoised", run["denoised"], raw)
    known = None if truth is None else checked_like("truth", truth, raw)
    public = None if public_points is None else checked_points("public_points", public_points)
    if public is not None and public.shape[1] != D:
        raise UserValueError(f"public_points has {public.shape[1]} features: must have {D}, as queries")
    states = checked_status(run["status"], m)
    names = checked_names(column_names, atlas, D)
    own, units = (raw, clean), ""
    if atlas is not None and atlas.preprocess is not None:
        forward = atlas.preprocess.forward
        raw, clean = forward(raw, name="queries"), forward(clean, name="denoised")
        known = None if known is None else forward(known, name="truth")
        public = None if public is None else forward(public, name="public_points")
        units = " Distances, neighbours and maps are in preprocessed units, changes of columns in their own."
    moved = np.isin(states, MOVED)
    headline = model_headline(atlas, guarantee, moved)
    if known is not None:
        headline = truth_headline(atlas, guarantee, raw, clean, known)
    moves = moved_of(raw, clean, moved, bandwidth, names, own)
    shown = raw if public is None else public
    plane = plane_of(np.asarray(shown[sample_rows(len(shown), AMONG)], dtype=np.float64), names)
    drawn = sample_rows(m, DRAWN)
    before, after = (np.asarray(points[drawn], dtype=np.float64) for points in (raw, clean))
    centers = None if atlas is None else atlas.charts.centers
    return {
        "subtitle": f"{m:,} public queries of {D:,} columns, {_route(atlas)}.",
        "headline": headline,
        "tiles": run_tiles(m, D, int(moved.sum()), guarantee, account),
        "maps": before_and_after(plane, before, after, moved[drawn]),
        "map_note": _map_note(m, len(drawn), D, public is None),
        "facts": [*facts_of(asked, guarantee, m, D), *atlas_facts(atlas, D)],
        "signal": None if atlas is None else signals_of(atlas, plane, before),
        "moved": moves,
        "caution": None if atlas is None else _CAUTION,
        "unchanged": unchanged_of(states),
        "geometry": geometry_of(raw, clean, moved, public, centers),
        "truth": None if known is None else truth_of(raw, clean, known),
        "about": _about(units),
    }


def _mixture_parts(
    mixture: Mixture,
    queries: ArrayLike | None,
    noise: Any,
    truth: ArrayLike | None,
    column_names: Sequence[str] | None,
    asked: Mapping[str, str],
    account: Account | None,
) -> dict[str, Any]:
    """Return the parts of a page about a mixture, and about the queries that it cleans if there are any."""
    K, D = mixture.means.shape
    whole = whole_of(mixture, checked_names(column_names, mixture, D))
    m, known, bars, exact = 0, None, None, None
    headline = model_headline(mixture, mixture.guarantee, None)
    if queries is not None:
        raw = checked_points("queries", queries, columns=D, missing=True)
        m = len(raw)
        cleaned = cleaned_of(whole, raw, noise)
        known, bars = known_of(whole, cleaned), bars_of(whole, cleaned)
        headline = cleaned_headline(whole, cleaned)
        exact = None if truth is None else mixture_truth_of(whole, cleaned, checked_like("truth", truth, raw))
    model = f"a mixture of {K} component{'s' if K > 1 else ''}"
    alone = f"{model[0].upper()}{model[1:]} in {D:,} columns."
    return {
        "subtitle": f"{m:,} public queries of {D:,} columns, cleaned with {model}." if m else alone,
        "headline": headline,
        "tiles": mixture_tiles(mixture, m, None if known is None else known.missing, account),
        "facts": [*facts_of(asked, mixture.guarantee, m or None, D), *mixture_facts(mixture)],
        "components": components_of(whole),
        "known": known,
        "bars": bars,
        "truth": exact,
        "about": f"{_PUBLIC} Means, ellipses and spreads are those of the released mixture.",
    }


def _render(page: dict[str, Any]) -> bytes:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dpmd_fast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("report.html.j2").render(page=page)
    return text.encode("utf-8", "backslashreplace")  # a name may hold what is no text


# Words


def _route(atlas: Atlas | None) -> str:
    return "moved by an atlas" if atlas is not None else "moved for this run alone"


def _map_note(m: int, drawn: int, D: int, queries_alone: bool) -> str:
    notes = []
    if drawn < m:
        notes.append(f"A fixed random sample of {drawn:,} of {m:,} queries is drawn.")
    if D > 2:
        whose = "the raw queries" if queries_alone else "the public points"
        notes.append(f"The map shows the first two principal axes of {whose}.")
    return " ".join(notes)


def _about(units: str) -> str:
    return (
        f"{_PUBLIC} Distances moved are those of all queries. Maps show at most {DRAWN:,} queries, "
        f"neighbours are those of at most {COMPARED:,} queries among at most {AMONG:,} points: random "
        f"samples of the rows, always the same for a number of rows.{units}"
    )


def _versions() -> str:
    from dpmd_fast import __version__

    return f"dpmd_fast {__version__}, Python {platform.python_version()}, NumPy {np.__version__}."
