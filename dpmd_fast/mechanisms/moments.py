"""The certified release: clipped homogeneous second moments at public locations.

    records --> MomentSums (exact integers) --> mechanism.noisy_sums --> Release

`MomentSums` is on the private side. `release_moments` checks everything, spends, sums, adds the noise once
and returns what may be seen.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import (
    LARGEST,
    Points,
    check_memory,
    checked,
    checked_bandwidth,
    checked_beta,
    checked_choice,
    checked_integer,
    checked_points,
    checked_threads,
)
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.search.index import BallIndex, build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.kernels.sums.moments import record_norms
from dpmd_fast.models.moments import HOMOGENEOUS, Release
from dpmd_fast.privacy.budget import Budget, check_budget
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.guarantee import Adjacency, Guarantee, certified_guarantee, warn_large_delta
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.privacy.ledger.charge import Charge, budget_parameters, open_account
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.sources.open import (
    ReferenceSource,
    by_name,
    check_count,
    check_public,
    check_valid,
    open_reference,
)
from dpmd_fast.reference.tasks import SumTask


def natural_tau(index: BallIndex, beta: float, c: float = HOMOGENEOUS, n_threads: int | None = None) -> float:
    """Largest contribution of a record that sits on a location: public, since the locations are."""
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
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Release:
    """Release second moments of a private reference around public locations.

    For every location a, the sum over records y of ``clip(y) k(|y - a| / h) f f^T`` with
    ``f = ((y - a) / h, sqrt(c))``, plus Gaussian noise. A record's contributions to all locations together
    are scaled down to norm `tau`, so the guarantee holds for every data set, in any units.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table or reader, path or list of paths of Parquet files
        The private records; read in batches. With a seed, the result does not depend on their order, the
        batches, the files or the number of threads.
    locations : array (K, D)
        Public points. Never take them from the reference.
    bandwidth : float
        Radius h within which a record counts. Public.
    budget : Budget
        What this release may spend; it spends all of it.
    beta : float
        Kernel exponent, ``k(r) = (1 - r^2)_+^beta``; at least 2.
    tau : float, optional
        Norm to which a record is clipped. Public; by default the largest that a record on a location has.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, too.
    on_invalid : {"raise", "drop"}
        What becomes of records with non-finite or huge values. "raise" reads the reference once before the
        spend and refuses it, without saying which record; "drop" lets them contribute nothing.
    columns : list of str, optional
        Columns to use, where the reference is a table.
    ledger : Ledger or path, optional
        Pays for the release: the debit is made before the pass over the reference, or refused with
        `BudgetExceeded`. Without a ledger nothing but this release is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the release reproducible, and not private; not with a ledger.
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
    sampled exactly: mu = sqrt(2) B / M (or B / M). `docs/privacy.md` has the proof.
    """
    account = open_account(ledger, dataset, seed)
    source = open_reference(reference, columns=columns, batch_rows=batch_rows)
    points = checked_points("locations", by_name("locations", locations, source.column_names))
    h, beta = checked_bandwidth(bandwidth), checked_beta(beta)
    check_budget(budget)
    adjacency = checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    checked_choice("on_invalid", on_invalid, ("raise", "drop"))
    n_threads = checked_threads(n_threads)
    if tau is not None:
        tau = checked("tau", tau, positive=True)
    if seed is not None:
        checked_integer("seed", seed)
    check_count(source, adjacency)
    check_public("locations", locations, reference)
    check_columns(source, points.shape[1])
    check_memory(*points.shape)
    index = build_index(points, h, n_threads)
    if tau is None:
        tau = natural_tau(index, beta, n_threads=n_threads)
    lattice = choose_lattice(budget.mu, tau, adjacency)
    if adjacency == "replace-one" and source.rows == 0:
        raise UserValueError("reference has 0 sample(s): must have at least 1")
    guarantee = certified_guarantee(
        budget,
        mu=lattice.mu,
        adjacency=adjacency,
        seeded=seed is not None,
        validated=on_invalid == "raise",
    )
    charge = Charge(
        account,
        guarantee,
        "moments around public locations",
        mechanism="moments",
        parameters=budget_parameters(
            budget, locations=len(points), columns=points.shape[1], bandwidth=h, beta=beta, tau=tau
        ),
        reference=source,
    )
    if on_invalid == "raise":
        check_valid(source, LARGEST)
    if adjacency == "replace-one" and source.rows is not None:
        warn_large_delta(budget.delta, source.rows)
    entropy = open_source(seed)
    with charge.covering():
        charge.debit()
        made = noisy_moments(source, index, points, beta, tau, lattice, charge.guarantee, entropy, n_threads)
    return replace(made, receipt=charge.receipt)


def check_columns(source: ReferenceSource, columns: int) -> None:
    """Refuse a reference whose points have another dimension than the public ones."""
    if source.n_columns != columns:
        raise UserValueError(
            f"reference has {source.n_columns} column(s): must have {columns}, as the public points"
        )


def noisy_moments(
    source: ReferenceSource,
    index: BallIndex,
    locations: Points,
    beta: float,
    tau: float,
    lattice: Lattice,
    guarantee: Guarantee,
    entropy: EntropySource,
    n_threads: int | None,
) -> Release:
    """One pass over the reference and one draw of noise: the spend has been made."""
    task = SumTask(partial(MomentSums, index, beta, tau, lattice.steps, HOMOGENEOUS))
    return Release(
        values=noisy_sums(source.run(task, n_threads).values, lattice, entropy, n_threads),
        features="moments",
        noise_scale=lattice.noise_scale,
        tau=tau,
        c=HOMOGENEOUS,
        bandwidth=index.radius,
        beta=beta,
        lattice=lattice.step,
        locations=np.array(locations, dtype=np.float64),
        adjacency=guarantee.adjacency,
        guarantee=guarantee,
    )
