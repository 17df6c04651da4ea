"""Gradient descent on |f|^2, the paper's baseline."""

from dpmd_fast.kernels.descent import descend
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import local_tangents

from .common import CASES, THREADS, Suite, make_problem


class Descent(Suite):
    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        problem = make_problem(case)
        self.Z = problem.Z[:100]
        self.index = build_index(problem.Y, problem.radius)
        self.bases, _ = local_tangents(self.index, case.d, THREADS)
        descend(self.index, self.bases, self.Z[:2], 2.0, 1, 1e-6, THREADS)

    def time_descend(self, case):
        descend(self.index, self.bases, self.Z, 2.0, 5, 1e-6, THREADS)
