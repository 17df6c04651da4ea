"""
A surface in twenty columns
===========================

Private records lie near a surface of two dimensions in a table of twenty columns. An atlas of the
surface is released once, under differential privacy, and then moves any noisy point towards it. The
method without privacy that it is compared with reads the records for every point.

    python examples/surface.py [OUTPUT_FOLDER] [--records 12000]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dpmd_fast import Budget, ManifoldDenoiser, load_model, paper_bandwidth, plan, release_atlas
from dpmd_fast.lab.datasets import distance_to_manifold, simulate, sphere

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("output", nargs="?", type=Path, default=Path("example-output"))
parser.add_argument("--records", type=int, default=12_000, help="number of private records")
given = parser.parse_args()
given.output.mkdir(parents=True, exist_ok=True)

# %%
# A sphere in the first three of twenty columns. Records have little noise, the public queries have
# more.
SIGMA = 0.1
BUDGET = Budget(epsilon=1.0, delta=1e-6)
shape = sphere(ambient=20, dim=2)
data = simulate(shape, n=given.records, m=500, sigma=SIGMA, rng=np.random.default_rng(0))
records, queries = data.references, data.queries  # private, public
print(f"{len(records):,} private records near a sphere in 20 columns, {len(queries)} noisy queries.")

# %%
# Ask first. The answer is made from the queries and the number of records; the dimension is found,
# too.
prediction = plan(queries, len(records), budget=BUDGET)
print(f"Before the spend: {prediction.verdict}, dimension {prediction.dim}. {prediction.advice}")

# %%
# Release the atlas, write it to a file, and use the file: any number of points, anywhere, at no
# further cost.
start = time.perf_counter()
atlas = release_atlas(records, queries, dim=prediction.dim, budget=BUDGET)
atlas.save(given.output / "surface.dpmd")
released = time.perf_counter() - start
start = time.perf_counter()
moved, status = load_model(given.output / "surface.dpmd").transform(queries, return_status=True)
seconds = time.perf_counter() - start
print(f"Released in {released:.1f} s, moved {len(moved)} points in {1000 * seconds:.0f} ms.")
print(f"{np.mean(status == 'ok'):.0%} of them were in reach of the atlas.\n{atlas.guarantee}\n")

# %%
# The same without privacy: the paper's method with its own rule for the bandwidth.
bandwidth = paper_bandwidth(len(records), dim=2, sigma=SIGMA)
start = time.perf_counter()
open_method = ManifoldDenoiser(bandwidth=bandwidth, dim=2).fit(records)
results = {"raw": queries, "atlas, private": moved, "without privacy": open_method.transform(queries)}
print(f"Without privacy: {time.perf_counter() - start:.1f} s.")

print(f"{'':18}{'to the surface':>16}{'99 % are below':>16}{'to the clean point':>20}")
for name, points in results.items():
    away = distance_to_manifold(points, shape)
    clean = np.linalg.norm(points - data.clean, axis=1)
    print(f"{name:18}{away.mean():16.4f}{np.quantile(away, 0.99):16.4f}{clean.mean():20.4f}")
print("Noise along the surface stays with every method: nobody can know where on it a point was.")

# %%
# A slice through the sphere, seen from the side, and how far the points are from the surface.
figure, panels = plt.subplots(1, 4, figsize=(11.0, 3.1), layout="constrained")
angles = np.linspace(0.0, 2.0 * np.pi, 200)
for panel, (name, points) in zip(panels, results.items(), strict=False):
    slice_ = np.abs(data.clean[:, 1]) < 0.35
    panel.plot(np.cos(angles), np.sin(angles), color="black", linewidth=0.8)
    panel.scatter(points[slice_, 0], points[slice_, 2], s=9, color="#1f6fb2", linewidths=0)
    panel.set(title=name, xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
for name, points in results.items():
    away = distance_to_manifold(points, shape)
    panels[3].hist(away, bins=np.geomspace(1e-4, 1.0, 50), alpha=0.6, label=name)
panels[3].set(xscale="log", title="distance from the surface", yticks=[])
panels[3].legend(fontsize=8, loc="upper left")
figure.savefig(given.output / "surface.png", dpi=100)
print(f"Picture: {given.output / 'surface.png'}")
