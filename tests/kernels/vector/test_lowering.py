"""What the vector kernels become on processors that are not at hand: compiled for them, not run.

The code of an intrinsic is LLVM's own, but for one instruction of AVX-512 where the target has it
(`vector/runs.py`). Vectors are as wide as those of the target, and LLVM splits them where it has none of that
width.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from dpmd_fast.kernels import signatures
from dpmd_fast.kernels.jit import JIT_DISABLED

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")
TARGETS = {
    "NEON": ("aarch64-linux-gnu", "generic", "+neon"),
    "SVE": ("aarch64-linux-gnu", "neoverse-v1", ""),
    "SSE2": ("x86_64-linux-gnu", "x86-64", ""),
    "AVX2": ("x86_64-linux-gnu", "haswell", ""),
    "AVX-512": ("x86_64-linux-gnu", "skylake-avx512", ""),
}
# how a target multiplies and adds vectors
FUSED = {
    "NEON": r"\bfmla\s+v\d+\.2d",
    "SVE": r"\bfml[as]\s|\bfmad\s",
    "SSE2": r"\bfma(@PLT)?\b",  # a function of the C library, lane by lane
    "AVX2": r"\bvfmadd\d+pd\s+.*%ymm",
    "AVX-512": r"\bvfmadd\d+pd\s+.*%zmm",
}
# what Numba is told, so that it compiles for a processor that this one need not be
_AVX2 = "+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+popcnt,+sse4.2"
SETTINGS = {
    "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": _AVX2},
    "AVX-512": {
        "NUMBA_CPU_NAME": "skylake-avx512",
        "NUMBA_CPU_FEATURES": f"{_AVX2},+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512cd",
    },
}
REGISTER = {"AVX2": "ymm", "AVX-512": "zmm"}
# in the loop that does the work: an instruction, and how often a pass over it has it at least
WORK = {
    "gram": (r"vfmadd\d+pd", 12),
    "gram_of_rows": (r"vfmadd\d+pd", 12),
    "products": (r"vfmadd\d+pd", 12),
    "squares_in_singles": (r"vfmadd\d+ps", 12),
    "masks": (r"vfmadd\d+ps", 4),
    "dot": (r"vfmadd\d+pd", 1),
    "square_distance": (r"vfmadd\d+pd", 1),
    "add_multiple": (r"vfmadd\d+pd", 1),
    "add_differences": (r"vfmadd\d+pd", 1),
    "pack": (r"vsubpd", 1),
    "truncate": (r"vrndscalepd|vroundpd", 1),
    "truncated_square": (r"vfmadd\d+pd", 1),
    "add_chart": (r"vfmadd\d+pd", 12),
    "points_near_charts": (r"vfmadd\d+ps", 8),
    "chart_weights": (r"vfmadd\d+pd", 1),
    "chart_rows": (r"vfmadd\d+pd", 6),
}
IN_REGISTERS = ("gram", "gram_of_rows", "products", "squares_in_singles", "chart_rows")


@functools.cache
def compiled_as(target):
    """What `lowered.py` prints in a process that compiles for a target of SETTINGS."""
    settings = {"DPMD_FAST_CACHE": "0", "PYTHONPATH": os.pathsep.join(sys.path), **SETTINGS[target]}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[2] / "lowered.py")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def loops_of(assembly):
    """Pieces of code that jump back to their own beginning."""
    parts = re.split(r"^(\.LBB\w+):", assembly, flags=re.MULTILINE)
    for label, code in zip(parts[1::2], parts[2::2], strict=True):
        end = re.search(rf"^\s+j\w+\s+{re.escape(label)}$", code, flags=re.MULTILINE)
        if end:
            yield code[: end.end()]


def assembly_for(target, text):
    """LLVM's text of a kernel as the assembly of a target; fails where it holds what the target lacks."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, features = TARGETS[target]
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
    text = re.sub(r'^target (triple|datalayout) = ".*"$', "", text, flags=re.MULTILINE)
    text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = triple, str(machine.target_data)
    return machine.emit_assembly(module)


def without_counts(text):
    """LLVM's text of a kernel without Numba's functions that count references: they are of this processor."""
    text = re.sub(
        r"^define .*(@NRT_\w+)\(ptr.*\{$(.|\n)*?^\}$", r"declare void \1(ptr)", text, flags=re.MULTILINE
    )
    text = re.sub(r"^declare .*@llvm\.x86\.atomic.*$", "", text, flags=re.MULTILINE)
    assert "llvm.x86" not in text
    return text


@pytest.mark.parametrize("target", TARGETS)
def test_products_and_sums_are_fused_on_every_target(target):
    """Also where the text comes from a process that compiles for another one."""
    for name in ("dot", "gram"):
        text = compiled_as("AVX-512" if target == "AVX-512" else "AVX2")["texts"][name]["llvm"]
        assert re.search(FUSED[target], assembly_for(target, without_counts(text)))


@pytest.mark.parametrize("target", SETTINGS)
def test_vectors_are_as_wide_as_those_of_the_target(target):
    assert compiled_as(target)["width"] == {"AVX2": 4, "AVX-512": 8}[target]


@pytest.mark.parametrize("target", SETTINGS)
@pytest.mark.parametrize("name", WORK)
def test_loops_work_on_whole_registers(target, name):
    instruction, times = WORK[name]
    loops = list(loops_of(compiled_as(target)["texts"][name]["assembly"]))
    work = rf"\b(?:{instruction})\s.*%{REGISTER[target]}"
    busy = [loop for loop in loops if len(re.findall(work, loop)) >= times]
    assert busy
    if name in IN_REGISTERS:  # accumulators do not go through memory
        assert any("(%rsp)" not in loop and "(%rbp)" not in loop for loop in busy)


def test_an_exponential_of_many_numbers_is_vector_code():
    """By LLVM itself, which prefers 256 bits on some processors with 512."""
    for target in SETTINGS:
        loops = loops_of(compiled_as(target)["texts"]["exponentials"]["assembly"])
        assert any(re.search(r"\bvmulpd\s.*%[yz]mm", loop) for loop in loops)


def test_the_tile_of_a_gram_matrix_fills_the_registers_of_neon():
    """12 sums of four are 24 registers of two, and none of them goes through memory."""
    text = without_counts(compiled_as("AVX2")["texts"]["gram"]["llvm"])
    assembly = assembly_for("NEON", text)
    parts = re.split(r"^(\.LBB\w+):", assembly, flags=re.MULTILINE)[2::2]
    fused = [part for part in parts if len(re.findall(FUSED["NEON"], part)) >= 24]
    assert any("[sp" not in part for part in fused)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["NEON", "AVX-512"])
@pytest.mark.parametrize("name", [name for group in signatures.groups_of() for name in group])
def test_every_kernel_can_be_compiled_for(target, name):
    dispatcher = signatures.dispatcher_of(name)
    dispatcher.compile(signatures.types_of(name))
    text = next(iter(dispatcher.inspect_llvm().values()))
    assert assembly_for(target, without_counts(text))
