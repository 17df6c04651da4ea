"""Points moved by a field of charts, against plain loops."""

from __future__ import annotations

import hashlib
import math

import naive
import numpy as np
import pytest
from kernel_samples import charts, on_another_target

from dpmd_fast.kernels.chart_blocks import FEW
from dpmd_fast.kernels.charts import FAR, WIDE, apply_fields, make_field, move
from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.narrow_charts import BLOCK
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.wide_charts import FEW_POINTS, SHARED, SOME_POINTS, WIDE_BLOCK

SIZES = [
    (2, 1, 5),
    (3, 1, 67),
    (3, 2, 70),
    (4, 4, 70),
    (6, 5, 130),
    (7, 3, 70),
    (7, 6, 9),
    (8, 2, 66),
    (9, 3, 130),
    (12, 2, 1),
    (20, 5, 200),
    (22, 7, 70),
]
# those with most charts take the longest without the compiler: they run compiled only
ALSO_NOT_COMPILED = [pytest.param(*size, marks=[pytest.mark.kernels] * (size[2] < 130)) for size in SIZES]


@pytest.mark.parametrize(("D", "d", "K"), ALSO_NOT_COMPILED)
@pytest.mark.parametrize("passes", [1, 3])
def test_projections(D, d, K, passes):
    centers, tangents, masses, rng = charts(D, d, K)
    h = 0.9 * math.sqrt(D)
    X = rng.uniform(-1.5, 1.5, (40, D))
    ref, ref_reached = naive.atlas_move(X, centers, tangents, masses, h, passes=passes)
    comp, comp_reached = move(make_field(centers, tangents, masses, h, passes=passes), X)
    np.testing.assert_array_equal(comp_reached, ref_reached)
    np.testing.assert_allclose(comp, ref, rtol=1e-11, atol=1e-12)
    assert ref_reached.any()


@pytest.mark.parametrize(("D", "d", "K"), ALSO_NOT_COMPILED)
def test_corrections(D, d, K):
    centers, tangents, masses, rng = charts(D, d, K, seed=1)
    h = 0.8 * math.sqrt(D)
    X = rng.uniform(-1.5, 1.5, (40, D))
    offsets, slopes = rng.standard_normal((K, D)), rng.standard_normal((K, d, D))
    ref, ref_reached = naive.atlas_move(X, centers, tangents, masses, h, offsets, slopes, 0.7)
    field = make_field(centers, tangents, masses, h, offsets=offsets, slopes=slopes, strength=0.7)
    comp, comp_reached = move(field, X)
    np.testing.assert_array_equal(comp_reached, ref_reached)
    np.testing.assert_allclose(comp, ref, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("D", "K"), [(5, 100), (5, 700), (9, 100), (20, 100), (20, 700)])
def test_a_point_moves_the_same_in_every_company(D, K):
    centers, tangents, masses, rng = charts(D, 2, K, seed=2)
    assert (K > FEW * LEAF) == (K == 700)  # then points are sorted
    field = make_field(centers, tangents, masses, 0.7 * math.sqrt(D), passes=3)
    X = rng.uniform(-1.0, 1.0, (2 * WIDE_BLOCK + 1 if D >= WIDE else 777, D))
    together = move(field, X, 2)[0]
    order = rng.permutation(len(X))
    np.testing.assert_array_equal(move(field, X[order], 1)[0], together[order])
    edges = (FEW_POINTS, SOME_POINTS, WIDE_BLOCK) if D >= WIDE else (BLOCK,)
    for rows in [edge + more for edge in edges for more in (-1, 0, 1, edge + 1)]:
        np.testing.assert_array_equal(move(field, X[:rows], 1)[0], together[:rows])
    one_by_one = np.concatenate([move(field, X[i : i + 1], 1)[0] for i in range(0, len(X), 97)])
    np.testing.assert_array_equal(one_by_one, together[::97])
    assert (together != X).any(axis=1).mean() > 0.1


@pytest.mark.parametrize("D", [2, 5, 8, 20])
@pytest.mark.parametrize("away", [0, 4, 8, 13])
def test_a_chart_far_away_reaches_all_points_of_its_ball(D, away):
    """The box of its leaf is that chart alone, and rounding grows with the distance from the others."""
    rng = np.random.default_rng([D, away])
    far = rng.normal(size=D)
    far *= 10.0**away / np.linalg.norm(far)
    centers = np.concatenate([0.3 * rng.normal(size=(LEAF, D)) - 1e-3 * far, far[None]])
    tangents = np.linalg.qr(rng.normal(size=(LEAF + 1, D, 1)))[0]
    around = rng.normal(size=(2_000, D))
    around /= np.linalg.norm(around, axis=1)[:, None]
    X = far + around * (1.0 - 10.0 ** -rng.uniform(3.0, 16.0, 2_000))[:, None]
    reached = move(make_field(centers, tangents, np.ones(LEAF + 1), 1.0), X)[1]
    inside = ((X - far) ** 2).sum(axis=1) < 1.0 - 1e-14
    assert inside.sum() > 500
    assert reached[inside].all()
    # alone, the box around a block is the point: what is skipped hangs on the margin
    field = make_field(centers, tangents, np.ones(LEAF + 1), 1.0)
    assert all(move(field, X[i : i + 1])[1][0] for i in np.flatnonzero(inside)[:400])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("D", [3, 9, 20, 22])
@pytest.mark.parametrize("rows", [100, 300])
def test_a_record_without_place_is_out_of_reach(bad, D, rows):
    centers, tangents, masses, rng = charts(D, 1, 20, seed=3)
    centers *= 0.3
    X = 0.1 * rng.standard_normal((rows, D))
    X[1::2, 0] = bad
    field = make_field(centers, tangents, masses, 2.0)
    moved, reached = move(field, X)
    assert reached.tolist() == [True, False] * (rows // 2)
    np.testing.assert_array_equal(moved[1::2], X[1::2])
    np.testing.assert_array_equal(moved[::2], move(field, X[::2])[0])


@pytest.mark.parametrize("radius", [1e-3, 1e-9, 1e-20, 1e-150])
@pytest.mark.parametrize("D", [3, 9, 20])
@pytest.mark.parametrize("rows", [FEW_POINTS, FEW_POINTS + 1, SOME_POINTS + 1])
def test_charts_of_a_leaf_far_from_each_other(radius, D, rows):
    """In units of the radius: single precision tells less and less of them, at last nothing."""
    centers, tangents, masses, rng = charts(D, 2, LEAF + 6, seed=6)
    near = rng.integers(len(centers), size=rows)
    X = centers[near] + 0.3 * radius * rng.uniform(-1.0, 1.0, (rows, D)) / math.sqrt(D)
    ref, ref_reached = naive.atlas_move(X, centers, tangents, masses, radius)
    moved, reached = move(make_field(centers, tangents, masses, radius), X, 1)  # all rows in one block
    np.testing.assert_array_equal(reached, ref_reached)
    np.testing.assert_allclose(moved, ref, rtol=1e-14, atol=1e-15)
    assert reached.any()


def coarsely_near(field, X):
    """Return which points a chart may reach, as far as sketches tell: (points, charts)."""
    index = field.balls

    def sketches(points):
        gaps = (points - index.center) / index.radius
        inside = gaps @ index.axes
        outside = np.linalg.norm(gaps - inside @ index.axes.T, axis=1)
        return np.column_stack([inside, outside])

    gaps = sketches(X)[:, None] - sketches(field.centers)
    return (gaps**2).sum(axis=2) < 1.0


@pytest.mark.parametrize("rows", [3 * FEW_POINTS, SOME_POINTS])
def test_leaves_with_few_and_with_many_points_near_a_chart(rows):
    """Charts of the former are put off, and added before those of the latter: each point in its order."""
    D, K, rng = 9, 10 * LEAF, np.random.default_rng(8)
    spread = np.array([1.0] * 3 + [0.1] * (D - 3))
    centers, X = spread * rng.normal(size=(K, D)), spread * rng.normal(size=(rows, D))
    masses, tangents = rng.uniform(0.5, 2.0, K), np.linalg.qr(rng.normal(size=(K, D, 2)))[0]

    def shared(field):
        """Return which leaves have charts that many points are near."""
        leaves = coarsely_near(field, X).reshape(rows, -1, LEAF).transpose(1, 0, 2)
        return leaves.sum(axis=(1, 2)) > SHARED * leaves.any(axis=1).sum(axis=1)

    fields = (make_field(centers, tangents, masses, radius) for radius in np.arange(0.4, 1.0, 0.05))
    field = next(one for one in fields if set(np.diff(shared(one).astype(int)).tolist()) == {-1, 0, 1})
    moved = move(field, X, 1)[0]
    one_by_one = np.concatenate([move(field, X[q : q + 1], 1)[0] for q in range(rows)])
    np.testing.assert_array_equal(moved, one_by_one)
    some = slice(0, rows, 5)
    ref = naive.atlas_move(X[some], centers, tangents, masses, field.balls.radius)[0]
    np.testing.assert_allclose(moved[some], ref, rtol=1e-11, atol=1e-12)


@pytest.mark.kernels
@pytest.mark.parametrize("D", [3, 9])
def test_no_points(D):
    centers, tangents, masses, _ = charts(D, 2, 10)
    moved, reached = move(make_field(centers, tangents, masses, 1.0), np.empty((0, D)))
    assert moved.shape == (0, D)
    assert reached.shape == (0,)


@pytest.mark.parametrize("D", [1, 3, 8, 9, 20])
def test_one_point_of_a_block_near_another_leaf(D):
    rng = np.random.default_rng(D)
    away = np.zeros(D)
    away[0] = 50.0
    centers = rng.uniform(-1.0, 1.0, (2 * LEAF, D))
    centers[LEAF:] += away
    tangents = np.linalg.qr(rng.normal(size=(2 * LEAF, D, 1)))[0]
    field = make_field(centers, tangents, np.ones(2 * LEAF), math.sqrt(D))
    X = rng.uniform(-1.0, 1.0, (9, D))
    for odd in range(len(X)):
        points = X.copy()
        points[odd] += away
        moved, reached = move(field, points)
        assert reached.all()
        np.testing.assert_array_equal(moved, np.concatenate([move(field, x[None])[0] for x in points]))


@pytest.mark.parametrize("D", [3, 12])
def test_fields_move_points_one_after_the_other(D):
    """The second has other leaves, and reaches fewer points: they count as reached all the same."""
    rng = np.random.default_rng(D)
    first = make_field(*charts(D, 2, 700, seed=4)[:3], 0.9 * math.sqrt(D), passes=2)
    centers, tangents, masses, _ = charts(D, 2, 100, seed=5)
    slopes = rng.normal(size=(100, 2, D))
    h = 0.1 * D
    second = make_field(centers, tangents, masses, h, slopes=slopes, strength=0.3)
    X = rng.uniform(-1.5, 1.5, (777, D))
    X[::10] *= 10.0  # out of reach of all
    moved, reached = apply_fields([first, second], X)
    between, by_first = move(first, X)
    after, by_second = move(second, between)
    np.testing.assert_array_equal(moved, after)
    np.testing.assert_array_equal(reached, by_first)
    assert 0 < (by_first & ~by_second).sum() < by_first.sum() < len(X)
    assert (moved != between).any()


def exact_move(X, centers, tangents, h, offsets=None, slopes=None):
    """One pass in extended precision, with masses of one."""
    wide = np.longdouble
    gaps = X[:, None].astype(wide) - centers.astype(wide)
    weights = np.maximum(0, 1 - (gaps**2).sum(axis=2) / wide(h) ** 2) ** 2
    along = np.einsum("xkd,kde->xke", gaps, tangents.astype(wide))
    directions = tangents.transpose(0, 2, 1) if slopes is None else slopes
    steps = np.einsum("xke,ked->xkd", along, directions.astype(wide))
    steps += -gaps if offsets is None else offsets
    return X + np.einsum("xk,xkd->xd", weights, steps) / weights.sum(axis=1)[:, None]


@pytest.mark.parametrize("away", [3.0, 0.9 * FAR, 1.1 * FAR, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("D", [2, 5, 8])
def test_a_cluster_far_from_the_others_keeps_its_digits(D, corrects, away):
    """In the columns in which it is not far: there the results are as large as the radius."""
    rng = np.random.default_rng([D, int(away)])
    h = math.sqrt(D)
    centers = rng.uniform(-1.0, 1.0, (4 * LEAF, D))
    centers[-LEAF // 2 :, 0] = np.float64(away) * h + rng.integers(-4, 5, LEAF // 2) / 4.0
    tangents = np.linalg.qr(rng.normal(size=(len(centers), D, 1)))[0]
    extra = {}
    if corrects:
        extra = {"offsets": rng.normal(size=centers.shape), "slopes": rng.normal(size=(len(centers), 1, D))}
    X = rng.uniform(-0.5, 0.5, (200, D))
    X[100:, 0] = away * h + rng.integers(-2, 3, 100) / 4.0
    field = make_field(centers, tangents, np.ones(len(centers)), h, **extra)
    moved, reached = move(field, X)
    assert reached.all()
    error = np.abs(moved - exact_move(X, centers, tangents, h, **extra))
    # rows about the center lose 4 digits at most, charts about their own centres none
    assert error[:, 1:].max() < (1e-11 if away <= FAR else 1e-14) * 10.0
    assert error[:100, 0].max() < 1e-12
    assert error[100:, 0].max() <= 4.0 * np.spacing(away * h) + 1e-11


@pytest.mark.parametrize("away", [0.0, 1e9])
def test_nothing_behind_the_last_chart_is_used(away):
    """Charts of which all numbers are beyond what single precision can tell come as whole leaves."""
    D, K = 3, LEAF + 6
    rng = np.random.default_rng(0)
    centers = rng.uniform(-0.5, 0.5, (K, D))
    centers[LEAF:] += away
    tangents = np.linalg.qr(rng.normal(size=(K, D, 1)))[0]
    field = make_field(centers, tangents, np.ones(K), 2.0)
    X = centers[LEAF:] + 0.25
    ref, _ = move(field, X)

    def with_nan_behind(values):
        room = np.full((2 * len(values) + LEAF, *values.shape[1:]), np.nan, values.dtype)
        room[: len(values)] = values
        return room[: len(values)]

    sizes, sketch, boxes, (lanes, rows, *others), *rest = field.packed
    packed = (sizes, sketch, boxes, (with_nan_behind(lanes), with_nan_behind(rows), *others), *rest)
    moved, reached = move(field._replace(packed=packed), X)
    assert reached.all()
    np.testing.assert_array_equal(moved, ref)


def digest() -> str:
    """Digest of points moved by charts of many columns, one, a few and many at a time."""
    D, d, K = 12, 7, 200
    centers, tangents, masses, rng = charts(D, d, K, seed=9)
    field = make_field(centers, np.round(tangents, 6), masses, 0.9 * math.sqrt(D), passes=2)
    X = rng.uniform(-1.5, 1.5, (SOME_POINTS + 50, D))
    total = hashlib.sha256()
    for rows in (1, FEW_POINTS, SOME_POINTS, len(X)):
        total.update(move(field, X[:rows], 1)[0].tobytes())
    return total.hexdigest()


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_processor_without_avx512_gives_the_same_bits():
    """AVX-512 has an instruction that other processors go without (`vector/runs.py`)."""
    features = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    assert on_another_target(__file__, digest, **features) == digest()
