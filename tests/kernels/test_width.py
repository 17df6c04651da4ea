"""The number of doubles in a vector: what chooses it; cached code of one width is not taken for another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.width import WIDTH, target_features, width_for

HASWELL = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
SKYLAKE = {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx512f,+avx512vl"}
EIGHT = {"DPMD_FAST_LANES": "8"}
COMPILE = """
from dpmd_fast.kernels import signatures
from dpmd_fast.kernels.jit import is_cached
from dpmd_fast.kernels.width import WIDTH
name = "vector.elementary._logs"
dispatcher, types = signatures.dispatcher_of(name), signatures.types_of(name)
print(WIDTH, is_cached(dispatcher, types))
dispatcher.compile(types)
"""


def run(code, **settings):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("features", "width"),
    [
        ("", 4),
        ("+avx,+avx2,+fma", 4),
        ("+avx2,+avx512f,+avx512vl", 8),
        ("+avx2,-avx512f", 4),
        ("+avx512f,-avx512f", 4),  # LLVM takes the last
        ("-avx512f,+avx512f", 8),
        ("+avx512fp16", 4),
        ("+neon,+sve", 4),
    ],
)
def test_the_width_follows_the_features(features, width):
    assert width_for(features) == width


@pytest.mark.skipif("DPMD_FAST_LANES" in os.environ, reason="asks for a width")
def test_here_it_follows_those_of_this_processor():
    assert width_for(target_features()) == WIDTH


@pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")
@pytest.mark.slow  # compiles
def test_cached_code_of_one_width_is_not_taken_for_another(tmp_path):
    """By Numba's keys, which have the name and the features of the processor, or by our digest."""
    tmp_path.chmod(0o700)
    folder = {"NUMBA_CACHE_DIR": str(tmp_path), "DPMD_FAST_CACHE": "1"}
    asked = [HASWELL, HASWELL, SKYLAKE, SKYLAKE, HASWELL, {**HASWELL, **EIGHT}, {**HASWELL, **EIGHT}]
    found = [run(COMPILE, **folder, **settings).stdout.split() for settings in asked]
    assert found == [
        ["4", "False"],
        ["4", "True"],
        ["8", "False"],
        ["8", "True"],
        ["4", "True"],  # both are kept, as where machines of two kinds share a home
        ["8", "False"],
        ["8", "True"],
    ]


@pytest.mark.parametrize("asked", ["2", "16", "wide"])
def test_other_widths_are_refused(asked):
    done = run("import dpmd_fast.kernels.width", DPMD_FAST_LANES=asked)
    assert done.returncode != 0
    assert f"DPMD_FAST_LANES must be 4 or 8, not {asked!r}" in done.stderr
