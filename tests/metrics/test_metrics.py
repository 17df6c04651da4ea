"""Metrics against plain loops that import nothing from the package."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from dpmd_fast.metrics import (
    clustering_accuracy,
    clustering_scores,
    compare_concordance,
    concordance_index,
    knn_distance,
    knn_distortion,
    knn_jaccard,
    nearest_neighbors,
    neighborhood_purity,
    scores,
)


def naive_distance(x, y):
    total = 0.0
    for a, b in zip(x, y, strict=True):
        total += (a - b) ** 2
    return math.sqrt(total)


def naive_neighbors(q, P, k, own=None):
    """(distance, row) of the k nearest, nearest first."""
    found = []
    for row in range(len(P)):
        if row != own:
            found.append((naive_distance(q, P[row]), row))
    return sorted(found)[:k]


def naive_knn_distance(Q, P, k):
    return [sum(d for d, _ in naive_neighbors(q, P, k)) / k for q in Q]


def naive_jaccard(raw, denoised, P, k, own=None):
    out = []
    for i in range(len(raw)):
        mine = None if own is None else own[i]
        before = {row for _, row in naive_neighbors(raw[i], P, k, mine)}
        after = {row for _, row in naive_neighbors(denoised[i], P, k, mine)}
        out.append(len(before & after) / len(before | after))
    return out


def naive_distortion(raw, denoised, P, k, own=None):
    out = []
    for i in range(len(raw)):
        changes = []
        for distance, row in naive_neighbors(raw[i], P, k, None if own is None else own[i]):
            if distance > 0.0:
                changes.append(abs(naive_distance(denoised[i], P[row]) / distance - 1.0))
        out.append(sum(changes) / len(changes) if changes else math.nan)
    return out


def sets(D, n=60, m=25, seed=0):
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(m, D))
    return rng.normal(size=(n, D)), raw, raw + 0.4 * rng.normal(size=(m, D))


@pytest.mark.parametrize("D", [1, 2, 6, 7, 30])
@pytest.mark.parametrize("k", [1, 7, 60])
def test_neighbours(D, k):
    P, raw, denoised = sets(D)
    distances, rows = nearest_neighbors(raw, P, k)
    for i, q in enumerate(raw):
        ref = naive_neighbors(q, P, k)
        np.testing.assert_array_equal(rows[i], [row for _, row in ref])
        np.testing.assert_allclose(distances[i], [d for d, _ in ref], rtol=1e-13)
    np.testing.assert_allclose(knn_distance(raw, P, k), naive_knn_distance(raw, P, k), rtol=1e-13)
    np.testing.assert_allclose(
        knn_jaccard(raw, denoised, P, k), naive_jaccard(raw, denoised, P, k), rtol=1e-13
    )
    np.testing.assert_allclose(  # differences of distances
        knn_distortion(raw, denoised, P, k), naive_distortion(raw, denoised, P, k), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("D", [3, 9])
def test_queries_that_are_among_the_points(D):
    P, _, _ = sets(D)
    own = np.array([4, 0, 59, 17])
    raw = P[own]
    denoised = raw + 0.5
    distances, rows = nearest_neighbors(raw, P, 5, own=own)
    assert (distances > 0.0).all()
    assert not (rows == own[:, None]).any()
    np.testing.assert_allclose(
        knn_jaccard(raw, denoised, P, 5, own=own), naive_jaccard(raw, denoised, P, 5, own)
    )
    np.testing.assert_allclose(
        knn_distortion(raw, denoised, P, 5, own=own), naive_distortion(raw, denoised, P, 5, own)
    )
    assert nearest_neighbors(raw, P, 59, own=own)[1].shape == (4, 59)


def test_many_copies_of_the_own_point():
    P = np.vstack([np.zeros((20, 2)), [[3.0, 4.0]]])
    distances, rows = nearest_neighbors(P[:20], P, 19, own=np.arange(20))
    np.testing.assert_array_equal(distances, np.zeros((20, 19)))
    assert all(own not in row and len(set(row)) == 19 for own, row in enumerate(rows.tolist()))
    assert nearest_neighbors(P[:1], P, 20, own=[0])[0].max() == 5.0
    # more copies than neighbours: the search may not find the own row at all
    rows = nearest_neighbors(P[:20], P, 3, own=np.arange(20))[1]
    assert all(own not in row and len(set(row)) == 3 for own, row in enumerate(rows.tolist()))


@pytest.mark.parametrize("D", [2, 8])
def test_of_equally_near_points_the_first_are_neighbours(D):
    """Whichever the search finds: it would differ between machines."""
    rng = np.random.default_rng(0)
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=D)))
    P = rng.permutation(np.concatenate([corners, 3.0 * corners, corners]))
    for k in (1, 3, 5, 2 ** (D + 1) - 1):
        distances, rows = nearest_neighbors(np.zeros((2, D)), P, k, method="exact")
        first = np.flatnonzero(np.abs(P[:, 0]) == 1.0)[:k]
        np.testing.assert_array_equal(rows, [first, first])
        np.testing.assert_array_equal(distances, math.sqrt(D))


def test_own_point_is_far_away():
    P, _, _ = sets(3)
    own = np.argsort(P[:, 0])[:3]
    moved = P[own] + [9.0, 0.0, 0.0]
    rows = nearest_neighbors(moved, P, 4, own=own)[1]
    assert not np.isin(own, rows).any()
    for i in range(3):
        np.testing.assert_array_equal(rows[i], [row for _, row in naive_neighbors(moved[i], P, 4)])


def test_known_values():
    P = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [11.0, 0.0]])
    raw, denoised = np.array([[0.5, 0.0]]), np.array([[10.5, 0.0]])
    assert knn_distance(raw, P, 2)[0] == 0.5
    assert knn_jaccard(raw, denoised, P, 2)[0] == 0.0
    assert knn_jaccard(raw, raw, P, 2)[0] == 1.0
    assert knn_distortion(raw, denoised, P, 2)[0] == 19.0  # (10.5/0.5 - 1 + 9.5/0.5 - 1)/2
    half = np.array([[0.5, 0.0]]), np.array([[5.4, 0.0]])
    assert knn_jaccard(*half, P, 3)[0] == 1.0
    assert knn_jaccard(*half, P[:, :], 1)[0] == 0.0


def test_a_neighbour_at_distance_0_has_no_ratio():
    P = np.array([[0.0, 0.0], [3.0, 4.0], [30.0, 40.0]])
    raw, denoised = np.array([[0.0, 0.0], [30.0, 40.0]]), np.array([[6.0, 8.0], [30.0, 40.0]])
    np.testing.assert_array_equal(knn_distortion(raw, denoised, P, 2), [0.0, 0.0])
    np.testing.assert_array_equal(knn_distortion(raw[:1], 5.0 * denoised[:1], P, 2), [8.0])  # 45/5 - 1
    assert np.isnan(knn_distortion(raw, denoised, P, 1)).all()


@pytest.mark.parametrize("D", [3, 20])
def test_far_from_the_origin(D):
    P, raw, denoised = sets(D, seed=3)
    near = knn_distance(raw, P, 5), knn_jaccard(raw, denoised, P, 5)
    far = (
        knn_distance(raw + 2.0**30, P + 2.0**30, 5),
        knn_jaccard(raw + 2.0**30, denoised + 2.0**30, P + 2.0**30, 5),
    )
    np.testing.assert_allclose(far[0], near[0], rtol=1e-6)
    np.testing.assert_array_equal(far[1], near[1])


def test_where_the_search_becomes_approximate(monkeypatch):
    P, raw, _ = sets(7)
    asked = []

    def search(Q, points, k):
        asked.append((len(Q), len(points), k))
        return scores._exact_rows(Q, points, k)

    monkeypatch.setattr(scores, "_approximate_rows", search)
    monkeypatch.setattr(scores, "EXACT_PAIRS", len(P) * len(raw))
    nearest_neighbors(raw, P, 4)
    assert not asked
    monkeypatch.setattr(scores, "EXACT_PAIRS", len(P) * len(raw) - 1)
    nearest_neighbors(raw, P, 4, method="exact")
    nearest_neighbors(raw[:, :6], P[:, :6], 4)
    assert not asked
    nearest_neighbors(raw, P, 4)
    nearest_neighbors(raw[:, :6], P[:, :6], 4, method="approximate", own=np.arange(len(raw)))
    assert asked == [(25, 60, 4), (25, 60, 5)]


@pytest.mark.slow
def test_approximate_neighbours():
    rng = np.random.default_rng(0)
    P, Q = rng.normal(size=(4000, 12)), rng.normal(size=(200, 12))
    exact, rows = nearest_neighbors(Q, P, 10, method="exact")
    close, found = nearest_neighbors(Q, P, 10, method="approximate")
    shared = [len(set(a) & set(b)) for a, b in zip(rows.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) > 9.0
    assert (close >= exact - 1e-12).all()
    for i in range(0, 200, 20):
        np.testing.assert_allclose(close[i], [naive_distance(Q[i], P[row]) for row in found[i]], rtol=1e-12)


def test_pynndescent_is_imported_only_when_needed():
    code = (
        "import sys, numpy as np; from dpmd_fast import metrics; "
        "metrics.knn_distance(np.eye(9), np.eye(9), 3); assert 'pynndescent' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3), np.eye(4), 2), "queries has 3 features: must have 4"),
        ((np.eye(3), np.eye(3), 4), "k = 4: must not exceed"),
        ((np.eye(3), np.eye(3), 0), "k = 0: must be an integer >= 1"),
        ((np.eye(3), np.full((3, 3), np.nan), 2), "points contains NaN"),
        ((np.full((3, 3), np.inf), np.eye(3), 2), "queries contains NaN or infinity"),
    ],
)
def test_refused_neighbours(arguments, message):
    with pytest.raises(ValueError, match=message):
        nearest_neighbors(*arguments)


def test_refused_options():
    P = np.eye(3)
    with pytest.raises(ValueError, match="method = 'fast': must be one of"):
        knn_distance(P, P, 1, method="fast")
    with pytest.raises(ValueError, match="k = 3: must not exceed"):
        knn_distance(P, P, 3, own=[0, 1, 2])
    for own in ([0, 1], [0.0, 1.0, 2.0]):
        with pytest.raises(ValueError, match="own has shape"):
            knn_distance(P, P, 1, own=own)
    for own in ([0, 1, 3], [-1, 1, 2]):
        with pytest.raises(ValueError, match="own: must hold rows of points"):
            knn_distance(P, P, 1, own=own)
    for metric in (knn_jaccard, knn_distortion):
        with pytest.raises(ValueError, match=r"denoised has shape \(2, 3\): must have that of raw"):
            metric(P, P[:2], P, 1)


# Clusters


def naive_accuracy(labels, clusters):
    """Best over all ways to give each cluster a label of its own, or none."""
    names, groups = sorted(set(labels)), sorted(set(clusters))
    names += [None] * len(groups)
    best = 0
    for given in itertools.permutations(names, len(groups)):
        match = dict(zip(groups, given, strict=True))
        best = max(best, sum(match[c] == label for label, c in zip(labels, clusters, strict=True)))
    return best / len(labels)


def naive_rand(labels, clusters):
    """Adjusted Rand index from the four kinds of pairs."""
    both = first = second = neither = 0
    for i, j in itertools.combinations(range(len(labels)), 2):
        same, together = labels[i] == labels[j], clusters[i] == clusters[j]
        both += same and together
        first += same and not together
        second += together and not same
        neither += not same and not together
    if first == second == 0:
        return 1.0
    top = 2.0 * (both * neither - first * second)
    return top / ((both + first) * (first + neither) + (both + second) * (second + neither))


def naive_information(labels, clusters):
    n = len(labels)

    def entropy(values):
        return -sum(values.count(v) / n * math.log(values.count(v) / n) for v in set(values))

    pairs = list(zip(labels, clusters, strict=True))
    mutual = entropy(labels) + entropy(clusters) - entropy(pairs)
    mean = 0.5 * (entropy(labels) + entropy(clusters))
    return 1.0 if mean == 0.0 else mutual / mean


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("names", "groups"), [(3, 3), (2, 4), (4, 2), (1, 3)])
def test_clustering(seed, names, groups):
    rng = np.random.default_rng(seed)
    labels = [f"type {j}" for j in rng.integers(names, size=40)]
    clusters = [int(j) - 1 for j in rng.integers(groups, size=40)]
    scores = clustering_scores(labels, clusters)
    assert scores.acc == clustering_accuracy(labels, clusters) == naive_accuracy(labels, clusters)
    assert scores.ari == pytest.approx(naive_rand(labels, clusters), abs=1e-12)
    assert scores.nmi == pytest.approx(naive_information(labels, clusters), abs=1e-12)


def test_renamed_clusters_are_perfect():
    labels = np.array(["a", "b", "b", "c", "c", "c"])
    scores = clustering_scores(labels, [7, 3, 3, 5, 5, 5])
    assert (scores.ari, scores.acc) == (1.0, 1.0)
    assert scores.nmi == pytest.approx(1.0)
    assert clustering_accuracy(labels, np.zeros(6)) == 0.5


def naive_purity(X, labels, k, cosine=True):
    total = 0.0
    for i in range(len(X)):
        found = []
        for j in range(len(X)):
            if j == i:
                continue
            if cosine:
                dot = sum(a * b for a, b in zip(X[i], X[j], strict=True))
                lengths = naive_distance(X[i], 0 * X[i]) * naive_distance(X[j], 0 * X[j])
                found.append((1.0 - dot / lengths, j))
            else:
                found.append((naive_distance(X[i], X[j]), j))
        total += sum(labels[j] == labels[i] for _, j in sorted(found)[:k]) / k
    return total / len(X)


@pytest.mark.parametrize(("m", "k"), [(6, 5), (9, 8), (16, 15), (40, 15)])
def test_purity(m, k):
    rng = np.random.default_rng(m)
    X, labels = rng.normal(size=(m, 3)), rng.integers(3, size=m)
    assert neighborhood_purity(X, labels) == pytest.approx(naive_purity(X, labels, k), abs=1e-12)
    euclidean = neighborhood_purity(X, labels, k=4, metric="euclidean")
    assert euclidean == pytest.approx(naive_purity(X, labels, 4, cosine=False), abs=1e-12)


def test_refused_clusters():
    with pytest.raises(ValueError, match="k = 5: must not exceed"):
        neighborhood_purity(np.eye(5), np.arange(5))
    with pytest.raises(ValueError, match="labels has length 3: must have that of points, 9"):
        neighborhood_purity(np.eye(9), np.arange(3))
    with pytest.raises(ValueError, match="metric = 'l1'"):
        neighborhood_purity(np.eye(9), np.arange(9), metric="l1")
    with pytest.raises(ValueError, match="clusters has length 2: must have that of labels, 3"):
        clustering_scores([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="labels contains NaN"):
        clustering_accuracy([1.0, np.nan], [1, 2])
    with pytest.raises(ValueError, match="labels has shape"):
        clustering_accuracy([], [])


# C-index


def naive_concordance(time, event, risk):
    """(concordant, comparable), over all ordered pairs."""
    concordant = comparable = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            later = time[j] > time[i] or (time[j] == time[i] and not event[j])
            if i == j or not event[i] or not later:
                continue
            comparable += 1.0
            if risk[i] > risk[j]:
                concordant += 1.0
            elif risk[i] == risk[j]:
                concordant += 0.5
    return concordant, comparable


def people(n, seed, ties):
    rng = np.random.default_rng(seed)
    time = rng.integers(1, 6, size=n).astype(float) if ties else rng.exponential(size=n)
    risk = rng.integers(0, 4, size=n).astype(float) if ties else rng.normal(size=n)
    return time, rng.random(n) < 0.6, risk


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8, 31, 64, 65])
def test_concordance(n, ties):
    for seed in range(5):
        time, event, risk = people(n, seed, ties)
        concordant, comparable = naive_concordance(time, event, risk)
        if comparable == 0:
            with pytest.raises(ValueError, match="no comparable pair"):
                concordance_index(time, event, risk)
        else:
            assert concordance_index(time, event.astype(int), risk) == pytest.approx(
                concordant / comparable, abs=1e-14
            )


def test_concordance_of_known_people():
    time = [1.0, 2.0, 3.0, 4.0]
    assert concordance_index(time, [1, 1, 1, 1], [4.0, 3.0, 2.0, 1.0]) == 1.0
    assert concordance_index(time, [1, 1, 1, 1], [1.0, 2.0, 3.0, 4.0]) == 0.0
    assert concordance_index(time, [1, 0, 0, 0], [0.0, 0.0, 0.0, 0.0]) == 0.5
    # an event at the time of a censoring comes first; two events at one time are not comparable
    assert concordance_index([1.0, 1.0], [1, 0], [2.0, 1.0]) == 1.0
    with pytest.raises(ValueError, match="no comparable pair"):
        concordance_index([1.0, 1.0], [1, 1], [2.0, 1.0])


@pytest.mark.fixed_seed
def test_paired_bootstrap():
    n, replicates = 30, 40
    time, event, risk = people(n, 1, ties=True)
    other = np.random.default_rng(9).normal(size=n)
    found = compare_concordance(
        time, event, {"raw": risk, "new": other}, replicates=replicates, level=0.9, seed=5
    )
    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(replicates):
        rows = rng.integers(n, size=n)
        pairs = [naive_concordance(time[rows], event[rows], r[rows]) for r in (risk, other)]
        drawn.append([concordant / comparable for concordant, comparable in pairs])
    drawn = np.array(drawn)
    values = [np.divide(*naive_concordance(time, event, r)) for r in (risk, other)]
    samples = (drawn[:, 0], drawn[:, 1], drawn[:, 1] - drawn[:, 0])
    intervals = (found.scores["raw"], found.scores["new"], found.differences["new"])
    for value, sample, ours in zip((*values, values[1] - values[0]), samples, intervals, strict=True):
        np.testing.assert_allclose(ours, [value, *np.quantile(sample, [0.05, 0.95])], atol=1e-13)
    assert list(found.differences) == ["new"]
    assert found.replicates == replicates


def test_bootstrap_does_not_depend_on_its_blocks(monkeypatch):
    from dpmd_fast.metrics import concordance

    time, event, risk = people(50, 2, ties=False)
    whole = compare_concordance(time, event, {"a": risk, "b": -risk}, replicates=30)
    monkeypatch.setattr(concordance, "_WEIGHTS", 7 * 50)
    assert compare_concordance(time, event, {"a": risk, "b": -risk}, replicates=30) == whole


@pytest.mark.fixed_seed
def test_replicates_without_a_comparable_pair_do_not_count():
    time, event, risk = np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0]), np.array([3.0, 2.0, 1.0])
    found = compare_concordance(time, event, {"a": risk}, replicates=200, seed=0)
    rng = np.random.default_rng(0)
    draws = [rng.integers(3, size=3) for _ in range(200)]
    expected = sum(naive_concordance(time[r], event[r], risk[r])[1] > 0 for r in draws)
    assert found.replicates == expected < 200
    assert found.scores["a"] == (1.0, 1.0, 1.0)


def test_concordance_is_fast_enough_for_a_cohort():
    import time as clock

    time, event, risk = people(50_000, 0, ties=False)
    start = clock.process_time()
    value = concordance_index(time, event, risk - time)
    assert clock.process_time() - start < 5.0
    assert 0.7 < value < 1.0


@pytest.mark.parametrize(
    ("time", "event", "risk", "message"),
    [
        ([1.0, np.nan], [1, 0], [0.0, 1.0], "time: must be"),
        ([1.0, 2.0], [1, 2], [0.0, 1.0], "event: must be 0 or 1"),
        ([1.0, 2.0], [1], [0.0, 1.0], "event: must be 0 or 1"),
        ([1.0, 2.0], [1, 0], [0.0], "risk: must be a finite number for each of 2"),
        ([1.0, 2.0], [1, 0], [0.0, np.inf], "risk: must be a finite number"),
        ([], [], [], "time: must be"),
    ],
)
def test_refused_survival(time, event, risk, message):
    with pytest.raises(ValueError, match=message):
        concordance_index(time, event, risk)


def test_refused_comparisons():
    time, event, risk = people(10, 0, ties=False)
    with pytest.raises(ValueError, match="risks: must map"):
        compare_concordance(time, event, {})
    with pytest.raises(ValueError, match=r"risks\['b'\]: must be"):
        compare_concordance(time, event, {"a": risk, "b": risk[:3]})
    with pytest.raises(ValueError, match="replicates = 1"):
        compare_concordance(time, event, {"a": risk}, replicates=1)
    with pytest.raises(ValueError, match="level = 1"):
        compare_concordance(time, event, {"a": risk}, level=1.0)
