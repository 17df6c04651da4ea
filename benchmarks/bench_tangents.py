"""Local PCA at every reference point."""

from dpmd_fast.kernels.index import build_index
from dpmd_fast.kernels.tangents import local_tangents

from .common import CASES, THREADS, TIMEOUT, make_problem


class Tangents:
    params = (CASES, (1, THREADS))
    param_names = ("case", "threads")
    timeout = TIMEOUT

    def setup(self, case, threads):
        problem = make_problem(case)
        local_tangents(build_index(problem.Y[:200], problem.radius), case.d, threads)
        self.index = build_index(problem.Y, problem.radius)

    def time_local_tangents(self, case, threads):
        local_tangents(self.index, case.d, threads)
