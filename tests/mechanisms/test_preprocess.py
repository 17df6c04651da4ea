"""Preprocessing: the paper's rule, round trips, private medians and MADs, atlases in original units."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import statistics
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpmd_fast import Atlas, Budget, BudgetExceeded, Ledger, plan, release_atlas, release_moments
from dpmd_fast.lab.datasets import distance_to_manifold, make_shape, simulate
from dpmd_fast.mechanisms.preprocessor import PreprocessWarning, private_preprocessor
from dpmd_fast.models.atlas_file import _arrays, _metadata, _sealed
from dpmd_fast.models.geometry.layers import Layer
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.privacy import noise as mechanism
from dpmd_fast.privacy.guarantee import certified_guarantee
from dpmd_fast.privacy.histograms import rank_error
from dpmd_fast.reference import preprocessed_records

NAMES = ("crp", "sodium", "score")
PLAIN = Preprocessor((1.0, 140.0, -5.0), (0.5, 3.0, 2.0), (True, False, False))
NAMED = dataclasses.replace(PLAIN, column_names=NAMES)
BUDGET = Budget(1.0, 1e-6)


def original_units(P):
    """Points of preprocessed units, where they came from: columns of different scales, one logged."""
    out = np.asarray(PLAIN.center) + np.asarray(PLAIN.scale) * P
    out[:, 0] = np.exp(out[:, 0])
    return out


# The map


def ref_forward(x, center, scale, log, clip):
    t = math.log(x) if log else x
    return min(max((t - center) / scale, -clip), clip)


def test_forward_is_the_plain_formula():
    rng = np.random.default_rng(0)
    X = original_units(5.0 * rng.normal(size=(200, 3)))
    ref = [
        [
            ref_forward(*arguments, 8.0)
            for arguments in zip(row, PLAIN.center, PLAIN.scale, PLAIN.log, strict=True)
        ]
        for row in X.tolist()
    ]
    comp = PLAIN.forward(X)
    np.testing.assert_allclose(comp, ref, rtol=0.0, atol=8.0 * 2.0**-50)  # the logarithm is our own
    assert (np.abs(comp) == 8.0).any()
    assert (np.abs(comp) < 8.0).any()


@settings(max_examples=200, deadline=None)
@given(
    arrays.arrays(np.float64, (4, 3), elements=st.floats(-7.99, 7.99)),
    st.lists(st.floats(-50.0, 50.0), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 20.0), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_round_trip(P, center, scale, log):
    pre = Preprocessor(center, scale, log)
    X = pre.inverse(P)
    room = 1e-12 * (1.0 + (np.abs(center) + 1.0) / np.asarray(scale))
    assert (np.abs(pre.forward(X) - P) <= room).all()
    again = pre.inverse(pre.forward(X))
    np.testing.assert_allclose(again, X, rtol=1e-11, atol=1e-12 * (1.0 + np.max(np.abs(center))))


def test_beyond_the_limit_only_the_limit_comes_back():
    X = np.array([[math.exp(1.0 + 0.5 * 20.0), 140.0, -5.0]])
    assert PLAIN.forward(X).tolist() == [[8.0, 0.0, 0.0]]
    np.testing.assert_allclose(PLAIN.inverse(PLAIN.forward(X)), [[math.exp(5.0), 140.0, -5.0]], rtol=1e-14)
    assert PLAIN.inverse([[0.0, 9.0, 0.0]])[0, 1] == 167.0  # inverse does not clip
    narrow = dataclasses.replace(PLAIN, clip=2.0)
    assert narrow.forward([[math.e, 200.0, -100.0]]).tolist() == [[0.0, 2.0, -2.0]]


def test_single_precision_stays():
    X = original_units(np.random.default_rng(0).normal(size=(20, 3))).astype(np.float32)
    P = PLAIN.forward(X)
    assert P.dtype == np.float32
    np.testing.assert_array_equal(P, PLAIN.forward(X.astype(np.float64)).astype(np.float32))
    assert PLAIN.inverse(P).dtype == np.float32
    np.testing.assert_allclose(PLAIN.inverse(P), X, rtol=1e-5)


def test_a_record_does_not_depend_on_its_company():
    # part of the privacy proof: the bits of a record are a function of that record
    rng = np.random.default_rng(0)
    X = np.exp(3.0 * rng.normal(size=(1003, 5)))
    pre = Preprocessor(np.zeros(5), np.full(5, 0.7), np.ones(5, dtype=bool), clip=50.0)
    whole = preprocessed_records(pre, X)
    alone = np.concatenate([preprocessed_records(pre, X[i : i + 1]) for i in range(len(X))])
    assert whole.tobytes() == alone.tobytes()
    for size in (2, 3, 7, 64, 501):
        parts = np.concatenate([preprocessed_records(pre, X[i : i + size]) for i in range(0, len(X), size)])
        assert parts.tobytes() == whole.tobytes()
    assert preprocessed_records(pre, np.asfortranarray(X)).tobytes() == whole.tobytes()
    assert whole.tobytes() == pre.forward(X).tobytes()
    np.testing.assert_allclose(whole[:, 0] * 0.7, np.log(X[:, 0]), rtol=2.0**-50)


def test_what_forward_refuses():
    good = original_units(np.zeros((3, 3)))
    for bad in (0.0, -1.0):
        X = good.copy()
        X[1, 0] = bad
        with pytest.raises(
            ValueError,
            match=r"^X has values that are not positive in column 0: logged columns must be positive",
        ):
            PLAIN.forward(X)
        with pytest.raises(ValueError, match=r"^points has .* column 'crp'"):
            NAMED.forward(X, name="points")
    for bad in (np.nan, np.inf, 1e101):
        X = good.copy()
        X[1, 1] = bad
        with pytest.raises(ValueError, match=r"^X contains"):
            PLAIN.forward(X)
    with pytest.raises(ValueError, match="2 features: must have 3"):
        PLAIN.forward(good[:, :2])
    with pytest.raises(ValueError, match=r"beyond the range of float64 .* column 0"):
        PLAIN.inverse([[1e5, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"beyond the range of float32 .* column 0"):
        PLAIN.inverse(np.array([[200.0, 0.0, 0.0]], dtype=np.float32))


def test_columns_of_frames_are_compared():
    X = original_units(np.random.default_rng(0).normal(size=(5, 3)))
    for frame in (pd.DataFrame(X, columns=NAMES), pl.DataFrame(X, schema=list(NAMES))):
        np.testing.assert_array_equal(NAMED.forward(frame), PLAIN.forward(X))
        other = frame[["sodium", "crp", "score"]]
        with pytest.raises(ValueError, match=r"other columns .* must have 'crp', 'sodium', 'score'"):
            NAMED.forward(other)
        with pytest.raises(ValueError, match=r"^reference has other columns"):
            preprocessed_records(NAMED, other)
    table = pa.table(dict(zip(NAMES, X.T, strict=True))).append_column("id", pa.array(range(5)))
    np.testing.assert_array_equal(preprocessed_records(NAMED, table, columns=list(NAMES)), PLAIN.forward(X))


def test_plain_values_and_equality():
    paid = certified_guarantee(BUDGET, mu=0.1, adjacency="replace-one", seeded=False, validated=True)
    for pre in (
        PLAIN,
        NAMED,
        dataclasses.replace(NAMED, guarantee=paid, clip=5.5, center=(1 / 3, 0.1, -1e-300)),
    ):
        again = Preprocessor.from_dict(json.loads(json.dumps(pre.to_dict(), allow_nan=False)))
        assert again == pre
        assert hash(again) == hash(pre)
        assert repr(again) == repr(pre)
    assert PLAIN != NAMED
    assert Preprocessor(np.array([1.0, 2.0]), np.ones(2)) == Preprocessor([1, 2], (1, 1), [False, False])
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAIN.clip = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"center": ()}, "center is empty"),
        ({"center": "abc"}, "center"),
        ({"center": (1.0, math.nan, 2.0)}, "center"),
        ({"center": (1.0, math.inf, 2.0)}, "center"),
        ({"center": (1.0, True, 2.0)}, "center"),
        ({"center": (1.0, "2", 2.0)}, "center"),
        ({"scale": (1.0, 1.0)}, "scale has 2"),
        ({"scale": (1.0, 0.0, 1.0)}, "scale"),
        ({"scale": (1.0, -1.0, 1.0)}, "scale"),
        ({"log": (True,)}, "log"),
        ({"log": (1, 0, 0)}, "log"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"column_names": ("a", "b")}, "column_names"),
        ({"column_names": ("a", "b", "b")}, "column_names"),
        ({"column_names": (1, 2, 3)}, "column_names"),
        ({"guarantee": "private"}, "guarantee"),
    ],
)
def test_numbers_that_are_refused(change, message):
    given_ = {"center": (1.0, 2.0, 3.0), "scale": (1.0, 1.0, 1.0), **change}
    with pytest.raises(ValueError, match=f"^{message}"):
        Preprocessor(**given_)


# The paper's rule on a public sample


def skewed_sample(n=4001, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            np.exp(1.0 + 0.8 * rng.normal(size=n)),  # skewed
            140.0 + 3.0 * rng.normal(size=n),  # not
            np.exp(0.8 * rng.normal(size=n)) - 1.0,  # skewed, not positive
            rng.exponential(size=n) + 1e-6,  # skewed
            -np.exp(0.8 * rng.normal(size=n)) + 1e3,  # skewed to the other side
        ],
        axis=1,
    )


def test_the_papers_rule():
    X = skewed_sample()
    pre = Preprocessor.from_public(X)
    assert pre.log == (True, False, False, True, False)
    assert pre.clip == 8.0
    assert pre.guarantee is None
    P = pre.forward(X)
    for j, column in enumerate(X.T.tolist()):
        t = [math.log(x) for x in column] if pre.log[j] else column
        median = statistics.median(t)
        mad = statistics.median(abs(x - median) for x in t)
        assert pre.center[j] == pytest.approx(median, rel=1e-14)
        assert pre.scale[j] == pytest.approx(mad, rel=1e-12)
        # zero median, unit median absolute deviation, as the paper says
        assert abs(statistics.median(P[:, j])) < 1e-12
        assert statistics.median(np.abs(P[:, j])) == pytest.approx(1.0, rel=1e-12)
    assert np.abs(P).max() <= 8.0


def test_which_columns_are_logged():
    X = skewed_sample()
    names = tuple("abcde")
    frame = pd.DataFrame(X, columns=names)
    assert Preprocessor.from_public(frame).column_names == names
    assert Preprocessor.from_public(pl.DataFrame(X, schema=names)).column_names == names
    assert Preprocessor.from_public(X, column_names=names).column_names == names
    assert Preprocessor.from_public(frame, log=["d", "b"]).log == (False, True, False, True, False)
    assert Preprocessor.from_public(X, log=[False, True, False, False, True]).log[1:] == (
        True,
        False,
        False,
        True,
    )
    assert not any(Preprocessor.from_public(X, log=False).log)
    assert Preprocessor.from_public(X, skewness=0.99).log == (False,) * 5
    with pytest.raises(ValueError, match=r"^sample has values that are not positive in column 2"):
        Preprocessor.from_public(X, log=True)
    for log in ("all", ["a"], [True], 3, None):
        with pytest.raises(ValueError, match=r"^log = "):
            Preprocessor.from_public(X, log=log)
    # the square of a uniform variable is skewed to the right, its logarithm more so to the left
    square = np.linspace(0.001, 1.0, 999)[:, None] ** 2
    assert Preprocessor.from_public(square).log == (False,)
    comp = private_preprocessor(
        np.tile(square, (50, 1)), bounds=[(1e-6, 10.0)], budget=Budget(5.0, 1e-6), bins=4096, seed=0
    )
    assert comp.log == (False,)
    # lognormal columns change at a third standardised moment of about 1, s = 0.31
    rng = np.random.default_rng(1)
    mild, strong = (np.exp(s * rng.normal(size=(20_001, 1))) for s in (0.25, 0.38))
    assert Preprocessor.from_public(mild).log == (False,)
    assert Preprocessor.from_public(strong).log == (True,)


def test_columns_that_do_not_vary_are_named():
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[:30, 1] = 4.0
    with pytest.raises(ValueError, match="median absolute deviation of 0 in column 1"):
        Preprocessor.from_public(X)


# Private medians and MADs


def columns_of(n, D, seed=0):
    """Lognormal and normal columns, with bounds that anybody might give."""
    X = np.random.default_rng(seed).normal(size=(n, D))
    X[:, ::2] = np.exp(1.0 + 0.8 * X[:, ::2])
    X[:, 1::2] = 140.0 + 5.0 * X[:, 1::2]
    bounds = np.empty((D, 2))
    bounds[::2], bounds[1::2] = (0.01, 1000.0), (50.0, 300.0)
    return X, bounds


def test_missing_values_of_a_public_sample_are_left_out():
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(300, 3)) * [0.1, 1.0, 2.0])
    gaps = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    made = Preprocessor.from_public(gaps, missing=True)
    for j in range(3):
        there = gaps[~np.isnan(gaps[:, j]), j]
        alone = Preprocessor.from_public(there[:, None])
        assert (made.center[j], made.scale[j], made.log[j]) == (alone.center[0], alone.scale[0], alone.log[0])
    assert Preprocessor.from_public(X, missing=True) == Preprocessor.from_public(X)
    with pytest.raises(ValueError, match="sample contains NaN or infinity"):
        Preprocessor.from_public(gaps)
    gaps[:, 1] = np.nan
    with pytest.raises(
        ValueError, match="sample has no values in column 'b': must have some in every column"
    ):
        Preprocessor.from_public(gaps, missing=True, column_names=["a", "b", "c"])


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("n", "D", "epsilon"), [(5000, 4, 1.0), (20_000, 10, 0.5), (20_000, 10, 3.0)])
def test_accuracy(n, D, epsilon, adjacency):
    X, bounds = columns_of(n, D)
    budget = Budget(epsilon, 1e-6)
    ref = Preprocessor.from_public(X)
    comp = private_preprocessor(X, bounds=bounds, budget=budget, adjacency=adjacency, seed=1)
    assert comp.log == ref.log == (True, False) * (D // 2)
    # in a normal column, the density is 0.27 per MAD at the median and 0.43 at distance MAD from it
    error = rank_error(n, D, budget, adjacency=adjacency)
    shifts = (np.array(comp.center) - ref.center) / ref.scale
    ratios = np.array(comp.scale) / ref.scale - 1.0
    assert np.abs(shifts).max() < 4.0 * error / 0.27 + 0.01
    assert np.abs(ratios).max() < 4.0 * math.sqrt(2.0) * error / 0.43 + 0.01
    assert 0.3 * error / 0.27 < np.sqrt((shifts**2).mean()) < 2.0 * error / 0.27  # neither without noise


def test_a_large_budget_gives_the_numbers_themselves():
    X, bounds = columns_of(20_000, 4)
    ref = Preprocessor.from_public(X)
    comp = private_preprocessor(X, bounds=bounds, budget=Budget(1000.0, 1e-6), bins=65536, seed=0)
    np.testing.assert_allclose(comp.center, ref.center, atol=1e-3)
    np.testing.assert_allclose(comp.scale, ref.scale, rtol=2e-3)


def test_bounds_may_be_wide():
    X, _ = columns_of(20_000, 2)
    ref = Preprocessor.from_public(X)
    wide = private_preprocessor(X, bounds=[(1e-6, 1e6), (-1000.0, 1000.0)], budget=BUDGET, seed=2)
    assert wide.log == (True, False)
    np.testing.assert_allclose((np.array(wide.center) - ref.center) / ref.scale, 0.0, atol=0.1)
    np.testing.assert_allclose(wide.scale, ref.scale, rtol=0.1)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_budget_is_spent_and_pays_for_the_noise(adjacency, monkeypatch):
    drawn = []
    real = mechanism.rounded_normals

    def watched(source, size, deviation, n_threads=None):
        drawn.append((int(size), deviation))
        return real(source, size, deviation, n_threads)

    monkeypatch.setattr(mechanism, "rounded_normals", watched)
    D, L = 6, 5
    X, bounds = columns_of(3000, D)
    pre = private_preprocessor(X, bounds=bounds, budget=BUDGET, adjacency=adjacency)
    assert pre.guarantee.holds == "unconditional"
    assert pre.guarantee.adjacency == adjacency
    assert (pre.guarantee.epsilon, pre.guarantee.delta) == (1.0, 1e-6)
    assert pre.guarantee.mu == pytest.approx(BUDGET.mu, rel=1e-7)
    assert pre.guarantee.mu <= BUDGET.mu
    assert "preprocessing" in pre.guarantee.statement
    assert any("checked for non-finite" in text for text in pre.guarantee.conditions)
    sizes = [(size, deviation) for size, deviation in drawn if size]
    assert [size for size, _ in sizes] == [D * sum(4**level for level in range(1, L + 1))]
    # Delta / noise in counts, with the noise that was drawn: one count is bound / sqrt(D L) steps
    deviation = sizes[0][1]
    apart = math.sqrt(2.0) if adjacency == "replace-one" else 1.0
    unit = math.isqrt(int(pre.guarantee.mu * deviation / apart + 0.5) ** 2 // (D * L))
    assert apart * math.sqrt(D * L) * unit / deviation == pytest.approx(BUDGET.mu, rel=1e-6)


def test_a_seed_is_not_private():
    X, bounds = columns_of(3000, 2)
    a, b = (private_preprocessor(X, bounds=bounds, budget=BUDGET, seed=7) for _ in range(2))
    assert a == b
    assert a.guarantee.holds == "not private"
    c, d = (private_preprocessor(X, bounds=bounds, budget=BUDGET) for _ in range(2))
    assert c.center != d.center


def test_bits_do_not_depend_on_batches_order_or_files(tmp_path):
    X, bounds = columns_of(3001, 3)
    X[5, 0], X[7, 1] = np.nan, np.inf
    names = ["a", "b", "c"]
    arguments = {"budget": BUDGET, "seed": 3, "on_invalid": "drop"}
    ref = private_preprocessor(X, bounds=bounds, **arguments)
    rng = np.random.default_rng(0)
    paths = []
    for k, rows in enumerate(np.array_split(rng.permutation(len(X)), 3)):
        paths.append(tmp_path / f"{k}.parquet")
        pq.write_table(pa.table(dict(zip(names, X[rows].T, strict=True))), paths[-1], row_group_size=101)
    table = pa.table({"id": range(len(X)), **dict(zip(names, X.T, strict=True))})
    by_name = dict(zip(names, bounds.tolist(), strict=True))
    for reference, options in (
        (X[rng.permutation(len(X))], {"bounds": bounds}),
        (X, {"bounds": bounds.tolist(), "batch_rows": 63}),
        (paths, {"bounds": by_name, "batch_rows": 77}),
        (pd.DataFrame(X, columns=names), {"bounds": by_name}),
        (pl.DataFrame(X, schema=names), {"bounds": by_name}),
        (table.to_reader(max_chunksize=55), {"bounds": by_name, "columns": names}),  # read once
    ):
        comp = private_preprocessor(reference, **arguments, **options)
        assert (comp.center, comp.scale, comp.log) == (ref.center, ref.scale, ref.log)
        assert comp.column_names == (None if isinstance(reference, np.ndarray) else tuple(names))


SECRET = -918273.645


def test_invalid_records_are_refused_without_a_word_about_them():
    X, bounds = columns_of(3000, 2)
    for row, value in ((1234, np.nan), (77, np.inf), (2222, -1e101), (431, SECRET)):
        dirty = X.copy()
        dirty[row, 0] = value
        with pytest.raises(ValueError, match="non-finite or too large") as refused:
            private_preprocessor(dirty, bounds=bounds, budget=BUDGET, log=[True, False])
        told = str(refused.value)
        assert "must be positive" in told
        for secret in ("918273", "1234", "2222", "431", "77", "3000", "1e+101"):
            assert secret not in told
        assert refused.value.__context__ is None
    # not refused where the logarithm is not asked for: it counts in the lowest bin
    private_preprocessor(dirty, bounds=bounds, budget=BUDGET, seed=0)


def test_dropped_values_count_nowhere_and_nothing_is_said():
    X, bounds = columns_of(3000, 2)
    more = np.array([[np.nan, 140.0], [SECRET, 140.0], [0.0, 140.0], [np.inf, 140.0]])
    none = np.array([[np.nan, np.nan], [SECRET, 1e200], [0.0, -np.inf]])
    arguments = {"bounds": bounds, "budget": BUDGET, "log": [True, False], "on_invalid": "drop", "seed": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ref = private_preprocessor(X, **arguments)
        comp = private_preprocessor(np.concatenate([none, X, more]), **arguments)
        assert private_preprocessor(np.concatenate([X, none]), **arguments) == ref
    assert (comp.center[0], comp.scale[0]) == (ref.center[0], ref.scale[0])
    assert comp.center[1] != ref.center[1]  # four values more
    assert np.isnan(preprocessed_records(comp, none)).any(axis=1).all()


def test_what_the_release_shows_to_be_poor_is_said():
    X, bounds = columns_of(3000, 2)
    with pytest.warns(PreprocessWarning, match="at or beyond the bounds in column 1: widen them"):
        private_preprocessor(X, bounds=[(0.01, 1000.0), (140.0, 300.0)], budget=BUDGET, seed=0)
    with pytest.warns(PreprocessWarning, match="MAD is below one bin in column 1: give narrower"):
        private_preprocessor(X, bounds=[(0.01, 1000.0), (0.0, 1e5)], budget=BUDGET, seed=0)
    with pytest.warns(PreprocessWarning, match=r"uncertain by \d\d% of the records"):
        private_preprocessor(X[:200], bounds=bounds, budget=BUDGET, seed=0)
    with pytest.warns(PreprocessWarning, match=r"uncertain by"):
        private_preprocessor(X[:150], bounds=bounds, budget=BUDGET, seed=0, adjacency="add-remove")


FRAME, FRAME_BOUNDS = columns_of(2000, 2)
FRAME = pd.DataFrame(FRAME, columns=["a", "b"])
GOOD = {"reference": FRAME, "bounds": {"a": (0.01, 1000.0), "b": (50.0, 300.0)}, "budget": BUDGET}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": {"a": (0.01, 1000.0)}}, "bounds lacks 'b'"),
        ({"bounds": {"a": (0.01, 1000.0), "b": (50.0, 300.0), "c": (0, 1)}}, "bounds has 'c'"),
        ({"bounds": [(0.01, 1000.0)]}, "bounds: must hold"),
        ({"bounds": (0.01, 1000.0)}, "bounds: must hold"),
        ({"bounds": "wide"}, "bounds: must hold"),
        ({"bounds": [(0.01, 1000.0), (50.0, 50.0)]}, "bounds of column 'b'"),
        ({"bounds": [(0.01, 1000.0), (50.0, math.nan)]}, "bounds of column 'b'"),
        ({"bounds": [(0.01, 1000.0), (-math.inf, 300.0)]}, "bounds of column 'b'"),
        (
            {"bounds": [(0.0, 1000.0), (50.0, 300.0)], "log": ["a"]},
            "bounds of column 'a': low must be positive",
        ),
        ({"bounds": [(0.01, 1000.0), (50.0, 50.0 + 1e-13)]}, "bounds of column 'b': .*narrow"),
        ({"reference": FRAME.to_numpy()}, "bounds maps column names"),
        ({"reference": FRAME[:0]}, "reference has no rows"),
        ({"log": ["c"]}, "log = "),
        ({"bins": 1000}, "bins = "),
        ({"clip": -1.0}, "clip = "),
        ({"skewness": 1.5}, "skewness = "),
        ({"budget": 1.0}, "budget = "),
        ({"budget": Budget(0.001, 1e-6)}, "budget = .* in rank"),
        ({"adjacency": "near"}, "adjacency = "),
        ({"on_invalid": "nan"}, "on_invalid = "),
        ({"columns": ["z"]}, "columns "),
        ({"seed": -1}, "seed = "),
        ({"dataset": "x"}, "ledger = None"),
    ],
)
def test_bad_input_is_refused_before_any_noise_is_drawn(change, message, monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(mechanism, "rounded_normals", forbidden)
    with pytest.raises(ValueError, match=f"^{message}"):
        private_preprocessor(**{**GOOD, **change})


def test_a_ledger_pays(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("biobank", 1.2, 1e-6)
    before = ledger.remaining("biobank")
    pre = private_preprocessor(**GOOD, ledger=ledger, dataset="biobank")
    (spend,) = ledger.history("biobank")
    assert spend.mu2 == pytest.approx(pre.guarantee.mu**2, rel=1e-12)
    assert spend.parameters == {
        **{"epsilon": 1.0, "delta": 1e-6, "conversion": "gdp"},
        **{"columns": 2, "bins": 1024, "on_invalid": "raise"},
    }
    assert any("charged to a ledger" in text for text in pre.guarantee.conditions)
    assert before - ledger.remaining("biobank") == pytest.approx(BUDGET.mu**2, rel=1e-6)
    with pytest.raises(BudgetExceeded):
        private_preprocessor(**GOOD, ledger=ledger, dataset="biobank")
    with pytest.raises(ValueError, match="seed"):
        private_preprocessor(**GOOD, ledger=ledger, dataset="biobank", seed=1)
    assert len(ledger.history("biobank")) == 1


# Atlases in original units

SHAPE = make_shape("torus")
DATA = simulate(SHAPE, 4000, 300, 0.05, np.random.default_rng(0))
Y, Z = original_units(DATA.references), original_units(DATA.queries)
LOOSE = {"dim": 2, "budget": Budget(10.0, 1e-4), "bandwidth": 0.9, "rounds": 2}


@pytest.fixture(scope="module")
def atlas():
    return release_atlas(Y, Z, preprocess=NAMED, seed=1, **LOOSE)


def same_layers(a, b):
    ours, theirs = _arrays(a), _arrays(b)
    return list(ours) == list(theirs) and all(ours[k].tobytes() == theirs[k].tobytes() for k in ours)


def test_an_atlas_of_original_units_is_that_of_preprocessed_ones(atlas):
    inner = release_atlas(preprocessed_records(NAMED, Y), NAMED.forward(Z), seed=1, **LOOSE)
    assert same_layers(atlas, inner)
    assert atlas.preprocess == NAMED
    assert atlas.column_names == NAMES
    assert atlas.guarantee == inner.guarantee
    assert atlas.spends == inner.spends
    moved, status = atlas.transform(Z, return_status=True)
    before, inner_status = inner.transform(NAMED.forward(Z), return_status=True)
    np.testing.assert_allclose(moved, NAMED.inverse(before), rtol=1e-12)
    np.testing.assert_allclose(NAMED.forward(moved), before, atol=1e-12)
    np.testing.assert_array_equal(status, inner_status)
    errors = [distance_to_manifold(points, SHAPE).mean() for points in (NAMED.forward(Z), before)]
    assert errors[1] < 0.3 * errors[0]


def test_other_kinds_of_references_and_bits(tmp_path, atlas):
    rows = np.random.default_rng(1).permutation(len(Y))
    table = pa.table({"id": rows, **dict(zip(NAMES, Y[rows].T, strict=True))})
    pq.write_table(table, tmp_path / "y.parquet", row_group_size=333)
    arguments = {"preprocess": NAMED, "columns": list(NAMES), "seed": 1, **LOOSE}
    for reference, options in ((table.to_pandas(), {}), (tmp_path / "y.parquet", {"batch_rows": 777})):
        comp = release_atlas(reference, pd.DataFrame(Z, columns=NAMES), **arguments, **options)
        assert same_layers(comp, atlas)
    with pytest.raises(ValueError, match="reference has other columns than the preprocessor"):
        release_atlas(table, Z, **{**arguments, "columns": ["sodium", "crp", "score"]})


def test_tables_in_original_units(atlas):
    ref, status = atlas.transform(Z, return_status=True)
    for table in (
        pd.DataFrame(Z, columns=NAMES).assign(id=1),
        pl.DataFrame(Z, schema=list(NAMES)),
        pa.table(dict(zip(NAMES, Z.T, strict=True))),
    ):
        moved, comp_status = atlas.transform(table, return_status=True)
        assert type(moved) is type(table)
        np.testing.assert_array_equal(np.stack([np.asarray(moved[name]) for name in NAMES], axis=1), ref)
        np.testing.assert_array_equal(comp_status, status)
    single = Z.astype(np.float32)
    moved = atlas.transform(single)
    assert moved.dtype == np.float32
    np.testing.assert_allclose(moved, ref, rtol=1e-4)
    frame = pd.DataFrame(single, columns=NAMES)
    assert set(atlas.transform(frame).dtypes) == {np.dtype(np.float32)}
    bad = Z.copy()
    bad[17, 0] = -2.0
    for given_ in (bad, pd.DataFrame(bad, columns=NAMES), pa.table(dict(zip(NAMES, bad.T, strict=True)))):
        with pytest.raises(ValueError, match=r"^Z has values that are not positive in column 'crp'"):
            atlas.transform(given_)


def test_files(tmp_path, atlas):
    path = tmp_path / "map.dpmd"
    paid = certified_guarantee(BUDGET, mu=0.1, adjacency="replace-one", seeded=False, validated=True)
    for pre in (NAMED, dataclasses.replace(NAMED, guarantee=paid)):
        whole = dataclasses.replace(atlas, preprocess=pre)
        whole.save(path)
        loaded = Atlas.load(path)
        assert loaded.preprocess == pre
        assert same_layers(loaded, whole)
        for points in (Z, Z.astype(np.float32)):
            (comp, comp_status), (ref, ref_status) = (
                one.transform(points, return_status=True) for one in (loaded, whole)
            )
            assert comp.tobytes() == ref.tobytes()
            np.testing.assert_array_equal(comp_status, ref_status)
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
    noted = json.loads(pa.ipc.open_file(path).read_all().schema.metadata[b"dpmd-fast"])
    assert noted["version"] == 3
    assert sorted(noted["preprocess"]) == ["center", "clip", "column_names", "guarantee", "log", "scale"]
    data = path.read_bytes()
    number = b'"center":[1.0'
    assert data.count(number) == 2
    path.write_bytes(data.replace(number, b'"center":[1.1'))
    with pytest.raises(
        ValueError, match=r"was edited or damaged: its checksum does not match; get a fresh copy of the file$"
    ):
        Atlas.load(path)


def put(*way):
    *keys, last, value = way

    def change(metadata):
        for key in keys:
            metadata = metadata[key]
        metadata[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("preprocess", None), "its preprocessing: a preprocessor must have exactly"),
        (put("preprocess", "code", "x"), "its preprocessing: a preprocessor must have exactly"),
        (put("preprocess", "center", [1.0, 2.0]), "its preprocessing: scale has 3"),
        (put("preprocess", "center", "abc"), "its preprocessing: center"),
        (put("preprocess", "center", 1, None), "its preprocessing: center"),
        (put("preprocess", "scale", 1, 0.0), "its preprocessing: scale"),
        (put("preprocess", "log", [1, 0, 0]), "its preprocessing: log"),
        (put("preprocess", "clip", -8.0), "its preprocessing: clip"),
        (put("preprocess", "column_names", ["a", "b", "c"]), "preprocess has other column names"),
        (put("preprocess", "column_names", "abc"), "its preprocessing: .*must be lists"),
        (put("preprocess", "guarantee", {}), "its preprocessing: guarantee"),
        (put("preprocess", "guarantee", [1]), "its preprocessing: guarantee"),
        (put("preprocess", "guarantee", {"epsilon": 1.0, "conditions": []}), "its preprocessing: guarantee"),
        (put("preprocess", Preprocessor([1.0], [1.0]).to_dict()), "preprocess has 1 columns: must have 3"),
        (lambda metadata: metadata.pop("preprocess"), "its metadata lacks 'preprocess'"),
    ],
)
def test_files_with_a_right_checksum_that_do_not_fit(tmp_path, atlas, change, message):
    metadata = json.loads(json.dumps(_metadata(atlas)))
    change(metadata)
    path = tmp_path / "tested"
    path.write_bytes(_sealed(metadata, _arrays(atlas), version=2))
    with pytest.raises(ValueError, match=f" is not a valid atlas: {message}"):
        Atlas.load(path)


def test_a_file_of_version_1_has_no_preprocessing(tmp_path, atlas):
    path = tmp_path / "tested"
    path.write_bytes(_sealed(_metadata(atlas), _arrays(atlas), version=1))
    with pytest.raises(ValueError, match="its metadata has the unexpected 'preprocess'"):
        Atlas.load(path)


def flat_atlas(pre):
    """Everything is projected onto the line along the first axis, in preprocessed units."""
    layer = Layer(np.zeros((1, 2)), np.array([[[1.0], [0.0]]]), np.ones(1), 100.0, 1, 1.0)
    guarantee = certified_guarantee(BUDGET, mu=0.1, adjacency="replace-one", seeded=False, validated=True)
    return Atlas(guarantee, (layer,), None, 1, 100.0, (100.0,), (("round 1", 0.01),), None, pre)


def test_coordinates_beyond_the_limit():
    pre = Preprocessor([10.0, 0.0], [2.0, 1.0], [False, True])
    flat = flat_atlas(pre)
    X = np.array(
        [
            [11.0, math.e],  # (0.5, 1): moved to (0.5, 0)
            [1000.0, 1.0],  # (8, 0), clipped along the line: stays, with its value
            [11.0, math.exp(20.0)],  # (0.5, 8), clipped across it: moved to (0.5, 0)
            [1000.0, math.exp(20.0)],
        ]
    )
    moved, status = flat.transform(X, return_status=True)
    assert status.tolist() == ["ok", "clipped", "clipped", "clipped"]
    np.testing.assert_array_equal(moved, [[11.0, 1.0], [1000.0, 1.0], [11.0, 1.0], [1000.0, 1.0]])
    np.testing.assert_array_equal(pre.forward(moved), [[0.5, 0.0], [8.0, 0.0], [0.5, 0.0], [8.0, 0.0]])
    np.testing.assert_array_equal(X[1], [1000.0, 1.0])


def test_points_out_of_reach_keep_their_bits(atlas):
    far = np.array([[1e-9, 1e5, 0.1], [0.1 + 0.2, 139.7, 1e7]])
    moved, status = atlas.transform(far, return_status=True)
    assert status.tolist() == ["outside", "outside"]
    assert moved.tobytes() == far.tobytes()


def test_results_beyond_the_range_of_a_type():
    flat = flat_atlas(Preprocessor([0.0, 100.0], [1.0, 50.0], [False, True]))
    X = np.array([[0.5, 1.0]])
    moved, status = flat.transform(X, return_status=True)
    np.testing.assert_allclose(moved, [[0.5, math.exp(100.0)]])
    assert status.tolist() == ["ok"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved, status = flat.transform(X.astype(np.float32), return_status=True)
    np.testing.assert_array_equal(moved, X)
    assert status.tolist() == ["failed"]


def test_invalid_records_of_an_atlas():
    dirty = np.concatenate([Y, [[-1.0, 140.0, 0.0], [np.nan, 140.0, 0.0], [1.0, 1e200, 0.0]]])
    arguments = {"preprocess": NAMED, "seed": 1, **LOOSE}
    with pytest.raises(
        ValueError, match=r"non-finite or too large values.*logged columns must be positive"
    ) as refused:
        release_atlas(dirty, Z, **arguments)
    assert "crp" not in str(refused.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        arguments |= {"adjacency": "add-remove", "n_public": len(Y), "on_invalid": "drop"}
        comp = release_atlas(dirty, Z, **arguments)
    assert same_layers(comp, release_atlas(Y, Z, **arguments))


def test_the_guarantee_covers_a_preprocessing_that_was_paid_for(tmp_path):
    bounds = [(0.01, 1000.0), (100.0, 200.0), (-50.0, 50.0)]
    first, second = Budget(0.3, 1e-6), Budget(1.0, 1e-6)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("torus", 2.0, 1e-6)
    account = {"ledger": ledger, "dataset": "torus"}
    pre = private_preprocessor(Y, bounds=bounds, budget=first, log=[True, False, False], **account)
    arguments = {"dim": 2, "budget": second, "bandwidth": 3.0, "rounds": 1, "accept_risk": True}
    both = release_atlas(Y, Z, preprocess=pre, **arguments, **account)
    assert [spend.mu2 for spend in ledger.history("torus")] == [
        pytest.approx(first.mu**2, rel=1e-6),
        pytest.approx(second.mu**2, rel=1e-6),
    ]
    assert both.guarantee.mu**2 == pytest.approx(first.mu**2 + second.mu**2, rel=1e-6)
    assert both.guarantee.holds == "unconditional"
    exact = Budget.from_rho(0.5 * (first.mu**2 + second.mu**2), 1e-6).epsilon
    assert exact * (1.0 - 1e-6) <= both.guarantee.epsilon <= exact * (1.0 + 1e-5)
    assert "preprocessing" in both.guarantee.statement
    assert both.spends[0] == ("preprocessing", pre.guarantee.mu**2)
    assert math.fsum(mu2 for _, mu2 in both.spends) == pytest.approx(both.guarantee.mu**2, rel=1e-9)
    both.save(tmp_path / "map.dpmd")
    assert Atlas.load(tmp_path / "map.dpmd").guarantee == both.guarantee
    seeded = private_preprocessor(Y, bounds=bounds, budget=first, log=[True, False, False], seed=1)
    assert release_atlas(Y, Z, preprocess=seeded, **arguments).guarantee.holds == "not private"
    with pytest.raises(ValueError, match=r"^preprocess was made with a seed"):
        release_atlas(Y, Z, preprocess=seeded, **arguments, **account)
    with pytest.raises(ValueError, match=r"^adjacency = 'add-remove': the preprocessing was released under"):
        release_atlas(Y, Z, preprocess=seeded, adjacency="add-remove", n_public=4000, **arguments)
    assert len(ledger.history("torus")) == 2


def test_a_data_set_is_known_by_its_records_in_original_units(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("torus", 20.0, 1e-4, fingerprint=Ledger.fingerprint_of(Y))
    account = {"ledger": ledger, "dataset": "torus"}
    bounds = [(0.01, 1000.0), (100.0, 200.0), (-50.0, 50.0)]
    private_preprocessor(Y, bounds=bounds, budget=BUDGET, **account)
    release_atlas(Y, Z, preprocess=NAMED, **LOOSE, **account)
    assert len(ledger.history("torus")) == 2
    with pytest.raises(ValueError, match="bound to another reference"):
        private_preprocessor(Y[1:], bounds=bounds, budget=BUDGET, **account)


def test_what_an_atlas_refuses(monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(mechanism, "rounded_normals", forbidden)
    low = Z.copy()
    low[3, 0] = 0.0
    for change, message in (
        ({"preprocess": "paper"}, "^preprocess = 'paper'"),
        ({"anchors": low}, "^anchors has values that are not positive in column 'crp'"),
        ({"anchors": Z[:, :2]}, "^anchors has 2 features"),
        ({"reference": Y[:, :2]}, "^reference has 2 column"),
        ({"preprocess": Preprocessor([0.0], [1.0])}, "^anchors has 3 features: must have 1"),
        ({"anchors": Y[:500]}, "part of the reference"),
    ):
        with pytest.raises(ValueError, match=message):
            release_atlas(**{"reference": Y, "anchors": Z, "preprocess": NAMED, **LOOSE, **change})


def test_arrays_may_be_preprocessed_for_other_releases():
    places = NAMED.forward(Z[:5])
    release = release_moments(preprocessed_records(NAMED, Y), places, bandwidth=1.0, budget=BUDGET, seed=0)
    ref = release_moments(DATA.references, DATA.queries[:5], bandwidth=1.0, budget=BUDGET, seed=0)
    np.testing.assert_allclose(release.mass, ref.mass, rtol=1e-6)
    assert np.isnan(preprocessed_records(NAMED, -Y)[:, 0]).all()
    assert preprocessed_records(NAMED, Y[:0]).shape == (0, 3)


def test_plan_takes_original_units():
    data = simulate(make_shape("torus"), n=10, m=200, sigma=0.1, rng=np.random.default_rng(0))
    settings = {"dim": 2, "budget": BUDGET}
    wanted = plan(data.queries, 5000, **settings)
    found = plan(original_units(data.queries), 5000, preprocess=PLAIN, **settings)
    assert found.bandwidth == pytest.approx(wanted.bandwidth, rel=1e-9)
    assert found.signal_to_noise == pytest.approx(wanted.signal_to_noise, rel=1e-9)
    with pytest.raises(ValueError, match="preprocess"):
        plan(data.queries, 5000, preprocess="log", **settings)


def test_the_receipt_stays_in_this_process(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("people", 5.0, 1e-6)
    data = np.random.default_rng(0).normal(size=(5000, 2))
    bounds = [[-9.0, 9.0]] * 2
    made = private_preprocessor(
        data, bounds=bounds, budget=BUDGET, log=False, ledger=ledger, dataset="people"
    )
    assert made.receipt.spend == ledger.history("people")[0]
    assert "ledger.db" not in repr(made)
    assert "ledger.db" not in json.dumps(made.to_dict())
    assert copy.copy(made).receipt is None
    assert b"ledger.db" not in pickle.dumps(made)
    assert pickle.loads(pickle.dumps(made)) == made
    settings = {"dim": 1, "bandwidth": 3.0, "budget": Budget(2.0, 1e-6), "accept_risk": True}
    atlas = release_atlas(
        data, data[:300] + 0.1, preprocess=made, ledger=ledger, dataset="people", **settings
    )
    assert atlas.preprocess == made
    assert atlas.preprocess.receipt is None


def test_moved_refuses_other_columns_and_takes_any_layout():
    units = Preprocessor((0.5,) * 4, (2.0,) * 4, log=(True, False, True, False))
    points = np.random.default_rng(0).uniform(0.5, 2.0, (30, 4))

    def move(inside):
        return inside + 0.25, np.ones(len(inside), np.bool_)

    for columns in (1, 2, 6, 4_000):
        with pytest.raises(ValueError, match="must have 4 columns"):
            units.moved(np.ones((3, columns)), move)
    expected = units.moved(points, move)[0]
    frozen = points.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(points), np.repeat(points, 2, axis=1)[:, ::2], frozen):
        np.testing.assert_array_equal(units.moved(same, move)[0], expected)
    single = points.astype(np.float32)
    np.testing.assert_array_equal(units.moved(single, move)[0], units.moved(single.astype(float), move)[0])
