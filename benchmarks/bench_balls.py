"""Exact fixed-radius search."""

from dpmd_fast.kernels.search.balls import count_neighbors
from dpmd_fast.kernels.search.index import build_index

from .common import CASES, THREADS, Suite, make_problem


class Balls(Suite):
    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        self.problem = make_problem(case)
        self.index = build_index(self.problem.Y, self.problem.radius)
        count_neighbors(self.index, self.problem.Z[:2], THREADS)

    def time_build_index(self, case):
        build_index(self.problem.Y, self.problem.radius)

    def time_count_neighbors(self, case):
        count_neighbors(self.index, self.problem.Y, THREADS)
