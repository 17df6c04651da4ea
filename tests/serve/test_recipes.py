"""The recipes of docs/howto/serving.md, run as they stand there."""

import re

import pyarrow.parquet as pq
import pytest
from serve.served import ROOT, TOKEN, make_table, save_models

from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer
from dpmd_fast.serve.tokens import Tokens

PAGE = (ROOT / "docs" / "howto" / "serving.md").read_text("utf-8")
ROWS = 5000


def recipe(heading):
    section = PAGE.split(f"### {heading}\n", 1)[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def given(folder):
    """What the page says is given, and the atlas."""
    models = save_models(folder)
    registry = Registry()
    registry.reload(str(folder))
    server = ModelServer("grpc://127.0.0.1:0", registry, Tokens([TOKEN]), log_calls=False)
    table = make_table(ROWS).drop(["tags"])
    pq.write_table(table, folder / "points.parquet")
    yield {
        "uri": f"grpc://127.0.0.1:{server.port}",
        "token": TOKEN,
        "table": table,
        "frame": table.to_pandas(),
        "folder": str(folder),
        "expected": models["knot"].transform(table),
    }
    server.stop()


def run(heading, given, **more):
    names = {**given, **more}
    exec(compile(recipe(heading), heading, "exec"), names)
    return names


def test_the_first_example(given, capsys):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    names = dict(given)
    exec(compile(code, "first", "exec"), names)
    assert names["clean"].equals(given["expected"])
    assert "differential privacy" in capsys.readouterr().out


def test_plain_pyarrow(given):
    assert run("Plain pyarrow", given)["clean"].combine_chunks().equals(given["expected"].combine_chunks())
    lines = [line for line in recipe("Plain pyarrow").splitlines() if line and "import" not in line]
    assert len(lines) <= 6  # five, and one to close


def test_pandas(given):
    import pandas as pd

    pd.testing.assert_frame_equal(run("pandas", given)["clean"], given["expected"].to_pandas())


def test_polars(given):
    pl = pytest.importorskip("polars")

    expected = pl.from_arrow(given["expected"]).filter(pl.col("a") > 0.0)
    assert run("polars, lazy", given)["clean"].equals(expected)


def test_duckdb(given):
    pytest.importorskip("duckdb")
    rows = run("DuckDB, a Python function", given)["rows"]
    expected = [tuple(row[name] for name in ("id", "a", "b", "c")) for row in given["expected"].to_pylist()]
    assert sorted(rows) == sorted(expected)


@pytest.mark.slow
def test_spark(given, spark):
    clean = run("Spark", given, spark=spark)["clean"].toPandas()
    expected = given["expected"].to_pandas().set_index("id").loc[clean["id"]].reset_index()
    assert (clean[list("abc")].to_numpy() == expected[list("abc")].to_numpy()).all()
    assert len(clean) == ROWS
