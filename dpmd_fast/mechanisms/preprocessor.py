"""`private_preprocessor`: medians and MADs of a private reference, paid for with a budget.

records --> NestedCounts (exact integers) --> noise --> Preprocessor (public numbers)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpmd_fast.arguments import LARGEST, checked
from dpmd_fast.errors import UserOverflowError, UserValueError
from dpmd_fast.kernels.vector.elementary import fixed_logs
from dpmd_fast.mechanisms.spend import LedgerArgument, check_terms, open_records, prepare
from dpmd_fast.models.preprocessor import (
    CLIP,
    INVALID,
    SKEWED,
    SMALLEST_SCALE,
    Floats,
    Logs,
    Preprocessor,
    chosen_logs,
    invalid_to_nan,
    is_skewed,
    label,
)
from dpmd_fast.models.quantiles import cumulative, fitted_counts, median_and_mad, quantile
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.histograms import BRANCHES, Grid, NestedLattice, nested_lattice, rank_error
from dpmd_fast.privacy.noise import noisy_sums
from dpmd_fast.reference.histograms import Integers, NestedCounts
from dpmd_fast.reference.sources.mapped import MappedSource

_MOST = 1 << 62
_COARSE, _HOPELESS = 0.1, 0.25  # error in rank above which to warn, and to refuse the spend
_AT_THE_END = 0.05  # share of a column in the first or last bin of its grid above which to warn


class PreprocessWarning(UserWarning):
    """The released numbers are coarse, or the bounds do not fit the data, judged by the release alone."""


def private_preprocessor(
    reference: Any,
    *,
    bounds: Mapping[str, Sequence[float]] | ArrayLike,
    budget: Budget,
    log: Logs = "auto",
    clip: float = CLIP,
    skewness: float = SKEWED,
    bins: int = 1024,
    adjacency: Adjacency = "replace-one",
    on_invalid: str = "raise",
    columns: list[str] | None = None,
    ledger: LedgerArgument = None,
    dataset: str | None = None,
    seed: int | None = None,
    batch_rows: int | None = None,
) -> Preprocessor:
    """Release the paper's preprocessing: medians and MADs of a private reference, in one accounted release.

    Parameters
    ----------
    reference : array, DataFrame, Arrow table or reader, path or list of paths of Parquet files
        The private records, in original units; read in batches, once for the release.
    bounds : mapping of column names to (low, high), or array (D, 2)
        Public numbers between which the values of each column are expected; values outside count in the
        nearest bin. Choose them from domain knowledge, never by looking at the reference. Wide bounds cost
        little: 200 standard deviations are fine.
    budget : Budget
        Spent completely, on all columns together.
    log : "auto", bool, or sequence of bool or of column names
        Which columns to log; their low bound must be positive. "auto" decides by the released deciles for
        columns with a positive low bound, as `Preprocessor.from_public` does, and logs no others.
    clip, skewness : float
        As in `Preprocessor` and `Preprocessor.from_public`.
    bins : int
        Bins of each grid: a power of 4 from 16 to 65536. Evenly spaced in the logarithm for columns that are
        or may be logged.
    adjacency : {"replace-one", "add-remove"}
        Which data sets count as neighbours.
    on_invalid : {"raise", "drop"}
        How to treat values that are not finite or beyond 1e100, or not positive in a column that `log` names.
        "raise" reads the reference once before the spend and refuses it; "drop" ignores such a value, but
        not the other values of its record.
    columns : list of str, optional
        Columns to use, if the reference is a table.
    ledger : Ledger or path, optional
        Pays for the release: the debit is made before the pass over the reference, or refused with
        `BudgetExceeded`. Without a ledger, only this release is counted.
    dataset : str, optional
        The name of the reference in the ledger.
    seed : int, optional
        Makes the release reproducible and therefore not private; refused with a ledger.
    batch_rows : int, optional
        Records to read at a time; no effect on the result.

    Returns
    -------
    Preprocessor
        With its `guarantee` and, if a ledger paid, its `receipt`.

    Notes
    -----
    Privacy: histograms of all columns on nested public grids, one Gaussian release of sensitivity
    sqrt(2 D L) counts (add-remove: sqrt(D L)) for D columns and L = log4(bins) grids each; `NestedLattice`
    has the proof. Medians, MADs and the choice of logarithms are computed from the noisy counts.
    """
    terms = check_terms(
        budget=budget,
        ledger=ledger,
        dataset=dataset,
        seed=seed,
        adjacency=adjacency,
        on_invalid=on_invalid,
    )
    source = open_records(terms, reference, columns, batch_rows)
    if not source.local:
        source.blocks()  # raises, saying what engines can be used for
    clip = checked("clip", clip, positive=True, below=LARGEST)
    skewness = checked("skewness", skewness, below=1.0)
    names, D = source.column_names, source.n_columns
    limits = _checked_bounds(bounds, names, D)
    choices = chosen_logs(log, names, D)
    plan = nested_lattice(budget.mu, D, bins, adjacency)
    grids = [_grid(label(names, place), *limits[place], bins, choices[place]) for place in range(D)]
    counted = MappedSource(source, invalid_to_nan(np.array([choice is True for choice in choices])))
    public_rows = source.rows if adjacency == "replace-one" else None
    if public_rows is not None:
        _check_accuracy(public_rows, D, budget, bins)
    mechanism = prepare(
        terms,
        counted,
        terms.certified(plan.lattice.mu, "the preprocessing"),
        "preprocessing: medians and MADs",
        mechanism="nested histograms",
        parameters={"columns": D, "bins": bins},
        kernels=("noise",),
        bound_to=source,
        advice=INVALID,
    )
    with mechanism.failing_safely():
        counts = NestedCounts(grids)
        for block in mechanism.blocks():
            counts.add(block)
        noisy = noisy_counts(counts.counts, plan, mechanism.entropy)
    # from here on, only noisy counts and public numbers are used
    known = counts.rows if adjacency == "replace-one" and on_invalid == "raise" else None
    fitted = fitted_counts(noisy, known)
    scales = [_scales(*pair, skewness) for pair in zip(grids, fitted, choices, strict=True)]
    _warn(names, grids, fitted, scales, plan)
    return Preprocessor(
        center=tuple(center for center, _, _ in scales),
        scale=tuple(scale for _, scale, _ in scales),
        log=tuple(logged for _, _, logged in scales),
        clip=clip,
        column_names=names,
        guarantee=mechanism.guarantee,
        receipt=mechanism.receipt,
    )


def nested(counts: Integers) -> list[Integers]:
    """Return the histograms of all levels, from the coarsest to `counts`."""
    levels = [counts]
    while levels[0].shape[1] > BRANCHES:
        levels.insert(0, levels[0].reshape(len(counts), -1, BRANCHES).sum(axis=2))
    return levels


def noisy_counts(counts: Integers, plan: NestedLattice, entropy: EntropySource) -> list[Floats]:
    """Return the nested histograms with noise, from the coarsest level on, in counts: public from here on.

    This is one release for all columns and levels together; `NestedLattice` has the proof.
    """
    if int(counts.sum(axis=1).max()) * plan.unit >= _MOST:
        raise UserOverflowError("too many records for 64-bit sums at this budget")
    levels = nested(counts)
    nodes = plan.unit * np.concatenate([level.ravel() for level in levels])
    noisy = noisy_sums(nodes[:, None, None], plan.lattice, entropy, 1).ravel()
    noisy /= plan.lattice.step * plan.unit
    ends = np.cumsum([level.size for level in levels])[:-1]
    return [part.reshape(level.shape) for part, level in zip(np.split(noisy, ends), levels, strict=True)]


def _checked_bounds(bounds: Any, names: tuple[str, ...] | None, columns: int) -> list[tuple[float, float]]:
    if isinstance(bounds, Mapping):
        if names is None:
            raise UserValueError(
                f"bounds maps column names, and an array has none: must be an array ({columns}, 2)"
            )
        if set(bounds) != set(names):
            missing, unknown = sorted(set(names) - set(bounds)), sorted(map(str, set(bounds) - set(names)))
            problem = (
                f"lacks {', '.join(map(repr, missing))}"
                if missing
                else f"has {', '.join(map(repr, unknown))}"
            )
            raise UserValueError(
                f"bounds {problem}: must have a pair for each column that is used, and no others"
            )
        bounds = [bounds[name] for name in names]
    try:
        given = np.asarray(bounds)
        limits = np.empty(0) if given.dtype.kind == "c" else given.astype(np.float64)
    except Exception:  # of any kind; its text may show what was given
        limits = np.empty(0)
    if limits.shape != (columns, 2):
        raise UserValueError(
            f"bounds: must hold {columns} pairs of real numbers (low, high), one for each column"
        )
    for place, (low, high) in enumerate(limits.tolist()):
        if not -LARGEST <= low < high <= LARGEST:  # false for NaN
            raise UserValueError(f"bounds of {label(names, place)}: must be finite numbers, low < high")
    return [(low, high) for low, high in limits.tolist()]


def _grid(what: str, low: float, high: float, bins: int, choice: bool | None) -> Grid:
    """Return the grid of a column: geometric if the column is logged, or if "auto" might log it."""
    if choice and not low > 0.0:
        raise UserValueError(f"bounds of {what}: low must be positive in a column that is logged")
    try:
        grid = Grid.between(low, high, bins, choice if choice is not None else low > 0.0)
    except ValueError as problem:
        raise UserValueError(f"bounds of {what}: {problem}") from None
    if not np.diff(grid.edges).min() > 8.0 * SMALLEST_SCALE:  # a MAD is a quarter of a bin or more
        raise UserValueError(f"bounds of {what}: too narrow, or too near 0, for {bins} bins")
    return grid


def _check_accuracy(n: int, columns: int, budget: Budget, bins: int) -> None:
    """Refuse a budget that would buy little but noise; `n` must be public."""
    error = rank_error(n, columns, budget, bins=bins)
    if error > _HOPELESS:
        raise UserValueError(
            f"budget = {budget!r}: would buy quantiles of {columns} columns with an error of {error:.0%} in "
            f"rank; must be at most {_HOPELESS:.0%}: more epsilon, fewer columns, or public numbers",
            argument="budget",
        )


def _scales(grid: Grid, counts: Floats, choice: bool | None, skewness: float) -> tuple[float, float, bool]:
    """Return centre, scale and whether to log, from released counts."""
    ranks = cumulative(counts)
    logged = choice
    if logged is None:
        logged = False
        if grid.geometric:
            before, after = (
                [quantile(edges, ranks, rank) for rank in (0.1, 0.5, 0.9)]
                for edges in (grid.edges, fixed_logs(grid.edges))
            )
            logged = is_skewed(before, after, skewness)
    return *median_and_mad(fixed_logs(grid.edges) if logged else grid.edges, ranks), logged


def _warn(
    names: tuple[str, ...] | None,
    grids: Sequence[Grid],
    counts: Floats,
    scales: Sequence[tuple[float, float, bool]],
    plan: NestedLattice,
) -> None:
    """Warn of poor accuracy or poor bounds, judged by released and public numbers only."""
    totals = counts.sum(axis=1)
    problems = []
    error = plan.rank_noise / float(totals.min())
    if error > _COARSE:
        problems.append(f"ranks are uncertain by {error:.0%} of the records")
    most = _AT_THE_END * totals + 3.0 * plan.noise_scale
    ends = np.flatnonzero(np.maximum(counts[:, 0], counts[:, -1]) > most)
    if len(ends):
        problems.append(f"many records are at or beyond the bounds in {_listed(names, ends)}: widen them")
    narrow = []
    for place, (grid, (center, scale, logged)) in enumerate(zip(grids, scales, strict=True)):
        edges = fixed_logs(grid.edges) if logged else grid.edges
        end = min(max(int(np.searchsorted(edges, center)), 1), len(edges) - 1)
        if scale < edges[end] - edges[end - 1]:
            narrow.append(place)
    if narrow:
        columns = _listed(names, narrow)
        problems.append(f"the MAD is below one bin in {columns}: give narrower bounds or more bins")
    if problems:
        warnings.warn(f"released preprocessing: {'; '.join(problems)}", PreprocessWarning, stacklevel=3)


def _listed(names: tuple[str, ...] | None, places: Any) -> str:
    return ", ".join(label(names, place) for place in places)
