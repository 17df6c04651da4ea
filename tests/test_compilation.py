"""Kernels are ready before anything is spent: all of them are named, and the wait can be interrupted."""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from interrupts import SIGNALS, compiling, interrupted, make_files

import dpmd_fast
from dpmd_fast import Budget, compilation, release_moments
from dpmd_fast.cli import console
from dpmd_fast.kernels import jit, signatures

LIMIT = 300  # seconds for a process
KERNELS = Path(jit.__file__).parent
NAMED = [name for group in signatures.groups_of() for name in group]
compiled = pytest.mark.skipif(jit.JIT_DISABLED, reason="needs the compiler")


def run(code, *arguments, **settings):
    """What a program prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "DPMD_FAST_CACHE": "1", **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# --- what is named


def test_every_kernel_is_named_with_the_types_of_all_its_arguments():
    found = set()
    for path in KERNELS.rglob("*.py"):
        module = ".".join(path.relative_to(KERNELS).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                "kernel" in ast.unparse(one) for one in node.decorator_list
            ):
                found.add(f"{module}.{node.name}")
    assert found == set(NAMED)
    assert len(NAMED) == len(set(NAMED))
    for name in NAMED:
        function = signatures.dispatcher_of(name)
        arguments = inspect.signature(getattr(function, "py_func", function)).parameters
        assert len(arguments) == len(signatures.types_of(name)), name


def test_purposes_name_routes_and_routes_name_kernels():
    for routes in compilation.PURPOSES.values():
        assert signatures.groups_of(*routes)
    every = {name for route in signatures.ROUTES for group in signatures.groups_of(route) for name in group}
    assert every == set(NAMED)


ROUTES = """
    import json, os, sys, tempfile
    import numpy as np, pyarrow as pa
    import numba.core.event as events
    import dpmd_fast as d
    from dpmd_fast import compilation
    from dpmd_fast.privacy.ledger.charge import Charge

    # compilations that `ensure` has not asked for: of kernels whose types differ from what is named
    unasked, inside = [], []

    class Watch(events.Listener):
        def on_start(self, event):
            if not inside:
                unasked.append(f"{event.data['dispatcher'].__name__}{event.data['args']}")
        def on_end(self, event):
            pass

    events.register("numba:compile", Watch())
    prepare = compilation._prepare
    def watched(routes):
        inside.append(routes)
        try:
            prepare(routes)
        finally:
            inside.pop()
    compilation._prepare = watched

    rng = np.random.default_rng(0)
    def circle(n, columns=2):
        angle = rng.uniform(0.0, 6.2832, n)
        out = 0.02 * rng.normal(size=(n, columns))
        out[:, 0] += np.cos(angle); out[:, 1] += np.sin(angle)
        return out

    def read_only(A):
        out = A.copy()
        out.flags.writeable = False
        return out

    budget, large = d.Budget(1.0, 1e-6), d.Budget(50.0, 1e-3)
    Y, Z = circle(2000), circle(60)
    wide, wide_public = circle(3000, 24), circle(80, 24)
    holes = Y.copy(); holes[::7, 1] = np.nan
    kinds = {
        "float64": lambda A: A,
        "float32": lambda A: A.astype(np.float32),
        "columns": np.asfortranarray,
        "strided": lambda A: np.repeat(A, 2, axis=1)[:, ::2],
        "read-only": read_only,
        "table": lambda A: pa.table({f"c{i}": A[:, i] for i in range(A.shape[1])}),
    }
    for name in sys.argv[1:]:
        kind = kinds[name]
        d.release_moments(kind(Y), kind(Z), bandwidth=0.5, budget=budget)
        atlas = d.release_atlas(kind(Y), kind(Z), dim=1, rounds=2, budget=large, accept_risk=True)
        d.release_atlas(kind(Y), kind(Z), dim=1, budget=large, accept_risk=True, noise=0.02)
        atlas.transform(kind(Z))
        names = ("c0", "c1") if name == "table" else None
        units = d.Preprocessor((0.1,) * 2, (0.9,) * 2, column_names=names)
        d.release_atlas(kind(Y), kind(Z), dim=1, budget=large, accept_risk=True,
            preprocess=units).transform(kind(Z))
        made = d.release_atlas(kind(wide), kind(wide_public), dim=1, budget=large, accept_risk=True)
        assert made.subspace is not None
        made.transform(kind(wide_public))
        mixed = d.release_mixture(kind(holes), public=kind(Z), budget=large, components=2, rounds=1,
            accept_risk=True, noise=0.1)
        mixed.transform(kind(holes), 0.1)
        d.release_mixture(kind(Y), budget=large, components=2, accept_risk=True, on_missing="drop")
        bounds = {f"c{i}": (-2.0, 2.0) for i in range(2)} if name == "table" else [(-2.0, 2.0)] * 2
        d.private_preprocessor(kind(Y), bounds=bounds, budget=large)
        if name == "table":
            continue
        for mechanism in ("moments", "projector"):
            model = d.DPManifoldDenoiser(0.5, 1, budget, mechanism=mechanism, steps=2)
            model.fit(kind(Y)).transform(kind(Z))
        model = d.DPManifoldDenoiser(2.0, 1, budget, mechanism="projector").fit(kind(wide))
        model.transform(kind(wide_public))
        d.dp_projector(kind(Y), Z[0], 0.5, 1, budget)
    path = os.path.join(tempfile.mkdtemp(), "atlas.dpmd")
    made.save(path)
    compilation.ensure("transform", "coordinates")
    d.Atlas.load(path).transform(wide_public)
    print(json.dumps(sorted(set(unasked))))
"""


@compiled
@pytest.mark.parametrize(
    "kind", ["float64 read-only", pytest.param("float32 columns strided table", marks=pytest.mark.slow)]
)
def test_no_route_compiles_anything_but_what_is_named(kind):
    assert run(ROUTES, *kind.split()) == []


@compiled
@pytest.mark.slow
def test_baselines_compile_nothing_but_what_is_named():
    code = """
    import json
    import numpy as np, dpmd_fast as d
    import numba.core.event as events
    d.warmup()
    Y = np.random.default_rng(0).normal(size=(300, 3))
    with events.install_recorder("numba:compile") as seen:
        d.ManifoldDenoiser(1.0, 1).fit(Y).transform(Y[:5])
        d.gradient_descent(Y, Y[:5], 1.0, 1, steps=2)
        d.empirical_sensitivity(Y, Y[:2], 1.0, 1)
    print(json.dumps(len(seen.buffer)))
    """
    assert run(code) == 0


# --- before the debit


def test_kernels_are_made_ready_before_the_debit(monkeypatch, ledger):
    happened = []
    monkeypatch.setattr(compilation, "_ready", set())
    monkeypatch.setattr(compilation, "_prepare", lambda routes: happened.append(tuple(routes)))
    spend = type(ledger).spend

    def spending(self, *arguments, **options):
        happened.append("debit")
        return spend(self, *arguments, **options)

    monkeypatch.setattr(type(ledger), "spend", spending)
    Y = np.random.default_rng(0).normal(size=(100, 2))
    paid = {"budget": Budget(0.5, 1e-7), "ledger": ledger, "dataset": "people"}
    release_moments(Y, Y[:5] + 0.1, bandwidth=1.0, **paid)
    assert happened == [("moments",), "debit"]
    release_moments(Y, Y[:5] + 0.1, bandwidth=1.0, **paid)  # looks once in a process
    assert happened == [("moments",), "debit", "debit"]


def test_an_interruption_while_kernels_are_compiled_spends_nothing(monkeypatch, ledger):
    def interrupt(routes):
        raise KeyboardInterrupt

    monkeypatch.setattr(compilation, "_ready", set())
    monkeypatch.setattr(compilation, "_prepare", interrupt)
    Y = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.raises(KeyboardInterrupt):
        release_moments(
            Y, Y[:5] + 0.1, bandwidth=1.0, budget=Budget(0.5, 1e-7), ledger=ledger, dataset="people"
        )
    assert ledger.history("people") == ()


# --- processes that compile

WARM = """
    import json
    from dpmd_fast import compilation
    from dpmd_fast.kernels.signatures import dispatcher_of, groups_of
    import numba.core.event as events
    told = []
    with events.install_recorder("numba:compile") as seen, compilation.reporting(lambda *n: told.append(n)):
        compilation.ensure("noise")
    kernels = [dispatcher_of(name) for group in groups_of("noise") for name in group]
    hits = [sum(kernel.stats.cache_hits.values()) for kernel in kernels]
    print(json.dumps([told, len(seen.buffer), hits]))
"""


@compiled
def test_other_processes_compile_and_this_one_loads(tmp_path):
    told, own, hits = run(WARM, NUMBA_CACHE_DIR=str(tmp_path))
    assert told == [[done, 3] for done in range(4)]
    assert own == 0
    assert hits == [1, 1, 1]
    assert run(WARM, NUMBA_CACHE_DIR=str(tmp_path)) == [[], 0, [1, 1, 1]]  # nothing to say


@compiled
@pytest.mark.slow
def test_without_a_cache_this_process_compiles(tmp_path):
    told, own, hits = run(WARM, NUMBA_CACHE_DIR=str(tmp_path), DPMD_FAST_CACHE="0")
    assert told == [[done, 3] for done in range(4)]
    assert own > 0
    assert hits == [0, 0, 0]
    assert not any(tmp_path.rglob("*.nbi"))


@compiled
@pytest.mark.slow
def test_this_process_compiles_where_no_other_can_be_started(tmp_path):
    told, own, _ = run(
        WARM.replace("told = []", "import sys; sys.executable = '/nowhere'; told = []"),
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert told[-1] == [3, 3]
    assert own > 0


def shared_out(groups, *, few):
    """The groups that two processes take that are ready in turn."""
    work, taken, families = compilation._Work(groups, few=few), ([], []), (set(), set())
    for turn in range(len(groups)):
        group = work.next_for(families[turn % 2])
        families[turn % 2].add(work.start(group))
        taken[turn % 2].append(group)
    assert work.next_for(set()) is None
    return taken


def test_few_processes_compile_kernels_with_the_same_helpers_one_after_the_other():
    groups = signatures.groups_of("atlas")
    first, second = shared_out(groups, few=True)
    assert sorted(first + second) == sorted(groups)
    assert {signatures.family_of(group[0]) for group in first[:2]} == {"search"}
    assert "search" not in {signatures.family_of(group[0]) for group in second}
    alone = shared_out(signatures.groups_of("search", "descent"), few=True)  # nearly all of one family
    assert min(map(len, alone)) == max(map(len, alone)) - len(alone[0] + alone[1]) % 2


def test_many_processes_take_the_longest_group_that_is_left():
    groups = signatures.groups_of()
    assert shared_out(groups, few=False) == (groups[::2], groups[1::2])


def test_families_are_of_groups():
    assert set().union(*signatures._FAMILIES.values()) <= set(signatures._GROUPS)
    assert signatures.family_of("sums.moments._clip_block") == signatures.family_of("search.balls._count")
    assert signatures.family_of("noise.exact_normal.fill") == "exact noise"


COLD = """
    import json, sys
    import numpy as np
    import dpmd_fast as d
    import numba.core.event as events
    with events.install_recorder("numba:compile") as seen:
        d.Atlas.load(sys.argv[1]).transform(np.zeros((3, 2)))
    from dpmd_fast import compilation
    print(json.dumps([len(seen.buffer), sorted(compilation.seconds)]))
"""


@compiled
@pytest.mark.slow
def test_the_first_transform_has_others_compile_what_it_needs_and_no_more(tmp_path):
    angles = np.linspace(0.0, 6.28, 500)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    path = str(tmp_path / "circle.dpmd")
    options = {"dim": 1, "budget": Budget(50.0, 1e-3), "accept_risk": True}
    dpmd_fast.release_atlas(circle, circle[::10] + 0.01, **options).save(path)
    own, kernels = run(COLD, path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert own == 0
    assert kernels == sorted(name for group in signatures.groups_of("transform") for name in group)
    assert len(kernels) == 4  # of the index and of narrow charts


def test_without_the_compiler_there_is_nothing_to_do():
    code = "import dpmd_fast; dpmd_fast.warmup(); print(1)"
    assert run(code, NUMBA_DISABLE_JIT="1") == 1


def test_an_unknown_purpose_is_refused():
    with pytest.raises(ValueError, match=r"purpose = 'all of it': must be one of 'transform', "):
        dpmd_fast.warmup("all of it")


WAITING = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from dpmd_fast import compilation
    def started(done, total):
        print(done, total, flush=True)
    with compilation.reporting(started):
        compilation.ensure("paper")
"""


@compiled
@pytest.mark.parametrize("number", [pytest.param(SIGNALS[0], marks=pytest.mark.slow), SIGNALS[1]])
def test_the_wait_ends_at_once_and_leaves_no_process(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WAITING)],
        env={**os.environ, "DPMD_FAST_CACHE": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline().startswith("0 ")
    time.sleep(2.0)  # the others are in the compiler
    assert compiling(str(tmp_path)) > 0
    start = time.perf_counter()
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    assert time.perf_counter() - start < 5.0
    deadline = time.perf_counter() + 20.0  # SIGTERM ends Python without a word: they notice by themselves
    while compiling(str(tmp_path)) and time.perf_counter() < deadline:
        time.sleep(0.1)
    assert compiling(str(tmp_path)) == 0
    process.stdout.close()


# --- on the command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("interrupts")
    make_files(made, 20_000)
    return made


@compiled
@pytest.mark.parametrize(
    ("number", "after"),
    [
        (SIGNALS[0], 4.0),
        (SIGNALS[1], 0.7),
        pytest.param(SIGNALS[0], 0.7, marks=pytest.mark.slow),
        pytest.param(SIGNALS[1], 4.0, marks=pytest.mark.slow),
    ],
)
def test_a_cold_fit_that_is_interrupted_spends_nothing(folder, tmp_path, number, after):
    done = interrupted(folder, number, after, str(tmp_path))
    assert done.spends == 0
    assert done.honest or after < 1.0, done  # the very start of Python says nothing
    assert done.seconds < 5.0
    assert done.left == 0
    assert done.code in (130, 143, -signal.SIGTERM, -signal.SIGINT, 1)


@compiled
@pytest.mark.slow
def test_a_fit_that_is_interrupted_at_any_moment_says_what_it_spent(folder, tmp_path):
    warm = str(tmp_path / "warm")
    start = time.perf_counter()
    assert interrupted(folder, signal.SIGINT, LIMIT, warm).recorded
    cold = time.perf_counter() - start
    start = time.perf_counter()
    assert interrupted(folder, signal.SIGINT, LIMIT, warm).recorded
    whole = time.perf_counter() - start
    for step in range(10):
        for number in SIGNALS:
            done = interrupted(folder, number, (0.15 + 0.085 * step) * whole, warm)
            assert done.honest, (step, done)
        done = interrupted(folder, SIGNALS[step % 2], (0.1 + 0.085 * step) * cold, str(tmp_path / f"{step}"))
        assert done.honest, (step, done)


def test_a_terminal_shows_one_line_that_goes_away(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.compilation_shown():
        for done in (0, 1, 31):
            compilation._watcher(done, 31)
    first, second, gone, end = capsys.readouterr().err.split("\r")[1:]
    assert first == "compiling kernels, once: 0 of 31"
    assert second == "compiling kernels, once: 1 of 31"
    assert gone.strip() == ""
    assert len(gone) == len(second)
    assert end == ""
    with console.compilation_shown():
        compilation._watcher(5, 31)
    assert capsys.readouterr().err == "\rcompiling kernels, once: 5 of 31\n"  # what follows gets its own line
    monkeypatch.setattr(console.Quiet, "asked", True)
    with console.compilation_shown():
        compilation._watcher(5, 31)
    assert capsys.readouterr().err == ""


def test_no_line_where_nobody_looks(capsys):
    with console.compilation_shown():
        compilation._watcher(5, 31)
    assert capsys.readouterr().err == ""
