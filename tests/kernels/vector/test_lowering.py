"""What the vector kernels become on processors that are not at hand: compiled for them, not run.

The code of an intrinsic is LLVM's own, without an instruction of one processor in it. LLVM splits its vectors
into what a target has.
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import numpy as np
import pytest

from dpmd_fast.kernels import signatures
from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector import lanes
from dpmd_fast.kernels.vector.tiles import add_gram

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")
TARGETS = {
    "NEON": ("aarch64-linux-gnu", "generic", "+neon"),
    "SVE": ("aarch64-linux-gnu", "neoverse-v1", ""),
    "SSE2": ("x86_64-linux-gnu", "x86-64", ""),
    "AVX2": ("x86_64-linux-gnu", "haswell", ""),
    "AVX-512": ("x86_64-linux-gnu", "skylake-avx512", "-prefer-256-bit"),
}
# how a target multiplies and adds vectors
FUSED = {
    "NEON": r"\bfmla\s+v\d+\.2d",
    "SVE": r"\bfml[as]\s|\bfmad\s",
    "SSE2": r"\bfma(@PLT)?\b",  # a function of the C library, lane by lane
    "AVX2": r"\bvfmadd\d+pd\s+.*%ymm",
    "AVX-512": r"\bvfmadd\d+pd\s+.*%ymm",
}


@kernel
def run_dot(A, B):
    return lanes.dot(A, 0, B, 0, len(A))


@kernel
def run_gram(panel, rows, C):
    add_gram(panel, panel.shape[1], rows, C, panel.shape[0])


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


def text_of(dispatcher):
    """LLVM's text of a kernel without Numba's functions that count references: they are of this processor."""
    text = next(iter(dispatcher.inspect_llvm().values()))
    text = re.sub(
        r"^define .*(@NRT_\w+)\(ptr.*\{$(.|\n)*?^\}$", r"declare void \1(ptr)", text, flags=re.MULTILINE
    )
    text = re.sub(r"^declare .*@llvm\.x86\.atomic.*$", "", text, flags=re.MULTILINE)
    assert "llvm.x86" not in text
    return text


@pytest.fixture(scope="module")
def texts():
    run_dot(np.ones(8), np.ones(8))
    run_gram(np.ones((2, 3, lanes.LANES)), 3, np.zeros((2 * lanes.LANES, 2 * lanes.LANES)))
    return [text_of(run_dot), text_of(run_gram)]


@pytest.mark.parametrize("target", TARGETS)
def test_products_and_sums_are_fused_on_every_target(target, texts):
    for text in texts:
        assert re.search(FUSED[target], assembly_for(target, text))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["NEON", "AVX-512"])
@pytest.mark.parametrize("name", [name for group in signatures.groups_of() for name in group])
def test_every_kernel_can_be_compiled_for(target, name):
    dispatcher = signatures.dispatcher_of(name)
    dispatcher.compile(signatures.types_of(name))
    assert assembly_for(target, text_of(dispatcher))
