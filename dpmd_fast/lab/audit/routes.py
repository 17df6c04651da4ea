"""The routes that replay runs: every certified release, from arrays, tables, files, engines and commands.

A route takes private records and the account to be charged. It leaves files in the working folder, which are
compared; what it is given, references, queries and keys, lies in a folder of its own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmd_fast.lab.audit.replay import Floats, Route, folder_in_memory
from dpmd_fast.mechanisms.atlas.release import release_atlas
from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
from dpmd_fast.mechanisms.mixture import release_mixture
from dpmd_fast.mechanisms.moments import release_moments
from dpmd_fast.mechanisms.preprocessor import private_preprocessor
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.keys import PUBLIC as PUBLIC_KEY
from dpmd_fast.privacy.keys import create_keys
from dpmd_fast.reference import engine_reference, partial_sums

BUDGET = Budget(8.0, 1e-3)
BOUNDS = ((-3.0, 3.0), (-3.0, 3.0))
NAMES = ("x", "y")
_RNG = np.random.default_rng(0)


def _circle(n: int, columns: int, noise: float) -> Floats:
    angles = _RNG.uniform(0.0, 2.0 * np.pi, n)
    points = noise * _RNG.normal(size=(n, columns))
    points[:, 0] += np.cos(angles)
    points[:, 1] += np.sin(angles)
    return points


PUBLIC, WIDE = _circle(40, 2, 0.1), _circle(30, 9, 0.1)
FLAT, HIGH = _circle(300, 2, 0.05), _circle(400, 9, 0.02)
HOLES = np.where(_RNG.random((300, 2)) < 0.1, np.nan, FLAT)


def _common(adjacency: Adjacency, account: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {"budget": BUDGET, "adjacency": adjacency, "on_invalid": "drop", **account, **more}


# In Python


def moments(adjacency: Adjacency, given: Callable[[Floats], Any] = np.asarray, **more: Any) -> Route:
    """Return a release of moments of the reference that `given` makes of the records."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        options = _common(adjacency, account, more)
        return release_moments(given(records), PUBLIC, bandwidth=0.6, n_threads=1, **options)

    return route


def engine(adjacency: Adjacency) -> Route:
    """Return a release of moments of records in an engine of three partitions."""

    def held(records: Floats) -> Any:
        def run(task: Any) -> list[Any]:
            return [
                partial_sums(task, [part], 1, partition=number)
                for number, part in enumerate(np.array_split(records, 3))
            ]

        return engine_reference(run, columns=2)

    return moments(adjacency, held)


def direct(adjacency: Adjacency) -> Route:
    """Return a release that moves the public points only."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"adjacency": adjacency, "on_invalid": "drop", "accept_risk": True}
        model = DPManifoldDenoiser(0.6, 1, BUDGET, steps=2, n_threads=1, **options, **account)
        moved = model.fit(records).transform(PUBLIC)
        return [moved, model.status_, model.guarantee_]

    return route


def atlas(adjacency: Adjacency, public: Floats, *, signed: bool = False, **more: Any) -> Route:
    """Return a release of an atlas that is written to a file."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        options = {**_common(adjacency, {"n_public": 300, **account}, more)}
        model = release_atlas(records, public, accept_risk=True, n_threads=1, **options)
        model.save("model.dpmd", key() if signed else None)
        return model

    return route


def mixture(
    adjacency: Adjacency, given: Callable[[Floats], Any] = np.asarray, *, signed: bool = False, **more: Any
) -> Route:
    """Return a release of a mixture that is written to a file."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        options = _common(adjacency, account, more)
        model = release_mixture(
            given(records), public=public_like(given), accept_risk=True, n_public=300, n_threads=1, **options
        )
        model.save("model.dpmd", key() if signed else None)
        return model

    return route


def preprocessing(adjacency: Adjacency, bounds: Any = BOUNDS) -> Route:
    """Return a release of medians and MADs."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        return private_preprocessor(records, bounds=bounds, **_common(adjacency, account, {})).to_dict()

    return route


def paid_preprocessing(
    adjacency: Adjacency, bounds: Callable[[Floats], Any] = lambda records: BOUNDS
) -> Route:
    """Return two releases: of a preprocessor, and of a signed atlas in its units."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        options = _common(adjacency, account, {})
        scales = private_preprocessor(records, bounds=bounds(records), **options)
        return atlas(
            adjacency, PUBLIC, signed=True, dim=1, bandwidth=1.0, rounds=2, preprocess=scales
        )(records, account)  # fmt: skip

    return route


# From tables and files


def public_like(given: Callable[[Floats], Any]) -> Any:
    """Return the public points with the names that the reference has."""
    return PUBLIC if given is np.asarray else as_table(PUBLIC)


def as_table(records: Floats) -> Any:
    """Return records as an Arrow table in which NaN is null, in chunks of 70 rows."""
    parts = [records[start : start + 70] for start in range(0, max(len(records), 1), 70)]
    tables = [
        pa.table([pa.array(column, from_pandas=True) for column in part.T], names=list(NAMES))
        for part in parts
    ]
    return pa.concat_tables(tables)


def as_frame(records: Floats) -> Any:
    """Return records as a pandas frame, which needs pandas."""
    return as_table(records).to_pandas()


def as_stream(records: Floats) -> Any:
    """Return records as a stream that can be read once."""
    return as_table(records).to_reader(max_chunksize=50)


def as_parquet(records: Floats) -> list[str]:
    """Write records into two Parquet files of several row groups each; return their names."""
    names = [os.path.join(inputs(), f"reference {part}.parquet") for part in (1, 2)]
    for name, part in zip(names, np.array_split(records, 2), strict=True):
        pq.write_table(pa.table(list(part.T), names=list(NAMES)), name, row_group_size=40)
    return names


@cache
def inputs() -> str:
    """Return the folder of what routes are given; the same for all runs of this process."""
    made = tempfile.mkdtemp(prefix="replay-inputs-", dir=folder_in_memory())
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def key(name: str = "clinic") -> str:
    """Return the file of a private key."""
    path = os.path.join(inputs(), f"{name}.key")
    if not os.path.exists(path):
        create_keys(path)
    return path


@cache
def _public_files() -> tuple[str, str]:
    """Return the files of public points and of public bounds."""
    queries, bounds = (os.path.join(inputs(), name) for name in ("queries.parquet", "bounds.json"))
    pq.write_table(pa.table(list(PUBLIC.T), names=list(NAMES)), queries)
    with open(bounds, "w", encoding="utf-8") as file:
        json.dump(dict(zip(NAMES, BOUNDS, strict=True)), file)
    return queries, bounds


# From the command line


def commands(*lines: list[str]) -> list[int]:
    """Run commands in this process; raise if one fails."""
    from dpmd_fast.cli import main

    for line in lines:
        code = main(line)
        if code != 0:
            raise RuntimeError(f"{line[0]} has ended with {code}")
    return [0] * len(lines)


def _spending(adjacency: Adjacency, records: Floats, account: dict[str, Any]) -> list[str]:
    """Return the options that all commands have which spend."""
    references = [word for name in as_parquet(records) for word in ("--reference", name)]
    budget = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta, "adjacency": adjacency}
    return [*references, *_words(**budget, **account, on_invalid="drop")]


def _words(**options: Any) -> list[str]:
    """Return options as words of a command line."""
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return [word for pair in pairs for word in pair]


def fit_command(adjacency: Adjacency) -> Route:
    """Return the commands that fit and use a signed atlas of Parquet files, and look at the ledger."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        queries, _ = _public_files()
        spending = _spending(adjacency, records, account)
        shape = _words(model="atlas", dim=1, bandwidth=0.8, rounds=2, n_public=300, threads=1, key=key())
        ledger, model = ["--ledger", account["ledger"]], ["--model", "model.dpmd"]
        trusted = ["--trusted", key() + PUBLIC_KEY]
        return commands(
            ["fit", *shape, *spending, "--queries", queries, "--accept-risk", "-o", "model.dpmd"],
            ["ledger", "show", *ledger],
            ["ledger", "verify", *ledger, *model, *trusted],
            ["transform", *model, *trusted, queries, "-o", "moved.parquet"],
        )  # fmt: skip

    return route


def report_command(adjacency: Adjacency) -> Route:
    """Return the command that fits a mixture and writes a report about it."""
    importlib.import_module("matplotlib.font_manager")  # looks for fonts, once on a machine, and logs it

    def route(records: Floats, account: dict[str, Any]) -> Any:
        from dpmd_fast.report import page

        queries, _ = _public_files()
        spending = _spending(adjacency, records, account)
        shape = _words(model="mixture", components=1, rounds=2, n_public=300, threads=1, queries=queries)
        outputs = _words(noise=0.1, output="model.dpmd", report="report.html")
        with patch.object(page, "datetime", Mock(now=lambda zone: datetime(2000, 1, 1, tzinfo=zone))):
            return commands(["fit", *shape, *spending, *outputs, "--accept-risk"])

    return route


def preprocess_command(adjacency: Adjacency) -> Route:
    """Return the commands that buy a preprocessor and fit a mixture in its units."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        queries, bounds = _public_files()
        spending = _spending(adjacency, records, account)
        shape = _words(model="mixture", components=1, rounds=2, n_public=300, threads=1, queries=queries)
        return commands(
            ["preprocess", *spending, "--bounds", bounds, "-o", "scales.json"],
            ["fit", *shape, *spending, "--accept-risk", "--preprocess", "scales.json", "-o", "model.dpmd",
             "--json"],
            ["ledger", "show", "--ledger", account["ledger"], "--json"],
        )  # fmt: skip

    return route


def denoise_command(adjacency: Adjacency) -> Route:
    """Return the command that moves the public points only."""

    def route(records: Floats, account: dict[str, Any]) -> Any:
        queries, _ = _public_files()
        shape = _words(bandwidth=0.6, dim=1, steps=2, threads=1, status_column="status")
        spending = _spending(adjacency, records, account)
        return commands(["denoise", queries, *shape, *spending, "--accept-risk", "-o", "moved.parquet"])

    return route
