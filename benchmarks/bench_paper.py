"""The estimators of the paper's system: time, peak memory, and accuracy on the circle."""

import warnings

import numpy as np

from dpmd_fast import Budget, DPManifoldDenoiser, LargeDeltaWarning, ManifoldDenoiser, paper_bandwidth, warmup

from .common import CASES, SIGMA, THREADS, Case, Suite, make_circle, make_problem, sized

STEPS = 5
BUDGET = Budget(epsilon=1.0, delta=0.1)


def private(bandwidth, dim, budget=BUDGET, seed=None, mechanism="projector"):
    warnings.simplefilter("ignore", LargeDeltaWarning)
    return DPManifoldDenoiser(
        bandwidth, dim, budget, mechanism, steps=STEPS, accept_risk=True, seed=seed, n_threads=THREADS
    )


class Estimators(Suite):
    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        warmup()
        self.Y, self.Z, self.radius = make_problem(case)
        self.plain = ManifoldDenoiser(self.radius, case.d, steps=STEPS, n_threads=THREADS).fit(self.Y)

    def time_fit(self, case):
        ManifoldDenoiser(self.radius, case.d, n_threads=THREADS).fit(self.Y)

    def time_transform(self, case):
        self.plain.transform(self.Z)


class PrivateTransform(Suite):
    """One transform of the private estimator, by both mechanisms; the reference is fitted before."""

    params = (CASES, ("moments", "projector"))
    param_names = ("case", "mechanism")
    number = 1  # one fit allows one transform, and asv calls setup before every sample

    def setup(self, case, mechanism):
        warmup()
        problem = make_problem(case)
        self.Z = problem.Z
        self.model = private(problem.radius, case.d, mechanism=mechanism).fit(problem.Y)

    def time_transform(self, case, mechanism):
        self.model.transform(self.Z)


class FitMemory(Suite):
    """The peak must not grow with the size of the balls."""

    params = (sized((50,), (100, 1000), (300, 5000)),)
    param_names = ("ball",)

    def setup(self, ball):
        warmup()
        self.problem = make_problem(Case(20, sized(500, 10_000, 100_000), 2, m=1, ball=ball))

    def time_fit(self, ball):
        self.peakmem_fit(ball)

    def peakmem_fit(self, ball):
        ManifoldDenoiser(self.problem.radius, 2, n_threads=THREADS).fit(self.problem.Y)


class CircleAccuracy(Suite):
    """Mean distance to the clean point on the paper's circle."""

    unit = "distance"
    params = (1.0, 4.0, float("inf"))
    param_names = ("epsilon",)

    def setup(self, epsilon):
        n, m = sized((300, 10), (2_000, 50), (20_000, 100))
        self.Y, self.Z, self.clean = make_circle(n, m)
        self.bandwidth = paper_bandwidth(n, 1, SIGMA)

    def track_error(self, epsilon):
        if np.isinf(epsilon):
            model = ManifoldDenoiser(self.bandwidth, 1, steps=STEPS, n_threads=THREADS)
        else:
            model = private(self.bandwidth, 1, Budget(epsilon, 1e-6), seed=0)
        moved = model.fit(self.Y).transform(self.Z)
        return float(np.linalg.norm(moved - self.clean, axis=1).mean())
