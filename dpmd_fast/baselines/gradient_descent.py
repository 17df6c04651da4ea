"""GD, the paper's other baseline without privacy: gradient descent on |f(x)|^2."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import (
    check_enough,
    checked,
    checked_geometry,
    checked_points,
    checked_steps,
    checked_threads,
)
from dpmd_fast.kernels.descent import descend
from dpmd_fast.reference.local_pca import Floats, fit_reference
from dpmd_fast.status import words_of


@dataclass(frozen=True, eq=False)
class DescentResult:
    """The result of gradient descent.

    Attributes
    ----------
    points : array (m, D)
        Where each query ended.
    status : array (m,)
        "ok", "no_neighbor" or "failed"; the latter two are unchanged.
    iterations : array (m,)
        Accepted steps.
    residuals : array (m,)
        What is left of the objective, ``|f|``; NaN where the query was not moved.
    """

    points: Floats = field(repr=False)
    status: NDArray[np.str_] = field(repr=False)
    iterations: NDArray[np.int64] = field(repr=False)
    residuals: Floats = field(repr=False)


def gradient_descent(
    Y: ArrayLike,
    Z: ArrayLike,
    bandwidth: float,
    dim: int,
    *,
    steps: int = 50,
    beta: float = 2.0,
    tolerance: float = 5e-3,
    n_threads: int | None = None,
) -> DescentResult:
    """Minimise ``|f(x)|^2 / 2``, ``f(x) = (I - Pw_x)(x - b_x)``, from each query, without privacy.

    The gradient is exact: it includes the derivative of the weights in the averaged projector Pw and in
    the mean b. Each step starts with length 1 and is halved until the objective falls (Armijo, 1e-4).

    Parameters
    ----------
    Y, Z : array-like of shape (n, D) and (m, D)
        Reference and queries.
    bandwidth, dim, beta
        h, d and the kernel exponent.
    steps : int
        Largest number of accepted steps for a query.
    tolerance : float
        Stop when ``|f(x)| <= tolerance * bandwidth``. The averaged projector has rank above d, so f keeps a
        small tangential part; with a tolerance far below 5e-3 a query drifts along the manifold without
        getting closer to it.
    n_threads : int, optional
        Threads to use; all by default.
    """
    reference = checked_points("Y", Y)
    n, D = reference.shape
    h, d, exponent = checked_geometry(bandwidth, dim, beta, D)
    check_enough("Y", n, d)
    queries = checked_points("Z", Z, columns=D)
    most = checked_steps(steps)
    smallest = checked("tolerance", tolerance)
    threads = checked_threads(n_threads)
    fitted = fit_reference(reference, h, d, exponent, threads)
    points, codes, taken, residuals = descend(
        fitted.index, fitted.bases, queries, exponent, most, smallest, threads
    )
    return DescentResult(points, words_of(codes), taken, residuals)
