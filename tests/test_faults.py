"""Faults of disks, files and processes: what is told, what was spent, and nothing half done is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dpmd_fast import Atlas, Budget, Ledger, release_atlas
from dpmd_fast.cli import main
from dpmd_fast.files import transform_file

ROWS = 6011  # a number that nothing else has
LIMIT = 300  # seconds for a process: a hang is a failure


def circle(n, seed, scatter):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + scatter * rng.normal(size=(n, 2))


Y, Z = circle(ROWS, 0, 0.05), circle(300, 1, 0.2)
FIT = "fit --anchors queries.parquet --dim 1 --bandwidth 0.6 --rounds 1 --epsilon 1 --delta 1e-6"
PAID = "--ledger budget.db --dataset clinic"


def xy(points):
    return pa.table({"x": points[:, 0], "y": points[:, 1]})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(xy(Y), folder / "reference.parquet", row_group_size=1500)
    pq.write_table(xy(Z), folder / "queries.parquet")
    pq.write_table(xy(circle(40_000, 2, 0.2)), folder / "many.parquet", row_group_size=8000)
    Ledger(folder / "budget.db").create("clinic", 3.0, 1e-6)
    made = release_atlas(xy(Y), Z, dim=1, bandwidth=0.6, budget=Budget(2.0, 1e-6), rounds=1)
    made.save(folder / "atlas.dpmd")
    return folder


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """A copy of the files, to work in."""
    folder = tmp_path / "work"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    return folder


def script(code, *arguments, within=(), cwd=None, **environment):
    """Run Python code in a process of its own."""
    return subprocess.run(
        [*within, sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "DPMD_FAST_CACHE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        cwd=cwd,
    )


def history(folder):
    return Ledger(folder / "budget.db").history("clinic")


# --- a disk that is full

NAMESPACE = ["unshare", "--mount", "--map-root-user"]
DISK = """
    import contextlib, io, json, os, sys, tempfile
    from dpmd_fast import Atlas, Ledger
    from dpmd_fast.cli import main
    from dpmd_fast.files import transform_file

    disk, told = sys.argv[1], {}

    def leave(size):
        "Fill the disk up to this many bytes."
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{disk}/filler")
        free = os.statvfs(disk)
        with open(f"{disk}/filler", "wb") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - size)

    def attempt(name, call, *arguments):
        before = set(os.listdir(disk))
        err = io.StringIO()
        try:
            with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
                code = call(*arguments)
            told[name] = [code, err.getvalue()]
        except Exception as error:
            told[name] = [type(error).__name__, str(error)]
        told[name].append(sorted(set(os.listdir(disk)) - before))

    def command(name, line):
        attempt(name, main, line.split())

    ledger = Ledger(f"{disk}/ledger.db")
    ledger.create("a", 3.0, 1e-6)
    steps = []
    for pages in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 64):
        leave(4096 * pages)
        try:
            ledger.spend("a", 0.001, "x", parameters={"long": "x" * 6000})
            steps.append("spent")
        except OSError as error:
            steps.append(str(error))
        steps.append(len(ledger.history("a")))
    told["spends"] = steps
    told["left behind"] = sorted(os.listdir(disk))
    leave(0)
    attempt("create", Ledger(f"{disk}/other.db").create, "a", 1.0, 1e-6)
    leave(4096)
    atlas = Atlas.load("atlas.dpmd")
    attempt("atlas", atlas.save, f"{disk}/atlas.dpmd")
    for suffix in ("parquet", "csv", "arrow"):
        attempt(suffix, transform_file, atlas, "many.parquet", f"{disk}/out.{suffix}")
    command("npy", f"transform --atlas atlas.dpmd queries.npy -o {disk}/out.npy")
    command("report", f"report --atlas atlas.dpmd queries.parquet -o {disk}/report.html")
    fit = sys.argv[2] + " --reference reference.parquet " + sys.argv[3]
    command("fit, report", f"{fit} -o first.dpmd --report {disk}/report.html")
    command("fit, rescued", f"{fit} -o {disk}/atlas.dpmd")
    tempfile.tempdir = disk
    command("fit, lost", f"{fit} -o {disk}/atlas.dpmd")
    leave(0)
    command("preprocess", f"preprocess --public queries.parquet -o {disk}/scales.json")
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def full(files, tmp_path_factory):
    """What is told when a real, small disk is full."""
    folder = tmp_path_factory.mktemp("full") / "work"
    shutil.copytree(files, folder)
    np.save(folder / "queries.npy", Z)
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=400k tmpfs {disk} 2>/dev/null || exit 77; cd {folder}; exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, to have a small disk of its own")
    done = script(DISK, disk, FIT, PAID, within=[*NAMESPACE, "sh", "-c", mount, "sh"], TMPDIR=str(folder))
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this system does not allow a small disk to be mounted")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_ledger_on_a_full_disk_spends_wholly_or_not(full):
    steps = full[1]["spends"]
    answers, counts = steps[::2], steps[1::2]
    assert answers[0] != "spent"
    assert answers[-1] == "spent"
    for number, answer in enumerate(answers):
        if answer != "spent":
            assert re.search(r"ledger\.db could not be read or written: .*; nothing was released", answer)
        assert counts[number] == answers[: number + 1].count("spent")
    assert full[1]["left behind"] == ["filler", "ledger.db"]


@pytest.mark.parametrize(
    "what", ["create", "atlas", "parquet", "csv", "arrow", "npy", "report", "preprocess"]
)
def test_a_full_disk_leaves_nothing_and_is_told(full, what):
    code, text, left = full[1][what]
    assert code in ("OSError", 2)
    assert left == []
    assert re.search(r"disk/\S+ (could not be (read or )?written|cannot be created)", text)
    assert re.search("No space left|disk is full|disk I/O", text)
    assert "spent" not in text
    assert text.count("\n") <= 1


def test_what_was_paid_for_survives_a_full_disk(full):
    folder, told = full
    code, text, left = told["fit, report"]
    assert (code, left) == (2, [])
    assert "first.dpmd is written and complete, but then: " in text
    assert "report.html could not be written: No space left" in text
    Atlas.load(folder / "first.dpmd")
    code, text, left = told["fit, rescued"]
    assert (code, left) == (2, [])
    spare = re.search(r"could not be written \(No space left on device\); .* saved as (\S+)$", text)[1]
    Atlas.load(spare)
    code, text, left = told["fit, lost"]
    assert (code, left) == (2, [])
    assert "atlas.dpmd could not be written, and the budget is spent: No space left" in text
    assert [spend.file for spend in history(folder)] == [str(folder / "first.dpmd"), spare, None]


def test_an_answer_that_cannot_be_printed(here):
    line = [sys.executable, "-m", "dpmd_fast", "transform", "--atlas", "atlas.dpmd", "queries.parquet"]
    with open("/dev/full", "w") as nowhere:
        done = subprocess.run(
            [*line, "-o", "out.parquet"], stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=LIMIT
        )
    assert done.returncode == 2
    assert done.stderr == (
        "dpmd-fast: error: out.parquet is written and complete, but then: No space left on device\n"
    )
    assert pq.read_metadata("out.parquet").num_rows == len(Z)


# --- files that cannot be read to their end


def spoil(path, group):
    """Overwrite the first page of a column in one row group."""
    part = pq.read_metadata(path).row_group(group).column(1)
    start = part.dictionary_page_offset or part.data_page_offset
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * 64)


def test_a_damaged_row_group_is_found_before_the_debit(here, capsys):
    spoil("reference.parquet", 2)
    before = set(os.listdir())
    assert main(f"{FIT} --reference reference.parquet {PAID} -o new.dpmd".split()) == 2
    err = capsys.readouterr().err
    assert err == (
        "dpmd-fast: error: reference.parquet could not be read: it is damaged, was changed meanwhile, or "
        "memory ran out\n"
    )
    assert history(here) == ()
    assert set(os.listdir()) == before


def test_without_a_check_of_the_records_the_debit_is_lost(here, capsys):
    spoil("reference.parquet", 2)
    line = f"{FIT} --reference reference.parquet {PAID} --on-invalid drop -o new.dpmd"
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert re.search(r"failed after its debit, .* stays spent \(spend 1\): reference.parquet could not", err)
    assert str(ROWS) not in err
    (spend,) = history(here)
    assert spend.file is None
    assert not os.path.exists("new.dpmd")


SHRINK = """
    import contextlib, io, json, os, sys
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from dpmd_fast.cli import main
    from dpmd_fast.privacy.ledger import Ledger

    table = pq.read_table("reference.parquet")
    large = pa.concat_tables([table] * 20)  # more than a page
    pq.write_table(large, "large.parquet", row_group_size=9000)
    with pa.ipc.new_file("large.arrow", large.schema) as writer:
        writer.write_table(large, max_chunksize=9000)
    np.save("large.npy", np.stack([large["x"], large["y"]], axis=1))
    np.save("fortran.npy", np.asfortranarray(np.load("large.npy")))
    np.save("queries.npy", np.stack([pq.read_table("queries.parquet")[name] for name in "xy"], axis=1))
    spend, told = Ledger.spend, {}

    def shrinking(self, *arguments, **options):
        made = spend(self, *arguments, **options)
        os.truncate(reference, 12_000)
        return made

    Ledger.spend = shrinking
    for reference in ("large.parquet", "large.arrow", "large.npy", "fortran.npy"):
        err = io.StringIO()
        line = sys.argv[1].replace("queries.parquet", "queries.npy") if "npy" in reference else sys.argv[1]
        with contextlib.redirect_stderr(err):
            code = main(f"{line} --reference {reference} {sys.argv[2]} -o new.dpmd".split())
        told[reference] = [code, err.getvalue()]
    print(json.dumps(told))
"""


def test_a_reference_that_shrinks_after_the_debit(here):
    Ledger("budget.db").create("rich", 9.0, 1e-6)
    done = script(SHRINK, FIT, PAID.replace("clinic", "rich"))
    assert done.returncode == 0, (done.returncode, done.stderr)  # a mapped file would end it by SIGBUS
    told = json.loads(done.stdout)
    assert len(told) == len(Ledger("budget.db").history("rich")) == 4
    for name, (code, err) in told.items():
        assert code == 2
        assert re.search(rf"failed after its debit, .* stays spent .*: {name} could not be read", err), err
    assert not os.path.exists("new.dpmd")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow", "npy"])
def test_queries_that_shrink_while_they_are_read(here, suffix):
    atlas, large = Atlas.load("atlas.dpmd"), circle(400_000, 3, 0.2)
    source, table = f"large.{suffix}", xy(large)
    if suffix == "npy":
        np.save(source, large)
    elif suffix == "csv":
        pa.csv.write_csv(table, source)
    elif suffix == "arrow":
        with pa.ipc.new_file(source, table.schema) as writer:
            writer.write_table(table, max_chunksize=9000)
    else:
        pq.write_table(table, source, row_group_size=50_000)
    before = set(os.listdir())
    size = os.path.getsize(source)

    def shrink(done, total):
        os.truncate(source, size // 3)

    with pytest.raises(ValueError, match=rf"^{source} (could not be read|was changed while)"):
        transform_file(atlas, source, f"out.{suffix}", progress=shrink)
    assert set(os.listdir()) == before


def test_a_damaged_row_group_of_queries_leaves_no_file(here, capsys):
    spoil("many.parquet", 2)
    before = set(os.listdir())
    for target in ("out.parquet", "out.csv"):
        assert main(f"transform --atlas atlas.dpmd many.parquet -o {target}".split()) == 2
        assert "many.parquet could not be read as Parquet: " in capsys.readouterr().err
    assert set(os.listdir()) == before


# --- a process that is ended

DYING = """
    import os, signal, sys
    from dpmd_fast.cli import main
    from dpmd_fast.privacy.ledger import Ledger

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs of a shell

    def deadly(call):
        def dying(*arguments, **options):
            made = call(*arguments, **options)
            os.kill(os.getpid(), int(sys.argv[2]))
            return made
        return dying

    if sys.argv[1] == "debit":
        Ledger.spend = deadly(Ledger.spend)
    else:
        os.fsync = deadly(os.fsync)  # of the partial file, before it gets its name
    sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_an_end_between_debit_and_file(here, number, code):
    before = set(os.listdir())
    line = f"{FIT} --reference reference.parquet {PAID} -o new.dpmd"
    done = script(DYING, "debit", int(number), *line.split())
    assert done.returncode == code, done.stderr
    if number != signal.SIGKILL:
        assert re.fullmatch(
            r"\n?dpmd-fast: (interrupted|terminated); a file that was not complete was not written, and what "
            r"was spent stays spent\n",
            done.stderr,
        )
    assert set(os.listdir()) == before
    (spend,) = history(here)
    assert spend.file is None


def test_a_kill_while_a_file_is_written_leaves_it_under_another_name(here):
    before = set(os.listdir())
    line = ["transform", "--atlas", "atlas.dpmd", "queries.parquet", "-o", "out.parquet"]
    assert script(DYING, "file", int(signal.SIGKILL), *line).returncode == -9
    (left,) = set(os.listdir()) - before
    assert re.fullmatch(r"\.[0-9a-f]{16}\.part", left)
    assert main(line) == 0  # the next run is not in its way
