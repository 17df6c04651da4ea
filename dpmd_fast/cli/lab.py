"""Verbs that run something from end to end: demo, experiment, report."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from dpmd_fast.cli.console import answer
from dpmd_fast.cli.options import force_option, json_option, threads_option


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

    What is done is kept in the folder: after an interruption the same command goes on.
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
    short_help="Write an HTML page about an atlas.",
    epilog="""\b
Example:
  dpmd-fast report --atlas atlas.dpmd queries.parquet -o report.html
""",
)
@click.option("--atlas", "atlas_path", required=True, metavar="FILE.dpmd", help="What fit has written.")
@click.argument("queries", metavar="QUERIES")
@click.option("--ledger", metavar="FILE", help="Show what is left of the budget.")
@click.option("--dataset", metavar="NAME", help="Name of the reference in the ledger.")
@click.option("-o", "--output", required=True, metavar="FILE.html", help="The report.")
@force_option
@threads_option
@json_option
def report(
    atlas_path: str,
    queries: str,
    ledger: str | None,
    dataset: str | None,
    output: str,
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write one HTML page about an atlas and what it does to the points of a file.

    Of a large file, some points spread evenly over its rows are looked at. Nothing is spent.
    """
    from dpmd_fast.cli.outcome import check_outputs, load_atlas
    from dpmd_fast.cli.transform import report_on

    check_outputs((output,), force, (atlas_path, queries, ledger))
    if (ledger is None) != (dataset is None):
        raise click.UsageError("--ledger and --dataset: must be given together, or neither")
    account: dict[str, Any] = {}
    if ledger is not None and dataset is not None:
        from dpmd_fast.privacy.ledger.ledger import Ledger

        account = {"ledger": Ledger(ledger), "dataset": dataset}
    atlas = load_atlas(atlas_path)
    report_on(atlas, queries, output, threads, **account)
    answer(as_json, {"report": output, "guarantee": atlas.guarantee}, [f"{output}: written"])
