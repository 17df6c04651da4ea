"""Coordinates in a subspace, and the moments of one vector per record."""

import numpy as np

from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.kernels.sums.features import inside_coordinates, subspace_coordinates, subspace_points
from dpmd_fast.privacy.lattice import choose_lattice

from .common import THREADS, Suite, sized


class Features(Suite):
    params = (sized((20,), (20, 200), (20, 60, 200)),)
    param_names = ("D",)

    def setup(self, D):
        rng = np.random.default_rng(0)
        self.Y = rng.normal(size=(sized(300, 20_000, 200_000), D))
        self.center = np.zeros(D)
        self.basis = np.linalg.qr(rng.normal(size=(D, 3)))[0]
        self.inside = inside_coordinates(self.Y, self.center, self.basis, THREADS)
        self.time_subspace_coordinates(D)
        self.time_subspace_points(D)
        self.time_feature_sums(D)

    def time_inside_coordinates(self, D):
        inside_coordinates(self.Y, self.center, self.basis, THREADS)

    def time_subspace_coordinates(self, D):
        subspace_coordinates(self.Y, self.center, self.basis, THREADS)

    def time_subspace_points(self, D):
        subspace_points(self.inside, self.center, self.basis, THREADS)

    def time_feature_sums(self, D):
        sums = FeatureSums(D, 1.0, choose_lattice(1.0, 1.0, "replace-one").steps, THREADS)
        sums.add(self.Y)
        sums.total()
