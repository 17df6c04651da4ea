"""Files of atlases: the same map after loading, and nothing but what was saved is ever loaded."""

import dataclasses
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import textwrap
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import dpmd_fast
from dpmd_fast import Atlas, Budget
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas_file import _arrays, _metadata, _sealed, read_atlas, write_atlas
from dpmd_fast.models.file import HEAD, HEAD_PATTERN
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.privacy.guarantee import certified_guarantee

BUDGET = Budget(1.0, 1e-6)
DAMAGED = r"was edited or damaged: its checksum does not match; get a fresh copy of the file$"


def frames(rng, *shape):
    return np.ascontiguousarray(np.linalg.qr(rng.normal(size=shape))[0])


def make_atlas(seed=0, charts=(70, 40, 20), dim=2, columns=3, wide=None, **changes):
    """Projections, then corrections, with charts all over a cube; in a subspace of `wide` columns."""
    rng = np.random.default_rng(seed)
    layers = []
    for number, K in enumerate(charts):
        correction = {
            "offsets": 0.01 * rng.normal(size=(K, columns)),
            "slopes": 0.01 * rng.normal(size=(K, dim, columns)),
            "strength": rng.uniform(),
            "passes": 1,
        }
        layers.append(
            Layer(
                centers=rng.uniform(-1.0, 1.0, size=(K, columns)),
                tangents=frames(rng, K, columns, dim),
                masses=rng.uniform(1.0, 2.0, size=K),
                bandwidth=rng.uniform(0.8, 0.9),
                **(correction if number else {"passes": 3, "strength": 1.0}),
            )
        )
    subspace = None if wide is None else Subspace(rng.normal(size=wide), frames(rng, wide, columns))
    settings = {
        "guarantee": certified_guarantee(
            BUDGET, mu=0.999 * BUDGET.mu, adjacency="replace-one", seeded=False, validated=True
        ),
        "layers": tuple(layers),
        "subspace": subspace,
        "dim": dim,
        "bandwidth": layers[0].bandwidth,
        "signal_to_noise": tuple(rng.uniform(50.0, 300.0, size=len(charts)).tolist()),
        "spends": tuple((f"round {j}", 0.3 * BUDGET.mu**2) for j in range(len(charts))),
        "column_names": None,
    }
    return Atlas(**{**settings, **changes})


def queries(atlas, rows=500):
    """Points inside and outside of the reach of the charts."""
    rng = np.random.default_rng(1)
    inside = rng.uniform(-2.0, 2.0, size=(rows, atlas.layers[0].centers.shape[1]))
    if atlas.subspace is None:
        return inside
    return atlas.subspace.up(inside) + 0.1 * rng.normal(size=(rows, atlas.n_columns))


PLAIN = make_atlas()
WIDE = make_atlas(seed=3, wide=10, column_names=tuple("abcdefghij"))
ODD_NAMES = ('"}', 'a "sha256":"' + 64 * "0" + '",', "\u00e4\n\ud800")
ATLASES = {
    "plain": PLAIN,
    "subspace": WIDE,
    "one layer": make_atlas(seed=5, charts=(20,), column_names=ODD_NAMES),
    "one chart": make_atlas(seed=6, charts=(1,)),
    "offsets only": make_atlas(
        seed=7, layers=(PLAIN.layers[0], dataclasses.replace(PLAIN.layers[1], slopes=None))
    ),
}


def saved(tmp_path, atlas=PLAIN, name="map.dpmd"):
    path = tmp_path / name
    atlas.save(path)
    return path


def assert_same(ours, theirs):
    """Equal in every bit, and of the same types."""
    for field in dataclasses.fields(Atlas):
        if field.name not in ("layers", "subspace"):
            assert repr(getattr(ours, field.name)) == repr(getattr(theirs, field.name))
    ours, theirs = _arrays(ours), _arrays(theirs)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.shape == theirs[name].shape
        assert array.tobytes() == theirs[name].tobytes()


@pytest.mark.parametrize("kind", ATLASES)
def test_everything_comes_back(tmp_path, kind):
    atlas = ATLASES[kind]
    loaded = Atlas.load(saved(tmp_path, atlas))
    assert type(loaded) is Atlas
    assert_same(loaded, atlas)
    assert loaded.guarantee == atlas.guarantee
    for ours, theirs in zip(loaded.layers, atlas.layers, strict=True):
        scalars = ("bandwidth", "passes", "strength")
        assert [repr(getattr(ours, name)) for name in scalars] == [
            repr(getattr(theirs, name)) for name in scalars
        ]
        assert ours.centers.flags.writeable
        assert ours.centers.flags.owndata
    again = tmp_path / "again"
    loaded.save(again)
    assert again.read_bytes() == (tmp_path / "map.dpmd").read_bytes()


@pytest.mark.parametrize("kind", ["plain", "subspace"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loaded_atlas_gives_the_same_bits(tmp_path, kind, dtype):
    atlas = ATLASES[kind]
    loaded = Atlas.load(saved(tmp_path, atlas))
    Z = queries(atlas).astype(dtype)
    moved, status = atlas.transform(Z, return_status=True)
    again, status_again = loaded.transform(Z, return_status=True)
    assert again.dtype == dtype
    assert moved.tobytes() == again.tobytes()
    np.testing.assert_array_equal(status, status_again)
    assert set(status) == {"ok", "outside"}
    assert (moved != Z).any()


def test_another_process_gives_the_same_bits(tmp_path):
    code = """
        import sys
        import numpy as np
        from dpmd_fast import Atlas
        folder = sys.argv[1]
        for kind in ("plain", "subspace"):
            atlas = Atlas.load(f"{folder}/{kind}.dpmd")
            np.save(f"{folder}/{kind} moved.npy", atlas.transform(np.load(f"{folder}/{kind}.npy")))
        assert "pickle" not in vars(sys.modules["dpmd_fast.models.atlas_file"])
        assert "dpmd_fast.mechanisms.atlas.release" not in sys.modules
    """
    for kind in ("plain", "subspace"):
        saved(tmp_path, ATLASES[kind], f"{kind}.dpmd")
        np.save(tmp_path / f"{kind}.npy", queries(ATLASES[kind]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for kind in ("plain", "subspace"):
        moved = ATLASES[kind].transform(queries(ATLASES[kind]))
        assert moved.tobytes() == np.load(tmp_path / f"{kind} moved.npy").tobytes()


def test_floats_come_back_exactly(tmp_path):
    floats = np.array([5e-324, 0.1, 1 / 3, np.nextafter(1.0, 2.0), 1e22, 123456789.123456789, -0.0])
    centers = np.stack([floats, -floats, floats[::-1]], axis=1)
    layer = Layer(centers, frames(np.random.default_rng(0), 7, 3, 1), np.ones(7), 0.1 + 0.2, 1, 5e-324)
    atlas = make_atlas(
        layers=(layer,), dim=1, bandwidth=2 / 3, signal_to_noise=tuple(np.abs(floats).tolist())
    )
    assert_same(Atlas.load(saved(tmp_path, atlas)), atlas)


def test_arrays_in_other_orders_and_types_are_saved_by_value(tmp_path):
    first = PLAIN.layers[0]
    odd = dataclasses.replace(
        first,
        centers=np.asfortranarray(first.centers),
        tangents=first.tangents.astype(">f8"),
        masses=np.repeat(first.masses, 2)[::2],
        bandwidth=np.float64(first.bandwidth),
        passes=np.int64(3),
    )
    atlas = dataclasses.replace(PLAIN, layers=(odd, *PLAIN.layers[1:]), dim=np.int64(2))
    assert saved(tmp_path, atlas).read_bytes() == saved(tmp_path, PLAIN, "plain").read_bytes()


def test_the_file_is_plain_arrow(tmp_path):
    table = pa.ipc.open_file(saved(tmp_path, WIDE)).read_all()
    assert table.schema.types == [pa.string(), pa.list_(pa.int64()), pa.large_list(pa.float64())]
    rows = {row["name"]: row for row in table.to_pylist()}
    assert list(rows)[:4] == ["subspace origin", "subspace basis", "layer 0 centers", "layer 0 tangents"]
    assert rows["layer 2 slopes"]["shape"] == [20, 2, 3]
    np.testing.assert_array_equal(rows["layer 1 masses"]["values"], WIDE.layers[1].masses)
    noted = json.loads(table.schema.metadata[b"dpmd-fast"])
    # version 3: another set of keys needs another version
    assert set(noted) == {
        *("format", "version", "bytes", "sha256", "package_version", "guarantee", "dim", "bandwidth"),
        *("signal_to_noise", "spends", "column_names", "layers", "shapes"),
    }
    assert sorted(noted["guarantee"]) == sorted(
        ["epsilon", "delta", "mu", "adjacency", "holds", "statement", "conditions", "scope"]
    )
    assert sorted(noted["layers"][0]) == ["bandwidth", "passes", "strength"]
    assert noted["format"] == "dpmd-fast atlas"
    assert noted["version"] == 3
    assert noted["bytes"] == os.path.getsize(tmp_path / "map.dpmd")
    assert noted["package_version"] == dpmd_fast.__version__
    assert noted["guarantee"]["statement"] == WIDE.guarantee.statement


def test_saving_twice_gives_the_same_file(tmp_path):
    assert saved(tmp_path).read_bytes() == saved(tmp_path, make_atlas(), "again").read_bytes()


def test_an_atlas_may_be_overwritten(tmp_path):
    path = saved(tmp_path, WIDE)
    PLAIN.save(str(path))
    assert_same(Atlas.load(path), PLAIN)
    assert os.listdir(tmp_path) == ["map.dpmd"]


def test_names_without_a_folder_and_as_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PLAIN.save("here.dpmd")
    assert_same(Atlas.load(os.fsencode("here.dpmd")), PLAIN)


def test_a_saved_file_has_the_usual_permissions(tmp_path):
    before = os.umask(0o022)
    try:
        path = saved(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch, step, error):
    path = saved(tmp_path, WIDE)

    def fail(*arguments):
        raise error("no space")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(error, match="no space"):
        write_atlas(PLAIN, path)
    assert os.listdir(tmp_path) == ["map.dpmd"]
    monkeypatch.undo()
    assert_same(read_atlas(path), WIDE)


def test_where_an_atlas_cannot_be_saved(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        PLAIN.save(tmp_path / "nowhere" / "map.dpmd")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="is a directory"):
        PLAIN.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


def refusal(path):
    """The text of the refusal: a ValueError of one line that begins with the path."""
    with pytest.raises(ValueError, match="^" + re.escape(str(path))) as refused:
        Atlas.load(path)
    assert type(refused.value) is UserValueError
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(str(path))


def test_what_is_not_an_atlas(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.dpmd does not exist"):
        Atlas.load(tmp_path / "none.dpmd")
    assert "is not a regular file" in refusal_of(tmp_path, None)
    assert refusal_of(tmp_path, b"") == " is truncated; get a fresh copy of the file"
    for data in (b"PAR1", b"a,b\n1,2\n", b"\x80\x05]\x94.", bytes(1000)):
        assert refusal_of(tmp_path, data) == " is not an atlas"
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1.0]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert refusal_of(tmp_path, sink.getvalue().to_pybytes()) == " is not an atlas"


def refusal_of(tmp_path, data):
    path = tmp_path / "tested"
    if data is None:
        return refusal(tmp_path)
    path.write_bytes(data)
    return refusal(path)


@pytest.mark.parametrize("kind", ["plain", "subspace"])
def test_truncated_anywhere(tmp_path, kind):
    data = saved(tmp_path, ATLASES[kind]).read_bytes()
    cuts = {*np.linspace(0, len(data) - 1, 50).astype(int), *range(12), *range(len(data) - 20, len(data))}
    for cut in cuts:
        assert refusal_of(tmp_path, data[:cut]).startswith(" is truncated")


@pytest.mark.parametrize("kind", ["plain", "subspace", "one chart"])
def test_any_changed_byte_is_noticed(tmp_path, kind):
    data = saved(tmp_path, ATLASES[kind]).read_bytes()
    rng = np.random.default_rng(0)
    ends = [*range(12), *range(len(data) - 12, len(data))]
    head = data.index(b'{"format"')
    text = range(head, head + 200, 7)
    for place in (*rng.integers(len(data), size=200), *ends, *text):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.integers(8)
        told = refusal_of(tmp_path, changed)
        # what comes before the checksum may look like another file, or like a larger one
        if not (place < 8 or head <= place < head + 160):
            assert re.search(DAMAGED, told)


def test_added_or_exchanged_bytes_are_noticed(tmp_path):
    data = saved(tmp_path).read_bytes()
    half = len(data) // 2
    for changed in (data + b"\0", data + data, data[:half] + b"\0" + data[half:], data[:-8] + bytes(8)):
        assert re.search(DAMAGED, refusal_of(tmp_path, changed))
    other = saved(tmp_path, make_atlas(seed=1), "other").read_bytes()
    assert "is truncated" in refusal_of(tmp_path, data[:half])
    assert refusal_of(tmp_path, data[:half] + other[half:])


def rewritten(path, change_table=lambda table: table, change_text=lambda text: text):
    """The file written anew by Arrow after a change, with the checksum it had."""
    table = change_table(pa.ipc.open_file(path).read_all())
    text = change_text(table.schema.metadata[b"dpmd-fast"])
    table = table.replace_schema_metadata({b"dpmd-fast": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def swapped(table):
    order = list(range(table.num_rows))
    order[0], order[5] = order[5], order[0]
    names = [table["name"][j].as_py() for j in order]
    return table.set_column(0, "name", pa.array(names))


def test_edited_with_an_arrow_library(tmp_path):
    path = saved(tmp_path)
    assert rewritten(path) == path.read_bytes()
    edits = {
        "epsilon": {"change_text": lambda text: text.replace(b'"epsilon":1.0', b'"epsilon":0.1')},
        "strength": {"change_text": lambda text: text.replace(b'"passes":3', b'"passes":4')},
        "swapped": {"change_table": swapped},
        "reordered": {"change_table": lambda table: table.take(list(range(table.num_rows))[::-1])},
    }
    for edit in edits.values():
        changed = rewritten(path, **edit)
        assert changed != path.read_bytes()
        assert re.search(r"was edited or damaged|is truncated", refusal_of(tmp_path, changed))
    shorter = rewritten(path, change_table=lambda table: table.slice(1))
    assert "is truncated" in refusal_of(tmp_path, shorter)


def test_a_newer_version(tmp_path):
    data = _sealed({**_metadata(PLAIN), "more": 1}, _arrays(PLAIN), version=4)
    newer = r" was written by a newer version of dpmd-fast: its format is 4, .* reads 3; update dpmd-fast$"
    assert re.match(newer, refusal_of(tmp_path, data))
    changed = rewritten(
        saved(tmp_path), change_text=lambda text: text.replace(b'"version":3', b'"version":4')
    )
    assert re.match(newer, refusal_of(tmp_path, changed))
    assert "there is no format 0" in refusal_of(
        tmp_path, _sealed(_metadata(PLAIN), _arrays(PLAIN), version=0)
    )


def put(*path_and_value):
    """A change of the metadata at a path of keys."""
    *keys, last, value = path_and_value

    def change(metadata, arrays):
        for key in keys:
            metadata = metadata[key]
        metadata[last] = value

    return change


def put_array(name, value, noted=True):
    def change(metadata, arrays):
        arrays[name] = value(arrays[name]) if callable(value) else value
        if noted:
            metadata["shapes"][name] = list(arrays[name].shape)

    return change


def drop(key, of=None):
    def change(metadata, arrays):
        part = arrays if of == "arrays" else metadata if of is None else metadata[of]
        del part[key]
        if of == "arrays":
            metadata["shapes"].pop(key)

    return change


def poisoned(value):
    def change(array):
        changed = array.copy()
        changed.flat[-1] = value
        return changed

    return change


def exchange(a, b):
    def change(metadata, arrays):
        arrays[a], arrays[b] = arrays[b], arrays[a]

    return change


# sealed with a right checksum: the work of somebody, not of chance
WRONG = {
    "no dim": (drop("dim"), "its metadata lacks 'dim'"),
    "another key": (put("code", "import os"), "unexpected 'code'"),
    "dim 0": (put("dim", 0), "dim = 0"),
    "dim 2.0": (put("dim", 2.0), r"dim = 2\.0"),
    "dim true": (put("dim", True), "dim = True"),
    "dim too large": (put("dim", 4), "dim = 4"),
    "other dim": (put("dim", 1), r"layer 0 tangents has shape \(70, 3, 2\)"),
    "bandwidth 0": (put("bandwidth", 0.0), r"bandwidth = 0\.0"),
    "bandwidth of a layer": (put("layers", 1, "bandwidth", -1.0), r"layer 1 bandwidth = -1\.0"),
    "bandwidth as text": (put("bandwidth", "0.5"), "bandwidth = '0.5'"),
    "huge bandwidth": (put("bandwidth", 10**400), "bandwidth"),
    "passes": (put("layers", 0, "passes", 0), "layer 0 passes = 0"),
    "strength": (put("layers", 2, "strength", -0.5), r"layer 2 strength = -0\.5"),
    "key of a layer": (put("layers", 2, "kind", "x"), "layer 2 has the unexpected 'kind'"),
    "layers": (put("layers", None), "malformed"),
    "layer": (put("layers", 0, 3), "malformed"),
    "no layer": (put("layers", []), "unexpected 'layer 0 centers'"),
    "one layer more": (
        lambda metadata, arrays: metadata["layers"].append(metadata["layers"][0]),
        "lacks 'layer 3",
    ),
    "signal": (put("signal_to_noise", [-1.0]), "signal_to_noise"),
    "spends": (put("spends", [["round 1", -1.0]]), "spends"),
    "spends, too much": (put("spends", [["round 1", 1.0]]), "more than mu"),
    "spends, no text": (put("spends", [[1, 0.0]]), "spends"),
    "spends, three": (put("spends", [["a", 0.0, 1]]), ""),
    "names": (put("column_names", ["a", "b"]), "3 different names"),
    "same names": (put("column_names", ["a", "b", "b"]), "3 different names"),
    "numbers as names": (put("column_names", [1, 2, 3]), "column_names"),
    "guarantee, mu": (put("guarantee", "mu", 3.0), r"mu = 3\.0"),
    "guarantee, epsilon": (put("guarantee", "epsilon", 0.001), "mu"),
    "guarantee, adjacency": (put("guarantee", "adjacency", "none"), "adjacency"),
    "guarantee, holds": (put("guarantee", "holds", ["conditional"]), "holds"),
    "guarantee, conditions": (put("guarantee", "conditions", [1]), "conditions"),
    "guarantee, key": (put("guarantee", "seed", 1), "its guarantee has the unexpected 'seed'"),
    "guarantee": (put("guarantee", None), "malformed"),
    "shapes": (put("shapes", "layer 0 masses", [69]), "layer 0 masses has shape"),
    "shape not noted": (drop("layer 0 masses", of="shapes"), "lacks 'layer 0 masses'"),
    "no centers": (drop("layer 0 centers", of="arrays"), "it lacks 'layer 0 centers'"),
    "another array": (put_array("extra", np.ones(3)), "it has the unexpected 'extra'"),
    "half a subspace": (put_array("subspace basis", np.ones((10, 3))), "it lacks 'subspace origin'"),
    "other shape": (put_array("layer 1 offsets", lambda array: array[:, :2]), "layer 1 offsets has shape"),
    "flat": (put_array("layer 0 centers", np.ravel), "layer 0 centers has shape|does not fit"),
    "transposed slopes": (
        put_array("layer 1 slopes", lambda array: array.swapaxes(1, 2)),
        "layer 1 slopes has shape",
    ),
    "fewer charts": (put_array("layer 2 masses", lambda array: array[1:]), "layer 2 centers has shape"),
    "exchanged": (exchange("layer 0 centers", "layer 1 centers"), "layer 0 centers has shape"),
    "NaN": (put_array("layer 0 centers", poisoned(np.nan)), "layer 0 centers contains NaN"),
    "infinity": (put_array("layer 2 slopes", poisoned(-np.inf)), "layer 2 slopes contains NaN"),
    "huge": (put_array("layer 0 tangents", poisoned(1e200)), "layer 0 tangents contains values beyond"),
    "negative mass": (put_array("layer 0 masses", poisoned(-1.0)), "layer 0 masses: must be positive"),
    "no mass": (put_array("layer 0 masses", poisoned(0.0)), "layer 0 masses: must be positive"),
    "tangents": (
        put_array("layer 0 tangents", lambda array: 2.0 * array),
        "layer 0 tangents: must be orthonormal",
    ),
    "passes without end": (
        put("layers", 0, "passes", 10**12),
        "layer 0 passes = 1000000000000: must be at most",
    ),
    "strong": (put("layers", 2, "strength", 1.5), r"layer 2 strength = 1\.5: must be at most 1"),
    "names as a mapping": (put("column_names", {"a": 1, "b": 2, "c": 3}), "column_names: must be a list"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_together(tmp_path, kind):
    change, pattern = WRONG[kind]
    metadata, arrays = _metadata(PLAIN), _arrays(PLAIN)
    change(metadata, arrays)
    told = refusal_of(tmp_path, _sealed(metadata, arrays))
    assert re.match(" is not a valid atlas: .*" + pattern, told)


def test_subspaces_that_do_not_fit(tmp_path):
    for name, array in (("origin", np.zeros(9)), ("basis", np.ones((10, 4))), ("basis", np.ones((3, 10)))):
        metadata, arrays = _metadata(WIDE), _arrays(WIDE)
        put_array(f"subspace {name}", array)(metadata, arrays)
        assert re.match(
            r" is not a valid atlas: (subspace|layer 0 centers)",
            refusal_of(tmp_path, _sealed(metadata, arrays)),
        )


def resealed(path, **edit):
    """Rewritten by Arrow after a change, with a right size and checksum."""
    data = rewritten(path, **edit)
    old = HEAD_PATTERN.search(data).group()
    blank = HEAD.format("atlas", 3, len(data), 64 * "0").encode()
    data = data.replace(old, blank)
    sum_ = hashlib.sha256(data).hexdigest()
    return data.replace(blank, HEAD.format("atlas", 3, len(data), sum_).encode())


def test_malformed_tables_with_a_right_checksum(tmp_path):
    path = saved(tmp_path)
    assert resealed(path) == path.read_bytes()

    def with_column(position, column):
        return lambda table: table.set_column(position, table.schema.names[position], column(table))

    def changed_rows(position, change):
        def column(table):
            rows = table.column(position).to_pylist()
            change(rows)
            return pa.array(rows, table.schema.types[position])

        return with_column(position, column)

    tables = {
        "the names of its arrays are not unique": [
            changed_rows(0, lambda rows: rows.__setitem__(1, rows[0])),
            changed_rows(0, lambda rows: rows.__setitem__(1, None)),
        ],
        "the values of 'layer 0 centers' do not fill its shape|its arrays must have 1 to 4 axes": [
            changed_rows(1, lambda rows: rows.__setitem__(0, None)),
            changed_rows(1, lambda rows: rows.__setitem__(0, [])),
            changed_rows(1, lambda rows: rows.__setitem__(0, [70, None])),
            changed_rows(1, lambda rows: rows.__setitem__(0, [-70, -3])),
            changed_rows(1, lambda rows: rows.__setitem__(0, [71, 3])),
            changed_rows(2, lambda rows: rows.__setitem__(0, None)),
            changed_rows(2, lambda rows: rows[0].pop()),
            changed_rows(2, lambda rows: rows[0].__setitem__(3, None)),
        ],
        "its columns or metadata are not those of one": [
            lambda table: table.append_column("more", pa.nulls(table.num_rows)),
            lambda table: table.drop(["shape"]),
            with_column(0, lambda table: table["name"].cast(pa.large_string())),
        ],
        "its metadata lacks|it lacks": [lambda table: table.slice(0, 0)],
    }
    for told, changes in tables.items():
        for change in changes:
            assert re.match(
                f" is not a valid atlas: ({told})",
                refusal_of(tmp_path, resealed(path, change_table=change)),
            )
    for text in (
        lambda text: text.replace(b'"dim":2', b'"dim":NaN'),
        lambda text: text.replace(b'"dim":2', b'"dim":1e999'),
        lambda text: text.replace(b'"dim":2', b'"dim":' + 100_000 * b"["),
        lambda text: text.replace(b'"dim":2', b'"dim":' + 10_000 * b"1"),
        lambda text: text[:-1],
        lambda text: text + b" x",
        lambda text: text.replace(b'"dim":2', b'"dim":"\xff"'),
    ):
        assert re.match(" is not a valid atlas: ", refusal_of(tmp_path, resealed(path, change_text=text)))


def test_damage_below_a_right_checksum_is_no_other_error(tmp_path):
    path = saved(tmp_path, ATLASES["one chart"])
    rng = np.random.default_rng(0)
    data = path.read_bytes()
    head = HEAD_PATTERN.search(data).group()
    blank = head.replace(head[-66:-2], 64 * b"0")
    for _ in range(300):
        changed = bytearray(data.replace(head, blank))
        place = rng.integers(8, len(data))
        changed[place] ^= 1 << rng.integers(8)
        sum_ = hashlib.sha256(changed).hexdigest().encode()
        (tmp_path / "tested").write_bytes(changed.replace(blank, head.replace(head[-66:-2], sum_)))
        with suppress(ValueError):  # what somebody made on purpose may be loaded
            Atlas.load(tmp_path / "tested")


UNSAVABLE = {
    "not finite": (
        {"layers": (dataclasses.replace(PLAIN.layers[0], masses=np.full(70, np.nan)),)},
        "layer 0 masses contains NaN",
    ),
    "no layers": ({"layers": ()}, "no layers"),
    "bandwidth": ({"bandwidth": float("inf")}, "bandwidth = inf"),
    "signal": ({"signal_to_noise": (float("nan"),)}, "signal_to_noise"),
    "names": ({"column_names": ("a",)}, "3 different names"),
    "subspace": ({"subspace": Subspace(np.zeros(10), np.ones((9, 3)))}, "subspace basis has shape"),
}


@pytest.mark.parametrize("kind", UNSAVABLE)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, kind):
    changes, pattern = UNSAVABLE[kind]
    with pytest.raises(ValueError, match=f"^the atlas cannot be saved: .*{pattern}"):
        dataclasses.replace(PLAIN, **changes).save(tmp_path / "map.dpmd")
    assert os.listdir(tmp_path) == []
