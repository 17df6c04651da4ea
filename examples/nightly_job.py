"""
A nightly job with a ledger and signed models
=============================================

A clinic fixes how much privacy its records may ever cost, releases one signed model, and ships the
file. Elsewhere a job cleans a new file every night. It needs neither the records nor the ledger,
and the second night costs nothing. When the budget is gone, further releases are refused, and the
job goes on.

    python examples/nightly_job.py [OUTPUT_FOLDER] [--records 20000] [--rows 50000]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmd_fast import Budget, BudgetExceeded, Ledger, load_model, release_mixture
from dpmd_fast.tables import transform_file

COLUMNS = ["glucose", "hba1c", "ldl", "albumin"]
USUAL, SPREAD = np.array([95.0, 5.4, 115.0, 42.0]), np.array([12.0, 0.5, 30.0, 3.0])
NOISE = {"glucose": 8.0, "hba1c": 0.35, "ldl": 15.0, "albumin": 2.0}  # error of a measurement, in its unit

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("output", nargs="?", type=Path, default=Path("example-output"))
parser.add_argument("--records", type=int, default=20_000, help="number of private records")
parser.add_argument("--rows", type=int, default=50_000, help="measurements of a night")
given = parser.parse_args()
given.output.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(1)


def people(count):
    loads = np.array([[0.9, 0.9, 0.5, -0.3], [0.1, 0.2, 0.7, -0.8]])
    return USUAL + SPREAD * (rng.normal(size=(count, 2)) @ loads + 0.3 * rng.normal(size=(count, 4)))


def measured(truth):
    noisy = truth + rng.normal(size=truth.shape) * list(NOISE.values())
    return np.where(rng.random(truth.shape) < 0.1, np.nan, noisy)


def table(values, **others):
    return pa.table({**others, **{name: pa.array(values[:, k]) for k, name in enumerate(COLUMNS)}})


# %%
# Inside the clinic: the private records, and a few public measurements that show the units of the
# columns.
folder = Path(tempfile.mkdtemp(prefix="nightly-", dir=given.output))
pq.write_table(table(people(given.records)), folder / "records.parquet")
pilot = table(measured(people(60)))

# %%
# A total for all time, and a key to sign with. The private key stays inside; the public one is for
# everybody.
ledger = Ledger(folder / "budget.db")
ledger.create("clinic", epsilon=1.2, delta=1e-7)
command = [sys.executable, "-m", "dpmd_fast", "keys", "create", "-o", folder / "clinic.key"]
subprocess.run(command, check=True, capture_output=True)
public_key = folder / "clinic.key.pub"

# %%
# The budget is debited before the records are read; then the model is written and signed.
paid = {"budget": Budget(epsilon=1.0, delta=1e-7), "ledger": ledger, "dataset": "clinic"}
mixture = release_mixture(folder / "records.parquet", public=pilot, noise=NOISE, **paid)
mixture.save(folder / "model.dpmd", key=folder / "clinic.key")
total, left = ledger.total("clinic").mu2, ledger.remaining("clinic")
print(f"Released a model and signed it. {mixture.verdict}")
print(f"{left / total:.0%} of the budget is left.\n")


# %%
# Outside, every night. The file is read, cleaned and written in batches, so memory does not grow
# with its size, and it appears under its name when it is complete. A model that the clinic has not
# signed is refused.


def night(date):
    truth = people(given.rows)
    inbox, outbox = folder / f"{date}.raw.parquet", folder / f"{date}.clean.parquet"
    pq.write_table(table(measured(truth), sample=[f"{date}/{k}" for k in range(len(truth))]), inbox)
    model = load_model(folder / "model.dpmd", trusted=public_key)
    done = transform_file(model, inbox, outbox, noise=NOISE, deviation_suffix="_sd", status_column="status")
    before, after = (
        np.column_stack([pq.read_table(path)[name].to_numpy() for name in COLUMNS])
        for path in (inbox, outbox)
    )
    before = np.where(np.isnan(before), np.nanmedian(before, axis=0), before)
    errors = [np.sqrt((((found - truth) / SPREAD) ** 2).mean()) for found in (before, after)]
    print(f"{date}: {done.rows:,} rows cleaned, {done.status};")
    print(f"  the error of a value fell from {errors[0]:.3f} to {errors[1]:.3f} spreads of its column.")
    return errors


nights = {date: night(date) for date in ("2026-03-01", "2026-03-02")}
print(f"Budget used by the two nights: {left - ledger.remaining('clinic'):g}.\n")

# %%
# What is refused: a model signed by somebody else, a file that was edited, and a release that the
# budget cannot pay.
subprocess.run([*command[:-1], folder / "stranger.key"], check=True, capture_output=True)
mixture.save(folder / "foreign.dpmd", key=folder / "stranger.key")
damaged = bytearray((folder / "model.dpmd").read_bytes())
damaged[len(damaged) // 2] ^= 1
(folder / "edited.dpmd").write_bytes(damaged)
for name in ("foreign.dpmd", "edited.dpmd"):
    try:
        load_model(folder / name, trusted=public_key)
        raise SystemExit(f"{name} should have been refused")
    except ValueError as refusal:
        print(f"Refused: {str(refusal).replace(str(folder) + '/', '')}")
try:
    release_mixture(folder / "records.parquet", public=pilot, noise=NOISE, **paid)
    raise SystemExit("the second release should have been refused")
except BudgetExceeded as refusal:
    print(f"Refused: {refusal}")
nights["2026-03-03"] = night("2026-03-03")  # the model that was paid for works on

# %%
# What each night gained, and what is left of the budget.
figure, (left_panel, right_panel) = plt.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")
places = np.arange(len(nights))
for shift, name, color in ((-0.2, "as it came", "#8a8f98"), (0.2, "cleaned", "#1f6fb2")):
    errors = [pair[int(shift > 0)] for pair in nights.values()]
    left_panel.bar(places + shift, errors, 0.4, label=name, color=color)
left_panel.set_xticks(places, nights)
left_panel.set(ylabel="error of a value, in spreads", title="three nights", ylim=(0.0, 1.0))
left_panel.legend(fontsize=8, ncols=2)
right_panel.pie([total - left, left], labels=["spent on the model", "left"], colors=["#1f6fb2", "#d9e2ec"])
right_panel.set_title("the budget after three nights")
figure.savefig(given.output / "nightly.png", dpi=100)
print(f"Picture: {given.output / 'nightly.png'}; files: {folder}")
