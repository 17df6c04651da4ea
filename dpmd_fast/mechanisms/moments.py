"""The certified release: clipped homogeneous second moments at public locations.

records --> MomentSums (exact integers) --> Mechanism.release (noise) --> Release
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import Points, check_memory, checked, checked_bandwidth, checked_beta
from dpmd_fast.compilation import ensure
from dpmd_fast.kernels.search.index import BallIndex, build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.mechanisms.spend import (
    LedgerArgument,
    Mechanism,
    check_terms,
    open_records,
    prepare,
    public_points,
)
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.models.moments import Release
from dpmd_fast.models.predict_direct import predict_moments
from dpmd_fast.models.verdict import refuse_unless_worth, risk_noted
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency, with_conditions
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.reference.tasks import SumTask


def natural_tau(index: BallIndex, beta: float, c: float = HOMOGENEOUS, n_threads: int | None = None) -> float:
    """Return the largest norm that a record at a location contributes: public, since locations are."""
    locations = index.rows[:, : index.columns]
    return float(record_norms(index, locations, beta, c, n_threads).max())


def release_moments(
    reference: Any,
    locations: ArrayLike,
    *,
    bandwidth: float,
    budget: Budget,
    beta: float = 2.0,
    tau: float | None = None,
    adjacency: Adjacency = "replace-one",
    on_invalid: str = "raise",
    columns: list[str] | None = None,
    accept_risk: bool = False,
    ledger: LedgerArgument = None,
    dataset: str | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Release:
    """Release second moments of a private reference around public locations.

    The release is, for every location a, the sum over records y of ``clip(y) k(|y - a| / h) f f^T`` with
    ``f = ((y - a) / h, sqrt(c))``, plus Gaussian noise. A record's contributions to all locations together
    are scaled down to norm `tau`, so the guarantee holds for every data set, in any units.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table or reader, path or list of paths of Parquet files
        The private records; read in batches. The sums, and with a seed the result, do not depend on their
        order, the batches, the files or the number of threads.
    locations : array (K, D)
        Public points. Never take them from the reference.
    bandwidth : float
        Radius h within which a record counts. Public.
    budget : Budget
        Spent completely.
    beta : float
        Kernel exponent, ``k(r) = (1 - r^2)_+^beta``; at least 2.
    tau : float, optional
        Norm to which a record is clipped. Public; by default the largest norm of a record at a location.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, too.
    on_invalid : {"raise", "drop"}
        How to treat records with non-finite or huge values. "raise" reads the reference once before the spend
        and refuses it, without saying which record; "drop" lets them contribute nothing.
    columns : list of str, optional
        Columns to use, if the reference is a table.
    accept_risk : bool
        Whether to spend even if so few records cannot stand out from the noise. The guarantee notes it.
    ledger : Ledger or path, optional
        Pays for the release: the debit is made before the pass over the reference, or refused with
        `BudgetExceeded`. Without a ledger, only this release is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the release reproducible and therefore not private; refused with a ledger.
    n_threads, batch_rows : int, optional
        Threads to use, records to read at a time; neither changes the result.

    Returns
    -------
    Release

    Notes
    -----
    Privacy: a record contributes positive semidefinite integer matrices of joint Frobenius norm at most B,
    checked in integers. Two such have a non-negative inner product, so replacing one moves the sums by at
    most sqrt(2) B (adding or removing one: B). The noise is the normal of deviation M rounded to integers,
    sampled exactly: mu = sqrt(2) B / M (or B / M). `docs/privacy/proof.md` has the proof.
    """
    terms = check_terms(
        budget=budget,
        ledger=ledger,
        dataset=dataset,
        seed=seed,
        adjacency=adjacency,
        on_invalid=on_invalid,
        n_threads=n_threads,
    )
    source = open_records(terms, reference, columns, batch_rows)
    points = public_points("locations", locations, source, reference)
    h, beta = checked_bandwidth(bandwidth), checked_beta(beta)
    if tau is not None:
        tau = checked("tau", tau, positive=True)
    check_memory(*points.shape)
    ensure("moments")
    index = build_index(points, h)
    if tau is None:
        tau = natural_tau(index, beta, n_threads=terms.n_threads)
    lattice = choose_lattice(budget.mu, tau, adjacency)
    rows = source.rows if adjacency == "replace-one" else None
    predicted = predict_moments(rows, lattice.noise_scale, budget)
    refuse_unless_worth(predicted, accept_risk)
    mechanism = prepare(
        terms,
        source,
        with_conditions(terms.certified(lattice.mu), risk_noted(predicted, accept_risk)),
        "moments around public locations",
        mechanism="moments",
        parameters={
            "locations": len(points),
            "columns": points.shape[1],
            "bandwidth": h,
            "beta": beta,
            "tau": tau,
        },
        kernels=("moments",),
    )
    with mechanism.failing_safely():
        made = noisy_moments(mechanism, index, points, beta, tau, lattice)
    return replace(made, receipt=mechanism.receipt)


def noisy_moments(
    mechanism: Mechanism, index: BallIndex, locations: Points, beta: float, tau: float, lattice: Lattice
) -> Release:
    """Make one pass over the records and add the noise; return the release."""
    task = SumTask(partial(MomentSums, index, beta, tau, lattice.steps, HOMOGENEOUS))
    values = mechanism.release(task, lattice)
    return Release(
        values=values,
        features="moments",
        noise_scale=lattice.noise_scale,
        tau=tau,
        c=HOMOGENEOUS,
        bandwidth=index.radius,
        beta=beta,
        lattice=lattice.step,
        locations=np.array(locations, dtype=np.float64),
        adjacency=mechanism.adjacency,
        guarantee=mechanism.guarantee,
    )
