"""Same bits on every machine: routes run again as other processors, compilers and libraries would run them.

A machine is imitated in a process of its own, by settings that switch off what this processor has: the
compile target of the kernels, the kernels of OpenBLAS, the vector loops of NumPy, the functions of the C
library. What this processor lacks cannot be imitated: without AVX-512 the SkylakeX kernels of OpenBLAS do not
run, and neither do kernels compiled for it. Their vectors of eight do: LLVM splits them. With
AVX-512, vectors of four are those of AVX2.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import golden
import numpy as np
import pytest

import dpmd_fast
from dpmd_fast.kernels.jit import JIT_DISABLED

TESTS, PACKAGE = Path(__file__).parent, Path(dpmd_fast.__file__).parent
LIMIT = 1800  # seconds for a process, most of which compiles kernels
pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")


def numpy_features():
    """Instructions that NumPy chooses loops by and that this processor has, also those switched off here."""
    from numpy._core import _multiarray_umath as inner

    off = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").replace(",", " ").split()
    return [name for name in inner.__cpu_dispatch__ if inner.__cpu_features__[name] or name in off]


def has_avx512():
    from numpy._core import _multiarray_umath as inner

    return bool(inner.__cpu_features__["AVX512_SKX"])


WITHOUT = {
    "generic kernels": {"NUMBA_CPU_NAME": "generic"},  # SSE2: no fused multiply-add
    "kernels for AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
    "kernels with vectors of four": {"DPMD_FAST_LANES": "4"},
    "kernels with vectors of eight": {"DPMD_FAST_LANES": "8"},  # as with AVX-512, in halves
    "kernels hardly optimised": {"NUMBA_OPT": "1"},
    "OpenBLAS for SSE3": {"OPENBLAS_CORETYPE": "Prescott"},
    "OpenBLAS for Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS for Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "OpenBLAS for SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "NumPy's features off": {"NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features())},
    "C library without AVX2": {
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX2_Usable,-FMA_Usable"
    },
}
LIBRARIES = {
    key: value
    for name in ("OpenBLAS for SSE3", "NumPy's features off", "C library without AVX2")
    for key, value in WITHOUT[name].items()
}


def digests(*parts, **settings):
    """Digests of `golden.py` in a process with these settings."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "golden.py"), "show", *parts],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def differing(one, other):
    assert one.keys() == other.keys()
    return sorted(name for name in one if one[name] != other[name])


@pytest.fixture(scope="module")
def here():
    return golden.recorded(["small"])


def test_the_settings_have_an_effect():
    """Otherwise the tests below compare this machine with itself."""
    code = """
import numpy as np
A = np.random.default_rng(0).normal(size=(40, 40))
print(np.linalg.eigh(A + A.T)[1].tobytes().hex())
from numpy._core import _multiarray_umath as inner
print([name for name in inner.__cpu_dispatch__ if inner.__cpu_features__[name]])
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for settings in ({}, LIBRARIES)
    ]
    assert found[1][1] == "[]"
    if "openblas" in str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]):
        assert found[0][0] != found[1][0]


def test_no_bit_depends_on_libraries(here):
    assert differing(here, digests("small", **LIBRARIES)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT)
def test_no_bit_depends_on_the_machine(name, here):
    if name == "OpenBLAS for SkylakeX" and not has_avx512():
        pytest.skip("needs AVX-512")
    assert differing(here, digests("small", **WITHOUT[name])) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["generic kernels", "kernels with vectors of eight", "OpenBLAS for SSE3", "NumPy's features off"]
)
def test_no_bit_of_any_route_depends_on_the_machine(name):
    """All of `golden.py` but the plans, in which scikit-learn fits a mixture to the public points."""
    parts = [part for part in golden.PARTS if part not in ("plans", "small")]
    assert differing(digests(*parts), digests(*parts, **WITHOUT[name])) == []


# --- by the text of the package


ROOMS = ("baselines", "kernels", "mechanisms", "models", "privacy", "reference", "report", "tables")
LIBRARY = {"cov", "dot", "inner", "matmul", "tensordot", "vdot"}  # of NumPy, by BLAS
LAPACK = {"cholesky", "eig", "eigh", "eigvalsh", "inv", "lstsq", "pinv", "qr", "slogdet", "solve", "svd"}
SORTS = {"argsort", "argpartition"}
#: Where it does no harm, and why.
ALLOWED = {
    "kernels/search/index.py _sketch": "bounds that only prune: what they leave is measured exactly",
    "models/atlas_file.py _check_frames": "a check with a tolerance",
    "models/geometry/charts.py tangents_at": "a sparse product, which SciPy sums in the order of the columns",
}


def choices_of_libraries(tree):
    """Pairs of a function's name and what in it leaves sums to BLAS, vectors to LAPACK or ties to a sort."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                yield function.name, "@"
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name, owner = node.func.attr, ast.unparse(node.func.value)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if (owner == "np" and name in LIBRARY) or (owner.endswith("linalg") and name in LAPACK):
                yield function.name, f"{owner}.{name}"
            if name in SORTS and keywords.get("kind") != "'stable'":
                yield function.name, name
            if name == "einsum" and "optimize" in keywords:
                yield function.name, name


def test_nothing_public_is_left_to_blas_lapack_or_an_unstable_sort():
    found = set()
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            where = path.relative_to(PACKAGE).as_posix()
            for function, what in choices_of_libraries(ast.parse(path.read_text("utf-8"))):
                twin = where.startswith("kernels/vector/")  # runs only without the compiler
                if not twin and f"{where} {function}" not in ALLOWED:
                    found.add(f"{where} {function}: {what}")
    assert sorted(found) == []


@pytest.mark.parametrize(
    "text",
    ["A @ B", "np.linalg.eigh(A)", "np.argsort(a)", "np.einsum('i,i', a, a, optimize=True)", "np.dot(a, b)"],
)
def test_the_reader_of_the_text_sees(text):
    assert len(list(choices_of_libraries(ast.parse(f"def f():\n    return {text}")))) == 1
