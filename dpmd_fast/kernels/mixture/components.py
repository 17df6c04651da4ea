"""Components of a mixture, prepared for points with one noise: public numbers, the same on every machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.linear import cholesky, lower_inverse, product, weighted
from dpmd_fast.kernels.vector.elementary import fixed_logs
from dpmd_fast.kernels.vector.lanes import LANES

_CONDITION = 1e4  # up to which P gap has digits enough for q
_NARROW = 24  # columns up to which it pays to multiply all rows with all P
_WIDE = 48  # columns from which on 12 of them guess too badly which component leads


class PosteriorComponents(NamedTuple):
    """Components prepared for one noise; what is padded has rows of a multiple of four, with zeros.

    Points and means are counted from one `origin`, so that products need no gap of their own.
    """

    log_weights: np.ndarray  # (K,) log pi - 1/2 log det A
    origin: np.ndarray  # (D,) mean of the mixture
    means: np.ndarray  # (K, padded) m, from the origin
    whitening: np.ndarray  # (K, D, padded) W, upper triangular
    whitened: np.ndarray  # (K, padded) -m^T W
    precisions: np.ndarray  # (K, D, padded) P
    gains: np.ndarray  # (K, D, D) P S
    variances: np.ndarray  # (K, D) of x in a complete row
    from_point: np.ndarray  # (D,) whether the mean is z - E P gap, otherwise m + S P gap
    steps: np.ndarray  # (K, D, padded) columns of P or P S
    stepped: np.ndarray  # (K, padded) -m^T steps, + m unless z is the start
    scales: np.ndarray  # (D,) -E or 1
    direct: bool  # whether q and the means come from one product
    opening: int  # otherwise, columns of W in the first bound of q
    still: bool  # without noise: what is there stays

    @property
    def n_columns(self) -> int:
        return len(self.origin)


def make_components(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, noise: np.ndarray
) -> PosteriorComponents:
    """Prepare a mixture for points with `noise`, the deviation (D,) of each column's error."""
    D = np.shape(means)[1]
    padded = -(-D // LANES) * LANES
    E = np.asarray(noise, dtype=np.float64) ** 2
    S = np.asarray(covariances, dtype=np.float64)
    origin = weighted(np.asarray(weights, dtype=np.float64), means)
    m = np.asarray(means, dtype=np.float64) - origin
    A = S + np.diag(E)
    L = cholesky(A)
    W = lower_inverse(L).transpose(0, 2, 1)
    P = product(W, W.transpose(0, 2, 1))
    G = product(W, product(W.transpose(0, 2, 1), S))
    variance = np.diagonal(S, axis1=1, axis2=2)
    # P S = 1 - P E, exact without noise: the smaller of S and E leaves more digits
    small = variance >= E
    gains = np.where(small[:, None, :], np.eye(D) - P * E, G)
    conditions = np.linalg.norm(A, 1, axis=(1, 2)) * np.linalg.norm(P, 1, axis=(1, 2))
    direct = padded <= _NARROW and bool((conditions < _CONDITION).all()) and bool(E.any())
    near = variance.min(axis=0) * (_CONDITION if direct else 1.0) >= E
    direct &= bool(near.all())
    steps = np.where(near, P, G)

    def in_rows(values: np.ndarray) -> np.ndarray:
        out = np.zeros((*values.shape[:-1], padded))
        out[..., :D] = values
        return out

    left = np.where(
        small,
        E * (1.0 - E * np.diagonal(P, axis1=1, axis2=2)),
        variance - np.einsum("kij,kji->ki", S, G),
    )
    return PosteriorComponents(
        log_weights=fixed_logs(weights) - fixed_logs(np.diagonal(L, axis1=1, axis2=2)).sum(axis=1),
        origin=origin,
        means=in_rows(m),
        whitening=in_rows(W),
        whitened=in_rows(-np.einsum("kd,kde->ke", m, W)),
        precisions=in_rows(P),
        gains=gains,
        variances=np.maximum(left, 0.0),
        from_point=near,
        steps=in_rows(steps),
        stepped=in_rows(np.where(near, 0.0, m) - np.einsum("kd,kde->ke", m, steps)),
        scales=np.where(near, -E, 1.0),
        direct=direct,
        opening=24 if padded >= _WIDE else min(padded, 12),
        still=not E.any(),
    )
