"""The command line: every verb, for people and for machines."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from samples import make_mixture, said

import dpmd_fast
from dpmd_fast import Atlas, Budget, DPManifoldDenoiser, Ledger, release_atlas
from dpmd_fast.atomic import atomic_write
from dpmd_fast.cli import commands, main
from dpmd_fast.cli.checks import rescued
from dpmd_fast.cli.console import plain
from dpmd_fast.lab.datasets import circle, distance_to_manifold, simulate
from dpmd_fast.lab.experiments import registry
from dpmd_fast.privacy.ledger import ledger as ledger_module

VERBS = ["demo", "plan", "fit", "transform", "serve", "denoise", "preprocess", "report", "ledger"]
VERBS += ["keys", "experiment", "audit", "warmup"]
N = 20_011  # records: a number that is not said by chance
BUDGET = "--epsilon 1 --delta 1e-6"
PAID = "--ledger budget.db --dataset clinic"
FIT = f"fit --model atlas --reference reference.parquet --anchors queries.parquet --dim 1 {BUDGET}"
DENOISE = "denoise --reference reference.parquet samples.parquet --columns x,y --bandwidth 0.6 --dim 1"
SEEDED = f"{FIT} --bandwidth 0.6 --rounds 1 --no-ledger --seed 3"
CACHED = {**os.environ, "DPMD_FAST_CACHE": "1"}
DATA = simulate(circle(), N, 300, 0.1, np.random.default_rng(0))


def run(capsys, command, *more):
    """What a command prints; it must go well."""
    assert main([*command.split(), *more]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return out


def ask(capsys, command, *more):
    """What a command prints for machines."""
    out = run(capsys, command, *more, "--json")
    assert out.count("\n") == 1
    return json.loads(out)


def xy(points, **others):
    return pa.table({**others, "x": points[:, 0], "y": points[:, 1]})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tables of all kinds, a ledger, and an atlas that it paid for."""
    folder = tmp_path_factory.mktemp("files")
    reference, queries = DATA.references, DATA.queries
    names = [f"patient {k}" for k in range(N)]
    pq.write_table(xy(reference, patient=names), folder / "reference.parquet")
    pq.write_table(xy(reference[:9000]), folder / "part1.parquet")
    pq.write_table(xy(reference[9000:]), folder / "part2.parquet")
    pq.write_table(xy(queries), folder / "queries.parquet")
    pq.write_table(xy(queries, sample=list(range(300))), folder / "samples.parquet")
    pa.csv.write_csv(xy(reference), folder / "reference.csv")
    pa.csv.write_csv(xy(queries), folder / "queries.csv")
    with pa.ipc.new_file(folder / "reference.arrow", xy(reference).schema) as writer:
        writer.write_table(xy(reference))
    np.save(folder / "reference.npy", reference)
    np.save(folder / "queries.npy", queries)
    (folder / "bounds.json").write_text(json.dumps({"x": [-5, 5], "y": [-5, 5]}))
    Ledger(folder / "budget.db").create("clinic", 3.0, 1e-6)
    book = {"ledger": Ledger(folder / "budget.db"), "dataset": "clinic"}
    atlas = release_atlas(
        folder / "part2.parquet", queries, dim=1, bandwidth=0.6, budget=Budget(0.5, 1e-6), rounds=1, **book
    )
    atlas.save(folder / "atlas.dpmd")
    make_mixture(("x", "y")).save(folder / "mixture.dpmd")
    return folder


# --- help


def test_verbs_are_there():
    assert list(commands.commands) == VERBS


def test_help_is_quick_and_imports_no_numbers():
    code = """
import resource, sys
from dpmd_fast.cli import main
assert main(["--help"]) == 0
heavy = {"numpy", "numba", "pyarrow", "scipy", "sklearn", "pandas", "matplotlib", "tqdm"} & set(sys.modules)
used = resource.getrusage(resource.RUSAGE_SELF)
print(sorted(heavy), used.ru_utime + used.ru_stime < 0.7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[] True", done.stderr


def test_no_verb_shows_the_verbs(capsys):
    out = run(capsys, "")
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert run(capsys, "--version").startswith("dpmd-fast")


def examples(verb):
    """The commands that the help of a verb shows."""
    context = commands.make_context("dpmd-fast", [verb, "--help"], resilient_parsing=True)
    command = commands.commands[verb]
    text = command.get_help(type(context)(command, info_name=f"dpmd-fast {verb}", parent=None))
    assert "Example:" in text, verb
    shown = re.sub(r"\\\n\s*", "", text.partition("Example:")[2])
    return [line.strip() for line in shown.splitlines() if line.strip().startswith("dpmd-fast ")]


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(capsys, verb):
    found = examples(verb)
    assert any(line.startswith(f"dpmd-fast {verb}") for line in found)
    assert "Example:" in run(capsys, f"{verb} --help")


# minutes; tests/lab/test_audit.py and test_experiments.py run parts of them
LONG = {"audit": pytest.mark.slow, "experiment": pytest.mark.slow}


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=LONG.get(verb, ())) for verb in VERBS if verb not in ("demo", "serve")]
)
def test_examples_run_as_written(here, verb):
    if verb in ("fit", "ledger"):
        os.unlink("budget.db")
        os.unlink("atlas.dpmd")
        os.unlink("mixture.dpmd")
    pq.write_table(xy(DATA.references), "reference.parquet")
    for line in examples(verb):
        words = line.split()
        if verb == "experiment" and len(words) > 2 and words[2] not in registry.EXPERIMENTS:
            continue
        assert main(words[1:]) == 0, line


@pytest.mark.slow
def test_the_demo_runs_as_written(here, capsys):
    (line,) = examples("demo")
    told = ask(Quiet(capsys), line.removeprefix("dpmd-fast "))
    assert "report.html" in told["files"]
    assert (here / "demo" / "report.html").exists()


class Quiet:
    """capsys without what a command tells on standard error."""

    def __init__(self, capsys):
        self._capsys = capsys

    def readouterr(self):
        return self._capsys.readouterr()._replace(err="")


def test_the_program_is_installed():
    (found,) = entry_points(group="console_scripts", name="dpmd-fast")
    assert found.load() is main
    for program in (
        [os.path.join(os.path.dirname(sys.executable), "dpmd-fast")],
        [sys.executable, "-m", "dpmd_fast"],
    ):
        done = subprocess.run([*program, "nonsense"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr == "dpmd-fast: error: No such command 'nonsense'; see dpmd-fast --help\n"


# --- plan


def test_plan(here, capsys):
    command = f"plan --reference-rows {N} --queries queries.parquet --dim 1 {BUDGET}"
    told = ask(capsys, command)
    out = run(capsys, command)
    assert told["advice"] in out
    assert "signal to noise" in out
    assert (told["verdict"], told["model"]) == ("helps", "atlas")
    assert told["atlas"]["dim"] == 1
    assert told["mixture"] is None
    assert told["mu2"] == pytest.approx(Budget(1.0, 1e-6).mu ** 2)
    assert ask(capsys, command.replace("queries.parquet", "samples.parquet"), "--columns", "x,y") == told
    assert ask(capsys, command.replace("queries.parquet", "queries.npy")) == told


def test_numbers_that_are_not_finite_are_null(here, capsys):
    hopeless = f"plan --reference-rows 5 --queries queries.parquet --dim 1 --bandwidth 1e-6 {BUDGET}"
    assert ask(capsys, hopeless)["recommended_epsilon"] is None
    assert plain({"a": (np.float64("nan"), np.int64(3))}) == {"a": [None, 3]}


# --- fit


def test_fit_pays_and_writes_an_atlas(here, capsys):
    before = Ledger("budget.db").remaining("clinic")
    told = ask(capsys, f"{FIT} {PAID} -o new.dpmd")
    atlas = Atlas.load("new.dpmd")
    moved = atlas.transform(DATA.queries)
    assert distance_to_manifold(moved, circle()).mean() < 0.02
    assert told["columns"] == ["x", "y"]
    assert told["charts"] == len(atlas.charts.masses)
    assert told["guarantee"]["holds"] == "unconditional"
    spend = Ledger("budget.db").history("clinic")[-1]
    assert told["ledger"]["spend"] == spend.id
    assert told["ledger"]["remaining_mu2"] == pytest.approx(before - spend.mu2)
    assert spend.mu2 == pytest.approx(Budget(1.0, 1e-6).mu ** 2)
    assert spend.file == str(here / "new.dpmd")
    assert not said(N, json.dumps(told))


def test_fit_speaks_to_people(here, capsys):
    out = run(capsys, f"{FIT} {PAID} -o new.dpmd --report new.html")
    assert "Unconditional: " in out
    assert "of the budget of 'clinic' is left" in out
    assert "<html" in Path("new.html").read_text()
    assert "the spend is not recorded anywhere" in run(capsys, f"{FIT} --no-ledger -o other.dpmd")


def test_fit_tells_no_count_where_it_is_private(here, capsys):
    Ledger("budget.db").create("private", 3.0, 1e-6, "add-remove")
    command = f"{FIT} --ledger budget.db --dataset private --adjacency add-remove --n-public 15000 -o"
    told = ask(capsys, command, "new.dpmd") | {"text": run(capsys, command, "other.dpmd")}
    assert not said(N, json.dumps(told))
    assert f"{N:,}" not in told["text"]
    spends = Ledger("budget.db").history("private")
    assert len(spends) == 2
    assert not said(N, repr(spends))


def layers(path):
    return [layer.centers for layer in Atlas.load(path).layers]


def test_the_reference_may_be_of_any_kind(here, capsys):
    run(capsys, f"{SEEDED} -o first.dpmd")
    expected = release_atlas(
        DATA.references, DATA.queries, dim=1, bandwidth=0.6, rounds=1, budget=Budget(1.0, 1e-6), seed=3
    )
    np.testing.assert_array_equal(layers("first.dpmd"), [layer.centers for layer in expected.layers])
    for number, kind in enumerate(
        (
            "--reference part1.parquet --reference part2.parquet",
            "--reference reference.csv",
            "--reference reference.arrow",
            "--reference reference.parquet --batch-rows 777 --threads 1",
        )
    ):
        command = SEEDED.replace("--reference reference.parquet", kind)
        run(capsys, f"{command} -o same{number}.dpmd")
        np.testing.assert_array_equal(layers(f"same{number}.dpmd"), layers("first.dpmd"))


def test_the_anchors_may_be_of_any_kind(here, capsys):
    run(capsys, f"{SEEDED} -o first.dpmd")
    arrays = SEEDED.replace("queries.parquet", "queries.npy")
    for number, command in enumerate(
        (
            f"{SEEDED.replace('queries.parquet', 'queries.csv')}",
            f"{SEEDED.replace('queries.parquet', 'samples.parquet')} --columns x,y",
            f"{arrays} --columns x,y",
            f"{arrays.replace('reference.parquet', 'reference.npy')}",
        )
    ):
        run(capsys, f"{command} -o same{number}.dpmd")
        np.testing.assert_array_equal(layers(f"same{number}.dpmd"), layers("first.dpmd"))
    assert Atlas.load("same2.dpmd").column_names == ("x", "y")
    assert Atlas.load("same3.dpmd").column_names is None


def test_columns_are_matched_by_name(here, capsys):
    table = pq.read_table("queries.parquet")
    pq.write_table(table.select(["y", "x"]), "turned.parquet")
    run(capsys, f"{SEEDED.replace('queries.parquet', 'turned.parquet')} -o turned.dpmd")
    atlas = Atlas.load("turned.dpmd")
    assert atlas.column_names == ("y", "x")
    moved = atlas.transform(table)
    away = distance_to_manifold(np.stack([moved["x"], moved["y"]], axis=1), circle())
    assert away.mean() < 0.05


def test_an_output_is_replaced_only_by_force(here, capsys):
    old = Path("atlas.dpmd").read_bytes()
    assert main(f"{SEEDED} -o atlas.dpmd".split()) == 2
    assert Path("atlas.dpmd").read_bytes() == old
    capsys.readouterr()
    run(capsys, f"{SEEDED} -o atlas.dpmd --force")
    assert Path("atlas.dpmd").read_bytes() != old


def test_a_seed_is_told_to_be_not_private(here, capsys):
    assert "Not private" in run(capsys, f"{SEEDED} -o new.dpmd")


@pytest.fixture
def opened(monkeypatch):
    """Whether each opening of a ledger is to write."""
    found = []
    open_book = ledger_module.open_book

    def noted(path, timeout, *, write):
        found.append(write)
        return open_book(path, timeout, write=write)

    monkeypatch.setattr(ledger_module, "open_book", noted)
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{FIT} {PAID} -o new.dpmd", [False, True, True]),  # a look, the debit, the name of the file
        (f"{FIT} {PAID} -o new.dpmd --report new.html", [False, True, True, False]),
        (f"{DENOISE} {BUDGET} {PAID} -o new.parquet", [False, True, True]),
        (f"ledger show {PAID}", [False]),
        ("ledger create --ledger budget.db --dataset new --epsilon 1 --delta 1e-6", [True, False]),
        (f"report --atlas atlas.dpmd samples.parquet {PAID} -o new.html", [False]),
    ],
)
def test_how_often_a_command_opens_the_ledger(here, capsys, opened, command, expected):
    run(capsys, command)
    assert opened == expected


def test_the_balance_after_a_spend(here, capsys):
    told = ask(capsys, f"{FIT} {PAID} -o new.dpmd")["ledger"]
    book = Ledger("budget.db")
    assert told["remaining_mu2"] == book.remaining("clinic")
    total = book.total("clinic").mu2
    left = run(capsys, f"{FIT} {PAID} -o other.dpmd")
    assert f"(mu^2 = {book.remaining('clinic'):.4g} of {total:.4g})" in left


def test_what_was_paid_for_is_saved_somewhere(here, capsys, monkeypatch, tmp_path):
    save, calls = Atlas.save, []

    def full(self, path):
        calls.append(path)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        save(self, path)

    monkeypatch.setattr(Atlas, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(f"{FIT} {PAID} -o new.dpmd".split()) == 2
    told = capsys.readouterr().err
    spare = re.search(r"new.dpmd could not be written: No space left on device; .* saved as (\S+)$", told)[1]
    assert Atlas.load(spare).column_names == ("x", "y")
    assert not os.path.exists("new.dpmd")


def test_preprocessing(here, capsys):
    told = ask(capsys, "preprocess --public queries.parquet -o public.json")
    assert told["column_names"] == ["x", "y"]
    assert told["guarantee"] is None
    private = (
        f"preprocess --reference reference.parquet --bounds bounds.json --epsilon 0.5 --delta 1e-6 {PAID}"
    )
    told = ask(capsys, f"{private} -o private.json")
    assert abs(told["center"][0]) < 0.2
    assert "preprocessing" in Ledger("budget.db").history("clinic")[-1].what
    run(capsys, f"{FIT} {PAID} --preprocess private.json -o scaled.dpmd")
    atlas = Atlas.load("scaled.dpmd")
    assert atlas.preprocess is not None
    assert list(atlas.preprocess.center) == told["center"]
    assert distance_to_manifold(atlas.transform(DATA.queries), circle()).mean() < 0.02
    assert ask(
        capsys,
        f"plan --reference-rows 20000 --queries queries.parquet --dim 1 {BUDGET} --preprocess public.json",
    )


# --- transform


def test_transform(here, capsys):
    command = "transform --atlas atlas.dpmd samples.parquet"
    told = ask(capsys, f"{command} -o clean.parquet --status-column status")
    atlas = Atlas.load("atlas.dpmd")
    expected, status = atlas.transform(pq.read_table("samples.parquet"), return_status=True)
    out = pq.read_table("clean.parquet")
    assert out.drop_columns("status").equals(expected)
    assert out["status"].to_pylist() == status.tolist()
    assert told["rows"] == 300
    assert sum(told["status"].values()) == 300
    assert told["guarantee"] == json.loads(json.dumps(plain(atlas.guarantee)))
    assert "Unconditional" in run(capsys, f"{command} -o clean.csv --report r.html --threads 1")
    assert pd.read_csv("clean.csv", float_precision="round_trip")["x"].tolist() == out["x"].to_pylist()
    assert "300 of 300" in Path("r.html").read_text()


def test_report(here, capsys):
    told = ask(capsys, f"report --atlas atlas.dpmd samples.parquet {PAID} -o r.html")
    page = Path("r.html").read_text()
    assert told["report"] == "r.html"
    assert told["guarantee"]["statement"] in page
    assert "clinic" in page


# --- denoise


@pytest.mark.parametrize("mechanism", ["moments", "projector"])
def test_denoise(here, capsys, mechanism):
    command = (
        "denoise --reference reference.parquet samples.parquet --columns x,y --bandwidth 0.6 --dim 1 "
        f"--steps 2 --mechanism {mechanism} --sensitivity-constant 2 {BUDGET}"
    )
    told = ask(capsys, f"{command} --no-ledger --seed 5 -o clean.parquet --status-column status")
    model = DPManifoldDenoiser(
        0.6, 1, Budget(1.0, 1e-6), mechanism=mechanism, steps=2, sensitivity_constant=2.0, seed=5
    )
    expected = model.fit(DATA.references).transform(DATA.queries)
    out = pq.read_table("clean.parquet")
    np.testing.assert_array_equal(np.stack([out["x"], out["y"]], axis=1), expected)
    assert out["sample"].to_pylist() == list(range(300))
    assert out["status"].to_pylist() == model.status_.tolist()
    assert told["guarantee"]["holds"] == "not private"
    assert told["rows"] == 300
    assert told["status"] == ({"ok": 300} if mechanism == "moments" else None)  # which is not paid for
    told = ask(capsys, f"{command} {PAID} -o paid.parquet --report paid.html")
    assert told["ledger"]["dataset"] == "clinic"
    assert told["guarantee"]["holds"] == {"moments": "unconditional", "projector": "conditional"}[mechanism]
    assert Ledger("budget.db").history("clinic")[-1].file == str(here / "paid.parquet")
    assert "<html" in Path("paid.html").read_text()


def test_queries_of_denoise_may_be_named(here, capsys):
    command = f"denoise --reference reference.npy --bandwidth 0.6 --dim 1 {BUDGET} --no-ledger"
    run(capsys, f"{command} --queries queries.npy -o clean.npy")
    assert np.load("clean.npy").shape == (300, 2)


# --- ledger


def test_ledger(here, capsys):
    told = ask(
        capsys, "ledger create --ledger new.db --dataset lab --epsilon 2 --delta 1e-5 --adjacency add-remove"
    )
    assert told["dataset"]["mu2"] == pytest.approx(Budget(2.0, 1e-5).mu ** 2)
    assert told["dataset"]["remaining_epsilon"] == pytest.approx(2.0)
    told = ask(capsys, "ledger show --ledger budget.db")
    (account,) = told["datasets"]
    assert account["name"] == "clinic"
    assert [spend["what"] for spend in account["spends"]] == ["atlas"]
    assert account["remaining_mu2"] == pytest.approx(Budget(3.0, 1e-6).mu ** 2 - Budget(0.5, 1e-6).mu ** 2)
    out = run(capsys, "ledger show --ledger budget.db --dataset clinic")
    assert "clinic: (3, 1e-06)" in out
    assert "atlas.dpmd" in out
    assert "Unconditional" in out


def test_names_in_a_ledger_cannot_drive_the_terminal(here, capsys):
    """Failed before: the escapes of a file name were printed as they are, and could hide a spend."""
    book = Ledger("hostile.db")
    book.create("lab", 2.0, 1e-5)
    spend = book.spend("lab", 0.01, "of our own")
    book.record_file(spend.id, "results/\x1b[2J\x1b[1;31mnothing\u202e\x07\r.dpmd")
    out = run(capsys, "ledger show --ledger hostile.db")
    assert "\\x1b[2J\\x1b[1;31mnothing\\u202e\\x07\\r.dpmd" in out
    assert all(character.isprintable() or character == "\n" for character in out)
    assert main(["ledger", "show", "--ledger", "hostile.db", "--json"]) == 0
    assert all(character.isprintable() or character == "\n" for character in capsys.readouterr().out)


def test_a_name_can_be_bound_to_a_reference(here, capsys):
    create = "ledger create --ledger budget.db --dataset bound --epsilon 3 --delta 1e-6 --bind-to"
    told = ask(capsys, create, "reference.parquet", "--columns", "x,y")
    assert told["dataset"]["bound"] is True
    bound = f"--model atlas --dim 1 --anchors queries.parquet {BUDGET}"
    bound += " --ledger budget.db --dataset bound -o new.dpmd"
    assert main(f"fit --reference part1.parquet {bound}".split()) == 2
    assert "bound to another reference" in capsys.readouterr().err
    run(capsys, f"fit --reference reference.parquet {bound}")


# --- experiments


def test_experiments(here, capsys, monkeypatch):
    monkeypatch.setattr(registry, "EXPERIMENTS", {})
    assert ask(capsys, "experiment") == {"experiments": {}}
    assert run(capsys, "experiment") == "This version has no experiments.\n"
    monkeypatch.setitem(registry.EXPERIMENTS, "tiny", registry.Entry("one file", f"{__name__}:tiny"))
    assert run(capsys, "experiment") == "tiny          one file\n"
    told = ask(Quiet(capsys), "experiment tiny --quick -o out")
    assert told == {"experiment": "tiny", "files": [os.path.join("out", "quick.txt")]}
    assert main(["experiment", "other", "-o", "out"]) == 2
    assert "experiment 'other': must be one of tiny" in capsys.readouterr().err


def tiny(folder, quick, seeds, data):
    print("working")
    path = os.path.join(folder, "quick.txt" if quick else "full.txt")
    Path(path).touch()
    return [path]


# --- audit, warmup


def test_audit(monkeypatch, capsys):
    given = []
    place = "dpmd_fast.lab.audit.program.main"
    monkeypatch.setattr(place, lambda options: given.append(options) or len(given) - 1)
    assert main(["audit"]) == 0
    assert main(["audit", "--quick"]) == 1  # a claim is contradicted
    assert given == [[], ["--quick"]]


def test_warmup(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(dpmd_fast, "warmup", lambda *purposes: calls.append(purposes))
    assert re.fullmatch(r"All kernels are ready \(\d+\.\d s\)\.\n", run(capsys, "warmup"))
    assert ask(capsys, "warmup")["seconds"] >= 0.0
    told = run(capsys, "warmup --for transform --for atlas")
    assert re.fullmatch(r"Kernels for transform, atlas are ready \(\d+\.\d s\)\.\n", told)
    assert calls == [("all",), ("all",), ("transform", "atlas")]


# --- terminals, signals, bugs


def on_a_terminal(command, folder):
    """What a command writes to standard error when that is a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dpmd_fast", *command.split()],
        cwd=folder,
        env=CACHED,
        stderr=follower,
        stdout=subprocess.PIPE,
    )
    os.close(follower)
    written = b""
    try:
        while part := os.read(leader, 1024):
            written += part
    except OSError:  # how a terminal that has been closed ends
        pass
    os.close(leader)
    assert process.wait(timeout=120) == 0
    return written.decode()


def test_progress_bars_are_for_terminals(here):
    written = on_a_terminal("transform --atlas atlas.dpmd samples.parquet -o clean.parquet", here)
    assert "transform: " in written
    assert "/300 [" in written
    assert written.endswith("\r")  # and gone
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dpmd_fast",
            *["transform", "--atlas", "atlas.dpmd", "samples.parquet", "-o", "b.parquet"],
        ],
        cwd=here,
        env=CACHED,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bar_shows_rows_only_where_they_are_public(here):
    shown = on_a_terminal(f"{SEEDED} -o new.dpmd", here)
    assert "reading the reference: " in shown
    assert "rows" in shown
    command = f"{SEEDED} --adjacency add-remove --n-public 15000 -o other.dpmd"
    hidden = on_a_terminal(command, here)
    assert "reading the reference: 00:0" in hidden
    assert "rows" not in hidden
    assert "k" not in hidden.replace("dpmd-fast", "")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_leaves_no_file(here, number, code):
    np.save("many.npy", np.random.default_rng(0).normal(size=(4_000_000, 2)))
    before = set(os.listdir())
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dpmd_fast",
            *["transform", "--atlas", "atlas.dpmd", "many.npy", "-o", "out.npy"],
        ],
        env=CACHED,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # ignored in jobs of a shell, or by nohup
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any(name.endswith(".part") for name in set(os.listdir()) - before):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in err
    assert set(os.listdir()) == before


def test_an_interrupt_in_the_code_of_a_text_has_the_same_exit_code(tmp_path):
    """Python would end by SIGINT, although it was caught: one of 14 interrupted runs did."""
    (tmp_path / "stopped.py").write_text(
        "import sys\n"
        "from dpmd_fast import cli\n"
        "def interrupted(**given):\n"
        "    exec('raise KeyboardInterrupt')\n"
        "cli.commands.main = interrupted\n"
        "sys.exit(cli.main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stopped"], cwd=tmp_path, env=CACHED, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("interrupted; no incomplete file")) == (130, 1)


def test_a_signal_that_a_library_swallowed_still_stops(here, monkeypatch, capsys):
    before = set(os.listdir())
    moved = dpmd_fast.Atlas.move

    def interrupted(self, *arguments):
        with contextlib.suppress(SystemExit):  # as a callback of a compiler does
            os.kill(os.getpid(), signal.SIGTERM)  # SIGINT is ignored in jobs of a shell
            time.sleep(1.0)
        return moved(self, *arguments)

    monkeypatch.setattr(dpmd_fast.Atlas, "move", interrupted)
    assert main(["transform", "--atlas", "atlas.dpmd", "queries.parquet", "-o", "out.parquet"]) == 143
    assert "terminated" in capsys.readouterr().err
    assert set(os.listdir()) == before


def test_an_account_with_hardly_anything_left_is_shown(here, capsys):
    book = dpmd_fast.Ledger("nearly.db")
    book.create("clinic", 1.0, 0.01)
    book.spend("clinic", book.total("clinic").mu2 - 5e-4, "almost all")
    assert main(["ledger", "show", "--ledger", "nearly.db"]) == 0
    assert "worth epsilon = 0" in capsys.readouterr().out


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 3.0])
def test_an_account_with_nothing_spent_is_worth_its_total(here, capsys, epsilon):
    dpmd_fast.Ledger("fresh.db").create("clinic", epsilon, 1e-6)
    assert f"100 % is left, worth epsilon = {epsilon:g}\n" in run(capsys, "ledger show --ledger fresh.db")


def test_a_bought_preprocessor_is_noted_in_the_ledger(here, capsys):
    book = dpmd_fast.Ledger("scales.db")
    book.create("clinic", 5.0, 1e-6)
    with open("limits.json", "w") as file:
        file.write('{"x": [-9, 9], "y": [-9, 9]}')
    words = "preprocess --reference reference.parquet --bounds limits.json --epsilon 1 --delta 1e-6"
    assert main(f"{words} --log none --ledger scales.db --dataset clinic -o scales.json".split()) == 0
    (spend,) = book.history("clinic")
    assert os.path.basename(spend.file) == "scales.json"
    words = "fit --reference reference.parquet --anchors queries.parquet --dim 1 --epsilon 2 --delta 1e-6"
    assert (
        main(f"{words} --preprocess scales.json --ledger scales.db --dataset clinic -o a.dpmd".split()) == 0
    )
    assert book.history("clinic")[1].parameters["preprocessing_mu2"] == pytest.approx(spend.mu2)


def bug():
    """A function of the package, as far as its file tells, in which NumPy raises an error with numbers."""
    place = os.path.join(os.path.dirname(dpmd_fast.__file__), "broken.py")
    space = {"np": np}
    code = f"def broken(*_, **__):\n    return np.zeros({N}) + np.zeros(12345)\n"
    exec(compile(code, place, "exec"), space)
    return space["broken"]


def test_bugs_are_told_without_values(here, capsys, monkeypatch):
    broken = bug()
    with pytest.raises(ValueError, match=f"{N}.*12345"):
        broken()
    monkeypatch.setattr("dpmd_fast.mechanisms.atlas.release.thinned", broken)
    assert main(f"{SEEDED} -o new.dpmd".split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("dpmd-fast: internal error, please report it: ValueError in broken.py, line 2")
    assert "12345" not in err
    assert str(N) not in err
    assert err.count("\n") == 1


def test_bugs_after_the_spend_are_told_without_values_too(here, capsys, monkeypatch):
    monkeypatch.setattr("dpmd_fast.mechanisms.atlas.rounds.make_charts", bug())
    assert main(f"{FIT} {PAID} -o new.dpmd".split()) == 2
    err = capsys.readouterr().err
    assert "the release failed after its debit" in err
    assert re.search(r"stays spent \(spend \d+\): ValueError$", err)
    assert "12345" not in err
    assert str(N) not in err


def test_warnings_take_one_line(here, capsys):
    assert (
        main(f"{FIT.replace('1e-6', '0.1')} --bandwidth 0.6 --rounds 1 --no-ledger -o new.dpmd".split()) == 0
    )
    err = capsys.readouterr().err
    assert err.startswith("dpmd-fast: warning: delta = 0.1 is not below 1/n")
    assert err.count("\n") == 1


def test_a_paid_result_whose_name_is_taken_meanwhile_is_saved_elsewhere_with_the_reason(tmp_path):
    def save(path):
        with atomic_write(path) as partial:
            Path(partial).write_text("paid for")
            if Path(path) == tmp_path / "a.dpmd":
                Path(path).write_text("of somebody else")

    with pytest.raises(OSError, match="got that name since the work began; the budget is spent, so") as told:
        rescued(str(tmp_path / "a.dpmd"), save)
    assert Path(str(told.value).rpartition("saved as ")[2]).read_text() == "paid for"
