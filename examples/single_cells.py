"""
Single cells: ask before you spend
==================================

A collection of cells is private, a few public cells are noisy. Would a private release of it
clean them? ``plan`` answers from public numbers before anything is spent, and it may say no. Here
the answer is checked against the truth.

    python examples/single_cells.py [OUTPUT_FOLDER] [--data cells.npz] [--cells 6000]

``cells.npz`` holds counts ``X`` (cells, genes) and ``labels``. Without it, counts of five types of
cells are simulated. What is protected is one cell. If a donor has many of the cells, the
donor is not protected as a whole.

The simulated cells are a case chosen so that the release helps: with 100 public cells instead of 50,
``plan`` says "no gain" to the same simulation.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dpmd_fast import Budget, plan, release_atlas, release_mixture

BUDGET = Budget(epsilon=1.0, delta=1e-6)
QUERIES, COMPONENTS = 50, 10


def simulated_counts(cells, genes, rng):
    """Return Poisson counts of five types of cells with different depths, and the types."""
    types = rng.choice(5, size=cells, p=[0.35, 0.25, 0.2, 0.12, 0.08])
    usual = rng.normal(0.0, 1.0, size=genes)
    shifts = rng.normal(0.0, 1.2, size=(5, genes)) * (rng.random((5, genes)) < 0.3)
    programs = rng.normal(0.0, 0.2, size=(4, genes))
    rates = np.exp(usual + shifts[types] + rng.normal(size=(cells, 4)) @ programs)
    depth = rng.lognormal(1.0, 0.3, size=(cells, 1))
    return rng.poisson(depth * rates), types


def cleaned_by_themselves(points, noise, shrinkage):
    """Return the queries after a linear filter made of their own covariance: no reference, no budget."""
    mean, total = points.mean(axis=0), np.cov(points.T)
    total *= 1.0 - shrinkage * (1.0 - np.eye(len(mean)))
    sizes, axes = np.linalg.eigh(total)
    keep = np.maximum(sizes - noise**2, 0.0) / sizes
    return mean + (points - mean) @ (axes * keep) @ axes.T


# %%
# Counts become logarithms, then principal components. Both are fitted to the public cells alone:
# what is computed from the private ones without a budget would not be private.
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("output", nargs="?", type=Path, default=Path("example-output"))
parser.add_argument("--data", type=Path, help="an .npz file with counts X and labels; otherwise simulated")
parser.add_argument("--cells", type=int, default=6_000, help="number of simulated cells")
given = parser.parse_args()
given.output.mkdir(parents=True, exist_ok=True)

rng = np.random.default_rng(3)
if given.data is None:
    counts, types = simulated_counts(given.cells, 300, rng)
else:
    with np.load(given.data) as file:
        counts, types = file["X"].astype(float), file["labels"]
order = rng.permutation(len(counts))
public, hidden = order[:QUERIES], order[QUERIES:]
depths = np.maximum(counts.sum(axis=1, keepdims=True), 1)
logs = np.log1p(counts / depths * np.median(depths[public]))
used = logs[public].std(axis=0) > 0.0
center, scale = logs[public][:, used].mean(axis=0), logs[public][:, used].std(axis=0)
scaled = np.clip((logs[:, used] - center) / scale, -10.0, 10.0)
axes = np.linalg.svd(scaled[public], full_matrices=False)[2][:COMPONENTS].T
cells = scaled @ axes
truth, private = cells[public], cells[hidden]

# %%
# Noise of a known size is added to the public cells, so that the truth is known: as large as the
# smallest component.
noise = float(truth.std(axis=0).min())
noisy = truth + noise * rng.normal(size=truth.shape)
name = "simulated" if given.data is None else given.data.stem
print(f"{len(private):,} private cells, {len(noisy)} noisy public ones, {COMPONENTS} components ({name})\n")

# %%
# Ask, with the true number of private cells, and as if there were only 200 of them. ``noise`` is in
# median absolute deviations of the columns, the units that ``plan`` uses for columns without a
# preprocessor.
spread = np.median(np.abs(noisy - np.median(noisy, axis=0)), axis=0)
asked = {"budget": BUDGET, "noise": noise / spread}
for count in (200, len(private)):
    prediction = plan(noisy, count, **asked)
    print(f"With {count:,} private cells: {prediction.verdict}.\n  {prediction.advice}")

# %%
# Release what was chosen. If ``plan`` said no, a release is made all the same here
# (``accept_risk=True``), to show what would have come of it. With real cells, take the refusal and
# keep the budget.
refused = prediction.model == "nothing"
if prediction.candidate == "mixture":
    model = release_mixture(private, public=noisy, accept_risk=refused, **asked)
    moved = model.transform(noisy, asked["noise"])
else:
    model = release_atlas(private, noisy, dim="auto", accept_risk=refused, **asked)
    moved = model.transform(noisy)
print(f"\nAfter the spend: {model.verdict}")

# %%
# Compare. "Public only" may choose the best of four settings by looking at the truth, which
# flatters it.
filters = [cleaned_by_themselves(noisy, noise, shrinkage) for shrinkage in (0.0, 0.1, 0.3, 1.0)]
results = {
    "raw": noisy,
    "public only": min(filters, key=lambda found: float(((found - truth) ** 2).mean())),
    f"private {prediction.candidate}": moved,
    "the truth": truth,
}
groups = KMeans(len(set(types[public])), n_init=10, random_state=0)
errors = np.sqrt([((points - truth) ** 2).mean() for points in results.values()])
errors /= errors[0]
found = [adjusted_rand_score(types[public], groups.fit_predict(points)) for points in results.values()]
print("\n" + " " * 34 + "".join(f"{column:>18}" for column in results))
print(f"{'error of a value, raw = 1':34}" + "".join(f"{value:18.3f}" for value in errors))
print(f"{'cell types found (ARI, best is 1)':34}" + "".join(f"{value:18.3f}" for value in found))
better = "is better" if errors[2] < min(errors[:2]) else "is not better"
print(f"plan said '{prediction.verdict}'; the private model {better} than raw and public only.")

# %%
# The same cells in the first two components, coloured by type.
figure, panels = plt.subplots(1, 4, figsize=(11.0, 3.2), sharex=True, sharey=True, layout="constrained")
for panel, (column, points), error in zip(panels, results.items(), errors, strict=True):
    panel.scatter(points[:, 0], points[:, 1], c=types[public], s=12, cmap="tab10", linewidths=0)
    panel.set(title=f"{column}: error {error:.2f}", xlabel="component 1")
panels[0].set_ylabel("component 2")
figure.savefig(given.output / "cells.png", dpi=100)
print(f"Picture: {given.output / 'cells.png'}")
