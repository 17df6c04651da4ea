"""Replay of every certified route, and of routes that peek at the records, which it must catch."""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dpmd_fast.lab.audit.replay import Floats, Route, neighbours, replayed
from dpmd_fast.mechanisms.atlas.release import release_atlas
from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.mechanisms.moments import release_moments
from dpmd_fast.mechanisms.preprocessor import private_preprocessor
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.reference import engine_reference, partial_sums

BUDGET = Budget(8.0, 1e-3)
PAIRS = 10_000
_RNG = np.random.default_rng(0)


def _circle(n: int, columns: int, noise: float) -> Floats:
    angles = _RNG.uniform(0.0, 2.0 * np.pi, n)
    points = noise * _RNG.normal(size=(n, columns))
    points[:, 0] += np.cos(angles)
    points[:, 1] += np.sin(angles)
    return points


PUBLIC, WIDE = _circle(40, 2, 0.1), _circle(30, 9, 0.1)
_FLAT, _HIGH = _circle(300, 2, 0.05), _circle(400, 9, 0.02)
_HOLES = np.where(_RNG.random((300, 2)) < 0.1, np.nan, _FLAT)


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


def _saved(model: Any) -> Any:
    model.save("model.dpmd")  # the file is compared, too
    return model


def _moments(adjacency: Adjacency, **more: Any) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"on_invalid": "drop", "adjacency": adjacency, **account, **more}
        return release_moments(records, PUBLIC, bandwidth=0.6, budget=BUDGET, n_threads=1, **options)

    return route


def _engine(adjacency: Adjacency) -> Route:
    """Records in an engine of three partitions."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        def run(task: Any) -> list[Any]:
            return [
                partial_sums(task, [part], 1, partition=number)
                for number, part in enumerate(np.array_split(records, 3))
            ]

        return release_moments(
            engine_reference(run, columns=2), PUBLIC, bandwidth=0.6, budget=BUDGET, on_invalid="drop",
            adjacency=adjacency, n_threads=1, **account,
        )  # fmt: skip

    return route


def _direct(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        model = DPManifoldDenoiser(
            0.6,
            1,
            BUDGET,
            steps=2,
            adjacency=adjacency,
            on_invalid="drop",
            accept_risk=True,
            n_threads=1,
            **account,
        )
        moved = model.fit(records).transform(PUBLIC)
        return [moved, model.status_, model.guarantee_]

    return route


def _atlas(adjacency: Adjacency, public: Floats, **more: Any) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"adjacency": adjacency, "on_invalid": "drop", "n_public": 300, **account}
        return _saved(
            release_atlas(
                records, public, budget=BUDGET, accept_risk=True, n_threads=1, **{**options, **more}
            )
        )

    return route


def _mixture(adjacency: Adjacency, **more: Any) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"adjacency": adjacency, "on_invalid": "drop", **account, **more}
        return _saved(
            release_mixture(
                records, public=PUBLIC, budget=BUDGET, accept_risk=True, n_public=300, n_threads=1, **options
            )
        )

    return route


def _preprocessing(adjacency: Adjacency) -> Route:
    def route(records: Floats, account: dict[str, Any]) -> Any:
        made = private_preprocessor(
            records,
            bounds=[[-3.0, 3.0]] * 2,
            budget=BUDGET,
            on_invalid="drop",
            adjacency=adjacency,
            **account,
        )
        return made.to_dict()

    return route


def cases() -> Iterator[Case]:
    """Yield every certified route, under both adjacencies."""
    scales = Preprocessor.from_public(PUBLIC)
    for adjacency in _ADJACENCIES:
        for name, route, records, public, share in (
            ("moments", _moments(adjacency), _FLAT[:60], PUBLIC, 0.16),
            ("moments in an engine", _engine(adjacency), _FLAT[:60], PUBLIC, 0.06),
            ("denoiser", _direct(adjacency), _FLAT[:80], PUBLIC, 0.08),
            ("preprocessing", _preprocessing(adjacency), _FLAT, PUBLIC, 0.08),
            ("atlas", _atlas(adjacency, PUBLIC, dim=1, bandwidth=0.8, rounds=2), _FLAT, PUBLIC, 0.03),
            ("atlas, auto", _atlas(adjacency, PUBLIC, dim="auto"), _FLAT, PUBLIC, 0.01),
            (
                "atlas, subspace",
                _atlas(adjacency, WIDE, dim=1, bandwidth=1.2, rounds=2, n_public=len(_HIGH)),
                _HIGH,
                WIDE,
                0.02,
            ),
            (
                "atlas, preprocessed",
                _atlas(adjacency, PUBLIC, dim=1, bandwidth=1.0, rounds=2, preprocess=scales),
                _FLAT,
                PUBLIC,
                0.02,
            ),
            ("mixture", _mixture(adjacency, components=2, rounds=2), _HOLES, PUBLIC, 0.03),
            ("mixture, complete", _mixture(adjacency, components=1, on_missing="drop"), _FLAT, PUBLIC, 0.01),
        ):  # fmt: skip
            yield Case(f"{name}, {adjacency}", route, records, public, adjacency, share)
        yield Case(
            f"moments with a check of the records, {adjacency}",
            _moments(adjacency, on_invalid="raise"),
            _FLAT[:60],
            PUBLIC,
            adjacency,
            0.0,
            invalid=False,
        )


# Routes that peek


def _warns(records: Floats, account: dict[str, Any]) -> Any:
    made = _moments("replace-one")(records, account)
    if np.nanmax(np.abs(records)) > 1e3:
        warnings.warn("some records are far away", UserWarning, stacklevel=2)
    return made


def _logs_a_count(records: Floats, account: dict[str, Any]) -> Any:
    logging.getLogger("peek").info("%d records", len(records))
    return _moments("add-remove")(records, account)


def _chooses_a_bandwidth(records: Floats, account: dict[str, Any]) -> Any:
    options: dict[str, Any] = {"on_invalid": "drop", **account}
    width = float(np.nanmedian(np.abs(records)))
    return release_moments(records, PUBLIC, bandwidth=0.6 + 1e-9 * width, budget=BUDGET, **options)


def _keeps_a_low_bit(records: Floats, account: dict[str, Any]) -> Any:
    made = _moments("replace-one")(records, account)
    values = made.values.copy()
    up = zlib.crc32(records.tobytes()) % 2
    values[0, 0, 0] = np.nextafter(values[0, 0, 0], np.inf if up else -np.inf)
    return replace(made, values=values)


def _names_a_file(records: Floats, account: dict[str, Any]) -> Any:
    with open(f"{zlib.crc32(records.tobytes())}.txt", "w"):
        return _moments("replace-one")(records, account)


def _reads_once_more(records: Floats, account: dict[str, Any]) -> Any:
    made = _moments("replace-one")(records, account)
    return _moments("replace-one")(records, account) if np.nanmax(np.abs(records)) > 1e3 else made


def controls() -> Iterator[Case]:
    """Yield routes that peek at the records, each of which replay must catch."""
    peeking: tuple[tuple[str, Route, Adjacency], ...] = (
        ("a warning about records", _warns, "replace-one"),
        ("a number of records in a log", _logs_a_count, "add-remove"),
        ("a bandwidth read off the records", _chooses_a_bandwidth, "replace-one"),
        ("one low bit of the result", _keeps_a_low_bit, "replace-one"),
        ("the name of a file", _names_a_file, "replace-one"),
        ("another release if a record is far away", _reads_once_more, "replace-one"),
        ("an error about invalid records", _moments("replace-one", on_invalid="raise"), "replace-one"),
    )
    for name, route, adjacency in peeking:
        yield Case(name, route, _FLAT[:60], PUBLIC, adjacency, 0.0)


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


def table(made: Sequence[Replayed]) -> str:
    """Format what replay has shown as a Markdown table."""
    lines = ["| route | pairs | verdict |", "| --- | --- | --- |"]
    for one in made:
        name = f"control: {one.name}" if one.control else one.name
        lines.append(f"| {name} | {one.pairs:,} | {one.verdict} |")
    total = sum(one.pairs for one in made if not one.control)
    return "\n".join([*lines, f"| all routes | {total:,} | |"])


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
    """Replay all routes on `pairs` pairs altogether, and the controls on 20 each."""
    for case in cases():
        yield replay(case, max(2, round(case.share * pairs)), seed)
    for case in controls():
        yield replay(case, 20, seed, control=True)
