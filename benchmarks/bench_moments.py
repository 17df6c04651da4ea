"""Certified moments: sums, whole releases, reading from Parquet, and accuracy of direct denoising."""

import tempfile
import warnings
from pathlib import Path

from dpmd_fast import Budget, DPManifoldDenoiser, LargeDeltaWarning, paper_bandwidth, release_moments
from dpmd_fast.experiments.manifolds import circle, distance_to_manifold
from dpmd_fast.kernels.index import build_index
from dpmd_fast.moments import HOMOGENEOUS, natural_tau
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.sums import MomentSums

from .common import CASES, PROFILE, SIGMA, THREADS, TIMEOUT, make_circle, make_problem
from .moments import write_records

BUDGET = Budget(epsilon=1.0, delta=1e-6)


class Sums:
    params = (CASES, (1, THREADS))
    param_names = ("case", "threads")
    timeout = TIMEOUT

    def setup(self, case, threads):
        self.Y, locations, radius = make_problem(case)
        self.index = build_index(locations, radius)
        self.tau = natural_tau(self.index, 2.0)
        self.lattice = choose_lattice(BUDGET.mu, self.tau, "replace-one")
        self.time_sums(case, threads)

    def time_sums(self, case, threads):
        sums = MomentSums(self.index, 2.0, self.tau, self.lattice, HOMOGENEOUS, threads)
        sums.add(self.Y)
        sums.total()


class Releases:
    params = (CASES,)
    param_names = ("case",)
    timeout = TIMEOUT

    def setup(self, case):
        self.problem = make_problem(case)
        self.time_release_moments(case)

    def time_release_moments(self, case):
        Y, locations, radius = self.problem
        release_moments(Y, locations, bandwidth=radius, budget=BUDGET, n_threads=THREADS)


class Parquet:
    """The peak must not grow with the number of records."""

    params = ((1_000_000, 4_000_000) if PROFILE == "full" else (50_000, 200_000),)
    param_names = ("rows",)
    timeout = TIMEOUT

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


class CircleAccuracy:
    """Mean distance to the circle after one step of direct certified denoising."""

    unit = "distance"
    params = (0.1, 1e-6)
    param_names = ("delta",)
    timeout = TIMEOUT

    def setup(self, delta):
        n, m = (20_000, 1000) if PROFILE == "full" else (2_000, 50)
        self.Y, self.Z, _ = make_circle(n, m)
        self.bandwidth = paper_bandwidth(n, 1, SIGMA)

    def track_error(self, delta):
        warnings.simplefilter("ignore", LargeDeltaWarning)
        model = DPManifoldDenoiser(self.bandwidth, 1, Budget(1.0, delta), seed=0, n_threads=THREADS)
        moved = model.fit(self.Y).transform(self.Z)
        return float(distance_to_manifold(moved, circle()).mean())
