"""Measure how denoising changed the neighbours and the clusters of points.

Not private: see `dpmd_fast.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import checked_choice, checked_integer, checked_points
from dpmd_fast.errors import UserValueError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NEIGHBORS = 15  # default k; the paper states none
EXACT_PAIRS = 10**10  # query-point pairs searched exactly: about a minute in 60 columns on two cores
_TREE_COLUMNS = 6  # above this, blocks of distances are faster than a k-d tree
_BLOCK = 1 << 20  # values gathered at a time
_SPARE = 8  # neighbours more than wanted that a search returns at least, to choose from those equally near
_TIED = 1e-9  # relative difference of distances that rounding may make


# Neighbours (the paper's local-geometry metrics)


def nearest_neighbors(
    queries: ArrayLike,
    points: ArrayLike,
    k: int = NEIGHBORS,
    *,
    method: str = "auto",
    own: ArrayLike | None = None,
) -> tuple[Floats, Integers]:
    """Return the distances of each query to its `k` nearest `points`, ascending, and their rows.

    Parameters
    ----------
    queries : array (m, D)
    points : array (n, D)
    k : int
        At most n, or n - 1 if `own` is given.
    method : {"auto", "exact", "approximate"}
        "exact" is scikit-learn's search: a k-d tree in up to 6 columns, all distances in more. "approximate"
        is pynndescent, which may miss a neighbour. "auto" is exact in up to 6 columns or up to 10^10
        query-point pairs, and approximate beyond.
    own : array (m,) of int, optional
        If the queries are among the points: the row of each, which is not counted as its neighbour.
    """
    Q, P, own_rows = _checked_sets(queries, points, own)
    k = _checked_k(k, len(P) - (own_rows is not None))
    checked_choice("method", method, ("auto", "exact", "approximate"))
    if method == "auto":
        exact = P.shape[1] <= _TREE_COLUMNS or len(Q) * len(P) <= EXACT_PAIRS
        method = "exact" if exact else "approximate"
    wanted = k if own_rows is None else k + 1
    rows = (_exact_rows if method == "exact" else _approximate_rows)(Q, P, wanted)
    if own_rows is not None:
        rows = _without(rows, own_rows)
    distances = _distances(Q, P, rows)
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


def knn_distance(
    queries: ArrayLike,
    points: ArrayLike,
    k: int = NEIGHBORS,
    *,
    method: str = "auto",
    own: ArrayLike | None = None,
) -> Floats:
    """Return the mean distance of each query to its `k` nearest points; see `nearest_neighbors`."""
    return np.asarray(nearest_neighbors(queries, points, k, method=method, own=own)[0].mean(axis=1))


def knn_jaccard(
    raw: ArrayLike,
    denoised: ArrayLike,
    points: ArrayLike,
    k: int = NEIGHBORS,
    *,
    method: str = "auto",
    own: ArrayLike | None = None,
) -> Floats:
    """Return the Jaccard overlap of each query's `k` nearest points before and after denoising."""
    R, X = _checked_pairs(raw, denoised)
    before = nearest_neighbors(R, points, k, method=method, own=own)[1]
    after = nearest_neighbors(X, points, k, method=method, own=own)[1]
    return jaccard(before, after)


def jaccard(before: Integers, after: Integers) -> Floats:
    """Return, row by row, |intersection| / |union| of two sets of `k` distinct integers."""
    k = before.shape[1]
    both = np.sort(np.concatenate([before, after], axis=1), axis=1)
    shared = (both[:, 1:] == both[:, :-1]).sum(axis=1)
    return np.asarray(shared / (2.0 * k - shared))


def knn_distortion(
    raw: ArrayLike,
    denoised: ArrayLike,
    points: ArrayLike,
    k: int = NEIGHBORS,
    *,
    method: str = "auto",
    own: ArrayLike | None = None,
) -> Floats:
    """Return the mean distortion ``| |denoised - x| / |raw - x| - 1 |`` of each query.

    The mean is over the `k` points x nearest to the raw query. Those at distance 0 from it have no ratio and
    are skipped; NaN if none remain.
    """
    R, X = _checked_pairs(raw, denoised)
    before, rows = nearest_neighbors(R, points, k, method=method, own=own)
    return distortion(before, X, checked_points("points", points), rows)


def distortion(before: Floats, denoised: Floats, points: Any, rows: Integers) -> Floats:
    """Return `knn_distortion` for known neighbours: `before` holds the raw queries' distances to `rows`."""
    after = _distances(denoised, np.asarray(points, dtype=np.float64), rows)
    apart = before > 0.0
    change = np.abs(np.divide(after, before, out=np.ones_like(after), where=apart) - 1.0)
    counted = apart.sum(axis=1)
    return np.where(counted > 0, change.sum(axis=1) / np.maximum(counted, 1), np.nan)


def _exact_rows(Q: Floats, P: Floats, k: int) -> Integers:
    """Return the nearest points; of equally near ones the first, whichever the search finds."""
    from sklearn.neighbors import NearestNeighbors

    algorithm = "kd_tree" if P.shape[1] <= _TREE_COLUMNS else "brute"
    more = min(len(P), k + max(k, _SPARE))
    center = P.mean(axis=0)  # distances by products lose digits far from the origin
    search = NearestNeighbors(n_neighbors=more, algorithm=algorithm).fit(P - center)
    found: Integers = search.kneighbors(Q - center, return_distance=False)
    gaps = _distances(Q, P, found)
    order = np.lexsort((found, gaps))
    rows, distances = np.take_along_axis(found, order, axis=1), np.take_along_axis(gaps, order, axis=1)
    if more < len(P):  # all that were found may be as near as the last that counts: then look at every point
        for place in np.flatnonzero(distances[:, -1] <= distances[:, k - 1] * (1.0 + _TIED)):
            every = np.linalg.norm(P - Q[place], axis=1)
            rows[place, :k] = np.argsort(every, kind="stable")[:k]
    return rows[:, :k]


def _approximate_rows(Q: Floats, P: Floats, k: int) -> Integers:
    from pynndescent import NNDescent  # takes seconds to import

    center = P.mean(axis=0)
    index = NNDescent(P - center, n_neighbors=max(30, 2 * k), random_state=0)
    rows = np.asarray(index.query(Q - center, k=k, epsilon=0.2)[0], dtype=np.int64)
    if (rows < 0).any():  # pynndescent marks neighbours that it did not find
        raise UserValueError(
            f"the approximate search found fewer than k = {k} neighbours of a query: use method='exact'"
        )
    return rows


def _without(rows: Integers, own: Integers) -> Integers:
    """Drop each query's own row, or the last one where duplicates have displaced it."""
    drop = rows == own[:, None]
    drop[~drop.any(axis=1), -1] = True
    return np.asarray(rows[~drop].reshape(len(rows), -1))


def _distances(Q: Floats, P: Floats, rows: Integers) -> Floats:
    """Compute distances from differences: those from products are inexact for near points."""
    out = np.empty(rows.shape)
    step = max(1, _BLOCK // (rows.shape[1] * Q.shape[1]))
    for start in range(0, len(Q), step):
        part = slice(start, start + step)
        out[part] = np.linalg.norm(P[rows[part]] - Q[part, None, :], axis=2)
    return out


# Clusters


@dataclass(frozen=True)
class ClusterScores:
    """Agreement of clusters with known labels: ARI, NMI, and ACC after optimal matching."""

    ari: float
    nmi: float
    acc: float


def clustering_scores(labels: ArrayLike, clusters: ArrayLike) -> ClusterScores:
    """Return adjusted Rand index, normalised mutual information (arithmetic mean) and accuracy."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    truth, found = _coded("labels", labels), _coded("clusters", clusters)
    _same_length("clusters", found, "labels", truth)
    return ClusterScores(
        float(adjusted_rand_score(truth, found)),
        float(normalized_mutual_info_score(truth, found)),
        clustering_accuracy(truth, found),
    )


def clustering_accuracy(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Return the share of points in their label's cluster, for the best matching of clusters to labels."""
    from scipy.optimize import linear_sum_assignment

    truth, found = _coded("labels", labels), _coded("clusters", clusters)
    _same_length("clusters", found, "labels", truth)
    table = np.zeros((truth.max() + 1, found.max() + 1), dtype=np.int64)
    np.add.at(table, (truth, found), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(truth))


def neighborhood_purity(
    points: ArrayLike, labels: ArrayLike, k: int | None = None, metric: str = "cosine"
) -> float:
    """Return the mean share of a point's `k` nearest other points that have its label.

    By default k = max(5, min(15, m - 1)) and cosine distance, as in the paper's single-cell study. The cosine
    distance of a point at the origin to any other is 1.
    """
    from sklearn.neighbors import NearestNeighbors

    X, own = checked_points("points", points), _coded("labels", labels)
    _same_length("labels", own, "points", X)
    checked_choice("metric", metric, ("cosine", "euclidean"))
    k = _checked_k(max(5, min(15, len(X) - 1)) if k is None else k, len(X) - 1)
    search = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(X)
    rows = search.kneighbors(return_distance=False)  # leaves out the point itself
    return float((own[rows] == own[:, None]).mean())


# Checks


def _checked_sets(queries: Any, points: Any, own: Any) -> tuple[Floats, Floats, Integers | None]:
    P = np.asarray(checked_points("points", points), dtype=np.float64)
    Q = np.asarray(checked_points("queries", queries), dtype=np.float64)
    if Q.shape[1] != P.shape[1]:
        raise UserValueError(f"queries has {Q.shape[1]} features: must have {P.shape[1]}, as points")
    if own is None:
        return Q, P, None
    rows = np.asarray(own)
    if rows.dtype.kind not in "iu" or rows.shape != (len(Q),):
        raise UserValueError(f"own has shape {rows.shape}: must hold an integer for each of {len(Q)} queries")
    if rows.min() < 0 or rows.max() >= len(P):
        raise UserValueError("own: must hold rows of points, counted from 0")
    return Q, P, rows.astype(np.int64)


def _checked_pairs(raw: Any, denoised: Any) -> tuple[Floats, Floats]:
    R = np.asarray(checked_points("raw", raw), dtype=np.float64)
    X = np.asarray(checked_points("denoised", denoised), dtype=np.float64)
    if R.shape != X.shape:
        raise UserValueError(f"denoised has shape {X.shape}: must have that of raw, {R.shape}")
    return R, X


def _checked_k(k: object, most: int) -> int:
    number = checked_integer("k", k, minimum=1)
    if number > most:
        raise UserValueError(
            f"k = {number}: must not exceed the number of points that can be neighbours", argument="k"
        )
    return number


def _coded(name: str, values: ArrayLike) -> Integers:
    """Encode labels of any kind as integers from 0."""
    try:
        array = np.asarray(values)
    except Exception:
        raise UserValueError(f"{name} cannot be read as an array: must be a list of labels") from None
    if array.ndim != 1 or not array.size:
        raise UserValueError(f"{name} has shape {array.shape}: must be a list of at least one label")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserValueError(f"{name} contains NaN or infinity: every point must have a label")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except Exception:  # some cannot be compared with others
        raise UserValueError(
            f"{name} holds labels of different kinds: all must be numbers, or all texts"
        ) from None


def _same_length(name: str, values: Any, other: str, others: Any) -> None:
    if len(values) != len(others):
        raise UserValueError(f"{name} has length {len(values)}: must have that of {other}, {len(others)}")
