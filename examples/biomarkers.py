"""
Blood panels with errors and gaps
=================================

Forty patients have blood panels with measurement errors and missing values. A hospital holds
records that it may not show to anybody. It releases a mixture once, under differential privacy; the
mixture cleans the panels, fills in what is missing and says how sure it is of each value.

    python examples/biomarkers.py [OUTPUT_FOLDER] [--data nhanes.parquet] [--records 30000]

With ``--data`` the people are those of NHANES; errors and gaps are added to the panels here, so that
the truth is known. Without it they are simulated.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq

from dpmd_fast import Budget, Preprocessor, plan, release_mixture

# %%
# Public knowledge about each marker: unit, standard deviation of the measurement error, and whether
# it is skewed: then the model takes its logarithm, and the error is relative (0.15 is 15 %). The
# last two numbers, a usual value and its spread, are used to simulate people and for nothing else.
MARKERS = {
    "albumin": ("albumin, g/dL", 0.2, False, 4.2, 0.35),
    "bun": ("urea nitrogen, mg/dL", 0.2, True, 13.0, 0.35),
    "creat": ("creatinine, mg/dL", 0.15, True, 0.9, 0.25),
    "uap": ("uric acid, mg/dL", 0.8, False, 5.4, 1.4),
    "glucose": ("glucose, mg/dL", 0.08, True, 95.0, 0.20),
    "hba1c": ("HbA1c, %", 0.05, True, 5.5, 0.12),
    "hdl": ("HDL cholesterol, mg/dL", 8.0, False, 52.0, 15.0),
    "totchol": ("total cholesterol, mg/dL", 25.0, False, 197.0, 41.0),
    "sbp": ("systolic pressure, mmHg", 10.0, False, 125.0, 19.0),
    "dbp": ("diastolic pressure, mmHg", 7.0, False, 72.0, 12.0),
    "bmi": ("body mass index, kg/m²", 0.1, True, 27.5, 0.22),
    "waist": ("waist, cm", 9.0, False, 97.0, 15.0),
}
LABELS, ERRORS, SKEWED, USUAL, SPREAD = map(np.array, zip(*MARKERS.values(), strict=True))
NOISE = dict(zip(MARKERS, ERRORS.tolist(), strict=True))
BUDGET = Budget(epsilon=1.0, delta=1e-6)
PATIENTS, MISSING = 40, 0.2


def simulated_people(count, rng):
    """Return markers of people that four hidden causes move together."""
    loads = np.random.default_rng(5).normal(size=(4, len(MARKERS)))
    loads *= 0.9 / np.linalg.norm(loads, axis=0)
    scores = rng.normal(size=(count, 4)) @ loads + 0.4 * rng.normal(size=(count, len(MARKERS)))
    return np.where(SKEWED, USUAL * np.exp(SPREAD * scores), USUAL + SPREAD * scores)


def cleaned_by_themselves(panels, error, shrinkage):
    """Guess from mean and covariance of the panels alone: a linear filter, no reference, no budget."""
    there = ~np.isnan(panels)
    mean = np.nanmean(panels, axis=0)
    gaps = np.where(there, panels - mean, 0.0)
    covariance = gaps.T @ gaps / np.maximum(there.T.astype(float) @ there - 1.0, 1.0)
    covariance *= 1.0 - shrinkage * (1.0 - np.eye(len(mean)))
    sizes, axes = np.linalg.eigh(covariance - np.diag(error**2))
    clean = (axes * np.maximum(sizes, 1e-3)) @ axes.T
    guesses = np.tile(mean, (len(panels), 1))
    for guess, gap, seen in zip(guesses, gaps, there, strict=True):
        inside = clean[np.ix_(seen, seen)] + np.diag(error[seen] ** 2)
        guess += clean[:, seen] @ np.linalg.solve(inside, gap[seen])
    return guesses


# %%
# The private records, and the public panels of forty other people.
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("output", nargs="?", type=Path, default=Path("example-output"))
parser.add_argument("--data", type=Path, help="nhanes.parquet; without it people are simulated")
parser.add_argument("--records", type=int, default=30_000, help="number of simulated people")
given = parser.parse_args()
given.output.mkdir(parents=True, exist_ok=True)

rng = np.random.default_rng(40)
people = simulated_people(given.records, rng)
if given.data is not None:
    table = pq.read_table(given.data, columns=list(MARKERS))
    people = np.column_stack([table[name].to_numpy() for name in MARKERS]).astype(float)
patients = rng.choice(np.flatnonzero(~np.isnan(people).any(axis=1)), PATIENTS, replace=False)
truth, records = people[patients], np.delete(people, patients, axis=0)
noise = rng.normal(size=truth.shape) * ERRORS
panels = np.where(SKEWED, truth * np.exp(noise), truth + noise)
panels[rng.random(panels.shape) < MISSING] = np.nan
missing = np.isnan(panels)
source = "simulated people" if given.data is None else "NHANES, errors and gaps added"
print(f"{len(records):,} private records, {PATIENTS} public panels, {missing.mean():.0%} missing; {source}")

# %%
# The units of the columns are taken from the public panels. Then ask first: will it help? ``plan``
# reads no record.
units = Preprocessor.from_public(panels, log=SKEWED.tolist(), column_names=list(MARKERS), missing=True)
prediction = plan(panels, len(records), budget=BUDGET, noise=NOISE, preprocess=units)
print(f"Before the spend: {prediction.verdict}. {prediction.advice}")

# %%
# Spend the budget, once. From here on nobody needs the private records.
mixture = release_mixture(records, budget=BUDGET, public=panels, preprocess=units, noise=NOISE)
cleaned, deviations = mixture.posterior(panels, NOISE)
print(f"After the spend: {mixture.verdict}\n{mixture.guarantee}\n")

# %%
# Compare with the truth, in median absolute deviations (MADs), in which all columns count alike.
# "Raw" takes the median of the panels for a missing value. "Panels alone" may choose the best of
# four settings by looking at the truth, which flatters it.
true, noisy, error = units.forward(truth), units.forward_block(panels), ERRORS / np.array(units.scale)
filters = [cleaned_by_themselves(noisy, error, shrinkage) for shrinkage in (0.0, 0.1, 0.3, 1.0)]
results = {
    "raw": np.where(missing, np.nanmedian(noisy, axis=0), noisy),
    "panels alone": min(filters, key=lambda found: float(((found - true) ** 2).mean())),
    "private mixture": units.forward(cleaned),
}
print(f"{'error of a value, in MADs':28}" + "".join(f"{name:>17}" for name in results))
for name, where in {"measured": ~missing, "missing": missing, "all": missing | ~missing}.items():
    found = [np.sqrt(((values - true)[where] ** 2).mean()) for values in results.values()]
    print(f"{name + ' values':28}" + "".join(f"{value:17.3f}" for value in found))
within = (np.abs(cleaned - truth) < 1.96 * deviations).mean()
print(f"{within:.0%} of the true values lie within their 95 % error bars.")

# %%
# One patient before and after: of those with at least three gaps the one in the middle, since half
# of them gained more. Where a value is missing, the dashed line shows what is usual in the panels.
squares = {name: ((values - true) ** 2).mean(axis=1) for name, values in results.items()}
gains = np.where(missing.sum(axis=1) >= 3, squares["private mixture"] / squares["raw"], np.nan)
patient = int(np.argsort(gains)[np.isfinite(gains).sum() // 2])  # NaN are sorted to the end
figure, axes = plt.subplots(4, 3, figsize=(9.0, 5.6), layout="constrained")
figure.suptitle(f"One patient's panel before and after, with 95 % error bars. Data: {source}", fontsize=11)
for j, axis in enumerate(axes.flat):
    value, gone = panels[patient, j], missing[patient, j]
    axis.axvline(truth[patient, j], color="black", linewidth=1.0)
    if gone:
        axis.plot(np.nanquantile(panels[:, j], [0.025, 0.975]), [1, 1], "--", color="#8a8f98")
        axis.text(0.02, 0.84, "missing", transform=axis.transAxes, fontsize=8, color="#c05621")
    else:
        bar = 1.96 * ERRORS[j] * (value if SKEWED[j] else 1.0)
        axis.errorbar(value, 1, xerr=bar, fmt="o", color="#8a8f98")
    color = "#c05621" if gone else "#1f6fb2"
    axis.errorbar(cleaned[patient, j], 0, xerr=1.96 * deviations[patient, j], fmt="o", color=color)
    axis.set(ylim=(-0.7, 2.1), yticks=[0, 1], yticklabels=["after", "before"])
    axis.set_title(LABELS[j], fontsize=9)
    axis.tick_params(labelsize=8)
figure.supxlabel("grey: measured, blue: cleaned, orange: filled in, black line: the true value", fontsize=9)
figure.savefig(given.output / "panel.png", dpi=100)
print(f"Picture: {given.output / 'panel.png'}")
