"""Files of mixtures: the same numbers after loading, and nothing that is not a mixture is loaded."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from samples import make_mixture

from dpmd_fast import Mixture, Preprocessor
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.file import HEAD_PATTERN
from dpmd_fast.models.mixture_file import _arrays, _metadata, _sealed, write_mixture

NAMES = ("a", "b", "c")
PREPROCESS = Preprocessor((1.0, 2.0, 3.0), (1.0, 0.5, 0.1), (True, False, False), column_names=NAMES)
MIXTURES = {
    "plain": make_mixture(),
    "no names": make_mixture(None),
    "one component": make_mixture(components=1, seed=3),
    "one column": make_mixture(("only",), components=2, seed=4),
    "odd names": make_mixture(('"}', 'x "sha256":"' + 64 * "0" + '",', "\u00e4\n\ud800")),
    "preprocessed": make_mixture(preprocess=PREPROCESS),
}
PLAIN = MIXTURES["plain"]


def saved(tmp_path, mixture=PLAIN, name="model.dpmd"):
    path = tmp_path / name
    mixture.save(path)
    return path


def queries(mixture, rows=200):
    rng = np.random.default_rng(1)
    points = np.abs(rng.normal(size=(rows, mixture.n_columns))) + 0.1
    points[rng.random(points.shape) < 0.2] = np.nan
    return points


def refusal(path):
    with pytest.raises(ValueError, match="^" + re.escape(str(path))) as refused:
        Mixture.load(path)
    assert type(refused.value) is UserValueError
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(str(path))


def refusal_of(tmp_path, data):
    path = tmp_path / "tested"
    path.write_bytes(data)
    return refusal(path)


def assert_same(ours, theirs):
    for field in dataclasses.fields(Mixture):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(one, np.ndarray):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
        else:
            assert repr(one) == repr(other)


@pytest.mark.parametrize("kind", MIXTURES)
def test_everything_comes_back(tmp_path, kind):
    mixture = MIXTURES[kind]
    path = saved(tmp_path, mixture)
    loaded = Mixture.load(path)
    assert type(loaded) is Mixture
    assert_same(loaded, mixture)
    assert loaded.guarantee == mixture.guarantee
    assert loaded.preprocess == mixture.preprocess
    assert loaded.receipt is None
    assert loaded.means.flags.writeable
    assert saved(tmp_path, loaded, "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", ["plain", "preprocessed", "one column"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loaded_mixture_gives_the_same_bits(tmp_path, kind, dtype):
    mixture = MIXTURES[kind]
    loaded = Mixture.load(saved(tmp_path, mixture))
    X = queries(mixture).astype(dtype)
    for ours, theirs in zip(loaded.posterior(X, 0.3), mixture.posterior(X, 0.3), strict=True):
        assert ours.dtype == dtype
        assert ours.tobytes() == theirs.tobytes()
    assert loaded.sample(5, seed=1).tobytes() == mixture.sample(5, seed=1).tobytes()


def test_another_process_gives_the_same_bits_and_loads_no_mechanism(tmp_path):
    code = """
        import sys
        import numpy as np
        from dpmd_fast import load_model
        folder = sys.argv[1]
        mixture = load_model(f"{folder}/model.dpmd")
        np.save(f"{folder}/out.npy", mixture.transform(np.load(f"{folder}/in.npy"), 0.3))
        beginnings = ("dpmd_fast.mech", "dpmd_fast.reference", "dpmd_fast.privacy.noise", "pandas", "sklearn")
        assert not [name for name in sys.modules if name.startswith(beginnings)]
    """
    saved(tmp_path)
    np.save(tmp_path / "in.npy", queries(PLAIN))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npy").tobytes() == PLAIN.transform(queries(PLAIN), 0.3).tobytes()


def test_the_file_is_plain_arrow(tmp_path):
    table = pa.ipc.open_file(saved(tmp_path)).read_all()
    rows = {row["name"]: row for row in table.to_pylist()}
    assert list(rows) == ["weights", "means", "covariances"]
    assert rows["covariances"]["shape"] == [4, 3, 3]
    np.testing.assert_array_equal(rows["means"]["values"], PLAIN.means.ravel())
    noted = json.loads(table.schema.metadata[b"dpmd-fast"])
    # version 2: another set of keys needs another version
    assert set(noted) == {
        *("format", "version", "bytes", "sha256", "package_version", "guarantee", "signal_to_noise"),
        *("spends", "column_names", "shapes"),
    }
    assert noted["format"] == "dpmd-fast mixture"
    assert noted["version"] == 2
    assert noted["bytes"] == os.path.getsize(tmp_path / "model.dpmd")


def test_arrays_in_other_orders_and_types_are_saved_by_value(tmp_path):
    odd = dataclasses.replace(
        PLAIN,
        weights=np.repeat(PLAIN.weights, 2)[::2],
        means=np.asfortranarray(PLAIN.means),
        covariances=PLAIN.covariances.astype(">f8"),
    )
    assert saved(tmp_path, odd).read_bytes() == saved(tmp_path, PLAIN, "plain").read_bytes()


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = saved(tmp_path)

    def fail(*arguments):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_mixture(MIXTURES["one component"], path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["model.dpmd"]
    assert_same(Mixture.load(path), PLAIN)


def put(*path_and_value):
    *keys, last, value = path_and_value

    def change(metadata, arrays):
        for key in keys:
            metadata = metadata[key]
        metadata[last] = value

    return change


def put_array(name, value):
    def change(metadata, arrays):
        arrays[name] = np.array(value(arrays[name]) if callable(value) else value, dtype=np.float64)
        metadata["shapes"][name] = list(arrays[name].shape)

    return change


def drop(key, of=None):
    def change(metadata, arrays):
        del (arrays if of == "arrays" else metadata)[key]
        if of == "arrays":
            metadata["shapes"].pop(key)

    return change


def poisoned(value, *place):
    def change(array):
        array = array.copy()
        array[place] = value
        return array

    return change


def mirrored(value, k, i, j):
    def change(array):
        array = array.copy()
        array[k, i, j] = array[k, j, i] = value
        return array

    return change


# sealed with a right checksum: the work of somebody, not of chance
WRONG = {
    "no spends": (drop("spends"), "its metadata lacks 'spends'"),
    "another key": (put("code", "import os"), "unexpected 'code'"),
    "names": (put("column_names", ["a", "b"]), "3 different names"),
    "same names": (put("column_names", ["a", "b", "b"]), "3 different names"),
    "numbers as names": (put("column_names", [1, 2, 3]), "column_names"),
    "names as a mapping": (put("column_names", {"a": 1}), "column_names: must be a list"),
    "spends, too much": (put("spends", [["round 1", 1.0]]), "more than mu"),
    "spends, negative": (put("spends", [["round 1", -1.0]]), "spends"),
    "spends, no text": (put("spends", [[1, 0.0]]), "spends"),
    "signals": (put("signal_to_noise", [1.0]), r"signal_to_noise has 1 number\(s\): must have 4"),
    "signals, negative": (put("signal_to_noise", [-1.0] * 4), "signal_to_noise"),
    "signals, texts": (put("signal_to_noise", ["1"] * 4), "signal_to_noise"),
    "guarantee": (put("guarantee", None), "malformed"),
    "guarantee, mu": (put("guarantee", "mu", 3.0), r"mu = 3\.0"),
    "guarantee, key": (put("guarantee", "seed", 1), "its guarantee has the unexpected 'seed'"),
    "preprocess": (put("preprocess", 3), "its preprocessing: "),
    "preprocess, null": (put("preprocess", None), "its preprocessing: "),
    "preprocess, columns": (
        put("preprocess", Preprocessor([1.0], [1.0]).to_dict()),
        "preprocess has 1 columns: must have 3",
    ),
    "preprocess, names": (
        put("preprocess", dataclasses.replace(PREPROCESS, column_names=("x", "y", "z")).to_dict()),
        "preprocess has other column names than the mixture",
    ),
    "shapes": (put("shapes", "weights", [3]), "weights has shape"),
    "no weights": (drop("weights", of="arrays"), "it lacks 'weights'"),
    "another array": (put_array("extra", np.ones(3)), "it has the unexpected 'extra'"),
    "weights, flat": (put_array("weights", np.ones((2, 2)) / 4), "weights has shape"),
    "weights, zero": (put_array("weights", poisoned(0.0, 0)), "weights: must be positive"),
    "weights, negative": (put_array("weights", [0.5, 0.5, 0.5, -0.5]), "weights: must be positive"),
    "weights, sum": (put_array("weights", lambda array: 1.001 * array), "weights: must add up to 1"),
    "weights, NaN": (put_array("weights", poisoned(np.nan, 0)), "weights contains NaN"),
    "means, flat": (put_array("means", np.ravel), r"means has 1 dimension\(s\)"),
    "means, infinite": (put_array("means", poisoned(np.inf, 0, 0)), "means contains NaN or inf"),
    "means, huge": (put_array("means", poisoned(1e101, 0, 0)), "means contains values beyond"),
    "fewer columns": (put_array("means", lambda array: array[:, :2]), "covariances has shape"),
    "fewer components": (put_array("means", lambda array: array[:2]), "weights has shape"),
    "covariances, other shape": (
        put_array("covariances", lambda array: array[:, :2]),
        r"covariances has shape \(4, 2, 3\)",
    ),
    "not symmetric": (
        put_array("covariances", poisoned(0.01, 1, 0, 2)),
        "covariances: must be symmetric, and that of component 1 is not",
    ),
    "not definite": (
        put_array("covariances", mirrored(5.0, 2, 0, 1)),
        "covariances: must be positive definite, and that of component 2 is not",
    ),
    "singular": (put_array("covariances", np.ones((4, 3, 3))), "covariances: must be positive definite"),
    "no variance": (put_array("covariances", np.zeros((4, 3, 3))), "covariances: all variances"),
    "negative variance": (put_array("covariances", lambda array: -array), "covariances: all variances"),
    "subnormal": (put_array("covariances", lambda array: 1e-310 * array), "covariances: all variances"),
    "covariances, NaN": (put_array("covariances", poisoned(np.nan, 0, 1, 1)), "covariances contains NaN"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_together(tmp_path, kind):
    change, pattern = WRONG[kind]
    metadata, arrays = json.loads(json.dumps(_metadata(PLAIN))), dict(_arrays(PLAIN))
    change(metadata, arrays)
    told = refusal_of(tmp_path, _sealed(metadata, arrays))
    assert re.match(" is not a valid mixture: .*" + pattern, told), told


@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e48])
def test_columns_of_any_scale(tmp_path, scale):
    scales = np.array([scale, 1.0, 1.0])
    covariances = PLAIN.covariances * scales[:, None] * scales
    mixture = dataclasses.replace(PLAIN, means=PLAIN.means * scales, covariances=covariances)
    assert_same(Mixture.load(saved(tmp_path, mixture)), mixture)


def test_covariances_that_are_symmetric_but_for_rounding(tmp_path):
    covariances = PLAIN.covariances.copy()
    covariances[0, 0, 1] = np.nextafter(covariances[0, 1, 0], np.inf)
    mixture = dataclasses.replace(PLAIN, covariances=covariances)
    assert_same(Mixture.load(saved(tmp_path, mixture)), mixture)


UNSAVABLE = {
    "weights": ({"weights": np.full(4, 0.3)}, "weights: must add up to 1"),
    "means": ({"means": np.full((4, 3), np.nan)}, "means contains NaN"),
    "covariances": ({"covariances": -PLAIN.covariances}, "covariances: all variances"),
    "names": ({"column_names": ("a",)}, "3 different names"),
    "spends": ({"spends": (("all", 100.0),)}, "more than mu"),
}


@pytest.mark.parametrize("kind", UNSAVABLE)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, kind):
    changes, pattern = UNSAVABLE[kind]
    with pytest.raises(ValueError, match=f"^the mixture cannot be saved: .*{pattern}"):
        dataclasses.replace(PLAIN, **changes).save(tmp_path / "model.dpmd")
    assert os.listdir(tmp_path) == []


def test_damage_below_a_right_checksum_is_no_other_error(tmp_path):
    data = saved(tmp_path, MIXTURES["one column"]).read_bytes()
    rng = np.random.default_rng(0)
    head = HEAD_PATTERN.search(data).group()
    blank = head.replace(head[-66:-2], 64 * b"0")
    for _ in range(300):
        changed = bytearray(data.replace(head, blank))
        place = rng.integers(8, len(data))
        changed[place] ^= 1 << rng.integers(8)
        sum_ = hashlib.sha256(changed).hexdigest().encode()
        (tmp_path / "tested").write_bytes(changed.replace(blank, head.replace(head[-66:-2], sum_)))
        with suppress(ValueError):  # what somebody made on purpose may be loaded
            Mixture.load(tmp_path / "tested")
