"""Files appear complete or not at all."""

import os
import stat

import pytest

from dpmd_fast.atomic import atomic_write, check_target, file_identity, partial_file, sync_folder
from dpmd_fast.errors import UserError


def write(target, text, **options):
    with atomic_write(target, **options) as partial:
        with open(partial, "w") as file:
            file.write(text)
        return os.path.basename(partial)


@pytest.mark.parametrize("kind", [str, os.fsencode, lambda path: path])
def test_a_file_appears_when_the_block_ends(tmp_path, kind):
    target = tmp_path / "out"
    with atomic_write(kind(target)) as partial:
        assert os.path.dirname(partial) == str(tmp_path)
        assert os.listdir(tmp_path) == [os.path.basename(partial)]
        with open(partial, "w") as file:
            file.write("new")
        assert not target.exists()
    assert os.listdir(tmp_path) == ["out"]
    assert target.read_text() == "new"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_names_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {write("out", "1"), write("out", "2", overwrite=True)}
    assert len(names) == 2
    assert (tmp_path / "out").read_text() == "2"


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), OSError(28, "No space left on device")]
)
def test_a_failure_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "out"
    target.write_text("old")

    def fail():
        with atomic_write(target, overwrite=True) as partial:
            with open(partial, "w") as file:
                file.write("half")
            raise error

    with pytest.raises(type(error)) as raised:
        fail()
    if isinstance(error, OSError):
        assert str(raised.value) == f"{target} could not be written: No space left on device"
        assert isinstance(raised.value, UserError)
    assert os.listdir(tmp_path) == ["out"]
    assert target.read_text() == "old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_of_the_last_steps(tmp_path, monkeypatch, step):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="could not be written: Input/output error"):
        write(tmp_path / "out", "new", overwrite=True)
    assert os.listdir(tmp_path) == []


def test_nothing_is_replaced_unless_asked(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    with pytest.raises(
        FileExistsError, match="exists: choose another name, or pass overwrite=True"
    ) as raised:
        write(target, "new")
    assert raised.value.command_line_text.endswith("exists: choose another name, or pass --force")
    target.unlink()
    with pytest.raises(FileExistsError, match="another file has got that name"), atomic_write(target):
        target.write_text("theirs")
    assert target.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    write(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "new"
    (tmp_path / "out").unlink()
    with pytest.raises(FileExistsError, match="exists"), atomic_write(tmp_path / "out"):
        (tmp_path / "out").write_text("theirs")
    assert (tmp_path / "out").read_text() == "theirs"


def test_a_rehearsal_writes_nothing_that_stays(tmp_path):
    target = tmp_path / "out"
    write(target, "new", rehearse=True)
    assert os.listdir(tmp_path) == []
    target.write_text("old")
    write(target, "new", overwrite=True, rehearse=True)
    assert target.read_text() == "old"


@pytest.mark.parametrize("call", [check_target, lambda target: write(target, "new")])
def test_names_that_cannot_be_written(tmp_path, call):
    (tmp_path / "folder").mkdir()
    for name, kind, told in (
        ("nowhere/out", FileNotFoundError, "there is no folder .*nowhere"),
        ("folder", IsADirectoryError, "is a directory"),
        ("folder/", ValueError, "must be the name of a file"),
        ("x" * 300, OSError, "File name too long"),
    ):
        with pytest.raises(kind, match=told) as raised:
            call(os.path.join(tmp_path, name))
        assert isinstance(raised.value, UserError)
    with pytest.raises(OSError, match="not a regular file"):
        check_target("/dev/null", overwrite=True)
    assert os.listdir(tmp_path) == ["folder"]


def test_partial_files(tmp_path):
    with partial_file(str(tmp_path / "out"), mode=0o600) as partial:
        assert os.path.getsize(partial) == 0
        assert stat.S_IMODE(os.stat(partial).st_mode) == 0o600
    assert os.listdir(tmp_path) == []
    with partial_file(str(tmp_path / "out")) as partial:
        os.unlink(partial)  # whoever uses it may move it away


def test_identity(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("a")
    os.symlink("a", "link")
    os.link("a", "hard")
    (tmp_path / "b").write_text("a")
    assert len({file_identity(name) for name in ("a", "link", "hard", tmp_path / "a")}) == 1
    assert file_identity("a") != file_identity("b")
    assert file_identity("c") is file_identity(None) is file_identity("\0") is None
    sync_folder("")
    sync_folder("nowhere")
