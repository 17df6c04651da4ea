"""Posterior moments under a mixture of normal distributions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class PosteriorComponents(NamedTuple):
    log_weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    noise: np.ndarray


def make_components(weights, means, covariances, noise):
    return PosteriorComponents(np.log(weights), np.array(means), np.array(covariances), np.array(noise))


def posterior(components, Z, *, deviations, n_threads=None):
    means, spread, density = np.empty(Z.shape), np.empty(Z.shape), np.empty(len(Z))
    for i, z in enumerate(Z):
        there = ~np.isnan(z)
        logs, mids, variances = [], [], []
        for a, m, S in zip(components.log_weights, components.means, components.covariances, strict=True):
            A = (S + np.diag(components.noise**2))[np.ix_(there, there)]
            gap = (z - m)[there]
            gain = np.linalg.solve(A, S[there]).T
            logs.append(a - 0.5 * gap @ np.linalg.solve(A, gap) - 0.5 * np.linalg.slogdet(A)[1])
            mids.append(m + gain @ gap)
            variances.append(np.diag(S - gain @ S[there]))
        best = max(logs)
        r = np.exp(np.array(logs) - best)
        density[i] = best + math.log(r.sum()) - 0.5 * there.sum() * math.log(2 * math.pi)
        r /= r.sum()
        means[i] = r @ np.array(mids)
        spread[i] = np.sqrt(np.maximum(0.0, r @ (np.array(variances) + (np.array(mids) - means[i]) ** 2)))
        still = there & (components.noise == 0.0)
        means[i, still] = z[still]
    return means, spread if deviations else None, density


def log_densities(components, Z, n_threads=None):
    return posterior(components, Z, deviations=False)[2]


def fill_missing(components, Z, n_threads=None):
    out = posterior(components, Z, deviations=False)[0]
    out = np.where(np.isnan(Z), out, Z)
    out[np.isnan(Z).all(axis=1)] = np.nan
    return out
