"""Missing values in the queries of an atlas: refused with their place, or their rows kept as they are."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import make_atlas

from dpmd_fast.cli import main
from dpmd_fast.tables import denoise_anndata, transform_batches, transform_file
from dpmd_fast.tables.files import read_points
from dpmd_fast.tables.protocol import cleaner_of

NAMES = ("a", "b", "c")
ATLAS = make_atlas(NAMES)
RNG = np.random.default_rng(3)
WHOLE = RNG.uniform(-2.0, 2.0, size=(3000, 3))
GONE = RNG.random(WHOLE.shape) < 0.1
Z = np.where(GONE, np.nan, WHOLE)
INCOMPLETE = GONE.any(axis=1)
KEPT, STATUS = ATLAS.transform(WHOLE, return_status=True)
KEPT = np.where(INCOMPLETE[:, None], Z, KEPT)
STATUS = np.where(INCOMPLETE, "missing", STATUS)
TABLE = pa.table(
    {
        "name": [str(j) for j in range(len(Z))],
        **{k: pa.array(z, mask=np.isnan(z)) for k, z in zip(NAMES, Z.T, strict=True)},
    }
)
KINDS = {
    "table": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "pandas": lambda table: table.to_pandas(),
    "pandas, arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas, one array": lambda table: table.drop(["name"]).to_pandas(),
    "polars": pl.from_arrow,
}
FIRST = tuple(int(number) for number in np.argwhere(GONE)[0])
KEEP = r"; on_missing='keep' leaves rows with missing values as they are"


def told(row, column, kind="NaN"):
    first = f"the first is {kind} in row {row}, column {column}"
    return f"contains NaN or infinity: all values must be finite; {first}"


def numbers(value):
    """The columns as an array, with NaN where a value is missing."""
    if isinstance(value, pl.DataFrame):
        return value.select(NAMES).to_numpy()
    if isinstance(value, pd.DataFrame):
        return value[list(NAMES)].astype("float64").to_numpy(na_value=np.nan)
    return np.stack([pa.table(value.columns, schema=value.schema)[name].to_numpy() for name in NAMES], axis=1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arrays(dtype):
    out, status = ATLAS.transform(Z.astype(dtype), on_missing="keep", return_status=True)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out[INCOMPLETE], Z.astype(dtype)[INCOMPLETE])
    np.testing.assert_array_equal(out[~INCOMPLETE], ATLAS.transform(WHOLE.astype(dtype)[~INCOMPLETE]))
    np.testing.assert_array_equal(status, STATUS)
    assert {"ok", "outside", "missing"} == set(status)


def test_complete_rows_have_the_same_bits_either_way():
    for Q in (WHOLE, WHOLE[:1]):
        np.testing.assert_array_equal(ATLAS.transform(Q, on_missing="keep"), ATLAS.transform(Q))
    only = np.full((2, 3), np.nan)
    out, status = ATLAS.transform(only, on_missing="keep", return_status=True)
    np.testing.assert_array_equal(out, only)
    assert status.tolist() == ["missing"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_tables(kind):
    given = KINDS[kind](TABLE)
    out, status = ATLAS.transform(given, on_missing="keep", return_status=True)
    assert type(out) is type(given)
    np.testing.assert_array_equal(numbers(out), KEPT)
    np.testing.assert_array_equal(status, STATUS)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_name_row_and_column(kind):
    row, place = FIRST
    with pytest.raises(ValueError, match=f"^Z {told(row, repr(NAMES[place]))}{KEEP}$"):
        ATLAS.transform(KINDS[kind](TABLE))


def test_errors_of_arrays_name_row_and_column():
    nameless = make_atlas(None)
    bad = WHOLE.copy()
    bad[2999, 1] = np.nan
    with pytest.raises(ValueError, match=f"^Z {told(2999, 1)}{KEEP}$"):
        nameless.transform(bad)
    bad[7, 2] = np.inf
    for on_missing in ("refuse", "keep"):
        kind = {"refuse": "NaN or infinity: all values must be finite", "keep": "infinity: .*"}[on_missing]
        with pytest.raises(
            ValueError, match=f"^Z contains {kind}; the first is infinity in row 7, column 'c'$"
        ):
            ATLAS.transform(bad, on_missing=on_missing)
    bad[7, 2] = 1e101
    with pytest.raises(
        ValueError, match=r"beyond 1e\+100.*; the first is a huge value in row 7, column 'c'$"
    ):
        ATLAS.transform(bad, on_missing="keep")


@pytest.mark.parametrize("choice", ["fill", "drop", None, 1])
def test_an_atlas_cannot_fill(choice):
    with pytest.raises(ValueError, match=r"^on_missing = .*: must be one of 'refuse', 'keep'$"):
        ATLAS.transform(Z, on_missing=choice)
    if choice is not None:
        with pytest.raises(ValueError, match=r"^on_missing = .*: must be one of 'refuse', 'keep'$"):
            cleaner_of(ATLAS, on_missing=choice)


def test_batches_and_dask():
    batches = TABLE.to_batches(max_chunksize=700)
    out = pa.Table.from_batches(transform_batches(ATLAS, batches, on_missing="keep"))
    np.testing.assert_array_equal(numbers(out), KEPT)
    da = pytest.importorskip("dask.array")
    moved, status = ATLAS.transform(da.from_array(Z, (700, 3)), on_missing="keep", return_status=True)
    np.testing.assert_array_equal(moved.compute(), KEPT)
    np.testing.assert_array_equal(status.compute(), STATUS)


def test_cells():
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(Z, var=pd.DataFrame(index=list(NAMES)))
    denoise_anndata(ATLAS, cells, on_missing="keep")
    np.testing.assert_array_equal(cells.obsm["X_dpmd"], KEPT)
    np.testing.assert_array_equal(cells.obs["dpmd_status"].astype(str), STATUS)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".npy"])
def test_files(tmp_path, suffix):
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    write(source, TABLE, Z)
    row, place = FIRST
    column = repr(NAMES[place])
    with pytest.raises(ValueError, match=rf"in\{suffix} {told(row, column)}{KEEP}$"):
        transform_file(ATLAS, source, target)
    assert not target.exists()
    column = None if suffix == ".npy" else "status"
    made = transform_file(ATLAS, source, target, on_missing="keep", status_column=column)
    words, counts = np.unique(STATUS, return_counts=True)
    assert made.status == dict(zip(words.tolist(), counts.tolist(), strict=True))
    np.testing.assert_array_equal(
        read_points(target, None if column is None else NAMES, missing=True)[0], KEPT
    )


def write(path, table, points):
    if path.suffix == ".npy":
        np.save(path, points)
    elif path.suffix == ".csv":
        table.to_pandas().to_csv(path, index=False)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        pq.write_table(table, path, row_group_size=1000)


def test_a_value_missing_late_is_named_by_its_row(tmp_path):
    for suffix in (".parquet", ".arrow", ".csv", ".npy"):
        many = np.tile(WHOLE, (20, 1))
        many[55_555, 2] = np.nan
        table = pa.table(dict(zip(NAMES, many.T, strict=True)))
        write(tmp_path / f"in{suffix}", table, many)
        with pytest.raises(ValueError, match=told(55_555, "'c'")):
            transform_file(ATLAS, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")


def test_nulls_of_a_parquet_file_are_found_before_its_rows_are_moved(tmp_path, monkeypatch):
    many = np.tile(WHOLE, (20, 1))
    table = pa.table(dict(zip(NAMES, many.T, strict=True)))
    late = pa.array(many[:, 2], mask=np.arange(len(many)) == 55_555)
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(table.set_column(2, "c", late), source, row_group_size=10_000)
    moved = []
    move = type(ATLAS).move
    monkeypatch.setattr(type(ATLAS), "move", lambda *given: moved.append(len(given[1])) or move(*given))
    with pytest.raises(ValueError, match=told(55_555, "'c'")):
        transform_file(ATLAS, source, target)
    assert moved == []
    assert transform_file(ATLAS, source, target, on_missing="keep").status["missing"] == 1
    assert sum(moved) == len(many) - 1


def test_the_command(tmp_path, capsys):
    ATLAS.save(tmp_path / "atlas.dpmd")
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    write(source, TABLE, Z)
    line = ["transform", "--model", str(tmp_path / "atlas.dpmd"), str(source), "-o", str(target)]
    assert main(line) != 0
    said = capsys.readouterr().err
    assert f"in row {FIRST[0]}, column {NAMES[FIRST[1]]!r}; --on-missing keep leaves" in said
    assert main([*line, "--on-missing", "fill"]) == 2
    said = capsys.readouterr().err
    assert "--on-missing fill is for a mixture: must be keep or refuse with an atlas" in said
    assert not target.exists()
    report = ["--report", str(tmp_path / "page.html"), "--json"]
    assert main([*line, "--on-missing", "keep", *report]) == 0
    assert json.loads(capsys.readouterr().out)["status"]["missing"] == int(INCOMPLETE.sum())
    np.testing.assert_array_equal(read_points(target, NAMES, missing=True)[0], KEPT)
    assert "leaves out rows that have some" in (tmp_path / "page.html").read_text()
