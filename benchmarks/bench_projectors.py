"""Local geometry at the queries and the top eigenspaces of averaged projectors, with and without noise."""

import numpy as np

from dpmd_fast.kernels.eigen.tridiagonal import top_subspaces
from dpmd_fast.kernels.projectors import local_geometry, project_to_planes
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import local_tangents
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import noisy_projectors

from .common import CASES, THREADS, Suite, make_problem


class Geometry(Suite):
    params = (CASES,)
    param_names = ("case",)

    def setup(self, case):
        problem = make_problem(case)
        self.Z = problem.Z
        self.index = build_index(problem.Y, problem.radius)
        self.bases, _ = local_tangents(self.index, case.d, THREADS)
        geometry = local_geometry(self.index, self.bases, self.Z, 2.0, THREADS)
        self.points, self.means = self.Z.copy(), self.Z + 0.1
        self.tangents = top_subspaces(geometry.projectors, case.D, case.d, THREADS)
        self.time_toward(case)

    def time_local_geometry(self, case):
        local_geometry(self.index, self.bases, self.Z, 2.0, THREADS)

    def time_toward(self, case):
        project_to_planes(self.points, self.means, self.tangents, THREADS)


class Subspaces(Suite):
    params = (CASES, (0.0, 0.1))  # without noise the gap is wide; noise of 0.1 closes it in high D
    param_names = ("case", "noise")

    def setup(self, case, noise):
        problem = make_problem(case)
        index = build_index(problem.Y, problem.radius)
        bases, _ = local_tangents(index, case.d, THREADS)
        self.matrices = local_geometry(index, bases, problem.Z, 2.0, THREADS).projectors
        if noise:
            scales = np.full(len(self.matrices), noise)
            noisy_projectors(self.matrices, case.D, scales, open_source(0), THREADS)
        top_subspaces(self.matrices[:2], case.D, case.d, THREADS)

    def time_top_subspaces(self, case, noise):
        top_subspaces(self.matrices, case.D, case.d, THREADS)
