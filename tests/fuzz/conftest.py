"""The summary of a run of the fuzz tests, over all its processes."""

import ast
from collections import Counter

import pytest

GATHERED = Counter()


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """Calls have a limit of time, which is not for compiling."""
    from dpmd_fast import warmup

    warmup()


def pytest_sessionfinish(session):
    from fuzz.harness import TALLY

    told = {repr(key): count for key, count in TALLY.items()}
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = told
    else:
        GATHERED.update(TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    for key, count in getattr(node, "workeroutput", {}).get("fuzz", {}).items():
        GATHERED[ast.literal_eval(key)] += count


def pytest_terminal_summary(terminalreporter):
    if not sum(GATHERED.values()):
        return
    terminalreporter.section(f"fuzzing: {sum(GATHERED.values()):,} inputs")
    for family in sorted({family for (family, _), count in GATHERED.items() if count}):
        came = {outcome: count for (name, outcome), count in GATHERED.items() if name == family and count}
        parts = [f"{came[outcome]:,} {outcome}" for outcome in sorted(came)]
        terminalreporter.line(f"{family}: {sum(came.values()):,}: {'; '.join(parts)}")
    totals = Counter()
    for (_, outcome), count in GATHERED.items():
        totals[outcome.split(",")[0]] += count
    terminalreporter.line("; ".join(f"{count:,} {outcome}" for outcome, count in sorted(totals.items())))
