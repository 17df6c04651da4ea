"""Posterior moments under a mixture: complete rows, rows with missing values, one row alone."""

import numpy as np

from dpmd_fast.kernels.posterior import draw_missing, log_densities, make_components, posterior

from .common import THREAD_COUNTS, Suite, sized

NOISE = 0.5


def factor_models(D, K, rng):
    """Weights, means and covariances of K factor models whose components overlap."""
    loadings = rng.normal(size=(K, D, max(1, D // 4)))
    covariances = loadings @ loadings.transpose(0, 2, 1) / loadings.shape[2] + 0.2 * np.eye(D)
    weights = rng.uniform(1.0, 3.0, size=K)
    return weights / weights.sum(), 0.5 * rng.normal(size=(K, D)), covariances


def noisy_points(mixture, n, rng):
    weights, means, covariances = mixture
    which = rng.choice(len(weights), size=n, p=weights)
    points = means[which] + NOISE * rng.normal(size=(n, means.shape[1]))
    roots = np.linalg.cholesky(covariances)
    for k in range(len(weights)):
        points[which == k] += rng.normal(size=((which == k).sum(), means.shape[1])) @ roots[k].T
    return points


class Posterior(Suite):
    params = (sized(((20, 3),), ((20, 12), (60, 16)), ((20, 12), (60, 16))), THREAD_COUNTS)
    param_names = ("D, K", "threads")

    def setup(self, size, threads):
        D, K = size
        rng = np.random.default_rng(0)
        self.mixture = factor_models(D, K, rng)
        self.X = noisy_points(self.mixture, sized(300, 20_000, 200_000), rng)
        self.holes = np.where(rng.random(self.X.shape) < 0.05, np.nan, self.X)
        self.noise = np.full(D, NOISE)
        self.components = make_components(*self.mixture, self.noise)
        self.still = make_components(*self.mixture, np.zeros(D))
        self.time_means(size, threads)
        self.time_one_row(size, threads)

    def time_make_components(self, size, threads):
        make_components(*self.mixture, self.noise)

    def time_means(self, size, threads):
        posterior(self.components, self.X, deviations=False, n_threads=threads)

    def time_means_and_deviations(self, size, threads):
        posterior(self.components, self.X, deviations=True, n_threads=threads)

    def time_log_densities(self, size, threads):
        log_densities(self.components, self.X, threads)

    def time_means_of_incomplete_rows(self, size, threads):
        posterior(self.components, self.holes, deviations=False, n_threads=threads)

    def time_draw_missing(self, size, threads):
        draw_missing(self.still, self.holes, threads)

    def time_one_row(self, size, threads):
        posterior(self.components, self.X[:1], deviations=False, n_threads=threads)
