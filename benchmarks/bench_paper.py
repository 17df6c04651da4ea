"""The estimators of the paper's system: time, peak memory, and accuracy on the circle."""

import warnings

import numpy as np

from dpmd_fast import Budget, DPManifoldDenoiser, LargeDeltaWarning, ManifoldDenoiser, paper_bandwidth, warmup

from .common import CASES, PROFILE, SIGMA, THREADS, TIMEOUT, Case, make_circle, make_problem

STEPS = 5
BUDGET = Budget(epsilon=1.0, delta=0.1)


def private(bandwidth, dim, budget=BUDGET, seed=None):
    warnings.simplefilter("ignore", LargeDeltaWarning)
    return DPManifoldDenoiser(bandwidth, dim, budget, "projector", steps=STEPS, seed=seed, n_threads=THREADS)


class Estimators:
    params = (CASES,)
    param_names = ("case",)
    timeout = TIMEOUT

    def setup(self, case):
        warmup()
        self.Y, self.Z, self.radius = make_problem(case)
        self.plain = ManifoldDenoiser(self.radius, case.d, steps=STEPS, n_threads=THREADS).fit(self.Y)

    def time_fit(self, case):
        ManifoldDenoiser(self.radius, case.d, n_threads=THREADS).fit(self.Y)

    def time_transform(self, case):
        self.plain.transform(self.Z)


class PrivateTransform:
    params = (CASES,)
    param_names = ("case",)
    timeout = TIMEOUT
    number = 1  # one fit allows one transform, and asv calls setup before every sample

    def setup(self, case):
        warmup()
        problem = make_problem(case)
        self.Z = problem.Z
        self.model = private(problem.radius, case.d).fit(problem.Y)

    def time_transform(self, case):
        self.model.transform(self.Z)


class FitMemory:
    """The peak must not grow with the size of the balls."""

    params = ((300, 5000) if PROFILE == "full" else (100, 1000),)
    param_names = ("ball",)
    timeout = TIMEOUT

    def setup(self, ball):
        warmup()
        self.problem = make_problem(Case(20, 100_000 if PROFILE == "full" else 10_000, 2, m=1, ball=ball))

    def peakmem_fit(self, ball):
        ManifoldDenoiser(self.problem.radius, 2, n_threads=THREADS).fit(self.problem.Y)


class CircleAccuracy:
    """Mean distance to the clean point on the paper's circle."""

    unit = "distance"
    params = (1.0, 4.0, float("inf"))
    param_names = ("epsilon",)
    timeout = TIMEOUT

    def setup(self, epsilon):
        n, m = (20_000, 100) if PROFILE == "full" else (2_000, 50)
        self.Y, self.Z, self.clean = make_circle(n, m)
        self.bandwidth = paper_bandwidth(n, 1, SIGMA)

    def track_error(self, epsilon):
        if np.isinf(epsilon):
            model = ManifoldDenoiser(self.bandwidth, 1, steps=STEPS, n_threads=THREADS)
        else:
            model = private(self.bandwidth, 1, Budget(epsilon, 1e-6), seed=0)
        moved = model.fit(self.Y).transform(self.Z)
        return float(np.linalg.norm(moved - self.clean, axis=1).mean())
