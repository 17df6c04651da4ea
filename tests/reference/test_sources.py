"""The reference as blocks of rows: the same rows from every kind of input, and nothing told in errors."""

import decimal
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from dpmd_fast.reference.sources.open import open_reference
from dpmd_fast.reference.sources.overlap import overlaps
from dpmd_fast.reference.sources.validity import check_valid

N, NAMES = 1009, ["a", "b", "c"]
Y = np.random.default_rng(0).normal(size=(N, 3))
TABLE = pa.table({name: Y[:, j] for j, name in enumerate(NAMES)})
SECRET = 4711.25


def rows_of(source):
    blocks = list(source.blocks())
    for block in blocks:
        assert type(block) is np.ndarray
        assert block.flags.c_contiguous
        assert block.flags.aligned
        assert block.dtype == source.dtype
        assert block.shape[1] == source.n_columns
    assert [len(block) for block in blocks[:-1]] == [source.batch_rows] * (len(blocks) - 1)
    assert 1 <= len(blocks[-1]) <= source.batch_rows
    return np.concatenate(blocks)


def chunked(table, *sizes):
    """The same table in chunks of these sizes, over and over."""
    starts = np.cumsum([0, *sizes * (table.num_rows // sum(sizes) + 1)])
    return pa.concat_tables([table.slice(a, b - a) for a, b in itertools.pairwise(starts)])


def fresh(value):
    """What is equal to a value and not the same memory."""
    return pa.table({name: value[name].to_numpy().copy() for name in value.column_names})


class Exporter:
    """An Arrow stream, for as many times as are allowed."""

    def __init__(self, table, times=10):
        self.table = table
        self.times = times

    def __arrow_c_stream__(self, requested_schema=None):
        self.times -= 1
        if self.times < 0:
            raise RuntimeError(f"used up {SECRET}")
        return self.table.__arrow_c_stream__(requested_schema)


def parquet(tmp_path, table=TABLE, name="reference.parquet", **settings):
    path = tmp_path / name
    pq.write_table(table, path, **settings)
    return path


def several(tmp_path):
    """Three files of different sizes of row groups; the one in the middle has no rows."""
    return [
        parquet(tmp_path, TABLE.slice(0, 700), "1.parquet", row_group_size=100),
        parquet(tmp_path, TABLE.slice(700, 0), "2.parquet"),
        str(parquet(tmp_path, TABLE.slice(700), "3.parquet", row_group_size=200, compression="none")),
    ]


KINDS = {
    "array": lambda path: Y,
    "columns in order": lambda path: np.asfortranarray(Y),
    "reversed view": lambda path: Y[::-1].copy()[::-1],
    "swapped bytes": lambda path: Y.astype(">f8"),
    "unaligned": lambda path: (
        np.rec.fromarrays([np.zeros(N, "u1"), Y], dtype=[("x", "u1"), ("y", "f8", 3)]).y
    ),
    "pandas": lambda path: pd.DataFrame(Y, columns=NAMES),
    "pandas, by column": lambda path: pd.DataFrame({name: Y[:, j] for j, name in enumerate(NAMES)}),
    "pandas, nullable": lambda path: pd.DataFrame(Y, columns=NAMES).astype("Float64"),
    "pandas, arrow": lambda path: pd.DataFrame(Y, columns=NAMES).astype("double[pyarrow]"),
    "table": lambda path: TABLE,
    "chunked table": lambda path: chunked(TABLE, 1, 0, 30, 7),
    "record batch": lambda path: TABLE.to_batches()[0],
    "reader": lambda path: chunked(TABLE, 13, 1).to_reader(),
    "exporter": lambda path: Exporter(chunked(TABLE, 500)),
    "polars": lambda path: pl.DataFrame(Y, schema=NAMES),
    "polars, chunked": lambda path: pl.concat([pl.DataFrame(y, schema=NAMES) for y in np.split(Y, [5, 900])]),
    "parquet": parquet,
    "parquet, as text": lambda path: str(parquet(path, row_group_size=64)),
    "parquet, as bytes": lambda path: Bytes(parquet(path)),
    "parquet files": several,
    "parquet files, tuple": lambda path: tuple(several(path)),
}


class Bytes(os.PathLike):
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return os.fsencode(self.path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_rows", [None, 1, 37, 700, N - 1, N, N + 1, 10**30])
def test_every_kind_gives_the_same_rows(tmp_path, kind, batch_rows):
    reference = KINDS[kind](tmp_path)
    source = open_reference(reference, batch_rows=batch_rows)
    array = isinstance(reference, np.ndarray)
    assert source.n_columns == 3
    assert source.column_names == (None if array else tuple(NAMES))
    assert source.rows == (None if kind in ("reader", "exporter") else N)
    assert source.rereadable == (kind != "reader")
    assert source.dtype == np.float64
    np.testing.assert_array_equal(rows_of(source), Y)
    if source.rereadable:
        assert next(source.blocks())[0, 0] == Y[0, 0]  # a pass may be given up
        np.testing.assert_array_equal(rows_of(source), Y)


def test_blocks_of_an_array_are_views():
    for array in (Y, Y.astype(np.float32), Y[100:]):
        assert all(np.shares_memory(block, array) for block in open_reference(array, batch_rows=100).blocks())


def test_default_size_of_a_block():
    assert open_reference(np.zeros((1, 4))).batch_rows == 2**18
    assert open_reference(np.zeros((1, 4), dtype=np.float32)).batch_rows == 2**19
    assert open_reference(np.zeros((1, 5000))).batch_rows == 1024
    assert open_reference(TABLE, batch_rows=np.int64(7)).batch_rows == 7


@pytest.mark.parametrize("batch_rows", [0, -1, 1.0, "many", True, float("nan")])
def test_bad_batch_rows(batch_rows):
    with pytest.raises(ValueError, match="batch_rows"):
        open_reference(Y, batch_rows=batch_rows)


@pytest.mark.parametrize("dtype", ["f4", ">f4", "i1", "u8", "i8", "?"])
def test_types_of_arrays(dtype):
    array = np.abs(3 * Y).astype(dtype)
    source = open_reference(array, batch_rows=100)
    assert source.dtype == (np.float32 if "f" in dtype else np.float64)
    np.testing.assert_array_equal(rows_of(source), array)


def numbers_with_gaps():
    """Columns of every numeric type, with a missing value in each, and what they are as floats."""
    whole = [1, None, 0, 1]
    parts = [decimal.Decimal("1.25"), None, decimal.Decimal("-3.50"), decimal.Decimal("1e3")]
    columns = {
        str(kind): pa.array(whole).cast(kind)
        for kind in (pa.bool_(), pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.float32(), pa.float64())
    }
    columns["large"] = pa.array([2**63 - 1, None, -(2**63), 2**53 + 1], pa.int64())
    columns["half"] = pa.array(np.array([1.5, np.nan, -2.0, 0.25], dtype=np.float16), from_pandas=True)
    columns["decimal"] = pa.array(parts, pa.decimal128(9, 2))
    columns["wide decimal"] = pa.array(parts, pa.decimal256(70, 2))
    expected = np.array(
        [[np.nan if v is None else float(v) for v in c.to_pylist()] for c in columns.values()]
    )
    return pa.table(columns), expected.T


NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
}


@pytest.mark.parametrize(
    "kind", ["table", "parquet", "polars", "pandas", "pandas, arrow", "pandas, nullable"]
)
def test_missing_values_become_nan(tmp_path, kind):
    table, expected = numbers_with_gaps()
    if kind == "pandas, nullable":
        table, expected = table.drop(["half", "decimal", "wide decimal"]), expected[:, :-3]
    if kind == "polars":
        table, expected = table.drop(["wide decimal"]), expected[:, :-1]
    reference = {
        "table": lambda: chunked(table, 1, 2),
        "parquet": lambda: parquet(tmp_path, table, row_group_size=3),
        "polars": lambda: pl.from_arrow(table),
        "pandas": lambda: pd.DataFrame(expected, columns=table.column_names),
        "pandas, arrow": lambda: table.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas, nullable": lambda: table.to_pandas(types_mapper=NULLABLE.get),
    }[kind]()
    for batch_rows in (1, 3, None):
        source = open_reference(reference, batch_rows=batch_rows)
        assert source.dtype == np.float64
        np.testing.assert_array_equal(rows_of(source), expected)


def test_single_precision_is_kept_only_if_all_columns_have_it(tmp_path):
    single = pa.table({"a": pa.array([1.5, None, 2.0], pa.float32()), "b": pa.array([0.1] * 3, pa.float32())})
    mixed = single.append_column("c", pa.array([1, 2, 3], pa.int8()))
    for table, dtype in ((single, np.float32), (mixed, np.float64)):
        for reference in (
            table,
            pl.from_arrow(table),
            parquet(tmp_path, table),
            table.to_pandas(),
            table.to_pandas().astype({"a": "Float32"}),
            table.to_pandas(types_mapper=pd.ArrowDtype),
        ):
            source = open_reference(reference)
            assert source.dtype == dtype
            np.testing.assert_array_equal(rows_of(source)[:, 1], np.full(3, np.float32(0.1)))


def test_plain_pandas_columns_of_all_kinds():
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": np.float32([0.5, 1.5]), "d": [1e300, np.nan]})
    frame["e"] = pd.arrays.SparseArray([0.0, 3.0])
    frame[7] = np.uint8([4, 5])
    source = open_reference(frame)
    assert source.column_names == ("a", "b", "c", "d", "e", "7")
    np.testing.assert_array_equal(rows_of(source), [[1, 1, 0.5, 1e300, 0, 4], [2, 0, 1.5, np.nan, 3, 5]])


def tables(tmp_path, table):
    """A table in every form."""
    yield table
    yield table.combine_chunks().to_batches()[0]
    yield table.to_reader()
    yield Exporter(table)
    yield pl.from_arrow(table)
    yield table.to_pandas()
    yield table.to_pandas(types_mapper=pd.ArrowDtype)
    yield parquet(tmp_path, table)


def test_columns_are_chosen_by_name_in_the_order_asked_for(tmp_path):
    table = TABLE.append_column("name", pa.array([f"person {SECRET}"] * N))
    for reference in tables(tmp_path, table):
        source = open_reference(reference, columns=["c", "a"], batch_rows=500)
        assert source.n_columns == 2
        assert source.column_names == ("c", "a")
        np.testing.assert_array_equal(rows_of(source), Y[:, [2, 0]])


def test_names_with_dots_are_names(tmp_path):
    table = TABLE.rename_columns(["gene", "gene.1", "gene.1.x"])
    for columns in (["gene"], ["gene.1"], ["gene.1.x", "gene"], None):
        source = open_reference(parquet(tmp_path, table), columns=columns)
        chosen = table.column_names if columns is None else columns
        np.testing.assert_array_equal(rows_of(source), Y[:, [table.column_names.index(c) for c in chosen]])


def test_unknown_columns_are_refused_with_the_known_ones(tmp_path):
    for reference in tables(tmp_path, TABLE):
        with pytest.raises(ValueError, match=r"columns holds 'z': .* has 'a', 'b', 'c'"):
            open_reference(reference, columns=["a", "z"])


@pytest.mark.parametrize("columns", ["a", [], [1], ["a", "a"], {"a"}, ("a", None)])
def test_bad_columns(columns):
    with pytest.raises(ValueError, match="columns"):
        open_reference(TABLE, columns=columns)


def test_an_array_has_no_columns_to_choose():
    with pytest.raises(ValueError, match=r"columns .* must be None for an array"):
        open_reference(Y, columns=["a"])


NOT_NUMERIC = {
    "text": pa.array([f"person {SECRET}"]),
    "dictionary": pa.array([f"person {SECRET}"]).dictionary_encode(),
    "time": pa.array([int(SECRET)], pa.timestamp("ms")),
    "date": pa.array([int(SECRET)], pa.date32()),
    "duration": pa.array([int(SECRET)], pa.duration("s")),
    "list": pa.array([[SECRET]]),
    "struct": pa.array([{"x": SECRET}]),
    "nothing": pa.nulls(1),
}


@pytest.mark.parametrize("kind", NOT_NUMERIC)
def test_columns_that_are_not_numeric_are_named(tmp_path, kind):
    table = pa.table({"a": [1.0], "odd one": NOT_NUMERIC[kind], "c": [2]})
    for reference in tables(tmp_path, table):
        for columns in (None, ["odd one"]):
            with pytest.raises(ValueError, match=r"not numeric: 'odd one' \(.*columns=") as refused:
                open_reference(reference, columns=columns)
            assert silent(refused.value)


def test_coded_numbers_are_not_numeric():
    table = pa.table({"a": pa.array([SECRET]).dictionary_encode()})
    for reference in (table, table.to_reader(), table.to_pandas(), Exporter(table)):
        with pytest.raises(ValueError, match=r"not numeric: 'a' \(") as refused:
            open_reference(reference)
        assert silent(refused.value)


def silent(error):
    """Whether an error keeps the secret, also in what a traceback would show of its causes."""
    return "4711" not in str(error) and error.__cause__ is None and error.__context__ is None


def test_pandas_objects_are_not_guessed_at():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [SECRET, "x"], "c": pd.Categorical(["u", f"v {SECRET}"])})
    frame["d"] = pd.arrays.IntervalArray.from_breaks([0, 1, int(SECRET)])
    frame["e"] = np.array([SECRET, 1], dtype=object)
    with pytest.raises(
        ValueError, match=r"'b' \(object\), 'c' \(category\), 'd' .*, 'e' \(object\)"
    ) as refused:
        open_reference(frame)
    assert silent(refused.value)


def test_long_lists_of_names_are_cut(tmp_path):
    table = pa.table({f"c{j}": [1.0] for j in range(500)})
    with pytest.raises(ValueError, match=r"'c19' and 480 more$"):
        open_reference(table, columns=["z"])


def test_names_that_are_not_unique():
    table = pa.table([[1.0], [2.0], [3.0]], names=["a", "b", "a"])
    for reference in (table, Exporter(table), pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "a"])):
        with pytest.raises(ValueError, match="more than one column named 'a'"):
            open_reference(reference)
        np.testing.assert_array_equal(rows_of(open_reference(reference, columns=["b"])), [[2.0]])


REFUSED = {
    "one dimension": (Y[:, 0], ValueError, "1 dimension"),
    "three dimensions": (Y[None], ValueError, "3 dimension"),
    "no columns": (np.empty((5, 0)), ValueError, "no columns"),
    "table without columns": (pa.table({}), ValueError, "no columns"),
    "complex": (Y + 1j, ValueError, "[Cc]omplex"),
    "objects": (np.array([[SECRET, "x"]], dtype=object), ValueError, "not numbers"),
    "text": (np.array([[str(SECRET)]]), ValueError, "not numbers"),
    "times": (np.zeros((2, 2), "M8[s]"), ValueError, "not numbers"),
    "records": (np.zeros((2, 2), [("x", "f8")]), ValueError, "not numbers"),
    "half precision": (Y.astype(np.float16), ValueError, "float16"),
    "masked": (np.ma.masked_greater(Y, 1.0), TypeError, "masked"),
    "sparse": (scipy.sparse.csr_matrix(Y), TypeError, "toarray"),
    "generator": ((row for row in Y), TypeError, "iterator .*RecordBatchReader"),
    "iterator": (iter([TABLE]), TypeError, "iterator"),
    "numbers in lists": (Y.tolist(), TypeError, r"numpy\.asarray"),
    "list of arrays": ([Y, Y], TypeError, "paths"),
    "list of tables": ([TABLE], TypeError, "concat_tables"),
    "no paths": ([], ValueError, "empty list"),
    "none": (None, TypeError, "NoneType: must be"),
    "number": (SECRET, TypeError, "float: must be"),
    "dict": ({"a": [SECRET]}, TypeError, "dict: must be"),
    "pandas series": (pd.Series([SECRET]), TypeError, "Series"),
    "polars series": (pl.Series([SECRET]), TypeError, "Series"),
    "lazy polars": (pl.LazyFrame({"a": [SECRET]}), TypeError, "LazyFrame"),
    "arrow column": (TABLE["a"], TypeError, "ChunkedArray"),
    "broken exporter": (Exporter(TABLE, times=0), TypeError, "Exporter"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_a_reference(kind):
    reference, error, pattern = REFUSED[kind]
    with pytest.raises(error, match=pattern) as refused:
        open_reference(reference)
    assert silent(refused.value)


def test_no_rows_are_no_blocks(tmp_path):
    empty = TABLE.slice(0, 0)
    for reference in (
        Y[:0],
        empty,
        empty.to_reader(),
        Exporter(empty),
        empty.to_pandas(),
        pl.from_arrow(empty),
    ):
        assert list(open_reference(reference).blocks()) == []
    source = open_reference([parquet(tmp_path, empty)])
    assert source.rows == 0
    assert list(source.blocks()) == []
    check_valid(source, 1.0)


def test_a_reader_is_read_once():
    source = open_reference(TABLE.to_reader(), batch_rows=100)
    assert not source.rereadable
    next(source.blocks())
    with pytest.raises(ValueError, match=r"only once.*read_all"):
        source.blocks()  # refused when asked, not at the first block


def test_an_exporter_that_gives_one_stream_is_read_once():
    source = open_reference(Exporter(TABLE, times=1))
    np.testing.assert_array_equal(rows_of(source), Y)
    with pytest.raises(ValueError, match="only once") as refused:
        source.blocks()
    assert silent(refused.value)


def test_an_exporter_that_gives_other_rows_is_caught():
    exporter = Exporter(TABLE)
    source = open_reference(exporter)
    list(source.blocks())
    exporter.table = TABLE.slice(1)
    with pytest.raises(ValueError, match="different records"):
        list(source.blocks())


def test_errors_of_a_stream_are_not_passed_on():
    def batches():
        yield TABLE.to_batches()[0]
        raise RuntimeError(f"bad value {SECRET}")

    source = open_reference(pa.RecordBatchReader.from_batches(TABLE.schema, batches()), batch_rows=N)
    blocks = source.blocks()
    assert len(next(blocks)) == N
    with pytest.raises(ValueError, match="reference could not be read") as refused:
        next(blocks)
    assert silent(refused.value)


def test_files_that_are_not_there_or_not_parquet(tmp_path):
    good = parquet(tmp_path)
    truncated = tmp_path / "truncated.parquet"
    truncated.write_bytes(good.read_bytes()[:-100])
    text = tmp_path / "text.csv"
    text.write_text(f"a,b,c\n{SECRET},1,2\n")
    empty = tmp_path / "empty.parquet"
    empty.touch()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, error, pattern in (
        (tmp_path / "missing.parquet", FileNotFoundError, "does not exist"),
        (tmp_path, IsADirectoryError, "is a directory"),
        (pipe, OSError, "not a regular file"),
        (truncated, ValueError, "truncated"),
        (text, ValueError, "not a Parquet file"),
        (empty, ValueError, "not a Parquet file"),
    ):
        for reference in (path, str(path), [good, path]):
            with pytest.raises(error, match=pattern) as refused:
                open_reference(reference)
            assert str(refused.value).startswith(f"{path} ")
            assert "\n" not in str(refused.value)
            assert silent(refused.value)


def damaged(path, row_group, column):
    """The file, with the first page of one column chunk overwritten."""
    chunk = pq.ParquetFile(path).metadata.row_group(row_group).column(column)
    place = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_a_damaged_file_is_named_and_nothing_else(tmp_path, compression):
    path = parquet(tmp_path, row_group_size=200, use_dictionary=False, compression=compression)
    source = open_reference(damaged(path, row_group=4, column=1), batch_rows=100)
    blocks = source.blocks()
    next(blocks)
    with pytest.raises(ValueError, match="could not be read") as refused:
        list(blocks)
    assert str(refused.value).startswith(f"{path} ")
    assert not any(character.isdigit() for character in str(refused.value).removeprefix(str(path)))
    assert silent(refused.value)


def test_files_are_compared_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    first = parquet(tmp_path, name="first.parquet")
    for table, pattern in (
        (TABLE.rename_columns(["a", "b", "d"]), "does not have the columns of .*first"),
        (TABLE.select(["b", "a", "c"]), "the same order"),
        (TABLE.select(["a", "b"]), "does not have the columns of"),
        (TABLE.set_column(1, "b", pa.array(range(N))), "has 'b' as int64: must be double, as in .*first"),
        (TABLE.set_column(1, "b", pa.array(["x"] * N)), "has 'b' as string: must be double"),
    ):
        other = parquet(tmp_path, table, "other.parquet")
        with pytest.raises(ValueError, match=pattern) as refused:
            open_reference([first, other])
        assert str(refused.value).startswith(f"{other} ")
    with pytest.raises(ValueError, match=r"columns holds 'c': .*other\.parquet has 'a', 'b'"):
        open_reference(
            [first, parquet(tmp_path, TABLE.select(["a", "b"]), "other.parquet")], columns=["a", "c"]
        )


def test_files_need_the_chosen_columns_only(tmp_path):
    first = parquet(tmp_path, TABLE.slice(0, 10), "first.parquet")
    strict = pa.schema(
        [pa.field("c", pa.float64(), nullable=False, metadata={"unit": "mg"}), ("x", pa.string())]
    )
    other = pa.table([TABLE["c"][10:], pa.nulls(N - 10, pa.string())], schema=strict)
    source = open_reference([first, parquet(tmp_path, other, "other.parquet")], columns=["c"], batch_rows=64)
    np.testing.assert_array_equal(rows_of(source), Y[:, 2:])


def test_a_file_given_twice_is_refused(tmp_path):
    path = parquet(tmp_path)
    link = tmp_path / "link.parquet"
    link.symlink_to(path)
    for again in (path, str(path), link, tmp_path / "." / path.name):
        with pytest.raises(ValueError, match="more than once"):
            open_reference([path, again])


@pytest.mark.parametrize("changed", [TABLE.slice(1), TABLE.set_column(0, "a", pa.array([1] * N))])
def test_a_file_that_changed_is_not_read_again(tmp_path, changed):
    path = parquet(tmp_path)
    source = open_reference(path)
    list(source.blocks())
    parquet(tmp_path, changed)
    with pytest.raises(ValueError, match=r"reference\.parquet has changed"):
        list(source.blocks())


MEMORY = """
import json, sys, tracemalloc
import pyarrow as pa
from dpmd_fast.reference.sources.open import open_reference
source = open_reference(sys.argv[1])
next(source.blocks())  # at the first conversion pyarrow imports pandas, which is large
tracemalloc.start()
total, rows = 0.0, 0
for block in source.blocks():
    total, rows = total + float(block[:, 0].sum()), rows + len(block)
print(json.dumps([rows, total, pa.default_memory_pool().max_memory(), tracemalloc.get_traced_memory()[1]]))
"""


@pytest.mark.parametrize("row_group_size", [pytest.param(5_000, marks=pytest.mark.slow), 10**6])
def test_memory_does_not_grow_with_the_file(tmp_path, row_group_size):
    """Many small row groups, and one that holds the whole file."""
    n, D = 600_000, 20
    columns = np.random.default_rng(0).normal(size=(D, n))
    table = pa.table({f"c{j}": columns[j] for j in range(D)})
    path = parquet(tmp_path, table, row_group_size=row_group_size, use_dictionary=False)
    assert path.stat().st_size > 80e6
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, path], capture_output=True, text=True, timeout=300, check=True
    )
    rows, total, arrow_bytes, numpy_bytes = json.loads(done.stdout)
    assert rows == n
    assert total == pytest.approx(columns[0].sum(), abs=1e-6)
    assert 8e6 < numpy_bytes < 26e6  # the block in use and the next
    assert 8e6 < arrow_bytes < 60e6


def test_a_large_batch_is_converted_piece_by_piece():
    table = pa.table({"a": np.zeros(10**6, dtype=np.int8), "b": np.zeros(10**6, dtype=np.int32)})
    for reference in (table, table.to_batches()[0], table.to_reader(), pl.from_arrow(table)):
        held = pa.total_allocated_bytes()
        for block in open_reference(reference, batch_rows=1000).blocks():
            assert pa.total_allocated_bytes() - held < 10 * block.nbytes


def test_only_the_chosen_columns_are_read(tmp_path):
    path = damaged(parquet(tmp_path, compression="zstd"), row_group=0, column=1)
    np.testing.assert_array_equal(rows_of(open_reference(path, columns=["c", "a"])), Y[:, [2, 0]])
    with pytest.raises(ValueError, match="could not be read"):
        list(open_reference(path, columns=["b"]).blocks())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e101, -1e101])
@pytest.mark.parametrize("place", [0, 567, N - 1])
def test_invalid_values_are_found_and_not_shown(tmp_path, bad, place):
    values = Y.copy()
    values[place, 1] = bad
    table = pa.table({name: values[:, j] for j, name in enumerate(NAMES)})
    messages = set()
    for reference in (values, table, table.to_pandas(), pl.from_arrow(table), parquet(tmp_path, table)):
        with pytest.raises(ValueError, match="on_invalid='drop'") as refused:
            check_valid(open_reference(reference, batch_rows=100), 1e100)
        messages.add(str(refused.value))
    assert messages == {
        "reference contains non-finite or too large values: all must be finite and at most 1e+100 in size; "
        "pass on_invalid='drop' to leave such records out, or clean the reference"
    }


def test_valid_values_pass(tmp_path):
    for reference in (Y, -Y.astype(np.float32), TABLE, parquet(tmp_path), np.array([[5.0, -5.0]])):
        check_valid(open_reference(reference, batch_rows=100), 5.0)
    with pytest.raises(ValueError, match="too large"):
        check_valid(open_reference(Y), 0.5)
    with pytest.raises(ValueError, match="most"):
        check_valid(open_reference(Y), np.inf)


def test_the_check_of_values_reads_to_the_end():
    values = Y.copy()
    values[0] = np.nan
    source = open_reference(values, batch_rows=100)
    seen = []
    blocks = source.blocks
    source.blocks = lambda: (seen.append(len(block)) or block for block in blocks())
    with pytest.raises(ValueError, match="non-finite"):
        check_valid(source, 1.0)
    assert sum(seen) == N


def test_a_missing_value_is_invalid():
    with pytest.raises(ValueError, match="non-finite"):
        check_valid(open_reference(pa.table({"a": [1, None, 3]})), 1e100)


def test_a_stream_cannot_be_checked_first():
    source = open_reference(TABLE.to_reader())
    with pytest.raises(ValueError, match=r"read only once.*on_invalid='drop'.*Parquet"):
        check_valid(source, 1e100)
    np.testing.assert_array_equal(rows_of(source), Y)  # and nothing of it was used up


def test_shared_memory_of_arrays():
    source = open_reference(Y)
    for part in (
        Y,
        Y[5:6],
        Y[::7, ::2],
        Y.T,
        Y.view(),
        pd.DataFrame(Y, copy=False),
        [Y[3], Y[9]],
        Array(Y[4:]),
    ):
        assert overlaps(source, part)
    for other in (Y.copy(), Y[:5].tolist(), None, "text", TABLE, np.zeros(0)):
        assert not overlaps(source, other)
    left = open_reference(Y[:, :1])
    assert not overlaps(left, Y[:, 1:])
    assert not overlaps(open_reference(Y[:500]), Y[500:])


class Array:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_shared_memory_of_tables():
    table = fresh(TABLE)
    for reference in (table, table.to_batches()[0]):
        source = open_reference(reference)
        column = table["b"].chunk(0).to_numpy()
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        for part in (reference, table, table.slice(7, 1), table.select(["c"]), column, column[5:9], frame):
            assert overlaps(source, part)
        assert not overlaps(source, fresh(TABLE))
        assert not overlaps(open_reference(reference.slice(0, 900)), table.slice(900))
    flags = pa.table({"flag": pa.array([True, False] * 100)})
    assert overlaps(open_reference(flags), flags.slice(100, 50))
    gaps = pa.table({"x": pa.array([1.0, None, 3.0])})
    assert overlaps(open_reference(gaps), gaps.slice(2))


def test_shared_memory_of_frames():
    frame = pd.DataFrame(Y.copy(), columns=NAMES)
    source = open_reference(frame)
    for part in (frame, frame.to_numpy(), frame["b"].to_numpy(), frame.iloc[10:20]):
        assert overlaps(source, part)
    assert not overlaps(source, frame.copy())
    frame = pl.DataFrame(Y.copy(), schema=NAMES)
    source = open_reference(frame)
    for part in (frame, frame["b"].to_numpy(), frame.head(10), frame.to_arrow()):
        assert overlaps(source, part)
    assert not overlaps(source, Y)
    np.testing.assert_array_equal(rows_of(source), Y)


def test_streams_are_compared_by_identity_and_not_read():
    for stream in (TABLE.to_reader(), Exporter(TABLE, times=1)):
        source = open_reference(stream)
        assert overlaps(source, stream)
        assert not overlaps(source, Y)
        np.testing.assert_array_equal(rows_of(source), Y)


def test_the_same_file_is_the_same_reference(tmp_path):
    one, two = parquet(tmp_path, name="1.parquet"), parquet(tmp_path, name="2.parquet")
    source = open_reference(one)
    assert overlaps(source, str(one))
    assert overlaps(source, [two, one])
    assert not overlaps(source, two)
    assert not overlaps(source, tmp_path / "missing")
    assert not overlaps(source, Y)


def test_import_is_light():
    code = (
        "import sys, numpy, dpmd_fast.reference.sources.open\n"
        "dpmd_fast.reference.sources.open.open_reference(numpy.ones((3, 2)))\n"
        "print([name for name in ('pyarrow', 'pandas', 'polars') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"
