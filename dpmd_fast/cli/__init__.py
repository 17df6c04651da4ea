"""The command line `dpmd-fast`: one module for each group of verbs.

Nothing but click is imported before a verb does its work, so that ``--help`` is quick. Errors are one line
on standard error and exit code 2 (`errors`); results go to standard output, as text or with ``--json`` as one
object (`console`).
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from dpmd_fast import __version__
from dpmd_fast.cli.console import Quiet, Stop, compilation_shown, one_line_warnings
from dpmd_fast.cli.denoise import denoise
from dpmd_fast.cli.errors import PROGRAM, tell
from dpmd_fast.cli.keys import keys
from dpmd_fast.cli.lab import audit, demo, experiment, warmup
from dpmd_fast.cli.ledger import ledger
from dpmd_fast.cli.plan import plan
from dpmd_fast.cli.preprocess import preprocess
from dpmd_fast.cli.release import fit
from dpmd_fast.cli.report import report
from dpmd_fast.cli.serve import serve
from dpmd_fast.cli.transform import transform
from dpmd_fast.privacy.ledger.last_debit import last_debit, note_debit

INTERRUPTED = 130
_OBJECTS = 100_000  # made between two collections; 700 is Python's default
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _InOrder(click.Group):
    """Lists the verbs in the order in which a user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every verb has --help with an example, and --json for machines.",
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.option("--quiet", is_flag=True, help="Show no progress on a terminal.")
@click.pass_context
def commands(context: click.Context, quiet: bool) -> None:
    """Denoise public points with a private reference, under differential privacy.

    \b
    Inside, where the private records are:   plan, ledger create, fit
    Anywhere, as often as you like:          transform
    """
    Quiet.asked = quiet
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for verb in (
    demo,
    plan,
    fit,
    transform,
    serve,
    denoise,
    preprocess,
    report,
    ledger,
    keys,
    experiment,
    audit,
    warmup,
):
    commands.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a mistake of the user, 130 if interrupted."""
    note_debit(None)
    try:
        with _terminable(), _rare_collections(), one_line_warnings(), compilation_shown():
            given = sys.argv[1:] if arguments is None else list(arguments)
            code = commands.main(args=given, prog_name=PROGRAM, standalone_mode=False)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, click.Abort):
        _stopped("interrupted")
        # Python notes an interrupt that leaves the code of a text, such as that of a dataclass, and would end
        # by SIGINT in the place of our exit code; the next text without one makes it forget
        exec("")
        return INTERRUPTED
    except _Terminated as end:
        _stopped("terminated")
        return end.code if isinstance(end.code, int) else 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        return tell(error)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles of garbage less often: while modules are loaded there are none, and it takes an eighth
    of the time of a transform of few rows."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _stopped(how: str) -> None:
    told = f"{how}; no incomplete file was left behind, and {last_debit() or 'nothing was spent'}"
    click.echo(f"{PROGRAM}: {told}", err=True)


class _Terminated(SystemExit):
    """Raised on SIGTERM and SIGHUP."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn signals into exceptions, so that files are cleaned up when a scheduler or terminal stops us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        Stop.asked = KeyboardInterrupt() if number == signal.SIGINT else _Terminated(128 + number)
        raise Stop.asked

    Stop.asked = None
    before = {number: signal.signal(number, stop) for number in _STOPPING if _listened_to(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listened_to(number: int) -> bool:
    """Return False for signals that nohup or the background jobs of a shell ignore."""
    return signal.getsignal(number) not in (signal.SIG_IGN, None)
