"""Moving points with a field of charts, and the sums of the residual rounds."""

import numpy as np

from dpmd_fast.kernels.charts import make_field, move
from dpmd_fast.kernels.sums.exact import ResidualSums
from dpmd_fast.kernels.sums.residuals import make_frames, residual_norms
from dpmd_fast.lab.datasets import bounded_noise, sphere
from dpmd_fast.models.geometry.anchors import greedy_cover
from dpmd_fast.privacy.lattice import choose_lattice

from .common import SIGMA, THREAD_COUNTS, Suite, sized

BANDWIDTH, DIM = 0.5, 2


def planes(points, D):
    """Orthonormal tangents (K, D, 2) of the unit sphere of the first three axes."""
    a = points / np.linalg.norm(points, axis=1, keepdims=True)
    other = np.where(np.abs(a[:, :1]) < 0.7, np.eye(D)[0], np.eye(D)[1])
    first = other - (other * a).sum(axis=1, keepdims=True) * a
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.zeros_like(a)
    second[:, :3] = np.cross(a[:, :3], first[:, :3])
    return np.stack([first, second], axis=2)


class Charts(Suite):
    params = (sized((20,), (3, 20, 60), (3, 20, 60)), THREAD_COUNTS)
    param_names = ("D", "threads")

    def setup(self, D, threads):
        n = sized(300, 20_000, 200_000)
        rng = np.random.default_rng(0)
        shape = sphere(D, DIM)
        self.X = shape.sample(n, rng) + bounded_noise(n, D, SIGMA, rng)
        self.centers = greedy_cover(shape.sample(sized(200, 2000, 2000), rng), 0.3 * BANDWIDTH)
        self.masses = np.ones(len(self.centers))
        self.tangents = planes(self.centers, D)
        self.field = make_field(self.centers, self.tangents, self.masses, BANDWIDTH, passes=3)
        self.frames = make_frames(self.centers, self.tangents, BANDWIDTH, 0.3 * BANDWIDTH, threads)
        self.still = np.zeros_like(self.X)
        self.time_move(D, threads)
        self.time_residual_norms(D, threads)
        self.time_residual_sums(D, threads)

    def time_make_field(self, D, threads):
        make_field(self.centers, self.tangents, self.masses, BANDWIDTH, passes=3)

    def time_move(self, D, threads):
        move(self.field, self.X, threads)

    def time_residual_norms(self, D, threads):
        residual_norms(self.frames, self.X, self.still, 0.1, threads)

    def time_residual_sums(self, D, threads):
        """Include moving every record, which comes first."""
        lattice = choose_lattice(1.0, 1.0, "replace-one")
        sums = ResidualSums([self.field], self.frames, 1.0, lattice.steps, 0.1, threads)
        sums.add(self.X)
        sums.total()
