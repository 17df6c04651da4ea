"""Faults of disks, files and processes: what is told, what was spent, and nothing half done is left."""

from __future__ import annotations

import io
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

from dpmd_fast import Atlas, Budget, Ledger, Preprocessor, release_atlas, release_moments
from dpmd_fast.cli import main
from dpmd_fast.privacy.ledger.charge import Charge
from dpmd_fast.reference.sources.files import open_files
from dpmd_fast.tables.files import transform_file

ROWS = 6011  # a number that nothing else has
LIMIT = 300  # seconds for a process: a hang is a failure


def circle(n, seed, scatter):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + scatter * rng.normal(size=(n, 2))


Y, Z = circle(ROWS, 0, 0.05), circle(300, 1, 0.2)
FIT = "fit --model atlas --anchors queries.parquet --dim 1 --bandwidth 0.6 --rounds 1"
FIT += " --epsilon 1 --delta 1e-6"
PAID = "--ledger budget.db --dataset clinic"
DENOISE = "denoise queries.parquet --dim 1 --bandwidth 0.6 --epsilon 1 --delta 1e-6"
SCALES = "preprocess --bounds bounds.json --epsilon 1 --delta 1e-6"


def xy(points):
    return pa.table({"x": points[:, 0], "y": points[:, 1]})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(xy(Y), folder / "reference.parquet", row_group_size=1500)
    pq.write_table(xy(Z), folder / "queries.parquet")
    pq.write_table(xy(circle(40_000, 2, 0.2)), folder / "many.parquet", row_group_size=8000)
    (folder / "bounds.json").write_text('{"x": [-2, 2], "y": [-2, 2]}')
    Ledger(folder / "budget.db").create("clinic", 3.0, 1e-6)
    made = release_atlas(xy(Y), Z, dim=1, bandwidth=0.6, budget=Budget(2.0, 1e-6), rounds=1)
    made.save(folder / "atlas.dpmd")
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
    from dpmd_fast.tables.files import transform_file

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

    spend, record = Ledger.spend, Ledger.record_file

    def filling(self, *arguments, **options):
        "The disk is full when the debit is made."
        made = spend(self, *arguments, **options)
        leave(0)
        return made

    def noting(self, *arguments):
        "The disk is full when the file is written."
        leave(0)
        record(self, *arguments)

    scales = sys.argv[4] + " --reference reference.parquet"
    denoise = sys.argv[5] + " --reference reference.parquet"
    tempfile.tempdir = os.getcwd()
    command("denoise, full", f"{denoise} -o {disk}/clean.parquet")
    command("scales, rescued", f"{scales} -o {disk}/scales.json")
    leave(4096)
    command("denoise, report", f"{denoise} -o clean.parquet --report {disk}/report.html")
    transform = "transform --atlas atlas.dpmd queries.parquet -o moved.parquet"
    command("transform, report", f"{transform} --report {disk}/report.html")
    Ledger.spend = filling
    leave(65_536)
    command("denoise, rescued", f"{denoise} -o {disk}/clean.parquet")
    tempfile.tempdir = disk
    leave(65_536)
    command("denoise, lost", f"{denoise} -o {disk}/clean.parquet")
    command("scales, lost", f"{scales} -o {disk}/scales.json")
    Ledger.spend, Ledger.record_file = spend, noting
    leave(131_072)
    noted = Ledger(f"{disk}/noted.db")
    noted.create("clinic", 3.0, 1e-6)
    fit = f"{sys.argv[2]} --reference reference.parquet --ledger {noted.path} --dataset clinic"
    command("note", f"{fit} -o n.dpmd")
    Ledger.record_file = record
    told["note"].append([made.file for made in noted.history("clinic")])
    leave(131_072)
    noted.record_file(1, "n.dpmd")
    told["note"].append([made.file for made in noted.history("clinic")])
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
    Ledger(folder / "second.db").create("clinic", 5.0, 1e-6)
    second = PAID.replace("budget", "second")
    lines = FIT, PAID, f"{SCALES} {second}", f"{DENOISE} {second}"
    done = script(DISK, disk, *lines, within=[*NAMESPACE, "sh", "-c", mount, "sh"], TMPDIR=str(folder))
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this system does not allow a small disk to be mounted")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_ledger_on_a_full_disk_spends_wholly_or_not(full):
    steps = full[1]["spends"]
    answers, counts = steps[::2], steps[1::2]
    assert answers[0] != "spent"
    assert answers[-1] == "spent"
    told = r"ledger\.db could not be read or written: .*; nothing was written to it"
    for number, answer in enumerate(answers):
        if answer != "spent":
            assert re.search(told, answer)
        assert counts[number] == answers[: number + 1].count("spent")
    assert full[1]["left behind"] == ["filler", "ledger.db"]


@pytest.mark.parametrize(
    "what", ["create", "atlas", "parquet", "csv", "arrow", "npy", "report", "preprocess"]
)
def test_a_full_disk_leaves_nothing_and_is_told(full, what):
    code, text, left = full[1][what]
    assert code in ("UserOSError", 2)
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
    spare = re.search(r"could not be written: No space left on device; .* saved as (\S+)$", text)[1]
    Atlas.load(spare)
    code, text, left = told["fit, lost"]
    assert (code, left) == (2, [])
    assert re.search(r"atlas\.dpmd could not be written: No space left.*; the budget is spent, and", text)
    assert [spend.file for spend in history(folder)] == [str(folder / "first.dpmd"), spare, None]


def test_a_full_disk_is_found_before_denoise_spends(full):
    code, text, left = full[1]["denoise, full"]
    assert (code, left) == (2, [])
    assert re.fullmatch(
        r"dpmd-fast: error: \S+/disk/clean\.parquet could not be written: .*No space left.*\n", text
    )
    assert "spent" not in text


def test_what_denoise_and_preprocess_paid_for_survives_a_full_disk(full):
    folder, told = full
    saved = {}
    for what, name in (("denoise", "clean.parquet"), ("scales", "scales.json")):
        code, text, left = told[f"{what}, rescued"]
        assert (code, left) == (2, [])
        saved[what] = re.search(
            rf"{name} could not be written: .*No space left on device.*; .* saved as (\S+)$", text
        )[1]
        code, text, left = told[f"{what}, lost"]
        assert (code, left) == (2, [])
        assert re.search(rf"{name} could not be written: .*No space left.*; the budget is spent, and", text)
    assert pq.read_metadata(saved["denoise"]).num_rows == len(Z)
    with open(saved["scales"], encoding="utf-8") as file:
        assert Preprocessor.from_dict(json.load(file)).column_names == ("x", "y")
    # nothing for the run that met the full disk at once, and each file that was written is noted
    assert [spend.file for spend in Ledger(folder / "second.db").history("clinic")] == [
        saved["scales"],
        str(folder / "clean.parquet"),
        saved["denoise"],
        None,
        None,
    ]


@pytest.mark.parametrize(("verb", "output"), [("denoise", "clean.parquet"), ("transform", "moved.parquet")])
def test_a_report_on_a_full_disk_leaves_the_output(full, verb, output):
    folder, told = full
    code, text, left = told[f"{verb}, report"]
    assert (code, left) == (2, [])
    assert f"{output} is written and complete, but then: " in text
    assert "report.html could not be written: No space left" in text
    assert pq.read_metadata(folder / output).num_rows == len(Z)


def test_a_ledger_on_a_full_disk_does_not_note_the_atlas(full):
    folder, told = full
    code, text, left, before, after = told["note"]
    assert (code, left) == (2, [])
    assert re.search(
        r"n\.dpmd is written, but the ledger could not note it for spend 1: \S+noted\.db could not be "
        r"read or written: .*; nothing was written to it\n$",
        text,
    )
    assert Atlas.load(folder / "n.dpmd").dim == 1
    assert before == [None]
    assert after == [str(folder / "n.dpmd")]


LINES = {
    "transform": ("transform --atlas atlas.dpmd queries.parquet", "out.parquet"),
    "fit": (f"{FIT} --reference reference.parquet {PAID}", "new.dpmd"),
    "denoise": (f"{DENOISE} --reference reference.parquet {PAID}", "out.parquet"),
    "preprocess": (f"{SCALES} --reference reference.parquet {PAID}", "scales.json"),
}


@pytest.mark.parametrize("verb", LINES)
def test_an_answer_that_cannot_be_printed(here, verb, monkeypatch, capsys):
    line, output = LINES[verb]
    with io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True) as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert main([*line.split(), "-o", output]) == 2
    assert capsys.readouterr().err == (
        f"dpmd-fast: error: {output} is written and complete, but then: No space left on device\n"
    )
    assert os.path.getsize(output) > 100
    assert [spend.file for spend in history(here)] == [str(here / output)] * (verb != "transform")


def test_a_process_whose_answer_cannot_be_printed(here):
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


CHANGE = """
    import contextlib, io, json, os, sys
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from dpmd_fast.cli import main
    from dpmd_fast.privacy.ledger.ledger import Ledger

    def write(table, name):
        if name.endswith(".parquet"):
            pq.write_table(table, name, row_group_size=9000)
        elif name.endswith(".arrow"):
            with pa.ipc.new_file(name, table.schema) as writer:
                writer.write_table(table, max_chunksize=9000)
        else:
            points = np.stack([table["x"], table["y"]], axis=1)
            np.save(name, np.asfortranarray(points) if name == "fortran.npy" else points)

    def shrink(name):
        os.truncate(name, 12_000)

    def damage(name):
        "Both ends: one of them says how to read all else."
        with open(name, "r+b") as file:
            file.write(b"\\xff" * 64)
            file.seek(-64, os.SEEK_END)
            file.write(b"\\xff" * 64)

    def replace(name):
        "By a file of more records, so that those that are expected could be read."
        write(pa.concat_tables([large, large]), name)

    large = pa.concat_tables([pq.read_table("reference.parquet")] * 20)  # more than a page
    write(pq.read_table("queries.parquet"), "queries.npy")
    spend, told = Ledger.spend, {}

    def changing(self, *arguments, **options):
        made = spend(self, *arguments, **options)
        change(reference)
        return made

    Ledger.spend = changing
    for change in (shrink, damage, replace):
        for reference in ("large.parquet", "large.arrow", "large.npy", "fortran.npy"):
            write(large, reference)
            err = io.StringIO()
            anchors = "queries.npy" if "npy" in reference else "queries.parquet"
            line = sys.argv[1].replace("queries.parquet", anchors)
            with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
                code = main(f"{line} --reference {reference} {sys.argv[2]} -o new.dpmd".split())
            told[f"{change.__name__} {reference}"] = [code, err.getvalue()]
    print(json.dumps(told))
"""


def test_a_reference_that_is_changed_after_the_debit(here):
    Ledger("budget.db").create("rich", 9.0, 1e-6)
    done = script(CHANGE, FIT, PAID.replace("clinic", "rich"))
    assert done.returncode == 0, (done.returncode, done.stderr)  # a mapped file would end it by SIGBUS
    told = json.loads(done.stdout)
    assert len(told) == len(Ledger("budget.db").history("rich")) == 12
    for what, (code, err) in told.items():
        name = what.split()[1]
        assert code == 2, what
        problem = f"{name} (could not be read|has changed since it was opened)"
        assert re.search(rf"failed after its debit, .* stays spent .*: {problem}", err), (what, err)
        assert not re.search(rf"{20 * ROWS}|{40 * ROWS}", err)
    assert not os.path.exists("new.dpmd")


@pytest.mark.parametrize("change", [os.replace, shutil.copyfile])  # another file, other values in the same
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "npy"])
def test_a_reference_that_keeps_its_shape_may_change_unnoticed(here, monkeypatch, suffix, change):
    """What is read after the debit is what is released."""
    for name, points in ((f"reference.{suffix}", Y), (f"other.{suffix}", Y[::-1] * 0.9)):
        if suffix == "npy":
            np.save(name, points)
        elif suffix == "arrow":
            with pa.ipc.new_file(name, xy(points).schema) as writer:
                writer.write_table(xy(points))
        else:
            pq.write_table(xy(points), name)

    def released():
        source = open_files([f"reference.{suffix}"], None)
        budget = Budget(1.0, 1e-6)
        return release_moments(source, Z[:5], bandwidth=0.6, budget=budget, seed=1).values

    before = released()
    debit = Charge.debit
    monkeypatch.setattr(Charge, "debit", lambda _: change(f"other.{suffix}", f"reference.{suffix}"))
    replaced = released()
    monkeypatch.setattr(Charge, "debit", debit)
    assert np.array_equal(replaced, released())
    assert not np.array_equal(replaced, before)


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
    from dpmd_fast.privacy.ledger.ledger import Ledger

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
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),  # told and left as after SIGTERM
        (signal.SIGKILL, -9),
    ],
)
def test_an_end_between_debit_and_file(here, number, code):
    before = set(os.listdir())
    line = f"{FIT} --reference reference.parquet {PAID} -o new.dpmd"
    done = script(DYING, "debit", int(number), *line.split())
    assert done.returncode == code, done.stderr
    if number != signal.SIGKILL:
        assert re.fullmatch(
            r"\n?dpmd-fast: (interrupted|terminated); no incomplete file was left behind, and "
            r"mu\^2 = [0-9.]+ of data set 'clinic' stays spent \(spend 1\); no file is recorded for it\n",
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
