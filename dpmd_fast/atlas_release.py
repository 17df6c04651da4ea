"""`release_atlas`: spend a budget on a private reference once, get a map for good."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.atlas import Atlas, Layer, blocks_in
from dpmd_fast.bandwidth import Outlook
from dpmd_fast.cover import Floats, spectrum_dim, thinned
from dpmd_fast.io import ReferenceSource, check_public, check_valid, open_reference
from dpmd_fast.moments import check_columns
from dpmd_fast.privacy.accounting import checked, checked_integer
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.guarantee import Adjacency, certified_guarantee, warn_large_delta
from dpmd_fast.privacy.lattice import choose_lattice, contributions_apart
from dpmd_fast.recipe import Rounds, build
from dpmd_fast.rounds import Mechanism
from dpmd_fast.subspace import FIND_SHARE, LEAST_COLUMNS, REFINE_SHARE, Subspace, outline, refine
from dpmd_fast.validation import (
    LARGEST,
    check_budget,
    checked_bandwidth,
    checked_beta,
    checked_choice,
    checked_points,
    checked_threads,
)

_SMALLEST_SHARE = 0.01  # no release gets less of the budget


def release_atlas(
    reference: Any,
    anchors: ArrayLike,
    *,
    bandwidth: float | Literal["auto"] = "auto",
    dim: int | Literal["auto"],
    budget: Budget,
    rounds: int | Literal["auto"] = "auto",
    beta: float = 2.0,
    cover: float = 0.3,
    adjacency: Adjacency = "replace-one",
    on_invalid: str = "raise",
    columns: list[str] | None = None,
    n_public: int | None = None,
    seed: int | None = None,
    n_threads: int | None = None,
    batch_rows: int | None = None,
) -> Atlas:
    """Release a map toward the manifold of a private reference.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table, path or list of paths of Parquet files
        The private records. They are read once for every release, in batches.
    anchors : array (m, D)
        Public points around the manifold, for instance the first queries. The file of the atlas shows
        smoothed copies of some of them. Never take them from the reference.
    bandwidth : float or "auto"
        Radius of the charts. "auto" begins with what the public points suggest and pays for finding out
        whether that is too large.
    dim : int or "auto"
        Intrinsic dimension; "auto" reads it off the spectra of the public points, then off the release.
    budget : Budget
        Spent completely.
    rounds : int or "auto"
        Number of releases at the final bandwidth; "auto" by the signal that the public points let expect.
    beta : float
        Kernel exponent; 2 is the only one that the rounds support.
    cover : float
        Distance of the charts in units of the bandwidth, in (0, 1].
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours. With "add-remove" the number of records is private, and
        `n_public` has to be given.
    on_invalid : {"raise", "drop"}
        What becomes of records with non-finite or huge values, as in `release_moments`.
    columns : list of str, optional
        Columns to use, where the reference is a table.
    n_public : int, optional
        A public guess of the number of records, for planning only.
    seed : int, optional
        Makes the atlas reproducible, and not private.
    n_threads, batch_rows : int, optional

    Returns
    -------
    Atlas

    Notes
    -----
    Privacy: every release is a sum of clipped positive semidefinite matrices with exact noise, as in
    `release_moments`; features of later releases depend on the record and on earlier releases alone. mu^2
    adds up over releases, also when shares and bandwidths depend on earlier releases, as long as the sum
    stays within the budget (Smith and Thakurta 2022).
    """
    Z = np.asarray(checked_points("anchors", anchors), dtype=np.float64)
    D = Z.shape[1]
    check_budget(budget)
    h = None if _is_auto("bandwidth", bandwidth) else checked_bandwidth(bandwidth)
    d = None if _is_auto("dim", dim) else checked_integer("dim", dim, minimum=1)
    number = None if _is_auto("rounds", rounds) else checked_integer("rounds", rounds, minimum=1)
    if d is not None and d >= D:
        raise ValueError(f"dim = {d}: must be below the number of columns; the points have {D} feature(s)")
    if checked_beta(beta) != 2.0:
        raise ValueError(f"beta = {beta!r}: an atlas supports 2 only")
    cover = checked("cover", cover, positive=True)
    if cover > 1.0:
        raise ValueError(f"cover = {cover!r}: must be at most 1")
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    checked_choice("on_invalid", on_invalid, ("raise", "drop"))
    n_threads = checked_threads(n_threads)
    if seed is not None:
        checked_integer("seed", seed)
    if len(Z) < D + 2:
        raise ValueError(f"anchors has {len(Z)} sample(s): must have at least D + 2 = {D + 2}")
    source = open_reference(reference, columns=columns, batch_rows=batch_rows)
    check_columns(source, D)
    check_public("anchors", anchors, reference)
    n = _public_count(source, adjacency, n_public)
    if not source.rereadable:
        raise ValueError("reference is a stream that can be read only once: an atlas reads it several times")
    choose_lattice(math.sqrt(_SMALLEST_SHARE) * budget.mu, 1.0, adjacency)  # refuses, before any spend
    choose_lattice(budget.mu, 1.0, adjacency)
    if on_invalid == "raise":
        check_valid(source, LARGEST)
    if adjacency == "replace-one":
        warn_large_delta(budget.delta, n)
    entropy = open_source(seed)
    mu2 = budget.mu**2
    spends: list[tuple[str, float]] = []
    Z = thinned(Z)

    def mechanism(subspace: Subspace | None) -> Mechanism:
        return Mechanism(
            lambda: blocks_in(subspace, source.blocks(), n_threads), entropy, adjacency, n_threads
        )

    subspace = _find_subspace(mechanism(None), Z, mu2, spends)
    if subspace is not None and d is not None and subspace.basis.shape[1] <= d:
        subspace = None
    points = Z if subspace is None else subspace.down(Z, n_threads)
    left = mu2 - math.fsum(spent for _, spent in spends)
    public_dim = spectrum_dim(points, n_threads) if d is None else d
    outlook = Outlook(
        points,
        n,
        math.sqrt(left),
        public_dim,
        apart=contributions_apart(adjacency),
        cover=cover,
        n_threads=n_threads,
    )
    plan = Rounds(mechanism(subspace), points, public_dim, d is None, cover, left)
    attempt, shares = build(plan, outlook, h, number)
    spends += [(what, share * left) for what, share in shares]
    if attempt.charts is None:
        raise RuntimeError(
            "no chart stands out of the noise: the budget is spent; a larger bandwidth, a larger epsilon or "
            "more records would be needed"
        )
    total = math.fsum(spent for _, spent in spends)
    guarantee = certified_guarantee(
        budget,
        mu=min(math.sqrt(total), budget.mu),
        adjacency=adjacency,
        seeded=seed is not None,
        validated=on_invalid == "raise",
        released="the atlas and all that is made with it",
    )
    return Atlas(
        guarantee=guarantee,
        layers=tuple(Layer.of(made) for made in attempt.fields),
        subspace=subspace,
        dim=attempt.dim,
        bandwidth=attempt.bandwidth,
        signal_to_noise=tuple(attempt.signals),
        spends=tuple(spends),
        column_names=source.column_names,
    )


def _find_subspace(
    mechanism: Mechanism, Z: Floats, mu2: float, spends: list[tuple[str, float]]
) -> Subspace | None:
    if Z.shape[1] < LEAST_COLUMNS:
        return None
    spends.append(("subspace", FIND_SHARE * mu2))
    found = outline(mechanism, Z, math.sqrt(FIND_SHARE * mu2))
    if found is None:
        return None
    spends.append(("subspace, refined", REFINE_SHARE * mu2))
    return refine(mechanism, found, math.sqrt(REFINE_SHARE * mu2))


def _is_auto(name: str, value: object) -> bool:
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name} = {value!r}: must be a number or 'auto'")
    return value == "auto" if isinstance(value, str) else False


def _public_count(source: ReferenceSource, adjacency: Adjacency, n_public: int | None) -> int:
    if n_public is not None:
        return checked_integer("n_public", n_public, minimum=1)
    if adjacency == "add-remove":
        raise ValueError("n_public = None: with 'add-remove' the number of records is private; give a guess")
    if source.rows == 0:
        raise ValueError("reference has 0 sample(s): must have at least 1")
    if source.rows is None:
        raise ValueError("n_public = None: the reference does not tell its number of rows; give it")
    return source.rows
