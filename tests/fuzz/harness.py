"""The judge of a fuzzed call: it succeeds and is paid for once, or is refused in one sentence, at no cost.

``DPMD_FAST_FUZZ=100000`` sets the number of inputs; without it a few thousand are tried. They are always the
same, but for each ``DPMD_FAST_FUZZ_SEED`` others.
With it a run goes on after a finding and lists all of them at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import re
import resource
import shutil
import signal
import sqlite3
import tempfile
import traceback
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from dpmd_fast import Ledger
from dpmd_fast.errors import UserError

CANARY = 7.77123e-3  # stands in every private reference
DIGITS = "777123"
USUAL = 3_800
SHARES = 1.6005  # of all tests together, which test_fuzz_shares.py adds up
INPUTS = int(os.environ.get("DPMD_FAST_FUZZ", USUAL))
GOES_ON = "DPMD_FAST_FUZZ" in os.environ
SEED = os.environ.get("DPMD_FAST_FUZZ_SEED", "")
SECONDS = 30.0  # of processor time, for one call
BYTES = 8 << 30
LONGEST = 3000  # characters of a message

TALLY: Counter[tuple[str, str]] = Counter()  # of families of inputs and what came of them
FOUND: dict[str, dict[str, str]] = {}  # by test, and by what distinguishes findings

_STAYS = "stays spent"
NO_CHART = "no chart stands out from the noise"  # known only once it has been paid for
UNREADABLE = "could not be read"  # so is this, where the only pass is the one that has been paid for


class Finding(AssertionError):  # noqa: N818
    """What must not happen; `key` is the same for what looks like the same bug."""

    def __init__(self, key, text):
        super().__init__(f"{key}\n{text}")
        self.key, self.text = key, text


class Hang(BaseException):
    pass


@cache
def folder():
    """A place for files, in memory where there is one, so that commits to disk take no time."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="dpmd-fuzz-", dir=home))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


class Bank:
    """A ledger with a rich and a poor data set, replaced by a fresh one before its history gets long."""

    MOST = 30

    def __init__(self):
        self._number = 0
        first = Ledger(folder() / "bank.db")
        first.create("rich", 1e6, 1e-6)
        first.create("poor", 0.01, 1e-6)
        first.create("other", 1e6, 1e-6, "add-remove")
        self._template = (folder() / "bank.db").read_bytes()
        self.ledger = first

    def open(self):
        if len(self.spends()) > self.MOST:
            os.unlink(self.ledger.path)
            self._number += 1
            path = folder() / f"bank{self._number}.db"
            path.write_bytes(self._template)
            self.ledger = Ledger(path)
        return self.ledger

    def spends(self):
        with contextlib.closing(sqlite3.connect(self.ledger.path)) as connection:
            return connection.execute(
                "SELECT spends.id, datasets.name, spends.mu2 FROM spends JOIN datasets "
                "ON datasets.id = spends.dataset ORDER BY spends.id"
            ).fetchall()

    def told(self):
        """Everything that the file holds, for a search."""
        return Path(self.ledger.path).read_bytes()


@cache
def bank():
    return Bank()


def fingerprint(value):
    """What must be the same of an argument after a call."""
    if isinstance(value, np.ma.MaskedArray):
        return repr(value)
    if isinstance(value, np.ndarray):
        plain = repr(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return (value.shape, str(value.dtype), value.strides, value.flags.writeable, plain)
    if hasattr(value, "iloc"):
        columns = [repr(value.iloc[:, k].tolist()) for k in range(value.shape[1])] if value.ndim == 2 else []
        names = list(map(str, value.columns)) if value.ndim == 2 else []
        return (names, [str(kind) for kind in np.atleast_1d(value.dtypes)], columns)
    if isinstance(value, (list, tuple)):
        return [fingerprint(item) for item in value]
    if isinstance(value, dict):
        return {repr(key): fingerprint(item) for key, item in value.items()}
    if isinstance(value, int):
        return hash(value)  # some have too many digits for a text
    return repr(value) if isinstance(value, (str, float, bytes)) and len(str(value)[:50]) < 50 else None


@contextlib.contextmanager
def limited():
    """Bounds on the time and memory of one call."""

    def stop(*_):
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


class _Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.text = io.StringIO()
        self.warnings = []

    def emit(self, record):
        self.text.write(record.getMessage() + "\n")


@contextlib.contextmanager
def listening():
    """All that a call says on its streams, in warnings and in logs."""
    heard = _Heard()
    root = logging.getLogger()
    root.addHandler(heard)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(heard.text),
            contextlib.redirect_stderr(heard.text),
        ):
            warnings.simplefilter("always")
            yield heard
    finally:
        root.removeHandler(heard)
        heard.warnings = caught


def whispers(text):
    """Whether a text tells digits of a private value, in whatever notation."""
    return DIGITS in text.replace(".", "")


def judged(
    family,
    what,
    call,
    *,
    named,
    paid=None,
    inputs=(),
    check=None,
    unlucky=(),
    foreign=(),
    private=True,
    counted=True,
):
    """Call, and raise a `Finding` unless the outcome is one of the allowed.

    Parameters
    ----------
    family, what : str
        Of the input: for the tally, and for those who read a finding.
    call : callable
    named : collection of str
        A refusal must name one of these.
    paid : callable, optional
        For calls that spend: ``paid(result)`` is the mu^2 that must have been debited, None for nothing.
    inputs : sequence
        Must not be changed.
    check : callable, optional
        ``check(result)`` asserts that the result is well formed.
    unlucky : tuple of str
        What a failure after the debit may say, where it could not be foreseen; any other is a finding.
    foreign : tuple of str
        Modules other than the package whose errors are shown as they are.
    private : bool
        Whether the canary is in the input, and must not be told.
    counted : bool
        Whether the outcome goes into the tally.

    Returns
    -------
    result, or the error of the refusal
    """
    if paid is not None:
        bank().open()  # so that the ledger is not replaced on the way
    before, had = fingerprint(list(inputs)), bank().spends() if paid is not None else []
    result = error = None
    with listening() as heard, limited():
        try:
            result = call()
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = raised

    def finding(kind, text=""):
        key = kind if error is None else f"{kind}: {type(error).__name__} {_place(error)}"
        shown = "" if error is None else "".join(traceback.format_exception(error))[-3000:]
        return Finding(f"{family}: {key}", f"{what}\n{text}\n{shown}")

    if isinstance(error, Hang):
        raise finding("hangs")
    told = [heard.text.getvalue(), *(str(one.message) for one in heard.warnings), *_texts(error)]
    if private and any(map(whispers, told)):
        raise finding("tells a private value", "\n".join(text for text in told if whispers(text)))
    loud = [one for one in heard.warnings if not _quiet(one)]
    if loud:
        one = loud[0]
        place = f"{one.category.__name__} {Path(one.filename).name}:{one.lineno}"
        raise finding(f"warns: {place}", str(one.message))
    if heard.text.getvalue():
        raise finding("prints or logs", heard.text.getvalue()[:500])
    if fingerprint(list(inputs)) != before:
        raise finding("changes its input")
    new = bank().spends()[len(had) :] if paid is not None else []
    if error is None:
        if paid is not None:
            asked = paid(result)
            wanted = [] if asked is None else [asked]
            if [mu2 for _, _, mu2 in new] != wanted:
                raise finding("is not paid for once", f"asked {wanted}, debited {new}")
            if private and DIGITS.encode() in bank().told():
                raise finding("writes a private value to the ledger")
        if check is not None:
            try:
                check(result)
            except AssertionError as wrong:
                place = traceback.extract_tb(wrong.__traceback__)[-1]
                raise finding(f"gives a wrong result: {place.line}", str(wrong)) from None
        TALLY[family, "accepted"] += counted
        return result
    foreseen = isinstance(error, RuntimeError) and any(text in str(error) for text in unlucky)
    if foreseen and len(new) == 1 and _STAYS in str(error):
        TALLY[family, "failed after its debit, as it says"] += counted
        return error
    if foreseen and not new and NO_CHART in str(error):
        TALLY[family, "failed, and would have been debited"] += counted  # there was no ledger
        return error
    if new:
        raise finding("spends and fails")
    _check_refusal(error, named, foreign, finding)
    TALLY[family, f"refused, {type(error).__name__}"] += counted
    return error


def _check_refusal(error, named, foreign, finding):
    text = str(error)
    module = _module(error)
    if any(module.startswith(name) for name in foreign):
        if not isinstance(error, (TypeError, ValueError)):
            raise finding("another error")
    else:
        if not isinstance(error, UserError):
            raise finding("an error that was not meant")
    if not text.strip() or "Traceback" in text or len(text) > LONGEST:
        raise finding("a message that does not help", text[:200])
    if not any(re.search(rf"(?<![a-z_]){re.escape(str(name))}(?![a-z_])", text) for name in named):
        raise finding("a message that does not name the argument", f"{sorted(map(str, named))}: {text}")


def _texts(error):
    """What a traceback would show of an error and those behind it."""
    texts = []
    while error is not None and len(texts) < 10:
        texts.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return texts


def _quiet(one):
    """Warnings that are meant for the user, and those of libraries about their own future."""
    ours = one.category.__module__.startswith("dpmd_fast")
    texts = ("come back unchanged", "feature names")  # the latter are scikit-learn's
    own = one.category is UserWarning and any(text in str(one.message) for text in texts)
    later = issubclass(
        one.category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning)
    )
    return ours or own or later


def _frames(error):
    return traceback.extract_tb(error.__traceback__)


def _module(error):
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else place.tb_frame.f_globals.get("__name__", "")


def _place(error):
    """The last lines of the package that an error passed through."""
    ours = [frame for frame in _frames(error) if f"{os.sep}dpmd_fast{os.sep}" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours[::-1][:2])


def fuzzed(share, **strategies):
    """A test of `share`, of `SHARES` that all tests have, of all inputs."""
    count = max(12, round(INPUTS * share / SHARES))

    def decorate(function):
        name = function.__name__

        def examples(**case):
            try:
                function(**case)
            except Finding as one:
                if not GOES_ON:
                    raise
                FOUND.setdefault(name, {}).setdefault(one.key, one.text)

        examples.__name__ = examples.__qualname__ = name
        run = settings(
            max_examples=count,
            derandomize=not SEED,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,) if GOES_ON else (Phase.generate, Phase.shrink),
        )(given(**strategies)(examples))
        if SEED:
            run = seed(int(SEED))(run)

        def test():
            with memory_bound():
                run()
            found = FOUND.get(name, {})
            assert not found, "\n\n".join(f"{key}\n{text}" for key, text in found.items())

        test.__name__, test.__doc__, test.share, test.count = name, function.__doc__, share, count
        return test

    return decorate


@contextlib.contextmanager
def memory_bound():
    """An allocation without measure fails at once, and does not bring the machine down."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
