"""One self-contained HTML page about a run: parameters, guarantee, budget, and how the queries moved.

It is made from public and released values alone: no function here takes a reference.
"""

from __future__ import annotations

import numbers
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import LARGEST, Points, checked_points, shown
from dpmd_fast.atomic import atomic_write, check_target
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.report.parts import account_of, budgeting, number, percent, signals_of
from dpmd_fast.report.plots import Picture, before_and_after, plane_of
from dpmd_fast.report.queries import (
    AMONG,
    COMPARED,
    DRAWN,
    MOVED,
    STATUSES,
    Moved,
    geometry_of,
    moved_of,
    sample_rows,
    truth_of,
    unchanged_of,
)

_LONGEST_LIST = 50  # values of one parameter


@dataclass(frozen=True)
class Section:
    """A further section of a report: paragraphs, a table, pictures, and a guarantee with its conditions."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    pictures: tuple[Picture, ...] = ()
    guarantee: Guarantee | None = None


class Fact(NamedTuple):
    name: str
    value: str
    note: str = ""


def write_report(
    path: str | os.PathLike[str],
    *,
    queries: ArrayLike,
    denoised: ArrayLike,
    status: ArrayLike,
    guarantee: Guarantee | None = None,
    atlas: Atlas | None = None,
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
    """Write a report, which appears complete or not at all.

    Parameters
    ----------
    path : path
        An HTML file; an existing one is replaced.
    queries, denoised : array (m, D)
        Public points before and after.
    status : array (m,) of str
        What ``atlas.transform(queries, return_status=True)`` returns, or ``status_`` of an estimator.
    guarantee : Guarantee, optional
        ``guarantee_`` of an estimator. Not needed with an atlas, which has its own.
    atlas : Atlas, optional
        The atlas that moved the queries.
    title : str
    receipt : Receipt, optional
        ``receipt_`` of an estimator; by default that of the atlas. Names the ledger and the data set.
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
        By default those of the atlas.
    sections : sequence of Section
        Shown after all others.
    """
    check_target(path, overwrite=True)
    if not isinstance(title, str):
        raise UserValueError(f"title is a {type(title).__name__}: must be a text")
    guarantee = _guarantee_of(guarantee, atlas)
    raw = checked_points("queries", queries)
    m, D = raw.shape
    if D < 2:
        raise UserValueError("queries has 1 feature: must have at least 2")
    if atlas is not None and atlas.n_columns != D:
        raise UserValueError(f"queries has {D} features: must have {atlas.n_columns}, as the atlas")
    clean = _like("denoised", denoised, raw)
    known = None if truth is None else _like("truth", truth, raw)
    public = None if public_points is None else checked_points("public_points", public_points)
    if public is not None and public.shape[1] != D:
        raise UserValueError(f"public_points has {public.shape[1]} features: must have {D}, as queries")
    states = _checked_status(status, m)
    names = _checked_names(column_names, atlas, D)
    asked = _asked(parameters)
    if not isinstance(sections, (list, tuple)):
        raise UserValueError(f"sections is a {type(sections).__name__}: must be a list of Section")
    for section in sections:
        _check_section(section)
    ledger, dataset, own = _ledger_of(ledger, dataset, receipt, atlas)
    account = None if ledger is None else account_of(ledger, str(dataset), own)
    units = ""
    if atlas is not None and atlas.preprocess is not None:
        forward = atlas.preprocess.forward
        raw, clean = forward(raw, name="queries"), forward(clean, name="denoised")
        known = None if known is None else forward(known, name="truth")
        public = None if public is None else forward(public, name="public_points")
        units = " Distances, neighbours and maps are in preprocessed units."
    moved = np.isin(states, MOVED)
    bandwidth = _bandwidth(atlas, parameters)
    moves = moved_of(raw, clean, moved, bandwidth, names)
    shown = raw if public is None else public
    plane = plane_of(np.asarray(shown[sample_rows(len(shown), AMONG)], dtype=np.float64), names)
    drawn = sample_rows(m, DRAWN)
    before, after = (np.asarray(points[drawn], dtype=np.float64) for points in (raw, clean))
    centers = None if atlas is None else atlas.charts.centers
    page = {
        "title": _plain(title),
        "subtitle": f"{m:,} public queries of {D:,} columns, {_route(atlas)}.",
        "guarantee": guarantee,
        "meaning": _meaning(guarantee),
        "tiles": _tiles(m, D, moves, bandwidth, guarantee, None if account is None else account.left),
        "maps": before_and_after(plane, before, after, moved[drawn]),
        "map_note": _map_note(m, len(drawn), D, public is None),
        "facts": _facts(asked, guarantee, atlas, m, D),
        "budget": budgeting(guarantee, atlas, account),
        "signal": None if atlas is None else signals_of(atlas, plane, before),
        "moved": moves,
        "unchanged": unchanged_of(states),
        "geometry": geometry_of(raw, clean, moved, public, centers),
        "truth": None if known is None else truth_of(raw, clean, known),
        "sections": sections,
        "about": _about(units),
        "versions": _versions(),
        "time": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
    }
    data = _render(page)
    with atomic_write(path, overwrite=True) as partial, open(partial, "wb") as file:
        file.write(data)


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


def _meaning(guarantee: Guarantee) -> str:
    if guarantee.holds == "not private":
        return "Do not pass this result on: it protects nobody's record."
    difference = (
        "held one given record or another in its place"
        if guarantee.adjacency == "replace-one"
        else "held one given record or did not"
    )
    hard = (
        f"whoever sees the result can hardly tell whether the reference {difference}: that is as hard as "
        f"telling one draw of N(0, 1) from one of N({number(guarantee.mu)}, 1)."
    )
    if guarantee.holds == "conditional":
        return f"If all that it rests on is true (see the end of the page), {hard}"
    return hard[0].upper() + hard[1:]


def _tiles(
    m: int, D: int, moves: Moved, bandwidth: float | None, guarantee: Guarantee, left: float | None
) -> list[Fact]:
    count = len(moves.distances)
    tiles = [
        Fact("queries", f"{m:,}", f"{D:,} columns"),
        Fact("moved", percent(count, m), f"{count:,} queries"),
        Fact("unchanged", f"{m - count:,}", percent(m - count, m)),
    ]
    if count:
        middle = float(np.median(moves.distances))
        note = "" if bandwidth is None else f"{number(middle / bandwidth)} bandwidths"
        tiles.append(Fact("median move", number(middle), note))
    claim = f"epsilon {guarantee.epsilon:g}, delta {guarantee.delta:g}"
    tiles.append(Fact("spent, mu²", number(guarantee.mu**2), claim))
    if left is not None:
        tiles.append(Fact("left, mu²", number(left), "of the data set's total"))
    return tiles


def _facts(asked: Mapping[str, str], guarantee: Guarantee, atlas: Atlas | None, m: int, D: int) -> list[Fact]:
    facts = [
        *asked.items(),
        ("number of queries", f"{m:,}"),
        ("number of columns", f"{D:,}"),
        ("epsilon claimed", f"{guarantee.epsilon:g}"),
        ("delta claimed", f"{guarantee.delta:g}"),
        ("mu", number(guarantee.mu)),
    ]
    if "adjacency" not in asked:
        facts.append(("adjacency", guarantee.adjacency))
    if atlas is not None:
        facts.append(("dimension of the charts", str(atlas.dim)))
        facts.append(("bandwidth of the charts", number(atlas.bandwidth)))
        facts.append(("rounds", str(len(atlas.layers))))
        facts.append(("charts", f"{len(atlas.layers[0].masses):,}"))
        if atlas.subspace is not None:
            facts.append(("subspace", f"{atlas.subspace.basis.shape[1]} of {D} dimensions"))
        if atlas.preprocess is not None:
            facts.append(("preprocessing", "log of some columns, centre, scale, clip"))
    return [Fact(name, value) for name, value in facts]


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
        "Everything here is public, was released under the guarantee above, or was computed from such "
        "values; the reference was not read. Distances moved are those of all queries. Maps show at most "
        f"{DRAWN:,} queries, neighbours are those of at most {COMPARED:,} queries among at most {AMONG:,} "
        f"points: random samples of the rows, always the same for a number of rows.{units}"
    )


def _versions() -> str:
    from dpmd_fast import __version__

    return f"dpmd_fast {__version__}, Python {platform.python_version()}, NumPy {np.__version__}."


def _plain(text: str) -> str:
    """Return one line of printable text."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# Checks


def _guarantee_of(guarantee: Guarantee | None, atlas: Atlas | None) -> Guarantee:
    if atlas is not None and not isinstance(atlas, Atlas):
        raise UserValueError(f"atlas is a {type(atlas).__name__}: must be an Atlas or None")
    if guarantee is None and atlas is not None:
        return atlas.guarantee
    if not isinstance(guarantee, Guarantee):
        raise UserValueError("guarantee: must be the Guarantee of the run, unless an atlas is given")
    if atlas is not None and guarantee != atlas.guarantee:
        raise UserValueError("guarantee: is not that of the atlas; leave it out")
    return guarantee


def _like(name: str, values: ArrayLike, raw: Points) -> Points:
    points = checked_points(name, values)
    if points.shape != raw.shape:
        raise UserValueError(f"{name} has shape {points.shape}: must have that of queries, {raw.shape}")
    return points


def _checked_status(status: ArrayLike, m: int) -> NDArray[np.str_]:
    try:
        states = np.asarray(status)
    except Exception:
        states = np.empty(0)
    if states.shape != (m,):
        raise UserValueError(
            f"status has shape {states.shape}: must have one of its words for each of {m} queries"
        )
    states = states.astype(str)
    unknown = sorted(set(np.unique(states).tolist()) - set(STATUSES))
    if unknown:
        raise UserValueError(f"status holds {unknown[0]!r}: must be one of {', '.join(map(repr, STATUSES))}")
    return states


def _checked_names(column_names: Sequence[str] | None, atlas: Atlas | None, D: int) -> list[str] | None:
    names = column_names if column_names is not None or atlas is None else atlas.column_names
    if names is None:
        return None
    if (
        not isinstance(names, (list, tuple))
        or len(names) != D
        or not all(isinstance(name, str) for name in names)
    ):
        raise UserValueError(f"column_names: must be {D} texts")
    return [_plain(name) or f"column {j}" for j, name in enumerate(names)]


def _asked(parameters: Mapping[str, Any] | None) -> dict[str, str]:
    """Return parameters as texts, and refuse what could be data."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UserValueError(f"parameters is a {type(parameters).__name__}: must map names to values")
    return {_plain(str(name)): _value(str(name), value) for name, value in (parameters or {}).items()}


def _value(name: str, value: Any) -> str:
    if isinstance(value, Budget):
        return f"epsilon {value.epsilon:g}, delta {value.delta:g}, conversion {value.conversion}"
    if value is None or isinstance(value, (bool, np.bool_)):
        return {None: "none", True: "yes", False: "no"}[value if value is None else bool(value)]
    if isinstance(value, Ledger):
        return "given"
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, numbers.Integral):
        return shown(int(value))
    if isinstance(value, numbers.Real):
        try:
            return f"{float(value):.6g}"
        except OverflowError:  # a fraction beyond the range of floats
            return shown(value)
    flat = isinstance(value, (list, tuple)) and len(value) <= _LONGEST_LIST
    if flat and all(isinstance(one, (str, numbers.Real)) for one in value):
        return ", ".join(_value(name, one) for one in value)
    raise UserValueError(
        f"parameters[{name!r}] is a {type(value).__name__}: must be a number, a text, a Budget, None or a "
        f"list of at most {_LONGEST_LIST} numbers or texts"
    )


def _bandwidth(atlas: Atlas | None, parameters: Mapping[str, Any] | None) -> float | None:
    value = atlas.bandwidth if atlas is not None else (parameters or {}).get("bandwidth")
    usable = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if usable and 0.0 < value < LARGEST else None  # type: ignore[arg-type, operator]


def _ledger_of(
    ledger: Ledger | None, dataset: str | None, receipt: Receipt | None, atlas: Atlas | None
) -> tuple[Ledger | None, str | None, int | None]:
    for name, value, kind in (("receipt", receipt, Receipt), ("ledger", ledger, Ledger)):
        if value is not None and not isinstance(value, kind):
            raise UserValueError(f"{name} is a {type(value).__name__}: must be a {kind.__name__} or None")
    if receipt is None and atlas is not None:
        receipt = atlas.receipt
    if (ledger is None) != (dataset is None):
        raise UserValueError("ledger and dataset: give both, or neither")
    if receipt is None:
        return ledger, dataset, None
    if ledger is None:
        return receipt.ledger, receipt.spend.dataset, receipt.spend.id
    same = dataset == receipt.spend.dataset and ledger == receipt.ledger
    return ledger, dataset, receipt.spend.id if same else None


def _check_section(section: object) -> None:
    if not isinstance(section, Section):
        raise UserValueError(f"sections holds a {type(section).__name__}: must hold Section only")
    for picture in section.pictures:
        if not picture.source.startswith("data:image/"):
            raise UserValueError("sections: pictures must be data URIs, so that the page needs no other file")
