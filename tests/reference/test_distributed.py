"""References in an engine: the same bits as in one process, and nothing counted twice."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import dpmd_fast
from dpmd_fast import Atlas, Budget, DPManifoldDenoiser, Ledger, release_atlas, release_moments
from dpmd_fast.mechanisms.preprocessor import private_preprocessor
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.reference import (
    PartialSums,
    arrow_batches,
    engine_reference,
    merge_sums,
    partial_sums,
)
from dpmd_fast.reference.sources.dask import _array_blocks, _on_part
from dpmd_fast.reference.sources.engine import Failure
from dpmd_fast.reference.tasks import MismatchedSums, OtherVersion, SumTask, ValidTask, code_version
from dpmd_fast.tables import transform_batches

BUDGET = Budget(2.0, 1e-5)


def circle(n: int, seed: int, columns: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    out = 0.03 * rng.normal(size=(n, columns))
    out[:, 0] += np.cos(angles)
    out[:, 1] += np.sin(angles)
    return out


Y, Z = circle(6000, 0), circle(300, 1)


def tabled(points: np.ndarray) -> pa.Table:
    return pa.table({f"x{k}": column for k, column in enumerate(points.T)})


def engine(parts: list[np.ndarray], **options: object):
    """An engine in this process that hands its partitions back in a strange order."""

    def run(task):
        done = [partial_sums(task, [part], 1) for part in parts]
        return done[::-1]

    return engine_reference(run, columns=parts[0].shape[1], **options)


def same_atlas(a: Atlas, b: Atlas) -> bool:
    return all(
        np.array_equal(one.centers, other.centers) and np.array_equal(one.masses, other.masses)
        for one, other in zip(a.layers, b.layers, strict=True)
    ) and np.array_equal(a.transform(Z), b.transform(Z))


@pytest.mark.parametrize("cuts", [[], [1], [1000, 1001, 1777, 5999]])
def test_any_engine_releases_the_same_bits(cuts):
    alone = release_moments(Y, Z[:40], bandwidth=0.5, budget=BUDGET, seed=3)
    split = release_moments(engine(np.split(Y, cuts)), Z[:40], bandwidth=0.5, budget=BUDGET, seed=3)
    np.testing.assert_array_equal(split.values, alone.values)


def test_an_atlas_in_high_dimension_has_the_same_bits():
    wide, anchors = circle(8000, 2, columns=9), circle(300, 3, columns=9)
    settings = {"dim": 1, "budget": Budget(6.0, 1e-5), "seed": 5}
    alone = release_atlas(wide, anchors, **settings)
    split = release_atlas(engine(np.array_split(wide, 7), rows=len(wide)), anchors, **settings)
    assert alone.subspace is not None
    np.testing.assert_array_equal(split.transform(anchors), alone.transform(anchors))


def test_preprocessing_goes_to_the_records():
    pre = Preprocessor(center=(0.1, -0.2), scale=(0.5, 2.0), log=(False, False))
    settings = {"dim": 1, "budget": BUDGET, "seed": 5, "preprocess": pre}
    alone = release_atlas(Y, Z, **settings)
    assert same_atlas(release_atlas(engine(np.array_split(Y, 3), rows=len(Y)), Z, **settings), alone)


def test_invalid_records_in_one_partition_are_refused_before_the_spend(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("circle", 5.0, 1e-5)
    bad = Y.copy()
    bad[4321, 1] = np.nan
    reference = engine(np.array_split(bad, 5))
    with pytest.raises(ValueError, match="non-finite"):
        release_moments(
            reference, Z[:5], bandwidth=0.5, budget=Budget(1.0, 1e-6), ledger=ledger, dataset="circle"
        )
    assert not ledger.history("circle")
    dropped = release_moments(reference, Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop", seed=1)
    clean = release_moments(
        np.delete(bad, 4321, axis=0), Z[:5], bandwidth=0.5, budget=BUDGET, seed=1, on_invalid="drop"
    )
    np.testing.assert_array_equal(dropped.values, clean.values)


def test_other_routes_refuse_an_engine_before_they_spend():
    with pytest.raises(ValueError, match="held by an engine"):
        DPManifoldDenoiser(0.5, 1, BUDGET).fit(engine([Y])).transform(Z)


def test_sums_of_another_task_are_refused():
    tasks = []

    def run(task):
        tasks.append(task)
        return [PartialSums(np.zeros((3, 4, 4), np.int64), 5)] if isinstance(task, SumTask) else []

    with pytest.raises(ValueError, match="does not belong"):
        release_moments(
            engine_reference(run, columns=2), Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop"
        )
    assert len(tasks) == 1


def test_too_many_records_for_the_integers_are_refused():
    def run(task):
        return [partial_sums(task, [Y[:10]], 1)._replace(rows=2**40) for _ in range(3)]

    with pytest.raises(OverflowError, match="64-bit"):
        release_moments(
            engine_reference(run, columns=2), Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop"
        )


def test_what_an_engine_says_is_not_repeated():
    def run(task):
        raise ValueError("could not convert string to float: 'SECRET-4711'")
        yield

    with pytest.raises(RuntimeError, match=r"the engine failed \(ValueError\)") as caught:
        release_moments(engine_reference(run, columns=2), Z[:5], bandwidth=0.5, budget=BUDGET)
    error = caught.value
    assert "SECRET" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_dask_error_is_not_repeated(tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    lines = ["x,y", *["1.0,2.0"] * 2000, "SECRET-4711,2"]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    frame = dd.read_csv(tmp_path / "p.csv", dtype={"x": float, "y": float}, sample=500, blocksize=4000)
    with pytest.raises(RuntimeError, match="the engine failed") as caught:
        release_moments(frame, Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop")
    assert "SECRET" not in str(caught.value)


def test_a_partition_that_comes_twice_is_noticed():
    def run(task):
        part = partial_sums(task, [Y[:100]], 1)
        return [part, part]

    with pytest.raises(ValueError, match="exactly once"):
        release_moments(
            engine_reference(run, columns=2, rows=100), Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop"
        )


@pytest.mark.parametrize("how", ["the same result", "computed again", "already merged"])
@pytest.mark.parametrize("on_invalid", ["raise", "drop"])
def test_a_partition_that_comes_twice_is_noticed_without_a_number_of_records(how, on_invalid):
    """Failed before: the sums were twice as large, and so was mu."""

    def run(task):
        parts = [partial_sums(task, [Y[start : start + 500]], 1, partition=start) for start in (0, 500)]
        if how == "computed again":
            return [*parts, partial_sums(task, [Y[:500]], 1, partition=0)]
        return [*parts, parts[0] if how == "the same result" else merge_sums(task, parts)]

    settings = {"bandwidth": 0.5, "budget": BUDGET, "on_invalid": on_invalid}
    for adjacency in ("replace-one", "add-remove"):
        with pytest.raises(ValueError, match="exactly once"):
            release_moments(engine_reference(run, columns=2), Z[:5], adjacency=adjacency, **settings)


def test_one_result_that_comes_twice_is_noticed_without_a_name():
    def run(task):
        return [partial_sums(task, [Y[:100]], 1)] * 2

    with pytest.raises(ValueError, match="exactly once"):
        release_moments(
            engine_reference(run, columns=2), Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop"
        )


def test_a_result_of_another_pass_is_refused():
    kept = []

    def run(task):
        kept.append(partial_sums(task, [Y[:100]], 1, partition=0))
        return kept[:1] if isinstance(task, SumTask) else kept[-1:]

    def release():
        return release_moments(
            engine_reference(run, columns=2), Z[:5], bandwidth=0.5, budget=BUDGET, on_invalid="drop"
        )

    release()
    with pytest.raises(ValueError, match="another pass"):
        release()


def test_sums_without_names_are_refused():
    task = ValidTask(1e6)
    part = partial_sums(task, [Y[:10]], partition="a")
    for names in ((), ("a",), (part.parts[0], part.parts[0]), [part.parts[0]], (1,), None):
        with pytest.raises(MismatchedSums):
            merge_sums(task, [part._replace(parts=names)])
    assert merge_sums(task, [part, partial_sums(task, [Y[:3]], partition="b")]).rows == 13
    with pytest.raises(ValueError, match="partition is a list"):
        partial_sums(task, [Y], partition=[1])


def test_the_guarantee_of_an_engine_names_its_condition():
    settings = {"bandwidth": 0.5, "budget": BUDGET, "on_invalid": "drop"}
    held = release_moments(engine([Y[:500], Y[500:]]), Z[:5], **settings).guarantee
    here = release_moments(Y, Z[:5], **settings).guarantee
    assert any("returns each partition of the same records once" in text for text in held.conditions)
    assert {entry.topic for entry in held.scope if not entry.covered} - {
        entry.topic for entry in here.scope if not entry.covered
    } == {"engine"}


def test_a_worker_with_other_code_of_the_same_version_is_refused():
    """Failed before: only the version number was compared."""
    task = ValidTask(1e100)
    assert task.version == code_version()
    assert dpmd_fast.__version__ in task.version
    other = task.version[:-2] + ("0)" if task.version[-2] != "0" else "1)")
    with pytest.raises(OtherVersion, match="install one version everywhere"):
        replace(task, version=other).on([Y])


def test_merging_is_exact_and_in_any_order():
    task = ValidTask(1e6)
    parts = [
        partial_sums(task, [Y[:10]]),
        partial_sums(task, [np.array([[np.inf, 0.0]])]),
        partial_sums(task, []),
    ]
    for order in ([0, 1, 2], [2, 1, 0]):
        merged = merge_sums(task, [parts[k] for k in order])
        assert (merged.values[0], merged.rows) == (1, 11)


def test_bad_arguments():
    for columns in (0, [], ["x", "x"]):
        with pytest.raises(ValueError, match="columns"):
            engine_reference(lambda task: [], columns=columns)
    with pytest.raises(ValueError, match="run"):
        engine_reference(None, columns=2)
    with pytest.raises(ValueError, match="rows"):
        engine_reference(lambda task: [], columns=2, rows=-1)


def test_batches_of_arrow():
    table = tabled(Y).append_column("name", pa.array(["a"] * len(Y)))
    blocks = list(arrow_batches(table.to_batches(max_chunksize=999), ["x0", "x1"]))
    np.testing.assert_array_equal(np.concatenate(blocks), Y)
    atlas = release_atlas(tabled(Y), Z, dim=1, budget=BUDGET, seed=1)
    moved = pa.Table.from_batches(transform_batches(atlas, table.to_batches(max_chunksize=777)))
    np.testing.assert_array_equal(moved["x0"], atlas.transform(Y)[:, 0])
    assert moved["name"].equals(table["name"])


# Dask


def dask_array(points: np.ndarray, chunks: object):
    da = pytest.importorskip("dask.array")
    return da.from_array(points, chunks=chunks)


@pytest.mark.parametrize("chunks", [(1000, 2), (777, 1), (6000, 2)])
def test_a_dask_array_releases_the_same_bits(chunks):
    alone = release_moments(Y, Z[:40], bandwidth=0.5, budget=BUDGET, seed=3)
    split = release_moments(dask_array(Y, chunks), Z[:40], bandwidth=0.5, budget=BUDGET, seed=3)
    np.testing.assert_array_equal(split.values, alone.values)


def test_a_dask_frame_and_its_transform():
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    frame = pd.DataFrame({"name": [f"p{k}" for k in range(len(Y))], "b": Y[:, 1], "a": Y[:, 0]})
    lazy = dd.from_pandas(frame, npartitions=5)
    settings = {"dim": 1, "budget": BUDGET, "seed": 2, "columns": ["a", "b"]}
    with pytest.raises(ValueError, match="not numeric"):
        release_atlas(lazy, Z, dim=1, budget=BUDGET, n_public=6000)
    atlas = release_atlas(lazy, Z, n_public=len(Y), **settings)
    assert same_atlas(atlas, release_atlas(frame, Z, **settings))
    moved = atlas.transform(lazy)
    with pytest.raises(ValueError, match=r"^return_status = True: must be False for a Dask dataframe"):
        atlas.transform(lazy, return_status=True)
    assert hasattr(moved, "dask")
    pd.testing.assert_frame_equal(
        moved.compute(), atlas.transform(frame), check_column_type=False, check_dtype=False
    )


def test_a_dask_frame_says_what_it_will_be():
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    index = pd.Index([f"p{k:02}" for k in range(60)], name="id")
    frame = pd.DataFrame({"b": Y[:60, 1], "when": pd.period_range("2026-01", periods=60, freq="M")}, index)
    frame["a"] = Y[:60, 0].astype(np.float32)
    atlas = release_atlas(pd.DataFrame(Y, columns=["a", "b"]), Z, dim=1, budget=BUDGET, seed=2)
    moved = atlas.transform(dd.from_pandas(frame, npartitions=4))
    computed = moved.compute()
    assert moved._meta.index.name == computed.index.name == "id"
    assert list(moved.columns) == list(computed.columns) == list(frame.columns)
    assert moved.dtypes.to_dict() == computed.dtypes.to_dict()
    pd.testing.assert_frame_equal(computed, atlas.transform(frame), check_index_type=False)


def test_a_dask_array_is_moved_when_it_is_computed():
    atlas = release_atlas(Y, Z, dim=1, budget=BUDGET, seed=1)
    far = np.vstack([Z, [[50.0, 50.0]]]).astype(np.float32)
    moved, status = atlas.transform(dask_array(far, (70, 1)), return_status=True)
    ref, ref_status = atlas.transform(far, return_status=True)
    assert moved.dtype == np.float32
    assert status.dtype == ref_status.dtype
    np.testing.assert_array_equal(moved.compute(), ref)
    np.testing.assert_array_equal(status.compute(), ref_status)
    np.testing.assert_array_equal(atlas.transform(dask_array(far, (70, 1))).compute(), ref)
    assert status.compute()[-1] == "outside"
    with pytest.raises(ValueError, match="columns"):
        atlas.transform(dask_array(np.zeros((3, 5)), 3))


def test_complex_dask_arrays_are_refused():
    atlas = release_atlas(Y, Z, dim=1, budget=BUDGET, seed=1)
    with pytest.raises(ValueError, match="real numbers"):
        atlas.transform(dask_array(Z * 1j, (100, 2)))
    with pytest.raises(ValueError, match="real numbers"):
        release_moments(dask_array(Y * 1j, (1000, 2)), Z[:40], bandwidth=0.5, budget=BUDGET)


@pytest.fixture
def paid(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", 50.0, 1e-5)
    yield {"ledger": ledger, "dataset": "people"}
    assert ledger.history("people") == ()  # all that uses this is refused before the spend


def test_masked_dask_arrays_are_refused(paid):
    ma = pytest.importorskip("dask.array").ma
    masked = ma.masked_where(dask_array(Y, (1000, 2)) > 0.5, dask_array(Y, (1000, 2)))
    with pytest.raises(TypeError, match="masked"):
        release_moments(masked, Z[:40], bandwidth=0.5, budget=BUDGET, on_invalid="drop", **paid)
    with pytest.raises(TypeError, match="masked"):
        release_atlas(Y, Z, dim=1, budget=BUDGET, seed=1).transform(masked)


@pytest.mark.parametrize("kind", ["f2", "g", "O", "U8", "M8[s]"])
def test_types_of_dask_arrays_are_looked_at_before_the_spend(paid, kind):
    array = (
        dask_array(Y, (1000, 2)).astype(kind) if kind != "M8[s]" else dask_array(Y.astype(kind), (1000, 2))
    )
    with pytest.raises(ValueError, match="must be"):
        release_moments(array, Z[:40], bandwidth=0.5, budget=BUDGET, on_invalid="drop", **paid)


def test_what_needs_the_records_here_refuses_an_engine_before_the_spend(paid):
    with pytest.raises(ValueError, match="held by an engine"):
        private_preprocessor(engine([Y]), bounds=[[-3.0, 3.0]] * 2, budget=BUDGET, on_invalid="drop", **paid)
    passes = []
    model = DPManifoldDenoiser(0.5, 1, BUDGET, **paid)
    with pytest.raises(ValueError, match="held by an engine"):
        model.fit(engine_reference(passes.append, columns=2))
    assert passes == []


def test_a_declared_number_of_records_is_refused_where_it_is_private(paid):
    settings = {"budget": BUDGET, "adjacency": "add-remove", **paid}
    with pytest.raises(ValueError, match="rows: must be None"):
        release_moments(engine([Y], rows=len(Y)), Z[:40], bandwidth=0.5, **settings)
    with pytest.raises(ValueError, match="rows: must be None"):
        release_atlas(engine([Y], rows=len(Y)), Z, dim=1, n_public=5000, **settings)


def test_tasks_hold_no_budget_and_no_guarantee():
    seen = []

    def run(task):
        seen.append(task)
        return [partial_sums(task, [wide])]

    wide = circle(8000, 2, columns=9)
    bounds, budget = [[-9.0, 9.0]] * 9, Budget(20.0, 1e-5)
    pre = private_preprocessor(wide, bounds=bounds, budget=Budget(3.0, 1e-5), log=False)
    reference = engine_reference(run, columns=9, rows=8000)
    release_atlas(
        reference,
        circle(300, 3, columns=9),
        preprocess=pre,
        dim=1,
        budget=budget,
        bandwidth=6.0,
        rounds=2,
        accept_risk=True,
    )
    assert len(seen) >= 4
    for task in seen:
        sent = pickle.dumps(task)
        for secret in (b"Budget", b"Guarantee", b"Ledger", b"epsilon", b"entropy", b"differential"):
            assert secret not in sent, (task, secret)
        for number in (budget.mu, budget.epsilon, budget.rho, budget.delta):
            assert struct.pack(">d", number) not in sent
    made = seen[-1].on([wide])
    assert "private" in repr(made)
    assert str(len(wide)) not in repr(made)


def test_a_worker_of_another_version_is_refused():
    task = ValidTask(1e100, version="0.0.1")
    with pytest.raises(OtherVersion, match=r"0\.0\.1"):
        task.on([Y])

    def run(task):
        return [partial_sums(replace(task, version="0.0.1"), [Y])]

    with pytest.raises(RuntimeError, match="OtherVersion"):
        release_moments(engine_reference(run, columns=2), Z[:40], bandwidth=0.5, budget=BUDGET)


@pytest.mark.parametrize("error", [OverflowError, ValueError, MemoryError])
def test_no_error_of_an_engine_is_repeated(error):
    def run(task):
        raise error("Python integer 1234567 out of bounds")

    with pytest.raises(RuntimeError) as caught:
        release_moments(engine_reference(run, columns=2), Z[:40], bandwidth=0.5, budget=BUDGET)
    assert error.__name__ in str(caught.value)
    assert "1234567" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_failing_task_leaves_nothing_in_the_logs(caplog):
    pytest.importorskip("distributed")
    import dask
    from distributed import Client, LocalCluster

    y = Y.copy()
    y[:, 0] = 7.77123
    sums = dask.delayed(_on_part)(ValidTask(1e100), _array_blocks, dask.delayed(y.astype("f2")))
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**settings) as cluster, Client(cluster):
        found = sums.compute()
    assert found == Failure("UserValueError")
    assert "7.77" not in caplog.text


def test_a_bound_data_set_does_not_pay_for_what_an_engine_holds(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("bound", 5.0, 1e-5, fingerprint=Ledger.fingerprint_of(Y))
    with pytest.raises(ValueError, match="not bound to a fingerprint"):
        release_moments(engine([Y]), Z[:40], bandwidth=0.5, budget=BUDGET, ledger=ledger, dataset="bound")
    assert ledger.remaining("bound") == ledger.total("bound").mu2


CLUSTER = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    import numpy as np
    from dpmd_fast import Budget, release_moments

    if __name__ == "__main__":
        import dask.array as da
        from distributed import Client, LocalCluster

        Y = np.load(sys.argv[1])
        kill = sys.argv[2] == "kill"
        Z = Y[:40] + 0.01
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            with Client(cluster) as client:
                pids = list(client.run(os.getpid).values())
                assert os.getpid() not in pids and len(set(pids)) == 2
                lazy = da.from_array(Y, chunks=(len(Y) // 40, 2))
                if kill:
                    def slow(block):
                        time.sleep(0.2)
                        return block
                    lazy = lazy.map_blocks(slow)
                    threading.Timer(2.0, os.kill, (pids[0], signal.SIGKILL)).start()
                found = release_moments(
                    lazy, Z, bandwidth=0.5, budget=Budget(2.0, 1e-5), seed=3, on_invalid="drop"
                )
                if kill:
                    now = list(client.run(os.getpid).values())
                    assert pids[0] not in now
        here = release_moments(Y, Z, bandwidth=0.5, budget=Budget(2.0, 1e-5), seed=3, on_invalid="drop")
        assert np.array_equal(found.values, here.values)
        print("equal")
    """
)


@pytest.mark.parametrize("what", ["calm", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_cluster_of_two_processes(tmp_path, what):
    pytest.importorskip("distributed")
    script, data = tmp_path / "cluster.py", tmp_path / "y.npy"
    script.write_text(CLUSTER)
    np.save(data, Y)
    done = subprocess.run(
        [sys.executable, str(script), str(data), what],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal" in done.stdout


# Spark


@pytest.mark.slow
def test_a_spark_frame_releases_the_same_bits_and_is_transformed(spark, monkeypatch):
    import pandas as pd

    monkeypatch.setattr("dpmd_fast.reference.sources.spark._AT_ONCE", 2)  # four tasks, then two, then one
    monkeypatch.setattr("dpmd_fast.reference.sources.spark._TASKS_PER_CORE", 4)

    data = pd.DataFrame({"a": Y[:, 0], "name": [f"p{k}" for k in range(len(Y))], "b": Y[:, 1]})
    frame = spark.createDataFrame(data).repartition(37)
    settings = {"columns": ["a", "b"], "budget": BUDGET, "seed": 2}
    alone = release_moments(Y, Z[:40], bandwidth=0.5, budget=BUDGET, seed=2)
    split = release_moments(frame, Z[:40], bandwidth=0.5, **settings)
    np.testing.assert_array_equal(split.values, alone.values)
    with pytest.raises(ValueError, match="not numeric"):
        release_moments(frame, Z[:40], bandwidth=0.5, budget=BUDGET)
    atlas = release_atlas(data, Z, dim=1, **settings)
    moved = atlas.transform(frame).toPandas().set_index("name").loc[data["name"]]
    np.testing.assert_array_equal(moved[["a", "b"]].to_numpy(), atlas.transform(data)[["a", "b"]].to_numpy())


def test_odd_names_and_types_of_spark_columns(spark, paid):
    import pandas as pd

    data = pd.DataFrame({"a.b": Y[:, 0], "x `y`": Y[:, 1], "o.x y": ["text"] * len(Y)})
    frame = spark.createDataFrame(data).selectExpr(
        "*", "make_dt_interval(1) as iv", "named_struct('x y', 1) as st"
    )
    settings = {"bandwidth": 0.5, "budget": BUDGET, "on_invalid": "drop"}
    chosen = ["a.b", "x `y`"]
    alone = release_moments(Y, Z[:40], seed=2, **settings)
    split = release_moments(frame, Z[:40], columns=chosen, seed=2, **settings)
    np.testing.assert_array_equal(split.values, alone.values)
    with pytest.raises(ValueError, match="not numeric, 'iv'"):
        release_moments(frame, Z[:40], columns=["a.b", "iv"], **settings, **paid)
    atlas = release_atlas(data, Z, columns=chosen, dim=1, budget=BUDGET, seed=2)
    moved = atlas.transform(frame)
    assert moved.columns == frame.columns
    assert moved.schema["st"].dataType == frame.schema["st"].dataType
    np.testing.assert_array_equal(
        np.sort(moved.toPandas()[chosen].to_numpy(), axis=0),
        np.sort(atlas.transform(data)[chosen].to_numpy(), axis=0),
    )
    words = spark.createDataFrame(pd.DataFrame({"a.b": ["?"], "x `y`": [1.0]}))
    with pytest.raises(ValueError, match=r"not numeric: 'a\.b'"):
        atlas.transform(words)


@pytest.mark.slow
def test_a_spark_task_that_is_killed_is_not_counted_twice(spark, tmp_path):
    """One Python worker kills itself the first time; Spark runs its task again."""
    import pandas as pd

    frame = spark.createDataFrame(pd.DataFrame(Y, columns=["a", "b"])).repartition(4)
    marker = str(tmp_path / "died")

    def once(batches):
        for batch in batches:
            if not os.path.exists(marker):
                with open(marker, "w"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    shaky = frame.mapInArrow(once, frame.schema)
    split = release_moments(shaky, Z[:40], bandwidth=0.5, budget=BUDGET, seed=2, on_invalid="drop")
    assert os.path.exists(marker)
    alone = release_moments(Y, Z[:40], bandwidth=0.5, budget=BUDGET, seed=2, on_invalid="drop")
    np.testing.assert_array_equal(split.values, alone.values)
