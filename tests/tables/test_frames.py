"""Tables through an atlas: its columns are moved as an array would be, and all else stays."""

import decimal
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import make_atlas

from dpmd_fast.tables.frames import is_table, transform_table

N = 400


ATLAS = make_atlas()
NAMELESS = make_atlas(None)
Z = np.random.default_rng(1).uniform(-2.0, 2.0, size=(N, 3))
MOVED, STATUS = ATLAS.transform(Z, return_status=True)
TABLE = pa.table(
    {
        "name": [f"person {j}" for j in range(N)],
        "c": Z[:, 2],
        "group": pa.array(["x", "y"] * (N // 2)).dictionary_encode(),
        "a": Z[:, 0],
        "b": Z[:, 1],
        "count": pa.array([*range(N - 1), None], pa.int32()),
    }
)
KINDS = {
    "table": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "pandas": lambda table: table.to_pandas(),
    "pandas, arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
}


def as_arrow(value):
    """Any kind of table as an Arrow table."""
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, pd.DataFrame):
        return pa.Table.from_pandas(value)
    return value.to_arrow() if isinstance(value, pl.DataFrame) else value


def numbers(value, names=("a", "b", "c")):
    table = as_arrow(value)
    return np.stack([table[name].to_numpy() for name in names], axis=1)


def moved_with_status(value):
    """A table moved, and its status; that of a stream batch by batch."""
    if not isinstance(value, pa.RecordBatchReader):
        return ATLAS.transform(value, return_status=True)
    batches = list(value)
    status = [ATLAS.transform(batch, return_status=True)[1] for batch in batches]
    out = ATLAS.transform(pa.RecordBatchReader.from_batches(value.schema, batches))
    return out, np.concatenate([*status, STATUS[:0]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_moved_as_an_array(kind):
    given = KINDS[kind](TABLE)
    assert is_table(given)
    out, status = moved_with_status(given)
    assert type(out) is type(given)
    table = as_arrow(out)
    np.testing.assert_array_equal(status, STATUS)
    assert set(STATUS) == {"ok", "outside"}
    np.testing.assert_array_equal(numbers(table), MOVED)
    assert table.column_names[:6] == TABLE.column_names
    for name in ("name", "group", "count"):
        assert table[name].to_pylist() == as_arrow(KINDS[kind](TABLE))[name].to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_stays_as_it_is(kind):
    given = KINDS[kind](TABLE)
    if kind != "reader":
        ATLAS.transform(given)
        np.testing.assert_array_equal(numbers(given), Z)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_by_position(kind):
    table = TABLE.select(["c", "a", "b"]).rename_columns(["x", "y", "z"])
    out = NAMELESS.transform(KINDS[kind](table))
    expected = NAMELESS.transform(Z[:, [2, 0, 1]])
    np.testing.assert_array_equal(numbers(out, ("x", "y", "z")), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_matched_by_position(kind):
    with pytest.raises(ValueError, match=r"^Z has 6 columns: must have 3; .*only be matched by position$"):
        NAMELESS.transform(KINDS[kind](TABLE))
    text = r"^Z has 1 column\(s\) that are not numeric: 'name' \(.*\); .*only be matched by position$"
    with pytest.raises(ValueError, match=text):
        NAMELESS.transform(KINDS[kind](TABLE.select(["name", "a", "b"])))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_columns_are_named(kind):
    with pytest.raises(ValueError, match=r"^Z lacks 2 column\(s\) of the atlas: 'a', 'c'$"):
        ATLAS.transform(KINDS[kind](TABLE.drop(["a", "c"])))
    many = make_atlas(tuple(f"gene {j}" for j in range(100)), wide=100)
    with pytest.raises(ValueError, match=r"^Z lacks 100 column\(s\) .*'gene 19' and 80 more$"):
        many.transform(KINDS[kind](TABLE))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_not_numeric_are_named(kind):
    texts = pa.array([str(j) for j in range(N)])
    table = TABLE.set_column(3, "a", texts)
    with pytest.raises(ValueError, match=r"^Z has 1 column\(s\) that are not numeric: 'a' \([^()]*\)$"):
        ATLAS.transform(KINDS[kind](table))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(kind, value):
    column = TABLE["b"].to_pylist()
    column[300] = value
    given = KINDS[kind](TABLE.set_column(4, "b", pa.array(column, pa.float64())))
    kind = "infinity" if value in (float("inf"), -float("inf")) else "NaN"
    told = (
        f"^Z contains NaN or infinity: all values must be finite; the first is {kind} in row 300, column 'b'"
    )
    with pytest.raises(ValueError, match=told):
        as_arrow(ATLAS.transform(given))


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_may_hold_anything(kind):
    odd = pa.table({"nan": [float("nan")] * N, "null": [None] * N, "list": [[1], None] * (N // 2)})
    table = TABLE
    for name in odd.column_names:
        table = table.append_column(name, odd[name])
    np.testing.assert_array_equal(numbers(ATLAS.transform(KINDS[kind](table))), MOVED)


@pytest.mark.parametrize("kind", KINDS)
def test_too_large_values(kind):
    table = TABLE.set_column(3, "a", pa.array([1e101] * N))
    with pytest.raises(ValueError, match=r"^Z contains values beyond"):
        as_arrow(ATLAS.transform(KINDS[kind](table)))


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_columns(kind):
    table = pa.table(
        {
            "a": pa.array(Z[:, 0].astype(np.float32)),
            "b": pa.array((3 * Z[:, 1]).astype(np.int16)),
            "c": pa.array(Z[:, 2] > 0.0),
        }
    )
    wide = np.stack([table[name].to_numpy().astype(np.float64) for name in "abc"], axis=1)
    expected = ATLAS.transform(wide)
    out = as_arrow(ATLAS.transform(KINDS[kind](table)))
    assert out.schema.types[:3] == [pa.float32(), pa.float64(), pa.float64()]
    np.testing.assert_array_equal(out["a"].to_numpy(), expected[:, 0].astype(np.float32))
    np.testing.assert_array_equal(numbers(out, "bc"), expected[:, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision(kind):
    table = pa.table({name: Z[:, j].astype(np.float32) for j, name in enumerate("abc")})
    out = as_arrow(ATLAS.transform(KINDS[kind](table)))
    assert out.schema.types == [pa.float32()] * 3
    np.testing.assert_array_equal(numbers(out), ATLAS.transform(Z.astype(np.float32)))


def test_halves_decimals_and_large_integers():
    parts = [decimal.Decimal("0.25"), decimal.Decimal("-0.50")]
    table = pa.table(
        {
            "a": pa.array(np.array([0.5, -0.25], dtype=np.float16)),
            "b": pa.array(parts, pa.decimal128(9, 2)),
            "c": pa.array([0, 2**62], pa.int64()),
        }
    )
    points = np.array([[0.5, 0.25, 0.0], [-0.25, -0.5, 2.0**62]])
    expected, status = ATLAS.transform(points, return_status=True)
    assert list(status) == ["ok", "outside"]
    for given in (table, pl.from_arrow(table), table.to_pandas(types_mapper=pd.ArrowDtype)):
        np.testing.assert_array_equal(numbers(ATLAS.transform(given)), expected)
    frame = pl.from_arrow(table).with_columns(pl.col("c").cast(pl.Int128))
    np.testing.assert_array_equal(numbers(ATLAS.transform(frame)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_without_rows(kind):
    empty = KINDS[kind](TABLE.slice(0, 0)) if kind != "batch" else TABLE.to_batches()[0][:0]
    out, status = moved_with_status(empty)
    assert as_arrow(out).num_rows == 0
    assert as_arrow(out).column_names[:6] == TABLE.column_names
    assert len(status) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_subspace(kind):
    names = tuple("abcdefghij")
    atlas = make_atlas(names, wide=10)
    points = atlas.subspace.up(Z)
    table = pa.table({name: points[:, j] for j, name in enumerate(names)})
    out = numbers(atlas.transform(KINDS[kind](table.select(names[::-1]))), names)
    np.testing.assert_allclose(out, atlas.transform(points), rtol=1e-12, atol=1e-12)


def test_number_of_threads_reaches_tables():
    np.testing.assert_array_equal(numbers(ATLAS.transform(TABLE, n_threads=1)), MOVED)
    with pytest.raises(ValueError, match="n_threads"):
        ATLAS.transform(TABLE, n_threads=0)


def test_what_is_a_table():
    column = TABLE["a"]
    for value in (Z, Z.tolist(), None, "a.parquet", column, column.chunk(0), {"a": Z[:, 0]}):
        assert not is_table(value)
    assert not is_table(pd.Series([1.0]))
    assert not is_table(pl.Series([1.0]))
    assert not is_table(pl.LazyFrame({"a": [1.0]}))


def test_arrays_need_no_other_package():
    code = """
        import sys
        import numpy as np
        from dpmd_fast.tables.frames import is_table
        assert not is_table(np.zeros((2, 2)))
        assert not {"pandas", "polars", "pyarrow"} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


# --- Arrow


def test_metadata_of_arrow_is_kept():
    fields = [
        field.with_metadata({"unit": field.name}).with_nullable(field.name not in "abc")
        for field in TABLE.schema
    ]
    table = TABLE.cast(pa.schema(fields, metadata={"origin": "somewhere", "pandas": "not JSON"}))
    for given in (table, table.combine_chunks().to_batches()[0], table.to_reader()):
        out = as_arrow(ATLAS.transform(given))
        assert out.schema.equals(table.schema, check_metadata=True)
        out.validate(full=True)
    field = pa.field("a", pa.int8(), metadata={"unit": "a"})
    whole = table.set_column(3, field, pa.array([0] * N, pa.int8()))
    for given in (whole, whole.to_reader()):
        schema = ATLAS.transform(given).schema
        assert schema.field("a").equals(field.with_type(pa.float64()), check_metadata=True)
        assert schema.metadata == table.schema.metadata


def test_pandas_finds_the_new_types_in_its_metadata():
    frame = pd.DataFrame(Z, columns=list("abc"), index=pd.Index(range(5, 5 + N), name="row"))
    frame["a"] = pd.array((3 * Z[:, 0]).astype(int), dtype="Int64")
    frame["n"] = pd.array([1, None] * (N // 2), dtype="Int64")
    expected = ATLAS.transform(frame[["a", "b", "c"]].to_numpy(dtype=float))
    out = ATLAS.transform(pa.Table.from_pandas(frame)).to_pandas()
    assert list(out.dtypes.astype(str)) == ["float64"] * 3 + ["Int64"]
    np.testing.assert_array_equal(out[["a", "b", "c"]], expected)
    pd.testing.assert_index_equal(out.index, frame.index)
    pd.testing.assert_series_equal(out["n"], frame["n"])
    for odd in ("[]", "{}", '{"columns": [1]}', '{"columns": {"a": 1}}', '{"columns": [{"field_name": []}]}'):
        table = pa.Table.from_pandas(frame).replace_schema_metadata({"pandas": odd})
        assert ATLAS.transform(table).schema.metadata == {b"pandas": odd.encode()}


def test_repeated_names():
    table = pa.table([Z[:, 0], Z[:, 1], Z[:, 2], Z[:, 0]], names=["a", "b", "c", "a"])
    frame = pd.DataFrame(Z[:, [0, 1, 2, 0]], columns=["a", "b", "c", "a"])
    for given in (table, table.to_batches()[0], table.to_reader(), frame):
        with pytest.raises(ValueError, match=r"^Z has more than one column named 'a'"):
            ATLAS.transform(given)
    out = ATLAS.transform(table.rename_columns(["a", "b", "c", "x"]).append_column("x", table[3]))
    np.testing.assert_array_equal(out.column(4).to_numpy(), Z[:, 0])
    same = pa.table([Z[:, 0], Z[:, 1], Z[:, 2]], names=["a"] * 3)
    out = NAMELESS.transform(same)
    np.testing.assert_array_equal(np.stack([c.to_numpy() for c in out.columns], axis=1), MOVED)
    out = NAMELESS.transform(pd.DataFrame(Z, columns=["a"] * 3))
    np.testing.assert_array_equal(out, MOVED)
    assert list(out.columns) == ["a"] * 3


def test_chunked_columns_and_slices():
    pieces = [TABLE.slice(0, 7), TABLE.slice(7, 0), TABLE.slice(7, 200), TABLE.slice(207)]
    moved, status = ATLAS.transform(pa.concat_tables(pieces), return_status=True)
    np.testing.assert_array_equal(numbers(moved), MOVED)
    np.testing.assert_array_equal(status, STATUS)
    np.testing.assert_array_equal(numbers(ATLAS.transform(TABLE.slice(100, 50))), MOVED[100:150])
    uneven = pa.table({"a": TABLE["a"], "b": pa.chunked_array([Z[:9, 1], Z[9:, 1]]), "c": TABLE["c"]})
    np.testing.assert_array_equal(numbers(ATLAS.transform(uneven)), MOVED)


def test_tables_of_more_rows_than_a_block():
    times = 200
    table = pa.table({name: np.tile(Z[:, j], times) for j, name in enumerate("abc")})
    expected = np.tile(MOVED, (times, 1))
    for kind in ("table", "pandas", "polars", "reader"):
        moved, status = moved_with_status(KINDS[kind](table))
        np.testing.assert_array_equal(numbers(moved), expected)
        np.testing.assert_array_equal(status, np.tile(STATUS, times))


# --- streams


def test_a_stream_is_read_when_it_is_asked_for():
    read = []

    def batches():
        for start, stop in ((0, 150), (150, 150), (150, 151), (151, N)):
            read.append(start)
            yield TABLE.slice(start, stop - start).combine_chunks().to_batches()[0] if stop > start else empty
        raise OSError("the stream broke")

    empty = pa.RecordBatch.from_pylist([], TABLE.schema)
    out = ATLAS.transform(pa.RecordBatchReader.from_batches(TABLE.schema, batches()))
    assert read == []
    assert out.schema == TABLE.schema
    first = out.read_next_batch()
    assert read == [0]
    np.testing.assert_array_equal(numbers(first), MOVED[:150])
    assert out.read_next_batch().num_rows == 0
    np.testing.assert_array_equal(numbers(out.read_next_batch()), MOVED[150:151])
    np.testing.assert_array_equal(numbers(out.read_next_batch()), MOVED[151:])
    with pytest.raises(OSError, match="the stream broke"):
        out.read_next_batch()


def test_a_stream_with_wrong_columns_is_refused_before_it_is_read():
    def batches():
        raise AssertionError("read")
        yield

    reader = pa.RecordBatchReader.from_batches(TABLE.drop(["a"]).schema, batches())
    with pytest.raises(ValueError, match="lacks"):
        ATLAS.transform(reader)


def test_from_file_to_file(tmp_path):
    pq.write_table(TABLE, tmp_path / "noisy.parquet", row_group_size=64)
    with pq.ParquetFile(tmp_path / "noisy.parquet") as file:
        reader = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(batch_size=50))
        moved = ATLAS.transform(reader)
        with pq.ParquetWriter(tmp_path / "clean.parquet", moved.schema) as writer:
            for batch in moved:
                writer.write_batch(batch)
    np.testing.assert_array_equal(numbers(pq.read_table(tmp_path / "clean.parquet")), MOVED)


def test_streams_need_memory_for_one_batch(tmp_path):
    """Many batches in a process of their own: memory does not grow with their number."""
    make_atlas().save(tmp_path / "map.dpmd")
    code = """
        import json, resource, sys
        import numpy as np
        import pyarrow as pa
        from dpmd_fast import Atlas

        atlas = Atlas.load(sys.argv[1])
        schema = pa.schema({"a": pa.float64(), "b": pa.float64(), "c": pa.float64(), "note": pa.float64()})

        def batches(number):
            rng = np.random.default_rng(0)
            for _ in range(number):
                yield pa.record_batch([pa.array(rng.uniform(2, 3, 20_000)) for _ in range(4)], schema=schema)

        peaks = []
        for number in (20, 150):  # the second stream holds 96 MB
            rows = 0
            for batch in atlas.transform(pa.RecordBatchReader.from_batches(schema, batches(number))):
                rows += batch.num_rows
            assert rows == 20_000 * number
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(json.dumps(peaks))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "map.dpmd"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout)
    assert many - few < 30_000  # KB


# --- pandas and polars


def test_index_attributes_and_names_of_pandas():
    columns = pd.MultiIndex.from_tuples([("x", 1), ("y", 2), ("z", 3), ("w", 4)], names=["p", "q"])
    frame = pd.DataFrame(np.column_stack([Z, np.ones(N)]), columns=columns)
    frame.index = pd.date_range("2020-01-01", periods=N).repeat(2)[:N]  # dates are there twice
    frame.attrs["origin"] = "somewhere"
    atlas = make_atlas(tuple(str(name) for name in columns[:3]))
    out = atlas.transform(frame)
    pd.testing.assert_index_equal(out.index, frame.index)
    pd.testing.assert_index_equal(out.columns, frame.columns)
    assert out.attrs == frame.attrs
    np.testing.assert_array_equal(out.to_numpy(), np.column_stack([MOVED, np.ones(N)]))
    np.testing.assert_array_equal(frame.iloc[:, :3], Z)
    whole = pd.DataFrame(Z)
    np.testing.assert_array_equal(make_atlas(("0", "1", "2")).transform(whole), MOVED)


@pytest.mark.parametrize("number", [np.float64, np.float32])
def test_few_rows_of_pandas_with_further_columns_are_moved_as_many(number):
    frame = TABLE.to_pandas().astype(dict.fromkeys("abc", number))
    frame.attrs["origin"] = "simulated"
    many = pd.concat([frame] * 3, ignore_index=True)  # more rows are moved column by column
    few, before = ATLAS.transform(frame), frame.copy()
    pd.testing.assert_frame_equal(few, ATLAS.transform(many).iloc[:N])
    pd.testing.assert_frame_equal(frame, before)
    assert few.attrs == frame.attrs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", ["abc", "cab", "bca"])
def test_one_row(kind, names):
    for row in range(20):
        table = TABLE.select(list(names)).slice(row, 1).combine_chunks()
        out, status = moved_with_status(KINDS[kind](table))
        found = as_arrow(out)
        assert found.column_names[:3] == list(names)
        np.testing.assert_array_equal(numbers(found), MOVED[row : row + 1])
        assert list(status) == [STATUS[row]]


def test_few_rows_of_pandas_in_another_order():
    frame = pd.DataFrame(Z[:, [2, 0, 1]], columns=pd.Index(["c", "a", "b"], name="k"), index=range(7, N + 7))
    before = frame.copy()
    frame.attrs["origin"] = "simulated"
    out = ATLAS.transform(frame)
    pd.testing.assert_frame_equal(
        out, pd.DataFrame(MOVED[:, [2, 0, 1]], columns=frame.columns, index=frame.index)
    )
    pd.testing.assert_frame_equal(frame, before)
    assert out.attrs == frame.attrs
    frame.loc[9, "a"] = np.inf
    with pytest.raises(ValueError, match=r"the first is infinity in row 2, column 'a'$"):
        ATLAS.transform(frame)


def test_subclasses_of_pandas_stay():
    class Frame(pd.DataFrame):
        @property
        def _constructor(self):
            return Frame

    assert type(NAMELESS.transform(Frame(Z))) is Frame


def test_pandas_columns_stay_backed_as_they_were():
    frame = pd.DataFrame(Z, columns=list("abc"))
    whole = (3 * Z[:, 2]).astype(int)
    cases = {
        "Float64": ("Float64", Z[:, 2]),
        "Float32": ("Float32", Z[:, 2].astype(np.float32)),
        "Int8": ("Float64", whole),
        "boolean": ("Float64", Z[:, 2] > 0.0),
        "int32[pyarrow]": ("double[pyarrow]", whole),
        "float[pyarrow]": ("float[pyarrow]", Z[:, 2].astype(np.float32)),
        "float16": ("float64", Z[:, 2].astype(np.float16)),
        "Sparse[float64]": ("float64", Z[:, 2]),
    }
    for given, (expected, column) in cases.items():
        frame["c"] = pd.Series(column).astype(given)
        out = ATLAS.transform(frame)
        assert frame["c"].dtype == given
        assert out["c"].dtype == expected
        points = np.column_stack([Z[:, :2], column.astype(np.float64)])
        moved = ATLAS.transform(points)[:, 2]
        if column.dtype == np.float32:
            moved = moved.astype(np.float32)
        np.testing.assert_array_equal(out["c"].to_numpy(dtype=np.float64), moved)
        assert list(out.dtypes[:2]) == [np.float64] * 2


def test_missing_values_of_nullable_pandas_columns():
    for dtype in ("Float64", "Int64", "double[pyarrow]"):
        frame = pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, 1.0], "c": pd.array([0, None], dtype=dtype)})
        with pytest.raises(ValueError, match=r"^Z contains NaN or infinity"):
            ATLAS.transform(frame)


def test_objects_of_pandas_are_not_guessed_at():
    frame = pd.DataFrame({"a": [0.5], "b": [0.5], "c": np.array([0.5], dtype=object)})
    with pytest.raises(ValueError, match=r"not numeric: 'c' \(object\)"):
        ATLAS.transform(frame)


def test_polars_in_chunks():
    frame = pl.concat([pl.from_arrow(TABLE.slice(0, 33)), pl.from_arrow(TABLE.slice(33))], rechunk=False)
    out = ATLAS.transform(frame)
    assert out.columns == frame.columns
    assert [out.schema[name] for name in "abc"] == [pl.Float64] * 3
    np.testing.assert_array_equal(out.select("a", "b", "c").to_numpy(), MOVED)
    assert out.drop("a", "b", "c").equals(frame.drop("a", "b", "c"))


def test_one_row_of_polars_is_read_as_many_are():
    """Every type of numbers, and nulls: one row is read value by value, more rows column by column."""
    kinds = [pl.Int8, pl.Int64, pl.UInt64, pl.Int128, pl.Float32, pl.Float64, pl.Boolean, pl.Decimal(38, 3)]
    for kind in kinds:
        values = [1, 0, None] if kind == pl.Boolean else [1, 100, None]
        values += [2**53 + 1, 2**63 - 1] if kind in (pl.Int64, pl.UInt64, pl.Int128) else []
        values += [0.1, 1 / 3] if kind in (pl.Float32, pl.Float64) else []
        frame = pl.DataFrame({"a": pl.Series(values, dtype=kind, strict=False), "b": 0.25, "c": 0.5})
        many = ATLAS.transform(frame, on_missing="keep")
        single = [ATLAS.transform(frame[row], on_missing="keep") for row in range(frame.height)]
        assert pl.concat(single).equals(many)
        assert pl.concat(single).schema == many.schema


def test_called_by_itself():
    np.testing.assert_array_equal(numbers(transform_table(ATLAS, TABLE, None, False)), MOVED)


def test_a_stream_has_no_status():
    with pytest.raises(ValueError, match=r"^return_status = True: must be False for a RecordBatchReader"):
        ATLAS.transform(TABLE.to_reader(), return_status=True)
