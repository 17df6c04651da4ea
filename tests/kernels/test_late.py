"""Numba that arrives late: with which versions, after an interrupt, and beside other code that uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpmd_fast.kernels import late, saved

ROOT = Path(__file__).resolve().parents[2]
needs_tested_version = pytest.mark.skipif(
    late._minor_version() not in late.TESTED_VERSIONS, reason="Numba is imported at once"
)


def run(program, folder, *arguments):
    """Return what a program prints that is run with no settings of Numba's but its cache."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "DPMD_"))}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**kept, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split()


VERSION = """
import sys
from dpmd_fast.kernels import late
if sys.argv[1] != "this":
    late.numba_version = lambda: sys.argv[1].encode()
late.avoid()
import dpmd_fast.kernels.charts
print(late.is_avoided(), late.is_usual(), "numba" in sys.modules)
"""


@needs_tested_version
def test_a_tested_version_arrives_late(tmp_path):
    assert run(VERSION, tmp_path, "this") == ["True", "True", "False"]


@pytest.mark.parametrize(
    "said", ['"version": "0.67.9"', '"version": "0.680.1"', '"version": "0.69.0rc1"', "?"]
)
def test_another_version_is_imported_at_once_and_nothing_is_saved_for_it(tmp_path, said):
    assert run(VERSION, tmp_path, said) == ["False", "False", "True"]


INTERRUPT = """
import sys
from dpmd_fast.kernels import late
late.begin()
from dpmd_fast.kernels import narrow_charts
names = {(module.__name__, key) for module, key, _ in late._places()}
make = narrow_charts.move_narrow._make
def interrupted(function):
    narrow_charts.move_narrow._make = make
    raise KeyboardInterrupt
narrow_charts.move_narrow._make = interrupted
try:
    late.arrive()
except KeyboardInterrupt:
    print({(module.__name__, key) for module, key, _ in late._places()} == names)
late.arrive()
print(len(list(late._places())), late.is_active())
"""


@needs_tested_version
def test_an_arrival_that_was_interrupted_begins_again(tmp_path):
    assert run(INTERRUPT, tmp_path) == ["True", "0", "False"]


OTHER_CODE = """
import os
from dpmd_fast.kernels import late
late.begin()
from dpmd_fast.kernels import jit
import numba
numba.set_num_threads(1)  # starts its threads
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print(late.is_active(), jit.resolve_threads(None), jit._first_parallel_pid == os.getpid())
"""


@needs_tested_version
def test_what_other_code_did_with_numba_counts(tmp_path):
    assert run(OTHER_CODE, tmp_path) == ["True", "1", "True"]


DISABLED_SINCE = """
import os
from dpmd_fast.kernels import late
late.begin()
from dpmd_fast.kernels import narrow_charts
os.environ["NUMBA_DISABLE_JIT"] = "1"
late.arrive()
import numba
print(hasattr(narrow_charts.move_narrow, "overloads"), numba.config.DISABLE_JIT)
"""


@needs_tested_version
def test_a_compiler_that_was_switched_off_too_late_compiles(tmp_path):
    assert run(DISABLED_SINCE, tmp_path) == ["True", "1"]


def test_a_stand_in_takes_keywords():
    assert late.StandIn(divmod, lambda function: lambda a, b: function(a, b))(7, b=2) == (3, 1)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have other rules")
def test_the_folder_that_is_read_is_the_one_that_was_looked_at(tmp_path, monkeypatch):
    """A link that is turned from a folder of others to one of ours, between two looks, opens neither."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, mode in ((ours, 0o755), (theirs, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
        (folder / "narrow_charts.move_narrow.code").write_bytes(b"not to be read")
    answers = iter([str(theirs)])
    monkeypatch.setattr(os.path, "realpath", lambda path: next(answers, str(ours)))
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("read"))
    assert saved._read("narrow_charts.move_narrow") is None
