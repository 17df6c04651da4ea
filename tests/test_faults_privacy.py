"""Faults of ledgers, clocks, folders, entropy and memory: no release without a debit, and none in vain."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys

import numpy as np
import pytest
from test_faults import FIT, PAID, Y, Z, files, history, script  # noqa: F401

import dpmd_fast
from dpmd_fast import Budget, Ledger, ManifoldDenoiser, release_atlas, release_moments
from dpmd_fast.cli import main
from dpmd_fast.kernels.noise import exact_normal, normal
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums import features, moments, residuals
from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.ledger import store as ledger_store
from dpmd_fast.privacy.noise import noisy_projectors, rounded_normals

BUDGET = Budget(1.0, 1e-6)
# Root may write everything; without this capability it is held by permissions, as others are.
HELD = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def held(code, *arguments, cwd=None, **environment):
    """What a process that permissions hold prints, as JSON."""
    if HELD and shutil.which(HELD[0]) is None:
        pytest.skip("runs as root, and setpriv is not there")
    done = script(code, *arguments, within=HELD, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def pay(ledger="budget.db"):
    return release_moments(Y, Z[:5], bandwidth=0.6, budget=BUDGET, ledger=ledger, dataset="clinic")


# --- the ledger


@pytest.fixture
def unread(monkeypatch):
    """Fails if a reference is summed."""

    def fail(*_, **__):
        raise AssertionError("the reference was read")

    monkeypatch.setattr("dpmd_fast.reference.tasks.SumTask.on", fail)


def before_the_debit(monkeypatch, what):
    """Let something happen when all has been checked, just before the debit."""
    spend = Ledger.spend

    def spending(self, *arguments, **options):
        what()
        return spend(self, *arguments, **options)

    monkeypatch.setattr(Ledger, "spend", spending)


def test_a_ledger_that_is_locked_for_long_releases_nothing(here, monkeypatch, unread):
    holder = sqlite3.connect("budget.db", isolation_level=None)
    before_the_debit(monkeypatch, lambda: holder.execute("BEGIN EXCLUSIVE"))
    with pytest.raises(TimeoutError, match=r"budget\.db is locked: .* nothing was written to it$"):
        pay(Ledger("budget.db", timeout=0.2))
    holder.execute("ROLLBACK")
    holder.close()
    assert history(here) == ()


def test_a_ledger_that_is_locked_when_the_file_is_noted(here, monkeypatch, capsys):
    connect, record = ledger_store._connect, Ledger.record_file
    monkeypatch.setattr(ledger_store, "_connect", lambda path, _: connect(path, 0.2))
    holder = sqlite3.connect("budget.db", isolation_level=None)

    def recording(*arguments):
        holder.execute("BEGIN EXCLUSIVE")
        record(*arguments)

    monkeypatch.setattr(Ledger, "record_file", recording)
    assert main(f"{FIT} --reference reference.parquet {PAID} -o new.dpmd".split()) == 2
    holder.close()
    told = r"new.dpmd is written, but the ledger could not note it for spend 1: \S+ is locked: .* to it\n"
    assert re.search(told, capsys.readouterr().err)
    assert dpmd_fast.Atlas.load("new.dpmd").dim == 1
    assert len(history(here)) == 1


def test_a_ledger_that_was_deleted_is_not_made_anew(here, monkeypatch, unread):
    ledger = Ledger("budget.db")
    ledger.spend("clinic", 0.01, "first")
    before_the_debit(monkeypatch, lambda: os.unlink("budget.db"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="must be a ledger"):
            pay()
    assert not os.path.exists("budget.db")


def test_ledgers_that_may_not_be_written(here):
    code = """
        import json, os
        import numpy as np
        from dpmd_fast import Budget, Ledger, release_moments
        os.makedirs("folder")
        Ledger("folder/l.db").create("clinic", 3.0, 1e-6)
        told = []
        for path, file, folder in (("folder/l.db", 0o400, 0o700), ("folder/l.db", 0o600, 0o500)):
            os.chmod(path, file)
            os.chmod("folder", folder)
            try:
                release_moments(np.ones((99, 2)), np.zeros((1, 2)), bandwidth=3.0, budget=Budget(1.0, 1e-6),
                                ledger=path, dataset="clinic")
            except OSError as error:
                told.append([type(error).__name__, str(error)])
            told.append(len(Ledger(path).history("clinic")))
        try:
            Ledger("folder/new.db").create("clinic", 3.0, 1e-6)
        except OSError as error:
            told.append([type(error).__name__, str(error)])
        os.chmod("folder", 0o700)
        print(json.dumps([*told, sorted(os.listdir("folder"))]))
    """
    file, none, folder, still_none, new, left = held(code)
    assert none == still_none == 0
    assert file[0] == folder[0] == new[0] == "UserPermissionError"
    for text in (file[1], folder[1]):
        assert text.endswith("l.db cannot be written: its permissions or those of its folder forbid it")
    assert new[1].endswith("folder/new.db cannot be created: Permission denied")
    assert left == ["l.db"]


SHIM = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdarg.h>
    #include <stdlib.h>
    #include <time.h>

    static int refuse(int command) {
        return getenv("NO_LOCKS") && (command == F_SETLK || command == F_SETLKW || command == F_GETLK);
    }

    #define GUARDED(name) int name(int file, int command, ...) { \\
        va_list given; \\
        va_start(given, command); \\
        void *argument = va_arg(given, void *); \\
        va_end(given); \\
        if (refuse(command)) { errno = ENOLCK; return -1; } \\
        int (*next)(int, int, ...) = dlsym(RTLD_NEXT, #name); \\
        return next(file, command, argument); }
    GUARDED(fcntl64)
    GUARDED(fcntl)

    int clock_gettime(clockid_t clock, struct timespec *now) {
        static long days = 0;
        int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
        int answer = next(clock, now);
        if (clock == CLOCK_REALTIME && getenv("BACKWARDS")) now->tv_sec -= 86400 * ++days;
        return answer;
    }
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """A library that stands between a process and its system: locks that fail, a clock that runs back."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    line = ["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"]
    subprocess.run(line, check=True)
    return str(folder / "shim.so")


SPENDING = """
    import json, sys, time
    from dpmd_fast.privacy.ledger.ledger import Ledger
    ledger, told = Ledger("budget.db", timeout=0.2), []
    before = time.time()
    for k in range(3):
        try:
            told.append(ledger.spend("clinic", 0.01, f"{sys.argv[1]} {k}").time.isoformat())
        except OSError as error:
            told.append(str(error))
    print(json.dumps([told, time.time() < before]))
"""


def test_a_file_system_without_locks_is_refused(here, shim):
    done = script(SPENDING, "none", LD_PRELOAD=shim, NO_LOCKS="1")
    assert done.returncode == 0, done.stderr
    told, _ = json.loads(done.stdout)
    assert len(told) == 3
    for text in told:
        assert re.search(
            r"budget\.db is locked: its file system has no locks, or .* nothing was written", text
        )
    assert history(here) == ()


def test_a_clock_that_runs_back(here, shim):
    total = Ledger("budget.db").remaining("clinic")
    for name in ("first", "second"):
        done = script(SPENDING, name, LD_PRELOAD=shim, BACKWARDS="1")
        assert done.returncode == 0, done.stderr
        times, back = json.loads(done.stdout)
        assert back
        assert times == sorted(times, reverse=True)
    spends = history(here)
    assert [spend.what for spend in spends] == [
        f"{name} {k}" for name in ("first", "second") for k in range(3)
    ]
    assert [spend.id for spend in spends] == [1, 2, 3, 4, 5, 6]
    assert spends[0].time > spends[1].time > spends[2].time
    assert Ledger("budget.db").remaining("clinic") == pytest.approx(total - 0.06, rel=1e-12)


# --- the folder for compiled kernels

DRAW = """
    import json, os, warnings
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        import dpmd_fast
        from dpmd_fast.privacy.entropy import open_source
        from dpmd_fast.privacy.noise import rounded_normals
    values = rounded_normals(open_source(1), 5, 2**20, 1).tolist()
    cached = os.environ.get("DPMD_FAST_CACHE") != "0"
    print(json.dumps([cached, [str(one.message) for one in told], values, dpmd_fast.__file__]))
"""


@pytest.fixture(scope="module")
def read_only(tmp_path_factory):
    """The package, where nothing can be written."""
    folder = tmp_path_factory.mktemp("installed")
    source = os.path.dirname(dpmd_fast.__file__)
    shutil.copytree(source, folder / "dpmd_fast", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "home").mkdir()
    for place, _, _ in os.walk(folder):
        os.chmod(place, stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    for place, _, _ in os.walk(folder):
        os.chmod(place, stat.S_IRWXU)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param("no home", marks=pytest.mark.slow),
        "home that cannot be written",
        pytest.param("folder that is not there yet", marks=pytest.mark.slow),
    ],
)
def test_kernels_work_where_nothing_can_be_kept(read_only, tmp_path, monkeypatch, given):
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings = {"PYTHONPATH": str(read_only), "PYTHONDONTWRITEBYTECODE": "1"}
    expected = rounded_normals(open_source(1), 5, 2**20, 1).tolist()
    if given == "folder that is not there yet":
        settings |= {"NUMBA_CACHE_DIR": str(tmp_path / "new" / "folder")}
    elif given == "no home":
        settings |= {"NUMBA_CACHE_DIR": str(read_only / "cache"), "XDG_CACHE_HOME": str(read_only / "home")}
    else:
        settings |= {"HOME": str(read_only / "home"), "NUMBA_CACHE_DIR": str(read_only)}
    cached, told, values, file = held(DRAW, cwd=tmp_path, **settings)
    assert file.startswith(str(read_only))
    assert values == expected
    if given == "folder that is not there yet":
        assert (cached, told) == (True, [])
        assert any((tmp_path / "new" / "folder").rglob("*.nbi"))
    else:
        assert not cached
        assert len(told) == 1
        assert "set NUMBA_CACHE_DIR to such a folder" in told[0]


# --- entropy and memory


def test_no_key_no_debit(here, monkeypatch):
    def fail(count):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "urandom", fail)
    paid = {"budget": BUDGET, "ledger": "budget.db", "dataset": "clinic"}
    with pytest.raises(OSError, match="Input/output"):
        release_moments(Y, Z[:5], bandwidth=0.6, **paid)
    with pytest.raises(OSError, match="Input/output"):
        release_atlas(Y, Z, bandwidth=0.6, dim=1, **paid)
    assert history(here) == ()


def test_a_stream_that_fails_after_the_debit_releases_nothing(here, monkeypatch):
    def fail(self, count):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(EntropySource, "words", fail)
    with pytest.raises(RuntimeError, match=r"failed after its debit, .*: OSError$"):
        release_moments(Y, Z[:5], bandwidth=0.6, budget=BUDGET, ledger="budget.db", dataset="clinic")
    assert len(history(here)) == 1


def test_a_child_without_a_key_draws_no_noise_of_its_parent(monkeypatch):
    source, calls = open_source(), []

    def fail(count):
        calls.append(count)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "urandom", fail)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = source.words(4).tobytes()
        except OSError:
            answer = b"refused"
        os.write(write, answer)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"refused"
    os.close(read)
    os.close(write)


def nothing(*_, **__):
    """What is left of a parallel kernel whose threads found no memory: Numba can lose their errors."""


def test_noise_that_was_not_made_is_not_released(monkeypatch):
    def lost(words, out, *_):
        return np.full((len(words), 2), len(out))  # as an array that was not written may well say

    monkeypatch.setattr(exact_normal, "fill_rows", lost)
    with pytest.raises(MemoryError, match="noise"):
        rounded_normals(open_source(1), 100_000, 2**28)
    matrices = np.zeros((3, 4, 4))
    with monkeypatch.context() as patch:
        patch.setattr(normal, "add_symmetric", nothing)
        with pytest.raises(MemoryError, match="noise"):
            noisy_projectors(matrices, 2, np.ones(3), open_source(1))
    monkeypatch.setattr(normal, "fill_chunks", lost)
    with pytest.raises(MemoryError, match="noise"):
        noisy_projectors(matrices, 2, np.ones(3), open_source(1))


def test_records_that_were_not_clipped_are_not_released(here, monkeypatch):
    paid = {"bandwidth": 0.6, "budget": BUDGET, "ledger": "budget.db", "dataset": "clinic"}
    told = r"failed after its debit, .*: MemoryError$"
    monkeypatch.setattr("dpmd_fast.kernels.sums.residuals._clip_block", nothing)
    with pytest.raises(RuntimeError, match=told):
        release_atlas(Y, Z, dim=1, rounds=2, **paid)
    monkeypatch.setattr("dpmd_fast.kernels.sums.moments._clip_block", nothing)
    with pytest.raises(RuntimeError, match=told):
        release_moments(Y, Z[:5], tau=1.0, **paid)
    assert len(history(here)) == 2


def test_features_and_norms_that_were_not_computed_are_not_used(monkeypatch):
    """Failed before: what memory held was taken for norms, and missing chunks were left out of the sums."""
    index = build_index(Z[:5], 0.6)
    sums = FeatureSums(2, 1.0, (2.0**-20, 2**20), 1)
    with monkeypatch.context() as patch:
        patch.setattr(moments, "_clip_block", nothing)
        with pytest.raises(MemoryError, match="no memory"):
            moments.record_norms(index, Z[:5], 2.0, 0.1, 1)
        patch.setattr(residuals, "_clip_block", nothing)
        frames = residuals.make_frames(Z[:5], np.tile([[1.0], [0.0]], (5, 1, 1)), 0.6, 0.3, 1)
        with pytest.raises(MemoryError, match="no memory"):
            residuals.residual_norms(frames, Z[:5], np.zeros((5, 2)), 0.1, 1)
        patch.setattr(features, "_add", nothing)
        with pytest.raises(MemoryError, match="no memory"):
            sums.add(Z[:5])
        patch.setattr(features, "_coordinates", nothing)
        with pytest.raises(MemoryError, match="no memory"):
            features.subspace_coordinates(Z[:5], np.zeros(2), np.eye(2)[:, :1], 1)


def test_neighbours_that_were_not_found_are_not_released(monkeypatch):
    fitted = ManifoldDenoiser(0.6, 1).fit(Y)
    monkeypatch.setattr("dpmd_fast.kernels.projectors._local_geometry", nothing)
    with pytest.raises(MemoryError, match="no memory"):
        fitted.transform(Z)


LIMITED = """
    import json, resource, sys
    import numpy as np
    from dpmd_fast import Budget, DPManifoldDenoiser, Ledger, release_moments
    rng, told = np.random.default_rng(0), []
    Y, Z = rng.normal(size=(100, 60)), rng.normal(size=(30_000, 60))
    paid = {"ledger": sys.argv[1], "dataset": "clinic"}
    release_moments(Y, Z[:3], bandwidth=9.0, budget=Budget(0.5, 1e-6), on_invalid="drop")
    model = DPManifoldDenoiser(9.0, 1, Budget(0.5, 1e-6), **paid).fit(Y)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29,) * 2)
    for call in (
        lambda: release_moments(Y, Z, bandwidth=9.0, budget=Budget(0.5, 1e-6), **paid),
        lambda: model.transform(Z),
    ):
        try:
            call()
        except MemoryError as error:
            told.append(str(error))
    print(json.dumps([told, len(Ledger(sys.argv[1]).history("clinic"))]))
"""


def test_memory_that_is_not_there_is_missed_before_the_debit(here):
    done = script(LIMITED, here / "budget.db")
    assert done.returncode == 0, done.stderr
    told, spends = json.loads(done.stdout)
    assert spends == 0
    assert len(told) == 2
    for text in told:
        assert re.fullmatch(r"moments of 30000 locations in 60 columns need 3\.3 GB, more than .*", text)
