"""Noise from the cryptographic source."""

import numpy as np

from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.mechanism import noisy_means, noisy_projectors, standard_normals

from .common import PROFILE, THREADS, TIMEOUT

COUNT = 10_000_000 if PROFILE == "full" else 1_000_000


class Normals:
    params = (1, THREADS)
    param_names = ("threads",)
    timeout = TIMEOUT

    def setup(self, threads):
        self.source = open_source()
        standard_normals(self.source, COUNT, threads)

    def time_standard_normals(self, threads):
        standard_normals(self.source, COUNT, threads)


class Releases:
    params = (3, 20, 60, 100)
    param_names = ("D",)
    timeout = TIMEOUT

    def setup(self, D):
        m = 1000 if PROFILE == "full" else 100
        self.source = open_source()
        self.projectors = np.zeros((m, 4 * -(-D // 4), 4 * -(-D // 4)))
        self.means = np.zeros((m, D))
        self.scales = np.full(m, 0.1)
        self.time_noisy_projectors(D)
        self.time_noisy_means(D)

    def time_noisy_projectors(self, D):
        noisy_projectors(self.projectors, D, self.scales, self.source, THREADS)

    def time_noisy_means(self, D):
        noisy_means(self.means, self.scales, self.source, THREADS)
