"""Import, cache, fork: how the package behaves as a guest in somebody's process."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import dpmd_fast
from dpmd_fast import Budget, release_atlas


def run(code, *arguments, **environment):
    """Run code in a fresh interpreter and return what it prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_public_name_is_there():
    for name in dpmd_fast.__all__:
        assert getattr(dpmd_fast, name).__doc__
        assert name in dir(dpmd_fast)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dpmd_fast.nonsense


def test_without_the_compiler_all_folders_of_kernel_tests_are_run():
    tests = Path(__file__).parent
    marked = {
        str(path.relative_to(tests.parent).parent)
        for path in tests.rglob("test_*.py")
        if "pytest.mark.kernels" in path.read_text("utf-8") and path != Path(__file__)
    }
    (named,) = re.findall(r"^KERNELS = (.*)$", (tests.parent / "Makefile").read_text("utf-8"), re.M)
    assert {"/".join(folder.split(os.sep)[:2]) for folder in marked} == set(named.split())


def test_import_is_cheap_and_compiles_nothing():
    heavy, compiled, lazy = run(
        """
        import json, sys
        import dpmd_fast
        heavy = [m for m in ("sklearn", "pynndescent", "matplotlib", "pandas") if m in sys.modules]
        from dpmd_fast import DPManifoldDenoiser, gradient_descent, empirical_sensitivity, warmup
        from dpmd_fast.kernels import descent
        from dpmd_fast.kernels.search import balls
        from dpmd_fast.kernels.eigen import iteration as eigen
        from dpmd_fast.kernels.search import index
        from dpmd_fast.kernels.noise import normal
        from dpmd_fast.kernels import projectors, tangents
        from dpmd_fast.kernels.vector import tiles
        from dpmd_fast.kernels.eigen import tridiagonal
        modules = (balls, descent, eigen, index, normal, projectors, tangents, tiles, tridiagonal)
        kernels = [f for m in modules for f in vars(m).values() if hasattr(f, "signatures")]
        assert len(kernels) > 20
        compiled = sum(len(f.signatures) for f in kernels)
        print(json.dumps([heavy, compiled, "pynndescent" in sys.modules]))
        """
    )
    assert heavy == []
    assert compiled == 0
    assert lazy is False


def test_what_a_model_needs_to_move_points_is_all_that_is_imported(tmp_path):
    """SciPy's functions, and what Numba compiles with, would take as long to import as all the rest."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0.0, 6.0, 3_000)
    Y = np.column_stack([np.cos(angles), np.sin(angles)])
    for epsilon in (1.0, 50.0):
        budget = Budget(epsilon, 1e-6)
        atlas = release_atlas(Y, Y[:50] + 0.01, dim=1, budget=budget, accept_risk=True, seed=0)
        atlas.save(tmp_path / f"{epsilon}.dpmd")
    unwanted = run(
        """
        import json, sys
        import numpy as np
        from dpmd_fast import Atlas, Budget
        Budget(1.0, 1e-6)
        for path in sys.argv[1:]:
            Atlas.load(path).transform(np.zeros((1, 2)))
        unwanted = {"scipy.special", "scipy.linalg", "numba.np.linalg"}
        print(json.dumps(sorted(unwanted & set(sys.modules))))
        """,
        *map(str, tmp_path.iterdir()),
        DPMD_FAST_CACHE="1",
    )
    assert unwanted == []


COUNT = """
import json
import numpy as np
from dpmd_fast.kernels.search import balls
from dpmd_fast.kernels.search import index
Y = np.random.default_rng(0).normal(size=(100, 2))
counts = balls.count_neighbors(index.build_index(Y, 0.5), Y)
hits = sum(balls._count.stats.cache_hits.values())
print(json.dumps([int(counts.sum()), hits]))
"""


@pytest.mark.slow  # the gate has test_other_processes_compile_and_this_one_loads of test_compilation.py
def test_compiled_code_is_kept_between_processes(tmp_path):
    settings = {"NUMBA_CACHE_DIR": str(tmp_path), "DPMD_FAST_CACHE": "1"}
    first = run(COUNT, **settings)
    second = run(COUNT, **settings)
    assert any(tmp_path.rglob("*.nbi"))
    assert first[1] == 0
    assert second == [first[0], 1]


def test_a_forked_child_cannot_spend_the_budget_again():
    answers = run(
        """
        import json, os, warnings
        import numpy as np
        from dpmd_fast import Budget, DPManifoldDenoiser
        rng = np.random.default_rng(0)
        model = DPManifoldDenoiser(1.0, 1, Budget(1.0, 1e-6)).fit(rng.normal(size=(100, 2)))
        queries = rng.normal(size=(3, 2))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                model.transform(queries)
                answer = "spent"
            except RuntimeError as error:
                answer = str(error)
            os.write(write, answer.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        model.transform(queries)
        print(json.dumps(os.read(read, 1000).decode()))
        """,
        NUMBA_THREADING_LAYER="workqueue",
        DPMD_FAST_CACHE="1",
    )
    assert "fork" in answers


def test_a_forked_child_gets_an_answer_or_an_explanation():
    layer, child = run(
        """
        import json, os
        import numba
        import numpy as np
        from dpmd_fast.kernels.search import balls
        from dpmd_fast.kernels.search.index import build_index
        Y = np.random.default_rng(0).normal(size=(100, 2))
        index = build_index(Y, 0.5)
        expected = int(balls.count_neighbors(index, Y).sum())
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer = "right" if int(balls.count_neighbors(index, Y).sum()) == expected else "wrong"
            except RuntimeError as error:
                answer = str(error)
            os.write(write, answer.encode())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        os.close(write)
        print(json.dumps([numba.threading_layer(), os.read(read, 1000).decode() if status == 0 else "died"]))
        """,
        DPMD_FAST_CACHE="1",
    )
    if layer == "omp":
        assert "spawn" in child
    else:
        assert child == "right"
