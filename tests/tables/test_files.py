"""Files through an atlas: the numbers of `Atlas.transform`, all else as it was, and never half a file."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from samples import make_atlas

from dpmd_fast.atomic import atomic_write, check_target
from dpmd_fast.tables import formats
from dpmd_fast.tables.files import read_points, replace_points, transform_file

ATLAS, NAMELESS = make_atlas(), make_atlas(None)
FOLDERS = os.pathsep.join(
    str(folder) for folder in Path(__file__).resolve().parents[:3]
)  # for other processes
N = 3000
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
WRITE = {
    ".parquet": lambda table, path: pq.write_table(table, path, row_group_size=700),
    ".arrow": lambda table, path: _write_arrow(table, path, 700),
    ".feather": lambda table, path: _write_arrow(
        table, path, None, pa.ipc.IpcWriteOptions(compression="lz4")
    ),
    ".csv": lambda table, path: pa.csv.write_csv(table, path),
}
READ = {
    ".parquet": pq.read_table,
    ".arrow": lambda path: pa.ipc.open_file(path).read_all(),
    ".feather": lambda path: pa.ipc.open_file(path).read_all(),
    ".csv": pa.csv.read_csv,
}

FOLDER = os.path.dirname(__file__)
TESTS = os.pathsep.join([FOLDER, os.path.dirname(FOLDER)])


def _write_arrow(table, path, rows, options=None):
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)


def numbers(table, names="abc"):
    return np.stack([table[name].to_numpy() for name in names], axis=1)


def small_batches(monkeypatch, rows=256):
    monkeypatch.setattr(formats, "_MOST_ROWS", rows)
    monkeypatch.setattr(formats, "_FEWEST_ROWS", rows)


def nothing_but(folder, *names):
    assert sorted(os.listdir(folder)) == sorted(names)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.parquet"
    WRITE[".parquet"](TABLE, path)
    return path


# --- numbers


@pytest.mark.parametrize("before", WRITE)
@pytest.mark.parametrize("after", WRITE)
def test_every_format_into_every_other(tmp_path, monkeypatch, before, after):
    small_batches(monkeypatch)
    table = TABLE if after == ".parquet" else TABLE.set_column(2, "group", TABLE["group"].cast(pa.string()))
    source, target = tmp_path / f"in{before}", tmp_path / f"out{after}"
    WRITE[before](table, source)
    result = transform_file(ATLAS, source, target, status_column="status")
    out = READ[after](target)
    assert out.column_names == [*TABLE.column_names, "status"]
    np.testing.assert_array_equal(numbers(out), MOVED)
    assert out["status"].to_pylist() == STATUS.tolist()
    assert out["name"].to_pylist() == TABLE["name"].to_pylist()
    if before != ".csv":  # where it becomes a text
        assert out["count"].to_pylist() == TABLE["count"].to_pylist()
    words, counts = np.unique(STATUS, return_counts=True)
    assert len(words) == 2
    assert result.rows == N
    assert result.status == dict(zip(words.tolist(), counts.tolist(), strict=True))
    assert result.path == str(target)
    nothing_but(tmp_path, source.name, target.name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, ">f8"])
def test_arrays(tmp_path, monkeypatch, dtype):
    small_batches(monkeypatch)
    array = (3 * Z).astype(dtype)
    np.save(tmp_path / "in.npy", array)
    for atlas in (ATLAS, NAMELESS):
        result = transform_file(atlas, tmp_path / "in.npy", tmp_path / "out.npy", overwrite=True)
        out = np.load(tmp_path / "out.npy")
        np.testing.assert_array_equal(out, atlas.transform(array))
        assert out.dtype == (np.float32 if dtype == np.float32 else np.float64)
        assert result.rows == N


def test_an_atlas_without_names_goes_by_position(tmp_path):
    for suffix in (".parquet", ".csv"):
        plain = pa.table(dict(zip("xyz", Z.T, strict=True)))
        WRITE[suffix](plain, tmp_path / f"in{suffix}")
        transform_file(NAMELESS, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
        np.testing.assert_array_equal(numbers(READ[suffix](tmp_path / f"out{suffix}"), "xyz"), MOVED)


def test_types_of_numbers(tmp_path):
    table = pa.table(
        {
            "a": pa.array(Z[:, 0].astype(np.float32)),
            "b": pa.array((3 * Z[:, 1]).astype(np.int16)),
            "c": pa.array(Z[:, 2] > 0.0),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    transform_file(ATLAS, tmp_path / "in.parquet", tmp_path / "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.schema.types == [pa.float32(), pa.float64(), pa.float64()]
    assert out.equals(ATLAS.transform(table))


def test_number_of_threads(source, tmp_path):
    transform_file(ATLAS, source, tmp_path / "out.parquet", n_threads=1)
    np.testing.assert_array_equal(numbers(pq.read_table(tmp_path / "out.parquet")), MOVED)
    with pytest.raises(ValueError, match="n_threads"):
        transform_file(ATLAS, source, tmp_path / "other.parquet", n_threads=0)


@pytest.mark.parametrize("suffix", WRITE)
def test_files_without_rows(tmp_path, suffix):
    WRITE[suffix](TABLE.slice(0, 0), tmp_path / f"in{suffix}")
    result = transform_file(ATLAS, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", status_column="s")
    assert (result.rows, result.status) == (0, {})
    out = READ[suffix](tmp_path / f"out{suffix}")
    assert out.num_rows == 0
    assert out.column_names == [*TABLE.column_names, "s"]
    np.save(tmp_path / "in.npy", Z[:0])
    transform_file(ATLAS, tmp_path / "in.npy", tmp_path / "out.npy", overwrite=True)
    assert np.load(tmp_path / "out.npy").shape == (0, 3)


# --- everything else


def test_metadata_of_the_schema_and_of_columns(tmp_path):
    fields = [field.with_metadata({"unit": field.name}) for field in TABLE.schema]
    table = TABLE.cast(pa.schema(fields, metadata={"origin": "somewhere", "more": "é"}))
    for suffix in (".parquet", ".arrow"):
        WRITE[suffix](table, tmp_path / f"in{suffix}")
        transform_file(ATLAS, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
        before, after = READ[suffix](tmp_path / f"in{suffix}"), READ[suffix](tmp_path / f"out{suffix}")
        assert after.schema.equals(before.schema, check_metadata=True)
        assert after.schema.metadata[b"origin"] == b"somewhere"
        for name in ("name", "group", "count"):
            assert after[name].equals(before[name])


def test_a_frame_of_pandas_comes_back_as_one(tmp_path):
    index = pd.Index(range(5, 5 + N), name="row")
    frame = pd.DataFrame(Z, columns=list("abc"), index=index).assign(day=pd.Timestamp("2026-01-02", tz="UTC"))
    frame.to_parquet(tmp_path / "in.parquet")
    transform_file(ATLAS, tmp_path / "in.parquet", tmp_path / "out.parquet")
    out = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(out, ATLAS.transform(pd.read_parquet(tmp_path / "in.parquet")))
    assert out.index.equals(frame.index)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "brotli", "lz4", "none"])
def test_row_groups_codecs_and_dictionaries(tmp_path, monkeypatch, codec):
    small_batches(monkeypatch)
    nested = pa.array([[1, 2], None] * (N // 2))
    table = TABLE.append_column("list.of", nested)
    pq.write_table(
        table,
        tmp_path / "in.parquet",
        row_group_size=900,
        compression={"name": codec, "list.of.list.element": codec},
    )
    transform_file(ATLAS, tmp_path / "in.parquet", tmp_path / "out.parquet", status_column="status")
    before, after = (pq.ParquetFile(tmp_path / f"{which}.parquet").metadata for which in ("in", "out"))

    def groups(file):
        return [file.row_group(number).num_rows for number in range(file.num_row_groups)]

    assert groups(after) == groups(before) == [900, 900, 900, 300]
    columns = {c.path_in_schema: c for c in map(after.row_group(0).column, range(after.num_columns))}
    for column in map(before.row_group(0).column, range(before.num_columns)):
        new = columns[column.path_in_schema]
        assert new.compression == column.compression
        assert new.has_dictionary_page == (column.has_dictionary_page and column.path_in_schema not in "abc")
    assert columns["status"].has_dictionary_page
    assert pq.read_table(tmp_path / "out.parquet")["list.of"].to_pylist() == nested.to_pylist()


def test_huge_row_groups_are_split(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    monkeypatch.setattr(formats, "_GROUP_ROWS", 1000)
    pq.write_table(TABLE, tmp_path / "in.parquet")
    transform_file(ATLAS, tmp_path / "in.parquet", tmp_path / "out.parquet")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [1024, 1024, 952]
    np.testing.assert_array_equal(numbers(file.read()), MOVED)


def test_texts_of_a_csv_file_stay_as_they_are(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    (tmp_path / "in.csv").write_text(
        'id,a,"zip, code",b,c,note\n'
        '1,0.5,00123,-0.25,0.125,"say ""hi"", twice"\n'
        '2,1e-1,1.0,0.2,-.3,"two\nlines"\n'
        "003,0,NA,0,0,\n"
    )
    transform_file(ATLAS, tmp_path / "in.csv", tmp_path / "out.csv")
    texts = {"dtype": str, "keep_default_na": False}
    before, after = (pd.read_csv(tmp_path / name, **texts) for name in ("in.csv", "out.csv"))
    others = ["id", "zip, code", "note"]
    pd.testing.assert_frame_equal(after[others], before[others])
    assert list(after.columns) == list(before.columns)
    expected = ATLAS.transform(np.array([[0.5, -0.25, 0.125], [0.1, 0.2, -0.3], [0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(after[["a", "b", "c"]].astype(float).to_numpy(), expected)


def test_quotes_only_where_they_are_needed(tmp_path):
    (tmp_path / "in.csv").write_text("id,a,b,c\nx1,0.5,0.25,0.125\n")
    transform_file(ATLAS, tmp_path / "in.csv", tmp_path / "out.csv")
    assert '"' not in (tmp_path / "out.csv").read_text()


def test_progress(source, tmp_path, monkeypatch):
    small_batches(monkeypatch, 500)
    seen = []
    transform_file(ATLAS, source, tmp_path / "out.parquet", progress=lambda *told: seen.append(told))
    assert [done for done, _ in seen] == [500, 700, 1200, 1400, 1900, 2100, 2600, 2800, 3000]
    assert {total for _, total in seen} == {N}


# --- all or nothing


class Stumbling:
    """An atlas that fails on the third batch."""

    kind, missing = "atlas", "refuse"

    def __init__(self, error):
        self._error, self._calls = error, []
        self.column_names, self.n_columns = ATLAS.column_names, ATLAS.n_columns

    def move(self, points, n_threads=None, name="Z"):
        self._calls.append(len(points))
        if len(self._calls) == 3:
            raise self._error
        return ATLAS.move(points, n_threads, name)


@pytest.mark.parametrize("suffix", [*WRITE, ".npy"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), ValueError("Z is odd"), SystemExit(143)]
)
def test_a_failure_half_way_leaves_no_trace(tmp_path, monkeypatch, suffix, error):
    small_batches(monkeypatch)
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    if suffix == ".npy":
        np.save(source, Z)
    else:
        monkeypatch.setattr(formats, "_BATCH_BYTES", 4 * 4096)
        table = TABLE.set_column(2, "group", TABLE["group"].cast(pa.string()))
        WRITE[suffix](table, source)
    target.write_bytes(b"the old one")
    with pytest.raises(type(error)):
        transform_file(Stumbling(error), source, target, overwrite=True)
    assert target.read_bytes() == b"the old one"
    nothing_but(tmp_path, source.name, target.name)


@contextmanager
def files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", [*WRITE, ".npy"])
def test_a_full_disk_leaves_no_trace(tmp_path, suffix):
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    if suffix == ".npy":
        np.save(source, Z)
    else:
        WRITE[suffix](TABLE.set_column(2, "group", TABLE["group"].cast(pa.string())), source)
    with files_of_at_most(20_000), pytest.raises(OSError, match=rf"out{suffix} could not be written: "):
        transform_file(ATLAS, source, target)
    nothing_but(tmp_path, source.name)


def test_names_that_cannot_be_written(source, tmp_path):
    (tmp_path / "folder.parquet").mkdir()
    for target, told in (
        (tmp_path / "nowhere" / "out.parquet", "there is no folder"),
        (tmp_path / "folder.parquet", "is a directory"),
        (tmp_path / f"{'x' * 300}.parquet", "cannot be written: File name too long"),
        (tmp_path / "in.parquet" / "out.parquet", "there is no folder"),
        (source, "is the file to be read"),
        ("/proc/self/out.parquet", "could not be written"),
    ):
        with pytest.raises((OSError, ValueError), match=told):
            transform_file(ATLAS, source, target, overwrite=True)
    nothing_but(tmp_path, "in.parquet", "folder.parquet")
    with pytest.raises(OSError, match="not a regular file"):
        check_target("/dev/null", overwrite=True)


def test_a_file_that_is_there_is_not_replaced_unasked(source, tmp_path):
    target = tmp_path / "out.parquet"
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError, match=r"out.parquet exists: .*overwrite=True"):
        transform_file(ATLAS, source, target)
    assert target.read_bytes() == b"old"
    transform_file(ATLAS, source, target, overwrite=True)
    assert pq.read_metadata(target).num_rows == N


def test_the_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "out"
    with atomic_write(str(target)) as partial:
        with open(partial, "w") as file:
            file.write("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"
    nothing_but(tmp_path, "out")


# --- bad input


def bad_files(tmp_path):
    whole = tmp_path / "whole.parquet"
    pq.write_table(TABLE, whole)
    data = whole.read_bytes()
    whole.unlink()
    columns = {name: TABLE[name].to_pylist() for name in "abc"}

    def table(**changes):
        return pa.table({**columns, **changes})

    nan, inf = list(columns["b"]), list(columns["b"])
    nan[2900], inf[10] = float("nan"), float("inf")
    return {
        "empty.parquet": (b"", "is empty"),
        "bytes.parquet": (np.random.default_rng(0).bytes(5000), "could not be read as Parquet"),
        "short.parquet": (data[:-100], "could not be read as Parquet"),
        "half.parquet": (data[: len(data) // 2], "could not be read as Parquet"),
        "nan.parquet": (
            table(b=nan),
            "contains NaN or infinity: all values must be finite; the first is NaN in row 2900, column 'b';",
        ),
        "null.parquet": (table(b=[None, *columns["b"][1:]]), "contains NaN or infinity"),
        "inf.parquet": (table(b=inf), r"contains NaN or infinity.* infinity in row 10, column 'b'$"),
        "huge.parquet": (table(b=[1e101] * N), "contains values beyond 1e"),
        "text.parquet": (table(b=["?"] * N), r"has 1 column\(s\) that are not numeric: 'b'"),
        "other.parquet": (pa.table({"a": columns["a"]}), r"lacks 2 column\(s\) of the atlas: 'b', 'c'"),
        "empty.csv": (b"", "is empty"),
        "bytes.csv": (np.random.default_rng(0).bytes(5000), "could not be read as CSV"),
        "ragged.csv": (b"a,b,c\n1,2,3\n1,2\n", "could not be read as CSV.*Expected 3 columns, got 2"),
        "words.csv": (b"a,b,c\n1,2,3\n1,two,3\n", "could not be read as CSV.*invalid value 'two'"),
        "gaps.csv": (b"a,b,c\n1,,3\n", "contains NaN or infinity"),
        "bytes.arrow": (np.random.default_rng(0).bytes(5000), "could not be read as Arrow"),
        "bytes.npy": (np.random.default_rng(0).bytes(5000), "could not be read as npy"),
        "queries.txt": (b"a b c\n1 2 3\n", "cannot tell the file format from the name"),
    }


def test_files_that_are_refused(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    for name, (content, told) in bad_files(tmp_path).items():
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path)
        target = tmp_path / f"out{path.suffix}"
        with pytest.raises(ValueError, match=told) as caught:
            transform_file(ATLAS, path, target)
        assert "\n" not in str(caught.value), name
        assert name in str(caught.value)
        nothing_but(tmp_path, name)
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"nothing.parquet does not exist"):
        transform_file(ATLAS, tmp_path / "nothing.parquet", tmp_path / "out.parquet")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(IsADirectoryError, match="is a directory"):
        transform_file(ATLAS, tmp_path / "folder.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (Z[0], "two dimensions"),
        (np.asfortranarray(Z), "Fortran order"),
        (Z.astype(complex), "real numbers"),
        (np.array([["a"]]), "real numbers"),
        (Z[:, :2], "has 2 columns: must have 3"),
    ],
)
def test_arrays_that_are_refused(tmp_path, array, told):
    np.save(tmp_path / "in.npy", array)
    with pytest.raises(ValueError, match=told):
        transform_file(ATLAS, tmp_path / "in.npy", tmp_path / "out.npy")
    nothing_but(tmp_path, "in.npy")


def test_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "in.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="could not be read as npy"):
        transform_file(ATLAS, tmp_path / "in.npy", tmp_path / "out.npy")


def test_what_does_not_go_together(source, tmp_path):
    np.save(tmp_path / "in.npy", Z)
    for read, written, column, told in (
        ("in.npy", "out.parquet", None, "must end in .npy if and only if"),
        ("in.parquet", "out.npy", None, "must end in .npy if and only if"),
        ("in.npy", "out.npy", "status", "status_column = 'status': must be None for an array"),
        ("in.parquet", "out.parquet", "name", "has a column of that name already"),
        ("in.parquet", "out.txt", None, "cannot tell the file format from the name"),
    ):
        with pytest.raises(ValueError, match=told):
            transform_file(ATLAS, tmp_path / read, tmp_path / written, status_column=column)
    nothing_but(tmp_path, "in.npy", "in.parquet")


def test_what_csv_cannot_hold(tmp_path):
    pq.write_table(TABLE.append_column("list", pa.array([[1]] * N)), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"out.csv could not be written as CSV: "):
        transform_file(ATLAS, tmp_path / "in.parquet", tmp_path / "out.csv")
    nothing_but(tmp_path, "in.parquet")


# --- points in memory


@pytest.mark.parametrize("suffix", WRITE)
def test_points_of_a_file(tmp_path, monkeypatch, suffix):
    small_batches(monkeypatch)
    path = tmp_path / f"in{suffix}"
    WRITE[suffix](TABLE, path)
    points, names = read_points(path, ["b", "a"])
    np.testing.assert_array_equal(points, Z[:, [1, 0]])
    assert names == ("b", "a")
    with pytest.raises(
        ValueError, match=r"not numeric: 'name', 'group'; choose among 'c', 'a', 'b', 'count'"
    ):
        read_points(path)
    with pytest.raises(ValueError, match=r"columns holds 'z'"):
        read_points(path, ["a", "z"])
    WRITE[suffix](TABLE.select(["c", "a"]), path)
    points, names = read_points(path)
    np.testing.assert_array_equal(points, Z[:, [2, 0]])
    assert names == ("c", "a")
    WRITE[suffix](TABLE.slice(0, 0), path)
    with pytest.raises(ValueError, match="has no rows"):
        read_points(path, ["a"])


def test_points_of_an_array(tmp_path):
    np.save(tmp_path / "in.npy", Z.astype(np.float32))
    points, names = read_points(tmp_path / "in.npy")
    np.testing.assert_array_equal(points, Z.astype(np.float32))
    assert points.dtype == np.float32
    assert names is None


@pytest.mark.parametrize("rows", [1, 7, 256, 1000])
def test_points_spread_over_the_rows(source, monkeypatch, rows):
    small_batches(monkeypatch, rows)
    for most, stride in ((N, 1), (N - 1, 2), (400, 8), (1, 4096)):
        points, _ = read_points(source, ["a", "b", "c"], most=most)
        np.testing.assert_array_equal(points, Z[::stride])


def test_points_that_are_put_back(source, tmp_path, monkeypatch):
    small_batches(monkeypatch)
    points = Z[:, ::-1].astype(np.float32)
    status = np.where(np.arange(N) % 3 == 0, "no_neighbor", "ok")
    result = replace_points(
        source, tmp_path / "out.parquet", points, ["a", "b", "c"], status=status, status_column="s"
    )
    out = pq.read_table(tmp_path / "out.parquet")
    np.testing.assert_array_equal(numbers(out), points)
    assert out["s"].to_pylist() == status.tolist()
    assert out["name"].equals(TABLE["name"])
    assert result.status == {"ok": 2000, "no_neighbor": 1000}
    np.save(tmp_path / "in.npy", Z)
    replace_points(tmp_path / "in.npy", tmp_path / "out.npy", points, None)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), points)


# --- threads and memory


@pytest.mark.parametrize("layer", ["omp", pytest.param("workqueue", marks=pytest.mark.slow)])
def test_no_threading_layer_is_started(tmp_path, layer):
    code = """
        import sys
        import numba, numpy as np
        from test_files import ATLAS, MOVED, Z
        from dpmd_fast.tables import formats
        from dpmd_fast.tables.files import transform_file
        formats._MOST_ROWS = formats._FEWEST_ROWS = 64
        np.save("in.npy", Z)
        for threads in (None, 1, 2):
            transform_file(ATLAS, "in.npy", "out.npy", overwrite=True, n_threads=threads)
            np.testing.assert_array_equal(np.load("out.npy"), MOVED)
        try:
            sys.exit(f"started: {numba.threading_layer()}")
        except ValueError:
            pass
    """
    environment = {
        "NUMBA_THREADING_LAYER": layer,
        "PYTHONPATH": FOLDERS,
        "DPMD_FAST_CACHE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), layer],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    code = """
        import json, sys
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq
        from samples import make_atlas
        from dpmd_fast.tables.files import transform_file
        rows, path = int(sys.argv[1]), sys.argv[2]
        names = list("abc") + [f"other {k}" for k in range(7)]
        rng = np.random.default_rng(0)
        schema = pa.schema([(name, pa.float64()) for name in names])
        with pq.ParquetWriter(path + "/in.parquet", schema, use_dictionary=False) as writer:
            for start in range(0, rows, 100_000):
                piece = rng.uniform(-2.0, 2.0, size=(10, 100_000))
                writer.write_table(pa.table(list(piece), schema=schema))
        transform_file(make_atlas(), path + "/in.parquet", path + "/out.parquet", overwrite=True)
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM:"):
                print(json.dumps(int(line.split()[1]) / 1024))
    """

    def peak(rows):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(rows), str(tmp_path)],
            env={
                **os.environ,
                "PYTHONPATH": FOLDERS,
                "DPMD_FAST_CACHE": "1",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    small, large = peak(400_000), peak(4_000_000)  # 32 and 320 MB of numbers
    assert large < small + 60.0


def test_a_name_that_was_taken_in_the_meantime_is_not_replaced(tmp_path):
    target = tmp_path / "out.txt"
    with pytest.raises(OSError, match="another file has got that name"), atomic_write(str(target)):
        target.write_text("theirs")
    assert target.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["out.txt"]
    with atomic_write(str(target), overwrite=True) as partial, open(partial, "w") as file:
        file.write("mine")
    assert target.read_text() == "mine"


def test_without_links_a_file_gets_its_name_all_the_same(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    target = tmp_path / "out.txt"
    with atomic_write(str(target)) as partial, open(partial, "w") as file:
        file.write("mine")
    assert target.read_text() == "mine"
    assert os.listdir(tmp_path) == ["out.txt"]
