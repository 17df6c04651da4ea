"""Verbs that take no data of the user: demo, experiment, audit, warmup.

The only module outside `lab` that imports it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import click

from dpmd_fast.cli.console import answer
from dpmd_fast.cli.options import json_option


@click.command(
    short_help="See it work, on a simulated circle.",
    epilog="""\b
Example:
  dpmd-fast demo -o demo
""",
)
@click.option(
    "-o", "--output", default="demo", show_default=True, metavar="DIR", help="Folder for the results."
)
@json_option
def demo(output: str, as_json: bool) -> None:
    """Simulate a circle, release, denoise, and write report.html; a minute or two."""
    from dpmd_fast.lab.demo import main

    if not as_json:
        main(["--output", output])
        return
    with contextlib.redirect_stdout(sys.stderr):
        main(["--output", output])
    answer(True, {"folder": output, "files": sorted(os.listdir(output))}, [])


@click.command(
    short_help="Run an experiment of the paper.",
    epilog="""\b
Example:
  dpmd-fast experiment
  dpmd-fast experiment circle --quick -o results
""",
)
@click.argument("name", required=False)
@click.option("-o", "--output", metavar="DIR", help="Folder for tables and figures.")
@click.option("--quick", is_flag=True, help="Small sizes, to see that it runs.")
@click.option("--seeds", type=int, help="Data sets for each setting.  [default: as the experiment says]")
@click.option("--data", metavar="DIR", help="Folder of the data sets, for experiments on real data.")
@json_option
def experiment(
    name: str | None, output: str | None, quick: bool, seeds: int | None, data: str | None, as_json: bool
) -> None:
    """Run an experiment of the paper; without a name, list them.

    Finished parts are kept in the folder: after an interruption the same command goes on from there.
    """
    from dpmd_fast.cli import INTERRUPTED
    from dpmd_fast.lab.experiments.registry import EXPERIMENTS, find

    if name is None:
        listed = {one: known.summary for one, known in EXPERIMENTS.items()}
        lines = [f"{one:<14}{summary}" for one, summary in listed.items()]
        answer(as_json, {"experiments": listed}, lines or ["This version has no experiments."])
        return
    run = find(name)
    if output is None:
        raise click.UsageError("-o DIR: must be given, the folder for tables and figures")
    os.makedirs(output, exist_ok=True)
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        try:
            files = run(output, quick, seeds, data)
        except KeyboardInterrupt:  # what was done is kept, and the run has said how to go on
            raise SystemExit(INTERRUPTED) from None
    answer(as_json, {"experiment": name, "files": list(files)}, [f"{path}" for path in files])


@click.command(
    short_help="Attack the privacy claims on simulated data.",
    epilog="""\b
Example:
  dpmd-fast audit --quick
""",
)
@click.option("--quick", is_flag=True, help="A tenth of the releases.")
def audit(quick: bool) -> int:
    """Attack every mechanism on simulated data and print a table of claims and findings.

    The exit code is 1 if a claim is contradicted, or if a mechanism that is broken on purpose is not caught.
    """
    from dpmd_fast.lab.audit.program import main

    return main(["--quick"] if quick else [])


@click.command(
    short_help="Compile kernels now.",
    epilog="""\b
Example:
  dpmd-fast warmup --for transform
""",
)
@click.option(
    "--for",
    "purposes",
    type=click.Choice(["transform", "atlas", "mixture", "paper", "all"]),
    multiple=True,
    default=["all"],
    show_default=True,
    help="What the kernels are wanted for: transform with any model, fit of one kind, the paper's methods.",
)
@json_option
def warmup(purposes: tuple[str, ...], as_json: bool) -> None:
    """Compile kernels, or load them from the cache, so that the next command starts at once.

    As many processes as there are cores compile them.
    """
    from dpmd_fast import warmup as compile_kernels

    start = time.perf_counter()
    compile_kernels(*purposes)
    seconds = time.perf_counter() - start
    what = "All kernels" if "all" in purposes else f"Kernels for {', '.join(purposes)}"
    answer(as_json, {"for": list(purposes), "seconds": seconds}, [f"{what} are ready ({seconds:.1f} s)."])
