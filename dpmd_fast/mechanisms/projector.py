"""Algorithm 1 of the paper, DP-Projector: a private tangent space at one public point.

Its privacy is conditional: the noise is scaled with Lemma 1, which holds for an unknown constant C. The
`Guarantee` of the result says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import (
    Points,
    check_enough,
    checked,
    checked_choice,
    checked_geometry,
    checked_point,
    checked_points,
)
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.eigen.tridiagonal import top_subspaces
from dpmd_fast.kernels.linear import product
from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.tangents import covariance_at, padded_width
from dpmd_fast.mechanisms.spend import LedgerArgument, check_public, check_terms, prepare
from dpmd_fast.privacy.accounting import gdp_mu
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.privacy.noise import lost_in_rounding, noisy_projectors
from dpmd_fast.privacy.paper_guarantee import paper_guarantee
from dpmd_fast.privacy.sensitivity import projector_bound
from dpmd_fast.reference.local_pca import Floats

_CLASSIC_C1 = 1.25


@dataclass(frozen=True, eq=False)
class ProjectorRelease:
    """The release of Algorithm 1 at one point."""

    projector: Floats = field(repr=False)  # (D, D), rank dim
    basis: Floats = field(repr=False)  # (D, dim), orthonormal columns
    noise_scale: float
    guarantee: Guarantee
    receipt: Receipt | None = field(default=None, repr=False)  # of the ledger that paid


def dp_projector(
    Y: ArrayLike,
    z: ArrayLike,
    bandwidth: float,
    dim: int,
    budget: Budget,
    calibration: str = "classic",
    sensitivity_constant: float = 1.0,
    *,
    ledger: LedgerArgument = None,
    dataset: str | None = None,
    seed: int | None = None,
) -> ProjectorRelease:
    """Release a private tangent space at one public point, by Algorithm 1 of the paper (DP-Projector).

    It is the top-`dim` projector of the covariance of the reference points within `bandwidth` of `z`, plus a
    symmetric Gaussian matrix, projected back to rank `dim`.

    Parameters
    ----------
    Y : array-like of shape (n, D)
        The private reference.
    z : array-like of shape (D,)
        A public point.
    bandwidth, dim : float, int
        h and d; public.
    budget : Budget
        Spent by this one release.
    calibration : {"classic", "budget"}
        ``"classic"`` is the algorithm as printed, noise ``C sqrt(2 ln(1.25/delta)) / (epsilon n h^d)``,
        which is proved for epsilon <= 1 and refused above; ``"budget"`` is ``Delta_P / budget.mu``.
    sensitivity_constant : float
        C of Lemma 1. The printed algorithm has C = 1.
    ledger : Ledger or path, optional
        Pays for the release: the debit is made before the reference is used, or refused with
        `BudgetExceeded`. Without a ledger, only this release is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the run reproducible and therefore not private; refused with a ledger.

    Returns
    -------
    ProjectorRelease
        With ``.projector``, ``.basis``, ``.noise_scale``, ``.guarantee`` and, if a ledger paid, ``.receipt``.

    Notes
    -----
    If fewer than dim + 1 reference points lie in the ball, noise is added to a zero matrix: the result then
    holds no tangent, and does not say so, since no budget pays for saying so.
    """
    terms = check_terms(budget=budget, ledger=ledger, dataset=dataset, seed=seed)
    reference = checked_points("Y", Y)
    n, D = reference.shape
    point = checked_point("z", z, D).astype(np.float64)
    check_public("z", z, Y)
    h, d, _ = checked_geometry(bandwidth, dim, 2.0, D)
    check_enough("Y", n, d)
    checked_choice("calibration", calibration, ("classic", "budget"))
    constant = checked("sensitivity_constant", sensitivity_constant, positive=True)
    mu = _classic_mu(budget) if calibration == "classic" else budget.mu
    scale = projector_bound(n, d, h, constant) / mu
    guarantee = paper_guarantee(
        budget,
        mu=mu,
        n=n,
        dim=d,
        bandwidth=h,
        sensitivity_constant=constant,
        seeded=terms.seeded,
        lemma=1,
        lost_in_rounding=lost_in_rounding(scale, 1.0),
        released="one projector",
    )
    mechanism = prepare(
        terms,
        None,
        guarantee,
        "a projector at a public point",
        mechanism="projector, Algorithm 1",
        parameters={
            "columns": D,
            "bandwidth": h,
            "dim": d,
            "calibration": calibration,
            "sensitivity_constant": constant,
        },
        kernels=("projector",),
        bound_to=reference,
        rows=n,
    )
    with mechanism.failing_safely():
        mechanism.debit()
        basis = _noisy_basis(reference, point, h, d, scale, mechanism.entropy)
    return ProjectorRelease(product(basis, basis.T), basis, scale, mechanism.guarantee, mechanism.receipt)


def _noisy_basis(
    reference: Points, point: Floats, h: float, d: int, scale: float, source: EntropySource
) -> Floats:
    D = len(point)
    covariance, count = covariance_at(build_index(reference, h), point)
    width = padded_width(D)
    padded = np.zeros((1, width, width))
    if count > d:
        trace = float(np.trace(covariance))
        padded[0, :D, :D] = covariance / trace if trace > 0.0 else covariance
        V = top_subspaces(padded, D, d, 1)[0]
        padded[0] = product(V.T, V)
    noisy = noisy_projectors(padded, D, np.array([scale]), source, 1)
    return np.ascontiguousarray(top_subspaces(noisy, D, d, 1)[0, :, :D].T)


def _classic_mu(budget: Budget) -> float:
    if budget.epsilon > 1.0:
        raise UserValueError(
            f"budget.epsilon = {budget.epsilon!r}: calibration 'classic' is proved for epsilon <= 1; "
            "use calibration='budget'"
        )
    mu = budget.epsilon / math.sqrt(2.0 * math.log(_CLASSIC_C1 / budget.delta))
    if mu > gdp_mu(budget.epsilon, budget.delta):
        raise UserValueError(
            f"budget.delta = {budget.delta!r}: the formula of calibration 'classic' does not give "
            "(epsilon, delta)-DP at so large a delta; use calibration='budget'"
        )
    return mu
