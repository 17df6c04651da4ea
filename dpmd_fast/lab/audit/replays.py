"""Replay of every certified route, and of routes that peek at the records, which it must catch."""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from dpmd_fast.lab.audit import routes
from dpmd_fast.lab.audit.replay import Floats, Route, neighbours, replayed
from dpmd_fast.lab.audit.routes import BOUNDS, BUDGET, FLAT, HIGH, HOLES, PUBLIC, WIDE
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.mechanisms.moments import release_moments
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.privacy.guarantee import Adjacency

PAIRS = 10_000
CONTROL_PAIRS = 20  # of each route that peeks
_ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "add-remove")


class Case(NamedTuple):
    """A route, the records of its first run, its adjacency and its share of all pairs."""

    name: str
    route: Route
    records: Floats
    public: Floats
    adjacency: Adjacency
    share: float
    invalid: bool = True  # whether neighbours may have records that are not valid


def cases() -> Iterator[Case]:
    """Yield every certified route, under both adjacencies.

    The shares add up to 1. Cheap routes get most pairs: a run takes 8 ms of a processor with moments, 70 ms
    with an atlas, 30 to 90 ms with commands and a second with a report. Of 10,000 pairs, every route that
    makes models gets 100 at least, and the report ten.
    """
    few = FLAT[:60]
    scales = Preprocessor.from_public(PUBLIC)
    for way in _ADJACENCIES:
        for name, route, records, share in (
            ("moments", routes.moments(way), few, 0.084),
            ("moments in an engine", routes.engine(way), few, 0.05),
            ("moments of Parquet files", routes.moments(way, routes.as_parquet), few, 0.05),
            ("moments of an Arrow table", routes.moments(way, routes.as_table), few, 0.03),
            ("moments of an Arrow stream", routes.moments(way, routes.as_stream), few, 0.02),
            ("moments of a pandas frame", routes.moments(way, routes.as_frame), few, 0.02),
            ("denoiser", routes.direct(way), FLAT[:80], 0.04),
            ("preprocessing", routes.preprocessing(way), FLAT, 0.04),
            ("atlas", routes.atlas(way, PUBLIC, dim=1, bandwidth=0.8, rounds=2), FLAT, 0.015),
            ("atlas, auto", routes.atlas(way, PUBLIC, dim="auto"), FLAT, 0.01),
            (
                "atlas, preprocessed",
                routes.atlas(way, PUBLIC, dim=1, bandwidth=1.0, rounds=2, preprocess=scales),
                FLAT,
                0.01,
            ),
            (
                "atlas, signed",
                routes.atlas(way, PUBLIC, signed=True, dim=1, bandwidth=0.8, rounds=2),
                FLAT,
                0.015,
            ),
            ("atlas, preprocessing paid for, signed", routes.paid_preprocessing(way), FLAT, 0.015),
            ("mixture", routes.mixture(way, components=2, rounds=2), HOLES, 0.02),
            ("mixture, complete", routes.mixture(way, components=1, on_missing="drop"), FLAT, 0.01),
            ("mixture, signed", routes.mixture(way, components=1, rounds=2, signed=True), HOLES, 0.015),
            (
                "mixture of an Arrow table with nulls",
                routes.mixture(way, routes.as_table, components=1, rounds=2),
                HOLES,
                0.01,
            ),
            ("command: fit, signed, from Parquet files", routes.fit_command(way), FLAT, 0.01),
            ("command: preprocess and fit", routes.preprocess_command(way), FLAT, 0.01),
            ("command: fit with a report", routes.report_command(way), FLAT, 0.001),
            ("command: denoise", routes.denoise_command(way), FLAT[:80], 0.01),
        ):  # fmt: skip
            yield Case(f"{name}, {way}", route, records, PUBLIC, way, share)
        yield Case(
            f"atlas, subspace, {way}",
            routes.atlas(way, WIDE, dim=1, bandwidth=1.2, rounds=2, n_public=len(HIGH)),
            HIGH,
            WIDE,
            way,
            0.01,
        )
        yield Case(
            f"moments with a check of the records, {way}",
            routes.moments(way, on_invalid="raise"),
            few,
            PUBLIC,
            way,
            0.005,
            invalid=False,
        )


# Routes that peek


def _warns(records: Floats, account: dict[str, Any]) -> Any:
    made = routes.moments("replace-one")(records, account)
    if np.nanmax(np.abs(records)) > 1e3:
        warnings.warn("some records are far away", UserWarning, stacklevel=2)
    return made


def _logs_a_count(records: Floats, account: dict[str, Any]) -> Any:
    logging.getLogger("peek").info("%d records", len(records))
    return routes.moments("add-remove")(records, account)


def _chooses_a_bandwidth(records: Floats, account: dict[str, Any]) -> Any:
    options: dict[str, Any] = {"on_invalid": "drop", **account}
    width = float(np.nanmedian(np.abs(records)))
    return release_moments(records, PUBLIC, bandwidth=0.6 + 1e-9 * width, budget=BUDGET, **options)


def _keeps_a_low_bit(records: Floats, account: dict[str, Any]) -> Any:
    made = routes.moments("replace-one")(records, account)
    values = made.values.copy()
    up = _bit(records)
    values[0, 0, 0] = np.nextafter(values[0, 0, 0], np.inf if up else -np.inf)
    return replace(made, values=values)


def _names_a_file(records: Floats, account: dict[str, Any]) -> Any:
    with open(f"{zlib.crc32(records.tobytes())}.txt", "w"):
        return routes.moments("replace-one")(records, account)


def _reads_once_more(records: Floats, account: dict[str, Any]) -> Any:
    made = routes.moments("replace-one")(records, account)
    return routes.moments("replace-one")(records, account) if np.nanmax(np.abs(records)) > 1e3 else made


def _bit(records: Floats) -> int:
    return zlib.crc32(records.tobytes()) % 2


def _signs_with_a_chosen_key(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        model = release_mixture(
            records, public=PUBLIC, budget=BUDGET, adjacency=adjacency, components=1, rounds=2,
            accept_risk=True, on_invalid="drop", n_public=300, n_threads=1, **account,
        )  # fmt: skip
        model.save("model.dpmd", routes.key(("clinic", "other")[_bit(records)]))
        return model

    return route


def _pays_for_other_bounds(adjacency: Adjacency) -> Route:
    def wider(records: Floats) -> Any:
        return [(low, high + 1e-9 * _bit(records)) for low, high in BOUNDS]

    return routes.paid_preprocessing(adjacency, wider)


def _logs_limits_of_a_file(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        made = routes.moments(adjacency, routes.as_parquet)(records, account)
        for name in routes.as_parquet(records):
            file = pq.read_metadata(name)
            groups = [file.row_group(k).column(0).statistics for k in range(file.num_row_groups)]
            limits = [None if group is None else group.max for group in groups]
            logging.getLogger("peek").info("at most %s", limits)
        return made

    return route


def _warns_of_nulls(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        nulls = sum(column.null_count for column in routes.as_table(records).columns)
        if nulls:
            warnings.warn(f"{nulls} values are missing", UserWarning, stacklevel=2)
        return routes.moments(adjacency, routes.as_table)(records, account)

    return route


def _prints(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        made = routes.denoise_command(adjacency)(records, account)
        print("an even reference" if _bit(records) else "an odd reference")
        return made

    return route


# What each shows is in tests/lab/test_replay.py.
_EVERYWHERE: tuple[tuple[str, Callable[[Adjacency], Route]], ...] = (
    ("a key that the records choose", _signs_with_a_chosen_key),
    ("bounds of a paid preprocessor read off the records", _pays_for_other_bounds),
    ("limits of a Parquet file in a log", _logs_limits_of_a_file),
    ("nulls of a table in a warning", _warns_of_nulls),
    ("a line that a command prints", _prints),
)


def controls() -> Iterator[Case]:
    """Yield routes that peek at the records, each of which replay must catch."""
    peeking: tuple[tuple[str, Route, Adjacency], ...] = (
        ("a warning about records", _warns, "replace-one"),
        ("a number of records in a log", _logs_a_count, "add-remove"),
        ("a bandwidth read off the records", _chooses_a_bandwidth, "replace-one"),
        ("one low bit of the result", _keeps_a_low_bit, "replace-one"),
        ("the name of a file", _names_a_file, "replace-one"),
        ("another release if a record is far away", _reads_once_more, "replace-one"),
        ("an error about invalid records", routes.moments("replace-one", on_invalid="raise"), "replace-one"),
    )
    for name, route, adjacency in peeking:
        yield Case(name, route, FLAT[:60], PUBLIC, adjacency, 0.0)
    for way in _ADJACENCIES:
        for name, peek in _EVERYWHERE:
            yield Case(f"{name}, {way}", peek(way), FLAT, PUBLIC, way, 0.0)


class Replayed(NamedTuple):
    """What the replay of one case has shown."""

    name: str
    pairs: int
    control: bool
    differences: dict[str, int]  # how many pairs differ, by what differs

    @property
    def passed(self) -> bool:
        return bool(self.differences) == self.control

    @property
    def verdict(self) -> str:
        if not self.differences:
            return "NOT CAUGHT" if self.control else "all alike"
        what = ", ".join(f"{name} ({count})" for name, count in self.differences.items())
        return f"caught: {what}" if self.control else f"NOT ALIKE: {what}"


def count(made: Sequence[Replayed]) -> int:
    """Return the number of pairs of all routes, without those of controls."""
    return sum(one.pairs for one in made if not one.control)


def table(made: Sequence[Replayed]) -> str:
    """Format what replay has shown as a Markdown table."""
    lines = ["| route | pairs | verdict |", "| --- | --- | --- |"]
    for one in made:
        name = f"control: {one.name}" if one.control else one.name
        lines.append(f"| {name} | {one.pairs:,} | {one.verdict} |")
    routes_alike = sum(not one.control for one in made)
    return "\n".join([*lines, f"| all {routes_alike} routes | {count(made):,} | |"])


def replay(case: Case, pairs: int, seed: int = 0, *, control: bool = False) -> Replayed:
    """Replay a case on some pairs of neighbours."""
    rng = np.random.default_rng([seed, sum(case.name.encode())])
    others = neighbours(case.records, case.public, case.adjacency, rng, invalid=case.invalid)
    found: dict[str, int] = {}
    for differences in replayed(case.route, case.records, islice(others, pairs), case.adjacency):
        for what in differences:
            found[what] = found.get(what, 0) + 1
    return Replayed(case.name, pairs, control, found)


def run(pairs: int = PAIRS, seed: int = 0) -> Iterator[Replayed]:
    """Replay all routes on `pairs` pairs altogether, and the controls on some each."""
    for case in cases():
        yield replay(case, max(2, round(case.share * pairs)), seed)
    for case in controls():
        yield replay(case, CONTROL_PAIRS, seed, control=True)
