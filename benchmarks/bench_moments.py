"""Certified moments: sums, whole releases, reading from Parquet, and accuracy of direct denoising."""

import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from dpmd_fast import Budget, DPManifoldDenoiser, LargeDeltaWarning, paper_bandwidth, release_moments
from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums, symmetric_integers
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.lab.datasets import circle, distance_to_manifold
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.lattice import choose_lattice

from .common import (
    CASES,
    SIGMA,
    THREAD_COUNTS,
    THREADS,
    Case,
    Suite,
    best_seconds,
    make_circle,
    make_problem,
    sized,
)
from .limits import dgemm_rate, exact_sums, moment_flops
from .moments import write_records

BUDGET = Budget(epsilon=1.0, delta=1e-6)


class Sums(Suite):
    params = (CASES, THREAD_COUNTS)
    param_names = ("case", "threads")

    def setup(self, case, threads):
        self.Y, locations, radius = make_problem(case)
        self.index = build_index(locations, radius)
        self.tau = natural_tau(self.index, 2.0)
        self.lattice = choose_lattice(BUDGET.mu, self.tau, "replace-one")
        self.time_sums(case, threads)

    def time_sums(self, case, threads):
        sums = MomentSums(self.index, 2.0, self.tau, self.lattice.steps, HOMOGENEOUS, threads)
        sums.add(self.Y)
        sums.total()


class Norms(Suite):
    """A record's contribution to all locations before clipping, and integer sums."""

    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        self.Y, locations, radius = make_problem(case)
        self.index = build_index(locations, radius)
        self.sums = np.zeros((len(locations), *2 * self.index.rows.shape[1:]))
        self.time_record_norms(case)
        self.time_symmetric_integers(case)

    def time_record_norms(self, case):
        record_norms(self.index, self.Y, 2.0, HOMOGENEOUS, THREADS)

    def time_symmetric_integers(self, case):
        symmetric_integers(self.sums, self.index.order, case.D + 1, THREADS)


class ShareOfDgemm(Suite):
    """Useful flops of the exact sums over the rate of DGEMM, both on two threads."""

    params = (sized((20,), (20, 60, 100), (20, 60, 100)),)
    param_names = ("D",)
    unit = "share"

    def setup(self, D):
        n, K = sized((500, 20), (10_000, 200), (50_000, 1000))
        self.case = Case(D, n, 5, m=K, ball=max(20, n * 6 // 100))
        self.Y, locations, radius = make_problem(self.case)
        self.index = build_index(locations, radius)
        self.tau = natural_tau(self.index, 2.0)
        exact_sums(self.Y, self.index, self.tau)

    def track_share(self, D):
        pairs = int(count_neighbors(self.index, self.Y).sum())
        spent = best_seconds(partial(exact_sums, self.Y, self.index, self.tau))
        return moment_flops(pairs, self.case) / spent / dgemm_rate(sized(100, 1000, 2500))


class Releases(Suite):
    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        self.problem = make_problem(case)
        self.time_release_moments(case)

    def peakmem_release_moments(self, case):
        self.time_release_moments(case)

    def time_release_moments(self, case):
        Y, locations, radius = self.problem
        release_moments(Y, locations, bandwidth=radius, budget=BUDGET, n_threads=THREADS)


class Parquet(Suite):
    """The peak must not grow with the number of records."""

    params = (sized((2_000,), (50_000, 200_000), (1_000_000, 4_000_000)),)
    param_names = ("rows",)

    def setup(self, rows):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "records.parquet"
        self.locations, self.radius = write_records(self.path, rows, columns=20, locations=50)
        self.time_release_moments(rows)

    def teardown(self, rows):
        self.folder.cleanup()

    def time_release_moments(self, rows):
        options = {"on_invalid": "drop", "n_threads": THREADS}
        release_moments(self.path, self.locations, bandwidth=self.radius, budget=BUDGET, **options)

    def peakmem_release_moments(self, rows):
        self.time_release_moments(rows)


class CircleAccuracy(Suite):
    """Mean distance to the circle after one step of direct certified denoising."""

    unit = "distance"
    params = (0.1, 1e-6)
    param_names = ("delta",)

    def setup(self, delta):
        n, m = sized((300, 10), (2_000, 50), (20_000, 1000))
        self.Y, self.Z, _ = make_circle(n, m)
        self.bandwidth = paper_bandwidth(n, 1, SIGMA)

    def track_error(self, delta):
        warnings.simplefilter("ignore", LargeDeltaWarning)
        model = DPManifoldDenoiser(
            self.bandwidth, 1, Budget(1.0, delta), accept_risk=True, seed=0, n_threads=THREADS
        )
        moved = model.fit(self.Y).transform(self.Z)
        return float(distance_to_manifold(moved, circle()).mean())
