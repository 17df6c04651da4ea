"""Exact sums: no bit depends on threads, batches, order, or where the records come from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernel_samples import Setting, wide

import dpmd_fast.kernels.sums.exact
from dpmd_fast import Budget, release_moments
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.mechanisms.moments import HOMOGENEOUS

BUDGET = Budget(epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("D", [3, 12])
def test_threads_and_batches(D):
    Y, locations, h = wide(D)
    setting = Setting(locations, h, 3.5)
    options = {"bandwidth": h, "budget": BUDGET, "seed": 5}
    for n, sizes in ((5003, (777, 4096, 5003)), (300, (1, 7, 299))):
        ref = setting.total(Y[:n])
        assert ref.any()
        np.testing.assert_array_equal(setting.total(Y[:n], n_threads=2), ref)
        noisy = release_moments(Y[:n], locations, **options).values
        for size in sizes:
            blocks = [Y[start : min(start + size, n)] for start in range(0, n, size)]
            for n_threads in (1, 2):
                np.testing.assert_array_equal(setting.total(*blocks, n_threads=n_threads), ref)
                comp = release_moments(Y[:n], locations, batch_rows=size, n_threads=n_threads, **options)
                np.testing.assert_array_equal(comp.values, noisy)


@pytest.mark.parametrize("D", [3, 12])
def test_order_and_merging(D):
    Y, locations, h = wide(D)
    setting = Setting(locations, h)
    ref = setting.total(Y)
    rng = np.random.default_rng(0)
    for order in (np.arange(len(Y))[::-1], rng.permutation(len(Y)), np.argsort(Y[:, 0])):
        np.testing.assert_array_equal(setting.total(Y[order]), ref)
    owner = rng.integers(0, 5, len(Y))
    parts = [setting.total(Y[owner == k]) for k in range(5)]
    for order in (range(5), (3, 1, 4, 0, 2)):
        np.testing.assert_array_equal(sum(parts[k] for k in order), ref)
    np.testing.assert_array_equal(setting.total(*(Y[owner == k] for k in (4, 2, 0, 1, 3))), ref)
    np.testing.assert_array_equal(setting.total(Y[:0], Y, Y[:0]), ref)
    np.testing.assert_array_equal(setting.total(np.asfortranarray(Y)), ref)
    np.testing.assert_array_equal(setting.total(np.repeat(Y, 2, axis=0)[::2]), ref)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_streams_and_files(dtype, tmp_path):
    Y, locations, h = wide(9, K=70, n=3001)
    Y = Y.astype(dtype)
    names = [f"x{j}" for j in range(9)]
    table = pa.table({name: Y[:, j] for j, name in enumerate(names)})
    chunked = pa.concat_tables(
        [table.slice(a, b - a) for a, b in ((0, 1), (1, 700), (700, 701), (701, 3001))]
    )
    shuffled = np.random.default_rng(0).permutation(3001)
    pq.write_table(table, tmp_path / "odd.parquet", row_group_size=777)
    pq.write_table(table.take(shuffled), tmp_path / "shuffled.parquet", row_group_size=13)
    cuts = (0, 10, 11, 2000, 3001)
    pieces = []
    for number in range(4):
        pieces.append(tmp_path / f"piece-{number}.parquet")
        part = table.slice(cuts[number], cuts[number + 1] - cuts[number])
        pq.write_table(part, pieces[-1], row_group_size=101 + number)
    extra = table.append_column("name", pa.array(["secret"] * 3001)).select(["name", *reversed(names)])
    references = {
        "table": table,
        "chunks": chunked,
        "batch": table.combine_chunks().to_batches()[0],
        "pandas": pd.DataFrame(Y, columns=names),
        "polars": pl.DataFrame(Y, schema=names),
        "file": tmp_path / "odd.parquet",
        "path as text": str(tmp_path / "shuffled.parquet"),
        "files": pieces,
        "files in another order": [pieces[k] for k in (2, 0, 3, 1)],
        "more columns": extra,
    }
    options = {"bandwidth": h, "budget": BUDGET, "seed": 5, "n_threads": 1}
    ref = release_moments(Y.astype(np.float64), locations, **options).values
    np.testing.assert_array_equal(release_moments(Y, locations, **options).values, ref)
    for name, reference in references.items():
        columns = names if name == "more columns" else None
        for batch_rows in (None, 77, 1000):
            comp = release_moments(reference, locations, columns=columns, batch_rows=batch_rows, **options)
            np.testing.assert_array_equal(comp.values, ref, err_msg=name)
    stream = pa.RecordBatchReader.from_batches(table.schema, chunked.to_batches(max_chunksize=17))
    comp = release_moments(stream, locations, on_invalid="drop", **options)
    np.testing.assert_array_equal(comp.values, ref)


def test_moving_on_to_integers(monkeypatch):
    Y, locations, h = wide(5, K=70, n=1000)
    setting = Setting(locations, h)
    ref = setting.total(Y)
    flushed = []
    flush = dpmd_fast.kernels.sums.exact.ExactSums._flush

    def counted(self):
        flushed.append(self._recent_rows)
        return flush(self)

    monkeypatch.setattr(dpmd_fast.kernels.sums.exact.ExactSums, "_flush", counted)
    for rows in (1, 2, 37, 999, 1000):
        flushed.clear()
        monkeypatch.setattr(dpmd_fast.kernels.sums.exact, "EXACT", rows * setting.bound + 1)
        np.testing.assert_array_equal(setting.total(Y[:500], Y[500:503], Y[503:]), ref)
        if rows == 1000:  # all fit: nothing has to move on
            assert flushed == []
            continue
        assert max(flushed) <= rows
        assert 1000 - rows <= sum(flushed) < 1000  # the last records stay where they are
        assert len(flushed) >= 1000 // rows - 1


def test_more_records_than_64_bits_hold_are_refused():
    setting = Setting(np.zeros((1, 2)), 1.0)
    sums = MomentSums(setting.index, 2.0, setting.tau, setting.lattice.steps, HOMOGENEOUS)
    sums.add(np.zeros((3, 2)))
    sums.rows = (1 << 62) // setting.bound - 2
    ref = sums.total()
    with pytest.raises(OverflowError, match="64-bit"):
        sums.add(np.zeros((3, 2)))
    np.testing.assert_array_equal(sums.total(), ref)  # nothing was added
