"""How errors of points near a surface are divided among the columns.

Noise along a surface stays with a point that is moved onto it, wherever it came from: with P the projection
onto the tangent space, the error of column j is the sum over the columns k of P_jk^2 times the noise of k. A
column with little noise can so get more than it had. What an atlas adds is normal to the surface.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.eigen.spectra import top_vectors
from dpmd_fast.kernels.linear import product
from dpmd_fast.models.geometry.anchors import public_moments
from dpmd_fast.models.geometry.bandwidth import leading_basis
from dpmd_fast.models.geometry.tuning import LEAST_COLUMNS, PUBLIC_HOMOGENEOUS

Floats = NDArray[np.float64]
_MOST_POINTS = 300  # at which tangents are taken: more do not change the means


class SurfaceColumns:
    """Tangents at public points `Z` (m, D), seen at bandwidth `h`, and `noise` (D,) of these points.

    Attributes
    ----------
    along : array (D,)
        Mean squares of the noise that is left in each column after a move onto the surface.
    variances : array (q,)
        Of the noise in the coordinates in which tangents are seen: the columns, or the leading directions.
    normal : array (D,)
        Share of each column of a mean square normal to the surface; sum 1.
    """

    def __init__(self, Z: Floats, noise: Floats, h: float, dim: int, n_threads: int | None = None) -> None:
        basis, points = np.eye(Z.shape[1]), Z
        if Z.shape[1] >= LEAST_COLUMNS:
            basis = leading_basis(Z, dim + 1)
            points = np.ascontiguousarray(product(Z - Z.mean(axis=0), basis))
        at = points[:: -(-len(points) // _MOST_POINTS)]
        around = public_moments(points, at, h, PUBLIC_HOMOGENEOUS, n_threads)
        tangents = np.einsum("jq,mqd->mjd", basis, top_vectors(around.covariance, dim))
        columns = Z.shape[1]
        squares, diagonal = np.zeros((columns, columns)), np.zeros(columns)
        for one in tangents:
            projection = product(one, one.T)
            squares += projection**2 / len(tangents)
            diagonal += np.diagonal(projection) / len(tangents)
        self.noise = noise
        self.variances: Floats = ((basis * noise[:, None]) ** 2).sum(axis=0)
        self.along: Floats = (squares * noise**2).sum(axis=1)
        left = np.maximum(0.0, 1.0 - diagonal)
        self.normal: Floats = left / left.sum()

    def errors(self, total: float, reach: float = 1.0) -> tuple[float, ...]:
        """Return errors of the columns whose squares sum to `total`, at least to that of the noise along.

        Points out of reach keep their noise.
        """
        moved = self.along + max(0.0, total - float(self.along.sum())) * self.normal
        return tuple(np.sqrt(reach * moved + (1.0 - reach) * self.noise**2).tolist())
