"""Every kind of table through a mixture: cleaned as an array would be, with missing values filled or kept."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from samples import make_atlas, make_mixture

from dpmd_fast import Preprocessor
from dpmd_fast.tables import transform_batches
from dpmd_fast.tables.frames import transform_table
from dpmd_fast.tables.protocol import cleaner_of

N = 300
NAMES = ("a", "b", "c")
NOISE = 0.4
MIXTURE, NAMELESS = make_mixture(NAMES), make_mixture(None)
RNG = np.random.default_rng(1)
Z = RNG.normal(size=(N, 3))
Z[RNG.random(Z.shape) < 0.15] = np.nan
Z[7] = np.nan
CLEAN, STATUS = MIXTURE.transform(Z, NOISE, return_status=True)
KEPT = np.where(np.isnan(Z), np.nan, CLEAN)
TABLE = pa.table(
    {
        "name": [f"person {j}" for j in range(N)],
        "c": pa.array(Z[:, 2], from_pandas=True),
        "group": pa.array(["x", None] * (N // 2)).dictionary_encode(),
        "a": pa.array(Z[:, 0], from_pandas=True),
        "b": Z[:, 1],  # NaN, not null
        "count": pa.array([*range(N - 1), None], pa.int32()),
    }
)
OTHERS = ("name", "group", "count")
KINDS = {
    "table": lambda table: table,
    "batch": lambda table: pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in table.columns], table.schema.names
    ),
    "reader": lambda table: table.to_reader(max_chunksize=101),
    "pandas": lambda table: table.to_pandas(),
    "pandas, nullable": lambda table: table.to_pandas().convert_dtypes(
        convert_string=False, convert_integer=False, dtype_backend="numpy_nullable"
    ),
    "pandas, arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
}
WITH_STATUS = [kind for kind in KINDS if kind != "reader"]


def as_arrow(value):
    """Any kind of table as an Arrow table, in which NaN is NaN and null is null."""
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, pd.DataFrame):
        plain = {name for name in NAMES if isinstance(value.get(name, value).dtypes, np.dtype)}
        columns = [pa.array(value[name], from_pandas=name not in plain) for name in value.columns]
        return pa.table(columns, names=list(value.columns))
    return value.to_arrow() if isinstance(value, pl.DataFrame) else value


def numbers(value, names=NAMES):
    table = as_arrow(value)
    return np.stack([table[name].to_numpy() for name in names], axis=1)


def test_the_sample_has_what_the_tests_are_about():
    assert set(STATUS) == {"ok", "filled"}
    assert np.isfinite(CLEAN).all()
    assert (STATUS == "filled").tolist() == np.isnan(Z).any(axis=1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_cleaned_as_an_array(kind):
    given = KINDS[kind](TABLE)
    out = MIXTURE.transform(given, NOISE)
    assert type(out) is type(given)
    table = as_arrow(out)
    assert table.column_names == TABLE.column_names
    np.testing.assert_array_equal(numbers(table), CLEAN)
    for name in NAMES:
        assert table[name].null_count == 0
        assert table[name].type == pa.float64()
    for name in OTHERS:
        assert table[name].to_pylist() == as_arrow(KINDS[kind](TABLE))[name].to_pylist()


@pytest.mark.parametrize("kind", WITH_STATUS)
def test_the_status_of_rows(kind):
    for on_missing, status in (("fill", STATUS), ("keep", np.where(STATUS == "filled", "missing", STATUS))):
        found = MIXTURE.transform(KINDS[kind](TABLE), NOISE, on_missing=on_missing, return_status=True)[1]
        np.testing.assert_array_equal(found, status)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_that_are_kept_are_null(kind):
    out = MIXTURE.transform(KINDS[kind](TABLE), NOISE, on_missing="keep")
    table = as_arrow(out)
    np.testing.assert_array_equal(numbers(table), KEPT)
    for name, column in zip(NAMES, Z.T, strict=True):
        nulls = 0 if kind == "pandas" else np.isnan(column).sum()  # NumPy holds NaN
        assert table[name].null_count == nulls
    if isinstance(out, pd.DataFrame):
        assert out[list(NAMES)].isna().to_numpy().tolist() == np.isnan(Z).tolist()


@pytest.mark.parametrize("rows", [1, 999, 1001])
@pytest.mark.parametrize("wide", [True, False])
def test_missing_values_of_polars_that_are_kept_are_null(rows, wide):
    """Also of frames whose cleaned columns have memory of their own, or several types."""
    types = {name: pl.Float64 if wide or name != "b" else pl.Float32 for name in NAMES}
    values = np.zeros((rows, 3))
    values[-1, :2] = np.nan
    frame = pl.DataFrame(values, schema=types, nan_to_null=True)
    out = MIXTURE.transform(frame, NOISE, on_missing="keep")
    assert out.schema == frame.schema
    assert [out[name].null_count() for name in NAMES] == [1, 1, 0]
    assert [out[name].is_nan().sum() for name in NAMES] == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_that_are_refused(kind):
    with pytest.raises(ValueError, match=r"^X has missing values in column 'a', column 'b', column 'c'"):
        as_arrow(MIXTURE.transform(KINDS[kind](TABLE), NOISE, on_missing="refuse"))
    whole = TABLE.take(np.flatnonzero(~np.isnan(Z).any(axis=1)))
    out = MIXTURE.transform(KINDS[kind](whole), NOISE, on_missing="refuse")
    np.testing.assert_array_equal(numbers(out), CLEAN[~np.isnan(Z).any(axis=1)])


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_values_stay_to_the_last_bit(kind):
    out = numbers(MIXTURE.transform(KINDS[kind](TABLE), 0.0))
    there = ~np.isnan(Z)
    np.testing.assert_array_equal(out[there], Z[there])
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kind", KINDS)
def test_infinite_values_are_refused(kind):
    for value, told in ((np.inf, "contains infinity"), (1e101, "contains values beyond 1e")):
        column = Z[:, 1].copy()
        column[200] = value
        with pytest.raises(ValueError, match=f"^X {told}"):
            as_arrow(MIXTURE.transform(KINDS[kind](TABLE.set_column(4, "b", pa.array(column))), NOISE))


@pytest.mark.parametrize("kind", KINDS)
def test_names_in_messages(kind):
    with pytest.raises(ValueError, match=r"^X lacks 2 column\(s\) of the mixture: 'a', 'c'$"):
        MIXTURE.transform(KINDS[kind](TABLE.drop(["a", "c"])), NOISE)
    with pytest.raises(ValueError, match=r"^X has 6 columns: must have 3; the mixture has no column names"):
        NAMELESS.transform(KINDS[kind](TABLE), NOISE)
    texts = TABLE.set_column(3, "a", pa.array([str(j) for j in range(N)]))
    with pytest.raises(ValueError, match=r"^X has 1 column\(s\) that are not numeric: 'a'"):
        MIXTURE.transform(KINDS[kind](texts), NOISE)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_by_position(kind):
    table = TABLE.select(["c", "a", "b"]).rename_columns(["x", "y", "z"])
    out = NAMELESS.transform(KINDS[kind](table), NOISE)
    np.testing.assert_array_equal(numbers(out, ("x", "y", "z")), NAMELESS.transform(Z[:, [2, 0, 1]], NOISE))


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_numbers_with_missing_values(kind):
    """float32 stays; integers and booleans with nulls become float64."""
    table = pa.table(
        {
            "a": pa.array(Z[:, 0], pa.float32(), from_pandas=True),
            "b": pa.array([None if np.isnan(x) else int(3 * x) for x in Z[:, 1]], pa.int16()),
            "c": pa.array([None if np.isnan(x) else x > 0.0 for x in Z[:, 2]]),
        }
    )
    if kind == "pandas":  # which has no nulls but NaN
        given = table.to_pandas().astype({"b": np.float64, "c": np.float64})
    elif kind == "pandas, nullable":
        given = pd.DataFrame(
            {
                "a": pd.array(table["a"].to_pandas(), dtype="Float32"),
                "b": pd.array(table["b"].to_pandas(), dtype="Int16"),
                "c": pd.array(table["c"].to_pylist(), dtype="boolean"),
            }
        )
    else:
        given = KINDS[kind](table)
    values = np.stack([np.array(table[name].cast(pa.float64()).to_numpy()) for name in NAMES], axis=1)
    expected = MIXTURE.transform(values, NOISE)
    out = MIXTURE.transform(given, NOISE)
    if isinstance(out, pd.DataFrame):
        wanted = {
            "pandas": ["float32", "float64", "float64"],
            "pandas, nullable": ["Float32", "Float64", "Float64"],
            "pandas, arrow": ["float[pyarrow]", "double[pyarrow]", "double[pyarrow]"],
        }
        assert list(map(str, out.dtypes)) == wanted[kind]
    table = as_arrow(out)
    assert table.schema.types == [pa.float32(), pa.float64(), pa.float64()]
    np.testing.assert_array_equal(table["a"].to_numpy(), expected[:, 0].astype(np.float32))
    np.testing.assert_array_equal(numbers(table, "bc"), expected[:, 1:])


def test_single_precision_arrays_and_frames():
    single = Z.astype(np.float32)
    expected = MIXTURE.transform(single, NOISE)
    assert expected.dtype == np.float32
    out = MIXTURE.transform(pd.DataFrame(single, columns=NAMES), NOISE)
    assert set(out.dtypes) == {np.dtype(np.float32)}
    np.testing.assert_array_equal(out.to_numpy(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_without_rows(kind):
    out = MIXTURE.transform(KINDS[kind](TABLE.slice(0, 0)), NOISE)
    assert numbers(out).shape == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_without_any_value(kind):
    """A column of nulls is a column of missing values, if its type is a number's."""
    table = TABLE.set_column(3, "a", pa.nulls(N, pa.float64()))
    blank = Z.copy()
    blank[:, 0] = np.nan
    out = numbers(MIXTURE.transform(KINDS[kind](table), NOISE))
    np.testing.assert_array_equal(out, MIXTURE.transform(blank, NOISE))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pandas, nullable"])
def test_columns_whose_type_is_not_known(kind):
    """One query without a value: its type is null, and None is an object in pandas."""
    table = pa.table({"a": [None], "b": [0.5], "c": pa.nulls(1)})
    assert str(table.schema.field("c").type) == "null"
    expected = MIXTURE.transform(np.array([[np.nan, 0.5, np.nan]]), NOISE)
    out = as_arrow(MIXTURE.transform(KINDS[kind](table), NOISE))
    np.testing.assert_array_equal(numbers(out), expected)
    assert out.schema.types == [pa.float64()] * 3
    kept = as_arrow(MIXTURE.transform(KINDS[kind](table), NOISE, on_missing="keep"))
    np.testing.assert_array_equal(numbers(kept), np.where([[False, True, False]], expected, np.nan))
    with pytest.raises(ValueError, match="X has missing values in column 'a', column 'c'"):
        as_arrow(MIXTURE.transform(KINDS[kind](table), NOISE, on_missing="refuse"))
    with pytest.raises(ValueError, match="not numeric: 'a'"):
        make_atlas().transform(KINDS[kind](table))


def test_objects_of_pandas_are_not_guessed_at():
    frame = pd.DataFrame({"a": [None, 1.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}).astype({"a": object})
    with pytest.raises(ValueError, match=r"not numeric: 'a' \(object\)"):
        MIXTURE.transform(frame, NOISE)
    frame["a"] = [None, pd.NA]
    assert MIXTURE.transform(frame, NOISE)["a"].dtype == np.float64
    with pytest.raises(ValueError, match=r"not numeric: 'a' \(object\)"):
        MIXTURE.transform(frame.iloc[:0], NOISE)


def test_a_column_that_holds_no_null_keeps_its_schema():
    schema = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in NAMES])
    table = pa.Table.from_arrays([pa.array(column) for column in Z.T], schema=schema)
    for on_missing in ("fill", "keep"):
        out = MIXTURE.transform(table, NOISE, on_missing=on_missing)
        assert out.schema == schema
        assert [column.null_count for column in out.columns] == [0, 0, 0]
        out.validate(full=True)
    np.testing.assert_array_equal(numbers(out), KEPT)


def test_noise_by_column_and_in_original_units():
    preprocess = Preprocessor((1.0, 0.0, 0.0), (0.5, 2.0, 1.0), (True, False, False), column_names=NAMES)
    mixture = make_mixture(NAMES, preprocess=preprocess)
    points = np.exp(0.1 * Z)
    points[3, 1] = 1e9  # beyond the limit
    noise = {"b": 0.2, "a": 0.1, "c": 0.3}
    expected, status = mixture.transform(points, noise, return_status=True)
    assert set(status) == {"ok", "filled", "clipped"}
    frame = pd.DataFrame(points, columns=NAMES)
    out, found = mixture.transform(frame[["c", "b", "a"]], noise, return_status=True)
    np.testing.assert_array_equal(out[list(NAMES)].to_numpy(), expected)
    np.testing.assert_array_equal(found, status)
    with pytest.raises(ValueError, match="X has values that are not positive in column 'a'"):
        mixture.transform(-frame, noise)


def test_a_result_beyond_the_type_leaves_the_row_as_it_was():
    preprocess = Preprocessor((0.0,) * 3, (4e38, 1.0, 1.0), column_names=NAMES)
    far = make_mixture(NAMES, preprocess=preprocess)
    blank = np.column_stack([np.full(N, np.nan), Z[:, 1:]])
    expected = far.transform(blank, NOISE)
    failed = np.abs(expected[:, 0]) > np.finfo(np.float32).max
    assert 0 < failed.sum() < N
    table = TABLE.set_column(3, "a", pa.nulls(N, pa.float32()))
    out, status = far.transform(table, NOISE, return_status=True)
    assert (status == "failed").tolist() == failed.tolist()
    assert out["a"].is_null().to_pylist() == failed.tolist()
    np.testing.assert_array_equal(numbers(out, "bc"), np.where(failed[:, None], Z, expected)[:, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_deviations_of_a_table(kind):
    if kind == "reader":
        return
    means, deviations = MIXTURE.posterior(KINDS[kind](TABLE), NOISE)
    expected = MIXTURE.posterior(Z, NOISE)
    np.testing.assert_array_equal(numbers(means), expected[0])
    np.testing.assert_array_equal(numbers(deviations), expected[1])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_table(kind):
    np.testing.assert_array_equal(
        MIXTURE.score_samples(KINDS[kind](TABLE), NOISE), MIXTURE.score_samples(Z, NOISE)
    )


# --- batches and engines


def test_batches_one_for_one():
    batches = TABLE.to_batches(max_chunksize=97)
    moved = list(transform_batches(MIXTURE, batches, noise=NOISE))
    assert [len(batch) for batch in moved] == [len(batch) for batch in batches]
    np.testing.assert_array_equal(numbers(pa.Table.from_batches(moved)), CLEAN)
    kept = transform_batches(MIXTURE, batches, noise=NOISE, on_missing="keep")
    np.testing.assert_array_equal(numbers(pa.Table.from_batches(kept)), KEPT)
    with pytest.raises(ValueError, match=r"^noise = None: must be the deviation"):
        transform_batches(MIXTURE, batches)
    with pytest.raises(TypeError, match=r"^batches holds a ndarray: must hold Arrow record batches"):
        next(transform_batches(MIXTURE, [Z], noise=NOISE))


def test_what_a_model_is_asked_for():
    atlas = make_atlas()
    assert cleaner_of(atlas) is atlas
    assert cleaner_of(atlas, on_missing="refuse") is atlas
    with pytest.raises(ValueError, match=r"^noise = 0\.5: must be None for an atlas, which does not use it$"):
        cleaner_of(atlas, noise=0.5)
    kept = cleaner_of(atlas, on_missing="keep")
    assert (kept.kind, kept.missing, kept.n_columns, kept.column_names) == (
        "atlas",
        "keep",
        3,
        ("a", "b", "c"),
    )
    with pytest.raises(ValueError, match=r"^on_missing = 'fill': must be one of 'refuse', 'keep'$"):
        cleaner_of(atlas, on_missing="fill")
    ready = MIXTURE.cleaner(NOISE, "keep")
    assert cleaner_of(ready) is ready
    with pytest.raises(ValueError, match=r"^noise = 0\.5: must be None for a cleaner, which has its own$"):
        cleaner_of(ready, noise=0.5)
    with pytest.raises(ValueError, match=r"^on_missing = 'fill': must be left out for a cleaner"):
        cleaner_of(ready, on_missing="fill")
    with pytest.raises(ValueError, match=r"^model is a str: must be an Atlas or a Mixture$"):
        cleaner_of("model.dpmd")
    with pytest.raises(ValueError, match="on_missing"):
        cleaner_of(MIXTURE, NOISE, "drop")


def test_any_cleaner_of_rows_will_do():
    """The seam: five attributes, no base class."""

    class Negative:
        n_columns, column_names, kind, missing = 2, ("a", "b"), "mirror", "keep"

        def move(self, points, n_threads=None, name="Z"):
            return -points, np.zeros(len(points), np.int8)

    out = transform_table(Negative(), TABLE, None, False)
    np.testing.assert_array_equal(numbers(out, "ab"), -Z[:, :2])
    assert out["c"].equals(TABLE["c"])


def test_a_cleaner_can_be_sent():
    cleaner = MIXTURE.cleaner(NOISE)
    again = pickle.loads(pickle.dumps(cleaner))
    np.testing.assert_array_equal(again.move(Z)[0], CLEAN)


def test_a_dask_array():
    da = pytest.importorskip("dask.array")
    for dtype in (np.float64, np.float32):
        given = Z.astype(dtype)
        moved, status = MIXTURE.transform(da.from_array(given, (70, 2)), NOISE, return_status=True)
        assert moved.dtype == dtype
        np.testing.assert_array_equal(moved.compute(), MIXTURE.transform(given, NOISE))
        np.testing.assert_array_equal(status.compute(), STATUS)
        kept = MIXTURE.transform(da.from_array(given, (70, 3)), NOISE, on_missing="keep").compute()
        assert np.isnan(kept).tolist() == np.isnan(Z).tolist()
    with pytest.raises(ValueError, match=r"^X has shape \(3, 5\): must have 3 columns"):
        MIXTURE.transform(da.zeros((3, 5)), NOISE)
    with pytest.raises(ValueError, match="X has missing values in column 'a'"):
        MIXTURE.transform(da.from_array(Z, (70, 3)), NOISE, on_missing="refuse").compute()


@pytest.mark.parametrize("kind", ["pandas", "pandas, nullable", "pandas, arrow"])
def test_a_dask_frame(kind):
    dd = pytest.importorskip("dask.dataframe")
    frame = KINDS[kind](TABLE)
    lazy = dd.from_pandas(frame, npartitions=4)
    for on_missing, expected in (("fill", CLEAN), ("keep", KEPT)):
        moved = MIXTURE.transform(lazy, NOISE, on_missing=on_missing)
        computed = moved.compute()
        assert list(moved.columns) == list(computed.columns) == list(frame.columns)
        for name in NAMES:
            assert moved.dtypes[name] == computed.dtypes[name] == frame.dtypes[name]
        np.testing.assert_array_equal(computed[list(NAMES)].to_numpy(np.float64, na_value=np.nan), expected)
        assert computed["name"].tolist() == TABLE["name"].to_pylist()


@pytest.mark.slow  # one of an atlas, in tests/reference, is not
def test_a_spark_frame(spark):
    schema = "name string, c double, a float, b int"
    rows = [
        (f"p{j:03}", *(None if np.isnan(x) else float(x) for x in (Z[j, 2], Z[j, 0])),
         None if np.isnan(Z[j, 1]) else int(3 * Z[j, 1]))
        for j in range(N)
    ]  # fmt: skip
    values = np.stack([Z[:, 0].astype(np.float32).astype(np.float64), np.trunc(3 * Z[:, 1]), Z[:, 2]], axis=1)
    frame = spark.createDataFrame(rows, schema).repartition(5)
    expected = MIXTURE.transform(values, NOISE)
    moved = MIXTURE.transform(frame, NOISE)
    assert [field.dataType.simpleString() for field in moved.schema] == [
        "string",
        "double",
        "float",
        "double",
    ]
    found = moved.toPandas().sort_values("name")
    assert found["name"].tolist() == [row[0] for row in rows]
    np.testing.assert_array_equal(found["a"].to_numpy(), expected[:, 0].astype(np.float32))
    np.testing.assert_array_equal(found[["b", "c"]].to_numpy(), expected[:, 1:])
    kept = MIXTURE.transform(frame, NOISE, on_missing="keep").orderBy("name").collect()
    for j, row in enumerate(kept):
        assert [row[name] is None for name in NAMES] == np.isnan(Z[j]).tolist()
