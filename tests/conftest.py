"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
import shifted

import dpmd_fast.mechanisms.spend  # noqa: F401  (draws noise: its seeds are shifted)
from dpmd_fast import Ledger

shifted.install()


@pytest.fixture(autouse=True)
def _seeds(request):
    """Seeds of tests that belong to recorded numbers are not shifted."""
    shifted.hold(request.node.get_closest_marker("fixed_seed") is not None)
    yield
    shifted.hold(False)


@pytest.fixture
def ledger(tmp_path):
    """A ledger with the data set "people", which may spend (3, 1e-6)."""
    made = Ledger(tmp_path / "ledger.db")
    made.create("people", 3.0, 1e-6)
    return made


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """A copy of the folder that a module's fixture `files` has made, to work in."""
    folder = tmp_path / "work"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def spark():
    """A Spark of two cores on this machine."""
    if shutil.which("java") is None:
        pytest.skip("no Java")
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()
