"""Denoising with certified moments at the queries, for `DPManifoldDenoiser(mechanism="moments")`.

Every step releases the moments around the current queries and moves them with the released mean and tangent
space: x <- x - (I - P)(x - b). The position of a query after a step is post-processing of the release, hence
public, and may be a location of the next release.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.mechanisms.moments import natural_tau, noisy_moments
from dpmd_fast.mechanisms.spend import Mechanism
from dpmd_fast.privacy.lattice import choose_lattice

Floats = NDArray[np.float64]


def denoise_with_moments(
    mechanism: Mechanism,
    queries: NDArray[np.floating],
    *,
    bandwidth: float,
    dim: int,
    beta: float,
    mus: Sequence[float],
) -> tuple[Floats, NDArray[np.str_]]:
    """Make one release with each of `mus`; return points and a status for each query.

    A query whose first location is not occupied is returned unchanged as "no_neighbor", one that loses its
    neighbours later or becomes non-finite as "failed". Both are read off the release.
    """
    n_threads = mechanism.n_threads
    moved = np.array(queries, dtype=np.float64)
    status = np.full(len(moved), "ok", dtype="U11")
    first = True
    for mu in mus:
        alive = np.flatnonzero(status == "ok")
        if mu == 0.0 or not len(alive):
            continue
        X = moved[alive]
        index = build_index(X, bandwidth)
        tau = natural_tau(index, beta, n_threads=n_threads)
        lattice = choose_lattice(mu, tau, mechanism.adjacency)
        release = noisy_moments(mechanism, index, X, beta, tau, lattice)
        occupied = release.occupied  # before cleaning, which turns noise into mass
        release = release.cleaned(dim)
        status[alive[~occupied]] = "no_neighbor" if first else "failed"
        first = False
        away = (release.mean - X)[occupied]
        tangents = release.tangents(dim)[occupied]
        away -= np.einsum("qij,qj->qi", tangents, np.einsum("qij,qi->qj", tangents, away))
        X = X[occupied] + away
        finite = np.isfinite(X).all(axis=1)
        alive = alive[occupied]
        status[alive[~finite]] = "failed"
        moved[alive[finite]] = X[finite]
    moved[status != "ok"] = queries[status != "ok"]
    return moved, status
