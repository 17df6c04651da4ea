"""How the inputs are distributed over what is fuzzed: ``make fuzz INPUTS=100000`` tries 100,000."""

import importlib
from pathlib import Path

import pytest

from fuzz.harness import INPUTS, SHARES


def all_tests():
    for path in sorted(Path(__file__).parent.glob("test_fuzz_*.py")):
        module = importlib.import_module(f"fuzz.{path.stem}")
        for name, test in vars(module).items():
            if hasattr(test, "share"):
                yield path.stem, name, test


def test_shares_add_up():
    tests = list(all_tests())
    assert sum(test.share for _, _, test in tests) == pytest.approx(SHARES)
    assert sum(test.count for _, _, test in tests) >= 0.999 * INPUTS
    # servers, mixtures and signed models are there, and not for form's sake
    for module in ("test_fuzz_serve", "test_fuzz_mixtures", "test_fuzz_signed"):
        assert sum(test.share for name, _, test in tests if name == module) >= 0.1
