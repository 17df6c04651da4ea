"""Noise: the cryptographic stream, normal variates, exact normal noise on the integers, and its addition."""

import numpy as np

from dpmd_fast.kernels.noise import exact_normal, normal
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.privacy.noise import (
    CHUNK,
    noisy_means,
    noisy_projectors,
    noisy_sums,
    rounded_normals,
    standard_normals,
)

from .common import THREADS, Suite, best_seconds, sized

COUNT = sized(20_000, 1_000_000, 10_000_000)
DEVIATION = 2**28


class Stream(Suite):
    """Random words by AES in counter mode."""

    def setup(self):
        self.source = open_source()

    def time_words(self):
        self.source.words(COUNT)


class Normals(Suite):
    params = (1, THREADS)
    param_names = ("threads",)

    def setup(self, threads):
        self.source = open_source()
        self.time_standard_normals(threads)
        self.time_rounded_normals(threads)

    def time_standard_normals(self, threads):
        standard_normals(self.source, COUNT, threads)

    def time_rounded_normals(self, threads):
        rounded_normals(self.source, COUNT, DEVIATION, threads)


class Rates(Suite):
    params = (1, THREADS)
    param_names = ("threads",)
    unit = "samples per second"

    def setup(self, threads):
        self.source = open_source()
        rounded_normals(self.source, COUNT, DEVIATION, threads)

    def track_rounded_normals(self, threads):
        return COUNT / best_seconds(lambda: rounded_normals(self.source, COUNT, DEVIATION, threads))


class Kernels(Suite):
    """Turn existing words into samples, on two threads."""

    def setup(self):
        source = open_source()
        self.floats, self.integers = np.empty(COUNT), np.empty(COUNT, np.int64)
        rows = -(-COUNT // normal.CHUNK)
        self.words = source.words(rows * normal.words_for(normal.CHUNK)).reshape(rows, -1)
        rows = -(-COUNT // CHUNK)
        self.digits = source.words(rows * exact_normal.words_for(CHUNK)).reshape(rows, -1)
        self.time_normal()
        self.time_exact_normal()

    def time_normal(self):
        normal.fill_chunks(self.words, self.floats, THREADS)

    def time_exact_normal(self):
        exact_normal.fill_rows(self.digits, self.integers, CHUNK, DEVIATION, THREADS)


class Releases(Suite):
    params = sized((3, 20), (20, 60), (3, 20, 60, 100))
    param_names = ("D",)

    def setup(self, D):
        m = sized(5, 100, 1000)
        self.source = open_source()
        self.projectors = np.zeros((m, 4 * -(-D // 4), 4 * -(-D // 4)))
        self.means = np.zeros((m, D))
        self.scales = np.full(m, 0.1)
        self.sums = np.zeros((m, D + 1, D + 1), np.int64)
        self.lattice = choose_lattice(1.0, 1.0, "replace-one")
        self.time_noisy_projectors(D)
        self.time_noisy_means(D)
        self.time_noisy_sums(D)

    def time_noisy_projectors(self, D):
        noisy_projectors(self.projectors, D, self.scales, self.source, THREADS)

    def time_noisy_means(self, D):
        noisy_means(self.means, self.scales, self.source, THREADS)

    def time_noisy_sums(self, D):
        noisy_sums(self.sums, self.lattice, self.source, THREADS)
