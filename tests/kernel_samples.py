"""Samples and settings that several tests of the kernels share."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import naive
import numpy as np

from dpmd_fast.kernels.charts import make_field
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.residuals import make_frames
from dpmd_fast.kernels.width import WIDTH
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.lattice import choose_lattice

GUARD = 1e6  # what stands around the arrays: a read or a write out of bounds shows


def small_integers(rng, *shape):
    """Small integers: every order of summation gives the same bits."""
    return rng.integers(-9, 10, shape).astype(float)


def packed(X, capacity):
    """Rows of X in panel order: vector, row, lane."""
    rows, width = X.shape
    column = np.arange(width)
    panel = np.full((-(-width // WIDTH), capacity, WIDTH), GUARD)
    panel[column // WIDTH, :rows, column % WIDTH] = X.T
    return panel


class Setting:
    """Locations with all that fixes the integer vector of a record."""

    def __init__(self, locations, h, beta=2.0, share=1.0, mu=1.0, adjacency="replace-one"):
        self.locations, self.h, self.beta = locations, float(h), beta
        self.index = build_index(locations, h)
        self.tau = share * natural_tau(self.index, beta)
        self.lattice = choose_lattice(mu, self.tau, adjacency)
        self.bound = self.lattice.bound
        self.unit = math.sqrt(1.0 / self.lattice.step)

    def total(self, *blocks, n_threads=1):
        sums = MomentSums(self.index, self.beta, self.tau, self.lattice.steps, HOMOGENEOUS, n_threads)
        for Y in blocks:
            sums.add(Y)
        return sums.total()

    def oracle(self, Y, unit=None):
        """The sums in Python's integers; the norm is summed in the order of the leaves."""
        order = self.index.order
        out = np.empty((len(order), *2 * (self.locations.shape[1] + 1,)), dtype=object)
        out[order] = naive.moment_sums(
            self.locations[order],
            Y,
            self.h,
            self.beta,
            HOMOGENEOUS,
            self.tau,
            self.unit if unit is None else unit,
            self.bound,
        )
        return out

    def total_with(self, Y, unit):
        """As `total`, with another `unit` than the one that belongs to the bound."""
        sums = MomentSums(self.index, self.beta, self.tau, self.lattice.steps, HOMOGENEOUS)
        sums._clipping = sums._clipping._replace(unit=unit)
        sums.add(Y)
        return sums.total()


def square(A):
    """Squared Frobenius norm of integers, without overflow."""
    entries = A[A != 0].astype(object)
    return int(entries @ entries) if len(entries) else 0


def on_grid(points, step=1.0 / 16.0):
    """Multiples of 1/16: differences, squares and their sums are exact."""
    return np.round(points / step) * step


def grid_setting(D, K, beta, share, h=2.0):
    rng = np.random.default_rng(1000 * D + K)
    locations = on_grid(rng.normal(size=(K, D)) * 0.5 * h / math.sqrt(D))
    locations[K // 2 :: 7] = locations[0]  # duplicates
    return Setting(locations, h, beta, share), rng


def grid_records(setting, rng, n):
    """On locations, at the bandwidth exactly, outside, twice, and in between."""
    A, h, D = setting.locations, setting.h, setting.locations.shape[1]
    Y = A[rng.integers(len(A), size=n)].copy()
    Y[n // 8 :] += on_grid(rng.normal(size=(n - n // 8, D)) * 0.4 * h / math.sqrt(D))
    for i in range(3):
        Y[i] = A[i % len(A)]
        Y[i, i % D] += h if i else -h
    Y[3] = Y[4]
    Y[5] = 100.0
    Y[6, 0] += 5e-324
    return Y


def wide(D, K=150, n=5003):
    rng = np.random.default_rng(D)
    scales = np.where(np.arange(D) < 3, 1.0, 0.1)
    return scales * rng.normal(size=(n, D)), scales * rng.normal(size=(K, D)), 1.1


def charts(D, d, K, seed=0):
    rng = np.random.default_rng(seed)
    tangents = np.linalg.qr(rng.standard_normal((K, D, d)))[0]
    return rng.uniform(-1.0, 1.0, (K, D)), tangents, rng.uniform(0.5, 2.0, K), rng


def residual_problem(D, d, K, n, seed=4):
    centers, tangents, masses, rng = charts(D, d, K, seed)
    h = 0.7 * math.sqrt(D)
    field = make_field(centers, tangents, masses, h, passes=3)
    Y = rng.uniform(-1.2, 1.2, (n, D))
    return Y, field, make_frames(centers, tangents, h, 1.1 * h, 1), centers, tangents, h


def normal_mixture(D, K, seed=0, apart=1.0):
    """Weights, means and covariances of factor models, and a generator."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((K, D, max(1, D // 3)))
    covariances = roots @ roots.transpose(0, 2, 1) / roots.shape[2] + 0.1 * np.eye(D)
    weights = rng.uniform(1.0, 3.0, K)
    return weights / weights.sum(), apart * rng.standard_normal((K, D)), covariances, rng


def draw(mixture, n, noise=0.0, missing=0.0):
    """Noisy points of a `normal_mixture`, with a share of missing values."""
    weights, means, covariances, rng = mixture
    which = rng.choice(len(weights), n, p=weights)
    points = means[which] + noise * rng.standard_normal((n, means.shape[1]))
    points += np.einsum(
        "nij,nj->ni", np.linalg.cholesky(covariances)[which], rng.standard_normal(points.shape)
    )
    points[rng.random(points.shape) < missing] = np.nan
    return points


def on_another_target(file, function, **settings):
    """What `function` of a test file returns where kernels are compiled with other settings of Numba."""
    path = os.pathsep.join([os.path.dirname(os.path.abspath(file)), *sys.path])
    module = os.path.splitext(os.path.basename(file))[0]
    run = subprocess.run(
        [sys.executable, "-c", f"import {module}; print({module}.{function.__name__}())"],
        env={**os.environ, **settings, "PYTHONPATH": path, "DPMD_FAST_CACHE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()
