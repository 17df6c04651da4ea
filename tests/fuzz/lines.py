"""Commands of `dpmd-fast` in a folder of their files: exit 0 and paid for once, or 2 and one line."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq

from dpmd_fast.cli import main
from fuzz.harness import TALLY, Finding, bank, folder, limited, whispers
from fuzz.targets import atlas, mixture, queries, reference


def line_folder():
    """A folder with files for the commands; the ledger is a fresh copy now and then."""
    base = folder() / "line"
    if not base.is_dir():
        (base / "folder").mkdir(parents=True)
        xy = lambda points: pa.table({"x": points[:, 0], "y": points[:, 1]})  # noqa: E731
        pq.write_table(xy(reference(n=120)), base / "reference.parquet")
        pq.write_table(xy(queries(n=30)), base / "queries.parquet")
        pq.write_table(
            pa.table({"x": ["private 777123"] * 5, "y": ["0.00777123"] * 5}), base / "text.parquet"
        )
        (base / "reference.csv").write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in reference()))
        (base / "bounds.json").write_text('{"x": [-3, 3], "y": [-3, 3]}')
        atlas("named").save(base / "atlas.dpmd")
        mixture("named").save(base / "mixture.dpmd")
    return base


def _ledger_of(base):
    """The ledger of the bank under the name of the command line."""
    link = base / "bank.db"
    path = bank().open().path
    if not link.is_symlink() or os.readlink(link) != path:
        link.unlink(missing_ok=True)
        os.symlink(path, link)


def run_line(family, words):
    """Run a command in the folder of its files: exit 0 and paid for once, or 2 and one line."""
    base = line_folder()
    _ledger_of(base)
    words = [os.urandom(8).hex() if word == "NEW" else word for word in words]
    before, there = bank().spends(), _listing(base)
    out, err = io.StringIO(), io.StringIO()
    here = os.getcwd()
    os.chdir(base)
    error = code = None
    try:
        with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except BaseException as raised:
        error = raised
    finally:
        os.chdir(here)
    told, said = out.getvalue(), err.getvalue()
    new = bank().spends()[len(before) :]
    made = {name for name in _listing(base) - there if name != "bank.db"}
    what = f"dpmd-fast {' '.join(words)!r}\ncode {code}, {error!r}\n{said}"

    def finding(kind):
        at = re.sub(r".*(internal error[^:]*: .*)", r"\1", said.strip().replace("\n", " "))[:100]
        return Finding(f"{family}: {kind}: {at if 'internal' in said else ''}", what)

    try:
        if error is not None:
            raise finding(f"raises {type(error).__name__}")
        if whispers(told) or whispers(said):
            raise finding("tells a private value")
        if "Traceback" in said or "RuntimeWarning" in said:
            raise finding("shows a traceback or a numerical warning")
        if code == 2:
            lines = [line for line in said.splitlines() if "warning" not in line]
            if words[0] == "fit" and lines and lines[0].startswith(("Release a", "Do not spend: ")):
                lines = lines[1:]  # which model was chosen and why
            if len(lines) != 1 or not lines[0].startswith("dpmd-fast: error: ") or told:
                unlucky = "stays spent" in said and len(new) == 1
                if not unlucky:
                    raise finding("does not say why in one line")
            if new and "no chart stands out" not in said:
                raise finding("spends and fails")
            if made:
                raise finding(f"leaves {sorted(made)}")
        elif code == 0:
            spends = words[0] in ("fit", "denoise", "preprocess") and bool(made)
            paid = spends and "--no-ledger" not in words and "--public" not in words
            if len(new) != paid:
                raise finding(f"{len(new)} debits")
        else:
            raise finding(f"exit code {code}")
        TALLY[family, "accepted" if code == 0 else "refused, exit code 2"] += 1
    finally:
        for name in made:
            (base / name).unlink(missing_ok=True)


def _listing(base):
    return {str(path.relative_to(base)) for path in base.rglob("*") if not path.is_dir()}
