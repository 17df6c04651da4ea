"""Files of blood markers in clinical units for the command line, and the score of what it makes of them.

    python benchmarks/nhanes_files.py FOLDER            writes reference, queries, truth and noise here
    python benchmarks/nhanes_files.py FOLDER --score    prints the errors of clean.parquet

FOLDER holds nhanes.parquet. 1,000 adults who have all of 20 markers become the queries, with noise of known
deviation and a fifth of their values missing; all other adults, complete or not, are the reference. The
commands in between are in docs/concepts/mixture.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

# Made up for the comparison: half to one and a half median absolute deviations; of logged markers relative.
NOISE = {
    **{"albumin": 0.2, "alp": 0.2, "bun": 0.2, "creat": 0.15, "glucose": 0.08, "hba1c": 0.05, "hdl": 8.0},
    **{"totchol": 25.0, "uap": 0.8, "ttbl": 0.15, "wbc": 1.2, "rbc": 0.3, "lymph": 5.0, "monopa": 1.3},
    **{"mcv": 3.0, "rdw": 0.6, "sbp": 10.0, "dbp": 7.0, "bmi": 0.1, "waist": 9.0},
}
LOGGED = ["alp", "bun", "creat", "glucose", "hba1c", "bmi"]
QUERIES, MISSING = 1_000, 0.2


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    people = pd.read_parquet(folder / "nhanes.parquet", columns=list(NOISE))
    held = rng.choice(np.flatnonzero(people.notna().all(axis=1)), QUERIES, replace=False)
    truth = people.iloc[held].reset_index(drop=True)
    errors = pd.DataFrame(rng.normal(size=truth.shape) * list(NOISE.values()), columns=truth.columns)
    queries = truth + errors
    queries[LOGGED] = truth[LOGGED] * np.exp(errors[LOGGED])
    queries = queries.mask(rng.random(queries.shape) < MISSING)
    queries.insert(0, "visit", np.arange(QUERIES))
    reference = people.drop(people.index[held])
    for name, table in (("reference", reference), ("queries", queries), ("truth", truth)):
        table.to_parquet(f"{name}.parquet", index=False)
    Path("noise.json").write_text(json.dumps(NOISE))
    Path("columns.txt").write_text(",".join(NOISE))
    Path("logged.txt").write_text(",".join(LOGGED))
    incomplete = reference.isna().any(axis=1).mean()
    print(f"{len(reference):,} records, {incomplete:.1%} of them incomplete; {QUERIES:,} queries")


def _size(errors: pd.Series) -> float:
    return float(np.sqrt((errors**2).mean()))


def print_scores() -> None:
    """Print root mean squared errors by column, and how many true values are within 1.96 deviations."""
    truth, queries, clean = (pd.read_parquet(f"{name}.parquet") for name in ("truth", "queries", "clean"))
    print("| marker | measured | cleaned | missing: column median | filled in |\n" + "| --- " * 5 + "|")
    within, ratios = {True: [], False: []}, []
    for name in NOISE:
        gone = queries[name].isna()
        true = truth[name].astype(float)
        inside = (clean[name] - true).abs() < 1.96 * clean[f"{name}_sd"]
        for missing, rows in ((False, ~gone), (True, gone)):
            within[missing] += inside[rows].tolist()
        measured, cleaned = (_size((table[name] - true)[~gone]) for table in (queries, clean))
        median, filled = _size((queries[name].median() - true)[gone]), _size((clean[name] - true)[gone])
        ratios.append(((cleaned / measured) ** 2, (filled / median) ** 2))
        numbers = " | ".join(f"{value:.3g}" for value in (measured, cleaned, median, filled))
        print(f"| {name} | {numbers} |")
    print("squared errors, mean of the columns: {:.3f} and {:.3f}".format(*np.mean(ratios, axis=0)))
    print(f"within 1.96 deviations: {np.mean(within[False]):.1%} and {np.mean(within[True]):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--score", action="store_true")
    given = parser.parse_args()
    if given.score:
        print_scores()
    else:
        write_files(given.folder)
