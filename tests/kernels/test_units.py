"""Rows converted to the units of a preprocessor and back, against plain loops."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from dpmd_fast.kernels.units import from_units, to_units

CLIP = 2.0


def _sample(rows, columns=5):
    rng = np.random.default_rng(rows)
    X = np.exp(rng.normal(size=(rows, columns)))
    logged = np.arange(columns) % 2 == 0
    return X, logged, rng.normal(size=columns), rng.uniform(0.3, 2.0, columns)


@pytest.mark.kernels
@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("keeps", [False, True])
def test_rows_in_units_and_back(rows, keeps):
    X, *units = _sample(rows)
    ref_scaled, ref_inside, ref_clipped, _ = naive.to_units(X, *units, CLIP)
    scaled = np.empty(X.shape if keeps else (0, X.shape[1]))
    inside, clipped, out = np.empty(X.shape), np.empty(rows, np.bool_), np.empty(X.shape)
    low = np.ones(5, np.bool_)
    to_units(X, *units, CLIP, scaled, inside, clipped, low)
    assert not low.any()
    if keeps:
        np.testing.assert_allclose(scaled, np.reshape(ref_scaled, X.shape), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(inside, np.reshape(ref_inside, X.shape), rtol=1e-13, atol=1e-14)
    assert clipped.tolist() == ref_clipped
    if rows > 100:
        assert 0 < clipped.sum() < rows
    after = inside.copy()
    after[::3, 1:4] += 0.25  # the others do not move
    from_units(X, inside, after, *units, out)
    np.testing.assert_allclose(
        out, np.reshape(naive.from_units(X, inside, after, *units), X.shape), rtol=1e-13
    )
    still = after == inside
    np.testing.assert_array_equal(out[still], X[still])


@pytest.mark.kernels
def test_missing_values_stay_missing_and_spoil_no_other():
    X, *units = _sample(70)
    nothing, inside, clipped = np.empty((0, 5)), np.empty((2, *X.shape)), np.empty((2, len(X)), np.bool_)
    low = np.empty(5, np.bool_)
    to_units(X, *units, CLIP, nothing, inside[0], clipped[0], low)
    holes = X.copy()
    holes[3, 0] = holes[66, 1] = np.nan
    to_units(holes, *units, CLIP, nothing, inside[1], clipped[1], low)
    assert not low.any()
    assert np.isnan(inside[1]).sum() == 2
    whole = ~np.isnan(inside[1])
    assert not (clipped[1] & ~clipped[0]).any()
    np.testing.assert_array_equal(inside[1][whole], inside[0][whole])
    out = np.empty(X.shape)
    from_units(holes, inside[1], inside[1] + 0.5, *units, out)
    np.testing.assert_array_equal(np.isnan(out), ~whole)
    filled = np.where(whole, inside[1], 0.25)
    from_units(holes, inside[1], filled, *units, out)
    logged, center, scale = units
    assert out[3, 0] == pytest.approx(np.exp(center[0] + 0.25 * scale[0]))
    assert out[66, 1] == pytest.approx(center[1] + 0.25 * scale[1])
    assert logged[0]
    assert not logged[1]


@pytest.mark.kernels
def test_a_value_at_the_limit_is_not_clipped():
    X = np.array([[CLIP, -CLIP], [np.nextafter(CLIP, 9.0), 0.0], [0.0, np.nextafter(-CLIP, -9.0)]])
    inside, clipped = np.empty(X.shape), np.empty(3, np.bool_)
    plain, low = np.zeros(2, np.bool_), np.ones(2, np.bool_)
    to_units(X, plain, np.zeros(2), np.ones(2), CLIP, np.empty((0, 2)), inside, clipped, low)
    assert not low.any()  # nothing is logged
    assert clipped.tolist() == [False, True, True]
    np.testing.assert_array_equal(inside, [[CLIP, -CLIP], [CLIP, 0.0], [0.0, -CLIP]])


@pytest.mark.kernels
@pytest.mark.parametrize("value", [0.0, -0.0, -5e-324, -1.0, -np.inf])
@pytest.mark.parametrize("row", [0, 63, 64, 129])
def test_logged_columns_with_a_value_that_is_not_positive(row, value):
    X, *units = _sample(130)
    X[row, 1:3] = value  # of them the second is logged
    X[5, 4] = np.nan
    low = np.empty(5, np.bool_)
    to_units(X, *units, CLIP, np.empty((0, 5)), np.empty(X.shape), np.empty(130, np.bool_), low)
    assert low.tolist() == [False, False, True, False, False] == naive.to_units(X, *units, CLIP)[3]
