"""Which columns are used, and how their values become numbers."""

import decimal
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from dpmd_fast.columns import (
    are_one_tensor,
    arrow_block,
    arrow_number_type,
    arrow_points,
    arrow_rows,
    as_type,
    block_type,
    check_unique,
    checked_columns,
    checked_matrix,
    chosen_fields,
    dense_blocks,
    is_anndata,
    is_arrow,
    is_dask_array,
    is_pandas,
    is_polars,
    is_sparse,
    listed,
    names_of,
    pandas_blocks,
    pandas_number_type,
    pandas_values,
    places_of,
    quoted,
    values,
)

DOUBLE = np.dtype(np.float64)


def test_checked_columns():
    assert checked_columns(None) is None
    assert checked_columns(["a", "b"]) == checked_columns(("a", "b")) == ("a", "b")
    for given, told in (
        ("ab", "must be None or a list"),
        ([1], "must be None or a list"),
        ({"a"}, "must be None or a list"),
        ([], "columns is empty"),
        (["a", "b", "a"], "columns names 'a' more than once"),
    ):
        with pytest.raises(ValueError, match=told) as raised:
            checked_columns(given)
        assert raised.value.argument == "columns"


def test_places_of():
    assert places_of(None, ["a", "b"], "Z") == [0, 1]
    assert places_of(("b", "a"), ["a", "x", "b"], "Z") == [2, 0]
    assert places_of(("a",), ["a", "x", "x"], "Z") == [0]  # others may repeat
    with pytest.raises(ValueError, match=r"^columns holds 'c': Z has 'a', 'b'$"):
        places_of(("c",), ["a", "b"], "Z")
    for chosen in (None, ("x",)):
        with pytest.raises(ValueError, match=r"^Z has more than one column named 'x': names must be unique$"):
            places_of(chosen, ["a", "x", "x"], "Z")
    check_unique("Z", None)
    with pytest.raises(ValueError, match="more than one column named 'a', 'b'"):
        check_unique("Z", ["a", "b", "a", "b", "c"])


def test_long_lists_are_cut():
    assert quoted(["a"]) == "'a'"
    assert listed([str(k) for k in range(22)]).endswith("18, 19 and 2 more")
    assert listed([]) == ""


def test_names_of():
    frame = pd.DataFrame({"a": [1], 2: [3]})
    assert names_of(frame) == ("a", "2")
    assert names_of(pl.DataFrame({"a": [1]})) == ("a",)
    table = pa.table({"a": [1]})
    assert names_of(table) == names_of(table.to_batches()[0]) == ("a",)
    assert names_of(np.zeros((2, 2))) is names_of([[1]]) is None


ARROW = {
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.float16(): np.float64,
    pa.int8(): np.float64,
    pa.uint64(): np.float64,
    pa.bool_(): np.float64,
    pa.decimal128(9, 2): np.float64,
    pa.string(): None,
    pa.timestamp("s"): None,
    pa.null(): None,
    pa.list_(pa.float64()): None,
    pa.dictionary(pa.int8(), pa.float64()): None,
}


@pytest.mark.parametrize("kind", ARROW)
def test_number_types_of_arrow(kind):
    assert arrow_number_type(kind) is ARROW[kind]
    assert pandas_number_type(pd.ArrowDtype(kind)) is ARROW[kind]


PANDAS = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float64,
    "int16": np.float64,
    "bool": np.float64,
    "Float32": np.float32,
    "Float64": np.float64,
    "Int64": np.float64,
    "boolean": np.float64,
    "Sparse[float32]": np.float32,
    "longdouble": None,
    "complex64": None,
    "object": None,
    "string": None,
    "category": None,
    "datetime64[ns]": None,
}


@pytest.mark.parametrize("kind", PANDAS)
def test_number_types_of_pandas(kind):
    assert pandas_number_type(pd.Series([], dtype=kind).dtype) is PANDAS[kind]


def test_the_type_of_blocks():
    single, double, text = pa.float32(), pa.int8(), pa.string()
    assert block_type("Z", ["a", "b"], [single, single], arrow_number_type) == np.float32
    assert block_type("Z", ["a", "b"], [single, double], arrow_number_type) == np.float64
    told = r"^Z has columns that are not numeric: 'b' \(string\); choose numeric ones with "
    with pytest.raises(ValueError, match=told + r"columns=\[...\]$") as raised:
        block_type("Z", ["a", "b"], [single, text], arrow_number_type)
    assert raised.value.command_line_text.endswith("with --columns A,B,...")
    fields = chosen_fields(pa.schema({"a": single, "b": text}, metadata={"k": "v"}), ("b",), "Z")
    assert fields == pa.schema({"b": text})
    assert fields.metadata is None


def test_arrow_values():
    table = pa.table(
        {
            "half": pa.array(np.array([0.5, -2.0], np.float16)),
            "money": pa.array([decimal.Decimal("0.25"), None], pa.decimal128(9, 2)),
            "large": pa.array([2**53 + 1, -1]),
            "flag": [True, None],
        }
    )
    block = arrow_block(table.columns, DOUBLE)
    np.testing.assert_array_equal(block, [[0.5, 0.25, 2.0**53, 1.0], [-2.0, np.nan, -1.0, np.nan]])
    plain = pa.array([1.0, 2.0])
    assert as_type(plain, DOUBLE) is plain
    assert np.shares_memory(values(plain), values(plain))


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
ODD = [
    pa.float16(),
    pa.bool_(),
    pa.decimal128(9, 2),
    pa.null(),
    pa.string(),
    pa.dictionary(pa.int8(), pa.float64()),
]


def test_types_that_are_one_tensor():
    double, single = pa.float64(), pa.float32()
    for types in ([double], [single] * 2, [single, double], [double, *INTEGERS], [double, single, pa.int8()]):
        assert are_one_tensor(types)
    for types in ([], [pa.int64()], [single, pa.int64()], *([double, kind] for kind in ODD)):
        assert not are_one_tensor(types)


@pytest.mark.parametrize("kind", [*INTEGERS, pa.float32(), pa.float64()], ids=str)
def test_columns_as_one_tensor_are_those_one_by_one(kind):
    largest = (
        3.0e38 if pa.types.is_floating(kind) else 2 ** (kind.bit_width - pa.types.is_signed_integer(kind)) - 1
    )
    batch = pa.record_batch(
        [pa.array([0, largest, None, 1, largest, 3], kind), pa.array([0.5, None, -0.0, 1e300, 0.1, 7.0])],
        names=["a", "b"],
    )
    for given in (batch, batch[1:5], batch[3:4], batch[:0]):
        points = arrow_points(given, True)
        assert points.dtype == DOUBLE
        np.testing.assert_array_equal(points, arrow_points(given, False))
        np.testing.assert_array_equal(np.signbit(points), np.signbit(arrow_block(given.columns, DOUBLE)))
    every = [pa.array([0, None, 1, None, 3, 4], other) for other in INTEGERS]
    mixed = pa.record_batch([*batch.columns, *every], names=list("abcdefghij"))
    np.testing.assert_array_equal(mixed.to_tensor(null_to_nan=True), arrow_points(mixed, False))
    only = pa.record_batch([batch.column(0)] * 2, names=["a", "b"])
    points = arrow_points(only, are_one_tensor(only.schema.types))
    np.testing.assert_array_equal(points, arrow_block(only.columns, DOUBLE))


def test_an_older_arrow_makes_no_tensors():
    batch = pa.record_batch([pa.array([1, None]), pa.array([0.5, 2.0])], names=["a", "b"])
    expected = [[1.0, 0.5], [np.nan, 2.0]]

    class Old:
        columns = batch.columns

    class Older(Old):
        def to_tensor(self):
            raise AssertionError("called")

    for given in (batch, Old(), Older()):
        np.testing.assert_array_equal(arrow_points(given, True), expected)


@pytest.mark.parametrize("number", [np.float64, np.float32])
def test_rows_of_an_array_as_arrow_columns(number):
    for shape in ((3, 5), (3, 1), (3, 0)):
        table = np.random.default_rng(0).normal(size=shape).astype(number)
        columns = arrow_rows(table)
        assert len(columns) == 3
        for column, row in zip(columns, table, strict=True):
            column.validate(full=True)
            assert column.type == pa.from_numpy_dtype(number)
            assert (column.offset, column.null_count, column.nbytes) == (0, 0, row.nbytes)
            np.testing.assert_array_equal(column.to_numpy(), row)
    table = np.zeros((50, 100), number)
    assert len(pickle.dumps(arrow_rows(table)[0])) < 2 * table[0].nbytes  # not the memory of all rows


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_pandas_values(rows):
    frame = pd.DataFrame(
        {
            "plain": [1, 2, 3],
            "masked": pd.array([1.5, None, 3.0], dtype="Float64"),
            "arrow": pd.array([1, None, 3], dtype=pd.ArrowDtype(pa.int8())),
            "sparse": pd.arrays.SparseArray([0.0, 0.0, 7.0]),
        }
    )
    columns = [pandas_values(frame[name]) for name in frame.columns]
    for dtype in (np.float64, np.float32):
        blocks = list(pandas_blocks(columns, 3, np.dtype(dtype), rows))
        assert [len(block) for block in blocks] == [min(rows, 3 - start) for start in range(0, 3, rows)]
        assert {block.dtype for block in blocks} == {np.dtype(dtype)}
        expected = [[1, 1.5, 1, 0], [2, np.nan, np.nan, 0], [3, 3, 3, 7]]
        np.testing.assert_array_equal(np.concatenate(blocks), expected)
    assert np.shares_memory(pandas_values(frame["plain"]), frame["plain"].to_numpy())
    assert list(pandas_blocks(columns, 0, DOUBLE, rows)) == []


@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, sp.csr_matrix, sp.csr_array])
def test_dense_blocks(make):
    X = np.arange(12).reshape(4, 3)
    matrix = checked_matrix("X", make(X))
    assert is_sparse(matrix) == (make in (sp.csr_matrix, sp.csr_array))
    whole = np.concatenate(list(dense_blocks(matrix, None, DOUBLE, 3)))
    np.testing.assert_array_equal(whole, X)
    assert whole.dtype == np.float64
    chosen = list(dense_blocks(matrix, np.array([2, 0]), np.dtype(np.float32), 3))
    assert all(block.flags.c_contiguous for block in chosen)
    np.testing.assert_array_equal(np.concatenate(chosen), X[:, [2, 0]])


@pytest.mark.parametrize(
    "bad", [None, np.zeros(3), np.zeros((2, 2), complex), np.array([["a"]]), np.zeros((2, 2), "O")]
)
def test_matrices_that_are_not_numbers(bad):
    with pytest.raises(ValueError, match=r"^reference\.X (is None|has \d dimension)"):
        checked_matrix("reference.X", bad)


def test_kinds():
    table = pa.table({"a": [1]})
    assert is_arrow(table)
    assert is_arrow(table.to_batches()[0])
    assert not is_arrow(table.to_reader())
    assert is_pandas(table.to_pandas())
    assert is_polars(pl.from_arrow(table))
    for test in (is_arrow, is_pandas, is_polars, is_anndata, is_dask_array, is_sparse):
        assert not test(np.zeros(3))


def test_no_package_is_imported():
    program = (
        "import sys, numpy as np; from dpmd_fast import columns as c; Z = np.zeros((2, 2)); c.names_of(Z); "
        "[getattr(c, name)(Z) for name in dir(c) if name.startswith('is_') and name not in ('is_of', "
        "'is_spark_number')]; "
        "print({'pandas', 'polars', 'pyarrow', 'anndata', 'dask', 'pyspark', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
