"""Local PCA at every reference point."""

from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import covariance_at, local_tangents

from .common import CASES, THREAD_COUNTS, Suite, make_problem


class Tangents(Suite):
    params = (CASES, THREAD_COUNTS)
    param_names = ("case", "threads")

    def setup(self, case, threads):
        problem = make_problem(case)
        local_tangents(build_index(problem.Y[:200], problem.radius), case.d, threads)
        self.index = build_index(problem.Y, problem.radius)

    def time_local_tangents(self, case, threads):
        local_tangents(self.index, case.d, threads)


class Covariance(Suite):
    """At one point, for Algorithm 1."""

    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        problem = make_problem(case)
        self.index, self.z = build_index(problem.Y, problem.radius), problem.Y[0]
        covariance_at(self.index, self.z)

    def time_covariance_at(self, case):
        covariance_at(self.index, self.z)
