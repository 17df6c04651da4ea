"""Run all audits: ``dpmd-fast audit`` or ``python -m dpmd_fast.lab.audit``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpmd_fast.lab.audit import atlas, cases, controls, mixture, replays
from dpmd_fast.lab.audit.attacks import DELTA, Finding


def table(findings: Sequence[Finding]) -> str:
    """Format findings as a Markdown table."""
    titles = [
        "mechanism",
        "attacked",
        "claimed mu",
        "mu of the pair",
        "audited mu >=",
        "of the claim",
        "claimed eps",
        "audited eps >=",
        "verdict",
    ]
    lines = [titles, ["---"] * len(titles)]
    for found in findings:
        lines.append(
            [
                found.name,
                found.releases,
                f"{found.claimed:.3f}",
                "" if found.pair is None else f"{found.pair:.3f}",
                f"{found.mu:.3f}",
                f"{found.mu / found.claimed:.2f}",
                f"{found.claimed_epsilon:.2f}",
                f"{found.epsilon:.2f}",
                found.verdict,
            ]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def run(effort: float = 1.0, progress: Callable[[str], Any] = lambda name: None) -> Iterator[Finding]:
    """Run the mechanisms first, then the negative controls. `effort` scales the number of releases."""
    for name, group in (*cases.GROUPS, *atlas.GROUPS, *mixture.GROUPS, *controls.GROUPS):
        progress(name)
        yield from group(effort)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all audits and print two tables; return 1 if a claim is contradicted or a control is not caught."""
    parser = argparse.ArgumentParser(prog="python -m dpmd_fast.lab.audit", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the releases and pairs")
    parser.add_argument("--pairs", type=int, help=f"to replay, {replays.PAIRS:,} by default")
    parser.add_argument("--only", choices=("attacks", "replay"), help="leave the other half out")
    options = parser.parse_args(arguments)
    pairs = options.pairs or (replays.PAIRS // 10 if options.quick else replays.PAIRS)
    started = time.monotonic()

    def progress(name: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {name}", file=sys.stderr, flush=True)

    findings = []
    for found in run(0.1 if options.quick else 1.0, progress) if options.only != "replay" else ():
        findings.append(found)
        progress(f"  {found.name}: {found.mu:.3f} of {found.claimed:.3f}, {found.verdict}")
    replays_made = []
    for made in replays.run(pairs) if options.only != "attacks" else ():
        replays_made.append(made)
        progress(f"  replay of {made.name}: {made.pairs} pairs, {made.verdict}")
    for title, control in (("Mechanisms", False), ("Negative controls", True)) if findings else ():
        print(f"{title} (bounds at 95 %, eps at delta = {DELTA:g}; verdicts at 99.99 %)\n")
        print(table([found for found in findings if (found.kind == "control") == control]) + "\n")
    if replays_made:
        print("Replay (what a neighbour shows that is given the same noisy releases)\n")
        print(replays.table(replays_made) + "\n")
    failed = [found.name for found in findings if not found.passed]
    failed += [f"replay of {made.name}" for made in replays_made if not made.passed]
    total = len(findings) + len(replays_made)
    if failed:
        print(f"{len(failed)} of {total} audits failed: {'; '.join(failed)}")
        return 1
    alike = f" {replays.count(replays_made):,} pairs of neighbours were replayed." if replays_made else ""
    print(f"All {total} audits passed: no claim contradicted, every control caught.{alike}")
    return 0
