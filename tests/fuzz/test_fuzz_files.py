"""Damaged and edited files: points, references, atlases and ledgers."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from dpmd_fast import Atlas, Ledger, release_moments
from dpmd_fast.models.atlas_file import _arrays, _metadata, _sealed
from dpmd_fast.tables.files import read_points, transform_file
from fuzz import corpus
from fuzz.harness import TALLY, UNREADABLE, bank, folder, fuzzed, judged
from fuzz.lines import line_folder, run_line
from fuzz.strategies import byte_edits, json_values
from fuzz.targets import BUDGET, atlas, queries, reference

# Points and references


def _written(kind, points, path):
    table = pa.table({"x": points[:, 0], "y": points[:, 1]})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=16)
    elif kind == "arrow":
        pa.feather.write_feather(table, path, compression="uncompressed")
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        np.save(path, points)
    return path.read_bytes()


_CACHE = {}


def _good_file(kind, private):
    if (kind, private) not in _CACHE:
        points = reference() if private else queries(n=60)
        _CACHE[kind, private] = _written(kind, points, folder() / f"good.{kind}")
    return _CACHE[kind, private]


FORMATS = ("parquet", "arrow", "csv", "npy")


@fuzzed(0.08, kind=st.sampled_from(FORMATS), edit=byte_edits(), way=st.sampled_from(["read", "transform"]))
def test_files_of_points(kind, edit, way):
    source, target = folder() / f"points.{kind}", folder() / f"moved.{kind}"
    source.write_bytes(edit.value(_good_file(kind, False), _good_file(kind, True)))
    before = source.read_bytes()
    target.unlink(missing_ok=True)
    made = atlas("plain" if kind == "npy" else "named")
    if way == "read":
        call = lambda: read_points(source, None if kind == "npy" else ["x", "y"])  # noqa: E731
    else:
        call = lambda: transform_file(made, source, target, n_threads=1)  # noqa: E731

    def check(result):
        if way == "read":
            assert np.isfinite(result[0]).all(), "is not finite"
        else:
            assert target.exists(), "is not written"

    result = judged(
        f"files, {kind}",
        f"{way} {kind}: {edit.label}",
        call,
        named={source.name, "columns", "Z"},
        check=check,
        private=False,
    )
    assert source.read_bytes() == before
    assert not isinstance(result, Exception) or not target.exists()


@fuzzed(0.02, edit=byte_edits(), drop=st.booleans())
def test_references_in_parquet(edit, drop):
    path = folder() / "private.parquet"
    path.write_bytes(edit.value(_good_file("parquet", True), _good_file("parquet", False)))
    ledger = bank().open()
    judged(
        "files, a private Parquet file",
        f"release_moments of Parquet: {edit.label}, drop={drop}",
        lambda: release_moments(
            path,
            queries(n=4),
            bandwidth=0.8,
            budget=BUDGET,
            on_invalid="drop" if drop else "raise",
            accept_risk=True,
            ledger=ledger,
            dataset="rich",
            n_threads=1,
        ),
        named={path.name, "reference", "columns"},
        paid=lambda result: result.guarantee.mu**2,
        check=lambda result: np.testing.assert_array_equal(np.isfinite(result.values), True),
        unlucky=(UNREADABLE,)
        if drop
        else (),  # the only pass over the records is the one that has been paid for
    )


@fuzzed(
    0.01,
    verb=st.sampled_from(["fit", "denoise", "transform", "ledger show", "preprocess"]),
    kind=st.sampled_from(FORMATS),
    edit=byte_edits(),
)
def test_files_on_the_command_line(verb, kind, edit):
    base = line_folder()
    name = f"hostile.{kind}"
    paid = "--ledger bank.db --dataset rich --epsilon 60 --delta 1e-6"
    data = _good_file(kind, verb in ("fit", "denoise", "preprocess"))
    if verb == "ledger show":
        data, name = corpus.good_ledger(), "hostile.db"
    (base / name).write_bytes(edit.value(data))
    line = {
        "fit": f"fit --reference {name} --anchors queries.parquet --columns x,y --dim 1 --bandwidth 0.9 "
        f"--rounds 1 --accept-risk {paid} -o new.dpmd",
        "denoise": f"denoise --reference {name} queries.parquet --columns x,y --dim 1 --bandwidth 0.9 "
        f"--accept-risk {paid} -o new.parquet",
        "transform": f"transform --atlas atlas.dpmd {name} -o new.{kind}",
        "ledger show": f"ledger show --ledger {name}",
        "preprocess": f"preprocess --reference {name} --bounds bounds.json {paid} -o new.json",
    }[verb]
    run_line(f"command line, files, {verb}", line.split())


def test_a_damaged_footer_does_not_end_the_process():
    """Arrow calls abort when asked for the metadata of a column that is not there."""
    data, path = _good_file("parquet", False), folder() / "footer.parquet"
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for place in range(start, start + 60):
        for bit in (0, 4, 6):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                transform_file(atlas("named"), path, folder() / "moved.parquet", overwrite=True, n_threads=1)
            except ValueError as error:
                refused += path.name in str(error)
    assert refused > 30


# Atlases


def _load(data, family, what, same=None):
    """Load bytes as an atlas: refused, or as good as new."""
    path = folder() / "tested.dpmd"
    path.write_bytes(data)
    points = queries(2)

    def load():
        loaded = Atlas.load(path)
        Z = queries(loaded.n_columns)
        if loaded.preprocess is not None:
            Z = np.abs(Z) + 0.1
        return loaded, loaded.transform(Z, 1)

    def check(result):
        loaded, moved = result
        assert np.isfinite(moved).all(), "moves points to infinity"
        loaded.save(folder() / "again.dpmd")
        again = Atlas.load(folder() / "again.dpmd")
        assert again.guarantee == loaded.guarantee, "guarantee"
        if same is not None:
            assert _metadata(loaded) == _metadata(same), "is not what was saved"
            for name, array in _arrays(loaded).items():
                np.testing.assert_array_equal(array, _arrays(same)[name])

    assert points.shape[1] == 2
    return judged(family, what, load, named={path.name}, check=check, private=False)


ATLASES = ("plain", "named", "subspace", "preprocessed")


@fuzzed(0.15, kind=st.sampled_from(ATLASES), edit=byte_edits())
def test_damaged_atlases(kind, edit):
    """Any change of the bytes is noticed."""
    good, other = corpus.good_atlas(kind), corpus.good_atlas("plain")
    data = edit.value(good, other)
    same = atlas("plain" if data == other else kind)
    error = _load(data, "atlases, damaged", f"{kind}: {edit.label}", same=same)
    assert data in (good, other) or isinstance(error, ValueError)


@fuzzed(0.08, kind=st.sampled_from(ATLASES), edit=byte_edits())
def test_damaged_atlases_with_a_right_checksum(kind, edit):
    data = corpus.resealed(edit.value(corpus.good_atlas(kind)))
    _load(data, "atlases, damaged and sealed anew", f"{kind}: {edit.label}")


@fuzzed(0.12, kind=st.sampled_from(ATLASES), place=st.integers(0, 10**6), value=json_values(),
        how=st.sampled_from(["put", "put", "put", "drop", "add", "double"]))  # fmt: skip
def test_edited_metadata(kind, place, value, how):
    metadata = json.loads(json.dumps(_metadata(atlas(kind))))
    path = corpus.edited(metadata, place, value, how)
    try:
        data = _sealed(metadata, _arrays(atlas(kind)))
    except (ValueError, RecursionError):  # JSON cannot hold it
        return
    _load(data, "atlases, edited metadata", f"{kind}: {how} {path} = {value!r}")


@fuzzed(0.06, kind=st.sampled_from(ATLASES), place=st.integers(0, 10**6),
        how=st.sampled_from(sorted(corpus.ARRAY_EDITS)), noted=st.booleans())  # fmt: skip
def test_edited_arrays(kind, place, how, noted):
    metadata, arrays = _metadata(atlas(kind)), dict(_arrays(atlas(kind)))
    name = sorted(arrays)[place % len(arrays)]
    arrays[name] = np.ascontiguousarray(corpus.ARRAY_EDITS[how](arrays[name]), dtype=np.float64)
    if noted:
        metadata["shapes"][name] = list(arrays[name].shape)
    _load(_sealed(metadata, arrays), "atlases, edited arrays", f"{kind}: {name} {how}")


@pytest.mark.parametrize("name", sorted(corpus.ATLAS_EDITS))
def test_corpus_of_atlases(name):
    data, legal = corpus.ATLAS_EDITS[name]()
    outcome = _load(data, "atlases, corpus", name)
    assert isinstance(outcome, ValueError) != legal, outcome


# Ledgers


def _open(path, family, what):
    """All that a ledger can be asked: refused, or the same as before the edit; budget is never made."""
    ledger = Ledger(path, timeout=0.1)
    good = Ledger(corpus.ledger_path(), timeout=0.1)
    named = {path.name, "dataset"}
    outcomes = []
    for ask in ("datasets", "total", "remaining", "history", "guarantee", "spend"):
        if ask == "datasets":
            call = ledger.datasets
        elif ask == "spend":
            call = lambda: ledger.spend("clinic", 0.25, "another")  # noqa: E731
        else:
            call = lambda ask=ask: getattr(ledger, ask)("clinic")  # noqa: E731

        def check(result, ask=ask):
            if ask not in ("datasets", "spend"):
                wanted = getattr(good, ask)("clinic")
                if ask == "history":  # names of files are notes
                    result, wanted = ([replace(one, files=()) for one in each] for each in (result, wanted))
                assert result == wanted, f"{ask} is not what was spent"

        outcomes.append(
            judged(family, f"{what}: {ask}", call, named=named, check=check, private=False, counted=False)
        )
    TALLY[family, "refused" if any(isinstance(one, Exception) for one in outcomes) else "accepted"] += 1
    return outcomes


@fuzzed(0.08, edit=byte_edits())
def test_damaged_ledgers(edit):
    path = folder() / "tested.db"
    for leftover in (path, f"{path}-journal", f"{path}-wal", f"{path}-shm"):
        if os.path.exists(leftover):
            os.unlink(leftover)
    path.write_bytes(edit.value(corpus.good_ledger(), bank().told()))
    _open(path, "ledgers, damaged", edit.label)


@pytest.mark.parametrize("name", sorted(corpus.LEDGER_EDITS))
def test_corpus_of_ledgers(name):
    base = folder() / "ledger"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    path = base / "edited.db"
    path.write_bytes(corpus.good_ledger())
    legal = corpus.LEDGER_EDITS[name](path)
    outcomes = _open(path, "ledgers, corpus", name)
    refused = [isinstance(one, Exception) for one in outcomes]
    assert not any(refused) if legal else refused[-1], outcomes
