"""Compiled kernels are code: they are loaded only from folders and files that nobody else could write."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import warnings
from pathlib import Path

import numba
import pytest

from dpmd_fast.kernels import cache
from dpmd_fast.kernels.cache import is_trusted_file, is_trusted_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such modes")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)
STRANGER = 54321
KERNEL = """
from dpmd_fast.kernels.jit import kernel

@kernel
def plus(x):
    return x + 1
"""


class Planted:
    """A pickle that leaves a file behind when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


class Machine:
    """A folder for compiled kernels, a home, and a program with one small kernel."""

    def __init__(self, folder, monkeypatch):
        self.shared, self.home, self.trace = folder / "shared", folder / "home", folder / "planted"
        self.shared.mkdir(0o700)
        self.home.mkdir(0o700)
        self.program = folder / "program.py"
        self.program.write_text(KERNEL)
        self._patch = monkeypatch
        for name, value in {"HOME": str(self.home), "XDG_CACHE_HOME": ""}.items():
            monkeypatch.setenv(name, value)

    def run(self, folder=None):
        """Load the program and run its kernel as a new process would; return cache hits and warnings."""
        self._patch.setattr(numba.config, "CACHE_DIR", str(folder or self.shared))
        self._patch.setattr(cache, "_told", False)
        self._patch.setenv("DPMD_FAST_CACHE", "1")
        cache._trusted_instead_of.cache_clear()
        spec = importlib.util.spec_from_file_location("program", self.program)
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            spec.loader.exec_module(module)
            assert module.plus(1) == 2
        return sum(module.plus.stats.cache_hits.values()), "; ".join(str(one.message) for one in told)

    def plant(self, kind="nbi"):
        found = list(self.shared.rglob(f"*.{kind}"))
        assert found
        for path in found:
            path.write_bytes(pickle.dumps(Planted(self.trace)))
        return found

    def kept_at_home(self):
        return len(list(self.home.rglob("*.nbi")))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    assert made.run() == (0, "")
    assert made.run() == (1, "")
    return made


def test_a_planted_file_would_run(machine):
    """What is at stake, in a folder of one's own: without this the other tests would show nothing."""
    machine.plant()
    machine.run()
    assert machine.trace.exists()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(machine, mode):
    """Failed before: the planted file ran, silently."""
    machine.plant()
    folder = next(machine.shared.rglob("*.nbi")).parent
    folder.chmod(mode)
    hits, told = machine.run()
    assert not machine.trace.exists()
    assert hits == 0
    assert told.count("; ") == 1  # one word, with a semicolon of its own
    assert "can be written by other users" in told
    assert machine.kept_at_home() == 1
    assert machine.run()[0] == 1  # from the private folder
    private = next(machine.home.rglob("*.nbi")).parent
    assert private.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    machine.run()
    assert machine.trace.exists()  # the folder was in the way, and nothing else


def test_a_parent_that_others_may_write_is_not_used(machine):
    machine.plant()
    machine.shared.chmod(0o777)
    assert "can be written by other users" in machine.run()[1]
    assert not machine.trace.exists()


def test_a_link_is_followed_before_it_is_judged(machine, tmp_path):
    machine.plant()
    machine.shared.chmod(0o777)
    (tmp_path / "link").symlink_to(machine.shared)
    assert "can be written by other users" in machine.run(tmp_path / "link")[1]
    assert not machine.trace.exists()


def test_a_link_that_is_turned_after_the_look_is_not_followed(tmp_path, monkeypatch):
    """Failed before: the path was resolved once for the look and once more for use."""
    safe, shared, link = tmp_path / "safe", tmp_path / "shared", tmp_path / "link"
    safe.mkdir(0o700)
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(safe)
    resolve = os.path.realpath

    def then_turned(path):
        found = resolve(path)
        link.unlink()
        link.symlink_to(shared)
        return found

    monkeypatch.setattr(os.path, "realpath", then_turned)
    cache._trusted_instead_of.cache_clear()
    assert cache._trusted_instead_of(str(link)) == str(safe)


def test_a_link_that_comes_into_a_resolved_path_does_not_pass(tmp_path, monkeypatch):
    """Failed before: others put a link to a folder of ours in the place of theirs, for as long as we look."""
    (tmp_path / "ours" / "kernels").mkdir(parents=True)
    (tmp_path / "theirs").symlink_to(tmp_path / "ours")
    assert is_trusted_folder(str(tmp_path / "theirs" / "kernels"))
    monkeypatch.setattr(os.path, "realpath", lambda path: path)  # resolved before the link was there
    assert not is_trusted_folder(str(tmp_path / "theirs" / "kernels"))
    assert is_trusted_folder(str(tmp_path / "ours" / "kernels"))


def test_a_private_folder_may_be_a_link_of_the_users_own(machine, tmp_path):
    machine.shared.chmod(0o777)
    (tmp_path / "disk").mkdir(0o700)
    (machine.home / ".cache").symlink_to(tmp_path / "disk")
    assert "can be written by other users" in machine.run()[1]
    assert len(list((tmp_path / "disk").rglob("*.nbi"))) == 1
    assert machine.run()[0] == 1


def test_the_advice_is_sound(machine):
    """Failed before: it was to chmod alone, and what others had left there was used from then on."""
    machine.plant()
    folder = next(machine.shared.rglob("*.nbi")).parent
    machine.shared.chmod(0o777)
    told = machine.run()[1]
    assert told.startswith(f"{machine.shared} can be written")  # the one to change, not the one below it
    assert f"first let nobody but you write {machine.shared} (chmod go-w), and then delete {folder}" in told
    machine.shared.chmod(0o755)
    shutil.rmtree(folder)
    assert machine.run() == (0, "")
    assert machine.run() == (1, "")
    assert list(machine.shared.rglob("*.nbi"))
    assert not machine.trace.exists()


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_a_file_of_others_is_not_read(machine, kind, how):
    """The folder is ours now; what lies in it may be from before."""
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    for path in machine.plant(kind):
        os.chown(path, STRANGER, STRANGER) if how == "owner" else path.chmod(0o666)
    hits, told = machine.run()
    assert not machine.trace.exists()
    assert (hits, told) == (0, "")
    assert machine.run() == (1, "")  # compiled again, and written over


@as_root
def test_a_folder_of_another_user_is_not_used(machine):
    machine.plant()
    os.chown(next(machine.shared.rglob("*.nbi")).parent, STRANGER, STRANGER)
    assert "can be written by other users" in machine.run()[1]
    assert not machine.trace.exists()


def test_without_a_safe_folder_there_is_no_cache(machine):
    machine.plant()
    machine.shared.chmod(0o777)
    machine.home.chmod(0o777)
    hits, told = machine.run()
    assert hits == 0
    assert "there is no folder for compiled kernels that this user, and nobody else, can write" in told
    assert not machine.trace.exists()


def test_files_are_written_for_the_user_alone_whatever_the_umask(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    before = os.umask(0)
    try:
        made.run()
    finally:
        os.umask(before)
    assert made.kept_at_home() == 1  # Numba made its folder under this umask
    for path in made.home.rglob("*.nb?"):
        assert path.stat().st_mode & 0o022 == 0


def test_what_is_trusted(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert is_trusted_folder(str(folder))
    assert is_trusted_folder("/usr")
    assert not is_trusted_folder("/tmp")  # sticky: good above a folder of ours, not as one
    assert not is_trusted_folder(str(tmp_path / "none"))
    assert is_trusted_file(str(folder / "none"))
    (folder / "file").touch(0o644)
    assert is_trusted_file(str(folder / "file"))
    (folder / "link").symlink_to(folder / "file")
    assert not is_trusted_file(str(folder / "link"))
    (folder / "file").chmod(0o664)
    assert not is_trusted_file(str(folder / "file"))
