"""Files through a mixture: missing values, deviations and status, and all else as it was."""

import os

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from samples import make_atlas, make_mixture

from dpmd_fast import Preprocessor
from dpmd_fast.tables import formats
from dpmd_fast.tables.anndata import denoise_anndata
from dpmd_fast.tables.files import read_points, transform_file

N = 2000
NAMES = ("a", "b", "c")
NOISE = 0.4
MIXTURE, NAMELESS, ATLAS = make_mixture(NAMES), make_mixture(None), make_atlas(NAMES)
RNG = np.random.default_rng(1)
Z = RNG.normal(size=(N, 3))
Z[RNG.random(Z.shape) < 0.15] = np.nan
CLEAN, STATUS = MIXTURE.transform(Z, NOISE, return_status=True)
DEVIATIONS = MIXTURE.posterior(Z, NOISE)[1]
KEPT = np.where(np.isnan(Z), np.nan, CLEAN)
TABLE = pa.table(
    {
        "name": [f"person {j}" for j in range(N)],
        "c": pa.array(Z[:, 2], from_pandas=True),
        "a": pa.array(Z[:, 0], from_pandas=True),
        "b": pa.array(Z[:, 1], from_pandas=True),
        "count": pa.array([*range(N - 1), None], pa.int32()),
    }
)
WRITE = {
    ".parquet": lambda table, path: pq.write_table(table, path, row_group_size=700),
    ".arrow": lambda table, path: _write_arrow(table, path),
    ".csv": lambda table, path: pa.csv.write_csv(table, path),
}
READ = {
    ".parquet": pq.read_table,
    ".arrow": lambda path: pa.ipc.open_file(path).read_all(),
    ".csv": lambda path: pa.csv.read_csv(
        path, convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.float64()))
    ),
}


def _write_arrow(table, path):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(formats, "_MOST_ROWS", 256)
    monkeypatch.setattr(formats, "_FEWEST_ROWS", 256)


@pytest.fixture
def source(tmp_path):
    WRITE[".parquet"](TABLE, tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def numbers(table, names=NAMES):
    return np.stack([table[name].to_numpy() for name in names], axis=1)


@pytest.mark.parametrize("before", WRITE)
@pytest.mark.parametrize("after", WRITE)
def test_every_format_into_every_other(tmp_path, before, after):
    source, target = tmp_path / f"in{before}", tmp_path / f"out{after}"
    WRITE[before](TABLE, source)
    result = transform_file(
        MIXTURE, source, target, noise=NOISE, deviation_suffix="_sd", status_column="status"
    )
    out = READ[after](target)
    assert out.column_names == [*TABLE.column_names, "c_sd", "a_sd", "b_sd", "status"]
    np.testing.assert_array_equal(numbers(out), CLEAN)
    np.testing.assert_array_equal(numbers(out, ("a_sd", "b_sd", "c_sd")), DEVIATIONS)
    assert [out[name].null_count for name in NAMES] == [0, 0, 0]
    assert out["status"].to_pylist() == STATUS.tolist()
    assert out["name"].to_pylist() == TABLE["name"].to_pylist()
    if before != ".csv":  # where it becomes a text
        assert out["count"].to_pylist() == TABLE["count"].to_pylist()
    assert result.rows == N
    assert result.status == {"ok": (STATUS == "ok").sum(), "filled": (STATUS == "filled").sum()}


@pytest.mark.parametrize("suffix", WRITE)
def test_missing_values_that_are_kept(tmp_path, suffix):
    WRITE[suffix](TABLE, tmp_path / f"in{suffix}")
    result = transform_file(
        MIXTURE,
        tmp_path / f"in{suffix}",
        tmp_path / f"out{suffix}",
        noise=NOISE,
        on_missing="keep",
        deviation_suffix=" +-",
    )
    out = READ[suffix](tmp_path / f"out{suffix}")
    np.testing.assert_array_equal(numbers(out), KEPT)
    for name in NAMES:  # nulls, and no deviation of what is not there
        assert out[name].is_null().to_pylist() == TABLE[name].is_null().to_pylist()
        assert out[f"{name} +-"].is_null().to_pylist() == TABLE[name].is_null().to_pylist()
    assert result.status == {"ok": (STATUS == "ok").sum(), "missing": (STATUS == "filled").sum()}


@pytest.mark.parametrize("suffix", [*WRITE, ".npy"])
def test_missing_values_that_are_refused(tmp_path, suffix):
    if suffix == ".npy":
        np.save(tmp_path / "in.npy", Z)
    else:
        WRITE[suffix](TABLE, tmp_path / f"in{suffix}")
    told = r"in\.\w+ has missing values in column 'a', .*\(among rows 0 to \d+\); fill or leave out such rows"
    with pytest.raises(ValueError, match=told):
        transform_file(
            MIXTURE, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", noise=NOISE, on_missing="refuse"
        )
    assert os.listdir(tmp_path) == [f"in{suffix}"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arrays(tmp_path, dtype):
    given = Z.astype(dtype)
    np.save(tmp_path / "in.npy", given)
    for on_missing in ("fill", "keep"):
        transform_file(
            MIXTURE,
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            noise=NOISE,
            on_missing=on_missing,
            overwrite=True,
        )
        out = np.load(tmp_path / "out.npy")
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, MIXTURE.transform(given, NOISE, on_missing=on_missing))
    with pytest.raises(ValueError, match=r"^deviation_suffix = '_sd': must be None for an array"):
        transform_file(MIXTURE, tmp_path / "in.npy", tmp_path / "o.npy", noise=NOISE, deviation_suffix="_sd")
    np.save(tmp_path / "bad.npy", np.where(np.arange(N)[:, None] == 300, np.inf, Z))
    told = r"bad\.npy contains infinity.*; the first is infinity in row 300, column 'a'$"
    with pytest.raises(ValueError, match=told):
        transform_file(MIXTURE, tmp_path / "bad.npy", tmp_path / "o.npy", noise=NOISE)


def test_row_groups_codecs_and_types_are_kept(tmp_path):
    table = TABLE.set_column(2, "a", TABLE["a"].cast(pa.float32()))
    table = table.set_column(
        3, "b", pa.array([None if np.isnan(x) else int(3 * x) for x in Z[:, 1]], pa.int64())
    )
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(table, source, row_group_size=700, compression={"name": "zstd", "c": "none", "a": "gzip"})
    transform_file(MIXTURE, source, target, noise=NOISE, deviation_suffix="_sd", status_column="status")
    before, after = pq.ParquetFile(source).metadata, pq.ParquetFile(target).metadata
    assert after.num_row_groups == before.num_row_groups == 3
    for group in range(3):
        assert after.row_group(group).num_rows == before.row_group(group).num_rows
    codecs = {after.row_group(0).column(k).path_in_schema: after.row_group(0).column(k) for k in range(9)}
    for number in range(5):
        one = before.row_group(0).column(number)
        assert codecs[one.path_in_schema].compression == one.compression
    for name in ("a", "a_sd", "b_sd", "c_sd"):  # numbers that hardly ever repeat
        assert not codecs[name].has_dictionary_page
    assert codecs["status"].has_dictionary_page
    out = pq.read_table(target)
    types = {name: str(out.schema.field(name).type) for name in out.column_names}
    assert [types[name] for name in NAMES] == ["float", "double", "double"]
    assert [types[f"{name}_sd"] for name in NAMES] == ["float", "double", "double"]
    assert out.select(TABLE.column_names).equals(MIXTURE.transform(table, NOISE))


def test_empty_cells_of_csv_files(tmp_path):
    (tmp_path / "in.csv").write_text("id,a,b,c\nx,1,,0.5\n,,,\nz,0.25,NA,-1\n")
    points = np.array([[1.0, np.nan, 0.5], [np.nan] * 3, [0.25, np.nan, -1.0]])
    transform_file(MIXTURE, tmp_path / "in.csv", tmp_path / "out.csv", noise=NOISE)
    out = pd.read_csv(tmp_path / "out.csv", float_precision="round_trip")
    np.testing.assert_array_equal(out[list(NAMES)].to_numpy(), MIXTURE.transform(points, NOISE))
    transform_file(
        MIXTURE, tmp_path / "in.csv", tmp_path / "kept.csv", noise=NOISE, on_missing="keep", overwrite=True
    )
    rows = [line.split(",") for line in (tmp_path / "kept.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["id", "x", "", "z"]
    assert [[cell == "" for cell in row[1:]] for row in rows[1:]] == np.isnan(points).tolist()
    with pytest.raises(ValueError, match="contains NaN or infinity"):
        transform_file(ATLAS, tmp_path / "in.csv", tmp_path / "no.csv")
    plain = "x,y,z\n1,,0.5\n,,1\n"
    (tmp_path / "plain.csv").write_text(plain)
    transform_file(NAMELESS, tmp_path / "plain.csv", tmp_path / "plain out.csv", noise=NOISE)
    out = pd.read_csv(tmp_path / "plain out.csv", float_precision="round_trip").to_numpy()
    points = np.array([[1.0, np.nan, 0.5], [np.nan, np.nan, 1.0]])
    np.testing.assert_array_equal(out, NAMELESS.transform(points, NOISE))


def test_a_csv_column_that_is_empty_at_first(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_BATCH_BYTES", 4096)
    points = Z.copy()
    points[:1500, 0] = np.nan
    frame = pd.DataFrame(points, columns=NAMES)
    frame.to_csv(tmp_path / "in.csv", index=False)
    transform_file(MIXTURE, tmp_path / "in.csv", tmp_path / "out.csv", noise=NOISE)
    out = pd.read_csv(tmp_path / "out.csv", float_precision="round_trip").to_numpy()
    read = pd.read_csv(tmp_path / "in.csv", float_precision="round_trip").to_numpy()
    np.testing.assert_array_equal(out, MIXTURE.transform(read, NOISE))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_number_of_threads(source, tmp_path, n_threads):
    transform_file(MIXTURE, source, tmp_path / "out.parquet", noise=NOISE, n_threads=n_threads)
    np.testing.assert_array_equal(numbers(pq.read_table(tmp_path / "out.parquet")), CLEAN)


def test_a_cleaner_instead_of_a_model(source, tmp_path):
    transform_file(MIXTURE.cleaner(NOISE, "keep"), source, tmp_path / "out.parquet")
    np.testing.assert_array_equal(numbers(pq.read_table(tmp_path / "out.parquet")), KEPT)


def test_noise_by_column_and_deviations_in_original_units(tmp_path):
    preprocess = Preprocessor((1.0, 0.0, 0.0), (0.5, 2.0, 1.0), (True, False, False), column_names=NAMES)
    mixture = make_mixture(NAMES, preprocess=preprocess)
    points = np.exp(0.1 * Z)
    noise = {"a": 0.1, "b": 0.2, "c": 0.3}
    pq.write_table(pa.table(dict(zip(NAMES, points.T, strict=True))), tmp_path / "in.parquet")
    transform_file(
        mixture, tmp_path / "in.parquet", tmp_path / "out.parquet", noise=noise, deviation_suffix="_sd"
    )
    out = pq.read_table(tmp_path / "out.parquet")
    means, deviations = mixture.posterior(points, noise)
    np.testing.assert_array_equal(numbers(out), means)
    np.testing.assert_array_equal(numbers(out, ("a_sd", "b_sd", "c_sd")), deviations)


def test_rows_that_fail_have_no_deviation(tmp_path):
    preprocess = Preprocessor((0.0,) * 3, (4e38, 1.0, 1.0), column_names=NAMES)
    far = make_mixture(NAMES, preprocess=preprocess)
    table = TABLE.set_column(2, "a", pa.nulls(N, pa.float32()))
    _write_arrow(table, tmp_path / "in.arrow")
    result = transform_file(
        far,
        tmp_path / "in.arrow",
        tmp_path / "out.arrow",
        noise=NOISE,
        deviation_suffix="_sd",
        status_column="status",
    )
    out = READ[".arrow"](tmp_path / "out.arrow")
    failed = [word == "failed" for word in out["status"].to_pylist()]
    assert 0 < sum(failed) == result.status["failed"] < N
    for name in ("a", "b_sd", "c_sd"):
        assert out[name].is_null().to_pylist() == failed
    assert out["b"].filter(pa.array(failed)).equals(table["b"].filter(pa.array(failed)))


def test_what_is_refused(source, tmp_path):
    target = tmp_path / "out.parquet"
    with pytest.raises(ValueError, match=r"^noise = None: must be the deviation"):
        transform_file(MIXTURE, source, target)
    with pytest.raises(ValueError, match=r"^noise = -1: must be"):
        transform_file(MIXTURE, source, target, noise=-1)
    with pytest.raises(ValueError, match=r"^noise = 0\.5: must be None for an atlas"):
        transform_file(ATLAS, source, target, noise=0.5)
    with pytest.raises(ValueError, match=r"^on_missing = 'fill': must be one of 'refuse', 'keep'$"):
        transform_file(ATLAS, source, target, on_missing="fill")
    with pytest.raises(ValueError, match=r"^deviation_suffix = '_sd': must be None for an atlas"):
        transform_file(ATLAS, source, target, deviation_suffix="_sd")
    for suffix in ("", 3):
        with pytest.raises(ValueError, match=r"^deviation_suffix = .*: must be None or a text"):
            transform_file(MIXTURE, source, target, noise=NOISE, deviation_suffix=suffix)
    wide = TABLE.append_column("a_sd", TABLE["a"]).append_column("b_sd", TABLE["b"])
    pq.write_table(wide, tmp_path / "wide.parquet")
    told = r"^deviation_suffix = '_sd': .*wide\.parquet has columns with these names already: 'a_sd', 'b_sd'$"
    with pytest.raises(ValueError, match=told):
        transform_file(MIXTURE, tmp_path / "wide.parquet", target, noise=NOISE, deviation_suffix="_sd")
    with pytest.raises(ValueError, match=r"^status_column = 'a_sd': .* has a column of that name already"):
        transform_file(MIXTURE, source, target, noise=NOISE, deviation_suffix="_sd", status_column="a_sd")
    np.save(tmp_path / "in.npy", Z[:, :2])
    with pytest.raises(ValueError, match=r"in\.npy has 2 columns: must have 3, as the mixture$"):
        transform_file(MIXTURE, tmp_path / "in.npy", tmp_path / "out.npy", noise=NOISE)
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "in.parquet", "wide.parquet"]


# --- AnnData


def cells(X):
    index = pd.Index([f"cell {k}" for k in range(len(X))])
    genes = pd.DataFrame(index=["b", "other", "a", "c"])
    return ad.AnnData(X, obs=pd.DataFrame(index=index), var=genes)


def test_cells_of_an_anndata(tmp_path):
    adata = cells(np.column_stack([Z[:, 1], np.ones(N), Z[:, 0], Z[:, 2]]))
    denoise_anndata(MIXTURE, adata, noise=NOISE)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], CLEAN)
    assert list(adata.obs["dpmd_status"]) == STATUS.tolist()
    record = adata.uns["dpmd"]
    assert record["epsilon"] == MIXTURE.guarantee.epsilon
    assert record["components"] == 4
    assert record["noise"] == NOISE
    noise = {"c": 0.3, "a": 0.1, "b": 0.2}
    denoise_anndata(MIXTURE, adata, noise=noise, on_missing="keep", key_added="X_kept")
    assert np.isnan(adata.obsm["X_kept"]).tolist() == np.isnan(Z).tolist()
    assert adata.uns["kept"]["noise"].tolist() == [0.1, 0.2, 0.3]
    adata.write_h5ad(tmp_path / "cells.h5ad")
    again = ad.read_h5ad(tmp_path / "cells.h5ad")
    assert again.uns["kept"]["noise_unit"] == "that of the columns"
    with pytest.raises(ValueError, match=r"^noise = None"):
        denoise_anndata(MIXTURE, adata, key_added="X_more")
    with pytest.raises(ValueError, match=r"^model is a MixtureCleaner: must be an Atlas or a Mixture"):
        denoise_anndata(MIXTURE.cleaner(NOISE), adata, key_added="X_more")
    assert sorted(adata.obsm) == ["X_dpmd", "X_kept"]


def test_points_with_missing_values_are_read(tmp_path):
    points = np.arange(12.0).reshape(6, 2)
    points[1, 0] = points[4, 1] = np.nan
    table = pa.table({name: pa.array(points[:, j], from_pandas=True) for j, name in enumerate("ab")})
    pq.write_table(table, tmp_path / "a.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    np.save(tmp_path / "a.npy", points)
    for kind in ("parquet", "csv", "npy"):
        found, _ = read_points(tmp_path / f"a.{kind}", None if kind == "npy" else ["a", "b"], missing=True)
        np.testing.assert_array_equal(found, points)
        with pytest.raises(ValueError, match="contains NaN or infinity"):
            read_points(tmp_path / f"a.{kind}", None if kind == "npy" else ["a", "b"])
