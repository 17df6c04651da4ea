"""Every asv benchmark runs once at a tiny size, and what the scripts write is right."""

import ast
import importlib
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SUITES = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))
LONG = ("bench_atlas", "bench_import", "bench_inner", "bench_warmup")  # like the others, and longer
KINDS = ("time_", "peakmem_", "track_", "timeraw_")


@pytest.fixture(scope="module", autouse=True)
def tiny():
    """The benchmarks at their smallest size, imported anew."""
    known = {name for name in sys.modules if name.partition(".")[0] == "benchmarks"}
    assert not known, "another test has imported the benchmarks at another size"
    sys.path.insert(0, str(ROOT))
    os.environ["DPMD_BENCH_PROFILE"] = "tiny"
    yield
    del os.environ["DPMD_BENCH_PROFILE"]
    sys.path.remove(str(ROOT))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def classes_of(module):
    return [
        found
        for _, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__ and benchmarks_of(found)
    ]


def benchmarks_of(suite):
    return [name for name in dir(suite) if name.startswith(KINDS)]


def parameters_of(suite):
    params = getattr(suite, "params", ())
    if params and not isinstance(params[0], (tuple, list)):
        params = (params,)
    return list(itertools.product(*params))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SUITES]
)
def test_every_benchmark_runs(name):
    module = importlib.import_module(f"benchmarks.{name}")
    suites = classes_of(module)
    assert suites, "no benchmark found"
    assert [key for key in vars(module) if key.startswith(KINDS)] == []  # only classes have settings
    for suite in suites:
        assert issubclass(suite, importlib.import_module("benchmarks.common").Suite)
        for parameters in parameters_of(suite):
            made = suite()
            getattr(made, "setup", lambda *_: None)(*parameters)
            for benchmark in benchmarks_of(suite):
                result = getattr(made, benchmark)(*parameters)
                if benchmark.startswith("timeraw_"):
                    subprocess.run([sys.executable, "-c", result], check=True, timeout=60)
                elif benchmark.startswith("track_"):
                    assert np.isfinite(result)
                    assert result > 0.0
            getattr(made, "teardown", lambda *_: None)(*parameters)


def test_profile_is_one_of_three():
    command = [sys.executable, "-c", "import benchmarks.common"]
    settings = {**os.environ, "DPMD_BENCH_PROFILE": "huge", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DPMD_BENCH_PROFILE = 'huge'" in done.stderr


@pytest.fixture
def asv_results(tmp_path):
    """A folder as asv leaves it: two parameters, a failure, one that does not apply, a stale benchmark."""
    described = {
        "bench_a.One.time_x": {"unit": "seconds", "param_names": ["case", "threads"]},
        "bench_a.One.peakmem_x": {"unit": "bytes", "param_names": []},
        "bench_b.Two.track_y": {"unit": "share", "param_names": []},
        "version": 2,
    }
    results = {
        "bench_a.One.time_x": [[0.0123, None, float("nan"), 2.0], [["Case(D=3)", "Case(D=60)"], ["1", "2"]]],
        "bench_a.One.peakmem_x": [[300 * 2**20], []],
        "bench_b.Two.track_y": [[0.585], []],
        "bench_c.Gone.time_z": [[1.0], []],
    }
    (tmp_path / "here").mkdir()
    (tmp_path / "benchmarks.json").write_text(json.dumps(described))
    (tmp_path / "here" / "machine.json").write_text("{}")
    stored = {"result_columns": ["result", "params", "version"], "results": results}
    (tmp_path / "here" / "abc.json").write_text(json.dumps(stored))
    return tmp_path


def test_asv_results_as_tables(asv_results, capsys):
    asv_tables = importlib.import_module("benchmarks.asv_tables")
    output = asv_results / "out" / "suites.md"
    assert asv_tables.main(["--results", str(asv_results), "--output", str(output)]) == 1
    text = output.read_text()
    assert "| One.time_x | D=3, threads=1 | 12.3 ms |" in text
    assert "| One.time_x | D=3, threads=2 | **failed** |" in text
    assert "| One.time_x | D=60, threads=1 | not applicable |" in text
    assert "| One.time_x | D=60, threads=2 | 2 s |" in text
    assert "| One.peakmem_x |  | 300 MB |" in text
    assert (
        "## bench_b\n\n| benchmark | parameters | result |\n| --- | --- | --- |\n| Two.track_y |  | 58% |"
        in text
    )
    assert "Gone" not in text
    assert "6 results of 3 benchmarks, 1 failed" in text
    assert "processor:" in text
    assert "failed: bench_a.One.time_x" in capsys.readouterr().err


def test_no_asv_results(tmp_path):
    asv_tables = importlib.import_module("benchmarks.asv_tables")
    with pytest.raises(FileNotFoundError, match="make bench"):
        asv_tables.newest(tmp_path)


def test_scaling_table_fits_exponents():
    scaling = importlib.import_module("benchmarks.scaling")
    assert scaling.exponent([1.0, 10.0, 100.0], [2.0, 20.0, 200.0]) == pytest.approx(1.0)
    assert scaling.exponent([1.0, 10.0], [5.0, 500.0]) == pytest.approx(2.0)
    cells = [(float(n), scaling.Cell("moments", n=n)) for n in (10, 100, 1000)]
    short = [(10.0, scaling.Cell("paper", n=10)), (100.0, scaling.Cell("paper", n=100))]
    found = {cell: scaling.Measured(cell.n * 1e-3, 3 * 2**20) for _, cell in [*cells, *short]}
    text = scaling.show_axis("n", scaling.Axis("Title", "Text.", {"moments": cells, "paper": short}), found)
    lines = text.splitlines()
    assert lines[4] == "| n | `release_moments` s | MB | paper's route s | MB |"
    assert lines[6] == "| 10 | 0.01 | 3 | 0.01 | 3 |"
    assert lines[8] == "| 1,000 | 1 | 3 |  |  |"
    assert lines[9] == "| exponent | 1.00 | 0.00 | 1.00 | 0.00 |"


def test_charts_are_the_locations_of_an_atlas():
    scaling = importlib.import_module("benchmarks.scaling")
    axis = scaling.axes(quick=True)["K"]
    found = {}
    for route, row in axis.cells.items():
        for place, (_, cell) in enumerate(row):
            found[cell] = scaling.Measured(1.0 + place, 2**20, 0 if route == "moments" else 50 * (place + 1))
    text = scaling.show_axis("K", axis, found)
    assert "| 50 |  |  | 1 | 1 | 1 | 1 |" in text
    assert "| 20 | 1 | 1 |  |  |  |  |" in text


def test_interrupted_scaling_goes_on(tmp_path, monkeypatch):
    scaling = importlib.import_module("benchmarks.scaling")
    cell = scaling.Cell("transform", m=7)
    axis = scaling.Axis("Title", "Text.", {"transform": [(7.0, cell)]})
    kept = tmp_path / "cells.jsonl"
    calls = []
    monkeypatch.setattr(scaling, "measure", lambda *a: calls.append(a) or scaling.Measured(0.5, 10, 3))
    assert scaling.measure_axis(axis, kept) == {cell: scaling.Measured(0.5, 10, 3)}
    assert scaling.measure_axis(axis, kept) == {cell: scaling.Measured(0.5, 10, 3)}
    assert len(calls) == 1


@pytest.mark.parametrize(
    "route",
    ["moments", "atlas", *(pytest.param(route, marks=pytest.mark.slow) for route in ("transform", "paper"))],
)
@pytest.mark.filterwarnings("ignore")
def test_scaling_cell(route, tmp_path):
    scaling = importlib.import_module("benchmarks.scaling")
    cell = scaling.Cell(route, n=2_000, D=3, d=1, m=40, K=10)
    scaling.write_file(cell, tmp_path, locations=40)
    found = scaling.measure_here(cell, tmp_path)
    assert found.seconds > 0.0
    assert found.memory >= 0
    assert (found.charts > 0) == (route in ("atlas", "transform"))


def test_cells_of_other_code_are_measured_again(tmp_path):
    scaling = importlib.import_module("benchmarks.scaling")
    cells, found = [scaling.Cell("moments", n=n) for n in (1, 2)], scaling.Measured(0.5, 7)
    lines = [[scaling.code(), cells[0], found], ["other", cells[1], found]]
    path = tmp_path / "cells.jsonl"
    assert scaling.kept(path) == {}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert scaling.kept(path) == {cells[0]: found}


def test_limits_table():
    limits = importlib.import_module("benchmarks.limits")
    rates = {"DGEMM": 80e9, "copy": 10e9, "cipher": 5e9}
    stage = limits.Stage("sums", 2.0, 80e9, "DGEMM", "7 records")
    lines = limits.show_stages([stage], rates).splitlines()
    assert lines[-1] == "| sums | 2 | 7 records/s | 40 Gflop/s | DGEMM, 80 Gflop/s | 50% |"
    pruned = limits.show_stages([stage._replace(pruned=20e9)], rates).splitlines()
    assert pruned[-1] == "| sums | 2 | 7 records/s | 40 Gflop/s | DGEMM, 80 Gflop/s | 50% (38%) |"
    assert "| AES-256-CTR, 1 thread | 5.00 GB/s |" in limits.show_limits(rates)


def test_accounting_agrees_with_peers():
    pytest.importorskip("dp_accounting")
    pytest.importorskip("mpmath")
    privacy = importlib.import_module("benchmarks.compare_privacy")
    sigmas = [2.0, 3.0, 7.0]
    mu = float(np.sqrt(sum(sigma**-2 for sigma in sigmas)))
    exact = privacy.exact_epsilon(mu, privacy.DELTA)
    found = {answer.side: answer for answer in privacy.accounting_answers(sigmas, 1.0)}
    assert found["dpmd_fast gdp_epsilon"].call() == pytest.approx(exact, rel=1e-13)
    assert found["dp-accounting get_epsilon_gaussian"].call() == pytest.approx(exact, rel=1e-10)
    assert found["dpmd_fast 1 / gdp_mu"].call() == pytest.approx(
        privacy.exact_sigma(1.0, privacy.DELTA), rel=1e-13
    )
    assert found["dpmd_fast zcdp_epsilon"].call() > exact


def test_search_sides_agree():
    search = importlib.import_module("benchmarks.compare_search")
    common = importlib.import_module("benchmarks.common")
    case = common.Case(3, 300, 2, m=5, ball=20)
    sides = search.sides_of(case, common.make_problem(case), 50)
    counts = {name: np.asarray(call()) for name, (call, _) in sides.items()}
    ours = counts.pop("dpmd_fast")
    assert ours.min() >= 1
    for name, other in counts.items():
        assert np.count_nonzero(other != ours) <= (1 if "faiss" in name else 0), name


def test_report_is_written_as_it_comes(tmp_path, capsys):
    markdown = importlib.import_module("benchmarks.markdown")
    output = tmp_path / "new" / "report.md"

    def parts():
        yield "# one"
        assert output.read_text() == "# one\n"
        yield markdown.table(["a", "b"], [["1", "2"]])

    markdown.print_report(parts(), output)
    assert output.read_text() == "# one\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert capsys.readouterr().out.startswith("# one\n\n| a | b |")


def test_latencies_are_those_of_every_client_and_side():
    latency = importlib.import_module("benchmarks.latency")
    calls = {"short": lambda X: time.sleep(1e-3), "long": lambda X: time.sleep(4e-3)}
    found = latency.timed(calls, np.zeros((1, 1)), 2, 0.02)
    for name, least in (("short", 1e-3), ("long", 4e-3)):
        assert len(found[name].all) >= 2 * latency.TURNS  # two clients, at least once in every turn
        assert least <= found[name].median <= found[name].high
    assert latency.Times([float(number) for number in range(100)]).high == 99.0
    assert latency.Times([3.0, 1.0, 2.0]).high == 3.0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_busy_process_ends():
    latency = importlib.import_module("benchmarks.latency")
    before = set(children())
    with latency.busy_process():
        during = set(children()) - before
        assert len(during) == 1
    assert set(children()) == before


def children():
    """Process ids of the children of this process."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_growth_counts_memory_that_was_free_before():
    memory = importlib.import_module("benchmarks.memory")
    for _ in range(20):
        np.ones(3_000_000)  # leaves 24 MB behind that the C library may keep
    _, grown, kept = memory.growth(lambda: np.ones(3_000_000))
    assert 0.9 * kept.nbytes < grown < 1.5 * kept.nbytes
    assert memory.growth(lambda: None)[1] < 4 * 2**20


@pytest.mark.parametrize(
    ("name", "features", "kind"),
    [
        ("AMD EPYC", "fpu sse2 avx2", "amd-epyc-avx2"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "sse2 avx2 avx512f", "intel-xeon-avx512"),
        ("AMD EPYC 7763 64-Core Processor", "sse2 avx2", "amd-epyc-7763-avx2"),
        ("AMD EPYC (Zen 5)", "avx2 avx512f", "amd-epyc-zen-5-avx512"),
        ("Neoverse-N1", "fp asimd", "neoverse-n1-neon"),
    ],
)
def test_results_are_named_by_the_kind_of_processor(name, features, kind):
    markdown = importlib.import_module("benchmarks.markdown")
    assert markdown.kind_of_processor(name, features) == kind
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", markdown.kind_of_processor())


def test_two_states_of_the_code_are_compared():
    from benchmarks import before_after

    turns = [{"sums, s": 2.0, "one row, us": 9.0}, {"sums, s": 1.0, "one row, us": 5.0}]
    turns.append({"sums, s": 3.0, "one row, us": 6.0})
    assert before_after.best(turns) == {"sums, s": 1.0, "one row, us": 6.0}
    found = before_after.compared({"before": {"sums, s": 4.0}, "after": {"sums, s": 0.5}})
    assert found.splitlines()[-1] == "| sums, s | 4 | 0.5 | 8.00 |"
    assert before_after.environment(Path("/other"))["PYTHONPATH"] == "/other"


def test_stages_are_measured_by_public_names_alone():
    """So that any state of the code can be measured."""
    tree = ast.parse((ROOT / "benchmarks/before_after_stages.py").read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert {name for name in names if name.startswith(("dpmd_fast", "benchmarks"))} == {"dpmd_fast"}
