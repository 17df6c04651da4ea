"""The affine subspace that holds the manifold, from two small releases: step 0 of an atlas in high D."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.sums.exact import FeatureSums
from dpmd_fast.kernels.sums.features import subspace_coordinates
from dpmd_fast.mechanisms.atlas.rounds import NORMAL_DEVIATIONS, C, Mechanism
from dpmd_fast.models.geometry.anchors import CLIP_SHARE, Floats
from dpmd_fast.models.geometry.layers import Subspace
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference.tasks import SumTask

LEAST_COLUMNS = 8  # below, the charts live in all of R^D
FIND_SHARE, REFINE_SHARE = 0.08, 0.12  # of the total mu^2
_SPREAD = 1.5  # R over the rms radius of the public points


class Outline(NamedTuple):
    """What the first release says about all records together."""

    origin: Floats
    basis: Floats
    values: Floats  # eigenvalues of the subspace, in units of radius^2
    outside: float  # variance outside it, noise included
    radius: float


def outline(mechanism: Mechanism, public: Floats, mu: float) -> Outline | None:
    """Mean and leading directions of the records; None if no small subspace stands out of the noise."""
    D = public.shape[1]
    center = public.mean(axis=0)
    radius = _SPREAD * math.sqrt(float(((public - center) ** 2).sum(axis=1).mean()))
    tau = CLIP_SHARE * C
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    view = partial(_whole_features, center, radius)
    values = mechanism.release(SumTask(partial(FeatureSums, D + 1, tau, lattice.steps), (view,)), lattice)[0]
    mass = values[D, D] / C
    if not mass > 0.0:
        return None
    mean = values[:D, D] / (math.sqrt(C) * mass)
    eigenvalues, vectors = np.linalg.eigh(values[:D, :D] / mass - np.outer(mean, mean))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    noise = lattice.noise_scale / mass
    edge = noise * math.sqrt(2.0 * D)
    for q in range(1, D // 2 + 1):
        tail = eigenvalues[q:]
        if tail[0] - tail[-1] <= 2.2 * edge + 0.5 * max(float(tail.mean()), 0.0):
            break
    else:
        return None
    kept = np.maximum(eigenvalues[:q], 1e-300)
    outside = max(float(eigenvalues[q:].sum()), 0.0) + 2.0 * noise * math.sqrt(D - q)
    outside += (D - q) * float((noise * noise / (2.0 * kept)).sum())
    basis = np.ascontiguousarray(vectors[:, :q])
    return Outline(center + radius * mean, basis, kept, outside * radius * radius, radius)


def refine(mechanism: Mechanism, found: Outline, mu: float) -> Subspace:
    """Regress what the records have outside the subspace on their coordinates in it, and turn it by that."""
    origin, basis, _, outside, radius = found
    D, q = basis.shape
    normal = NORMAL_DEVIATIONS * math.sqrt(outside)
    tau = CLIP_SHARE * C
    lattice = choose_lattice(mu, tau, mechanism.adjacency)
    view = partial(_split_features, origin, basis, radius, normal)
    values = mechanism.release(
        SumTask(partial(FeatureSums, q + D + 1, tau, lattice.steps), (view,)), lattice
    )[0]
    order = np.r_[q + D, :q]
    gram, cross = values[order[:, None], order], values[order, q : q + D]
    units = normal * np.r_[math.sqrt(C), np.full(q, 1.0 / radius)]
    # the noise must not make the regressors' matrix singular
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, 0.5 * lattice.noise_scale)
    coefficients = ((vectors / eigenvalues) @ vectors.T @ cross) * units[:, None]
    coefficients -= coefficients @ basis @ basis.T
    turned = np.linalg.qr(basis + coefficients[1:].T)[0]
    return Subspace(origin + coefficients[0], np.ascontiguousarray(turned))


def _whole_features(center: Floats, radius: float, Y: Floats, n_threads: int | None = None) -> Floats:
    """(y - m) / R and sqrt(c) of each record."""
    out = np.empty((len(Y), len(center) + 1))
    out[:, :-1] = (Y - center) / radius
    out[:, -1] = math.sqrt(C)
    return out


def _split_features(
    origin: Floats, basis: Floats, radius: float, normal: float, Y: Floats, n_threads: int | None = None
) -> Floats:
    """Coordinates of each record in a subspace, what is outside it, and sqrt(c), weighted by the latter."""
    inside, rest = subspace_coordinates(Y, origin, basis, n_threads)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = np.maximum(0.0, 1.0 - (rest * rest).sum(axis=1) / (normal * normal))
        out = np.concatenate([inside / radius, rest / normal, np.full((len(Y), 1), math.sqrt(C))], axis=1)
        out *= weight[:, None]
    out[~(weight > 0.0)] = 0.0
    return out
