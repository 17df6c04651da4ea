"""Batches of a file rewritten, without the file."""

import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from samples import make_atlas

from dpmd_fast.models.geometry.layers import Layer
from dpmd_fast.tables.formats import Incoming
from dpmd_fast.tables.rewrite import MOST_UNWRITTEN, CleaningRewriter, PointsRewriter, run

N = 1000
Z = np.random.default_rng(1).uniform(-2.0, 2.0, size=(N, 3))
MOVED, STATUS = make_atlas().transform(Z, return_status=True)
TABLE = pa.table({"id": range(N), "c": Z[:, 2], "a": Z[:, 0], "b": Z[:, 1]})


def incoming(size=64, value=TABLE):
    if isinstance(value, np.ndarray):
        parts = ((value[start : start + size], False) for start in range(0, len(value), size))
        return Incoming("npy", None, value.shape, len(value), parts)
    batches = value.combine_chunks().to_batches(max_chunksize=size)
    return Incoming("Arrow", value.schema, None, value.num_rows, ((batch, False) for batch in batches))


def rewritten(make, value=TABLE, n_threads=None, size=64):
    """The rewriter after all batches, what was written, and the calls of progress."""
    source, written, progress = incoming(size, value), [], []
    rewriter = make(source)
    run(
        source,
        rewriter,
        lambda batch, _: written.append(batch),
        lambda *done: progress.append(done),
        n_threads,
    )
    return rewriter, written, progress


def counts(status):
    words, times = np.unique(status, return_counts=True)
    return dict(zip(words.tolist(), times.tolist(), strict=True))


@pytest.mark.parametrize("n_threads", [1, 2, None])
def test_an_atlas_moves_batches_in_their_order(n_threads):
    rewriter, written, progress = rewritten(
        lambda source: CleaningRewriter(make_atlas(), "q.arrow", source, "status"), n_threads=n_threads
    )
    out = pa.Table.from_batches(written)
    assert out.schema == rewriter.schema
    assert out.column_names == ["id", "c", "a", "b", "status"]
    np.testing.assert_array_equal(np.stack([out[name] for name in "abc"], axis=1), MOVED)
    assert out["id"].to_pylist() == list(range(N))
    assert out["status"].to_pylist() == STATUS.tolist()
    assert rewriter.rows == N
    assert rewriter.status == counts(STATUS)
    assert [done for done, _ in progress] == [*range(64, N, 64), N]
    assert {total for _, total in progress} == {N}


def test_the_index_is_built_once(monkeypatch):
    built = []
    field = Layer.field
    monkeypatch.setattr(Layer, "field", lambda self: built.append(self) or field(self))
    atlas = make_atlas()
    rewritten(lambda source: CleaningRewriter(atlas, "q.arrow", source, None))
    assert len(built) == len(atlas.layers)


def test_arrays():
    rewriter, written, _ = rewritten(lambda source: CleaningRewriter(make_atlas(), "q.npy", source, None), Z)
    np.testing.assert_array_equal(np.concatenate(written), MOVED)
    assert rewriter.schema is None
    assert rewriter.status == counts(STATUS)
    with pytest.raises(ValueError, match=r"^q\.npy has 2 columns: must have 3, as the atlas$"):
        CleaningRewriter(make_atlas(), "q.npy", incoming(value=Z[:, :2]), None)


@pytest.mark.parametrize("array", [False, True])
def test_a_bad_value_is_reported_with_its_row(array):
    bad = Z.copy()
    bad[130, 1] = np.nan
    value = bad if array else pa.table(dict(zip("abc", bad.T, strict=True)))
    told = (
        r"^q contains NaN or infinity: .*; the first is NaN in row 130, column 'b'; on_missing='keep' leaves"
    )
    with pytest.raises(ValueError, match=told):
        rewritten(lambda source: CleaningRewriter(make_atlas(), "q", source, None), value)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_points_replace_columns(dtype):
    points = MOVED.astype(dtype)
    rewriter, written, _ = rewritten(
        lambda source: PointsRewriter(points, ("a", "b", "c"), STATUS, "q.arrow", source, "status")
    )
    out = pa.Table.from_batches(written)
    np.testing.assert_array_equal(np.stack([out[name] for name in "abc"], axis=1), points)
    assert out.schema.field("a").type == pa.from_numpy_dtype(dtype)
    assert out["status"].to_pylist() == STATUS.tolist()
    assert rewriter.status == counts(STATUS)
    rewriter, written, _ = rewritten(
        lambda source: PointsRewriter(points, None, None, "q.npy", source, None), Z
    )
    np.testing.assert_array_equal(np.concatenate(written), points)
    assert rewriter.status == {"ok": N}


def test_the_status_column_must_be_new():
    for make in (
        lambda: CleaningRewriter(make_atlas(), "q.arrow", incoming(), "id"),
        lambda: PointsRewriter(Z, ("a", "b", "c"), None, "q.arrow", incoming(), "id"),
    ):
        with pytest.raises(ValueError, match=r"^status_column = 'id': q\.arrow has a column of that name"):
            make()


def test_a_writer_that_fails_stops_the_rest():
    source = incoming(8)
    rewriter = CleaningRewriter(make_atlas(), "q.arrow", source, None)

    def write(batch, _):
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        run(source, rewriter, write, None, 1)
    assert rewriter.rows < N


def test_nothing_more_is_written_after_an_error():
    source, calls, all_there = incoming(8), [], threading.Event()

    def write(batch, _):
        calls.append(batch)
        assert all_there.wait(60.0)
        raise OSError("full")

    def progress(rows, _):
        if rows >= 8 * MOST_UNWRITTEN:
            all_there.set()

    rewriter = CleaningRewriter(make_atlas(), "q.arrow", source, None)
    with pytest.raises(OSError, match="full"):
        run(source, rewriter, write, progress, 1)
    assert all_there.is_set()
    assert len(calls) == 1  # seven more waited


def test_few_batches_are_in_flight():
    """A slow writer holds the reader back."""
    read, written, most, lock = [], [], [], threading.Lock()
    source = incoming(20)

    def batches():
        for item in source.batches:
            with lock:
                read.append(1)
                most.append(len(read) - len(written))
            yield item

    def write(batch, _):
        time.sleep(0.002)
        with lock:
            written.append(1)

    slow = source._replace(batches=batches())
    run(slow, CleaningRewriter(make_atlas(), "q.arrow", slow, None), write, None, 2)
    assert len(written) == N // 20
    # and one read ahead, three that are moved or wait for it, one in hand, one that is written
    assert max(most) <= MOST_UNWRITTEN + 6
