"""Other random numbers for all tests: ``DPMD_FAST_TEST_SEED=1`` adds to every seed that a test gives.

`make test-seeds` runs the suite with three shifts: a test that passes by a coincidence of its seed fails in
one of them. Seeds that the package itself chooses stay: they are part of its results. So do those of tests
marked `fixed_seed`, which compare with numbers that belong to a seed, and of child processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from dpmd_fast.privacy import entropy

SHIFT = 1_000_003 * int(os.environ.get("DPMD_FAST_TEST_SEED", "0"))
_TESTS = str(Path(__file__).parent)
_default_rng, _open_source = np.random.default_rng, entropy.open_source
_fixed = False


def hold(fixed: bool) -> None:
    """Leave seeds as they are, or shift them again."""
    global _fixed
    _fixed = fixed


def _shifted(seed):
    whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, (bool, np.bool_))
    if _fixed or not whole or seed < 0:
        return seed
    return int(seed) + SHIFT


def _from_a_test() -> bool:
    return str(sys._getframe(2).f_globals.get("__file__", "")).startswith(_TESTS)


def default_rng(seed=None):
    """NumPy's generator; of a shifted seed if a test asks for it."""
    return _default_rng(_shifted(seed) if _from_a_test() else seed)


def open_source(seed=None):
    """The noise of a release with a shifted seed, whoever asks for it."""
    return _open_source(_shifted(seed))


def install() -> None:
    """Shift seeds from now on, if the environment asks for it."""
    if SHIFT:
        np.random.default_rng = default_rng
        for module in list(sys.modules.values()):  # and where it was imported by name
            if getattr(module, "open_source", None) is _open_source:
                module.open_source = open_source
