"""What `Mixture` does with arrays."""

import dataclasses
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import naive
import numpy as np
import pandas as pd
import pytest
from samples import make_mixture

from dpmd_fast import Preprocessor

MIXTURE = make_mixture()
BEHIND = naive.with_background(MIXTURE.weights, MIXTURE.means, MIXTURE.covariances)
NOISE = 0.4
RNG = np.random.default_rng(1)
CLEAN = MIXTURE.sample(400, seed=1)
X = CLEAN + NOISE * RNG.standard_normal(CLEAN.shape)
HOLES = X.copy()
HOLES[RNG.random(X.shape) < 0.2] = np.nan
HOLES[7] = np.nan
GONE = np.isnan(HOLES)
SCALES = Preprocessor((1.0, 2.0, -1.0), (0.5, 3.0, 0.1), (True, False, False), column_names=("a", "b", "c"))
SCALED = make_mixture(preprocess=SCALES)


def original(points):
    """Points in original units, with what is missing in them."""
    return np.where(np.isnan(points), np.nan, SCALES.inverse(np.nan_to_num(points)))


@pytest.mark.parametrize("apart", [1e7, 1e8, 1e9, 1e20, 1e90])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.4, [0.1, 0.0, 2.0]])
def test_components_far_apart_are_no_error(apart, noise):
    """Failed before: the covariance of the whole was singular by rounding, a LinAlgError of NumPy."""
    two = make_mixture(components=2)
    far = dataclasses.replace(two, means=apart * two.means)
    points = np.concatenate([HOLES, apart * HOLES])
    moved = far.transform(points, noise)
    assert np.isfinite(moved).all()


def test_transform_is_the_posterior_mean():
    comp = MIXTURE.transform(HOLES, NOISE)
    for z, mean in zip(HOLES[:40], comp[:40], strict=True):
        ref = naive.mixture_posterior(*BEHIND, np.full(3, NOISE), z)[0]
        np.testing.assert_allclose(mean, ref, rtol=1e-9, atol=1e-9)
    raw, moved = np.mean((X - CLEAN) ** 2), np.mean((MIXTURE.transform(X, NOISE) - CLEAN) ** 2)
    assert moved < 0.9 * raw


def test_what_becomes_of_missing_values():
    filled, status = MIXTURE.transform(HOLES, NOISE, return_status=True)
    assert not np.isnan(filled).any()
    np.testing.assert_array_equal(status == "filled", GONE.any(axis=1))
    assert set(status) == {"ok", "filled"}
    kept, status = MIXTURE.transform(HOLES, NOISE, on_missing="keep", return_status=True)
    np.testing.assert_array_equal(np.isnan(kept), GONE)
    np.testing.assert_array_equal(kept[~GONE], filled[~GONE])
    np.testing.assert_array_equal(status == "missing", GONE.any(axis=1))
    assert set(status) == {"ok", "missing"}
    with pytest.raises(ValueError, match=r"^X has missing values in column 'a', column 'b', column 'c': "):
        MIXTURE.transform(HOLES, NOISE, on_missing="refuse")
    np.testing.assert_array_equal(
        MIXTURE.transform(X, NOISE, on_missing="refuse"), MIXTURE.transform(X, NOISE)
    )
    with pytest.raises(ValueError, match=r"^on_missing = 'drop': must be one of 'fill', 'keep', 'refuse'"):
        MIXTURE.transform(X, NOISE, on_missing="drop")


def test_without_noise_only_missing_values_change():
    filled = MIXTURE.transform(HOLES, 0.0)
    np.testing.assert_array_equal(filled[~GONE], HOLES[~GONE])
    assert not np.isnan(filled).any()
    by_column = MIXTURE.transform(HOLES, [0.0, NOISE, NOISE])
    np.testing.assert_array_equal(by_column[~GONE[:, 0], 0], HOLES[~GONE[:, 0], 0])
    in_original = original(HOLES)
    filled = SCALED.transform(in_original, 0.0)
    np.testing.assert_array_equal(filled[~GONE], in_original[~GONE])


def test_deviations_cover_the_truth():
    rng, clean = np.random.default_rng(2), MIXTURE.sample(8_000, seed=2)
    gone = rng.random(clean.shape) < 0.2
    points = np.where(gone, np.nan, clean + NOISE * rng.standard_normal(clean.shape))
    means, deviations = MIXTURE.posterior(points, NOISE)
    np.testing.assert_array_equal(means, MIXTURE.transform(points, NOISE))
    inside = np.abs(means - clean) <= 1.96 * deviations
    assert 0.92 < inside.mean() < 0.98  # .03 are twelve standard errors if the columns of a row are one
    assert (deviations[gone].mean()) > 1.5 * deviations[~gone].mean()


def test_scores_are_those_of_a_known_mixture():
    from sklearn.mixture import GaussianMixture

    weights, means, clean = BEHIND
    known = GaussianMixture(len(weights))
    covariances = clean + NOISE**2 * np.eye(3)
    known.weights_, known.means_, known.covariances_ = weights, means, covariances
    known.precisions_cholesky_ = np.linalg.inv(np.linalg.cholesky(covariances)).transpose(0, 2, 1)
    np.testing.assert_allclose(MIXTURE.score_samples(X, NOISE), known.score_samples(X), rtol=1e-10)
    scores = MIXTURE.score_samples(HOLES)
    assert scores.shape == (400,)
    assert scores[7] == 0.0
    np.testing.assert_allclose(SCALED.score_samples(original(HOLES)), scores, rtol=1e-6)
    assert MIXTURE.score_samples(X + 20.0).max() < MIXTURE.score_samples(X).min()


def test_samples_follow_the_mixture():
    drawn = MIXTURE.sample(200_000, seed=3)
    mean = MIXTURE.weights @ MIXTURE.means
    gaps = MIXTURE.means - mean
    covariance = np.einsum("k,kij->ij", MIXTURE.weights, MIXTURE.covariances)
    covariance += np.einsum("k,ki,kj->ij", MIXTURE.weights, gaps, gaps)
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.05)
    np.testing.assert_array_equal(MIXTURE.sample(5, seed=1), MIXTURE.sample(5, seed=1))
    assert not np.array_equal(MIXTURE.sample(5), MIXTURE.sample(5))
    assert (SCALED.sample(100, seed=0)[:, 0] > 0.0).all()
    for bad in (0, -1, 1.5, "a"):
        with pytest.raises(ValueError, match=r"^n = "):
            MIXTURE.sample(bad)


def test_original_units():
    plain, spread = MIXTURE.posterior(HOLES, NOISE)
    means, deviations = SCALED.posterior(original(HOLES), NOISE)
    np.testing.assert_allclose(means, original(plain), rtol=1e-9)
    factors = np.array(SCALES.scale) * np.where(SCALES.log, means, 1.0)
    np.testing.assert_allclose(deviations, spread * factors, rtol=1e-6)
    own = {"c": 0.1 * NOISE, "a": 0.5 * NOISE, "b": 3.0 * NOISE}
    for noise in (own, pd.Series(own)):
        np.testing.assert_allclose(SCALED.transform(original(HOLES), noise), means, rtol=1e-9)


def test_values_beyond_the_limit_are_moved_as_far_as_one_at_the_limit():
    points = original(np.zeros((3, 3)))
    points[1, 1], points[2, 1], points[2, 2] = 1e6, 1e6, np.nan
    moved, status = SCALED.transform(points, NOISE, return_status=True)
    assert status.tolist() == ["ok", "clipped", "clipped"]
    limit = points.copy()
    limit[1, 1] = original(np.full((1, 3), SCALES.clip))[0, 1]
    same = SCALED.transform(limit, NOISE)[1]
    assert abs(same[1] - limit[1, 1]) > 0.1
    np.testing.assert_allclose(moved[1, 1] - points[1, 1], same[1] - limit[1, 1], rtol=1e-6)
    np.testing.assert_allclose(moved[1, [0, 2]], same[[0, 2]], rtol=1e-9)
    points[1, 0] = -1.0
    with pytest.raises(ValueError, match=r"^X has values that are not positive in column 'a'"):
        SCALED.transform(points, NOISE)
    with pytest.raises(ValueError, match=r"^X has values that are not positive in column 'a'"):
        SCALED.score_samples(points)


def test_results_beyond_the_range_of_their_type_fail():
    wide = dataclasses.replace(MIXTURE, means=MIXTURE.means + 1e60)
    points = HOLES[:20].astype(np.float32)
    moved, status = wide.transform(points, NOISE, return_status=True)
    lost = (np.abs(wide.transform(points.astype(np.float64), NOISE)) > np.finfo(np.float32).max).any(axis=1)
    assert lost.any()
    np.testing.assert_array_equal(status == "failed", lost)
    np.testing.assert_array_equal(moved[lost], points[lost])
    means, deviations = wide.posterior(points, NOISE)
    np.testing.assert_array_equal(means[lost], points[lost])
    assert np.isnan(deviations[lost]).all()


def test_types_are_kept():
    moved = MIXTURE.transform(HOLES.astype(np.float32), NOISE)
    assert moved.dtype == np.float32
    np.testing.assert_allclose(moved, MIXTURE.transform(HOLES, NOISE), rtol=1e-4, atol=1e-5)
    assert MIXTURE.transform([[1, 2, 3]], NOISE).dtype == np.float64
    assert MIXTURE.posterior(HOLES.astype(np.float32), NOISE)[1].dtype == np.float32


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (-1, r"noise = -1: must be a finite number >= 0 and < 1e\+100"),
        (math.nan, r"noise = nan: must be a finite number"),
        (True, r"noise = True: must be"),
        (None, r"noise = None: must be"),
        ("0.5", r"noise = '0.5': must be"),
        ([0.1, 0.2], r"noise has shape \(2,\): must be a number, or an array with one for each of the 3"),
        ([[0.1, 0.2, 0.3]], r"noise has shape \(1, 3\)"),
        ([0.1, 0.2, -0.1], r"noise: all its numbers must be finite, >= 0 and < 1e\+100"),
        ([0.1, 0.2, math.inf], r"noise: all its numbers"),
        (["a", "b", "c"], r"noise holds values that are not numbers"),
        ({"a": 1.0, "b": 1.0}, r"noise lacks 'c': must have a number for every column"),
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}, r"noise holds 'd': the mixture has 'a', 'b', 'c'"),
        ({"a": 1.0, "b": 1.0, "c": -1.0}, r"noise\['c'\] = -1.0: must be a finite number"),
    ],
)
def test_noise_that_is_refused(noise, message):
    for method in (MIXTURE.transform, MIXTURE.posterior, MIXTURE.score_samples):
        with pytest.raises(ValueError, match=f"^{message}"):
            method(X, noise)


def test_noise_by_name_needs_names():
    with pytest.raises(ValueError, match=r"^noise is given by column: must be a number or an array, since"):
        make_mixture(column_names=None).transform(X, {"a": 1.0})


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros((2, 4)), r"X has 4 features: must have 3"),
        (np.zeros(3), r"X has 1 dimension"),
        (np.array([[0.0, math.inf, 0.0]]), r"X contains infinity: all values must be finite, or NaN where"),
        (np.array([[0.0, 1e101, math.nan]]), r"X contains values beyond 1e\+100"),
        (np.array([["a", "b", "c"]]), r"X holds values that are not numbers"),
    ],
)
def test_points_that_are_refused(points, message):
    for method in (MIXTURE.transform, MIXTURE.posterior, MIXTURE.score_samples):
        with pytest.raises(ValueError, match=f"^{message}"):
            method(points, NOISE)


def test_a_row_gets_the_same_bits_in_every_company():
    together = MIXTURE.posterior(HOLES, NOISE, 2)
    for i in range(0, 400, 23):
        for one, all_of_them in zip(MIXTURE.posterior(HOLES[i : i + 1], NOISE), together, strict=True):
            np.testing.assert_array_equal(one[0], all_of_them[i])
    order = RNG.permutation(400)
    np.testing.assert_array_equal(MIXTURE.transform(HOLES[order], NOISE, 1), together[0][order])


def test_threads_may_share_a_mixture():
    mixture = make_mixture()
    ref = {noise: MIXTURE.transform(HOLES, noise) for noise in (0.0, 0.1, 0.4, 0.7)}

    def work(shift):
        noises = [*ref][shift:] + [*ref][:shift]
        return all(np.array_equal(mixture.transform(HOLES, noise, 1), ref[noise]) for noise in noises * 3)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_cleaners_are_kept_but_not_many():
    mixture = make_mixture()
    first = mixture.cleaner(0.5)
    assert mixture.cleaner(np.full(3, 0.5)) is first
    assert mixture.cleaner(0.5, "keep") is not first
    for noise in range(20):
        mixture.cleaner(0.1 * noise)
    assert mixture.cleaner(0.5) is not first
    assert len(mixture._cleaners) <= 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixture.weights = None


def test_a_cleaner_travels():
    cleaner = SCALED.cleaner({"a": 0.1, "b": 0.2, "c": 0.3}, "keep")
    assert (cleaner.n_columns, cleaner.column_names) == (3, ("a", "b", "c"))
    assert (cleaner.kind, cleaner.missing) == ("mixture", "keep")
    other = pickle.loads(pickle.dumps(cleaner))
    points = original(HOLES)
    moved, codes = cleaner.move(points)
    np.testing.assert_array_equal(other.move(points)[0], moved)
    np.testing.assert_array_equal(other.move(points)[1], codes)
    again, deviations, same = other.move_with_deviations(points)
    np.testing.assert_array_equal(again, moved)
    np.testing.assert_array_equal(same, codes)
    assert (deviations > 0.0).all()
    np.testing.assert_array_equal(dataclasses.replace(other, result="deviations").move(points)[0], deviations)
    assert b"_cleaners" not in pickle.dumps(SCALED)


def test_one_column_and_one_component():
    one = make_mixture(column_names=("a",), components=1)
    points = np.array([[0.3], [np.nan]])
    means, deviations = one.posterior(points, NOISE)
    behind = naive.with_background(one.weights, one.means, one.covariances)
    for z, mean, deviation in zip(points, means, deviations, strict=True):
        ref_mean, ref_deviation = naive.mixture_posterior(*behind, np.full(1, NOISE), z)[:2]
        np.testing.assert_allclose(mean, ref_mean, rtol=1e-12)
        np.testing.assert_allclose(deviation, ref_deviation, rtol=1e-12)


def test_points_unlike_all_records_are_hardly_moved():
    far = X + 40.0
    moved = MIXTURE.transform(far, NOISE)
    assert np.abs(moved - far).max() < NOISE
    alone = naive.mixture_posterior(
        MIXTURE.weights, MIXTURE.means, MIXTURE.covariances, np.full(3, NOISE), far[0]
    )[0]
    assert np.abs(alone - far[0]).max() > 4.0 * NOISE  # what the components alone would do
