"""Kernels as plain machine code: what `dpmd-fast transform` runs without importing Numba."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmd_fast import Budget, release_atlas
from dpmd_fast.kernels import late, saved
from dpmd_fast.kernels.charts import WIDE
from dpmd_fast.kernels.search.index import _medians
from dpmd_fast.kernels.signatures import words_of

ROOT = Path(__file__).resolve().parents[2]
# Transforms a file and prints whether that took Numba, and the digest of the result.
TRANSFORM = """
import hashlib, sys
from dpmd_fast.cli import main
model, source, target = sys.argv[1:]
assert main(["--quiet", "transform", "--model", model, source, "-o", target, "--force"]) == 0
print("numba" in sys.modules, hashlib.sha256(open(target, "rb").read()).hexdigest())
"""


def wide(atlas, layer):
    """Return a layer of a subspace as one of the space around it."""
    basis = atlas.subspace.basis
    return replace(
        layer,
        centers=atlas.subspace.up(layer.centers),
        tangents=np.einsum("dq,kqe->kde", basis, layer.tangents),
        offsets=None if layer.offsets is None else layer.offsets @ basis.T,
        slopes=None if layer.slopes is None else layer.slopes @ basis.T,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Atlases of few and of many columns, and queries for both."""
    folder = tmp_path_factory.mktemp("saved")
    rng = np.random.default_rng(3)
    for name, columns in (("few", 2), ("many", WIDE + 2)):
        angles = rng.uniform(0.0, 6.28, 3_300)
        points = np.zeros((3_300, columns))
        points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
        points += rng.normal(0.0, 0.02, points.shape)
        budget = Budget(30.0, 1e-6)
        atlas = release_atlas(points[300:], points[:300], dim=1, budget=budget, accept_risk=True)
        if columns >= WIDE:  # the same charts without a subspace, in which there would be few columns again
            atlas = replace(atlas, layers=tuple(wide(atlas, layer) for layer in atlas.layers), subspace=None)
        atlas.save(folder / f"{name}.dpmd")
        np.save(folder / f"{name}.npy", points[:300])
        np.save(folder / f"{name}-clean.npy", atlas.transform(points[:300]))
    return folder


def transform(files, name, cache, **settings):
    """Return whether Numba was imported, and the digest of the points."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "DPMD_"))}
    environment = {**kept, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **settings}
    arguments = [str(files / f"{name}.dpmd"), str(files / f"{name}.npy"), str(cache / "out.npy")]
    done = subprocess.run(
        [sys.executable, "-c", TRANSFORM, *arguments],
        env=environment,
        cwd=cache,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    imported, digest = done.stdout.split()[-2:]
    return imported == "True", digest


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def cache(files, tmp_path_factory):
    """A folder in which the kernels of both transforms have been compiled."""
    if late._minor_version() not in late.TESTED_VERSIONS:
        pytest.skip("Numba is imported at once")
    folder = tmp_path_factory.mktemp("cache")
    for name in ("few", "many"):  # other processes compile, this one needs no Numba even then
        assert transform(files, name, folder) == (False, digest_of(files / f"{name}-clean.npy"))
    return folder


@pytest.mark.parametrize("name", ["few", "many"])
def test_a_transform_needs_no_numba_and_gives_the_same_bits(files, cache, name):
    assert transform(files, name, cache) == (False, digest_of(files / f"{name}-clean.npy"))


@pytest.mark.parametrize(
    "settings", [{"NUMBA_OPT": "3"}, {"DPMD_FAST_CACHE": "0"}, {"NUMBA_DISABLE_JIT": "1"}]
)
def test_settings_that_are_for_numba_are_left_to_it(files, cache, settings):
    assert transform(files, "few", cache, **settings)[0]


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])


def damage_the_name(path):
    """Let the file name another function of the same code: the wrapper that Python calls."""
    whole = path.read_bytes()
    at = whole.index(b'"symbol": "_ZN') + len(b'"symbol": "_ZN')
    path.write_bytes(whole[:at] + b"7cpython" + whole[at:])


def rewrite(path, change):
    """Write other words about the code, with the digest that they need."""
    _, line, code = path.read_bytes().split(b"\n", 2)
    about = json.loads(line)
    change(about)
    path.write_bytes(saved._sealed(json.dumps(about).encode() + b"\n" + code))


def call_another(path):
    """Let the code need a function that is nowhere."""
    rewrite(path, lambda about: about["calls"].append("a_function_that_is_nowhere"))


def date_back(path):
    """Let the code be that of other sources."""
    rewrite(path, lambda about: about.update(key=hashlib.sha256(b"older").hexdigest()))


def replace_by_a_link(path):
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def open_to_all(path):
    path.chmod(0o666)


CHANGES = [cut, flip, damage_the_name, call_another, date_back, open_to_all, replace_by_a_link, Path.unlink]


@pytest.mark.parametrize("change", CHANGES)
def test_code_that_is_not_as_it_was_written_is_not_run(files, cache, change):
    path = cache / "dpmd-fast" / "narrow_charts.move_narrow.code"
    before, mode = path.read_bytes(), path.stat().st_mode
    change(path)
    try:
        assert transform(files, "few", cache) == (True, digest_of(files / "few-clean.npy"))
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)
        path.chmod(mode & 0o777)
    assert not transform(files, "few", cache)[0]


# Without Numba, then with it, in one process: what stand-ins stood for must be replaced everywhere.
ARRIVE = """
import sys
import numpy as np
from dpmd_fast.kernels import late
late.avoid()
from dpmd_fast import load_model
atlas, points = load_model(sys.argv[1]), np.load(sys.argv[2])
first = atlas.transform(points)
assert "numba" not in sys.modules
from dpmd_fast.kernels import narrow_charts
assert isinstance(narrow_charts.move_narrow, late.StandIn)
before = narrow_charts.move_narrow
late.arrive()
assert "numba" in sys.modules and not isinstance(narrow_charts.move_narrow, late.StandIn)
left = [
    f"{name}.{key}" for name, module in list(sys.modules.items()) if name.startswith("dpmd_fast")
    for key, value in vars(module).items() if isinstance(value, late.StandIn)
]
assert not left, left
again = atlas.transform(points)
assert np.array_equal(first, again)
from dpmd_fast import ManifoldDenoiser
ManifoldDenoiser(0.5, 1).fit(points).transform(points[:5])  # compiles
assert before.py_func is narrow_charts.move_narrow.py_func
"""


def test_numba_takes_over_when_it_is_needed(files, cache):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "DPMD_"))}
    environment = {**kept, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ARRIVE, str(files / "few.dpmd"), str(files / "few.npy")]
    subprocess.run(command, env=environment, cwd=cache, check=True)


# Calls a kernel with arguments of its types and of others; prints how often it was compiled.
OTHER_TYPES = """
import numpy as np
import numba
from dpmd_fast.kernels import saved, units
flags, numbers = np.zeros(2, np.bool_), (np.zeros(2), np.ones(2), 8.0, np.empty((0, 2)))
def call(X):
    units.to_units(X, flags, *numbers, np.empty((3, 2)), np.empty(3, np.bool_), np.empty(2, np.bool_))
    return open(saved._trusted_path("units.to_units"), "rb").read()
usual = call(np.ones((3, 2)))
assert call(np.ones((3, 2), np.float32)) == usual
print(len(units.to_units.signatures))
"""


def test_code_for_other_arguments_is_not_kept(cache, tmp_path):
    """What one process calls with float32 must not change what others run."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "DPMD_"))}
    environment = {**kept, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OTHER_TYPES]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split() == ["2"]


def test_arguments_of_other_types_do_not_fit():
    words, numbers = ("f2", "i", "f", "SIZES"), []
    good = (np.zeros((3, 2)), 4, 0.5, (1, 2, 3.0, 4.0))
    assert saved._flatten(words, good, numbers)
    assert numbers[2:4] + numbers[5:] == [6, 8, 3, 2, 16, 8, 4, 0.5, 1, 2, 3.0, 4.0]
    frozen = np.zeros((3, 2))
    frozen.flags.writeable = False
    others = [
        (good[0].astype(np.float32), *good[1:]),
        (np.zeros((2, 3)).T, *good[1:]),
        (np.zeros(6), *good[1:]),
        (frozen, *good[1:]),
        (good[0], 4.0, *good[2:]),
        (good[0], True, *good[2:]),
        (good[0], 2**63, *good[2:]),
        (*good[:2], 1, good[3]),
        (*good[:3], (1, 2, 3.0)),
        (*good[:3], [1, 2, 3.0, 4.0]),
        good[:3],
    ]
    for other in others:
        assert not saved._flatten(words, other, [])


def test_numbers_that_stand_for_an_argument_have_its_kinds():
    assert [saved._flat(word) for word in ("f", "i", "f1", "SIZES")] == ["f", "i", "i" * 7, "iiff"]
    assert len("".join(map(saved._flat, words_of("narrow_charts.move_narrow")))) > 100


def test_nothing_is_late_once_numba_is_there():
    late.begin()
    assert not late.is_active()


@pytest.mark.kernels
@pytest.mark.parametrize("n", [1, 2, 3, 10, 4097])
def test_medians_are_numpys(n):
    sample = np.random.default_rng(n).normal(size=(n, 3))
    np.testing.assert_array_equal(_medians(sample), np.median(sample, axis=0))
    sample[n // 2, 1] = np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(_medians(sample), np.median(sample, axis=0))
